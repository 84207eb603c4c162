"""The export ``<name>.h5``: one flat HDF5 group that plain h5py reads and that xarray opens as a netCDF-4 file.

    dimension   draw         one row of the journal each; a variable 0, 1, 2, …
    coordinate  step         int64 (draw), the caller's step
    coordinate  logged_at    float64 (draw), epoch seconds
    variables                one for each metric, see `ezpz.track.columns`; ``train/loss`` is called ``train_loss``
    attributes  ezpz_schema  1
                name, time   of the run, as the caller gives them

An export is made from the journal at any time and any number of times; the same rows make the same file.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ezpz.errors import TrackError
from ezpz.track.columns import Column, Table, build_columns, gather
from ezpz.track.folder import write_atomically
from ezpz.track.journal import read_journal

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["empty_dataset", "export_run", "open_dataset", "write_dataset"]

SCHEMA = 1

# A netCDF-4 dimension without a variable is an HDF5 scale whose NAME is this text and its length, 10 wide
# (netCDF-4 file format, "Dimensions without coordinate variables").
_NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable.%10d"


def write_dataset(path: Path, table: Table, attrs: Mapping[str, str]) -> None:
    """Write an export in one move: readers see the old file or the new one, never half of one.

    Args:
        path: The file; an older one is replaced.
        table: Rows by key, from `ezpz.track.columns.gather`.
        attrs: Attributes of the file, such as the run's name and time.

    Raises:
        TrackError: Two metrics would get one name, or the file cannot be written. The journal has every row still.
    """
    import h5py

    columns = build_columns(table)
    # The file is built in memory: no lock is asked of file systems that have none, and it lands whole.
    with h5py.File(path.name, "w", driver="core", backing_store=False, track_order=True) as file:
        file.attrs.update({"ezpz_schema": SCHEMA, **attrs, "coordinates": "step logged_at"})
        _write_columns(file, table, columns)
        file.flush()
        image = file.id.get_file_image()
    try:
        write_atomically(path, image)
    except OSError as error:
        raise TrackError(
            f"cannot write the export {path}: {error.strerror} (from History.export); expected a folder with room. "
            f"Every row is safe in metrics.jsonl."
        ) from error


def export_run(folder: str | os.PathLike[str]) -> Path:
    """Make the export of a run that ended without one, from its journal and ``run.json``.

    Args:
        folder: The run folder.

    Returns:
        Path of the HDF5 file.

    Raises:
        TrackError: A file of the run is missing or unreadable; or as `write_dataset`.
    """
    path = Path(folder) / "run.json"
    try:
        facts = json.loads(path.read_bytes())
        name, started = str(facts["name"]), str(facts["started"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrackError(f"cannot read {path}: {error!r} (from the run folder); expected a run of ezpz.") from error
    target = path.with_name(f"{name}.h5")
    write_dataset(target, gather(read_journal(path.with_name("metrics.jsonl"))), {"name": name, "time": started})
    return target


def _write_columns(file: Any, table: Table, columns: list[Column]) -> None:
    import numpy as np

    rows = len(table.steps)
    draw = file.create_dataset("draw", data=np.arange(rows, dtype=np.int64))
    draw.make_scale("draw")
    coordinates = [
        Column("step", np.array(table.steps, dtype=np.int64), {}),
        Column("logged_at", np.array(table.times, dtype=np.float64), {"long_name": "epoch seconds"}),
    ]
    for column in [*coordinates, *columns]:
        variable = _create(file, column.name, column.data)
        variable.attrs.update(column.attrs)
        variable.dims[0].attach_scale(draw)
        if column.dim:
            width = column.data.shape[1]
            scale = file.create_dataset(column.dim, data=np.zeros(width, dtype=np.float32))
            scale.make_scale(_NO_VARIABLE % width)
            variable.dims[1].attach_scale(scale)


def _create(file: Any, name: str, data: Any) -> Any:
    import h5py

    if data.dtype == object:
        return file.create_dataset(name, data=data, dtype=h5py.string_dtype("utf-8"))
    return file.create_dataset(name, data=data)


def open_dataset(path: Path) -> Any:
    """Return an export as an ``xarray.Dataset`` that is in memory; the file is closed again."""
    import xarray as xr

    # From memory, so that neither a lock nor an open file stays behind: HDF5 refuses to replace what it has open.
    with xr.open_dataset(io.BytesIO(path.read_bytes()), engine="h5netcdf", decode_times=False) as dataset:
        return dataset.load()


def empty_dataset() -> Any:
    """Return the ``xarray.Dataset`` of a process that records nothing."""
    import xarray as xr

    return xr.Dataset()
