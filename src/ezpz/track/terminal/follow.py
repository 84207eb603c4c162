"""A run that is followed while it goes on: look again and again until it has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ezpz.track.run import Run, open_run
from ezpz.track.terminal.live import Live
from ezpz.track.terminal.tail import Tail

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Followed"]


class Followed:
    """A run as it was at the last look.

    Attributes:
        run: Its facts and state.
        live: Its rows so far.
        passed: Lines of its journal that are no record.
        over: It has ended, and all of its rows were read.

    Raises:
        UsageError: The folder holds no run.
    """

    def __init__(self, folder: Path) -> None:
        self.run: Run = open_run(folder)
        self.live = Live()
        self.over = False
        self._tail = Tail(folder / "metrics.jsonl")
        self._restarts = 0
        self._gone = 0

    @property
    def passed(self) -> int:
        """Lines of the journal that are no record."""
        return self._tail.passed

    def look(self) -> bool:
        """Look again and return whether something was recorded since the last look.

        Raises:
            UsageError: The folder is gone.
            TrackError: The journal is of a version that is not known here.
        """
        self.run = open_run(self.run.folder)  # before the rows: a run that has ended by now has written them all
        rows = self._tail.poll()
        if self._tail.restarts != self._restarts:
            self._restarts, self.live = self._tail.restarts, Live()
        self.live.add(rows)
        # A run that is just starting has a journal before it has a lock and a run.json: one look proves no death.
        self._gone = self._gone + 1 if self.run.state == "died" else 0
        self.over = self.run.state != "running" and self._gone != 1
        return bool(rows)
