"""Own a launch until its last process is gone: what comes from outside, what is shown, and what all its worlds share.

The hosts are `Hosts`, and the ranks of a program on them a `World`: the first failure there stops all of it, and its
cause and exit code are those of the launch.
"""

from __future__ import annotations

import math
import os
import signal
import time

from ezpz.errors import shell_code
from ezpz.launch import agent_messages
from ezpz.launch.agent_messages import Piece
from ezpz.launch.backlog import keep_freed_memory
from ezpz.launch.event_loop import Loop, SignalPipe
from ezpz.launch.host import process_tree
from ezpz.launch.host.rank_start import ignored
from ezpz.launch.run.failures import Failure, host_lost
from ezpz.launch.run.hosts import Hosts
from ezpz.launch.run.launcher_child import Interrupts
from ezpz.launch.run.socket_requests import ENDING as ASKED_TO_END
from ezpz.launch.run.socket_requests import Askers
from ezpz.launch.run.world import FAILURE_GRACE, PORT_TAKEN, SIGNAL_GRACE, World
from ezpz.visible import LINES, visible

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence
    from typing import Any

    from ezpz.launch.agent_messages import Message
    from ezpz.launch.plan import LaunchPlan
    from ezpz.launch.run.control import Control
    from ezpz.launch.run.failures import Limits, Outcome
    from ezpz.launch.run.kept_term import KeptTerm
    from ezpz.launch.run.launcher_child import Child
    from ezpz.launch.run.passed_stdin import InputPump
    from ezpz.launch.run.terminal import Screen
    from ezpz.launch.wall import Wall
    from ezpz.launch.watchers import Wait

__all__ = ["PORT_TAKEN", "Supervisor"]

_DAEMON_FIRST = 0.4  # seconds for a scheduler to signal ranks as well: what has reached them is not passed on
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_HEARD = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGCHLD)
_SETTLE_LONG = 0.7  # seconds for agents to report what they know when the program that started them has ended
_PUSHED = 1 << 17  # bytes of output after which they are written, while they are in the caches
_REFUSED = 125
_STDERR = 2


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
        launch_id: Id of the launch.
        folder: Of run.json and, without --log-dir, of the cause's last words; empty without records.
        address: Where it is asked; empty where it cannot be.
        signals: What reaches the launcher from outside, a context manager.
        began: When the launch began, in seconds since 1970.
        hosts: Its hosts.
        worlds: The worlds on them, by number, those that have ended among them.
        world: The first of them, which comes with its hosts.
        stays: Whether agents stay for worlds that are begun on them (`begin`); the first one has no ranks then.
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
        self.launch_id = self.folder = self.address = ""
        self.began = time.time()
        self.loop = Loop()
        self._interrupts = Interrupts()
        self.hosts = Hosts(
            plan,
            control,
            self.loop,
            note=self.note,
            lost=lambda index: self._hear(index, agent_messages.Lost()),
            wrote=self._children_wrote,
            is_read=lambda: not screen.full,
            is_ending=lambda: self.stopping,
        )
        self.children = self.hosts.children
        self._input: InputPump | None = None  # made when rank 0 wants it
        self._wall = wall
        self._shares_terminal = shares_terminal
        self.is_interrupted = False
        self._askers = Askers(self.loop, self._asked)
        self._kept: KeptTerm | None = None  # made when one is
        self._keepers: dict[World, str] = {}  # whose ranks it waits for, and the watcher of each that wants that
        self._kills_at = -math.inf  # when the scheduler kills what still runs, after its SIGTERM
        self._question: subprocess.Popen[bytes] | None = None
        self.stays = control.settings.stays
        self.world = World(self, plan, limits, control.settings)
        self.worlds = {0: self.world}
        self._is_complete = False  # no further world is begun
        self.signals = SignalPipe(set(_HEARD).difference(ignored()))  # `nohup launch …` lives on

    def __enter__(self) -> Supervisor:  # noqa: PYI034  # Self needs Python 3.11
        process_tree.adopt()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Kill what still runs, because a child could not be started or this process itself has broken."""
        try:
            if error:
                self.hosts.hang_up()
            self.children.kill_and_wait()
        finally:
            if self.outcome.cause or self.hosts.is_killed:
                # Where an agent or mpiexec was killed, this process alone can tidy up here.
                process_tree.kill_all(self.launch_id, everything=True, own=False)
            if self._input:
                self._input.close()
            self._end_question()
            self._askers.close()
            self.loop.close()

    @property
    def outcome(self) -> Outcome:
        """How the launch ends."""
        return self.world.outcome

    @property
    def stopping(self) -> bool:
        """Whether all that runs is being ended."""
        return all(world.stopping or world.is_over for world in self.worlds.values())

    @property
    def _running(self) -> list[World]:
        return [world for world in self.worlds.values() if not world.is_over]

    def begin(
        self, plan: LaunchPlan, limits: Limits, places: Sequence[int], *, gets_input: bool = False
    ) -> World | None:
        """Begin another world, on hosts whose agents stay, and return it; None where the launch is about to end.

        Args:
            plan: What is started, on as many hosts.
            limits: What the user allows it.
            places: Which hosts of the launch these are, by index.
            gets_input: Whether its rank 0 reads the launcher's stdin, as one world may.

        Raises:
            ValueError: These are more or fewer than the plan has, or some are none of the launch.
        """
        if len(places) != len(plan.placement.hosts):
            raise ValueError(f"{len(plan.placement.hosts)} hosts in the plan of a world; {len(places)} to begin it on")
        strange = sorted(set(places).difference(range(len(self.plan.placement.hosts))))
        if strange:
            hosts = len(self.plan.placement.hosts)
            raise ValueError(f"a world on hosts {strange}; expected indices of the {hosts} hosts of the launch")
        if self._is_complete or self.world.stopping:
            return None
        given = plan.supervision.agent_settings
        settings = agent_messages.Settings(**{**given, "input": given["input"] and gets_input})
        number = max(self.worlds) + 1
        world = self.worlds[number] = World(self, plan, limits, settings, number=number, places=places)
        world.start()
        return world

    def wait(self) -> Outcome:
        """Return how the run ended when its last process is gone."""
        self.world.start()
        if self.limits.watch and self.plan.flavour is not None:
            self.hosts.ask_who_lives()
        self.loop.read(self.signals, lambda _: self._signalled())
        self.loop.read(self.control, lambda _: self.listen())
        self._watch_lease()
        self._askers.listen(self.address)
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

    def _release(self) -> None:
        """Let agents and shims end for which nothing is left to do."""
        if self.stays and self.stopping and len(self._running) == 1:
            self.begin_no_more()
        if self.world.roll.complete or self.stopping:  # else other hosts still start
            self.hosts.release(after_failure=self.stopping)

    def begin_no_more(self) -> None:
        """Let agents that stay end when their worlds have, because none is begun any more."""
        if not self._is_complete:
            self._is_complete = True
            self.hosts.order(agent_messages.Release(codes=False))

    def listen(self) -> None:
        """Take what the agents have sent."""
        screen, now, unpushed = self.screen, time.monotonic(), 0
        for item in self.control.read():
            if isinstance(item, Piece):
                size = len(item.data)
                world = self.worlds.get(item.world, self.world)
                world.shown += size
                unpushed += size
                screen.show(item.rank, item.stream, item.data, now, item.release, world=item.world)
                if unpushed >= _PUSHED:
                    unpushed = 0
                    screen.push()
                    if screen.full:
                        self.control.pause(True)
            else:
                self._hear(*item)

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
        self.world.note(text)

    def _over(self) -> bool:
        if self.children.alive or not self.children.drained:
            return False
        for world in self._running:
            world.ask_overdue()
        return self.hosts.are_over

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
            self.world.begin_unsupervised()
        cause = self.outcome.cause
        if cause and cause.rank is not None and not self.children.unsupervised:
            return
        if stream == _STDERR:
            early = self._interrupts
            data = early.end() + data if self.world.begun else early.feed(data)
        self.screen.show(None, stream, data, time.monotonic())

    def _result(self) -> Outcome:
        outcome = self.outcome
        self.screen.show(None, _STDERR, self._interrupts.end(), time.monotonic())
        if not self.world.stopping:
            self.judge_launcher()
            self.world.settle()
        codes = [shell_code(child.code or 0) for child in self.children.all if not child.by_us]
        self._is_complete = True  # whoever hears of their end begins none any more
        for world in self.worlds.values():
            world.close()
        if not outcome.code:
            outcome.code = next((world.outcome.code for world in self.worlds.values() if world.outcome.code), 0)
        if not outcome.code and (self.children.unsupervised or not outcome.failures):
            outcome.code = next(filter(None, codes), 0)
        for fd, reason in self.screen.lost.items():
            text = f"the end of {'stdout' if fd == 1 else 'stderr'} is missing: {reason}"
            # A reader that has gone away, as in `launch … | head`, knows that; a full disk is news.
            (self.note if "space" in reason else outcome.notes.append)(text)
        self.world.end()
        self.world.tell_why_the_job_ends()
        self.screen.finish()  # nothing of ours shall stand after the last words
        for text in self.world.last_words():
            self.screen.say(text)
        return outcome

    # Signals from outside, and the ends of children.

    def _signalled(self) -> None:
        for number in self.signals.take():
            if number == signal.SIGCHLD:
                self._reap()
            elif number == signal.SIGTSTP:
                self._pause()
            elif number == signal.SIGINT and self._shares_terminal:
                self.is_interrupted = True
            else:
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
        if number in _ENDING and not self._may_end(number):
            return
        if number == signal.SIGINT or not self.plan.scheduler.signalling_daemon:
            self._send(number)
        else:
            self.loop.after(f"pass {number} on", _DAEMON_FIRST, lambda: self._send(number))
        if number in _ENDING and not self.stopping:
            for world in self._stop_all():
                world.kill_at(time.monotonic() + SIGNAL_GRACE)
            if number == signal.SIGTERM and self.plan.scheduler.configuration:
                self.ask_kill_wait()

    def _may_end(self, number: int) -> bool:
        """Take note that a signal is to end all; tell whether ranks get it now."""
        if self.stopping and number == signal.SIGINT:
            if self.hosts.is_killed:
                self.hosts.give_up()  # nor is anybody waited for who does not read
            else:
                self.kill()  # the second Ctrl-C means now
            return False
        first = self._before_term() if number == signal.SIGTERM else {}
        wait = _longest(first) if first else self._kept.wait if self._kept else None
        self._note_ending(number, wait if number != signal.SIGINT else None)
        for world in self._running:
            if not (world.begun or world.stopping):
                world.stop(FAILURE_GRACE)
        if not self._has_begun or not wait:
            return self._has_begun
        self._stop_all()
        if self._kept:
            self._kept.again(now=number == signal.SIGINT)
        if first:
            self._keep_term(first)
        return False

    @property
    def _has_begun(self) -> bool:
        """Whether ranks run."""
        return any(world.begun for world in self._running)

    def _stop_all(self) -> list[World]:
        """Let the end of all that runs be asked for, and return it."""
        worlds = [world for world in self._running if not world.stopping]
        for world in worlds:
            world.stopping = True
        return worlds

    def _send(self, number: int) -> None:
        """Send a signal to all ranks through their agents."""
        for world in self._running:
            world.send(number)

    def _note_ending(self, number: int, wait: Wait | None) -> None:
        """Let the first signal that ends the launch be its exit code."""
        untold = [world for world in self._running if not world.outcome.code]
        for world in untold:
            world.outcome.code, world.outcome.stopped = 128 + number, True
        if untold:
            does = "passing it on" if self._has_begun else "no rank has begun"
            does += f" when the ranks have {wait.done}" if wait else ""
            again = "; Ctrl-C again kills" if number == signal.SIGINT and self._has_begun else ""
            self.say(f"{signal.Signals(number).name} received; {does}{again}")

    # A SIGTERM that is kept back until ranks have done something.

    def _before_term(self) -> dict[World, tuple[str, Wait]]:
        """Return which watchers have a SIGTERM that comes now wait, and for what, of each world that has such."""
        if self.stopping or self._kept:
            return {}
        asked = ((world, world.watch.before_term()) for world in self._running if world.begun)
        return {world: first for world, first in asked if first}

    def _keep_term(self, keepers: dict[World, tuple[str, Wait]]) -> None:
        """Keep a SIGTERM that came from outside back until ranks have done what watchers want."""
        around = self.plan.scheduler
        if self._kept is None:
            from ezpz.launch.run.kept_term import KeptTerm

            self._kept = KeptTerm(self.loop, self.say, self._pass_kept_on)
        self._keepers = {world: watcher for world, (watcher, _) in keepers.items()}
        seconds = self._kept.begin(_longest(keepers), SIGNAL_GRACE if around.marks else None)
        self.note_ends_within(seconds + SIGNAL_GRACE)
        if around.configuration:
            self.ask_kill_wait()
        for world, (watcher, _) in keepers.items():
            world.watch.term_waits(watcher)

    def _waits_no_more(self, world: World) -> bool:
        """Let a SIGTERM that is kept back wait for a world no more; tell whether that was the last one."""
        return bool(self._kept and self._keepers.pop(world, None) and not self._keepers)

    def _pass_kept_on(self, *, but: World | None = None) -> None:
        """Let the ranks have the SIGTERM that was kept back, and end as it wants."""
        for world in self._running:
            if world is not but:
                world.send(signal.SIGTERM)
                if world.stopping:
                    world.kill_at(max(time.monotonic() + SIGNAL_GRACE, self._kills_at))

    def _term_held(self, world: World) -> None:
        """Take note that agents keep a SIGTERM back that others have sent to ranks."""
        if self._kept:
            self._kept.again()
        elif first := self._before_term():
            self._keep_term(first)
        else:
            world.send(signal.SIGTERM)

    def failed_before_term(self, world: World, failure: Failure) -> None:
        """Keep a SIGTERM back no longer when a rank fails: others may wait for it in what they do first."""
        if not self._kept:
            return
        if self._waits_no_more(world):
            self._kept.fail(failure.text)
        if world.stopping:  # else it becomes the cause
            world.outcome.failures.append(failure)
            if failure.words and not failure.shown:
                self.screen.say(failure.words.rstrip("\n"))

    def keeps_term(self) -> bool:
        """Tell whether one is kept back."""
        return bool(self._kept)

    def pass_term_on(self, world: World) -> None:
        """Let ranks have it, as far as a world is concerned: what it waits for there is done."""
        if self._kept and self._waits_no_more(world):
            self._kept.end()

    def kept_no_more(self, world: World, watcher: str) -> None:
        """Pass it on if it waits for a watcher that has failed itself."""
        if self._keepers.get(world) == watcher:
            self.pass_term_on(world)

    def keep_no_term(self, world: World) -> None:
        """Keep none back any more for a world whose ranks are ended, or have ended: all others get it."""
        if self._kept and self._waits_no_more(world):
            self._kept.drop()
            self._pass_kept_on(but=world)

    def note_ends_within(self, seconds: float) -> None:
        """Take note of how long the end takes at most that a signal from outside asks for."""

    def ask_kill_wait(self) -> None:
        """Ask how long the scheduler lets processes end from now on, and let them have all of that."""
        import subprocess

        began = time.monotonic()
        around, nowhere, answer = self.plan.scheduler, subprocess.DEVNULL, bytearray()
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
            waiting = [world for world in self._running if world.waits_to_kill]
            if seconds > SIGNAL_GRACE and (self._kept or waiting):
                self.note(f"{around.title} kills what still runs {seconds:g} s after its SIGTERM (KillWait)")
                self._kills_at = began + seconds
                for world in waiting:
                    world.kill_at(self._kills_at)

        self.loop.read(output, take)

    def _end_question(self) -> None:
        child, self._question = self._question, None
        if child and child.stdout:
            self.loop.forget(child.stdout.fileno())
            child.stdout.close()
            child.kill()
            child.wait()

    # How all is ended.

    def stop_begun(self, grace: float) -> None:
        """Ask all worlds to end that were begun on the hosts, because these end."""
        for world in self._running:
            if world.number and not world.stopping:
                world.outcome.code, world.outcome.stopped = self.outcome.code, True
                world.stop(grace)

    def kill(self) -> None:
        """Kill all ranks now."""
        if self._kept:
            self._kept.drop()
        for world in self._running:
            world.cancel_kill()
        self.hosts.kill()

    def _kill_at_once(self) -> None:
        """Kill all ranks now, because somebody wants that, and let none of them save before."""
        for world in self._running:
            if not world.outcome.code:
                world.outcome.code, world.outcome.stopped = 128 + signal.SIGTERM, True
            if not (world.begun or world.stopping):
                world.stop(FAILURE_GRACE)
        self._stop_all()
        self.kill()

    def judge_launcher(self) -> None:
        """Find what is the fault of the program that started the ranks, after its end; agents have had their time to
        report.
        """
        world, children = self.world, self.children
        if children.alive:
            return
        if not self.control.all_done:
            if not world.stopping:
                world.blame(children.failure(world.roll, begun=world.begun))
            self.kill()
        elif not world.stopping and not world.outcome.failures and not children.unsupervised:
            code = next((child.code for child in children.all if child.code and not child.by_us), 0)
            if code or not world.roll.complete:
                world.outcome.failures.append(children.failure(world.roll, begun=world.begun))

    def _watch_lease(self) -> None:
        """End at once where another job of a chain may train: what the ranks would write is its now."""
        if not os.environ.get("EZPZ_CHAIN"):
            return
        from ezpz.launch import chain_lease

        mine = chain_lease.kept()
        if mine is None:  # this launch stands beside the one that trains, or in one of its ranks
            return

        def look(_: int) -> None:
            why = mine.lost()
            if not why:
                return
            self.loop.forget(mine.watched)
            cause = Failure("the lease of the chain is lost:", why, _REFUSED, time.time())
            for world in self._running:
                world.outcome.cause, world.outcome.code, world.outcome.stopped = cause, cause.code, True
                world.stopping = True
            self.say(f"{cause.text}; killing all ranks, because another job may train now")
            self.kill()

        self.loop.read(mine.watched, look)

    # Reports of the agents.

    def _hear(self, index: int, message: Message, number: int = 0) -> None:
        world = self.worlds.get(number)
        if world is None or world.is_over:
            return
        if isinstance(message, agent_messages.Hello):
            for each in self._on(index):
                each.host_came(index, message.host)
            if self._is_complete:
                self.hosts.order(agent_messages.Release(codes=False), {index})
        elif isinstance(message, agent_messages.Alive):
            self.hosts.lives(index)
        elif isinstance(message, agent_messages.InputWanted | agent_messages.InputUnread):
            self._hear_of_input(index, message)
        elif isinstance(message, agent_messages.TermHeld):
            self._term_held(world)
        elif isinstance(message, agent_messages.Lost | agent_messages.Refused) and not number:
            for each in self._on(index):
                each.hear(index, message)
        else:
            world.hear(index, message)

    def _on(self, index: int) -> Iterator[World]:
        """Yield the worlds of a host that are not over; the first world has a host that the plan does not know."""
        return (world for world in self._running if not world.number or index in world.places)

    def _hear_of_input(self, index: int, message: Message) -> None:
        connection = self.control.way_back(index) if self.control.settings.input else None
        if isinstance(message, agent_messages.InputUnread):
            if self._input:
                self._input.stop()
        elif connection and isinstance(message, agent_messages.InputWanted):
            if self._input is None:
                from ezpz.launch.run.passed_stdin import InputPump

                self._input = InputPump(self.loop, self.note, self._input_lost)
            self._input.start(connection, message.taken)

    def _input_lost(self, why: str) -> None:
        self.world.fail(host_lost(self.hosts.name(0), why))

    def all_train(self, world: World) -> None:
        """Take note that every rank of a world has made its second step: the start is over."""

    def hosts_came(self) -> None:
        """Take note that agents which stay have come on all hosts: worlds can `begin`."""

    def world_ended(self, world: World) -> None:
        """Take note of the end of a world that was begun on the hosts."""

    # What a running launch is asked.

    def _asked(self, word: str, host: str) -> dict[str, Any] | None:
        """Do what is asked for, and return the answer; None where a watcher gives it."""
        if word in ASKED_TO_END:
            now = " --now" if word == "kill" else ""
            self.say(f"`ezpz kill{now}`{f' on {host}' if host else ''} ends this launch")
            if now:
                self._kill_at_once()
            else:
                self._signal(signal.SIGTERM)
            return {"taken": word}
        if word not in self._words():
            return self._refusal(word)
        for world in self._running:
            world.watch.question(word)
        return None

    def _words(self) -> set[str]:
        """Return the words that watchers answer."""
        return {word for world in self._running for word in world.watch.answers}

    def _refusal(self, word: str) -> dict[str, Any]:
        known = ", ".join(sorted({*self._words(), *ASKED_TO_END}))
        return {"refused": f"nothing answers {word!r} here; expected one of {known}"}

    def turn_away(self) -> None:
        """Refuse those who wait for the answer of a watcher that has failed."""
        for word in self._askers.words - self._words():
            self.answer(word, self._refusal(word))

    def is_asked(self, word: str) -> bool:
        """Tell whether somebody waits for the answer to a word."""
        return word in self._askers.words

    def answer(self, word: str, answer: dict[str, Any]) -> None:
        """Answer those who have asked this."""
        self._askers.answer(word, answer)

    def job_ends(self) -> float | None:
        """Return when the job ends, in seconds since 1970, as far as it is known by now."""
        return self._wall.end if self._wall else None


def _longest(keepers: dict[World, tuple[str, Wait]]) -> Wait:
    """Return the longest wait of some."""
    return max((wait for _, wait in keepers.values()), key=lambda wait: wait.most)
