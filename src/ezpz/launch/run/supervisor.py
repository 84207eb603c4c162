"""Own a run until its last process is gone: the first failure stops all, and its cause and exit code are those of the launch."""

from __future__ import annotations

import os
import selectors
import signal
import time
from typing import TYPE_CHECKING, Any

from ezpz.errors import shell_code
from ezpz.launch.host import process_tree
from ezpz.launch.run.child import Children
from ezpz.launch.run.control import Piece
from ezpz.launch.run.failures import (
    PASSED_ON,
    SHIM_KILLED,
    Failure,
    Outcome,
    earliest,
    how,
    last_words,
    log_of,
)
from ezpz.launch.run.hangs import Hangs
from ezpz.launch.run.world import Stages, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from ezpz.launch.plan import LaunchPlan
    from ezpz.launch.run.child import Child
    from ezpz.launch.run.control import Control, Event
    from ezpz.launch.run.failures import Limits
    from ezpz.launch.run.terminal import Screen
    from ezpz.launch.wall import Wall


# Signals as something to wait for: each that comes makes a descriptor readable, and none is lost between two looks.

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_HEARD = (*ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)


class Signals:
    """What has been sent to this process since the last look; a context manager, which gives the signals back."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Signals:  # noqa: PYI034  # Self needs Python 3.11
        for end in (self._write, self._read):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in _HEARD:
            self._handlers[number] = signal.signal(number, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        os.close(self._read)
        os.close(self._write)

    def fileno(self) -> int:
        """Return the descriptor that is readable when a signal has come."""
        return self._read

    def come(self) -> bytes:
        """Return the numbers of the signals that have come."""
        return os.read(self._read, 4096)


__all__ = ["PORT_TAKEN", "Supervisor"]

PORT_TAKEN = -1  # no exit code of a process: the ranks could not meet where they were sent

FAILURE_GRACE = 3.0  # seconds from SIGTERM to SIGKILL after a rank failed: the prompt is back within five
SIGNAL_GRACE = 10.0  # seconds after a signal from outside: ranks may want to write a checkpoint
_SETTLE = 0.1  # seconds for failures that happened at the same time, or even earlier on another host
_SETTLE_LONG = 0.7  # the same where an MPI has killed the shims: its own end says why
_UNHEARD = 2.0  # seconds for a first leader to come, when ranks are to end that have just begun
_CLEAN_UP = 8.0  # seconds from SIGKILL until a host that says nothing is given up
_LONGEST_WAIT = 86400.0  # seconds: epoll takes no more than 24 days
_REFUSED = 125


class Supervisor:
    """Waits for children, signals and leaders; the earliest failure is the cause, our own signals never are.

    A context manager, entered before the first child starts: a signal that comes in between must not be lost.

    Args:
        plan: The plan of this start.
        limits: What the user allows the run.
        control: The leaders.
        screen: Where output goes.
        wall: When the job's wall time is to be announced.
        shares_terminal: The only rank keeps the terminal: Ctrl-C reaches it by itself, and a debugger there may live on.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        limits: Limits,
        control: Control,
        screen: Screen,
        wall: Wall | None = None,
        *,
        shares_terminal: bool = False,
    ) -> None:
        self.plan, self.limits, self.control, self.screen = plan, limits, control, screen
        self.outcome = Outcome()
        self.stages = Stages()
        self.world = World(plan)
        self.began = time.time()
        self.timers: dict[str, float] = {}
        self.stopping = False
        self.children = Children(self)
        self.hangs = Hangs(self)
        self.launch = ""
        self.folder = ""  # of run.json and, without --log-dir, of the cause's last words
        self.selector = selectors.DefaultSelector()
        self._wall = wall
        self._shares_terminal = shares_terminal
        self.waiting_signals: list[int] = []  # for ranks that have not come up
        self.killed = False  # whether SIGKILL has been sent
        self._since_failure = 0
        self._signals = Signals()

    def __enter__(self) -> Supervisor:  # noqa: PYI034  # Self needs Python 3.11
        self._signals.__enter__()
        process_tree.adopt()
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back; what still runs, because a child could not be started, is killed."""
        self.children.kill_and_wait()
        if (
            self.outcome.cause or self.killed
        ):  # where a leader or mpiexec was killed, nobody else can tidy up on this host
            process_tree.kill_all(self.launch, everything=True, own=False)
        self._signals.__exit__()
        self.selector.close()
        self.hangs.close()

    def wait(self) -> Outcome:
        """Return how the run ended when its last process is gone."""
        now = time.monotonic()
        for name in ("start", "run"):
            limit = getattr(self.limits, name)
            if limit is not None:
                self.timers[name] = now + limit
        self.selector.register(self._signals, selectors.EVENT_READ, self._signalled)
        self.selector.register(self.control, selectors.EVENT_READ, self.listen)
        self.hangs.listen()
        self._reap()  # one may have ended already
        while not self._over():
            self._watch_screen()
            due = self._due()
            wait = None if due is None else min(_LONGEST_WAIT, max(0.0, due - time.monotonic()))
            for key, mask in self.selector.select(wait):
                if mask & selectors.EVENT_WRITE:
                    self.screen.write(key.fd)
                elif key.fd in self.selector.get_map():  # not closed by what was just done
                    key.data(key.fileobj)
            self._overdue(time.monotonic())
            release(self)
        return self._result()

    def _over(self) -> bool:
        if self.children.alive or not self.children.drained:
            return False
        if self.hangs.pending:
            self.hangs.conclude()
        return not self.control.open_outputs and set(self.control.heard) <= self.control.done

    def _watch_screen(self) -> None:
        self.control.pause(self.screen.full)
        wanted, keys = set(self.screen.wants()), self.selector.get_map()
        for fd in (1, 2):
            if fd in wanted and fd not in keys:
                self.selector.register(fd, selectors.EVENT_WRITE)
            elif fd not in wanted and fd in keys:
                self.selector.unregister(fd)

    def listen(self, _: object = None) -> None:
        """Take what the leaders have said."""
        for said in self.control.read():
            if isinstance(said, Piece):
                self._since_failure += len(said.data)
                self.screen.show(*said, time.monotonic())
            else:
                hear(self, said)

    def _signalled(self, _: object) -> None:
        for number in self._signals.come():
            if number == signal.SIGCHLD:
                self._reap()
            elif not (number == signal.SIGINT and self._shares_terminal):
                self._signal(number)

    def _reap(self) -> None:
        for child in self.children.reap():
            self.child_ended(child)

    def child_ended(self, child: Child) -> None:
        """Judge the end of a child later, when the leaders have said what they know: theirs is the cause."""
        del child
        self.timers.setdefault("launcher", time.monotonic() + _SETTLE_LONG)

    def _signal(self, number: int) -> None:
        if number in ENDING:
            if self.stopping and number == signal.SIGINT:
                self.kill()  # the second Ctrl-C means now
                return
            if not self.outcome.code:
                self.outcome.code, self.outcome.stopped = 128 + number, True
                again = "; Ctrl-C again kills" if number == signal.SIGINT else ""
                self.say(f"{signal.Signals(number).name} received; passing it on{again}")
        self._send(number)
        if number in ENDING and not self.stopping:
            self.stopping = True
            self.timers["kill"] = time.monotonic() + SIGNAL_GRACE

    def fail(self, failure: Failure) -> None:
        """Note a failure; the earliest of those that come within a moment is the cause."""
        if self.stopping:
            return  # a consequence
        self.outcome.failures.append(failure)
        patience = _SETTLE_LONG if failure.is_consequence or failure.why == "mismatch" else _SETTLE
        self.timers["settle"] = min(self.timers.get("settle", float("inf")), time.monotonic() + patience)

    def _settle(self) -> None:
        """Tell the cause and stop what still runs."""
        if self.stopping or not self.outcome.failures:
            return
        failures = self.outcome.failures
        cause = earliest(failures)
        if cause.why == "mismatch":
            cause = cause._replace(how=self.world.mismatch())
            failures[:] = [cause]
        elif self.children.to_blame(failures):
            cause = self.children.failure()
            failures[:] = [cause]
        self.blame(cause)

    def blame(self, cause: Failure) -> None:
        """Make this the cause of the end, and stop all."""
        self.outcome.cause, self.outcome.code = cause, cause.code
        alive = self.children.alive
        path = log_of(cause, self.control.settings.get("log_dir", ""), self.folder)
        log = f" [log: {path}]" if path else ""
        self.say(f"{cause.text}{'; stopping the other ranks' * (alive and self.plan.placement.world_size > 1)}{log}")
        self._since_failure = 0
        self.stop(FAILURE_GRACE)

    def port_is_taken(self) -> None:
        """End this start: the ranks cannot meet where they were sent."""
        self.outcome.code = PORT_TAKEN
        self.stop(FAILURE_GRACE)

    def stop(self, grace: float) -> None:
        """Ask all ranks to end, and kill them after so many seconds."""
        self.stopping = True
        self.timers["kill"] = time.monotonic() + grace
        self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        """Send a signal to all ranks through their leaders."""
        self.control.order("signal", number=number)
        if not self.world.complete:  # leaders that come later get it then: mpiexec would cut the grace short
            self.waiting_signals.append(number)
            if number in ENDING:
                self.timers.setdefault("unheard", time.monotonic() + _UNHEARD)

    def kill(self) -> None:
        """Kill all ranks now."""
        self.killed = True
        self.timers.pop("kill", None)
        told = self.control.order("kill")
        self.timers.setdefault("clean", time.monotonic() + _CLEAN_UP)
        if not told:
            self.children.kill(signal.SIGKILL)

    def judge_launcher(self) -> None:
        """The program that started the ranks has ended, and leaders have had their time to say why."""
        judge_launcher(self)

    def _result(self) -> Outcome:
        if not self.stopping:
            self.judge_launcher()
            self._settle()
        codes = [shell_code(child.code or 0) for child in self.children.all if not child.by_us]
        if not self.outcome.code and (self.children.unsupervised or not self.outcome.failures):
            self.outcome.code = next(filter(None, codes), 0)
        for fd, reason in self.screen.lost.items():
            text = f"the end of {'stdout' if fd == 1 else 'stderr'} is missing: {reason}"
            # A reader that has gone away, as in `launch … | head`, knows that; a full disk is news.
            (self.note if "space" in reason else self.outcome.notes.append)(text)
        for text in last_words(self.outcome, self._since_failure):
            self.screen.say(text)
        return self.outcome

    def _due(self) -> float | None:
        dues = [*self.timers.values(), *filter(None, [self.screen.due(), self._wall.due() if self._wall else None])]
        return min(dues, default=None)

    def _overdue(self, now: float) -> None:
        self.screen.tick(now)
        text = self._wall.take(now) if self._wall else None
        if text:
            self.note(text)
        actions: dict[str, Callable[[], None]] = {
            "settle": self._settle,
            "kill": self.kill,
            "clean": lambda: give_up(self),
            "launcher": self.judge_launcher,
            "unheard": lambda: end_unheard(self),
            "lingers": lambda: end_launcher(self),
            "start": lambda: not_started(self),
            "run": lambda: self.hangs.begin(f"the run has not ended within {self.limits.run:g} s (--timeout)"),
            "leave": self.hangs.left_behind,
            "stacks": self.hangs.conclude,
        }
        for name in [name for name, due in self.timers.items() if now >= due]:
            del self.timers[name]
            if name in actions:
                actions[name]()

    def hint(self) -> str:
        """Return what else to try when hosts do not come up."""
        return ""

    def say(self, text: str) -> None:
        """Speak on stderr: stdout belongs to the program."""
        self.screen.say(f"ezpz: {text}")

    def note(self, text: str) -> None:
        """Say something that ends nothing."""
        self.outcome.notes.append(text)
        self.say(f"note: {text}")


# The programs that started the ranks, when the ranks have ended or nothing more is heard of them.


_LINGERS = 5.0  # seconds for mpiexec to end when all its ranks have; Open MPI 5.0.11 sometimes never does
_LINGERS_AFTER_FAILURE = 1.5  # it may wait for a host that is lost


def release(run: Supervisor) -> None:
    """Let shims go when all hosts are done; then mpiexec has nothing left to wait for."""
    if not (run.world.complete or run.stopping):
        return  # other hosts still start
    heard = set(run.control.heard)
    if heard and heard <= run.control.done and "lingers" not in run.timers and run.children.alive:
        run.control.order("release", codes=run.plan.tells_codes)
        run.timers["lingers"] = time.monotonic() + (_LINGERS_AFTER_FAILURE if run.stopping else _LINGERS)


def judge_launcher(run: Supervisor) -> None:
    """The launcher's program has ended and leaders have had their time: what remains is its own fault."""
    if run.children.alive:
        return
    if not set(run.control.heard) <= run.control.done:
        if not run.stopping:
            run.blame(run.children.failure())
        run.kill()
    elif not run.stopping and not run.outcome.failures and not run.children.unsupervised:
        code = next((child.code for child in run.children.all if child.code and not child.by_us), 0)
        if code or not run.world.complete:
            run.outcome.failures.append(run.children.failure())


def give_up(run: Supervisor) -> None:
    """Wait no longer for hosts that say nothing after SIGKILL, nor for the programs that started them."""
    run.children.kill(signal.SIGKILL, group=True)
    silent = [run.world.host(index) for index in run.control.heard if index not in run.control.done]
    if silent:
        run.note(f"{', '.join(silent[:3])} did not say that all is over there")
    run.control.done.update(run.control.heard)
    run.control.give_up()


def end_launcher(run: Supervisor) -> None:
    """End the programs that go on although nothing is left for them to do."""
    run.children.kill(signal.SIGKILL if run.killed else signal.SIGTERM)
    if run.children.alive:
        run.killed = True
        run.timers["lingers"] = time.monotonic() + _LINGERS_AFTER_FAILURE


def end_unheard(run: Supervisor) -> None:
    """End the programs that start ranks where no leader has come so far: there is nobody to be gentle with."""
    if not run.control.heard:
        run.children.kill(signal.SIGTERM)


def not_started(run: Supervisor) -> None:
    """Some ranks have not come up in time."""
    if not run.stopping:
        text = run.world.missing(run.limits.start or 0.0) + run.hint()
        run.blame(Failure("world:", text, _REFUSED, time.time()))


# What the leaders say, and what it means for the run.


def hear(run: Supervisor, event: Event) -> None:
    """Take one line of a leader."""
    kind, index, told = event
    if kind in {"hello", "up", "partial"}:
        _came(run, kind, index, told)
    elif kind in {"stages", "finished", "idle", "stacks"}:
        _goes_on(run, kind, index, told)
    elif kind == "done":
        if told["stuck"]:
            pids, host = ", ".join(map(str, told["stuck"])), run.world.host(index)
            run.note(
                f"processes {pids} on host {host} do not end of SIGKILL: they wait in the kernel, often for a file system"
            )
    elif kind == "note":
        run.note(told["text"])
    else:
        _failure(run, kind, index, told)


def _came(run: Supervisor, kind: str, index: int, told: dict[str, Any]) -> None:
    if kind == "hello":
        name = str(told.get("host"))
        run.world.came(index, name)
        wrong = run.world.misplaced(index, name)
        if wrong:
            run.fail(Failure("world:", wrong, _REFUSED, time.time(), host=run.world.host(index)))
        for number in run.waiting_signals:
            run.control.order("signal", {index}, number=number)
        if run.killed:
            run.control.order("kill", {index})
    elif kind == "up":
        run.world.up(index, told)
        if run.world.complete:
            run.timers.pop("start", None)
    else:
        run.world.partly(index, told["have"])


def _goes_on(run: Supervisor, kind: str, index: int, told: dict[str, Any]) -> None:
    if kind == "stages":
        times = (told[name] - run.began for name in ("low", "median", "high"))
        run.stages.add(run.world.host(index), told["stage"], told["count"], *times)
    elif kind == "finished" and run.limits.leave is not None:
        run.timers.setdefault("leave", time.monotonic() + run.limits.leave)
        run.hangs.first_to_leave = told["rank"]
    elif kind == "idle":
        run.hangs.idle(run.world.host(index), told)
    elif kind == "stacks":
        run.hangs.answered(index, told)


def _failure(run: Supervisor, kind: str, index: int, told: dict[str, Any]) -> None:
    host, now = run.world.host(index), time.time()
    if kind == "ended":
        who = f"rank {told['rank']} on host {host}" + (f" (pid {told['pid']})" if told["pid"] else "")
        words = told["why"] if told["why"].startswith("cannot") else how(told["code"])
        if told["why"].startswith((SHIM_KILLED, PASSED_ON)):
            words += f": {told['why']}"
        run.fail(
            Failure(
                who,
                words,
                shell_code(told["code"]),
                told["at"],
                rank=told["rank"],
                host=host,
                pid=told["pid"],
                status=told["code"],
                words=told["words"],
                shown=told["shown"],
                why=told["why"],
            )
        )
    elif kind == "mismatch":
        run.world.strangers(told["host"], told["worlds"])
        run.fail(Failure("world:", "", _REFUSED, now, why="mismatch"))
    elif kind == "port" and not run.stopping:
        run.port_is_taken()
    elif kind == "lost":
        run.fail(
            Failure(f"host {host}", "is lost: its connection ended, or answered no more", _REFUSED, now, host=host)
        )
    elif kind == "refused":
        run.fail(Failure(f"host {host}", f"is lost: {told['text']}", _REFUSED, now, host=host))
