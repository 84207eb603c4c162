r"""The layers of a model as a tree with their parameters, for the head of a log.

Llama                                      33,599,744
├─ tok_embeddings: Embedding                8,192,000
├─ layers: ModuleList                      17,215,488
│  └─ 0-23: 24 x Block                        717,312 each
├─ norm: RMSNorm                                  256
└─ output: Linear                           8,192,000
Total params: 33,599,744
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple


class _Line(NamedTuple):
    text: str
    parameters: int
    note: str = ""


def summarize(model: Any, *, depth: int = 3) -> str:
    """Return a tree of a model's layers with the number of their parameters; nothing is computed, so meta tensors do.

    Neighbours that are built alike are shown once. A weight that several layers share counts once, in the first of
    them; sharded weights count whole.

    Args:
        model: A ``torch.nn.Module``.
        depth: Levels below the model; 1 shows its direct parts.

    Returns:
        Several lines, ending with ``Total params: 33,599,744`` and how many of them are trained.
    """
    seen: set[int] = set()
    lines = [_Line(type(model).__name__, _count(model, set()))]
    _add_parts(model, lines, seen, "", depth)
    width = max(len(line.text) for line in lines) + 2
    digits = max(len(f"{line.parameters:,}") for line in lines)
    shown = [f"{line.text:{width}}{line.parameters:>{digits},}{line.note}" for line in lines]
    unique = {id(parameter): parameter for parameter in model.parameters()}.values()
    total = sum(parameter.numel() for parameter in unique)
    trained = sum(parameter.numel() for parameter in unique if parameter.requires_grad)
    rule = "=" * max(map(len, shown))
    ending = [
        f"Total params: {total:,}",
        f"Trainable params: {trained:,}",
        f"Non-trainable params: {total - trained:,}",
    ]
    return "\n".join([rule, *shown, rule, *ending, rule])


def _add_parts(module: Any, lines: list[_Line], seen: set[int], indent: str, depth: int) -> None:
    """Add what is directly in a module: parameters of its own, then its layers."""
    own = [(name, parameter) for name, parameter in module.named_parameters(recurse=False)]
    runs = [list(run) for _, run in groupby(module.named_children(), key=_likeness)]
    if depth == 0:
        _see(module, seen)
        return
    left = len(runs) + (len(own) if runs else 0)
    for name, parameter in own if runs else ():  # of a layer without parts its own line tells all
        left -= 1
        lines.append(_Line(f"{indent}{'├─' if left else '└─'} {name}: Parameter", _new(parameter, seen)))
    for run in runs:
        left -= 1
        (first, child), last = run[0], run[-1][0]
        head = f"{first}-{last}: {len(run)} x " if len(run) > 1 else f"{first}: "
        parameters = _count(child, set(seen))
        shared = "" if parameters == _count(child, set()) else " (shared)"
        note = " each" if len(run) > 1 else shared
        lines.append(_Line(f"{indent}{'├─' if left else '└─'} {head}{type(child).__name__}", parameters, note))
        _add_parts(child, lines, seen, f"{indent}{'│ ' if left else '  '} ", depth - 1)
        for _, other in run[1:]:
            _see(other, seen)


def _likeness(child: tuple[str, Any]) -> tuple[Any, ...]:
    """Return what neighbours must share to be one line: only those that are numbered, as repeated blocks are, can."""
    name, module = child
    return (not name.isdigit() and name, _build(module))


def _build(module: Any) -> tuple[Any, ...]:
    """Return what makes two layers look alike in the tree: their types, and the shapes of their parameters."""
    shapes = tuple((name, tuple(parameter.shape)) for name, parameter in module.named_parameters(recurse=False))
    return (type(module), shapes, *((name, _build(child)) for name, child in module.named_children()))


def _count(module: Any, seen: set[int]) -> int:
    return sum(_new(parameter, seen) for parameter in module.parameters())


def _new(parameter: Any, seen: set[int]) -> int:
    if id(parameter) in seen:
        return 0
    seen.add(id(parameter))
    return int(parameter.numel())


def _see(module: Any, seen: set[int]) -> None:
    seen.update(map(id, module.parameters()))
