"""Copy a run to ``trackers/metrics.csv``, which every spreadsheet opens: a line per row, a column per metric.

    step,train/loss,note,eval/loss
    0,0.5,warm up,
    10,0.25,,0.75

A column that appears late is added at the right; the file is then written anew in one move, so that a reader never
finds lines of two headers. Lists and histograms are JSON in their cell.
"""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

from ezpz.files import Replacement, make_closed_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ezpz.track.tracker_protocol import About, Row
    from ezpz.track.values import Value


class CsvTracker:
    """Writes the CSV file; one that is there already is added to."""

    name = "csv"

    def __init__(self) -> None:
        self._path: Path
        self._columns: list[str] = []
        self._file: Any = None

    def start(self, about: About) -> dict[str, object]:
        """Open the file, and take out a last line that a crash tore."""
        self._path = about.folder / "trackers" / "metrics.csv"
        make_closed_folder(self._path.parent)
        if self._path.exists() and self._path.stat().st_size:
            with self._path.open(newline="", encoding="utf-8") as file:
                self._columns = next(csv.reader(file), [])
            if self._columns[:1] != ["step"]:
                raise ValueError(f"{self._path} does not begin with 'step'")
            with self._path.open("rb") as file:
                file.seek(-1, 2)
                torn = file.read() != b"\n"
            if torn:
                self._write_anew(drop_last=True)
        else:
            self._columns = ["step"]
            self._write_anew(drop_last=False)
        self._open()
        return {}

    def log(self, step: int, values: Mapping[str, Value]) -> None:
        """Append one line."""
        self.log_rows([(step, 0.0, values)])

    def log_rows(self, rows: Sequence[Row]) -> None:
        """Append a line each, in one write."""
        new = [key for _, _, values in rows for key in values]
        new = [key for key in dict.fromkeys(new) if key not in self._columns]
        if new:
            self._columns += new
            self._file.close()
            self._write_anew(drop_last=False)
            self._open()
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        for step, _, values in rows:
            cells = {**values, "step": step}
            writer.writerow([_cell(cells[key]) if key in cells else "" for key in self._columns])
        self._file.write(text.getvalue().encode())

    def config(self, config: Mapping[str, object]) -> None:
        """Leave the configuration to ``run.json``."""

    def finish(self, state: str) -> None:  # noqa: ARG002  # a CSV file has no place for it
        """Close the file."""
        self._file.close()

    def _open(self) -> None:
        self._file = self._path.open("ab", buffering=0)

    def _write_anew(self, *, drop_last: bool) -> None:
        """Write the header and the lines so far, with an empty cell for each column that they lack, in one move."""
        with Replacement(self._path, closed=True) as file:
            text = io.TextIOWrapper(file, encoding="utf-8", newline="")
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(self._columns)
            if self._path.exists():
                with self._path.open(newline="", encoding="utf-8") as old:
                    self._copy(csv.reader(old), writer, drop_last=drop_last)
            text.detach()  # flushes, and leaves the file open for its last move

    def _copy(self, reader: Any, writer: Any, *, drop_last: bool) -> None:
        next(reader, None)  # the old header
        held: list[str] | None = None
        for cells in reader:
            if held is not None:
                writer.writerow(held)
            held = cells + [""] * (len(self._columns) - len(cells))
        if held is not None and not drop_last:
            writer.writerow(held)


def _cell(value: object) -> object:
    if isinstance(value, list):
        return json.dumps(value)
    edges = getattr(value, "edges", None)  # a histogram
    return value if edges is None else json.dumps({"counts": list(value.counts), "edges": list(edges)})  # type: ignore[attr-defined]  # as above
