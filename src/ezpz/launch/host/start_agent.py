"""The three ways in which a host gets its leader: from its first shim, from the launcher by fork, and through ssh."""

from __future__ import annotations

import os
import signal
import socket
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.abspath(__file__ + "/../../../.."))  # pathlib costs 10 ms

from ezpz.errors import EzpzError, LaunchError, shell_code
from ezpz.launch.contract import rank_variables, threads
from ezpz.launch.host import connection, process_tree, rank_start
from ezpz.launch.host.agent import Leader
from ezpz.launch.host.connection import Link, Nobody, connect
from ezpz.launch.host.rank_process import Member
from ezpz.launch.host.rank_start import FORWARDED, afford, be, bind, cannot_run, hold_port, name_interface, pipes, start
from ezpz.ranks import Ranks, expand_counts

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

__all__ = ["UNSUPERVISED", "lead_for_shims", "lead_local", "main"]

UNSUPERVISED = "is unsupervised"  # the launcher looks for these words in what mpiexec passes on
_SHIMS_HAVE_GONE = 10**9  # ranks expected on a host of which nobody knows which one it is: it waits for the launcher


def lead_for_shims(listener: socket.socket, control: str, launch: str, placement: str, index: int | None) -> int:
    """Lead a host whose ranks are started by ``mpiexec`` or ``srun``; they run on when the launcher cannot be reached."""
    process_tree.call_me("ezpz-leader")
    counts = list(expand_counts(placement))
    expected = _SHIMS_HAVE_GONE if index is None else counts[index]
    link: Link | Nobody
    try:
        link = connect(control, -1 if index is None else index)
    except LaunchError as error:
        link = Nobody()
        link.show(-1, 2, f"ezpz: host {os.uname().nodename} {UNSUPERVISED}: {error}\n".encode())
    else:  # mpiexec waits for the end of what its ranks write into
        for fd in (1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    leader = Leader(link, launch, expected, getattr(link, "settings", {}))
    leader.stand_guard(obeys_signals=False)
    leader.shims.listen(listener)
    return leader.run()


def lead_local(
    ends: tuple[socket.socket, socket.socket],
    launch: str,
    command: Sequence[str],
    ranks: Sequence[tuple[dict[str, str], list[int] | None]],
    settings: dict[str, Any],
    *,
    terminal: bool,
) -> int:
    """Start the ranks on this host, as a child of the launcher, and lead them.

    Args:
        ends: This side of both connections to the launcher.
        launch: Id of the launch.
        command: What every rank runs.
        ranks: Environment and CPUs of each rank.
        settings: What the launcher tells every leader.
        terminal: The only rank keeps the launcher's terminal, so that a debugger works.
    """
    process_tree.call_me("ezpz-leader")
    if not terminal:
        os.setsid()
    leader = Leader(Link(*ends), launch, len(ranks), settings, own_session=not terminal)
    leader.stand_guard(obeys_signals=False)
    _let_in(leader, ranks[0][0])
    for rank, (environ, cpus) in enumerate(ranks):
        reads = rank == 0 and settings["input"]
        _start_own(leader, rank, command, environ, cpus, reads=reads, piped=not terminal)
    if not terminal:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # who writes to rank 0 shall notice that it ended
    return leader.run()


def main(words: Sequence[str]) -> int:
    """Lead the host with the index that is given, behind ssh, and return the exit code.

    This process only waits for the leader, its child: when somebody kills that, it kills what would be left.
    """
    process_tree.adopt()
    pid = os.fork()
    if not pid:
        process_tree.die_with_parent(signal.SIGTERM)
        be(lambda: _lead(int(words[0])))
    for number in FORWARDED:  # the leader hears them too, and decides
        signal.signal(number, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _, status = os.waitpid(pid, 0)
    if not process_tree.childless():
        process_tree.kill_all("")
    return shell_code(os.waitstatus_to_exitcode(status))


def _lead(index: int) -> int:
    from ezpz.launch.host.payload import unpack

    process_tree.call_me("ezpz-leader")
    link: Link | Nobody = Nobody()
    try:
        parcel = unpack(0)
        environ = dict(parcel.environ)
        variable = environ.pop("EZPZ_CONTROL", "")
        launch = environ["EZPZ_LAUNCH_ID"] = environ.pop("EZPZ_LAUNCH", "")
        if variable:
            link = connect(variable, index)
        _enter(parcel.folder)
        counts = list(expand_counts(environ["EZPZ_PLACEMENT"]))
        leader = Leader(link, launch, counts[index], getattr(link, "settings", {}))
        leader.stand_guard(obeys_signals=True)
        _start_host(leader, index, counts, parcel.command, environ)
        return leader.run()
    except EzpzError as error:
        sys.stderr.write(f"ezpz: {error}\n")
        link.say("refused", text=str(error))
        return error.exit_code


def _start_host(leader: Leader, index: int, counts: list[int], command: list[str], environ: dict[str, str]) -> None:
    """Start one host's ranks; only rank 0 reads what follows the parcel."""
    from ezpz.launch.host.payload import to_bytes

    count, first, hosts = counts[index], sum(counts[:index]), len(counts)
    if "HOSTNAME" in environ:  # true of the launcher's host alone, as bash sets and some shells export it
        environ["HOSTNAME"] = os.uname().nodename
    if hosts > 1:
        environ.update(name_interface(environ))
        if not first and not hold_port(int(environ["MASTER_PORT"])):
            leader.link.say("port")
            return
    environ.setdefault("OMP_NUM_THREADS", threads(count))
    plan, has_input = environ.pop("EZPZ_CPUS", ""), environ.pop("EZPZ_STDIN", "") != "none"
    _let_in(leader, environ)
    words = [to_bytes(word) for word in command]
    for local in range(count):
        ranks = Ranks(first + local, sum(counts), local, count, index, "contract")
        cpus, note = bind(plan, local, count)
        if note:
            leader.link.say("note", text=f"rank {ranks.rank} {note}")
        own = {to_bytes(name): to_bytes(value) for name, value in {**environ, **rank_variables(ranks, hosts)}.items()}
        _start_own(leader, ranks.rank, words, own, cpus, reads=not ranks.rank and has_input, piped=True)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # who writes to rank 0 shall notice that it ended


def _let_in(leader: Leader, environ: dict[str, str]) -> None:
    """Listen for ranks; lines that were pasted by hand name no socket."""
    listener = connection.claim(environ["EZPZ_SOCKET"]) if "EZPZ_SOCKET" in environ else None
    if listener:
        leader.shims.listen(socket.socket(fileno=listener.detach()))


def _start_own(
    leader: Leader,
    rank: int,
    command: Sequence[str] | Sequence[bytes],
    environ: dict[str, str] | dict[bytes, bytes],
    cpus: list[int] | None,
    *,
    reads: bool,
    piped: bool,
) -> None:
    note = afford(cpus)
    if note:
        leader.link.say("note", text=f"rank {rank} {note}")
    if leader.settings.get("recorder"):
        rank_start.make_room(environ, leader.settings["recorder"])
    ours, its = pipes() if piped else ((), None)
    pid, problem = start(
        command, environ, reads=reads, output=its, cpus=None if note else cpus, own_session=leader.own_session
    )
    member = Member(rank, pid=pid, pipes=ours, log_dir=leader.settings.get("log_dir", ""))
    if problem:
        member.end(cannot_run(problem), f"cannot run {os.fsdecode(command[0])}: {os.strerror(problem)}")
    leader.add(member)


def _enter(folder: str) -> None:
    from ezpz.launch.host.payload import to_bytes

    try:
        os.chdir(to_bytes(folder))
    except OSError as error:
        raise LaunchError(
            f"cannot enter {folder} on {os.uname().nodename} (from the launcher's working folder): {error.strerror}; expected the same "
            "folder on every host. Start `launch` in a folder that they share."
        ) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
