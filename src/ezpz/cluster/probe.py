"""The real file reader and command runner behind `detect`; tests pass their own instead of patching these."""

from __future__ import annotations

__all__ = ["read", "run"]

_TIME_LIMIT = 5.0  # seconds: a scheduler or driver tool that takes longer must not hold up a launch


def read(path: str) -> str | None:
    """Return the text of a file, or None when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # pathlib costs a launch 10 ms
            return file.read()
    except OSError:
        return None


def run(argv: list[str]) -> str | None:
    """Return what a command printed, or None when it is absent, fails or exceeds five seconds."""
    import subprocess

    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIME_LIMIT,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
