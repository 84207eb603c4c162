"""Measure how fast this host is: writing and reading a folder, and a matrix product on each device.

``python3 -m ezpz.dist.speed FOLDER`` prints both as one JSON object; an empty FOLDER is not measured. It is a
process of its own so that `ezpz.cluster.examine`, which never imports torch, survives a driver that crashes or hangs.

The figures are those of one moment, and mean little alone: `ezpz.cluster.baseline` compares them with earlier ones of
the same host, and with those of its neighbours.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from typing import Any

__all__ = ["folder_speed", "product_speed"]

_BLOCK, _BLOCKS = 1 << 22, 16  # 64 MiB in all
_TIMES = 5
_SIZES = {"cpu": 1024, "": 4096}  # rows of square matrices


def folder_speed(path: str) -> dict[str, float]:
    """Return ``write`` and ``read`` in byte/s, of a file that has no name and so is never left behind.

    Where the system cannot drop what it keeps in memory of the file, reading shows the speed of memory.

    Raises:
        OSError: The folder, or the nearest above it that is there, cannot be written.
    """
    there = next(folder for folder in (Path(path), *Path(path).parents) if folder.is_dir())
    draft = there / f".ezpz-doctor-{os.getpid()}-{os.urandom(3).hex()}"
    with draft.open("x+b", buffering=0) as file:
        draft.unlink()
        block = os.urandom(_BLOCK)  # a disk that compresses gains nothing
        begun = time.perf_counter()
        for _ in range(_BLOCKS):
            file.write(block)
        os.fsync(file.fileno())
        written = time.perf_counter()
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        reading = time.perf_counter()
        while file.read(_BLOCK):
            pass
        done = time.perf_counter()
    size = _BLOCK * _BLOCKS
    return {"write": size / (written - begun), "read": size / (done - reading)}


def product_speed() -> dict[str, float]:
    """Return each device, ``cuda:0`` or ``cpu``, with its FLOP/s in a matrix product; empty without torch.

    float32 on a CPU, bfloat16 elsewhere; the median of five products.
    """
    from importlib.util import find_spec

    if find_spec("torch") is None:
        return {}
    import torch

    count = {kind: getattr(torch, kind).device_count() for kind in ("cuda", "xpu") if hasattr(torch, kind)}
    devices = [f"{kind}:{index}" for kind, number in count.items() for index in range(number)] or ["cpu"]
    return {device: _product(torch, device) for device in devices}


def _product(torch: Any, device: str) -> float:
    kind = device.partition(":")[0]
    size = _SIZES.get(kind, _SIZES[""])
    left, right = (
        torch.rand(size, size, device=device, dtype=torch.float32 if kind == "cpu" else torch.bfloat16) for _ in "ab"
    )
    seconds = []
    for _ in range(_TIMES + 1):
        begun = time.perf_counter()
        result = left @ right
        if kind != "cpu":
            getattr(torch, kind).synchronize(device)
        seconds.append(time.perf_counter() - begun)
        del result
    return 2 * size**3 / sorted(seconds[1:])[_TIMES // 2]  # the first one also loads the kernels


def _main(folder: str) -> None:
    import json

    found: dict[str, object] = {}
    of_folder = partial(folder_speed, folder) if folder else dict
    for name, measure in (("folder_speed", of_folder), ("product_speed", product_speed)):
        try:
            found[name] = measure()
        except Exception as error:  # noqa: BLE001  # a broken torch is a fact, too
            found[name] = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    _main(sys.argv[1] if len(sys.argv) > 1 else "")
