"""What stands in front of a rank under a foreign launcher: it says who the rank is, and how the rank ended.

Run as ``python3 -I -S shim.py COMMAND…`` by ``mpiexec`` or ``srun``, once per rank, so it starts in milliseconds: few
imports, no site packages. It translates the launcher's variables into torchrun's contract, compares them with the plan,
runs the command as its child, passes signals on, and reports a failure to `ezpz.launch.control`, because neither
Hydra nor srun tells which rank failed first.
"""

from __future__ import annotations

import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # pathlib costs 10 ms

from ezpz.errors import EzpzError, LaunchError
from ezpz.launch.contract import rank_variables, threads
from ezpz.ranks import Ranks, expand_counts, from_environ

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def who(environ: dict[str, str]) -> tuple[Ranks, int]:
    """Return who this rank is and the number of hosts, checked against the plan.

    Raises:
        EzpzError: The world that came up is not the one that was asked for.
    """
    told = from_environ(environ)
    counts = list(expand_counts(environ["EZPZ_PLACEMENT"]))
    if told.world_size != sum(counts):
        raise LaunchError(
            f"rank {told.rank} of {told.world_size} came up (from {told.family}); expected a world of {sum(counts)} (from "
            "the plan). The launcher started separate worlds: check that mpiexec and the job belong together."
        )
    first = 0
    for index, count in enumerate(counts):  # noqa: B007  # both are used behind the loop
        if told.rank < first + count:
            break
        first += count
    if (told.local_rank, told.local_world_size) != (told.rank - first, count):
        raise LaunchError(
            f"rank {told.rank} is local rank {told.local_rank} of {told.local_world_size} (from {told.family}); expected "
            f"{told.rank - first} of {count} (from the plan). Ranks were not placed in blocks: check the launcher's options."
        )
    return told._replace(host_index=index), len(counts)


def die_with_parent() -> None:
    """Ask Linux for SIGKILL when the parent dies, so that nothing outlives a killed ``mpiexec``."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start(command: list[str], *, reads: bool) -> int:
    """Start the command as a child in a session of its own and return its pid.

    Only rank 0 reads the launcher's input: under Hydra another rank that did would wait for ever.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        if not reads:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number in (*FORWARDED, signal.SIGPIPE):  # Python ignores SIGPIPE, and a rank would inherit that
            signal.signal(number, signal.SIG_DFL)
        die_with_parent()
        if os.getppid() != parent:  # the parent died before the wish for its death signal was armed
            os._exit(125)
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"ezpz: cannot run {command[0]}: {error.strerror}\n")
        os._exit(126 if isinstance(error, PermissionError) else 127)


def supervise(pid: int) -> int:
    """Pass signals on to the rank and return how it ended: its exit code, or minus the signal that killed it."""
    for number in FORWARDED:
        signal.signal(number, lambda received, _frame: _send(pid, received))
    _, status = os.waitpid(pid, 0)
    _send(pid, signal.SIGKILL)  # what the rank left behind in its session
    return os.waitstatus_to_exitcode(status)


def _send(pid: int, number: int) -> None:
    try:
        # USR1 and USR2 are for the rank alone: its data-loading children would die of them.
        (os.kill if number in {signal.SIGUSR1, signal.SIGUSR2} else os.killpg)(pid, number)
    except OSError:
        pass  # it is gone already


def main(command: list[str]) -> int:
    """Run one rank and return the exit code for the launcher."""
    try:
        ranks, hosts = who(dict(os.environ))
    except EzpzError as error:
        sys.stderr.write(f"ezpz: {error}\n")
        report("mismatch", "?", 0, error.exit_code)
        return error.exit_code
    if ranks.family != "contract":  # torchrun's agent has said it all, and holds the store itself
        os.environ.update(rank_variables(ranks, hosts))
    bind(ranks)
    os.environ.setdefault("OMP_NUM_THREADS", threads(ranks.local_world_size))
    if hosts > 1:
        name_interface()
        if ranks.rank == 0 and not hold_port(int(os.environ["MASTER_PORT"])):
            report("port", 0, 0, 0)
            return 125
    if ranks.local_rank == 0:
        report("up", ranks.rank, os.getpid(), 0)
    die_with_parent()
    pid = start(command, reads=ranks.rank == 0 and os.environ.get("EZPZ_STDIN") != "none")
    code = supervise(pid)
    if code:
        report("ended", ranks.rank, pid, code)
    return code if code >= 0 else 128 - code


def bind(ranks: Ranks) -> None:
    """Bind this process, and so the rank, to the CPUs that the plan gives its local rank."""
    text = os.environ.pop("EZPZ_CPUS", "")
    if not text or not hasattr(os, "sched_setaffinity"):  # macOS binds nothing
        return
    from ezpz.launch.binding import parse_cpus, share

    allowed = os.sched_getaffinity(0)
    wanted = share(allowed, ranks.local_rank, ranks.local_world_size)
    if text != "auto":
        wanted = parse_cpus(text.split(":")[ranks.local_rank])
    try:
        os.sched_setaffinity(0, wanted)
    except OSError:
        sys.stderr.write(
            f"ezpz: note: rank {ranks.rank} cannot be bound to CPUs {wanted[0]} to {wanted[-1]} (from the plan); "
            f"{os.uname().nodename} allows {len(allowed)} from {min(allowed)} to {max(allowed)}\n"
        )


def name_interface() -> None:
    """Tell gloo the interface that leads to rank 0: by itself it takes the one of the host's name, which may be loopback."""
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return
    from ezpz.cluster.network import route_to

    interface = route_to(os.environ["MASTER_ADDR"]).interface
    if interface not in {"", "lo"}:
        os.environ["GLOO_SOCKET_IFNAME"] = interface


def hold_port(port: int) -> bool:
    """Keep the rendezvous port for rank 0, and return False when another process has it.

    Bound but not listening, with ``SO_REUSEADDR`` on both sides: rank 0's store can listen on it, nobody else gets it.
    """
    import socket

    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind(("", port))
    except OSError:
        held.close()
        return False
    held.detach()  # open until this shim ends
    return True


def report(event: str, rank: int | str, pid: int, code: int) -> None:
    """Tell the launcher, when there is one: a line pasted from ``--dry-run`` has none."""
    if "EZPZ_CONTROL" in os.environ:
        from ezpz.launch.control import send

        told = send(os.environ["EZPZ_CONTROL"], event, rank, pid, code)
        if not told and event == "up":
            addresses = os.environ["EZPZ_CONTROL"].rpartition("@")[2]
            sys.stderr.write(
                f"ezpz: note: {os.uname().nodename} cannot reach the launcher ({addresses}): a failure is then told late\n"
            )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
