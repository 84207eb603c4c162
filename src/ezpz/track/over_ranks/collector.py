"""Put slices of all ranks together to windows, in the order of steps, on rank 0."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from ezpz.track.over_ranks.slices import NO_STEP, Slice
from ezpz.track.over_ranks.window import records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["Collector"]

_UNHEARD = 60.0  # seconds for which a window waits for ranks that have not sent a row yet
_MOST_VALUES = 1_000_000  # in windows that wait, beyond the two that ranks in step are in


class Collector:
    """Slices of all ranks, by window.

    Attributes:
        others: Ranks beyond the first of which anything was heard.
        news: When something was last learnt, by the monotonic clock.
    """

    def __init__(self, world: int, window: int) -> None:
        self._world, self._window = world, window
        self._pending: dict[int, dict[int, list[Slice]]] = {}
        self._since: dict[int, float] = {}
        self._values = 0
        self._upto: dict[int, int] = {}
        self._ended: set[int] = set()
        self._late: dict[int, int] = {}
        self._floor: int | None = None  # windows below this one have been recorded
        self.others: set[int] = set()
        self.news = monotonic()

    @property
    def late(self) -> int:
        """Rows that came when the window they belong to had been recorded."""
        return sum(self._late.values())

    @property
    def is_full(self) -> bool:
        """Whether so much waits that no rank can be waited for any more."""
        return len(self._pending) > 2 and self._values > _MOST_VALUES

    def take(self, piece: Slice) -> None:
        """Take one slice."""
        rank = piece.rank
        if rank:
            self.others.add(rank)
        if piece.end:
            self._ended.add(rank)
        if len(piece.steps) or piece.end:
            self.news = monotonic()
        self._late[rank] = max(piece.late, self._late.get(rank, 0))
        if piece.upto > NO_STEP:
            self._upto[rank] = max(piece.upto, self._upto.get(rank, piece.upto))
        if not len(piece.steps):
            return
        at = int(piece.steps[0]) // self._window
        if self._floor is not None and at < self._floor:
            self._late[rank] += len(piece.steps)
            return
        if at not in self._pending:
            self._pending[at], self._since[at] = {}, monotonic()
        self._pending[at].setdefault(rank, []).append(piece)
        self._values += len(piece.steps) * len(piece.columns)

    def behind(self, step: int) -> list[int]:
        """Return the ranks that have not ended and have not sent their rows up to this step."""
        running = (rank for rank in range(self._world) if rank not in self._ended)
        return [rank for rank in running if self._upto.get(rank, step) <= step]

    def records(self, *, rest: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the records of windows that are complete, and forget these.

        A window is complete when every rank that has not ended has passed its end. Ranks that have not sent a row yet
        are waited for 60 s, rank 0 and those that have sent some for as long as it takes; none is waited for when
        more than two windows lie here with a million values.

        Args:
            rest: Yield the others too, with what there is.
        """
        for at in sorted(self._pending):
            if not (rest or self.is_full or self._is_complete(at)):
                return
            slices = self._pending.pop(at)
            del self._since[at]
            self._values -= sum(len(p.steps) * len(p.columns) for pieces in slices.values() for p in pieces)
            self._floor = at + 1
            if self.others:
                yield from records(slices, self._world)

    def _is_complete(self, at: int) -> bool:
        behind = self.behind((at + 1) * self._window - 1)
        if not behind:
            return True
        return not (self._upto.keys() | {0}).intersection(behind) and monotonic() - self._since[at] > _UNHEARD
