"""Start ranks and end them: placement, flavour, plan, supervision. Standard library only."""

from __future__ import annotations

from ezpz._lazy import attach

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    # names: begin (`make names`)
    from ezpz.launch.entry import main as main
    from ezpz.launch.placement import Placement as Placement
    from ezpz.launch.plan import LaunchPlan as LaunchPlan
    # names: end

__getattr__, __dir__ = attach(
    __name__,
    {
        "entry": "main",
        "placement": "Placement",
        "plan": "LaunchPlan",
    },
)
