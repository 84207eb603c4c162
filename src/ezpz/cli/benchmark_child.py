"""Run one launch of a benchmark: its output goes to a file, and signals that reach this process are passed on to it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, NamedTuple

from ezpz.launch import survivors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import FrameType

__all__ = ["Ended", "run", "tail"]

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TAIL = 1 << 16  # bytes in which the last lines are looked for


class Ended(NamedTuple):
    """How a launch ended.

    Attributes:
        code: Its exit code: 128+n for signal n.
        seconds: How long it took.
        stopped: The first signal that reached this process meanwhile, 0 for none.
    """

    code: int
    seconds: float
    stopped: int


def run(command: Sequence[str], log: Path) -> Ended:
    """Run a command to its end.

    It has a session of its own, so that Ctrl-C in the terminal reaches this process alone and the launch once.

    Args:
        command: Program and arguments.
        log: The file for all that it says.
    """
    stopped: list[int] = []
    began = time.monotonic()
    with log.open("wb") as output:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=survivors.die_with_parent,  # noqa: PLW1509  # no thread runs here
        )

        def pass_on(number: int, _: FrameType | None) -> None:
            stopped.append(number)
            child.send_signal(number)

        handlers = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
        try:
            code = child.wait()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return Ended(code if code >= 0 else 128 - code, time.monotonic() - began, stopped[0] if stopped else 0)


def tail(log: Path, lines: int) -> str:
    """Return the last lines of a file that are not empty."""
    with log.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        text = file.read().decode(errors="replace")
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])
