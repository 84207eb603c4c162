"""Read the arguments `backend`, `port` and `framework`, which older code uses more widely than torch does.

``backend`` once meant what trains (DDP, deepspeed, horovod); in torch it means what moves tensors (gloo, nccl). Both
are understood.
"""

from __future__ import annotations

from ezpz.dist.backend import BACKENDS
from ezpz.errors import UsageError

_FRAMEWORKS = {"pytorch", "torch", "pt"}
_TRAINERS = {"ddp": "ddp", "fsdp": "fsdp", "fsdp2": "fsdp", "deepspeed": "deepspeed", "ds": "deepspeed"}
_HOROVOD = {"horovod", "hvd"}
_HIGHEST_PORT = 65535


def split_backend(backend: str | None) -> tuple[str | None, str | None]:
    """Tell what a ``backend`` means.

    Torch's group is made alike for all that trains. DeepSpeed adopts a group that exists: `deepspeed.initialize` and
    `deepspeed.init_distributed` make none of their own then, so that it is not imported here, which costs seconds.

    Args:
        backend: A collective backend such as ``gloo``, or what trains: ``DDP``, ``FSDP``, ``deepspeed``; any case.

    Returns:
        The collective backend, None for the device's own, and what trains, None where it is not given.

    Raises:
        UsageError: It is neither, or it is Horovod.
    """
    if not backend:
        return None, None
    name = backend.lower()
    if name in BACKENDS or ":" in name or _is_registered(name):
        return name, None
    if name in _TRAINERS:
        return None, _TRAINERS[name]
    if name in _HOROVOD:
        raise UsageError(
            f"no Horovod (from backend={backend!r}): it is not supported; expected DDP, FSDP or deepspeed. "
            "Use DDP, which does what Horovod did."
        )
    raise UsageError(
        f"unknown backend {backend!r} (from setup_torch); expected one of {', '.join(BACKENDS)} for what moves "
        "tensors, or DDP, FSDP, deepspeed for what trains."
    )


def _is_registered(name: str) -> bool:
    """Tell whether a package has registered a backend of this name with torch."""
    import torch.distributed as dist

    return dist.is_available() and name in dist.Backend.backend_list


def whole_port(port: str | int | None) -> int | None:
    """Return a port as a number, which older code gives as text (``"5432"``).

    Raises:
        UsageError: It is none.
    """
    if port is None or port == "":
        return None
    text = str(port).strip()
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) <= _HIGHEST_PORT:
        raise UsageError(f"unusable port {port!r} (from setup_torch); expected a number from 1 to {_HIGHEST_PORT}.")
    return int(text)


def check_framework(framework: str | None) -> None:
    """Refuse every framework but PyTorch.

    Raises:
        UsageError: It is another one.
    """
    if framework is not None and framework.lower() not in _FRAMEWORKS:
        raise UsageError(
            f"no framework {framework!r} (from framework): ezpz starts PyTorch; expected pytorch. "
            f"A {framework} script still runs under `launch`, which gives every rank RANK, LOCAL_RANK and WORLD_SIZE."
        )
