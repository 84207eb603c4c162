"""Let a stream that the training process reads itself draw random numbers of its own, apart from the training's.

A stream that shuffles itself must come in one order on all ranks, but the process' generators are at different places
there as soon as one rank draws more than another, as dropout does. A worker has generators of its own. Without one the
process' own are exchanged for as long as the stream is read, and are as they were afterwards: 30 µs per step. (Only
the second of a pair of `numpy.random.normal` is drawn anew: numpy keeps it outside of what can be exchanged.)
"""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch

_END = object()


def drawn_apart(items: Iterable[Any], generator: torch.Generator) -> Iterator[Any]:
    """Yield items, of which all that is drawn from Python's, numpy's and torch's generators is apart from other draws.

    Args:
        items: Read by this process.
        generator: Gives the seed, from which a DataLoader's only worker would draw the same numbers.
    """
    numbers = _Numbers(generator)
    numbers.exchange()
    try:
        iterator = iter(items)
    finally:
        numbers.exchange()
    while True:
        numbers.exchange()
        try:
            item = next(iterator, _END)
        finally:
            numbers.exchange()
        if item is _END:
            return
        yield item


@contextmanager
def numbers_from(seed: int) -> Iterator[None]:
    """Let all that is drawn inside follow from a seed, and leave the process' generators as they were."""
    import torch

    numbers = _Numbers(torch.Generator().manual_seed(seed))
    numbers.exchange()
    try:
        yield
    finally:
        numbers.exchange()


class _Numbers:
    """States of the three generators of a process, to be exchanged with those that are in use."""

    def __init__(self, generator: torch.Generator) -> None:
        import torch

        seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
        self._torch = torch.Generator().manual_seed(seed).get_state()
        self._python = random.Random(seed).getstate()  # noqa: S311  # for data
        numpy = sys.modules.get("numpy")
        self._numpy: Any = None
        if numpy is not None:
            self._numpy = numpy.random.MT19937()
            self._numpy._legacy_seeding(_words_for_numpy(seed))  # noqa: SLF001  # as numpy.random.seed does

    def exchange(self) -> None:
        """Put these states into use, and keep those that were."""
        import torch

        default = torch.default_generator
        now = default.get_state()
        default.set_state(self._torch)
        python = random.getstate()
        random.setstate(self._python)
        self._torch, self._python = now, python
        if self._numpy is not None:
            in_use = sys.modules["numpy"].random.get_bit_generator()
            sys.modules["numpy"].random.set_bit_generator(self._numpy)
            self._numpy = in_use


def _words_for_numpy(seed: int) -> Any:
    """Return what a DataLoader seeds numpy with in its first worker."""
    from torch.utils.data._utils import worker

    return cast("Any", worker)._generate_state(seed, 0)  # noqa: SLF001  # torch has no other way to tell it
