"""How the process of one rank begins: bound to its CPUs, in a session of its own, tied to the life of its parent."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without its enums, which cost 5 ms and 1 MB
import _socket
import errno
import os
import sys

from ezpz.launch.host.process_tree import die_with_parent

TYPE_CHECKING = False  # `typing` costs 5 ms in every shim; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

__all__ = ["FORWARDED", "afford", "be", "bind", "cannot_run", "hold_port", "name_interface", "pipes", "start"]

FORWARDED = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGUSR1, _signal.SIGUSR2)


def pipes() -> tuple[tuple[int, int], tuple[int, int]]:
    """Return what a rank writes its stdout and stderr into, and where that is read."""
    (out_read, out_write), (err_read, err_write) = os.pipe(), os.pipe()
    return (out_read, err_read), (out_write, err_write)


def start(
    command: Sequence[str | bytes],
    environ: Mapping[str, str] | Mapping[bytes, bytes],
    *,
    reads: bool,
    output: tuple[int, int] | None = None,
    cpus: Sequence[int] | None = None,
    own_session: bool = True,
) -> tuple[int, int]:
    """Start a rank and return its pid, and the number of the error when its program cannot be run (else 0).

    Args:
        command: The program, looked for on the rank's own PATH, and its arguments.
        environ: The rank's whole environment.
        reads: Whether it reads this process's input; else it gets an empty one.
        output: What it writes into, closed here; without, it writes where this process does.
        cpus: CPUs that it is bound to.
        own_session: Whether it leaves this process's session, so that it can be signalled with all that it starts.
    """
    parent = os.getpid()
    told, tell = os.pipe()  # closes by itself when the program begins
    pid = os.fork()
    if pid:
        for fd in (tell, *(output or ())):
            os.close(fd)
        said = os.read(told, 4)
        os.close(told)
        return pid, int.from_bytes(said, sys.byteorder)
    try:
        if own_session:
            os.setsid()
        if not reads:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for fd, end in zip((1, 2), output or ()):  # noqa: B905  # both or none; strict= needs a second look at its length
            os.dup2(end, fd)
        _signal.set_wakeup_fd(-1)
        # Python ignores SIGPIPE, and a rank would inherit that.
        for number in (*FORWARDED, _signal.SIGPIPE, _signal.SIGCHLD):
            _signal.signal(number, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        if cpus:
            os.sched_setaffinity(0, cpus)
        die_with_parent()
        if os.getppid() != parent:  # it died before the wish for its death signal was armed
            os._exit(125)
        os.execvpe(command[0], command, environ)  # type: ignore[arg-type]  # str and bytes are not mixed within one call
    except OSError as error:
        os.write(tell, (error.errno or errno.EIO).to_bytes(4, sys.byteorder))
    finally:
        os._exit(127)
    raise AssertionError  # not reached: the child has ended or is another program


def be(action: Callable[[], int]) -> NoReturn:
    """Make this forked process nothing but ``action``, and end it with the exit code that comes of that."""
    code = 125
    try:
        code = action()
    except Exception:  # noqa: BLE001  # whatever it is, it must not go on in the frames of the parent
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def cannot_run(number: int) -> int:
    """Return the exit code of a shell for a program that cannot be run for this reason."""
    return 126 if number in {errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.EISDIR} else 127


def bind(text: str, local_rank: int, local_world: int) -> tuple[list[int] | None, str]:
    """Return the CPUs of a rank as ``EZPZ_CPUS`` plans them, None without a plan, and why they cannot be had."""
    if not text or not hasattr(os, "sched_getaffinity"):  # macOS binds nothing
        return None, ""
    from ezpz.launch.binding import parse_cpus, share

    allowed = os.sched_getaffinity(0)
    wanted = share(allowed, local_rank, local_world) if text == "auto" else parse_cpus(text.split(":")[local_rank])
    note = afford(wanted)
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
            f"cannot be bound to CPUs {cpus[0]} to {cpus[-1]} (from the plan); {os.uname().nodename} allows {len(allowed)} "
            f"from {min(allowed)} to {max(allowed)}"
        )
    return ""


def name_interface(environ: Mapping[str, str]) -> dict[str, str]:
    """Return gloo's interface, the one that leads to rank 0: by itself it takes that of the host's name, perhaps loopback."""
    if "GLOO_SOCKET_IFNAME" in environ:
        return {}
    from ezpz.cluster.network import route_to

    interface = route_to(environ["MASTER_ADDR"]).interface
    return {} if interface in {"", "lo"} else {"GLOO_SOCKET_IFNAME": interface}


def hold_port(port: int) -> bool:
    """Keep the rendezvous port for rank 0's store as long as this process lives; tell whether it was free.

    Bound, but not listening: with ``SO_REUSEADDR`` on both sides rank 0 can listen on it, and nobody else can take it.
    """
    held = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    held.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    try:
        held.bind(("", port))
    except OSError:
        held.close()
        return False
    held.detach()  # open until this process ends
    return True
