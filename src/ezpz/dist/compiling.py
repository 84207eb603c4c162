"""torch.compile block by block: equal blocks are compiled once, where a whole model would be compiled for minutes."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from typing import TYPE_CHECKING

from ezpz.dist.job import told
from ezpz.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

__all__ = ["compile_blocks"]


def compile_blocks(model: nn.Module, blocks: Sequence[nn.Module], device_type: str) -> None:
    """Compile every block, or the model if it has none; without a compiler warn once and leave it as it is.

    torch looks for its compiler at the first forward, where its absence would end a run that could go on.
    """
    missing = _missing(device_type)
    if missing:
        if told().rank == 0:
            get_logger(__name__).warning(f"compile=True is not possible here: {missing}. The model runs uncompiled.")
        return
    for module in blocks or [model]:
        module.compile()


def _missing(device_type: str) -> str:
    """Return what torch's inductor lacks on this machine, empty if nothing: g++ (or $CXX) on CPUs, triton on others."""
    if device_type in {"cuda", "xpu"}:
        return "" if importlib.util.find_spec("triton") else "the package triton is not installed"
    if device_type != "cpu":
        return ""
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    return "" if shutil.which(compiler) else f"no C++ compiler ({compiler}) is on PATH; set CXX to one"
