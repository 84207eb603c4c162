"""All ranks come to the same data or to the same error: small collectives around what each has on its host."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ezpz.errors import EzpzError, MachineError

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


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


def missing_everywhere(action: Callable[[], object], what: str) -> EzpzError | None:
    """Let one rank of each host get data while the others wait; return the error of rank 0 where no host got them.

    Args:
        action: Gets the data; it may raise an EzpzError.
        what: What is read, for messages.

    Raises:
        MachineError: Some hosts have the data and some cannot get them; the same on all ranks.
    """
    from ezpz.dist import all_reduce, broadcast, get_hostname

    problem: EzpzError | None = None
    looks = looks_for_host()
    if looks:
        try:
            action()
        except EzpzError as error:
            problem = error
    lack = all_reduce(int(problem is not None), "max")
    have = all_reduce(int(looks and problem is None), "max")
    if lack and have:
        raise _first(
            MachineError(
                f"{what} is at hand on some hosts only, and not on {get_hostname()}: {problem} Expected all hosts or "
                f"none. Fetch it into a folder that all hosts see: `ezpz fetch {what} --folder /shared/folder`."
            )
            if problem is not None
            else None
        )
    found: EzpzError | None = broadcast(problem)
    return found


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


def _first(problem: EzpzError | None) -> EzpzError:
    """Return the error of the lowest rank that has one, to all ranks; all ranks must call."""
    from ezpz.dist import gather_objects

    errors = [error for error in gather_objects(problem) if error is not None]
    return problem if problem is not None and str(errors[0]) == str(problem) else errors[0]
