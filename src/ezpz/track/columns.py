"""Turn rows into columns: arrays that hold a metric exactly, and a filling for steps at which it was not recorded.

    recorded               column                          where it is missing    beside it
    float, or float/int    float64                         NaN                    <key>_present if a NaN was recorded
    int                    int64; float64, attribute       NaN                    <key>_present if anything is missing
                             recorded="int", if anything
                             is missing
    bool                   int8, attribute dtype="bool";   NaN                    <key>_present if anything is missing
                             float64, recorded="bool"
    str                    text                            ""                     <key>_present if anything is missing
    lists of one length    2-D, by the rules above         a row of the filling   <key>_present if anything is missing
    lists of many lengths  2-D, filled up at the end       as above               <key>_len, the true lengths
    histograms of one      counts, 2-D by the rules above  as above               <key>_edges, once if all are the same,
      number of bins                                                                else 2-D
    anything else          text, attribute encoding="json" ""                     a warning that says why

Ints of which one is beyond 2**53 stay int64, with 0 where they are missing. Anything else is what no single array type
holds exactly: ints beyond 64 bits, floats beside ints beyond 2**53, a number at one step and a string at another.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from ezpz.log import get_logger
from ezpz.track.values import Histogram, Scalar, Value, encode
from ezpz.visible import visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ezpz.track.table import Cells, Table

_TAKEN = {"draw": "dimension", **dict.fromkeys(("step", "logged_at", "attempt", "counts"), "coordinate")}  # no metric's
_EXACT_IN_FLOAT = 2**53  # every int up to here is a float64 of its own


@dataclass
class Column:
    """One variable of the export.

    Attributes:
        name: Its name there.
        data: Array; text is an array of Python strings.
        attrs: Attributes that say how to read it; ``key`` is the metric's own name.
        dims: Names of its dimensions; ``draw`` counts the rows.
    """

    name: str
    data: Any
    attrs: dict[str, str]
    dims: tuple[str, ...] = ("draw",)


def export_name(key: str) -> str:
    """Return the name of a metric outside the journal, where ``/`` would open a group or a folder."""
    return visible(key).replace("/", "_")  # a journal may be anybody's, and UTF-8 has no lone surrogates


class ExportNames:
    """Give each metric a name of its own in the export, in the order in which metrics come.

    Attributes:
        names: The names so far, by metric.
    """

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self._owners: dict[str, str] = {name: f"the {kind} {name!r}" for name, kind in _TAKEN.items()}
        self._last: dict[str, int] = {}  # number that a name was given last, by the name without it

    def add(self, key: str) -> str:
        """Return the name of a metric; the later of two that collide gets ``_2``, or the next number that is free."""
        if key not in self.names:
            self.names[key] = self.free(export_name(key), f"metric {key!r}")
        return self.names[key]

    def free(self, name: str, owner: str) -> str:
        """Return a name that is not taken yet, and take it for its owner, such as ``metric 'loss'``."""
        chosen = name
        while chosen in self._owners:
            self._last[name] = self._last.get(name, 1) + 1
            chosen = f"{name}_{self._last[name]}"
        self._owners[chosen] = owner
        return chosen

    def collision(self, key: str) -> str:
        """Say under which other name a metric is exported, and because of what; "" if it has that of `export_name`."""
        wanted, name = export_name(key), self.names[key]
        if name == wanted:
            return ""
        return (
            f"metric {key!r} is {name!r} in the HDF5 file, where {wanted!r} is {self._owners[wanted]}; "
            f"its attribute 'key' is {key!r}."
        )


def build_columns(table: Table, names: ExportNames | None = None) -> Iterator[Column]:
    """Build every variable of the export, one after the other, so that not all of them are in memory.

    Args:
        table: A run's rows.
        names: Gets the names that are given.

    Yields:
        Columns in the order in which their keys were first recorded; companions follow the column that they explain,
        and give way to metrics that have their names.
    """
    names = ExportNames() if names is None else names
    keys = [key for key, cells in table.cells.items() if not (key == "step" and _is_step(cells, table))]  # a coordinate
    for key in keys:
        names.add(key)
    for key in keys:
        name = names.names[key]
        columns = _columns_of(key, name, table.cells[key], len(table))
        companions = {part: "" for column in columns for part in (column.name, *column.dims)}
        given = {part: names.free(part, f"part of {key!r}") for part in companions if part not in {name, "draw"}}
        for column in columns:
            column.name = given.get(column.name, column.name)
            column.dims = tuple(given.get(dim, dim) for dim in column.dims)
            yield column


def _is_step(cells: Cells, table: Table) -> bool:
    steps, known = cells.pick(table.step_array), cells.array()
    if known is not None:
        return bool((known == steps).all())
    return all(step == value for step, value in zip(steps.tolist(), cells.values, strict=True))


def _columns_of(key: str, name: str, cells: Cells, rows: int) -> list[Column]:
    kinds = cells.kinds
    if kinds == {list}:
        columns = _lists(key, name, cells, cells.values, rows)  # type: ignore[arg-type]  # all are lists
    elif kinds == {Histogram}:
        columns = _histograms(key, name, cells, rows)
    elif kinds & {list, Histogram}:
        columns = []
    else:
        columns = _scalars(key, name, cells, rows)
    if columns:
        return columns
    get_logger(__name__).warning(
        f"metric {key!r} holds values that no one array type can hold exactly ({_reason(cells.values)}); "
        f"the HDF5 file has them as JSON text."
    )
    text = [json.dumps(encode(value)) for value in cells.values]
    return [Column(name, _place(text, cells, rows, ""), {"key": key, "encoding": "json"})]


def _reason(values: Sequence[Value]) -> str:
    kinds = " and ".join(sorted({type(value).__name__ for value in values}))
    samples = [ascii(encode(value)) for value in values]  # a lone surrogate could not be printed
    return f"{kinds}, from {min(samples, key=len)} to {max(samples, key=len)}"[:120]


def _scalars(key: str, name: str, cells: Cells, rows: int) -> list[Column]:
    import numpy as np

    packed = _pack_cells(cells)
    if packed is None:
        return []
    clear = packed[0].dtype.kind == "f" and not np.isnan(packed[0]).any()  # then NaN can only mean missing
    data, fill, attrs = packed if cells.count == rows else _with_nan(*packed)
    column = Column(name, _place(data, cells, rows, fill), {"key": key, **attrs})
    return [column, *_present(key, name, cells, rows, needed=not clear)]


def _lists(key: str, name: str, cells: Cells, lists: Sequence[Sequence[Scalar]], rows: int) -> list[Column]:
    import numpy as np

    packed = _pack(list(chain.from_iterable(lists)))
    if packed is None:
        return []
    lengths = np.array([len(values) for values in lists], dtype=np.int64)
    width = int(lengths.max())
    flat, fill, attrs = packed if cells.count == rows and lengths.min() == width else _with_nan(*packed)
    block = np.full((len(lists), width), fill, dtype=flat.dtype)
    block[np.arange(width) < lengths[:, None]] = flat
    data = _place(block, cells, rows, fill)
    columns = [Column(name, data, {"key": key, **attrs}, dims=("draw", f"{name}_dim"))]
    if lengths.min() < width:
        columns.append(Column(f"{name}_len", _place(lengths, cells, rows, 0), {"length_of": name}))
    return [*columns, *_present(key, name, cells, rows, needed=True)]


def _histograms(key: str, name: str, cells: Cells, rows: int) -> list[Column]:
    import numpy as np

    histograms: list[Histogram] = cells.values  # type: ignore[assignment]  # the caller has seen that all are histograms
    if len({len(each.counts) for each in histograms}) > 1:
        return []
    columns = _lists(key, name, cells, [each.counts for each in histograms], rows)
    if not columns:
        return []
    columns[0].attrs["kind"] = "histogram"
    edges = [each.edges for each in histograms]
    bins = f"{name}_edge"
    note = {"edges_of": name}
    if all(each == edges[0] for each in edges):
        return [*columns, Column(f"{name}_edges", np.array(edges[0], dtype=np.float64), note, (bins,))]
    block = _place(np.array(edges, dtype=np.float64), cells, rows, np.nan)
    return [*columns, Column(f"{name}_edges", block, note, ("draw", bins))]


def _present(key: str, name: str, cells: Cells, rows: int, *, needed: bool) -> list[Column]:
    import numpy as np

    if not needed or cells.count == rows:
        return []
    mask = _place(np.ones(cells.count, dtype=np.int8), cells, rows, 0)
    return [Column(f"{name}_present", mask, {"present_of": key})]


def _place(values: Any, cells: Cells, rows: int, fill: object) -> Any:
    """Return an array of ``rows`` rows that has ``values`` where the cells are, and ``fill`` elsewhere."""
    import numpy as np

    source = values if isinstance(values, np.ndarray) else np.array(values, dtype=object)
    if cells.count == rows:
        return source
    result = np.full((rows, *source.shape[1:]), fill, dtype=source.dtype)
    result[cells.index_array] = source
    return result


def _pack_cells(cells: Cells) -> tuple[Any, object, dict[str, str]] | None:
    """Do as `_pack` with the values of cells, without looking at each where they are arrays already."""
    import numpy as np

    known = cells.array()
    if known is not None:
        if known.dtype.kind == "b":
            return known.astype(np.int8), 0, {"dtype": "bool"}
        return known, np.nan if known.dtype.kind == "f" else 0, {}
    if cells.kinds == {float, int}:
        values = cells.floats()
        if not (np.abs(values[np.isfinite(values)]) >= _EXACT_IN_FLOAT).any():
            return values, np.nan, {}
    return _pack(cells.values)  # type: ignore[arg-type]  # the caller has seen that no value is a list


def _pack(values: Sequence[Scalar]) -> tuple[Any, object, dict[str, str]] | None:
    """Return an array that holds ``values`` exactly, its filling and its attributes; None if there is none."""
    import numpy as np

    kinds = set(map(type, values))
    if kinds == {str}:
        # HDF5 ends a text at its first NUL, and UTF-8 has no lone surrogates.
        sound = not any("\0" in text or not _is_utf8(text) for text in values)  # type: ignore[operator, arg-type]  # all are str
        return (np.array(values, dtype=object), "", {}) if sound else None
    if kinds == {bool}:
        return np.array(values, dtype=np.int8), 0, {"dtype": "bool"}  # xarray shows this pair as bool
    if str in kinds:
        return None
    if float in kinds or not kinds:
        exact = all(type(value) is float or abs(value) <= _EXACT_IN_FLOAT for value in values)  # type: ignore[arg-type]  # numbers only
        return (np.array(values, dtype=np.float64), np.nan, {}) if exact else None
    if min(values) >= -(2**63) and max(values) < 2**63:  # type: ignore[operator]  # ints only
        return np.array(values, dtype=np.int64), 0, {}
    return None


def _with_nan(data: Any, fill: object, attrs: dict[str, str]) -> tuple[Any, object, dict[str, str]]:
    """Return what `_pack` does, with ints and bools as floats where that is exact: NaN can then say what is missing."""
    import numpy as np

    if data.dtype.kind != "i" or ((data > _EXACT_IN_FLOAT) | (data < -_EXACT_IN_FLOAT)).any():
        return data, fill, attrs
    return data.astype(np.float64), np.nan, {"recorded": attrs.get("dtype", "int")}


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
