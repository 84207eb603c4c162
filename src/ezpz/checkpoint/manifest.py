"""Read and write ``checkpoint.json``, which describes a checkpoint and makes its folder one.

    {"schema": 2, "step": 100, "number": 7, "saved": "2026-11-20T16:20:01+01:00", "world_size": 4,
     "mesh": {"dp_shard": 2, "tp": 2}, "torch": "2.13.0", "ezpz": "0.1.0",
     "model": {"norm.weight": ["float32", [64]]}, "optimizer": {"kind": "AdamW", "fresh": false},
     "schedule": "LambdaLR", "state": ["scaler"], "own_objects": false,
     "files": {".metadata": 5120, "__0_0.distcp": 83456},
     "sha256": {".metadata": "9f86d0…", "__0_0.distcp": "60303a…"}, "own_sha256": "fd61a0…"}

It is written last, before the folder gets its name. ``own_sha256`` is the digest of the text before its comma, so
that a damage of this file is seen too. Schema 1 has no digests. Standard library only.
"""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz import __version__
from ezpz.files import read_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = [
    "NAME",
    "SCHEMA",
    "Damaged",
    "Manifest",
    "Unusable",
    "WrittenFile",
    "check_files",
    "read_manifest",
    "unreadable",
]

NAME = "checkpoint.json"
SCHEMA = 2
_END = re.compile(rb', "own_sha256": "([0-9a-f]{64})"\}\n\Z')


class Unusable(Exception):  # noqa: N818  # a finding about a folder, turned into an error or a log line by its readers
    """This folder is no complete checkpoint; the message says why, as the end of a sentence."""


class Damaged(Unusable):
    """It was a complete checkpoint once: a file is gone, or is not as it was written."""


class WrittenFile(NamedTuple):
    """Size in bytes, and SHA-256 in hexadecimal digits, of what was written."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What ``checkpoint.json`` says.

    Attributes:
        step: Number of steps done.
        number: Counts the saves into one folder, so that the newest is known without trusting clocks.
        saved: Local time in ISO 8601.
        world_size: Ranks that saved.
        mesh: Their mesh, outermost dimension first; empty where all ranks were data parallel.
        torch: Version that wrote the tensors.
        ezpz: Version that wrote the rest.
        model: Name of each entry of the model's state to its dtype and shape, ``["", []]`` for what is no tensor.
        optimizer: ``kind`` and whether it was ``fresh`` (no step done yet); None without an optimizer.
        schedule: Class of the learning rate's schedule; empty without one.
        state: Names of further objects.
        own_objects: Whether every rank has saved its own state of schedule and objects, because they differed.
        files: Size in bytes of every file.
        sha256: Digest of every file in hexadecimal digits; empty in what was saved with schema 1.
    """

    step: int
    number: int
    saved: str
    world_size: int
    mesh: dict[str, int]
    torch: str
    ezpz: str
    model: dict[str, list[Any]]
    optimizer: dict[str, Any] | None
    schedule: str
    state: list[str]
    own_objects: bool
    files: dict[str, int]
    sha256: dict[str, str]

    def to_json(self) -> bytes:
        """Return the content of the file."""
        text = json.dumps({"schema": SCHEMA, **asdict(self)})[:-1].encode()
        return text + f', "own_sha256": "{sha256(text).hexdigest()}"}}\n'.encode()


def read_manifest(folder: Path) -> Manifest:
    """Read what a folder says of itself; its files are not looked at.

    Raises:
        Damaged: It was a checkpoint.
        Unusable: It is no checkpoint, cannot be read, or is one of a newer schema.
    """
    try:
        data = read_bytes(folder / NAME)
    except (FileNotFoundError, NotADirectoryError):
        raise Unusable(f"it has no {NAME}") from None
    except OSError as error:
        raise unreadable(NAME, error) from None
    # The digest comes first: nothing of a damaged file is believed, not even its schema.
    end = _END.search(data)
    if end is not None and sha256(data[: end.start()]).hexdigest() != end[1].decode():
        raise Damaged(f"{NAME} is damaged: its content has another SHA-256 than the one at its end")
    try:
        entries = json.loads(data)
    except (ValueError, RecursionError):
        raise Damaged(f"{NAME} is damaged: no JSON") from None
    if not isinstance(entries, dict) or "schema" not in entries:
        raise Unusable(f"{NAME} is not of ezpz: it names no schema")
    schema = entries.pop("schema")
    if schema not in range(1, SCHEMA + 1):
        raise Unusable(
            f"the schema of {NAME} is {schema}, written by ezpz {entries.get('ezpz', 'of an unknown version')}; this "
            f"ezpz {__version__} reads schemas 1 to {SCHEMA}: use the ezpz that wrote it, or a newer one"
        )
    if schema == 1:
        entries["sha256"] = {}
    elif entries.pop("own_sha256", None) is None or end is None:
        raise Damaged(f"{NAME} is damaged: its end is not the digest that schema {schema} has there")
    try:
        manifest = Manifest(**entries)
    except TypeError:
        raise Damaged(f"{NAME} has other entries than schema {schema}") from None
    wrong = next((name for name, is_right in _KINDS.items() if not is_right(getattr(manifest, name))), None)
    if wrong is None and schema > 1 and manifest.files.keys() != manifest.sha256.keys():
        wrong = "sha256"
    if wrong is not None:
        raise Damaged(f"{NAME} has no usable {wrong!r}")
    return manifest


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_table(value: object, is_entry: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(map(is_entry, value.values()))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_tensor(value: Any) -> bool:
    """Tell whether a value is a dtype and a shape."""
    is_pair = isinstance(value, list) and len(value) == 2 and isinstance(value[1], list)
    return is_pair and _is_text(value[0]) and all(map(_is_count, value[1]))


def _is_optimizer(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, dict) or not isinstance(value.get("groups"), list):
        return False
    return _is_text(value.get("kind")) and isinstance(value.get("fresh"), bool) and all(map(_is_count, value["groups"]))


# What an entry must be, so that the code that reads it needs no question.
_KINDS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("step", "number"), _is_count),
    "world_size": lambda value: _is_count(value) and value > 0,
    **dict.fromkeys(("saved", "torch", "ezpz", "schedule"), _is_text),
    "mesh": lambda value: _is_table(value, lambda size: _is_count(size) and size > 0),
    "model": lambda value: _is_table(value, _is_tensor),
    "optimizer": _is_optimizer,
    "state": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "own_objects": lambda value: isinstance(value, bool),
    "files": lambda value: _is_table(value, _is_count) and all(map(_is_file_name, value)),
    "sha256": lambda value: _is_table(value, _is_text),
}


def _is_file_name(name: str) -> bool:
    return bool(name) and name not in {".", ".."} and "/" not in name and "\0" not in name


def unreadable(name: str, error: OSError) -> Unusable:
    """Return what it means that a file cannot be read: that it is damaged, unless this user only may not read it."""
    kind = Unusable if error.errno in {errno.EACCES, errno.EPERM} else Damaged
    return kind(f"{name}: {error.strerror}")


def check_files(folder: Path, manifest: Manifest) -> None:
    """Look whether every file is there in the size that it was written.

    Raises:
        Damaged: One is missing or has another size.
        Unusable: This user may not look.
    """
    for name, size in manifest.files.items():
        try:
            there = os.stat(folder / name).st_size  # noqa: PTH116  # one call per file, of which there are thousands
        except OSError as error:
            raise unreadable(name, error) from None
        if there != size:
            raise Damaged(f"{name} has {there} bytes instead of {size}")
