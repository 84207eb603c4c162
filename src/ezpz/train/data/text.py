"""Text as numbers: characters, bytes, and streams of tokens in files."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ezpz.errors import MachineError, UsageError

if TYPE_CHECKING:
    import os

NAMES = (
    "The names of data sets are shakespeare, random, c4, c4_test, bytes:FILE, tokens:FILE.bin, jsonl:PATH, "
    "hf:NAME and FILE."
)
_SCANNED = 1 << 30  # bytes of a token file that are looked at for ids that are too large
_SHAKESPEARE = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def shakespeare() -> str:
    """Return the text that ships with ezpz (see shakespeare.md).

    Raises:
        MachineError: This Python cannot decompress it, or the installation is broken.
    """
    try:
        import lzma
    except ImportError as error:  # a Python that was built without liblzma
        raise MachineError(
            f"cannot decompress the text of Shakespeare: {error} (from this Python); expected its module lzma. "
            "Use another Python, or a text file of your own: FILE."
        ) from error
    packed = files("ezpz.train").joinpath("shakespeare.txt.xz").read_bytes()
    try:
        text = lzma.decompress(packed)
    except (lzma.LZMAError, EOFError):
        text = b""
    if sha256(text).hexdigest() != _SHAKESPEARE:
        raise MachineError("shakespeare.txt.xz of this installation is damaged (from its sum); install ezpz again.")
    return text.decode("ascii")


def file_named(word: str, folder: str | os.PathLike[str] | None) -> Path:
    """Return the file that a user named: a relative one is looked for in the current folder, then in the given one."""
    path = Path(word).expanduser()
    if folder is not None and not path.is_absolute() and not path.exists() and (Path(folder) / path).exists():
        return Path(folder) / path
    return path


def read_bytes(path: Path) -> bytes:
    """Return the content of a file that a user named.

    Raises:
        UsageError: It cannot be read, or there is nothing in it to learn from.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror} (from the name of the data); expected a file. {NAMES}"
        ) from error
    if len(data) < 4:
        raise UsageError(f"{path} has {len(data)} bytes (from the file); expected a text to learn from.")
    return data


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file.

    Raises:
        UsageError: It is no such file.
    """
    data = read_bytes(path)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is no UTF-8 text: byte {data[error.start]:#04x} at offset {error.start} (from the file); expected "
            f"UTF-8. Convert it with iconv, or take its bytes as they are: bytes:{path}."
        ) from error


def characters(text: str) -> tuple[Any, str]:
    """Return a text as ids, ``(characters,)`` int64 numpy array, and its alphabet: character i is ``alphabet[i]``."""
    import numpy as np

    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    seen: Any = np.zeros(0x110000, bool)
    seen[codes] = True
    alphabet = np.flatnonzero(seen)
    ids: Any = np.zeros(0x110000, np.int64)
    ids[alphabet] = np.arange(len(alphabet))
    return ids[codes], "".join(map(chr, alphabet.tolist()))


def read_token_file(path: Path, vocabulary: int | None) -> tuple[Any, int]:
    """Map a stream of tokens, little-endian unsigned 16-bit numbers without a head, into memory.

    A file of any length costs no memory. Up to 1 GiB every id is compared with the vocabulary; of a longer file, as
    much, spread over its length.

    Args:
        path: The file.
        vocabulary: Number of different tokens; by default the largest id and one, of a file above 1 GiB 65,536.

    Returns:
        ``(tokens,)`` uint16, and the vocabulary.

    Raises:
        UsageError: It cannot be read, has half a token at its end, or holds ids that the vocabulary has not.
    """
    import numpy as np

    try:
        size = path.stat().st_size
        if size % 2 or size < 4:
            raise UsageError(
                f"{path} has {size} bytes (from the file); expected 2 per token, and at least 2 tokens. Write it with "
                "`numpy.asarray(ids, '<u2').tofile(…)`."
            )
        stream: Any = np.memmap(path, "<u2", "c")  # "c": torch warns about what it may not write to; nothing is written
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror} (from tokens:FILE); expected a file of tokens."
        ) from error
    blocks = max(1, min(size, _SCANNED) >> 24)
    scanned = min(len(stream), _SCANNED // 2) // blocks + 1
    starts = (len(stream) * block // blocks for block in range(blocks))
    largest = max(int(stream[start : start + scanned].max()) for start in starts)
    if vocabulary is not None and largest >= vocabulary:
        raise UsageError(
            f"{path} holds token {largest} (from the file), too large for a vocabulary of {vocabulary}; expected at "
            f"least {largest + 1}. Name that vocabulary, or the file that belongs to yours."
        )
    return stream, vocabulary or (largest + 1 if size <= _SCANNED else 1 << 16)
