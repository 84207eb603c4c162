"""A small convolutional network for images of digits: two convolutions, one pooling, two linear layers.

The shape is that of the MNIST example which many trainers start from, with its names of layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn.functional import max_pool2d, relu

from ezpz.errors import UsageError

if TYPE_CHECKING:
    import torch


class CNN(nn.Module):  # type: ignore[misc]  # torch is Any to the type check
    """Images to logits; take the loss with ``cross_entropy``.

    Has 1,199,882 parameters for images of 28 x 28 (MNIST), and 151,306 for 8 x 8 (the shipped digits) with
    ``padding=1``. Weights start as torch's own layers draw them. ``eval()`` turns the dropout off.

    Args:
        image_size: Height and width in pixels.
        channels: 1 for grey images, 3 for colour.
        classes: Number of logits per image.
        padding: Pixels of zeros around the input of each 3 x 3 convolution: with 0 it takes two from height and width.

    Raises:
        UsageError: Nothing would be left of an image after convolutions and pooling.
    """

    def __init__(self, image_size: int = 28, channels: int = 1, classes: int = 10, padding: int = 0) -> None:
        super().__init__()
        pooled = (image_size + 4 * padding - 4) // 2
        if pooled < 1:
            raise UsageError(
                f"images of {image_size} x {image_size} pixels are too small for the CNN with padding={padding} (from "
                f"image_size); expected at least {max(6 - 4 * padding, 1)}. Use larger images"
                + (", or padding=1." if padding < 1 and image_size > 1 else ".")
            )
        self.conv1 = nn.Conv2d(channels, 32, 3, padding=padding)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=padding)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(64 * pooled * pooled, 128)
        self.fc2 = nn.Linear(128, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits ``(batch, classes)`` for images ``(batch, channels, image_size, image_size)``."""
        x = relu(self.conv2(relu(self.conv1(x))))
        x = self.dropout1(max_pool2d(x, 2)).flatten(1)
        logits: torch.Tensor = self.fc2(self.dropout2(relu(self.fc1(x))))
        return logits
