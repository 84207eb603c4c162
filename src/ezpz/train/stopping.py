"""Agree between ranks to save or to stop, as signals ask, without adding a collective to a step.

    SIGUSR2    save now and continue: what a scheduler sends before the wall time ends (Slurm: --signal=USR2@300)
    SIGTERM    save and end; a second one ends at once, unless it comes within 3 s: schedulers send one several times

``ezpz launch`` asks for either over its own connection (`ezpz.save_requests`): before the end of the job, or because of
a file SAVE or STOP in the run folder. Signals and requests reach ranks at different steps, and a checkpoint needs all
of them at one. So every rank starts, about once per second of training, an all-reduce of two numbers that no rank waits
for: its result is looked at when the next one is due, at the same step on every rank. It travels beside the training,
over the CPUs' network where the group has one, and a request is answered within two seconds, or two steps where these
are longer. SIGUSR1 is not used: NCCL and others take it.
"""

from __future__ import annotations

import os
import signal
import threading
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

from ezpz.save_requests import END, Agreeing, take_request
from ezpz.track.signals import ONE_SIGNAL

if TYPE_CHECKING:
    from types import FrameType, TracebackType

# The last three end: because the launcher asks for it, of SIGTERM, and because the loss is lost, which saves nothing.
NOTHING, SAVE, LEAVE, STOP, LOST = 0, 1, 2, 3, 4

_EVERY = 1.0  # seconds between two questions, about
_MOST = 1000  # steps between them: a request must not wait for long when steps become slow
_MEANING = {name: request for name, request in (("SIGUSR2", SAVE), ("SIGTERM", STOP)) if hasattr(signal, name)}


class StopRequests:
    """What signals and the clock ask of all ranks, from entering the block to leaving it.

    Attributes:
        signal: Name of the signal that this rank got last; None without one.
    """

    def __init__(self, save_seconds: float = 0.0, *, can_save: bool = True) -> None:
        """Prepare the block.

        Args:
            save_seconds: Time between two requests to save; 0 leaves that to signals.
            can_save: Answer signals and the launcher; without, ranks only ask each other whether to end.
        """
        self._can_save = can_save
        self.signal: str | None = None
        self._save_seconds = save_seconds
        self._saved_at = perf_counter()
        self._first: dict[int, float] = {}  # signal: when it came, without what came again so soon that it is the same
        self._came: list[int] = []  # a list, because a handler may come between reading a number and resetting it
        self._before: dict[int, Any] = {}
        self._question: tuple[Any, Any] | None = None  # what travels: torch's handle, and the numbers
        self._due = 0
        self._asked_at: tuple[int, float] | None = None  # the last question: its step, and when
        self._launcher = Agreeing()

    def __enter__(self) -> StopRequests:  # noqa: PYI034  # `Self` needs Python 3.11
        if not self._can_save:
            return self
        if threading.current_thread() is threading.main_thread():  # no other can answer signals
            ignored = os.environ.get("EZPZ_IGNORED_AT_START", "").split()  # `ezpz.launch.host.early_signals`
            for name in _MEANING:
                number = getattr(signal, name)
                before = signal.getsignal(number)
                is_wanted = before == signal.SIG_IGN and name not in ignored
                if before is not None and not is_wanted:
                    self._before[number] = before
                    signal.signal(number, self._handler(before))
        self._launcher.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._question is not None and self._question[0] is not None:
            self._question[0].wait()  # no rank may leave what others still wait for
        self._question = None
        if not self._can_save:
            return
        self._launcher.__exit__()
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()

    def _handler(self, before: Any) -> Any:
        def handle(number: int, frame: FrameType | None) -> None:
            now, name = monotonic(), signal.Signals(number).name
            if now < self._first.get(number, -ONE_SIGNAL) + ONE_SIGNAL:
                return
            self._first[number] = now
            if self.signal == name == "SIGTERM":
                if callable(before):
                    before(number, frame)
                    return
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            self.signal = name
            self._came.append(_MEANING[name])

        # Where another rank has failed nothing can be saved any more: `ezpz.dist.failure_watch` goes by this, and ends
        # the process.
        handle.complete = getattr(before, "complete", None)  # type: ignore[attr-defined]  # a function takes attributes
        return handle

    def end_as_lost(self) -> None:
        """Ask all ranks to end because the loss is lost."""
        self._came.append(LOST)

    def after(self, step: int) -> int:
        """Return what shall be done after ``step``: `NOTHING`, `SAVE`, `LEAVE`, `STOP` or `LOST`, as on every rank.

        Args:
            step: The step that has just ended; every rank calls this after every step.
        """
        import torch.distributed as dist

        if not dist.is_initialized() or dist.get_world_size() == 1:
            return self._note(self._take())
        if step < self._due:
            return NOTHING
        request, interval = self._answer()
        self._due = step + interval
        self._note(request)
        if request < LEAVE:
            self._ask(step)
        return request

    def _take(self) -> int:
        came = self._came[:]
        del self._came[: len(came)]
        if self._save_seconds and perf_counter() - self._saved_at >= self._save_seconds:
            came.append(SAVE)
        asked = take_request() if self._can_save else NOTHING
        if asked:
            came.append(LEAVE if asked == END else SAVE)
        return max(came, default=NOTHING)

    def _note(self, request: int) -> int:
        """Let the time to the next save begin anew where all ranks save now.

        A signal reaches one rank after the other: one that has come here but was not asked for yet, or that comes in
        the next moment, is the same.
        """
        if request != NOTHING:
            self._saved_at = perf_counter()
        if request == SAVE:
            while SAVE in self._came:
                self._came.remove(SAVE)
            numbers = [getattr(signal, name) for name, meaning in _MEANING.items() if meaning == SAVE]
            self._first.update(dict.fromkeys(numbers, monotonic()))
        return request

    def _ask(self, step: int) -> None:
        import torch
        import torch.distributed as dist

        numbers = torch.tensor([self._take(), self._interval(step)], device=device_of_questions())
        self._question = dist.all_reduce(numbers, op=dist.ReduceOp.MAX, async_op=True), numbers

    def _interval(self, step: int) -> int:
        """Return after how many steps to ask again: one after the first question, which may be of a resumed run."""
        last, self._asked_at = self._asked_at, (step, perf_counter())
        if last is None:
            return 1
        seconds = (self._asked_at[1] - last[1]) / max(1, step - last[0])  # per step
        return max(1, min(_MOST, round(_EVERY / max(seconds, 1e-6))))

    def _answer(self) -> tuple[int, int]:
        """Return what any rank requests, and how many steps to let pass until they are asked again."""
        if self._question is None:
            return NOTHING, 1
        handle, numbers = self._question
        self._question = None
        if handle is not None:  # a simulated world gives none
            handle.wait()
        request, interval = numbers.tolist()
        return request, interval


def device_of_questions() -> Any:
    """Return where numbers travel: the CPU where the group serves it, which leaves the device's queue alone."""
    import torch.distributed as dist

    from ezpz.dist.device import device as own_device

    return "cpu" if "cpu:" in dist.get_backend_config() else own_device()
