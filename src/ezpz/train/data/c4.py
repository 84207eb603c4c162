"""C4, the cleaned crawl of the web that language models are tried on: from files, else from Hugging Face, else another
text, aloud.

    c4         the first 100,000 documents of allenai/c4, configuration en, split train: about 220 MB of text
    c4_test    the first 2,000

They are streamed: the whole set has 305 GB. Files are those of the same source, c4-train.00000-of-01024.json.gz and the
like.
"""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ezpz.train.data.documents import documents_of_lines, documents_of_texts, documents_of_the_shipped_text
from ezpz.train.data.download import DownloadError, Patience, unreachable
from ezpz.train.data.hugging_face import first_line, is_offline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ezpz.train.data.documents import Documents

C4 = {"c4": 100_000, "c4_test": 2_000}  # documents that are streamed, at most


def c4_documents(name: str, path: str | os.PathLike[str] | None, *, may_download: bool) -> Documents:
    """Return the documents of a name in `C4`.

    Args:
        name: Which.
        path: A file or folder of JSON lines, of which all documents are taken; None streams.
        may_download: False forbids to use the network.

    Raises:
        UsageError: There is nothing at the path.
    """
    if path is not None:
        return documents_of_lines(Path(path).expanduser())
    count = C4[name]
    streamed = documents_of_texts(
        lambda: _stream(count, may_download=may_download),
        f"Hugging Face allenai/c4, configuration en, the first {count:,} documents",
        f"allenai/c4 en train {count}",
    )
    return replace(streamed, instead=lambda reason: _shipped(name, reason))


def _shipped(name: str, reason: str) -> Documents:
    from ezpz.train.data.together import warn_once

    warn_once(
        f"data=shakespeare ({reason}) This is not {name}: losses mean nothing outside of this run. "
        "A folder of JSON lines can be given as its path."
    )
    return replace(documents_of_the_shipped_text(), origin=f"shakespeare, shipped with ezpz ({reason})")


def _stream(count: int, *, may_download: bool) -> Iterator[str]:
    """Yield texts as they come.

    Raises:
        DownloadError: They do not, or end early.
    """
    if not may_download or is_offline():
        raise DownloadError(f"cannot stream c4: {'HF_HUB_OFFLINE is set' if may_download else 'downloading is off'}.")
    try:
        datasets: Any = import_module("datasets")
    except ImportError as error:
        raise DownloadError("cannot stream c4: the package datasets is not installed.") from error
    # Asked first, because datasets tries again for half a minute where there is no network.
    address = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    problem = unreachable(f"{address.rstrip('/')}/api/datasets/allenai/c4", Patience(attempt=10.0, total=10.0))
    if problem:
        raise DownloadError(f"cannot stream c4 from {address}: {problem}.")
    try:
        rows = datasets.load_dataset("allenai/c4", "en", split="train", streaming=True)
        for row in rows.take(count):
            yield str(row["text"])
    except Exception as error:  # whatever its HTTP library raises: some have no base that is known without them
        raise DownloadError(f"cannot stream c4 from {address}: {first_line(error)}.") from error
