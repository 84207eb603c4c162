"""End a run of which a rank shows no progress, and draw the line of progress below its output."""

from __future__ import annotations

import math
import time

from ezpz import durations
from ezpz.launch.watchers import LauncherHandle, LauncherSide
from ezpz.live_line import LiveLine
from ezpz.watch.progress import messages

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.launch.agent_messages import Message

__all__ = ["Progress"]


class Progress(LauncherSide):
    """The ranks that work on their record, for which others may wait, and the line of progress."""

    def __init__(self, handle: LauncherHandle) -> None:
        super().__init__(handle)
        self._live_line = LiveLine()
        self._busy: set[int] = set()
        self._waited_until = -math.inf  # when the last of them was done

    def hear(self, host: int, report: Message) -> None:
        """Take what a host reports of its ranks."""
        if isinstance(report, messages.Idle):
            self._is_idle(self.handle.host(host), report)
        elif isinstance(report, messages.Pace):
            line = self._live_line.text(report.done, report.total, time.monotonic())
            self.handle.live("" if self.handle.is_stopping() else line)
        elif isinstance(report, messages.RankBusy):
            if report.busy:
                self._busy.add(report.rank)
            elif report.rank in self._busy:
                self._busy.discard(report.rank)
                self._waited_until = time.monotonic()
                self.handle.order(messages.CountAnew())

    def _is_idle(self, host: str, report: messages.Idle) -> None:
        # What came before `CountAnew` was read may arrive after it.
        if (self._busy and report.rank not in self._busy) or time.monotonic() < self._waited_until + report.limit:
            self.handle.order(messages.CountAnew())
            return
        limit = f"has shown no progress for {report.limit:g} s (--idle-timeout)"
        if report.section:
            limit = f"has shown no progress for {durations.in_words(report.limit)} in section {report.section}"
        elif report.ending:
            limit = (
                f"has come to the end of its program, and Python has not ended for {durations.in_words(report.limit)}"
                " since (--idle-timeout)"
            )
        self.handle.overdue(f"rank {report.rank} on host {host} (pid {report.pid}) {limit}")
