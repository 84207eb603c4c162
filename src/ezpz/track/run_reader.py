"""Read a run folder back: facts, rows and state, also of a run that still writes or was killed.

Nothing here loads torch, takes a lock or writes, except the columns that a long journal lacks
(`ezpz.track.recorded_rows`).
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from time import time

from ezpz.errors import UsageError
from ezpz.files import refuse_unreadable
from ezpz.records.run_record import RunRecord
from ezpz.redact import redact_config, redact_text
from ezpz.track.launches import failed_elsewhere, find_launch, launch_cause, stopped_by
from ezpz.track.run_folder import read_record
from ezpz.track.writer_lock import is_held

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from typing import Any

    from ezpz.track.journal_reader import Row
    from ezpz.track.recorded_rows import Stored
    from ezpz.track.table import Table


_ROWS = {"rows", "table", "windows", "stored"}  # what is read when it is first asked for


class Run:
    """One run; it does not change.

    Attributes:
        folder: Where it is, absolute.
        facts: What ``run.json`` says, to be shown as it is; empty where there is none or it cannot be read.
        name: Its name.
        state: ``running``; ``finished`` (`History.finalize` was called); ``exited`` (the program ended without it);
            ``failed`` (an exception, or the failure of another rank, which its launch has seen); ``stopped`` (a signal
            that could be answered, or that its launch was sent); ``died`` (the process is gone and could not say why).
        cause: Why it failed, was stopped or died, in words; empty otherwise.
    """

    def __init__(self, folder: Path, facts: dict[str, Any], name: str, state: str, cause: str) -> None:
        self.folder, self.facts, self.name, self.state, self.cause = folder, facts, name, state, cause

    def changed(self, **changes: Any) -> Run:
        """Return the run with other values in some attributes; its rows will be read anew."""
        other = object.__new__(type(self))
        anew = _ROWS | ({"record"} if "facts" in changes else set())
        vars(other).update({name: value for name, value in vars(self).items() if name not in anew}, **changes)
        return other

    @cached_property
    def record(self) -> RunRecord:
        """The same as ``facts``, each field of its type."""
        return RunRecord.of(self.facts)

    @cached_property
    def rows(self) -> Table:
        """Every row of the journal by key, in the order of writing."""
        from ezpz.track.table import table_of

        return table_of(self.stored.blocks)

    @cached_property
    def table(self) -> Table:
        """The rows that count: without those that a later attempt recorded again."""
        from ezpz.track.table import counted

        return counted(self.rows)

    @cached_property
    def windows(self) -> list[Row]:
        """The records over all ranks (`ezpz.track.over_ranks.across`), in the order of writing; empty for one rank."""
        return self.stored.windows()

    @cached_property
    def stored(self) -> Stored:
        """What was recorded until this was first asked for."""
        from ezpz.track.recorded_rows import read_stored

        return read_stored(str(self.folder), self.may_be_written)

    def may_be_written(self) -> bool:
        """Tell whether a reader may add to the folder: it is allowed to, and no process writes the run."""
        return self.state != "running" and os.access(self.folder, os.W_OK | os.X_OK)


def without_secrets(run: Run) -> Run:
    """Return a run whose facts hold no secret, also those that an older ezpz or another tool wrote."""
    return with_facts(run, redact_config(run.facts))


def with_facts(run: Run, facts: Any) -> Run:
    """Return a run with other facts; rows that were read are not read again."""
    return with_rows_of(run.changed(facts=facts), run)


def with_rows_of(run: Run, other: Run) -> Run:
    """Return a run that takes the rows that another look at its folder has read."""
    read = {name: value for name, value in vars(other).items() if name in _ROWS}
    vars(run).update(read)
    return run


def seconds_taken(run: Run, first: float | None, last: float | None) -> float | None:
    """Return how long a run took, for all who show it: from its start to its end, or to now; None if not known.

    Args:
        run: The run. Of one that was started again, the newest attempt counts.
        first: Time of its first row in epoch seconds, used where no start was recorded.
        last: Time of its last row, which is the end of a run that could not record it.
    """
    record = run.record
    if record.seconds is not None and record.seconds >= 0:
        return float(record.seconds)
    started, ended = record.started_at, record.ended_at
    started = first if started is None else started
    if ended is None:
        ended = time() if run.state == "running" else last
    return None if started is None or ended is None else max(0.0, ended - started)


def is_run(folder: Path) -> bool:
    """Tell whether a folder holds a run: ``run.json`` of a history, or a journal."""
    return (folder / "metrics.jsonl").is_file() or bool(RunRecord.read(folder / "run.json").name)


def open_run(folder: str | os.PathLike[str]) -> Run:
    """Look at a run folder; its rows are read when they are asked for.

    Args:
        folder: The run folder, or the journal or any other file directly in it.

    Returns:
        The run. A journal alone, whose ``run.json`` was lost, is a run named after its folder.

    Raises:
        UsageError: The folder is not there, may not be read or holds no run; the message says what runs are near.
        TrackError: A newer ezpz wrote it.
    """
    path = Path(folder).expanduser().absolute()
    refuse_unreadable(path)
    path = path.parent if path.is_file() else path
    if not path.is_dir():
        raise UsageError(f"no run folder: {path} (from the command line); expected one. `ezpz runs` lists them.")
    for name in ("run.json", "metrics.jsonl"):
        refuse_unreadable(path / name)
    record = read_record(path / "run.json")  # empty when it is lost: the journal can do without
    record.refuse_newer(path / "run.json")
    if not (path / "metrics.jsonl").is_file() and not record.name:
        inside = sorted(item.parent for item in path.glob("*/**/metrics.jsonl"))
        near = f"Try for example {inside[-1]}." if inside else "`ezpz runs` lists them."
        raise UsageError(
            f"no run in {path} (from the command line): it has no metrics.jsonl; expected a run folder. {near}"
        )
    state, cause = _as_seen_outside(path, record, *_state(path, record))
    cause = redact_text(cause) if cause else ""  # an older ezpz may have written it
    run = Run(path, dict(record.raw), record.name or path.name, state, cause)
    run.record = record
    return run


def _state(folder: Path, record: RunRecord) -> tuple[str, str]:
    state, cause = record.state or "running", record.cause
    if state != "running" or is_held(folder, record):
        return state, cause
    if not record.raw:
        return "died", "its run.json is missing or damaged, so how it ended is not known"
    return "died", cause or "its process is gone and could not say why: killed, or its host was lost"


def _as_seen_outside(folder: Path, record: RunRecord, state: str, cause: str) -> tuple[str, str]:
    """Return how a run ended, and why, where its launch knows better: of a rank that failed, of one that was killed."""
    launch = find_launch(record.launch_id) if state == "died" and record.launch_id else None
    signal = stopped_by(launch[1]) if launch else ""
    if signal:
        return "stopped", f"{signal}; killed by its launch"
    elsewhere = failed_elsewhere(record, folder) if state in {"finished", "exited", "stopped", "failed"} else ""
    if elsewhere:
        return "failed", elsewhere
    if record.launch_id and (state in {"died", "stopped"} or (state == "failed" and not cause)):
        return state, launch_cause(record.launch_id)[1] or cause
    return state, cause
