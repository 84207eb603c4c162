"""Look at what each step of a loop sees, for the run's record: `Seeing`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ezpz.dist import coordinate, degree
from ezpz.dist.wrapped_models import mesh_of
from ezpz.track.step_states import EVERY, BatchSeen, Seen, together
from ezpz.train.data.checksum import combined
from ezpz.view.effective import LiveSettings, generator_sums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.train.data.checksum import Sum

__all__ = ["Seeing", "together_seen"]


class Seeing:
    """Of each step: the sum of its batches, what changed in optimizer and model, and now and then the generators.

    Args:
        optimizer: Whose settings are looked at.
        model: Whose dropout is looked at.
    """

    def __init__(self, optimizer: Any, model: Any) -> None:
        self._live = LiveSettings(optimizer, model)
        mesh = mesh_of(model)
        self._place, self._places = coordinate(mesh, "dp"), degree(mesh, "dp")
        self._sum: Sum | None = None
        self._has_batch = False
        self._steps = 0

    def add(self, batch: Sum | None) -> None:
        """Take the sum of a batch of this step."""
        self._sum = combined(self._sum, batch) if self._has_batch else batch
        self._has_batch = True

    def end(self, step: int) -> Seen:
        """Return what the step saw, and begin the next one."""
        found, self._sum, self._has_batch = self._sum, None, False
        batch = None if found is None else BatchSeen(*found, self._place, self._places)
        is_due = self._place == 0 and (step % EVERY == 0 or not self._steps)
        self._steps += 1
        return Seen(batch, generator_sums() if is_due else {}, self._live.changed())


def together_seen(each: Sequence[Seen]) -> Seen:
    """Return what several steps saw as one."""
    settings: dict[str, float] = {}
    generators: dict[str, int] = {}
    for one in each:
        settings |= one.settings
        generators |= one.generators
    return Seen(together([one.batch for one in each]), generators, settings)
