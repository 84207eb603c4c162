"""Start one rank under a foreign launcher, and tell the agent of its host how it ended.

Run as ``python3 -I -S run_shim.py COMMAND…`` by ``mpiexec`` or ``srun``, once per rank, so it starts in milliseconds:
few imports, no site packages. It translates the launcher's variables into torchrun's contract, compares them with the
plan, waits until the ranks of all hosts are ready, runs the command as its child and passes signals on. The first shim
of a host forks off the agent (`ezpz.launch.host.agent`), which from then on reads what the ranks write. What shims and
agent say to each other are the tables ``FROM_RANKS`` and ``TO_SHIMS`` of `ezpz.launch.agent_messages`; a shim whose
rank has ended waits to be released, with the rank's code or with 0 where the launcher knows the rest. Without
EZPZ_CONTROL, in a line pasted from ``--dry-run``, there is no agent: the rank begins at once, and the shim ends as it
does.

The shim is the parent of its rank from the first moment to the last: it adopts what the rank leaves behind, and knows
how the rank ended. It also tells the agent which signal it dies of itself, where that signal lets it: all that is left
to guess is SIGKILL.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without its enums, which cost 5 ms and 1 MB
import errno
import os
import select
import sys
import time

from ezpz.errors import EzpzError, LaunchError, shell_code
from ezpz.fields import Malformed
from ezpz.launch import shim_messages as messages
from ezpz.launch.contract import restore_environment, restore_mask, tell, threads, unquoted
from ezpz.launch.host.process_tree import adopt, call_me, close_others, die_with_parent, kill_tree, reap
from ezpz.launch.host.rank_start import (
    FOR_RANK_ALONE,
    FORWARDED,
    TO_ALL,
    be,
    bind,
    cannot_run,
    hold_port,
    make_folder,
    name_interface,
    pipes,
    reaches_all,
    start,
)
from ezpz.local_socket import claim, reach, send, will_pass
from ezpz.ranks import Ranks, expand_counts, from_environ

TYPE_CHECKING = False  # `typing` costs 5 ms in every shim; type checkers know this spelling
if TYPE_CHECKING:
    import _socket
    from typing import NoReturn

    from ezpz.launch.shim_messages import Message

_TWICE = 2.0  # seconds in which one signal that comes by two ways, the launcher's and the agent's, counts once
_ENDING = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP)
_ALONE = 125

# Signals that end a shim. It dies of them as any program does, but tells its agent first: an mpiexec that sees it end
# stops all other ranks, and cannot be asked which one was first.
_DEADLY = (
    *(_signal.SIGQUIT, _signal.SIGTRAP, _signal.SIGALRM, _signal.SIGVTALRM, _signal.SIGPROF, _signal.SIGXCPU),
    *(getattr(_signal, name) for name in ("SIGSYS", "SIGIO", "SIGPWR", "SIGSTKFLT") if hasattr(_signal, name)),
    *(range(_signal.SIGRTMIN, _signal.SIGRTMAX + 1) if hasattr(_signal, "SIGRTMIN") else ()),
)


def checked_ranks(environ: dict[str, str]) -> tuple[Ranks, int]:
    """Return who this rank is and the number of hosts, checked against the plan.

    Raises:
        EzpzError: The world that came up is not the one that was asked for.
    """
    ranks = from_environ(environ)
    counts = list(expand_counts(environ["EZPZ_PLACEMENT"]))
    if ranks.world_size != sum(counts):
        raise LaunchError(
            f"rank {ranks.rank} of {ranks.world_size} came up (from {ranks.family}); expected a world of {sum(counts)} "
            "(from the plan). The launcher started separate worlds: check that mpiexec and the job belong together."
        )
    first = 0
    for index, count in enumerate(counts):  # noqa: B007  # both are used after the loop
        if ranks.rank < first + count:
            break
        first += count
    if (ranks.local_rank, ranks.local_world_size) != (ranks.rank - first, count):
        raise LaunchError(
            f"rank {ranks.rank} is local rank {ranks.local_rank} of {ranks.local_world_size} (from {ranks.family}); "
            f"expected {ranks.rank - first} of {count} (from the plan). Ranks were not placed in blocks: check the "
            "launcher's options."
        )
    return ranks.at_host(index), len(counts)


def main(command: list[str]) -> int:
    """Run one rank and return the exit code for the launcher."""
    call_me("ezpz-shim")
    if command[:1] == ["--quoted"]:
        command = [unquoted(word) for word in command[1:]]
    die_with_parent()
    environ = dict(os.environ)
    if environ.get("EZPZ_CONTROL") and _launcher_is_gone():
        return _ALONE
    restore_environment(environ)
    restore_mask(environ)
    try:
        ranks, hosts = checked_ranks(environ)
    except EzpzError as error:
        return _refuse(environ, error)
    tell(environ, ranks, hosts)
    environ["EZPZ_RUN_ID"] = environ.get("TORCHELASTIC_RUN_ID", "")  # that agent gives its own
    environ.setdefault("OMP_NUM_THREADS", threads(ranks.local_world_size))
    cpus, note = bind(environ.pop("EZPZ_CPUS", ""), ranks.local_rank, ranks.local_world_size)
    shim = _Shim(environ)
    shim.meet(ranks, environ)
    if note:
        shim.tell(messages.Note(text=f"rank {ranks.rank} {note}"))
    if hosts > 1:
        environ.update(name_interface(environ))
        if ranks.rank == 0 and hold_port(int(environ["MASTER_PORT"])) is None:
            shim.tell(messages.PortTaken())
            return shim.linger(_ALONE)
    return shim.run(command, environ, cpus)


def _launcher_is_gone() -> bool:
    """Tell whether nobody reads what this process writes: its mpiexec ended before `die_with_parent` could see it."""
    waits = select.poll()
    for fd in (1, 2):
        waits.register(fd, 0)  # errors are told in any case
    gone = [fd for fd, events in waits.poll(0) if events & (select.POLLERR | select.POLLHUP)]
    return len(gone) == 2  # both, or a program in front of this one has closed one


def _refuse(environ: dict[str, str], error: EzpzError) -> int:
    """Tell that this is no rank of the plan; nothing is run."""
    ranks = Ranks(-1, 0, 0, 0, None, "alone")
    try:
        ranks = from_environ(environ).at_host(None)  # what it says of hosts is not the plan's
    except EzpzError:
        pass  # contradictions are what `error` says
    shim = _Shim(environ)
    shim.meet(ranks, environ)
    shim.tell(messages.WrongWorld(text=str(error)))
    return shim.linger(error.exit_code)


def _become_agent(listener: _socket.socket, control: str, launch: str, placement: str, index: int | None) -> int:
    """Leave all that ties this process to the rank and its ``mpiexec``, and run the agent of this host."""
    if os.fork():  # twice, so that it is no child of the shim, whose children are the rank's
        return 0
    os.setsid()
    die_with_parent(0)
    for number in _DEADLY:  # the shim's handlers tell an agent
        _signal.signal(number, _signal.SIG_DFL)
    kept = listener.detach()
    close_others(kept)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    import socket

    from ezpz.launch.host.start_agent import run_for_shims

    return run_for_shims(socket.socket(fileno=kept), control, launch, placement, index)


class _Shim:
    """One rank, and the connection to the agent of its host if there is one."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._agent: _socket.socket | None = None
        self._pid = 0
        self._may_begin: bool | None = None  # None until the agent has answered
        self._missed: list[tuple[int, str]] = []  # signals that came before the rank, and their ways
        self._heard: dict[tuple[int, str], float] = {}  # signal and the way it came: when
        self._holds_terms = False  # the agent sends a SIGTERM that comes here, when the ranks have saved
        self._early: dict[int, int] = {}  # signals that the rank gets when it has a handler for them
        self._inbox = messages.LineReader(messages.TO_SHIMS)
        self._released: bool | None = None  # with the code of the rank, or with 0
        self._output: tuple[int, int] | None = None
        self._stdin: int | None = None  # what rank 0 reads
        self._wakeup, self._wakes = os.pipe()
        for end in (self._wakeup, self._wakes):
            os.set_blocking(end, False)
        self._ignores = tuple(map(int, environ.pop("EZPZ_IGNORED", "").split()))
        for number in (*FORWARDED, _signal.SIGCHLD):
            _signal.signal(number, _signal.SIG_IGN if number in self._ignores else lambda *_: None)
        for number in _DEADLY:
            if _signal.getsignal(number) == _signal.SIG_DFL:
                _signal.signal(number, lambda *_: None)
        _signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        self._daemon = environ.pop("EZPZ_SIGNALLED_BY", "").encode()
        self._waits_for = set(FORWARDED).difference(self._ignores) if self._daemon else set()

    def meet(self, ranks: Ranks, environ: dict[str, str]) -> None:
        """Reach the agent of this host, and start it if this is the first shim here; without a launcher do nothing."""
        if environ.pop("EZPZ_STDIN", "") != "none" and not ranks.rank:
            self._stdin = 0
        control, launch = environ.pop("EZPZ_CONTROL", ""), environ.pop("EZPZ_LAUNCH", "")
        if control:
            environ["EZPZ_LAUNCH_ID"] = launch
            self._reach_agent(ranks, control, launch, environ)
        adopt()  # only now: the agent is to be no child of this process

    def _reach_agent(self, ranks: Ranks, control: str, launch: str, environ: dict[str, str]) -> None:
        index = ranks.host_index
        where = environ["EZPZ_SOCKET"]
        if index is not None:  # two hosts of the plan may share one network, as containers do
            where = environ["EZPZ_SOCKET"] = f"{where}-{index}"
        try:
            listener = claim(where)
            if listener:
                pid = os.fork()
                if not pid:
                    be(lambda: _become_agent(listener, control, launch, environ["EZPZ_PLACEMENT"], index))
                os.waitpid(pid, 0)
                listener.close()
            self._agent = reach(where)
        except OSError as error:
            raise LaunchError(
                f"cannot reach the agent of {os.uname().nodename} at {where} (from EZPZ_SOCKET): {error.strerror}; "
                "expected the first "
                "rank of this host to listen there. Start again; if it stays so, try `--flavour ssh`."
            ) from None
        reads, self._output = pipes()
        kept: tuple[int, ...] = reads
        if self._stdin is not None:  # what this process got as stdin is nothing: mpiexec passes on too little
            self._stdin, write = os.pipe()
            kept = (*reads, write)
        started = messages.ShimStarted(
            rank=ranks.rank,
            world=ranks.world_size,
            local_rank=ranks.local_rank,
            local_world=ranks.local_world_size,
            host=-1 if index is None else index,
            family=ranks.family,
            pid=os.getpid(),
            time=time.time(),
        )
        send(self._agent, messages.FROM_SHIMS.encode(started), kept)
        for fd in kept:
            os.close(fd)
        import faulthandler

        # The last word of a shim that crashes: mpiexec ends all others as well, and cannot be asked which was first.
        faulthandler.enable(self._agent.fileno(), all_threads=False)

    def tell(self, message: Message) -> None:
        """Send the agent a message; without an agent, write what the user should know."""
        if self._agent is None:
            if isinstance(message, messages.Note):
                _say(f"note: {message.text}")
            elif isinstance(message, messages.WrongWorld):
                _say(message.text)
            return
        try:
            send(self._agent, messages.FROM_SHIMS.encode(message))
        except OSError:
            pass  # its end is noticed by reading

    def run(self, command: list[str], environ: dict[str, str], cpus: list[int] | None) -> int:
        """Run the command to its end, with all that it left behind, and return the exit code for the launcher."""
        if self._agent and not self._wait_for_all():
            number = self._ended_by()
            return shell_code(-number) if number else self.linger(_ALONE)
        if environ.get("EZPZ_RECORDER"):
            from ezpz.launch.host import rank_start

            rank_start.make_room(environ, environ["EZPZ_RECORDER"])
        make_folder(environ.get("EZPZ_COLLECTIVES", ""))
        _signal.pthread_sigmask(_signal.SIG_BLOCK, self._waits_for)
        early = _signal.sigpending() if self._waits_for else set()  # there is no rank yet that they could have reached
        try:
            pid, problem = start(
                command, environ, stdin=self._stdin, output=self._output, cpus=cpus, ignores=self._ignores
            )
        except OSError as error:  # no more files or processes
            pid, problem = 0, error.errno or errno.EAGAIN
        self._pid = pid
        if problem:
            code = cannot_run(problem)
            if self._agent is None:
                _say(f"cannot run {command[0]}: {os.strerror(problem)}")
            self.tell(messages.CannotRun(number=problem, program=command[0]))
            return self.linger(code)
        self.tell(messages.RankStarted(pid=self._pid))
        for number, way in self._missed:
            self._forward(number, way)
        if self._waits_for:
            import _thread

            _thread.start_new_thread(self._take_with_sender, (early,))  # only now: nothing is forked any more
        code = self._wait()
        self._clear()
        self.tell(messages.RankEnded(code=code))
        return self.linger(shell_code(code))

    def _wait_for_all(self) -> bool:
        """Wait until the ranks of all hosts are ready; tell whether this one may begin, or is to end before it has."""
        self.tell(messages.RankReady())
        while self._may_begin is None:
            self._attend()
            number = self._ended_by()
            if number:
                self.tell(messages.SignalPassed(number=number))
                self.tell(messages.RankEnded(code=-number))
                return False
        return self._may_begin

    def _ended_by(self) -> int:
        """Return the signal by which mpiexec or srun has ended this rank before it began, 0 without one."""
        return next((number for number, _ in self._missed if number in _ENDING), 0)

    def _wait(self) -> int:
        """Return the rank's exit code, or minus the signal that ended it."""
        while True:
            for pid, status in reap():
                if pid == self._pid:
                    return os.waitstatus_to_exitcode(status)
            self._attend()

    def _clear(self) -> None:
        """Kill what the rank left behind, in whatever session: as orphans they are children of this process."""
        self._send(_signal.SIGKILL)
        self._pid = 0
        self._early.clear()
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return  # the usual case, and no look at all processes of the host
        kill_tree(os.getpid())

    def linger(self, code: int) -> int:
        """Wait until the agent has reported to the launcher: an mpiexec would judge the end of this process by rules of
        its own.
        """
        while self._agent is not None and self._released is None:
            self._attend()
        return 0 if self._released is False else code

    def _attend(self) -> None:
        """Wait for a signal or an order, and do it; look again at a rank for which a signal is held."""
        waits, agent = select.poll(), self._agent  # `select.select` takes no descriptor from 1024 on
        waits.register(self._wakeup, select.POLLIN)
        if agent is not None:
            waits.register(agent, select.POLLIN)
        again = self._give_early()
        ready = waits.poll(None if again is None else again * 1000)
        if agent is not None and any(fd == agent.fileno() for fd, _ in ready):
            self._obey()
        self._hear_signals()

    def _hear_signals(self) -> None:
        try:
            numbers = os.read(self._wakeup, 4096)
        except BlockingIOError:
            return  # none came
        for number in numbers:
            if number & ~TO_ALL in FORWARDED:
                self._forward(number & ~TO_ALL, "itself", reached=bool(number & TO_ALL))
            elif number in _DEADLY:
                self._die(number)

    def _die(self, number: int) -> None:
        """End of a signal, as if this process had no handler for it, but tell the agent first."""
        name = next((name for name in dir(_signal) if name[:3] == "SIG" and getattr(_signal, name) == number), "")
        self.tell(messages.ShimCrashed(text=f"Python error: {name or f'signal {number}'}"))
        _signal.signal(number, _signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _take_with_sender(self, early: set[int]) -> None:
        """Write down signals with who has sent them, in a thread: the scheduler's daemon has reached the rank as well.

        Only ``sigwaitinfo`` tells the sender. ``early`` came before the rank.
        """
        while True:
            came = _signal.sigwaitinfo(self._waits_for)
            reached = reaches_all(came.si_pid, self._daemon) and came.si_signo not in early
            early.discard(came.si_signo)
            os.write(self._wakes, bytes([came.si_signo | (TO_ALL if reached else 0)]))

    def _obey(self) -> None:
        assert self._agent is not None
        try:
            data = self._agent.recv(4096)
        except OSError as error:
            if will_pass(error):
                return
            data = b""
        try:
            for order in self._inbox.feed(data):
                if isinstance(order, messages.Begin):
                    self._may_begin = True
                elif isinstance(order, (messages.Hold, messages.Signal)):
                    self._hold_or_signal(order)
                elif isinstance(order, messages.Kill):
                    self._may_begin = False
                    kill_tree(os.getpid())
                elif isinstance(order, messages.Release):
                    self._may_begin = False
                    self._released = order.codes
        except Malformed:
            data = b""
        if not data:  # it was killed: the host is lost to the launcher, and nothing of it may stay
            self._agent = None
            self._may_begin = False
            kill_tree(os.getpid())

    def _hold_or_signal(self, order: messages.Hold | messages.Signal) -> None:
        if isinstance(order, messages.Hold):
            self._holds_terms = order.how > 0
        else:
            self._holds_terms &= order.number != _signal.SIGTERM
            self._forward(order.number, "agent")

    def _forward(self, number: int, way: str, *, reached: bool = False) -> None:
        """Pass a signal on once: a scheduler may send one to this process, to the launcher and to the rank itself."""
        if not self._pid:
            self._missed.append((number, way))
            return
        other = "agent" if way == "itself" else "itself"
        now = time.monotonic()
        if way == "itself":  # also where the agent's order came first: an agent without its launcher goes by that
            self.tell(messages.SignalPassed(number=number))
            if self._holds_terms and number == _signal.SIGTERM:
                return
        if not reached and now - self._heard.pop((number, other), -_TWICE) < _TWICE:
            return
        self._heard[number, way] = now
        if number in FOR_RANK_ALONE:
            self._give(number, reached=reached)
        elif not reached:
            self._send(number)

    def _send(self, number: int) -> None:
        """Send a signal to the rank and what it has started in its session."""
        try:
            os.killpg(self._pid, number)
        except OSError:
            pass  # it is gone already

    def _give(self, number: int, *, reached: bool) -> None:
        """Send a signal to the rank alone, as soon as it has a handler for it."""
        from ezpz.launch.host import early_signals

        if early_signals.give(self._pid, number, self._early, reached=reached):
            self.tell(messages.Note(text=early_signals.note(number)))

    def _give_early(self) -> float | None:
        """Send what the rank has a handler for by now; return in how many seconds to try again, None for never."""
        if not self._early:
            return None
        from ezpz.launch.host import early_signals

        early_signals.give_again(self._pid, self._early)
        return early_signals.AGAIN if self._early else None


def _say(text: str) -> None:
    """Write a line of ours on stderr."""
    from ezpz.visible import show  # an ordinary rank has no need of it

    show(f"ezpz: {text}", sys.stderr)


def run(words: list[str]) -> NoReturn:
    """Be the shim of a command line, and end."""
    try:
        ended = main(words)
    except EzpzError as error:
        _say(str(error))
        ended = error.exit_code
    sys.stderr.flush()
    os._exit(ended)  # without the 5 ms that Python takes to clear up
