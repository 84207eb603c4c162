"""The frame around each record of a TensorBoard event file (TFRecord), read and written.

    uint64 length | uint32 masked CRC32C of these 8 bytes | the record | uint32 masked CRC32C of the record

Little endian; masked means rotated right by 15 bits plus 0xa282ead8
(https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details).
"""

from __future__ import annotations

import struct
from functools import cache
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LARGEST", "frame", "read_records"]

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
