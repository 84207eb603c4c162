"""Time the calls of a function, as a decorator: into the log, and into the wandb run that this process has."""

from __future__ import annotations

import functools
import inspect
import sys
import time
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from ezpz.dist.job_around import get_rank
from ezpz.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    Parameters = ParamSpec("Parameters")
    Result = TypeVar("Result")

_is_recording = True  # until wandb refuses a value: one warning, not one per call


def timeitlogit(
    rank: int | None = None, record: bool = True, verbose: bool = False, prefix: str = "timeit"
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Return a decorator that measures every call that returns; one that raises is not recorded.

    The time is that of the host: work that a call leaves queued on a device is not waited for, because a decorator that
    synchronises would change what it measures. Call `synchronize` at the function's end where that matters. Of an
    ``async`` function the awaited time counts; of a generator function only the making of the generator.

    Args:
        rank: This process's rank, as callers pass it; by default asked when the function is called, never before.
        record: Pass ``<prefix>/<qualified name>`` in seconds to wandb's running run in this process, with the next row
            (``commit=False``). wandb is not imported for that.
        verbose: Also say it in the log, on rank 0.
        prefix: First part of the metric's name.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        name = f"{prefix}/{getattr(function, '__qualname__', type(function).__name__)}"

        def done(begin: float) -> None:
            seconds = time.perf_counter() - begin
            if record:
                _record(name, seconds)
            if verbose and (get_rank() if rank is None else rank) == 0:
                get_logger(__name__).info(f"{name} took {seconds:.6g} s")

        @functools.wraps(function)
        def timed(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            begin = time.perf_counter()
            result = function(*args, **kwargs)
            done(begin)
            return result

        @functools.wraps(function)
        async def timed_async(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Any:
            begin = time.perf_counter()
            result = await cast("Any", function(*args, **kwargs))
            done(begin)
            return result

        return cast("Callable[Parameters, Result]", timed_async) if inspect.iscoroutinefunction(function) else timed

    return decorate


def timeit(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Measure, record and log every call of ``function``: ``timeitlogit(verbose=True)`` without parentheses."""
    return cast("Callable[Parameters, Result]", timeitlogit(verbose=True)(function))


def _record(name: str, seconds: float) -> None:
    global _is_recording
    run: Any = getattr(sys.modules.get("wandb"), "run", None)
    if run is None or not _is_recording:
        return
    try:
        run.log({name: seconds}, commit=False)
    except Exception as error:  # noqa: BLE001  # a lost service, a run that is over: no reason to end a training
        _is_recording = False
        get_logger(__name__).warning(f"wandb gets no {name}: {type(error).__name__}: {error}; the program continues.")
