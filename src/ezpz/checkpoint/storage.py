"""Tensors to files and back, by torch.distributed.checkpoint.

    .metadata        names, shapes and places of all tensors: a pickle that torch writes
    __0_0.distcp     what rank 0 wrote, one tensor after the other, each as ``torch.save`` writes it

Digests are made of the bytes on their way to the file, so that no file is read again; rank 0 gets them with torch's
own report of what each rank has written, so that no message is added.

The tensors are read with ``weights_only=True``. The pickle may name only the classes that torch puts there (torch 2.13,
torch/distributed/checkpoint/metadata.py and filesystem.py): a file that names anything else is refused before it can
run. So is one with an entry that is no tensor: torch reads these with ``weights_only=False`` (default_planner.py).
"""

from __future__ import annotations

import dataclasses
import io
import pickle
import warnings
from collections import OrderedDict
from contextlib import contextmanager
from enum import Enum
from hashlib import sha256
from pathlib import Path, PosixPath, PurePosixPath
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.futures import Future

from ezpz.checkpoint.manifest import WrittenFile
from ezpz.checkpoint.packing import NOT_PLAIN
from ezpz.errors import EzpzError
from ezpz.files import read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ezpz.checkpoint.small_collectives import Together

__all__ = ["StorageError", "WholeTensors", "files_of", "places_of", "read", "read_metadata", "write"]

_METADATA = ".metadata"
_LARGEST = 1 << 30  # bytes of it
_ALONE = (
    "torch.distributed is disabled, unavailable or uninitialized"  # torch warns so at every save of a single process
)


class StorageError(EzpzError):
    """Files cannot be written or read; the same on all ranks. The message names the first rank's problem."""


def write(tensors: Mapping[str, Any], folder: Path, together: Together, *, ahead: bool) -> dict[str, WrittenFile]:
    """Write every rank's part, each fsynced, and ``.metadata``. Collective.

    Args:
        tensors: Nested dictionaries of tensors; what several ranks hold whole is written by one of them.
        folder: Exists; rank 0 has made it.
        together: The ranks.
        ahead: Whether to copy from the device while writing; not from a thread, where it would take another device than
            this rank's.

    Returns:
        Every file of all ranks, by its name, on rank 0; nothing on the others.

    Raises:
        StorageError: A rank could not write, or does not see the folder.
        RuntimeError: A rank is gone.
    """
    writer = _Writer(folder, per_thread_copy_ahead=10_000_000 if ahead else 0)
    with _told_in_one_line():
        dcp.save(dict(tensors), storage_writer=writer, process_group=together.group)
    return writer.files


def read(tensors: dict[str, Any], folder: Path, metadata: Any, together: Together) -> None:
    """Fill tensors in place with what the checkpoint has under their names, whatever ranks have written it. Collective.

    Raises:
        StorageError: A file cannot be read, or a tensor has another shape.
    """
    with _told_in_one_line():
        dcp.load(tensors, storage_reader=_Reader(folder, metadata), process_group=together.group)


def read_metadata(folder: Path) -> Any:
    """Return what ``.metadata`` says.

    Raises:
        StorageError: It cannot be read, or is no such file.
    """
    try:
        data = read_bytes(folder / _METADATA, _LARGEST)
    except OSError as error:
        raise StorageError(f"{_METADATA}: {error.strerror}") from None
    problem = ""
    try:
        metadata = _Unpickler(io.BytesIO(data)).load()
        if isinstance(metadata, dcp.Metadata) and metadata.planner_data is not None:
            kinds = metadata.state_dict_metadata.items()
            other = next((name for name, kind in kinds if type(kind) is not dcp.TensorStorageMetadata), None)
            if other is None:
                return metadata
            problem = f": {other!r} is no tensor"
    # What a damaged pickle raises is not limited to its own error.
    except (pickle.UnpicklingError, ValueError, EOFError, LookupError, AttributeError, ImportError, TypeError) as error:
        raise StorageError(f"{_METADATA} is damaged: {error}") from None
    except (MemoryError, OverflowError):
        pass
    raise StorageError(f"{_METADATA} is damaged{problem}")


def files_of(metadata: Any, path: tuple[str, ...]) -> str:
    """Return the names of the files that hold what is below a path of the nested dictionaries."""
    below = {key for key, place in metadata.planner_data.items() if tuple(map(str, place[: len(path)])) == path}
    return ", ".join(sorted({place.relative_path for key, place in metadata.storage_data.items() if key.fqn in below}))


def places_of(metadata: Any) -> dict[tuple[str, ...], Any]:
    """Return the path of every tensor in the nested dictionaries that were saved, with its size and format."""
    tensors = metadata.state_dict_metadata
    return {tuple(map(str, path)): tensors[key] for key, path in metadata.planner_data.items() if key in tensors}


class WholeTensors:
    """The tensors of a checkpoint, read as a whole and one at a time, by one process and whatever ranks wrote them.

    Attributes:
        places: Path of every tensor in the nested dictionaries that were saved, to its size and format.
    """

    def __init__(self, folder: Path) -> None:
        """Read ``.metadata``.

        Raises:
            StorageError: It cannot be read, or is no such file.
        """
        self._folder, self._metadata = folder, read_metadata(folder)
        self._shards = _Shards(folder)
        self._keys = {tuple(map(str, path)): key for key, path in self._metadata.planner_data.items()}
        self.places = places_of(self._metadata)

    def read(self, path: tuple[str, ...]) -> torch.Tensor:
        """Return a tensor on the CPU. In memory are it and, twice, the largest of its parts.

        Raises:
            StorageError: A file cannot be read, or is damaged.
        """
        key = self._keys[path]
        kind = self._metadata.state_dict_metadata[key]
        try:
            whole = torch.empty(kind.size, dtype=kind.properties.dtype, device="cpu")
            filled = sum(self._fill(whole, key, chunk) for chunk in kind.chunks)
        except (RuntimeError, ValueError, LookupError, TypeError, MemoryError) as error:
            raise StorageError(f"{_METADATA} is damaged: {'/'.join(path)}: {_in_words(error)}") from None
        if filled != whole.numel():
            raise StorageError(f"{_METADATA} is damaged: {'/'.join(path)} has {filled} of {whole.numel()} numbers")
        return whole

    def _fill(self, whole: torch.Tensor, key: str, chunk: Any) -> int:
        """Read a part of a tensor, and return how many numbers it has."""
        place = self._metadata.storage_data[dcp.metadata.MetadataIndex(key, chunk.offsets)]
        part, into = self._part(place), whole
        for dimension, (begin, size) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
            into = into.narrow(dimension, begin, size)
        if part.shape != into.shape or part.dtype != whole.dtype:
            raise StorageError(f"{place.relative_path} is damaged: what it holds of {key} is another tensor")
        into.copy_(part)
        count: int = part.numel()
        return count

    def _part(self, place: Any) -> torch.Tensor:
        name = place.relative_path
        try:
            with self._shards.create_stream(self._folder / name, "rb") as file:
                file.seek(place.offset)
                data = io.BytesIO(file.read(place.length))
                found = torch.load(data, map_location="cpu", weights_only=True)
        except OSError as error:
            raise StorageError(f"{name}: {error.strerror or error}") from None
        except (RuntimeError, ValueError, EOFError, LookupError, OverflowError, MemoryError) as error:
            raise StorageError(f"{name} is damaged: {_in_words(error)}") from None
        if type(found) is not torch.Tensor:
            raise StorageError(f"{name} {NOT_PLAIN}")
        return found


class _Unpickler(pickle.Unpickler):
    """Knows what torch writes into ``.metadata``, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module.startswith("pathlib") and name in {"PosixPath", "PurePosixPath", "Path"}:
            return {"PosixPath": PosixPath, "PurePosixPath": PurePosixPath, "Path": Path}[name]
        if (module, name) == ("torch.serialization", "_get_layout"):
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _member
        if "." not in name and (module == "torch" or module.startswith("torch.distributed.checkpoint.")):
            value = super().find_class(module, name)
            if value is torch.Size or isinstance(value, torch.dtype) or _is_plain(value):
                return value
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _member(enumeration: Any, name: Any) -> Enum:
    """Return a member of one of torch's enumerations: Python 3.11.2 pickles it as a call of ``getattr``."""
    if isinstance(enumeration, type) and issubclass(enumeration, Enum) and name in enumeration.__members__:
        return enumeration[name]
    raise pickle.UnpicklingError(f"it asks for {name!r} of {enumeration!r}")


def _is_plain(value: Any) -> bool:
    ours = isinstance(value, type) and value.__module__.startswith("torch.distributed.checkpoint.")
    return ours and (dataclasses.is_dataclass(value) or issubclass(value, Enum))


class _Reader(dcp.FileSystemReader):  # type: ignore[misc]  # torch is Any to the type check
    """Has read ``.metadata`` already."""

    def __init__(self, folder: Path, metadata: Any) -> None:
        super().__init__(folder)
        self.fs = _Shards(folder)
        self._metadata = metadata

    def read_metadata(self, *_: Any, **__: Any) -> Any:
        return self._metadata


class _Shards(FileSystem):  # type: ignore[misc]  # torch is Any to the type check
    """Files of one folder to read; of one that holds something else than tensors torch says how to load it anyway."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        if Path(path).parent != Path(self._folder) or Path(path).name == "..":
            raise StorageError(f"{_METADATA} is damaged: it names the file {str(path)!r}")
        with super().create_stream(path, mode) as stream:
            try:
                yield stream
            except pickle.UnpicklingError:
                raise StorageError(f"{Path(path).name} {NOT_PLAIN}") from None


class _Writer(dcp.FileSystemWriter):  # type: ignore[misc]  # torch is Any to the type check
    """Sends what it knows of its files along with torch's results.

    Attributes:
        files: Those of all ranks, on rank 0 when everything is written.
    """

    def __init__(self, folder: Path, **more: Any) -> None:
        super().__init__(folder, **more)
        self.fs = _Files()
        self.files: dict[str, WrittenFile] = {}

    def write_data(self, *args: Any) -> Any:
        results = _Results(super().write_data(*args).wait())
        results.files = dict(self.fs.written)
        future: Future[Any] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Any, results: Any) -> None:
        super().finish(metadata, results)
        self.files = {name: file for each in results for name, file in each.files.items()} | self.fs.written


class _Results(list[Any]):
    """What torch gathers from a rank, and its files by their names."""

    files: dict[str, WrittenFile]


class _Files(FileSystem):  # type: ignore[misc]  # torch is Any to the type check
    """Files whose errors keep their own words: torch turns a full disk into "unexpected pos 704 vs 598".

    Attributes:
        written: What was written through this object, by the names of the files.
    """

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[str, WrittenFile] = {}

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        file = _DigestedFile(path, mode)
        stream = _Stream(file, 1 << 20)
        try:
            with stream:
                yield stream
        except (OSError, RuntimeError):
            if stream.problem is not None:
                raise stream.problem from None
            raise
        self.written[Path(path).name] = WrittenFile(file.size, file.digest.hexdigest())

    def rename(self, path: Any, new_path: Any) -> None:
        super().rename(path, new_path)
        self.written[Path(new_path).name] = self.written.pop(Path(path).name)

    def mkdir(self, path: Any) -> None:
        if not Path(path).is_dir():  # rank 0 has made it
            raise FileNotFoundError(2, "not seen from this rank's host; expected a folder that all hosts share")


class _DigestedFile(io.FileIO):
    """A file that is written from its beginning to its end, and the digest of that."""

    def __init__(self, path: Any, mode: str) -> None:
        super().__init__(path, mode)
        self.size, self.digest = 0, sha256()

    def write(self, data: Any) -> int:
        count = super().write(data)
        self.digest.update(memoryview(data)[:count])
        self.size += count
        return count


class _Stream(io.BufferedWriter):
    problem: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.problem = error
            raise


@contextmanager
def _told_in_one_line() -> Iterator[None]:
    """Turn what torch raises on all ranks, with the tracebacks of those that failed, into one line."""
    warnings.filterwarnings("ignore", message=_ALONE)
    try:
        yield
    except dcp.CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        raise StorageError(f"rank {rank}: {_in_words(cause)}") from error


def _in_words(cause: BaseException) -> str:
    if isinstance(cause, StorageError):
        return str(cause)
    if isinstance(cause, OSError) and cause.strerror:
        return f"{cause.strerror}" + (f" ({Path(cause.filename).name})" if cause.filename else "")
    return f"{type(cause).__name__}: {cause}".strip().partition("\n")[0]
