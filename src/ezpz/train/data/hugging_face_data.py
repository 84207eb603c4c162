"""Data sets of Hugging Face's `datasets`, where that is installed: texts, and images with labels."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.errors import MachineError, UsageError
from ezpz.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BETWEEN = b"\n\n"
_MOST = 1 << 28  # bytes of text that are taken; more belongs into a token file
_PATIENCE = 10.0  # seconds for the first answer of the hub, after which there is no network

logger = get_logger(__name__)


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
        name: As in `load`; the split is train by default.
        folder: As in `load`.
        may_download: As in `load`.

    Raises:
        EzpzError: As in `load`.
        UsageError: There is no text.
    """
    path, _, split = name.partition(":")
    rows = load(name, folder, may_download=may_download, otherwise="train")
    column = _text_column(rows, name)

    def read() -> Iterator[str]:
        size = 0
        for row in rows:
            text = str(row[column])
            yield text
            size += len(text.encode()) + len(_BETWEEN)
            if size >= _MOST:
                break

    return Texts(f"{path.partition('@')[0]}, split {split or 'train'}, column {column}", read)


class LabelledImages(NamedTuple):
    """Images ``(N, C, H, W)`` and labels ``(N,)``, uint8 and int64 numpy arrays, to train with and to test with."""

    train: tuple[Any, Any]
    test: tuple[Any, Any]
    classes: int


def read_images(name: str, folder: str | os.PathLike[str] | None, *, may_download: bool) -> LabelledImages:
    """Return all images of a data set: its split train, and to test with test, else validation.

    Args:
        name: As in `load`, without a split.
        folder: As in `load`.
        may_download: As in `load`.

    Raises:
        EzpzError: As in `load`.
        UsageError: It has no such splits, no images with labels, or images of several sizes.
    """
    parts: Any = load(name, folder, may_download=may_download)
    splits = list(parts) if isinstance(parts, dict) else []
    tests = [split for split in ("test", "validation", "valid", "val") if split in splits]
    if "train" not in splits or not tests:
        raise UsageError(
            f"hf:{name} has the splits {', '.join(splits) or 'of a name with one alone'} (from datasets); expected "
            "train, and test or validation. Images of your own are called images:FOLDER."
        )
    kinds = {type(kind).__name__: key for key, kind in reversed(parts["train"].features.items())}
    if not {"Image", "ClassLabel"} <= kinds.keys():
        raise UsageError(
            f"hf:{name} has the columns {', '.join(parts['train'].features)} (from datasets); expected one of images "
            "and one of labels."
        )
    image, label = kinds["Image"], kinds["ClassLabel"]
    train, test = (_arrays(parts[split], image, label, name) for split in ("train", tests[0]))
    return LabelledImages(train, test, parts["train"].features[label].num_classes)


def _arrays(rows: Any, image: str, label: str, name: str) -> tuple[Any, Any]:
    """Decode all images by Pillow, five times as fast as `datasets` hands them out."""
    import numpy as np

    pillow: Any = import_module("PIL.Image")
    raw = rows.cast_column(image, import_module("datasets").Image(decode=False))
    decoded = [pillow.open(io.BytesIO(each["bytes"]) if each["bytes"] else each["path"]) for each in raw[image]]
    mode = "L" if decoded[0].mode in {"L", "1"} else "RGB"
    try:
        pixels = np.stack([np.asarray(each if each.mode == mode else each.convert(mode)) for each in decoded])
    except ValueError as error:
        raise UsageError(
            f"hf:{name} has images of several sizes (from datasets); expected one size. Write them into a folder by "
            "class, which trainers resize: images:FOLDER."
        ) from error
    by_colour = pixels[:, None] if mode == "L" else pixels.transpose(0, 3, 1, 2)
    return by_colour, np.array(rows[label], np.int64)


def load(
    name: str, folder: str | os.PathLike[str] | None = None, *, may_download: bool = True, otherwise: str = ""
) -> Any:
    """Return the rows of a split, or a dictionary of all splits.

    Args:
        name: ``NAME[@CONFIGURATION][:SPLIT]``, and ``OWNER/NAME/FILE`` for one file of a data set.
        folder: Where `datasets` keeps its files; its own cache by default.
        may_download: False needs HF_HUB_OFFLINE=1, because `datasets` knows no other way: it asks the hub even
            for what it has.
        otherwise: The split of a name that says none; all of them by default.

    Raises:
        UsageError: `datasets` is not installed, does not know the name, or may not be offline.
        MachineError: There is no network, and the data set is not here.
    """
    if not may_download and not is_offline():
        raise UsageError(
            f"hf:{name} would use the network (from the package datasets), and downloading is off; expected "
            "HF_HUB_OFFLINE=1. Type `export HF_HUB_OFFLINE=1`."
        )
    if "datasets" not in sys.modules and not is_offline() and importlib.util.find_spec("datasets"):
        _leave_out_the_hub_where_it_is_silent()
    try:
        datasets: Any = import_module("datasets")
    except ImportError as error:
        raise UsageError(
            f"hf:{name} needs the package datasets (from the name of the data), which is not installed. Type "
            "`python3 -m pip install datasets pillow`, or use digits, shakespeare or files of your own."
        ) from error
    path, _, split = name.partition(":")
    path, _, configuration = path.partition("@")
    more: dict[str, Any] = {"split": split or otherwise} if split or otherwise else {}
    words = path.split("/", 2)
    if len(words) > 2 and not Path(path).is_dir():
        path, more["data_files"] = "/".join(words[:2]), words[2]
    cache = str(folder) if folder is not None else None
    try:
        return datasets.load_dataset(path, configuration or None, cache_dir=cache, **more)
    except (OSError, ValueError, RuntimeError) as error:  # what its versions raise: all kinds, with texts of many lines
        kind = MachineError if isinstance(error, ConnectionError) else UsageError
        raise kind(
            f"cannot load hf:{name}: {first_line(error)} (from datasets); expected NAME[@CONFIGURATION][:SPLIT]. Where "
            "hosts have no network, load it once on a host that has, with the same HF_HOME."
        ) from error


def _leave_out_the_hub_where_it_is_silent() -> None:
    """Set HF_HUB_OFFLINE where nothing answers: `datasets` tries again for half a minute, also for what it has."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, build_opener

    address = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    answered = threading.Event()

    def ask() -> None:
        try:
            build_opener().open(Request(address, method="HEAD"), timeout=_PATIENCE).close()  # noqa: S310  # the user's
        except HTTPError:
            pass  # also an answer
        except (OSError, HTTPException, ValueError):  # ValueError: a proxy variable that is no address
            return
        answered.set()

    # A name that cannot be resolved blocks for as long as the resolver likes: no time limit of a socket bounds that.
    thread = threading.Thread(target=ask, name="ezpz-hub", daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    if not answered.is_set():
        logger.info(f"{address} does not answer: only data sets that are here are used (HF_HUB_OFFLINE=1)")
        os.environ["HF_HUB_OFFLINE"] = "1"


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
