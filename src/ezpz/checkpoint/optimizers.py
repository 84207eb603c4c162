"""The state of an optimizer by the names of parameters, so that another number of ranks, and another strategy, can take
it up.

Under ZeRO-1 every rank has the state of its own share. It is saved and loaded under the same names as anybody's: each
rank writes what it has, and reads what its share is in the world that loads. So ``consolidate_state_dict`` is not
needed.

An optimizer that has done no step has no state yet. That is kept so: torch would make one by a step of zeros, after
which Adam's step counter and with it the training is another.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from ezpz.checkpoint.packing import pack, unpack
from ezpz.checkpoint.several import Optimizers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

__all__ = [
    "Prepared",
    "apply",
    "collect",
    "describe_groups",
    "group_options",
    "has_state",
    "kind_of",
    "objection",
    "prepare",
    "rates",
    "regrouped",
    "sources",
]


_RATES = {"lr", "initial_lr"}  # what a run changes in a group's options
_KERNELS = {"fused", "foreach"}  # what suits this machine, and is no part of the mathematics
_PER_GROUP = {"base_lrs", "_last_lr", "lr_lambdas", "max_lrs", "base_momentums", "max_momentums", "min_lrs"}


def collect(model: nn.Module, optimizer: torch.optim.Optimizer | Optimizers) -> dict[str, Any]:
    """Return this rank's state as nested dictionaries of tensors; empty before the first step."""
    stepped = [each for each in _locals(optimizer) if each.state]  # torch would make a state for the others
    if not stepped:
        return {}
    by_name = get_optimizer_state_dict(model, stepped)["state"]
    tensors: dict[str, dict[str, Any]] = {}
    packed: dict[str, dict[str, Any]] = {}
    for name, entries in by_name.items():
        for key, value in entries.items():
            if isinstance(value, torch.Tensor):
                tensors.setdefault(name, {})[key] = value
            else:
                packed.setdefault(name, {})[key] = pack(value, f"the optimizer's {key!r} of {name}")
    return {"state": tensors, "packed": packed}


def has_state(optimizer: torch.optim.Optimizer | Optimizers) -> bool:
    """Tell whether this rank's part of the optimizer has done a step that left anything behind."""
    return any(each.state for each in _locals(optimizer))


def kind_of(optimizer: torch.optim.Optimizer | Optimizers) -> str:
    """Return the name of what updates the weights: under ZeRO-1 that of the optimizer inside."""
    if isinstance(optimizer, Optimizers):
        return ", ".join(f"{word}: {kind_of(each)}" for word, each in optimizer.by_word.items())
    return type(_local(optimizer)).__name__


def group_options(optimizer: torch.optim.Optimizer | Optimizers) -> list[dict[str, Any]]:
    """Return the options of every parameter group, such as ``lr``."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def describe_groups(optimizer: torch.optim.Optimizer | Optimizers) -> list[int]:
    """Return how many parameters each group has."""
    return [len(group["params"]) for group in optimizer.param_groups]


def rates(optimizer: torch.optim.Optimizer | Optimizers) -> list[float]:
    """Return each group's learning rate."""
    return [float(group.get("lr", 0.0)) for group in optimizer.param_groups]


def objection(optimizer: torch.optim.Optimizer | Optimizers, saved: Mapping[str, Any] | None, *, is_whole: bool) -> str:
    """Return why what a manifest says of an optimizer does not fit this one; "" if it does.

    Args:
        optimizer: This one.
        saved: Its ``kind``, the sizes of its ``groups`` and their ``rates``; None without an optimizer.
        is_whole: Whether this rank has all parameters, so that groups can be compared.
    """
    kind, groups = kind_of(optimizer), describe_groups(optimizer)
    if saved is None:
        return f"it has no optimizer, and {kind} is to be loaded"
    if saved["kind"] != kind:
        return f"its optimizer is {saved['kind']}, and this one is {kind}"
    shown = f"its optimizer has groups of {saved['groups']} parameters, and this one of {groups}"
    if is_whole and sum(groups) != sum(saved["groups"]):
        return shown
    if isinstance(optimizer, Optimizers) and len(groups) != len(saved["groups"]):
        return f"{shown}; of several optimizers each must have its groups"
    if len(groups) != len(saved["groups"]) > 1 and len(set(saved.get("rates") or (None, 0))) > 1:
        return f"{shown}, and its groups have learning rates of their own, or none is recorded"
    return ""


def sources(optimizer: torch.optim.Optimizer | Optimizers, saved: Sequence[int]) -> list[int]:
    """Return from which saved group each group of this optimizer takes its learning rate; empty if they are the same.

    Args:
        optimizer: This one, to which `objection` had none.
        saved: The sizes of the saved groups.
    """
    own = describe_groups(optimizer)
    if own == list(saved):
        return []
    return list(range(len(own))) if len(own) == len(saved) else [0] * len(own)


class Prepared(NamedTuple):
    """An optimizer made ready to be loaded: tensors to fill, by the keys of `collect`, and what to do afterwards."""

    optimizer: torch.optim.Optimizer | Optimizers
    names: list[list[str]]  # of the parameters in this rank's groups
    tensors: dict[str, Any]
    problem: str  # why it cannot be loaded
    before: list[dict[Any, Any]]  # the state of each optimizer
    sources: list[int]  # see `sources`

    def undo(self) -> None:
        """Give the optimizer back the state that it had before."""
        for each, before in zip(_locals(self.optimizer), self.before, strict=True):
            each.state.clear()
            each.state.update(before)


def prepare(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Optimizers,
    places: Mapping[tuple[str, ...], Any],
    *,
    fresh: bool,
    groups: Sequence[int],
) -> Prepared:
    """Return tensors of the right shapes for what was saved; the optimizer forgets its state.

    Args:
        model: Whose parameters it has.
        optimizer: The same kind as the one that was saved.
        places: What was saved: paths ``("optimizer", "state" or "packed", parameter, key)``.
        fresh: Whether it was saved before its first step.
        groups: The sizes of the saved groups.
    """
    optimizer.zero_grad(set_to_none=True)  # gradients of other weights, and they keep torch from making a state
    before = [dict(each.state) for each in _locals(optimizer)]
    for each in _locals(optimizer):
        each.state.clear()
    origins = sources(optimizer, groups)
    if fresh:
        return Prepared(optimizer, [], {}, "", before, origins)
    prepared = Prepared(optimizer, [], {"state": {}, "packed": {}}, "", before, origins)
    try:
        return prepared._replace(**_made_ready(model, _locals(optimizer), places, prepared.tensors))
    except BaseException:  # also Ctrl-C: the optimizer is as it was
        prepared.undo()
        raise


def _made_ready(
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    places: Mapping[tuple[str, ...], Any],
    tensors: dict[str, Any],
) -> dict[str, Any]:
    """Fill in the tensors, and return the names of parameters, or the problem, as `Prepared` has them."""
    made = get_optimizer_state_dict(model, optimizers)
    for name, entries in made["state"].items():
        saved = {
            path[3]: (path[1], place) for path, place in places.items() if path[0] == "optimizer" and path[2] == name
        }
        if saved and saved.keys() != entries.keys():
            key = min(saved.keys() ^ entries.keys())
            where = "the checkpoint has no" if key in entries else "this optimizer has no"
            return {"problem": f"{where} {key!r} of {name}"}
        for key, (part, place) in saved.items():
            own = entries[key] if part == "state" else torch.empty(place.size, dtype=torch.uint8)
            tensors[part].setdefault(name, {})[key] = own
    return {"names": [group["params"] for group in made["param_groups"]]}


def apply(prepared: Prepared, options: list[dict[str, Any]]) -> None:
    """Give the optimizer the state that was filled in, and the saved options of its groups."""
    taken = _taken(group_options(prepared.optimizer), options, prepared.sources)
    begin = 0
    for each in _locals(prepared.optimizer):
        end = begin + len(each.param_groups)
        _apply_to(each, prepared.names[begin:end], taken[begin:end], prepared.tensors)
        begin = end
    for group, options_ in zip(prepared.optimizer.param_groups, taken, strict=True):  # of ZeRO-1 around its own
        group.update(options_)


def _apply_to(
    optimizer: torch.optim.Optimizer, names: list[list[str]], taken: list[dict[str, Any]], tensors: dict[str, Any]
) -> None:
    whole = optimizer.state_dict()
    numbers = [group["params"] for group in whole["param_groups"]]
    whole["state"] = {}
    for group, ids in zip(names, numbers, strict=bool(names)):
        for name, number in zip(group, ids, strict=True):
            entries = dict(tensors["state"].get(name, {}))
            packed = tensors["packed"].get(name, {})
            entries |= {key: unpack(value, "optimizer", "packed", name, key) for key, value in packed.items()}
            if entries:  # a parameter that has never had a gradient has none
                whole["state"][number] = entries
    whole["param_groups"] = [{**group, "params": ids} for group, ids in zip(taken, numbers, strict=True)]
    optimizer.load_state_dict(whole)


def _taken(own: list[dict[str, Any]], saved: list[dict[str, Any]], origins: list[int]) -> list[dict[str, Any]]:
    """Return the options that groups shall have: as saved, but for the kernel; of other groups the rates alone."""
    if origins:
        rates = [{name: saved[at][name] for name in _RATES & saved[at].keys()} for at in origins]
        return [{**group, **rate} for group, rate in zip(own, rates, strict=True)]
    kept = [{name: group[name] for name in _KERNELS & group.keys()} for group in own]
    return [{**group, **kernel} for group, kernel in zip(saved, kept, strict=True)]


def regrouped(state: Any, groups: int, origins: list[int]) -> Any:
    """Return a schedule's state for other groups: what it holds per group, each takes from its origin.

    Args:
        state: As saved; torch's schedules keep lists with an entry per group, some hold further schedules.
        groups: How many groups were saved.
        origins: See `sources`.
    """
    if not origins or not isinstance(state, dict):
        return state
    changed = dict(state)
    for name, value in state.items():
        if name in _PER_GROUP and isinstance(value, (list, tuple)) and len(value) == groups:
            changed[name] = [value[at] for at in origins]
        elif name == "_schedulers":
            changed[name] = [regrouped(each, groups, origins) for each in value]
    return changed


def _locals(optimizer: torch.optim.Optimizer | Optimizers) -> list[torch.optim.Optimizer]:
    """Return what updates this rank's weights: several optimizers, or one."""
    each = optimizer.by_word.values() if isinstance(optimizer, Optimizers) else [optimizer]
    return [_local(one) for one in each]


def _local(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer of this rank's share under ZeRO-1, else the optimizer."""
    module: Any = sys.modules.get(
        "torch.distributed.optim.zero_redundancy_optimizer"
    )  # importing it costs everybody a second
    if module is None or not isinstance(optimizer, module.ZeroRedundancyOptimizer):
        return optimizer
    inside: torch.optim.Optimizer = optimizer.optim
    return inside
