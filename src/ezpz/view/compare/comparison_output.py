"""Show a comparison as text of at most 80 columns, as JSON, and as a picture of all curves."""

from __future__ import annotations

import os
from dataclasses import asdict
from enum import Enum
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from ezpz.log import get_logger
from ezpz.track.values import encode
from ezpz.view.compare.comparison_verdict import percent
from ezpz.view.compare.differences import Line, change_of, folded
from ezpz.view.compare.kinds_of_settings import Kind
from ezpz.view.compare.paired_curves import SeriesByName
from ezpz.visible import painter, shorten, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ezpz.track.run_reader import Run
    from ezpz.view.compare.comparison import Comparison
    from ezpz.view.compare.differences import Difference

# Comparisons as JSON can hold them.


def exit_code(comparisons: Sequence[Comparison]) -> int:
    """Return the exit code of several comparisons: the largest."""
    return max(item.verdict.exit_code for item in comparisons)


def as_object(runs: Sequence[Run], places: Sequence[Path], comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return all that was found as one object; NaN and infinities are strings as in a journal."""
    compared = []
    for item in comparisons:
        likely = [(each.section, each.key) for each in item.verdict.likely]
        settings = [{**asdict(each), "likely_cause": (each.section, each.key) in likely} for each in item.differences]
        compared.append(
            {
                "letters": list(item.letters),
                "verdict": item.verdict.text,
                "exit_code": item.verdict.exit_code,
                "step": item.verdict.step,
                "notes": item.verdict.notes,
                "slower": item.slower or None,
                "metric": item.metric or None,
                "divergence": asdict(item.divergence) if item.divergence else None,
                "batches": asdict(item.batches) if item.batches else None,
                "tolerance": asdict(item.allowed) if item.allowed else None,
                "differences": settings,
                "reached": [asdict(each) for each in item.reached],
                "throughput": asdict(item.throughput) if item.throughput else None,
            }
        )
    shown = {
        chr(ord("A") + number): {"path": str(place), "name": run.name, "state": run.state}
        for number, (run, place) in enumerate(zip(runs, places, strict=True))
    }
    clean: dict[str, Any] = _clean({"runs": shown, "comparisons": compared, "exit_code": exit_code(comparisons)})
    return clean


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return encode(value) if isinstance(value, float) else value


_SHOWN = 12  # lines of a group; the rest is counted


def render(
    runs: Sequence[Run],
    places: Sequence[Path],
    comparisons: Sequence[Comparison],
    *,
    width: int = 80,
    color: bool = False,
    whole_paths: bool = False,
) -> str:
    """Return all comparisons as text.

    Args:
        runs: What was compared, in the order of letters.
        places: Where it is, as it was asked for.
        comparisons: The comparisons, each with the first run.
        width: Columns that may be used.
        color: Use escapes for colour.
        whole_paths: Let a path that is longer than ``width`` be as it is; else its middle is left out.
    """
    paint = painter(color)
    lines: list[str] = []
    for number, item in enumerate(comparisons):
        if number:
            lines += ["", "-" * width]
        lines += _verdict(item, len(comparisons) > 1, width, paint)
        lines += ["", *_runs(runs, places, item, width, whole_paths)]
        for block in (_likely(item, width), _curves(item, width)):
            lines += ["", paint(block[0], "title"), *block[1:]] if block else []
        lines += _differences(item, width, paint)
        lines += _reached(item, width)
        lines += _throughput(item)
    return "\n".join(lines) + "\n"


def short_path(path: Path) -> str:
    """Return a path as short as it can be typed here."""
    try:
        near = os.path.relpath(path)
    except (OSError, ValueError):  # the current folder is gone
        return str(path)
    return near if len(near) < len(str(path)) and not near.startswith("../..") else str(path)


def _verdict(item: Comparison, many: bool, width: int, paint: Callable[[str, str], str]) -> list[str]:
    # What somebody has set is no alarm.
    is_set = any(each.kind is not Kind.NEVER for each in item.verdict.likely)
    meaning = "very good" if item.verdict.exit_code == 0 else "very bad"
    meaning = "very doubtful" if is_set or item.verdict.exit_code == 2 else meaning
    head = f"{item.letters[1]} against {item.letters[0]}: " if many else ""
    texts = [head + visible(item.verdict.text)]
    lines = [paint(line, meaning) for text in texts for line in wrap(text, width, break_on_hyphens=False)]
    notes = [*item.verdict.notes, *([item.slower] if item.slower else [])]
    return lines + [line for note in notes for line in wrap(visible(note), width, break_on_hyphens=False)]


def _runs(
    runs: Sequence[Run], places: Sequence[Path], item: Comparison, width: int, whole_paths: bool
) -> Iterator[str]:
    for letter in item.letters:
        number = ord(letter) - ord("A")
        run = runs[number]
        steps = run.table.steps
        state = visible(run.state)
        text = f"{state}, steps {min(steps)} to {max(steps)}" if steps else f"{state}, no rows"
        place = visible(short_path(places[number]))
        if len(letter) + len(place) + len(text) + 4 <= width:
            yield f"{letter}  {place}  {text}"
        else:
            yield f"{letter}  {place if whole_paths else shorten(place, width - 3)}"
            yield f"   {text}"


def _likely(item: Comparison, width: int) -> list[str]:
    if not item.verdict.likely:
        return []
    agree = item.divergence is not None and item.verdict.step is None
    head = "material, although the curves agree" if agree else "likely cause"
    return [head, *_table(item.verdict.likely, width)]


def _table(items: Sequence[Difference], width: int, marks: Sequence[Difference] = ()) -> list[str]:
    """Return a line for each difference, in columns; of many the first 12 are shown and the others counted."""
    lines = folded(items)
    kept = lines[:_SHOWN]
    keys = [visible(line.key) for line in kept]
    room = min(max(map(len, keys), default=0), width // 2)
    marked = [_mark(line, marks) for line in kept]
    rest = max(16, width - 4 - room - max(map(len, marked), default=0))
    changes = [change_of(line.members[0], rest) for line in kept]
    across = max(map(len, changes), default=0)
    texts = [
        f"  {shorten(key, room).ljust(room)}  {change.ljust(across)}{mark}".rstrip()
        for key, change, mark in zip(keys, changes, marked, strict=True)
    ]
    left = len(lines) - len(kept)
    return [*texts, *([f"  and {left} more: --json lists all"] if left else [])]


def _mark(line: Line, marks: Sequence[Difference]) -> str:
    count = f"  {len(line.members)} of them" if len(line.members) > 1 else ""
    return count + ("  likely cause" if any(member in marks for member in line.members) else "")


def _curves(item: Comparison, width: int) -> list[str]:
    apart, allowed = item.divergence, item.allowed
    if apart is None or allowed is None:
        return []
    a, b = item.letters
    mean = f"mean of {apart.window} steps"
    rows = [
        (
            "first difference",
            _step(apart.first_different),
            f"to the last bit; {apart.at_start:.1e} at step {apart.first}",
        ),
        ("beyond numerics", _step(apart.numerics), f"{mean} above {percent(allowed.mean)}, {allowed.source}"),
        ("material", _step(apart.material), f"{mean} above {percent(allowed.material)}"),
        ("largest", percent(apart.largest), f"{mean}, {b} over {a}"),
        ("at the end", percent(apart.final), f"{mean}: {a} {apart.final_a:.6g}, {b} {apart.final_b:.6g}"),
    ]
    sign = {"start": "seen in the first steps", "jump": "a sudden change"}.get(apart.how)
    if sign:
        rows[1] = (*rows[1][:2], sign)
    if apart.first_different is None:
        rows = [("first difference", "none", "equal to the last bit"), (*rows[4][:2], f"{mean}: {apart.final_a:.6g}")]
    over = f"{apart.points} common step{'s' * (apart.points > 1)}, {apart.first} to {apart.last}"
    lines = [f"{visible(str(item.metric))} over {over}"]
    for name, value, note in rows:
        first, *others = wrap(note, max(20, width - 31), break_on_hyphens=False)
        lines += [f"  {name:<17} {value:<10} {first}", *(f"{'':31}{other}" for other in others)]
    return lines


def _step(step: int | None) -> str:
    return "none" if step is None else f"step {step}"


def _differences(item: Comparison, width: int, paint: Callable[[str, str], str]) -> Iterator[str]:
    if not item.differences:
        yield ""
        yield "no setting differs"
        return
    likely = item.verdict.likely if item.verdict.step is not None else ()
    for group, members in groupby(item.differences, key=lambda difference: difference.group):
        yield ""
        yield paint(group, "minor" if group == "never decides" else "title")
        yield from _table(list(members), width, likely)


def _reached(item: Comparison, width: int) -> list[str]:
    """Return which run is better at the end; nothing where they are equal in all."""
    if all(each.a == each.b for each in item.reached):
        return []
    rows = []
    for each in item.reached:
        a, b = (f"{100 * value:.4g} %" if each.is_share else f"{value:.4g}" for value in (each.a, each.b))
        rows.append((a, b, f"{each.better} is better" if each.better else "the same"))
    wide_a, wide_b, wide_word = (max(map(len, column)) for column in zip(*rows, strict=True))
    names = [visible(each.metric) for each in item.reached]
    room = min(max(map(len, names)), max(6, width - wide_a - wide_b - wide_word - 12))
    one, two = item.letters
    lines = [
        f"  {shorten(name, room):<{room}}  {one} {a:<{wide_a}}  {two} {b:<{wide_b}}  {word}"
        for name, (a, b, word) in zip(names, rows, strict=True)
    ]
    return ["", "which is better at the end", *lines]


def _throughput(item: Comparison) -> list[str]:
    speed = item.throughput
    if speed is None:
        return []
    a, b = item.letters
    ratio = f"{b}/{a} {speed.ratio:.3g} ({speed.low:.3g} to {speed.high:.3g})"
    return ["", f"throughput ({visible(speed.source)})", f"  {a} {speed.a:.4g}  {b} {speed.b:.4g}  {ratio}"]


def save_picture(
    folder: Path, runs: Sequence[Run], places: Sequence[Path], comparisons: Sequence[Comparison]
) -> list[Path]:
    """Write ``overlay.png`` and ``overlay.svg``.

    Args:
        folder: Where to; made when absent.
        runs: What was compared, in the order of letters.
        places: Where it is, as it was asked for.
        comparisons: The comparisons.

    Returns:
        What was written; nothing, after a warning, where it cannot be drawn.
    """
    from ezpz.view.pictures import save_overlay

    metric = next((item.metric for item in comparisons if item.metric), "")
    drawn = [item for item in comparisons if item.metric == metric and item.divergence is not None]
    if not drawn:
        get_logger(__name__).warning("no overlay picture: nothing to draw.")
        return []
    letters = [drawn[0].letters[0], *(item.letters[1] for item in drawn)]
    numbers = {letter: ord(letter) - ord("A") for letter in letters}
    lines = [
        SeriesByName(runs[n])[metric]._replace(label=f"{letter} {places[n].name}") for letter, n in numbers.items()
    ]
    step = next((item.verdict.step for item in drawn if item.verdict.step is not None), None)
    png, svg = folder / "overlay.png", folder / "overlay.svg"
    label = "" if step is None else f"step {step}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_overlay(png, svg, lines, title=metric, mark=None if step is None else float(step), mark_label=label)
    # Anything may come out of a drawing library, and the comparison itself has been shown.
    except Exception as error:  # noqa: BLE001
        get_logger(__name__).warning(f"no overlay picture in {folder}: {type(error).__name__}: {error}")
        return []
    return [png, svg]
