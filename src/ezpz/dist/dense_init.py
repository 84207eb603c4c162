"""Make a whole, dense copy of a model on the CPU of one process, initialised as if nothing had ever been sharded."""

from __future__ import annotations

import inspect
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    import torch
    from torch import nn

_RESET = ("reset_parameters", "_reset_parameters")  # the second is how torch's attention and transformer spell it
_ASKED = "init_weights(), reset_parameters() and reset_buffers()"
# What wrappers of torch put into names; the user's own model has none of it.
_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")


def named_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by name; a tied one under its first name only."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def dense_values(
    model: nn.Module,
    wanted: list[str],
    initialize: Callable[[nn.Module], object] | None = None,
    build: Callable[[], nn.Module] | None = None,
    *,
    seed: int,
) -> dict[str, torch.Tensor]:
    """Return the initial values of the wanted parameters and buffers, dense and on the CPU.

    Args:
        model: The model, sharded or not, its wanted tensors without memory.
        wanted: Names as of `named_tensors`.
        initialize: What initialises the dense copy; by default the model's own methods.
        build: What makes a whole new model, instead of a copy that is initialised.
        seed: Seed of the CPU's generator, which is as before afterwards.

    Raises:
        UsageError: A tensor is left without a value, or ``build`` makes another model; the message has the first such
            name.
    """
    import torch

    expected = named_tensors(model)
    with torch.device("cpu"), torch.no_grad(), _seeded(seed):
        if build is not None:
            made, who = build(), "build()"
        else:
            made, who = structure_of(model, _dense), "initialize()" if initialize is not None else _ASKED
            initialize_copy(made, initialize, _is_unset, _unchanged)
    values = {plain_name(name): tensor.detach() for name, tensor in all_names(made)}
    for name in wanted:
        _check(name, values.get(plain_name(name)), expected[name], who, model)
    return {name: values[plain_name(name)] for name in wanted}


def initialize_copy(
    made: nn.Module,
    initialize: Callable[[nn.Module], object] | None,
    is_unset: Callable[[torch.Tensor], bool],
    unchanged: Callable[[list[torch.Tensor]], AbstractContextManager[None]],
) -> None:
    """Initialise a model in place, by the function given or by its own methods.

    Args:
        made: The model.
        initialize: Called with it; None for its own methods.
        is_unset: Tells whether a buffer has no value.
        unchanged: Makes a block behind which these tensors are as before it.
    """
    if initialize is not None:
        initialize(made)
    else:
        _initialize(made, set(), set(), unchanged)
    for module in made.modules():
        unset = any(is_unset(buffer) for buffer in module.buffers(recurse=False))
        if unset and callable(getattr(module, "reset_buffers", None)):
            _call(module, "reset_buffers")


@contextmanager
def _unchanged(tensors: list[torch.Tensor]) -> Iterator[None]:
    before = [(tensor, tensor.clone()) for tensor in tensors]
    yield
    for tensor, values in before:
        tensor.copy_(values)


def structure_of(model: nn.Module, make: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    """Return the same structure with tensors that ``make`` returns for those of the model; what is tied stays so.

    Not by copy.deepcopy, which sharded modules refuse, and which would copy what else the model holds.
    """
    return _copy(model, make, {}, {})


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    import torch

    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the devices too, which draw nothing here
    try:
        yield
    finally:
        torch.set_rng_state(before)


def _copy(
    module: nn.Module,
    make: Callable[[torch.Tensor], torch.Tensor],
    tensors: dict[int, Any],
    modules: dict[int, nn.Module],
) -> nn.Module:
    if id(module) in modules:
        return modules[id(module)]
    twin: nn.Module = object.__new__(type(module))
    modules[id(module)] = twin
    vars(twin).update(vars(module))
    for kind in ("_parameters", "_buffers"):
        vars(twin)[kind] = {name: _made(tensor, make, tensors) for name, tensor in vars(module)[kind].items()}
    vars(twin)["_modules"] = {
        name: None if child is None else _copy(child, make, tensors, modules)
        for name, child in vars(module)["_modules"].items()
    }
    return twin


def _made(tensor: torch.Tensor | None, make: Callable[[torch.Tensor], torch.Tensor], tensors: dict[int, Any]) -> Any:
    import torch

    if tensor is None:
        return None
    if id(tensor) not in tensors:
        values = make(tensor)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        tensors[id(tensor)] = torch.nn.Parameter(values, tensor.requires_grad) if is_parameter else values
    return tensors[id(tensor)]


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    values = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    if not tensor.is_meta:
        return values.zero_() if hasattr(tensor, "placements") else values.copy_(tensor.detach())
    return values.fill_(math.nan if tensor.is_floating_point() or tensor.is_complex() else _unlikely(tensor.dtype))


def _unlikely(dtype: torch.dtype) -> int | bool:
    import torch

    return True if dtype == torch.bool else torch.iinfo(dtype).min or torch.iinfo(dtype).max


def _is_unset(tensor: torch.Tensor) -> bool:
    if not tensor.numel() or tensor.is_meta:
        return bool(tensor.is_meta)
    if tensor.is_floating_point() or tensor.is_complex():
        return bool(tensor.isnan().any())
    return bool((tensor == _unlikely(tensor.dtype)).all())


def _initialize(
    module: nn.Module,
    done: set[int],
    set_before: set[int],
    unchanged: Callable[[list[torch.Tensor]], AbstractContextManager[None]],
) -> None:
    """Initialise in the order in which constructors do: children first, then the module itself.

    So the same seed gives the same numbers as building the dense model. ``init_weights`` answers for all that is below
    it. A tied weight keeps what its first module draws, as after ``output.weight = embedding.weight``; the second one
    draws all the same.
    """
    if id(module) in done:
        return
    done.add(id(module))
    if callable(getattr(module, "init_weights", None)):
        _call(module, "init_weights")
        return
    for child in module.children():
        _initialize(child, done, set_before, unchanged)
    own = list(module.parameters(recurse=False))
    tied = [parameter for parameter in own if id(parameter) in set_before]
    set_before.update(map(id, own))
    with unchanged(tied):
        for name in _RESET:
            if callable(getattr(module, name, None)):
                _call(module, name)
                break


def _call(module: nn.Module, name: str) -> None:
    method = getattr(module, name)
    parameters = inspect.signature(method).parameters.values()
    if any(
        each.default is each.empty and each.kind in {each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD}
        for each in parameters
    ):
        raise UsageError(
            f"{type(module).__name__}.{name}{inspect.signature(method)} takes arguments (from the model); expected a "
            "method without any. Give initialize=lambda model: … , which calls it as it should be."
        )
    method()


def all_names(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Return parameters and buffers under all of their names."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def plain_name(name: str) -> str:
    """Return a tensor's name without what wrappers of torch put into it."""
    for part in _WRAPPERS:
        name = name.replace(part, "")
    return name


def _check(name: str, value: torch.Tensor | None, expected: torch.Tensor, who: str, model: nn.Module) -> None:
    if value is None or value.shape != expected.shape:
        has = "nothing of that name" if value is None else f"shape {tuple(value.shape)}"
        raise UsageError(
            f"{who} makes another model: for {name} it has {has} (from its parameters and buffers); expected shape "
            f"{tuple(expected.shape)}. Use the configuration of the model that was built on the meta device."
        )
    if not _is_unset(value):
        return
    owner, _, own = name.rpartition(".")
    module = model.get_submodule(owner)
    is_parameter = own in dict(module.named_parameters(recurse=False))
    method = "reset_parameters()" if is_parameter else "reset_buffers() or reset_parameters()"
    raise UsageError(
        f"{'parameter' if is_parameter else 'buffer'} {name} has no value after {who} (from the model on the meta "
        f"device); expected every parameter and buffer to be set. Give {type(module).__name__} a {method}, or pass "
        "build=lambda: … , which makes the dense model."
    )
