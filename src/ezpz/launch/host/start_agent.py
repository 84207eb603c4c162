"""Start the agent of a host: from its first shim, from the launcher by fork, by ssh or what does its work, or by
``mpiexec`` and ``srun`` where these start one agent per host instead of the ranks (``--mpi no``).
"""

from __future__ import annotations

if __name__ == "__main__":
    import _signal  # type: ignore[import-not-found]  # the first of the imports that Ctrl-C may come into

    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # the agent takes signals when it stands guard

import os
import signal
import socket
import sys
import time
from functools import partial

if __name__ == "__main__":
    sys.path.insert(0, os.path.abspath(__file__ + "/../../../.."))  # pathlib costs 10 ms

from ezpz import local_socket
from ezpz.errors import EzpzError, LaunchError, shell_code
from ezpz.launch import agent_messages
from ezpz.launch.contract import BY_LAUNCHER, rank_variables, restore_environment, restore_mask, threads, unquoted
from ezpz.launch.host import process_tree, rank_start
from ezpz.launch.host.agent import UNKNOWN, Agent
from ezpz.launch.host.connection import Connection, End, LauncherGoneError, NoConnection, connect
from ezpz.launch.host.rank_process import RankProcess
from ezpz.launch.host.rank_start import (
    FORWARDED,
    TO_ALL,
    afford,
    be,
    bind,
    cannot_run,
    name_interface,
    pipes,
    reaches_all,
    start,
)
from ezpz.launch.limits import FILES_OF_RANK, make_room, shortage
from ezpz.launch.temporary import mark_own
from ezpz.ranks import Ranks, expand_counts, from_environ

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ezpz.launch.agent_messages import Settings
    from ezpz.launch.host.local_world import LocalWorld
    from ezpz.launch.shared_slots import Slots

__all__ = ["UNSUPERVISED", "main", "run_for_shims", "run_local"]

UNSUPERVISED = "is unsupervised"  # the launcher looks for these words in what mpiexec passes on


def run_for_shims(listener: socket.socket, control: str, launch: str, placement: str, index: int | None) -> int:
    """Be the agent of a host whose ranks ``mpiexec`` or ``srun`` starts; they run on when the launcher cannot be
    reached.
    """
    process_tree.call_me("ezpz-agent")
    counts = list(expand_counts(placement))
    expected = UNKNOWN if index is None else counts[index]
    connection: Connection | NoConnection
    try:
        connection = connect(control, -1 if index is None else index)
    except LauncherGoneError:
        agent = Agent(NoConnection(), launch, expected, has_shims=True)
        agent.world.listen(listener)
        agent.turn_away()
        return agent.run()
    except LaunchError as error:
        connection = NoConnection()
        alone = f"host {os.uname().nodename} {UNSUPERVISED}: {error} Its ranks begin without waiting for any others."
        connection.show(-1, 2, f"ezpz: {alone}\n".encode())
    else:  # mpiexec waits for the end of what its ranks write into
        for fd in (1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    agent = Agent(connection, launch, expected, has_shims=True)
    agent.stand_guard(obeys_signals=False)
    _make_folder(agent.world)
    agent.world.listen(listener)
    environ = dict(os.environ)
    restore_environment(environ)
    agent.world.before_begin(environ, first=index == 0)
    return agent.run()


def run_local(
    ends: tuple[socket.socket, socket.socket],
    launch: str,
    command: Sequence[str],
    ranks: Sequence[tuple[dict[str, str], list[int] | None]],
    settings: Settings,
    *,
    slots: Slots | None,
    terminal: bool,
) -> int:
    """Start the ranks on this host, as a child of the launcher, and be their agent; without any, where the settings
    say that it stays, be that of worlds that are started later.

    Args:
        ends: This side of both connections to the launcher.
        launch: Id of the launch.
        command: What every rank runs.
        ranks: Environment and CPUs of each rank.
        settings: What the launcher wants of every agent.
        slots: Memory that this process shares with the launcher, if any.
        terminal: The only rank keeps the launcher's terminal, so that a debugger works.
    """
    process_tree.call_me("ezpz-agent")
    ignores = rank_start.ignored()
    terminal = terminal and not settings.stays  # no later world has it
    if not terminal:
        os.setsid()
    connected = Connection(End.made(ends[0]), End.made(ends[1]), settings, slots=slots)
    start_world = partial(_start_world, ignores=ignores)
    agent = Agent(connected, launch, len(ranks), own_session=not terminal, start=start_world)
    agent.stand_guard(obeys_signals=False)
    if not agent.stays:
        world = agent.world
        _make_folder(world)
        _let_in(world, ranks[0][0])
        try:
            _refuse_mpi(world, ranks[0][0])
            for rank, (environ, cpus) in enumerate(ranks):
                stdin = (0 if rank == 0 and settings.input else None), None
                own = {**environ, **world.variables(rank)}
                _start_own(world, rank, command, own, cpus, stdin=stdin, piped=not terminal, ignores=ignores)
        except LaunchError as error:
            agent.give_up(str(error), cannot=True)
            return agent.run()
    if not terminal:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # who writes to rank 0 shall notice that it ended
    return agent.run()


def main(words: Sequence[str]) -> int:
    """Start the agent of this host as the words say, and return the exit code of what has called this."""
    if words[0] == BY_LAUNCHER:
        return _in_front(words[1:])
    return _behind_ssh(int(words[0]), *words[1:])


def _behind_ssh(index: int, file: str = "") -> int:
    """Be the agent of the host with this index, and return the exit code.

    ``file`` holds its payload; without one that comes as input. This process only waits for the agent,
    its child: when somebody kills that, it kills what would be left.
    """
    process_tree.adopt()
    pid = os.fork()
    if not pid:
        process_tree.die_with_parent(signal.SIGTERM)
        be(lambda: _run(index, file))
    for number in FORWARDED:  # the agent hears them too, and decides
        signal.signal(number, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _, status = os.waitpid(pid, 0)
    if not process_tree.childless():
        process_tree.kill_all("")
    return shell_code(os.waitstatus_to_exitcode(status))


def _in_front(command: Sequence[str]) -> int:
    """Be what ``mpiexec`` or ``srun`` has started once on this host: tell the agent, a child of this process, which
    signals they send, and kill what is left when somebody kills the agent.
    """
    process_tree.call_me("ezpz-agent")
    process_tree.die_with_parent()
    process_tree.adopt()
    environ = dict(os.environ)
    daemon = environ.pop("EZPZ_SIGNALLED_BY", "").encode()
    ignores = _ignored(environ)
    for number in ignores:
        signal.signal(number, signal.SIG_IGN)
    awaited = {signal.SIGCHLD, *FORWARDED}.difference(ignores)
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    orders, to_agent = os.pipe()
    pid = os.fork()
    if not pid:
        be(lambda: _run_by_launcher(orders, list(command), environ))
    os.close(orders)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    while True:
        number, sender = _next_signal(awaited)
        if number == signal.SIGCHLD:
            status = dict(process_tree.reap()).get(pid)
            if status is not None:
                break
            continue
        try:
            os.write(to_agent, bytes([number | (TO_ALL if reaches_all(sender, daemon) else 0)]))
        except OSError:
            pass  # the agent ends just now
    if not process_tree.childless():
        process_tree.kill_all("")
    return shell_code(os.waitstatus_to_exitcode(status))


def _next_signal(awaited: set[signal.Signals]) -> tuple[int, int]:
    """Wait for a signal that is blocked; return it and its sender, 0 where the system does not name it (macOS)."""
    if not hasattr(signal, "sigwaitinfo"):
        return signal.sigwait(awaited), 0
    came = signal.sigwaitinfo(awaited)
    return came.si_signo, came.si_pid


def _run_by_launcher(starter: int, words: list[str], environ: dict[str, str]) -> int:
    """Be the agent that an mpiexec or srun has started, and the parent of the ranks of this host.

    Args:
        starter: Tells of their signals.
        words: The command, perhaps quoted.
        environ: As they have made it.
    """
    os.setsid()
    process_tree.close_others(starter)  # the MPI's own, which no rank shall have
    command = [unquoted(word) for word in words[1:]] if words[:1] == ["--quoted"] else words
    restore_environment(environ)
    restore_mask(environ)
    from ezpz.launch.host.mpi_trap import cleared

    variable, launch = environ.pop("EZPZ_CONTROL", ""), environ.pop("EZPZ_LAUNCH", "")
    counts = list(expand_counts(environ["EZPZ_PLACEMENT"]))
    connection: Connection | NoConnection = NoConnection()
    index, problem = _place(environ, len(counts))
    try:
        if variable:
            environ["EZPZ_LAUNCH_ID"] = launch
            connection = connect(variable, index)
        if problem and not variable:
            raise LaunchError(problem[2])
        suffix = f"-{index}"  # two hosts of the plan may share one network, as containers do
        start_world = partial(_start_world, suffix=suffix, ignores=_ignored(environ))
        agent = Agent(connection, launch, counts[index], waits=True, start=start_world)
        agent.stand_guard(obeys_signals=False)
        agent.hear_starter(starter)
        if problem:
            connection.report(agent_messages.Mismatch(host=os.uname().nodename, worlds=[problem]))
        elif agent.stays:
            agent.before_begin(cleared(environ), first=not index)
        else:
            if "EZPZ_SOCKET" in environ:
                environ["EZPZ_SOCKET"] += suffix
            _start_host(agent.world, index, counts, command, cleared(environ), own_stdin=not variable)
        return agent.run()
    except EzpzError as error:
        return _refused(connection, error)


def _ignored(environ: Mapping[str, str]) -> tuple[int, ...]:
    """Return the signals that the launcher was started with ignored."""
    return tuple(map(int, environ.get("EZPZ_IGNORED", "").split()))


def _place(environ: dict[str, str], hosts: int) -> tuple[int, tuple[str, str, str] | None]:
    """Return the index of this host, -1 where that is unknown, and the world that came up in place of the planned
    one: one agent on each of so many hosts.
    """
    try:
        ranks = from_environ(environ)
    except EzpzError as error:
        return -1, ("0", "", str(error))
    if (ranks.world_size, ranks.local_world_size) == (hosts, 1):
        return ranks.rank, None
    text = (
        f"{ranks.world_size} agents came up, {ranks.local_world_size} of them here (from {ranks.family}); expected "
        f"{hosts}, one on each host (from the plan). Check the launcher's options, or start with `launch --mpi yes`."
    )
    return -1, (str(ranks.world_size), ranks.family, text)


def _run(index: int, file: str = "") -> int:
    from ezpz.launch.host.payload import UNSEEN, open_file, unpack
    from ezpz.visible import show

    process_tree.call_me("ezpz-agent")
    try:
        source = open_file(file) if file else 0
    except OSError as error:
        host = os.uname().nodename
        show(f"ezpz: cannot read {file} on {host}, which holds what to start: {error.strerror}", sys.stderr)
        return UNSEEN
    connection: Connection | NoConnection = NoConnection()
    variable = ""
    try:
        payload = unpack(source)
        environ = dict(payload.environ)
        variable = environ.pop("EZPZ_CONTROL", "")
        launch = environ["EZPZ_LAUNCH_ID"] = environ.pop("EZPZ_LAUNCH", "")
        if variable:
            connection = connect(variable, index)
        counts = list(expand_counts(environ["EZPZ_PLACEMENT"]))
        agent = Agent(connection, launch, counts[index], start=partial(_start_world, ignores=_ignored(environ)))
        if not agent.stays:
            _enter(payload.folder)
        agent.stand_guard(obeys_signals=not file, is_signalled_alone=bool(file))
        if agent.stays:
            agent.before_begin(environ, first=not index)
        else:
            _start_host(agent.world, index, counts, payload.command, environ)
        code = agent.run()
    except EzpzError as error:
        code = _refused(connection, error)
        if variable and isinstance(connection, NoConnection):
            _forget(file)
        return code
    if variable:
        _forget(file)
    return code


def _forget(file: str) -> None:
    """Remove the file of the payload where the launcher could not, because it was killed before all agents had come."""
    try:
        os.unlink(file)
    except OSError:
        pass  # it has removed it, or there was none


def _refused(connection: Connection | NoConnection, error: EzpzError) -> int:
    """Tell why no rank begins here, and return the exit code."""
    connection.report(agent_messages.Refused(text=str(error), cannot=True))
    return error.exit_code


def _start_world(
    world: LocalWorld, order: agent_messages.Start, *, suffix: str = "", ignores: tuple[int, ...] = ()
) -> None:
    """Start a world on this host as the launcher orders.

    Args:
        world: It.
        order: What to start.
        suffix: What tells the socket of this agent from those of others in the same network.
        ignores: Signals that its ranks ignore, besides those that their environment names.

    Raises:
        EzpzError: It cannot be started here.
    """
    environ = dict(order.environ)
    for name in ("EZPZ_CONTROL", "EZPZ_LAUNCH"):
        environ.pop(name, None)
    environ["EZPZ_LAUNCH_ID"] = world.launch
    if "EZPZ_SOCKET" in environ:
        environ["EZPZ_SOCKET"] += f"{suffix}-w{world.number}"
    if not order.settings.input:
        environ["EZPZ_STDIN"] = "none"
    counts = list(expand_counts(environ.get("EZPZ_PLACEMENT", "")))
    if not order.command or order.index >= len(counts):
        raise LaunchError(
            f"cannot start {order.command or 'no command'} on host {order.index} of {len(counts)} (from the launcher's "
            "order); expected a command and one of these hosts."
        )
    _enter(order.folder, stays=True)
    world.folder, world.expected = order.folder, counts[order.index]
    _start_host(world, order.index, counts, order.command, environ, ignores=ignores)


def _start_host(
    world: LocalWorld,
    index: int,
    counts: list[int],
    command: list[str],
    environ: dict[str, str],
    *,
    own_stdin: bool = False,
    ignores: tuple[int, ...] = (),
) -> None:
    """Start one host's ranks of a world when those of all hosts can begin; only rank 0 gets the launcher's input, or
    with ``own_stdin`` that of this process.
    """
    from ezpz.launch.host.payload import to_bytes

    count, first, hosts = counts[index], sum(counts[:index]), len(counts)
    if "HOSTNAME" in environ:  # true of the launcher's host alone, as bash sets and some shells export it
        environ["HOSTNAME"] = os.uname().nodename
    make_room("ranks", FILES_OF_RANK + bool(world.settings.log_dir), count, "--ppn")
    world.before_begin(dict(environ), first=not index)
    if hosts > 1:
        environ.update(name_interface(environ))
        if not first and not world.hold_port(int(environ["MASTER_PORT"])):
            if world.number:
                raise LaunchError(
                    f"port {environ['MASTER_PORT']} of {os.uname().nodename} is taken (from MASTER_PORT); expected a "
                    "free one for rank 0. Start with another."
                )
            world.report(agent_messages.PortTaken())
            return
    environ.setdefault("OMP_NUM_THREADS", threads(count))
    ignores = (*ignores, *_ignored(environ))
    environ.pop("EZPZ_IGNORED", None)
    plan, has_input = environ.pop("EZPZ_CPUS", ""), environ.pop("EZPZ_STDIN", "") != "none"
    _make_folder(world)
    _let_in(world, environ)
    _refuse_mpi(world, environ)
    words = [to_bytes(word) for word in command]

    def start_ranks() -> None:
        for local in range(count):
            ranks = Ranks(first + local, sum(counts), local, count, index, "contract")
            cpus, note = bind(plan, local, count)
            if note:
                world.report(agent_messages.Note(text=f"rank {ranks.rank} {note}"))
            variables = {**environ, **rank_variables(ranks, hosts, environ), **world.variables(ranks.rank)}.items()
            own = {to_bytes(name): to_bytes(value) for name, value in variables}
            stdin: tuple[int | None, int | None] = (None, None)
            if not ranks.rank and has_input:
                stdin = (0, None) if own_stdin else os.pipe()
            _start_own(world, ranks.rank, words, own, cpus, stdin=stdin, piped=True, ignores=ignores)

    world.wait_for_all(start_ranks)


def _make_folder(world: LocalWorld) -> None:
    """Make the folder where the ranks of this host leave their last collectives: it is this agent's."""
    folder = world.settings.collectives
    if folder:
        rank_start.make_folder(folder)
        mark_own(folder)


def _let_in(world: LocalWorld, environ: dict[str, str]) -> None:
    """Listen for ranks; lines that were pasted by hand name no socket."""
    listener = local_socket.claim(environ["EZPZ_SOCKET"]) if "EZPZ_SOCKET" in environ else None
    if listener:
        world.listen(socket.socket(fileno=listener.detach()))


def _refuse_mpi(world: LocalWorld, environ: dict[str, str]) -> None:
    """See to it that no rank runs as a world of 1, where the user has set that none starts an MPI."""
    asked = environ.get("EZPZ_NO_MPI", "1")
    if asked != "1":
        world.refuse_mpi(asked)


def _start_own(
    world: LocalWorld,
    rank: int,
    command: Sequence[str] | Sequence[bytes],
    environ: dict[str, str] | dict[bytes, bytes],
    cpus: list[int] | None,
    *,
    stdin: tuple[int | None, int | None],
    piped: bool,
    ignores: tuple[int, ...],
) -> None:
    note = afford(cpus)
    if note:
        world.report(agent_messages.Note(text=f"rank {rank} {note}"))
    if world.settings.recorder:
        rank_start.make_room(environ, world.settings.recorder)
    cpus = None if note else cpus
    ours: tuple[int, ...] = ()
    its: tuple[int, int] | None = None
    try:
        ours, its = pipes() if piped else ((), None)
        pid, problem = start(
            command,
            environ,
            stdin=stdin[0],
            output=its,
            cpus=cpus,
            own_session=world.own_session,
            ignores=ignores,
            folder=world.folder.encode("utf-8", "surrogateescape"),
        )
    except OSError as error:  # no more files or processes
        for fd in (*ours, *(its or ())):
            os.close(fd)
        raise LaunchError(
            f"rank {rank} cannot be started: {error.strerror}; {shortage(error, starting=True)}."
        ) from None
    process = RankProcess(rank, pid=pid, pipes=ours, stdin=stdin[1], log_dir=world.settings.log_dir)
    process.reach("process", time.time())
    if problem:
        process.end(cannot_run(problem), f"cannot run {os.fsdecode(command[0])}: {os.strerror(problem)}")
    world.add(process)


def _enter(folder: str, *, stays: bool = False) -> None:
    """Change to the folder of the ranks, or with ``stays`` see that they can."""
    from ezpz.launch.host.payload import to_bytes

    try:
        if stays:
            os.stat(to_bytes(folder) + b"/.")
        else:
            os.chdir(to_bytes(folder))
    except OSError as error:
        raise LaunchError(
            f"cannot enter {folder} on {os.uname().nodename} (from the launcher's working folder): {error.strerror}; "
            "expected the same folder on every host. Start `launch` in a folder that they share."
        ) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
