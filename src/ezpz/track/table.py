"""Group the rows of a journal by key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ezpz.track.records import Row
    from ezpz.track.values import Value


@dataclass
class Cells:
    """What was recorded under one key: ``values[i]`` in row ``index[i]``."""

    index: list[int] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)


@dataclass
class Table:
    """A journal by key: steps, times (epoch seconds) and attempts of all rows, and the cells that each key fills."""

    steps: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    cells: dict[str, Cells] = field(default_factory=dict)


def gather(rows: Iterable[Row]) -> Table:
    """Turn rows, in their order, into a `Table`; a step that was recorded twice stays twice."""
    table = Table()
    for number, row in enumerate(rows):
        table.steps.append(row["step"])
        table.times.append(row["t"])
        table.attempts.append(row.get("a", 1))
        for key, value in row["m"].items():
            cells = table.cells.get(key)
            if cells is None:
                cells = table.cells[key] = Cells()
            cells.index.append(number)
            cells.values.append(value)
    return table


def first_steps(table: Table) -> dict[int, int]:
    """Return the lowest step of each attempt."""
    first: dict[int, int] = {}
    for step, attempt in zip(table.steps, table.attempts, strict=True):
        first[attempt] = min(step, first.get(attempt, step))
    return first


def restarts(table: Table) -> list[int]:
    """Return the lowest step of each attempt after the first."""
    return [step for _, step in sorted(first_steps(table).items())[1:]]


def counted(table: Table) -> Table:
    """Return the rows that count in a run that was started again.

    A later attempt continues from a checkpoint, so what earlier ones recorded from its first step on was overtaken by
    it.
    """
    if not table.attempts or table.attempts[-1] == 1:
        return table
    first = first_steps(table)
    bound = {a: min((s for later, s in first.items() if later > a), default=None) for a in first}
    keep = [
        number
        for number, (step, attempt) in enumerate(zip(table.steps, table.attempts, strict=True))
        if (last := bound[attempt]) is None or step < last
    ]
    place = {old: new for new, old in enumerate(keep)}
    cells = {
        key: Cells(
            [place[index] for index in old.index if index in place],
            [value for index, value in zip(old.index, old.values, strict=True) if index in place],
        )
        for key, old in table.cells.items()
    }
    return Table(
        [table.steps[i] for i in keep],
        [table.times[i] for i in keep],
        [table.attempts[i] for i in keep],
        {key: value for key, value in cells.items() if value.index},
    )
