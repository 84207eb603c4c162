"""torch's flight recorder: the last collectives of every rank, asked for when ranks hang.

Only with ``--timeout`` or ``--idle-timeout``. Ranks make a named pipe ``ask_<rank>.pipe`` and write, once something was
written into it, a pickle ``rank_<rank>``; ``python -m torch.distributed.flight_recorder.fr_trace FOLDER`` compares NCCL's.

Tested with torch 2.13 on CPUs: gloo records each collective as it does for NCCL (2000 of them unless told otherwise), but
nothing of torch dumps it, so `ezpz.dist.ending` answers the pipe in ranks that call `ezpz.setup_torch`; fr_trace
does not read these dumps (KeyError: their pg_config lacks the group's name), `pickle` does. From torch's own files alone
(ProcessGroupNCCL.hpp and FlightRecorder.hpp of 2.13; no GPU was at hand): NCCL's monitor thread makes and reads the pipe of
TORCH_NCCL_DEBUG_INFO_PIPE_FILE itself, so that no script need call ezpz, looks at it once a second
(TORCH_NCCL_COORD_CHECK_MILSEC), and ends the rank when it cannot make it. An older torch that does not know TORCH_FR_BUFFER_SIZE
may record nothing: its name, TORCH_NCCL_TRACE_BUFFER_SIZE, brings a warning from every rank today and is left to the user.
"""

from __future__ import annotations

import os
import stat
import time

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["ask", "clear", "make_room", "settings"]

_WAIT = 2.0  # seconds for the dumps
_POLL = 0.05
_EVENTS = "2000"  # torch's own default since TORCH_FR_BUFFER_SIZE is its name
# Our name, and the older ones by which a user may have said the same: torch reads the first that is set.
_NAMES = {
    "TORCH_FR_BUFFER_SIZE": ("TORCH_NCCL_TRACE_BUFFER_SIZE",),
    "TORCH_FR_DUMP_TEMP_FILE": ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE",),
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": (),
    "TORCH_NCCL_DUMP_ON_TIMEOUT": (),
}


def settings(folder: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that make every rank keep a recorder and wait for being asked.

    Args:
        folder: Must be there on every host before ranks start, empty of earlier pipes, on a file system with named pipes.
        environ: What the user has set, under whichever name, is left out.
    """
    wanted = {
        "TORCH_FR_BUFFER_SIZE": _EVENTS,
        "TORCH_FR_DUMP_TEMP_FILE": os.path.join(folder, "rank_"),
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": os.path.join(folder, "ask_"),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }
    return {name: value for name, value in wanted.items() if not any(each in environ for each in (name, *_NAMES[name]))}


def make_room(environ: dict[str, str] | dict[bytes, bytes], folder: str) -> None:
    """Make the folder on this host before its ranks start; where that fails take the recorder out of their environment.

    NCCL ends a rank that cannot make its pipe.
    """
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError:
        for name in _NAMES:
            environ.pop(name, None)  # type: ignore[call-overload]  # one of the two kinds of names is there
            environ.pop(name.encode(), None)  # type: ignore[call-overload]  # as above


def clear(folder: str) -> None:
    """Take the pipes away when no rank is left, and the folder when it holds no dump."""
    try:
        for name in os.listdir(folder):
            if name.endswith(".pipe"):
                os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    except OSError:
        pass  # there are dumps, or it was never made


def ask(folder: str, ranks: Iterable[int]) -> list[str]:
    """Ask ranks of this host for their dumps, and wait for those that listen, at most 2 s.

    Returns:
        Paths of the dumps that are there at the end, also of those that NCCL wrote unasked.
    """
    dumps = {rank: os.path.join(folder, f"rank_{rank}") for rank in ranks}
    before = {rank: _state(path) for rank, path in dumps.items()}
    asked = [rank for rank in dumps if _poke(os.path.join(folder, f"ask_{rank}.pipe"))]
    last: list[tuple[int, int]] = []
    end = time.monotonic() + _WAIT
    while asked and time.monotonic() < end:
        time.sleep(_POLL)
        now = [_state(dumps[rank]) for rank in asked]
        if now == last and all(state not in {(0, 0), before[rank]} for rank, state in zip(asked, now, strict=True)):
            break  # all are new, and none has grown since the last look
        last = now
    return [path for path in dumps.values() if _state(path) != (0, 0)]


def _poke(path: str) -> bool:
    """Write into a pipe that somebody reads; False where nobody does, or it is no pipe."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)  # ENXIO without a reader
    except OSError:
        return False
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode) and os.write(descriptor, b"1") == 1
    except OSError:  # it is full: nobody reads in fact
        return False
    finally:
        os.close(descriptor)


def _state(path: str) -> tuple[int, int]:
    """Return time and size of a file; zeros when it is not there or still empty."""
    try:
        told = os.stat(path)
    except OSError:
        return 0, 0
    return (told.st_mtime_ns, told.st_size) if told.st_size else (0, 0)
