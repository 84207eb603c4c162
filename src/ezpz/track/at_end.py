"""Call what a run is for besides its rows when it ends: findings, plots, report, trackers, card, functions of users.

`PARTS` is all that a history knows of them: what a part does, its function, and when that is called. A module is
imported when it is first needed. Each function takes the `End`; one that fails costs itself and one warning.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.beside import beside, load
from ezpz.track.guard import guarded
from ezpz.track.run_reader import with_rows_of
from ezpz.track.tracker_protocol import About

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from ezpz.track.run_reader import Run
    from ezpz.track.tracker_protocol import Tracker


class Part(NamedTuple):
    """What is done with a run when it ends.

    Attributes:
        name: What it does, as its warning says: ``draw the run``.
        call: A function that takes an `End`, as ``module:function`` or itself.
        when: When it is called: ``read``, once the rows are exported and before ``run.json`` tells the end; ``draw``,
            after that, where plots are wanted; ``own``, functions of users; ``show``, at last; ``stopped`` and ``told``
            where a signal ends the process: before and after ``run.json`` tells it.
    """

    name: str
    call: str | Callable[[End], object]
    when: tuple[str, ...]


PARTS = (
    Part("look at the losses", "ezpz.track.loss_findings:note_findings", ("read",)),
    Part("look at the times of steps", "ezpz.view.slow_steps:note_slow_steps", ("read",)),
    Part("note the speed", "ezpz.track.speed:note_speed", ("read", "stopped")),
    Part("note the steps", "ezpz.track.steps:note_steps", ("read", "stopped")),
    Part("note the ends of the journal", "ezpz.track.journal_ends:note_ends", ("read", "stopped")),
    Part("draw the run", "ezpz.view.plots:draw_end", ("draw",)),
    Part("show how the run ended", "ezpz.view.card:show_end", ("show",)),
    Part("say that the run was stopped", "ezpz.view.card:show_stopped", ("told",)),
)


class End:
    """A run that ends.

    Attributes:
        name: Name of the run.
        folder: The run folder.
        state: How it ended, as ``run.json`` says: ``finished``, ``failed`` or ``stopped``.
        cause: Why it failed or was stopped, in words.
        paths: What has been written, by the names of `ezpz.track.History.paths`; parts add to it.
        facts: What ``run.json`` says; parts add to it.
        problems: What is missing, in sentences; parts add to it.
        rows: The run with the rows that were read, before ``run.json`` told the end; None where none could be.
        report: Whether the report is wanted where plots are drawn.
        show: Whether the terminal is to show how the run ended.
        rate_ranks: Ranks whose samples the recorded throughput counts; 0 where that is not known.
        stamp: Start of the run, ``2026-11-20-162001``.
    """

    def __init__(
        self,
        state: str,
        cause: str,
        *,
        folder: Path,
        facts: dict[str, Any],
        paths: dict[str, Path],
        problems: list[str],
        read: Callable[[], Run],
    ) -> None:
        self.name, self.folder, self.state, self.cause = str(facts["name"]), folder, state, cause
        self.facts, self.paths, self.problems = facts, paths, problems
        self.rows: Run | None = None
        self.report = self.show = False
        self.rate_ranks, self.stamp = 0, ""
        self._read = read

    @property
    def run(self) -> Run:
        """The run as its folder holds it now: ``end.run.table`` has the rows, by metric."""
        run = self._read()
        return run if self.rows is None else with_rows_of(run, self.rows)


def call_parts(end: End, when: str, parts: Iterable[Part] = PARTS) -> None:
    """Call the parts of one moment in their order."""
    for part in parts:
        if when in part.when:
            with guarded(part.name, end.problems):
                (load(part.call) if isinstance(part.call, str) else part.call)(end)


# Copies at other places get every row. `setup_wandb` puts its run here: all histories of this process log to it.
everywhere: dict[str, Any] = {}  # with `log` and `config`, as `ezpz.view.trackers.Trackers` has them


def choose_trackers(chosen: str | Sequence[str | Tracker] | None) -> list[Any]:
    """Return the trackers of a run, as `ezpz.view.trackers.choose`; none where nothing asks for any."""
    if chosen is None and not os.environ.get("EZPZ_TRACKERS"):
        return []
    found: list[Any] = beside("choose_trackers")(chosen)
    return found


def start_trackers(chosen: Sequence[Any], about: dict[str, Any]) -> Any:
    """Start the trackers of a run; None without any."""
    return beside("Trackers")(chosen, About(**about)) if chosen else None
