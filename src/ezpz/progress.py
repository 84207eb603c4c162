r"""Tell the agent of the host about a rank: the stages of its start, and that it makes progress.

Standard library only and cheap, because `ezpz.heartbeat` may stand in an innermost loop. This file is not called
``heartbeat.py``: importing a submodule of that name would replace the function `ezpz.heartbeat` by the module.

The agent listens on a Unix stream socket, EZPZ_SOCKET: ``@name`` is the abstract socket ``\0name`` of Linux, else a
path. A process that is a rank of the launch keeps one connection and writes lines:

    rank 3 4711       who speaks: rank and pid, once and first
    steps 7           its descriptor 7 is memory with the last step that it reported: 8 bytes, in the order of the
                      host, -1 without one; read after a crash too, which leaves the last line of ``at`` unsent
    dumps 45          at this signal the process writes its Python stacks to its stderr
    stage setup       reached for the first time: setup, met, group, model, data, step, second_step
    beat              progress, at most once per second
    at 120            the last step that it reported: with a beat, and when the program ends
    pace 42 0 100     42 steps of 100 are done, and this run of the program began behind 0; with a beat, of a `Loop`
    folder /a/run     it keeps the record of a run there
    busy 1            it works on its record from now on, and others may wait for it; with 0 no longer
    arrivals 0 5 0.1 … 1 1 3 17,810 train.py:31 (work)    when it came to its last collectives (`ezpz.dist.arrivals`)
    section 600 0 load    it enters a section with an idle limit of 600 s, 0 for none; with 1 in place of 0 at least
                      that of the launch; without a name it is in none any more
    saver 1           it can save when asked, at a step that it is given (`on_save`); with 2 at a step that all ranks
                      agree on (`ezpz.train.Loop`), with 0 no longer
    saved 2.513 120   a save took 2.513 s, after step 120; -1 for a step that is not known
    answer 1 118 1 0.25    it has read request 1 at step 118 (-1 without one) and waits for its turn (0: it is too
                      late); a step takes 0.25 s (0 if that is not known)
    leaves 120        it has saved after step 120, and ends because it was asked to
    ending 300        the program has ended; what is left to Python (`atexit`, threads, destructors) may take 300 s

and the agent answers, which a rank reads with its beats:

    ask 1 0 130       request 1: save after step 130, or after the next one where all ranks agree; with 1 in place of
                      0, end then, with 2, wait for the signal then; at step -1 it shall only answer
    save 1            all ranks have answered request 1 in time: it counts
    hold 1            a SIGTERM from outside waits for a save from now on; with 2 the scheduler sends it to this process
                      itself, which holds it; with 0 no longer
    signal 15         that signal follows, and is held no more

No other process reports for a rank: no child that it forked or that multiprocessing started, such as a loader of data,
and no rank of another launcher inside it. When the agent has gone, all calls do nothing for good.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
from time import monotonic, sleep, time

from ezpz import durations, proc
from ezpz.errors import EzpzError, UsageError
from ezpz.ranks import from_environ, of_this_launch

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Listener(Protocol):
        """What hears the agent: `ezpz.save_requests`."""

        def line(self) -> str:
            """Return what the agent is to know of it; told anew when it changes."""

        def hear(self, words: list[str]) -> str:
            """Take a line of the agent, and return the answer; empty without one. Called under the speaker's lock."""

        def heard(self) -> None:
            """Act on what was heard; called under the lock, after each look for lines."""

        def beaten(self) -> None:
            """Act once per beat; called under the lock."""

        def between_beats(self, usual: float) -> float:
            """Return the seconds until the next beat, at which lines are looked for."""


_EVERY = 1.0  # seconds between two beats
_CONNECT = 0.2  # seconds that a rank waits for its agent, once
_WORKS = 0.001  # seconds of CPU between two looks: less is waiting
_WAITS = 60.0  # seconds: 30 for other ranks and 10 for trackers are our longest waits, and a disk may be slow
_LONGEST_NAME = 80  # characters of a section
_ENDING = 300.0  # seconds without a heartbeat that what Python does after the last line of the program may take
_LATER = 30.0  # seconds until the next try, where the agent's queue of connections stayed full
_NO_STEP = -1  # in the memory that the agent reads
_STEP_BYTES = 8
# SIGRTMIN+11. Others use: the C library 32 and 33, Go 34, systemd (as process 1) RTMIN+0 to 7, 13 to 18 and 20 to 29,
# PAPI and HPCToolkit RTMIN+2 to 4, libmonitor RTMIN+8, Valgrind RTMAX; torch, NCCL, CUDA, Slurm, submitit and Lightning
# only classic ones (USR1, USR2, TERM, CONT, CHLD). macOS has none of these, and tells no stacks this way.
_DUMP_OFFSET = 11

reached: dict[str, float] = {}  # stage -> when this process reached it, epoch seconds


class Speaker:
    """What this process tells the agent of its host, over one connection.

    One thread at a time speaks. A signal handler that comes while its thread does gives up.

    Attributes:
        next: The moment from which on a beat is due; infinite where no agent listens.
        step: The last step that was reported here; None without one.
        shared_step: The same where the agent can read it, whatever ends this process; a list where it cannot.
        first: The first step, until a second one is reported.
        pace_of_steps: Seconds of a step, as the agent may compute it too.
        due: Called after each step while something is put off to it (`answer`); None while nothing is.
        listener: Hears what the agent says; None while nothing is to be heard.
    """

    def __init__(self) -> None:
        self.next = -math.inf
        self.step: int | None = None
        self.shared_step: memoryview | list[int] = [_NO_STEP]
        self.first: int | None = None
        self.pace_of_steps = 0.0
        self.due: Callable[[int | None], object] | None = None
        self.listener: Listener | None = None
        self.lock = threading.Lock()
        self.pace = ""  # the lines of a loop that runs,
        self.folder = ""  # and of a run folder
        self._agent: _Agent | None = None
        self._told: dict[str, str] = {}  # kind of a line: the last of it that the agent got
        self._stages: set[str] = set()
        self._section: _Block | None = None  # that the agent knows of
        self._step_told: tuple[int, float] | None = None  # the last that the agent got, and when
        self._heard = b""  # the beginning of a line

    @property
    def is_heard(self) -> bool:
        """Whether there is an agent."""
        return self._agent is not None

    @property
    def may_speak(self) -> bool:
        """Whether to speak outside of a beat: an agent listens, or it is time to look for one."""
        return self.next != math.inf and (self._agent is not None or monotonic() >= self.next)

    def has_told(self, stage: str) -> bool:
        """Tell whether the agent knows of a stage."""
        return stage in self._stages

    def stage_of_step(self) -> str:
        """Return the stage that this step is; the second goes out at once, because the first holds compilation."""
        if "step" not in self._stages:
            self.first = self.step
        elif self.first is not None and self.step != self.first:
            self.first = None
            return "second_step"
        return "step"

    def speak(self, stage: str = "", *, beat: bool = False) -> None:
        """Send a new stage and what has changed, and a beat."""
        if not self.lock.acquire(timeout=0 if beat else 2 * _CONNECT):
            return
        try:
            self._agent = self._agent or _meet()
            if self._agent is None:
                self.next = math.inf
                return
            self._speak(self._agent, stage, beat)
        except BlockingIOError:
            self.next = monotonic() + _LATER
        except OSError:
            self.fall_silent()
        finally:
            self.lock.release()

    def _speak(self, agent: _Agent, stage: str, beat: bool) -> None:
        if stage and stage not in self._stages:
            self._stages.add(stage)
            agent.say(f"stage {stage}")
        section = _sections[-1] if _sections else None
        if section is not self._section:
            self._section = section
            agent.say(section.line() if section is not None else "section 0 0 ")
        if self.listener is not None:
            self._tell(agent, self.listener.line())
        if not beat:
            return
        self.next = monotonic() + (_EVERY if self.listener is None else self.listener.between_beats(_EVERY))
        agent.say("beat", droppable=True)
        if self.listener is not None:
            self._hear(agent, self.listener)
            self.listener.beaten()
        self._tell_step(agent)
        self._tell(agent, self.pace, droppable=True)
        self._tell(agent, self.folder)

    def _tell(self, agent: _Agent, line: str, *, droppable: bool = False) -> None:
        """Send a line, unless it is empty or the last of its kind was the same."""
        kind = line.partition(" ")[0]
        if line and self._told.get(kind) != line:
            self._told[kind] = line
            agent.say(line, droppable=droppable)

    def _tell_step(self, agent: _Agent) -> None:
        step, told = self.step, self._step_told
        if isinstance(step, int) and abs(step) < 2**53 and (told is None or step != told[0]):
            now = monotonic()
            if told is not None and step > told[0]:
                self.pace_of_steps = (now - told[1]) / (step - told[0])
            self._step_told = step, now
            agent.say(f"at {step}", droppable=True)

    def say(self, line: str) -> bool:
        """Send a line, and tell whether there is an agent."""
        if self._agent is None or not self.lock.acquire(timeout=2 * _CONNECT):
            return False
        try:
            self._agent.say(line)
        except OSError:
            self.fall_silent()
            return False
        finally:
            self.lock.release()
        return True

    def end_pace(self) -> None:
        """Tell that the loop has ended, if it was ever told to run."""
        self.pace = ""
        if self._told.pop("pace", ""):
            self.say("pace 0 0 0")

    def hear(self, *, wait: float) -> bool:
        """Have the listener hear what the agent has sent; tell whether it could: another may speak, or this thread.

        Args:
            wait: Seconds for another thread that speaks.
        """
        if not self.lock.acquire(timeout=wait):
            return False
        try:
            if self._agent is not None and self.listener is not None:
                self._hear(self._agent, self.listener)
        except OSError:
            self.fall_silent()
        finally:
            self.lock.release()
        return True

    def _hear(self, agent: _Agent, listener: Listener) -> None:
        """Let the listener take what the agent has sent, without waiting.

        Raises:
            OSError: The agent is gone.
        """
        *lines, self._heard = (self._heard + agent.hear()).split(b"\n")
        for line in lines:
            reply = listener.hear(line.decode(errors="replace").split())
            if reply:
                agent.say(reply)
        listener.heard()

    def tell_last_step(self) -> None:
        """Tell the last step, which may be of less than a second ago."""
        if self._agent is not None and self.lock.acquire(blocking=False):
            try:
                self._tell_step(self._agent)
            except OSError:
                pass  # the agent has gone
            finally:
                self.lock.release()

    def fall_silent(self) -> None:
        """Say nothing any more, for good."""
        self.next = math.inf
        agent, self._agent = self._agent, None
        if agent is not None:
            try:
                os.close(agent.descriptor)
            except OSError:
                pass  # the program has closed all that it knew nothing of

    def leave_to_parent(self) -> None:
        """Be silent in a process that was forked; another thread may have held the lock at the fork."""
        self.lock = threading.Lock()
        self.due = self.listener = None
        self.shared_step = [_NO_STEP]
        self.fall_silent()


speaker = Speaker()


def heartbeat(step: int | None = None) -> None:
    """Tell the launcher that this rank makes progress: ``--idle-timeout`` counts from a rank's first call on.

    Call it as often as you like: at most one line per second goes out, and any other call costs 0.1 µs. It never waits
    for the agent to read, never raises, and does nothing outside ``ezpz launch``. `History.update` calls it.

    Where functions were registered by `on_save`, it calls them when the launcher asks for that.

    Args:
        step: The step that this rank has done. The launcher names it if the rank leaves while others wait for it.

    Raises:
        AskedToEnd: All is saved and the program shall end; only where functions were registered by `on_save`.
    """
    if step is not None:  # what follows is `beat`: to call it would cost half as much again
        speaker.step = step
        try:
            speaker.shared_step[0] = step
        except (TypeError, ValueError):
            pass  # it is no whole number, or a huge one
    if monotonic() >= speaker.next or (speaker.first is not None and speaker.step != speaker.first):
        speaker.speak(speaker.stage_of_step(), beat=True)
    if speaker.due is not None:
        speaker.due(step)


def beat(step: int | None = None) -> None:
    """Do what `heartbeat` does, without answering a request to save."""
    if step is not None:
        speaker.step = step
        try:
            speaker.shared_step[0] = step
        except (TypeError, ValueError):
            pass  # it is no whole number, or a huge one
    if monotonic() >= speaker.next or (speaker.first is not None and speaker.step != speaker.first):
        speaker.speak(speaker.stage_of_step(), beat=True)


def answer(step: int | None) -> None:
    """Do what was put off to a step; `beat` leaves it to who calls this behind.

    Args:
        step: The step that this rank has done; None where the caller knows none.

    Raises:
        AskedToEnd: As `heartbeat`.
    """
    if speaker.due is not None:
        speaker.due(step)


def pace(done: int, first: int, total: int) -> None:
    """Note how far a loop is; the next beat tells it, for the line that `launch` draws on a terminal.

    Args:
        done: Steps done.
        first: Steps that were done when this run of the program began.
        total: Steps in all.
    """
    speaker.pace = f"pace {done} {first} {total}"


def pace_of_loop() -> tuple[int, int]:
    """Return the steps that a loop has done and its steps in all, as `pace` noted them; zeros where none runs."""
    _, done, _, total = (speaker.pace or "pace 0 0 0").split()
    return int(done), int(total)


def records_in(folder: str) -> None:
    """Note where this rank keeps the record of a run; the next beat tells it, so that the launcher's own goes there.

    Args:
        folder: The absolute path of a run folder.
    """
    speaker.folder = f"folder {folder}" if folder.isprintable() else ""


def end_pace() -> None:
    """Tell that the loop has ended, if it was ever reported to run."""
    speaker.end_pace()


def stage(name: str) -> None:
    """Tell the agent, once per name, that this process has come so far.

    Args:
        name: ``setup``, ``met``, ``group``, ``own``, ``model`` or ``data``; one word.
    """
    reached.setdefault(name, time())
    if not speaker.has_told(name) and speaker.next != math.inf:
        speaker.speak(name)


def is_heard() -> bool:
    """Tell whether an agent hears this process: after a `stage`, under ``ezpz launch``."""
    return speaker.is_heard


def tell(word: str, *values: object) -> bool:
    """Send a watcher (`ezpz.launch.watchers`) one of its words, and tell whether an agent hears this process.

    Args:
        word: The kind of the message.
        values: Its fields, in their order; only the last may have spaces, and none has newlines.
    """
    if not speaker.is_heard and speaker.next != math.inf:
        speaker.speak()
    return speaker.say(" ".join(" ".join([word, *map(str, values)]).splitlines()))


# Sections: blocks with an idle limit of their own, and the seconds that the main thread spends in blocks.

_sections: list[_Block] = []  # with a limit, that the main thread is in, the innermost last
_entered: list[str] = []  # the names of all blocks that it is in; empty ones are not counted,
_spent: dict[str, float] = {}  # seconds in blocks that `take_spent` has not returned yet, each without those inside,
_since = [0.0]  # and the moment from which on the innermost has not been credited
_timeouts: dict[str, float] = {}  # what was read before: a section may be entered in every step


def section(name: str, *, timeout: str | float | None) -> _Block:
    """Return a block in which this rank may be without a heartbeat for longer, or for less long, than elsewhere.

        with ezpz.section("checkpoint", timeout="10m"):
            save()

    ``launch --idle-timeout`` then need not be as long as the longest checkpoint: inside the block its timeout takes the
    place of that limit. It counts from entering, and anew from each heartbeat inside. Of blocks within each other the
    innermost counts. Every rank that may wait for another one in the block should enter it, too.

    A rank that enters before its first heartbeat is watched inside the block, and not after it. Entering and leaving
    cost some microseconds under ``ezpz launch``. In other threads than the main one, without ``--idle-timeout`` and
    outside ``ezpz launch`` a section has no effect.

    Args:
        name: What the rank does there, at most 80 characters. The line that ends a hanging run has it.
        timeout: As ``--idle-timeout`` takes it (``90s``, ``10m``, ``1h30m``), or seconds; None, 0 or ``off`` for no
            limit.

    Raises:
        UsageError: The name or the timeout is none.
    """
    if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
        raise UsageError(
            f"unusable name {name!r} (from ezpz.section); expected what this rank does there, in 1 to {_LONGEST_NAME} "
            "printable characters."
        )
    return _Block(name, _seconds(timeout), at_least=False)


def patience(name: str, seconds: float) -> _Block:
    """Return a section that shortens no limit: neither ``--idle-timeout`` nor that of the section around it.

    Args:
        name: What the rank does there.
        seconds: Its timeout, where no other limit is longer.
    """
    return _Block(name, seconds, at_least=True)


def leaving() -> _Block:
    """Return a section for what ends a rank on purpose: it may take as long as what Python does after the program."""
    return patience("cleanup", _ENDING)


def _seconds(timeout: str | float | None) -> float:
    """Return the seconds of a timeout, 0 for no limit."""
    if timeout is None:
        return 0.0
    if isinstance(timeout, str):
        if timeout not in _timeouts:
            try:
                _timeouts[timeout] = durations.read(timeout) or 0.0
            except ValueError as error:
                raise UsageError(f"unusable timeout (from ezpz.section): {error}.") from None
        return _timeouts[timeout]
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout <= durations.LONGEST:
        raise UsageError(
            f"unusable timeout={timeout!r} (from ezpz.section); expected a time such as '10m', seconds up to 1000 "
            "days, or None for no limit."
        )
    return float(timeout)


class _Block:
    """A block whose seconds are kept under its name.

    Args:
        name: What the rank does there; without one its seconds are kept nowhere, nor are those of blocks around it.
        timeout: Its idle limit, 0 for none; None changes no limit.
        at_least: Whether the limit of a block around it stays where that is longer.
    """

    __slots__ = ("_at_least", "_name", "_timeout", "limit")

    def __init__(self, name: str, timeout: float | None, *, at_least: bool = False) -> None:
        self._name, self._timeout, self._at_least = name, timeout, at_least
        self.limit = timeout  # that of the section around it where that is longer and counts

    def __enter__(self) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        _credit()
        _entered.append(self._name)
        if self._timeout is None or speaker.next == math.inf:
            return
        if self._at_least and _sections:
            outer = _sections[-1].limit
            self.limit = outer and max(self._timeout, outer)
        _sections.append(self)
        self._tell()

    def __exit__(self, *error: object) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        _credit()
        if _entered:  # else this process was forked inside the block
            _entered.pop()
        if self in _sections:
            _sections.reverse()  # the innermost of its kind
            _sections.remove(self)
            _sections.reverse()
            self._tell()

    def _tell(self) -> None:
        """Tell the agent of the section that the rank is in now; where it cannot hear, with a later beat."""
        if speaker.may_speak:
            speaker.speak()

    def line(self) -> str:
        """Return what the agent reads."""
        return f"section {self.limit!r} {int(self._at_least)} {self._name}"


def counted(name: str) -> _Block:
    """Return a block whose seconds are kept as those of a section are; it changes no limit.

    Args:
        name: What the rank does there; without one its seconds are kept nowhere, nor are those of sections around it.
    """
    return _Block(name, None)


def take_spent() -> dict[str, float]:
    """Return the seconds that the main thread has spent in sections since the last call, by name, and forget them.

    Of sections within each other, each has its own seconds without those inside. Sections that are open count up to now
    and no further: what calls this records steps, and a section around many steps is none beside them.
    """
    _credit()
    _entered[:] = [""] * len(_entered)
    spent = dict(_spent)
    _spent.clear()
    spent.pop("", None)
    return spent


def spend(name: str, seconds: float) -> None:
    """Keep seconds under a name as if they had been spent in a block of it, and not in the one around it."""
    if _entered and _entered[-1]:
        _spent[_entered[-1]] = _spent.get(_entered[-1], 0.0) - seconds
    _spent[name] = _spent.get(name, 0.0) + seconds


def in_block() -> bool:
    """Tell whether the innermost block that the main thread is in keeps its seconds."""
    return bool(_entered and _entered[-1])


def has_spent() -> bool:
    """Tell whether `take_spent` has something to return, or to end."""
    return bool(_spent) or any(_entered)


def _credit() -> None:
    """Give the seconds since the last call to the innermost section."""
    now = monotonic()
    if _entered:
        _spent[_entered[-1]] = _spent.get(_entered[-1], 0.0) + now - _since[0]
    _since[0] = now


class Busy:
    """Inside the block this rank works on its record: it makes progress as long as it really works.

    A thread beats while the thread that entered uses the CPU. What it waits for (other ranks, trackers, a disk) is
    progress for a minute in all, because no wait of ours is longer. Other ranks may wait in a barrier meanwhile, so
    the launcher does not count their time. A rank that never beat is left alone.
    """

    def __enter__(self) -> None:
        self._over = threading.Event()
        self._is_sent = speaker.has_told("step") and speaker.say("busy 1")
        if self._is_sent:
            ident = threading.get_ident()
            thread = threading.Thread(target=self._watch, args=(ident,), name="ezpz-busy", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # Python is ending and starts no threads any more
                beat()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._is_sent:
            beat()
            speaker.say("busy 0")

    def _watch(self, ident: int) -> None:
        used, waited, began = _cpu_of(ident), 0.0, monotonic()
        while not self._over.wait(_EVERY / 2):
            before, used = used, _cpu_of(ident)
            now = monotonic()
            waited += 0.0 if used - before > _WORKS else now - began
            began = now
            if waited < _WAITS:
                beat()


def _cpu_of(ident: int) -> float:
    """Return the seconds of CPU that a thread of this process has used; of all threads where these are unknown."""
    import time as clocks

    own = getattr(clocks, "pthread_getcpuclockid", None)  # not on macOS
    return clocks.process_time() if own is None else clocks.clock_gettime(own(ident))


class _Agent:
    """The connection to the agent of this host.

    It is held as a number: a socket object that lives until Python ends would warn of itself with ``-X dev``, and one
    that is closed earlier would hide a program that hangs in its end.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._unsent = b""

    def say(self, line: str, *, droppable: bool = False) -> None:
        """Send a line without waiting; what does not fit goes before the next one, unless it may be dropped.

        Raises:
            OSError: The agent is gone.
        """
        import socket

        late = bool(self._unsent)
        if not (droppable and late):
            self._unsent += f"{line}\n".encode()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=self.descriptor)
        try:
            # Without MSG_NOSIGNAL (macOS has none) an agent that is gone would kill a rank that reset SIGPIPE.
            sent = connection.send(self._unsent, socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0))
            self._unsent = self._unsent[sent:]
        except BlockingIOError:
            if droppable and not late:
                self._unsent = b""
        finally:
            connection.detach()

    def hear(self) -> bytes:
        """Return what the agent has sent; empty where it has sent nothing.

        Raises:
            OSError: The agent is gone.
        """
        import socket

        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=self.descriptor)
        try:
            data = connection.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""
        finally:
            connection.detach()
        if not data:
            raise ConnectionResetError
        return data


def _meet() -> _Agent | None:
    """Connect to the agent and say who this is; None where there is none, or this process is not a rank of the launch.

    Raises:
        OSError: The agent is gone; BlockingIOError when it is busy.
    """
    address = os.environ.get("EZPZ_SOCKET", "")
    if not address or not of_this_launch(os.environ) or is_worker():
        return None
    try:
        rank = from_environ(os.environ).rank
    except EzpzError:  # `setup_torch` says what is wrong
        return None
    agent = _Agent(_connect(address))
    agent.say(f"rank {rank} {os.getpid()}")
    atexit.register(speaker.tell_last_step)
    _tell_when_ending(agent)
    number = _share_step()
    if number >= 0:
        agent.say(f"steps {number}")
    number = _offer_dumps()
    if number:
        agent.say(f"dumps {number}")
    return agent


def _tell_when_ending(agent: _Agent) -> None:
    """Have the agent told that the program has ended, before Python joins threads and calls functions of `atexit`.

    Those of `atexit` itself are too late: all threads were joined then, and what was registered later has been called.
    """
    register = getattr(threading, "_register_atexit", atexit.register)
    try:
        register(_say_ending)
    except RuntimeError:  # that has begun
        agent.say(f"ending {_ENDING}")


def _say_ending() -> None:
    speaker.say(f"ending {_ENDING}")


def is_worker() -> bool:
    """Tell whether multiprocessing started this process, e.g. to load data."""
    module = sys.modules.get("multiprocessing.process")
    return module is not None and module.parent_process() is not None


def _connect(address: str) -> int:
    """Return the descriptor of a connection, which programs that this one starts do not inherit."""
    import socket

    end = monotonic() + _CONNECT
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_CONNECT)
        while True:
            try:
                connection.connect("\0" + address[1:] if address.startswith("@") else address)
            except BlockingIOError:  # Linux: its queue is full, because all ranks come at once
                if monotonic() > end:
                    raise
                sleep(0.01)
            else:
                return connection.detach()


def _share_step() -> int:
    """Keep the last step in memory that the agent can read, and return its descriptor; -1 where there is none.

    It is no file: writing into one that is mapped ends a process where its disk is full.
    """
    create = getattr(os, "memfd_create", None)  # of Linux
    if create is None:
        return -1
    try:
        import mmap

        number: int = create("ezpz-step")
        os.ftruncate(number, _STEP_BYTES)
        shared = memoryview(mmap.mmap(number, _STEP_BYTES)).cast("q")
        shared[0] = _NO_STEP if speaker.step is None else speaker.step
    except (ImportError, OSError, TypeError, ValueError):
        return -1
    speaker.shared_step = shared
    return number


def _offer_dumps() -> int:
    """Let faulthandler write all stacks to stderr at a signal that has no other handler, and return that; 0 without."""
    import signal

    lowest = getattr(signal, "SIGRTMIN", None)
    if lowest is None:
        return 0
    number = int(lowest) + _DUMP_OFFSET
    if signal.getsignal(number) != signal.SIG_DFL or proc.catches("self", number):  # perhaps a library's
        return 0
    import faulthandler

    try:
        faulthandler.register(number, file=2, all_threads=True)
    except (OSError, RuntimeError, ValueError):
        return 0
    return number


def _in_forked_child() -> None:
    """Leave the connection to the parent, and never speak for it."""
    _sections.clear()
    _entered.clear()
    _spent.clear()
    speaker.leave_to_parent()


os.register_at_fork(after_in_child=_in_forked_child)
