"""Hand a run's rows to every tracker that was chosen for it.

Reads EZPZ_TRACKERS (``wandb,csv``) where the program chooses none, and EZPZ_TRACKER_SECONDS, how long the end of a run
waits for its trackers (10).
"""

from __future__ import annotations

import atexit
import math
import os
import sys
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError, did_you_mean
from ezpz.files import close_to_others
from ezpz.track.run_folder import state_after
from ezpz.view.trackers.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ezpz.track.tracker_protocol import About, Tracker
    from ezpz.track.values import Value

KNOWN = {
    "csv": ("ezpz.view.trackers.to_csv", "CsvTracker"),
    "mlflow": ("ezpz.view.trackers.to_mlflow", "MlflowTracker"),
    "tensorboard": ("ezpz.view.trackers.to_tensorboard", "TensorboardTracker"),
    "wandb": ("ezpz.view.trackers.to_wandb", "WandbTracker"),
}


class Trackers:
    """Copies of a run at other places; training never waits for one nor fails by one.

    trackers = Trackers("wandb,csv", About("train", folder, config, {}, "2026-11-20-162001")) trackers.log(0, {"loss":
    0.5}) trackers.finish("finished")
    """

    def __init__(self, chosen: str | Sequence[str | Tracker] | None, about: About) -> None:
        """Start each tracker in a thread of its own, without waiting for any.

        Args:
            chosen: Names, as a list or with commas between them, and objects that are trackers. None leaves it to
                ``EZPZ_TRACKERS``; nothing in either means no tracker, no thread and no cost.
            about: The run.

        Raises:
            UsageError: A name is no tracker's, comes twice, or an object is no tracker.
        """
        self._limit = seconds_to_wait()
        self._about = about = about._replace(folder=about.folder.absolute())
        self._pid = os.getpid()
        self._ended = False
        self._workers = [Worker(tracker, about) for tracker in choose(chosen)]
        if self._workers:
            atexit.register(self._at_exit)

    def __bool__(self) -> bool:
        """Tell whether there is any tracker."""
        return bool(self._workers)

    def log(self, step: int, values: Mapping[str, Value]) -> None:
        """Hand one row to every tracker, in about a microsecond; a tracker far behind loses it, which is reported."""
        if self._workers:
            row = (step, time(), values)
            for worker in self._workers:
                worker.put(row)

    def config(self, config: Mapping[str, object]) -> None:
        """Hand a configuration, or more of it, to every tracker; secrets must be left out already."""
        for worker in self._workers:
            worker.put_config(config)

    def move(self, folder: Path) -> None:
        """Know the run folder, which was renamed or made anew."""
        self._about = self._about._replace(folder=folder)

    def finish(self, state: str) -> None:
        """End every copy, and wait for all of them together no longer than ``EZPZ_TRACKER_SECONDS``.

        A tracker that has not ended by then costs one warning. A second call does nothing, nor does one in a process
        that was forked from the run's.
        """
        if self._ended or os.getpid() != self._pid:
            return
        self._ended = True
        if not self._workers:
            return
        atexit.unregister(self._at_exit)
        for worker in self._workers:
            worker.ask_to_end(state)
        deadline = monotonic() + self._limit
        for worker in self._workers:
            worker.wait(deadline, self._limit)
        close_to_others(sorted((self._about.folder / "trackers").rglob("*")))

    @property
    def state(self) -> dict[str, object]:
        """What finds the copies again when the run is resumed: ``{"wandb": {"id": "abc"}}``."""
        return {**self._about.resumed, **{worker.name: dict(worker.state) for worker in self._workers if worker.state}}

    def _at_exit(self) -> None:
        # Set by the interpreter when an uncaught exception ended the program.
        self.finish(state_after(getattr(sys, "last_value", None), "exited")[0])


def seconds_to_wait() -> float:
    """Return how long the end of a run waits for its trackers.

    Raises:
        UsageError: ``EZPZ_TRACKER_SECONDS`` is no number of seconds.
    """
    text = os.environ.get("EZPZ_TRACKER_SECONDS") or "10"
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UsageError(f"no time to wait: {text!r} (from EZPZ_TRACKER_SECONDS); expected seconds, for example 10.")
    return seconds


def choose(chosen: str | Sequence[str | Tracker] | None) -> list[Any]:
    """Make a tracker of each name, and look at each object, before any is started.

    Args:
        chosen: As for `Trackers`.

    Raises:
        UsageError: As for `Trackers`.
    """
    source = "History(trackers=...)"
    if chosen is None:
        chosen, source = os.environ.get("EZPZ_TRACKERS", ""), "EZPZ_TRACKERS"
    if isinstance(chosen, str):
        items: Sequence[Any] = [name for name in (part.strip() for part in chosen.split(",")) if name]
    else:
        items = chosen if isinstance(chosen, (list, tuple)) else [chosen]  # one object
    trackers = [_named(item, source) if isinstance(item, str) else _checked(item, source) for item in items]
    names = [tracker.name for tracker in trackers]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two trackers called {twice!r} (from {source}); expected each name once.")
    return trackers


def _named(name: str, source: str) -> Tracker:
    from importlib import import_module

    if name not in KNOWN:
        hint = did_you_mean(name.lower(), KNOWN)
        raise UsageError(f"no tracker {name!r} (from {source}); expected {', '.join(KNOWN)}.{hint}")
    module, kind = KNOWN[name]
    tracker: Tracker = getattr(import_module(module), kind)()
    return tracker


def _checked(tracker: Any, source: str) -> Tracker:
    calls = [call for call in ("start", "log", "config", "finish") if not callable(getattr(tracker, call, None))]
    if calls or not isinstance(getattr(tracker, "name", None), str):
        raise UsageError(
            f"no tracker: {type(tracker).__name__} without {' and '.join(calls) or 'a name'} (from {source}); "
            f"expected a name of {', '.join(KNOWN)}, or an object with name, start, log, config and finish."
        )
    checked: Tracker = tracker
    return checked
