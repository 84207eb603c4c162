"""Open the run at a path, whichever tool recorded it."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError
from ezpz.track.run_reader import Run, is_run, open_run
from ezpz.track.table import Table, gather
from ezpz.view.foreign.mlflow_store import find_mlflow, read_mlflow
from ezpz.view.foreign.plain_log import is_log, read_log
from ezpz.view.foreign.tfevents import find_events, read_events
from ezpz.view.foreign.trainer_files import find_trainer_file, read_trainer_file
from ezpz.view.foreign.wandb_offline import find_wandb, read_wandb

if TYPE_CHECKING:
    import os

    from ezpz.track.journal_reader import Row
    from ezpz.view.foreign.reading import Reading


class ForeignRun(Run):
    """A run that another tool recorded.

    ``facts`` has the keys of ``run.json`` as far as the tool kept them, and ``source``, the tool. ``state`` is
    ``finished``, ``failed`` or ``unknown``. Times of rows are NaN where the tool kept none.

    Attributes:
        records: Its rows, in the order of writing.
    """

    def __init__(
        self, folder: Path, facts: dict[str, Any], name: str, state: str, cause: str, *, records: tuple[Row, ...] = ()
    ) -> None:
        super().__init__(folder, facts, name, state, cause)
        self.records = records

    @cached_property
    def rows(self) -> Table:
        """Every row by key, in the order of writing."""
        return gather(self.records)

    @cached_property
    def windows(self) -> list[Row]:
        """Nothing: no other tool keeps values over all ranks."""
        return []


def open_foreign(path: str | os.PathLike[str]) -> ForeignRun:
    """Read a run of wandb (offline), of TensorBoard, of MLflow's files or of a trainer's file, or a log with pairs.

    Args:
        path: A ``run-*.wandb``, an event file, a log; or a folder with such: wandb's own, one of event files (its
            subfolders' names come before their metrics', several files of one folder are attempts), one with the
            ``trainer_state.json`` of Hugging Face or the ``metrics.csv`` of Lightning, a run of MLflow's file store,
            one with one log.

    Returns:
        The run, read as far as it can be; what is torn or broken is counted in one warning.

    Raises:
        UsageError: There is nothing, nothing known, or more than one run.
    """
    place = Path(path).expanduser().absolute()
    if not place.exists():
        raise UsageError(f"no run: {place} does not exist (from the command line); expected a run folder or file.")
    try:
        reading = _read(place)
    except OSError as error:
        raise UsageError(
            f"cannot read {error.filename or place}: {error.strerror} (from the command line); expected a run."
        ) from error
    if reading is None:
        raise UsageError(
            f"no run in {place} (from the command line): it has neither metrics.jsonl of ezpz, nor a run-*.wandb, nor "
            f"events.out.tfevents.*, trainer_state.json, metrics.csv or a run of MLflow, nor lines such as 'step=3 "
            f"loss=0.5'; expected one of these. Name the file itself."
        )
    folder = place if place.is_dir() else place.parent
    facts = {"name": reading.name, "source": reading.source, **reading.facts}
    return ForeignRun(folder, facts, reading.name, reading.state, reading.cause, records=tuple(reading.rows))


def _read(place: Path) -> Reading | None:
    files = find_wandb(place)
    if files:
        return read_wandb(files)
    events = find_events(place)
    if events:
        return read_events(place, events)
    file = find_trainer_file(place)
    reading = read_trainer_file(file) if file else None
    stored = None if reading else find_mlflow(place)
    reading = read_mlflow(stored) if stored else reading
    if reading or place.is_file():
        return reading or read_log(place)
    logs = [
        item for item in sorted(place.iterdir()) if item.suffix in {".log", ".txt", ".out", ".jsonl"} and is_log(item)
    ]
    if len(logs) > 1:
        names = ", ".join(item.name for item in logs[:4])
        raise UsageError(
            f"{len(logs)} logs in {place} (from the command line): {names}; expected one run. Name one of them."
        )
    return read_log(logs[0]) if logs else None


def open_any(path: str | os.PathLike[str]) -> Run:
    """Open a run folder, or a run that wandb (offline), TensorBoard or a plain log has recorded.

    Args:
        path: A folder or a file.

    Returns:
        The run.

    Raises:
        UsageError: It is not there, or nothing that is known.
    """
    place = Path(path).expanduser().absolute()
    folder = place.parent if place.name in {"metrics.jsonl", "run.json"} else place
    if not place.exists() or is_run(folder):
        return open_run(place)
    try:
        return open_foreign(place)
    except UsageError:
        if place.is_dir() and any(place.glob("*/**/metrics.jsonl")):
            return open_run(place)  # which says what is missing, and names a run below it
        raise
