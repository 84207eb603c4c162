"""Numbers off a device with as few waits as there are kinds of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["fetch"]


def fetch(tensors: Sequence[Tensor]) -> list[float | int | bool]:
    """Return the numbers that tensors hold, with one copy to the host for each pair of device and dtype.

    ``tensor.item()`` waits for the device each time; here tensors of one kind are stacked where they lie and read together.

    Args:
        tensors: Tensors of one element each, of any device, dtype and shape.

    Returns:
        One number per tensor, in their order: an int for whole dtypes, a bool for bool, else a float. Nothing is rounded.

    Raises:
        RuntimeError: A tensor has more than one element, or no value to read (of the meta device).
    """
    import torch

    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place, tensor in enumerate(tensors):
        kinds.setdefault((tensor.device, tensor.dtype), []).append(place)
    numbers: list[float | int | bool] = [0] * len(tensors)
    for places in kinds.values():
        scalars = [tensors[place].detach().reshape(()) for place in places]
        together = torch.stack(scalars).tolist() if len(scalars) > 1 else [scalars[0].item()]
        for place, number in zip(places, together, strict=True):
            numbers[place] = number
    return numbers
