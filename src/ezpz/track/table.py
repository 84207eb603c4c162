"""Hold the rows of a journal by key: arrays that are read from its blocks when they are asked for."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.errors import TrackError
from ezpz.track.column_blocks import OF_RECORDS, ParsedLines, pack
from ezpz.track.values import Histogram, checked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ezpz.track.column_blocks import Block, Column
    from ezpz.track.journal_reader import Row
    from ezpz.track.values import Value

_DTYPES = {"float": "<f8", "int": "<i8"}
_TYPES: dict[str, type] = {kind.__name__: kind for kind in (float, int, bool, str, list, Histogram)}


class _Part(NamedTuple):
    """A column of a block, and the number of the block's first record."""

    block: Block
    column: Column
    first: int


class Cells:
    """What was recorded under one key: ``values[i]`` in row ``index[i]``, rows ascending."""

    def __init__(self, parts: Sequence[_Part], records: int, rows: Any) -> None:
        """Know where the values are; they are read when they are asked for.

        Args:
            parts: The columns of the key, in the order of the journal.
            records: How many records there are.
            rows: int64 array of shape (records,): the row of each record, -1 where it does not count. None where each
                record is a row.
        """
        self._parts = parts
        self._records = records
        self._rows = rows

    @cached_property
    def _chosen(self) -> tuple[Any, Any]:
        """The rows of the values, and the places of these among all values of the parts.

        None instead of an array means all, in their order: each row has a value, each value counts.
        """
        import numpy as np

        held = sum(part.column.held for part in self._parts)
        if self._rows is None and held == self._records and all(part.column.sparse < 0 for part in self._parts):
            return None, None
        numbers = np.concatenate([_numbers_of(part) for part in self._parts])
        rises = not (numbers[1:] <= numbers[:-1]).any()
        if self._rows is None and rises:
            return numbers, None
        index = numbers if self._rows is None else self._rows[numbers]
        # Records of one row stay in their order: of two values the later one counts.
        places = np.argsort(index, kind="stable") if rises else np.lexsort((numbers, index))
        index = index[places]
        last = np.append(index[1:] != index[:-1], True) & (index >= 0)
        return index[last], places[last]

    @property
    def count(self) -> int:
        """How many values there are."""
        index, _ = self._chosen
        return self._records if index is None else len(index)

    @property
    def index_array(self) -> Any:
        """The rows: int64 array of shape (count,)."""
        import numpy as np

        index, _ = self._chosen
        return np.arange(self._records) if index is None else index

    def pick(self, of_rows: Any) -> Any:
        """Return what an array of shape (rows,) has at the rows of the values; the array itself where that is all."""
        index, _ = self._chosen
        return of_rows if index is None else of_rows[index]

    @cached_property
    def kinds(self) -> frozenset[type]:
        """The types of the values: ``float``, ``int``, ``bool``, ``str``, ``list``, ``Histogram``."""
        return frozenset().union(*(_types(part.column.kind) for part in self._parts)) if self.count else frozenset()

    @property
    def are_numbers(self) -> bool:
        """Whether all values are floats, ints or bools."""
        return self.kinds <= {float, int, bool}

    def array(self) -> Any:
        """Return the values as an array of float64 or int64 of shape (count,); None if none of these fits all."""
        import numpy as np

        kinds = {part.column.kind for part in self._parts}
        if len(kinds) > 1 or not kinds <= set(_DTYPES):
            return None
        values = np.concatenate([_numbers_in(part) for part in self._parts])
        values = values.astype(values.dtype.newbyteorder("="), copy=False)
        _, places = self._chosen
        return values if places is None else values[places]

    def floats(self) -> Any:
        """Return numbers as a float64 array of shape (count,); ints beyond the largest float are infinite."""
        import numpy as np

        known = self.array()
        if known is not None:
            return known.astype(np.float64, copy=False)
        values = np.concatenate(
            [
                _numbers_in(part).astype(np.float64)
                if part.column.kind in _DTYPES
                else np.array([as_float(value) for value in _values_in(part)], dtype=np.float64)
                for part in self._parts
            ]
        )
        _, places = self._chosen
        return values if places is None else values[places]

    @cached_property
    def values(self) -> list[Value]:
        """The values as they were recorded."""
        known = self.array()
        if known is not None:
            return list(known.tolist())
        every = [value for part in self._parts for value in _values_in(part)]
        _, places = self._chosen
        return every if places is None else [every[place] for place in places.tolist()]

    @cached_property
    def index(self) -> list[int]:
        """The rows, as ints."""
        return list(self.index_array.tolist())

    def end(self, place: int) -> Value:
        """Return the first value (0) or the last one (-1)."""
        _, places = self._chosen
        if places is not None:
            return self.values[place]
        return _values_in(self._parts[place])[place]

    def of(self, rows: Any) -> Cells:
        """Return the values that are in other rows then.

        Args:
            rows: int64 array that has for each row its number then, -1 where it does not count.
        """
        return Cells(self._parts, self._records, rows if self._rows is None else _through(self._rows, rows))


def _types(kind: str) -> frozenset[type]:
    return frozenset(_TYPES[name] for name in kind.split() if name in _TYPES)


def _through(first: Any, second: Any) -> Any:
    import numpy as np

    return np.where(first < 0, -1, second[first])


def _numbers_of(part: _Part) -> Any:
    """Return the numbers of the records of a part's values, among all records."""
    import numpy as np

    column = part.column
    if column.sparse < 0:
        return np.arange(part.first, part.first + column.held)
    numbers = np.frombuffer(_bytes_of(part.block, column.sparse, 4 * column.held), dtype="<u4").astype(np.int64)
    if int(numbers.max()) >= part.block.records:
        raise _damaged(column.key)
    return numbers + part.first


def _numbers_in(part: _Part) -> Any:
    import numpy as np

    column = part.column
    return np.frombuffer(_bytes_of(part.block, column.start, column.size), dtype=_DTYPES[column.kind])


def _values_in(part: _Part) -> list[Value]:
    column = part.column
    if column.kind in _DTYPES:
        return list(_numbers_in(part).tolist())
    try:
        values = [checked(value) for value in json.loads(_bytes_of(part.block, column.start, column.size))]
    except (ValueError, RecursionError, TypeError):
        values = []
    if len(values) != column.held or not set(map(type, values)) <= _types(column.kind):
        raise _damaged(column.key)
    return values


def _bytes_of(block: Block, start: int, size: int) -> bytes:
    data = block.read(start, size)
    if len(data) < size:
        raise _damaged("a block")
    return data


def _damaged(what: str) -> TrackError:
    return TrackError(
        f"cannot read {what!r} in metrics.columns of a run: it was damaged or replaced; expected the file as it was "
        "written. Remove it: it is made again from metrics.jsonl."
    )


def as_float(value: Any) -> float:
    """Return a number as a float; an int beyond the largest one is infinite."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


class Table:
    """A journal by key.

    Attributes:
        step_array: int64 array of shape (rows,), the steps in the order of writing.
        time_array: float64 array of shape (rows,), epoch seconds.
        attempt_array: int64 array of shape (rows,), from 1.
        cells: What each key fills, in the order in which keys were first recorded.
    """

    def __init__(
        self, steps: Any = (), times: Any = (), attempts: Any = (), cells: Mapping[str, Cells] | None = None
    ) -> None:
        import numpy as np

        self.step_array = np.asarray(steps, dtype=np.int64)
        self.time_array = np.asarray(times, dtype=np.float64)
        self.attempt_array = np.asarray(attempts, dtype=np.int64)
        self.cells: dict[str, Cells] = dict(cells or {})

    def __len__(self) -> int:
        return len(self.step_array)

    @cached_property
    def steps(self) -> list[int]:
        """The steps as ints."""
        return list(self.step_array.tolist())

    @cached_property
    def times(self) -> list[float]:
        """The times as floats."""
        return list(self.time_array.tolist())

    @cached_property
    def attempts(self) -> list[int]:
        """The attempts as ints."""
        return list(self.attempt_array.tolist())

    @property
    def step_range(self) -> tuple[int, int] | None:
        """The lowest and the highest step; None without rows."""
        return (int(self.step_array.min()), int(self.step_array.max())) if len(self) else None

    @property
    def time_range(self) -> tuple[float, float] | tuple[None, None]:
        """The first and the last time, in epoch seconds; None and None without rows."""
        return (float(self.time_array.min()), float(self.time_array.max())) if len(self) else (None, None)

    def of_attempt(self, attempt: int) -> Table:
        """Return the rows of one attempt alone."""
        return self.only(self.attempt_array == attempt)

    def only(self, keep: Any) -> Table:
        """Return the rows that a mask of shape (rows,) keeps."""
        import numpy as np

        if keep.all():
            return self
        rows = np.where(keep, np.cumsum(keep) - 1, -1)
        cells = {key: old.of(rows) for key, old in self.cells.items()}
        return Table(
            self.step_array[keep],
            self.time_array[keep],
            self.attempt_array[keep],
            {key: value for key, value in cells.items() if value.count},
        )

    def with_cells(self, cells: Mapping[str, Cells]) -> Table:
        """Return the same rows with other cells."""
        return Table(self.step_array, self.time_array, self.attempt_array, cells)


def gather(rows: Iterable[Row]) -> Table:
    """Turn rows of metrics, in their order, into a `Table`; a step that was recorded twice stays twice."""
    part = ParsedLines(0, 0)
    for row in rows:
        part.records.add(row["t"], row["step"], row.get("a", 1), False, row["m"])
    return table_of([pack(part, 0)])


def table_of(blocks: Sequence[Block]) -> Table:
    """Return the rows that blocks hold; values that came late are in the row that they belong to.

    A value comes late for the last row before it of the same attempt and step. Without such a row it is a row itself.
    """
    import numpy as np

    parts: dict[str, list[_Part]] = {}
    records = 0
    for block in blocks:
        for column in block.columns:
            parts.setdefault(column.key, []).append(_Part(block, column, records))
        records += block.records
    times, steps, attempts, late = _of_records(blocks, records)
    if not late.any():
        return Table(steps, times, attempts, {key: Cells(held, records, None) for key, held in parts.items()})
    rows, is_row = _rows_of(steps, attempts, late.astype(np.bool_))
    cells = {key: Cells(held, records, rows) for key, held in parts.items()}
    # In the order of rows, as they are when all has come: a late value belongs to an early row.
    order = sorted(cells, key=lambda key: int(cells[key].index_array[0]))
    return Table(steps[is_row], times[is_row], attempts[is_row], {key: cells[key] for key in order})


def _of_records(blocks: Sequence[Block], records: int) -> list[Any]:
    """Return times, steps, attempts and marks of late values of all records."""
    import numpy as np

    arrays: list[Any] = [np.empty(records, kind) for kind in OF_RECORDS.values()]
    first = 0
    for block in blocks:
        offset, last = 0, first + block.records
        for whole in arrays:
            size = whole.itemsize * block.records
            whole[first:last] = np.frombuffer(_bytes_of(block, offset, size), dtype=whole.dtype)
            offset += size
        first = last
    return arrays


def _rows_of(steps: Any, attempts: Any, late: Any) -> tuple[Any, Any]:
    """Return the row of each record, and a mask of the records that are rows themselves."""
    import numpy as np

    records = np.arange(len(steps))
    order = np.lexsort((records, steps, attempts))
    sorted_steps, sorted_attempts = steps[order], attempts[order]
    begins: Any = np.ones(len(order), np.bool_)
    begins[1:] = (sorted_steps[1:] != sorted_steps[:-1]) | (sorted_attempts[1:] != sorted_attempts[:-1])
    begin = np.maximum.accumulate(np.where(begins, records, 0))
    row = np.maximum.accumulate(np.where(late[order], -1, records))  # the last row up to here, perhaps of another step
    owner: Any = np.empty(len(order), np.int64)
    owner[order] = np.where(row >= begin, order[np.maximum(row, 0)], order)
    is_row = owner == records
    return (np.cumsum(is_row) - 1)[owner], is_row


def _firsts(table: Table) -> tuple[Any, Any]:
    """Return the attempts, ascending, and the lowest step of each."""
    import numpy as np

    order = np.argsort(table.attempt_array, kind="stable")
    attempts = table.attempt_array[order]
    if not len(attempts):
        return attempts, attempts
    starts = np.flatnonzero(np.append(True, attempts[1:] != attempts[:-1]))
    return attempts[starts], np.minimum.reduceat(table.step_array[order], starts)


def first_steps(table: Table) -> dict[int, int]:
    """Return the lowest step of each attempt."""
    attempts, steps = _firsts(table)
    return dict(zip(attempts.tolist(), steps.tolist(), strict=True))


def restarts(table: Table) -> list[int]:
    """Return the lowest step of each attempt after the first."""
    return [step for _, step in sorted(first_steps(table).items())[1:]]


def counted(table: Table) -> Table:
    """Return the rows that count in a run that was started again."""
    return table if not len(table) or table.attempt_array[-1] == 1 else table.only(counts(table))


def counts(table: Table) -> Any:
    """Return which rows count, as an array of bools.

    A later attempt continues from a checkpoint, so what earlier ones recorded from its first step on was overtaken by
    it.
    """
    import numpy as np

    if not len(table):
        return np.ones(0, dtype=bool)
    attempts, first = _firsts(table)
    bounds = np.minimum.accumulate(first[::-1])[::-1][1:]  # of each attempt but the last: what the later ones begin at
    of_row = np.searchsorted(attempts, table.attempt_array)
    return (of_row == len(bounds)) | (table.step_array < np.append(bounds, 0)[of_row])
