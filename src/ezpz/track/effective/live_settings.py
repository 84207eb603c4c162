"""Probabilities of dropout and ways of attention that a live model holds: in modules, and in configurations beside them.

A dropout that is written as a function (``F.dropout``, ``dropout_p=`` of attention) is no module. What it will use stands
in a plain attribute, or in a configuration object that the model keeps; both are read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["describe_settings"]

_DROP_CLASS = re.compile(r"drop|stochasticdepth", re.IGNORECASE)
_OWN_RATES = {"p", "prob", "rate", "drop_prob", "drop_rate"}  # of a module whose class speaks of dropout
_RATES = {"p", "drop_prob"}  # of any other
_ATTENTION = re.compile(r"attn|attention|sdpa|flash", re.IGNORECASE)
_CONFIGS = {"config", "cfg", "args", "hparams", "opts", "options", "configuration"}
_INDEX = re.compile(r"(?<![^.])\d+(?![^.])")  # a part of a path that is a number
_MOST_PLACES = 64


def describe_settings(modules: Iterable[tuple[str, Any]]) -> dict[str, object]:
    """Return the ``dropout`` and ``attention`` entries of `ezpz.track.effective`.

    Args:
        modules: Paths and modules, the model itself under an empty path.
    """
    drops: dict[str, object] = {}
    ways: dict[str, object] = {}
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
    return {**_folded("dropout", drops), **_folded("attention", ways)}


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
        groups.setdefault(_INDEX.sub("*", path), []).append(path)
    told: dict[str, object] = {}
    counts: dict[str, int] = {}
    for pattern, paths in groups.items():
        if len(paths) > 1 and len({places[path] for path in paths}) == 1:
            told[f"{kind}.{pattern}"] = places[paths[0]]
            counts[pattern] = len(paths)
        else:
            told.update({f"{kind}.{path}": places[path] for path in paths})
    shown = dict(list(told.items())[:_MOST_PLACES])
    if len(told) > _MOST_PLACES:
        shown[f"{kind}_more"] = len(told) - _MOST_PLACES
    return {
        **shown,
        **({f"{kind}_places": {name: counts[name] for name in list(counts)[:_MOST_PLACES]}} if counts else {}),
    }
