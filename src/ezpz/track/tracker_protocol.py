"""Define what a tracker is: the calls that it answers and what it is given.

A tracker copies a run to another place. `ezpz.view.trackers.worker` calls it from a thread of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ezpz.track.values import Value

Row: TypeAlias = "tuple[int, float, Mapping[str, Value]]"  # step, epoch seconds, metrics


class TrackerOff(Exception):  # noqa: N818  # no error: the user has switched it off
    """Raised by a tracker's `start` when the user wants none; logged at INFO."""


class About(NamedTuple):
    """Facts about a run that a tracker gets when it starts.

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

    Any of them may raise: that costs one warning, after which the tracker is not called again. Two more methods are
    used where an object has them: ``identify(about) -> dict``, called at once by the thread that makes the history,
    which returns what `start` will return as far as that is known without waiting, so that a run that is killed early
    finds its copy again; and ``log_rows(rows)``, called in place of `log` with all rows that wait, each ``(step, time,
    values)``.

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
