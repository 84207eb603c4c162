"""How do ranks start, and how do they end? Placement, flavour, plan, supervision. Standard library only."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.launch.entry import main as main
    from ezpz.launch.placement import Placement as Placement
    from ezpz.launch.plan import LaunchPlan as LaunchPlan

__all__ = ["LaunchPlan", "Placement", "main"]

_HOME_OF = {"LaunchPlan": "plan", "Placement": "placement", "main": "entry"}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOME_OF:
        raise AttributeError(f"module 'ezpz.launch' has no attribute {name!r}")
    return getattr(import_module(f"ezpz.launch.{_HOME_OF[name]}"), name)
