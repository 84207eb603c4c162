"""Rank 0's side of a history: it owns the run folder, the journal, ``run.json``, and what is made from them."""

from __future__ import annotations

import atexit
import os
import sys
from datetime import datetime
from typing import TYPE_CHECKING

from ezpz.errors import TrackError, UsageError
from ezpz.log import get_logger
from ezpz.track.columns import Table, export_name, gather
from ezpz.track.folder import RunFile, make_folder
from ezpz.track.journal import Journal, last_step, read_journal
from ezpz.track.values import check_key

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ezpz.track.values import Value

__all__ = ["Writer"]


class Writer:
    """The one process that writes a run's folder.

    Attributes:
        folder: The run folder.
        paths: What has been written so far, by the names of `ezpz.track.History.paths`.
        journal: The open journal.
        next_step: The step of a row that names none.
        ended: Whether the run was finished; nothing is recorded after that.
        failure: What kept `finish` from writing the HDF5 file.
    """

    def __init__(self, name: str, outdir: str | os.PathLike[str] | None, facts: Mapping[str, object]) -> None:
        """Make the folder, open the journal and write ``run.json``.

        Raises:
            UsageError: The folder cannot be used.
        """
        started = datetime.now()  # noqa: DTZ005  # folders carry local time, as people look for it
        self._name = name
        self._stamp = started.strftime("%Y-%m-%d-%H%M%S")
        self.folder = make_folder(name, outdir, self._stamp)
        self._keys: dict[str, str] = {}
        self._run = RunFile(self.folder, name, facts)
        try:
            self.journal = Journal(self.folder / "metrics.jsonl")
            last = last_step(self.journal.path)
            self._run.save()
        except OSError as error:
            raise UsageError(
                f"cannot write in the run folder: {self.folder}: {error.strerror} (from {error.filename}); "
                f"expected room and permission. Use History(outdir=...) with another folder."
            ) from error
        self.next_step = 0 if last is None else last + 1
        self.paths: dict[str, Path] = {"run": self._run.path, "journal": self.folder / "metrics.jsonl"}
        self.ended = False
        self.failure: TrackError | None = None
        self._pid = os.getpid()
        atexit.register(self._at_exit)

    def check_names(self, values: Mapping[str, Value]) -> None:
        """Look at names that were not seen before, so that trouble is told at its first step.

        Raises:
            TrackError: No file could carry a name.
        """
        if values.keys() <= self._keys.keys():
            return
        for key in [key for key in values if key not in self._keys]:
            check_key(key)
            name = export_name(key)
            other = next((known for known, taken in self._keys.items() if taken == name), None)
            if other is not None:
                get_logger(__name__).warning(
                    f"metrics {other!r} and {key!r} would both be {name!r} in the HDF5 file, which is an error there; "
                    f"the journal keeps them apart. Rename one."
                )
            self._keys[key] = name

    def store_config(self, config: Mapping[str, object]) -> None:
        """Add a configuration to ``run.json``.

        Raises:
            TrackError: The file cannot be written.
        """
        stored = self._run.facts.setdefault("config", {})
        stored.update(config)  # type: ignore[attr-defined]  # the dict of the line above
        try:
            self._run.save()
        except OSError as error:
            raise TrackError(
                f"cannot store the configuration: {self._run.path}: {error.strerror} (from History.log_config); "
                f"expected a folder with room."
            ) from error

    def export(self) -> Table:
        """Write the journal to the disk, and the HDF5 file from it.

        Returns:
            What the journal holds.

        Raises:
            TrackError: As `ezpz.track.dataset.write_dataset`; or h5py cannot be imported.
        """
        self.journal.sync()
        table = gather(read_journal(self.journal.path))
        self._write_dataset(table)
        return table

    def _write_dataset(self, table: Table) -> None:
        path = self.folder / f"{self._name}.h5"
        try:
            from ezpz.track.dataset import write_dataset

            write_dataset(path, table, {"name": self._name, "time": str(self._run.facts["started"])})
        except ImportError as error:  # a site's HDF5 may not load; the journal needs none
            raise TrackError(
                f"cannot write the export {path}: {error} (from import h5py); expected a working h5py. "
                f"Every row is safe in {self.journal.path}."
            ) from error
        self.paths["dataset"] = path

    def finish(self, state: str, *, plots: bool, show: bool) -> None:
        """End the run: data first, then drawings, then ``run.json``; ``failure`` says what went wrong with the data.

        Args:
            state: What ``run.json`` says, see `ezpz.track.folder`.
            plots: Draw.
            show: Print the text plots too.
        """
        self.ended = True
        atexit.unregister(self._at_exit)
        self.journal.close()
        problems = self._losses()
        table = Table()
        try:
            table = gather(read_journal(self.journal.path))
            self._write_dataset(table)
        except TrackError as error:
            self.failure = error
            problems.append(str(error))
        if plots:
            problems += self._draw(table, show=show)
        self._save_end(state, problems)
        made = ", ".join(str(path.relative_to(self.folder)) for key, path in self.paths.items() if key != "run")
        get_logger(__name__).info(f"{len(table.steps)} rows of {len(table.cells)} metrics in {self.folder}: {made}")

    def _losses(self) -> list[str]:
        if not self.journal.lost:
            return []
        problem = f"{self.journal.lost} rows could not be written, the first at step {self.journal.first_lost}"
        get_logger(__name__).warning(f"{self.journal.path} is not complete: {problem}.")
        return [problem]

    def _draw(self, table: Table, *, show: bool) -> list[str]:
        try:
            from ezpz.track.plots import draw_all
            from ezpz.track.series import numeric_series

            made, problems = draw_all(numeric_series(table), self.folder, self._stamp, show=show)
        # The same rule as for each single drawing: whatever comes, it costs one warning and neither data nor exit code.
        except Exception as error:  # noqa: BLE001
            problems = [f"cannot draw the metrics: {type(error).__name__}: {error}"]
            get_logger(__name__).warning(f"{problems[0]}; the data is safe.")
            return problems
        self.paths.update(made)
        return problems

    def _save_end(self, state: str, problems: list[str]) -> None:
        try:
            self._run.end(state, self.paths, problems)
        except OSError as error:  # the disk filled up: the journal's rows count, not this line about them
            get_logger(__name__).warning(f"cannot write {self._run.path}: {error.strerror}; it still says 'running'.")

    def _at_exit(self) -> None:
        """Complete ``run.json`` when the program ends without `finish`; the journal is complete already.

        The HDF5 file stays out: h5py that is first imported while Python exits ends the process by a segmentation
        fault (3.16 with Python 3.11), because Python no longer calls the exit function that h5py registers.
        """
        if os.getpid() != self._pid:  # a forked child has inherited this, and the run is not its own
            return
        # Set by the interpreter when an exception that nobody caught ended the program.
        state = "failed" if getattr(sys, "last_value", None) is not None else "exited"
        self.ended = True
        self.journal.close()
        self._save_end(state, self._losses())
        get_logger(__name__).info(
            f"{self.folder}: metrics.jsonl is complete; without History.finalize there is no HDF5 file and no plot. "
            f"ezpz.track.dataset.export_run({str(self.folder)!r}) writes the former."
        )
