"""Copies of a run at other places: wandb, TensorBoard, MLflow, a CSV file, or what a user brings along.

One file per place; each imports its library when it starts, in a thread of its own.
"""

from __future__ import annotations

from ezpz.track.trackers.chosen import Trackers, choose
from ezpz.track.trackers.interface import About, Tracker

__all__ = ["About", "Tracker", "Trackers", "choose"]
