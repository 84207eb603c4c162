"""Whether a step means the same in two runs: as many samples, of as many tokens."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from ezpz.track.compare.settings import settings_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["why_not"]

_TOTAL = ("global_batch_size", "global_batch", "gbs", "total_batch_size", "effective_batch_size", "train_batch_size")
_EACH = (
    *("micro_batch_size", "micro_batch", "mbs", "per_device_train_batch_size", "per_device_batch_size"),
    *("train_micro_batch_size_per_gpu", "local_batch_size", "batch_size", "batch"),
)
_TIMES = (
    *("gradient_accumulation_steps", "gradient_accumulation", "grad_accum_steps", "grad_accum", "accumulation_steps"),
    *("accumulate_grad_batches", "accumulation", "accum_steps", "grad_acc_steps", "gas"),
)
_SPLIT = (
    ("tensor_parallel_size", "tensor_model_parallel_size", "tensor_parallel", "tp"),
    ("pipeline_parallel_size", "pipeline_model_parallel_size", "pipeline_parallel", "pp"),
    ("context_parallel_size", "context_parallel", "cp"),
)
_LENGTH = ("seq_len", "seq_length", "sequence_length", "sequence_len")


def why_not(first: dict[str, Any], second: dict[str, Any], letters: tuple[str, str]) -> str:
    """Return why steps of two runs cannot be paired, from what both ``run.json`` say; empty if they can."""
    ours, theirs = _numbers(first), _numbers(second)
    length = _pick(ours, _LENGTH), _pick(theirs, _LENGTH)
    if _differ(length):
        return f"sequence length {_told(length, letters)}: the tokens of a step differ"
    total = _pick(ours, _TOTAL), _pick(theirs, _TOTAL)
    if all(total):
        return f"global batch size {_told(total, letters)}: the samples of a step differ" if _differ(total) else ""
    parts = _parts(ours, theirs)
    sizes = [prod(each) for each in zip(*parts.values(), strict=True)] if parts else [1, 1]
    if sizes[0] == sizes[1]:
        return ""
    told = ", ".join(f"{name} {_told(values, letters)}" for name, values in parts.items() if values[0] != values[1])
    return f"{told}: the samples of a step differ"


def _parts(ours: Mapping[str, int], theirs: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the factors of a step's samples that both runs know, by what they are called."""
    parts = {}
    for name, names in (("batch size", _EACH), ("gradient accumulation", _TIMES)):
        one, two = _pick(ours, names), _pick(theirs, names)
        if (one and two) or (names is _TIMES and (one or two)):
            parts[name] = (one or 1, two or 1)
    worlds = [numbers.get("world_size") for numbers in (ours, theirs)]
    if all(worlds):
        one, two = (
            max(1, (world or 1) // prod(_pick(numbers, names) or 1 for names in _SPLIT))
            for world, numbers in zip(worlds, (ours, theirs), strict=True)
        )
        parts["world size"] = (one, two)
    return parts


def _numbers(facts: dict[str, Any]) -> dict[str, int]:
    """Return a run's whole numbers by the last part of their names."""
    numbers = {}
    for (section, name), setting in settings_of(facts).items():
        value = setting.value
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        if section in {"config", "effective", "ranks"} and isinstance(value, int) and value > 0:
            numbers[name.rpartition(".")[2].replace("-", "_").lower()] = value
    return numbers


def _pick(numbers: Mapping[str, int], names: Sequence[str]) -> int | None:
    return next((numbers[name] for name in names if name in numbers), None)


def _differ(values: tuple[int | None, int | None]) -> bool:
    return None not in values and values[0] != values[1]


def _told(values: tuple[int | None, int | None], letters: tuple[str, str]) -> str:
    return f"{values[0]} in {letters[0]} and {values[1]} in {letters[1]}"
