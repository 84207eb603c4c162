"""Describe a live model: wrappers, kinds of modules, numbers of parameters and buffers, their checksum."""

from __future__ import annotations

import re
import sys
from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_INNER = ("_orig_mod", "_fsdp_wrapped_module", "module")  # attributes under which a wrapper keeps the model
_WRAPPER = re.compile(r"Parallel|Engine|Wrapper|DDP|FSDP|Averaged")  # classes whose `module` is the model
_OWN_PARTS = re.compile(r"(^|(?<=\.))(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(\.|$)")
_NAMES = {"OptimizedModule": "torch.compile", "FSDPModule": "fully_shard"}
_MOST_KINDS = 20


def describe_model(model: Any) -> dict[str, object]:
    """Return what `ezpz.view.effective` tells of a model, without other ranks."""
    around, inner = _unwrapped(model)
    modules = _modules(inner)
    wrappers = [_NAMES.get(type(wrapper).__name__, type(wrapper).__name__) for wrapper in around]
    wrappers += sorted(_treatments(module for _, module in modules) - set(wrappers))
    leaves = Counter(_class_name(module) for _, module in modules if not _parts_of(module))
    ordered = leaves.most_common()
    facts: dict[str, object] = {
        "model.class": _class_name(inner),
        **({"model.wrappers": wrappers} if wrappers else {}),
        **_numbers(inner, [*around, *(module for _, module in modules)]),
        "model.modules": dict(ordered[:_MOST_KINDS]),
    }
    if len(ordered) > _MOST_KINDS:
        facts["model.more_modules"] = sum(number for _, number in ordered[_MOST_KINDS:])
    if isinstance(getattr(model, "training", None), bool):
        facts["model.training"] = model.training
    return {**facts, **describe_settings(modules)}


def _unwrapped(model: Any) -> tuple[list[Any], Any]:
    """Return what is around a model, outermost first, and the model."""
    around: list[Any] = []
    while len(around) < 16:  # no one wraps that often: it holds itself
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


def _modules(inner: Any) -> list[tuple[str, Any]]:
    """Return paths and modules of a model without wrappers, itself under an empty path."""
    parts = inner.named_modules() if hasattr(inner, "named_modules") else [("", inner)]
    return [(_OWN_PARTS.sub("", name).rstrip("."), module) for name, module in parts]


def _treatments(modules: Iterable[Any]) -> set[str]:
    """Return what was done to parts of a model: cut over ranks, compiled."""
    treatments: set[str] = set()
    kinds = set()
    for module in modules:
        kinds.add(type(module))
        if getattr(module, "__dict__", {}).get("_compiled_call_impl") is not None:
            treatments.add("torch.compile")
    names = {base.__name__ for kind in kinds for base in kind.__mro__}
    treatments |= {_NAMES[name] for name in names & set(_NAMES)}
    return treatments | (names & {"FullyShardedDataParallel"})


def _numbers(model: Any, modules: list[Any]) -> dict[str, object]:
    if not hasattr(model, "named_parameters"):
        return {}
    named = [(_OWN_PARTS.sub("", name), tensor) for name, tensor in model.named_parameters()]
    flats = [flat for module in modules if (flat := _flat(module)) is not None]
    inside = {id(part) for flat, _ in flats for part in (flat, *(getattr(flat, "_params", None) or ()))}
    counted = [(tensor, _elements(tensor)) for _, tensor in named if id(tensor) not in inside]
    counted += [(flat, sum(flat._numels)) for flat, _ in flats]  # noqa: SLF001  # FSDP1 tells it nowhere else
    facts: dict[str, object] = {
        "model.parameters": sum(number for _, number in counted),
        "model.trainable": sum(number for tensor, number in counted if tensor.requires_grad),
        "model.dtypes": _by((_dtype(tensor), number) for tensor, number in counted),
        "model.devices": _by((str(tensor.device.type), number) for tensor, number in counted),
    }
    if buffers := _by((_dtype(tensor), tensor.numel()) for tensor in model.buffers()):
        facts["model.buffers"] = buffers
    is_meta = any(getattr(tensor, "is_meta", False) for tensor, _ in counted)
    is_cut = any(cut for _, cut in flats) or any(_is_cut(tensor) for _, tensor in named)
    facts.update({"model.meta": True} if is_meta else {}, **({"model.sharded": True} if is_cut else {}))
    if named and not is_meta and not is_cut and not flats and "torch" in sys.modules and not _is_undrawn(named[0][1]):
        facts["model.checksum"] = checksum((name, _local(tensor)) for name, tensor in named)
    return facts


def _is_undrawn(tensor: Any) -> bool:
    """Tell whether a parameter has no numbers yet, because a checkpoint will be loaded."""
    return bool(tensor.numel()) and bool(_local(tensor).detach().reshape(-1)[0].isnan())


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


_DROP_CLASS = re.compile(r"drop|stochasticdepth", re.IGNORECASE)
_OWN_RATES = {"p", "prob", "rate", "drop_prob", "drop_rate"}  # of a module whose class speaks of dropout
_RATES = {"p", "drop_prob"}  # of any other
_ATTENTION = re.compile(r"attn|attention|sdpa|flash", re.IGNORECASE)
_CONFIGS = {"config", "cfg", "args", "hparams", "opts", "options", "configuration"}
_INDEX = re.compile(r"(?<![^.])\d+(?![^.])")  # a part of a path that is a number
_MOST_PLACES = 64
_LONGEST = 40  # characters of a text that is a setting
# Sizes that the number of parameters tells, and the mode, which `model.training` tells.
_TOLD = {
    *("training", "in_features", "out_features", "in_channels", "out_channels", "num_embeddings", "embedding_dim"),
    *("num_features", "num_channels"),
}


def describe_settings(modules: Iterable[tuple[str, Any]]) -> dict[str, object]:
    """Return the ``dropout``, ``attention`` and ``module`` entries of `ezpz.view.effective`.

    Args:
        modules: Paths and modules, the model itself under an empty path.
    """
    drops: dict[str, object] = {}
    ways: dict[str, object] = {}
    plain: dict[str, object] = {}
    seen: set[int] = set()
    for path, module in modules:
        held = getattr(module, "__dict__", {})
        is_drop = bool(_DROP_CLASS.search(type(module).__name__))
        for name, value in held.items():
            kind = type(value)
            if kind is float or kind is int:
                if 0 <= value <= 1 and name in (_OWN_RATES if is_drop else _RATES):
                    drops.setdefault(path or "(model)", value)
                else:
                    _note(_joined(path, name), name, value, drops, ways)
            elif kind is str or kind is bool:
                _note(_joined(path, name), name, value, drops, ways)
            elif name in _CONFIGS and id(value) not in seen:
                seen.add(id(value))
                for inner, key, setting in _settings(value):
                    _note(_joined(path, f"{name}.{inner}"), key, setting, drops, ways)
        plain.update(
            {_joined(path, name): value for name, value in held.items() if not is_drop and _is_plain(name, value)}
        )
    plain = {path: value for path, value in plain.items() if path not in drops and path not in ways}
    return {**_folded("dropout", drops), **_folded("attention", ways), **_folded("module", plain)}


def _is_plain(name: str, value: Any) -> bool:
    """Tell whether an attribute of a module is a short setting that no other entry tells."""
    if name.startswith("_") or name in _TOLD:
        return False
    return type(value) in {float, int, bool} or (type(value) is str and len(value) <= _LONGEST and "/" not in value)


def dropout_places(model: Any) -> list[tuple[str, Any, str]]:
    """Return where a model keeps its dropout probabilities: path, the module, and the attribute's name in it."""
    found = []
    for path, module in _modules(_unwrapped(model)[1]):
        held = getattr(module, "__dict__", {})
        is_drop = bool(_DROP_CLASS.search(type(module).__name__))
        for name, value in held.items():
            if type(value) in {float, int} and 0 <= value <= 1:
                if name in (_OWN_RATES if is_drop else _RATES):
                    found.append((path or "(model)", module, name))
                elif "drop" in name.lower():
                    found.append((_joined(path, name), module, name))
    return found


def pattern_of(path: str) -> str:
    """Return a path with ``*`` for the numbers of layers."""
    return _INDEX.sub("*", path)


def _note(path: str, name: str, value: Any, drops: dict[str, object], ways: dict[str, object]) -> None:
    if isinstance(value, bool) or type(value) is str:
        if _ATTENTION.search(name):
            ways[path] = value
    elif isinstance(value, (int, float)) and 0 <= value <= 1 and "drop" in name.lower():
        drops[path] = value


def _settings(config: Any, depth: int = 2) -> Iterator[tuple[str, str, Any]]:
    """Yield path, name and value of what a configuration holds, its parts that are called configurations included."""
    for name, value in _fields(config).items():
        name = str(name)  # noqa: PLW2901  # keys of a dict may be anything
        inner = name.lstrip("_")
        if type(value) in {float, int, str, bool}:
            yield inner, name, value
        elif depth and name.endswith(("config", "cfg")):
            for path, key, setting in _settings(value, depth - 1):
                yield f"{inner}.{path}", key, setting
    chosen = getattr(config, "_attn_implementation", None)  # a property of newer transformers
    if type(chosen) is str:
        yield "attn_implementation", "attn_implementation", chosen


def _fields(config: Any) -> Mapping[Any, Any]:
    return config if isinstance(config, dict) else getattr(config, "__dict__", {})


def _joined(path: str, name: str) -> str:
    return f"{path}.{name.lstrip('_')}".lstrip(".")


def _folded(kind: str, places: Mapping[str, object]) -> dict[str, object]:
    """Return one entry for layers that agree, its path with ``*`` for their numbers, and how many they are."""
    groups: dict[str, list[str]] = {}
    for path in places:
        groups.setdefault(pattern_of(path), []).append(path)
    facts: dict[str, object] = {}
    counts: dict[str, int] = {}
    for pattern, paths in groups.items():
        if len(paths) > 1 and len({places[path] for path in paths}) == 1:
            facts[f"{kind}.{pattern}"] = places[paths[0]]
            counts[pattern] = len(paths)
        else:
            facts.update({f"{kind}.{path}": places[path] for path in paths})
    shown = dict(list(facts.items())[:_MOST_PLACES])
    if len(facts) > _MOST_PLACES:
        shown[f"{kind}_more"] = len(facts) - _MOST_PLACES
    return {
        **shown,
        **({f"{kind}_places": {name: counts[name] for name in list(counts)[:_MOST_PLACES]}} if counts else {}),
    }


# Elements at a time. On a CPU what torch gives to one thread: threads that wait for each other take ten times as long
# where ranks share cores. On a device 128 MB of working space.
_CHUNK_ON_CPU, _CHUNK = 2**15, 2**23


def checksum(tensors: Iterable[tuple[str, Any]]) -> str:
    """Return 16 hexadecimal digits of named tensors, the same on every device and for every number of threads.

    Of each tensor the sum and the sum of squares of its bits, read as integers, are taken modulo 2**64: integers add up
    to the same in any order, which floats do not. Two tensors with the same numbers in another order have the same
    sums.

    Args:
        tensors: Names and tensors in any order, which does not matter. They must be whole: nothing is gathered. What
            lies on one device comes to the host in one copy.
    """
    import torch

    named = sorted(tensors, key=lambda pair: pair[0])
    sums: dict[Any, list[Any]] = {}
    with torch.no_grad():
        for _, tensor in named:
            sums.setdefault(tensor.device, []).append(_sums(tensor.detach()))
        copied = {device: iter(torch.stack(parts).cpu().tolist()) for device, parts in sums.items()}
    digest = blake2b(digest_size=8)
    for name, tensor in named:
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {next(copied[tensor.device])}\n".encode())
    return digest.hexdigest()


def _sums(tensor: Any) -> Any:
    import torch

    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    flat = tensor.contiguous().view(-1).view(bits)
    total = torch.zeros(2, dtype=torch.int64, device=tensor.device)
    for chunk in flat.split(_CHUNK_ON_CPU if tensor.device.type == "cpu" else _CHUNK):
        whole = chunk.to(torch.int64)
        total += torch.stack((whole.sum(), (whole * whole).sum()))
    return total
