"""Answer the keywords and calls of a history that public scripts know, on what a history of today does.

    history = History(keys=["loss"], project_name="mmm", backends="wandb,csv", config={"lr": 1e-4}, jsonl_path="m")
    history.update({"train/loss": loss}, precision=4)
    dataset = history.finalize(outdir="results", run_name="mmm-fsdp", dataset_fname="train", warmup=0.1)

What cannot be honoured is one warning, and nothing here ends a training that went well: the journal has the data.
docs/older-scripts.md lists what each one does.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ezpz.beside import beside
from ezpz.errors import TrackError, UsageError, did_you_mean
from ezpz.log import get_logger
from ezpz.ranks import from_environ
from ezpz.track.values import line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from logging import Logger

    from ezpz.track.writer import Writer

# Keywords of the constructor and of `finalize` that older scripts pass and that are read here.
_OF_HISTORY = {
    *("keys", "project_name", "config", "backends", "distributed_history"),
    *("jsonl_path", "jsonl_overwrite", "report_dir", "report_enabled", "tracker"),
}
# Those of `finalize` are in the order in which older scripts may pass them without names.
_OF_END = (
    *("num_chains", "warmup", "verbose", "save", "plot", "append_tplot", "title", "data", "dataset", "xkey"),
    *("plot_kwargs", "subplots_kwargs", "tplot_type", "env_info", "timings"),
)
# Keyword -> its default, which asks for nothing.
_NO_EFFECT: dict[str, object] = {"num_chains": 128, "verbose": False, "append_tplot": True, "save": True}
_NO_EFFECT |= dict.fromkeys(("title", "data", "dataset", "xkey", "plot_kwargs", "subplots_kwargs", "tplot_type"))
_warned: set[str] = set()


def warn_once(text: str, *, on_every_rank: bool = False) -> None:
    """Say what cannot be honoured, once in this process, and on rank 0 alone unless it is another rank's."""
    if text not in _warned and (on_every_rank or from_environ(os.environ).rank == 0):
        _warned.add(text)
        get_logger(__name__).warning(text)


def check_keywords(given: Mapping[str, object]) -> None:
    """Refuse keywords that no edition of the constructor has had.

    Raises:
        TypeError: As Python itself does.
    """
    for name in given:
        if name not in _OF_HISTORY:
            hint = did_you_mean(name, _OF_HISTORY)
            raise TypeError(f"History() got an unexpected keyword argument {name!r}.{hint}")


def keywords_of_end(unnamed: Sequence[object], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `finalize` was given besides its own arguments; what no edition has had is left out, with a warning.

    The training is over: an error here would take its report away.

    Args:
        unnamed: Values after the third.
        named: Keywords.
    """
    given = {**dict(zip(_OF_END, unnamed, strict=False)), **named}
    for name in [name for name in given if name not in _OF_END]:
        del given[name]
        hint = did_you_mean(name, (*_OF_END, "outdir", "run_name", "dataset_fname", "plots", "show"))
        warn_once(f"History.finalize: {name!r} is no keyword and has no effect.{hint}")
    if len(unnamed) > len(_OF_END):
        warn_once(f"History.finalize: {len(unnamed) - len(_OF_END)} of its values have no place and have no effect.")
    warmup = given.get("warmup")
    try:
        given["warmup"] = None if warmup is None else float(warmup)
    except (TypeError, ValueError):
        del given["warmup"]
        warn_once(f"History.finalize: warmup={warmup!r} has no effect; expected a share below 1, or a number of rows.")
    return given


def trackers_of(older: Mapping[str, Any], trackers: Any) -> Any:
    """Return what to give as ``trackers``, where older code says ``backends`` and ``project_name``."""
    backends, project = older.get("backends"), older.get("project_name")
    if older.get("tracker") is not None:
        warn_once("History(tracker=…) has no effect: name the places by trackers=…")
    if backends is None or trackers is not None:
        if project is not None and backends is None:
            warn_once(
                f"History(project_name={project!r}) names the project of wandb, and no backend is asked for: "
                'add trackers="wandb", or call setup_wandb(project_name=…) first.'
            )
        return trackers
    names = [name.strip() for name in backends.split(",")] if isinstance(backends, str) else list(backends)
    return [_with_project(name, project) for name in names if name not in {"", "none"}]


def _with_project(name: Any, project: str | None) -> Any:
    own_backends = beside("own_backends")
    if name in own_backends.registered:
        return own_backends.adapted(name)
    if name != "wandb" or project is None:
        return name
    return beside("WandbTracker")(project)


class OlderCalls:
    """The calls of a history that older scripts make; `ezpz.track.History` inherits them."""

    _writer: Writer | None
    _older: dict[str, Any]
    name: str
    outdir: Path | None
    paths: dict[str, Path]
    sync: Callable[[], None]

    @property
    def history(self) -> dict[str, list[Any]]:
        """Every metric's values in the order of writing, read from the journal; of another rank than 0 an empty one."""
        values: dict[str, list[Any]] = {str(name): [] for name in self._older.get("keys") or ()}
        if self._writer is None:
            warn_once(
                "History.history is empty on other ranks than 0, which sends its values there.", on_every_rank=True
            )
            return values
        return {**values, **{name: list(cells.values) for name, cells in self._table().cells.items()}}

    def __getitem__(self, name: str) -> list[Any]:
        """Return the values of one metric in the order of writing, as `history` has them.

        Raises:
            KeyError: It has not been recorded, or this is another rank than 0.
        """
        return self.history[name]

    @property
    def data(self) -> dict[str, list[Any]]:
        """The same as `history`."""
        return self.history

    @property
    def distributed_history(self) -> bool:
        """Tell whether values of all ranks travel to rank 0."""
        return self._older.get("distributed_history") is not False and from_environ(os.environ).world_size > 1

    @property
    def groups(self) -> dict[str, dict[str, list[Any]]]:
        """The same, by the text before a name's first ``/``; names without one are under ``""``."""
        parts: dict[str, dict[str, list[Any]]] = {}
        for name, values in self.history.items():
            prefix, slash, rest = name.partition("/")
            parts.setdefault(prefix if slash else "", {})[rest if slash else name] = values
        return parts

    def history_to_dict(self) -> dict[str, Any]:
        """Return `history` with arrays of numpy."""
        import numpy as np

        return {name: np.asarray(values) for name, values in self.history.items()}

    def get_dataset(self, data: Mapping[str, Any] | None = None, warmup: float | None = 0.0) -> Any:
        """Return an ``xarray.Dataset`` of what is recorded so far, as `finalize` does; empty on other ranks than 0.

        Args:
            data: Name to values, instead of what is recorded.
            warmup: What to leave out at the beginning: a share below 1, or a number of rows.

        Raises:
            TrackError: Two metrics would get one name.
        """
        if data is not None:
            import xarray as xr

            arrays = {name.replace("/", "_"): self.to_DataArray(values) for name, values in data.items()}
            return without_warmup(xr.Dataset(arrays), warmup)
        if self._writer is None:
            import xarray as xr

            return xr.Dataset()
        from ezpz.track.dataset import write_dataset
        from ezpz.track.lazy_dataset import open_dataset

        self.sync()
        run = self._run()
        with TemporaryDirectory(prefix="ezpz-") as folder:
            path = Path(folder) / "now.h5"
            write_dataset(path, run.rows, {"name": self.name}, run.windows)
            return without_warmup(open_dataset(path), warmup)

    def get_grouped_datasets(self, warmup: float | None = 0.0) -> dict[str, Any]:
        """Return a dataset for each of `groups`, by its name; that of names without a prefix is ``dataset``."""
        return {name or "dataset": self.get_dataset(values, warmup) for name, values in self.groups.items()}

    def to_DataArray(self, x: Any, warmup: float | None = 0.0) -> Any:  # noqa: N802  # the name that users know
        """Return values as an ``xarray.DataArray``.

        Args:
            x: One value per row, each a number, or an array of shape (chains,) or (leapfrog steps, chains).
            warmup: As in `get_dataset`.

        Returns:
            Dimensions ``draw``; ``chain, draw``; or ``chain, leapfrog, draw``.
        """
        import numpy as np
        import xarray as xr

        values = np.asarray(grab_tensor(x))
        names = {1: ("draw",), 2: ("chain", "draw"), 3: ("chain", "leapfrog", "draw")}
        if values.ndim not in names:
            raise TrackError(
                f"cannot make a DataArray of {values.ndim} dimensions (from to_DataArray); expected 1 to 3."
            )
        values = values[_rows_of_warmup(len(values), warmup) :]
        dims = names[values.ndim]
        return xr.DataArray(
            values.T, dims=dims, coords={name: np.arange(n) for name, n in zip(dims, values.T.shape, strict=True)}
        )

    def save_dataset(  # noqa: PLR0917  # in the order of older code
        self,
        outdir: str | os.PathLike[str],
        fname: str = "dataset",
        use_hdf5: bool = True,
        data: Mapping[str, Any] | None = None,
        dataset: Any = None,
        warmup: float | None = None,
        **more: Any,
    ) -> Path | None:
        """Write a dataset, that of `get_dataset` by default, and return its path; None on other ranks than 0."""
        if self._writer is None:
            return None
        chosen = self.get_dataset(data, warmup) if dataset is None else dataset
        return save_dataset(chosen, outdir, use_hdf5, fname, **more)

    def plot_all(self, *args: Any, outdir: str | os.PathLike[str] | None = None, **older: Any) -> Any:
        """Draw every metric so far as PNG and SVG, below the run folder or ``outdir``, and return the dataset.

        Args:
            args: Ignored: ``num_chains``, ``warmup``, ``title``, ``verbose``.
            outdir: Folder for ``plots/mplot`` instead of the run folder.
            older: Ignored, with one warning for those that would change the pictures.
        """
        del args
        _say_ignored(older, "plot_all")
        self._draw(outdir, pictures=True)
        return self.get_dataset()

    def tplot_all(self, outdir: str | os.PathLike[str] | None = None, *args: Any, **older: Any) -> None:
        """Draw every metric so far as text, below the run folder or ``outdir``."""
        del args
        _say_ignored(older, "tplot_all")
        self._draw(outdir, pictures=False)

    def log_metrics(
        self,
        metrics: Mapping[str, Any],
        *,
        logger: Logger | None = None,
        debug_prefixes: Sequence[str] = ("hist/",),
        precision: int = 6,
        **older: Any,
    ) -> None:
        """Log metrics as a line, without recording them.

        Args:
            metrics: Name to value.
            logger: Instead of ezpz's own.
            debug_prefixes: Metrics whose names begin so are logged at DEBUG.
            precision: Digits after the point.
            older: Ignored: ``include_summary`` and the like; ranks are summarized in the report.
        """
        del older
        to = logger or get_logger(__name__)
        hidden = {name: value for name, value in metrics.items() if name.startswith(tuple(debug_prefixes))}
        text = summarize({name: value for name, value in metrics.items() if name not in hidden}, precision)
        if text:
            to.info(text.replace("train/", ""))
        if hidden:
            to.debug(summarize(hidden, precision).replace("train/", ""))

    @property
    def tracker(self) -> OlderTracker:
        """What older scripts ask for wandb's run."""
        return OlderTracker()

    def _run(self) -> Any:
        assert self._writer is not None
        from ezpz.track.run_reader import open_run

        return open_run(self._writer.folder)

    def _table(self) -> Any:
        self.sync()
        return self._run().table

    def _draw(self, outdir: str | os.PathLike[str] | None, *, pictures: bool) -> None:
        if self._writer is None:
            return
        from ezpz.track.series import numeric_series

        self.sync()
        run = self._run()
        if outdir is not None:
            run = run.changed(folder=Path(outdir).expanduser().absolute())
        series = numeric_series(self._table())
        try:
            if pictures:
                list(beside("save_pictures")(run, series, {item.name for item in series}))
            else:
                beside("save_texts")(series, run.folder)
        # A drawing library may raise anything, and no picture is worth a training.
        except Exception as error:  # noqa: BLE001
            get_logger(__name__).warning(f"cannot draw the metrics: {type(error).__name__}: {error}")


class OlderTracker:
    """What older scripts reach by ``history.tracker``: the running runs of this process."""

    @property
    def wandb_run(self) -> Any:
        """The run of wandb in this process, or None."""
        import sys

        return getattr(sys.modules.get("wandb"), "run", None)

    def get_backend(self, name: str) -> Any:
        """Return wandb's run for ``wandb``, an own backend by its name, and None for others."""
        return self.wandb_run if name == "wandb" else beside("own_backends").made.get(name)

    def log(self, metrics: Mapping[str, Any], step: int | None = None, commit: bool = True) -> None:
        """Log to wandb's run, where there is one."""
        if self.wandb_run is not None:
            self.wandb_run.log(dict(metrics), step=step, commit=commit)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_"):
            raise AttributeError(name)

        def nothing(*args: object, **keywords: object) -> None:
            del args, keywords
            warn_once(f"History.tracker.{name} does nothing; History(trackers=…) copies every row.")

        return nothing


def prepare_end(history: Any, older: Mapping[str, Any], run_name: str | None) -> None:
    """Note in ``run.json`` what `finalize` was given, before the run ends; no failure of it counts."""
    _say_ignored(older, "finalize")
    writer = history._writer  # noqa: SLF001  # its own class
    notes = {name: older[name] for name in ("env_info", "timings") if older.get(name)}
    if run_name is not None and run_name != history.name:
        notes["run_name"] = run_name
    if writer is not None and writer.ended and notes:
        warn_once(f"finalize: {', '.join(notes)} came after the end of the run and cannot be noted in run.json.")
    if writer is None or writer.ended:
        return
    for name, note in notes.items():
        try:
            writer.store("config", {name: note if isinstance(note, str) else dict(note)})
        except (TrackError, TypeError, ValueError) as error:
            get_logger(__name__).warning(f"finalize: {name} is not in run.json: {error}")


def copy_results(
    history: Any, outdir: str | os.PathLike[str] | None, dataset_fname: str | None, *, again: bool = False
) -> None:
    """Copy what a run has left to where older code looks for it; a failure is one warning.

    Args:
        history: A history that has ended.
        outdir: Folder for the dataset, the report and the plots, besides the run folder.
        dataset_fname: Name of the dataset there, without ending.
        again: Copy to ``outdir`` alone: an earlier call has done the rest.
    """
    if history._writer is None:  # noqa: SLF001  # its own class
        return
    older = {} if again else history._older  # noqa: SLF001  # the same
    try:
        copies = _copies(history, older, outdir, dataset_fname)
    except TypeError as error:  # no path
        get_logger(__name__).warning(f"finalize: nothing is copied: {error}; {history.outdir} has all.")
        return
    done = [to for source, to in copies if _copy(source, to)]
    if done:
        get_logger(__name__).info(f"copied for older scripts: {', '.join(map(str, done))}")


def _copies(
    history: Any, older: Mapping[str, Any], outdir: str | os.PathLike[str] | None, dataset_fname: str | None
) -> list[tuple[Path, Path]]:
    paths = history.paths
    target = Path(outdir).expanduser().absolute() if outdir else history.outdir
    copies: list[tuple[Path, Path]] = []
    if "dataset" in paths and (outdir or dataset_fname):
        copies.append((paths["dataset"], target / f"{Path(dataset_fname or history.name).name}.h5"))
    if target != history.outdir:
        copies += [(paths[name], target / paths[name].name) for name in ("report",) if name in paths]
        copies += [(history.outdir / "plots", target / "plots")]
    if older.get("report_dir") and "report" in paths:
        copies.append((paths["report"], Path(older["report_dir"]).expanduser().absolute() / paths["report"].name))
    elif older.get("report_dir"):
        get_logger(__name__).warning(
            f"no report is in report_dir={os.fspath(older['report_dir'])!r}: none was written. "
            f"`ezpz report {history.outdir}` writes one."
        )
    if older.get("jsonl_path"):
        copies.append((paths["journal"], Path(older["jsonl_path"]).expanduser().absolute()))
    return copies


def _copy(source: Path, to: Path) -> bool:
    if source == to or not source.exists():
        return False
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, to, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, to)
    except (OSError, shutil.Error) as error:
        get_logger(__name__).warning(f"cannot copy {source} to {to}: {error}; the run folder has it.")
        return False
    return True


def without_warmup(dataset: Any, warmup: float | None) -> Any:
    """Return a dataset without its first draws.

    Args:
        dataset: With a dimension ``draw``.
        warmup: A share below 1, or a number of draws.
    """
    first = _rows_of_warmup(dataset.sizes.get("draw", 0), warmup) if warmup else 0
    return dataset.isel(draw=slice(first, None)) if first else dataset


def _rows_of_warmup(rows: int, warmup: float | None) -> int:
    if not warmup or warmup < 0:
        return 0
    return int(warmup * rows) if warmup < 1 else min(int(warmup), rows)


def _say_ignored(older: Mapping[str, Any], call: str) -> None:
    idle = [name for name, default in _NO_EFFECT.items() if name in older and older[name] not in (default, None)]
    if idle:
        have = "has" if len(idle) == 1 else "have"
        warn_once(f"{call}: {', '.join(idle)} {have} no effect here.")


def rounded(values: Mapping[str, Any], precision: int | None) -> str:
    """Return a row's line, with ``precision`` digits after the point where older code asks for them."""
    if precision is None:
        return line(values)
    return summarize(values, precision)


def split_name(name: object) -> tuple[str | None, list[str]]:
    """Return name and keys: older code passes a list of keys first.

    Raises:
        UsageError: It is neither.
    """
    if name is None or isinstance(name, str):
        return name, []
    if isinstance(name, (list, tuple)) and all(isinstance(each, str) for each in name):
        return None, list(name)
    raise UsageError(f"no name of a run: {name!r} (from History); expected a text, or older code's list of metrics.")


def summarize(values: Mapping[str, object], precision: int) -> str:
    """Return ``step=10 loss=0.047000``."""
    return " ".join(f"{key}={shown(value, precision)}" for key, value in values.items())


def shown(value: object, precision: int) -> str:
    """Return a value as `summarize_dict` shows it."""
    # A tensor or a numpy number formats like the float that it holds; everything else says so by raising.
    if not isinstance(value, (int, str, bytes)):
        try:
            return format(value, f".{precision}f")
        except (TypeError, ValueError, RuntimeError):  # None, a list; a tensor of many values
            pass
    return str(value)


def grab_tensor(x: Any, force: bool = False) -> Any:
    """Return a tensor, or a list of numbers or tensors, as a numpy array; numbers, None and the rest as they are."""
    del force  # what needs a gradient or lies on a device is copied in any case
    import numpy as np

    if hasattr(x, "detach"):
        return x.detach().cpu().numpy()
    if isinstance(x, (list, tuple)) and len(x):
        return np.stack([np.asarray(grab_tensor(each)) for each in x])
    return x


def save_dataset(
    dataset: Any, outdir: str | os.PathLike[str], use_hdf5: bool | None = True, fname: str | None = None, **more: Any
) -> Path:
    """Write an ``xarray.Dataset`` and return its path: ``<outdir>/<fname>.h5``, or ``.nc`` without HDF5's name."""
    name = Path(fname or "dataset")
    ending = name.suffix if name.suffix in {".h5", ".hdf5", ".nc"} else ".h5" if use_hdf5 else ".nc"
    folder = Path(outdir)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.stem if name.suffix == ending else name}{ending}"
    dataset_to_h5pyfile(path, dataset, **more)
    return path


def dataset_to_h5pyfile(hfile: str | os.PathLike[str], dataset: Any, **more: Any) -> None:
    """Write an ``xarray.Dataset`` as HDF5, each variable under its name with ``_`` for ``/``."""
    renamed = dataset.rename({name: str(name).replace("/", "_") for name in dataset.variables if "/" in str(name)})
    renamed.to_netcdf(hfile, engine="h5netcdf", invalid_netcdf=True, **more)
