"""Start the process of one rank: bound to its CPUs, in a session of its own, tied to the life of its parent."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without its enums, which cost 5 ms and 1 MB
import _socket
import errno
import os
import stat
import sys
import time

from ezpz.launch.host.process_tree import die_with_parent, mark_rank

TYPE_CHECKING = False  # `typing` costs 5 ms in every shim; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import NoReturn

    from ezpz.launch.agent_messages import Settings


# torch's flight recorder: the last collectives of every rank, asked for when ranks hang.
#
# Only with ``--timeout`` or ``--idle-timeout``. Ranks make a named pipe ``ask_<rank>.pipe`` and write, once something
# was written into it, a pickle ``rank_<rank>``; ``python -m torch.distributed.flight_recorder.fr_trace FOLDER``
# compares NCCL's.
#
# Tested with torch 2.13 on CPUs: gloo records each collective as it does for NCCL (2000 of them unless set otherwise),
# but nothing of torch dumps it, so `ezpz.dist.ending` answers the pipe in ranks that call `ezpz.setup_torch`; fr_trace
# does not read these dumps (KeyError: their pg_config lacks the group's name), `pickle` does. From torch's own files
# alone (ProcessGroupNCCL.hpp and FlightRecorder.hpp of 2.13; no GPU was at hand): NCCL's monitor thread makes and reads
# the pipe of TORCH_NCCL_DEBUG_INFO_PIPE_FILE itself, so that no script need call ezpz, looks at it once a second
# (TORCH_NCCL_COORD_CHECK_MILSEC), and ends the rank when it cannot make it. An older torch that does not know
# TORCH_FR_BUFFER_SIZE
# may record nothing: its name, TORCH_NCCL_TRACE_BUFFER_SIZE, brings a warning from every rank today and is left to the
# user.

_WAIT = 2.0  # seconds for the dumps
_POLL = 0.05
_EVENTS = "2000"  # torch's own default since TORCH_FR_BUFFER_SIZE is its name
# Our name, and the older ones by which a user may have asked for the same: torch reads the first that is set.
_NAMES = {
    "TORCH_FR_BUFFER_SIZE": ("TORCH_NCCL_TRACE_BUFFER_SIZE",),
    "TORCH_FR_DUMP_TEMP_FILE": ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE",),
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": (),
    "TORCH_NCCL_DUMP_ON_TIMEOUT": (),
}


def settings(folder: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that make every rank keep a recorder and wait for being asked.

    Args:
        folder: Must be there on every host before ranks start, empty of earlier pipes, on a file system with named
            pipes.
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


def make_folder(folder: str) -> None:
    """Make a folder on this host, where one is named; a rank that does not find it leaves nothing there."""
    try:
        if folder:
            base = os.path.dirname(folder)
            os.makedirs(base, mode=0o700, exist_ok=True)
            if os.lstat(base).st_uid == os.getuid():  # else another user has made it, who could read and change all
                os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError:
        pass  # as above


def clear(folder: str, ending: str = "") -> None:
    """Take pipes and answers away when no rank is left, and the folder.

    Args:
        folder: Where ranks listened and answered.
        ending: How the names of those files end; others are kept, and the folder with them.
    """
    try:
        for name in os.listdir(folder):
            if name.endswith(ending):
                os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    except OSError:
        pass  # something is kept, or it was never made


def clear_folders(settings: Settings) -> None:
    """Take away what the ranks of this host needed to tell their last collectives, but for dumps for their user."""
    if settings.collectives:
        clear(settings.collectives)
    if settings.recorder:
        clear(settings.recorder, ".pipe")


def ask(folder: str, ranks: Iterable[int]) -> list[str]:
    """Ask ranks of this host for their dumps, and wait for those that listen, at most 2 s.

    Returns:
        Paths of the dumps that are there at the end, also of those that NCCL wrote unasked.
    """
    dumps = {rank: os.path.join(folder, f"rank_{rank}") for rank in ranks}
    before = {rank: _state(path) for rank, path in dumps.items()}
    asked = [rank for rank in dumps if poke(os.path.join(folder, f"ask_{rank}.pipe"))]
    last: list[tuple[int, int]] = []
    end = time.monotonic() + _WAIT
    while asked and time.monotonic() < end:
        time.sleep(_POLL)
        now = [_state(dumps[rank]) for rank in asked]
        if now == last and all(state not in {(0, 0), before[rank]} for rank, state in zip(asked, now, strict=True)):
            break  # all are new, and none has grown since the last look
        last = now
    return [path for path in dumps.values() if _state(path) != (0, 0)]


def poke(path: str) -> bool:
    """Write into a pipe that has a reader; False where it has none, or is no pipe."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)  # ENXIO without a reader
    except OSError:
        return False
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode) and os.write(descriptor, b"1") == 1
    except OSError:  # it is full: its reader does not read
        return False
    finally:
        os.close(descriptor)


def _state(path: str) -> tuple[int, int]:
    """Return time and size of a file; zeros when it is not there or still empty."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return (status.st_mtime_ns, status.st_size) if status.st_size else (0, 0)


__all__ = [
    "FORWARDED",
    "FOR_RANK_ALONE",
    "TO_ALL",
    "afford",
    "be",
    "bind",
    "cannot_run",
    "hold_port",
    "ignored",
    "make_folder",
    "name_interface",
    "pipes",
    "poke",
    "reaches_all",
    "settings",
    "start",
]

_MAY_BE_IGNORED = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGTSTP)
FOR_RANK_ALONE = (_signal.SIGUSR1, _signal.SIGUSR2)  # what it has started, such as loaders of data, would die of them
FORWARDED = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, *FOR_RANK_ALONE)
TO_ALL = 0x80  # added to the number of a signal that its sender has also sent to the ranks


def ignored() -> tuple[int, ...]:
    """Return the signals that this process was started with ignored: SIGHUP under ``nohup``, SIGINT and SIGQUIT in the
    background of a script.

    As every program that a shell starts, neither the launcher nor its ranks shall be ended by those.
    """
    return tuple(int(number) for number in _MAY_BE_IGNORED if _signal.getsignal(number) == _signal.SIG_IGN)


def reaches_all(sender: int, daemon: bytes) -> bool:
    """Tell whether the process that has sent a signal is the scheduler's daemon, which signals the ranks as well."""
    try:
        with open(f"/proc/{sender}/comm", "rb") as file:
            return bool(daemon) and file.read().startswith(daemon)
    except OSError:
        return False  # it is gone, or runs outside of this container


def pipes() -> tuple[tuple[int, int], tuple[int, int]]:
    """Return what a rank writes its stdout and stderr into, and where that is read."""
    out_read, out_write = os.pipe()
    try:
        err_read, err_write = os.pipe()
    except OSError:  # who says so needs the files that the first took
        os.close(out_read)
        os.close(out_write)
        raise
    return (out_read, err_read), (out_write, err_write)


def start(
    command: Sequence[str | bytes],
    environ: Mapping[str, str] | Mapping[bytes, bytes],
    *,
    stdin: int | None,
    output: tuple[int, int] | None = None,
    cpus: Sequence[int] | None = None,
    own_session: bool = True,
    ignores: Sequence[int] = (),
    is_rank: bool = True,
    folder: str | bytes = "",
) -> tuple[int, int]:
    """Start a rank, or a program that starts ranks, and return its pid, and the number of the error when it cannot be
    run (else 0).

    Args:
        command: The program, looked for on the rank's own PATH, and its arguments.
        environ: The rank's whole environment.
        stdin: What it reads, closed here unless it is 0, this process's own stdin; None for an empty one.
        output: What it writes into, closed here; without, it writes where this process does.
        cpus: CPUs that it is bound to.
        own_session: Whether it leaves this process's session, so that it can be signalled with all that it starts.
        ignores: Signals that it ignores; see `ignored`.
        is_rank: Whether it, and all that it starts, is marked as the launch's rank.
        folder: Where it starts; empty for this process's own.
    """
    parent = os.getpid()
    launch = environ.get("EZPZ_LAUNCH_ID") or environ.get(b"EZPZ_LAUNCH_ID")  # type: ignore[call-overload]
    if is_rank and ("EZPZ_IGNORED_AT_START" in environ or b"EZPZ_IGNORED_AT_START" in environ):
        from ezpz.launch.host.early_signals import starts_ignoring

        environ = dict(environ)
        ignores = (*ignores, *starts_ignoring(command, environ, folder))
    read, write = os.pipe()  # closes by itself when the program begins
    pid = os.fork()
    if pid:
        for fd in (write, *((stdin,) if stdin else ()), *(output or ())):
            os.close(fd)
        problem = os.read(read, 4)
        os.close(read)
        return pid, int.from_bytes(problem, sys.byteorder)
    try:
        if own_session:
            os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin, 0)
        # both or none; strict= needs a second look at its length
        for fd, end in zip((1, 2), output or ()):  # noqa: B905
            os.dup2(end, fd)
        _signal.set_wakeup_fd(-1)
        # Python ignores SIGPIPE and SIGXFSZ, and a rank would inherit that.
        for number in {*FORWARDED, _signal.SIGPIPE, _signal.SIGXFSZ, _signal.SIGCHLD, *ignores}:
            _signal.signal(number, _signal.SIG_IGN if number in ignores else _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        if cpus:
            os.sched_setaffinity(0, cpus)
        if folder:
            os.chdir(folder)
        if launch and is_rank:
            mark_rank(os.fsdecode(launch))
        die_with_parent()
        if os.getppid() != parent:  # it died before its death signal was armed
            os._exit(125)
        _execute(command, environ)
    except OSError as error:
        os.write(write, (error.errno or errno.EIO).to_bytes(4, sys.byteorder))
    finally:
        os._exit(127)
    raise AssertionError  # not reached: the child has ended or is another program


def _execute(command: Sequence[str | bytes], environ: Mapping[str, str] | Mapping[bytes, bytes]) -> None:
    """Become a program, looked for on its own PATH: `os.execvpe`, which costs every rank 1 ms of importing `warnings`.

    Raises:
        OSError: It cannot be run.
    """
    program = os.fsencode(command[0])
    path = environ.get("PATH", environ.get(b"PATH", os.defpath))  # type: ignore[call-overload]  # of one kind
    folders = [b""] if b"/" in program else os.fsencode(path).split(b":")
    refused: OSError | None = None
    for folder in folders:
        try:
            os.execve(os.path.join(folder, program), command, environ)  # type: ignore[arg-type]  # not mixed in one call
        except OSError as error:
            if refused is None or refused.errno in {errno.ENOENT, errno.ENOTDIR}:
                refused = error
    if refused:
        raise refused


def be(action: Callable[[], int]) -> NoReturn:
    """Make this forked process nothing but ``action``, and end it with the exit code that comes of that."""
    code = 125
    try:
        _signal.set_wakeup_fd(-1)  # the parent's: it would get signals that reach this process
        code = action()
    except Exception as error:  # noqa: BLE001  # whatever it is, it must not go on in the frames of the parent
        from ezpz.launch.limits import shortage

        short = shortage(error) if os.environ.get("EZPZ_DEBUG") != "1" else ""
        if short:
            os.write(2, f"ezpz: this host's agent cannot go on: {type(error).__name__}: {short}.\n".encode())
        else:
            sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def cannot_run(number: int) -> int:
    """Return the exit code of a shell for a program that cannot be run for this reason; 125 where the machine has no
    room for it.
    """
    if number in {errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM}:
        return 125
    return 126 if number in {errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.EISDIR} else 127


def bind(text: str, local_rank: int, local_world: int) -> tuple[list[int] | None, str]:
    """Return the CPUs of a rank as ``EZPZ_CPUS`` plans them, None without a plan, and why they cannot be had."""
    if not text or not hasattr(os, "sched_getaffinity"):  # macOS binds nothing
        return None, ""
    from ezpz.launch.cpu_binding import chosen_cpus

    wanted, note = chosen_cpus(text, os.sched_getaffinity(0), local_rank, local_world)
    note = note or afford(wanted)
    return (None if note else wanted), note


def afford(cpus: Sequence[int] | None) -> str:
    """Return why a process here cannot be bound to these CPUs; empty when it can."""
    if not cpus:
        return ""
    allowed = os.sched_getaffinity(0)
    try:  # tried, because this process's own mask is not the limit: that of the job is
        os.sched_setaffinity(0, cpus)
        os.sched_setaffinity(0, allowed)
    except OSError:
        return (
            f"cannot be bound to CPUs {cpus[0]} to {cpus[-1]} (from the plan); {os.uname().nodename} allows "
            f"{len(allowed)} from {min(allowed)} to {max(allowed)}"
        )
    return ""


def name_interface(environ: Mapping[str, str]) -> dict[str, str]:
    """Return gloo's interface, the one that leads to rank 0: by itself it takes that of the host's name, perhaps
    loopback.
    """
    if "GLOO_SOCKET_IFNAME" in environ:
        return {}
    from ezpz.cluster.network import route_to

    interface = route_to(environ["MASTER_ADDR"]).interface
    return {} if interface in {"", "lo"} else {"GLOO_SOCKET_IFNAME": interface}


def hold_port(port: int) -> int | None:
    """Keep the rendezvous port for rank 0's store, and return the descriptor that does so until it is closed, or this
    process ends; None where the port was taken.

    Bound, but not listening: with ``SO_REUSEADDR`` on both sides rank 0 can listen on it, and no other process can take
    it.
    """
    held = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    held.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    try:
        held.bind(("", port))
    except OSError:
        held.close()
        return None
    return held.detach()
