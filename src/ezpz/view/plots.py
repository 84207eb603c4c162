"""Draw a run: the report, each metric as text, and those that matter as PNG and SVG.

What costs little comes first, and pictures last: matplotlib alone takes longer to load than all the rest takes. What
fails costs one warning and no data.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

from ezpz.files import make_closed_folder
from ezpz.log import get_logger
from ezpz.track.columns import export_name
from ezpz.track.names import group_names, is_loss, main_loss, unit
from ezpz.track.series import numeric_series, ordered
from ezpz.view.pictures import Pictures, save_heat_map
from ezpz.view.run_summary import accuracies
from ezpz.view.terminal.panels import drawing, look_at_stdout, show_blocks
from ezpz.view.terminal.textplot import draw, save_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from ezpz.track.at_end import End
    from ezpz.track.by_rank import Matrix
    from ezpz.track.run_reader import Run
    from ezpz.track.series import Series


def draw_end(end: End) -> None:
    """Draw a run that ends."""
    made, problems = draw_run(end.run, end.stamp, show=end.show, report=end.report)
    end.paths.update(made)
    end.problems += problems


def draw_run(run: Run, stamp: str, *, show: bool, report: bool = True) -> tuple[dict[str, Path], list[str]]:
    """Draw a run into its folder: the report, all text plots, and the pictures of at most six metrics.

    Args:
        run: What is drawn.
        stamp: Start of the run, shown in titles.
        show: Print text plots of two of these as well: the loss and the accuracy.
        report: Write the report.

    Returns:
        What was made, by the names of `ezpz.track.History.paths`, and a sentence for each thing that failed; the same
        sentence has been logged as a warning.
    """
    made: dict[str, Path] = {}
    problems: list[str] = []
    # Anything may come: ImportError of a site's own build, OSError of a full disk, ValueError out of a drawing library.
    # The data is on the disk by now, and no picture is worth the run's exit code.
    try:
        if report:
            from ezpz.view.report import write_report

            made["report"] = write_report(run)
    except Exception as error:  # noqa: BLE001  # as above
        problems.append(_problem("the report", error))
    try:
        drawn, failed = draw_all(numeric_series(run.table), run.folder, stamp, show=show)
        made, problems = {**drawn, **made}, problems + failed
    except Exception as error:  # noqa: BLE001  # as above
        problems.append(_problem("the metrics", error))
    try:
        _draw_ranks(run)
    except Exception as error:  # noqa: BLE001  # as above
        problems.append(_problem("the map of ranks", error))
    return made, problems


def _draw_ranks(run: Run) -> None:
    """Draw the time in which several ranks differ most: ``plots/mplot/ranks/<metric>.png`` and ``.svg``."""
    if not run.windows:
        return
    from ezpz.track.by_rank import counting_windows, slowest_key

    matrix = slowest_key(counting_windows(run))
    if matrix is not None:
        draw_heat_map(matrix, run.folder)


def draw_heat_map(matrix: Matrix, folder: Path) -> Path:
    """Draw the map of one metric of all ranks into a run folder, and return its PNG; the SVG is beside it.

    Raises:
        OSError: A file cannot be written.
    """
    ranks = folder / "plots" / "mplot" / "ranks"
    make_closed_folder(ranks)
    png = ranks / f"{file_stem(matrix.name, set())}.png"
    save_heat_map(png, png.with_suffix(".svg"), matrix.name, matrix.steps, matrix.values)
    return png


def _problem(what: str, error: Exception) -> str:
    problem = f"cannot draw {what}: {type(error).__name__}: {error}"
    get_logger(__name__).warning(f"{problem}; metrics.jsonl is not touched by that.")
    return problem


_UNSAFE = re.compile(r"[^\w.+=@%-]")
_MOST_TEXTS = 1000  # text plots at the end of a run, which take some 5 ms each
_MOST_NAMED = 6  # metrics in one warning
_MOST = 6  # pictures at the end of a run: not the hundred metrics that a trainer records
_SEEN, _LINES = 2, 12  # plots on the terminal at the end of a run, and the lines of each
_SHARE = re.compile(r"(?<![a-z])per_?(gpu|device|rank|host|node|chip|tile|core)", re.IGNORECASE)  # of what is there too
_TURNS = {"loss": 2}  # metrics of a kind that come before the next kind has its turn
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


def that_matter(series: list[Series]) -> list[Series]:
    """Return what people look at first: two losses, throughput, times, the rest in turn; all where there are few."""
    if len(series) <= _MOST:
        return series
    lines = [item for item in series if len(item.steps) > 1 and not _SHARE.search(item.name)] or series
    kinds = group_names(item.name for item in lines)
    turns = sorted(
        (place // _TURNS.get(kind, 1) + _LATER.get(kind, 0), order, name)
        for order, (kind, names) in enumerate(kinds.items())
        for place, name in enumerate(names)
    )
    names = {name for _, _, name in turns[:_MOST]}
    return [item for item in ordered(lines) if item.name in names]


def seen_first(series: list[Series]) -> list[Series]:
    """Return the two metrics that the end of a run shows on the terminal: the loss and the accuracy.

    A validation loss replaces an accuracy that is not there, and what matters next for both.
    """
    drawn = [item for item in that_matter(series) if len(item.steps) > 1] or that_matter(series)
    lines = [item for item in series if len(item.steps) > 1] or series
    names = [item.name for item in lines]
    loss = main_loss(names)
    wanted = [*([loss] if loss else []), *accuracies(names), *(name for name in names if is_loss(name))]
    wanted += [item.name for item in ordered(drawn)]
    chosen = list(dict.fromkeys(wanted))[:_SEEN]
    return [next(item for item in series if item.name == name) for name in chosen]


def draw_all(series: list[Series], folder: Path, stamp: str, *, show: bool) -> tuple[dict[str, Path], list[str]]:
    """Draw series as text, at most 1000, and those that matter as PNG and SVG, into ``plots/`` below a run folder.

    Args:
        series: All that a run has.
        folder: The run folder.
        stamp: Start of the run, shown in titles.
        show: Print the text plots of `seen_first` as well.

    Returns:
        The folders that now hold drawings, by ``tplot``, ``pngs`` and ``svgs``, and a sentence for each kind of
        drawing that failed; the same sentence has been logged as a warning.
    """
    tplot, shown = folder / "plots" / "tplot", that_matter(series)
    stems = _stems(series)

    def text(item: Series) -> None:
        save_text(tplot / f"{stems[item.name]}.txt", item, stamp)

    texts = series if len(series) <= _MOST_TEXTS else ordered(series)[:_MOST_TEXTS]
    if len(texts) < len(series):
        get_logger(__name__).info(
            f"text plots of {len(texts)} of {len(series)} metrics are drawn; `ezpz plot {folder} METRIC…` draws others"
        )
    problems = _attempt("the text plot", texts, text, (tplot,))
    if show:
        problems += _show(seen_first(series), stamp)
    if shown:
        get_logger(__name__).info(_what_is_drawn(series, shown))
    problems += draw_pictures(series, shown, folder, stamp)
    folders = {"tplot": tplot, **_picture_folders(folder)}
    return {key: path for key, path in folders.items() if path.is_dir() and any(path.iterdir())}, problems


def _show(series: list[Series], stamp: str) -> list[str]:
    screen = look_at_stdout()
    how, blocks = drawing(screen, len(series)), []
    how = how._replace(height=min(how.height, _LINES))
    problems = _attempt(
        "the plot on the terminal",
        series,
        lambda item: blocks.append(draw([item], _titled(item.name, stamp), how)),
        (),
    )
    show_blocks(blocks, screen)
    return problems


def _titled(name: str, stamp: str) -> str:
    measure = unit(name)
    return f"{name} ({measure}) [{stamp}]" if measure else f"{name} [{stamp}]"


def _what_is_drawn(series: list[Series], shown: list[Series]) -> str:
    """Return the line that is seen while pictures are drawn: which ones, and how many are only in the report."""
    others = len(series) - len(shown)
    drawn = f"drawing {', '.join(item.name for item in shown)} as PNG and SVG"
    return f"{drawn}; {others} more {'is' if others == 1 else 'are'} in the report" if others else drawn


def draw_pictures(series: list[Series], chosen: list[Series], folder: Path, stamp: str) -> list[str]:
    """Draw series as PNG and SVG into ``plots/mplot/`` below a run folder.

    Args:
        series: All that the run has: a file's name depends on the others.
        chosen: Those of them that are drawn.
        folder: The run folder.
        stamp: Start of the run, shown in titles.

    Returns:
        A sentence if any could not be drawn, which has been logged as a warning.
    """
    places, pictures = picture_places(series, folder), None

    def picture(item: Series) -> None:
        nonlocal pictures
        pictures = pictures or Pictures(stamp)
        pictures.save(*places[item.name], item)

    return _attempt("the picture", chosen, picture, tuple(_picture_folders(folder).values()))


def save_texts(series: Sequence[Series], folder: Path) -> None:
    """Draw metrics as text into ``plots/tplot`` below a folder.

    Raises:
        OSError: A file cannot be written.
    """
    make_closed_folder(folder / "plots" / "tplot")
    stems = _stems(series)
    for item in series:
        save_text(folder / "plots" / "tplot" / f"{stems[item.name]}.txt", item, "")


def picture_places(series: Sequence[Series], folder: Path) -> dict[str, tuple[Path, Path]]:
    """Return PNG and SVG of each series of a run: the name of a file depends on those before."""
    pngs, svgs = _picture_folders(folder).values()
    return {name: (pngs / f"{stem}.png", svgs / f"{stem}.svg") for name, stem in _stems(series).items()}


def save_pictures(run: Run, series: Sequence[Series], chosen: Collection[str]) -> Iterator[Path]:
    """Draw metrics of a run as PNG and SVG into its folder, whatever was drawn at its end; yield each PNG.

    Args:
        run: The run.
        series: All of its metrics, those first of which pictures are made at the end of a run.
        chosen: Names of those that are drawn.

    Raises:
        OSError: A file cannot be written.
        ImportError: matplotlib cannot be loaded.
    """
    places, stamp = picture_places(series, run.folder), ""
    with suppress(ValueError):  # it was not recorded
        stamp = datetime.fromisoformat(run.record.started).strftime("%Y-%m-%d-%H%M%S")  # as at the end
    drawn = [item for item in series if item.name in chosen]
    for folder in _picture_folders(run.folder).values() if drawn else ():
        make_closed_folder(folder)
    pictures = Pictures(stamp)
    for item in drawn:
        pictures.save(*places[item.name], item)
        yield places[item.name][0]


def _picture_folders(folder: Path) -> dict[str, Path]:
    return {"pngs": folder / "plots" / "mplot" / "pngs", "svgs": folder / "plots" / "mplot" / "svgs"}


def _stems(series: Sequence[Series]) -> dict[str, str]:
    taken: set[str] = set()
    return {item.name: file_stem(item.name, taken) for item in series}


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
    names = ", ".join(list(failed)[:_MOST_NAMED])
    names += f" and {len(failed) - _MOST_NAMED} more" if len(failed) > _MOST_NAMED else ""
    problem = f"cannot draw {what} of {names}: {type(first).__name__}: {first}"
    get_logger(__name__).warning(f"{problem}; metrics.jsonl is not touched by that.")
    return [problem]
