"""Export weights to a folder that Hugging Face's libraries read, and import them, whatever mesh the model lies on.

    llama-8b/config.json                                sizes, and the class for AutoModelForCausalLM.from_pretrained
    llama-8b/model.safetensors                          all weights, or
    llama-8b/model-00001-of-00004.safetensors …         as many as fit into `shard_bytes` each, and
    llama-8b/model.safetensors.index.json               which weight is where

One whole tensor at a time is in memory: gathered from all ranks and written by rank 0, or read by rank 0 and sent to
all. Names and order of rows come from a layout, such as `ezpz.models.llama_layout` makes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ezpz.checkpoint import safetensors_files as files
from ezpz.checkpoint.safetensors_files import read_tensor
from ezpz.checkpoint.safetensors_folder import FolderWriter
from ezpz.errors import EzpzError, UsageError
from ezpz.files import read_bytes
from ezpz.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from torch import nn


# Compare a model here with weights of Hugging Face, before anything is written or changed.

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
            f"the model is another one than the layout's: {what} (from the model's weights); expected those of its "
            "configuration. Make the layout from `model.config`."
        )
    if empty:
        return UsageError(
            f"{empty[0]} has no memory (from torch.device('meta')); expected weights. Call `ezpz.wrap_model` or "
            "`ezpz.materialize` first."
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
        entries = files.find_entries(folder)
        config = _config(folder)
        remark = layout.remark(config) if config else ""
        wanted = {
            name: entries[_place(name, entries, layout)] for name in shapes if _place(name, entries, layout) in entries
        }
        problem = _difference(entries, wanted, shapes, layout) or (layout.objection(config) if config else "")
    except OSError as error:
        problem = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except files.UnreadableError as error:
        problem = str(error)
    if not folder.is_dir():
        problem = "it is a file" if folder.exists() else "there is no such folder"
    if problem:
        problem = (
            f"cannot import {folder}: {problem}; expected a folder with {files.ALONE} or {files.INDEX}, of a model of "
            "the same sizes. Models of the hub come by `hf download NAME --local-dir FOLDER`."
        )
    return ImportPlan(wanted, remark, problem)


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.exists():
        return {}
    try:
        config = json.loads(read_bytes(path))
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise files.UnreadableError("config.json is damaged: no table where it must be")
    return config


def _place(name: str, entries: Mapping[str, files.Entry], layout: Layout) -> str:
    return name if name in entries else layout.tied.get(name, name)


def _difference(
    entries: Mapping[str, files.Entry],
    wanted: Mapping[str, files.Entry],
    shapes: Mapping[str, tuple[int, ...]],
    layout: Layout,
) -> str:
    """Return in what the weights differ from the model's; "" if they fit."""
    for name, entry in wanted.items():
        if name in layout.tied.values() and entry.shape[1:] == shapes[name][1:] and entry.shape != shapes[name]:
            theirs, ours = entry.shape[0], shapes[name][0]
            size = "larger" if theirs > ours else "smaller"
            return f"its vocabulary of {theirs:,} is {size} than the model's of {ours:,}"
    odd = next((entry.problem for entry in entries.values() if entry.problem), "")
    if odd:
        return odd
    more = [name for name in entries if name not in shapes and not name.endswith(_FORGOTTEN)]
    lost = [
        *(f"it has no {name}" for name in shapes if name not in wanted),
        *(f"this model has no {name}" for name in more if name not in layout.tied),
        *(
            f"its {name} is no copy of {layout.tied[name]}, as in this model"
            for name in more
            if _differs(name, entries, layout)
        ),
        *(
            f"{name} is {list(entry.shape)} in it and {list(shapes[name])} here"
            for name, entry in wanted.items()
            if entry.shape != shapes[name]
        ),
    ]
    return "; ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")


def _differs(name: str, entries: Mapping[str, files.Entry], layout: Layout) -> bool:
    """Tell whether a weight that should be another one's copy is none."""
    import torch

    if name not in layout.tied:
        return False
    own, other = entries[name], entries.get(layout.tied[name])
    if other is None or (own.shape, own.dtype) != (other.shape, other.dtype):
        return True
    return not torch.equal(files.read_tensor(own), files.read_tensor(other))


__all__ = ["Layout", "export_hugging_face", "import_hugging_face"]

_WORDS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

logger = get_logger(__name__)


class Layout(Protocol):
    """How a model is written down there.

    Attributes:
        names: Name of each weight here, to its name there.
        config: Content of ``config.json``, but for the number format.
        shared: Names here of weights that are another one's, and are not written.
        tied: Name there, to the name of the weight that it is the same as where it is not written.
    """

    names: Mapping[str, str]
    shared: Sequence[str]
    config: Mapping[str, Any]
    tied: Mapping[str, str]

    def to_theirs(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a whole weight, called ``name`` here, as it is written there; of the same shape."""

    def to_ours(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a whole weight, called ``name`` here, out of what is written there."""

    def objection(self, config: Mapping[str, Any]) -> str:
        """Return how another config differs in what shapes do not show, as the end of a sentence; "" if it does not."""

    def remark(self, config: Mapping[str, Any]) -> str:
        """Return what another config asks for and this model does not do, in a sentence; "" if there is nothing."""


def export_hugging_face(
    model: nn.Module, folder: Path | str, layout: Layout, *, dtype: str = "float32", shard_bytes: int = 5 * 10**9
) -> Path:
    """Write the weights; collective. The folder is complete or not there.

    Args:
        model: Plain, or as `ezpz.wrap_model` returned it.
        folder: A new one, or an empty one. Rank 0's counts.
        layout: Names, order and ``config.json``: `ezpz.models.llama_layout`.
        dtype: Number format of the file: float32, bfloat16 or float16, or bf16 and so on.
        shard_bytes: Bytes of the weights of one file, at most; a single tensor may have more.

    Returns:
        The folder, as rank 0 calls it.

    Raises:
        UsageError: There is something in the folder already, the format is unknown, or the model is of another kind
            than the layout; on all ranks.
        EzpzError: It cannot be written; on all ranks. Nothing is left behind.
    """
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    from ezpz.checkpoint.small_collectives import Together
    from ezpz.dist.whole_tensors import gathered

    together = Together()
    if together.is_simulated:
        logger.info("nothing is exported: the world is a simulated one")
        return Path(folder)
    word = _WORDS.get(dtype, dtype)
    folder = together.broadcast(Path(folder).expanduser().absolute())
    together.agree(refuse_export(folder, word, shard_bytes) if together.rank == 0 else None)
    state = get_model_state_dict(model)
    together.agree(refuse_model(state, layout))
    weights = {theirs: files.Weight(tuple(state[ours].shape), word) for ours, theirs in layout.names.items()}
    writer = FolderWriter(folder, weights, shard_bytes) if together.rank == 0 else None
    for ours, theirs in layout.names.items():
        whole = gathered(state[ours])
        if writer is not None:
            writer.put(theirs, layout.to_theirs(ours, whole.to("cpu")))
    config = {**layout.config, "torch_dtype": word}
    error = together.broadcast(writer.finish(config) if writer is not None else None)
    if error is not None:
        raise error
    logger.info(f"exported {folder}: {len(weights)} weights in {word}")
    return folder


def import_hugging_face(model: nn.Module, folder: Path | str, layout: Layout) -> None:
    """Fill the model's weights; collective. Everything is compared before anything is changed.

    Args:
        model: Plain, or as `ezpz.wrap_model` returned it; it has memory already. Weights are converted to its number
            formats.
        folder: Rank 0's counts; only its host must see it.
        layout: As for `export_hugging_face`.

    Raises:
        UsageError: There are no such weights, or they are those of another model: names, shapes, a larger vocabulary,
            other heads or rotary positions; on all ranks.
        EzpzError: A file that looked whole cannot be read; on all ranks. The model is changed in part then.
    """
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    from ezpz.checkpoint.small_collectives import Together
    from ezpz.dist.whole_tensors import Sender, keep_part, place_of

    together = Together()
    if together.is_simulated:
        logger.info("nothing is imported: the world is a simulated one")
        return
    folder = Path(folder).expanduser().absolute()
    state = get_model_state_dict(model)
    together.agree(refuse_model(state, layout))
    shapes = {theirs: tuple(state[ours].shape) for ours, theirs in layout.names.items()}
    plan: Any = together.broadcast(plan_import(folder, shapes, layout) if together.rank == 0 else None)
    if plan.problem:
        raise UsageError(plan.problem)
    if plan.remark:
        logger.warning(f"{folder}: {plan.remark}")
    sender, place, lost = Sender(), place_of(model), None
    for ours, theirs in layout.names.items():
        value = None
        if together.rank == 0 and lost is None:
            try:
                value = layout.to_ours(ours, read_tensor(plan.entries[theirs]))
            except OSError as error:
                lost = f"cannot import {folder}: {error.strerror or error}"
        keep_part(state[ours], sender.send(value, state[ours], place))
    lost = together.broadcast(lost)
    if lost:
        raise EzpzError(
            f"{lost}; expected files as they were. The model is changed in part: start again from another folder."
        )
    logger.info(f"imported {folder}: {len(shapes)} weights")
