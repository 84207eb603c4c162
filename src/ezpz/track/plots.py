"""Draw a run: each metric as text, PNG and SVG. Drawing comes last and may fail without consequence."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ezpz.files import make_closed_folder
from ezpz.log import get_logger
from ezpz.track.columns import export_name
from ezpz.track.names import group_names
from ezpz.track.pictures import save_pictures
from ezpz.track.series import ordered
from ezpz.track.terminal.panels import drawing, look_at_stdout, show_blocks
from ezpz.track.terminal.textplot import draw, save_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ezpz.track.run import Run
    from ezpz.track.series import Series


# All that is drawn at the end of a run: plots as text, pictures, the report. What fails costs one warning and no data.


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
        from ezpz.track.series import numeric_series

        made, problems = draw_all(numeric_series(run.table), run.folder, stamp, show=show)
    except Exception as error:  # noqa: BLE001  # as above
        problems.append(_problem("the metrics", error))
    try:
        _draw_ranks(run)
    except Exception as error:  # noqa: BLE001  # as above
        problems.append(_problem("the map of ranks", error))
    try:
        from ezpz.track.report import write_report

        made["report"] = write_report(run)
    except Exception as error:  # noqa: BLE001  # as above
        problems.append(_problem("the report", error))
    return made, problems


def _draw_ranks(run: Run) -> None:
    """Draw the time in which several ranks differ most: ``plots/mplot/ranks/<metric>.png`` and ``.svg``."""
    if not run.windows:
        return
    from ezpz.track.by_rank import counting_windows, slowest_key
    from ezpz.track.pictures import save_heat_map

    matrix = slowest_key(counting_windows(run))
    if matrix is None:
        return
    folder = run.folder / "plots" / "mplot" / "ranks"
    make_closed_folder(folder)
    stem = file_stem(matrix.name, set())
    save_heat_map(folder / f"{stem}.png", folder / f"{stem}.svg", matrix.name, matrix.steps, matrix.values)


def _problem(what: str, error: Exception) -> str:
    problem = f"cannot draw {what}: {type(error).__name__}: {error}"
    get_logger(__name__).warning(f"{problem}; metrics.jsonl is not touched by that.")
    return problem


_UNSAFE = re.compile(r"[^\w.+=@%-]")
_ON_TERMINAL = 6  # plots at the end of a run: a screen or two, not the twenty metrics that a trainer records
_TURNS = {"loss": 2}  # metrics of a kind that are shown before the next kind has its turn
_LATER = {"memory": 2, "optimizer": 2}
_LONGEST_STEM = 120  # file names end at 255 bytes, and a letter may take four


def file_stem(name: str, taken: set[str]) -> str:
    """Return a file's name, without ending, for a metric; ``-2``, ``-3``, … is added when ``taken`` holds it already.

    Args:
        name: The metric's own name.
        taken: Stems given out so far, in lower case as some file systems compare them; the new one is added.
    """
    base = _UNSAFE.sub("_", export_name(name)).lstrip(".")[:_LONGEST_STEM] or "_"
    stem, number = base, 1
    while stem.lower() in taken:
        number += 1
        stem = f"{base}-{number}"
    taken.add(stem.lower())
    return stem


def _for_the_terminal(series: list[Series]) -> list[Series]:
    """Return what people look at first: two losses, throughput, times, the rest in turn; all where there are few."""
    if len(series) <= _ON_TERMINAL:
        return series
    lines = [item for item in series if len(item.steps) > 1 and "_per_" not in item.name]
    kinds = group_names(item.name for item in lines)
    turns = sorted(
        (place // _TURNS.get(kind, 1) + _LATER.get(kind, 0), order, name)
        for order, (kind, names) in enumerate(kinds.items())
        for place, name in enumerate(names)
    )
    names = {name for _, _, name in turns[:_ON_TERMINAL]}
    return [item for item in ordered(lines) if item.name in names]


def draw_all(series: list[Series], folder: Path, stamp: str, *, show: bool) -> tuple[dict[str, Path], list[str]]:
    """Draw every series into ``plots/`` below a run folder.

    Args:
        series: What to draw.
        folder: The run folder.
        stamp: Start of the run, shown in titles.
        show: Print the text plots as well.

    Returns:
        The folders that now hold drawings, by ``tplot``, ``pngs`` and ``svgs``, and a sentence for each kind of
        drawing that failed; the same sentence has been logged as a warning.
    """
    tplot, pngs, svgs = (folder / "plots" / part for part in ("tplot", "mplot/pngs", "mplot/svgs"))
    taken: set[str] = set()
    stems = {item.name: file_stem(item.name, taken) for item in series}

    def text(item: Series) -> None:
        save_text(tplot / f"{stems[item.name]}.txt", item, stamp)

    def picture(item: Series) -> None:
        save_pictures(pngs / f"{stems[item.name]}.png", svgs / f"{stems[item.name]}.svg", item, stamp)

    problems = _attempt("the text plot", series, text, (tplot,))
    if show:
        screen = look_at_stdout()
        shown = _for_the_terminal(series)
        how, blocks = drawing(screen, len(shown)), []
        problems += _attempt(
            "the plot on the terminal",
            shown,
            lambda item: blocks.append(draw([item], f"{item.name} [{stamp}]", how)),
            (),
        )
        show_blocks(blocks, screen)
        if len(shown) < len(series):
            left = f"{len(series) - len(shown)} more metrics"
            get_logger(__name__).info(f"{left} are drawn in {tplot}; `ezpz plot {folder} NAME` shows any of them")
    problems += _attempt("the picture", series, picture, (pngs, svgs))
    folders = {"tplot": tplot, "pngs": pngs, "svgs": svgs}
    return {key: path for key, path in folders.items() if path.is_dir() and any(path.iterdir())}, problems


def _attempt(what: str, series: list[Series], draw: Callable[[Series], None], folders: tuple[Path, ...]) -> list[str]:
    failed: dict[str, Exception] = {}
    for item in series:
        try:
            for folder in folders:
                make_closed_folder(folder)
            draw(item)
        # Anything may come: ImportError of a site's own build, OSError of a full disk, ValueError out of a drawing
        # library. The data is on the disk by now, and no picture is worth the run's exit code.
        except Exception as error:  # noqa: BLE001
            failed[item.name] = error
    if not failed:
        return []
    first = next(iter(failed.values()))
    problem = f"cannot draw {what} of {', '.join(failed)}: {type(first).__name__}: {first}"
    get_logger(__name__).warning(f"{problem}; metrics.jsonl is not touched by that.")
    return [problem]
