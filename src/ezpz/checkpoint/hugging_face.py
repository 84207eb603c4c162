"""Weights to and from a folder that Hugging Face's libraries read, whatever mesh the model lies on.

    llama-8b/config.json                                sizes; by it AutoModelForCausalLM.from_pretrained finds the class
    llama-8b/model.safetensors                          all weights, or
    llama-8b/model-00001-of-00004.safetensors …         as many as fit into `shard_bytes` each, and
    llama-8b/model.safetensors.index.json               which weight is where

One whole tensor at a time is in memory: gathered from all ranks and written by rank 0, or read by rank 0 and sent to all. Names and
order of rows come from a layout, such as `ezpz.models.llama_layout` makes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ezpz.checkpoint.fitting import plan_import, refuse_export, refuse_model
from ezpz.checkpoint.safetensors_files import read_tensor
from ezpz.checkpoint.safetensors_folder import FolderWriter
from ezpz.errors import EzpzError, UsageError
from ezpz.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from torch import nn

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
        UsageError: There is something in the folder already, the format is unknown, or the model is of another kind than the
            layout; on all ranks.
        EzpzError: It cannot be written; on all ranks. Nothing is left behind.
    """
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    from ezpz.checkpoint.together import Together
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
    shapes = {theirs: tuple(state[ours].shape) for ours, theirs in layout.names.items()}
    writer = FolderWriter(folder, shapes, word, shard_bytes) if together.rank == 0 else None
    for ours, theirs in layout.names.items():
        whole = gathered(state[ours])
        if writer is not None:
            writer.put(theirs, layout.to_theirs(ours, whole.to("cpu")))
    error = together.broadcast(writer.finish(layout.config) if writer is not None else None)
    if error is not None:
        raise error
    logger.info(f"exported {folder}: {len(shapes)} weights in {word}")
    return folder


def import_hugging_face(model: nn.Module, folder: Path | str, layout: Layout) -> None:
    """Fill the model's weights; collective. Everything is compared before anything is changed.

    Args:
        model: Plain, or as `ezpz.wrap_model` returned it; it has memory already. Weights are converted to its number formats.
        folder: Rank 0's counts; only its host must see it.
        layout: As for `export_hugging_face`.

    Raises:
        UsageError: There are no such weights, or they are those of another model: names, shapes, a larger vocabulary, other heads or
            rotary positions; on all ranks.
        EzpzError: A file that looked whole cannot be read; on all ranks. The model is changed in part then.
    """
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    from ezpz.checkpoint.together import Together
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
