"""Copy a run to other places: wandb, TensorBoard, MLflow, a CSV file, or a tracker of the user's own.

One file per place; each imports its library when it starts, in a thread of its own.
"""

from __future__ import annotations

from ezpz.track.tracker_protocol import About, Tracker
from ezpz.view.trackers.chosen import Trackers, choose

__all__ = ["About", "Tracker", "Trackers", "choose"]
