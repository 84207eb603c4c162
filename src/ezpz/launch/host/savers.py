"""Ask the ranks of one host to save, and sum up what they say of it, so that the launcher hears one voice per host."""

from __future__ import annotations

import time

from ezpz.launch import messages
from ezpz.launch.host.local_socket import send

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import socket

    from ezpz.launch.host.rank_process import RankProcess
    from ezpz.launch.messages import Message

__all__ = ["HostSavers"]

_AGREES = 2  # of `messages.Saver`
_SLOW = 10.0  # seconds of a step from which on the launcher asks earlier
_NEWS = 1.25  # how much longer than before it must be to be reported again


class HostSavers:
    """The ranks of one host that can save when asked.

    Args:
        reports: Where reports to the launcher are put.
    """

    def __init__(self, reports: list[Message]) -> None:
        self._reports = reports
        self._how: dict[socket.socket, tuple[int, int]] = {}  # rank, and what it reported
        self._longest, self._step, self._pace = -1.0, -1, 0.0
        self._at: dict[int, tuple[int, float]] = {}  # rank: the last step that it reported, and when
        self._hold: messages.Hold | None = None  # the last order of that kind: for ranks that come later
        self._number = 0  # of the last request,
        self._asked: set[int] = set()  # the ranks that got it,
        self._saved: set[int] = set()  # that have saved since,
        self._left: set[int] = set()  # and that end because of it
        self._answers: dict[socket.socket, messages.SaveAnswer] = {}

    def hear(
        self,
        connection: socket.socket,
        rank: RankProcess,
        message: messages.Saver | messages.Saved | messages.Leaves | messages.SaveAnswer,
    ) -> None:
        """Take what a rank says of saving."""
        if isinstance(message, messages.SaveAnswer):
            if message.number == self._number and connection in self._how:
                self._answers[connection] = message
                self._tell_answers()
            return
        if isinstance(message, messages.Saver):
            if not message.how:
                self.forget(connection)
                return
            self._how[connection] = rank.rank, message.how
            if self._hold:
                _send(connection, self._hold)
        elif isinstance(message, messages.Saved):
            self._saved.add(rank.rank)
            is_news = message.step > self._step or message.seconds > self._longest or self._asked <= self._saved
            self._longest = max(self._longest, message.seconds)
            self._step = max(self._step, message.step)
            if not is_news:
                return  # other ranks have reported this save
        else:
            self._left.add(rank.rank)
        self._tell()

    def came_to(self, rank: int, step: int) -> None:
        """Take note that a rank has done a step: a request is read after one, and answered after the next."""
        now = time.monotonic()
        last, when = self._at.get(rank, (step, now))
        self._at[rank] = step, now
        pace = (now - when) / (step - last) if step > last else 0.0
        if pace > max(_SLOW, _NEWS * self._pace):
            self._pace = pace
            self._tell()

    def forget(self, connection: socket.socket) -> None:
        """Count a rank no longer among those that can save."""
        if self._how.pop(connection, None) is not None:
            self._answers.pop(connection, None)
            self._tell()
            self._tell_answers()

    def ask(self, order: messages.AskToSave | messages.SaveNow | messages.Hold | messages.Signal) -> None:
        """Pass a request, or what concerns one, on to the ranks that can save."""
        if isinstance(order, messages.AskToSave):
            self._number, self._asked = order.number, {rank for rank, _ in self._how.values()}
            self._answers.clear()
            self._saved.clear()
        elif isinstance(order, messages.Hold):
            self._hold = order
        for connection in list(self._how):
            _send(connection, order)

    def _tell(self) -> None:
        """Report the sum, in place of one that the launcher has not got yet."""
        report = messages.Savers(
            ranks=len(self._how),
            agree=sum(how == _AGREES for _, how in self._how.values()),
            longest=self._longest,
            step=self._step,
            number=self._number,
            saved=bool(self._asked) and self._asked <= self._saved,
            left=bool(self._asked) and self._asked <= self._left,
            pace=self._pace,
        )
        self._reports[:] = [each for each in self._reports if not isinstance(each, messages.Savers)]
        self._reports.append(report)

    def _tell_answers(self) -> None:
        """Report the answers to the last request when all ranks have given theirs."""
        answers = self._answers.values()
        if not answers or len(answers) < len(self._how):
            return
        paces = [answer.pace for answer in answers if answer.pace > 0]
        report = messages.SaveAnswered(
            number=self._number,
            step=max(answer.step for answer in answers),
            armed=all(answer.armed for answer in answers),
            pace=min(paces, default=0.0),
        )
        self._reports.append(report)


def _send(connection: socket.socket, order: Message) -> None:
    try:
        send(connection, messages.TO_RANKS.encode(order))
    except OSError:
        pass  # it ends, or has read nothing for long: it does not answer, which the launcher notices
