"""The small core under the trainers. Nothing here loads torch until a function needs it."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.train.batches import BatchIndices as BatchIndices
    from ezpz.train.digits import load_digits as load_digits
    from ezpz.train.timing import print_timing as print_timing

_HOME_OF = {"BatchIndices": "batches", "load_digits": "digits", "print_timing": "timing"}

__all__ = ["BatchIndices", "load_digits", "print_timing"]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOME_OF:
        raise AttributeError(f"module 'ezpz.train' has no attribute {name!r}")
    return getattr(import_module(f"ezpz.train.{_HOME_OF[name]}"), name)
