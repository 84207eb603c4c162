"""Rank and world size, before and after the process group exists.

The environment tells (`ezpz.ranks`). Where it only shows that some MPI has started this process, and not as which rank, mpi4py is
asked: these are launchers that `ezpz.ranks` does not read, such as a bare prterun or mpirun_rsh, and PALS on Aurora, which tells a
rank but no size.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from ezpz.errors import RankError
from ezpz.ranks import ALONE, Ranks, from_environ

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["get_local_rank", "get_rank", "get_world_size", "told"]

# Set in every process of some launcher: PALS without sizes, PMI and PMIx ones, MVAPICH's mpirun_rsh, Cray's aprun.
_SIGNS = ("PALS_RANKID", "PMIX_RANK", "PMI_RANK", "PMI_ID", "MV2_COMM_WORLD_RANK", "MVP_COMM_WORLD_RANK", "ALPS_APP_PE")

_by_mpi: Ranks | None = None


def told() -> Ranks:
    """Return who the launcher says this process is.

    Raises:
        RankError: The environment contradicts itself, or an unknown launcher has started this process and MPI cannot be asked.
    """
    if "RANK" not in os.environ and _tells_no_size(os.environ):
        return _ask_mpi(ALONE, os.environ)
    ranks = from_environ(os.environ)
    return _ask_mpi(ranks, os.environ) if ranks.family == "alone" else ranks


def _tells_no_size(environ: Mapping[str, str]) -> bool:
    """Tell whether PALS started this rank outside of `ezpz launch` and, as on Aurora, without the size of the world."""
    return "PALS_RANKID" in environ and not environ.keys() & {"PALS_SIZE", "PMI_SIZE", "EZPZ_PLACEMENT"}


def get_rank() -> int:
    """Return this process's rank, 0 for the first of ``get_world_size()``."""
    return told().rank


def get_world_size(*, total: bool = False, in_use: bool = False) -> int:
    """Return the number of ranks, at least 1.

    Args:
        total: Return what all devices of the job could hold instead.
        in_use: Return the number of ranks; the older name of what is returned anyway.
    """
    if total and not in_use:
        from ezpz.dist.job import get_world_size_total

        return get_world_size_total()
    return told().world_size


def get_local_rank() -> int:
    """Return this process's rank among those of its own host."""
    return told().local_rank


def _ask_mpi(alone: Ranks, environ: Mapping[str, str]) -> Ranks:
    """Return what mpi4py says where it runs, or where a sign of an unknown launcher makes it worth a question.

    The first answer is collective, because MPI counts the ranks of a host together; it is kept.
    """
    global _by_mpi
    if _by_mpi is not None:
        return _by_mpi
    sign = next((name for name in _SIGNS if name in environ), "")
    module: Any = sys.modules.get("mpi4py.MPI")
    if module is None and sign:
        module = _import_mpi(sign, environ[sign])
    if module is None or not module.Is_initialized() or module.Is_finalized():
        return alone
    world = module.COMM_WORLD
    rank, size = int(world.Get_rank()), int(world.Get_size())
    if sign and environ[sign] != str(rank):
        raise RankError(
            f"mpi4py says rank {rank} of {size}, but {sign}={environ[sign]} (from the launcher); expected the same: mpi4py was built "
            "for another MPI than the launcher's. Start the ranks with `ezpz launch`, or install mpi4py for that MPI."
        )
    host = world.Split_type(module.COMM_TYPE_SHARED)
    local, local_size = int(host.Get_rank()), int(host.Get_size())
    host.Free()
    _by_mpi = Ranks(rank, size, local, local_size, 0 if local_size == size else None, "mpi4py")
    return _by_mpi


def _import_mpi(sign: str, value: str) -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # it is absent, or its MPI library is
        raise RankError(
            f"cannot tell the rank: {sign}={value} (from the environment) shows a launcher whose other variables are unknown, and mpi4py "
            f"cannot be asked: {error}; expected mpi4py, or RANK and WORLD_SIZE. Start the ranks with `ezpz launch`, or "
            f"`unset {sign}` if no launcher started this."
        ) from None
    return MPI
