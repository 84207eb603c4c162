"""Read the administrator's file: what a machine's administrators set for all its users, who may choose otherwise.

    # /etc/ezpz/site.toml
    [launch]
    check = "off"        # of `launch --check`: fast, full or off
    save_at_end = "off"  # on: ranks are asked to save before the job ends, and before a SIGTERM
    sampling = 60        # seconds between two samples of the hardware; "off" for none

It is read before any setting of the user's. Unlike a site table (docs/sites.md) it says nothing about the machine.
"""

from __future__ import annotations

import os

from ezpz.errors import UsageError, did_you_mean
from ezpz.fields import Record

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["CHECKS", "SAMPLING", "Default", "default"]

CHECKS = ("fast", "full", "off")
_FILE = "/etc/ezpz/site.toml"
_VARIABLE = "EZPZ_SITE_TOML"  # another file, for tests and for administrators who try theirs; empty for none
SAMPLING = (0.1, 3600.0)  # seconds between two samples of the hardware: the fewest, and the most
# What each key may be: these words, and a number between two where there are two numbers.
_KEYS: dict[str, tuple[str | float, ...]] = {
    "launch.check": CHECKS,
    "launch.save_at_end": ("on", "off"),
    "launch.sampling": ("off", *SAMPLING),
}


class Default(Record):
    """A value that holds where the user has chosen none, and who set it."""

    value: str
    origin: str


def default(key: str, environ: Mapping[str, str], otherwise: str) -> Default:
    """Return the administrator's value of a key such as ``launch.check``.

    Args:
        key: It.
        environ: Names the file, perhaps.
        otherwise: The value where the file has none, or is not there.

    Raises:
        UsageError: The file cannot be read, or holds what is not known here.
    """
    path = environ.get(_VARIABLE, _FILE)
    try:
        with open(path or os.devnull, encoding="utf-8") as file:
            text = file.read()
    except (FileNotFoundError, NotADirectoryError) as error:
        if _VARIABLE not in environ:
            return Default(otherwise, "default")
        raise UsageError(_unread(path, f"{error.strerror} (from {_VARIABLE})")) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(_unread(path, str(getattr(error, "strerror", "") or error))) from None
    found = _read(text, path) if text.strip() else {}
    return Default(found[key], path) if key in found else Default(otherwise, "default")


def _unread(path: str, reason: str) -> str:
    return f"cannot read {path}: {reason}; expected the administrator's settings, as TOML. Correct or remove it."


def _read(text: str, path: str) -> dict[str, str]:
    """Return the values by their keys, each checked.

    Raises:
        UsageError: One is not known.
    """
    import sys
    from importlib import import_module

    # From 3.11 on the parser is Python's own; tomli is the same one for 3.10.
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        read = toml.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(_unread(path, str(error))) from None
    found = {}
    for name, table in read.items():
        for key, value in (table if isinstance(table, dict) else {"": table}).items():
            full = f"{name}.{key}" if key else name
            if full not in _KEYS:
                near = did_you_mean(full, _KEYS)
                raise UsageError(
                    f"unknown key {full} = {value!r} (from {path}); expected {', '.join(_KEYS)}.{near} Correct or "
                    "remove it: it is the administrator's file."
                )
            if not _is_allowed(value, _KEYS[full]):
                raise UsageError(
                    f"bad value {full} = {value!r} (from {path}); expected {_expected(_KEYS[full])}. Correct that key: "
                    "it is the administrator's file."
                )
            found[full] = str(value)
    return found


def _is_allowed(value: object, allowed: Sequence[str | float]) -> bool:
    numbers = [each for each in allowed if isinstance(each, float)]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return bool(numbers) and (numbers[0] <= value <= numbers[1])
    return isinstance(value, str) and value in allowed


def _expected(allowed: Sequence[str | float]) -> str:
    words, numbers = ([each for each in allowed if isinstance(each, kind)] for kind in (str, float))
    span = [f"seconds from {numbers[0]:g} to {numbers[1]:g}"] if numbers else []
    return ", ".join([*map(str, words), *span])
