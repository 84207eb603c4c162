"""Follow the launcher's requests to save: call the functions of `on_save`, or have ranks agree among themselves.

The launcher asks before the end of the job, and where somebody has put a file SAVE or STOP into the run folder. Ranks
that have a way to agree among themselves at which step (`ezpz.train.stopping`) do so. For the others the launcher
chooses a step that is ahead of all of them. Each answers whether that is so; only if all do, it counts. A rank that
comes to that step before waits there, so no two save at different ones: that could hang a program whose save, or whose
step, is collective.

A SIGTERM from outside is such a request, too: the launcher and its agents keep it back until all ranks have saved, or
until the time for that is over. Where the scheduler signals this process itself, it keeps that back
(`SaveRequests.beaten`). The lines between agent and rank are in `ezpz.progress`.
"""

from __future__ import annotations

import math
import os
import signal
import threading
from time import monotonic, sleep

from ezpz.errors import UsageError
from ezpz.progress import patience, speaker

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = [
    "END",
    "SAVE",
    "Agreeing",
    "AskedToEnd",
    "call_savers",
    "ending",
    "on_save",
    "saved",
    "say_leaves",
    "take_request",
]

SAVE, END = 1, 2  # of `take_request`
_NEVER, _AT_STEP, _AGREES = 0, 1, 2  # of the line ``saver``
_ENDS, _WAITS_FOR_SIGNAL = 1, 2  # of `_Request.ends`
_HOLDS_ITSELF = 2  # of the line ``hold``
_GO = 10.0  # seconds that a rank waits, at the step of a request to save, for all others to have read it
_SOON = 0.05  # seconds between two looks for what the launcher asks next, once it has begun to ask
_SAVE = 1800.0  # seconds without a heartbeat that a save may take under `launch --idle-timeout`
_ARRIVES = 2.0  # seconds for a signal that the launcher has let go
_ONE_SIGNAL = 3.0  # seconds in which a signal that comes again is the same one: schedulers send one several times
_LOOK = 0.005  # seconds between two looks at what the agent has sent
_BUSY = 0.2  # seconds for another thread that speaks


class AskedToEnd(SystemExit):
    """The launcher has asked this program to save and to end, which it has done: exit code 0."""

    def __init__(self) -> None:
        super().__init__(0)


class _Request:
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


class SaveRequests:
    """What the launcher asks of this process; `ezpz.progress.Speaker` has it hear the agent's lines.

    Attributes:
        functions: Those of `on_save`.
        how: In which way this rank can save: a step that it is given, or one that all agree on.
        left: What ends this program because it was asked to; None until then.
    """

    def __init__(self) -> None:
        self.functions: list[Callable[[], object]] = []
        self.left: AskedToEnd | None = None
        self.how = _NEVER
        self._asked: _Request | None = None  # it waits for an answer of this rank, or for its step
        self._go = -1  # the number of the last request that counts
        self._request = 0  # what ranks that agree among themselves have been asked for: 0, SAVE or END
        self._close_until = -math.inf  # until when the agent's lines are looked for more often
        self._hold = 0  # of the line ``hold``
        self._signalled = False  # whether the launcher has let the signal go that it, or this process, had kept back
        self._term_at: float | None = None  # when a SIGTERM came that this process keeps back
        self._term_unheard = False  # whether one came while the agent's lines could not be read

    def can_save(self, how: int) -> None:
        """Tell the agent in which way this rank can save; where it cannot hear, with a later beat."""
        self.how = how
        if how != _NEVER or speaker.listener is not None:
            speaker.listener = self
            if speaker.may_speak:
                speaker.speak()

    def take(self) -> int:
        """Return what ranks that agree among themselves were asked for since the last call: 0, `SAVE` or `END`."""
        request, self._request = self._request, 0
        return request

    # What the speaker calls

    def line(self) -> str:
        """Return how this rank can save."""
        return f"saver {self.how}"

    def between_beats(self, usual: float) -> float:
        """Return the seconds until the next look for lines: fewer once the launcher has begun to ask."""
        return _SOON if monotonic() < self._close_until else usual

    def hear(self, words: list[str]) -> str:
        """Take a line of the agent, and return the answer; empty without one."""
        if words[:1] == ["ask"] and len(words) == 4:
            return self._take_request(_Request(*map(int, words[1:])))
        if words[:1] == ["save"] and len(words) == 2:
            self._go = int(words[1])
        elif words[:1] == ["hold"] and len(words) == 2:
            self._hold = int(words[1])
        elif words[:1] == ["signal"] and len(words) == 2:
            self._signalled = True
        return ""

    def heard(self) -> None:
        """Keep back, or let go, a SIGTERM that came while lines were read."""
        if self._term_unheard:
            self._term_unheard = False
            if self._signalled or self._hold != _HOLDS_ITSELF:
                os.kill(os.getpid(), signal.SIGTERM)
            elif self._term_at is None:
                self._term_at = monotonic()

    def beaten(self) -> None:
        """Keep the SIGTERM of a scheduler back that signals this process itself."""
        if self.how == _AT_STEP and self._hold == _HOLDS_ITSELF:
            self._keep_term()

    def _take_request(self, request: _Request) -> str:
        self._close_until = monotonic() + _GO
        if self.how != _AGREES:
            self._asked = request
            speaker.due = self.follow
            return ""
        self._request = max(self._request, END if request.ends == _ENDS else SAVE)
        return self._answer(request.number, speaker.step, 1)

    def _answer(self, number: int, step: int | None, armed: int) -> str:
        return f"answer {number} {-1 if step is None else step} {armed} {speaker.pace_of_steps:.6f}"

    # At a step

    def follow(self, step: int | None) -> None:
        """Answer the request, and save if its step has come; called after each step while there is one.

        Args:
            step: The step that this rank has done; None where the caller knows none.

        Raises:
            AskedToEnd: All is saved, and the program shall end.
        """
        request, number = self._asked, step if step is not None else speaker.step
        if request is None or threading.get_ident() != threading.main_thread().ident:
            return
        if step is None and speaker.step is not None:
            return
        if not request.armed:
            request.armed = number is None or number <= request.step
            speaker.say(self._answer(request.number, number, int(request.armed)))
            if not request.armed:
                self._drop()  # another follows, with a later step
                return
        if number is not None and number < request.step:
            return
        if not self._counts(request, 0.0 if number is None else _GO):
            return
        self._drop()
        began = monotonic()
        with patience("saving", _SAVE):
            call_savers()
            saved(monotonic() - began, -1 if number is None else number)
            if request.ends == _WAITS_FOR_SIGNAL:
                self._wait_for_signal()
        if request.ends == _ENDS:
            raise say_leaves(number)

    def _drop(self) -> None:
        self._asked = speaker.due = None

    def _counts(self, request: _Request, seconds: float) -> bool:
        """Tell whether a request counts; wait so long for the news. A rank that waits in vain does not save."""
        end = monotonic() + seconds
        while self._go != request.number and self._asked is request and speaker.is_heard:
            if monotonic() >= end:
                if seconds:
                    self._drop()
                return False
            self._listen()
        return self._go == request.number

    def _listen(self) -> None:
        """Wait a moment, and read what the agent has sent."""
        sleep(_LOOK)
        speaker.hear(wait=_BUSY)

    # SIGTERM

    def _wait_for_signal(self) -> None:
        """Stay at the step that was saved until the signal has come: what is done meanwhile would be lost.

        The launcher says when it lets it go; on its way through agent and shim it may be late on a busy host.
        """
        before, came = signal.getsignal(signal.SIGTERM), []

        def handle(number: int, frame: Any) -> None:
            came.append(number)
            if callable(before):
                before(number, frame)

        if callable(before):
            signal.signal(signal.SIGTERM, handle)
        try:
            while not self._signalled and self._asked is None and speaker.is_heard:
                self._listen()
            end = monotonic() + (_ARRIVES if self._signalled and before != signal.SIG_IGN else 0.0)
            while not came and monotonic() < end:
                sleep(_LOOK)
        finally:
            if callable(before) and signal.getsignal(signal.SIGTERM) is handle:
                signal.signal(signal.SIGTERM, before)

    def _keep_term(self) -> None:
        """Put `_waiting` in front of what this process does at SIGTERM, whoever has set that since the last beat."""
        if threading.get_ident() != threading.main_thread().ident:
            return
        before = signal.getsignal(signal.SIGTERM)
        if before is not None and before != signal.SIG_IGN and not hasattr(before, "keeps_term"):
            signal.signal(signal.SIGTERM, self._waiting(before))

    def _waiting(self, before: Any) -> Callable[[int, object], None]:
        """Return a handler that keeps a SIGTERM back until the launcher lets it go, and then does what was done before.

        A second one, after 3 s, means now.
        """

        def handle(number: int, frame: object) -> None:
            if self._is_kept():
                return
            if callable(before):
                before(number, frame)
            else:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)

        handle.keeps_term = True  # type: ignore[attr-defined]  # a function takes attributes
        handle.complete = getattr(before, "complete", None)  # type: ignore[attr-defined]  # `ezpz.dist.failure_watch`
        return handle

    def _is_kept(self) -> bool:
        """Tell whether a SIGTERM that has just come is kept back; the launcher says so before it sends one itself."""
        if self._signalled or self._hold != _HOLDS_ITSELF or not speaker.is_heard:
            return False
        if not speaker.hear(wait=0):  # this very thread may speak: `heard` decides
            self._term_unheard = True
            return True
        if self._signalled or self._hold != _HOLDS_ITSELF:
            return False
        now = monotonic()
        self._term_at = now if self._term_at is None else self._term_at
        return now < self._term_at + _ONE_SIGNAL

    def leave_to_parent(self) -> None:
        """Follow nothing in a process that was forked."""
        self.functions.clear()
        self._asked, self._request, self.how = None, 0, _NEVER


_requests = SaveRequests()


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
    _requests.functions.append(function)
    _requests.can_save(max(_requests.how, _AT_STEP))
    return function


class Agreeing:
    """A block in which this rank, with all others, answers requests to save at a step that they agree on."""

    def __enter__(self) -> None:
        _requests.can_save(_AGREES)

    def __exit__(self, *error: object) -> None:
        _requests.take()
        _requests.can_save(_AT_STEP if _requests.functions else _NEVER)


def take_request() -> int:
    """Return what was asked since the last call, in an `Agreeing` block: 0, `SAVE` or `END`."""
    return _requests.take()


def call_savers() -> None:
    """Call the functions of `on_save`."""
    for function in tuple(_requests.functions):
        function()


def saved(seconds: float, step: int) -> None:
    """Tell the launcher of a save; from any thread.

    Args:
        seconds: How long it took.
        step: Steps done.
    """
    speaker.say(f"saved {seconds:.6f} {step}")


def say_leaves(step: int | None) -> AskedToEnd:
    """Tell the launcher that the program ends, because it was asked to and has saved; return what ends it."""
    speaker.say(f"leaves {-1 if step is None else step}")
    _requests.left = AskedToEnd()
    return _requests.left


def ending() -> AskedToEnd | None:
    """Return what ends this program because it was asked to; None while nothing does."""
    return _requests.left


os.register_at_fork(after_in_child=_requests.leave_to_parent)
