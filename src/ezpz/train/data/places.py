"""Where data lies on this machine, and whether a file that lies there is the one that it claims to be."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ezpz.train.data.catalog import DataSet, Remote

__all__ = ["check_file", "data_folder", "find", "told_sum"]


def data_folder(folder: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder that holds a folder per data set: the given one, $EZPZ_DATA, $XDG_CACHE_HOME/ezpz/data or ~/.cache/ezpz/data.

    Raises:
        UsageError: Nothing tells where.
    """
    if folder is not None:
        return Path(folder).expanduser()
    told = os.environ if environ is None else environ
    if told.get("EZPZ_DATA"):
        return Path(told["EZPZ_DATA"]).expanduser()
    if told.get("XDG_CACHE_HOME"):
        return Path(told["XDG_CACHE_HOME"], "ezpz", "data")
    if told.get("HOME"):
        return Path(told["HOME"], ".cache", "ezpz", "data")
    raise UsageError(
        "no folder for data: EZPZ_DATA, XDG_CACHE_HOME and HOME are unset (from the environment); expected one of them. "
        "Type `export EZPZ_DATA=/a/folder`."
    )


def find(
    dataset: DataSet, folder: str | os.PathLike[str] | None, *, check: bool = True
) -> tuple[Path | None, list[Path]]:
    """Look for all files of a data set, first in the explicit folder, then in the data folder.

    Args:
        dataset: The data set.
        folder: A folder that the user named, or None.
        check: Prove the files by their sums.

    Returns:
        The folder that holds all files, checked, or None; and the folders that were looked at.

    Raises:
        UsageError: A file is there and is not the right one.
    """
    looked: list[Path] = []
    for place, root in _candidates(dataset, folder):
        looked.append(place)
        there = [remote for remote in dataset.files if _is_there(place / remote.name)]
        for remote in there if check else ():
            check_file(place / remote.name, remote, dataset, root)
        if len(there) == len(dataset.files):
            return place, looked
    return None, looked


def check_file(path: Path, remote: Remote, dataset: DataSet, root: Path) -> None:
    """Refuse a file that is cut or is another one.

    Raises:
        UsageError: Its size or sum differs, or it cannot be read.
    """
    try:
        size = path.stat().st_size
        found = told_sum(path) if size == remote.size else ""
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}; expected a file of {dataset.name}. Make it readable, or delete it."
        ) from error
    if found == remote.sha256:
        return
    what = f"sha256 {found or told_sum(path)}, {size} bytes"
    again = f"ezpz fetch {dataset.name}" + ("" if _is_default(root) else f" --folder {root}")
    raise UsageError(
        f"corrupt or cut data: {path} has {what} (from the file); expected sha256 {remote.sha256}, {remote.size} bytes. "
        f"Delete it, or type `{again}`."
    )


def told_sum(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits.

    Raises:
        OSError: It cannot be read.
    """
    digest = sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _candidates(dataset: DataSet, folder: str | os.PathLike[str] | None) -> Iterator[tuple[Path, Path]]:
    """Yield each folder that may hold the files, with the data folder that it belongs to."""
    seen: set[Path] = set()
    for given in (folder, None) if folder is not None else (None,):
        try:
            root = data_folder(given)
        except UsageError:  # said later, if it comes to a download
            continue
        if root in seen:
            continue
        seen.add(root)
        yield root / dataset.name, root
        if given is not None:
            yield from ((root / other, root) for other in ("", *dataset.elsewhere))


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        raise UsageError(
            f"cannot look into {path.parent}: {error.strerror} (from the folder for data); expected a folder that you may read. "
            "Type `export EZPZ_DATA=/another/folder`."
        ) from error


def _is_default(root: Path) -> bool:
    try:
        return root == data_folder()
    except UsageError:
        return False
