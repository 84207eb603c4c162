"""Export a run as ``<name>.h5``: one flat HDF5 group that plain h5py reads and xarray opens as a netCDF-4 file.

    dimension   draw         one row of the journal each; a variable 0, 1, 2, …
    coordinate  step         int64 (draw), the caller's step
    coordinate  logged_at    float64 (draw), epoch seconds
    coordinate  attempt      int64 (draw), only in a run that was started again
    coordinate  counts       int8 (draw), attribute dtype="bool": 0 where a later attempt has recorded the step again
    variables                one for each metric, see `ezpz.track.columns`; ``train/loss`` is called ``train_loss``,
                             the later of two that collide ``train_loss_2``; the attribute ``key`` is the metric's own
                             name; over all ranks ``train_loss_mean`` and more, see `rank_columns`
    attributes  ezpz_schema  1
                name, time   of the run, as the caller gives them

An export is made from the journal at any time and any number of times; the same rows make the same file.
"""

from __future__ import annotations

import io
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from ezpz.errors import TrackError, UsageError
from ezpz.files import Replacement
from ezpz.track.by_rank import held, rank_values, statistic
from ezpz.track.columns import Column, ExportNames, build_columns
from ezpz.track.names import is_counter
from ezpz.track.run_folder import is_folder_name
from ezpz.track.run_reader import open_run
from ezpz.track.table import counts
from ezpz.track.values import encode

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from io import BufferedRandom
    from pathlib import Path

    from ezpz.track.journal_reader import Row
    from ezpz.track.table import Cells, Table
    from ezpz.track.values import Value

SCHEMA = 1
FORMS = ("h5", "nc", "csv")

# A netCDF-4 dimension without a variable is an HDF5 scale whose NAME is this text and its length, 10 wide
# (netCDF-4 file format, "Dimensions without coordinate variables").
_MOST_IN_ORDER = 1000  # columns that keep the order in which they were recorded; more are in the order of their names
# HDF5 keeps an attribute of at most 64 KB in a form that all its versions read, and the list of a scale's variables
# takes 16 bytes of each. Readers find a variable's scales by the variable's own list; this one may be missing.
_MOST_LISTED = 4000
_NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable.%10d"


def write_dataset(path: Path, rows: Table, attrs: Mapping[str, str], windows: Sequence[Row] = ()) -> None:
    """Write an export in one move: readers see the old file or the new one, never half of one.

    Args:
        path: The file; an older one is replaced.
        rows: Rows by key, from `ezpz.track.table.gather`.
        attrs: Attributes of the file, such as the run's name and time.
        windows: Records over all ranks.

    Raises:
        TrackError: The file cannot be written. The journal has every row still.
    """
    with _saving(path) as draft:
        _write(draft, rows, attrs, windows)


def dataset_image(rows: Table, attrs: Mapping[str, str], windows: Sequence[Row] = ()) -> bytes:
    """Return the bytes of what `write_dataset` writes, for the same arguments."""
    draft = io.BytesIO()
    _write(draft, rows, attrs, windows)
    return draft.getvalue()


def _write(draft: BinaryIO, rows: Table, attrs: Mapping[str, str], windows: Sequence[Row]) -> None:
    import h5py

    # A reader that asks HDF5 for the name of a variable's dimension, as h5netcdf does, has it walk over all links. In a
    # group that keeps their order that takes so long that thousands of columns could not be opened.
    keeps_order = len(rows.cells) + len(_rank_keys(windows)) * (len(_STATISTICS) + 1) <= _MOST_IN_ORDER

    sink = _Sink(draft)
    # Through an object of ours: no lock is asked of file systems that have none.
    with h5py.File(sink, "w", track_order=keeps_order) as file:
        axes = "step logged_at attempt counts" if _again(rows) else "step logged_at counts"
        file.attrs.update({"ezpz_schema": SCHEMA, **attrs, "coordinates": axes})
        _write_columns(file, rows, windows)
    if sink.error is not None:
        raise sink.error


class _Sink(io.RawIOBase):
    """A file for HDF5 that never fails: an error in the middle of a call would leave its library in pieces.

    Attributes:
        error: The first error that a write met.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            if self.error is None:
                self._file.write(data)
        except OSError as error:
            self.error = error
        return len(data)

    def readinto(self, data: Any) -> int:
        try:
            return self._file.readinto(data)  # type: ignore[attr-defined, no-any-return]  # of a file or of BytesIO
        except OSError as error:
            self.error = self.error or error
            return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        try:
            return self._file.seek(offset, whence)
        except OSError as error:  # what is buffered is written first
            self.error = self.error or error
            return offset

    def tell(self) -> int:
        return self._file.tell()

    def truncate(self, size: int | None = None) -> int:
        try:
            return self._file.truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0

    def flush(self) -> None:
        """Leave it to the end."""


def write_csv(path: Path, rows: Table) -> None:
    """Write every row as a line of comma-separated values (RFC 4180, UTF-8) in one move.

    Columns are ``step``, ``logged_at`` (epoch seconds), ``attempt`` and the metrics by their own names. What is missing
    is empty, NaN and infinities are ``NaN``, ``Infinity`` and ``-Infinity``, lists and histograms are JSON.

    Raises:
        TrackError: The file cannot be written.
    """
    import csv

    cells = {key: cell for key, cell in rows.cells.items() if key != "step"}
    columns = [_lines_of(cell, len(rows)) for cell in cells.values()]
    with _saving(path) as draft:
        text = io.TextIOWrapper(draft, "utf-8", "backslashreplace", newline="")
        writer = csv.writer(text)
        writer.writerow(["step", "logged_at", "attempt", *cells])
        for start in range(0, len(rows), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            axes = [each[part].tolist() for each in (rows.step_array, rows.time_array, rows.attempt_array)]
            writer.writerows(zip(*axes, *(column(start) for column in columns), strict=True))
        text.detach()


_AT_ONCE = 8192  # rows of a CSV


def _lines_of(cells: Cells, rows: int) -> Callable[[int], list[object]]:
    """Return what gives the cells of one column in the `_AT_ONCE` rows from one on."""
    import numpy as np

    known = cells.array()
    values: Any = cells.values if known is None else known
    index = cells.index_array if cells.count < rows else None

    def shown(start: int, stop: int) -> list[object]:
        some = values[start:stop]
        if known is None or (known.dtype.kind == "f" and not np.isfinite(some).all()):
            return list(map(_cell, some if known is None else some.tolist()))
        return list(some.tolist())

    def column(start: int) -> list[object]:
        stop = min(rows, start + _AT_ONCE)
        if index is None:
            return shown(start, stop)
        bounds: Any = np.searchsorted(index, (start, stop))
        first, last = bounds.tolist()
        lines: list[object] = [""] * (stop - start)
        for place, value in zip((index[first:last] - start).tolist(), shown(first, last), strict=True):
            lines[place] = value
        return lines

    return column


def _cell(value: Value) -> object:
    shown = encode(value)
    return json.dumps(shown) if isinstance(shown, (list, dict)) else shown if value != shown else value


@contextmanager
def _saving(path: Path) -> Iterator[BufferedRandom]:
    """Give a file to write, which takes its place when the block ends."""
    try:
        with Replacement(path, closed=True, sync=True) as draft:
            yield draft
    except OSError as error:
        raise TrackError(
            f"cannot write the export {path}: {error.strerror} (from History.export); expected a folder with room. "
            f"metrics.jsonl stays as it is: `ezpz export` makes the file from it when there is room."
        ) from None
    except (RuntimeError, ValueError, TypeError, KeyError) as error:  # what HDF5 and h5py raise
        raise TrackError(
            f"cannot write the export {path}: {type(error).__name__}: {error}; metrics.jsonl has every row."
        ) from error


def export_run(folder: str | os.PathLike[str], form: str = "h5", path: Path | None = None) -> Path:
    """Make an export of a run, also of one that still writes or was killed, from its journal.

    Args:
        folder: The run folder.
        form: ``h5``; ``nc``, the same file under the name that netCDF programs look for; or ``csv``.
        path: Where to write; by default ``<name>.<form>`` in the run folder.

    Returns:
        Path of the file.

    Raises:
        UsageError: The folder is no run, or the form is unknown.
        TrackError: The journal is unreadable; or as `write_dataset`.
    """
    check_form(form)
    run = open_run(folder)
    name = run.name if is_folder_name(run.name) else "run"  # a run.json may be anybody's: no other folder is written
    target = path or run.folder / f"{name}.{form}"
    if form == "csv":
        write_csv(target, run.rows)
    else:
        write_dataset(target, run.rows, {"name": name, "time": run.record.started}, run.windows)
    return target


def check_form(form: str) -> None:
    """Refuse a form that no export has.

    Raises:
        UsageError: It is none of `FORMS`.
    """
    if form not in FORMS:
        raise UsageError(f"cannot export {form!r} (from the form of an export); expected one of {', '.join(FORMS)}.")


def _again(rows: Table) -> bool:
    return len(rows) > 0 and bool(rows.attempt_array.max() > 1)


def _variables(rows: Table, windows: Sequence[Row]) -> Iterator[Column]:
    """Yield the coordinates, the metrics, and what was gathered over ranks."""
    yield Column("step", rows.step_array, {})
    yield Column("logged_at", rows.time_array, {"long_name": "epoch seconds"})
    if _again(rows):
        yield Column("attempt", rows.attempt_array, {})
    yield Column(
        "counts", counts(rows).astype("int8"), {"dtype": "bool", "long_name": "not recorded again after a resume"}
    )
    taken: set[str] = set()
    names = ExportNames()
    for column in build_columns(rows, names):
        taken.update((column.name, *column.dims))
        yield column
    yield from rank_columns(windows, rows, taken, names)


def _write_columns(file: Any, rows: Table, windows: Sequence[Row]) -> None:
    import numpy as np

    scales = {"draw": _scale(file, "draw", np.arange(len(rows), dtype=np.int64))}
    places: dict[str, list[tuple[Any, int]]] = {}  # of each scale: the variables that it belongs to, and their axes
    for column in _variables(rows, windows):
        if column.dims == (column.name,):  # a dimension with a variable of its own
            scales[column.name] = _scale(file, column.name, column.data)
            continue
        variable = _create(file, column.name, column.data)
        texts = {
            name: text.encode("utf-8", "backslashreplace") for name, text in column.attrs.items() if type(text) is str
        }
        variable.attrs.update({**column.attrs, **{name: text.decode() for name, text in texts.items()}})
        for axis, dim in enumerate(column.dims):
            if dim not in scales:
                width = column.data.shape[axis]
                scales[dim] = _scale(file, dim, np.zeros(width, dtype=np.float32), _NO_VARIABLE % width)
            places.setdefault(dim, []).append((variable.ref, axis))
        _attach(variable, [scales[dim] for dim in column.dims])
    for dim, variables in places.items():
        if len(variables) <= _MOST_LISTED:
            _list_variables(scales[dim], variables)


# What `attach_scale` of h5py does ("HDF5 Dimension Scale Specification", 2.0), which writes the list of a scale's
# variables anew for each of them.


def _attach(variable: Any, scales: Sequence[Any]) -> None:
    import h5py
    import numpy as np

    each: Any = np.empty(len(scales), dtype=object)
    for axis, scale in enumerate(scales):
        each[axis] = np.array([scale.ref], dtype=h5py.ref_dtype)
    variable.attrs.create("DIMENSION_LIST", each, dtype=h5py.vlen_dtype(h5py.ref_dtype))


def _list_variables(scale: Any, variables: Sequence[tuple[Any, int]]) -> None:
    import h5py
    import numpy as np

    form: Any = {"names": ["dataset", "dimension"], "formats": [h5py.ref_dtype, np.int32], "offsets": [0, 8]}
    kind = np.dtype({**form, "itemsize": 16})
    listed: Any = np.empty(len(variables), dtype=kind)
    listed["dataset"], listed["dimension"] = [ref for ref, _ in variables], [axis for _, axis in variables]
    scale.attrs.create("REFERENCE_LIST", listed, dtype=kind)


def _scale(file: Any, name: str, data: Any, label: str = "") -> Any:
    scale = file.create_dataset(name, data=data)
    scale.make_scale(label or name)
    return scale


def _create(file: Any, name: str, data: Any) -> Any:
    import h5py

    if data.dtype == object:
        return file.create_dataset(name, data=data, dtype=h5py.string_dtype("utf-8"))
    return file.create_dataset(name, data=data)


# The variables of values over all ranks.
#
#     ranks_held                      int64 (draw), how many ranks' rows the statistics of a step are made of; 0 at
#                                     steps that no window holds
#     <key>_mean  _min  _max  _std    float64 (draw), NaN at those steps
#     <key>_ranks                     float64 (rank_step, rank), each rank's own values; NaN where it recorded none
#     rank_step                       int64 (rank_step), the steps of those rows; of a world of more than 64 ranks,
#                                     which keeps one mean per window, the last step of each window
#
# Counters (``iter``, ``epoch``, …) have none. Where a metric of the user has one of these names already, that metric
# stays: the derived one is left out, a dimension gets ``_`` after its name.

_STATISTICS = ("mean", "min", "max", "std")


def _rank_keys(windows: Sequence[Row]) -> list[str]:
    """Return the metrics that have statistics over the ranks."""
    return list(dict.fromkeys(key for window in windows for key in window["m"]["keys"] if not is_counter(key)))


def rank_columns(
    windows: Sequence[Row], rows: Table, taken: Collection[str], names: ExportNames | None = None
) -> Iterator[Column]:
    """Build the variables, one metric after the other.

    Args:
        windows: Records over all ranks, in the order of writing.
        rows: The rows to whose steps statistics belong.
        taken: Names that other variables have.
        names: Those of the metrics themselves.

    Yields:
        The columns, none for a world of one.
    """
    import numpy as np

    if not windows:
        return
    names = ExportNames() if names is None else names
    given = set(taken)
    stepwise, rankwise = (_free(name, taken) for name in ("rank_step", "rank"))
    draws = {key: number for number, key in enumerate(zip(rows.attempts, rows.steps, strict=True))}
    moments = _moments(windows)
    world = max(window["m"]["world"] for window in windows)
    count: Any = np.zeros(len(rows.steps), dtype=np.int64)
    within: dict[str, list[tuple[Row, Any, Any]]] = {}  # of each metric: its windows, their rows, and places of these
    for window in windows:
        at = [draws.get((window["a"], step)) for step in window["m"]["steps"]]
        there = [index for index, draw in enumerate(at) if draw is not None]
        lines = np.array([at[index] for index in there], dtype=np.int64)
        count[lines] = np.array(held(window))[there]
        for key in window["m"]["keys"]:
            within.setdefault(key, []).append((window, lines, there))
    yield Column(stepwise, np.array([step for _, step in moments], dtype=np.int64), {}, (stepwise,))
    if "ranks_held" not in given:
        yield Column("ranks_held", count, {"over": "ranks", "statistic": "count"})
    for key in _rank_keys(windows):
        for column in _over_ranks(names.add(key), key, within[key], rows=len(rows), moments=moments, world=world):
            if column.name not in given:
                given.add(column.name)
                column.dims = (stepwise, rankwise) if len(column.dims) > 1 else column.dims
                yield column


def _over_ranks(
    name: str,
    key: str,
    windows: Sequence[tuple[Row, Any, Any]],
    *,
    rows: int,
    moments: Mapping[tuple[int, int], int],
    world: int,
) -> Iterator[Column]:
    """Yield the statistics of one metric, and its values of each rank."""
    import numpy as np

    lines = {what: np.full(rows, np.nan) for what in _STATISTICS}
    matrix = np.full((len(moments), world), np.nan)
    for window, at, there in windows:
        for what, line in lines.items():
            line[at] = statistic(window, key, what)[there]
        by_rank = rank_values(window, key)
        if by_rank is not None:
            steps, values = by_rank
            matrix[[moments[window["a"], int(step)] for step in steps], : len(values)] = values.T
    for what, line in lines.items():
        yield Column(f"{name}_{what}", line, {"key": key, "over": "ranks", "statistic": what})
    yield Column(f"{name}_ranks", matrix, {"key": key, "over": "ranks"}, ("rank_step", "rank"))


def _free(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _of(window: Row) -> list[tuple[int, int]]:
    """Return (attempt, step) of each value that a window keeps of a rank."""
    steps = window["m"]["steps"] if window["m"]["every"] else window["m"]["steps"][-1:]
    return [(window["a"], step) for step in steps]


def _moments(windows: Sequence[Row]) -> dict[tuple[int, int], int]:
    every = dict.fromkeys(moment for window in windows for moment in _of(window))
    return {moment: number for number, moment in enumerate(every)}
