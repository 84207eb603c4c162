"""Read and write the few protobuf messages of other tools without their libraries.

A message is a sequence of fields, each a varint ``number << 3 | type`` and then, by type: 0 a varint, 1 eight bytes, 2
a varint length and so many bytes, 5 four bytes (https://protobuf.dev/programming-guides/encoding/):

    08 96 01            field 1, varint 150
    12 03 61 62 63      field 2, three bytes "abc"
"""

from __future__ import annotations

import struct


class Message(dict[int, "list[int | bytes]"]):
    """A message read: the values of each field number; ints are varints, all else are bytes."""

    def messages(self, field: int) -> list[Message]:
        """Return every message that the field holds; one that is no message raises ValueError."""
        return [parse(data) for data in self.get(field, ()) if isinstance(data, bytes)]

    def message(self, field: int) -> Message:
        """Return the last message that the field holds, or an empty one."""
        messages = self.messages(field)
        return messages[-1] if messages else Message()

    def text(self, field: int) -> str:
        """Return the field's text, or an empty one."""
        value = self.get(field, [b""])[-1]
        return value.decode(errors="replace") if isinstance(value, bytes) else ""

    def raw(self, field: int) -> bytes:
        """Return the field's bytes, or none."""
        value = self.get(field, [b""])[-1]
        return value if isinstance(value, bytes) else b""

    def integer(self, field: int) -> int:
        """Return the field's int64, or 0."""
        value = self.get(field, [0])[-1]
        return signed(value) if isinstance(value, int) else 0

    def real(self, field: int) -> float:
        """Return the field's double, or 0."""
        value = self.get(field, [b""])[-1]
        return number("<d", value) if isinstance(value, bytes) and len(value) == 8 else 0.0


def parse(data: bytes) -> Message:
    """Read a message.

    Raises:
        ValueError: The bytes are none.
    """
    message = Message()
    place, end = 0, len(data)
    while place < end:
        tag, place = _varint(data, place)
        kind = tag & 7
        value: int | bytes
        if kind == 0:
            value, place = _varint(data, place)
        else:
            size = 8 if kind == 1 else 4 if kind == 5 else -1
            if kind == 2:
                size, place = _varint(data, place)
            if size < 0 or place + size > end:
                raise ValueError(f"no protobuf message: field type {kind} at byte {place} of {end}")
            value = data[place : place + size]
            place += size
        message.setdefault(tag >> 3, []).append(value)
    return message


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    try:
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, place
            shift += 7
            if shift > 63:
                raise ValueError(f"no protobuf message: a varint of more than ten bytes at byte {place}")
    except IndexError:
        raise ValueError("no protobuf message: it ends within a varint") from None


def signed(value: int) -> int:
    """Return the int64 that a varint encodes."""
    return value - (1 << 64) if value >> 63 else value


def number(form: str, data: bytes) -> float:
    """Return the one number that bytes hold, by a `struct` format."""
    value: float = struct.unpack(form, data)[0]
    return value


def _put_varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def put_int(field: int, value: int) -> bytes:
    """Return an int64 field."""
    return _put_varint(field << 3) + _put_varint(value)


def put_double(field: int, value: float) -> bytes:
    """Return a double field."""
    return _put_varint(field << 3 | 1) + struct.pack("<d", value)


def put_float(field: int, value: float) -> bytes:
    """Return a float field; what 32 bits cannot hold becomes an infinity."""
    try:
        data = struct.pack("<f", value)
    except OverflowError:
        data = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _put_varint(field << 3 | 5) + data


def put_bytes(field: int, value: bytes | str) -> bytes:
    """Return a field of bytes, text or a message."""
    data = value.encode(errors="replace") if isinstance(value, str) else value
    return _put_varint(field << 3 | 2) + _put_varint(len(data)) + data
