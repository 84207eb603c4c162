"""Write a run folder on rank 0: the journal, ``run.json``, and what is made from them."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from ezpz.errors import TrackError, UsageError
from ezpz.log import get_logger
from ezpz.progress import Busy, has_spent, take_spent
from ezpz.save_requests import ending
from ezpz.track import signals
from ezpz.track.at_end import End, Part, call_parts, everywhere, start_trackers
from ezpz.track.columns import ExportNames
from ezpz.track.guard import guarded, undisturbed
from ezpz.track.journal_writer import Journal
from ezpz.track.run_folder import RunFile, make_folder, state_after
from ezpz.track.run_reader import open_run
from ezpz.track.step_pauses import DATA, ROWS_OF_DATA, measure, pauses
from ezpz.track.values import check_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ezpz.track.run_reader import Run
    from ezpz.track.tracker_protocol import Tracker
    from ezpz.track.values import Value

_SECTIONS_EVERY = 1.0  # seconds between two records of what sections took
_SECTIONS_LEAST = 0.001  # seconds: less is worth no record
_SECTIONS_AT_ONCE = 0.05  # seconds of one row that are recorded with it, so that it is known which row it was
_ROWS_OF_WAITS = 8  # rows that a record of waits for batches tells of at least: each has waits, and few bytes for them


class Writer:
    """The one process that writes a run's folder.

    Attributes:
        folder: The run folder.
        paths: What has been written so far, by the names of `ezpz.track.History.paths`.
        journal: The open journal.
        trackers: Copies at other places; None without any.
        at_end: What is called at the end besides `ezpz.track.at_end.PARTS`.
        flush: Writes what the history still holds; set by the history, called before an unexpected end.
        leave: The same, and what other ranks have on their way; called when the program ends without `finish`. Returns
            what is missing, in sentences.
        keep_seen: Writes what steps saw and is not written yet; set by the history.
        hide: Takes the live line of the run off the terminal for good; set by the history.
        ended: Whether the run was finished; nothing is recorded after that.
        rate_ranks: Ranks whose samples the recorded throughput counts; 0 where that is not known.
    """

    def __init__(
        self,
        name: str,
        outdir: str | os.PathLike[str] | None,
        facts: Mapping[str, object],
        trackers: Sequence[Tracker] = (),
        on_folder: Callable[[Path], object] | None = None,
    ) -> None:
        """Make the folder, open the journal and write ``run.json``.

        Args:
            name: Name of the run.
            outdir: As for `ezpz.track.History`.
            facts: What ``run.json`` says besides.
            trackers: Further places for the metrics, not started yet.
            on_folder: Takes the run folder where that becomes another one, in any thread.

        Raises:
            UsageError: The folder cannot be used, or another process writes it.
        """
        started = datetime.now().astimezone()  # folders carry local time, as people look for it
        self._name = name
        self._stamp = started.strftime("%Y-%m-%d-%H%M%S")
        self.flush: Callable[[], object] = dict
        self.leave: Callable[[], list[str]] = list
        self.keep_seen: Callable[[], object] = dict
        self.hide: Callable[[], object] = dict
        self._on_folder = on_folder
        self.folder = make_folder(name, outdir, self._stamp)
        self._names = ExportNames()
        self._sections: dict[str, float] = {}  # what they took, by name, and is not in the journal yet
        self._sections_due = 0.0
        self._rows_of_sections = 0  # since the last such record
        self._last_step = 0
        try:
            self.journal = Journal(self.folder / "metrics.jsonl", self._move)
            began = {"attempt": self.journal.attempt, "started": started.isoformat(timespec="seconds")}
            self._run = RunFile(self.folder, name, {**began, **facts})
            config, resumed = self._config(), self._run.earlier_trackers()
            self._run.facts |= {"trackers": resumed} if resumed else {}
            about = {"name": name, "folder": self.folder, "config": config, "resumed": resumed, "stamp": self._stamp}
            self.trackers = start_trackers(trackers, about)
            self.save()
        except OSError as error:
            raise UsageError(
                f"cannot write in the run folder: {error.filename or self.folder}: {error.strerror} (from "
                f"{'the current folder' if outdir is None else 'outdir'}); expected room and permission. "
                f"Use History(outdir=...) with another folder."
            ) from error
        self.paths: dict[str, Path] = {"run": self._run.path, "journal": self.folder / "metrics.jsonl"}
        self.ended = False
        self.at_end: list[Part] = []
        self.rate_ranks = 0
        self._pid = os.getpid()
        self._come_first()
        # The thread of `signals` may be at it while the loop still saves: what the loop then adds is written after it.
        self._completing = threading.RLock()
        signals.attach(self._at_signal)
        with guarded("measure what steps wait for"):
            measure()
            pauses.take_waited()  # of what was before this run

    def _come_first(self) -> None:
        """Have `_at_exit` called before what is registered already: h5py, once loaded, closes HDF5 in its turn."""
        atexit.unregister(self._at_exit)
        atexit.register(self._at_exit)
        self._can_export_at_exit = "h5py" in sys.modules

    def _move(self, folder: str) -> None:
        """Go on in another folder: the same one under its new name, or a new one; called by any thread."""
        old, self.folder = self.folder, Path(folder)
        with guarded(f"write {folder}/run.json"):
            self._run.move(self.folder)
        for name, path in list(self.paths.items()):
            with suppress(ValueError):  # it was elsewhere
                self.paths[name] = self.folder / path.relative_to(old)
            if not self.paths[name].exists():  # removed with the old folder
                del self.paths[name]
        if self.trackers is not None:
            self.trackers.move(self.folder)
        if self._on_folder is not None:
            self._on_folder(self.folder)

    def _config(self) -> dict[str, object]:
        stored: dict[str, object] = self._run.facts.setdefault("config", {})  # type: ignore[assignment]  # ours
        return stored

    def check_names(self, values: Mapping[str, Value]) -> None:
        """Look at names that were not seen before, so that trouble is reported at its first step.

        Raises:
            TrackError: No file could carry a name.
        """
        known = self._names.names
        if values.keys() <= known.keys():
            return
        for key in [key for key in values if key not in known]:
            check_key(key)
            if key == "step":  # the coordinate
                continue
            self._names.add(key)
            collision = self._names.collision(key)
            if collision:
                get_logger(__name__).warning(collision)

    def keep_sections(self, step: int, *, now: bool = False, waits: bool = True) -> None:
        """Record what sections, and waits for batches, have taken up to a row: at most once a second, but long ones.

        Args:
            step: The step of the row.
            now: Record it whenever the last time was.
            waits: Whether the row does not tell itself how long its step has waited.
        """
        self._last_step = step
        self._rows_of_sections += 1
        if has_spent():
            spent = take_spent()
            for name, seconds in spent.items():
                self._sections[name] = self._sections.get(name, 0.0) + seconds
            now = now or sum(spent.values()) >= _SECTIONS_AT_ONCE
        if not waits:
            pauses.waited = pauses.squares = 0.0
        if (self._sections or pauses.waited) and (now or monotonic() >= self._sections_due):
            if not now and not self._sections and self._rows_of_sections < _ROWS_OF_WAITS:
                return
            self._write_sections(step)

    def _write_sections(self, step: int) -> None:
        """Record what sections and waits have taken up to a row, if that is worth it."""
        sections, waited = dict(self._sections), pauses.waited
        if waited:
            sections[DATA] = sections.get(DATA, 0.0) + waited
        if sum(sections.values()) < _SECTIONS_LEAST or self.journal.waits:  # for space, which rows need more
            return
        self._sections_due = monotonic() + _SECTIONS_EVERY
        self._sections, self._rows_of_sections = {}, 0
        waited, among = pauses.take_waited()
        self.journal.write_sections(step, sections, {ROWS_OF_DATA: [among]} if waited else {})

    def _keep_last(self) -> None:
        """Record what steps saw and what sections took, as far as that is not recorded yet."""
        self.keep_seen()
        after = take_spent()
        self._write_sections(self._last_step)
        if sum(after.values()) >= _SECTIONS_LEAST:
            self.journal.write_sections(self._last_step + 1, after)

    def store(self, what: str, content: Mapping[str, object]) -> None:
        """Add to a part of ``run.json``.

        Args:
            what: ``config``, ``effective`` or ``timeline``.
            content: Names to values; names that were stored before are replaced.

        Raises:
            TrackError: The file cannot be written.
        """
        stored = self._run.facts.setdefault(what, {})
        stored.update(content)  # type: ignore[attr-defined]  # the dict of the line above
        if what == "config":
            if self.trackers is not None:
                self.trackers.config(content)
            for copy in everywhere.values():
                copy.config(content)
        try:
            self.save()
        except OSError as error:
            raise TrackError(
                f"cannot store the configuration: {self._run.path}: {error.strerror} (from History.log_config); "
                f"expected a folder with room."
            ) from error

    def save(self) -> None:
        """Write ``run.json`` with what trackers need to continue this run.

        Raises:
            OSError: The file cannot be written.
        """
        self._note_trackers()
        self._run.save()

    def _note_trackers(self) -> bool:
        """Note what trackers have reported; tell whether that is new."""
        state = self.trackers.state if self.trackers is not None else {}
        if not state or state == self._run.facts.get("trackers"):
            return False
        self._run.facts["trackers"] = state
        return True

    def look_after(self) -> None:
        """Write down what trackers have reported since, once per window; a full disk is reported elsewhere."""
        if pauses.workers is not None:
            self._run.facts["loader_workers"] = pauses.workers
        measure()  # torch may have been loaded since
        if self._note_trackers():
            with suppress(OSError):
                self._run.save()

    def export(self, form: str = "h5") -> None:
        """Write the journal to the disk, and an export from it.

        Raises:
            TrackError: As `ezpz.track.dataset.export_run`; or h5py cannot be imported.
        """
        self.journal.sync()
        self._export(self._read(), form)

    def _attributes(self) -> dict[str, str]:
        return {"name": self._name, "time": str(self._run.facts["started"])}

    def _read(self) -> Run:
        try:
            return open_run(self.folder)
        except UsageError as error:  # the folder was taken away; nothing was typed wrong
            raise TrackError(f"cannot read the journal {self.journal.path}: {error}") from error

    def _export(self, run: Run, form: str = "h5") -> None:
        path = self.folder / f"{self._name}.{form}"
        try:
            from ezpz.track import dataset

            if form == "csv":
                dataset.write_csv(path, run.rows)
            else:
                dataset.write_dataset(path, run.rows, self._attributes(), run.windows)
        except ImportError as error:  # a site's HDF5 may not load; the journal needs none
            raise TrackError(
                f"cannot write the export {path}: {error} (from import h5py); expected a working h5py. "
                f"The rows are in {self.journal.path}."
            ) from error
        self.paths["dataset" if form == "h5" else form] = path
        if not self.ended:
            self._come_first()

    def finish(
        self,
        state: str,
        *,
        plots: bool,
        show: bool,
        cause: str = "",
        report: bool = True,
        missing: Sequence[str] = (),
    ) -> None:
        """End the run: data first, then drawings, then ``run.json``; what fails is one warning, and all else is done.

        Args:
            state: What ``run.json`` says, see `ezpz.track.run_folder`.
            plots: Draw, and write the report.
            show: Print two text plots too, and at last how the run ended (`ezpz.view.card`).
            cause: Why it failed, in words.
            report: Write the report too, where plots are drawn.
            missing: What is not in the journal, in sentences.
        """
        self.ended = True
        self.hide()
        atexit.unregister(self._at_exit)
        end = self._end(state, cause, list(missing))
        end.report, end.show = report, show
        try:
            self._finish_data(end, plots=plots)
            self._end_trackers(state)
            call_parts(end, "show")
        except BaseException as error:  # Ctrl-C: what is missing can be made later
            if self._run.facts["state"] == "running":
                self._save_end(*_end_by(error))
            raise

    def _end(self, state: str, cause: str, problems: list[str]) -> End:
        facts, paths = self._run.facts, self.paths
        end = End(state, cause, folder=self.folder, facts=facts, paths=paths, problems=problems, read=self._read)
        end.stamp, end.rate_ranks = self._stamp, self.rate_ranks
        return end

    def _finish_data(self, end: End, *, plots: bool) -> None:
        """Complete the folder."""
        problems = end.problems
        self._complete_journal(problems)
        with guarded("read the journal", problems):
            run = self._read()
            len(run.rows)  # reads them
            end.rows = run
            problems += self._changed_by_others(run)
            with guarded("write the HDF5 file", problems, hint=f". The rows are in {self.journal.path}."):
                self._export(run)
            call_parts(end, "read")
        self._save_end(end.state, problems, end.cause)
        signals.detach(self._at_signal)  # the data is complete now; the end of a run needs no picture
        plots = plots and end.rows is not None  # without a journal there is nothing to draw: reported above
        if plots:
            call_parts(end, "draw")
        call_parts(end, "own", self.at_end)
        if plots or self.at_end:
            self._save_end(end.state, problems, end.cause)

    def _end_trackers(self, state: str) -> None:
        if self.trackers is not None:
            with guarded("end the trackers"):
                self.trackers.finish(state)

    def _complete_journal(self, problems: list[str]) -> None:
        """Write what is not in the journal yet, close it, and note what it lacks."""
        with guarded("record what the last steps saw", problems):
            self._keep_last()
        with guarded("close the journal", problems):
            self.journal.close()
        problems += self._losses()

    def image(self) -> bytes:
        """Return the HDF5 file; one that is made in memory where it could not be written."""
        if "dataset" in self.paths:
            with suppress(OSError):
                return self.paths["dataset"].read_bytes()
        from ezpz.track.dataset import dataset_image

        run = self._read()
        return dataset_image(run.rows, self._attributes(), run.windows)

    def _changed_by_others(self, run: Run) -> list[str]:
        """Say how many rows of this process somebody else has taken out of its journal."""
        there = int((run.rows.attempt_array == self.journal.attempt).sum())
        gone = self.journal.rows_written() - there
        if gone <= 0:
            return []
        problem = f"{gone} row{'s' * (gone > 1)} that this run wrote {'are' if gone > 1 else 'is'} no longer in it"
        get_logger(__name__).warning(f"{self.journal.path}: {problem}; somebody else has changed it.")
        return [problem]

    def _losses(self) -> list[str]:
        problem = self.journal.missing()
        if not problem:
            return []
        get_logger(__name__).warning(f"{self.journal.path} is not complete: {problem}.")
        return [problem]

    def _save_end(self, state: str, problems: list[str], cause: str = "") -> None:
        # The disk filled up: the journal's rows count, not this line about them.
        with guarded(f"write {self._run.path}", hint="; it still says 'running'."):
            self._note_trackers()
            self._run.end(state, self.paths, problems, cause)

    def _at_signal(self, name: str) -> None:
        """Leave a complete folder before a signal ends the process; it may also be handled, and training continue."""
        if os.getpid() == self._pid:
            with guarded("complete the records"), self._completing, undisturbed():
                self._complete_at_signal(name)

    def _complete_at_signal(self, name: str) -> None:
        # Whatever fails here, such as a library that the signal has interrupted: the signal must be passed on.
        self.hide()
        problems: list[str] = []
        reason = ", from the launcher or the scheduler" if name == "SIGTERM" else ""
        end = self._end("stopped", name + reason, problems)
        if not self.ended:
            with guarded("write the last rows", problems):
                self.journal.follow()
                self.journal.sync()
                if threading.current_thread() is threading.main_thread():
                    self.flush()  # another thread comes here when this one hangs, perhaps in the device that flush asks
                    self._keep_last()
                self.journal.sync()
        with guarded("write the HDF5 file", problems):
            run = self._read()
            len(run.rows)
            end.rows = run
            self._export(run)
            call_parts(end, "stopped")
        problems[:0] = self._losses()
        self._save_end("stopped", problems, end.cause)
        call_parts(end, "told")
        self._end_trackers("stopped")

    def _at_exit(self) -> None:
        """Complete ``run.json`` when the program ends without `finish`; the journal is complete already.

        The HDF5 file stays out unless h5py was loaded before: one that is first imported while Python exits ends the
        process by a segmentation fault (3.16 with Python 3.11), because Python no longer calls the exit function that
        h5py registers.
        """
        if os.getpid() != self._pid:  # a forked child has inherited this, and the run is not its own
            return
        # Set by the interpreter when an uncaught exception ended the program.
        error = ending() or getattr(sys, "last_value", None)
        with guarded("complete the records"), Busy(), undisturbed():
            self._complete_at_exit(*state_after(error, "exited"))

    def _complete_at_exit(self, state: str, cause: str) -> None:
        problems: list[str] = []
        with guarded("hand on what is recorded", problems):
            problems += self.leave()
        self.ended = True
        self._complete_journal(problems)
        whole = "is not complete" if problems else "is complete"
        if self._can_export_at_exit:
            with guarded("write the HDF5 file", problems):
                run = self._read()
                problems += self._changed_by_others(run)
                self._export(run)
        self._save_end(state, problems, cause)
        self._end_trackers(state)
        hint = "" if "dataset" in self.paths else f" `ezpz export {self.folder}` writes the HDF5 file."
        get_logger(__name__).info(
            f"{self.folder}: metrics.jsonl {whole}; History.finalize was not called, so nothing is drawn.{hint}"
        )


def _end_by(error: BaseException) -> tuple[str, list[str], str]:
    """Return the arguments of `Writer._save_end` where the end itself was interrupted."""
    state, cause = state_after(error, "stopped")
    return state, ["the end of the run was interrupted; `ezpz export` and `ezpz report` make what is missing"], cause
