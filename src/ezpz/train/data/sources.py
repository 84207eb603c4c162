"""Find the texts that a name means."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ezpz.errors import UsageError
from ezpz.train.data.catalog import HUB, refuse_gone

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from ezpz.train.data.documents import Documents


class Source(NamedTuple):
    """Where texts are.

    Attributes:
        name: What was asked for.
        is_text: Whether a tokenizer can take it, instead of characters or bytes.
        is_documents: Whether it needs one.
        is_remote: Whether looking for it uses the network, so that one rank of a host does it.
        find: Looks for the texts; raises a UsageError where they are not there.
    """

    name: str
    is_text: bool
    is_documents: bool
    is_remote: bool
    find: Callable[[], Documents]


def source_named(
    name: str, folder: str | os.PathLike[str] | None, path: str | os.PathLike[str] | None, *, may_download: bool
) -> Source:
    """Return the source of a name that `load_tokens` takes; nothing is looked for yet.

    Raises:
        UsageError: The name is no more, or a path is given with a name that has its own.
    """
    refuse_gone(name, "load_tokens")
    if path is not None and name not in HUB:
        raise UsageError(
            f"path {path} does not go with the data set {name} (from load_tokens); expected c4 or c4_test. "
            f"Documents of your own are called jsonl:{path}."
        )
    full_name = name if name not in HUB else f"hf:{HUB[name][0]}" if path is None else f"jsonl:{path}"
    kind, colon, rest = full_name.partition(":")
    kind = kind if colon else ""

    def find() -> Documents:
        from ezpz.train.data import documents
        from ezpz.train.data.hugging_face_data import open_hugging_face
        from ezpz.train.data.text import file_named

        if name == "shakespeare":
            return documents.documents_of_the_shipped_text()
        if kind == "hf":
            texts = open_hugging_face(rest, folder, may_download=may_download)
            return documents.documents_of_texts(texts.read, f"Hugging Face {texts.origin}")
        if kind == "jsonl":
            return documents.documents_of_lines(file_named(rest, folder))
        return documents.documents_of_text(file_named(name, folder))

    return Source(
        name,
        is_text=kind not in {"bytes", "tokens"},
        is_documents=name in HUB or kind == "jsonl",
        is_remote=kind == "hf",
        find=find,
    )
