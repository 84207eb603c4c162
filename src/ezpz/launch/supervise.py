"""Own a run until its last process is gone: the first failure stops all, and its cause and exit code are those of the launch."""

from __future__ import annotations

import os
import selectors
import signal
import time
from typing import TYPE_CHECKING, Any

from ezpz.launch import record, survivors
from ezpz.launch.causes import Failure, earliest, exit_code, how, others
from ezpz.launch.control import Piece
from ezpz.launch.hangs import Hangs
from ezpz.launch.leading import UNSUPERVISED
from ezpz.launch.outcome import Outcome
from ezpz.launch.stages import Stages
from ezpz.launch.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from ezpz.launch.child import Child
    from ezpz.launch.control import Control, Event
    from ezpz.launch.outcome import Limits
    from ezpz.launch.plan import LaunchPlan
    from ezpz.launch.screen import Screen
    from ezpz.launch.wall import Wall

__all__ = ["PORT_TAKEN", "Supervisor"]

PORT_TAKEN = -1  # no exit code of a process: the ranks could not meet where they were sent

FAILURE_GRACE = 3.0  # seconds from SIGTERM to SIGKILL after a rank failed: the prompt is back within five
SIGNAL_GRACE = 10.0  # seconds after a signal from outside: ranks may want to write a checkpoint
_SETTLE = 0.1  # seconds for failures that happened at the same time, or even earlier on another host
_SETTLE_LONG = 0.7  # the same where an MPI has killed the shims: its own end says why
_CLEAN_UP = 8.0  # seconds from SIGKILL until a host that says nothing is given up
_LAST_OUTPUT = 0.5  # seconds for what mpiexec has not passed on when it ended; a grandchild may hold its pipe for ever
_LINGERS = 5.0  # seconds for mpiexec to end when all its ranks have; Open MPI 5.0.11 sometimes never does
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_REFUSED, _TIME_LIMIT = 125, 124


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
        self.unsupervised = False
        self.children: list[Child] = []
        self.hangs = Hangs(self)
        self.folder = ""  # of run.json and, without --log-dir, of the cause's last words
        self.selector = selectors.DefaultSelector()
        self._wall = wall
        self._shares_terminal = shares_terminal
        self._killed = False
        self._since_failure = 0
        self._read_end, self._write_end = os.pipe()
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Supervisor:  # noqa: PYI034  # Self needs Python 3.11
        for end in (self._write_end, self._read_end):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in (*_PASSED_ON, signal.SIGCHLD):
            self._handlers[number] = signal.signal(number, lambda *_: None)
        survivors.adopt()
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back; what still runs, because a child could not be started, is killed."""
        for child in self.children:
            child.kill(signal.SIGKILL)
        while any(child.alive for child in self.children):
            self._reap()
            time.sleep(0.002)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        self.selector.close()
        self.hangs.close()
        os.close(self._read_end)
        os.close(self._write_end)

    def add(self, child: Child) -> None:
        """Take charge of a process."""
        self.children.append(child)
        for fd in child.pipes:
            self.selector.register(fd, selectors.EVENT_READ, lambda fd, child=child: self._pass_on(child, fd))

    def wait(self) -> Outcome:
        """Return how the run ended when its last process is gone."""
        now = time.monotonic()
        for name in ("start", "run"):
            limit = getattr(self.limits, name)
            if limit is not None:
                self.timers[name] = now + limit
        self.selector.register(self._read_end, selectors.EVENT_READ, self._signalled)
        self.selector.register(self.control, selectors.EVENT_READ, self.listen)
        self.hangs.listen()
        self._reap()  # a child may have ended already
        while not self._over():
            self._watch_screen()
            due = self._due()
            for key, mask in self.selector.select(None if due is None else max(0.0, due - time.monotonic())):
                if mask & selectors.EVENT_WRITE:
                    self.screen.write(key.fd)
                elif key.fd in self.selector.get_map():  # not closed by what was just done
                    key.data(key.fileobj)
            self._overdue(time.monotonic())
            self._release()
        return self._result()

    def _over(self) -> bool:
        if any(child.alive for child in self.children):
            return False
        open_pipes = any(child.pipes for child in self.children) and "pipes" in self.timers
        return not open_pipes and not self.control.open_outputs and set(self.control.heard) <= self.control.done

    def _watch_screen(self) -> None:
        self.control.pause(self.screen.full)
        wanted, keys = set(self.screen.wants()), self.selector.get_map()
        for fd in (1, 2):
            if fd in wanted and fd not in keys:
                self.selector.register(fd, selectors.EVENT_WRITE)
            elif fd not in wanted and fd in keys:
                self.selector.unregister(fd)

    # --- what happens -----------------------------------------------------------------------------------------------------

    def _pass_on(self, child: Child, fd: int) -> None:
        """Show what mpiexec itself, or a rank without a leader, has written."""
        stream = child.pipes[fd]
        data = child.read(fd)
        if data == b"":
            self.selector.unregister(fd)
        if data:
            self.unsupervised |= UNSUPERVISED.encode() in data
            if self.unsupervised:
                self.timers.pop("start", None)
            self.screen.show(None, stream, data, time.monotonic())

    def listen(self, _: object = None) -> None:
        for said in self.control.read():
            if isinstance(said, Piece):
                self._since_failure += len(said.data)
                self.screen.show(*said, time.monotonic())
            else:
                self._hear(said)

    def _hear(self, event: Event) -> None:
        kind, index, told = event
        host = self._host(index)
        if kind == "hello":
            self.world.came(index, str(told.get("host")))
            wrong = self.world.misplaced(index, str(told.get("host")))
            if wrong:
                self.fail(Failure("world:", wrong, _REFUSED, time.time(), host=host))
            if self._killed:
                self.control.order("kill", {index})  # it comes too late
        elif kind == "up":
            self.world.up(index, told)
            if self.world.complete:
                self.timers.pop("start", None)
        elif kind == "partial":
            self.world.partly(index, told["have"])
        elif kind == "stages":
            times = (told[name] - self.began for name in ("low", "median", "high"))
            self.stages.add(host, told["stage"], told["count"], *times)
        elif kind == "finished" and self.limits.leave is not None:
            self.timers.setdefault("leave", time.monotonic() + self.limits.leave)
            self.hangs.first_to_leave = told["rank"]
        elif kind == "idle":
            self.hangs.idle(host, told)
        elif kind == "stacks":
            self.hangs.answered(index, told)
        elif kind == "note":
            self.note(told["text"])
        else:
            self._hear_failure(kind, index, told)

    def _hear_failure(self, kind: str, index: int, told: dict[str, Any]) -> None:
        host, now = self._host(index), time.time()
        if kind == "ended":
            who = f"rank {told['rank']} on host {host}" + (f" (pid {told['pid']})" if told["pid"] else "")
            words = told["why"] if told["why"].startswith("cannot") else how(told["code"])
            if told["why"].startswith("its shim"):
                words += f": {told['why']}"
            self.fail(
                Failure(
                    who,
                    words,
                    exit_code(told["code"]),
                    told["at"],
                    told["rank"],
                    host,
                    told["pid"],
                    told["code"],
                    told["words"],
                    told["shown"],
                    told["why"],
                )
            )
        elif kind == "mismatch":
            self.world.strangers(str(self.control.heard.get(index, host)), told["worlds"])
            self.fail(Failure("world:", "", _REFUSED, now, why="mismatch"))
        elif kind == "port" and not self.stopping:
            self.outcome.code = PORT_TAKEN
            self.stop(FAILURE_GRACE)
        elif kind == "lost":
            self.fail(
                Failure(
                    f"host {host}", "is lost: its connection ended, or answered no more", _REFUSED, now, host=host
                )
            )
        elif kind == "refused":
            self.fail(Failure(f"host {host}", f"is lost: {told['text']}", _REFUSED, now, host=host))

    def _signalled(self, _: object) -> None:
        for number in os.read(self._read_end, 4096):
            if number == signal.SIGCHLD:
                self._reap()
            elif not (number == signal.SIGINT and self._shares_terminal):
                self._signal(number)

    def _reap(self) -> None:
        for pid, status in survivors.reap():
            child = next((child for child in self.children if child.pid == pid), None)
            if child:
                child.ended(status)
                self.timers["pipes"] = time.monotonic() + _LAST_OUTPUT
                self.child_ended(child)

    def child_ended(self, child: Child) -> None:
        """Judge the end of a child later, when the leaders have said what they know: theirs is the cause."""
        del child
        self.timers.setdefault("launcher", time.monotonic() + _SETTLE_LONG)

    def _signal(self, number: int) -> None:
        if number in _ENDING:
            if self.stopping and number == signal.SIGINT:
                self._kill()  # the second Ctrl-C means now
                return
            if not self.outcome.code:
                self.outcome.code, self.outcome.stopped = 128 + number, True
                self.say(f"{signal.Signals(number).name} received; passing it on, again to kill")
        self._send(number)
        if number in _ENDING and not self.stopping:
            self.stopping = True
            self.timers["kill"] = time.monotonic() + SIGNAL_GRACE

    # --- what follows from it ---------------------------------------------------------------------------------------------

    def fail(self, failure: Failure) -> None:
        """Note a failure; the earliest of those that come within a moment is the cause."""
        if self.stopping:
            return  # a consequence
        self.outcome.failures.append(failure)
        patience = _SETTLE_LONG if failure.why.startswith(("its shim", "mismatch")) else _SETTLE
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
        self.blame(cause)

    def blame(self, cause: Failure) -> None:
        """Make this the cause of the end, and stop all."""
        self.outcome.cause, self.outcome.code = cause, cause.code
        alive = any(child.alive for child in self.children)
        path = self._log(cause)
        log = f" [log: {path}]" if path else ""
        self.say(f"{cause.text}{'; stopping the other ranks' * (alive and self.plan.placement.world_size > 1)}{log}")
        self._since_failure = 0
        self.stop(FAILURE_GRACE)

    def stop(self, grace: float) -> None:
        """Ask all ranks to end, and kill them after so many seconds."""
        self.stopping = True
        self.timers["kill"] = time.monotonic() + grace
        self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        """Send a signal to all ranks through their leaders; before there are any, to the program that would start them."""
        told = self.control.order("signal", number=number)
        if not told and not self.control.done:
            for child in self.children:
                child.kill(number)

    def _kill(self) -> None:
        self._killed = True
        self.timers.pop("kill", None)
        told = self.control.order("kill")
        self.timers.setdefault("clean", time.monotonic() + _CLEAN_UP)
        if not told:
            for child in self.children:
                child.kill(signal.SIGKILL)

    def _release(self) -> None:
        """Let shims go when all hosts are done; then mpiexec has nothing left to wait for."""
        heard = set(self.control.heard)
        if (
            heard
            and heard <= self.control.done
            and "lingers" not in self.timers
            and any(child.alive for child in self.children)
        ):
            self.control.order("release", codes=self.plan.tells_codes)
            self.timers["lingers"] = time.monotonic() + _LINGERS

    def judge_launcher(self) -> None:
        """The launcher's program has ended and leaders have had their time: what remains is its own fault."""
        if any(child.alive for child in self.children):
            return
        if not set(self.control.heard) <= self.control.done:
            if not self.stopping:
                self.blame(self._launcher_failure())
            self._kill()
        elif not self.stopping and not self.outcome.failures and not self.unsupervised:
            code = next((child.code for child in self.children if child.code), 0)
            if code or not self.world.complete:
                self.outcome.failures.append(self._launcher_failure())

    def _launcher_failure(self) -> Failure:
        child = next((child for child in self.children if child.code), self.children[0])
        code = child.code or 0
        came = "no rank reported that it came up" if self.world.empty else self.world.absent()
        words = f"{how(code)}, and {came}; its own words are above"
        return Failure(f"{child.name} (pid {child.pid})", words, _REFUSED, time.time(), pid=child.pid, status=code)

    def _result(self) -> Outcome:
        """Say what is left to say, at the end of the screen."""
        if not self.stopping:
            self.judge_launcher()
            if self.outcome.failures:
                self._settle()
        outcome = self.outcome
        codes = [exit_code(child.code or 0) for child in self.children]
        if not outcome.code and (self.unsupervised or not outcome.failures):
            outcome.code = next(filter(None, codes), 0)
        cause = outcome.cause
        if cause:
            also = others(outcome.failures, cause)
            if also:
                self.say(also)
            if cause.words and not cause.shown:
                self.screen.say(cause.words.rstrip("\n"))
        return outcome

    # --- time ---------------------------------------------------------------------------------------------------------------

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
            "kill": self._kill,
            "clean": self._give_up,
            "launcher": self.judge_launcher,
            "lingers": self._end_launcher,
            "start": self._not_started,
            "run": lambda: self.hangs.begin(f"the run has not ended within {self.limits.run:g} s (--timeout)"),
            "leave": self.hangs.left_behind,
            "stacks": self.hangs.conclude,
        }
        for name in [name for name, due in self.timers.items() if now >= due]:
            del self.timers[name]
            if name in actions:
                actions[name]()

    def _give_up(self) -> None:
        """Wait no longer for hosts that say nothing after SIGKILL, nor for the programs that started them."""
        for child in self.children:
            child.kill(signal.SIGKILL, group=True)
        silent = [self._host(index) for index in self.control.heard if index not in self.control.done]
        if silent:
            self.note(f"{', '.join(silent[:3])} did not say that all is over there")
        self.control.done.update(self.control.heard)
        self.control.give_up()

    def _end_launcher(self) -> None:
        for child in self.children:
            child.kill(signal.SIGKILL if self._killed else signal.SIGTERM)
        if any(child.alive for child in self.children):
            self._killed = True
            self.timers["lingers"] = time.monotonic() + _LINGERS / 2

    def _not_started(self) -> None:
        if not self.stopping:
            text = self.world.missing(self.limits.start or 0.0) + self.hint()
            self.blame(Failure("world:", text, _REFUSED, time.time()))

    def hint(self) -> str:
        """Return what else to try when hosts do not come up."""
        return ""

    def record(self, told: dict[str, Any]) -> dict[str, Any]:
        """Return what run.json says of a launch that is over, from what it said at the beginning."""
        outcome = self.outcome
        entries = [
            record.failure(
                one.text,
                rank=one.rank,
                host=one.host,
                pid=one.pid,
                code=one.status,
                log=self._log(one) or None,
                words=one.words or None,
            )
            for one in ([outcome.cause] if outcome.cause else [])
            + [one for one in outcome.failures if one is not outcome.cause]
        ]
        more = {
            "stages": self.stages.summary(),
            "cause": entries[0] if outcome.cause else None,
            "failures": entries[1:] if outcome.cause else entries,
            "hang": outcome.hang,
            "notes": outcome.notes,
        }
        return record.ended({**told, **more}, outcome.code, time.time(), stopped=outcome.stopped)

    # --- words -------------------------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Speak on stderr: stdout belongs to the program."""
        self.screen.say(f"ezpz: {text}")

    def note(self, text: str) -> None:
        """Say something that ends nothing."""
        self.outcome.notes.append(text)
        self.say(f"note: {text}")

    def _host(self, index: int) -> str:
        hosts = self.plan.placement.hosts
        return hosts[index] if 0 <= index < len(hosts) else self.control.heard.get(index, "?")

    def _log(self, cause: Failure) -> str:
        """Return the file with the output of the rank that failed; without --log-dir it holds its last words, written here."""
        if cause.rank is None:
            return ""
        folder = self.control.settings.get("log_dir")
        path = os.path.join(folder or self.folder, f"rank-{cause.rank}.log")
        if folder or not self.folder or not cause.words:
            return path if folder else ""
        try:
            with open(path, "w", encoding="utf-8", errors="replace") as file:
                file.write(cause.words)
        except OSError:
            return ""
        return path
