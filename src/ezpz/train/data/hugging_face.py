"""A data set of Hugging Face's `datasets`, where that is installed: its texts as one stream of bytes."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from ezpz.errors import UsageError

__all__ = ["read_hugging_face"]

_BETWEEN = b"\n\n"
_MOST = 1 << 28  # bytes of text that are taken; more belongs into a token file


def read_hugging_face(name: str, folder: str | os.PathLike[str] | None, *, may_download: bool) -> tuple[bytes, str]:
    """Return texts, joined by an empty line, and how they are called: ``org/name, split train, column text``.

    Args:
        name: ``NAME``, ``NAME:SPLIT`` or ``NAME@CONFIGURATION:SPLIT``; the split is train by default.
        folder: Where `datasets` keeps its files; its own cache by default.
        may_download: False needs HF_HUB_OFFLINE=1, because `datasets` can be told in no other way: it asks the hub even for what it has.

    Raises:
        UsageError: `datasets` is not installed, does not know the name, finds no text, or may not be offline.
    """
    offline = {os.environ.get(variable, "").upper() for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")}
    if not may_download and not offline & {"1", "ON", "YES", "TRUE"}:
        raise UsageError(
            f"hf:{name} would use the network (from the package datasets), and downloading is off; expected HF_HUB_OFFLINE=1. "
            "Type `export HF_HUB_OFFLINE=1`."
        )
    try:
        datasets: Any = import_module("datasets")
    except ImportError as error:
        raise UsageError(
            f"hf:{name} needs the package datasets (from the name of the data), which is not installed. Type "
            "`python3 -m pip install datasets`, or use shakespeare, markov or FILE."
        ) from error
    path, _, split = name.partition(":")
    path, _, configuration = path.partition("@")
    split = split or "train"
    cache = str(folder) if folder is not None else None
    try:
        found: Any = datasets.load_dataset(path, configuration or None, split=split, cache_dir=cache)
    except (OSError, ValueError, RuntimeError) as error:  # what its versions raise: all kinds, with texts of many lines
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UsageError(
            f"cannot load hf:{name}: {reason} (from datasets); expected NAME[@CONFIGURATION][:SPLIT]. Where hosts have no "
            "network, load it once on a host that has, with the same HF_HOME."
        ) from error
    column = _text_column(found, name)
    pieces, size = [], 0
    for row in found:
        piece = str(row[column]).encode()
        pieces.append(piece)
        size += len(piece) + len(_BETWEEN)
        if size >= _MOST:
            break
    return _BETWEEN.join(pieces), f"{path}, split {split}, column {column}"


def _text_column(found: Any, name: str) -> str:
    columns = {key: getattr(kind, "dtype", "") for key, kind in found.features.items()}
    texts = [key for key, kind in columns.items() if kind in {"string", "large_string"}]
    if not texts:
        raise UsageError(f"hf:{name} has no column of text (from datasets); expected one among {', '.join(columns)}.")
    return "text" if "text" in texts else texts[0]
