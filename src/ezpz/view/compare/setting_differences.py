"""Flatten what ``run.json`` knows of a run to settings, each with a dotted name, a group and a kind.

{"effective": {"dropout.h.0": 0.1}, "config": {"model": {"width": 64}}, "environment": {"modules": ["gcc/13"]}}
->  dropout.h.0 = 0.1 (effective values)    model.width = 64 (configuration)    modules = [...] (modules)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from ezpz.track.names import words_of
from ezpz.track.run_facts import flatten
from ezpz.view.compare.kinds_of_settings import Kind, kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ezpz.records.run_record import RunRecord


# Whether a step means the same in two runs: as many samples, of as many tokens.

_TOTAL = (
    "global_batch_size",
    "global_batch",
    "gbs",
    "global_bs",
    "total_batch_size",
    "effective_batch_size",
    "train_batch_size",
)
_EACH = (
    *("micro_batch_size", "micro_batch", "mbs", "per_device_train_batch_size", "per_device_batch_size"),
    *("train_micro_batch_size_per_gpu", "local_batch_size", "batch_size", "batch", "bs"),
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


def why_not(first: RunRecord, second: RunRecord, letters: tuple[str, str]) -> str:
    """Return why steps of two runs cannot be paired, from what both ``run.json`` say; empty if they can."""
    ours, theirs = _numbers(first), _numbers(second)
    length = _pick(ours, _LENGTH), _pick(theirs, _LENGTH)
    if _differ(length):
        return f"sequence length {_in_each(length, letters)}: the tokens of a step differ"
    total = _pick(ours, _TOTAL), _pick(theirs, _TOTAL)
    if all(total):
        return f"global batch size {_in_each(total, letters)}: the samples of a step differ" if _differ(total) else ""
    parts = _parts(ours, theirs)
    sizes = [prod(each) for each in zip(*parts.values(), strict=True)] if parts else [1, 1]
    if sizes[0] == sizes[1]:
        return ""
    reasons = ", ".join(
        f"{name} {_in_each(values, letters)}" for name, values in parts.items() if values[0] != values[1]
    )
    return f"{reasons}: the samples of a step differ"


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


def _numbers(record: RunRecord) -> dict[str, int]:
    """Return a run's whole numbers by the last part of their names."""
    numbers = {}
    for (section, name), setting in settings_of(record).items():
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


def _in_each(values: tuple[int | None, int | None], letters: tuple[str, str]) -> str:
    return f"{values[0]} in {letters[0]} and {values[1]} in {letters[1]}"


# In the order in which a difference is likely to change numbers.
GROUPS = (
    *("effective values", "recorded", "configuration", "modules", "driver", "MPI", "collective library", "versions"),
    *("environment", "environment variables", "never decides"),
)
_EFFECTIVE_ORDER = (
    *(Kind.STOCHASTIC, Kind.SCHEDULE, Kind.OPTIMIZER, Kind.DTYPE, Kind.ATTENTION, Kind.MODEL, Kind.MODULE, Kind.BATCH),
    *(Kind.DATA, Kind.SEED, Kind.WORLD, Kind.LENGTH, Kind.NUMERICS, Kind.OTHER, Kind.NEVER),
)
_CONFIG_ORDER = (
    *(Kind.STOCHASTIC, Kind.SEED, Kind.DTYPE, Kind.OPTIMIZER, Kind.SCHEDULE, Kind.BATCH, Kind.DATA, Kind.WORLD),
    *(Kind.ATTENTION, Kind.NUMERICS, Kind.MODEL, Kind.LENGTH, Kind.OTHER, Kind.NEVER),
)
_ENVIRONMENT = {
    "modules": {"modules", "module", "loadedmodules"},
    "driver": {"driver", "drivers"},
    "MPI": {"mpi", "mpich", "openmpi"},
    "collective library": {"collective", "collectives", "nccl", "rccl", "ccl", "oneccl", "xccl"},
    "environment variables": {"variables", "environ", "env", "vars"},
}
_READ = (  # what `ezpz.view.effective` writes, the longer names first
    ("dropout_places", Kind.MODEL),
    ("dropout", Kind.STOCHASTIC),
    ("schedule", Kind.SCHEDULE),
    ("data", Kind.DATA),
    ("attention", Kind.ATTENTION),
    ("numerics", Kind.NUMERICS),
    ("optimizer.wrappers", Kind.WORLD),
    ("model.checksum", Kind.NEVER),
    ("model.dtypes", Kind.DTYPE),
    ("model.devices", Kind.NUMERICS),
    ("model.wrappers", Kind.WORLD),
    ("model.sharded", Kind.WORLD),
    ("model", Kind.MODEL),
    ("module_places", Kind.NEVER),
    ("module_more", Kind.NEVER),
    ("module", Kind.MODULE),
    ("problems", Kind.NEVER),
)
_RATE = re.compile(r"schedule\.(.+\.)?lr\.\d+")
_HALVES = ("bf16", "bfloat16", "fp16", "float16", "half", "fp8", "float8")


@dataclass(frozen=True)
class Setting:
    """One value.

    Attributes:
        group: One of `GROUPS`.
        kind: Its kind.
        value: As JSON has it; dicts were taken apart.
    """

    group: str
    kind: Kind
    value: object

    def order(self) -> tuple[int, int]:
        """Return what to sort by: the likelier it changes numbers, the earlier."""
        kinds = _EFFECTIVE_ORDER if self.group == "effective values" else _CONFIG_ORDER
        return GROUPS.index(self.group), kinds.index(self.kind)


def is_half(record: RunRecord) -> bool:
    """Tell whether a run says that it computes in half precision or less."""
    dtypes = {name: each for (_, name), each in settings_of(record).items() if each.kind is Kind.DTYPE}
    texts = (
        f"{name}={each.value}".lower() for name, each in dtypes.items() if each.value not in (None, False, 0, "no")
    )
    return any(word in text for text in texts for word in _HALVES)


def is_rate(name: str) -> bool:
    """Tell whether an effective value is the learning rate of one step, ``schedule.lr.100``."""
    return _RATE.fullmatch(name) is not None


def settings_of(record: RunRecord) -> dict[tuple[str, str], Setting]:
    """Return the settings of a run by (section, dotted name); what only says where and when is in "never decides"."""
    settings = {}
    for name, value in flatten(record.effective.raw):
        if name != "stochastic":  # of an older ezpz: the dropout probabilities, counted once more
            settings["effective", name] = _setting("effective values", _effective_kind(name), value)
    for name, value in flatten(record.config):
        kind = kind_of(name)
        is_path = isinstance(value, str) and value.startswith(("/", "~", "./")) and kind is Kind.OTHER
        settings["config", name] = _setting("configuration", Kind.NEVER if is_path else kind, value)
    world = record.ranks.world_size
    if world is not None:
        settings["ranks", "world_size"] = Setting("configuration", Kind.WORLD, world)
    for name, value in flatten(record.environment.raw):
        group = _environment_group(name)
        is_place = group == "environment variables" and kind_of(name) is Kind.NEVER
        settings["environment", name] = Setting("never decides" if is_place else group, Kind.OTHER, value)
    versions = {**record.versions, **({"python": record.python} if record.python else {})}
    for name, value in flatten(versions):
        settings["versions", name] = Setting("versions", Kind.OTHER, value)
    for name, value in _where(record).items():
        if value:
            settings["run", name] = Setting("never decides", Kind.NEVER, value)
    return settings


def _where(record: RunRecord) -> dict[str, object]:
    return {
        "host": record.host,
        "cwd": record.cwd,
        "executable": record.executable,
        "argv": record.argv,
        "git_commit": record.git_commit,
    }


def _setting(group: str, kind: Kind, value: object) -> Setting:
    return Setting("never decides" if kind is Kind.NEVER else group, kind, value)


def _effective_kind(name: str) -> Kind:
    """Return the kind of an effective value: the beginning of its name says what was read."""
    exact = next((kind for start, kind in _READ if name == start or name.startswith(f"{start}.")), None)
    if exact is Kind.MODULE and kind_of(name.rpartition(".")[2]) is Kind.NEVER:
        return Kind.NEVER  # a name, a folder
    if exact is not None:
        return exact
    kind = kind_of(name)
    return Kind.OPTIMIZER if name.startswith("optimizer.") and kind is not Kind.NUMERICS else kind


def _environment_group(name: str) -> str:
    head, _, tail = name.partition(".")
    if head == "library":  # versions by library, MPI's among those for collectives
        return "MPI" if "mpi" in tail else "collective library"
    first = set(words_of(head))
    return next((group for group, words in _ENVIRONMENT.items() if first & words), "environment")
