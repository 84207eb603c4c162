"""Write a run folder on rank 0: the journal, ``run.json``, and what is made from them."""

from __future__ import annotations

import atexit
import logging
import os
import select
import sys
import threading
from contextlib import suppress
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING

from ezpz import progress
from ezpz.errors import TrackError, UsageError
from ezpz.log import get_logger, write_later_lines
from ezpz.progress import Busy, has_spent, take_spent
from ezpz.track import signals, wandb
from ezpz.track.card import near, resume_words, show_card
from ezpz.track.columns import export_name
from ezpz.track.folder import RunFile, make_folder, state_after
from ezpz.track.journal import Journal
from ezpz.track.run import open_run, with_rows_of
from ezpz.track.speed import speed_of
from ezpz.track.trackers import About, Trackers
from ezpz.track.values import check_key
from ezpz.visible import LINES, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from ezpz.track.run import Run
    from ezpz.track.trackers import Tracker
    from ezpz.track.values import Value

_SECTIONS_EVERY = 1.0  # seconds between two records of what sections took
_SECTIONS_LEAST = 0.001  # seconds: less is worth no record
_STUCK = 0.5  # seconds that a stream without a reader may delay the end by a signal


class Writer:
    """The one process that writes a run's folder.

    Attributes:
        folder: The run folder.
        paths: What has been written so far, by the names of `ezpz.track.History.paths`.
        journal: The open journal.
        trackers: Copies at other places.
        flush: Writes what the history still holds; set by the history, called before an unexpected end.
        leave: The same, and what other ranks have on their way; called when the program ends without `finish`.
        keep_seen: Writes what steps saw and is not written yet; set by the history.
        ended: Whether the run was finished; nothing is recorded after that.
        failure: What kept `finish` from writing the HDF5 file.
        rate_ranks: Ranks whose samples the recorded throughput counts; 0 where that is not known.
    """

    def __init__(
        self,
        name: str,
        outdir: str | os.PathLike[str] | None,
        facts: Mapping[str, object],
        trackers: Sequence[Tracker] = (),
    ) -> None:
        """Make the folder, open the journal and write ``run.json``.

        Args:
            name: Name of the run.
            outdir: As for `ezpz.track.History`.
            facts: What ``run.json`` says besides.
            trackers: Further places for the metrics, not started yet.

        Raises:
            UsageError: The folder cannot be used, or another process writes it.
        """
        started = datetime.now().astimezone()  # folders carry local time, as people look for it
        self._name = name
        self._stamp = started.strftime("%Y-%m-%d-%H%M%S")
        self.flush: Callable[[], object] = dict
        self.leave: Callable[[], object] = dict
        self.keep_seen: Callable[[], object] = dict
        self.folder = make_folder(name, outdir, self._stamp)
        self._keys: dict[str, str] = {}
        self._sections: dict[str, float] = {}  # what they took, by name, and is not in the journal yet
        self._sections_due = 0.0
        self._last_step = 0
        try:
            self.journal = Journal(self.folder / "metrics.jsonl")
            began = {"attempt": self.journal.attempt, "started": started.isoformat(timespec="seconds")}
            self._run = RunFile(self.folder, name, {**began, **facts})
            about = About(name, self.folder, self._config(), self._run.earlier_trackers(), self._stamp)
            self.trackers = Trackers(list(trackers), about)
            self.save()
        except OSError as error:
            raise UsageError(
                f"cannot write in the run folder: {error.filename or self.folder}: {error.strerror} (from "
                f"{'the current folder' if outdir is None else 'outdir'}); expected room and permission. "
                f"Use History(outdir=...) with another folder."
            ) from error
        self.paths: dict[str, Path] = {"run": self._run.path, "journal": self.folder / "metrics.jsonl"}
        self.ended = False
        self.failure: TrackError | None = None
        self.rate_ranks = 0
        self._pid = os.getpid()
        self._come_first()
        # The thread of `signals` may be at it while the loop still saves: what the loop then adds is written after it.
        self._completing = threading.RLock()
        signals.attach(self._at_signal)

    def _come_first(self) -> None:
        """Have `_at_exit` called before what is registered already: h5py, once loaded, closes HDF5 in its turn."""
        atexit.unregister(self._at_exit)
        atexit.register(self._at_exit)
        self._can_export_at_exit = "h5py" in sys.modules

    def _config(self) -> dict[str, object]:
        stored: dict[str, object] = self._run.facts.setdefault("config", {})  # type: ignore[assignment]  # ours
        return stored

    def check_names(self, values: Mapping[str, Value]) -> None:
        """Look at names that were not seen before, so that trouble is reported at its first step.

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

    def keep_sections(self, step: int, *, now: bool = False) -> None:
        """Record what sections have taken up to a row, at most once a second.

        Args:
            step: The step of the row.
            now: Record it whenever the last time was.
        """
        self._last_step = step
        if has_spent():
            for name, seconds in take_spent().items():
                self._sections[name] = self._sections.get(name, 0.0) + seconds
        if self._sections and (now or monotonic() >= self._sections_due):
            if sum(self._sections.values()) < _SECTIONS_LEAST:
                return
            self._sections_due = monotonic() + _SECTIONS_EVERY
            sections, self._sections = self._sections, {}
            self.journal.write_sections(step, sections)

    def _keep_last(self) -> None:
        """Record what steps saw and what sections took, as far as that is not recorded yet."""
        self.keep_seen()
        after = take_spent()
        self.keep_sections(self._last_step, now=True)
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
            self.trackers.config(content)
            wandb.config(content)
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
        state = self.trackers.state
        if state:
            self._run.facts["trackers"] = state
        self._run.save()

    def look_after(self) -> None:
        """Write down what trackers have reported since, once per window; a full disk is reported elsewhere."""
        state = self.trackers.state
        if state and state != self._run.facts.get("trackers"):
            with suppress(OSError):
                self.save()

    def export(self, form: str = "h5") -> None:
        """Write the journal to the disk, and an export from it.

        Raises:
            TrackError: As `ezpz.track.dataset.export_run`; or h5py cannot be imported.
        """
        self.journal.sync()
        self._export(self._read(), form)

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
                attrs = {"name": self._name, "time": str(self._run.facts["started"])}
                dataset.write_dataset(path, run.rows, attrs, run.windows)
        except ImportError as error:  # a site's HDF5 may not load; the journal needs none
            raise TrackError(
                f"cannot write the export {path}: {error} (from import h5py); expected a working h5py. "
                f"The rows are in {self.journal.path}."
            ) from error
        self.paths["dataset" if form == "h5" else form] = path
        if not self.ended:
            self._come_first()

    def finish(self, state: str, *, plots: bool, show: bool, cause: str = "", report: bool = True) -> None:
        """End the run: data first, then drawings, then ``run.json``; ``failure`` says what went wrong with the data.

        Args:
            state: What ``run.json`` says, see `ezpz.track.folder`.
            plots: Draw, and write the report.
            show: Print two text plots too, and at last how the run ended (`ezpz.track.card`).
            cause: Why it failed, in words.
            report: Write the report too, where plots are drawn.
        """
        self.ended = True
        atexit.unregister(self._at_exit)
        self._keep_last()
        self.journal.close()
        problems = self._losses()
        rows, metrics, run = 0, 0, None
        try:
            run = self._read()
            rows, metrics = len(run.rows), len(run.rows.cells)
            self._export(run)
        except TrackError as error:
            self.failure = error
            problems.append(str(error))
        if run is not None:
            problems += self._find(run)
            self._note_speed(run)
        self._save_end(state, problems, cause)
        signals.detach(self._at_signal)  # the data is complete now; the end of a run needs no picture
        if plots and run is not None:  # without a journal there is nothing to draw: reported above
            problems += self._draw(run, show=show, report=report)
            self._save_end(state, problems, cause)
        self.trackers.finish(state)
        logger = get_logger(__name__)
        if show and rows and run is not None and logger.isEnabledFor(logging.INFO):
            write_later_lines(_STUCK)
            show_card(with_rows_of(self._read(), run), self.paths, ranks=self.rate_ranks)
        else:
            logger.info(f"{rows} rows of {metrics} metrics in {self.folder}")

    def _find(self, run: Run) -> list[str]:
        """Note what stands out in the losses; a journal of another shape must not spoil an end."""
        from ezpz.track.curves import curve_findings

        try:
            findings = curve_findings(run)
        except (TrackError, ValueError, TypeError, KeyError) as error:
            return [f"the losses were not looked at: {type(error).__name__}: {error}"]
        self._run.facts["findings"] = findings
        return []

    def _note_speed(self, run: Run) -> None:
        """Note the speed of the run, for who will not read its journal again."""
        with suppress(TrackError, ValueError, TypeError, KeyError):  # a journal of another shape must not spoil an end
            speed = speed_of(run.table)
            if speed is not None:
                self._run.facts["speed"] = speed._asdict()

    def _losses(self) -> list[str]:
        problem = self.journal.missing()
        if not problem:
            return []
        get_logger(__name__).warning(f"{self.journal.path} is not complete: {problem}.")
        return [problem]

    def _draw(self, run: Run, *, show: bool, report: bool) -> list[str]:
        from ezpz.track.plots import draw_run

        made, problems = draw_run(with_rows_of(self._read(), run), self._stamp, show=show, report=report)
        self.paths.update(made)
        return problems

    def _save_end(self, state: str, problems: list[str], cause: str = "") -> None:
        try:
            self._run.facts.update({"trackers": self.trackers.state} if self.trackers.state else {})
            self._run.end(state, self.paths, problems, cause)
        except OSError as error:  # the disk filled up: the journal's rows count, not this line about them
            get_logger(__name__).warning(f"cannot write {self._run.path}: {error.strerror}; it still says 'running'.")

    def _at_signal(self, name: str) -> None:
        """Leave a complete folder before a signal ends the process; it may also be handled, and training continue."""
        if os.getpid() == self._pid:
            with self._completing:
                self._complete_at_signal(name)

    def _complete_at_signal(self, name: str) -> None:
        problems, at = [], ""
        try:
            if not self.ended:
                self.journal.sync()
                if threading.current_thread() is threading.main_thread():
                    self.flush()  # another thread comes here when this one hangs, perhaps in the device that flush asks
                    self._keep_last()
                self.journal.sync()
            run = self._read()
            at = f" at step {run.rows.step_array[-1]}" if len(run.rows) else ""
            self._export(run)
            self._note_speed(run)
        # Whatever fails here, such as a library that the signal has interrupted: the signal must be passed on.
        except Exception as error:  # noqa: BLE001
            problems.append(f"{type(error).__name__}: {error}")
        reason = ", from the launcher or the scheduler" if name == "SIGTERM" else ""
        problems = [*self._losses(), *problems]
        self._save_end("stopped", problems, name + reason)
        write_later_lines(_STUCK)
        self._say_stopped(f"{self._name} stopped by {name}{at}" + ("" if problems else "; its data is complete"))
        self.trackers.finish("stopped")

    def _say_stopped(self, title: str) -> None:
        """Write a short card past all buffers, one of which the signal may have interrupted; not where that waits."""
        if not get_logger(__name__).isEnabledFor(logging.INFO):
            return
        rows = [("folder", near(self.folder)), *resume_words(self.folder, self._run.facts.get("argv"))]
        lines = [title, *(f"  {label:12}{text}" for label, text in rows)]
        text = (visible("\n".join(lines), LINES) + "\n").encode(errors="replace")
        with suppress(OSError, ValueError):
            if select.select((), (1,), (), 0)[1]:
                os.write(1, text[: select.PIPE_BUF])

    def _at_exit(self) -> None:
        """Complete ``run.json`` when the program ends without `finish`; the journal is complete already.

        The HDF5 file stays out unless h5py was loaded before: one that is first imported while Python exits ends the
        process by a segmentation fault (3.16 with Python 3.11), because Python no longer calls the exit function that
        h5py registers.
        """
        if os.getpid() != self._pid:  # a forked child has inherited this, and the run is not its own
            return
        # Set by the interpreter when an uncaught exception ended the program.
        error = progress.left or getattr(sys, "last_value", None)
        with Busy():
            self._complete_at_exit(*state_after(error, "exited"))

    def _complete_at_exit(self, state: str, cause: str) -> None:
        self.leave()
        self.ended = True
        self._keep_last()
        self.journal.close()
        losses = self._losses()
        problems = [*losses]
        if self._can_export_at_exit:
            try:
                self._export(self._read())
            except TrackError as trouble:
                problems.append(str(trouble))
        self._save_end(state, problems, cause)
        self.trackers.finish(state)
        hint = "" if "dataset" in self.paths else f" `ezpz export {self.folder}` writes the HDF5 file."
        whole = "is not complete" if losses else "is complete"
        get_logger(__name__).info(
            f"{self.folder}: metrics.jsonl {whole}; History.finalize was not called, so nothing is drawn.{hint}"
        )
