r"""The text that the character GPT learns: shipped, a file, or prepared as the files that wordplay and nanoGPT read.

    ROOT/shakespeare_char/train.bin, val.bin    unsigned 16-bit numbers, little-endian, one per character
    ROOT/shakespeare_char/meta.json             {"vocab_size": 65, "characters": "\n !$&',-.3:;?ABC…"}  by number

Their ``meta.pkl`` is not read: unpickling a file can run any code that is in it.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ezpz
from ezpz import train
from ezpz.errors import UsageError

if TYPE_CHECKING:
    from argparse import Namespace

logger = ezpz.get_logger("ezpz.examples.gpt")

_SHIPPED = {"shakespeare_char", "shakespeare"}
_TO_PREPARE = {"openwebtext", "yelp_review_full"}  # by nanoGPT's and wordplay's own scripts, with GPT-2's tokens


def load(args: Namespace) -> train.Tokens:
    """Return the characters to train with: prepared files where there are some, else the text itself; all ranks must
    call.

    Raises:
        UsageError: There is no such data, it cannot be used, or it has more characters than ``model.vocab_size``.
    """
    name, vocabulary = args.config.data.dataset, args.config.model.vocab_size
    folder = _folder(args)
    prepared, characters, problem = ezpz.broadcast(_look(folder))  # rank 0 looks, so that all ranks decide alike
    if problem:
        raise UsageError(problem)
    if prepared:
        sizes = vocabulary or (len(characters) if characters else None)
        tokens = train.load_tokens(f"tokens:{folder / 'train.bin'}", vocabulary=sizes)
        return replace(tokens, name=name, symbols=characters)
    if name in _TO_PREPARE:
        raise UsageError(
            f"no data for {name}: {folder / 'train.bin'} is not there (from data.dataset); expected train.bin and "
            "val.bin. Write them with the prepare.py of nanoGPT or wordplay, name their folder's parent "
            "data.root_path=…, or type data=shakespeare."
        )
    wanted = "shakespeare" if name in _SHIPPED else name
    return train.load_tokens(wanted, folder=folder.parent, seed=args.config.train.seed, vocabulary=vocabulary)


def prepare(args: Namespace) -> None:
    """Write ``train.bin``, ``val.bin`` and ``meta.json``, and print what is in them; rank 0 does it.

    Raises:
        UsageError: The data has no characters, or more than fit into 16 bits, or the folder cannot be written.
    """
    name = args.config.data.dataset
    if ezpz.get_rank() != 0:
        return
    tokens = train.load_tokens("shakespeare" if name in _SHIPPED else name, folder=_folder(args).parent)
    characters = tokens.symbols
    if characters is None or len(characters) > 1 << 16:
        size = "no characters" if characters is None else f"{len(characters):,} different characters"
        raise UsageError(
            f"cannot prepare {name}: it has {size} (from data.dataset); expected a text with at most 65,536 of them. "
            "Type data=shakespeare, or the name of a text file."
        )
    print(f"length of dataset in characters: {len(tokens.train) + len(tokens.test):,}")
    print(f"all the unique characters: {characters}")
    print(f"vocab size: {len(characters):,}")
    print(f"train has {len(tokens.train):,} tokens")
    print(f"val has {len(tokens.test):,} tokens")
    folder = _folder(args, made_from=name)
    meta = json.dumps({"vocab_size": len(characters), "characters": characters}).encode()
    parts = {
        "meta.json": meta,
        "val.bin": _packed(tokens.test),
        "train.bin": _packed(tokens.train),
    }  # train.bin: complete
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in parts.items():
            draft = folder / f".{file}.{os.getpid()}"
            draft.write_bytes(content)
            draft.replace(folder / file)
    except OSError as error:
        raise UsageError(
            f"cannot write {folder}: {error.strerror} (from data.root_path or --data_dir); expected a folder that may "
            "be written. Name another one: data.root_path=DIR."
        ) from error
    print(f"written: {', '.join(str(folder / file) for file in reversed(parts))}")


def encode(text: str, tokens: train.Tokens, *, origin: str) -> list[int]:
    """Return a prompt as tokens; empty where tokens are no characters, or none of the prompt's is in the text.

    Args:
        text: The prompt.
        tokens: The data.
        origin: Where the prompt came from. Of the default one what the text has not is left out; of any other it is an
            error.

    Raises:
        UsageError: A prompt that somebody chose has characters that the text has not.
    """
    if tokens.symbols is None:
        logger.info("no samples: the tokens of this data are no characters")
        return []
    places = {character: place for place, character in enumerate(tokens.symbols)}
    strange = "".join(dict.fromkeys(character for character in text if character not in places))
    if strange and origin != "default":
        raise UsageError(
            f"train.prompt={text!r} has characters that the text has not: {strange!r} (from {origin}); expected some "
            f"of {tokens.symbols!r}. Write the prompt without them."
        )
    if strange:
        logger.info(f"the prompt goes without {strange!r}, which the text has not")
    return [places[character] for character in text if character in places]


def decode(ids: list[int], tokens: train.Tokens) -> str:
    """Return tokens as text; those without a character, of a vocabulary with room, as the replacement character."""
    characters = tokens.symbols or ""
    return "".join(characters[each] if each < len(characters) else "\ufffd" for each in ids)


def _folder(args: Namespace, made_from: str = "") -> Path:
    """Return the folder of this data's prepared files; of a text file its name without the ending."""
    data = args.config.data
    root = Path(data.root_path).expanduser() if data.root_path else train.data_folder(args.data_dir)
    name = "shakespeare_char" if data.dataset in _SHIPPED else data.dataset
    return root / (Path(name).stem if made_from else name)


def _look(folder: Path) -> tuple[bool, str | None, str]:
    """Tell whether files were prepared, which characters their numbers stand for, and what is wrong with them."""
    if ezpz.get_rank() != 0 or not (folder / "train.bin").is_file():
        return False, None, ""
    file = folder / "meta.json"
    if not file.is_file():
        return True, None, ""
    try:
        characters = json.loads(file.read_text(encoding="utf-8"))["characters"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem: Any = f"{type(error).__name__}: {error}"
    else:
        if isinstance(characters, str) and characters:
            return True, characters, ""
        problem = f"characters are {characters!r}"
    return (
        *(False, None),
        (
            f"cannot use {file}: {problem} (from the file); expected what `prepare` writes. Delete {folder}, or "
            "prepare it again."
        ),
    )


def _packed(tokens: Any) -> bytes:
    content: bytes = tokens.numpy().astype("<u2").tobytes()
    return content
