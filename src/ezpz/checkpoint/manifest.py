"""Read and write ``checkpoint.json``, which describes a checkpoint and makes its folder one.

    {"schema": 1, "step": 100, "number": 7, "saved": "2026-11-20T16:20:01+01:00", "world_size": 4,
     "mesh": {"dp_shard": 2, "tp": 2}, "torch": "2.13.0", "ezpz": "0.1.0",
     "model": {"norm.weight": ["float32", [64]]}, "optimizer": {"kind": "AdamW", "fresh": false},
     "schedule": "LambdaLR", "state": ["scaler"], "own_objects": false,
     "files": {".metadata": 5120, "__0_0.distcp": 83456}}

It is written last, before the folder gets its name. Standard library only.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ezpz import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["NAME", "SCHEMA", "Manifest", "Unusable", "check_files", "read_manifest", "sizes_of"]

NAME = "checkpoint.json"
SCHEMA = 1


class Unusable(Exception):  # noqa: N818  # a finding about a folder, turned into an error or a log line by its readers
    """This folder is no complete checkpoint; the message says why, as the end of a sentence."""


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

    def to_json(self) -> bytes:
        """Return the content of the file."""
        return (json.dumps({"schema": SCHEMA, **asdict(self)}) + "\n").encode()


# What of it other code relies on before looking further.
_KINDS = {"step": int, "number": int, "saved": str, "world_size": int, "mesh": dict, "model": dict, "files": dict}


def read_manifest(folder: Path) -> Manifest:
    """Read what a folder says of itself; its files are not looked at.

    Raises:
        Unusable: It is no checkpoint, or one of another schema.
    """
    try:
        entries = json.loads((folder / NAME).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise Unusable(f"it has no {NAME}") from None
    except OSError as error:
        raise Unusable(f"{NAME} cannot be read: {error.strerror}") from None
    except ValueError:
        raise Unusable(f"{NAME} is no JSON") from None
    if not isinstance(entries, dict) or "schema" not in entries:
        raise Unusable(f"{NAME} is not of ezpz: it names no schema")
    schema = entries.pop("schema")
    if schema != SCHEMA:
        raise Unusable(
            f"the schema of {NAME} is {schema}, written by ezpz {entries.get('ezpz', 'of an unknown version')}; this "
            f"ezpz {__version__} reads schema {SCHEMA}: use the ezpz that wrote it, or a newer one"
        )
    lacking = [name for name, kind in _KINDS.items() if not isinstance(entries.get(name), kind)]
    try:
        manifest = Manifest(**entries)
    except TypeError:
        raise Unusable(f"{NAME} has other entries than schema {SCHEMA}") from None
    if lacking:
        raise Unusable(f"{NAME} has no usable {lacking[0]!r}")
    return manifest


def check_files(folder: Path, manifest: Manifest) -> None:
    """Look whether every file is there in the size that it was written.

    Raises:
        Unusable: One is missing or has another size.
    """
    for name, size in manifest.files.items():
        try:
            there = os.stat(folder / name).st_size  # noqa: PTH116  # one call per file, of which there are thousands
        except OSError as error:
            raise Unusable(f"{name}: {error.strerror}") from None
        if there != size:
            raise Unusable(f"{name} has {there} bytes instead of {size}")


def sizes_of(folder: Path) -> Mapping[str, int]:
    """Return the size in bytes of every file of a folder."""
    with os.scandir(folder) as entries:
        return {entry.name: entry.stat().st_size for entry in entries}
