"""Dumps of torch's flight recorder for backends that record but do not dump: gloo on CPUs (torch 2.13).

The same protocol as NCCL's monitor thread has, under the same variables, so that whoever asks need not know the backend:

    TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/run/ask_   rank 3 reads the named pipe /run/ask_3.pipe; any byte asks for a dump
    TORCH_FR_DUMP_TEMP_FILE=/run/rank_          which it writes to /run/rank_3
"""

from __future__ import annotations

import os
import threading
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ezpz.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["answer_requests"]


def answer_requests(rank: int, backend: str, environ: Mapping[str, str]) -> None:
    """Start a thread that waits to be asked, where the launch wants it and the backend does not do so itself."""
    asks, dumps = environ.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE"), environ.get("TORCH_FR_DUMP_TEMP_FILE")
    if not asks or not dumps or backend.rpartition(":")[2] == "nccl":
        return
    pipe = f"{asks}{rank}.pipe"
    try:
        Path(pipe).unlink(missing_ok=True)
        os.mkfifo(pipe, 0o600)
        descriptor = os.open(pipe, os.O_RDWR)  # with a writer of its own, reading waits and never ends
    except OSError as error:  # a hang is then told without the recorder; that is no reason to end a training
        get_logger(__name__).warning(f"no flight recorder: cannot make {pipe}: {error.strerror}")
        return
    # A daemon: it waits for ever, and must not keep the program from ending.
    threading.Thread(
        target=_answer, args=(descriptor, Path(f"{dumps}{rank}")), name="ezpz-recorder", daemon=True
    ).start()


def _answer(descriptor: int, path: Path) -> None:
    c10d: Any = import_module("torch._C._distributed_c10d")  # torch has no public name for the dump
    while os.read(descriptor, 4096):
        try:
            # Collectives, not only active ones, without stacks: those cost over a second of the two that are waited for.
            trace = c10d._dump_fr_trace(True, False, False)  # noqa: SLF001  # as above
            unfinished = path.with_name(f".{path.name}.part")
            unfinished.write_bytes(trace)
            unfinished.replace(path)  # who sees it sees it whole
        except (AttributeError, OSError, RuntimeError, TypeError) as error:  # another torch, or a full disk
            get_logger(__name__).warning(f"no flight recorder's dump in {path}: {error}")
