"""A vision transformer (Dosovitskiy et al. 2020, arXiv:2010.11929), without class token: the mean over patches is
classified.

    image (B, 3, 224, 224) → patches (B, 196, 1024) + learned positions → 24 blocks → mean over patches → norm → head
    (B, 1000)

The defaults are ViT-L/16 with 304,250,856 parameters; the projection to queries, keys and values has no bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import gelu, linear

from ezpz.errors import UsageError
from ezpz.models.attention import attend, check_name


@dataclass(frozen=True)
class ViTConfig:
    """Sizes of a `VisionTransformer`.

    Args:
        image_size: Height and width in pixels, a multiple of patch_size.
        patch_size: Height and width of a patch.
        depth: Number of blocks.
        n_heads: Heads of attention.
        head_dim: Features per head; the model's width is ``n_heads * head_dim``.
        classes: Number of logits per image.
        attention: ``math``, ``sdpa``, ``flash``, ``efficient`` or ``cudnn``; ask `check_attention` before training.
        dropout: Part of the features that is zeroed after the positions, and after attention and MLP of each block.
        channels: 3 for colour images, 1 for grey.

    Raises:
        UsageError: The image cannot be cut into patches, or the attention is unknown.
    """

    image_size: int = 224
    patch_size: int = 16
    depth: int = 24
    n_heads: int = 16
    head_dim: int = 64
    classes: int = 1000
    attention: str = "sdpa"
    dropout: float = 0.0
    channels: int = 3

    def __post_init__(self) -> None:
        check_name(self.attention)
        if self.patch_size < 1 or self.image_size < self.patch_size or self.image_size % self.patch_size:
            legal = [size for size in range(1, self.image_size + 1) if self.image_size % size == 0]
            raise UsageError(
                f"images of {self.image_size} pixels cannot be cut into patches of {self.patch_size} (from ViTConfig); "
                "expected a divisor of image_size. Use "
                f"patch_size={min(legal, key=lambda size: abs(size - self.patch_size))}."
            )

    @property
    def dim(self) -> int:
        """Width of the model in features."""
        return self.n_heads * self.head_dim

    @property
    def patches(self) -> int:
        """Number of patches of an image, the length of the sequence."""
        return (self.image_size // self.patch_size) ** 2


class PatchEmbedding(nn.Conv2d):  # type: ignore[misc]  # torch is Any to the type check
    """A convolution whose windows do not overlap, computed as one matrix product.

    The product puts the features of a patch side by side. A convolution puts the patches of a feature there; the sums
    of all blocks would keep that order, and every norm would read and write across it.
    """

    def __init__(self, channels: int, dim: int, size: int) -> None:
        super().__init__(channels, dim, size, stride=size)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return ``(batch, patches, dim)`` for images ``(batch, channels, height, width)``."""
        size = self.kernel_size[0]
        # (batch, channels, rows, size, columns, size)
        windows = images.unflatten(3, (-1, size)).unflatten(2, (-1, size))
        patches = windows.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        return linear(patches, self.weight.flatten(1), self.bias)


class Attention(nn.Module):  # type: ignore[misc]  # torch is Any to the type check
    """Every patch looks at every other: ``(batch, patches, dim)`` to the same shape."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.attention, self.head_dim = config.attention, config.head_dim
        self.qkv = nn.Linear(config.dim, 3 * config.dim, bias=False)
        self.proj = nn.Linear(config.dim, config.dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return attention for ``x`` of ``(batch, patches, dim)``."""
        batch, length, _ = x.shape
        parts = self.qkv(x).chunk(3, dim=-1)  # their gradients are joined in one pass
        q, k, v = (part.view(batch, length, -1, self.head_dim).transpose(1, 2) for part in parts)
        y = attend(self.attention, q, k, v)
        out: torch.Tensor = self.proj(y.transpose(1, 2).reshape(batch, length, -1))
        return out


class FeedForward(nn.Module):  # type: ignore[misc]  # torch is Any to the type check
    """Two linear layers with GELU between them, four times as wide inside."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``(batch, patches, dim)`` for ``x`` of the same shape."""
        out: torch.Tensor = self.fc2(gelu(self.fc1(x)))
        return out


class Block(nn.Module):  # type: ignore[misc]  # torch is Any to the type check
    """Attention and MLP, each on a normalised input and added to what came in."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.dim)
        self.attn = Attention(config)
        self.norm2 = nn.LayerNorm(config.dim)
        self.mlp = FeedForward(config.dim)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``(batch, patches, dim)`` for ``x`` of the same shape."""
        x = x + self.dropout(self.attn(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class VisionTransformer(nn.Module):  # type: ignore[misc]  # torch is Any to the type check
    """Images to logits; take the loss with ``cross_entropy``."""

    def __init__(self, config: ViTConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or ViTConfig()
        device = torch.get_default_device()
        with torch.device("meta"):  # numbers are drawn once, by init_weights, so that a model filled later has the same
            self.patch_embed = PatchEmbedding(config.channels, config.dim, config.patch_size)
            self.pos_embed = nn.Parameter(torch.empty(config.patches, config.dim))
            self.dropout = nn.Dropout(config.dropout)
            self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
            self.norm = nn.LayerNorm(config.dim)
            self.head = nn.Linear(config.dim, config.classes)
        self.to_empty(device=device)
        self.init_weights()

    def init_weights(self) -> None:
        """Draw weights and positions from a normal of 0.02, cut at two deviations; biases are 0, norms 1."""
        _draw(self.pos_embed)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                _draw(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits ``(batch, classes)`` for images ``(batch, channels, image_size, image_size)``.

        Raises:
            UsageError: The images are of another shape.
        """
        expected = (self.config.channels, self.config.image_size, self.config.image_size)
        if tuple(x.shape[1:]) != expected:
            raise UsageError(
                f"images of shape {tuple(x.shape)} do not fit this model; expected (batch, "
                f"{', '.join(map(str, expected))}) (from ViTConfig). Resize them, or make the model with their "
                "image_size and channels."
            )
        x = self.dropout(self.patch_embed(x) + self.pos_embed)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x.mean(1)))
        return logits


def _draw(weight: torch.Tensor) -> None:
    nn.init.trunc_normal_(weight, std=0.02, a=-0.04, b=0.04)
