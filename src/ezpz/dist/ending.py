"""End a rank: after success its group is left in peace, and an uncaught exception ends the whole job.

Without this an exception on one rank leaves the others waiting: in a collective, or in MPI_Finalize, which mpi4py calls
at the end of Python and which waits for all ranks. `setup_torch` installs a hook that first lets Python print the
traceback, then tells the other ranks (`ezpz.dist.failure_watch`, where no launcher does so), and at the end of Python
aborts an MPI that would wait.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ezpz.dist.device import advice_on_index
from ezpz.dist.rendezvous import is_supervised
from ezpz.errors import EzpzError
from ezpz.files import write_whole
from ezpz.log import get_logger
from ezpz.progress import leaving
from ezpz.why.users_files import is_users

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from ezpz.dist.failure_watch import Watch


# Dumps of torch's flight recorder for backends that record but do not dump: gloo on CPUs (torch 2.13).
#
# The same protocol as NCCL's monitor thread has, under the same variables, so that whoever asks need not know the
# backend:
#
# TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/run/ask_   rank 3 reads the named pipe /run/ask_3.pipe; any byte asks for a dump
# TORCH_FR_DUMP_TEMP_FILE=/run/rank_          which it writes to /run/rank_3


#
# Beside that, and without these variables, every rank under `launch` leaves its last collectives in a folder of the
# launch (EZPZ_COLLECTIVES) when it is asked, when it raises, and when Python ends:
# `ezpz.watch.collectives.last_collectives`.


def answer_requests(rank: int, backend: str, environ: Mapping[str, str]) -> None:
    """Start a thread that waits to be asked for the last collectives, where a launch is there to ask."""
    answers: dict[int, Callable[[], None]] = {}
    asks, dumps = environ.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE"), environ.get("TORCH_FR_DUMP_TEMP_FILE")
    if asks and dumps and backend.rpartition(":")[2] != "nccl":
        pipe, path = f"{asks}{rank}.pipe", Path(f"{dumps}{rank}")
        try:
            answers[_listen(pipe)] = lambda: _dump(path)
        except OSError as error:  # a hang is then reported without the recorder; that is no reason to end a training
            get_logger(__name__).warning(f"no flight recorder: cannot make {pipe}: {error.strerror}")
    folder = environ.get("EZPZ_COLLECTIVES", "")
    if folder:
        with suppress(OSError):  # a container without that folder: the user was not asked for it
            answers[_listen(f"{folder}/ask_{rank}.pipe")] = _tell_last
            _State.last = f"{folder}/last_{rank}"
    if answers:
        # A daemon: it waits for ever, and must not keep the program from ending.
        threading.Thread(target=_answer, args=(answers,), name="ezpz-recorder", daemon=True).start()


def _listen(pipe: str) -> int:
    """Make a named pipe and open it; with a writer of its own, reading waits and never ends."""
    Path(pipe).unlink(missing_ok=True)
    os.mkfifo(pipe, 0o600)
    return os.open(pipe, os.O_RDWR)


def _answer(answers: dict[int, Callable[[], None]]) -> None:
    while True:
        ready, _, _ = select.select(list(answers), [], [])
        for descriptor in ready:
            os.read(descriptor, 4096)
            answers[descriptor]()


def _dump(path: Path) -> None:
    """Write a dump as NCCL's thread would."""
    try:
        write_whole(path, b"".join(_traces()))
    except (AttributeError, OSError, RuntimeError, TypeError) as error:  # another torch, or a full disk
        get_logger(__name__).warning(f"no flight recorder's dump in {path}: {error}")


def _traces() -> list[bytes]:
    """Return what torch has recorded, of gloo and, where it is there, of NCCL.

    Collectives, not only active ones, without stacks: the first of these costs a second of CPU (torch 2.13).
    """
    c10d: Any = import_module("torch._C._distributed_c10d")  # torch has no public name for the dumps
    names = [name for name in ("_dump_fr_trace", "_dump_nccl_trace") if hasattr(c10d, name)]
    return [getattr(c10d, name)(True, False, False) for name in names]


def _leave_last(
    frames: list[tuple[str, str, int]],
    *,
    ended: bool = False,
    raised: str = "",
    handled: str = "",
    threads: list[tuple[int, str, list[tuple[str, str, int]]]] | None = None,
) -> None:
    """Leave this rank's last collectives for its agent; nothing here may disturb a rank, or its end.

    Args:
        frames: Function, file and line of what the main thread does, innermost first.
        ended: Whether Python is ending.
        raised: The exception that ends it.
        handled: The exception in whose ``except`` or ``finally`` the main thread is, with its line.
        threads: Of other threads the kernel's number, the name and the frames.
    """
    if not _State.last or "torch" not in sys.modules:
        return
    try:
        traces = [trace for trace in _traces() if trace]
        head = {"frames": frames, "ended": ended, "raised": raised, "dumps": [len(trace) for trace in traces]}
        head |= {"handled": handled} if handled else {}
        head |= {"threads": threads} if threads else {}
        write_whole(_State.last, json.dumps(head).encode() + b"\n" + b"".join(traces))
    except Exception:  # noqa: BLE001  # as above; an answer that is missing is a fact as well
        get_logger(__name__).debug("cannot leave the last collectives", exc_info=True)


def _tell_last() -> None:
    """Answer the agent; what was left when this rank raised says more than where it is now."""
    if _State.telling and _State.last:
        with suppress(OSError):
            os.utime(_State.last)
    else:
        main = threading.main_thread().ident or 0
        _leave_last(_frames_of(main), handled=_handled_in(main), threads=_other_threads())


def _frames_of(thread: int) -> list[tuple[str, str, int]]:
    frame = sys._current_frames().get(thread)  # noqa: SLF001  # there is no other way
    frames: list[tuple[str, str, int]] = []
    while frame is not None and len(frames) < _FRAMES:
        frames.append((frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno or 0))
        frame = frame.f_back
    return frames


def _other_threads() -> list[tuple[int, str, list[tuple[str, str, int]]]]:
    own = {threading.get_ident(), threading.main_thread().ident}
    known = dict(threading._active)  # type: ignore[attr-defined]  # noqa: SLF001  # `enumerate` waits for a lock
    others = [(ident, each) for ident, each in known.items() if ident not in own][:_FRAMES]
    return [(each.native_id or 0, each.name, _frames_of(ident)) for ident, each in others]


def _handled_in(thread: int) -> str:
    """Return the exception in whose ``except`` or ``finally`` a thread is: ``ValueError: x (train.py:31)``."""
    found: Any = sys._current_exceptions().get(thread)  # noqa: SLF001  # there is no other way
    error = found[1] if isinstance(found, tuple) else found  # a triple before Python 3.12
    if error is None:
        return ""
    frames = _raised_frames(error.__traceback__)
    place = next((f" ({os.path.basename(file)}:{line})" for _, file, line in frames if is_users(file)), "")  # noqa: PTH119
    return _in_words(type(error), error).partition("\n")[0] + place


def _in_words(kind: type[BaseException], error: BaseException) -> str:
    try:
        return f"{kind.__name__}: {error}"[:_RAISED]
    except Exception:  # noqa: BLE001  # an exception of the user's that cannot be printed
        return kind.__name__


def _raised_frames(trace: TracebackType | None) -> list[tuple[str, str, int]]:
    frames: list[tuple[str, str, int]] = []
    while trace is not None:
        frames.append((trace.tb_frame.f_code.co_name, trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return frames[::-1][:_FRAMES]


# gloo's threads finish the last asynchronous work after it was waited for, and need Python's lock for that. An
# interpreter that ends meanwhile aborts the process: 9 of 45 runs of a DDP script, 0 of 50 with a pause (torch 2.13).
_GLOO_SECONDS = 0.05
_FRAMES = 64  # of a stack that are left for the agent
_RAISED = 500  # characters of an exception
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH120, PTH100  # compared as text


class _State:
    """What this process must do at its end."""

    hook: object = None  # the one that this module has put into sys.excepthook
    telling = False
    watch: Watch | None = None
    last = ""  # where this rank leaves its last collectives; empty where they are not asked for
    failed = 0  # the exit code of an uncaught exception
    supervised = False


def install(environ: Mapping[str, str]) -> None:
    """Take care of this process's end; again after torch has put a hook of its own in front of this one."""
    _State.supervised = is_supervised(environ)
    if _State.hook is sys.excepthook:
        return
    if _State.hook is None:
        atexit.register(_at_end)
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if _State.telling:  # torch's hook has called this one, to catch what it prints
            previous(kind, error, trace)
            return
        _State.telling = True
        _leave_last(_raised_frames(trace), raised=_in_words(kind, error))
        ours = isinstance(error, EzpzError) and os.environ.get("EZPZ_DEBUG") != "1"
        previous(kind, error, _users_part(trace) if ours else trace)
        if issubclass(kind, KeyboardInterrupt):
            return  # that one reaches every rank by itself
        code = error.exit_code if isinstance(error, EzpzError) else 1
        advice = advice_on_index(error)
        if advice:
            print(advice, file=sys.stderr, flush=True)
        _fail(code, advice or f"{kind.__name__}: {error}")
        if code != 1:
            raise SystemExit(code)  # Python then ends with this code instead of 1

    _State.hook = sys.excepthook = hook


def tell_others_by(watch: Watch | None) -> None:
    """Remember the connection to the other ranks, where there is one."""
    _State.watch = watch


def cleanup() -> None:
    """Leave the process group; never fails a run that succeeded, and does nothing without a group.

    May stand in a ``finally``. While an exception is on its way it does nothing: the other ranks, which may wait in a
    collective, shall see this rank end with its own exit code before their connections to it end.
    """
    error = sys.exc_info()[1]
    if error is not None and not (isinstance(error, SystemExit) and not error.code):
        return
    watch, _State.watch = _State.watch, None
    if watch is not None:
        watch.leave()
    torch = _with_group()
    if torch is None:
        return
    gloo = _has_gloo(torch)
    with leaving():
        try:
            torch.distributed.destroy_process_group()
        except RuntimeError as failure:  # a peer that left first must not turn success into failure
            get_logger(__name__).warning(f"could not leave the process group cleanly: {failure}")
        if gloo:
            time.sleep(_GLOO_SECONDS)


def _with_group() -> Any:
    """Return torch when this process is in a group, else None."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch


def _has_gloo(torch: Any) -> bool:
    return "gloo" in str(torch.distributed.get_backend_config())


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback that ends where the program called ezpz: the error's words explain the rest."""
    last, at = None, trace
    while at is not None:
        if not at.tb_frame.f_code.co_filename.startswith(_OWN):
            last = at
        at = at.tb_next
    if last is not None:
        last.tb_next = None
    return trace if last is not None else None


def _fail(code: int, reason: str) -> None:
    """Remember the exit code, and tell the other ranks."""
    _State.failed = code
    sys.stderr.flush()
    if _State.watch is not None:
        _State.watch.tell(code, reason)


def _at_end() -> None:
    """Run at the end of Python, before mpi4py calls MPI_Finalize.

    The group is left to the end of the process: whether the program succeeded is not known here, and the communicators
    of NCCL and XCCL end together or not at all.
    """
    if not _State.telling:
        _leave_last([], ended=True)
    if _State.watch is not None:
        _State.watch.leave()
    torch = _with_group()
    if torch is not None and _has_gloo(torch):
        time.sleep(_GLOO_SECONDS)
    mpi: Any = sys.modules.get("mpi4py.MPI")
    waits = mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.Get_size() > 1
    if not _State.failed or not waits:
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if _State.supervised:
        os._exit(_State.failed)  # the launcher ends the others; an MPI's own page on an abort would bury the traceback
    mpi.COMM_WORLD.Abort(_State.failed)
