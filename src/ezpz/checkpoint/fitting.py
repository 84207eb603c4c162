"""Whether a model here and weights of Hugging Face fit together, found out before anything is written or changed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.checkpoint import safetensors_files as files
from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ezpz.checkpoint.hugging_face import Layout

__all__ = ["ImportPlan", "plan_import", "refuse_export", "refuse_model"]

_FORGOTTEN = ".rotary_emb.inv_freq"  # older versions saved this table, which follows from the sizes


class ImportPlan(NamedTuple):
    """What an import reads, by the names there.

    Attributes:
        entries: Where each wanted weight lies.
        remark: What the weights' configuration asks for and this model does not do.
        problem: Why nothing can be imported.
    """

    entries: dict[str, files.Entry]
    remark: str
    problem: str


def refuse_export(folder: Path, word: str, shard_bytes: int) -> UsageError | None:
    """Return why this folder cannot be written in this format; None if it can."""
    if word not in files.FORMATS.values() or shard_bytes < 1:
        return UsageError(
            f"cannot export as {word!r} with {shard_bytes} bytes per file (from export_hugging_face); expected "
            f"{', '.join(files.FORMATS.values())}, and a positive size."
        )
    try:
        is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    except OSError as error:
        return UsageError(
            f"cannot look into {folder}: {error.strerror} (from the export's folder); expected a new folder."
        )
    if is_free:
        return None
    return UsageError(
        f"{folder} is there already (from the export's folder); expected a new one. Name another, or remove it."
    )


def refuse_model(state: Mapping[str, Any], layout: Layout) -> UsageError | None:
    """Return why the model is none of the layout's, or has nothing to give or to fill; None if it fits."""
    lacking = [name for name in layout.names if name not in state]
    more = [name for name in state if name not in layout.names and name not in layout.shared]
    empty = [name for name in layout.names if name in state and state[name].is_meta]
    if lacking or more:
        what = f"it has no {lacking[0]}" if lacking else f"the layout has no place for its {more[0]}"
        return UsageError(
            f"the model is another one than the layout's: {what} (from the model's weights); expected those of its configuration. "
            "Make the layout from `model.config`."
        )
    if empty:
        return UsageError(
            f"{empty[0]} has no memory (from torch.device('meta')); expected weights. Call `ezpz.wrap_model` or `ezpz.materialize` first."
        )
    return None


def plan_import(folder: Path, shapes: Mapping[str, tuple[int, ...]], layout: Layout) -> ImportPlan:
    """Compare a folder with a model, on the rank that reads.

    Args:
        folder: Of the weights.
        shapes: Of the model's weights, by their names there.
        layout: Of the model.
    """
    problem, remark, wanted = "", "", {}
    try:
        found = files.find_entries(folder)
        config = _config(folder)
        remark = layout.remark(config) if config else ""
        wanted = {name: found[_place(name, found, layout)] for name in shapes if _place(name, found, layout) in found}
        problem = _difference(found, wanted, shapes, layout) or (layout.objection(config) if config else "")
    except OSError as error:
        problem = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except files.UnreadableError as error:
        problem = str(error)
    if not folder.is_dir():
        problem = "it is a file" if folder.exists() else "there is no such folder"
    if problem:
        problem = (
            f"cannot import {folder}: {problem}; expected a folder with {files.ALONE} or {files.INDEX}, of a model of the same sizes. "
            "Models of the hub come by `hf download NAME --local-dir FOLDER`."
        )
    return ImportPlan(wanted, remark, problem)


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.exists():
        return {}
    try:
        told = json.loads(path.read_bytes())
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise files.UnreadableError("config.json is damaged: no table where it must be")
    return told


def _place(name: str, found: Mapping[str, files.Entry], layout: Layout) -> str:
    return name if name in found else layout.tied.get(name, name)


def _difference(
    found: Mapping[str, files.Entry],
    wanted: Mapping[str, files.Entry],
    shapes: Mapping[str, tuple[int, ...]],
    layout: Layout,
) -> str:
    """Return in what the weights differ from the model's; "" if they fit."""
    for name, entry in wanted.items():
        if name in layout.tied.values() and entry.shape[1:] == shapes[name][1:] and entry.shape != shapes[name]:
            theirs, ours = entry.shape[0], shapes[name][0]
            return f"its vocabulary of {theirs:,} is {'larger' if theirs > ours else 'smaller'} than the model's of {ours:,}"
    odd = [f"{name} is in {entry.dtype}" for name, entry in found.items() if entry.dtype not in files.FORMATS.values()]
    if odd:
        return f"{odd[0]}, which is not read here"
    more = [name for name in found if name not in shapes and not name.endswith(_FORGOTTEN)]
    lost = [
        *(f"it has no {name}" for name in shapes if name not in wanted),
        *(f"this model has no {name}" for name in more if name not in layout.tied),
        *(
            f"its {name} is no copy of {layout.tied[name]}, as in this model"
            for name in more
            if _differs(name, found, layout)
        ),
        *(
            f"{name} is {list(entry.shape)} in it and {list(shapes[name])} here"
            for name, entry in wanted.items()
            if entry.shape != shapes[name]
        ),
    ]
    return "; ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")


def _differs(name: str, found: Mapping[str, files.Entry], layout: Layout) -> bool:
    """Tell whether a weight that should be another one's copy is none."""
    import torch

    if name not in layout.tied:
        return False
    own, other = found[name], found.get(layout.tied[name])
    if other is None or (own.shape, own.dtype) != (other.shape, other.dtype):
        return True
    return not torch.equal(files.read_tensor(own), files.read_tensor(other))
