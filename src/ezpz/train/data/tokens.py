"""Streams of tokens by name: texts, token files, and random ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError

if TYPE_CHECKING:
    import os
    from pathlib import Path

    import torch

    from ezpz.train.data.sources import Source
    from ezpz.train.data.tokenizers import Tokenizer

_TRAIN_SHARE = 0.9


@dataclass(frozen=True)
class Tokens:
    """Two streams of token ids.

    Attributes:
        name: What was asked for.
        origin: Where it came from, in one line.
        vocabulary: Ids go from 0 to this number less one.
        train: The stream to train with, 1-D, int64; of a token file uint16, mapped into memory.
        test: The stream to test with.
        symbols: The characters of ids from 0 on; of bytes, those of Latin-1; None where tokens are no characters.
    """

    name: str
    origin: str
    vocabulary: int
    train: torch.Tensor
    test: torch.Tensor
    symbols: str | None = None

    def describe(self) -> dict[str, Any]:
        """Return what a run's records should hold."""
        return {
            "data": self.name,
            "data_origin": self.origin,
            "vocabulary": self.vocabulary,
            "train_tokens": len(self.train),
            "test_tokens": len(self.test),
        }


def load_tokens(
    name: str = "shakespeare",
    *,
    folder: str | os.PathLike[str] | None = None,
    download: bool = True,
    seed: int = 0,
    vocabulary: int | None = None,
    length: int = 1 << 20,
    tokenizer: Tokenizer | None = None,
    path: str | os.PathLike[str] | None = None,
) -> Tokens:
    """Return a data set of tokens on the CPU, the same on all ranks; all ranks must call.

    Args:
        name: ``shakespeare`` (shipped), ``random`` (to measure speed; cannot be learned),
            ``FILE`` (UTF-8, by characters), ``bytes:FILE``, ``tokens:FILE.bin`` (uint16; of ``train.bin`` the test part
            is ``val.bin`` beside it), ``hf:NAME[@CONFIGURATION][:SPLIT]`` (bytes of its texts), ``jsonl:PATH``
            (documents: lines of JSON with a "text"), ``c4`` or ``c4_test`` (documents of the web). Of one stream the
            first 90 % train and the rest test.
        folder: Where a relative FILE is looked for, after the current folder; where `datasets` keeps its files. Where
            long texts are kept once they are encoded; the data folder (`$EZPZ_DATA`) by default.
        download: False forbids to use the network.
        seed: Of random tokens.
        vocabulary: Number of different tokens: 32,000 for random by default. Otherwise the data decides, and a larger
            number leaves room.
        length: Random tokens to train with; an eighth of it to test with.
        tokenizer: From `load_tokenizer`: texts become its ids, and a document ends with its eos. By default documents
            are bytes (``load_tokenizer("bytes")``), other texts as above. What holds no text (random, bytes:,
            tokens:) does not use it, but tokens: are compared with its size.
        path: For c4 and c4_test: a file of documents or a folder of them, instead of the network.

    Raises:
        UsageError: A file is not there, is no text, is too short, or has tokens that the vocabulary has not; sizes are
            not positive. The tokenizer has more words than the vocabulary.
        MachineError: The hosts hold different files.
    """
    from ezpz.train.data.agreement import agreed, looks_for_host
    from ezpz.train.data.sources import source_named

    source = source_named(name, folder, path, may_download=download)
    if (vocabulary is not None and vocabulary < 1) or length < 16:
        raise UsageError(
            f"unusable sizes: vocabulary {vocabulary}, length {length} (from load_tokens); expected at least 1 and 16."
        )
    if name == "random":
        return _random(vocabulary or 32_000, seed, length)
    if source.is_documents or (tokenizer is not None and source.is_text):
        return _by_tokenizer(source, tokenizer, folder, vocabulary)
    if tokenizer is not None and name.startswith("tokens:"):
        vocabulary = _enough(tokenizer.size, vocabulary, f"tokenizer {tokenizer.name}", "words")

    @cache
    def read() -> Tokens:
        return _read(name, folder, vocabulary, may_download=download)

    if name.startswith("hf:"):  # one rank per host downloads, the others find it in the cache of `datasets`
        agreed(lambda: read() if looks_for_host() else None, name)
    return agreed(read, name, _mark)


def _random(vocabulary: int, seed: int, length: int) -> Tokens:
    import numpy as np
    import torch

    from ezpz.train.data.agreement import warn_once

    warn_once(
        f"data=random: no model can learn it, the loss stays at ln {vocabulary} = {np.log(vocabulary):.3f}; for timing "
        "only."
    )
    rng = np.random.default_rng([seed, vocabulary])
    train, test = (torch.from_numpy(rng.integers(vocabulary, size=count)) for count in (length, length // 8))
    return Tokens("random", "made: random, cannot be learned", vocabulary, train, test)


def _read(name: str, folder: str | os.PathLike[str] | None, vocabulary: int | None, *, may_download: bool) -> Tokens:
    from ezpz.train.data.text import characters, file_named, read_bytes, read_text, shakespeare

    kind, colon, rest = name.partition(":")
    if kind == "tokens" and colon:
        return _token_files(name, file_named(rest, folder), vocabulary)
    if kind == "hf" and colon:
        from ezpz.train.data.hugging_face_data import read_hugging_face

        data, origin = read_hugging_face(rest, folder, may_download=may_download)
        return _as_bytes(name, f"Hugging Face {origin}", data, vocabulary)
    if kind == "bytes" and colon:
        path = file_named(rest, folder)
        return _as_bytes(name, f"file {path}", read_bytes(path), vocabulary)
    path = file_named(name, folder)
    text, origin = (shakespeare(), "shipped with ezpz") if name == "shakespeare" else (read_text(path), f"file {path}")
    ids, symbols = characters(text)
    return _cut(name, origin, ids, _enough(len(symbols), vocabulary, name, "characters"), symbols)


def _by_tokenizer(
    source: Source, tokenizer: Tokenizer | None, folder: str | os.PathLike[str] | None, vocabulary: int | None
) -> Tokens:
    from ezpz.train.data.encoded import encode_together
    from ezpz.train.data.tokenizers import load_tokenizer

    tokenizer = tokenizer or load_tokenizer("bytes")
    size = _enough(tokenizer.size, vocabulary, f"tokenizer {tokenizer.name}", "words")
    ids, origin = encode_together(source, tokenizer, folder)
    return _cut(source.name, f"{origin}, by tokenizer {tokenizer.name}", ids, size, None)


def _as_bytes(name: str, origin: str, data: bytes, vocabulary: int | None) -> Tokens:
    import numpy as np

    ids = np.frombuffer(data, np.uint8).astype(np.int64)
    return _cut(name, origin, ids, _enough(256, vocabulary, name, "bytes"), bytes(range(256)).decode("latin-1"))


def _token_files(name: str, path: Path, vocabulary: int | None) -> Tokens:
    import torch

    from ezpz.train.data.text import read_token_file

    stream, size = read_token_file(path, vocabulary)
    beside = path.with_name("val.bin")
    if path.name == "train.bin" and beside.is_file():
        test, larger = read_token_file(beside, vocabulary)
        origin = f"file {path}, test part {beside}"
        return Tokens(name, origin, max(size, larger), torch.from_numpy(stream), torch.from_numpy(test))
    return _cut(name, f"file {path}", stream, size, None)


def _cut(name: str, origin: str, ids: Any, vocabulary: int, symbols: str | None) -> Tokens:
    import torch

    stream = torch.from_numpy(ids)
    trained = int(_TRAIN_SHARE * len(stream))
    return Tokens(name, origin, vocabulary, stream[:trained], stream[trained:], symbols)


def _enough(different: int, vocabulary: int | None, name: str, kind: str) -> int:
    if vocabulary is not None and vocabulary < different:
        raise UsageError(
            f"{name} has {different} different {kind} (from its files), too many for a vocabulary of {vocabulary}; "
            f"expected at least {different}."
        )
    return vocabulary or different


def _mark(tokens: Tokens) -> object:
    """Return what tells two streams apart: sizes, alphabet, and a sum of a megabyte from each end."""
    ends = [
        part[cut].numpy().tobytes()
        for part in (tokens.train, tokens.test)
        for cut in (slice(1 << 17), slice(-(1 << 17), None))
    ]
    return len(tokens.train), len(tokens.test), tokens.vocabulary, tokens.symbols, sha256(b"".join(ends)).hexdigest()
