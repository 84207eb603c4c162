"""Compare the world that this rank is about to join with the plan, torch's process group and MPI.

Ranks that were started as N worlds of one train N times the same, unnoticed. Three witnesses are heard, each only
where it can know: the plan of the launch, torch's group if the script has made one, MPI if mpi4py has been started.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ezpz.errors import RankError
from ezpz.log import get_logger
from ezpz.ranks import expand_counts, family_of, of_this_launch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.ranks import Ranks


def check_plan(ranks: Ranks, environ: Mapping[str, str]) -> None:
    """Compare a rank of `ezpz launch` with the plan.

    A torchrun or mpiexec inside a rank has a world of its own, and so has what multiprocessing started.

    Raises:
        RankError: The world has another size than was planned.
    """
    if "EZPZ_PLACEMENT" not in environ or not of_this_launch(environ) or _is_worker():
        return
    planned = sum(expand_counts(environ["EZPZ_PLACEMENT"]))
    if ranks.world_size != planned:
        raise RankError(
            f"rank {ranks.rank} belongs to a world of {ranks.world_size} (from {ranks.family}); expected {planned} "
            f"(EZPZ_PLACEMENT={environ['EZPZ_PLACEMENT']}, the plan of this launch). Does the script or its "
            "environment set RANK or WORLD_SIZE? Leave them to `ezpz launch`."
        )


def check_group(ranks: Ranks) -> None:
    """Compare this rank with torch's process group, which exists.

    Raises:
        RankError: The script made a group of another world, or with another rank.
    """
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    if (rank, size) != (ranks.rank, ranks.world_size):
        raise RankError(
            f"torch's process group says rank {rank} of {size} (from the script's init_process_group), but this is "
            f"rank {ranks.rank} of {ranks.world_size} (from {_source(ranks)}); expected the same. Let "
            "ezpz.setup_torch() make the group, or give init_process_group the RANK and WORLD_SIZE of the environment."
        )


def check_mpi(ranks: Ranks, environ: Mapping[str, str]) -> None:
    """Compare this rank with MPI's COMM_WORLD where mpi4py has started MPI; it is neither imported nor started here.

    mpi4py that was built for another MPI than the launcher's does not find its peers, and says in every rank 0 of 1.
    Where no MPI started the ranks that is its only possible answer, and worth a warning: many libraries import it
    unasked.

    Raises:
        RankError: MPI contradicts the launcher.
    """
    module: Any = sys.modules.get("mpi4py.MPI")
    if module is None or not module.Is_initialized() or module.Is_finalized():
        return
    rank, size = module.COMM_WORLD.Get_rank(), module.COMM_WORLD.Get_size()
    if (rank, size) == (ranks.rank, ranks.world_size):
        return
    # "Open MPI v5.0.11, package: …" and "MPICH Version:      5.0.2\nMPICH Release date: …" become one short name.
    library = " ".join(str(module.Get_library_version()).strip().splitlines()[0].split(",")[0].split())
    flavour = environ.get("EZPZ_FLAVOUR", "") if of_this_launch(environ) else ""
    planned = (
        f"the launch planned {ranks.world_size}"
        if flavour
        else f"the launcher says rank {ranks.rank} of {ranks.world_size}"
    )
    claim = f"mpi4py says rank {rank} of {size}, {planned}"
    asked = environ.get("EZPZ_NO_MPI", "1") if flavour else "1"
    if size == 1 and asked != "1":  # an MPI that the agent of this host did not notice
        raise RankError(
            f"{claim}: no MPI has started the ranks (from {asked}), so that each is alone in COMM_WORLD; expected a "
            "program without MPI. Start it with `launch --mpi yes`."
        )
    if size == 1 and not _by_mpi(ranks, environ):
        get_logger(__name__).warning(
            f"{claim}: no MPI started these ranks ({flavour or ranks.family}), so that each is alone in COMM_WORLD; "
            "do not use mpi4py's answers here, or start with an mpiexec."
        )
        return
    if size == 1:
        raise RankError(
            f"{claim}: mpi4py was built for another MPI ({library}) than the launcher's ({flavour or ranks.family}); "
            f"expected rank {ranks.rank} of {ranks.world_size}. Install mpi4py for that MPI, e.g. `MPICC=mpicc python3 "
            "-m pip install --no-binary=mpi4py mpi4py`, or put the mpiexec of its MPI first on PATH."
        )
    raise RankError(
        f"{claim} (this is rank {ranks.rank} from {_source(ranks)}); expected the same. Ranks were started by two "
        "launchers, or in another order: leave RANK and WORLD_SIZE to one of them."
    )


def _by_mpi(ranks: Ranks, environ: Mapping[str, str]) -> bool:
    """Tell whether an MPI started these ranks: the launch around them says so, else the family of their variables."""
    if of_this_launch(environ) and "EZPZ_FLAVOUR" in environ:
        return "EZPZ_NO_MPI" not in environ
    family = family_of(ranks)
    return family is not None and family.is_mpi


def _source(ranks: Ranks) -> str:
    return {"contract": "RANK, WORLD_SIZE", "alone": "no launcher: none of its variables is set"}.get(
        ranks.family, ranks.family
    )


def _is_worker() -> bool:
    """Tell whether multiprocessing started this process, perhaps as a rank of a world that the script makes."""
    module: Any = sys.modules.get("multiprocessing.process")
    return module is not None and module.parent_process() is not None
