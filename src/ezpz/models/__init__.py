"""Models that the trainers share, each in a file that a person reads in one sitting."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.models.mlp import MLP as MLP

__all__ = ["MLP"]


def __getattr__(name: str) -> object:
    if name != "MLP":
        raise AttributeError(f"module 'ezpz.models' has no attribute {name!r}")
    from ezpz.models.mlp import MLP

    return MLP
