"""Read event files of TensorBoard, ``events.out.tfevents.<seconds>.<host>.<pid>.<n>``, of any writer.

A file is a sequence of framed records (`ezpz.view.foreign.tfevents`), each a protobuf message ``Event``. Scalars stand
in it in one of two ways, by the age of the writer; the fields are listed in `ezpz.view.trackers.to_tensorboard`:

    Summary.Value  1 tag "loss", 2 simple_value 0.25                                             torch, tensorboardX
    Summary.Value  1 tag "loss", 8 tensor {1 dtype 1, 4 tensor_content …}, 9 {1 {1 "scalars"}}   tensorboard, tensorflow

Texts are tensors of the plugin "text". The plugin "hparams" holds a configuration. Histograms, pictures, audio and
graphs are passed over, as are texts at steps without a number: they are documents, such as a configuration.
"""

from __future__ import annotations

import os
import struct
from functools import cache
from typing import IO, TYPE_CHECKING, Any

from ezpz.files import open_regular
from ezpz.log import get_logger
from ezpz.redact import redact_config
from ezpz.view.foreign.protobuf import Message, number, parse, signed
from ezpz.view.foreign.reading import Reading, make_row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ezpz.track.journal_reader import Row
    from ezpz.track.values import Scalar


# The frame around each record of a TensorBoard event file (TFRecord), read and written.
#
# uint64 length | uint32 masked CRC32C of these 8 bytes | the record | uint32 masked CRC32C of the record
#
# Little endian; masked means rotated right by 15 bits plus 0xa282ead8
# (https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details).

LARGEST = 1 << 18  # bytes: larger records are pictures, graphs and audio, which hold no metric


def frame(record: bytes) -> bytes:
    """Return a record with its frame."""
    head = struct.pack("<Q", len(record))
    return head + struct.pack("<I", _masked(head)) + record + struct.pack("<I", _masked(record))


def read_records(file: IO[bytes]) -> Iterator[bytes | None]:
    """Yield the records of a file; None for one whose checksum is wrong.

    A file that ends within a record is one that is being written, or whose writer was killed: that record is left out.

    Raises:
        ValueError: A length has a wrong checksum, so that where the next record begins is not known.
    """
    while len(head := file.read(12)) == 12:
        size, check = struct.unpack("<QI", head)
        if check != _masked(head[:8]):
            raise ValueError(f"no record at byte {file.tell() - 12}")
        if size > LARGEST:
            file.seek(size + 4, 1)
            continue
        record = file.read(size)
        tail = file.read(4)
        if len(tail) < 4:
            return
        yield record if struct.unpack("<I", tail)[0] == _masked(record) else None


def _masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli polynomial, reflected 0x82f63b78) of bytes."""
    table = _table()
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


@cache
def _table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # noqa: PLW2901  # the remainder after each bit
        table.append(value)
    return tuple(table)


_MARK = ".tfevents."
# Type of a tensor: struct's letter for one number in tensor_content, and the field of its own.
_NUMBERS = {1: ("f", 5), 2: ("d", 6), 3: ("i", 7), 4: ("B", 7), 5: ("h", 7), 6: ("b", 7), 9: ("q", 10), 10: ("?", 11)}
_HALF, _BRAIN, _TEXT = 19, 14, 7


def find_events(place: Path) -> list[Path]:
    """Return the event files at a path and below it, in the order of their times, then of their names."""
    if place.is_file():
        return [place] if _MARK in place.name else []
    return sorted(
        (file for file in place.rglob(f"*{_MARK}*") if file.is_file()),
        key=lambda file: (file.parent, file.name),
    )


def read_events(place: Path, files: list[Path]) -> Reading:
    """Read a run from its event files.

    A file that continues metrics of an earlier one in the same folder, when that one had ended, is a further attempt.

    Raises:
        OSError: A file cannot be read.
    """
    top = files[0].parent if len(files) == 1 else _common(files)
    reading = Reading("tensorboard", place.name if place.is_dir() else top.name, [])
    table: dict[tuple[int, int], Row] = {}
    for folder in dict.fromkeys(file.parent for file in files):
        prefix = "" if folder == top else f"{folder.relative_to(top).as_posix()}/"
        attempt, ended, known = 1, float("-inf"), set[str]()
        for file in (file for file in files if file.parent == folder):
            events = list(_events(file, reading.facts))
            tags = {tag for _, _, values in events for tag in values}
            if known & tags and events[0][1] > ended:
                attempt += 1
            known |= tags
            ended = max([ended, *(when for _, when, _ in events)])
            for step, when, values in events:
                row = table.setdefault((attempt, step), make_row(step, when, {}, attempt))
                row["m"].update({prefix + tag: value for tag, value in values.items()})
        _add_host(reading.facts, folder, files)
    rows = [table[key] for key in sorted(table, key=lambda key: key[0])]  # stable: rows stay in their order
    reading.rows = [row for row in rows if any(not isinstance(value, str) for value in row["m"].values())]
    return reading


def _common(files: list[Path]) -> Path:
    from pathlib import Path

    return Path(os.path.commonpath([file.parent for file in files]))


def _add_host(facts: dict[str, Any], folder: Path, files: list[Path]) -> None:
    name = next(file.name for file in files if file.parent == folder)
    parts = name.partition(_MARK)[2].split(".")
    if len(parts) > 1 and parts[0].isdigit():
        host = ".".join(part for part in parts[1:] if not part.isdigit())
        facts.setdefault("host", host)


def _events(path: Path, facts: dict[str, Any]) -> list[tuple[int, float, dict[str, Any]]]:
    """Return ``(step, time, values)`` of each event of a file that holds any, as far as it can be read."""
    events, broken, end = [], 0, ""
    with open(path, "rb", opener=open_regular) as file:  # Path.open has no opener
        try:
            for record in read_records(file):
                try:
                    event = parse(record or b"\xff")  # a record with a wrong checksum is no message either
                    values = dict(_values(event.message(5), facts))
                except (ValueError, struct.error):
                    broken += 1
                    continue
                if values:
                    events.append((event.integer(2), event.real(1), values))
        except ValueError as error:
            end = f" and what follows: {error}"
    if broken or end:
        get_logger(__name__).warning(f"{path}: passed over {broken} broken record(s){end}.")
    return events


def _values(summary: Message, facts: dict[str, Any]) -> list[tuple[str, Scalar]]:
    values: list[tuple[str, Scalar]] = []
    for item in summary.messages(1):
        tag, simple = item.text(1), item.get(2)
        if simple and isinstance(simple[-1], bytes):
            values.append((tag, number("<f", simple[-1])))
            continue
        plugin = item.message(9).message(1)
        if plugin.text(1) == "hparams":
            _add_config(plugin.raw(2), facts)
        elif 8 in item:
            value = _scalar(item.message(8))
            if value is not None:
                values.append((tag.removesuffix("/text_summary") if isinstance(value, str) else tag, value))
    return values


def _scalar(tensor: Message) -> Scalar | None:
    """Return the one number or text that a tensor holds, or None if it holds more or something else."""
    kind = tensor.integer(1)
    content = tensor.raw(4)
    if kind == _TEXT:
        texts = tensor.get(8, [])
        return tensor.text(8) if len(texts) == 1 else None
    if kind in {_HALF, _BRAIN}:
        if len(content) != 2:
            return None
        return number("<e", content) if kind == _HALF else number("<f", b"\0\0" + content)
    if kind not in _NUMBERS:
        return None
    letter, field = _NUMBERS[kind]
    if len(content) == struct.calcsize(letter):
        value: Scalar = struct.unpack(f"<{letter}", content)[0]
        return value
    return _own_field(tensor, field, letter) if not content else None


def _own_field(tensor: Message, field: int, letter: str) -> Scalar | None:
    """Return the number in a tensor's field of its type, which may be packed."""
    held = tensor.get(field, [])
    if len(held) != 1:
        return None
    value = held[0]
    if letter in "fd":
        return (
            number(f"<{letter}", value) if isinstance(value, bytes) and len(value) == struct.calcsize(letter) else None
        )
    if isinstance(value, bytes):
        packed = parse(b"\x08" + value)  # one varint, read as field 1
        value = packed[1][0] if list(packed) == [1] else b""
    return None if isinstance(value, bytes) else bool(value) if letter == "?" else signed(value)


def _add_config(content: bytes, facts: dict[str, Any]) -> None:
    for pair in parse(content).message(3).messages(1):
        name, value = pair.text(1), pair.message(2)
        if 2 in value:
            setting: object = value.real(2)
            setting = int(setting) if float(setting).is_integer() and abs(setting) < 2**53 else setting  # type: ignore[arg-type,call-overload]  # it is a float
        elif 4 in value:
            setting = bool(value.integer(4))
        else:
            setting = value.text(3)
        facts.setdefault("config", {})[name] = redact_config(setting, name)
