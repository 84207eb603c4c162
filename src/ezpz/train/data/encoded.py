"""Texts as token ids: short ones in memory, long ones encoded once per host into a file that all its ranks map.

    <data folder>/encoded/<sum of texts and tokenizer>.u2   little-endian, 2 bytes per id; .i4: 4, above 65,536 words

The file gets its name when it is complete. Ranks of other hosts find it where the folder is shared, and later runs
anywhere.
"""

from __future__ import annotations

import os
import time
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.errors import MachineError, UsageError
from ezpz.log import get_logger

if TYPE_CHECKING:
    from pathlib import Path

    from ezpz.train.data.documents import Documents
    from ezpz.train.data.sources import Source
    from ezpz.train.data.tokenizers import Tokenizer

_SHORT = 1 << 22  # bytes of text that every rank encodes by itself
_PATIENCE = 480.0  # seconds: ranks that wait give up after ten minutes with some backends
_LAYOUT = "1"  # of the file; another number makes other names

logger = get_logger(__name__)


class _Ready(NamedTuple):
    file: Path
    origin: str


class _Job(NamedTuple):
    """What is to be encoded, by what, and the moment at which the other ranks have waited long enough."""

    name: str
    documents: Documents
    tokenizer: Tokenizer
    until: float


def encode_together(source: Source, tokenizer: Tokenizer, folder: str | os.PathLike[str] | None) -> tuple[Any, str]:
    """Return ids ``(tokens,)`` as a numpy array, uint16 or int32, and where they come from; all ranks must call.

    Args:
        source: Of the texts.
        tokenizer: The same on all ranks.
        folder: The data folder, see `data_folder`.

    Raises:
        EzpzError: The texts cannot be read, or the file cannot be written, on some host; the same on all ranks.
    """
    from ezpz.dist import broadcast, get_world_size
    from ezpz.train.data.agreement import agreed, looks_for_host

    def obtain() -> _Ready | None:
        return _prepare(_Job(source.name, source.find(), tokenizer, until), folder) if looks_for_host() else None

    def read() -> tuple[Any, str]:
        return _map(source.name, ready, mine, tokenizer), ready.origin

    if not source.is_remote and broadcast(agreed(lambda: (source.find().size or 0) <= _SHORT, source.name)):
        return agreed(lambda: _in_memory(source.find(), tokenizer), source.name, _mark)
    until = time.monotonic() + _PATIENCE if get_world_size() > 1 else float("inf")
    mine = agreed(obtain, source.name)
    ready: Any = broadcast(mine)  # of rank 0, which always looks
    return agreed(read, source.name, lambda mapped: len(mapped[0]))


def _mark(encoded: tuple[Any, str]) -> object:
    return sha256(encoded[0].tobytes()).hexdigest()


def _in_memory(documents: Documents, tokenizer: Tokenizer) -> tuple[Any, str]:
    import numpy as np

    ids: list[int] = []
    for piece in documents.read():
        ids += _ids(piece, tokenizer)
    return np.array(ids, _format(tokenizer)), documents.origin


def _ids(piece: str | None, tokenizer: Tokenizer) -> list[int]:
    if piece is None:
        return [] if tokenizer.eos is None else [tokenizer.eos]
    return tokenizer.encode(piece)


def _format(tokenizer: Tokenizer) -> str:
    return "<u2" if tokenizer.size <= 1 << 16 else "<i4"  # torch's unsigned 32-bit numbers can do next to nothing


def _prepare(job: _Job, folder: str | os.PathLike[str] | None) -> _Ready:
    """Have the file of these texts in the data folder, one process at a time."""
    from ezpz.train.data.shared_files import data_folder, wait_for_lock

    try:
        key = sha256(f"{_LAYOUT} {job.documents.key()} {job.tokenizer.digest}".encode()).hexdigest()[:32]
        file = data_folder(folder) / "encoded" / f"{key}.{_format(job.tokenizer)[1:]}"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            lock, other = wait_for_lock(file.with_suffix(".lock"), until=job.until)
            if lock is not None:
                with lock:
                    _write(job, file)
            elif not file.exists():
                raise MachineError(
                    f"process {other} was encoding {job.name} into {file} and did not finish; expected the file. Start "
                    "again."
                )
    except OSError as error:
        raise UsageError(
            f"cannot write the tokens of {job.name}: {error.strerror or error} (from the data folder); expected a "
            "folder with room that you may write to. Type `export EZPZ_DATA=/another/folder`."
        ) from error
    return _Ready(file, job.documents.origin)


def _write(job: _Job, file: Path) -> None:
    import numpy as np

    if file.exists():  # another one was faster
        return
    part = file.with_name(f".{file.name}.{os.uname().nodename}.{os.getpid()}.part")
    logger.info(f"encoding {job.name} with tokenizer {job.tokenizer.name} into {file}, once")
    try:
        with part.open("wb") as stream:
            for piece in job.documents.read():
                stream.write(np.array(_ids(piece, job.tokenizer), _format(job.tokenizer)).tobytes())
                if time.monotonic() > job.until:
                    raise MachineError(
                        f"encoding {job.name} takes more than {_PATIENCE:.0f} s, and the other ranks wait (from its "
                        "size); expected it done ahead. Load it once in one process: `ezpz.train.load_tokens(…, "
                        "tokenizer=…)`, the same folder."
                    )
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def _map(name: str, ready: _Ready, mine: _Ready | None, tokenizer: Tokenizer) -> Any:
    import numpy as np

    if mine is not None and mine.file.name != ready.file.name:
        raise MachineError(
            f"the hosts hold different data as {name} (from their files); expected the same on all. "
            "Put it into a folder that all hosts see."
        )
    file = (mine or ready).file
    try:
        return np.memmap(
            file, _format(tokenizer), "c"
        )  # "c": torch warns about what it may not write to; nothing is written
    except (OSError, ValueError) as error:  # ValueError: it is empty
        raise UsageError(
            f"cannot read the tokens of {name} from {file}: {error}; expected a file that was written before. Delete "
            "it."
        ) from error
