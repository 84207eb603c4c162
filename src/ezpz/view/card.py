"""Sum a run up for the end of its output: how it ended, what it reached, how fast it was, and what to type next.

    ── test_dist finished: 100 steps in 2.94 s, 2 ranks ──────────────────────
      loss        2.302 → 0.1596
      accuracy    7.81 % → 96.9 %
      speed       5,208 samples/s, 2,604 per rank
      step        24.6 ms (median), 26.7 ms the first, 67.5 ms the slowest
      first step  3.12 s after the start of the program
      slow        from step 300 on a step takes 12 x as long (21 ms → 270 ms)
      report      outputs/test_dist/2026-11-20-162001/report.html
      next        ezpz open outputs/test_dist/2026-11-20-162001

A row without an answer is left out.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ezpz.log import get_logger, write_later_lines
from ezpz.quantities import duration, number
from ezpz.records.run_record import RunRecord
from ezpz.redact import redact_text
from ezpz.track.names import is_step_time, is_validation
from ezpz.track.speed import speed_of, steady
from ezpz.track.steps import epochs_of, rows_of_training, steps_of
from ezpz.view.run_summary import RunSummary
from ezpz.view.terminal.screen import Screen, look, say
from ezpz.view.terminal.width import cleaned, columns
from ezpz.visible import LINES, is_closed, shell_line, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ezpz.track.at_end import End
    from ezpz.track.run_reader import Run
    from ezpz.track.table import Table

__all__ = ["card", "near", "resume_words", "show_card", "show_end", "show_stopped"]

_WIDEST = 80
_LABEL = 12  # columns
_COLORS = {"finished": 32, "exited": 33, "stopped": 33, "failed": 31, "died": 31}
_RATES = {"tok/s": "tokens/s"}
_MOST = 2  # validation losses, accuracies, and findings
_LEAST_ROOM = 20  # columns for a finding
_STUCK = 0.5  # seconds that a stream without a reader may delay the end of a run


def show_end(end: End) -> None:
    """Print the card of a run that has ended; a line of the log where nothing is to be shown, or there are no rows."""
    logger = get_logger(__name__)
    rows = 0 if end.rows is None else len(end.rows.rows)
    if end.show and rows and logger.isEnabledFor(logging.INFO):
        write_later_lines(_STUCK)
        show_card(end.run, end.paths, ranks=end.rate_ranks)
    else:
        metrics = 0 if end.rows is None else len(end.rows.rows.cells)
        logger.info(f"{rows} rows of {metrics} metrics in {end.folder}")


def show_stopped(end: End) -> None:
    """Write a short card past all buffers, one of which the signal may have interrupted; not where that waits."""
    write_later_lines(_STUCK)
    if not get_logger(__name__).isEnabledFor(logging.INFO):
        return
    steps = RunRecord.of(end.facts).steps
    at = "" if steps is None else f" at step {steps}"
    title = f"{end.name} stopped by {end.cause.partition(',')[0]}{at}"
    rows = [("folder", near(end.folder)), *resume_words(end.folder, RunRecord.of(end.facts).argv)]
    lines = [title + ("" if end.problems else "; its data is complete")]
    lines += [f"  {label:12}{text}" for label, text in rows]
    data = (visible("\n".join(lines), LINES) + "\n").encode(errors="replace")
    with suppress(OSError, ValueError):
        if select.select((), (1,), (), 0)[1]:
            os.write(1, data[: select.PIPE_BUF])


def show_card(run: Run, paths: Mapping[str, Path], *, ranks: int = 0) -> None:
    """Print the card of a run on stdout; without a reader, nothing happens.

    Args:
        run: The run, which has ended.
        paths: What was written, by the names of `ezpz.track.History.paths`.
        ranks: Ranks whose samples its throughput counts; 0 where that is not known.
    """
    if is_closed(sys.stdout):
        return
    screen = look(sys.stdout, piped=_WIDEST)
    try:
        say(sys.stdout, "\n".join(card(run, paths, screen, ranks=ranks)))
    except OSError:  # a full disk: what is kept says so
        return


def card(run: Run, paths: Mapping[str, Path], screen: Screen, *, ranks: int = 0) -> list[str]:
    """Return the lines of a card; only paths and commands, which are copied, may be wider than the screen."""
    summary = RunSummary(run)
    rows = [*_reached(summary), *_speed(summary, ranks)]
    if summary.first_step_seconds is not None:
        rows.append(("first step", f"{duration(summary.first_step_seconds)} after the start of the program"))
    width = min(screen.width, _WIDEST)
    rows += _findings(run, max(_LEAST_ROOM, width - _LABEL - 2))
    rows += _places(run, paths)
    title = cleaned(_title(summary), ascii_only=screen.ascii_only)
    dash, arrow = ("-", "->") if screen.ascii_only else ("─", "→")
    room = width - 6
    if columns(title) > room:
        title = title[: max(1, room - 1)] + ("~" if screen.ascii_only else "…")
    rule = dash * max(0, width - columns(title) - 4)
    shown = f"\x1b[{_COLORS.get(run.state, 0)}m{title}\x1b[0m" if screen.color else title
    lines = [f"{dash * 2} {shown} {rule}"]
    wide = max([_LABEL, *(columns(label) + 2 for label, _ in rows)])
    for label, text in rows:
        shown = cleaned(text.replace("→", arrow), ascii_only=screen.ascii_only)
        lines.append(f"  {cleaned(label, ascii_only=screen.ascii_only):{wide}}{shown}")
    return lines


def resume_words(folder: Path, argv: Sequence[object]) -> list[tuple[str, str]]:
    """Return the rows that say how a run that was ended early continues: its newest checkpoint, and what to type.

    Args:
        folder: The run folder.
        argv: Words of the program as ``run.json`` has them; trainers of ezpz take ``--resume``.
    """
    steps = [path for path in folder.glob("checkpoints/step-*") if path.name[5:].isdigit()]
    if not steps:
        return []
    newest = max(steps, key=lambda path: int(path.name[5:]))
    ours = any("ezpz/examples/" in str(word) or "ezpz.examples." in str(word) for word in argv[:3])
    rows = [("checkpoint", near(newest))]
    return [*rows, ("next", "the same command with --resume auto")] if ours else rows


def _title(summary: RunSummary) -> str:
    run = summary.run
    every, word = _counted(run.table)
    new, _ = _counted(_new_rows(run))
    before = every - new
    seconds, world = summary.seconds, run.record.ranks.world_size
    taken = "" if seconds is None else f" in {duration(seconds)}"
    shared = "" if world is None else f", {world} rank{'s' if world != 1 else ''}"
    how = run.state if not run.cause else f"{run.state} by {run.cause}" if run.state == "stopped" else run.state
    made = f"{every:,} {word}{'s' * (every != 1)}{taken}"
    if before:  # of an earlier start
        made = f"{new:,} new {word}{'s' * (new != 1)}{taken}, {every:,} in all" if new else f"no new {word}"
        made += "" if new else f", {before:,} before"
    why = f" ({run.cause})" if run.cause and run.state != "stopped" else ""
    return f"{run.name} {how}: {made}{shared}{why}"


def _new_rows(run: Run) -> Table:
    """Return the rows of this start: of a run that was started again, those of its newest attempt."""
    attempt = run.record.attempt
    return run.table if attempt is None else run.table.of_attempt(attempt)


def _counted(table: Table) -> tuple[int, str]:
    """Return how many steps rows tell of, or epochs where each row is one; and the word for one of them."""
    epochs = epochs_of(rows_of_training(table))
    return (steps_of(table).made, "step") if epochs is None else (epochs, "epoch")


def _reached(summary: RunSummary) -> Iterable[tuple[str, str]]:
    losses, accuracies = summary.losses, summary.accuracies
    held_out = is_validation(losses[0].name) if losses else False
    for each in [*losses[: _MOST + (not held_out)], *accuracies[:_MOST]]:
        first, last = (
            f"{100 * value:.3g} %" if each.is_share else number(_shortened(value)) for value in (each.first, each.last)
        )
        yield each.name, f"{first} → {last}" if each.points > 1 else last


def _speed(summary: RunSummary, ranks: int) -> Iterable[tuple[str, str]]:
    import numpy as np

    new = _new_rows(summary.run)
    if not len(new):
        return
    speed = speed_of(new)
    if speed and not speed.of_time:
        each = f", {number(float(f'{speed.value / ranks:.4g}'))} per rank" if ranks else ""
        measure = _RATES.get(speed.unit, speed.unit)
        yield "speed", f"{number(float(f'{speed.value:.4g}'))} {measure}{each}".replace(" /s", "/s")
    step = next((name for name, cells in new.cells.items() if cells.are_numbers and is_step_time(name)), None)
    if step:
        first, rest = new.cells[step].floats()[0], steady(new, step)
        median, first, slowest = (duration(float(each)) for each in (np.median(rest), first, rest.max()))
        yield _counted(summary.run.table)[1], f"{median} (median), {first} the first, {slowest} the slowest"


def _findings(run: Run, room: int) -> Iterable[tuple[str, str]]:
    """Yield what stands out in losses, batches, weights and times, over as many lines as that takes."""
    found = [redact_text(finding.text) for finding in run.record.findings if finding.text]
    more = len(found) - _MOST
    for text in found[:_MOST]:
        first, *rest = textwrap.wrap(text, room) or [""]
        yield "finding", first
        yield from (("", line) for line in rest)
    if more > 0:
        yield "", f"and {more} more: {shell_line(['ezpz', 'why', near(run.folder)])}"


def _places(run: Run, paths: Mapping[str, Path]) -> Iterable[tuple[str, str]]:
    report = paths.get("report")
    if report is not None:
        yield "report", near(report)
    else:
        yield "folder", near(run.folder)
    if run.state != "finished":
        rows = resume_words(run.folder, run.record.argv)
        yield from rows
        if any(label == "next" for label, _ in rows):
            return
    folder = near(run.folder)
    yield "next", shell_line(["ezpz", "open", folder] if report is not None else ["ezpz", "report", folder])


def _shortened(value: float) -> float:
    return float(f"{value:.4g}")


def near(path: Path) -> str:
    """Return a path as it is typed where the user is: relative where it is below that folder.

    The shell's PWD names it also when the program has changed its own, as Hydra does.
    """
    shell = Path(os.environ.get("PWD", ""))
    try:
        here = shell.resolve() if shell.is_absolute() and shell.is_dir() else Path.cwd()
        return str(path.relative_to(here))
    except (ValueError, OSError):  # elsewhere, or the current folder is gone
        return str(path)
