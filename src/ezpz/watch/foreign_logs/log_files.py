r"""Read the files that ``ezpz why --logs`` was given: logs, dumps of torch's flight recorder, torchrun's error files.

A dump is a pickle, as `ezpz.watch.collectives.last_collectives` describes it, or the same as JSON
(``torch._C._distributed_c10d._dump_nccl_trace_json``). An error file is what ``@record`` of torch 2.13 writes
(torch/distributed/elastic/multiprocessing/errors/error_handler.py):

    {"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "Traceback …", "timestamp": "1764403500"}}}
"""

from __future__ import annotations

import json
import os
import re
from collections import deque

from ezpz.errors import UsageError
from ezpz.fields import Record
from ezpz.files import open_regular
from ezpz.visible import visible
from ezpz.watch.collectives.last_collectives import MalformedDump, read_dump

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

__all__ = ["LogFile", "read_logs"]

_TAIL = 16 << 20  # bytes of a log that are read, from its end; a larger dump would take too much memory
_PIECE = 1 << 20
_SAMPLE = 4096  # bytes that tell text from other content
_PICKLE = b"\x80\x02"
_PACKED = {b"\x1f\x8b": "zcat", b"\xfd7zXZ": "xzcat", b"\x28\xb5\x2f\xfd": "zstdcat", b"BZh": "bzcat"}
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class LogFile(Record):
    """A file that was read.

    Attributes:
        path: As it was named.
        text: A log, or the traceback in an error file of torchrun.
        dump: A dump of torch's flight recorder; None for all else.
    """

    path: str
    text: str = ""
    dump: dict[str, Any] | None = None


def read_logs(paths: Sequence[str]) -> tuple[list[LogFile], list[str]]:
    """Read files, and say of each that told nothing, or not all, why.

    Returns:
        The files that hold something, in the order in which they were named, each once; and a sentence for each other.

    Raises:
        UsageError: One is missing, a folder, or may not be read; or none of them is a log or a dump.
    """
    files, notes = [], []
    for path in dict.fromkeys(paths):
        try:
            file, note = _read(path)
        except (OSError, ValueError) as error:  # ValueError: a path with a NUL
            raise _unreadable(path, error) from None
        if file is not None:
            files.append(file)
        notes += [f"{visible(path)}: {note}"] if note else []
    if not files:
        raise UsageError(f"no log among the files of --logs: {'; '.join(notes)}. Expected logs, or dumps of torch's.")
    return files, notes


def _read(path: str) -> tuple[LogFile | None, str]:
    """Return a file, None where it tells nothing, and what there is to say of it."""
    data, before = _tail(path)
    if not data:
        return None, "it is empty"
    if not before and data.startswith(_PICKLE):
        try:
            return LogFile(path, dump=read_dump(data)), ""
        except MalformedDump as error:
            return None, f"it is no dump of torch's recorder: {error}"
    other = "" if before else next((program for magic, program in _PACKED.items() if data.startswith(magic)), "")
    sample = data[:_SAMPLE].decode("utf-8", "replace")
    if other or "\0" in sample or sample.count("\ufffd") * 10 > len(sample):
        packed = f"it is compressed; give it as <({other} FILE)"
        return None, packed if other else "it is binary, and no dump of torch's recorder"
    text = _ESCAPE.sub("", data.decode("utf-8", "replace")).replace("\r\n", "\n").replace("\r", "\n")
    note = f"only its last {_TAIL >> 20} MiB of {before + len(data) >> 20} were read" if before else ""
    return (None if before else _of_json(path, text)) or LogFile(path, text), note


def _tail(path: str) -> tuple[bytes, int]:
    """Return the last bytes of a file, and how many there are before them."""
    with open(path, "rb", opener=open_regular) as file:
        if not file.seekable():  # a pipe, from `<(zcat log.gz)`
            pieces: deque[bytes] = deque()
            before = 0
            while piece := file.read(_PIECE):
                pieces.append(piece)
                if len(pieces) * _PIECE > _TAIL:
                    before += len(pieces.popleft())
            return b"".join(pieces), before
        before = max(0, os.fstat(file.fileno()).st_size - _TAIL)
        file.seek(before)
        return file.read(_TAIL), before


def _of_json(path: str, text: str) -> LogFile | None:
    """Return a dump, or an error file of torchrun, that JSON holds; None for all else, such as a log in JSON."""
    if not text.startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("entries"), list):
        return LogFile(path, dump=value)
    message = value.get("message")
    extra = message.get("extraInfo") if isinstance(message, dict) else None
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    return LogFile(path, stack) if isinstance(stack, str) else None


def _unreadable(path: str, error: OSError | ValueError) -> UsageError:
    source = f"{visible(path)} (from --logs)"
    if isinstance(error, IsADirectoryError):
        return UsageError(
            f"{source} is a folder; expected files. All of it: `ezpz why --logs $(find {visible(path)} -type f)`."
        )
    if isinstance(error, FileNotFoundError):
        return UsageError(f"there is no {source}; expected a log, or a dump of torch's flight recorder.")
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return UsageError(f"cannot read {source}: {reason}; expected a log, or a dump of torch's flight recorder.")
