"""A data set of Hugging Face's `datasets`, where that is installed: its texts."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BETWEEN = b"\n\n"
_MOST = 1 << 28  # bytes of text that are taken; more belongs into a token file


class Texts(NamedTuple):
    """The texts of a data set, one after the other and more than once, and how it is called."""

    origin: str
    read: Callable[[], Iterator[str]]


def read_hugging_face(name: str, folder: str | os.PathLike[str] | None, *, may_download: bool) -> tuple[bytes, str]:
    """Return texts, joined by an empty line, and how they are called: ``org/name, split train, column text``.

    See `open_hugging_face`.
    """
    texts = open_hugging_face(name, folder, may_download=may_download)
    return _BETWEEN.join(text.encode() for text in texts.read()), texts.origin


def open_hugging_face(name: str, folder: str | os.PathLike[str] | None, *, may_download: bool) -> Texts:
    """Return the texts of a data set, of a large one those of its beginning.

    Args:
        name: ``NAME``, ``NAME:SPLIT`` or ``NAME@CONFIGURATION:SPLIT``; the split is train by default.
        folder: Where `datasets` keeps its files; its own cache by default.
        may_download: False needs HF_HUB_OFFLINE=1, because `datasets` knows no other way: it asks the hub even
            for what it has.

    Raises:
        UsageError: `datasets` is not installed, does not know the name, finds no text, or may not be offline.
    """
    if not may_download and not is_offline():
        raise UsageError(
            f"hf:{name} would use the network (from the package datasets), and downloading is off; expected "
            "HF_HUB_OFFLINE=1. Type `export HF_HUB_OFFLINE=1`."
        )
    try:
        datasets: Any = import_module("datasets")
    except ImportError as error:
        raise UsageError(
            f"hf:{name} needs the package datasets (from the name of the data), which is not installed. Type "
            "`python3 -m pip install datasets`, or use shakespeare or FILE."
        ) from error
    path, _, split = name.partition(":")
    path, _, configuration = path.partition("@")
    split = split or "train"
    cache = str(folder) if folder is not None else None
    try:
        rows: Any = datasets.load_dataset(path, configuration or None, split=split, cache_dir=cache)
    except (OSError, ValueError, RuntimeError) as error:  # what its versions raise: all kinds, with texts of many lines
        raise UsageError(
            f"cannot load hf:{name}: {first_line(error)} (from datasets); expected NAME[@CONFIGURATION][:SPLIT]. Where "
            "hosts have no network, load it once on a host that has, with the same HF_HOME."
        ) from error
    column = _text_column(rows, name)

    def read() -> Iterator[str]:
        size = 0
        for row in rows:
            text = str(row[column])
            yield text
            size += len(text.encode()) + len(_BETWEEN)
            if size >= _MOST:
                break

    return Texts(f"{path}, split {split}, column {column}", read)


def is_offline() -> bool:
    """Tell whether the environment keeps Hugging Face's packages from the network."""
    values = {os.environ.get(variable, "").upper() for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")}
    return bool(values & {"1", "ON", "YES", "TRUE"})


def first_line(error: BaseException) -> str:
    """Return what an error says, without the lines that follow."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _text_column(rows: Any, name: str) -> str:
    columns = {key: getattr(kind, "dtype", "") for key, kind in rows.features.items()}
    texts = [key for key, kind in columns.items() if kind in {"string", "large_string"}]
    if not texts:
        raise UsageError(f"hf:{name} has no column of text (from datasets); expected one among {', '.join(columns)}.")
    return "text" if "text" in texts else texts[0]
