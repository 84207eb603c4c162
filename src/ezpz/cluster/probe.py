"""The real file reader and command runner behind `detect`; tests pass their own instead of patching these."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.cluster.allocation import Read
    from ezpz.cluster.questions import Questions


# Whether a name means this host.


def is_here(host: str) -> bool:
    """Tell whether a host name means this host; names are compared by their first label."""
    return host.split(".", maxsplit=1)[0] in {os.uname().nodename.split(".")[0], "localhost", "127"}


__all__ = ["host_name", "is_here", "is_same_host", "read", "run", "run_nothing", "tools"]

_silent: list[str] = []  # tools that gave no answer in time: they are asked nothing more
_TOOL_LIMIT = 5.0  # seconds: a driver's tool may have to wake the devices, but must not hold up a launch


def read(path: str | os.PathLike[str]) -> str | None:
    """Return the text of what the system or this user's environment names, of any kind; None when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except (OSError, ValueError):  # ValueError: a path with a NUL, from a garbage variable
        return None


def run(argv: list[str]) -> str | None:
    """Return what a command printed, or None when it is absent, fails or exceeds five seconds."""
    return tools()(argv)


def tools() -> Questions:
    """Return what asks the tools of this host, each for five seconds at most, and keeps what they say as they fail."""
    from ezpz.cluster.questions import Questions  # which most launches need not

    questions = Questions(_TOOL_LIMIT)
    questions.unanswered = _silent
    return questions


def run_nothing(argv: list[str]) -> str | None:
    """Run no command: for ranks, of which ten thousand must not ask one scheduler at the same moment."""
    del argv
    return None


def host_name(read: Read) -> str:
    """Return this host's name as the kernel tells it."""
    from os import uname

    return (read("/proc/sys/kernel/hostname") or "").strip() or uname().nodename


def is_same_host(one: str, other: str) -> bool:
    """Tell whether two names mean one host: schedulers list short names where hosts tell full ones, or the reverse."""
    return one.split(".", 1)[0].lower() == other.split(".", 1)[0].lower()
