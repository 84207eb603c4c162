"""Name what the core uses of packages beside it; a row is imported when it is first needed.

Watchers, verbs and the parts of the end of a run have tables of their own: `ezpz.launch.watchers.WATCHERS`,
`ezpz.verbs.VERBS` and `ezpz.track.at_end.PARTS`.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from typing import Any

BESIDE = {
    # of `launch`
    "run_in_chain": "ezpz.jobs.job_chain:run_in_chain",
    "run_attempts": "ezpz.jobs.attempts:run_attempts",
    "refuse_inside_torchrun": "ezpz.jobs.attempts:refuse_inside_torchrun",
    "job_handlers": "ezpz.jobs.job_handler:handlers",
    # of a history
    "choose_trackers": "ezpz.view.trackers:choose",
    "Trackers": "ezpz.view.trackers:Trackers",
    "own_backends": "ezpz.view.trackers.own_backends",
    "WandbTracker": "ezpz.view.trackers.to_wandb:WandbTracker",
    "describe_effective": "ezpz.view.effective:describe",
    "LiveSettings": "ezpz.view.effective:LiveSettings",
    "generator_sums": "ezpz.view.effective:generator_sums",
    "save_pictures": "ezpz.view.plots:save_pictures",
    "save_texts": "ezpz.view.plots:save_texts",
}


def beside(name: str) -> Any:
    """Return what a row of `BESIDE` names."""
    return load(BESIDE[name])


def load(target: str) -> Any:
    """Import what is written as ``module:name``, or as ``module``."""
    module, _, name = target.partition(":")
    __import__(module)  # importlib would cost every launch 1 ms
    return getattr(sys.modules[module], name) if name else sys.modules[module]
