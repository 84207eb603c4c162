"""A multi-layer perceptron: linear layers with ReLU between them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


class MLP(nn.Module):  # type: ignore[misc]  # torch is Any to the type check
    """``input_size → layer_sizes… → output_size``; 128, (1024, 512, 256, 128), 128 has 837,632 parameters."""

    def __init__(self, input_size: int, layer_sizes: Sequence[int], output_size: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width, next_width in pairwise((input_size, *layer_sizes, output_size)):
            layers += [nn.Linear(width, next_width), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``(batch, output_size)`` for ``x`` of ``(batch, input_size)``."""
        out: torch.Tensor = self.layers(x)
        return out


class SequentialLinearNet(MLP):
    """The same, as older code makes it."""

    def __init__(self, input_dim: int, output_dim: int, sizes: Sequence[int] | None = None) -> None:
        super().__init__(input_dim, sizes or (), output_dim)
