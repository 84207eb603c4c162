r"""Tell the agent of the host about a rank: the stages of its start, and that it makes progress.

Standard library only and cheap, because `ezpz.heartbeat` may stand in an innermost loop. This file is not called
``heartbeat.py``: importing a submodule of that name would replace the function `ezpz.heartbeat` by the module.

The agent listens on a Unix stream socket, EZPZ_SOCKET: ``@name`` is the abstract socket ``\0name`` of Linux, else a
path. A process that is a rank of the launch keeps one connection and writes lines:

    rank 3 4711       who speaks: rank and pid, once and first
    dumps 45          at this signal the process writes its Python stacks to its stderr
    stage setup       reached for the first time: setup, met, group, model, data, step, second_step
    beat              progress, at most once per second
    at 120            the last step that it reported: with a beat, and when the program ends
    pace 42 0 100     42 steps of 100 are done, and this run of the program began behind 0; with a beat, of a `Loop`
    folder /a/run     it keeps the record of a run there
    busy 1            it works on its record from now on, and others may wait for it; with 0 no longer
    arrivals 0 5 0.1 … 17,810 train.py:31 (work)    when it came to its last collectives (`ezpz.dist.arrivals`)
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
    from typing import Any

_EVERY = 1.0  # seconds between two beats
_CONNECT = 0.2  # seconds that a rank waits for its agent, once
_WORKS = 0.001  # seconds of CPU between two looks: less is waiting
_WAITS = 60.0  # seconds: 30 for other ranks and 10 for trackers are our longest waits, and a disk may be slow
_LONGEST_NAME = 80  # characters of a section
_GO = 10.0  # seconds that a rank waits, at the step of a request to save, for all others to have read it
_SOON = 0.05  # seconds between two looks for what the launcher asks next, once it has begun to ask
_SAVE = 1800.0  # seconds without a heartbeat that a save may take under `launch --idle-timeout`
_ENDING = 300.0  # and what Python does after the last line of the program
_ARRIVES = 2.0  # seconds for a signal that the launcher has let go
_ONE_SIGNAL = 3.0  # seconds in which a signal that comes again is the same one: schedulers send one several times
_LATER = 30.0  # seconds until the next try, where the agent's queue of connections stayed full
# SIGRTMIN+11. Others use: the C library 32 and 33, Go 34, systemd (as process 1) RTMIN+0 to 7, 13 to 18 and 20 to 29,
# PAPI and HPCToolkit RTMIN+2 to 4, libmonitor RTMIN+8, Valgrind RTMAX; torch, NCCL, CUDA, Slurm, submitit and Lightning
# only classic ones (USR1, USR2, TERM, CONT, CHLD). macOS has none of these, and tells no stacks this way.
_DUMP_OFFSET = 11

_next = -math.inf  # the moment from which on a beat is due; infinite where no agent listens
_lock = threading.Lock()
_agent: _Agent | None = None
_sent: set[str] = set()
_first: int | None = None  # the first step, until a second one is reported
_step: int | None = None  # the last that was reported here,
_step_sent: int | None = None  # and the last that the agent got
_pace: tuple[int, int, int] | None = None  # steps done, done at the start, and in all, of a loop that runs
_pace_sent: tuple[int, int, int] | None = None

_folder: str | None = None  # where a run is recorded; None once the agent knows

_sections: list[_Section] = []  # those that the main thread is in, the innermost last,
_section_sent: _Section | None = None  # and the one that the agent knows of
_timeouts: dict[str, float] = {}  # what was read before: a section may be entered in every step

_spent: dict[str, float] = {}  # seconds in sections that `take_spent` has not returned yet, each without those inside,
_entered: list[str] = []  # the names of those that the main thread is in; empty ones are not counted,
_since = 0.0  # and the moment from which on the innermost has not been credited


reached: dict[str, float] = {}  # stage -> when this process reached it, epoch seconds


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
    global _step  # what follows is `beat`: to call it would cost half as much again
    if step is not None:
        _step = step
    if monotonic() >= _next or (_first is not None and _step != _first):
        _speak(_stage_of_step(), beat=True)
    if asked is not None:
        answer(step)


def beat(step: int | None = None) -> None:
    """Do what `heartbeat` does, without answering a request to save."""
    global _step
    if step is not None:
        _step = step
    if monotonic() >= _next or (_first is not None and _step != _first):
        _speak(_stage_of_step(), beat=True)


def pace(done: int, first: int, total: int) -> None:
    """Note how far a loop is; the next beat tells it, for the line that `launch` draws on a terminal.

    Args:
        done: Steps done.
        first: Steps that were done when this run of the program began.
        total: Steps in all.
    """
    global _pace
    _pace = (done, first, total)


def records_in(folder: str) -> None:
    """Note where this rank keeps the record of a run; the next beat tells it, so that the launcher's own goes there.

    Args:
        folder: The absolute path of a run folder.
    """
    global _folder
    _folder = folder if folder.isprintable() else None


def end_pace() -> None:
    """Tell that the loop has ended, if it was ever reported to run."""
    global _pace, _pace_sent
    _pace = None
    if _pace_sent is not None:
        _pace_sent = None
        _say("pace 0 0 0")


def _stage_of_step() -> str:
    """Return the stage that this step is; the second goes out at once, because the first holds compilation."""
    global _first
    if "step" not in _sent:
        _first = _step
    elif _first is not None and _step != _first:
        _first = None
        return "second_step"
    return "step"


def stage(name: str) -> None:
    """Tell the agent, once per name, that this process has come so far.

    Args:
        name: ``setup``, ``met``, ``group``, ``model`` or ``data``; one word.
    """
    reached.setdefault(name, time())
    if name not in _sent and _next != math.inf:
        _speak(name, beat=False)


def section(name: str, *, timeout: str | float | None) -> _Section:
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
    return _Section(name, _seconds(timeout), at_least=False)


def patience(name: str, seconds: float) -> _Section:
    """Return a section that shortens no limit: neither ``--idle-timeout`` nor that of the section around it.

    Args:
        name: What the rank does there.
        seconds: Its timeout, where no other limit is longer.
    """
    return _Section(name, seconds, at_least=True)


def leaving() -> _Section:
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


class _Section:
    """A block with an idle limit of its own: `section`."""

    __slots__ = ("_at_least", "_name", "_timeout", "limit")

    def __init__(self, name: str, timeout: float, *, at_least: bool) -> None:
        self._name, self._timeout, self._at_least = name, timeout, at_least
        self.limit = timeout  # that of the section around it where that is longer and counts

    def __enter__(self) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        _enter(self._name)
        if _next == math.inf:
            return
        if self._at_least and _sections:
            outer = _sections[-1].limit
            self.limit = outer and max(self._timeout, outer)
        _sections.append(self)
        _tell_change()

    def __exit__(self, *error: object) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        _leave()
        if self in _sections:
            _sections.reverse()  # the innermost of its kind
            _sections.remove(self)
            _sections.reverse()
            _tell_change()

    def line(self) -> str:
        """Return what the agent reads."""
        return f"section {self.limit!r} {int(self._at_least)} {self._name}"


class Counted:
    """A block whose seconds are kept under a name, as those of a section are; it changes no limit.

    Args:
        name: What the rank does there; without one its seconds are kept nowhere, nor are those of sections around it.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        _enter(self._name)

    def __exit__(self, *error: object) -> None:
        _leave()


def take_spent() -> dict[str, float]:
    """Return the seconds that the main thread has spent in sections since the last call, by name, and forget them.

    Of sections within each other, each has its own seconds without those inside. Sections that are open count up to now
    and no further: what calls this records steps, and a section around many steps is none beside them.
    """
    global _spent
    _credit()
    _entered[:] = [""] * len(_entered)
    spent, _spent = _spent, {}
    spent.pop("", None)
    return spent


def has_spent() -> bool:
    """Tell whether `take_spent` has something to return, or to end."""
    return bool(_spent) or any(_entered)


def _enter(name: str) -> None:
    _credit()
    _entered.append(name)


def _leave() -> None:
    _credit()
    if _entered:  # else this process was forked inside the block
        _entered.pop()


def _credit() -> None:
    """Give the seconds since the last call to the innermost section."""
    global _since
    now = monotonic()
    if _entered:
        _spent[_entered[-1]] = _spent.get(_entered[-1], 0.0) + now - _since
    _since = now


def _tell_change() -> None:
    """Tell the agent of the section that the rank is in now; where it cannot hear, with a later beat."""
    if _next != math.inf and (_agent is not None or monotonic() >= _next):
        _speak("", beat=False)


# Requests of the launcher to save. It asks before the end of the job, and where somebody has put a file SAVE or STOP
# into the run folder. Ranks that have a way to agree among themselves at which step (`ezpz.train.stopping`) do so. For
# the others the launcher chooses a step that is ahead of all of them. Each answers whether that is so; only if all do,
# it counts. A rank that comes to that step before waits there, so no two save at different ones: that could hang a
# program whose save, or whose step, is collective.
#
# A SIGTERM from outside is such a request, too: the launcher and its agents keep it back until all ranks have saved, or
# until the time for that is over. Where the scheduler signals this process itself, it keeps that back (`_waiting`).


class AskedToEnd(SystemExit):
    """The launcher has asked this program to save and to end, which it has done: exit code 0."""

    def __init__(self) -> None:
        super().__init__(0)


class _Ask:
    """A request to save.

    Attributes:
        number: Its number.
        ends: What the program shall do when it has saved: go on (0), end (1), or wait for a signal (2).
        step: The step after which it is to be done.
        armed: Whether this rank has answered that it will.
    """

    __slots__ = ("armed", "ends", "number", "step")

    def __init__(self, number: int, ends: int, step: int) -> None:
        self.number, self.ends, self.step = number, ends, step
        self.armed = False


SAVE, END = 1, 2  # of `take_request`
_ENDS, _WAITS_FOR_SIGNAL = 1, 2  # of `_Ask.ends`
_HOLDS_ITSELF = 2  # of the line ``hold``

_functions: list[Callable[[], object]] = []  # of `on_save`
_how = _how_told = 0  # of the line ``saver``: as it is, and as the agent knows it
asked: _Ask | None = None  # a request that waits for an answer of this rank, or for its step
_go = -1  # the number of the last request that counts
_request = 0  # what ranks that agree among themselves have been asked for: 0, SAVE or END
_heard = b""  # the beginning of a line
left: AskedToEnd | None = None  # what ends this program because it was asked to
_stepped_at = _pace_of_steps = 0.0  # when the agent heard of a step, and the seconds of one
_close_until = -math.inf  # until when the agent's lines are looked for more often
_hold = 0  # of the line ``hold``
_signalled = False  # whether the launcher has let the signal go that it, or this process, had kept back
_term_at: float | None = None  # when a SIGTERM came that this process keeps back
_term_unheard = False  # whether one came while the agent's lines could not be read


def on_save(function: Callable[[], object]) -> Callable[[], object]:
    """Have a function called when the launcher asks this program to save; return the function, so it may decorate one.

        step = 0

        @ezpz.on_save
        def save():
            torch.save(model.state_dict(), "model.pt")

        for step in range(1000):
            ...
            ezpz.heartbeat(step)    # or history.update(…, step=step): save() is called here, if at all

    ``ezpz launch`` asks some time before the job ends, and when it finds a file ``SAVE`` or ``STOP`` in the run folder
    (docs/checkpoints.md). The function is called within the next `heartbeat` or `History.update` of the main thread,
    with no arguments. Before the end of the job, and for ``STOP``, the program then ends: `heartbeat` raises
    `AskedToEnd`, a SystemExit of code 0, so that ``with`` and ``finally`` blocks are completed. A SIGTERM from outside,
    such as a scheduler's or that of ``ezpz kill``, asks too: the signal comes when all ranks have saved, and does what
    it would have done before.

    Register it on every rank that reports steps, or on those that save. All ranks that did call it after the same step,
    provided that each calls ``heartbeat(step)`` or ``History.update(step=…)`` after every step with the same number;
    a rank that comes there early waits up to 10 s for the others. While one that registered a function calls neither,
    no rank saves. Where none tells a step, each calls it at its own next heartbeat. Inside
    ``ezpz.train.Loop(checkpoints=…)`` the loop saves; functions are called just before it does. Outside ``ezpz
    launch`` no function is ever called. What the function raises leaves `heartbeat`.

    Args:
        function: Saves all that this rank needs to go on; when it returns, that must be complete. It may be collective.

    Raises:
        UsageError: It cannot be called.
    """
    if not callable(function):
        raise UsageError(f"unusable function {function!r} (from ezpz.on_save); expected one that saves, such as save.")
    _functions.append(function)
    _set_how(max(_how, 1))
    return function


class Agreeing:
    """A block in which this rank, with all others, answers requests to save at a step that they agree on."""

    def __enter__(self) -> None:
        _set_how(2)

    def __exit__(self, *error: object) -> None:
        global _request
        _request = 0
        _set_how(1 if _functions else 0)


def take_request() -> int:
    """Return what was asked since the last call, in an `Agreeing` block: 0, `SAVE` or `END`."""
    global _request
    request, _request = _request, 0
    return request


def call_savers() -> None:
    """Call the functions of `on_save`."""
    for function in tuple(_functions):
        function()


def saved(seconds: float, step: int) -> None:
    """Tell the launcher of a save; from any thread.

    Args:
        seconds: How long it took.
        step: Steps done.
    """
    _say(f"saved {seconds:.6f} {step}")


def say_leaves(step: int | None) -> AskedToEnd:
    """Tell the launcher that the program ends, because it was asked to and has saved; return what ends it."""
    global left
    _say(f"leaves {-1 if step is None else step}")
    left = AskedToEnd()
    return left


def answer(step: int | None) -> None:
    """Answer a request to save, and follow it if its step has come; called after each step while there is one.

    Args:
        step: The step that this rank has done; None where the caller knows none.

    Raises:
        AskedToEnd: As `heartbeat`.
    """
    global asked
    ask, number = asked, step if step is not None else _step
    if ask is None or threading.get_ident() != threading.main_thread().ident or (step is None and _step is not None):
        return
    if not ask.armed:
        ask.armed = number is None or number <= ask.step
        _say(f"answer {ask.number} {-1 if number is None else number} {int(ask.armed)} {_pace_of_steps:.6f}")
        if not ask.armed:
            asked = None  # another follows, with a later step
            return
    if number is not None and number < ask.step:
        return
    if not _counts(ask, 0.0 if number is None else _GO):
        return
    asked = None
    began = monotonic()
    with patience("saving", _SAVE):
        call_savers()
        saved(monotonic() - began, -1 if number is None else number)
        if ask.ends == _WAITS_FOR_SIGNAL:
            _wait_for_signal()
    if ask.ends == _ENDS:
        raise say_leaves(number)


def _counts(ask: _Ask, seconds: float) -> bool:
    """Tell whether a request counts; wait so long for the news. A rank that waits in vain continues without saving."""
    global asked
    end = monotonic() + seconds
    while _go != ask.number and asked is ask and _agent is not None:
        if monotonic() >= end:
            if seconds:
                asked = None
            return False
        _listen()
    return _go == ask.number


def _wait_for_signal() -> None:
    """Stay at the step that was saved until the signal has come: what is done meanwhile would be lost.

    The launcher says when it lets it go; on its way through agent and shim it may be late on a busy host.
    """
    import signal

    before, came = signal.getsignal(signal.SIGTERM), []

    def handle(number: int, frame: Any) -> None:
        came.append(number)
        if callable(before):
            before(number, frame)

    if callable(before):
        signal.signal(signal.SIGTERM, handle)
    try:
        while not _signalled and asked is None and _agent is not None:
            _listen()
        end = monotonic() + (_ARRIVES if _signalled and before != signal.SIG_IGN else 0.0)
        while not came and monotonic() < end:
            sleep(0.005)
    finally:
        if callable(before) and signal.getsignal(signal.SIGTERM) is handle:
            signal.signal(signal.SIGTERM, before)


def _listen() -> None:
    """Wait a moment, and read what the agent has sent."""
    sleep(0.005)
    if _lock.acquire(timeout=_CONNECT):
        try:
            if _agent is not None:
                _hear(_agent)
        except OSError:
            _fall_silent()
        finally:
            _lock.release()


def _keep_term() -> None:
    """Put `_waiting` in front of what this process does at SIGTERM, whoever has set that since the last beat."""
    if threading.get_ident() != threading.main_thread().ident:
        return
    import signal

    before = signal.getsignal(signal.SIGTERM)
    if before is not None and before != signal.SIG_IGN and not hasattr(before, "keeps_term"):
        signal.signal(signal.SIGTERM, _waiting(before))


def _waiting(before: Any) -> Callable[[int, object], None]:
    """Return a handler that keeps a SIGTERM back until the launcher lets it go, and then does what was done before.

    A second one, after 3 s, means now.
    """
    import signal

    def handle(number: int, frame: object) -> None:
        if _is_kept():
            return
        if callable(before):
            before(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    handle.keeps_term = True  # type: ignore[attr-defined]  # a function takes attributes
    handle.complete = getattr(before, "complete", None)  # type: ignore[attr-defined]  # for `ezpz.dist.failure_watch`
    return handle


def _is_kept() -> bool:
    """Tell whether a SIGTERM that has just come is kept back; the launcher says so before it sends one itself."""
    global _term_at, _term_unheard
    if _signalled or _hold != _HOLDS_ITSELF or _agent is None:
        return False
    if not _lock.acquire(blocking=False):  # this very thread may hold it
        _term_unheard = True  # `_hear` decides
        return True
    try:
        _hear(_agent)
    except OSError:
        _fall_silent()
    finally:
        _lock.release()
    if _signalled or _hold != _HOLDS_ITSELF:
        return False
    now = monotonic()
    _term_at = now if _term_at is None else _term_at
    return now < _term_at + _ONE_SIGNAL


def _set_how(how: int) -> None:
    """Tell the agent in which way this rank can save; where it cannot hear, with a later beat."""
    global _how
    _how = how
    if _next != math.inf and (_agent is not None or monotonic() >= _next):
        _speak("", beat=False)


def _tell_saver(agent: _Agent) -> None:
    global _how_told
    if _how != _how_told:
        _how_told = _how
        agent.say(f"saver {_how}")


def _hear(agent: _Agent) -> None:
    """Read what the agent asks for, without waiting.

    Raises:
        OSError: The agent is gone.
    """
    global _heard, _go, _hold, _signalled
    *lines, _heard = (_heard + agent.hear()).split(b"\n")
    for line in lines:
        words = line.decode(errors="replace").split()
        if words[:1] == ["ask"] and len(words) == 4:
            _take_ask(agent, _Ask(*map(int, words[1:])))
        elif words[:1] == ["save"] and len(words) == 2:
            _go = int(words[1])
        elif words[:1] == ["hold"] and len(words) == 2:
            _hold = int(words[1])
        elif words[:1] == ["signal"] and len(words) == 2:
            _signalled = True
    if _term_unheard:
        _take_unheard_term()


def _take_ask(agent: _Agent, ask: _Ask) -> None:
    global asked, _request, _close_until
    _close_until = monotonic() + _GO
    if _how == 2:
        _request = max(_request, END if ask.ends == _ENDS else SAVE)
        agent.say(f"answer {ask.number} {-1 if _step is None else _step} 1 {_pace_of_steps:.6f}")
    else:
        asked = ask


def _take_unheard_term() -> None:
    """Keep back, or let go, the SIGTERM that came while lines were read."""
    global _term_unheard, _term_at
    import signal

    _term_unheard = False
    if _signalled or _hold != _HOLDS_ITSELF:
        os.kill(os.getpid(), signal.SIGTERM)
    elif _term_at is None:
        _term_at = monotonic()


class Busy:
    """Inside the block this rank works on its record: it makes progress as long as it really works.

    A thread beats while the thread that entered uses the CPU. What it waits for (other ranks, trackers, a disk) is
    progress for a minute in all, because no wait of ours is longer. Other ranks may wait in a barrier meanwhile, so
    the launcher does not count their time. A rank that never beat is left alone.
    """

    def __enter__(self) -> None:
        self._over = threading.Event()
        self._is_sent = "step" in _sent and _say("busy 1")
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
            _say("busy 0")

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


def _speak(name: str, *, beat: bool) -> None:
    """Send a new stage, the section, and a beat; one thread at a time, and a signal handler inside it gives up."""
    global _agent, _next
    if not _lock.acquire(timeout=0 if beat else 2 * _CONNECT):
        return
    try:
        _agent = _agent or _meet()
        if _agent is None:
            _next = math.inf
            return
        if name and name not in _sent:
            _sent.add(name)
            _agent.say(f"stage {name}")
        _tell_section(_agent)
        _tell_saver(_agent)
        if beat:
            now = monotonic()
            _next = now + (_SOON if now < _close_until else _EVERY)
            _agent.say("beat", droppable=True)
            if _how_told:
                _hear(_agent)
                if _how == 1 and _hold == _HOLDS_ITSELF:
                    _keep_term()
            _tell_step(_agent)
            _tell_pace(_agent)
            _tell_folder(_agent)
    except BlockingIOError:
        _next = monotonic() + _LATER
    except OSError:
        _fall_silent()
    finally:
        _lock.release()


def is_heard() -> bool:
    """Tell whether an agent hears this process: after a `stage`, under ``ezpz launch``."""
    return _agent is not None


def tell(word: str, *values: object) -> bool:
    """Send a watcher (`ezpz.launch.watchers`) one of its words, and tell whether an agent hears this process.

    Args:
        word: The kind of the message.
        values: Its fields, in their order; only the last may have spaces, and none has newlines.
    """
    if _agent is None and _next != math.inf:
        _speak("", beat=False)
    return _say(" ".join(" ".join([word, *map(str, values)]).splitlines()))


def _say(line: str) -> bool:
    """Send a line, and tell whether there is an agent."""
    if _agent is None or not _lock.acquire(timeout=2 * _CONNECT):
        return False
    try:
        _agent.say(line)
    except OSError:
        _fall_silent()
        return False
    finally:
        _lock.release()
    return True


def _tell_section(agent: _Agent) -> None:
    global _section_sent
    now = _sections[-1] if _sections else None
    if now is not _section_sent:
        _section_sent = now
        agent.say(now.line() if now is not None else "section 0 0 ")


def _tell_step(agent: _Agent) -> None:
    global _step_sent, _stepped_at, _pace_of_steps
    if _step != _step_sent and isinstance(_step, int) and abs(_step) < 2**53:
        now = monotonic()
        if _step_sent is not None and _step > _step_sent:
            _pace_of_steps = (now - _stepped_at) / (_step - _step_sent)
        _step_sent, _stepped_at = _step, now
        agent.say(f"at {_step}", droppable=True)


def _tell_pace(agent: _Agent) -> None:
    global _pace_sent
    if _pace is not None and _pace != _pace_sent:
        _pace_sent = _pace
        agent.say(f"pace {_pace[0]} {_pace[1]} {_pace[2]}", droppable=True)


def _tell_folder(agent: _Agent) -> None:
    global _folder
    if _folder is not None:
        folder, _folder = _folder, None
        agent.say(f"folder {folder}")


def _at_exit() -> None:
    """Tell the last step, which may be of less than a second ago."""
    if _agent is not None and _lock.acquire(blocking=False):
        try:
            _tell_step(_agent)
        except OSError:
            pass  # the agent has gone
        finally:
            _lock.release()


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
    _say(f"ending {_ENDING}")


def _meet() -> _Agent | None:
    """Connect to the agent and say who this is; None where there is none, or this process is not a rank of the launch.

    Raises:
        OSError: The agent is gone; BlockingIOError when it is busy.
    """
    address = os.environ.get("EZPZ_SOCKET", "")
    if not address or not of_this_launch(os.environ) or _is_worker():
        return None
    try:
        rank = from_environ(os.environ).rank
    except EzpzError:  # `setup_torch` says what is wrong
        return None
    agent = _Agent(_connect(address))
    agent.say(f"rank {rank} {os.getpid()}")
    atexit.register(_at_exit)
    _tell_when_ending(agent)
    number = _offer_dumps()
    if number:
        agent.say(f"dumps {number}")
    return agent


def _is_worker() -> bool:
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


def _fall_silent() -> None:
    global _agent, _next
    _next = math.inf
    agent, _agent = _agent, None
    if agent is not None:
        try:
            os.close(agent.descriptor)
        except OSError:
            pass  # the program has closed all that it knew nothing of


def _in_forked_child() -> None:
    """Leave the connection to the parent, and never speak for it."""
    global _lock, asked, _request, _how
    asked, _request, _how = None, 0, 0
    _lock = threading.Lock()  # another thread may have held it at the fork
    _sections.clear()
    _entered.clear()
    _spent.clear()
    _functions.clear()
    _fall_silent()


os.register_at_fork(after_in_child=_in_forked_child)
