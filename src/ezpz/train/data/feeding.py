"""Batches of a rank as a function of the position alone, and each sample once for evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError
from ezpz.train.data.copying import moved
from ezpz.train.data.place import epoch_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from ezpz.train.data.tokens import Tokens

    Batch = tuple[torch.Tensor, torch.Tensor]
    import torch


# Which samples a rank sees at a step: a pure function of seed and step, so that it resumes anywhere.


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

    @property
    def global_batch_size(self) -> int:
        """Samples of all ranks in one batch."""
        return self._batch_size * self._world_size

    @property
    def order(self) -> tuple[int, int]:
        """Samples of an epoch, and the seed of its order."""
        return self._samples, self._seed

    def __call__(self, step: int) -> torch.Tensor:
        """Return the indices of this rank's samples at ``step``, ``(batch_size,)`` int64."""
        return self.at(step * self.global_batch_size)

    def at(self, consumed: int) -> torch.Tensor:
        """Return the indices of this rank's next samples when all ranks together have consumed so many."""
        import torch

        positions, epochs = self._places(consumed)
        first, last = int(epochs[0]), int(epochs[-1])
        if first == last:
            return self._order(first)[positions - first * self._samples]
        return torch.cat(
            [self._order(epoch)[positions[epochs == epoch] - epoch * self._samples] for epoch in range(first, last + 1)]
        )

    def epochs_at(self, consumed: int) -> torch.Tensor:
        """Return the epoch of each of these samples, ``(batch_size,)`` int64."""
        return self._places(consumed)[1]

    def _places(self, consumed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the places of this rank's next samples in the stream, and their epochs."""
        import torch

        start = consumed + self._rank * self._batch_size
        positions = torch.arange(start, start + self._batch_size)
        return positions, positions // self._samples

    def _order(self, epoch: int) -> torch.Tensor:
        if epoch not in self._orders:
            self._orders = {
                k: v for k, v in self._orders.items() if k >= epoch - 1
            }  # an epoch that is over is not kept
            self._orders[epoch] = epoch_order(self._samples, self._seed, epoch)
        return self._orders[epoch]


class _Batches:
    """Batches of the samples that `BatchIndices` tells, as a function of the position.

    A run that is resumed with another batch size or other ranks continues exactly (`at`).

    Attributes:
        picked: Indices of the samples of the batch that was made last, on the host; of shifted sequences, where they
            begin.
    """

    def __init__(self, order: BatchIndices) -> None:
        self._indices = order
        self.picked: torch.Tensor | None = None

    @property
    def global_batch_size(self) -> int:
        """Samples of all ranks in one batch."""
        return self._indices.global_batch_size

    @property
    def order(self) -> tuple[int, int]:
        """Samples of an epoch, and the seed of its order."""
        return self._indices.order

    def __call__(self, position: int) -> Any:
        """Return this rank's batch; the same position gives the same batch in any order and after a restart."""
        return self.at(position * self.global_batch_size)

    def at(self, consumed: int) -> Any:
        """Return this rank's next batch when all ranks together have consumed so many samples."""
        self.picked = self._indices.at(consumed)
        return self.take(self.picked)

    def take(self, indices: torch.Tensor) -> Any:
        """Return the samples with these indices, ``(n,)`` int64."""
        raise NotImplementedError


class PickedBatches(_Batches):
    """Batches of what a function makes of their indices: ``PickedBatches(order, pick)(position)``."""

    def __init__(self, order: BatchIndices, pick: Callable[[torch.Tensor], Any]) -> None:
        """Take both.

        Args:
            order: Which samples come.
            pick: Called with indices, ``(n,)`` int64; returns the batch.
        """
        super().__init__(order)
        self._pick = pick

    def take(self, indices: torch.Tensor) -> Any:
        """Return what the function makes of these indices."""
        return self._pick(indices)


def shard_indices(samples: int, rank: int | None = None, world_size: int | None = None) -> torch.Tensor:
    """Return which samples a rank evaluates: over all ranks each exactly once, nothing is padded.

    Args:
        samples: Number of samples.
        rank: By default this rank's data-parallel coordinate; ranks of one replica evaluate the same samples.
        world_size: By default the data-parallel degree.

    Returns:
        ``(n,)`` int64, ascending, one after the other; the numbers of two ranks differ by one at most.
    """
    import torch

    mine, ranks = _place(rank, world_size)
    return torch.arange(samples * mine // ranks, samples * (mine + 1) // ranks)


class _OwnBatches(_Batches):
    """What image and token batches share: a stream cut for this rank, and each sample once for evaluation."""

    def __init__(self, samples: int, batch_size: int, rank: int | None, world_size: int | None, seed: int) -> None:
        self._samples, self._batch_size, self._seed = samples, batch_size, seed
        self._rank, self._world_size = _place(rank, world_size)
        super().__init__(BatchIndices(samples, batch_size, rank=self._rank, world_size=self._world_size, seed=seed))

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._samples

    def once(self, batch_size: int | None = None) -> Iterator[Batch]:
        """Yield this rank's part of all samples, each once, in order: for evaluation.

        All ranks yield equally often, because a sharded model waits for all ranks in every batch: where one has no
        samples left, its last batch is empty. Weigh by the number of samples, not by the number of batches.
        """
        size = batch_size or self._batch_size
        longest = -(-self._samples // self._world_size)
        mine = shard_indices(self._samples, self._rank, self._world_size)
        for start in range(0, longest, size):
            yield self.take(mine[start : start + size])

    def describe(self) -> dict[str, Any]:
        """Return what a run's records should hold."""
        return {
            "samples": self._samples,
            "batch_size": self._batch_size,
            "global_batch_size": self._batch_size * self._world_size,
            "data_parallel": self._world_size,
            "data_seed": self._seed,
        }


class ImageBatches(_OwnBatches):
    """Batches of images: ``batches(position)`` gives ``(batch_size, C, H, W)`` float32 from 0 to 1, and labels."""

    def __init__(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        batch_size: int,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        """Prepare the stream.

        Args:
            x: Images, ``(N, C, H, W)`` or ``(N, H, W)``, uint8 or float32.
            y: Labels, ``(N,)`` int64.
            batch_size: Images of this rank per batch.
            rank: By default this rank's data-parallel coordinate.
            world_size: By default the data-parallel degree.
            seed: Of the order, the same on all ranks.
            device: Where all images are kept and batches are cut; by default where they are.

        Raises:
            UsageError: Images and labels do not fit together, or a size is not positive.
        """
        if x.dim() not in {3, 4} or len(x) != len(y):
            raise UsageError(
                f"unusable images {tuple(x.shape)} with labels {tuple(y.shape)} (from ImageBatches); expected (N, C, "
                "H, W) or (N, H, W), and N labels."
            )
        super().__init__(len(x), batch_size, rank, world_size, seed)
        self._x, self._y = (x[:, None] if x.dim() == 3 else x).to(device), y.to(device)

    def take(self, indices: torch.Tensor) -> Batch:
        """Return the images and labels with these indices."""
        import torch

        indices = moved(indices, self._x.device)
        images = self._x.index_select(0, indices)
        if images.dtype == torch.uint8:
            images = images.to(torch.float32).mul_(1 / 255)
        return images, self._y.index_select(0, indices)


class TokenBatches(_OwnBatches):
    """Batches of sequences: ``batches(position)`` gives tokens ``(batch_size, seq_len)`` int64, and those one place
    later.

    The stream is cut into sequences that follow each other, so that an epoch predicts every token once (but for a rest
    at the end that is shorter than a sequence). With ``shift=True`` the first cut lies elsewhere in every epoch, so
    that no token always begins a sequence; then what is left out, less than two sequences, lies at both ends.
    """

    def __init__(
        self,
        tokens: Tokens | torch.Tensor,
        seq_len: int,
        batch_size: int,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        shift: bool = False,
    ) -> None:
        """Prepare the stream.

        Args:
            tokens: 1-D, int64 or uint16; of `Tokens` the part to train with.
            seq_len: Tokens of a sequence.
            batch_size: Sequences of this rank per batch.
            rank: By default this rank's data-parallel coordinate.
            world_size: By default the data-parallel degree.
            seed: Of the order, the same on all ranks.
            device: Where the stream is kept and batches are cut; by default where it is. Not for files larger than the
                device.
            shift: Cut at other places in each epoch; a function of the seed and the epoch alone.

        Raises:
            UsageError: The stream is shorter than one sequence and a token, or a size is not positive.
        """
        import torch

        stream = tokens if isinstance(tokens, torch.Tensor) else tokens.train
        least = 2 * max(1, seq_len) if shift else max(1, seq_len) + 1
        if seq_len < 1 or len(stream) < least:
            raise UsageError(
                f"cannot cut sequences of {seq_len} out of {len(stream)} tokens (from TokenBatches); expected at least "
                f"{least} tokens{' with shift=True' if shift else ''}. Use a shorter sequence length, or more data."
            )
        lost = seq_len - 1 if shift else 0  # the largest shift
        super().__init__((len(stream) - 1 - lost) // seq_len, batch_size, rank, world_size, seed)
        self._seq_len, self._shift = seq_len, shift
        # torch's unsigned 16-bit numbers can do next to nothing: they travel as signed ones.
        self._short = stream.dtype == torch.uint16
        stream = (stream.view(torch.int16) if self._short else stream).to(device)
        # Views of all sequences that there are: one may begin at any token.
        self._x, self._y = (part.unfold(0, seq_len, 1) for part in (stream[:-1], stream[1:]))

    def at(self, consumed: int) -> Any:
        """Return this rank's next batch when all ranks together have consumed so many samples."""
        if not self._shift:
            return super().at(consumed)
        import torch

        epochs = self._indices.epochs_at(consumed)
        shifts = {epoch: self._shift_of(epoch) for epoch in epochs.unique().tolist()}
        shifted = torch.tensor([shifts[epoch] for epoch in epochs.tolist()])
        self.picked = self._indices.at(consumed) * self._seq_len + shifted
        return self._cut(self.picked)

    def _shift_of(self, epoch: int) -> int:
        import torch

        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        return int(torch.randint(self._seq_len, (), generator=generator))

    def take(self, indices: torch.Tensor) -> Batch:
        """Return the sequences with these indices, and what follows each of their tokens; they are not shifted."""
        return self._cut(indices * self._seq_len)

    def _cut(self, begins: torch.Tensor) -> Batch:
        """Return the sequences that begin at these tokens, and what follows each of their tokens."""
        begins = moved(begins, self._x.device)
        x, y = self._x.index_select(0, begins), self._y.index_select(0, begins)
        if self._short:
            return x.long() & 0xFFFF, y.long() & 0xFFFF
        return x.long(), y.long()

    def describe(self) -> dict[str, Any]:
        """Return what a run's records should hold."""
        return {**super().describe(), "seq_len": self._seq_len, **({"shift": True} if self._shift else {})}


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return this rank's place among those that see different data, and their number.

    Raises:
        UsageError: One of the two is given alone, or they do not fit.
    """
    if rank is None and world_size is None:
        from ezpz.dist import coordinate, degree
        from ezpz.dist.wrapped_models import mesh_of_data

        mesh = mesh_of_data()
        return coordinate(mesh, "dp"), degree(mesh, "dp")
    if rank is None or world_size is None or not 0 <= rank < world_size:
        raise UsageError(
            f"unusable rank={rank} of world_size={world_size} (from the batches); expected both, the rank below the "
            "world size."
        )
    return rank, world_size
