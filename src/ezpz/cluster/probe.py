"""The real file reader and command runner behind `detect`; tests pass their own instead of patching these."""

from __future__ import annotations

import os

from ezpz.files import read_text as read

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.cluster.allocation import Read, Run


# Whether a name means this host.


def is_here(host: str) -> bool:
    """Tell whether a host name means this host; names are compared by their first label."""
    return host.split(".", maxsplit=1)[0] in {os.uname().nodename.split(".")[0], "localhost", "127"}


__all__ = ["ask", "host_name", "is_here", "is_same_host", "read", "run", "run_nothing"]

_TIME_LIMIT = 5.0  # seconds: a scheduler or driver tool that takes longer must not hold up a launch


def run(argv: list[str]) -> str | None:
    """Return what a command printed, or None when it is absent, fails or exceeds five seconds."""
    import os
    import signal
    import subprocess

    nowhere = subprocess.DEVNULL
    try:
        # A session of its own, so that what the command itself has started can be ended with it.
        process = subprocess.Popen(argv, stdin=nowhere, stdout=subprocess.PIPE, stderr=nowhere, start_new_session=True)
    except (OSError, ValueError):
        return None
    with process:
        try:
            output = process.communicate(timeout=_TIME_LIMIT)[0]
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
    return output.decode(errors="replace") if process.returncode == 0 else None


def run_nothing(argv: list[str]) -> str | None:
    """Run no command: for ranks, of which ten thousand must not ask one scheduler at the same moment."""
    del argv
    return None


def ask(run: Run, argv: list[str]) -> str | None:
    """Return what a scheduler's command printed; asked twice, because a busy scheduler drops questions."""
    answer = run(argv)
    return run(argv) if answer is None else answer


def host_name(read: Read) -> str:
    """Return this host's name as the kernel tells it."""
    from os import uname

    return (read("/proc/sys/kernel/hostname") or "").strip() or uname().nodename


def is_same_host(one: str, other: str) -> bool:
    """Tell whether two names mean one host: schedulers list short names where hosts tell full ones, or the reverse."""
    return one.split(".", 1)[0].lower() == other.split(".", 1)[0].lower()
