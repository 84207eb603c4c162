"""Ask the ranks of one host to save, and sum up what they say of it, so that the launcher hears one voice per host."""

from __future__ import annotations

import signal
import time

from ezpz.launch.shim_messages import Hold, Signal
from ezpz.launch.watchers import HostHandle, HostSide
from ezpz.watch.progress.messages import At
from ezpz.watch.saving.messages import AskToSave, SaveAnswer, SaveAnswered, Saved, SaveNow, Saver, Savers

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import socket

    from ezpz.launch.agent_messages import Message
    from ezpz.launch.host.rank_process import RankProcess

__all__ = ["SaversOfHost"]

_AGREES = 2  # of `Saver`
_SLOW = 10.0  # seconds of a step from which on the launcher asks earlier
_NEWS = 1.25  # how much longer than before it must be to be reported again


class SaversOfHost(HostSide):
    """The ranks of one host that can save when asked."""

    def __init__(self, handle: HostHandle) -> None:
        super().__init__(handle)
        self._reports: list[Message] = []  # those of this turn of the agent's loop
        self._how: dict[socket.socket, tuple[int, int]] = {}  # rank, and what it reported
        self._longest, self._step, self._pace = -1.0, -1, 0.0
        self._at: dict[int, tuple[int, float]] = {}  # rank: the last step that it reported, and when
        self._hold: Hold | None = None  # the last order of that kind: for ranks that come later
        self._number = 0  # of the last request,
        self._asked: set[int] = set()  # the ranks that got it,
        self._saved: set[int] = set()  # that have saved since,
        self._left: set[int] = set()  # and that end because of it
        self._answers: dict[socket.socket, SaveAnswer] = {}

    def hear_on(self, connection: socket.socket, rank: RankProcess, message: Message) -> None:
        """Take what a rank says of saving, and the steps that it has done."""
        if isinstance(message, At):
            self._came_to(rank.rank, message.step)
            return
        if isinstance(message, SaveAnswer):
            if message.number == self._number and connection in self._how:
                self._answers[connection] = message
                self._tell_answers()
            return
        if isinstance(message, Saver):
            if not message.how:
                self._forget(connection)
                return
            self._how[connection] = rank.rank, message.how
            if self._hold:
                self.handle.answer(connection, self._hold)
        elif isinstance(message, Saved):
            self._saved.add(rank.rank)
            is_news = message.step > self._step or message.seconds > self._longest or self._asked <= self._saved
            self._longest = max(self._longest, message.seconds)
            self._step = max(self._step, message.step)
            if not is_news:
                return  # other ranks have reported this save
        else:
            self._left.add(rank.rank)
        self._tell()

    def _came_to(self, rank: int, step: int) -> None:
        """Take note that a rank has done a step: a request is read after one, and answered after the next."""
        now = time.monotonic()
        last, when = self._at.get(rank, (step, now))
        self._at[rank] = step, now
        pace = (now - when) / (step - last) if step > last else 0.0
        if pace > max(_SLOW, _NEWS * self._pace):
            self._pace = pace
            self._tell()

    def hung_up(self, connection: socket.socket, rank: RankProcess, pid: int) -> None:
        """Count the rank no longer among those that can save."""
        del rank, pid
        self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        if self._how.pop(connection, None) is not None:
            self._answers.pop(connection, None)
            self._tell()
            self._tell_answers()

    def obey(self, order: Message) -> None:
        """Pass a request on to the ranks that can save."""
        if isinstance(order, AskToSave):
            self._number, self._asked = order.number, {rank for rank, _ in self._how.values()}
            self._answers.clear()
            self._saved.clear()
        if isinstance(order, AskToSave | SaveNow):
            self._send(order)

    def terms_wait(self, order: Hold) -> None:
        """Let the ranks that can save know whether a SIGTERM waits for that."""
        self._hold = order
        self._send(order)

    def term_comes(self) -> None:
        """Let them know that it comes now."""
        self._send(Signal(number=int(signal.SIGTERM)))

    def finish(self) -> None:
        """Report what is left."""
        reports, self._reports = self._reports, []
        for report in reports:
            self.handle.report(report)

    def _send(self, message: Message) -> None:
        for connection in list(self._how):
            self.handle.answer(connection, message)

    def _tell(self) -> None:
        """Report the sum, in place of one that the launcher has not got yet."""
        report = Savers(
            ranks=len(self._how),
            agree=sum(how == _AGREES for _, how in self._how.values()),
            longest=self._longest,
            step=self._step,
            number=self._number,
            saved=bool(self._asked) and self._asked <= self._saved,
            left=bool(self._asked) and self._asked <= self._left,
            pace=self._pace,
        )
        self._reports = [each for each in self._reports if not isinstance(each, Savers)]
        self._report(report)

    def _tell_answers(self) -> None:
        """Report the answers to the last request when all ranks have given theirs."""
        answers = self._answers.values()
        if not answers or len(answers) < len(self._how):
            return
        paces = [answer.pace for answer in answers if answer.pace > 0]
        report = SaveAnswered(
            number=self._number,
            step=max(answer.step for answer in answers),
            armed=all(answer.armed for answer in answers),
            pace=min(paces, default=0.0),
        )
        self._report(report)

    def _report(self, report: Message) -> None:
        """Report with all that ranks say in this turn of the loop."""
        self._reports.append(report)
        self.handle.after(0, self.finish)
