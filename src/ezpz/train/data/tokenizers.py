"""Tokenizers: bytes, which need nothing, and those that others have trained and that a user names by file.

    TOKENIZER/tokenizer.json           {"model": {"type": "BPE", "vocab": …}, "added_tokens": …}  library `tokenizers`
    TOKENIZER/tokenizer_config.json    {"bos_token": "<s>", "eos_token": {"content": "</s>"}}  begin and end of a text
    tokenizer.model                    IQ== 0                                                      (library `tiktoken`)
                                       Ig== 1           base64 of a token's bytes, and its id

The second kind is Llama-3's: its split pattern and the names of its 256 special tokens, which follow the others, are
those of github.com/meta-llama/llama3, llama/tokenizer.py.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from binascii import Error as Base64Error
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError
from ezpz.files import read_object

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_NAMED = {0: "begin_of_text", 1: "end_of_text", 6: "start_header_id", 7: "end_header_id", 9: "eot_id"}
_SPECIAL = 256
_LONG_RUN = re.compile(r"\s{25000}")  # cut there, as Llama-3 does: the library would run out of stack
# Where no file beside the tokenizer tells, these are looked for, in this order.
_BEGINNINGS = ("<|begin_of_text|>", "<s>", "<bos>", "[BOS]", "<|endoftext|>", "[CLS]")
_ENDS = ("<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<|endoftext|>", "[SEP]")
_EXPECTED = "expected a tokenizer.json, a folder that holds one, or Llama-3's tokenizer.model. Leave it out for bytes."


@dataclass(frozen=True)
class Tokenizer:
    """Turns texts into token ids and back; made by `load_tokenizer`.

    Attributes:
        name: ``bytes``, or the path as it was given.
        size: Ids go from 0 to this number less one, special ones included.
        bos: Id that begins a text; None where the tokenizer has none.
        eos: Id that ends a text; None where the tokenizer has none.
        digest: SHA-256 of its files in hexadecimal digits: equal tokenizers have equal ones.
    """

    name: str
    size: int
    bos: int | None
    eos: int | None
    digest: str
    _encode: Callable[[str], list[int]]
    _decode: Callable[[list[int]], str]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without bos and eos; names of special tokens in it are text like any other."""
        return self._encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; special ones have none, and bytes that are no UTF-8 become U+FFFD."""
        return self._decode(list(ids))


def load_tokenizer(path: str | os.PathLike[str] = "") -> Tokenizer:
    """Return a tokenizer; where ranks have met, all must call, and get the same one or the same error.

    Args:
        path: ``""`` or ``"bytes"``: the 256 bytes, bos 256 and eos 257. A ``.json`` file of the library `tokenizers`,
            Llama-3's ``tokenizer.model``, or a folder with either, the former first (also with
            ``original/tokenizer.model``).

    Raises:
        UsageError: There is no such file, it is no tokenizer, or the library for it is not installed.
        MachineError: The hosts hold different files.
    """
    if str(path) in {"", "bytes"}:
        return Tokenizer("bytes", 258, 256, 257, "bytes", lambda text: list(text.encode()), _bytes_to_text)
    from ezpz.train.data.agreement import agreed

    return agreed(lambda: _read(str(path)), f"tokenizer {path}", lambda tokenizer: tokenizer.digest)


def _read(name: str) -> Tokenizer:
    path = _file_of(Path(name).expanduser())
    data = _content(path)
    return _from_json(name, path, data) if path.suffix == ".json" else _from_ranks(name, path, data)


def _file_of(path: Path) -> Path:
    if not path.is_dir():
        return path
    names = ("tokenizer.json", "tokenizer.model", "original/tokenizer.model")
    there = [path / name for name in names if (path / name).is_file()]
    if not there:
        raise UsageError(f"{path} (from the tokenizer's path) holds no {' and no '.join(names[:2])}; {_EXPECTED}")
    return there[0]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the tokenizer {path}: {error.strerror} (from its path); {_EXPECTED}") from error


def _library(name: str, path: Path) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError(
            f"the tokenizer {path} (from its path) needs the package {name}, which is not installed; expected it. "
            f"Type `python3 -m pip install {name}`, or leave the tokenizer out for bytes."
        ) from error


def _bytes_to_text(ids: list[int]) -> str:
    return bytes(number for number in ids if 0 <= number < 256).decode("utf-8", "replace")


def _from_json(name: str, path: Path, data: bytes) -> Tokenizer:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no tokenizer: {error} (from the file); {_EXPECTED}") from error
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise UsageError(f'{path} is no tokenizer: it has no "model" with a vocabulary (from the file); {_EXPECTED}')
    library = _library("tokenizers", path)
    try:
        made = library.Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises nothing more precise
        reason = str(error).partition("\n")[0]
        raise UsageError(f"{path} is no usable tokenizer: {reason} (from tokenizers); {_EXPECTED}") from error
    made.encode_special_tokens = True  # "</s>" in a text is not the end of it
    made.no_padding()
    made.no_truncation()
    ids: dict[str, int] = made.get_vocab(with_added_tokens=True)
    if not ids:
        raise UsageError(f"{path} is no usable tokenizer: its vocabulary is empty (from the file); {_EXPECTED}")
    beside = _special_tokens_beside(path)
    bos, eos = (
        _special(ids, beside.get(f"{key}_token"), usual) for key, usual in (("bos", _BEGINNINGS), ("eos", _ENDS))
    )

    def decode(numbers: list[int]) -> str:  # not every file marks its bos and eos as special
        return str(made.decode([each for each in numbers if each not in {bos, eos}], skip_special_tokens=True))

    def encode(text: str) -> list[int]:
        return list(made.encode(text, add_special_tokens=False).ids)

    digest = sha256(data + json.dumps(beside, sort_keys=True).encode()).hexdigest()
    return Tokenizer(name, max(ids.values()) + 1, bos, eos, digest, encode, decode)


def _special_tokens_beside(path: Path) -> dict[str, str]:
    """Return bos_token and eos_token of the files beside a tokenizer.json; a file that is none of these has none."""
    tokens: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        beside = read_object(path.parent / name)
        for key in ("bos_token", "eos_token"):
            token = beside.get(key)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                tokens[key] = token
    return tokens


def _special(ids: dict[str, int], named: str | None, usual: Sequence[str]) -> int | None:
    return next((ids[token] for token in (named, *usual) if token in ids), None)


def _from_ranks(name: str, path: Path, data: bytes) -> Tokenizer:
    ranks = _parse_ranks(path, data)
    library = _library("tiktoken", path)
    special = {f"<|{word}|>": len(ranks) + number for number, word in enumerate(_special_words())}
    made = library.Encoding(path.name, pat_str=_SPLIT, mergeable_ranks=ranks, special_tokens=special)
    words = len(ranks)

    def encode(text: str) -> list[int]:
        cuts = [0, *(found.end() for found in _LONG_RUN.finditer(text)), len(text)]
        return [each for start, end in pairwise(cuts) for each in made.encode_ordinary(text[start:end])]

    def decode(ids: list[int]) -> str:
        return str(made.decode([number for number in ids if 0 <= number < words]))

    digest = sha256(data).hexdigest()
    return Tokenizer(name, words + _SPECIAL, words, words + 1, digest, encode, decode)


def _special_words() -> list[str]:
    """Return the names of Llama-3's special tokens in the order of their ids; those without a meaning are counted."""
    words: list[str] = []
    for number in range(_SPECIAL):
        reserved = number - sum(place < number for place in _NAMED)
        words.append(_NAMED.get(number, f"reserved_special_token_{reserved}"))
    return words


def _parse_ranks(path: Path, data: bytes) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        token, _, rank = line.partition(b" ")
        try:
            ranks[b64decode(token, validate=True)] = int(rank)
        except (Base64Error, ValueError) as error:
            hint = " It looks like one of sentencepiece." if b"<unk>" in data[:64] else ""
            raise UsageError(
                f"{path} is no tokenizer that is known here: line {number} is no base64 text with a number (from the "
                f"file); {_EXPECTED}{hint}"
            ) from error
    if sorted(ranks.values()) != list(range(len(ranks))) or any(bytes([byte]) not in ranks for byte in range(256)):
        raise UsageError(
            f"{path} is no whole tokenizer: {len(ranks)} tokens that are not all bytes and numbers from 0 on (from the "
            f"file); {_EXPECTED} If it was cut, fetch it again."
        )
    return ranks
