"""What a tracker is, and all that a run has chosen behind one object: `Trackers`.

Reads EZPZ_TRACKERS (``wandb,csv``) where the program chooses none, and EZPZ_TRACKER_SECONDS, how long the end of a run
waits for its trackers (10).
"""

from __future__ import annotations

import atexit
import math
import os
import sys
from time import monotonic, time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ezpz.errors import UsageError, did_you_mean
from ezpz.track.trackers.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ezpz.track.values import Value


# A nested configuration as pairs of a dotted name and a value, for places that know no nesting.


def flatten(config: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """Return ``[("model.width", 64)]`` for ``{"model": {"width": 64}}``, in the order of the configuration."""
    pairs: list[tuple[str, object]] = []
    for key, value in config.items():
        pairs += flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return pairs


__all__ = ["KNOWN", "About", "Tracker", "Trackers", "choose", "flatten", "seconds_to_wait"]

KNOWN = {
    "csv": ("ezpz.track.trackers.to_csv", "CsvTracker"),
    "mlflow": ("ezpz.track.trackers.to_mlflow", "MlflowTracker"),
    "tensorboard": ("ezpz.track.trackers.to_tensorboard", "TensorboardTracker"),
    "wandb": ("ezpz.track.trackers.to_wandb", "WandbTracker"),
}


class About(NamedTuple):
    """What a tracker is told about a run when it starts.

    Attributes:
        name: The run's name.
        folder: The run's folder; a tracker writes below ``trackers/`` in it.
        config: What is known of the configuration by then, without secrets.
        resumed: What `Trackers.state` was when the run was last here, by tracker; empty for a new run.
        stamp: When the run started, ``2026-11-20-162001``.
    """

    name: str
    folder: Path
    config: Mapping[str, object]
    resumed: Mapping[str, object]
    stamp: str


class Tracker(Protocol):
    """A place that a run is copied to. Its calls come one after the other, from a thread of its own.

    Any of them may raise: that costs one warning, after which the tracker is not called again. Two more methods are used
    where an object has them: ``identify(about) -> dict``, called at once by the thread that makes the history, which
    returns what `start` will return as far as that is known without waiting, so that a run that is killed early finds its
    copy again; and ``log_rows(rows)``, called in place of `log` with all rows that wait, each ``(step, time, values)``.

    Attributes:
        name: What warnings and `Trackers.state` call it.
    """

    name: str

    def start(self, about: About) -> dict[str, object]:
        """Open the copy, or the earlier one that ``about.resumed[name]`` tells of; return what finds it again."""

    def log(self, step: int, values: Mapping[str, Value]) -> None:
        """Copy one row; ``values`` belongs to the run and must not be changed."""

    def config(self, config: Mapping[str, object]) -> None:
        """Copy a configuration, or more of it; secrets are left out already."""

    def finish(self, state: str) -> None:
        """End the copy; ``state`` is what ``run.json`` says, ``finished`` for instance."""


class Trackers:
    """Copies of a run at other places; training never waits for one nor fails by one.

    trackers = Trackers("wandb,csv", About("train", folder, config, {}, "2026-11-20-162001"))
    trackers.log(0, {"loss": 0.5})
    trackers.finish("finished")
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
        """Hand one row to every tracker, in about a microsecond; a tracker that is far behind loses it, which is told."""
        if self._workers:
            row = (step, time(), values)
            for worker in self._workers:
                worker.put(row)

    def config(self, config: Mapping[str, object]) -> None:
        """Hand a configuration, or more of it, to every tracker; secrets must be left out already."""
        for worker in self._workers:
            worker.put_config(config)

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

    @property
    def state(self) -> dict[str, object]:
        """What finds the copies again when the run goes on later: ``{"wandb": {"id": "abc"}}``."""
        return {**self._about.resumed, **{worker.name: dict(worker.state) for worker in self._workers if worker.state}}

    def _at_exit(self) -> None:
        # Set by the interpreter when an exception that nobody caught ended the program.
        self.finish("failed" if getattr(sys, "last_value", None) is not None else "exited")


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
