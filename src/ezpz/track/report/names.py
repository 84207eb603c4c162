"""What a metric is about, told by its name: which chart of the report it belongs to.

    losses       loss train/loss loss/val train_loss eval_loss validation/mean_loss
    throughput   sps tps tps_per_gpu tokens_per_sec samples_per_second mfu tflops
    step time    dt step_time time/step, and its parts: dtd dtf dtb dto dtc, time/data, data_loading, forward_time
    memory       memory_allocated mem/peak max_mem_gb rss
    optimizer    lr learning_rate lr/group0 grad_norm

All else is shown too, each metric in a chart of its own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["BEFORE_COLLECTIVE", "PARTS", "group_names", "is_loss", "is_total", "part_of"]

PARTS = ("data", "forward", "backward", "optimizer", "comm")
# Parts that a rank spends alone: from the first collective on all ranks of a step wait for the slowest of them.
BEFORE_COLLECTIVE = ("wait", "forward", "data")

_WORDS = re.compile(r"[^a-z0-9]+")
_BESIDE_LOSS = {
    *("train", "training", "trn", "val", "valid", "validation", "eval", "evaluation", "test", "dev"),
    *("mean", "avg", "average", "total", "epoch", "step", "iter", "batch", "smooth", "ema"),
}
_RATES = {"sps", "tps", "mfu", "hfu", "flops", "tflops", "gflops", "throughput"}
_OPTIMIZER = {"lr", "gnorm", "momentum", "wd"}
_OPTIMIZER_PAIRS = ("learning rate", "grad norm", "gradient norm", "param norm", "weight decay", "loss scale")
_TOTAL = {"dt", "dt step", "step time", "time step", "dt iter", "iter time", "iteration time", "time per step"}
_SHORT = {"dtd": "data", "dtf": "forward", "dtb": "backward", "dto": "optimizer", "dtc": "comm", "dtw": "wait"}
_LONG = {
    **dict.fromkeys(("data", "data loading", "dataloading", "dataloader", "data wait", "load", "batch"), "data"),
    **dict.fromkeys(("forward", "fwd"), "forward"),
    **dict.fromkeys(("backward", "bwd"), "backward"),
    **dict.fromkeys(("optimizer", "optim", "opt", "optimizer step"), "optimizer"),
    **dict.fromkeys(("comm", "communication", "allreduce", "all reduce", "sync", "collective"), "comm"),
    **dict.fromkeys(("wait", "idle"), "wait"),
}


def _words(name: str) -> list[str]:
    return [word for word in _WORDS.split(name.lower()) if word]


def is_loss(name: str) -> bool:
    """Tell whether a metric is the loss itself, of training or validation, and not one of several summands of it."""
    words = _words(name)
    return "loss" in words and set(words) - {"loss"} <= _BESIDE_LOSS


def is_total(name: str) -> bool:
    """Tell whether a metric is the time of a whole step."""
    return _untrained(name) in _TOTAL


def part_of(name: str) -> str | None:
    """Return which part of a step a metric times: one of `PARTS`, ``wait`` for a wait before a collective, or None."""
    words = _untrained(name)
    if words in _SHORT:
        return _SHORT[words]
    for mark in ("dt ", "time ", "t "):
        if words.startswith(mark):
            return _LONG.get(words.removeprefix(mark))
    for mark in (" time", " seconds", " s"):
        if words.endswith(mark):
            return _LONG.get(words.removesuffix(mark))
    return "data" if words in {"data loading", "dataloading"} else None


def _untrained(name: str) -> str:
    return " ".join(_words(name)).removeprefix("train ").removeprefix("perf ")


def _is_rate(name: str) -> bool:
    words = _words(name)
    text = " ".join(words)
    return bool(_RATES & {*words}) or bool(re.search(r" per (s|sec|second|gpu|device)\b", text))


def _is_memory(name: str) -> bool:
    return any(word.startswith("mem") or word in {"rss", "vram", "maxmem"} for word in _words(name))


def _is_optimizer(name: str) -> bool:
    text = f" {' '.join(_words(name))} "
    return bool(_OPTIMIZER & {*text.split()}) or any(f" {pair} " in text for pair in _OPTIMIZER_PAIRS)


def group_names(names: Iterable[str]) -> dict[str, list[str]]:
    """Sort names into ``loss``, ``throughput``, ``time``, ``memory``, ``optimizer`` and ``other``, in their order."""
    groups: dict[str, list[str]] = {g: [] for g in ("loss", "throughput", "time", "memory", "optimizer", "other")}
    for name in names:
        if is_loss(name):
            group = "loss"
        elif _is_memory(name):
            group = "memory"
        elif is_total(name) or part_of(name):
            group = "time"
        elif _is_rate(name):
            group = "throughput"
        elif _is_optimizer(name):
            group = "optimizer"
        else:
            group = "other"
        groups[group].append(name)
    return groups
