"""Find the parts of a model that draw random numbers: call each alone, on ones, and put everything back.

A default of 0.1 that is in no command line is found by looking at what modules do. A module counts as stochastic if
two calls in training mode differ, or differ from what it gives in evaluation mode.

Training is not touched: what is called is a copy of the module that shares only its weights, in which no hook is left;
the random states of Python, numpy, torch and the device, and of generators that a module owns, are put back. Modules
with parts of their own are not called, because these could gather weights from other ranks, nor may any of them start
a collective. They are listed by the probability that they hold.
"""

from __future__ import annotations

import contextlib
import copy
import random
import re
import sys
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NAME = re.compile(r"drop|stochastic|noise|rrelu|shake|jitter|gumbel|bernoulli|randomi[sz]", re.IGNORECASE)
_RATE = re.compile(r"^(p|prob)$|drop", re.IGNORECASE)
_SHAPES = ((8, 4, 4, 8), (8, 8, 16), (8, 128), (1024,))  # Dropout2d and 3d want four dimensions, others may want fewer
_HOOKS = re.compile(r"^_(forward|backward|state_dict|load_state_dict)\w*hooks")
_MOST = 64  # kinds that are listed


def probe(model: Any) -> list[str]:
    """Return the stochastic parts of a model as training mode has them, for example ``["24 x Dropout(p=0.1)"]``.

    Args:
        model: A ``torch.nn.Module``, also a wrapped one. Needs no other rank.

    Returns:
        One line per kind, the most frequent first and those that were not called last. Behind the brackets is what is
        special: ``in eval mode now`` where the model trains and this part does not, ``in eval mode too`` where
        evaluation draws random numbers as well, ``not called`` where only a probability that the part holds speaks for
        it.
    """
    import torch

    counts: Counter[str] = Counter()
    candidates = [module for module in model.modules() if _is_candidate(module)]
    if not candidates:
        return []
    dtype, device = _number_kind(model)
    with torch.no_grad(), warnings.catch_warnings(), _random_states(device), _no_collectives():
        warnings.simplefilter("ignore")
        for module in candidates:
            line = _verdict(module, dtype, device, trains=bool(model.training))
            if line:
                counts[line] += 1
    ordered = sorted(counts.most_common(), key=lambda pair: pair[0].endswith("not called"))  # what was seen comes first
    lines = [f"{number} x {line}" for line, number in ordered]
    return [*lines[:_MOST], f"{len(lines) - _MOST} more kinds"] if len(lines) > _MOST else lines


def _is_candidate(module: Any) -> bool:
    return bool(_NAME.search(type(module).__name__)) or any(value > 0 for value in _rates(module).values())


def _rates(module: Any) -> dict[str, float]:
    """Return the attributes of a module that may be probabilities of dropping something."""
    return {
        name: value
        for name, value in vars(module).items()
        if (type(value) is float or (type(value) is int and name == "p")) and 0 <= value <= 1 and _RATE.search(name)
    }


def _label(module: Any) -> str:
    """Return class and settings: the probabilities, or else the first numbers that the module holds."""
    shown = _rates(module) or {
        name: value for name, value in vars(module).items() if type(value) is float and not name.startswith("_")
    }
    return f"{type(module).__name__}({', '.join(f'{name}={value:g}' for name, value in list(shown.items())[:3])})"


def _verdict(module: Any, dtype: Any, device: Any, *, trains: bool) -> str:
    not_called = f"{_label(module)}, not called"
    if next(module.children(), None) is not None or any(_is_shared(each) for each in module.parameters()):
        return not_called if any(value > 0 for value in _rates(module).values()) else ""
    for shape in _SHAPES:
        with contextlib.suppress(Exception):  # a foreign forward may raise anything at a shape that it does not expect
            in_training, in_evaluation = _try(module, shape, dtype, device)
            if not in_training:
                return ""
            now = ", in eval mode now" if trains and not module.training else ""
            return _label(module) + (", in eval mode too" if in_evaluation else now)
    return not_called


def _try(module: Any, shape: tuple[int, ...], dtype: Any, device: Any) -> tuple[bool, bool]:
    """Return whether a module draws random numbers in training mode, and whether it does in evaluation mode."""
    import torch

    with _own_generators(module):
        twin = _copy(module)

        def call(sign: int, *, training: bool) -> Any:
            twin.__dict__["training"] = training
            output = type(module).forward(twin, torch.full(shape, sign, dtype=dtype, device=device))
            return output[0] if isinstance(output, (tuple, list)) else output

        for sign in (1, -1):  # RReLU leaves what is positive as it is
            still, first = call(sign, training=False), call(sign, training=True)
            if not _same(first, still) or not _same(first, call(sign, training=True)):
                return True, not _same(still, call(sign, training=False))
    return False, False


def _copy(module: Any) -> Any:
    """Return a copy that shares only the weights: what it does to itself is forgotten with it."""
    twin = object.__new__(type(module))
    for name, value in vars(module).items():
        if isinstance(value, (list, dict, set)):
            twin.__dict__[name] = type(value)() if _HOOKS.match(name) else copy.copy(value)
        else:
            twin.__dict__[name] = value
    twin.__dict__["_buffers"] = {
        name: None if value is None else value.clone() for name, value in vars(module)["_buffers"].items()
    }
    return twin


def _same(one: Any, other: Any) -> bool:
    import torch

    return bool(one.shape == other.shape and torch.equal(one, other))


def _is_shared(parameter: Any) -> bool:
    """Tell whether using a parameter could need other ranks: DTensor, FSDP's flat one, DeepSpeed's partitioned one."""
    return any(hasattr(parameter, name) for name in ("placements", "_local_shard", "_sharded_size", "ds_id")) or (
        parameter.is_meta
    )


def _number_kind(model: Any) -> tuple[Any, Any]:
    """Return dtype and device of the model's first floating weight; float32 on the CPU without one."""
    import torch

    for parameter in model.parameters():
        if parameter.is_floating_point():
            local = getattr(parameter, "to_local", None)
            device = parameter.device if local is None else local().device
            computes = parameter.dtype.itemsize > 1  # nothing is computed in 8 bits alone
            return parameter.dtype if computes else torch.float32, torch.device("cpu") if parameter.is_meta else device
    return torch.float32, torch.device("cpu")


@contextlib.contextmanager
def _random_states(device: Any) -> Iterator[None]:
    """Put the random states of this process back, whatever happens in between."""
    import torch

    from ezpz.dist.device import accelerator_module

    numpy: Any = sys.modules.get("numpy")
    pairs: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (random.setstate, (random.getstate(),)),
        (torch.set_rng_state, (torch.get_rng_state(),)),
    ]
    if numpy is not None:
        pairs.append((numpy.random.set_state, (numpy.random.get_state(),)))
    module = accelerator_module(device.type)
    if hasattr(module, "get_rng_state"):
        where = () if device.type == "mps" else (device,)
        pairs.append((module.set_rng_state, (module.get_rng_state(*where), *where)))
    try:
        yield
    finally:
        for put_back, state in pairs:
            put_back(*state)


@contextlib.contextmanager
def _own_generators(module: Any) -> Iterator[None]:
    """Put back the generators that a module owns: of torch, of numpy (both kinds), of Python."""
    states: list[tuple[Callable[[Any], Any], Any]] = []
    for value in vars(module).values():
        if hasattr(value, "get_state") and hasattr(value, "set_state"):
            states.append((value.set_state, value.get_state()))
        elif hasattr(value, "getstate") and hasattr(value, "setstate"):
            states.append((value.setstate, value.getstate()))
        elif hasattr(value, "bit_generator"):
            bits = value.bit_generator
            states.append((lambda state, bits=bits: setattr(bits, "state", state), bits.state))  # type: ignore[misc]  # a default in a lambda
    try:
        yield
    finally:
        for put_back, state in states:
            put_back(state)


def _no_collectives() -> Any:
    """Return a context in which a collective raises: only this rank is here, so it would wait for ever."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return contextlib.nullcontext()
    from torch.utils._python_dispatch import TorchDispatchMode

    class Refuse(TorchDispatchMode):  # type: ignore[misc]  # torch is Any here
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            if function.namespace in {"c10d", "_c10d_functional", "c10d_functional", "_dtensor"}:
                raise RuntimeError("a collective in a module that is called alone")
            return function(*args, **(kwargs or {}))

    return Refuse()
