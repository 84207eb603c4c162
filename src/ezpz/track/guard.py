"""Keep what only reports on a training from ending it: a failure becomes one warning, and the program goes on."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from ezpz.errors import TrackError
from ezpz.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator


class guarded:  # noqa: N801  # called as a function, as `contextlib.suppress` is
    """Do a part of reporting; an exception of it ends the block and becomes one warning, Ctrl-C passes.

    Args:
        what: What the part does, such as ``write the HDF5 file``.
        problems: Gets the sentence that was logged.
        hint: What is added to the warning alone, such as where the data is.
    """

    def __init__(self, what: str, problems: list[str] | None = None, *, hint: str = "") -> None:
        self._what, self._problems, self._hint = what, problems, hint

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        # Whatever a file system, a drawing library or an object of the user raises: the training is worth more.
        if not isinstance(error, Exception):
            return False
        problem = tell(self._what, error, self._hint)
        if self._problems is not None:
            self._problems.append(problem)
        return True


def tell(what: str, error: Exception, hint: str = "") -> str:
    """Log a failure as one warning, with its traceback under ``EZPZ_DEBUG=1``, and return the sentence."""
    problem = str(error) if isinstance(error, TrackError) else f"cannot {what}: {type(error).__name__}: {error}"
    debug = os.environ.get("EZPZ_DEBUG") == "1"
    with suppress(Exception):  # a handler of the user's own
        get_logger(__name__).warning(f"{problem}{hint}", exc_info=error if debug else None)
    return problem


@contextmanager
def undisturbed() -> Iterator[None]:
    """Compute as if the program had not asked numpy or Python to raise an error for each warning."""
    np: Any = None
    if "numpy" in sys.modules:  # where it is not loaded yet, it has its defaults
        with suppress(Exception):  # another thread may be at its import: this waits for it
            import numpy as np
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with nullcontext() if np is None else np.errstate(all="ignore"):
            yield
