"""Find the processes of a launch that still live on this host, and kill every one of them.

Three answers together, because each alone has a hole: the tree below this process (with `adopt` also orphans, whatever
session they went to); the environment at each process's start, in which every process of a launch carries

    EZPZ_LAUNCH_ID=5f3a90c2       of a rank, and all that it starts; `5f3a90c2/81bd…` of a launch inside one of its
    ranks, and `5f3a90c2/00000002` of the second world that its agents have started
    EZPZ_LAUNCH=5f3a90c2          of what starts ranks: ``mpiexec``, its servants, shims, agents; their end tells
    nothing of a rank

and a resource limit that has had no effect since Linux 2.4.25, which every rank is given as a mark (`mark_rank`):

    Max file locks            6327175056862478335  6327175056862478335  locks         of 5f3a90c2, in /proc/PID/limits

All that a rank starts inherits it, also a daemon that leaves session and tree and wipes its environment, and only
root can raise it again. Linux tells all of it in /proc (proc(5): stat, environ, limits, ns); without /proc, on macOS,
only direct children that ended are seen, by `reap`.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without its enums, which cost 5 ms and 1 MB
import os
import sys

from ezpz import proc

TYPE_CHECKING = False  # `typing` costs 5 ms in every shim; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

__all__ = [
    "SPARED",
    "adopt",
    "be_a_helper",
    "by_launch",
    "call_me",
    "childless",
    "children",
    "close_others",
    "descendants",
    "die_with_parent",
    "is_gone",
    "kill",
    "kill_all",
    "kill_tree",
    "mark_rank",
    "reap",
    "tagged",
    "variable",
]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_RLIMIT_LOCKS = 10  # asm-generic/resource.h
SPARED = "EZPZ_SPARED"  # set in `ezpz kill` that was typed inside a launch, whose mark it cannot take off
_SERVANTS = ("hydra_pmi_proxy", "prted", "orted")  # of MPICH and Intel MPI, Open MPI 5, Open MPI 4
_FILES = 256  # that may be open where the system does not list them: of a process that has just begun
_AGAIN = 0.01  # seconds until the next look when a killed process is still there


def die_with_parent(number: int = _signal.SIGKILL) -> None:
    """Ask Linux for a signal when the parent dies, so that nothing outlives a killed ``mpiexec``."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt() -> None:
    """Become the parent of every descendant whose own parent ends, in whatever session it is (Linux)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def mark_rank(launch: str) -> None:
    """Mark this process as one of a launch's ranks, and all that it starts, by a limit without effect (Linux).

    Args:
        launch: The launch's id; `outer/inner` inside a rank of another.
    """
    marks = _marks(launch)
    if marks and sys.platform == "linux":
        import resource

        try:
            resource.setrlimit(_RLIMIT_LOCKS, (marks[-1], marks[-1]))
        except (OSError, ValueError):
            pass  # somebody has set it lower, and only root may raise it


def _marks(launch: str) -> range:
    """Return the limits that mark the processes of a launch, the last of them those of its own ranks.

    A launch inside a rank of another can only lower the limit, so that a launch has 2**31 of them. Deeper down there is
    no room for more: the third launch within the second has no marks of its own.
    """
    try:
        outer, *inner = [int(part[:8], 16) for part in launch.split("/")] if launch else [0, 0, 0]
    except ValueError:  # an id that somebody else has given
        return range(0)
    if len(inner) > 1:
        return range(0)
    first = 1 << 62 | outer >> 1 << 31
    if not inner:
        return range(first, first + (1 << 31))
    own = first + (inner[0] & (1 << 31) - 1)  # its last bits: worlds are numbered from 1 on
    return range(own, own + 1)


def _limit_of(pid: int) -> int:
    """Return the limit of a process that may be a mark; 0 when it has none."""
    _, _, line = proc.read(pid, "limits").partition(b"\nMax file locks")
    soft = line.split(None, 1)[:1]
    return int(soft[0]) if soft and soft[0].isdigit() else 0


def call_me(name: str) -> None:
    """Set the name that ``ps -o comm`` and ``top`` show for this process, at most 15 letters (Linux)."""
    try:
        with open("/proc/self/comm", "wb", buffering=0) as file:
            file.write(name.encode())
    except OSError:
        pass  # macOS


def be_a_helper(name: str, pipe: int) -> None:
    """Make this fork of the agent one that ends with it, and holds nothing of it but a pipe.

    Args:
        name: What it is called in ``/proc``.
        pipe: Stays open, and so do three standard files that lead nowhere.
    """
    die_with_parent()
    call_me(name)
    _signal.set_wakeup_fd(-1)
    for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGUSR1, _signal.SIGUSR2):
        _signal.signal(number, _signal.SIG_IGN)  # the end of the agent is that of this process
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)
    close_others(pipe)


def close_others(*kept: int) -> None:
    """Close all files of this process but the three standard ones and these."""
    for fd in proc.open_files() or range(_FILES):
        if fd > 2 and fd not in kept:
            try:
                os.close(fd)
            except OSError:
                pass  # that of the list itself


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import _ctypes  # `ctypes` around it costs every shim 1 ms

        this_process = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # dlopen(3): NULL is the main program
        _ctypes.call_cdeclfunction(_ctypes.dlsym(this_process, "prctl"), (option, value))


def children() -> list[int]:
    """Return the live children of this process; zombies are not among them."""
    me = os.getpid()
    return sorted(pid for pid, parent, _ in _live() if parent == me)


def descendants(pid: int) -> list[int]:
    """Return every live process below ``pid``."""
    parents = {child: parent for child, parent, _ in _live()}
    return sorted(_closure({pid}, parents) - {pid})


def childless() -> bool:
    """Tell whether nothing is left of what this process started or adopted; costs no look at all processes."""
    reap()
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def tagged(launch: str, *, everything: bool = False) -> list[int]:
    """Return this user's processes on this host that belong to a launch by their environment, but for this process.

    A host ends at its network namespace: containers and test hosts on one machine share the process table.

    Args:
        launch: The launch's id.
        everything: Also what starts the ranks, not only what they are and start.
    """
    tag = _Tag(launch, everything=everything)
    return sorted(pid for pid in proc.pids() if tag.on(pid))


def by_launch() -> dict[str, list[int]]:
    """Return this user's processes on this host that carry a launch's id in their environment, by that id."""
    found: dict[str, list[int]] = {}
    me, network = os.getpid(), proc.link("self", "ns/net")
    for pid in proc.pids():
        launch = variable(pid, "EZPZ_LAUNCH_ID", "EZPZ_LAUNCH")
        if launch and pid != me and not is_gone(pid) and proc.link(pid, "ns/net") == network:
            found.setdefault(launch, []).append(pid)
    return {launch: sorted(pids) for launch, pids in found.items()}


def variable(pid: int, *names: str) -> str:
    """Return the first of these variables with which one of this user's processes was started; empty without any."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return ""
    except OSError:
        return ""
    environ = proc.environ(pid)
    parts = (environ.partition(f"\0{name}=".encode())[2] for name in names)
    return os.fsdecode(next(filter(None, parts), b"").partition(b"\0")[0])


def reap() -> list[tuple[int, int]]:
    """Return pid and wait status of each child that has ended since the last call; never waits."""
    ended = []
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended.append((pid, status))
    except ChildProcessError:  # there is none, or none any more
        pass
    return ended


def servant_of(pid: int) -> int:
    """Return the parent of a process when that is an mpiexec's servant on this host, else 0.

    ssh starts it where no variable of the launch is set, and it may outlive a connection that was cut.
    """
    process = proc.stat(pid)
    return process.parent if process and proc.name(process.parent) in _SERVANTS else 0


def kill_tree(pid: int, patience: float = 5.0) -> None:
    """Kill every process below ``pid`` until none is left; none is reaped."""
    import time

    end = time.monotonic() + patience
    while time.monotonic() < end:
        left = descendants(pid)
        if not left:
            return
        for process in left:
            kill(process)
        time.sleep(_AGAIN)


def is_gone(pid: int) -> bool:
    """Tell whether there is no such process any more, or only a zombie."""
    process = proc.stat(pid)
    return process is None or process.is_dead


def kill_all(
    launch: str,
    *,
    spare: Container[int] = (),
    below: Iterable[int] = (),
    everything: bool = False,
    own: bool = True,
    patience: float = 5.0,
) -> list[int]:
    """Kill every descendant of this process and every process of a launch on this host, until two looks find none.

    Unless what descends from this process may stay, own children are reaped on the way, and what they ended with is
    dropped.

    Args:
        launch: The launch's id.
        spare: Pids that stay alive; what descends from them does not.
        below: More processes whose descendants are to end.
        everything: Kill also what starts the ranks, not only what they are and start.
        own: Kill also what descends from this process.
        patience: Seconds after which what is still there is given up.

    Returns:
        Pids that would not go: in an uninterruptible sleep, or of another user.
    """
    import time

    end = time.monotonic() + patience
    seen: set[int] = set()
    clean = 0
    if own:
        reap()
    while clean < 2:
        left = _sweep(_Tag(launch, everything=everything), spare, {*below, *([os.getpid()] if own else [])})
        # A look that found none may have come between a process and the child that it forked before it ended.
        clean = 0 if (own and reap()) or left else clean + 1
        if left and time.monotonic() > end:
            return sorted(left)
        if left and left <= seen:  # new ones come from a process that forks all the time: no pause for those
            time.sleep(_AGAIN)
        seen |= left
    return []


def _sweep(tag: _Tag, spare: Container[int], roots: set[int]) -> set[int]:
    """Send SIGKILL to all that is ours, each at the moment when it is seen, and return those pids."""
    me = os.getpid()
    ours, parents, groups = set(roots), {}, {me: os.getpgrp()}
    for pid, parent, group in _live():
        parents[pid], groups[pid] = parent, group
        if parent in ours or tag.on(pid):
            ours.add(pid)
            if pid not in spare:
                kill(pid)
    ours = _closure(ours, parents)
    left = {pid for pid in ours if pid != me and pid in parents and pid not in spare}
    for pid in left:
        kill(pid)
    # The kernel lets no fork slip through the kill of a group; one with a process that is not ours stays.
    foreign = {group for pid, group in groups.items() if pid not in left}
    for group in {groups[pid] for pid in left} - foreign:
        kill(-group)
    return left


def kill(pid: int) -> None:
    """Send SIGKILL to a process, or to a process group when the number is negative."""
    try:
        os.kill(pid, _signal.SIGKILL)
    except OSError:
        pass  # gone since, or another user's: the next look tells


def _closure(roots: set[int], parents: dict[int, int]) -> set[int]:
    """Return ``roots`` and everything below them."""
    below: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        below.setdefault(parent, []).append(pid)
    below_roots, todo = set(roots), list(roots)
    while todo:
        new = [pid for pid in below.get(todo.pop(), ()) if pid not in below_roots]
        below_roots.update(new)
        todo += new
    return below_roots


class _Tag:
    """The mark of one launch in the environment of its processes."""

    def __init__(self, launch: str, *, everything: bool = False) -> None:
        names = ("EZPZ_LAUNCH_ID", "EZPZ_LAUNCH")[: 1 + everything] if launch else ()
        marks = [f"\0{name}={launch}".encode() for name in names]
        self._marks = [mark + end for mark in marks for end in (b"\0", b"/")]
        self._limits = _marks(launch)
        self._me, self._uid = os.getpid(), os.getuid()
        self._network = proc.link("self", "ns/net")

    def on(self, pid: int) -> bool:
        if pid == self._me or not self._marks:
            return False
        try:
            if os.stat(f"/proc/{pid}").st_uid != self._uid:
                return False
        except OSError:
            return False
        environ = proc.environ(pid)
        is_marked = any(mark in environ for mark in self._marks)
        if not is_marked and f"\0{SPARED}=".encode() not in environ:
            is_marked = _limit_of(pid) in self._limits
        return is_marked and proc.link(pid, "ns/net") == self._network


def _live() -> Iterator[tuple[int, int, int]]:
    """Yield pid, parent and process group of each process; a zombie counts while a thread of it runs."""
    for pid in sorted(proc.pids(), reverse=True):  # the newest first: they are the ones that change while we look
        process = proc.stat(pid)
        if process and (not process.is_dead or process.threads > 1):
            yield pid, process.parent, process.group
