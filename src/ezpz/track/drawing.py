"""All that is drawn at the end of a run: plots as text, pictures, the report. What fails costs one warning and no data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ezpz.log import get_logger

if TYPE_CHECKING:
    from pathlib import Path

    from ezpz.track.run import Run

__all__ = ["draw_run"]


def draw_run(run: Run, stamp: str, *, show: bool) -> tuple[dict[str, Path], list[str]]:
    """Draw a run into its folder.

    Args:
        run: What is drawn.
        stamp: Start of the run, shown in titles.
        show: Print the text plots as well.

    Returns:
        What was made, by the names of `ezpz.track.History.paths`, and a sentence for each thing that failed; the same
        sentence has been logged as a warning.
    """
    made: dict[str, Path] = {}
    problems: list[str] = []
    # Anything may come: ImportError of a site's own build, OSError of a full disk, ValueError out of a drawing library.
    # The data is on the disk by now, and no picture is worth the run's exit code.
    try:
        from ezpz.track.plots import draw_all
        from ezpz.track.series import numeric_series

        made, problems = draw_all(numeric_series(run.table), run.folder, stamp, show=show)
    except Exception as error:  # noqa: BLE001  # as said above
        problems.append(_problem("the metrics", error))
    try:
        _draw_ranks(run)
    except Exception as error:  # noqa: BLE001  # as said above
        problems.append(_problem("the map of ranks", error))
    try:
        from ezpz.track.report import write_report

        made["report"] = write_report(run)
    except Exception as error:  # noqa: BLE001  # as said above
        problems.append(_problem("the report", error))
    return made, problems


def _draw_ranks(run: Run) -> None:
    """Draw the time that tells ranks apart best, where there are several: ``plots/mplot/ranks/<metric>.png`` and ``.svg``."""
    if not run.windows:
        return
    from ezpz.track.pictures import save_heat_map
    from ezpz.track.plots import file_stem
    from ezpz.track.report.by_rank import counting_windows, slowest_key

    matrix = slowest_key(counting_windows(run))
    if matrix is None:
        return
    folder = run.folder / "plots" / "mplot" / "ranks"
    folder.mkdir(parents=True, exist_ok=True)
    stem = file_stem(matrix.name, set())
    save_heat_map(folder / f"{stem}.png", folder / f"{stem}.svg", matrix.name, matrix.steps, matrix.values)


def _problem(what: str, error: Exception) -> str:
    problem = f"cannot draw {what}: {type(error).__name__}: {error}"
    get_logger(__name__).warning(f"{problem}; the data is safe.")
    return problem
