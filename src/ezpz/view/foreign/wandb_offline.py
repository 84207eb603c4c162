"""Read runs that wandb kept offline: ``wandb/offline-run-<time>-<id>/run-<id>.wandb``.

The file is seven bytes of head and then a LevelDB log (https://github.com/google/leveldb/blob/main/doc/log_format.md)
of protobuf messages ``Record`` (wandb/proto/wandb_internal.proto, which wandb ships as wandb_internal_pb2.py); its
checksum is the CRC-32 of zlib over type and data:

    3a 57 26 42  e1 be  00                 ":W&B", magic 0xbee1, version 0
    a0 66 8b 5f  4b 00  01  08 01 c2 …     checksum, length 75, type 1 (1 whole, 2 first, 3 middle, 4 last), the data

    Record       2 history, 5 config, 17 run, 18 exit, 21 header, 26 environment
    history      1 item: 1 key, 2 nested_key (repeated), 16 value_json; 2 step: 1 num
    config       1 update: 1 key, 2 nested_key, 16 value_json
    run          1 run_id, 3 project, 4 config, 8 display_name, 13 host, 17 start_time: 1 seconds, 21 git: 2 commit
    exit         1 exit_code
    header       1 version_info: 1 producer
    environment  2 python, 3 started_at: 1 seconds, 5 args (repeated), 6 program, 9 git: 2 commit, 12 host, 14
    executable

Blocks are 32 KiB; a block's last bytes that hold no head of a record are zeros. wandb keeps the last block in its
memory, so the file of a killed run lacks its end.
"""

from __future__ import annotations

import json
import zlib
from datetime import datetime
from math import nan
from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError
from ezpz.files import open_regular, read_bytes, read_text
from ezpz.log import get_logger
from ezpz.redact import redact_argv, redact_config
from ezpz.view.foreign.protobuf import Message, parse
from ezpz.view.foreign.reading import Reading, make_row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ezpz.track.journal_reader import Row

_BLOCK, _HEAD = 32768, 7
_WHOLE, _FIRST, _LAST = 1, 2, 4
_SHOWN = (
    "torch",
    "numpy",
    "wandb",
    "accelerate",
    "datasets",
    "deepspeed",
    "jax",
    "lightning",
    "tokenizers",
    "transformers",
)

_LARGEST = 4 << 30  # bytes of a run's file, which is read whole


def find_wandb(place: Path) -> list[Path]:
    """Return the files of one run at a path, oldest first: more than one when it was started again.

    Raises:
        UsageError: The folder holds several runs.
    """
    if place.is_file():
        with open(place, "rb", opener=open_regular) as file:  # Path.open has no opener
            return [place] if place.suffix == ".wandb" or file.read(4) == b":W&B" else []
    for pattern in ("run-*.wandb", "*run-*/run-*.wandb", "wandb/*run-*/run-*.wandb"):
        found = place.glob(pattern)  # without those behind wandb's latest-run, unless the user has named that
        files = sorted(file for file in found if file.parent == place or not file.parent.is_symlink())
        if len({file.name for file in files}) > 1:
            names = ", ".join(file.parent.name for file in files[:3])
            raise UsageError(
                f"{len(files)} wandb runs in {place} (from the command line): {names}; expected one. Name one of them."
            )
        if files:
            return files
    return []


def read_wandb(files: list[Path]) -> Reading:
    """Read a run from its files, of which each is an attempt.

    Raises:
        UsageError: A file does not begin as wandb's do.
        OSError: A file cannot be read.
    """
    reading = Reading("wandb", files[0].stem.removeprefix("run-"), [])
    for attempt, path in enumerate(files, 1):
        data = read_bytes(path, _LARGEST)
        if data[:4] != b":W&B" or data[6:7] > b"\x00":
            raise UsageError(
                f"cannot read {path} (from the command line): it begins with {data[:7]!r}; "
                f"expected ':W&B' and version 0."
            )
        reading.state = "unknown"
        broken = 0
        for raw in _records(data):
            try:
                _take(parse(raw or b"\xff"), reading, attempt)  # a record with a wrong checksum is no message either
            except (ValueError, RecursionError):  # the latter from JSON of absurd depth
                broken += 1
        if broken:
            get_logger(__name__).warning(f"{path}: passed over {broken} broken record(s).")
        _read_requirements(path.parent / "files" / "requirements.txt", reading)
    return reading


def _records(data: bytes) -> Iterator[bytes | None]:
    """Yield the records of a LevelDB log; None where some bytes are broken. A torn end is no record."""
    place, pieces, started = _HEAD, b"", False
    while place + _HEAD <= len(data):
        left = _BLOCK - place % _BLOCK
        size = int.from_bytes(data[place + 4 : place + 6], "little")
        kind = data[place + 6]
        if left < _HEAD or (size == 0 and kind == 0):
            place += left
            continue
        end = place + _HEAD + size
        if end > len(data) and size + _HEAD <= left:
            return
        if size + _HEAD > left or zlib.crc32(data[place + 6 : end]) != int.from_bytes(
            data[place : place + 4], "little"
        ):
            yield None
            place, pieces, started = place + left, b"", False
            continue
        if kind in {_WHOLE, _FIRST}:
            pieces, started = b"", True
        pieces += data[place + _HEAD : end]
        if kind in {_WHOLE, _LAST}:
            if started:
                yield pieces
            pieces, started = b"", False
        place = end


def _take(record: Message, reading: Reading, attempt: int) -> None:
    facts = reading.facts
    for history in record.messages(2):
        reading.rows.append(_row(history, attempt))
    for config in record.messages(5):
        _add_config(config, facts)
    for run in record.messages(17):
        reading.name = run.text(8) or run.text(1) or reading.name
        _add_config(run.message(4), facts)
        _add(facts, host=run.text(13), git_commit=run.message(21).text(2), started=_time(run.message(17)))
        _add(facts, wandb={key: text for key, field in (("id", 1), ("project", 3)) if (text := run.text(field))})
    for ending in record.messages(18):
        code = ending.integer(1)
        reading.state, reading.cause = ("failed", f"exit code {code}") if code else ("finished", "")
    for header in record.messages(21):
        _add_version(facts, "wandb", header.message(1).text(1).partition("+")[0])
    for there in record.messages(26):
        _add(facts, host=there.text(12), executable=there.text(14), git_commit=there.message(9).text(2))
        _add(facts, python=there.text(2).removeprefix("CPython "), started=_time(there.message(3)))
        words = [word.decode(errors="replace") for word in there.get(5, ()) if isinstance(word, bytes)]
        _add(facts, argv=redact_argv([there.text(6), *words]) if there.text(6) else None)


def _row(history: Message, attempt: int) -> Row:
    items = [(_name(item), json.loads(item.text(16) or "null")) for item in history.messages(1)]
    media = {name.removesuffix("_type") for name, _ in items if name.endswith("._type")}  # histograms, tables, pictures
    values, own = {}, {}
    for name, value in items:
        if name.startswith("_"):
            own[name] = value
        elif _is_value(value) and not any(name.startswith(prefix) for prefix in media):
            values[name] = value
    step, when = own.get("_step"), own.get("_timestamp")
    return make_row(
        step if type(step) is int else history.message(2).integer(1),
        float(when) if isinstance(when, (int, float)) else nan,
        values,
        attempt,
    )


def _is_value(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, (bool, int, float, str)) for item in value)
    return isinstance(value, (bool, int, float, str))


def _name(item: Message) -> str:
    return item.text(1) or ".".join(key.decode(errors="replace") for key in item.get(2, ()) if isinstance(key, bytes))


def _add_config(config: Message, facts: dict[str, Any]) -> None:
    for item in config.messages(1):
        name = _name(item)
        if name and not name.startswith("_wandb"):
            facts.setdefault("config", {})[name] = redact_config(json.loads(item.text(16) or "null"), name)


def _add(facts: dict[str, Any], **facts_read: object) -> None:
    facts.update({key: value for key, value in facts_read.items() if value})


def _add_version(facts: dict[str, Any], name: str, version: str) -> None:
    if version:
        facts.setdefault("versions", {})[name] = version


def _time(stamp: Message) -> str:
    seconds = stamp.integer(1)
    try:
        return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds") if seconds else ""
    except (OverflowError, OSError, ValueError):  # no time at all
        return ""


def _read_requirements(path: Path, reading: Reading) -> None:
    """Take versions from the ``name==version`` lines that wandb leaves beside the run."""
    for line in (read_text(path) or "").splitlines():
        name, _, version = line.strip().partition("==")
        if name in _SHOWN:
            _add_version(reading.facts, name, version)
