"""All ranks come to the same data or to the same error: small collectives around what each has on its host."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ezpz.errors import EzpzError, MachineError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from pathlib import Path

    from ezpz.train.data.download import DataSet

_T = TypeVar("_T")
_READY, _ABSENT, _WRONG = range(3)


def agreed(action: Callable[[], _T], what: str, mark: Callable[[_T], object] = lambda _: None) -> _T:
    """Return what the action gives on this rank, once it has worked on all ranks and gave the same to all.

    Args:
        action: Reads data; it may raise an EzpzError on some ranks.
        what: What is read, for messages.
        mark: Of a value: something small that is equal when values are equal.

    Raises:
        EzpzError: The first rank's error, on all ranks; or the ranks hold different data.
    """
    from ezpz.dist import all_ranks_agree, all_reduce

    problem: EzpzError | None = None
    values: list[_T] = []
    try:
        values.append(action())
    except EzpzError as error:
        problem = error
    if all_reduce(int(problem is not None), "max"):
        raise _first(problem)
    if not all_ranks_agree(mark(values[0])):
        raise MachineError(
            f"the hosts hold different data as {what} (from their files); expected the same on all. "
            "Put it into a folder that all hosts see."
        )
    return values[0]


def obtain_together(
    dataset: DataSet, folder: str | os.PathLike[str] | None, *, may_download: bool
) -> tuple[Path | None, str]:
    """Have a data set on all hosts; one rank of each host looks for it and fetches it, the others wait.

    Returns:
        The folder of the files on this host, and rank 0's origin; or None and rank 0's reason, if no host has it.

    Raises:
        EzpzError: Some host has a wrong file, or some have the data and some cannot get it; the same on all ranks.
    """
    from ezpz.dist import all_reduce, broadcast
    from ezpz.train.data.download import DownloadError, find, obtain

    state, origin, place = None, "", None
    problem: EzpzError | None = None
    if looks_for_host():
        try:
            obtained = obtain(dataset, folder, may_download=may_download)
            state, origin, place = _READY, obtained.origin, obtained.folder
        except DownloadError as error:
            state, origin, problem = _ABSENT, str(error), error
        except EzpzError as error:
            state, problem = _WRONG, error
    worst = all_reduce(_READY if state is None else state, "max")
    best = all_reduce(_WRONG if state is None else state, "min")
    if worst == _WRONG:
        raise _first(problem if state == _WRONG else None)
    if worst != best:
        raise _first(_some_only(dataset, origin) if state == _ABSENT else None)
    origin = broadcast(origin)
    if worst == _ABSENT:
        return None, origin
    # The host's first rank has checked the sums; the others only need to know where.
    return place or find(dataset, folder, check=False)[0], origin


def warn_once(text: str) -> None:
    """Say on rank 0 what all ranks would say, because a warning is heard from each."""
    from ezpz.dist import get_rank
    from ezpz.log import get_logger

    if get_rank() == 0:
        get_logger("ezpz.train").warning(text)


def looks_for_host() -> bool:
    """Tell whether this rank looks for its host; every process does where ranks have not met, or one is simulated."""
    import torch.distributed as dist

    from ezpz.dist import get_local_rank

    if not (dist.is_available() and dist.is_initialized()) or dist.get_backend() == "fake":
        return True
    return get_local_rank() == 0 or bool(dist.get_rank() == 0)


def _some_only(dataset: DataSet, reason: str) -> MachineError:
    from ezpz.dist import get_hostname

    return MachineError(
        f"{dataset.name} is at hand on some hosts only, and not on {get_hostname()}: {reason} Expected all hosts or "
        f"none. Put it into a folder that all hosts see: `ezpz fetch {dataset.name} --folder /shared/folder`, "
        "EZPZ_DATA=/shared/folder."
    )


def _first(problem: EzpzError | None) -> EzpzError:
    """Return the error of the lowest rank that has one, to all ranks; all ranks must call."""
    from ezpz.dist import gather_objects

    errors = [error for error in gather_objects(problem) if error is not None]
    return problem if problem is not None and str(errors[0]) == str(problem) else errors[0]
