"""Count the steps that a run has made. Card, report, ``ezpz runs``, ``ezpz status`` and the account of time ask here.

Rows are no steps: a program records evaluations, summaries and other metrics in rows of their own, two rows in a step,
or one in every tenth. A row of training is one that holds the metric which stands once in each step (`step_metric`),
or the rest of such a row: ``{"lr": …}`` in each step, with a loss in every tenth, is a row for each step. Its step is
what a metric ``step`` or ``iter`` of it says, else the step of the row.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.track.names import (
    holds_validation_only,
    is_counter,
    is_step_time,
    is_validation,
    main_loss,
    main_throughput,
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ezpz.track.at_end import End
    from ezpz.track.journal_reader import Row
    from ezpz.track.table import Cells, Table

__all__ = ["Steps", "count_of", "epochs_of", "last_of_training", "note_steps", "rows_of_training", "step_numbers",
           "steps_of", "steps_reached"]  # fmt: skip

_NUMBERED = ("step", "global_step", "iter", "iteration")  # metrics that number steps, in the order of trust


class Steps(NamedTuple):
    """How many steps rows tell of.

    Attributes:
        made: Their number.
        first: The number of the first of them; None where rows number no steps.
        last: That of the last.
    """

    made: int
    first: int | None = None
    last: int | None = None


def steps_of(table: Table) -> Steps:
    """Return how many steps of training rows tell of.

    Rows of whole epochs, as `ezpz.train.Loop` makes them, say how many steps each had in ``steps``.

    Args:
        table: The rows that count, of one attempt or of several.
    """
    training = rows_of_training(table)
    if not len(training):
        return Steps(0)
    if epochs_of(training) is not None:
        held = training.cells.get("steps")
        return Steps(int(held.floats().sum()) if held is not None and held.are_numbers else len(training))
    numbers = step_numbers(table, training)
    if numbers is None:
        return Steps(len(training))
    return Steps(count_of(numbers), int(numbers.min()), int(numbers.max()))


def epochs_of(training: Table) -> int | None:
    """Return how many epochs rows of training tell of, where each row is one; None elsewhere.

    Args:
        training: As `rows_of_training` returns them.
    """
    import numpy as np

    cells = training.cells.get("epoch")
    if cells is None or _counter(training) is not None or not cells.are_numbers or cells.count < len(training):
        return None
    values = cells.floats()
    return len(training) if (np.diff(values) >= 1).all() else None  # else there are several rows in an epoch


def rows_of_training(table: Table) -> Table:
    """Return the rows of steps: those that hold the metric of each step, or the rest of such a row; all, where there is
    no metric.
    """
    import numpy as np

    counts = {name: cells.count for name, cells in table.cells.items() if not is_counter(name)}
    if not counts or not len(table):
        return table
    evaluates = _evaluations(table, counts)
    if evaluates is not None:
        counts = {name: int((~evaluates[table.cells[name].index_array]).sum()) for name in counts}
    name = step_metric(counts)
    if counts[name] == len(table):
        return table
    keep: Any = np.zeros(len(table), dtype=bool)
    keep[table.cells[name].index_array] = True
    if evaluates is not None:
        keep &= ~evaluates
    rest = _rest_of_training(table, counts, keep)
    return table.only(keep | rest if evaluates is None else keep | (rest & ~evaluates))


def _rest_of_training(table: Table, counts: Mapping[str, int], training: Any) -> Any:
    """Return a mask of the rows that hold what stands in each row of training, and nothing that stands in none.

    Args:
        table: The rows.
        counts: The metrics that are no counters.
        training: A mask of the rows of training.
    """
    import numpy as np

    number = int(training.sum())
    others: list[Any] = []
    mask: Any = np.zeros(len(table), dtype=bool)
    for name in counts:
        index = table.cells[name].index_array
        held = int(training[index].sum())
        if not held:
            others.append(index)
        elif held == number:
            mask[index] = True
    for index in others:
        mask[index] = False
    return mask


def _evaluations(table: Table, counts: Mapping[str, int]) -> Any:
    """Return a mask of the rows that evaluate and hold no loss of training; None where there is no such row.

    Args:
        table: The rows.
        counts: Of each metric, in how many rows it stands.
    """
    import numpy as np

    main = main_loss(name for name in counts if not is_validation(name))
    if main is None or counts[main] == len(table):
        return None
    mask: Any = np.zeros(len(table), dtype=bool)
    for name in filter(is_validation, counts):
        mask[table.cells[name].index_array] = True
    mask[table.cells[main].index_array] = False
    return mask if mask.any() else None


def step_metric(counts: Mapping[str, int]) -> str:
    """Return the metric that stands once in each step: the loss of training, or its time or speed where more rows have
    these; else any metric of training, the one in most rows.

    Args:
        counts: Of each metric, in how many rows it stands; at least one.
    """
    training = [name for name in counts if not is_validation(name)]
    rate = main_throughput(training)
    named = [main_loss(training), *filter(is_step_time, training), rate[0] if rate else None]
    known = [name for name in named if name is not None]
    known = known or [name for name in training if not {"train", "training"}.isdisjoint(words_of(name))]
    return max(known or training or counts, key=lambda name: counts[name])


def step_numbers(table: Table, training: Table) -> Any:
    """Return the number of the step of each row of training, as an int64 array; None where rows number no steps.

    That is so where each row got the number after that of the row before, and not each is one of training.

    Args:
        table: All rows that count.
        training: Those of training.
    """
    import numpy as np

    counter = _counter(training)
    if counter is not None:
        return counter.floats().astype(np.int64)
    if len(training) == len(table):
        return training.step_array
    steps, attempts = table.step_array, table.attempt_array
    evaluates = _evaluations(table, {name: cells.count for name, cells in table.cells.items()})
    if evaluates is not None:  # such a row belongs to the step of the row before
        kept = ~(evaluates & np.append(False, steps[1:] == steps[:-1]))
        steps, attempts = steps[kept], attempts[kept]
    counts_rows = len(steps) > len(training) and ((np.diff(steps) == 1) | (np.diff(attempts) != 0)).all()
    return None if counts_rows else training.step_array


def _counter(training: Table) -> Cells | None:
    """Return the metric that numbers the steps: one that each row has, and that never falls."""
    import numpy as np

    named = [(name, cells) for name, cells in training.cells.items() if name.rpartition("/")[2] in _NUMBERED]
    named.sort(key=lambda each: _NUMBERED.index(each[0].rpartition("/")[2]))
    for _, cells in named:
        if cells.kinds <= {int} and cells.count == len(training) and (np.diff(cells.floats()) >= 0).all():
            return cells
    return None


def count_of(numbers: Any) -> int:
    """Return how many steps numbers tell of, where perhaps only every n-th was recorded.

    Steps before the first number count as far as they are fewer than lie between two: 9, 19, 29 are 30 steps.

    Args:
        numbers: int64 array of shape (rows,).
    """
    import numpy as np

    if not len(numbers):
        return 0
    ascending = numbers if (numbers[1:] > numbers[:-1]).all() else np.unique(numbers)
    first, last = int(ascending[0]), int(ascending[-1])
    apart = int(np.median(np.diff(ascending))) if len(ascending) > 1 else 1
    return last - (max(0, first - apart + 1) if first >= 0 else first) + 1


def steps_reached(first: Row | None, rows: Sequence[Row]) -> int | None:
    """Return how many steps a run has made as far as the head and the tail of its journal tell; None without rows.

    Args:
        first: Its first row.
        rows: Its last rows.
    """
    training = _of_training(rows)
    if not training:
        return None
    last = training[-1]
    epoch, held = last["m"].get("epoch"), last["m"].get("steps")
    if type(epoch) is int and type(held) is int:  # a row of a whole epoch; only the last one may be shorter
        begun = first["m"] if first is not None else {}
        usual, number = begun.get("steps"), begun.get("epoch")  # some count epochs from 0, or begin with a later one
        return held + (epoch - (number if type(number) is int else 1)) * (usual if type(usual) is int else held)
    numbers = [_number_of(row) for row in training]
    begin = numbers[0] if first is None else _number_of(first)
    gaps = sorted(after - before for before, after in pairwise(numbers) if after > before)
    begin = max(0, begin - gaps[len(gaps) // 2] + 1) if gaps and begin >= 0 else begin
    count = numbers[-1] - begin + 1
    others = [row for row in rows if not holds_validation_only(row["m"])]
    counts_rows = all(after["step"] == before["step"] + 1 for before, after in pairwise(others))
    if counts_rows and len(others) > len(training) and numbers[-1] == last["step"]:
        count = round(count * len(training) / len(others))  # several rows in a step
    return max(1, count)


def last_of_training(rows: Sequence[Row]) -> Row | None:
    """Return the last row of training; None without rows."""
    return next(reversed(_of_training(rows)), None)


def _of_training(rows: Sequence[Row]) -> list[Row]:
    counts: dict[str, int] = {}
    for row in rows:
        for name in row["m"]:
            if not is_counter(name):
                counts[name] = counts.get(name, 0) + 1
    if not counts:
        return list(rows)
    name = step_metric(counts)
    training = [row["m"].keys() for row in rows if name in row["m"]]
    always = {key for key in training[0] if not is_counter(key)}.intersection(*training)
    ever = set().union(*training)
    return [row for row in rows if not always.isdisjoint(row["m"]) and ever.issuperset(row["m"])]


def _number_of(row: Row) -> int:
    said = {name.rpartition("/")[2]: value for name, value in row["m"].items() if type(value) is int}
    number = next((said[name] for name in _NUMBERED if name in said), row["step"])
    return max(number, row["step"]) if "epoch" in said else number  # one that begins anew in each epoch is smaller


def note_steps(end: End) -> None:
    """Note in ``run.json`` how many steps a run has made, for who will not read its journal again."""
    if end.rows is not None and len(end.rows.table):
        end.facts["steps"] = steps_of(end.rows.table).made
