"""Wrap a model with DeepSpeed, where it is installed, with a configuration that is given or generated.

Its engine trains by itself: ``engine(batch)``, ``engine.backward(loss)``, ``engine.step()``, and clips, accumulates and
scales the loss as its configuration says (https://www.deepspeed.ai/docs/config-json). It adopts the process group that
`setup_torch` has made.
"""

from __future__ import annotations

import json
import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ezpz.errors import MachineError, UsageError
from ezpz.files import read_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn

_PRECISION = {"bfloat16": "bf16", "float16": "fp16", "float32": ""}  # our names to DeepSpeed's sections


def wrap(
    model: nn.Module,
    *,
    dtype: str | torch.dtype | None = None,
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: Any = None,
    **generated: Any,
) -> nn.Module:
    """Return DeepSpeed's engine around the model; its optimizer is ``engine.optimizer``.

    Args:
        model: A plain model.
        dtype: bf16, fp16 or fp32, for a generated configuration; a given one says it itself. By default the format of
            most of the weights.
        config: DeepSpeed's configuration, or the path of a JSON file with it; generated when None.
        optimizer: A torch optimizer over the model's parameters; by default the one that the configuration names.
        scheduler: A torch learning-rate scheduler of that optimizer.
        **generated: For `make_config`, when ``config`` is None.

    Raises:
        MachineError: DeepSpeed is not installed, or cannot run here.
        UsageError: The configuration cannot be read, or is given twice.
    """
    import torch.distributed as dist

    from ezpz.dist.precision import resolve_dtype, stored_formats

    if not dist.is_initialized():
        raise UsageError(
            "strategy='deepspeed' needs a process group, and there is none; expected setup_torch() before it. "
            "Call ezpz.setup_torch() first."
        )
    library = _library()
    if config is None:
        wanted = resolve_dtype(next(iter(stored_formats(model)), "fp32") if dtype is None else dtype)
        config = make_config(str(wanted).removeprefix("torch."), own_optimizer=optimizer is not None, **generated)
    elif generated:
        raise UsageError(
            f"DeepSpeed's configuration is given and {', '.join(generated)} too (from wrap_model); expected one of "
            "them. Write them into the configuration."
        )
    else:
        config = load_ds_config(config) if isinstance(config, (str, os.PathLike)) else config
    try:
        engine: nn.Module = library.initialize(
            model=model,
            optimizer=optimizer,
            model_parameters=[each for each in model.parameters() if each.requires_grad],
            lr_scheduler=scheduler,
            config=dict(config),
        )[0]
    # DeepSpeed reports what a device or its own build cannot do by many kinds of error, asserts among them.
    except (AssertionError, ImportError, NotImplementedError, RuntimeError, ValueError) as error:
        raise MachineError(
            f"DeepSpeed {library.__version__} cannot train this model here: {type(error).__name__}: {error} "
            "(from deepspeed.initialize). Change its configuration, or use strategy='zero1' or 'fsdp'."
        ) from error
    return engine


def make_config(
    dtype: str = "bfloat16",
    *,
    own_optimizer: bool = False,
    stage: int = 1,
    micro_batch_size: int = 1,
    accumulation: int = 1,
    clip: float = 0.0,
    lr: float = 1e-3,
) -> dict[str, Any]:
    """Return a small configuration for DeepSpeed.

    Args:
        dtype: ``bfloat16``, ``float16`` or ``float32``.
        own_optimizer: Whether the script brings its optimizer; else DeepSpeed makes AdamW.
        stage: ZeRO stage 0 to 3: optimizer state cut (1), gradients too (2), weights too (3).
        micro_batch_size: Samples per rank and step.
        accumulation: Steps per update of the weights.
        clip: Largest norm of the gradients; 0 clips nothing.
        lr: Learning rate of DeepSpeed's AdamW.

    Raises:
        UsageError: The stage is none.
    """
    if stage not in {0, 1, 2, 3}:
        raise UsageError(f"unknown ZeRO stage {stage!r} (from stage=); expected 0, 1, 2 or 3.")
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": micro_batch_size,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": clip,
        "zero_optimization": {"stage": stage},
        "steps_per_print": 2**31 - 1,  # History tells the steps
    }
    if _PRECISION[dtype]:
        config[_PRECISION[dtype]] = {"enabled": True}
    if not own_optimizer:
        # torch's own: DeepSpeed's fused one is compiled at run time, which compute hosts often cannot.
        config["optimizer"] = {"type": "AdamW", "params": {"lr": lr, "torch_adam": True}}
    return config


def load_ds_config(fpath: str | os.PathLike[str]) -> dict[str, Any]:
    """Return a DeepSpeed configuration from a file of JSON, or of YAML where PyYAML is installed.

    Raises:
        UsageError: The file cannot be read or holds no mapping.
    """
    path = Path(fpath)
    try:
        text = read_bytes(path).decode()
        value = _from_yaml(text) if path.suffix in {".yaml", ".yml"} else json.loads(text)
    except (OSError, ImportError, ValueError) as error:
        raise UsageError(
            f"no DeepSpeed configuration from {path} (from load_ds_config): {error}; expected JSON."
        ) from None
    if not isinstance(value, dict):
        raise UsageError(f"no DeepSpeed configuration from {path} (from load_ds_config): no mapping; expected one.")
    return value


def _from_yaml(text: str) -> object:
    yaml = import_module("yaml")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def _library() -> Any:
    os.environ.setdefault("DS_ACCELERATOR", _accelerator())  # else it looks for every vendor's tools, and warns
    try:
        import deepspeed
    except ImportError as error:
        raise MachineError(
            f"no DeepSpeed: {error} (from strategy='deepspeed'); expected it to be installed beside torch. "
            "Run `python3 -m pip install deepspeed`, or use strategy='zero1' or 'fsdp', which need nothing more."
        ) from None
    return deepspeed


def _accelerator() -> str:
    from ezpz.dist.device import get_torch_device_type

    return get_torch_device_type()
