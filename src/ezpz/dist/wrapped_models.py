"""Remember what `wrap_model` made of each model: its strategy, mesh and number format.

What works on a model (`Loop`, `prepare`, `evaluate`, `Checkpoints`, clipping) asks here, so that a mesh of torch's own,
or a later `init_mesh` for something else, changes nothing for it. Only weak references are kept.

An optimizer that was made before a model was sharded holds weights that are no part of it any more: its steps train
nothing. `watch_replaced` notices the weights, and the first step of such an optimizer is an error. So is one between
the micro-batches of a step, which `accumulating` notes.
"""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.dist.mesh import coordinate, degree, get_mesh
from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer

__all__ = [
    "Before",
    "Wrapped",
    "gradients_are_local",
    "is_cut_alike",
    "mesh_in_use",
    "mesh_of",
    "mesh_of_data",
    "present",
    "refuse_replaced",
    "remember",
    "watch_replaced",
    "wrapped",
]


class Wrapped(NamedTuple):
    """How a model was wrapped.

    Attributes:
        strategy: As `wrap_model` names it.
        mesh: Its ranks; None where all of them are data parallel.
        dtype: What forward computes in; None for the format of the weights.
        world: The process group of all ranks at that time.
        cuts_data: Whether its mesh says how data are cut: not that of a model that is merely moved to the device.
        apart: ``id`` of the weights that nothing shall average.
    """

    strategy: str
    mesh: DeviceMesh | None
    dtype: torch.dtype | None
    world: Any = None
    cuts_data: bool = True
    apart: frozenset[int] = frozenset()


_wrapped: weakref.WeakKeyDictionary[nn.Module, Wrapped] = weakref.WeakKeyDictionary()  # the latest last


def remember(models: Iterable[nn.Module], how: Wrapped) -> None:
    """Remember how models were wrapped: the module, and what is around it."""
    for model in models:
        _wrapped.pop(model, None)
        _wrapped[model] = how
    if how.strategy in {"ddp", "zero1"}:
        _watch_steps()


def wrapped(model: Any) -> Wrapped | None:
    """Return how a model was wrapped, also one under torch.compile; None if `wrap_model` does not know it."""
    while model is not None:
        try:
            found = _wrapped.get(model)
        except TypeError:  # no weak reference to it: it is no module
            return None
        if found is not None:
            return found
        inside = getattr(model, "_orig_mod", None)
        if inside is None and (hasattr(model, "no_sync") or hasattr(model, "is_gradient_accumulation_boundary")):
            inside = getattr(
                model, "module", None
            )  # of torch's DDP or DeepSpeed's engine; a user's own may be anything
        model = inside
    return None


def mesh_of(model: Any) -> DeviceMesh | None:
    """Return the mesh of a model; of one that `wrap_model` does not know, that of the last `init_mesh`."""
    how = wrapped(model)
    return get_mesh() if how is None or not how.cuts_data else how.mesh


def mesh_in_use() -> DeviceMesh | None:
    """Return the mesh of the model that was wrapped last, else that of the last `init_mesh`; None: all data parallel.

    For what is not told which model it works for.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return get_mesh()
    found = [how for how in _wrapped.values() if how.world is dist.group.WORLD and how.cuts_data]
    return found[-1].mesh if found else get_mesh()


def mesh_of_data() -> DeviceMesh | None:
    """Return what `mesh_in_use` does, for data of which nobody has said for which model they are.

    Raises:
        UsageError: The model that was wrapped last and the mesh that was made last cut data in different ways.
    """
    if get_mesh() is None:
        return mesh_in_use()
    if not is_cut_alike(mesh_in_use(), get_mesh()):
        gc.collect()  # perhaps that model is gone
    used, made = mesh_in_use(), get_mesh()
    if not is_cut_alike(used, made):
        raise UsageError(
            f"data could be cut over {degree(used, 'dp')} ranks, by the mesh of the model that was wrapped last, or "
            f"over {degree(made, 'dp')}, by the mesh that init_mesh made last (from prepare); expected to know the "
            "model. "
            "Type `model, loader = ezpz.prepare(model, loader)`, or wrap the model for these data before."
        )
    return used


def is_cut_alike(one: DeviceMesh | None, other: DeviceMesh | None) -> bool:
    """Tell whether two meshes give this rank the same part of the data."""
    return (coordinate(one, "dp"), degree(one, "dp")) == (coordinate(other, "dp"), degree(other, "dp"))


# Weights that a model had before it was wrapped, and an optimizer still holds.


class _Former(NamedTuple):
    name: str
    strategy: str
    model: weakref.ref[nn.Module]


_replaced: Any = None  # torch.utils.weak.WeakIdKeyDictionary: parameter to `_Former`
_looked: weakref.WeakSet[Optimizer] = weakref.WeakSet()
_hook: Any = None  # never taken off: torch goes through all hooks while one is called


class Before:
    """The parameters of a model before they are replaced, held weakly: a sharded model shall not be in memory twice.

    Only for as long as that takes: torch cannot move a parameter to a device by a swap that is referred to weakly.
    """

    def __init__(self, model: nn.Module) -> None:
        self._named = [(name, weakref.ref(each)) for name, each in model.named_parameters()]

    def alive(self) -> dict[str, Any]:
        """Return by name those that something still holds."""
        return {name: each for name, reference in self._named if (each := reference()) is not None}


def watch_replaced(before: Before, model: nn.Module, strategy: str) -> None:
    """Look for parameters that are no part of a model any more; while something holds them, look at optimizers."""
    from torch.utils.weak import WeakIdKeyDictionary

    global _replaced  # one for the process, as torch's hook is
    own = {id(each) for each in model.parameters()}
    gone = {name: each for name, each in before.alive().items() if id(each) not in own}
    if not gone:
        return
    _replaced = WeakIdKeyDictionary() if _replaced is None else _replaced
    for name, each in gone.items():
        _replaced[each] = _Former(name, strategy, weakref.ref(model))
    _looked.clear()
    _watch_steps()


def _watch_steps() -> None:
    global _hook  # one for the process, as torch's hook is
    if _hook is None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        _hook = register_optimizer_step_pre_hook(_before_step)


def present(parameter: Any) -> Any:
    """Return what has taken the place of a parameter that wrapping has replaced; itself if none has."""
    former = _replaced.get(parameter) if _replaced else None
    if former is None or (model := former.model()) is None:
        return parameter
    return model.get_parameter(former.name)


def _before_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    if _local:
        _refuse_local(optimizer)
    if optimizer not in _looked:
        refuse_replaced(optimizer)
        if not _waits_for_a_forward(optimizer):
            _looked.add(optimizer)


def refuse_replaced(optimizer: Optimizer) -> None:
    """Refuse an optimizer of weights that a model had before it was wrapped.

    Raises:
        UsageError: It holds such weights.
    """
    if not _replaced:
        return
    held = [each for group in optimizer.param_groups for each in group["params"]]
    old = [_replaced[each] for each in held if each in _replaced]
    if old:
        name, strategy, _ = old[0]
        raise UsageError(
            f"{type(optimizer).__name__} holds {len(old)} of {len(held)} weights as they were before "
            f"wrap_model(…, {strategy!r}), such as {name}, and its steps would train nothing; expected the weights of "
            f"the wrapped model. Type `model, optimizer = ezpz.prepare(model, optimizer, strategy={strategy!r})` in "
            "place of wrap_model, or make the optimizer after it."
        )


# Gradients of micro-batches that ranks have not exchanged yet: a step by them lets the ranks' models part.


_local: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def gradients_are_local(model: nn.Module, *, are_local: bool) -> None:
    """Note whether the gradients of a model are those of this rank alone, until the last micro-batch of a step."""
    if are_local:
        _local.add(model)
        _watch_steps()
    else:
        _local.discard(model)


def _refuse_local(optimizer: Optimizer) -> None:
    """Refuse a step between two micro-batches.

    Raises:
        UsageError: Some of its gradients are still those of this rank.
    """
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    for model in list(_local):
        own = [each for each in model.parameters() if id(each) in held]
        if not own:
            continue
        _local.discard(model)
        if _was_exchanged_since(model, own):
            continue
        raise UsageError(
            f"a step of {type(optimizer).__name__} with gradients that ranks have not exchanged (from the micro-batch "
            "before, in accumulating(model, last=False)): ranks would train apart, or nothing; expected a step behind "
            "the last micro-batch alone. Type `if last: optimizer.step(); optimizer.zero_grad()` behind "
            "`with ezpz.accumulating(model, last=last):`."
        )


def _was_exchanged_since(model: nn.Module, own: list[Any]) -> bool:
    """Tell whether a forward without `accumulating` came later, as when micro-batches before it were dropped."""
    if hasattr(model, "set_requires_gradient_sync"):  # FSDP2: what is not exchanged is no gradient of a shard
        return any(each.grad is not None for each in own)
    return bool(getattr(model, "require_forward_param_sync", False))  # of DDP's last forward


def _waits_for_a_forward(optimizer: Optimizer) -> bool:
    """Refuse a first step by gradients of the module inside of DDP, whose own forward nobody has called.

    Returns:
        Whether that is still to be seen: a load makes an optimizer's state by a step with gradients of zero.

    Raises:
        UsageError: They are those of this rank.
    """
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    waits = False
    for model in list(_wrapped):
        # DDP makes itself ready in its first forward, compiled or not; a torch without that word is not looked at.
        is_used = getattr(model, "_lazy_init_ran", True)
        if is_used or not hasattr(model, "no_sync") or model.process_group.size() == 1:
            continue
        own = [each for each in model.parameters() if id(each) in held]
        waits = waits or bool(own)
        if any(each.grad is not None and bool(each.grad.any()) for each in own):
            raise UsageError(
                f"a first step of {type(optimizer).__name__} with gradients that ranks have not exchanged: the forward "
                "of the wrapped model was not called (model.module(…), or one of its methods, is that of this rank "
                "alone); expected model(…). Give the module a forward that calls the method."
            )
    return waits
