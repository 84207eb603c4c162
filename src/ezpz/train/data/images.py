"""Images with labels, by name: real ones where they can be had; in place of known ones made ones, with a warning."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    import os

    import torch

    Part = tuple[torch.Tensor, torch.Tensor]
    import torch


# Real input without a network: the handwritten digits of the UCI set, shipped with the package (see digits.md).


def load_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return all 1,797 digits.

    Returns:
        Images, ``(1797, 64)`` float32 from 0 to 1, pixels row by row; labels, ``(1797,)`` int64 from 0 to 9.
    """
    import numpy as np
    import torch

    packed = files("ezpz.train").joinpath("digits.csv.gz").read_bytes()
    table = np.loadtxt(gzip.decompress(packed).decode("ascii").splitlines(), delimiter=",", dtype=np.float32)
    return torch.from_numpy(table[:, :64] / 16), torch.from_numpy(table[:, 64].astype(np.int64))


# name: classes, channels, size, images to train with, images to test with
_SHAPES = {
    "mnist": (10, 1, 28, 60_000, 10_000),
    "fashion_mnist": (10, 1, 28, 60_000, 10_000),
    "cifar10": (10, 3, 32, 50_000, 10_000),
    "synthetic": (10, 1, 28, 16_384, 2_048),
}
_NAMES = (*_SHAPES, "digits")


@dataclass(frozen=True)
class Images:
    """Images ``(N, C, H, W)``, uint8 or float32 from 0 to 1, with labels ``(N,)`` int64.

    Attributes:
        name: What was asked for.
        origin: Where it came from, in one line.
        classes: Number of classes.
        train: Images and labels to train with.
        test: Images and labels to test with.
    """

    name: str
    origin: str
    classes: int
    train: Part
    test: Part

    def describe(self) -> dict[str, Any]:
        """Return what a run's records should hold."""
        return {
            "data": self.name,
            "data_origin": self.origin,
            "classes": self.classes,
            "shape": list(self.train[0].shape[1:]),
            "train_samples": len(self.train[0]),
            "test_samples": len(self.test[0]),
        }


def load_images(
    name: str = "mnist", *, folder: str | os.PathLike[str] | None = None, download: bool = True, seed: int = 0
) -> Images:
    """Return a data set of images on the CPU, the same on all ranks; all ranks must call.

    Those that do not ship are read, and downloaded by one rank per host, with the package `datasets`. Where the first
    three cannot be had, images of their shape are made, with one line of warning.

    Args:
        name: ``mnist``, ``fashion_mnist``, ``cifar10``, ``digits`` (shipped), ``synthetic`` (made) or
            ``hf:NAME[@CONFIGURATION]``.
        folder: Where `datasets` keeps its files; its own cache by default.
        download: False forbids to use the network; `datasets` needs HF_HUB_OFFLINE=1 for that.
        seed: Of made images; the split of real ones never changes.

    Raises:
        UsageError: Unknown name, or no images with labels.
        MachineError: Some hosts have the data and others cannot get it, or none can get what hf: names.
    """
    if name == "digits":
        return _digits()
    if name == "synthetic":
        return _synthetic(name, "synthetic (asked for)", seed)
    if name not in _SHAPES and not name.startswith("hf:"):
        hint = did_you_mean(name.lower().replace("-", "_"), _NAMES)
        raise UsageError(
            f"unknown images {name!r} (from load_images); expected one of {', '.join(_NAMES)}, hf:NAME.{hint}"
        )
    from ezpz.train.data.agreement import agreed, missing_everywhere
    from ezpz.train.data.catalog import hub_name
    from ezpz.train.data.hugging_face_data import read_images

    full_name = hub_name(name, "load_images")

    @cache
    def read() -> tuple[Part, Part, int]:
        found = read_images(full_name, folder, may_download=download)
        return _as_part(*found.train), _as_part(*found.test), found.classes

    problem = missing_everywhere(read, name)
    if problem is not None and name in _SHAPES:
        return _fall_back(name, str(problem), seed)
    if problem is not None:
        raise problem
    train, test, classes = agreed(read, name, _mark)
    return Images(name, f"Hugging Face {full_name}", classes, train, test)


def _as_part(images: Any, labels: Any) -> Part:
    import numpy as np
    import torch

    return torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels)


def _mark(parts: tuple[Part, Part, int]) -> list[Any]:
    """Return what tells two data sets apart, without looking at every pixel."""
    return [(tuple(images.shape), labels.sum().item(), images[-1]) for images, labels in parts[:2]]


def _digits() -> Images:
    import numpy as np
    import torch

    images, labels = load_digits()
    images = images.view(-1, 1, 8, 8)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(images)))  # the file is ordered by writers
    train, test = order[:1437], order[1437:]
    return Images("digits", "shipped with ezpz", 10, (images[train], labels[train]), (images[test], labels[test]))


def _fall_back(name: str, reason: str, seed: int) -> Images:
    from ezpz.train.data.agreement import warn_once

    warn_once(f"data=synthetic ({reason}) These are not {name}: accuracies mean nothing outside of this run.")
    return _synthetic(name, f"synthetic ({reason})", seed)


def _synthetic(name: str, origin: str, seed: int) -> Images:
    """Make a data set of the shape of the real one, in uint8."""
    import torch

    from ezpz.train.data.synthetic import SyntheticImages

    classes, channels, size, trained, tested = _SHAPES[name]
    make = SyntheticImages(trained + tested, classes=classes, size=size, channels=channels, seed=seed)
    images = torch.empty(len(make), channels, size, size, dtype=torch.uint8)
    labels = torch.empty(len(make), dtype=torch.int64)
    for chunk in torch.arange(len(make)).split(2048):
        made, labels[chunk] = make(chunk)
        images[chunk] = made.mul_(255).round_().to(torch.uint8)
    train, test = (images[:trained], labels[:trained]), (images[trained:], labels[trained:])
    return Images(name, origin, classes, train, test)
