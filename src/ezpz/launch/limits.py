"""Say where the machine allows a launch too little: open files, processes, memory."""

from __future__ import annotations

import errno
import resource  # now: where no more files may be open, nothing can be imported any more

from ezpz import proc
from ezpz.errors import LaunchError

__all__ = ["FILES_OF_HOST", "FILES_OF_MPI", "FILES_OF_RANK", "FILES_OF_SSH", "make_room", "shortage"]

# Open files, as measured with the lowest limits under which launches of 1 to 8 ranks and hosts run.
FILES_OF_RANK = 3  # in its agent: two pipes, and the connection with the rank
FILES_OF_MPI = 4  # in the servant of MPICH 5, for each rank of its host
FILES_OF_HOST = 2  # in the launcher: the two connections of its agent
FILES_OF_SSH = FILES_OF_HOST + 2  # and two pipes of the ssh that has started it

_SPARE = 6  # files besides what is open before the start: what is read and asked for a moment
_AGENT = 8  # and those of an agent: its loop, its signals, and its sockets
_MORE = 256  # files that are allowed besides, where the hard limit lets us: strangers that connect, slots of output


def make_room(what: str, each: int, count: int, option: str) -> None:
    """Raise the soft limit of open files to what so many of something need, and some more.

    Args:
        what: What is started: ``hosts`` or ``ranks``; all of them run at the same time.
        each: Open files for each of them, for as long as it runs.
        count: How many there are.
        option: The option of `launch` that names their number.

    Raises:
        LaunchError: The hard limit is lower than what they need.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = len(proc.open_files()) + _SPARE + (_AGENT if what == "ranks" else 0)
    needed = least + each * count
    wanted = needed + needed // 4 + _MORE
    if hard != resource.RLIM_INFINITY:
        if needed > hard:
            fit = (hard - least) // each
            fewer = f", or start fewer: `launch {option} {fit}`" if fit > 0 else ""
            name = what if count > 1 else what[:-1]
            raise LaunchError(
                f"cannot start {count} {name}: {needed} files must be open at a time, and {hard} may be (from `ulimit "
                f"-Hn`); expected {needed} or more. Raise the limit where it was set, in this shell or in "
                f"limits.conf(5){fewer}."
            )
        wanted = min(wanted, hard)
    if soft < wanted and soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def shortage(error: BaseException, *, starting: bool = False) -> str:
    """Return what the machine has too little of, and what to type; empty where the error is none of that kind.

    Args:
        error: What was raised.
        starting: Whether that was by what starts a process: elsewhere EAGAIN means another thing.
    """
    number = errno.ENOMEM if isinstance(error, MemoryError) else getattr(error, "errno", None)
    name, flag, what = {
        errno.EMFILE: ("RLIMIT_NOFILE", "-n", "open files of a process"),
        errno.EAGAIN: ("RLIMIT_NPROC", "-u", "processes of a user"),
        errno.ENOMEM: ("RLIMIT_AS", "-v", "KiB of memory of a process"),
    }.get(number or 0, ("", "", ""))
    if number == errno.ENFILE:
        return "the whole system has no more (from `sysctl fs.file-max`); expected some. Ask its administrator for more"
    if not name or (number == errno.EAGAIN and not starting):
        return ""
    limit = resource.getrlimit(getattr(resource, name))[0]
    if limit == resource.RLIM_INFINITY:
        return f"the system has no more {what.partition(' of ')[0]} (`ulimit {flag}` sets no limit); expected some"
    limit //= 1024 if flag == "-v" else 1
    return f"the limit of {what} is {limit} (from `ulimit {flag}`); expected more. Raise that limit"
