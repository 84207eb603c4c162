"""Texts for a tokenizer, document by document, in pieces that fit the memory however long a file is.

    {"text": "Beginners BBQ Class Taking Place in Missoula!…", "timestamp": "2019-04-25T12:57:54Z"}   a line, a document

Such lines (.jsonl or .json, also with .gz) are the form in which C4 is published (huggingface.co/datasets/allenai/c4).
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError
from ezpz.train.data.text import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

_PIECE = 1 << 16  # characters; tokenizers are slower with longer ones
_ENDINGS = (".jsonl", ".json", ".jsonl.gz", ".json.gz")


@dataclass(frozen=True)
class Documents:
    """Texts that can be read more than once.

    Attributes:
        origin: Where they come from, in one line.
        size: Bytes on the disk; None where it is not known ahead.
        key: Makes what is equal for equal texts only; may read all of a file.
        read: Yields pieces of text, and None where a document ends.
    """

    origin: str
    size: int | None
    key: Callable[[], str]
    read: Callable[[], Iterator[str | None]]


def documents_of_the_shipped_text() -> Documents:
    """Return Shakespeare as one document."""
    from ezpz.train.data.text import shakespeare

    text = shakespeare()
    return Documents("shipped with ezpz", len(text), lambda: _sum(text), lambda: _whole(text))


def documents_of_texts(texts: Callable[[], Iterable[str]], origin: str) -> Documents:
    """Return texts of another source, each a document."""

    def digest_of_all() -> str:
        digest = sha256()
        for text in texts():
            digest.update(f"{len(text)} {text}".encode())
        return digest.hexdigest()

    return Documents(origin, None, digest_of_all, lambda: (piece for text in texts() for piece in _whole(text)))


def documents_of_text(path: Path) -> Documents:
    """Return a UTF-8 file as one document.

    Raises:
        UsageError: There is no such file.
    """
    from ezpz.train.data.shared_files import file_sha256

    return Documents(f"file {path}", _size_of([path]), lambda: file_sha256(path), lambda: _read_text(path))


def documents_of_lines(path: Path) -> Documents:
    """Return a file of JSON lines, or all such files of a folder in the order of their names.

    Raises:
        UsageError: There is none.
    """
    from ezpz.train.data.shared_files import file_sha256

    files = sorted(each for each in path.glob("*") if each.name.endswith(_ENDINGS)) if path.is_dir() else [path]
    if not files:
        raise UsageError(
            f'{path} holds no file of documents (from the name of the data); expected JSON lines with a "text" in '
            "*.jsonl, "
            "*.json or either with .gz. Name the folder that holds them."
        )
    size = _size_of(files)
    origin = f"{len(files)} files of {path}" if path.is_dir() else f"file {path}"
    return Documents(
        origin,
        size,
        lambda: _sum("".join(map(file_sha256, files))),
        lambda: (piece for file in files for text in _read_lines(file) for piece in _whole(text)),
    )


def _sum(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _size_of(files: list[Path]) -> int:
    try:
        size = sum(file.stat().st_size for file in files)
        for file in files:
            file.open("rb").close()  # a folder has a size, too
    except OSError as error:
        raise _unreadable(files[0] if len(files) == 1 else files[0].parent, error) from error
    if size < 4:
        raise UsageError(f"{files[0]} has {size} bytes (from the file); expected a text to learn from.")
    return size


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot read {path}: {error.strerror or error} (from the name of the data); expected a file of text. {NAMES}"
    )


def _whole(text: str) -> Iterator[str | None]:
    """Yield a document in pieces."""
    if len(text) <= _PIECE:
        yield text
    else:
        yield from _pieces(io.StringIO(text, newline=""))
    yield None


def _read_text(path: Path) -> Iterator[str | None]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            yield from _pieces(file)
    except OSError as error:
        raise _unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is no UTF-8 text: byte {error.object[error.start]:#04x} (from the file); expected UTF-8. Convert "
            f"it with iconv, or take its bytes as they are, without a tokenizer: bytes:{path}."
        ) from error
    yield None


def _pieces(file: Any) -> Iterator[str]:
    """Cut a text where a line begins with a word: no split pattern in use joins the two sides."""
    held: list[str] = []
    size = 0
    while line := file.readline(_PIECE):
        if size >= 4 * _PIECE or (size >= _PIECE and held[-1].endswith("\n") and not line[0].isspace()):
            yield "".join(held)
            held, size = [], 0
        held.append(line)
        size += len(line)
    yield "".join(held)


def _read_lines(path: Path) -> Iterator[str]:
    number = 0
    try:
        with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
            for number, line in enumerate(file, 1):  # noqa: B007  # for messages
                if line.strip():
                    yield _text_in(line)
    except EOFError as error:  # of gzip
        raise UsageError(
            f"{path} is cut after line {number} (from the file); expected a whole file. Fetch it again."
        ) from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path} is damaged: {error} (from the file); expected a gzip. Fetch it again.") from error
    except OSError as error:
        raise _unreadable(path, error) from error
    except ValueError as error:
        raise UsageError(
            f'{path}, line {number} is no document: {error} (from the file); expected JSON lines with a "text".'
        ) from error


def _text_in(line: bytes) -> str:
    document = json.loads(line)
    if not isinstance(document, dict) or not isinstance(document.get("text"), str):
        raise ValueError('it has no "text"')  # noqa: TRY004  # its reader tells it as it tells of what is no JSON
    return str(document["text"])
