"""Keep the configuration of a Hugging Face model in its checkpoints: `from_pretrained` needs one beside the weights."""

from __future__ import annotations

import json
from typing import Any

from ezpz.log import get_logger

__all__ = ["hugging_face_config"]

logger = get_logger(__name__)


def hugging_face_config(model: Any) -> str:
    """Return the content of a model's ``config.json``, whatever wraps it; "" for a model of another kind."""
    while (inside := _inside(model)) is not None:
        model = inside
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict") or not hasattr(config, "model_type"):
        return ""
    try:
        entries = config.to_dict()
        entries["architectures"] = entries.get("architectures") or [_class_of(model)]
        return json.dumps(entries, default=str)
    except (TypeError, ValueError) as error:  # a checkpoint without it is better than none
        logger.warning(f"checkpoints hold no config.json of {type(model).__name__}: {error}")
        return ""


def _inside(model: Any) -> Any:
    """Return what torch.compile, DistributedDataParallel or DeepSpeed's engine is around; None for all else."""
    inside = getattr(model, "_orig_mod", None)
    if inside is None and (hasattr(model, "no_sync") or hasattr(model, "is_gradient_accumulation_boundary")):
        inside = getattr(model, "module", None)
    return inside


def _class_of(model: Any) -> str:
    """Return the name of the model's own class: `fully_shard` makes one of torch's in front of it."""
    own = (each for each in type(model).__mro__ if not each.__module__.startswith("torch."))
    return next(own, type(model)).__name__
