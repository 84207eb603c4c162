"""Copy a run to other places: wandb, TensorBoard, MLflow, a CSV file, or a tracker of the user's own.

One file per place; each imports its library when it starts, in a thread of its own.
"""

from __future__ import annotations

from ezpz.track.trackers.chosen import Trackers, choose
from ezpz.track.trackers.interface import About, Tracker

__all__ = ["About", "Tracker", "Trackers", "choose"]
