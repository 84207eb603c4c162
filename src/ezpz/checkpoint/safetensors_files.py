"""The files of weights that Hugging Face's libraries read, written and read one tensor at a time.

    68 00 00 00 00 00 00 00                                                   length of what follows, 64 bit LE
    {"__metadata__":{"format":"pt"},
     "lm_head.weight":{"dtype":"F32","shape":[300,64],"data_offsets":[0,76800]}}   padded with spaces to a multiple of 8
    …                                                                         the tensors' bytes, little-endian, no gaps

    model.safetensors.index.json    {"metadata":{"total_size":16060522496},
                                     "weight_map":{"lm_head.weight":"model-00004-of-00004.safetensors"}}

Source: the format's description in github.com/huggingface/safetensors, README.md. The library itself wants all tensors
of a file in memory at once, twice where they must be reordered.
"""

from __future__ import annotations

import json
from math import prod
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.files import open_regular, read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

__all__ = [
    "ALONE",
    "FORMATS",
    "INDEX",
    "WRITTEN",
    "Entry",
    "UnreadableError",
    "Weight",
    "bytes_of",
    "find_entries",
    "header_of",
    "index_of",
    "planned",
    "read_tensor",
]

ALONE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FORMATS = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Name of torch's number format to its word and bytes there. What is imported is one of `FORMATS`.
WRITTEN = {name: (word, _BYTES[name]) for word, name in FORMATS.items()} | {
    "float64": ("F64", 8),
    "int64": ("I64", 8),
    "int32": ("I32", 4),
    "int16": ("I16", 2),
    "int8": ("I8", 1),
    "uint64": ("U64", 8),
    "uint32": ("U32", 4),
    "uint16": ("U16", 2),
    "uint8": ("U8", 1),
    "bool": ("BOOL", 1),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
}
_MOST = 100_000_000  # bytes of a header, as the library has it


class UnreadableError(Exception):
    """Files are not as they must be; the message says how, as the end of a sentence."""


class Entry(NamedTuple):
    """Where a tensor lies.

    Attributes:
        file: The file.
        dtype: Name of torch's number format, of those in `FORMATS`; another one in the format's own word.
        shape: Of the tensor.
        begin: Place of its first byte in the file.
        size: Its bytes.
        problem: Why it cannot be read, as the end of a sentence; "" if it can.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    size: int
    problem: str = ""


class Weight(NamedTuple):
    """What is to be written of a tensor.

    Attributes:
        shape: Of the tensor.
        dtype: Name of torch's number format, one of `WRITTEN`.
    """

    shape: tuple[int, ...]
    dtype: str

    def size(self) -> int:
        """Return its bytes."""
        return prod(self.shape) * WRITTEN[self.dtype][1]


def planned(weights: Mapping[str, Weight], shard_bytes: int) -> list[tuple[str, list[str]]]:
    """Return the names of files, each with the tensors in it: as many as fit, in their order, at least one."""
    groups: list[list[str]] = [[]]
    room = shard_bytes
    for name, weight in weights.items():
        if groups[-1] and weight.size() > room:
            groups.append([])
            room = shard_bytes
        groups[-1].append(name)
        room -= weight.size()
    if len(groups) == 1:
        return [(ALONE, groups[0])]
    return [(f"model-{number:05d}-of-{len(groups):05d}.safetensors", group) for number, group in enumerate(groups, 1)]


def header_of(weights: Mapping[str, Weight]) -> bytes:
    """Return the beginning of a file of these tensors, whose bytes follow it in this order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, weight in weights.items():
        end = begin + weight.size()
        header[name] = {
            "dtype": WRITTEN[weight.dtype][0],
            "shape": list(weight.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a tensor on the CPU."""
    import torch

    return memoryview(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


def index_of(plan: list[tuple[str, list[str]]], weights: Mapping[str, Weight]) -> str:
    """Return the content of the index of several files."""
    places = {name: file for file, names in plan for name in names}
    total = sum(weight.size() for weight in weights.values())
    return json.dumps({"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}, indent=2) + "\n"


def find_entries(folder: Path) -> dict[str, Entry]:
    """Return where each tensor of a folder lies. One in a number format that is not known here has a ``problem``.

    Raises:
        UnreadableError: There are no such files, or they are cut or damaged.
        OSError: One cannot be read.
    """
    if (folder / INDEX).is_file():
        weight_map = _json(INDEX, read_bytes(folder / INDEX)).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise UnreadableError(f"{INDEX} has no weight_map")
        names = sorted(set(weight_map.values()))
        if any(Path(name).name != name or not name.isprintable() for name in names):
            raise UnreadableError(f"{INDEX} names files outside of the folder, or none that can be")
    else:
        weight_map, names = None, [ALONE]
    entries: dict[str, Entry] = {}
    for name in names:
        if not (folder / name).is_file():
            others = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
            raise UnreadableError(f"it has no {name}" + (f", but {', '.join(others[:4])}" if others else ""))
        found = dict(_entries(folder / name))
        entries |= {key: entry for key, entry in found.items() if not weight_map or weight_map.get(key, name) == name}
    lost = sorted(set(weight_map or ()) - entries.keys())
    if lost:
        raise UnreadableError(f"{lost[0]} is not in {(weight_map or {})[lost[0]]}, where {INDEX} has it")
    return entries


def _entries(path: Path) -> Iterator[tuple[str, Entry]]:
    size = path.stat().st_size
    with open(path, "rb", opener=open_regular) as file:  # Path.open has no opener
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_MOST, size - 8):
            raise UnreadableError(
                f"{path.name} is cut, or no safetensors: its header would have {length} of {size} bytes"
            )
        header = _json(path.name, file.read(length))
    places: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            word, shape, (begin, end) = (
                str(entry["dtype"]),
                tuple(map(index, entry["shape"])),
                map(index, entry["data_offsets"]),
            )
        except (KeyError, TypeError, ValueError):
            raise UnreadableError(f"{path.name} is damaged: its header tells no place of {name}") from None
        dtype = FORMATS.get(word, word)
        is_right = dtype not in _BYTES or end - begin == prod(shape) * _BYTES[dtype]
        if not 0 <= begin <= end or min(shape, default=0) < 0 or not is_right:
            raise UnreadableError(f"{path.name} is damaged: {name} has {end - begin} bytes for {word} {list(shape)}")
        problem = ""
        if dtype not in _BYTES:
            problem = f"{name} in {path.name} has the number format {word}, and known here are {', '.join(FORMATS)}"
        places.append((begin, end, name))
        yield name, Entry(path, dtype, shape, 8 + length + begin, end - begin, problem)
    _check_places(path.name, places, size - 8 - length)


def _check_places(file: str, places: list[tuple[int, int, str]], size: int) -> None:
    """Refuse tensors that share bytes, bytes that are no tensor's, and a file that ends before its last tensor.

    Args:
        file: Its name.
        places: First byte, the byte after the last one, and name of every tensor.
        size: Bytes after the header.
    """
    known, before = 0, ""
    for begin, end, name in sorted(places):
        if begin < known:
            raise UnreadableError(f"{file} is damaged: {before} and {name} share bytes {begin} to {min(end, known)}")
        if begin > known:
            raise UnreadableError(f"{file} is damaged: bytes {known} to {begin}, before {name}, are no tensor's")
        known, before = end, name
    if size != known:
        raise UnreadableError(f"{file} has {size} bytes of tensors instead of {known}: it was cut, or is damaged")


def _json(name: str, data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise UnreadableError(f"{name} is damaged: no JSON where it must be") from None
    if not isinstance(content, dict):
        raise UnreadableError(f"{name} is damaged: no table where it must be")
    return content


def read_tensor(entry: Entry) -> torch.Tensor:
    """Return a tensor, read into memory of its own on the CPU.

    Raises:
        UnreadableError: It has a ``problem``.
        OSError: The file cannot be read, or has become shorter.
    """
    if entry.problem:
        raise UnreadableError(entry.problem)
    import torch

    data = torch.empty(entry.size, dtype=torch.uint8, device="cpu")
    with open(entry.file, "rb", opener=open_regular) as file:  # as above
        file.seek(entry.begin)
        view = memoryview(data.numpy())
        read = 0
        while read < entry.size:
            count = file.readinto(view[read:])
            if not count:
                raise OSError(5, f"ends after {entry.begin + read} bytes", str(entry.file))
            read += count
    return data.view(getattr(torch, entry.dtype)).reshape(entry.shape)
