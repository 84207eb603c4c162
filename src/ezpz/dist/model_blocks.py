"""Find the blocks of a model: the repeated parts that are sharded, compiled and recomputed one at a time.

The outermost repetition counts, wherever it is held:

    nn.ModuleList, nn.Sequential, nn.ModuleDict    children of one type that occurs twice
    attributes (down1, down2)                      the same, where nothing inside them repeats
    no repetition                                  children that hold at least half of an even share of the parameters

Layers without parts of their own (a Linear in a Sequential) do not count as a repetition: gathering them one by one
costs more messages than it saves memory.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import nn


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the repeated blocks of ``model`` in the order in which they were registered; empty if nothing repeats."""
    return list(dict.fromkeys(_repeated(model)))  # one module in two places is one block


def select_blocks(model: nn.Module, blocks: Any) -> list[nn.Module]:
    """Return the blocks that a user names.

    Args:
        model: Any module.
        blocks: A module class, several of them, class names, or a function from a module to bool.

    Raises:
        UsageError: Nothing in the model fits.
    """
    matches = _matcher(blocks)
    selected = [module for module in model.modules() if module is not model and matches(module)]
    if not selected:
        types = sorted({type(module).__name__ for module in model.modules() if _has_parts(module)})
        raise UsageError(
            f"no module of {type(model).__name__} fits blocks={blocks!r}; expected module classes, their names or a "
            f"function of a module. It is made of {', '.join(types[:12])}."
        )
    return selected


def largest_parts(model: nn.Module) -> list[nn.Module]:
    """Return the children that hold most parameters, for a model without repetition; empty if there is only one."""
    parts = [child for child in model.children() if _size(child)]
    while len(parts) == 1:  # a shell around the model proper
        parts = [child for child in parts[0].children() if _size(child)]
    share = sum(map(_size, parts)) / len(parts) if parts else 0
    return [part for part in parts if 2 * _size(part) >= share and _can_run(part)]


def without_shared(model: nn.Module, blocks: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the blocks that share no parameter with anything outside of them.

    A parameter that two sharded units hold would be cut twice and the tie between them lost. Blocks that take part in
    one stay with the root, which shards all that is left.
    """
    names = {id(module): name for name, module in model.named_modules()}
    owners = {names[id(block)]: block for block in blocks}
    while shared := _owners_of_shared(model, owners):  # what a dropped block held goes to the block around it
        owners = {name: block for name, block in owners.items() if name not in shared}
    return list(owners.values())


def _owners_of_shared(model: nn.Module, owners: dict[str, nn.Module]) -> set[str]:
    held: dict[int, set[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        for parameter in module.parameters(recurse=False):
            held.setdefault(id(parameter), set()).add(_deepest(name, owners))
    return {owner for group in held.values() if len(group) > 1 for owner in group if owner}


def _deepest(name: str, owners: dict[str, nn.Module]) -> str:
    while name and name not in owners:
        name = name.rpartition(".")[0]
    return name


def _repeated(module: nn.Module) -> Iterator[nn.Module]:
    from torch import nn

    children = [child for child in module.children() if _size(child)]
    counts = Counter(type(child) for child in children if _has_parts(child))
    # A list is homogeneous by intention: an odd layer among repeated ones is a block too, and so is a list's only
    # layer.
    a_list = isinstance(module, (nn.ModuleList, nn.ModuleDict))
    all_of_them = a_list and (len(children) == 1 or max(counts.values(), default=0) > 1)
    a_container = a_list or isinstance(module, nn.Sequential)
    for child in children:
        repeats = counts[type(child)] > 1 or (all_of_them and counts[type(child)] == 1)
        if repeats and a_container and type(child) not in {nn.ModuleList, nn.ModuleDict, nn.Sequential}:
            yield child
            continue
        inner = list(_repeated(child))
        if inner or not repeats or not _can_run(child):
            yield from inner
        else:
            yield child


def _has_parts(module: nn.Module) -> bool:
    return next(module.children(), None) is not None and _size(module) > 0


def _can_run(module: nn.Module) -> bool:
    from torch import nn

    return not isinstance(module, (nn.ModuleList, nn.ModuleDict))


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _matcher(blocks: Any) -> Callable[[nn.Module], bool]:
    if isinstance(blocks, type):
        return lambda module: isinstance(module, blocks)
    if isinstance(blocks, str):
        return lambda module: type(module).__name__ == blocks
    if callable(blocks):
        return lambda module: bool(blocks(module))
    if isinstance(blocks, (list, tuple, set, frozenset)):
        several = [_matcher(item) for item in blocks]
        return lambda module: any(matches(module) for matches in several)
    raise UsageError(
        f"unusable blocks={blocks!r}; expected a module class, several of them, class names, or a function of a module."
    )
