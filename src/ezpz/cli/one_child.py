"""Run one command in the foreground: pass signals on to it, return its exit code, and leave nothing of it behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time

from ezpz.errors import shell_code
from ezpz.fields import Record
from ezpz.launch.host import process_tree
from ezpz.launch.host.rank_start import ignored

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType
    from typing import IO, Any

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GRACE = 5.0  # seconds between SIGTERM and SIGKILL


class Ended(Record):
    """How a command ended.

    Attributes:
        code: Its exit code: 128+n for signal n, 124 when the time was over.
        seconds: How long it took.
        stopped: The first signal that reached this process meanwhile, 0 for none.
    """

    code: int
    seconds: float
    stopped: int


def run(
    command: Sequence[str],
    environ: Mapping[str, str] | None = None,
    timeout: float | None = None,
    stdout: IO[Any] | None = None,
) -> Ended:
    """Run a command to its end.

    It stays in this process's group, so that a debugger in it can use the terminal. Where its environment
    has an ``EZPZ_LAUNCH_ID``, what it leaves behind is killed: below this process, and by that id (Linux).

    Args:
        command: Program and arguments.
        environ: Its whole environment; this one by default.
        timeout: Seconds, or None.
        stdout: Where its output goes; as ours by default.
    """
    own_id = (environ or {}).get("EZPZ_LAUNCH_ID", "")
    if own_id:
        process_tree.adopt()
    began = time.monotonic()
    child = subprocess.Popen(
        list(command),
        env=None if environ is None else dict(environ),
        stdout=stdout,
        preexec_fn=process_tree.die_with_parent,  # noqa: PLW1509  # no thread runs here
    )
    stopped: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        stopped.append(number)
        # Ctrl-C in a terminal has reached a child of this group already.
        if number != signal.SIGINT or not _in_foreground():
            child.send_signal(number)

    handlers = {number: signal.signal(number, pass_on) for number in set(_PASSED_ON).difference(ignored())}
    try:
        code = child.wait(timeout)
    except subprocess.TimeoutExpired:
        _end(child)
        code = 124
    finally:
        if own_id:
            process_tree.kill_all(own_id)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return Ended(shell_code(code), time.monotonic() - began, stopped[0] if stopped else 0)


def _in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:  # no terminal
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
