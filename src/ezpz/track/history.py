"""`History`: record metrics at every step, and leave a folder that says what happened."""

from __future__ import annotations

import operator
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ezpz.errors import TrackError, UsageError
from ezpz.log import get_logger
from ezpz.progress import heartbeat
from ezpz.ranks import from_environ
from ezpz.track import wandb
from ezpz.track.facts import collect_facts, redact_config, script_name
from ezpz.track.values import line, plain
from ezpz.track.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from ezpz.track.values import Value

__all__ = ["History"]


class History:
    """A run's metrics: every row reaches the journal at once, the rest is made from it at the end.

    Rank 0 records. On other ranks the same calls return the same lines and write nothing. Nothing here is a
    collective, and no device is waited for except by reading a tensor that was passed.

        with ezpz.History() as history:
            for step in range(100):
                print(history.update({"loss": loss, "dt": dt}))

    Leaving the block finalizes; an exception marks the run as failed, keeps all data, draws nothing and passes on. A
    program that ends without `finalize` leaves the journal and ``run.json``, from which all else can be made.

    Attributes:
        name: Name of the run and of its HDF5 file.
        outdir: The run folder; None on other ranks, unless it was given.
        paths: What has been written so far, as absolute paths: ``run`` and ``journal`` at once, ``dataset`` after an
            export, the folders ``tplot``, ``pngs`` and ``svgs`` after drawing. Empty on other ranks.
    """

    def __init__(self, name: str | None = None, outdir: str | os.PathLike[str] | None = None) -> None:
        """Make the run folder and open its journal.

        Args:
            name: Name of the run; otherwise that of the running module or script.
            outdir: The run folder itself, made if need be; rows are added to a journal that it holds already.
                Otherwise ``outputs/<name>/<YYYY-MM-DD-HHMMSS>/`` below the current folder.

        Raises:
            UsageError: The name is no folder name, or the folder cannot be used.
            RankError: The environment contradicts itself about who this process is.
        """
        ranks = from_environ(os.environ)
        self.name = script_name() if name is None else name
        if self.name in {"", ".."} or Path(self.name).name != self.name or not self.name.isprintable():
            raise UsageError(
                f"cannot name a run: {self.name!r} (from History(name=...)); expected one folder name without '/'. "
                f"Use for example History(name='train')."
            )
        self.outdir = None if outdir is None else Path(outdir).expanduser().absolute()
        self.paths: dict[str, Path] = {}
        self._result: Any = None
        self._writer: Writer | None = None
        if ranks.rank == 0:
            self._writer = Writer(self.name, outdir, collect_facts(os.environ, ranks, sys.argv))
            self.outdir, self.paths = self._writer.folder, self._writer.paths

    def update(self, metrics: Mapping[str, object], step: int | None = None, *, summarize: bool = True) -> str:
        """Record one row, and tell the launcher that this rank makes progress (`ezpz.heartbeat`).

        Args:
            metrics: Name to number, bool, string or short 1-D array; tensors and arrays of any library are read. Names
                may hold ``/``. A metric called ``step`` that holds an int is the step when no other is given.
            step: The row's step, an int of 64 bits; otherwise one more than the last.
            summarize: Return the line; without it other ranks do not even read the values.

        Returns:
            ``iter=3 loss=0.123456 dt=0.001234``, floats with 6 significant digits; empty without ``summarize``.

        Raises:
            TrackError: A name or value cannot be recorded, two steps contradict each other, or the history was
                finalized. Nothing of this row is recorded then.
        """
        heartbeat()
        writer = self._writer
        if writer is None:
            return line(plain(metrics)) if summarize else ""
        values = plain(metrics)
        writer.check_names(values)
        row_step = _step(step, values, writer.next_step)
        if writer.ended:
            raise TrackError(
                f"cannot record step {row_step} (from History.update): {self.outdir} is finalized; expected no update "
                f"after that. Make a new History(outdir=...) to add to it."
            )
        writer.journal.write(row_step, values)
        writer.next_step = row_step + 1
        if wandb.run is not None:
            wandb.log(row_step, values)
        return line(values) if summarize else ""

    def log_config(self, config: object) -> None:
        """Store a configuration in ``run.json``.

        Args:
            config: A mapping, namespace or dataclass. Values named like secrets are left out, foreign objects are
                stored as text; names that were stored before are replaced.

        Raises:
            TrackError: It has no names at its top, or cannot be written.
        """
        shown = redact_config(config)
        if not isinstance(shown, dict):
            raise TrackError(
                f"cannot store a configuration: {type(config).__name__} (from History.log_config); "
                f"expected a mapping, namespace or dataclass. Pass for example vars(args)."
            )
        if self._writer is not None:
            self._writer.store_config(shown)

    def export(self) -> Path | None:
        """Write the journal to the disk and the HDF5 file beside it, without drawing and without xarray.

        Returns:
            Path of the HDF5 file; None on other ranks.

        Raises:
            TrackError: Two metrics would get one name there, or it cannot be written. The journal is complete.
        """
        if self._writer is None:
            return None
        if self._writer.ended:
            self._end("finished", plots=False, show=False)  # made already, or raises again what kept it from being made
        else:
            self._writer.export()
        return self.paths["dataset"]

    def finalize(self, *, plots: bool = True, show: bool = True) -> Any:
        """End the run: write the HDF5 file, then draw, then complete ``run.json``. A second call changes nothing.

        Args:
            plots: Draw every numeric metric as text, PNG and SVG. A drawing that fails is one warning.
            show: Print the text plots as well.

        Returns:
            The ``xarray.Dataset`` of the HDF5 file, in memory; an empty one on other ranks.

        Raises:
            TrackError: The HDF5 file cannot be written; everything else has been done by then.
        """
        from ezpz.track.dataset import empty_dataset, open_dataset

        if self._result is None:
            if self._writer is None:
                self._result = empty_dataset()
            else:
                self._end("finished", plots=plots, show=show)
                self._result = open_dataset(self.paths["dataset"])
        return self._result

    def _end(self, state: str, *, plots: bool, show: bool) -> None:
        if self._writer is None:
            return
        if not self._writer.ended:
            self._writer.finish(state, plots=plots, show=show)
        if self._writer.failure is not None:
            raise self._writer.failure

    def __enter__(self) -> History:  # noqa: PYI034  # `Self` needs Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failed = kind is not None and not (isinstance(error, SystemExit) and error.code in {None, 0})
        try:
            self._end("failed" if failed else "finished", plots=not failed, show=True)
        except TrackError as failure:
            if error is None:
                raise
            get_logger(__name__).warning(str(failure))  # the exception that is on its way is the one to be seen


def _step(step: int | None, values: Mapping[str, Value], following: int) -> int:
    """Return the step of a row as an int, from its three sources: the argument, a metric called ``step``, the count."""
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
