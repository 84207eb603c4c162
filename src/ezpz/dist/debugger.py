"""Start a debugger on one rank while the others wait for it."""

from __future__ import annotations

import os
import pdb  # noqa: T100  # a debugger is what this file offers
import sys
import time
from typing import TYPE_CHECKING, Any

from ezpz.dist.job_around import this_rank
from ezpz.errors import UsageError
from ezpz.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

_SLOWEST = 2.0  # seconds between two looks of a waiting rank: thousands of them ask one store
_calls: dict[int, int] = {}  # rank -> how often it was asked for: every rank counts alike


def breakpoint(rank: int = 0) -> None:  # noqa: A001  # the name that users of torch.distributed and of older code know
    """Stop ``rank`` in pdb at the caller's line; the other ranks wait until it says ``continue``.

    The others wait at their own call of this function, for as long as it takes: they ask the process group's store, so
    that no collective runs into its time limit. The debugged rank does not wait for the others, so a call that it alone
    reaches (in an ``except`` block, for example) works too. Without a process group the others go on. While it is
    debugged, a rank that reaches a collective waits for the others, as ever. ``quit`` ends it, and with it the job.

    Args:
        rank: The rank to stop.

    Raises:
        UsageError: ``rank`` is not one of the world's, or has no terminal to be debugged at, as under a launcher.
    """
    ranks = this_rank()
    if not 0 <= rank < ranks.world_size:
        raise UsageError(f"no rank {rank} to debug (from breakpoint); expected 0 to {ranks.world_size - 1}.")
    _calls[rank] = number = _calls.get(rank, 0) + 1
    store, key = _store(), f"ezpz/breakpoint/{rank}/{number}"
    if ranks.rank != rank:
        _wait(store, key, rank)
        return
    debugger = _Debugger(_terminal(rank), lambda: None if store is None else store.set(key, "go on"))
    debugger.message(f"rank {rank} of {ranks.world_size} stops here; `c` lets all go on, `q` ends the program")
    debugger.set_trace(sys._getframe(1))  # noqa: SLF001  # as pdb.set_trace does: stop where the user wrote this call


class _Debugger(pdb.Pdb):
    """pdb that tells the waiting ranks when its user lets the program go on."""

    def __init__(self, terminal: TextIO, release: Callable[[], object]) -> None:
        super().__init__(nosigint=True, stdin=terminal, stdout=sys.stdout if sys.stdout.isatty() else sys.stderr)
        self.prompt = "(ezpz pdb) "
        self._release = release

    def set_continue(self) -> None:
        self._release()
        super().set_continue()


def _terminal(rank: int) -> TextIO:
    """Return a terminal to read commands from: stdin, else the one that controls this process.

    /dev/tty can be opened in the background too, but the first read would stop the process there without a word.
    """
    if sys.stdin is not None and sys.stdin.isatty():
        return sys.stdin
    try:
        terminal = open("/dev/tty", encoding="utf-8")  # noqa: PTH123, SIM115  # open for as long as the debugger runs
        if os.tcgetpgrp(terminal.fileno()) == os.getpgrp():
            return terminal
        terminal.close()
        reason = "it runs in the background of its terminal"
    except OSError as error:
        reason = f"{error.strerror} (/dev/tty)"
    raise UsageError(
        f"rank {rank} cannot be debugged: its stdin is no terminal, and {reason}; expected a terminal, which several "
        "ranks cannot share. Start one rank at a terminal, `launch -n 1 python3 train.py`, which is a whole world of "
        "one."
    )


def _store() -> Any:
    """Return the store of the process group; None without a group."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    # torch has no public name for it; its own elastic and pipelining code uses this one (2.4 to 2.13).
    return torch.distributed.distributed_c10d._get_default_store()  # noqa: SLF001


def _wait(store: Any, key: str, rank: int) -> None:
    if store is None:
        get_logger(__name__).warning(f"rank {rank} may be debugged; without a process group this rank does not wait.")
        return
    pause = 0.05
    while not store.check([key]):
        time.sleep(pause)
        pause = min(2 * pause, _SLOWEST)
