"""Your own images: a folder of images by class, decoded, cut and resized by threads beside the training.

pets/cats/1.jpg  pets/dogs/2.png ...                     every tenth image of a class is kept for tests
pets/train/cats/1.jpg ... and pets/val/cats/2.jpg ...    or the folder says itself what is for tests (val, test)
"""

from __future__ import annotations

import os
import random
from argparse import ArgumentTypeError
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError, did_you_mean
from ezpz.train.data.feeding import PickedBatches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from ezpz.train.data.feeding import BatchIndices

    Batch = tuple[torch.Tensor, torch.Tensor]

PREFIX = "images:"
_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
_TEST_PARTS = ("val", "valid", "validation", "test")
_HELD_OUT = 10  # every so many images of a class, where the folder does not say it
_BORDER = 1.15  # an image for tests is resized to so much more than it is cut to
_LEAST_AREA = 0.35  # of an image, that a crop shows
_MOST_WORKERS = 8
_AHEAD = 2  # batches that are made before they are asked for


class ImageFolder:
    """Images of a folder by index: those to train with first, then those to test with.

        folder = ImageFolder("pets", size=224)
        images, labels = folder.take(indices)        # the middle of each, always the same
        batches = folder.augmented(order, seed=1)    # crops and flips, made ahead by threads

    Attributes:
        classes: Names of the classes, in alphabetical order; a label is a place in it.
        trained: How many images there are to train with.
        tested: How many there are to test with.
        size: Pixels of a side of what `take` returns; images have three channels.
    """

    channels = 3

    def __init__(self, folder: str | os.PathLike[str], size: int, *, workers: int | None = None) -> None:
        """Look for the images; every rank calls it.

        Args:
            folder: See above.
            size: Pixels of a side, to which images are cut and resized.
            workers: Threads that decode; by default as many as this rank has cores, 8 at most.

        Raises:
            UsageError: Pillow is not installed, or the folder has no images by class.
            MachineError: Hosts hold different files.
        """
        from ezpz.train.data.agreement import agreed

        self._image = _pillow()
        self.folder, self.size = Path(folder).expanduser(), size
        found = agreed(lambda: _look(self.folder), f"{PREFIX}{folder}", lambda found: found)
        self.classes, train, test = found
        self.trained, self.tested = len(train), len(test)
        self._files = [*train, *test]
        self._pool = ThreadPoolExecutor(workers or _workers(), thread_name_prefix="ezpz-images")

    def describe(self) -> dict[str, Any]:
        """Return what a run's records should hold."""
        return {
            "data": f"{PREFIX}{self.folder}",
            "data_origin": f"files of {self.folder}",
            "classes": len(self.classes),
            "shape": [self.channels, self.size, self.size],
            "train_samples": self.trained,
            "test_samples": self.tested,
        }

    def take(self, indices: torch.Tensor) -> Batch:
        """Return the middles of images, ``(n, 3, size, size)`` float32 from 0 to 1, and labels, ``(n,)`` int64."""
        chosen = indices.tolist()
        return self.finish([self._pool.submit(self._middle, index) for index in chosen], chosen)

    def augmented(self, order: BatchIndices, *, seed: int) -> PickedBatches:
        """Return batches by position, each image cut at random and flipped in half of the cases.

        How an image is cut and flipped follows from seed, epoch and image alone, whatever the number of ranks and the
        batch size; the next batches are made while the model works on one.

        Args:
            order: Which images come; its batch size is that of the batches.
            seed: Of crops and flips.
        """
        return _AugmentedBatches(self, order, seed)

    def begin(self, indices: list[int], epochs: list[int], seed: int) -> list[Future[Any]]:
        """Begin to make the crops that these images have in these epochs."""
        each = zip(indices, epochs, strict=True)
        return [self._pool.submit(self._part, index, f"{seed} {epoch} {index}") for index, epoch in each]

    def finish(self, tasks: list[Future[Any]], indices: list[int]) -> Batch:
        """Return the images that the tasks make, and their labels."""
        import numpy as np
        import torch

        labels = torch.tensor([self._files[index][1] for index in indices], dtype=torch.int64)
        if not tasks:
            return torch.empty(0, self.channels, self.size, self.size), labels
        pixels = torch.from_numpy(np.stack([task.result() for task in tasks]))
        return pixels.permute(0, 3, 1, 2).to(torch.float32).mul_(1 / 255).contiguous(), labels

    def _open(self, index: int) -> Any:
        """Return an image as it is meant to be seen: turned as its camera says, in three colours."""
        path = self.folder / self._files[index][0]
        ops = import_module("PIL.ImageOps")
        try:
            with self._image.open(path) as image:
                image.draft("RGB", (2 * self.size, 2 * self.size))  # a JPEG is decoded at a fraction of its size
                return ops.exif_transpose(image).convert("RGB")
        except (OSError, ValueError, SyntaxError, self._image.DecompressionBombError) as error:
            raise UsageError(
                f"cannot read the image {path}: {str(error) or type(error).__name__} (from {PREFIX}{self.folder}); "
                "expected an image that Pillow can decode. Remove the file, or save it anew."
            ) from error

    def _resized(self, image: Any, box: tuple[float, float, float, float]) -> Any:
        import numpy as np

        size = (self.size, self.size)
        return np.asarray(image.resize(size, self._image.Resampling.BILINEAR, box=box, reducing_gap=2.0))

    def _middle(self, index: int) -> Any:
        image = self._open(index)
        width, height = image.size
        side = min(width, height) / _BORDER
        left, top = (width - side) / 2, (height - side) / 2
        return self._resized(image, (left, top, left + side, top + side))

    def _part(self, index: int, seed: str) -> Any:
        image = self._open(index)
        width, height = image.size
        draw = random.Random(seed)  # noqa: S311  # of a text: the same in every process
        area, ratio = draw.uniform(_LEAST_AREA, 1.0) * width * height, draw.uniform(3 / 4, 4 / 3)
        wide, high = min(width, (area * ratio) ** 0.5), min(height, (area / ratio) ** 0.5)
        left, top = draw.uniform(0, width - wide), draw.uniform(0, height - high)
        pixels = self._resized(image, (left, top, left + wide, top + high))
        return pixels[:, ::-1] if draw.random() < 0.5 else pixels


class _AugmentedBatches(PickedBatches):
    """Batches of a folder's images to train with: see `ImageFolder.augmented`."""

    def __init__(self, folder: ImageFolder, order: BatchIndices, seed: int) -> None:
        super().__init__(order, folder.take)
        self._folder, self._seed = folder, seed
        self._waiting: deque[tuple[int, list[int], list[Future[Any]]]] = deque()

    def at(self, consumed: int) -> Batch:
        """Return this rank's next batch when all ranks together have consumed so many images."""
        if not self._waiting or self._waiting[0][0] != consumed:  # the first, or a run that begins elsewhere
            for *_, tasks in self._waiting:
                for task in tasks:
                    task.cancel()
            self._waiting.clear()
            self._begin(consumed)
        while len(self._waiting) <= _AHEAD:
            self._begin(self._waiting[-1][0] + self.global_batch_size)
        _, indices, tasks = self._waiting.popleft()
        return self._folder.finish(tasks, indices)

    def _begin(self, consumed: int) -> None:
        indices = self._indices.at(consumed).tolist()
        tasks = self._folder.begin(indices, self._indices.epochs_at(consumed).tolist(), self._seed)
        self._waiting.append((consumed, indices, tasks))


def image_folder_name(word: str) -> str:
    """Return the folder of a data set's name, ``images:FOLDER``; empty if it is another one."""
    return word.removeprefix(PREFIX) if word.startswith(PREFIX) else ""


def image_data(names: Sequence[str]) -> Callable[[str], str]:
    """Return the type of an option that takes one of these names, ``images:FOLDER`` or ``hf:NAME``."""

    def known(word: str) -> str:
        if word in names or image_folder_name(word) or word.removeprefix("hf:") not in {word, ""}:
            return word
        hint, expected = did_you_mean(word, names), f"{', '.join(names)}, {PREFIX}FOLDER or hf:NAME"
        raise ArgumentTypeError(f"{word!r} is no data set.{hint} Expected {expected}")

    return known


def _pillow() -> Any:
    try:
        return import_module("PIL.Image")
    except ImportError as error:
        raise UsageError(
            f"{PREFIX}FOLDER needs the package pillow to decode images (from the name of the data), which is not "
            "installed. Type `python3 -m pip install pillow`."
        ) from error


def _workers() -> int:
    """Return how many threads decode: the cores of this rank, or its share of those that ranks of a host share."""
    from ezpz.dist.job_around import this_rank

    there = os.cpu_count() or 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else there
    share = cores // this_rank().local_world_size if cores == there else cores
    return max(1, min(_MOST_WORKERS, share))


def _look(folder: Path) -> tuple[list[str], list[tuple[str, int]], list[tuple[str, int]]]:
    """Return the classes, and the files to train and to test with, relative to the folder and with their labels."""
    train = folder / "train"
    tests = [folder / name for name in _TEST_PARTS if (folder / name).is_dir()]
    if train.is_dir():
        by_class = _by_class(train)
        if tests:
            held_out = _by_class(tests[0])
            strange = sorted(held_out.keys() - by_class.keys())
            if strange:
                raise UsageError(
                    f"the class {strange[0]!r} is in {tests[0]} and not in {train} (from {PREFIX}{folder}); expected "
                    "the classes of the training."
                )
            classes = sorted(by_class)
            return classes, _listed(by_class, classes, folder), _listed(held_out, classes, folder)
    else:
        by_class = _by_class(folder)
    classes = sorted(by_class)
    kept = {name: files[_HELD_OUT - 1 :: _HELD_OUT] for name, files in by_class.items()}
    rest = {name: [file for file in files if file not in set(kept[name])] for name, files in by_class.items()}
    return classes, _listed(rest, classes, folder), _listed(kept, classes, folder)


def _listed(by_class: dict[str, list[Path]], classes: list[str], folder: Path) -> list[tuple[str, int]]:
    labels = {name: label for label, name in enumerate(classes)}
    return [(path.relative_to(folder).as_posix(), labels[name]) for name in classes for path in by_class.get(name, ())]


def _by_class(folder: Path) -> dict[str, list[Path]]:
    """Return the images of each sub-folder, however deep, in the order of their names."""
    try:
        names = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise UsageError(
            f"cannot read {folder}: {error.strerror} (from {PREFIX}{folder}); expected a folder with one folder of "
            "images per class."
        ) from error
    found = {path.name: sorted(each for each in path.rglob("*") if each.suffix.lower() in _SUFFIXES) for path in names}
    found = {name: files for name, files in found.items() if files}
    if len(found) < 2:
        have = f"images of {next(iter(found))!r} alone" if found else "no images in folders"
        raise UsageError(
            f"{folder} has {have} (from {PREFIX}{folder}); expected one folder per class, two or more, with images "
            f"({', '.join(sorted(_SUFFIXES))}): {folder}/CLASS/IMAGE.jpg."
        )
    return found
