"""Python's garbage collection between steps instead of within them.

It begins by itself after so many new objects, at another moment on every rank, and a rank that collects for 100 ms lets all
others wait in the next collective. So it is switched off, and every rank collects at the same steps.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Collecting"]

_YOUNG = 1  # generation: what has lived through a collection of new objects is left for the whole collection at the end


class Collecting:
    """A block in which garbage is collected every n steps; with 0 it is left to Python."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._was_on = False

    def __enter__(self) -> Collecting:  # noqa: PYI034  # `Self` needs Python 3.11
        self._was_on = gc.isenabled()
        if self._every:
            gc.collect()
            gc.disable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._every and self._was_on:
            gc.enable()

    def step(self, done: int) -> None:
        """Collect if it is time; ``done`` is the number of steps done."""
        if self._every and done % self._every == 0:
            gc.collect(_YOUNG)
