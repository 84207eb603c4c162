"""Describe a rank and its job, for a log, a configuration or a person."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from ezpz.dist.arguments import check_framework
from ezpz.dist.backend import get_torch_backend
from ezpz.dist.device import device as own_device
from ezpz.dist.device import get_torch_device_type
from ezpz.dist.job_around import (
    get_gpus_per_node,
    get_hostname,
    get_machine,
    get_nodes_from_hostfile,
    get_num_nodes,
    host_index,
    job,
    this_rank,
)
from ezpz.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping


def get_dist_info(
    framework: str | None = None, verbose: bool | None = None, hostfile: str | os.PathLike[str] | None = None
) -> dict[str, Any]:
    """Return what this rank knows of itself and its job, e.g. for a log or a configuration.

    Args:
        framework: ``pytorch``, which it always is; other names are refused.
        verbose: Also log it, on rank 0.
        hostfile: Take the hosts from this file instead.

    Raises:
        UsageError: Another framework, or a file without hosts.
    """
    check_framework(framework)
    ranks = this_rank()
    scheduler, job_id, hosts = job()
    info = {
        "RANK": ranks.rank,
        "WORLD_SIZE": ranks.world_size,
        "LOCAL_RANK": ranks.local_rank,
        "LOCAL_WORLD_SIZE": ranks.local_world_size,
        "HOST_INDEX": host_index(),
        "LAUNCHER": os.environ.get("EZPZ_FLAVOUR", ranks.family),
        "DEVICE": str(own_device()),
        "DEVICE_TYPE": get_torch_device_type(),
        "DEVICES_PER_HOST": get_gpus_per_node(),
        "BACKEND": get_torch_backend(),
        "HOSTNAME": get_hostname(),
        "HOSTS": hosts if hostfile is None else get_nodes_from_hostfile(hostfile),
        "NUM_HOSTS": get_num_nodes(hostfile),
        "MACHINE": get_machine(),
        "SCHEDULER": scheduler,
        "JOB_ID": job_id,
        "MESH": _mesh(),
        "MPI": _mpi(),
        "TORCH": getattr(sys.modules.get("torch"), "__version__", ""),
        "LAUNCH_CMD": os.environ.get("EZPZ_LAUNCH_CMD", ""),
    }
    if verbose and ranks.rank == 0:
        log_dict_as_bulleted_list(info, "dist")
    return info


def print_dist_setup(
    framework: str | None = None, hostfile: str | os.PathLike[str] | None = None, display: bool = True
) -> str:
    """Return one line about this rank, ``['n01'][device='cuda:1'][host=0/2][local_rank=1/4][rank=1/8]``, true sizes
    throughout.

    Args:
        framework: As in `get_dist_info`.
        hostfile: Take the number of hosts from this file.
        display: Also log it, as every rank may.
    """
    check_framework(framework)
    ranks = this_rank()
    index = host_index()
    line = (
        f"['{get_hostname()}'][device='{own_device()}']"
        f"[host={'?' if index is None else index}/{get_num_nodes(hostfile)}]"
        f"[local_rank={ranks.local_rank}/{ranks.local_world_size}][rank={ranks.rank}/{ranks.world_size}]"
    )
    if display:
        get_logger("ezpz.dist.job_around.setup", rank_zero_only=False).info(line)
    return line


def log_dict_as_bulleted_list(d: Mapping[str, object], name: str | None = None) -> None:
    """Log a mapping with one line per entry that has a value, on rank 0.

    Args:
        d: What to show.
        name: The heading.
    """
    lines = [
        f"[{name or getattr(d, '__qualname__', type(d).__name__)}]",
        *(f"  - {key}={value}" for key, value in d.items() if value is not None and value != ""),
    ]
    get_logger(__name__).info("\n".join(lines))


def _mesh() -> dict[str, int] | None:
    """Return the degrees of the last mesh, without importing what makes one."""
    module = sys.modules.get("ezpz.dist.mesh")
    mesh = module.get_mesh() if module is not None else None
    return None if mesh is None else dict(zip(mesh.mesh_dim_names, tuple(mesh.mesh.shape), strict=True))


def _mpi() -> str:
    """Return the MPI library's own words where mpi4py has loaded it; it is not loaded for that."""
    module: Any = sys.modules.get("mpi4py.MPI")
    return "" if module is None else module.Get_library_version().partition("\n")[0].strip()


def library_versions() -> dict[str, str]:
    """Return versions of the libraries below torch: ``cuda``, ``hip``, ``xpu``, ``cudnn``, ``nccl`` and ``oneccl``,
    where it has them.
    """
    import torch

    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    ccl = sys.modules.get("oneccl_bindings_for_pytorch")
    versions: dict[str, object] = {
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "xpu": getattr(torch.version, "xpu", None),
        "cudnn": cudnn,
        "nccl": _nccl_version(torch) if torch.version.cuda or getattr(torch.version, "hip", None) else None,
        "oneccl": getattr(ccl, "__version__", None),
    }
    return {name: str(version) for name, version in versions.items() if version}


def _nccl_version(torch: Any) -> str | None:
    try:
        return ".".join(map(str, getattr(torch, "cuda").nccl.version()))  # noqa: B009  # read, not called as a device
    except (AttributeError, ImportError, RuntimeError):  # a build without it
        return None
