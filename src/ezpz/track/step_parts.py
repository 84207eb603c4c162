"""Read where the time of a run's steps went: data, evaluation, saving, garbage collection, logging, and the rest.

Rows of `ezpz.train.Loop` say how long their step took and waited (``dt``, ``dtd``, ``dt_eval``, ``dt_save``). Of a loop
of one's own a step lasts from one row to the next, and the journal's records of sections say what was in it: those of
`ezpz.section`, `ezpz.train.evaluate` and checkpoints, and what `ezpz.track.step_pauses` has measured.

A record of sections tells of the rows since the record before. Waits for data are shared out among as many of the
longest steps as the record says; what is done now and then belongs to the longest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.track.goodput_account import row_of_section
from ezpz.track.journal_reader import iter_kind
from ezpz.track.names import is_validation, part_of_step, unit
from ezpz.track.step_pauses import COLLECTION, DATA, LOGGING, ROWS_OF_DATA
from ezpz.track.steps import epochs_of, rows_of_training, step_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ezpz.track.run_reader import Run
    from ezpz.track.table import Table

__all__ = ["COLLECTION", "DATA", "EVALUATION", "LOGGING", "SAVING", "StepParts", "read_step_parts"]

EVALUATION, SAVING = "evaluation", "save"
_SHORTEST = 0.0005  # seconds: rows that come faster are recorded some at a time, and their times are none of steps
_MS = 0.001


class StepParts(NamedTuple):
    """The steps of a run in the order of recording, without the first of each start, which compiles and warms up.

    Attributes:
        steps: int64 array of shape (rows,): the number of each one's step.
        times: float64 array of shape (rows,): when it was recorded, epoch seconds.
        seconds: float64 array of shape (rows,): of its step, or the mean of the steps since the row before.
        parts: Of each part that was measured its seconds in ``seconds``, of the same shape; by the names of sections.
        attempts: int64 array of shape (rows,): the start that it is of.
        workers: How many workers the DataLoader has; None where that is not known.
        runs_ahead: Whether rows hold values that were on a device: then they are times of the host, which waits for
            the device now and then.
    """

    steps: Any
    times: Any
    seconds: Any
    parts: Mapping[str, Any]
    attempts: Any
    workers: int | None
    runs_ahead: bool = False

    def only(self, keep: Any) -> StepParts:
        """Return the steps that a mask of shape (rows,), or a slice, keeps."""
        return self._replace(
            steps=self.steps[keep],
            times=self.times[keep],
            seconds=self.seconds[keep],
            parts={name: held[keep] for name, held in self.parts.items()},
            attempts=self.attempts[keep],
        )

    def rest(self) -> Any:
        """Return the seconds of each step that no part explains."""
        return (self.seconds - sum(self.parts.values())).clip(0.0) if self.parts else self.seconds


class _Section(NamedTuple):
    attempt: int
    step: int
    seconds: dict[str, float]
    among: int  # steps that the waits for data were among; 0 where that is not told


def read_step_parts(run: Run) -> StepParts | None:
    """Return where the time of a run's steps went; None where rows do not tell how long steps took.

    Args:
        run: The run; its rows are read if they have not been.
    """
    import numpy as np

    sections = _sections(run)
    by_loop = "data" in run.record.timeline
    found = []
    for attempt in np.unique(run.table.attempt_array).tolist():
        own = [each for each in sections if each.attempt == attempt]
        each = _of_attempt(run.table.of_attempt(attempt), own, by_loop=by_loop)
        if each is not None:
            found.append((attempt, each))
    if not found:
        return None
    names = list(dict.fromkeys(name for _, each in found for name in each[3]))
    steps, times, seconds = (np.concatenate([each[place] for _, each in found]) for place in range(3))
    return StepParts(
        steps,
        times,
        seconds,
        {name: np.concatenate([each[3].get(name, np.zeros(len(each[0]))) for _, each in found]) for name in names},
        np.concatenate([np.full(len(each[0]), attempt) for attempt, each in found]),
        run.record.loader_workers,
        not by_loop and run.folder.is_absolute() and any(iter_kind(run.folder / "metrics.jsonl", "late")),
    )


def _sections(run: Run) -> list[_Section]:
    """Return what the journal's records of sections say, in their order."""
    found = []
    if run.folder.is_absolute():  # a public report does not know where it is
        for row in iter_kind(run.folder / "metrics.jsonl", "sections"):
            seconds: dict[str, float] = {}
            for name, each in row["m"].items():
                if type(each) in {int, float} and 0 < each < float("inf"):
                    part = name if name in {COLLECTION, LOGGING} else row_of_section(name)
                    seconds[part] = seconds.get(part, 0.0) + each
            among = row["m"].get(ROWS_OF_DATA)
            told = among[0] if isinstance(among, list) and among else 0
            found.append(_Section(row.get("a", 1), row["step"], seconds, told if type(told) is int else 0))
    return found


def _of_attempt(
    table: Table, sections: Sequence[_Section], *, by_loop: bool
) -> tuple[Any, Any, Any, dict[str, Any]] | None:
    """Return steps, times, seconds and parts of the rows of one start; None where they do not tell."""
    import numpy as np

    training = rows_of_training(table)
    if len(training) < 3 or epochs_of(training) is not None:
        return None
    if by_loop and "dtd" in training.cells and _column(training, "dt") is not None:
        return _of_loop(training)
    numbers = step_numbers(table, training)
    numbers = np.arange(len(training)) if numbers is None else np.asarray(numbers, dtype=np.int64)
    times = training.time_array
    apart = np.diff(numbers).clip(1)
    seconds = np.diff(times).clip(0.0)
    if not np.isfinite(times).all() or float(np.median(seconds)) < _SHORTEST:  # logs of others may tell no times
        return None
    steps = training.step_array
    parts: dict[str, Any] = {}
    room = seconds.copy()  # what no part has taken yet
    first = 0  # of the intervals that the record tells of
    for each in sections:
        last = int(np.searchsorted(steps[1:], each.step, side="right"))
        for name in sorted(each.seconds, key=lambda name: name == DATA) if last > first else ():
            total, free = each.seconds[name], room[first:last]
            given = _shared_out(total, free, (each.among or last - first) if name == DATA else 1)
            parts.setdefault(name, np.zeros(len(seconds)))[first:last] += given
            room[first:last] -= given
        first = max(first, last)
    _add_told(parts, training, seconds / apart, apart)
    evaluates = _evaluates(table, training)
    if EVALUATION not in parts and evaluates.any():
        usual = float(np.median(seconds[~evaluates])) if not evaluates.all() else float(np.median(seconds))
        others = sum(parts.values()) if parts else 0.0
        parts[EVALUATION] = np.where(evaluates, (seconds - usual - others).clip(0.0), 0.0)
    _cut(parts, seconds)
    return numbers[1:], times[1:], seconds / apart, {name: held / apart for name, held in parts.items()}


def _of_loop(training: Table) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Return what rows of `ezpz.train.Loop` tell, which have a step each."""
    import numpy as np

    def told(key: str) -> Any:
        values = _column(training, key)
        return np.zeros(len(training)) if values is None else np.nan_to_num(values).clip(0.0)

    parts = {DATA: told("dtd"), EVALUATION: told("dt_eval"), SAVING: told("dt_save")}
    seconds = told("dt") + parts[EVALUATION] + parts[SAVING]
    _cut(parts, seconds)
    return (
        training.step_array[1:],
        training.time_array[1:],
        seconds[1:],
        {name: held[1:] for name, held in parts.items()},
    )


def _column(table: Table, key: str) -> Any:
    """Return a metric as a float64 array of shape (rows,), NaN where a row has none; None where it is no number."""
    import numpy as np

    cells = table.cells.get(key)
    if cells is None or not cells.are_numbers:
        return None
    values = np.full(len(table), np.nan)
    values[cells.index_array] = cells.floats()
    return values


def _shared_out(total: float, room: Any, among: int) -> Any:
    """Return seconds of several rows together as those of each.

    Args:
        total: The seconds.
        room: float64 array of shape (rows,): how long each took, beside other parts.
        among: How many rows, the longest ones, have equal shares, as far as they took so long; 1 for what one row
            has, and the next longest then.
    """
    import numpy as np

    room = room.clip(0.0)
    given = np.zeros(len(room))
    order = np.argsort(-room, kind="stable")
    if among <= 1:
        more = (room - room.min())[order]
        given[order] = np.minimum(more, (total - (np.cumsum(more) - more)).clip(0.0))
    else:
        longest = order[:among]
        given[longest] = np.minimum(room[longest], total / len(longest))
    left, free = total - float(given.sum()), room - given
    return given + free * (min(1.0, left / free.sum()) if left > 0 and free.sum() > 0 else 0.0)


def _add_told(parts: dict[str, Any], training: Table, seconds: Any, apart: Any) -> None:
    """Take the waits for data that a program records itself, ``dtd`` or ``time/data``, where nothing was measured."""
    if DATA in parts:
        return
    for key in training.cells:
        values = _column(training, key) if part_of_step(key) == "data" else None
        if values is not None:
            import numpy as np

            told = np.nan_to_num(values[1:]).clip(0.0) * (_MS if unit(key) == "ms" else 1.0)
            if (told <= 1.1 * seconds).mean() > 0.9:  # else they are of other steps, or of another unit
                parts[DATA] = np.minimum(told, seconds) * apart
            return


def _evaluates(table: Table, training: Table) -> Any:
    """Return which steps an evaluation belongs to: a mask of the rows of training but the first."""
    import numpy as np

    times: set[float] = set()
    for name in filter(is_validation, table.cells):
        times.update(table.time_array[table.cells[name].index_array].tolist())
    if not times:
        return np.zeros(len(training) - 1, dtype=bool)
    at = np.searchsorted(training.time_array, np.array(sorted(times)), side="left")
    mask: Any = np.zeros(len(training) + 1, dtype=bool)
    mask[at] = True
    return mask[1:-1]


def _cut(parts: dict[str, Any], seconds: Any) -> None:
    """Let no parts be longer together than their step: clocks differ, and sections of other threads overlap."""
    import numpy as np

    if parts:
        together = sum(parts.values())
        scale = np.divide(seconds, together, out=np.ones(len(seconds)), where=together > seconds)
        parts.update({name: held * scale for name, held in parts.items()})
