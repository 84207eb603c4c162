"""Export a run as ``<name>.h5``: one flat HDF5 group that plain h5py reads and xarray opens as a netCDF-4 file.

    dimension   draw         one row of the journal each; a variable 0, 1, 2, …
    coordinate  step         int64 (draw), the caller's step
    coordinate  logged_at    float64 (draw), epoch seconds
    coordinate  attempt      int64 (draw), only in a run that was started again
    variables                one for each metric, see `ezpz.track.columns`; ``train/loss`` is called ``train_loss``
                             over all ranks ``train_loss_mean`` and more, see `rank_columns`
    attributes  ezpz_schema  1
                name, time   of the run, as the caller gives them

An export is made from the journal at any time and any number of times; the same rows make the same file.
"""

from __future__ import annotations

import io
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ezpz.errors import TrackError, UsageError
from ezpz.files import Replacement
from ezpz.track.by_rank import held, rank_values, statistic
from ezpz.track.columns import Column, build_columns, export_name
from ezpz.track.folder import is_folder_name
from ezpz.track.names import is_counter
from ezpz.track.run import open_run
from ezpz.track.values import encode

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from io import BufferedRandom
    from pathlib import Path

    from ezpz.track.records import Row
    from ezpz.track.table import Cells, Table
    from ezpz.track.values import Value

SCHEMA = 1
FORMS = ("h5", "nc", "csv")

# A netCDF-4 dimension without a variable is an HDF5 scale whose NAME is this text and its length, 10 wide
# (netCDF-4 file format, "Dimensions without coordinate variables").
_NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable.%10d"


def write_dataset(path: Path, rows: Table, attrs: Mapping[str, str], windows: Sequence[Row] = ()) -> None:
    """Write an export in one move: readers see the old file or the new one, never half of one.

    Args:
        path: The file; an older one is replaced.
        rows: Rows by key, from `ezpz.track.table.gather`.
        attrs: Attributes of the file, such as the run's name and time.
        windows: Records over all ranks.

    Raises:
        TrackError: Two metrics would get one name, or the file cannot be written. The journal has every row still.
    """
    import h5py

    with _saving(path) as draft:
        sink = _Sink(draft)
        # Through an object of ours: no lock is asked of file systems that have none.
        with h5py.File(sink, "w", track_order=True) as file:
            axes = "step logged_at attempt" if _again(rows) else "step logged_at"
            file.attrs.update({"ezpz_schema": SCHEMA, **attrs, "coordinates": axes})
            _write_columns(file, rows, windows)
        if sink.error is not None:
            raise sink.error


class _Sink(io.RawIOBase):
    """A file for HDF5 that never fails: an error in the middle of a call would leave its library in pieces.

    Attributes:
        error: The first error that a write met.
    """

    def __init__(self, file: BufferedRandom) -> None:
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
            return self._file.readinto(data)
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
        write_dataset(target, run.rows, {"name": name, "time": str(run.facts.get("started", ""))}, run.windows)
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
    taken: set[str] = set()
    for column in build_columns(rows):
        taken.update((column.name, *column.dims))
        yield column
    yield from rank_columns(windows, rows, taken)


def _write_columns(file: Any, rows: Table, windows: Sequence[Row]) -> None:
    import numpy as np

    scales = {"draw": _scale(file, "draw", np.arange(len(rows), dtype=np.int64))}
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
            variable.dims[axis].attach_scale(scales[dim])


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


def rank_columns(windows: Sequence[Row], rows: Table, taken: Collection[str]) -> list[Column]:
    """Build the variables.

    Args:
        windows: Records over all ranks, in the order of writing.
        rows: The rows to whose steps statistics belong.
        taken: Names that other variables have.

    Returns:
        The columns, none for a world of one.
    """
    import numpy as np

    if not windows:
        return []
    stepwise, rankwise = (_free(name, taken) for name in ("rank_step", "rank"))
    draws = {key: number for number, key in enumerate(zip(rows.attempts, rows.steps, strict=True))}
    moments = _moments(windows)
    world = max(window["m"]["world"] for window in windows)
    count: Any = np.zeros(len(rows.steps), dtype=np.int64)
    for window in windows:
        for step, ranks in zip(window["m"]["steps"], held(window), strict=True):
            draw = draws.get((window["a"], step))
            if draw is not None:
                count[draw] = ranks
    columns = [
        Column(stepwise, np.array([step for _, step in moments], dtype=np.int64), {}, (stepwise,)),
        Column("ranks_held", count, {"over": "ranks", "statistic": "count"}),
    ]
    for key in dict.fromkeys(key for window in windows for key in window["m"]["keys"] if not is_counter(key)):
        name = export_name(key)
        lines = {what: np.full(len(rows.steps), np.nan) for what in _STATISTICS}
        matrix = np.full((len(moments), world), np.nan)
        for window in windows:
            if key not in window["m"]["keys"]:
                continue
            at = [draws.get((window["a"], step)) for step in window["m"]["steps"]]
            there = [index for index, draw in enumerate(at) if draw is not None]
            for what, line in lines.items():
                line[[at[index] for index in there]] = statistic(window, key, what)[there]
            by_rank = rank_values(window, key)
            if by_rank is not None:
                steps, values = by_rank
                matrix[[moments[window["a"], int(step)] for step in steps], : len(values)] = values.T
        columns += [
            Column(f"{name}_{what}", line, {"key": key, "over": "ranks", "statistic": what})
            for what, line in lines.items()
        ]
        columns.append(Column(f"{name}_ranks", matrix, {"key": key, "over": "ranks"}, (stepwise, rankwise)))
    return [column for column in columns if column.name not in taken]


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
