"""Fetch a data set into a folder: what is there and right is kept, what is wrong is replaced, one process at a time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from ezpz.errors import UsageError
from ezpz.train.data.download import (
    SHIPPED,
    DownloadError,
    Patience,
    cannot_write,
    data_folder,
    download,
    find,
    named,
    told_sum,
    wait_for_turn,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from ezpz.train.data.download import DataSet, Remote

__all__ = ["Found", "fetch", "is_right", "obtain"]

_OLD = 3600.0  # seconds after which a part of a file belongs to nobody


@dataclass(frozen=True)
class Found:
    """Where a data set lies, and how it came there."""

    place: Path
    origin: str


def fetch(
    name: str,
    folder: str | os.PathLike[str] | None = None,
    *,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Path:
    """Have a data set on this machine, e.g. on a login host for compute hosts without a network.

    For one process; `load_images` does it for all ranks.

    Args:
        name: ``mnist``, ``fashion_mnist`` or ``cifar10``; ``digits`` and ``shakespeare`` ship with ezpz.
        folder: Where the data set's own folder goes; $EZPZ_DATA, else $XDG_CACHE_HOME/ezpz/data by default.
        progress: Called with file, bytes so far and bytes in all.

    Returns:
        The data set's folder; the file where it ships with ezpz.

    Raises:
        UsageError: There is no such data set, or no folder for it.
        DownloadError: It could not be fetched or written.
    """
    if name in SHIPPED:
        return Path(str(files("ezpz.train").joinpath(SHIPPED[name][0])))
    dataset = named(name, "fetch")
    place = data_folder(folder) / name
    _bring(dataset, place, Patience(attempt=15.0, total=60.0), progress)
    return place


def obtain(dataset: DataSet, folder: str | os.PathLike[str] | None, *, may_download: bool) -> Found:
    """Return where a data set lies on this host; fetch it if it must be and may be.

    Raises:
        UsageError: A file is there and is not the right one.
        DownloadError: The data set is not to be had here; the message says why.
    """
    place, looked = find(dataset, folder)
    if place is not None:
        return Found(place, f"cache {place}")
    if not may_download:
        raise DownloadError(f"not in {' nor '.join(map(str, looked))}, and downloading is off")
    try:
        place = data_folder(folder) / dataset.name
    except UsageError as error:
        raise DownloadError(str(error)) from error
    # Ranks that wait give up after ten minutes with some backends: this ends earlier.
    mirror = _bring(dataset, place, Patience(until=time.monotonic() + 480.0), lambda *_: None)
    return Found(place, f"downloaded from {mirror}")


def is_right(path: Path, remote: Remote) -> bool:
    """Tell whether a file is there and is the right one."""
    try:
        return path.stat().st_size == remote.size and told_sum(path) == remote.sha256
    except OSError:
        return False


def _bring(dataset: DataSet, place: Path, patience: Patience, progress: Callable[[str, int, int], None]) -> str:
    """Put all files into their folder, and return the mirror of the last one.

    Raises:
        DownloadError: It did not work.
    """
    missing = [remote for remote in dataset.files if not is_right(place / remote.name, remote)]
    if not missing:
        return dataset.mirrors[0]
    try:
        place.mkdir(parents=True, exist_ok=True)
        turn, other = wait_for_turn(place.with_name(f"{place.name}.lock"), until=patience.until)
    except OSError as error:
        raise DownloadError(cannot_write(place, error)) from error
    mirror = dataset.mirrors[0]
    if turn is None:
        if all(is_right(place / remote.name, remote) for remote in missing):
            return f"{mirror} by {other}"
        raise DownloadError(
            f"process {other} was fetching {dataset.name} into {place} and did not get it; expected all files. "
            f"Type `ezpz fetch {dataset.name}` where there is a network."
        )
    with turn:
        _sweep(place)
        for remote in missing:
            if is_right(place / remote.name, remote):  # another one was faster
                continue

            def told(size: int, remote: Remote = remote) -> None:
                turn.go_on()
                progress(remote.name, size, remote.size)

            mirror = download(remote, dataset.mirrors, place / remote.name, patience, told)
    return mirror


def _sweep(place: Path) -> None:
    """Remove parts that processes left which were killed."""
    for part in place.glob(".*.part"):
        try:
            if time.time() - part.stat().st_mtime > _OLD:
                part.unlink()
        except OSError:
            continue  # gone, or another user's
