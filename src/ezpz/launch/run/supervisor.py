"""Own a run until its last process is gone: the first failure stops all, and its cause and exit code are those of the
launch.
"""

from __future__ import annotations

import math
import os
import signal
import time

from ezpz.errors import EzpzError, shell_code
from ezpz.launch import messages
from ezpz.launch.backlog import keep_freed_memory
from ezpz.launch.host import process_tree
from ezpz.launch.host.rank_start import ignored
from ezpz.launch.loop import Loop, SignalPipe
from ezpz.launch.messages import Piece
from ezpz.launch.run.askers import Askers
from ezpz.launch.run.child import Children, Interrupts
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
from ezpz.launch.run.kept_term import KeptTerm
from ezpz.launch.run.rank_input import InputPump
from ezpz.launch.run.world import STAGES, Stages, World
from ezpz.launch.watchers import LauncherHandle, Watchers
from ezpz.visible import LINES, visible

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from typing import Any

    from ezpz.launch.messages import Message
    from ezpz.launch.plan import LaunchPlan
    from ezpz.launch.run.child import Child
    from ezpz.launch.run.control import Control
    from ezpz.launch.run.failures import Limits
    from ezpz.launch.run.requests import Requests
    from ezpz.launch.run.terminal import Screen
    from ezpz.launch.wall import Wall
    from ezpz.launch.watchers import Wait

__all__ = ["PORT_TAKEN", "Supervisor"]

PORT_TAKEN = -1  # no exit code of a process: the ranks could not meet where they were sent

FAILURE_GRACE = 3.0  # seconds from SIGTERM to SIGKILL after a rank failed: the prompt is back within five
_DAEMON_FIRST = 0.4  # seconds for a scheduler to signal ranks as well: what has reached them is not passed on
SIGNAL_GRACE = 10.0  # seconds after a signal from outside: ranks may want to write a checkpoint
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PAUSING = (signal.SIGSTOP, signal.SIGCONT)
_HEARD = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGCHLD)
_SETTLE = 0.1  # seconds for failures that happened at the same time, or even earlier on another host
_LAUNCHER_ENDS = 3.0  # seconds for the program that starts ranks to end, when it has ended them before they began
_SETTLE_LONG = 0.7  # the same where an MPI has killed the shims, or a peer was lost: another end says why
_UNBEGUN = 0.5  # seconds for mpiexec to end by itself, quietly, when its ranks are not to begin; some may never come
_CLEAN_UP = 8.0  # seconds from SIGKILL until a host that reports nothing is given up
_LINGERS = 5.0  # seconds for mpiexec to end when all its ranks have; Open MPI 5.0.11 sometimes never does
_LINGERS_AFTER_FAILURE = 1.5  # it may wait for a host that is lost
_PUSHED = 1 << 17  # bytes of output after which they are written, while they are in the caches
_LATE = 30.0  # seconds after which a line names the ranks that all others wait for
_ASK_EVERY = 5.0  # seconds between two questions to all hosts whether they live,
_NO_ANSWER = 22.0  # and until one that does not answer is lost: about as long as for one that is cut off
_LOOK_FOR_REQUESTS = 2.0  # seconds between two looks for what other hosts ask
_HUNG_UP = 5.0  # seconds for agents to kill their ranks, and for the programs that started them to end
_TIME_LIMIT = 124
_REFUSED = 125
_STDERR = 2


def _is_done_by_others(failure: Failure) -> bool:
    """Tell whether a scheduler that kills a whole step leaves such a failure."""
    return failure.is_consequence or failure.status == -signal.SIGKILL or failure.why.startswith(LOST)


class Supervisor:
    """Waits for children, signals and agents; the earliest failure is the cause, our own signals never are.

    A context manager, entered within that of its signals, before the first child starts: a signal that comes in between
    must not be lost.

    Args:
        plan: The plan of this start.
        limits: What the user allows the run.
        control: The agents.
        screen: Where output goes.
        wall: When the job's wall time is to be announced.
        shares_terminal: The only rank keeps the terminal: Ctrl-C reaches it by itself, and a debugger there may live
            on.

    Attributes:
        launch: Id of the launch.
        folder: Of run.json and, without --log-dir, of the cause's last words; empty without records.
        address: Where ``ezpz stacks`` asks; empty where it cannot.
        signals: What reaches the launcher from outside, a context manager.
        began: When the launch began, in seconds since 1970.
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
        self.launch = self.folder = self.address = ""
        self.began = time.time()
        self.outcome = Outcome()
        self.stages = Stages()
        self.world = World(plan)
        self.loop = Loop()
        self._interrupts = Interrupts()
        self.children = Children(self.loop, plan.is_mpi, self._children_wrote)
        self.stopping = False
        self._input = InputPump(self.loop, self.note, self._input_lost)
        self._wall = wall
        self._shares_terminal = shares_terminal
        self._limit = ""  # why the run is ended, as long as watchers find out what its ranks are doing
        self._askers = Askers()
        self._requests: Requests | None = None  # made when the launch runs long enough to be asked
        self._waiting_signals: list[int] = []  # for ranks that have not begun
        self._was_full = False  # whether the screen was when hosts were to be given up
        self._killed = False  # whether SIGKILL has been sent
        self._kept = KeptTerm(self.loop, self.say, self._pass_kept_on)
        self.watch = Watchers(control.settings.watchers, "launcher", self._handle, self.note, self._kept.drop_of)
        self._were_asked = False  # watchers, whether ranks may begin
        self._run_folder = ""
        self._hold = 0  # what agents were last told of that: `messages.Hold`
        self._kills_at = -math.inf  # when the scheduler kills what still runs, after its SIGTERM
        self._since_failure = 0
        self._question: subprocess.Popen[bytes] | None = None
        self._answered: dict[int, float] = {}  # host: when it last said that it lives
        self._asked_at = -math.inf
        self._answers_by = 0.0  # when watchers are waited for no more after a failure
        self._settle_at = math.inf
        self._left: list[tuple[str, messages.Finished]] = []  # of each host, the first rank that ended with 0
        self.signals = SignalPipe(set(_HEARD).difference(ignored()))  # `nohup launch …` lives on

    def __enter__(self) -> Supervisor:  # noqa: PYI034  # Self needs Python 3.11
        process_tree.adopt()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Kill what still runs, because a child could not be started or this process itself has broken."""
        try:
            if error:
                self._killed = True
                self._hang_up()
            self.children.kill_and_wait()
        finally:
            if self.outcome.cause or self._killed:
                # Where an agent or mpiexec was killed, this process alone can tidy up here.
                process_tree.kill_all(self.launch, everything=True, own=False)
            self._input.close()
            self._end_question()
            self.loop.close()
            self._askers.close()
            if self._requests is not None:
                self._requests.close()

    def _hang_up(self) -> None:
        """Leave the agents, which end their ranks by that, and wait a moment for what runs only as long as these do."""
        self.control.close()
        end = time.monotonic() + _HUNG_UP
        while self.children.alive and time.monotonic() < end:
            self.children.reap()
            time.sleep(0.01)

    def wait(self) -> Outcome:
        """Return how the run ended when its last process is gone."""
        limits = self.limits
        if limits.start is not None:
            self.loop.after("start", limits.start, self._not_started)
        if not self.world.begun:
            self.loop.after("late", _LATE, self._tell_late)
        if limits.watch and self.plan.flavour is not None:
            self.loop.after("alive", _ASK_EVERY, self._ask_who_lives)
        if limits.run is not None:
            whole = "--timeout, of the whole run; of one without progress: --idle-timeout"
            reason = f"the run has not ended within {limits.run:g} s ({whole})"
            self.loop.after("run", limits.run, lambda: self._overdue(reason))
        self.watch.start(self.loop)
        self.loop.read(self.signals, lambda _: self._signalled())
        self.loop.read(self.control, lambda _: self.listen())
        self._watch_lease()
        self._askers.listen(self.address, self.loop, self._asked)
        if self.folder:
            self.loop.after("requests", _LOOK_FOR_REQUESTS, self._look_for_requests)
        self._reap()  # one may have ended already
        keep_freed_memory()
        while not self._over():
            self._watch_screen()
            now = self.loop.turn(self.screen.due(), self._wall.due() if self._wall else None, self.control.due())
            self.screen.tick(now)
            self.control.tick(now)
            text = self._wall.take(now) if self._wall else None
            if text:
                self.note(text)
            self._release()
        return self._result()

    def listen(self) -> None:
        """Take what the agents have sent."""
        screen, now, unpushed = self.screen, time.monotonic(), 0
        for item in self.control.read():
            if isinstance(item, Piece):
                size = len(item.data)
                self._since_failure += size
                unpushed += size
                screen.show(item.rank, item.stream, item.data, now, item.release)
                if unpushed >= _PUSHED:
                    unpushed = 0
                    screen.push()
                    if screen.full:
                        self.control.pause(True)
            else:
                self._hear(item.host, item.message)

    def child_ended(self, child: Child) -> None:
        """Judge the end of a child later, when the agents have reported what they know: theirs is the cause."""
        del child
        self.loop.after("launcher", _SETTLE_LONG, self.judge_launcher)

    def hint(self) -> str:
        """Return what else to try when hosts do not come up."""
        return ""

    def say(self, text: str) -> None:
        """Write a line on stderr: stdout belongs to the program."""
        self.screen.say(f"ezpz: {visible(text, LINES)}")

    def note(self, text: str) -> None:
        """Write a line about what ends nothing, unless another host has reported the same."""
        if text not in self.outcome.notes:
            self.outcome.notes.append(text)
            self.say(f"note: {text}")

    def _over(self) -> bool:
        if self.children.alive or not self.children.drained:
            return False
        if self._limit:
            self.watch.all("over")
        return not self.control.open_outputs and self.control.all_done

    def _watch_screen(self) -> None:
        self.screen.push()
        self.control.pause(self.screen.full)
        waiting = self.screen.wants()
        for fd in (1, 2):
            if fd in waiting:
                self.loop.write(fd, self.screen.write)
            else:
                self.loop.forget(fd)

    def _children_wrote(self, stream: int, data: bytes) -> None:
        """Show what mpiexec itself has written, unless its guesses would follow the true cause."""
        if self.children.unsupervised:
            self.loop.cancel("start")
            self._let_begin()  # those of that host have begun, and no message will tell whether they are complete
        cause = self.outcome.cause
        if cause and cause.rank is not None and not self.children.unsupervised:
            return
        if stream == _STDERR:
            early = self._interrupts
            data = early.end() + data if self.world.begun else early.feed(data)
        self.screen.show(None, stream, data, time.monotonic())

    def _result(self) -> Outcome:
        self.screen.show(None, _STDERR, self._interrupts.end(), time.monotonic())
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
        self.watch.all("close", self.outcome)
        self._tell_why_the_job_ends()
        self.screen.finish()  # nothing of ours shall stand after the last words
        for text in last_words(self.outcome, self._since_failure):
            self.screen.say(text)
        return self.outcome

    # Signals from outside, and the ends of children.

    def _signalled(self) -> None:
        for number in self.signals.take():
            if number == signal.SIGCHLD:
                self._reap()
            elif number == signal.SIGTSTP:
                self._pause()
            elif not (number == signal.SIGINT and self._shares_terminal):
                self._signal(number)

    def _pause(self) -> None:
        """Stop all ranks and this process, as Ctrl-Z asks, until SIGCONT; no time limit counts that time."""
        self.screen.hide()
        self._send(signal.SIGSTOP)  # SIGTSTP stops no process that has a session of its own, as ranks have
        began = time.monotonic()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self._send(signal.SIGCONT)
        self.loop.delay(time.monotonic() - began)

    def _reap(self) -> None:
        for child in self.children.reap():
            self.child_ended(child)

    def _signal(self, number: int) -> None:
        if number in _ENDING:
            if self.stopping and number == signal.SIGINT:
                if self._killed:
                    self._give_up()  # nor is anybody waited for who does not read
                else:
                    self.kill()  # the second Ctrl-C means now
                return
            first = self._before_term() if number == signal.SIGTERM else None
            wait = first[1] if first else self._kept.wait
            self._note_ending(number, wait if number != signal.SIGINT else None)
            if not self.world.begun:
                if not self.stopping:
                    self._stop(FAILURE_GRACE)
                return
            if wait:
                self.stopping = True
                self._kept.again(now=number == signal.SIGINT)
                if first:
                    self._keep_term(*first)
                return
        if number == signal.SIGINT or not self.plan.around.signalling_daemon:
            self._send(number)
        else:
            self.loop.after(f"pass {number} on", _DAEMON_FIRST, lambda: self._send(number))
        if number in _ENDING and not self.stopping:
            self.stopping = True
            self.loop.at("kill", time.monotonic() + SIGNAL_GRACE, self.kill)
            if number == signal.SIGTERM and self.plan.around.configuration:
                self._ask_kill_wait(time.monotonic())

    def _note_ending(self, number: int, wait: Wait | None) -> None:
        """Let the first signal that ends the launch be its exit code."""
        if not self.outcome.code:
            self.outcome.code, self.outcome.stopped = 128 + number, True
            does = "passing it on" if self.world.begun else "no rank has begun"
            does += f" when the ranks have {wait.done}" if wait else ""
            again = "; Ctrl-C again kills" if number == signal.SIGINT and self.world.begun else ""
            self.say(f"{signal.Signals(number).name} received; {does}{again}")

    def _before_term(self) -> tuple[str, Wait] | None:
        """Return which watcher has a SIGTERM that comes now wait, and for what."""
        return None if self.stopping or self._kept or not self.world.begun else self.watch.before_term()

    def _keep_term(self, watcher: str, wait: Wait) -> None:
        """Keep a SIGTERM that came from outside back until ranks have done what a watcher wants."""
        around = self.plan.around
        seconds = self._kept.begin(watcher, wait, SIGNAL_GRACE if around.marks else None)
        self.note_ends_within(seconds + SIGNAL_GRACE)
        if around.configuration:
            self._ask_kill_wait(time.monotonic())
        self.watch.term_waits(watcher)

    def _pass_kept_on(self) -> None:
        """Let the ranks have the SIGTERM that was kept back, and end as it wants."""
        self._send(signal.SIGTERM)
        if self.stopping:
            self.loop.at("kill", max(time.monotonic() + SIGNAL_GRACE, self._kills_at), self.kill)

    def _keep_terms(self, keeps: bool) -> None:
        """Tell all agents whether a SIGTERM that others send to ranks is kept back."""
        by_itself = "EZPZ_IGNORED_AT_START" in self.plan.variables  # the scheduler signals ranks, too
        how = (2 if by_itself else 1) if keeps else 0
        if how != self._hold and not self.stopping:
            self._hold = how
            self.control.order(messages.Hold(how=how))

    def _term_held(self) -> None:
        """Take note that agents keep a SIGTERM back that others have sent to ranks."""
        if self._kept:
            self._kept.again()
        elif first := self._before_term():
            self._keep_term(*first)
        else:
            self._send(signal.SIGTERM)

    def note_ends_within(self, seconds: float) -> None:
        """Take note of how long the end takes at most that a signal from outside asks for."""

    def _ask_kill_wait(self, began: float) -> None:
        """Ask how long the scheduler lets processes end, and let them have all of that."""
        import subprocess

        around, nowhere, answer = self.plan.around, subprocess.DEVNULL, bytearray()
        try:
            child = subprocess.Popen(around.configuration, stdin=nowhere, stdout=subprocess.PIPE, stderr=nowhere)
        except OSError:
            return
        self._question = child
        assert child.stdout is not None
        output = child.stdout.fileno()

        def take(_: int) -> None:
            part = os.read(output, 65536)
            answer.extend(part)
            if part:
                return
            self._end_question()
            seconds = around.kill_wait(answer.decode(errors="replace"))
            if self._kept and seconds:
                self._kept.limit(seconds)
                self.note_ends_within(seconds + SIGNAL_GRACE)
            if seconds > SIGNAL_GRACE and (self._kept or self.loop.waits_for("kill")):
                self.note(f"{around.title} kills what still runs {seconds:g} s after its SIGTERM (KillWait)")
                self._kills_at = began + seconds
                if self.loop.waits_for("kill"):
                    self.loop.at("kill", self._kills_at, self.kill)

        self.loop.read(output, take)

    def _end_question(self) -> None:
        child, self._question = self._question, None
        if child and child.stdout:
            self.loop.forget(child.stdout.fileno())
            child.stdout.close()
            child.kill()
            child.wait()

    # Failures, and how all is stopped.

    def fail(self, failure: Failure) -> None:
        """Note a failure; the earliest of those that come within a moment is the cause."""
        if self._kept:
            self._fail_before_term(failure)
        if self.stopping:
            return  # a consequence
        self.outcome.failures.append(failure)
        slow = failure.is_consequence or failure.lost_peer or failure.why in {"mismatch", CANNOT_START}
        patience = _SETTLE_LONG if slow else _SETTLE
        if self.world.begun and len(self.outcome.failures) == 1:
            self._answers_by = time.monotonic() + self.watch.failed(failure)
        self._settle_at = min(self.loop.due("settle"), time.monotonic() + patience)
        self.loop.at("settle", self._settle_at, self._settle_when_told)

    def _fail_before_term(self, failure: Failure) -> None:
        """Keep a SIGTERM back no longer when a rank fails: others may wait for it in what they do first."""
        self._kept.fail(failure.text)
        if self.stopping:  # else it becomes the cause
            self.outcome.failures.append(failure)
            if failure.words and not failure.shown:
                self.screen.say(failure.words.rstrip("\n"))

    def _settle_when_told(self) -> None:
        """Name the cause when watchers have found out what they want to know of ranks that still live."""
        now = time.monotonic()
        left = self._answers_by - now
        if left > 0 and not self.stopping:
            self.loop.after("settle", left, self._settle_when_told)
        elif self._launcher_is_ending() and now < self._settle_at + _LAUNCHER_ENDS:
            self.loop.after("settle", _SETTLE, self._settle_when_told)
        else:
            self._settle()

    def _go_on(self) -> None:
        """Wait for no more answers after a failure."""
        self._answers_by = 0.0
        if self.loop.waits_for("settle"):
            self.loop.at("settle", max(time.monotonic(), self._settle_at), self._settle_when_told)

    def _launcher_is_ending(self) -> bool:
        """Tell whether the program that starts ranks has ended all that had come before any began: it knows why, and
        has not ended itself yet, as torchrun whose shim was killed before that could say who it is.
        """
        failures = self.outcome.failures
        passed_on = all(failure.rank is not None and failure.why.startswith(PASSED_ON) for failure in failures)
        return passed_on and not (self.world.begun or self.stopping) and self.children.alive

    def _settle(self) -> None:
        """Name the cause and stop what still runs."""
        if self.stopping or not self.outcome.failures:
            return
        failures = self.outcome.failures
        cause = earliest(failures)
        nodes = self._failed_nodes() if all(map(_is_done_by_others, failures)) else []
        if nodes:
            cause = nodes_failed(nodes, self.children.all[0].name)
            failures[:], self.outcome.lost = [cause], nodes
        elif cause.why == "mismatch":
            cause = cause._replace(how=self.world.mismatch())
            failures[:] = [cause]
        elif through_mpi := aborted(failures):
            cause = through_mpi
            failures[:] = [cause]
        elif self.children.to_blame(failures, begun=self.world.begun):
            cause = self.children.failure(self.world)
            failures[:] = [cause]
        elif cause.lost_peer and self._left:
            host, first = min(self._left, key=lambda left: left[1].at)
            cause = left_early(host, first, cause)
        self.blame(cause)

    def _failed_nodes(self) -> list[str]:
        """Return the hosts that the scheduler has given up, and therefore ended all ranks."""
        flavour = self.plan.flavour
        failed = flavour.failed_hosts(self.children.text) if flavour else ()
        return [host for host in self.plan.placement.hosts if host in failed]

    def _tell_why_the_job_ends(self) -> None:
        """Name the host for which the scheduler has ended the whole job, where a signal was all that came of it."""
        flavour = self.plan.flavour
        if not (flavour and self.outcome.stopped) or self.outcome.cause:
            return
        nodes = self._failed_nodes()
        if nodes or flavour.job_lost_a_host(self.children.text):
            around = self.plan.around
            advice = f"{around.title} ended the job for that; submit it with {around.outliving} to go on"
            cause = nodes_failed(nodes, self.children.all[0].name, advice if around.outliving else "")
            self.outcome.cause, self.outcome.lost = cause, nodes
            self.say(cause.text)

    def blame(self, cause: Failure) -> None:
        """Make this the cause of the end, and stop all."""
        self.outcome.cause, self.outcome.code = cause, cause.code
        several = self.children.alive and self.plan.placement.world_size > 1
        others = "stopping the other ranks" if self.world.begun else "no rank has begun"
        path = log_of(cause, self.control.settings.log_dir, self.folder)
        self.say(f"{cause.text}{f'; {others}' * several}{f' [log: {path}]' * bool(path)}")
        self._since_failure = 0
        asked = cause.asked_to_end and bool(self.plan.around.signalling_daemon)
        self._stop(SIGNAL_GRACE if asked else FAILURE_GRACE)  # all were asked, and may need it
        if asked:
            self._ask_kill_wait(time.monotonic())

    def _stop(self, grace: float) -> None:
        """Ask all ranks to end, and kill them after so many seconds; where none has begun, at once."""
        self.stopping = True
        self._kept.drop()
        self.loop.at("kill", time.monotonic() + grace, self.kill)
        if self.world.begun:
            self._send(signal.SIGTERM)
            return
        self.control.order(messages.Kill())
        self.loop.after("unbegun", _UNBEGUN, lambda: self.children.end_but(self.control.done))

    def _let_begin(self) -> None:
        """Let all ranks begin, and give them the signals that came before; nothing has failed so far."""
        if self.world.begun or self.stopping or self.outcome.failures:
            return
        refusal = self.refusal()
        if refusal:
            self._refuse(refusal)
            return
        self.world.begun = True
        self.control.order(messages.Begin())
        for number in self._waiting_signals:
            self._send(number)

    def refusal(self) -> str | EzpzError:
        """Return why watchers let no rank begin; empty where they do. They are asked once."""
        if self._were_asked:
            return ""
        self._were_asked = True
        return next(filter(None, self.watch.before_begin()), "")

    def _refuse(self, why: str | EzpzError) -> None:
        """Let no rank begin, if none has."""
        if not (self.world.begun or self.stopping):
            code = why.exit_code if isinstance(why, EzpzError) else _REFUSED
            self.blame(Failure("cannot start:", str(why).removesuffix("."), code, time.time()))

    def _handle(self, name: str, config: str, guarded: Callable[..., Any]) -> LauncherHandle:
        """Return what a watcher may do here."""
        handle = LauncherHandle(name, config, self.loop, self.note, guarded)
        handle.plan, handle.launch, handle.folder, handle.host = self.plan, self.launch, self.folder, self.world.host
        handle.hosts, handle.say, handle.live = self.control.heard, self.say, self.screen.live
        handle.began, handle.job_ends, handle.reached = self.began, self.job_ends, self.stages.reached
        handle.overdue = self._overdue
        handle.order, handle.end_run, handle.end_overdue = self._order, self.end_run, self._end_overdue
        handle.refuse = self._refuse
        handle.blame = lambda host, why: self.outcome.blamed.update({str(host): str(why)})
        handle.is_stopping = lambda: self.stopping
        handle.answered, handle.is_asked, handle.answer = self._go_on, self._is_asked, self._answer
        handle.keep_terms, handle.keeps_term = self._keep_terms, lambda: bool(self._kept)
        handle.pass_term_on = self._kept.end
        return handle

    def _order(self, order: Message, *, but: int | None = None, to: set[int] | None = None) -> set[int]:
        return self.control.order(order, set(self.control.heard) - self.control.done - {but} if to is None else to)

    def job_ends(self) -> float | None:
        """Return when the job ends, in seconds since 1970, as far as it is known by now."""
        return self._wall.end if self._wall else None

    def end_run(self, why: str, code: int) -> None:
        """End the run, of something that is no failure of a rank or a host.

        Raises:
            ValueError: The code is none of a failure.
        """
        if type(code) is not int or not 0 < code < 256:
            raise ValueError(f"the run cannot end with {code!r}; expected an exit code from 1 to 255")
        if not self.stopping:
            self.blame(Failure("the run", f"was ended: {why}", code, time.time()))

    def _send(self, number: int) -> None:
        """Send a signal to all ranks through their agents."""
        if self.world.begun:
            self.control.order(messages.Signal(number=int(number)))
        elif number not in _PAUSING:  # no rank begins while this process is stopped
            self._waiting_signals.append(number)

    def _watch_lease(self) -> None:
        """End at once where another job of a chain may train: what the ranks would write is its now."""
        if not os.environ.get("EZPZ_CHAIN"):
            return
        from ezpz.launch import lease

        mine = lease.kept()
        if mine is None:  # this launch stands beside the one that trains, or in one of its ranks
            return

        def look(_: int) -> None:
            why = mine.lost()
            if not why:
                return
            self.loop.forget(mine.watched)
            cause = Failure("the lease of the chain is lost:", why, _REFUSED, time.time())
            self.outcome.cause, self.outcome.code, self.outcome.stopped = cause, cause.code, True
            self.say(f"{cause.text}; killing all ranks, because another job may train now")
            self.stopping = True
            self.kill()

        self.loop.read(mine.watched, look)

    def kill(self) -> None:
        """Kill all ranks now."""
        self._killed = True
        self._kept.drop()
        self.loop.cancel("kill")
        reached = self.control.order(messages.Kill())
        self.loop.after("clean", _CLEAN_UP, self._clean_up_is_over)
        if not reached:
            self.children.kill(signal.SIGKILL)

    def _clean_up_is_over(self) -> None:
        """Give hosts up; but they report their end behind their output, and who reads it slowly lets them wait."""
        if self.screen.full:
            self._was_full = True
        elif self._was_full:
            self._was_full = False
        else:
            self._give_up()
            return
        self.loop.after("clean", _CLEAN_UP, self._clean_up_is_over)

    def _give_up(self) -> None:
        """Wait no longer for hosts that report nothing after SIGKILL, nor for the programs that started them."""
        self.children.kill(signal.SIGKILL, group=True)
        silent = [self.world.host(index) for index in self.control.heard if index not in self.control.done]
        if silent and not self.screen.full:
            self.note(f"{', '.join(silent[:3])} did not report that all is over there")
        self.control.done.update(self.control.heard)
        self.control.give_up()

    # The programs that started the ranks, when the ranks have ended or nothing more is heard of them.

    def _release(self) -> None:
        """Let shims end when all hosts are done; then mpiexec has nothing left to wait for."""
        if not (self.world.complete or self.stopping):
            return  # other hosts still start
        if self.control.heard and self.control.all_done and not self.loop.waits_for("lingers") and self.children.alive:
            self.control.order(messages.Release(codes=self.plan.tells_codes))
            self.loop.after("lingers", _LINGERS_AFTER_FAILURE if self.stopping else _LINGERS, self._end_launcher)

    def judge_launcher(self) -> None:
        """Find what is the fault of the program that started the ranks, after its end; agents have had their time to
        report.
        """
        if self.children.alive:
            return
        if not self.control.all_done:
            if not self.stopping:
                self.blame(self.children.failure(self.world))
            self.kill()
        elif not self.stopping and not self.outcome.failures and not self.children.unsupervised:
            code = next((child.code for child in self.children.all if child.code and not child.by_us), 0)
            if code or not self.world.complete:
                self.outcome.failures.append(self.children.failure(self.world))

    def _end_launcher(self) -> None:
        """End the programs that still run although nothing is left for them to do."""
        self.children.kill(signal.SIGKILL if self._killed else signal.SIGTERM)
        if self.children.alive:
            self._killed = True
            self.loop.after("lingers", _LINGERS_AFTER_FAILURE, self._end_launcher)

    def _tell_late(self) -> None:
        if not (self.world.begun or self.stopping):
            self.note(self.world.awaited(_LATE))

    def _not_started(self) -> None:
        """End a run some ranks of which have not come up in time."""
        if not self.stopping:
            text = self.world.missing(self.limits.start or 0.0) + self.hint()
            late = self.world.late()
            host = self.world.host(late[0]) if len(late) == 1 else None
            self.blame(Failure("world:", text, _REFUSED, time.time(), host=host, why=NOT_STARTED))

    # Reports of the agents.

    def _hear(self, index: int, message: Message) -> None:
        if isinstance(message, messages.Hello):
            self._agent_came(index, message)
        elif isinstance(message, messages.Up | messages.Partial):
            self._hear_of_start(index, message)
        elif isinstance(message, messages.Recording | messages.Stages | messages.Finished):
            self._hear_of_work(self.world.host(index), message)
        elif isinstance(message, messages.Note):
            self.note(message.text)
        elif isinstance(message, messages.InputWanted | messages.InputUnread):
            self._hear_of_input(index, message)
        elif isinstance(message, messages.TermHeld):
            self._term_held()
        elif isinstance(message, messages.Done | messages.Alive):
            self._hear_of_host(index, message)
        elif not self.watch.hear(message, index):
            self._hear_of_failure(self.world.host(index), message)

    def _hear_of_start(self, index: int, message: messages.Up | messages.Partial) -> None:
        if isinstance(message, messages.Partial):
            self.world.partly(index, message.have)
        else:
            self.world.up(index, message)
            if self.world.complete:
                self.loop.cancel("start")
                self._let_begin()

    def _hear_of_input(self, index: int, message: Message) -> None:
        connection = self.control.way_back(index) if self.control.settings.input else None
        if isinstance(message, messages.InputUnread):
            self._input.stop()
        elif connection and isinstance(message, messages.InputWanted):
            self._input.start(connection, message.taken)

    def _input_lost(self, why: str) -> None:
        self.fail(host_lost(self.world.host(0), why))

    def _hear_of_work(self, host: str, message: messages.Recording | messages.Stages | messages.Finished) -> None:
        if isinstance(message, messages.Finished):
            self._rank_finished(host, message)
        elif isinstance(message, messages.Stages):
            self.stages.add(host, message, self.began)
            if message.stage == STAGES[-1] and self.stages.reached(message.stage) == self.plan.placement.world_size:
                self.all_train()
        else:
            self._run_folder = message.folder
            self.watch.use_folder(message.folder)

    def _hear_of_host(self, index: int, message: messages.Done | messages.Alive) -> None:
        if isinstance(message, messages.Done):
            self._note_step(message.step)
            self.watch.all("gone", index)
            self._note_stuck(self.world.host(index), message.stuck)
        else:
            self._answered[index] = time.monotonic()

    def _note_stuck(self, host: str, stuck: list[int]) -> None:
        if stuck:
            pids = ", ".join(map(str, stuck))
            where = "they wait in the kernel, often for a file system"
            self.note(f"processes {pids} on host {host} survive SIGKILL: {where}")

    def _agent_came(self, index: int, hello: messages.Hello) -> None:
        self.world.came(index, hello.host)
        misplaced = self.world.misplaced(index, hello.host)
        if misplaced:
            self.fail(Failure("world:", misplaced, _REFUSED, time.time(), host=self.world.host(index)))
        if self._killed or (self.stopping and not self.world.begun):
            self.control.order(messages.Kill(), {index})
        elif self.world.begun:  # without waiting for all, because one is unsupervised
            self.control.order(messages.Begin(), {index})

    def _rank_finished(self, host: str, message: messages.Finished) -> None:
        self._left.append((host, message))
        self._note_step(message.step)
        if self.limits.leave is not None:
            reason = (
                f"rank {message.rank} ended with 0, and others still run {self.limits.leave:g} s (--exit-timeout) later"
            )
            self.loop.after("leave", self.limits.leave, lambda: self._overdue(reason))

    def _note_step(self, step: int) -> None:
        if step >= 0:
            self.outcome.step = max(step, self.outcome.step if self.outcome.step is not None else step)

    def _hear_of_failure(self, host: str, message: Message) -> None:
        if isinstance(message, messages.RankFailed):
            self._note_step(message.step)
            self.fail(rank_failed(host, message))
        elif isinstance(message, messages.Mismatch):
            self.world.strangers(message)
            self.fail(Failure("world:", "", _REFUSED, time.time(), why="mismatch"))
        elif isinstance(message, messages.PortTaken):
            if not self.stopping:
                self.outcome.code = PORT_TAKEN
                self._stop(FAILURE_GRACE)
        elif isinstance(message, messages.Lost):
            if host in self.outcome.blames():
                return  # it said why, and left
            if not self.stopping:
                self.outcome.lost.append(host)
            self.fail(host_lost(host))
        elif isinstance(message, messages.Refused):
            self.fail(host_refused(host, message.text) if message.cannot else host_lost(host, message.text))

    def _ask_who_lives(self) -> None:
        """Give up a host that answers no more, while another one does: it stands still, and its connections do not
        end.
        """
        now = time.monotonic()
        asked = set(self.control.heard) - self.control.done
        if now - self._asked_at > 2 * _ASK_EVERY:  # this process stood still itself, or it asks for the first time
            self._answered.clear()
        silent = [index for index in asked if now - self._answered.setdefault(index, now) > _NO_ANSWER]
        if not self.stopping and silent and any(now - self._answered[index] < 2 * _ASK_EVERY for index in asked):
            for index in silent:
                self.control.drop(index)
                self._hear(index, messages.Lost())
        if not self.stopping:
            self._asked_at = now
            self.control.order(messages.AreYouAlive(), asked - set(silent))
            self.loop.after("alive", _ASK_EVERY, self._ask_who_lives)

    def all_train(self) -> None:
        """Take note that every rank has made its second step: the start is over."""

    # Time limits, and what a running launch is asked.

    def _overdue(self, reason: str) -> None:
        """End a run of which a time limit is over, when watchers know what its ranks are doing."""
        if self.stopping or self._limit:
            return
        self._limit = reason
        seconds = self.watch.overdue(reason)
        self.loop.at("overdue", time.monotonic() + seconds, self._wait_no_longer)

    def _wait_no_longer(self) -> None:
        """End the run for its limit although nobody has said what its ranks are doing; it may end already."""
        if not self.stopping:
            self._end_overdue("its ranks are ended")

    def _end_overdue(self, how: str) -> bool:
        """End the run for its limit, unless a rank has failed by itself meanwhile; tell whether it does."""
        reason, self._limit = self._limit, ""
        self.loop.cancel("overdue")
        cause = self.outcome.cause
        if not reason or (cause and cause.rank is not None and not (cause.lost_peer or cause.waited_in_vain)):
            return False
        self.outcome.stopped = True
        self.blame(Failure(f"{reason}:", how, _TIME_LIMIT, time.time()))
        return True

    def _asked(self) -> None:
        self.watch.question("stacks")

    def _is_asked(self) -> bool:
        return bool(self._askers or self._requests)

    def _answer(self, answer: dict[str, Any]) -> None:
        self._askers.answer(answer)
        if self._requests:
            self._requests.answer(answer)

    def _look_for_requests(self) -> None:
        """Do what another host asks for by a file in the folder of the record."""
        if self._requests is None:
            from ezpz.launch.run.requests import Requests

            self._requests = Requests(self.folder, self.launch)
        for word, host in self._requests.take():
            if word == "stacks":
                self._asked()
                continue
            self.say(f"`ezpz kill` on {host} ends this launch")
            self._signal(signal.SIGTERM)
            if word == "kill":
                self.kill()
        self.loop.after("requests", _LOOK_FOR_REQUESTS, self._look_for_requests)
