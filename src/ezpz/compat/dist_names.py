"""Offer older names of `ezpz` and `ezpz.dist`, each working on today's functions; new code does not need them.

    rank = ezpz.setup(framework="pytorch", backend="DDP", seed=7)     wordplay, ngpt
    rank = ezpz.setup_torch("deepspeed", port="5432")                 Megatron-DeepSpeed: what `split_backend` is for

`ezpz.dist.arguments` reads what ``backend`` means.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from importlib import import_module

from ezpz.dist.arguments import check_framework, split_backend, whole_port
from ezpz.errors import MachineError, UsageError
from ezpz.log import get_logger

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any


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
    from ezpz.dist.job_around import query_environment

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


def wrap_model_for_ddp(model: Any, **more: Any) -> Any:
    """Return ``wrap_model(model, "ddp", …)``."""
    return _wrap(model, "ddp", more)


def wrap_model_for_fsdp(model: Any, dtype: str = "bfloat16", **more: Any) -> Any:
    """Return ``wrap_model(model, "fsdp", dtype=…)``: FSDP2, whose parameters are sharded one by one."""
    return _wrap(model, "fsdp", {"dtype": dtype, **more})


def wrap_model_for_fsdp2(model: Any, dtype: str = "bfloat16", **more: Any) -> Any:
    """Return ``wrap_model(model, "fsdp", dtype=…)``."""
    return _wrap(model, "fsdp", {"dtype": dtype, **more})


def init_device_mesh_safe(
    device_type: str, mesh_shape: tuple[int, ...], *, mesh_dim_names: tuple[str, ...] | None = None
) -> Any:
    """Return ``torch.distributed.init_device_mesh(…)``, on backends too that cannot split a group (Intel's xccl).

    `ezpz.init_mesh` does so by itself, checks the degrees and remembers the mesh.
    """
    from torch.distributed.device_mesh import init_device_mesh

    from ezpz.dist.mesh import new_groups

    with new_groups() as keep_device:
        mesh = init_device_mesh(str(device_type), tuple(mesh_shape), mesh_dim_names=mesh_dim_names)
        keep_device(mesh.get_all_groups())
    return mesh


def flatten_device_mesh_safe(submesh: Any, mesh_dim_name: str, *, device_type: str | None = None) -> Any:
    """Return several dimensions of a mesh as one, on backends too that cannot split a group (Intel's xccl)."""
    del device_type  # the mesh knows it
    from ezpz.dist.mesh import new_groups

    with new_groups() as keep_device:
        joined = submesh._flatten(mesh_dim_name)  # noqa: SLF001  # torch documents it under this name
        keep_device(joined.get_all_groups())
    return joined


def write_localhost_to_hostfile(hostfile: str | os.PathLike[str]) -> None:
    """Write this host's name into a host file.

    Raises:
        UsageError: The file cannot be written.
    """
    write_hostfile_from_list_of_hosts([import_module("ezpz.dist").get_hostname()], hostfile)


def write_hostfile_from_list_of_hosts(hosts: Iterable[str], hostfile: str | os.PathLike[str]) -> None:
    """Write a host file, one host per line.

    Raises:
        UsageError: The file cannot be written.
    """
    text = "".join(f"{host}\n" for host in hosts)
    try:
        with open(hostfile, "w", encoding="utf-8") as file:  # noqa: PTH123  # pathlib would cost every import of this
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"cannot write the host file {os.fspath(hostfile)}: {error.strerror} (from the call that names it); "
            "expected a folder that exists and has room. Name another file."
        ) from error


def get_hostfile_with_fallback(hostfile: str | os.PathLike[str] | None = None) -> Any:
    """Return the path of a host file: the one that is given or that ``HOSTFILE`` or ``PBS_NODEFILE`` names.

    Returns:
        A ``pathlib.Path``. Without any, ``hostfile`` in the current folder, written now with the hosts of this job.

    Raises:
        UsageError: It cannot be written.
    """
    from pathlib import Path

    named = hostfile or os.environ.get("HOSTFILE") or os.environ.get("PBS_NODEFILE")
    if named:
        return Path(named)
    path = Path("hostfile").absolute()
    write_hostfile_from_list_of_hosts(import_module("ezpz.dist.job_around").job()[2], path)
    return path


def setup_mlflow(project_name: str | None = None, **more: Any) -> None:
    """Say, once, that a history itself copies its rows to MLflow; there is no run to return.

    Args:
        project_name: The experiment; ``MLFLOW_EXPERIMENT_NAME`` names it here.
        more: Ignored.
    """
    del more
    name = f"MLFLOW_EXPERIMENT_NAME={project_name} " if project_name else ""
    get_logger(__name__).warning(
        f'setup_mlflow starts no run: History(trackers="mlflow"), or {name}EZPZ_TRACKERS=mlflow, copies rows there.'
    )


def get_max_memory_allocated(device: Any = None) -> int:
    """Return ``max_memory_allocated`` in bytes."""
    most: int = import_module("ezpz.dist.device").max_memory_allocated(device)
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


def summarize_dict(d: Mapping[str, object], precision: int = 6, keys_to_skip: Iterable[str] | None = None) -> str:
    """Return ``step=10 loss=0.047000``: floats with ``precision`` digits after the point, everything else as it is."""
    summarize = import_module("ezpz.track.older_calls").summarize
    skipped = set(keys_to_skip or ())
    text: str = summarize({key: value for key, value in d.items() if key not in skipped}, precision)
    return text


def _setup_torch(backend: str, port: str | int | None, **more: Any) -> int:
    from ezpz.dist.setup_rank import setup_torch

    collective, _ = split_backend(backend)
    return setup_torch(backend=collective, port=whole_port(port), **more)


def _wrap(model: Any, strategy: str, more: dict[str, Any]) -> Any:
    # Older code names the mesh `device_mesh`.
    known = {("mesh" if name == "device_mesh" else name): value for name, value in more.items()}
    return import_module("ezpz.dist.wrap").wrap_model(model, strategy, **known)
