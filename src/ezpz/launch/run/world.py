"""Own the ranks of one program: whether they may begin, which of their failures was first, and how all of them end.

A launch has one world, that which its hosts bring up with their agents. Others may be started on the same agents: a
failure in one ends that one.
"""

from __future__ import annotations

import math
import signal
import time

from ezpz.errors import EzpzError
from ezpz.fields import replace
from ezpz.launch import agent_messages
from ezpz.launch.run.failures import (
    CANNOT_START,
    LOST,
    NOT_STARTED,
    PASSED_ON,
    Failure,
    Outcome,
    aborted,
    earliest,
    host_lost,
    host_refused,
    last_words,
    left_early,
    log_of,
    nodes_failed,
    rank_failed,
)
from ezpz.launch.run.rollcall import RollCall, Stages
from ezpz.launch.watchers import LauncherHandle, Watchers

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    from ezpz.launch.agent_messages import Message, Settings
    from ezpz.launch.event_loop import Loop
    from ezpz.launch.plan import LaunchPlan
    from ezpz.launch.run.failures import Limits
    from ezpz.launch.run.hosts import Hosts
    from ezpz.launch.run.terminal import Screen

    class Launch(Protocol):
        """What a world asks of the launch to which it belongs (`ezpz.launch.run.supervisor`)."""

        launch_id: str
        folder: str
        began: float
        stays: bool
        is_interrupted: bool  # by a Ctrl-C that the only rank gets by itself
        hosts: Hosts
        loop: Loop
        screen: Screen

        def say(self, text: str) -> None: ...
        def hint(self) -> str: ...
        def kill(self) -> None: ...
        def stop_begun(self, grace: float) -> None: ...
        def hosts_came(self) -> None: ...
        def all_train(self, world: World) -> None: ...
        def world_ended(self, world: World) -> None: ...
        def job_ends(self) -> float | None: ...
        def is_asked(self, word: str) -> bool: ...
        def turn_away(self) -> None: ...
        def answer(self, word: str, answer: dict[str, Any]) -> None: ...
        def failed_before_term(self, world: World, failure: Failure) -> None: ...
        def keeps_term(self) -> bool: ...
        def keep_no_term(self, world: World) -> None: ...
        def kept_no_more(self, world: World, watcher: str) -> None: ...
        def pass_term_on(self, world: World) -> None: ...
        def ask_kill_wait(self) -> None: ...


__all__ = ["FAILURE_GRACE", "PORT_TAKEN", "SIGNAL_GRACE", "World"]

PORT_TAKEN = -1  # no exit code of a process: the ranks could not meet where they were sent

FAILURE_GRACE = 3.0  # seconds from SIGTERM to SIGKILL after a rank failed: the prompt is back within five
SIGNAL_GRACE = 10.0  # seconds after a signal from outside: ranks may want to write a checkpoint
_PAUSING = (signal.SIGSTOP, signal.SIGCONT)
_SETTLE = 0.1  # seconds for failures that happened at the same time, or even earlier on another host
_LAUNCHER_ENDS = 3.0  # seconds for the program that starts ranks to end, when it has ended them before they began
_SETTLE_LONG = 0.7  # the same where an MPI has killed the shims, or a peer was lost: another end says why
_UNBEGUN = 0.5  # seconds for mpiexec to end by itself, quietly, when its ranks are not to begin; some may never come
_LATE = 30.0  # seconds after which a line names the ranks that all others wait for
_CLEAN_UP = 8.0  # seconds from SIGKILL until a world that reports nothing is given up on hosts that go on
_TIME_LIMIT = 124
_REFUSED = 125


def _is_done_by_others(failure: Failure) -> bool:
    """Tell whether a scheduler that kills a whole step leaves such a failure."""
    return failure.is_consequence or failure.status == -signal.SIGKILL or failure.why.startswith(LOST)


class World:
    """The ranks of one program.

    Args:
        launch: The launch to which they belong: its hosts, its loop, and who shows what it says.
        plan: What is started.
        limits: What the user allows it.
        settings: What its agents are told.
        number: Its number, 0 for the world that comes with the hosts.
        places: Of each of its hosts the index among those of the launch; all of them by default.

    Attributes:
        roll: Which of its ranks have come up.
        stages: How far they are.
        outcome: How it ended.
        watch: The watchers of its ranks.
        begun: Whether ranks have been let begin. This launcher's own, which it forks one after the other, need no
            word.
        stopping: Whether it is being ended.
        is_over: Whether all is over on its hosts.
        run_folder: Where rank 0 keeps its run; empty without one.
        shown: Bytes of output since its failure.
    """

    def __init__(
        self,
        launch: Launch,
        plan: LaunchPlan,
        limits: Limits,
        settings: Settings,
        *,
        number: int = 0,
        places: Sequence[int] | None = None,
    ) -> None:
        self.launch, self.plan, self.limits, self.settings, self.number = launch, plan, limits, settings, number
        self.hosts = launch.hosts
        self.places = tuple(range(len(plan.placement.hosts)) if places is None else places)
        self.roll = RollCall(plan)
        self.stages = Stages()
        self.outcome = Outcome()
        self._loop = launch.loop.part() if number else launch.loop
        scope = "world" if number else ""  # what looks at hosts has begun with them
        self.watch = Watchers(settings.watchers, "launcher", self._handle, self.note, self._drop, scope=scope)
        self.begun = plan.flavour is None and not (number or launch.stays)
        self.stopping = self.is_over = False
        self.run_folder = ""
        self.shown = 0
        self._limit = ""  # why it is ended, as long as watchers find out what its ranks are doing
        self._waiting_signals: list[int] = []  # for ranks that have not begun
        self._were_asked = False  # watchers, whether ranks may begin
        self._hold = 0  # what agents were last told of that: `agent_messages.Hold`
        self._answers_by = 0.0  # when watchers are waited for no more after a failure
        self._settle_at = math.inf
        self._left: list[tuple[str, agent_messages.Finished]] = []  # of each host, the first rank that ended with 0
        self._done: set[int] = set()  # hosts on which it is over; of world 0 the hosts themselves are done then

    @property
    def _has_no_ranks(self) -> bool:
        """Whether it stands for the hosts alone, whose agents stay for other worlds."""
        return self.launch.stays and not self.number

    @property
    def id(self) -> str:
        """Id that all of its processes carry."""
        return f"{self.launch.launch_id}/{self.number:08x}" if self.number else self.launch.launch_id

    # When it begins.

    def start(self) -> None:
        """Watch over its limits, and start it on the hosts that have come, where its ranks do not come with them."""
        limits = self.limits
        if limits.start is not None:
            self._loop.after("start", limits.start, self._not_started)
        if not self.begun:
            self._loop.after("late", _LATE, self._tell_late)
        if limits.run is not None:
            whole = "--timeout, of the whole run; of one without progress: --idle-timeout"
            reason = f"the run has not ended within {limits.run:g} s ({whole})"
            self._loop.after("run", limits.run, lambda: self._overdue(reason))
        self.watch.start(self._loop)
        if not self.number:
            return
        for index in sorted(self.hosts.running.intersection(self.places)):
            self.host_came(index, self.hosts.name(index))
        gone = sorted(self.hosts.control.done.intersection(self.places))
        if gone:  # in a turn of its own: whoever begins it does not have it yet
            self._loop.after("gone", 0.0, lambda: self._miss(gone))

    def _miss(self, hosts: Sequence[int]) -> None:
        """Fail, because the agents of some of its hosts are there no more."""
        for index in hosts:
            name = self.hosts.name(index)
            here = f"world {self.number} cannot be started on {name}"
            why = f"{here}: its agent has ended, or is lost; expected a host that is there"
            self.fail(host_refused(name, why))
            self._over_on(index)

    def host_came(self, index: int, name: str) -> None:
        """Take note of a host whose agent has come."""
        place = self.places.index(index) if index in self.places else index
        self.roll.came(place, name)
        if self.number:
            if not self.stopping:
                self._start_on(index, place)
            return
        misplaced = self.roll.misplaced(place, name)
        if misplaced:
            self.fail(Failure("world:", misplaced, _REFUSED, time.time(), host=self.hosts.name(index)))
        if self.hosts.is_killed or (self.stopping and not self.begun):
            self._order(agent_messages.Kill(), to={index})
        elif self.begun:  # without waiting for all, because one is unsupervised
            self._order(agent_messages.Begin(), to={index})

    def _start_on(self, index: int, place: int) -> None:
        """Let the agent of a host start those of its ranks that belong there."""
        from ezpz.launch.host.payload import contents

        given = contents(self.plan.command, self.plan.agent_environment())
        environ = list(given.environ.items())
        start = agent_messages.Start(
            index=place, command=given.command, folder=given.folder, environ=environ, settings=self.settings
        )
        self._order(start, to={index})

    def let_begin(self) -> None:
        """Let all ranks begin, and give them the signals that came before; nothing has failed so far."""
        if self.begun or self.stopping or self.outcome.failures:
            return
        refusal = self.refusal()
        if refusal:
            self._refuse(refusal)
            return
        self.begun = True
        if self._has_no_ranks:
            self.launch.hosts_came()
            return
        self._order(agent_messages.Begin())
        for number in self._waiting_signals:
            self.send(number)

    def begin_unsupervised(self) -> None:
        """Begin without those of a host that cannot reach the launcher: no message will tell when they are complete."""
        self._loop.cancel("start")
        self.let_begin()

    def refusal(self) -> str | EzpzError:
        """Return why watchers let no rank begin; empty where they do. They are asked once."""
        if self._were_asked:
            return ""
        self._were_asked = True
        return next(filter(None, self.watch.before_begin()), "")

    def _refuse(self, why: str | EzpzError) -> None:
        """Let no rank begin, if none has."""
        if not (self.begun or self.stopping):
            code = why.exit_code if isinstance(why, EzpzError) else _REFUSED
            self.blame(Failure("cannot start:", str(why).removesuffix("."), code, time.time()))

    def _tell_late(self) -> None:
        if not (self.begun or self.stopping):
            self.note(self.roll.awaited(_LATE))

    def _not_started(self) -> None:
        """End it, because some of its ranks have not come up in time."""
        if not self.stopping:
            text = self.roll.missing(self.limits.start or 0.0) + self.launch.hint()
            late = self.roll.late()
            host = self.plan.placement.hosts[late[0]] if len(late) == 1 else None
            self.blame(Failure("world:", text, _REFUSED, time.time(), host=host, why=NOT_STARTED))

    # What agents report of it.

    def hear(self, index: int, message: Message) -> None:
        """Take a report of one of its hosts."""
        host = self.hosts.name(index)
        if isinstance(message, agent_messages.Up | agent_messages.Partial):
            self._hear_of_start(self.places.index(index) if index in self.places else index, message)
        elif isinstance(message, agent_messages.Recording | agent_messages.Stages | agent_messages.Finished):
            self._hear_of_work(host, message)
        elif isinstance(message, agent_messages.Note):
            self.note(message.text)
        elif isinstance(message, agent_messages.Done):
            self._note_step(message.step)
            self.watch.all("gone", index)
            self._note_stuck(host, message.stuck)
            self._over_on(index)
        elif not self.watch.hear(message, index):
            self._hear_of_failure(host, message)
            if isinstance(message, agent_messages.Lost):
                self._over_on(index)

    def _hear_of_start(self, place: int, message: agent_messages.Up | agent_messages.Partial) -> None:
        if isinstance(message, agent_messages.Partial):
            self.roll.partly(place, message.have)
            return
        self.roll.up(place, message)
        if self.roll.complete:
            self._loop.cancel("start")
            self.let_begin()

    def _hear_of_work(
        self, host: str, message: agent_messages.Recording | agent_messages.Stages | agent_messages.Finished
    ) -> None:
        if isinstance(message, agent_messages.Finished):
            self._rank_finished(host, message)
        elif isinstance(message, agent_messages.Stages):
            self.stages.add(host, message, self.launch.began)
            if (
                message.stage == agent_messages.STAGES[-1]
                and self.stages.reached(message.stage) == self.plan.placement.world_size
            ):
                self.launch.all_train(self)
        else:
            self.run_folder = message.folder
            self.watch.use_folder(message.folder)

    def _rank_finished(self, host: str, message: agent_messages.Finished) -> None:
        self._left.append((host, message))
        self._note_step(message.step)
        if self.limits.leave is not None:
            reason = (
                f"rank {message.rank} ended with 0, and others still run {self.limits.leave:g} s (--exit-timeout) later"
            )
            self._loop.after("leave", self.limits.leave, lambda: self._overdue(reason))

    def _note_step(self, step: int) -> None:
        if step >= 0:
            self.outcome.step = max(step, self.outcome.step if self.outcome.step is not None else step)

    def _note_stuck(self, host: str, stuck: list[int]) -> None:
        if stuck:
            pids = ", ".join(map(str, stuck))
            where = "they wait in the kernel, often for a file system"
            self.note(f"processes {pids} on host {host} survive SIGKILL: {where}")

    def _hear_of_failure(self, host: str, message: Message) -> None:
        if isinstance(message, agent_messages.RankFailed):
            self._note_step(message.step)
            self.fail(rank_failed(host, message))
        elif isinstance(message, agent_messages.Mismatch):
            self.roll.strangers(message)
            self.fail(Failure("world:", "", _REFUSED, time.time(), why="mismatch"))
        elif isinstance(message, agent_messages.PortTaken):
            if not self.stopping:
                self.outcome.code = PORT_TAKEN
                self.stop(FAILURE_GRACE)
        elif isinstance(message, agent_messages.Lost):
            if host in self.outcome.blames():
                return  # it said why, and left
            if not self.stopping:
                self.outcome.lost.append(host)
            self._fail_with_host(host_lost(host))
        elif isinstance(message, agent_messages.Refused):
            why = host_refused(host, message.text) if message.cannot else host_lost(host, message.text)
            self._fail_with_host(why)

    def _fail_with_host(self, why: Failure) -> None:
        """Fail, because a host has; where all worlds of its own are begun on hosts, those on others go on."""
        if self._has_no_ranks and self.begun and self.hosts.running:
            self.note(why.text)
        else:
            self.fail(why)

    # Failures, and how all of it is stopped.

    def fail(self, failure: Failure) -> None:
        """Note a failure; the earliest of those that come within a moment is the cause."""
        self.launch.failed_before_term(self, failure)
        if self.stopping:
            return  # a consequence
        self.outcome.failures.append(failure)
        slow = failure.is_consequence or failure.lost_peer or failure.why in {"mismatch", CANNOT_START}
        patience = _SETTLE_LONG if slow else _SETTLE
        if self.begun and len(self.outcome.failures) == 1:
            self._answers_by = time.monotonic() + self.watch.failed(failure)
        self._settle_at = min(self._loop.due("settle"), time.monotonic() + patience)
        self._loop.at("settle", self._settle_at, self._settle_when_told)

    def _settle_when_told(self) -> None:
        """Name the cause when watchers have found out what they want to know of ranks that still live."""
        now = time.monotonic()
        left = self._answers_by - now
        if left > 0 and not self.stopping:
            self._loop.after("settle", left, self._settle_when_told)
        elif self._launcher_is_ending() and now < self._settle_at + _LAUNCHER_ENDS:
            self._loop.after("settle", _SETTLE, self._settle_when_told)
        else:
            self.settle()

    def _go_on(self) -> None:
        """Wait for no more answers after a failure."""
        self._answers_by = 0.0
        if self._loop.waits_for("settle"):
            self._loop.at("settle", max(time.monotonic(), self._settle_at), self._settle_when_told)

    def _launcher_is_ending(self) -> bool:
        """Tell whether the program that starts ranks has ended all that had come before any began: it knows why, and
        has not ended itself yet, as torchrun whose shim was killed before that could say who it is.
        """
        failures = self.outcome.failures
        passed_on = all(failure.rank is not None and failure.why.startswith(PASSED_ON) for failure in failures)
        return passed_on and not (self.begun or self.stopping) and self.hosts.children.alive

    def settle(self) -> None:
        """Name the cause and stop what still runs."""
        if self.stopping or not self.outcome.failures:
            return
        failures, children = self.outcome.failures, self.hosts.children
        cause = earliest(failures)
        nodes = self._failed_nodes() if all(map(_is_done_by_others, failures)) else []
        if nodes:
            cause = nodes_failed(nodes, children.all[0].name)
            failures[:], self.outcome.lost = [cause], nodes
        elif cause.why == "mismatch":
            cause = replace(cause, how=self.roll.mismatch())
            failures[:] = [cause]
        elif through_mpi := aborted(failures):
            cause = through_mpi
            failures[:] = [cause]
        elif children.to_blame(failures, begun=self.begun):
            cause = children.failure(self.roll, begun=self.begun)
            failures[:] = [cause]
        elif cause.misses_who_left and self._left:
            host, first = min(self._left, key=lambda left: left[1].at)
            cause = left_early(host, first, cause)
        self.blame(cause)

    def _failed_nodes(self) -> list[str]:
        """Return the hosts that the scheduler has given up, and therefore ended all ranks."""
        flavour = self.plan.flavour
        failed = flavour.failed_hosts(self.hosts.children.text) if flavour else ()
        return [host for host in self.plan.placement.hosts if host in failed]

    def tell_why_the_job_ends(self) -> None:
        """Name the host for which the scheduler has ended the whole job, where a signal was all that came of it."""
        flavour, children = self.plan.flavour, self.hosts.children
        if not (flavour and self.outcome.stopped) or self.outcome.cause:
            return
        nodes = self._failed_nodes()
        if nodes or flavour.job_lost_a_host(children.text):
            around = self.plan.scheduler
            advice = f"{around.title} ended the job for that; submit it with {around.outliving} to go on"
            cause = nodes_failed(nodes, children.all[0].name, advice if around.outliving else "")
            self.outcome.cause, self.outcome.lost = cause, nodes
            self.say(cause.text)

    def blame(self, cause: Failure) -> None:
        """Make this the cause of the end, and stop all."""
        if self.launch.is_interrupted and cause.rank is not None and cause.code == 128 + signal.SIGINT:
            self.outcome.failures.clear()  # the user wanted it
            self.outcome.code, self.outcome.stopped = cause.code, True
            self.stop(FAILURE_GRACE)
            return
        self.outcome.cause, self.outcome.code = cause, cause.code
        is_over = bool(self.number) and self._done.issuperset(self.places)
        several = self.hosts.children.alive and self.plan.placement.world_size > 1 and not is_over
        others = "stopping the other ranks" if self.begun else "no rank has begun"
        path = log_of(cause, self.settings.log_dir, self.launch.folder)
        self.say(f"{cause.text}{f'; {others}' * several}{f' [log: {path}]' * bool(path)}")
        self.shown = 0
        asked = cause.asked_to_end and bool(self.plan.scheduler.signalling_daemon)
        self.stop(SIGNAL_GRACE if asked else FAILURE_GRACE)  # all were asked, and may need it
        if asked:
            self.launch.ask_kill_wait()

    def end_run(self, why: str, code: int) -> None:
        """End it, of something that is no failure of a rank or a host.

        Raises:
            ValueError: The code is none of a failure.
        """
        if type(code) is not int or not 0 < code < 256:
            raise ValueError(f"the run cannot end with {code!r}; expected an exit code from 1 to 255")
        if not self.stopping:
            self.blame(Failure("the run", f"was ended: {why}", code, time.time()))

    def stop(self, grace: float) -> None:
        """Ask all ranks to end, and kill them after so many seconds; where none has begun, at once."""
        self.stopping = True
        self.launch.keep_no_term(self)
        self.kill_at(time.monotonic() + grace)
        if self._has_no_ranks:
            self.launch.stop_begun(grace)
        if self.begun:
            self.send(signal.SIGTERM)
            return
        self._order(agent_messages.Kill())
        if not self.number:
            control, children = self.hosts.control, self.hosts.children
            self._loop.after("unbegun", _UNBEGUN, lambda: children.end_but(control.done))

    def send(self, number: int) -> None:
        """Send a signal to all ranks through their agents."""
        if self._has_no_ranks:
            return
        if self.begun:
            self._order(agent_messages.Signal(number=int(number)))
        elif number not in _PAUSING:  # no rank begins while the launcher is stopped
            self._waiting_signals.append(number)

    def kill_at(self, moment: float) -> None:
        """Kill its ranks at a moment of the monotonic clock, if they have not ended."""
        self._loop.at("kill", moment, self.kill)

    @property
    def waits_to_kill(self) -> bool:
        """Whether its ranks are to be killed at some moment."""
        return self._loop.waits_for("kill")

    def kill(self) -> None:
        """Kill its ranks now."""
        self.cancel_kill()
        if not self.number:
            self.launch.kill()
            return
        self.stopping = True
        self._order(agent_messages.Kill())
        self._loop.after("clean", _CLEAN_UP, self._give_up)

    def cancel_kill(self) -> None:
        """Take note that its ranks have been killed."""
        self._loop.cancel("kill")

    def _give_up(self) -> None:
        """Wait no longer for hosts that do not report its end, although they live."""
        silent = [self.hosts.name(index) for index in self.places if index not in self._done]
        if silent:
            self.note(f"{', '.join(silent[:3])} did not report that all is over there")
        for index in self.places:
            self._over_on(index)

    def _over_on(self, index: int) -> None:
        self._done.add(index)
        if self._done.issuperset(self.places):
            self.close()

    def close(self) -> None:
        """End a world that was begun on hosts, which has no ranks any more: it ends before the launch does."""
        if not self.number or self.is_over:
            return
        self.settle()
        self.end()
        for text in self.last_words():
            self.launch.screen.say(text)
        self.launch.keep_no_term(self)
        self.launch.world_ended(self)

    def end(self) -> None:
        """Let watchers say what came of it: all is over on its hosts."""
        self.is_over = True
        self.watch.all("close", self.outcome)
        if self.number:
            self._loop.close()

    def last_words(self) -> list[str]:
        """Return what belongs at the end of the screen."""
        return last_words(self.outcome, self.shown, self.number)

    # Time limits.

    def ask_overdue(self) -> None:
        """Tell watchers that find out what overdue ranks are doing that these have ended."""
        if self._limit:
            self.watch.all("over")

    def _overdue(self, reason: str) -> None:
        """End it because a time limit is over, when watchers know what its ranks are doing."""
        if self.stopping or self._limit:
            return
        self._limit = reason
        seconds = self.watch.overdue(reason)
        self._loop.at("overdue", time.monotonic() + seconds, self._wait_no_longer)

    def _wait_no_longer(self) -> None:
        """End it for its limit although nobody has said what its ranks are doing; it may end already."""
        if not self.stopping:
            self._end_overdue("its ranks are ended")

    def _end_overdue(self, how: str) -> bool:
        """End it for its limit, unless a rank has failed by itself meanwhile; tell whether it does."""
        reason, self._limit = self._limit, ""
        self._loop.cancel("overdue")
        cause = self.outcome.cause
        if not reason or (cause and cause.rank is not None and not (cause.lost_peer or cause.waited_in_vain)):
            return False
        self.outcome.stopped = True
        self.blame(Failure(f"{reason}:", how, _TIME_LIMIT, time.time()))
        return True

    # What it says, orders, and lets watchers do.

    def _drop(self, watcher: str) -> None:
        """Wait for a watcher no more, because it has failed."""
        self.launch.kept_no_more(self, watcher)
        self.launch.turn_away()

    def say(self, text: str) -> None:
        """Write a line on stderr, which names the world where it is one of several."""
        self.launch.say(f"world {self.number}: {text}" if self.number else text)

    def note(self, text: str) -> None:
        """Write a line about what ends nothing, unless another host has reported the same."""
        if text not in self.outcome.notes:
            self.outcome.notes.append(text)
            self.say(f"note: {text}")

    def _order(self, order: Message, *, to: set[int] | None = None) -> set[int]:
        """Send an order to the agents of its hosts; return the hosts that it was sent to."""
        mine = set(self.places) if self.number and to is None else to
        return self.hosts.order(order, mine, world=self.number)

    def _order_of_watcher(self, order: Message, *, but: int | None = None, to: set[int] | None = None) -> set[int]:
        runs = self.hosts.running - self._done - {but}
        if self.number:
            runs.intersection_update(self.places)
        return self._order(order, to=runs if to is None else to)

    def keep_terms(self, keeps: bool) -> None:
        """Tell its agents whether a SIGTERM that others send to ranks is kept back."""
        by_itself = "EZPZ_IGNORED_AT_START" in self.plan.variables  # the scheduler signals ranks, too
        how = (2 if by_itself else 1) if keeps else 0
        if how != self._hold and not self.stopping:
            self._hold = how
            self._order(agent_messages.Hold(how=how))

    def _handle(self, name: str, config: str, guarded: Callable[..., Any]) -> LauncherHandle:
        """Return what a watcher may do here."""
        launch = self.launch
        handle = LauncherHandle(name, config, self._loop, self.note, guarded)
        handle.plan, handle.launch, handle.folder, handle.host = self.plan, self.id, launch.folder, self.hosts.name
        handle.hosts, handle.say, handle.live = self.hosts.control.heard, self.say, launch.screen.live
        handle.began, handle.job_ends, handle.reached = launch.began, launch.job_ends, self.stages.reached
        handle.overdue = self._overdue
        handle.order, handle.end_run, handle.end_overdue = self._order_of_watcher, self.end_run, self._end_overdue
        handle.refuse = self._refuse
        handle.blame = lambda host, why: self.outcome.blamed.update({str(host): str(why)})
        handle.is_stopping = lambda: self.stopping
        handle.answered, handle.is_asked, handle.answer = self._go_on, launch.is_asked, launch.answer
        handle.keep_terms, handle.keeps_term = self.keep_terms, launch.keeps_term
        handle.pass_term_on = lambda: launch.pass_term_on(self)
        return handle
