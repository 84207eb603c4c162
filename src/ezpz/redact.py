"""Hide the secrets of a command line: the value of an option or setting whose name ends like a secret's."""

from __future__ import annotations

import re

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["HIDDEN", "SECRET", "redact_argv", "without_login"]

HIDDEN = "<redacted>"

# The last word of a name decides: --api-key, --wandb_token, +db.password, AWS_SECRET; not --tokenizer, not
# --keys-per-row.
SECRET = re.compile(r"(key|token|passw(or)?d|passphrase|secret|credentials?)$", re.IGNORECASE)
_URL_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")  # https://user:password@host


def without_login(text: str) -> str:
    """Return a text without the logins of its URLs."""
    return _URL_LOGIN.sub(f"{HIDDEN}@", text)


def redact_argv(argv: Sequence[str]) -> list[str]:
    """Return arguments with the value of every option or setting whose name ends like a secret's taken out.

    Knows ``--api-key V``, ``--api-key=V``, ``api_key=V`` and logins inside URLs.
    """
    shown = []
    hide_next = False
    for word in argv:
        name, equals, _ = word.partition("=")
        if hide_next and not word.startswith("--"):
            shown.append(HIDDEN)
        elif equals and SECRET.search(name):
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(without_login(word))
        hide_next = not equals and word.startswith("-") and bool(SECRET.search(word))
    return shown
