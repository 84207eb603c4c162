"""Compare the files of a checkpoint with the digests that ``checkpoint.json`` has of them, by all ranks together.

SHA-256, because processors since 2017 have instructions for it, because every system has a program that shows it
(``sha256sum``), and because two files of the same digest are not known. Standard library only.
"""

from __future__ import annotations

import os
from hashlib import sha256
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING

from ezpz.checkpoint.manifest import Damaged, Unusable, unreadable
from ezpz.files import open_regular
from ezpz.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ezpz.checkpoint.manifest import Manifest

__all__ = ["objections", "verify_in_ranks", "was_just_verified"]

_BLOCK = 1 << 20  # bytes that are read at once
_MOST_THREADS = 8  # of one rank; a disk gives no more

logger = get_logger(__name__)


def objections(folder: Path, manifest: Manifest, names: Iterable[str] | None = None) -> list[Unusable]:
    """Return what is wrong with files of a checkpoint; several are read at once.

    Args:
        folder: The checkpoint.
        manifest: Its own.
        names: Of its files; all by default.
    """
    chosen = list(manifest.sha256 if names is None else names)
    if not chosen:
        return []
    given_up = Event()  # Ctrl-C shall not wait for the end of a file
    from concurrent.futures import ThreadPoolExecutor  # 15 ms that --help and a mistake need not

    with ThreadPoolExecutor(min(len(chosen), os.cpu_count() or 1, _MOST_THREADS)) as threads:  # hashing holds no GIL
        try:
            found = threads.map(lambda name: _objection(folder, name, manifest.sha256[name], given_up), chosen)
            return [problem for problem in found if problem is not None]
        finally:
            given_up.set()


def _objection(folder: Path, name: str, digest: str, given_up: Event) -> Unusable | None:
    there = sha256()
    block = bytearray(_BLOCK)
    view = memoryview(block)
    try:
        path = folder / name
        with open(path, "rb", buffering=0, opener=open_regular) as file:  # Path.open has no opener
            while (count := file.readinto(block)) and not given_up.is_set():
                there.update(view[:count])
    except OSError as error:
        return unreadable(name, error)
    if there.hexdigest() == digest:
        return None
    return Damaged(f"{name} is damaged: its content has not the SHA-256 that was written")


def verify_in_ranks(
    folder: Path,
    manifest: Manifest,
    *,
    rank: int,
    size: int,
    gather: Callable[[Unusable | None], list[Unusable | None]],
) -> Unusable | None:
    """Return what is wrong with the content of a checkpoint's files, the same on all ranks; collective.

    The ranks share the files out, each beginning with those that a rank of its number has written: the same ranks
    mostly read these again when they load.

    Args:
        folder: The checkpoint.
        manifest: Its own.
        rank: This one.
        size: How many ranks there are.
        gather: Returns the values of all ranks.
    """
    if not manifest.sha256:
        logger.info(
            f"{folder} has no digests: ezpz {manifest.ezpz} wrote none. Only the sizes of its files are compared"
        )
        return None
    begin = perf_counter()
    names = sorted(manifest.sha256, key=_by_rank)
    mine = next(iter(objections(folder, manifest, names[rank::size])), None)
    found = next(filter(None, gather(mine)), None)
    if found is None:
        count, seconds = len(names), perf_counter() - begin
        logger.info(f"{folder}: {count} files have the digests that were written ({seconds:.2f} s)")
    return found


# Checkpoints that were chosen after a look at their digests: the load that follows does not read them a second time.
_sound: set[tuple[Path, int, str]] = set()


def _key(folder: Path, manifest: Manifest) -> tuple[Path, int, str]:
    return folder, manifest.number, manifest.saved


def remember_verified(folder: Path, manifest: Manifest) -> None:
    """Have the next `was_just_verified` of a checkpoint answer yes."""
    _sound.add(_key(folder, manifest))


def was_just_verified(folder: Path, manifest: Manifest) -> bool:
    """Tell whether a checkpoint is remembered, and forget it: later it may be another one."""
    key = _key(folder, manifest)
    if key not in _sound:
        return False
    _sound.remove(key)
    return True


def _by_rank(name: str) -> tuple[int, str]:
    """Order ``__2_0.distcp`` before ``__10_0.distcp``, and what is no rank's behind both."""
    number = name.removeprefix("__").partition("_")[0]
    return (int(number) if number.isascii() and number.isdigit() else 1 << 62, name)
