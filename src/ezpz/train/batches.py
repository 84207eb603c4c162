"""Which samples a rank sees at a step: a pure function of seed and step, so that it resumes anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ezpz.errors import UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["BatchIndices"]


class BatchIndices:
    """Indices of the batch of one rank.

    All ranks read one endless stream, the samples shuffled anew in every epoch; the rank only selects its slice. So the
    global batch of a step is the same for every number of ranks, nothing is padded and nothing is dropped.
    """

    def __init__(self, samples: int, batch_size: int, *, rank: int = 0, world_size: int = 1, seed: int = 0) -> None:
        """Describe the stream.

        Args:
            samples: Number of samples in the data set.
            batch_size: Samples per rank and step.
            rank: This rank.
            world_size: Number of ranks that share the global batch.
            seed: Seed of the shuffling, the same on all ranks.

        Raises:
            UsageError: A size is not positive.
        """
        if samples < 1 or batch_size < 1:
            raise UsageError(
                f"unusable sizes: {samples} samples, batch size {batch_size}; expected at least 1 of each."
            )
        self._samples = samples
        self._batch_size = batch_size
        self._rank = rank
        self._world_size = world_size
        self._seed = seed
        self._orders: dict[int, torch.Tensor] = {}

    def __call__(self, step: int) -> torch.Tensor:
        """Return the indices of this rank's samples at ``step``, ``(batch_size,)`` int64."""
        import torch

        start = (step * self._world_size + self._rank) * self._batch_size
        positions = torch.arange(start, start + self._batch_size)
        epochs = positions // self._samples
        first, last = int(epochs[0]), int(epochs[-1])
        if first == last:
            return self._order(first)[positions - first * self._samples]
        return torch.cat(
            [self._order(epoch)[positions[epochs == epoch] - epoch * self._samples] for epoch in range(first, last + 1)]
        )

    def _order(self, epoch: int) -> torch.Tensor:
        if epoch not in self._orders:
            import torch

            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            self._orders = {
                k: v for k, v in self._orders.items() if k >= epoch - 1
            }  # an epoch that is over is not kept
            self._orders[epoch] = torch.randperm(self._samples, generator=generator)
        return self._orders[epoch]
