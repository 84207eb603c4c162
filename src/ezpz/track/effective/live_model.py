"""What a live model is made of: wrappers, kinds of modules, numbers of parameters and buffers, their checksum."""

from __future__ import annotations

import re
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from ezpz.track.effective.live_settings import describe_settings

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["describe_model"]

_INNER = ("_orig_mod", "_fsdp_wrapped_module", "module")  # attributes under which a wrapper keeps the model
_WRAPPER = re.compile(r"Parallel|Engine|Wrapper|DDP|FSDP|Averaged")  # classes whose `module` is the model
_OWN_PARTS = re.compile(r"(^|(?<=\.))(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(\.|$)")
_NAMES = {"OptimizedModule": "torch.compile", "FSDPModule": "fully_shard"}
_MOST_KINDS = 20


def describe_model(model: Any) -> dict[str, object]:
    """Return the ``model``, ``dropout`` and ``attention`` entries of `ezpz.track.effective`; waits for no other rank."""
    around, inner = _unwrapped(model)
    parts = inner.named_modules() if hasattr(inner, "named_modules") else [("", inner)]
    modules = [(_OWN_PARTS.sub("", name).rstrip("."), module) for name, module in parts]
    wrappers = [_NAMES.get(type(wrapper).__name__, type(wrapper).__name__) for wrapper in around]
    wrappers += sorted(_treatments(module for _, module in modules) - set(wrappers))
    leaves = Counter(_class_name(module) for _, module in modules if not _parts_of(module))
    ordered = leaves.most_common()
    told: dict[str, object] = {
        "model.class": _class_name(inner),
        **({"model.wrappers": wrappers} if wrappers else {}),
        **_numbers(inner, [*around, *(module for _, module in modules)]),
        "model.modules": dict(ordered[:_MOST_KINDS]),
    }
    if len(ordered) > _MOST_KINDS:
        told["model.more_modules"] = sum(number for _, number in ordered[_MOST_KINDS:])
    if isinstance(getattr(model, "training", None), bool):
        told["model.training"] = model.training
    return {**told, **describe_settings(modules)}


def _unwrapped(model: Any) -> tuple[list[Any], Any]:
    """Return what is around a model, outermost first, and the model."""
    around: list[Any] = []
    while len(around) < 16:  # nobody wraps that often: it holds itself
        held = _parts_of(model)
        name = next((name for name in _INNER if held.get(name) is not None), "")
        if not name or (name == "module" and not _WRAPPER.search(type(model).__name__)):
            break
        around.append(model)
        model = held[name]
    return around, model


def _parts_of(module: Any) -> dict[str, Any]:
    return getattr(module, "__dict__", {}).get("_modules") or {}


def _class_name(module: Any) -> str:
    kind = type(module)
    # fully_shard gives each object a class of its own, made of FSDPModule and the one that the user wrote
    return str((kind.__bases__[-1] if _is_fully_sharded(kind) else kind).__name__)


def _is_fully_sharded(kind: type) -> bool:
    return any(base.__name__ == "FSDPModule" for base in kind.__mro__)


def _treatments(modules: Iterable[Any]) -> set[str]:
    """Return what was done to parts of a model: cut over ranks, compiled."""
    found: set[str] = set()
    kinds = set()
    for module in modules:
        kinds.add(type(module))
        if getattr(module, "__dict__", {}).get("_compiled_call_impl") is not None:
            found.add("torch.compile")
    names = {base.__name__ for kind in kinds for base in kind.__mro__}
    found |= {_NAMES[name] for name in names & set(_NAMES)}
    return found | (names & {"FullyShardedDataParallel"})


def _numbers(model: Any, modules: list[Any]) -> dict[str, object]:
    if not hasattr(model, "named_parameters"):
        return {}
    named = [(_OWN_PARTS.sub("", name), tensor) for name, tensor in model.named_parameters()]
    flats = [flat for module in modules if (flat := _flat(module)) is not None]
    inside = {id(part) for flat, _ in flats for part in (flat, *(getattr(flat, "_params", None) or ()))}
    counted = [(tensor, _elements(tensor)) for _, tensor in named if id(tensor) not in inside]
    counted += [(flat, sum(flat._numels)) for flat, _ in flats]  # noqa: SLF001  # FSDP1 tells it nowhere else
    told: dict[str, object] = {
        "model.parameters": sum(number for _, number in counted),
        "model.trainable": sum(number for tensor, number in counted if tensor.requires_grad),
        "model.dtypes": _by((_dtype(tensor), number) for tensor, number in counted),
        "model.devices": _by((str(tensor.device.type), number) for tensor, number in counted),
    }
    if buffers := _by((_dtype(tensor), tensor.numel()) for tensor in model.buffers()):
        told["model.buffers"] = buffers
    is_meta = any(getattr(tensor, "is_meta", False) for tensor, _ in counted)
    is_cut = any(cut for _, cut in flats) or any(_is_cut(tensor) for _, tensor in named)
    told.update({"model.meta": True} if is_meta else {}, **({"model.sharded": True} if is_cut else {}))
    if named and not is_meta and not is_cut and not flats and "torch" in sys.modules:
        from ezpz.track.effective.checksum import checksum

        told["model.checksum"] = checksum((name, _local(tensor)) for name, tensor in named)
    return told


def _by(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for name, number in pairs:
        totals[name] += number
    return dict(totals)


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _elements(tensor: Any) -> int:
    return int(getattr(tensor, "ds_numel", None) or tensor.numel())  # ZeRO-3 keeps an empty tensor in its place


def _flat(module: Any) -> tuple[Any, bool] | None:
    """Return the one parameter into which FSDP1 has packed those of a module, and whether it is cut over ranks."""
    handle = getattr(module, "__dict__", {}).get("_handle")
    flat = getattr(handle, "flat_param", None)
    if flat is None or not hasattr(flat, "_numels"):
        return None
    return flat, bool(getattr(handle, "uses_sharded_strategy", True))


def _is_cut(tensor: Any) -> bool:
    """Tell whether a parameter is not whole on this rank: a DTensor with a part of it, or one of ZeRO-3."""
    if hasattr(tensor, "ds_id"):
        return True
    if not hasattr(tensor, "placements"):
        return False
    mesh = tensor.device_mesh
    return any(mesh.size(axis) > 1 and not place.is_replicate() for axis, place in enumerate(tensor.placements))


def _local(tensor: Any) -> Any:
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "placements") else tensor
