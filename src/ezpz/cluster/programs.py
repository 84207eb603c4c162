"""Find the commands of schedulers: on PATH, else where a scheduler keeps them itself.

A job may have no folder of its own scheduler on PATH (argonne-lcf/user-guides@7d04a3f,
docs/polaris/workflows/dragon.md).
"""

from __future__ import annotations

import os

from ezpz.files import find_program, read_text

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping


def find(name: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the path of a command; empty where there is none.

    Args:
        name: Its name, or a path, which is then not looked for.
        environ: Variables with PATH; by default those of this process.
    """
    environ = os.environ if environ is None else environ
    found = find_program(name, environ.get("PATH"))
    return found or next(filter(None, (find_program(f"{folder}/{name}") for folder in _folders(name, environ))), "")


def missing(name: str, environ: Mapping[str, str] | None = None) -> str:
    """Return in words that a command is not there, and where it was looked for."""
    folders = ", ".join(_folders(name, os.environ if environ is None else environ))
    return f"no {name} on PATH{f' or in {folders}' if folders else ''}"


def _folders(name: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return where else the scheduler of a command keeps it."""
    from ezpz.cluster.scheduler import schedulers

    if os.path.dirname(name):
        return ()
    return next((one.folders(environ, read_text) for one in schedulers() if name in one.commands), ())
