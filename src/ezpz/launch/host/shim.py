"""Start one rank under a foreign launcher, and tell the agent of its host how it ended.

Run as ``python3 -I -S run_shim.py COMMAND…`` by ``mpiexec`` or ``srun``, once per rank, so it starts in milliseconds:
few imports, no site packages. It translates the launcher's variables into torchrun's contract, compares them with the
plan, waits until the ranks of all hosts are ready, runs the command as its child and passes signals on. The first shim
of a host forks off the agent (`ezpz.launch.host.agent`), which from then on reads what the ranks write. What shims and
agent say to each other are the tables ``FROM_RANKS`` and ``TO_SHIMS`` of `ezpz.launch.messages`; a shim whose rank has
ended waits to be released, with the rank's code or with 0 where the launcher knows the rest. Without EZPZ_CONTROL, in a
line pasted from ``--dry-run``, there is no agent: the rank begins at once, and the shim ends as it does.

A bare Python that waits holds 2.5 MB that it does not share. So a shim hands its rank over to the agent and, when
that has run for a second, sleeps: it becomes a shell (`_SLEEP`), which holds 0.1 MB, and keeps its pid and children.

    mpiexec ── shim: /bin/sh ── holder: sleep(1) ── rank
                 │                 └ never asks how its child ended, so that the agent can look it up in /proc
                 └ tells the agent of signals, adopts orphans, ends with the code that the agent says

The holder dies with the shim, and the rank with its holder. The agent passes signals on, and a descriptor of the rank
(pidfd) tells it of the end (`ezpz.launch.host.agent`). Where the agent has gone, or cannot look up the end, the shell
becomes this program again. A shim stays awake and is the parent of its rank as long as it must tell who sent a signal
(EZPZ_SIGNALLED_BY), and on a system that lacks one of these: Linux 5.3, a shell of `_SHELLS`, `sleep`.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without its enums, which cost 5 ms and 1 MB
import errno
import os
import select
import sys
import time

from ezpz import proc
from ezpz.errors import EzpzError, LaunchError, shell_code
from ezpz.launch import shim_messages as messages
from ezpz.launch.contract import rank_variables, restore_mask, restore_paths, threads, unquoted
from ezpz.launch.host.local_socket import claim, reach, send
from ezpz.launch.host.process_tree import adopt, call_me, die_with_parent, kill_tree, reap
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
from ezpz.ranks import Ranks, expand_counts, from_environ

TYPE_CHECKING = False  # `typing` costs 5 ms in every shim; type checkers know this spelling
if TYPE_CHECKING:
    import _socket
    from typing import NoReturn

    from ezpz.launch.shim_messages import Message

_TWICE = 2.0  # seconds in which one signal that comes by two ways, the launcher's and the agent's, counts once
_AGAIN = 0.01  # seconds until the next look at a rank that is about to end
_ENDING = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP)
_ALONE = 125

# A shim that sleeps: its connection to the agent is stdin. Some shells interrupt no `read` for a signal (ksh93, yash).
_SHELL, _SHELLS = "/bin/sh", ("dash", "bash", "busybox")
_HOLDERS = ("/bin/sleep", "/usr/bin/sleep")
_FOR_EVER = "2147483647"  # seconds
_PASSES = "trap 'heard=1; echo passed {0} 2>/dev/null >&0' {0}\n"
_CRASHES = "trap 'echo Fatal error: {1} 2>/dev/null >&0; trap - {0}; kill -{0} $$' {0}\n"
_LAST_WORDS = {
    _signal.SIGABRT: "Aborted",
    _signal.SIGSEGV: "Segmentation fault",
    _signal.SIGFPE: "Floating point exception",
    _signal.SIGILL: "Illegal instruction",
}
_SLEEP = """\
printf ezpz-shim 2>/dev/null >/proc/$$/comm
while :; do
  heard=
  if read -r order code 2>/dev/null; then
    case $order in
      leave) exit "$code" ;;
      tidy) (:) ;; # whoever waits for a child of its own learns of all others
      *) break ;;
    esac
  elif [ -z "$heard" ]; then
    break # the agent has gone; else a signal came
  fi
done
exec "$@"
"""


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
    if command[:1] == ["--awake"]:
        pid, holder = map(int, command[1:])
        return _Shim({}).wake(pid, holder)
    if command[:1] == ["--quoted"]:
        command = [unquoted(word) for word in command[1:]]
    die_with_parent()
    environ = dict(os.environ)
    restore_paths(environ)
    restore_mask(environ)
    try:
        ranks, hosts = checked_ranks(environ)
    except EzpzError as error:
        return _refuse(environ, error)
    if ranks.family != "contract":  # torchrun's agent has set it all, and holds the store itself
        environ.update(rank_variables(ranks, hosts))
    environ["EZPZ_RUN_ID"] = environ.get("TORCHELASTIC_RUN_ID", "")  # that agent gives its own
    environ.setdefault("OMP_NUM_THREADS", threads(ranks.local_world_size))
    cpus, note = bind(environ.pop("EZPZ_CPUS", ""), ranks.local_rank, ranks.local_world_size)
    shim = _Shim(environ)
    shim.meet(ranks, environ)
    if note:
        shim.tell(messages.Note(text=f"rank {ranks.rank} {note}"))
    if hosts > 1:
        environ.update(name_interface(environ))
        if ranks.rank == 0 and not hold_port(int(environ["MASTER_PORT"])):
            shim.tell(messages.PortTaken())
            return shim.linger(_ALONE)
    return shim.run(command, environ, cpus)


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
    kept = listener.detach()
    for fd in map(int, os.listdir("/dev/fd")):
        if fd > 2 and fd != kept:
            try:
                os.close(fd)
            except OSError:
                pass  # that of the list itself
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
        self._early: dict[int, int] = {}  # signals that the rank gets when it has a handler for them
        self._inbox = messages.LineReader(messages.TO_SHIMS)
        self._released: bool | None = None  # with the code of the rank, or with 0
        self._hands_over = False  # the rank, to the agent
        self._has_handed_over = False
        self._may_sleep = False  # because the agent looks after the rank
        self._must_wake = False
        self._leaves_with: int | None = None
        self._output: tuple[int, int] | None = None
        self._stdin: int | None = None  # what rank 0 reads
        self._wakeup, self._wakes = os.pipe()
        for end in (self._wakeup, self._wakes):
            os.set_blocking(end, False)
        self._ignores = tuple(map(int, environ.pop("EZPZ_IGNORED", "").split()))
        for number in (*FORWARDED, _signal.SIGCHLD):
            _signal.signal(number, _signal.SIG_IGN if number in self._ignores else lambda *_: None)
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
        holder = 0
        _signal.pthread_sigmask(_signal.SIG_BLOCK, self._waits_for)
        early = _signal.sigpending() if self._waits_for else set()  # there is no rank yet that they could have reached
        try:
            if self._hands_over and self._can_sleep():
                pid, holder, problem = self._start_held(command, environ, cpus)
            else:
                pid, problem = self._start(command, environ, cpus)
        except OSError as error:  # no more files or processes
            pid, problem = 0, error.errno or errno.EAGAIN
        if holder and not problem:
            return self._hand_over(pid, holder)
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

    def _start(self, command: list[str], environ: dict[str, str], cpus: list[int] | None) -> tuple[int, int]:
        return start(command, environ, stdin=self._stdin, output=self._output, cpus=cpus, ignores=self._ignores)

    def _can_sleep(self) -> bool:
        """Tell whether this system has all that a shim needs to sleep."""
        if self._waits_for or os.path.basename(os.path.realpath(_SHELL)) not in _SHELLS:
            return False
        try:
            os.close(os.pidfd_open(os.getpid()))
        except (AttributeError, OSError):  # before Linux 5.3, or a container forbids it
            return False
        return any(os.access(path, os.X_OK) for path in _HOLDERS)

    def _start_held(self, command: list[str], environ: dict[str, str], cpus: list[int] | None) -> tuple[int, int, int]:
        """Start the rank as the child of a holder; return both, and the number of the error as `start` does."""
        shim = os.getpid()
        read, write = os.pipe()
        holder = os.fork()
        if not holder:
            be(lambda: self._hold(command, environ, cpus, shim, write))
        for fd in (write, *((self._stdin,) if self._stdin else ()), *(self._output or ())):
            os.close(fd)
        words = os.read(read, 64).split()  # less than a pipe takes at once
        os.close(read)
        return (int(words[0]), holder, int(words[1])) if words else (0, holder, errno.EAGAIN)

    def _hold(
        self, command: list[str], environ: dict[str, str], cpus: list[int] | None, shim: int, write: int
    ) -> int:  # that of a holder without a rank
        """Be the parent of the rank and nothing else, tied to the life of the shim."""
        die_with_parent()
        if os.getppid() != shim:
            return _ALONE
        _signal.pthread_sigmask(_signal.SIG_BLOCK, range(1, 32))  # of those to a group; the rank begins with none
        try:
            pid, problem = self._start(command, environ, cpus)
        except OSError as error:  # no more files or processes
            pid, problem = 0, error.errno or errno.EAGAIN
        os.write(write, b"%d %d" % (pid, problem))
        if problem:
            return 0
        os.closerange(3, max(map(int, os.listdir("/dev/fd"))) + 1)
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(nothing, fd)
        path = next(path for path in _HOLDERS if os.access(path, os.X_OK))
        return os.execve(path, ["sleep", _FOR_EVER], _kept_environ())

    def _hand_over(self, pid: int, holder: int) -> int:
        """Let the agent look after the rank, and sleep when it says so; return the exit code where it never does."""
        assert self._agent is not None
        descriptor = os.pidfd_open(pid)
        try:
            send(self._agent, messages.FROM_SHIMS.encode(messages.HandedOver(pid=pid, holder=holder)), (descriptor,))
        except OSError:  # the agent has gone
            return self._take_back(pid, holder)
        finally:
            os.close(descriptor)
        self._has_handed_over = True
        for number, way in self._missed:
            self._forward(number, way)
        while not (self._may_sleep or self._must_wake or self._leaves_with is not None):
            self._attend()
            if self._agent is None or self._released is not None:
                self._must_wake = True
        if self._leaves_with is not None:
            return self._leaves_with
        if self._must_wake:
            return self._take_back(pid, holder)
        again = [sys.executable, "-I", "-S", sys.argv[0], "--awake", str(pid), str(holder)]
        line, environ = ["sh", "-c", sleep_script(), "ezpz-shim", *again], _kept_environ()
        os.set_inheritable(os.dup(0), True)  # mpiexec may write into it
        os.dup2(self._agent.fileno(), 0)
        os.set_inheritable(0, True)  # also where it was there already
        self._hear_signals()  # one that comes from now until the shell has its traps ends shim and rank
        return os.execve(_SHELL, line, environ)

    def wake(self, pid: int, holder: int) -> int:
        """Go on after a sleep, with the connection to the agent as stdin."""
        import _socket

        self._agent = _socket.socket(fileno=os.dup(0))
        return self._take_back(pid, holder)

    def _take_back(self, pid: int, holder: int) -> int:
        """Adopt the rank, which ends by that if it has not ended, and tell how it did."""
        try:
            os.kill(holder, _signal.SIGKILL)
        except OSError:
            pass  # somebody else has
        code = None
        while code is None:
            code = next((os.waitstatus_to_exitcode(status) for ended, status in reap() if ended == pid), None)
            if code is None and proc.stat(pid) is None:
                code = -_signal.SIGKILL  # the shell has asked how it ended: its holder was killed before
            time.sleep(0 if code is not None else _AGAIN)
        self._pid = pid
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
        except OSError:
            data = b""
        try:
            for order in self._inbox.feed(data):
                if isinstance(order, (messages.Begin, messages.HandOver)):
                    self._may_begin, self._hands_over = True, isinstance(order, messages.HandOver)
                elif isinstance(order, messages.Sleep):
                    self._may_sleep = True
                elif isinstance(order, messages.Wake):
                    self._must_wake = True
                elif isinstance(order, messages.Leave):
                    self._leaves_with = order.code
                elif isinstance(order, messages.Signal):
                    self._forward(order.number, "agent")
                elif isinstance(order, messages.Kill):
                    self._may_begin = False
                    kill_tree(os.getpid())
                elif isinstance(order, messages.Release):
                    self._may_begin = False
                    self._released = order.codes
        except messages.MalformedMessage:
            data = b""
        if not data:  # it was killed: the host is lost to the launcher, and nothing of it may stay
            self._agent = None
            self._may_begin = False
            kill_tree(os.getpid())

    def _forward(self, number: int, way: str, *, reached: bool = False) -> None:
        """Pass a signal on once: a scheduler may send one to this process, to the launcher and to the rank itself."""
        if self._has_handed_over:
            report = messages.SignalPassed if way == "itself" else messages.SignalMissed
            self.tell(report(number=number))
            return
        if not self._pid:
            self._missed.append((number, way))
            return
        other = "agent" if way == "itself" else "itself"
        now = time.monotonic()
        if way == "itself":  # also where the agent's order came first: an agent without its launcher goes by that
            self.tell(messages.SignalPassed(number=number))
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


def sleep_script() -> str:
    """Return what a shell does as a shim; its words are the command that it becomes when it wakes."""
    traps = [_PASSES.format(int(number)) for number in FORWARDED]
    traps += [_CRASHES.format(int(number), name) for number, name in _LAST_WORDS.items()]
    return "".join(traps) + _SLEEP


def _kept_environ() -> dict[str, str]:
    """Return what a shim that sleeps keeps of its environment: by our variables its launch is known."""
    kept = ("PATH", "LD_LIBRARY_PATH")  # for the Python that it may become again
    return {name: value for name, value in os.environ.items() if name.startswith("EZPZ_") or name in kept}


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
