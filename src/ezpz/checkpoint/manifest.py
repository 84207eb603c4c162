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
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz import __version__, fields
from ezpz.files import read_bytes

if TYPE_CHECKING:
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


_COUNT, _TEXT = fields.Number(0, fields.FAR), fields.text_field()


class SavedOptimizer(fields.Record):
    """What `optimizers.objection` reads of an optimizer, among other things that are kept of it."""

    kind: str = fields.text_field()
    fresh: bool = fields.flag_field()
    groups: list[int] = fields.list_field(_COUNT)


class Manifest(fields.Record):
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

    step: int = fields.number_field(0)
    number: int = fields.number_field(0)
    saved: str = fields.text_field()
    world_size: int = fields.number_field(1)
    mesh: dict[str, int] = fields.map_field(fields.number_field(1))
    torch: str = fields.text_field()
    ezpz: str = fields.text_field()
    model: dict[str, list[Any]] = fields.map_field(fields.Row((_TEXT, fields.list_field(_COUNT))))
    optimizer: dict[str, Any] | None = fields.part_field(SavedOptimizer)
    schedule: str = fields.text_field()
    state: list[str] = fields.list_field(_TEXT)
    own_objects: bool = fields.flag_field()
    files: dict[str, int] = fields.map_field(_COUNT)
    sha256: dict[str, str] = fields.map_field(_TEXT)

    def to_json(self) -> bytes:
        """Return the content of the file."""
        text = json.dumps({"schema": SCHEMA, **fields.as_dict(self)})[:-1].encode()
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
    return _checked(entries, schema)


def _checked(entries: dict[str, Any], schema: int) -> Manifest:
    """Return a manifest of which the code that reads it needs to ask nothing."""
    if entries.keys() != {*Manifest.NAMES}:
        raise Damaged(f"{NAME} has other entries than schema {schema}")
    for name, field in Manifest.CHECKS.items():
        try:
            if name != "optimizer" or entries[name] is not None:
                field.check(entries[name])
        except fields.Malformed as error:
            raise Damaged(f"{NAME} has no usable {name!r}: {error}") from None
    manifest = Manifest(**entries)
    if any(name in {"", ".", ".."} or "/" in name or "\0" in name for name in manifest.files):
        raise Damaged(f"{NAME} has no usable 'files': expected names of files in its folder")
    if schema > 1 and manifest.files.keys() != manifest.sha256.keys():
        raise Damaged(f"{NAME} has no usable 'sha256': expected a digest of each file")
    return manifest


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
