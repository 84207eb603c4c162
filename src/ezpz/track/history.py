"""Record metrics at every step, and leave a folder that shows what happened: `History`."""

from __future__ import annotations

import operator
import os
import sys
import threading
from contextlib import suppress
from itertools import chain
from math import isfinite
from pathlib import Path
from threading import get_ident
from time import monotonic, time
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from ezpz import progress
from ezpz.beside import beside
from ezpz.errors import TrackError, UsageError
from ezpz.log import get_logger, log_to
from ezpz.progress import Busy, records_in
from ezpz.ranks import from_environ
from ezpz.redact import redact_config
from ezpz.track import live_run, older_calls, step_states
from ezpz.track.at_end import Part, choose_trackers
from ezpz.track.dispatch import RowDispatch, across_of
from ezpz.track.guard import guarded, tell, undisturbed
from ezpz.track.names import holds_validation_only
from ezpz.track.run_facts import collect_facts, script_name, timeline
from ezpz.track.run_folder import run_name, state_after
from ezpz.track.step_pauses import pauses
from ezpz.track.values import line, plain
from ezpz.track.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from ezpz.ranks import Ranks
    from ezpz.track.at_end import End
    from ezpz.track.tracker_protocol import Tracker
    from ezpz.track.values import Value


# The step and the weight of a row, as callers may give them.


def step_of(step: int | None, values: Mapping[str, Value], following: int) -> int:
    """Return the step of a row as an int, from its three sources: the argument, a metric called ``step``, the count.

    Raises:
        TrackError: It is no int of 64 bits, or two sources contradict each other.
    """
    named = values.get("step")
    if step is None:
        step = named if type(named) is int else following
    elif type(step) is not int:
        try:
            step = operator.index(step)  # ints of numpy, and tensors with no dimension
        except TypeError as error:
            raise TrackError(
                f"cannot record step {step!r} (from History.update); expected an int. Use for example step=int(...)."
            ) from error
    if named is not None and named != step:
        raise TrackError(
            f"cannot record step {step} (from History.update): the metric 'step' says {named!r}; "
            f"expected the same int in both. Leave one of them out."
        )
    if not -(2**63) <= step < 2**63:
        raise TrackError(f"cannot record step {step} (from History.update); expected an int of 64 bits.")
    return step


def weight_of(weight: object) -> float:
    """Return a weight as a float.

    Raises:
        TrackError: It is no finite number from 0 on.
    """
    try:
        number = float(weight)  # type: ignore[arg-type]  # numbers of any library
    except (TypeError, ValueError):
        number = -1.0
    if not (isfinite(number) and number >= 0):
        raise TrackError(
            f"cannot weigh a row with {weight!r} (from History.update(weight=...)); expected a number from 0 on, "
            "such as the tokens of this rank."
        )
    return number


_newest: ref[History] | None = None
_open_here: WeakSet[History] = WeakSet()
_logs = ""  # where a history has this rank's log


class History(older_calls.OlderCalls):
    """A run's metrics: every row reaches the journal at once, the rest is made from it at the end.

    Rank 0 records. On other ranks the same calls return the same lines, and their values travel to rank 0 in the
    background, a window of steps at a time. Nothing here is a collective, and no device is waited for except once per
    window.

        with ezpz.History() as history:
            for step in range(100):
                print(history.update({"loss": loss, "dt": dt}))

    Leaving the block finalizes; an exception marks the run as failed, keeps all data, draws nothing and passes on.
    SIGTERM leaves a complete export too. A program that ends without `finalize` leaves the journal and ``run.json``,
    from which all else can be made (``ezpz export``, ``ezpz report``). Once it is made, a history raises for what it is
    called with and for nothing else: what cannot be written, drawn or shown is one warning. Any thread may call it. In
    a forked child it records nothing: the run is the parent's.

    Attributes:
        name: Name of the run and of its HDF5 file.
        outdir: The run folder; on other ranks, unless it was given, None until rank 0 has sent it.
        paths: What has been written so far, as absolute paths: ``run`` and ``journal`` at once, ``dataset`` after an
            export, the folders ``tplot``, ``pngs`` and ``svgs`` and the ``report`` after drawing. Empty on other ranks.
    """

    def __init__(
        self,
        name: str | None = None,
        outdir: str | os.PathLike[str] | None = None,
        *,
        window: int = 100,
        trackers: str | Sequence[str | Tracker] | None = None,
        **older: Any,
    ) -> None:
        """Make the run folder and open its journal.

        Args:
            name: Name of the run; otherwise that of the running module or script.
            outdir: The run folder itself, made if need be; rows are added to a journal that it holds already, as a
                further attempt. Otherwise ``outputs/<name>/<YYYY-MM-DD-HHMMSS>/`` below the current folder.
            window: Steps whose values all ranks send to rank 0 together, and rows whose tensors are read together.
            trackers: Further places for the metrics: ``wandb``, ``tensorboard``, ``mlflow``, ``csv``, or objects that
                are a `ezpz.track.Tracker`; otherwise what ``EZPZ_TRACKERS`` lists. They cannot fail or delay
                the training.
            older: Keywords of older scripts: ``keys``, ``project_name``, ``config``, ``backends``,
                ``distributed_history``, ``jsonl_path``, ``report_dir``, ``report_enabled``; see docs/older-scripts.md.

        Raises:
            UsageError: The name is no folder name, the folder cannot be used, another process writes it, the window is
                no number of steps, or a tracker is unknown.
            RankError: The environment contradicts itself about who this process is.
        """
        global _newest
        older_calls.check_keywords(older)
        name, keys = older_calls.split_name(name)
        self._older: dict[str, Any] = {"keys": keys, **older}
        ranks = from_environ(os.environ)
        self.name = run_name(script_name() if name is None else name)
        if type(window) is not int or window < 1:
            raise UsageError(
                f"cannot use window={window!r} (from History(window=...)); expected a whole number from 1 on."
            )
        self.outdir = None if outdir is None else Path(outdir).expanduser().absolute()
        self.paths: dict[str, Path] = {}
        self._window = window
        self._result: Any = None
        self._writer: Writer | None = None
        self._next_step = self._rows = 0
        self._evaluated: frozenset[str] = frozenset()  # what rows of evaluation have recorded at the last step
        self._made = time()
        if ranks.rank == 0:
            # A wrong name shall leave no folder behind.
            chosen = choose_trackers(older_calls.trackers_of(older, trackers))
            facts: dict[str, object] = {}
            with guarded("collect the facts of this run"):
                facts = collect_facts(os.environ, ranks, sys.argv)
            self._writer = Writer(self.name, outdir, facts, chosen, self._use_folder)
            self.outdir, self.paths = self._writer.folder, self._writer.paths
            self._next_step = self._writer.journal.next_step
            records_in(str(self.outdir))
        if self.outdir is not None:
            self._use_folder(self.outdir)
        across = None
        if older.get("distributed_history") is not False:
            with guarded("gather values of all ranks"):  # no more threads
                across = across_of(ranks, window, self.name, self._writer, self._use_folder)
        self._onward = RowDispatch(window, self._writer, across)
        write = self._writer.journal.write_seen if self._writer is not None else None
        self._seen = step_states.StepStates(write, self._onward.note_batch if across is not None else None)
        self._live: Any = None  # of objects given to `log_config`
        self._watched: tuple[Any, ...] = (None, None)
        self._is_told = False  # what steps saw, by a loop of ours
        self._line: live_run.LiveRun | None = None
        self._told: set[type[Exception]] = set()  # errors that were warned of
        if self._writer is not None:
            self._writer.flush, self._writer.leave = self._onward.flush, self._onward.leave
            self._writer.keep_seen = self._seen.write
            self._begin_line(self._writer, ranks)
        self._lock = threading.RLock()  # a signal's handler of the user may come in the middle of an update
        self._is_forked = False
        _newest = ref(self)
        _open_here.add(self)
        if older.get("config") is not None:
            self.log_config(older["config"])

    def _begin_line(self, writer: Writer, ranks: Ranks) -> None:
        with guarded("show the run on the terminal"):
            self._line = live_run.begin(self.name, ranks)
            if self._line is not None:
                writer.journal.show, writer.hide = self._line.show, self._line.end

    def _use_folder(self, folder: Path) -> None:
        """Know the run folder, where this rank's log belongs too."""
        self.outdir = folder
        _log_below(folder)
        if self._writer is not None:
            records_in(str(folder))

    def _let_go(self) -> None:
        """Be, in a forked child, as on a rank that records nothing."""
        self._writer, self._onward, self._seen = (
            None,
            RowDispatch(self._window, None, None),
            step_states.StepStates(None, None),
        )
        self._line = None
        self._lock, self.paths, self._is_forked = threading.RLock(), {}, True

    def update(
        self,
        metrics: Mapping[str, object],
        step: int | None = None,
        *,
        weight: float | None = None,
        summarize: bool = True,
        precision: int | None = None,
        use_wandb: bool | None = None,
        commit: bool | None = None,
    ) -> str:
        """Record one row, and tell the launcher that this rank makes progress (`ezpz.heartbeat`).

        Args:
            metrics: Name to number, bool, string, short 1-D array or `ezpz.track.histogram`; tensors and arrays of any
                library are read. A tensor on a device is copied there and read with those of a whole window. Names may
                hold ``/``. A metric called ``step`` that holds an int is the step when no other is given.
            step: The row's step, an int of 64 bits; otherwise one more than the last. A row of nothing but metrics of
                validation (``eval/loss``) belongs to the step before it, unless that has one of them already.
            weight: What this rank's values count for in the mean over ranks, such as its tokens; otherwise all count
                the same.
            summarize: Return the line.
            precision: Digits after the point in the line.
            use_wandb: Ignored: a run of `setup_wandb` gets every row.
            commit: Ignored: every row is one.

        Returns:
            ``iter=3 loss=0.123456 dt=0.001234``, floats with 6 significant digits; empty without ``summarize``. A value
            that is still on a device is left out, until the last row of its window.

        Raises:
            TrackError: A name, value or weight cannot be recorded, two steps contradict each other, or the history was
                finalized. Nothing of this row is recorded then.
            AskedToEnd: As of `ezpz.heartbeat`; the row is recorded.
        """
        if use_wandb is False or commit is False:
            older_calls.warn_once("History.update: use_wandb=False and commit=False have no effect.")
        if self._is_forked:
            older_calls.warn_once(
                "History.update: this process was forked from that of the run and records nothing; "
                "make a History of its own in it.",
                on_every_rank=True,
            )
        begun, collected = monotonic(), pauses.collected
        late: dict[str, Any] = {}
        values = plain(metrics, late)
        share = None if weight is None else weight_of(weight)
        with self._lock:
            row_step, came = self._record(step, values, late, share)
        if not came:  # else it has waited for the device
            pauses.updated(begun, collected)
        progress.answer(row_step)  # the row is recorded, should the program end now
        if not summarize:
            return ""
        shown = {**values, **came} if came else values
        return line(shown) if precision is None else older_calls.rounded(shown, precision)

    def _record(
        self, step: int | None, values: Mapping[str, Value], late: dict[str, Any], weight: float | None
    ) -> tuple[int, Mapping[str, Value]]:
        """Record one row, and return its step and what came from the device for it."""
        writer = self._writer
        evaluates = step is None and holds_validation_only(chain(values, late))
        joins = evaluates and self._rows > 0 and self._evaluated.isdisjoint(chain(values, late))
        row_step = step_of(step, values, self._next_step - joins)
        progress.beat(None if self._is_told else row_step)  # a loop of ours tells its steps itself
        if writer is not None:
            writer.check_names(values if not late else {**values, **late})
            if writer.ended:
                raise TrackError(
                    f"cannot record step {row_step} (from History.update): {self.outdir} is finalized; "
                    f"expected no update after that. Make a new History(outdir=...) to add to it."
                )
            writer.journal.write(row_step, values)
        self._evaluated = (self._evaluated if joins else frozenset()).union(values, late) if evaluates else frozenset()
        self._next_step = row_step + 1
        self._rows += 1
        came: Mapping[str, Value] = {}
        try:  # as `guarded`, which would cost a microsecond
            came = self._hand_on(row_step, values, late, weight)
        except Exception as error:  # noqa: BLE001  # a model, a tracker or a device may raise anything
            if type(error) not in self._told:
                self._told.add(type(error))
                tell(f"hand on the row of step {row_step}", error, "; it is in the journal, and training continues.")
        if self._line is not None:
            self._line.row = row_step, came or values, get_ident()
        return row_step, came

    def _hand_on(
        self, row_step: int, values: Mapping[str, Value], late: dict[str, Any], weight: float | None
    ) -> Mapping[str, Value]:
        """Do what a row is for besides the journal, and return what came from the device for it."""
        writer = self._writer
        if (step_states.noted.waiting or self._live is not None) and not self._is_told:
            self._look_at_step(row_step)
        came = self._onward.add(row_step, values, late, weight)
        if writer is not None:
            writer.keep_sections(row_step, now=self._rows == 1, waits=not self._is_told)
        if writer is not None and (self._rows == 1 or self._rows % self._window == 0):
            self._look_after(writer)
        return came

    def saw(self, step: int, what: step_states.Seen) -> None:
        """Record what the step of the next row saw: its batch and more; `ezpz.train.Loop` calls it before `update`."""
        self._is_told = True
        step_states.noted.waiting.clear()
        if self._writer is None or not self._writer.ended:
            self._seen.add(step, what)

    def _look_at_step(self, step: int) -> None:
        """Record what the steps of a loop that is not ours saw since the row before, as far as it can be known."""
        batch = step_states.noted.take()
        settings = {} if self._live is None else self._live.changed()
        generators: dict[str, int] = {}
        if batch is not None and self._writer is not None and self._rows % step_states.EVERY == 0:
            generators = beside("generator_sums")()
        if batch is not None or settings:
            self._seen.add(step, step_states.Seen(batch, generators, settings))

    def _look_after(self, writer: Writer) -> None:
        writer.look_after()
        if self._rows == 1:
            with suppress(TrackError):  # a full disk: the journal tells
                writer.store("timeline", timeline(history=self._made, first_step=time()))

    def log_config(
        self, config: object = None, *, model: Any = None, optimizer: Any = None, scheduler: Any = None
    ) -> None:
        """Store a configuration in ``run.json``: the one that was asked for, and the one that is in effect.

        The effective one is read from the live objects (`ezpz.view.effective`): dropout probabilities, settings of the
        optimizer, the schedule at several steps, types, number and checksum of parameters, attention. It changes
        nothing.

        Args:
            config: A mapping, namespace or dataclass. Values named like secrets are left out, foreign objects are
                stored as text; names that were stored before are replaced.
            model: A ``torch.nn.Module``, wrapped or not.
            optimizer: Its optimizer.
            scheduler: Its learning-rate scheduler.

        Raises:
            TrackError: The configuration has no names at its top.
        """
        shown = redact_config({} if config is None else config)
        if not isinstance(shown, dict):
            raise TrackError(
                f"cannot store a configuration: {type(config).__name__} (from History.log_config); "
                f"expected a mapping, namespace or dataclass. Pass for example vars(args)."
            )
        if self._writer is None:
            return
        with guarded("store the configuration"):
            self._store(shown, model, optimizer, scheduler)

    def _store(self, config: dict[str, Any], model: Any, optimizer: Any, scheduler: Any) -> None:
        writer = self._writer
        if writer is None:
            return
        if config:
            writer.store("config", config)
        if model is not None or optimizer is not None or scheduler is not None:
            self._watched = tuple(new or old for new, old in zip((optimizer, model), self._watched, strict=True))
            self._live = beside("LiveSettings")(*self._watched)
            effective = beside("describe_effective")(model, optimizer, scheduler)
            writer.store("effective", effective)
            active = [f"{name} {rate}" for name, rate in effective.items() if name.startswith("dropout.") and rate]
            if active:
                more = f", and {len(active) - 8} more" if len(active) > 8 else ""
                get_logger(__name__).info(f"active: {', '.join(active[:8])}{more}")

    def sync(self) -> None:
        """Have everything recorded so far on the disk when this returns, as at a checkpoint."""
        with guarded("write what is recorded to the disk"), self._lock:
            self._onward.flush()
            if self._writer is not None and not self._writer.ended:
                self._writer.journal.sync()

    def export(self, form: str = "h5") -> Path | None:
        """Write the journal to the disk and an export beside it, without drawing and without xarray.

        Args:
            form: ``h5``; ``nc``, the same file under the name that netCDF programs look for; or ``csv``.

        Returns:
            Path of the file; None on other ranks, and where it cannot be written, which is one warning.

        Raises:
            UsageError: The form is unknown.
        """
        from ezpz.track.dataset import check_form

        check_form(form)
        with guarded(f"export {self.name} as {form}"), undisturbed(), Busy(), self._lock:
            self._onward.flush()
            if self._writer is None:
                return None
            if not (self._writer.ended and form == "h5" and "dataset" in self.paths):
                self._writer.export(form)
            return self.paths["dataset" if form == "h5" else form]
        return None

    def rates_count(self, ranks: int) -> None:
        """Say that the recorded throughput (``sps``, ``tps``) counts samples of so many ranks; `ezpz.train.Loop` does.

        The end of the run then shows it per rank too.
        """
        if self._writer is not None:
            self._writer.rate_ranks = ranks

    def at_end(self, function: Callable[[End], object]) -> Callable[[End], object]:
        """Have a function called on rank 0 when the run ends, after its drawings and before its card.

        `finalize` and the end of the block call it, whatever the state; a signal or a program that ends without
        `finalize` does not. What it raises is one warning. Functions are called in the order of their registration.

            @history.at_end
            def copy(end):
                shutil.copy(end.paths["report"], "/project/reports")

        Args:
            function: Takes an `ezpz.track.at_end.End`: ``name``, ``folder``, ``state``, ``paths``, ``run`` and more.

        Returns:
            The function.

        Raises:
            TrackError: It is no function, or the history was finalized.
        """
        if not callable(function):
            raise TrackError(f"cannot call {function!r} at the end (from History.at_end); expected a function.")
        if self._writer is not None:
            if self._writer.ended:
                raise TrackError(
                    f"cannot call a function at the end of {self.outdir} (from History.at_end): it is finalized; "
                    "expected no call after that. Register it earlier."
                )
            name = getattr(function, "__qualname__", type(function).__qualname__)
            self._writer.at_end.append(Part(f"call {name} at the end of the run", function, ("own",)))
        return function

    def finalize(
        self,
        outdir: str | os.PathLike[str] | None = None,
        run_name: str | None = None,
        dataset_fname: str | None = None,
        *unnamed: Any,
        plots: bool = True,
        show: bool = True,
        **older: Any,
    ) -> Any:
        """End the run: write the HDF5 file and ``run.json``, then draw. A second call only copies.

        Rank 0 waits for what other ranks have on their way: at most 30 s, and 3 s from the last that came.

        Args:
            outdir: A folder that gets copies of the dataset, the report and the plots, as older scripts expect.
            run_name: Noted in ``run.json``; the folder and its name stay.
            dataset_fname: Name of a copy of the dataset, without ending.
            unnamed: Values that older scripts pass without names, from ``num_chains`` and ``warmup`` on.
            plots: Write the report, and draw every numeric metric as text and those that matter, at most six, as PNG
                and SVG; ``ezpz plot --pictures`` draws the others. A drawing that fails is one warning.
            show: Print how the run ended, what it reached, and what to type next; with ``plots`` also the loss and the
                accuracy as text plots.
            older: Keywords of older scripts: ``warmup`` leaves rows out of what is returned, ``plot=False`` is
                ``plots=False``, ``env_info`` and ``timings`` go to ``run.json``. What has no effect, a misspelled name
                included, is one warning and never an error: the training is over.

        Returns:
            The ``xarray.Dataset`` of the HDF5 file, in memory; the same where that file cannot be written, which is one
            warning as all that fails here; an empty one on other ranks. xarray is loaded, and the dataset read, when it
            is first touched (`ezpz.track.lazy_dataset`).
        """
        older = older_calls.keywords_of_end(unnamed, older)
        with guarded("note what finalize was given"):
            older_calls.prepare_end(self, older, run_name)
        again = self._result is not None
        if not again:
            self._end("finished", plots=plots and older.get("plot", True), show=show)
            self._result = self._dataset()
        with guarded("copy the results"):
            older_calls.copy_results(self, outdir, dataset_fname, again=again)
        warmup = older.get("warmup")
        with guarded(f"leave {warmup} of the rows out of the dataset"), undisturbed():
            return older_calls.without_warmup(self._result, warmup) if warmup else self._result
        return self._result

    def _dataset(self) -> Any:
        """Return what `finalize` does: the HDF5 file's content, or that of the journal, or nothing."""
        from ezpz.track.lazy_dataset import dataset_of

        with guarded("read the HDF5 file"), undisturbed():
            if self._writer is not None:
                return dataset_of(self._writer.image())
        return dataset_of(b"")

    def _end(self, state: str, *, plots: bool, show: bool, cause: str = "") -> None:
        writer = self._writer
        if writer is None:
            with guarded("hand on what is recorded"):
                self._onward.finish(hurry=state != "finished")
            return
        if not writer.ended:
            with guarded("end the run"), Busy(), undisturbed():
                missing: list[str] = []
                writer.journal.follow()  # first: what is logged from here on belongs into the folder of now
                with guarded("hand on what is recorded", missing):
                    missing += self._onward.finish(hurry=state != "finished")
                report = self._older.get("report_enabled") is not False
                writer.finish(state, plots=plots, show=show, cause=cause, report=report, missing=missing)

    def __enter__(self) -> History:  # noqa: PYI034  # `Self` needs Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        state, cause = state_after(error, "finished")
        self._end(state, plots=state == "finished", show=True, cause=cause)


def _log_below(folder: Path) -> None:
    """Have this rank's log in a run folder, unless somebody else has named a place for it."""
    global _logs
    wanted = f"{folder}/logs"
    path = log_to(wanted, replace=False) or ""
    if _logs and path.startswith(f"{_logs}/"):  # of an earlier history
        path = log_to(wanted) or ""
    _logs = wanted if path.startswith(f"{wanted}/") else ""


def _forked() -> None:
    """Leave to the parent of this forked child the runs that are its."""
    for history in list(_open_here):
        history._let_go()  # noqa: SLF001  # of this module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def current_folder() -> Path | None:
    """Return the folder of this process's newest history; None without one, and where this rank has not received it."""
    history = _newest() if _newest is not None else None
    return history.outdir if history is not None else None
