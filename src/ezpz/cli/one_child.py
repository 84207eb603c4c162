"""Run one command in the foreground: its streams are ours, its end is ours, and nothing of it outlives us."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from ezpz.errors import shell_code
from ezpz.launch.host import process_tree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import FrameType


# Run one launch of a benchmark: its output goes to a file, and signals that reach this process are passed on to it.

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


def run_benchmark_child(command: Sequence[str], log: Path) -> Ended:
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
            preexec_fn=process_tree.die_with_parent,  # noqa: PLW1509  # no thread runs here
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
    return Ended(shell_code(code), time.monotonic() - began, stopped[0] if stopped else 0)


def tail(log: Path, lines: int) -> str:
    """Return the last lines of a file that are not empty."""
    with log.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        text = file.read().decode(errors="replace")
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])


__all__ = ["run", "run_benchmark_child", "tail"]

_GRACE = 5.0  # seconds between SIGTERM and SIGKILL


def run(
    command: Sequence[str], environ: Mapping[str, str], timeout: float | None, stdout: IO[Any] | None = None
) -> int:
    """Run a command to its end and return its exit code: 128+n for signal n, 124 when the time is over.

    The command stays in this process's group, so that a debugger in it can use the terminal. What it leaves behind is
    killed: below this process, and by ``EZPZ_LAUNCH_ID`` of its environment (Linux).

    Args:
        command: Program and arguments.
        environ: Its whole environment, with an EZPZ_LAUNCH_ID of its own.
        timeout: Seconds, or None.
        stdout: Where its output goes; as ours by default.
    """
    process_tree.adopt()
    child = subprocess.Popen(
        list(command),
        env=dict(environ),
        stdout=stdout,
        preexec_fn=process_tree.die_with_parent,  # noqa: PLW1509  # no thread runs here
    )
    handlers = {number: signal.signal(number, _passing(child)) for number in (signal.SIGTERM, signal.SIGHUP)}
    handlers[signal.SIGINT] = signal.signal(signal.SIGINT, _passing(child, unless_typed=True))
    try:
        code = child.wait(timeout)
    except subprocess.TimeoutExpired:
        _end(child)
        code = 124
    finally:
        process_tree.kill_all(environ["EZPZ_LAUNCH_ID"])
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return shell_code(code)


def _passing(child: subprocess.Popen[Any], *, unless_typed: bool = False) -> Any:
    """Return a handler that passes a signal on; Ctrl-C in a terminal has reached the child already."""

    def handle(number: int, _: object) -> None:
        if not (unless_typed and _in_foreground()):
            child.send_signal(number)

    return handle


def _in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:  # no terminal: nobody types
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)


def _end(child: subprocess.Popen[Any]) -> None:
    child.terminate()
    try:
        child.wait(_GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
