"""Refuse, with the reason, or do in another way what a torch version cannot do on a device.

Versions were found in torch's own files (2.6 to 2.10, 2.13); where no version is named, none known can.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ezpz.errors import MachineError

Version = tuple[int, int]


class Limit(NamedTuple):
    """From which torch on something works, and what happens before."""

    since: Version | None
    reason: str


FSDP2 = {
    "cuda": Limit((2, 4), "fully_shard does not exist before"),
    "cpu": Limit((2, 8), "gloo cannot average gradients, and fully_shard cannot be made to sum before"),
    "xpu": Limit(
        (2, 8),
        "up to 2.5 fully_shard calls torch.cuda, up to 2.6 it has no operators for xpu, and before 2.8 it cannot be "
        "asked to sum where oneCCL cannot average",
    ),
    "mps": Limit(None, "fully_shard has no operators for mps"),
    # any device of a vendor (PrivateUse1)
    "": Limit((2, 8), "fully_shard has no operators for devices outside torch before"),
}

# Since 2.8 gloo takes AVG, but its reduce_scatter sums all the same, so that gradients are too large by the number of
# ranks (pytorch issue 162338, mended at the end of 2025). 2.13 was measured to be right.
_GLOO_AVERAGES = (2, 13)


def torch_version() -> Version:
    """Return major and minor version of torch: (2, 5) of ``2.5.1+cxx11.abi``, (2, 10) of ``2.10.0a0+git1234``."""
    import torch

    numbers = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def check_fsdp2(device_type: str) -> None:
    """Say why parameters cannot be sharded on this type of device with this torch.

    Args:
        device_type: ``cuda``, ``xpu``, ``mps``, ``cpu`` or a vendor's.

    Raises:
        MachineError: This torch cannot, or none can.
    """
    limit = FSDP2.get(device_type, FSDP2[""])
    have = torch_version()
    if limit.since is not None and have >= limit.since:
        return
    expected = f"torch >= {limit.since[0]}.{limit.since[1]}" if limit.since else "another device"
    raise MachineError(
        f"FSDP2 does not work on {device_type} with torch {have[0]}.{have[1]}: {limit.reason}; expected {expected}. "
        'Use strategy="ddp", or load a module that brings such a torch.'
    )


def fsdp2() -> Any:
    """Return the module that has ``fully_shard`` and ``MixedPrecisionPolicy``: public from torch 2.6 on."""
    from importlib import import_module

    public = torch_version() >= (2, 6)
    return import_module("torch.distributed.fsdp" if public else "torch.distributed._composable.fsdp")


def average_is_supported(device_type: str) -> bool:
    """Tell whether ``ReduceOp.AVG`` gives the right average on this type of device.

    Where it does not, sum and divide. oneCCL (ccl: "Cannot use ReduceOp.AVG with XPU"; xccl between cards without
    XeLink) refuses it, and before oneAPI 2026.0 it divides small messages twice (intel/torch-xpu-ops issues 2361,
    3020). A vendor's backend is not asked: one that cannot might not say so.

    Args:
        device_type: ``cuda``, ``xpu``, ``mps``, ``cpu`` or a vendor's.
    """
    if device_type == "cuda":
        return _backend_of("cuda") in {"", "nccl"} or torch_version() >= _GLOO_AVERAGES
    return device_type in {"cpu", "mps"} and torch_version() >= _GLOO_AVERAGES


def sum_gradients(model: Any, device_type: str) -> bool:
    """Let a model that ``fully_shard`` has wrapped sum and divide its gradients where the backend cannot average.

    Args:
        model: The root module, after all its blocks are wrapped.
        device_type: As above.

    Returns:
        Whether anything was changed.
    """
    if average_is_supported(device_type):
        return False
    wrapped = [module for module in model.modules() if hasattr(module, "set_force_sum_reduction_for_comms")]
    for module in wrapped:
        module.set_force_sum_reduction_for_comms(enable=True)
    return bool(wrapped)


def move_model(model: Any, device: Any) -> Any:
    """Return the model on the device, its shared weights still shared.

    ``fully_shard`` moves parameters by assigning ``.data``, which torch refuses between the CPU and a vendor's device,
    so a model must be there before. ``Module.to`` gives such a device new parameters one by one, which would tear
    embedding and output apart; swapping their contents keeps them one.

    Args:
        model: A module with memory of its own, not on ``meta``.
        device: A torch.device.
    """
    import torch

    if device.type in {"cpu", "cuda", "xpu", "mps"}:
        return model.to(device)
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return model.to(device)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def _backend_of(device_type: str) -> str:
    """Return the backend that serves a device type in the present group; nothing without a group."""
    import torch.distributed as dist

    from ezpz.dist.backend import backend_for

    if not dist.is_available() or not dist.is_initialized():
        return ""
    return backend_for(str(dist.get_backend_config()), device_type)
