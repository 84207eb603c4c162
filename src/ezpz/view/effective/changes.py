"""Notice what somebody changes in a live optimizer or model while it trains, and sum up random generators' states.

An optimizer's learning rate, weight decay and betas and a model's dropout probabilities are numbers of Python: looking
whether they are the same as a step ago takes a microsecond or a few. Numbers that are tensors are left out, because
reading one may wait for a device.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from typing import TYPE_CHECKING, Any
from weakref import ref

from ezpz.view.effective.live_model import dropout_places, pattern_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["LiveSettings", "generator_sums"]

_RATES = ("lr", "weight_decay", "betas", "momentum")
_MOST_GROUPS = 16
_NUMBERS = {float, int}
_COMPARED = {float, int, tuple, list}


class LiveSettings:
    """The settings of an optimizer and a model as they are now.

    Args:
        optimizer: What has ``param_groups``; anything else, or None, is not looked at.
        model: A module; None is not looked at. Modules that are added later are not seen.
    """

    def __init__(self, optimizer: Any = None, model: Any = None) -> None:
        self._optimizer: Callable[[], Any] = _weak(optimizer)
        groups = self._groups()
        self._watched = [
            (at, name)
            for at, group in enumerate(groups[:_MOST_GROUPS])
            for name in _RATES
            if _is_plain(group.get(name))
        ]
        places = [] if model is None else dropout_places(model)
        self._paths = [path for path, _, _ in places]
        self._held = [(_weak(module), name) for _, module, name in places]
        self._last: list[Any] = []
        self._last_drops: list[Any] = []
        self._known: dict[str, float] = {}

    def _groups(self) -> Sequence[Mapping[str, Any]]:
        groups = getattr(self._optimizer(), "param_groups", None)  # another list after a state was loaded
        return groups if isinstance(groups, list) else ()

    def changed(self) -> dict[str, float]:
        """Return what is another number than at the last call, by name; at the first call all of them.

        Names are ``lr``, ``weight_decay``, ``betas.0``, of several groups ``groups.1.lr``; and ``dropout.PATH``, with
        ``*`` for the numbers of layers that agree.
        """
        groups = self._groups()
        try:
            # Tensors are left out: to compare one may wait for a device.
            rates = [value if type(value := groups[at][name]) in _COMPARED else None for at, name in self._watched]
        except (IndexError, KeyError):  # groups were taken away
            self._watched, rates = [], []
        drops = [getattr(held(), name, None) for held, name in self._held]
        if rates == self._last and drops == self._last_drops:
            return {}
        now = {**self._rates(rates, several=len(groups) > 1), **self._drops(drops)}
        self._last, self._last_drops = rates, drops
        new = {name: value for name, value in now.items() if self._known.get(name) != value}
        self._known.update(new)
        return new

    def _rates(self, values: list[Any], *, several: bool) -> dict[str, float]:
        found: dict[str, float] = {}
        for (at, name), value in zip(self._watched, values, strict=True):
            key = f"groups.{at}.{name}" if several else name
            if isinstance(value, (tuple, list)):
                found |= {f"{key}.{part}": float(one) for part, one in enumerate(value) if type(one) in _NUMBERS}
            elif type(value) in _NUMBERS:
                found[key] = float(value)
        return found

    def _drops(self, values: Sequence[Any]) -> dict[str, float]:
        """Return dropout probabilities: of layers that agree one, and those of layers that have left the others."""
        groups: dict[str, dict[str, float]] = {}
        for path, value in zip(self._paths, values, strict=True):
            if type(value) in _NUMBERS:
                groups.setdefault(f"dropout.{pattern_of(path)}", {})[f"dropout.{path}"] = float(value)
        found: dict[str, float] = {}
        for pattern, of_paths in groups.items():
            agreed = set(of_paths.values())
            if len(agreed) == 1:
                found[pattern] = agreed.pop()
            else:
                usual = self._known.get(pattern)
                found |= {path: value for path, value in of_paths.items() if value != usual or path in self._known}
        return found


def _weak(thing: Any) -> Callable[[], Any]:
    """Return what gives a thing as long as somebody else holds it: to record is no reason to keep memory."""
    try:
        return ref(thing)
    except TypeError:  # None, or of a class that allows no such reference
        return lambda: None


def _is_plain(value: Any) -> bool:
    return type(value) in _NUMBERS or (isinstance(value, (tuple, list)) and all(type(one) in _NUMBERS for one in value))


def generator_sums() -> dict[str, int]:
    """Return sums of 32 bits of the states of Python's, numpy's and torch's random generators, as far as loaded.

    It draws nothing and waits for no device; some tens of microseconds.
    """
    import random

    state = random.getstate()
    sums = {"python": zlib.crc32(array("I", state[1]))}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        _, keys, place, *_ = numpy.random.get_state()
        sums["numpy"] = zlib.crc32(keys.tobytes(), int(place))
    if torch is not None:
        sums["torch"] = zlib.crc32(torch.get_rng_state().numpy())
        cuda = getattr(torch, "cuda", None)
        if cuda is not None and cuda.is_available() and cuda.is_initialized():
            sums["cuda"] = zlib.crc32(cuda.get_rng_state().numpy())  # a seed and a count, which the host has
    return sums
