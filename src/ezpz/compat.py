"""Offer the names that older code uses, each working on today's functions; new code does not need them.

    rank = ezpz.setup(framework="pytorch", backend="DDP", seed=7)     wordplay, ngpt
    rank = ezpz.setup_torch("deepspeed", port="5432")                 Megatron-DeepSpeed: what `split_backend` is for

`ezpz` and `ezpz.dist` hand them out. `ezpz.dist.arguments` reads what ``backend`` means.
tests/dist/test_public_names.py lists who uses which name.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from importlib import import_module

from ezpz._lazy import attach
from ezpz.dist.arguments import check_framework, split_backend, whole_port
from ezpz.errors import MachineError
from ezpz.log import get_logger

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    # names: begin (`make names`)
    from ezpz.track import setup_wandb as setup_wandb  # noqa: PLC0414  # offered here, too
    from ezpz.track import verify_wandb as verify_wandb  # noqa: PLC0414  # offered here, too
    # names: end

__getattr__, __dir__ = attach(
    __name__,
    {"ezpz.track": "setup_wandb verify_wandb"},
    own=(
        "check get_max_memory_allocated get_max_memory_reserved get_timestamp init_deepspeed setup setup_tensorflow "
        "setup_torch_DDP setup_torch_distributed summarize_dict wrap_with_ddp wrap_with_fsdp wrap_with_fsdp2"
    ),
)


def setup(  # noqa: PLR0917  # in the order of older code
    framework: str = "pytorch",
    backend: str = "DDP",
    port: str | int | None = None,
    seed: int | None = None,
    precision: str | None = None,
    ngpus: int | None = None,
) -> int:
    """Make this process a rank, as `setup_torch` does.

    Args:
        framework: ``pytorch``.
        backend: As in `split_backend`.
        port: Port of rank 0's store.
        seed: As in `setup_torch`.
        precision: Never had an effect on PyTorch; a warning names it. Use ``wrap_model(dtype=…)``.
        ngpus: Likewise; the launcher decides.

    Returns:
        The rank.

    Raises:
        UsageError: Another framework, or an unusable backend or port.
    """
    check_framework(framework)
    idle = [f"{name}={value}" for name, value in (("precision", precision), ("ngpus", ngpus)) if value is not None]
    if idle:
        get_logger(__name__).warning(
            f"setup: {', '.join(idle)} has no effect; see wrap_model(dtype=…) and `launch --ppn`."
        )
    return _setup_torch(backend, port, seed=seed)


def setup_torch_distributed(
    backend: str = "DDP", port: str | int | None = None, timeout: str | float | timedelta | None = None, **more: Any
) -> dict[str, int]:
    """Make this process a rank and return ``world_size``, ``rank`` and ``local_rank``.

    Args:
        backend: As in `split_backend`.
        port: Port of rank 0's store, as a number or as text.
        timeout: Time limit of one collective, in seconds or as timedelta.
        more: Keywords of `setup_torch`.
    """
    from ezpz.dist.job import query_environment

    _setup_torch(backend, port, timeout=timeout if isinstance(timeout, timedelta | None) else float(timeout), **more)
    return query_environment()


def setup_torch_DDP(  # noqa: N802  # the name that older code imports
    port: str | int | None = None, timeout: str | float | timedelta | None = None, backend: str = "DDP"
) -> dict[str, int]:
    """Do as `setup_torch_distributed` does, with the port first."""
    return setup_torch_distributed(backend, port, timeout)


def setup_tensorflow(precision: str | None = None, ngpus: int | None = None) -> int:
    """Refuse TensorFlow, clearly.

    Raises:
        UsageError: Always.
    """
    del precision, ngpus
    check_framework("tensorflow")
    raise AssertionError  # check_framework has raised


def check(framework: str = "pytorch", backend: str = "DDP", port: str | int | None = None) -> int:
    """Set up and log one line per rank; `python3 -m ezpz.test_dist` checks more."""
    from ezpz.dist.info import print_dist_setup

    rank = setup(framework, backend, port)
    print_dist_setup()
    return rank


def init_deepspeed(**more: Any) -> None:
    """Call ``deepspeed.init_distributed``, which adopts the group that `setup_torch` has made.

    Args:
        more: Its keywords.

    Raises:
        MachineError: DeepSpeed cannot be imported.
    """
    try:
        deepspeed = import_module("deepspeed")
    except ImportError as error:
        raise MachineError(
            f"no DeepSpeed: {error} (from init_deepspeed); expected it beside torch. Run `pip install deepspeed`, or "
            "use DDP or FSDP."
        ) from None
    deepspeed.init_distributed(**more)


def wrap_with_ddp(model: Any, **more: Any) -> Any:
    """Return ``wrap_model(model, "ddp", …)``."""
    return _wrap(model, "ddp", more)


def wrap_with_fsdp(model: Any, **more: Any) -> Any:
    """Return ``wrap_model(model, "fsdp", …)``: FSDP2, whose parameters are sharded one by one."""
    return _wrap(model, "fsdp", more)


def wrap_with_fsdp2(model: Any, **more: Any) -> Any:
    """Return ``wrap_model(model, "fsdp", …)``."""
    return _wrap(model, "fsdp", more)


def get_max_memory_allocated(device: Any = None) -> int:
    """Return ``max_memory_allocated`` in bytes."""
    most: int = import_module("ezpz.dist.accelerator").max_memory_allocated(device)
    return most


def get_max_memory_reserved(device: Any = None) -> int:
    """Return the most bytes that torch's allocator held on the device; on one without an allocator what was
    allocated.
    """
    import torch

    from ezpz.dist.device import get_torch_device_type

    ask = getattr(getattr(torch, get_torch_device_type(), None), "max_memory_reserved", None)
    return get_max_memory_allocated(device) if ask is None else int(ask(device))


def get_timestamp(fstr: str | None = None) -> str:
    """Return this host's local time as ``2026-11-20-162001``, or in another format of ``strftime``."""
    return datetime.now().astimezone().strftime(fstr or "%Y-%m-%d-%H%M%S")


def summarize_dict(d: Mapping[str, object], precision: int = 6) -> str:
    """Return ``step=10 loss=0.047000``: floats with ``precision`` digits after the point, everything else as it is."""
    return " ".join(f"{key}={_shown(value, precision)}" for key, value in d.items())


def _shown(value: object, precision: int) -> str:
    # A tensor or a numpy number formats like the float that it holds; everything else says so by raising.
    if not isinstance(value, (int, str, bytes)):
        try:
            return format(value, f".{precision}f")
        except (TypeError, ValueError, RuntimeError):  # None, a list; a tensor of many values
            pass
    return str(value)


def _setup_torch(backend: str, port: str | int | None, **more: Any) -> int:
    from ezpz.dist.startup import setup_torch

    collective, _ = split_backend(backend)
    return setup_torch(backend=collective, port=whole_port(port), **more)


def _wrap(model: Any, strategy: str, more: dict[str, Any]) -> Any:
    # Older code names the mesh `device_mesh`.
    known = {("mesh" if name == "device_mesh" else name): value for name, value in more.items()}
    return import_module("ezpz.dist.wrap").wrap_model(model, strategy, **known)
