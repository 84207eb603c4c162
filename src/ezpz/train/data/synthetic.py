"""Images that are made, one by one from their index, and that a network can learn: a smooth pattern per class, moved
and noisy.

A pattern is a sum of the waves that fit into the image up to three times, so that moving it by whole pixels is moving
two small tables of sines; nothing of the size of an image is stored per class. Noise comes from one long strip of
normal numbers: an image takes the piece that begins at its own place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError
from ezpz.train.data.copying import moved

if TYPE_CHECKING:
    import torch

_WAVES = 3
_NOISE = 0.6  # of a pattern's standard deviation
_GREY, _CONTRAST = 0.5, 0.16
_STRIP = 1 << 20
# splitmix64: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", 2014. Written as signed
# numbers.
_GAMMA, _MIX_1, _MIX_2 = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


class SyntheticImages:
    """A data set of any length without memory: an image is a function of seed and index, the same on every rank."""

    def __init__(
        self,
        count: int,
        *,
        classes: int,
        size: int,
        channels: int = 3,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        """Make the tables.

        Args:
            count: Number of images.
            classes: Number of patterns.
            size: Height and width in pixels.
            channels: Colours.
            seed: The same on all ranks.
            device: Where images are made; the CPU by default.

        Raises:
            UsageError: A size is not positive.
        """
        import numpy as np
        import torch

        if min(count, classes, size, channels) < 1:
            raise UsageError(
                f"unusable sizes: {count} images of {channels} x {size} x {size} in {classes} classes (from "
                "SyntheticImages); expected at least 1 of each."
            )
        self._count, self._classes, self._size, self._channels, self._seed = count, classes, size, channels, seed
        self._device = torch.device(device or "cpu")
        # numpy's generator gives the same numbers on every processor; torch's depend on its vector units.
        rng = np.random.default_rng([seed, classes, channels])
        angles = 2 * np.pi * np.arange(size)[:, None] * np.arange(1, _WAVES + 1) / size
        waves = np.concatenate([np.ones((size, 1)), *((np.sqrt(2) * f(angles)) for f in (np.cos, np.sin))], axis=1)
        weights = rng.standard_normal((classes, channels, waves.shape[1], waves.shape[1]))
        weights[..., 0, 0] = 0  # no image is brighter than another as a whole
        weights /= np.sqrt((weights**2).sum(axis=(-2, -1), keepdims=True))
        strip = rng.standard_normal(_STRIP + channels * size * size, dtype=np.float32) * _NOISE * _CONTRAST
        self._waves = self._on_device(waves)
        self._weights = self._on_device(weights * _CONTRAST)
        self._strip = self._on_device(strip)

    def __len__(self) -> int:
        """Return the number of images."""
        return self._count

    def __call__(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Make images.

        Args:
            indices: Which, ``(n,)`` int64 from 0 to ``len(self) - 1``.

        Returns:
            Images, ``(n, channels, size, size)`` float32 from 0 to 1; labels, ``(n,)`` int64. Of an image nothing
            depends on the others.
        """
        import torch

        bits = _mix(moved(indices, self._device) + self._seed * 1_000_003)
        labels = bits % self._classes
        reach = max(1, round(3 * self._size / 28))  # 3 pixels of 28
        places = torch.arange(self._size, device=self._device)
        moves = [(_mix(bits + axis) % (2 * reach + 1) - reach) for axis in (1, 2)]
        rows, columns = (self._waves[(places - move[:, None]) % self._size] for move in moves)
        made = rows[:, None] @ self._weights[labels] @ columns.transpose(1, 2)[:, None]
        pixels = self._channels * self._size * self._size
        starts = _mix(bits + 3) % _STRIP
        pieces = self._strip.as_strided((_STRIP, pixels), (1, 1))
        made += pieces.index_select(0, starts).view(made.shape)
        return made.add_(_GREY).clamp_(0, 1), labels

    def describe(self) -> dict[str, Any]:
        """Return what a run's records should hold."""
        shape = [self._channels, self._size, self._size]
        return {
            "data": "synthetic",
            "samples": self._count,
            "classes": self._classes,
            "shape": shape,
            "data_seed": self._seed,
        }

    def _on_device(self, table: Any) -> torch.Tensor:
        import torch

        return torch.from_numpy(table).to(torch.float32).to(self._device)


def _mix(value: torch.Tensor) -> torch.Tensor:
    """Return well-mixed bits of each number, from 0 to 2^62 - 1; products wrap around, as they should."""
    value = value * _GAMMA
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        value = (value ^ (value >> shift & (1 << 64 - shift) - 1)) * factor
    return (value ^ (value >> 31 & (1 << 33) - 1)) & (1 << 62) - 1
