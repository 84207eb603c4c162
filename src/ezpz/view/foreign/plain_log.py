"""Read logs in which a line holds a step and its metrics, behind any prefix of the program's logger.

    [2024-07-17 07:43:01.573073][INFO][trainer:885] - step=10 loss=3.154310 dt=0.282833
    [2026-11-20 16:20:01.123][I][train:45] iter=3 train/loss=0.123456(±0.02)
    step: 100, loss: 2.31, lr: 3e-4
    iter 250: loss 3.0412, time 151.20ms, mfu 5.41%

A pair is a name, ``=``, ``:`` or (between commas) a blank, and a number, which a unit may follow. The step is ``step``,
``global_step``, ``iter``, ``iteration``, ``it`` or ``epoch``, whichever is first in this list; a line without one
holds no row. Escapes are taken out; of lines that begin with ``[rank=3]``, as those of `ezpz.log` do, only rank 0's
count.
"""

from __future__ import annotations

import re
from datetime import datetime
from math import nan
from typing import TYPE_CHECKING

from ezpz.files import open_regular
from ezpz.view.foreign.reading import Reading, make_row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ezpz.track.journal_reader import Row

_STEPS = ("step", "global_step", "iter", "iteration", "it", "epoch")
_LONGEST = 1 << 16  # bytes: no line of metrics is longer, and a file without newlines is no log
_DIGITS = 19  # an int of fewer has 64 bits
_LOOKED_AT = 5000  # lines in which a log has to show its first row
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_PREFIX = re.compile(r"\s*(?:\[[^\]]*\]\s*)+")  # [time][level][file:line]
_RANK = re.compile(r"\[rank[= ]?(\d{1,9})(?:/\d{1,9})?\]", re.IGNORECASE)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T-](\d\d:?\d\d:?\d\d)(?:[.,](\d{1,6}))?")
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_PAIR = re.compile(
    rf"(?<![\w./-])(?P<name>[A-Za-z_][\w./-]*?)(?:\s?=\s?|:\s?|\s)(?P<number>{_NUMBER})"
    rf"(?:/\d+)?(?P<unit>\s?(?:%|ms|us|µs|s|it/s|tok/s)(?!\w))?(?=[\s,;|()\]]|:\s|:$|$)",
    re.IGNORECASE,
)


def is_log(path: Path) -> bool:
    """Tell whether a row shows itself near the beginning of a file."""
    return any(parse_line(line) for line in _lines(path, _LOOKED_AT))


def read_log(path: Path) -> Reading | None:
    """Read a log, or return None if no line of it holds a row.

    A step that is logged again for the same metric begins a further attempt, unless an epoch rose with it: then steps
    are counted through.

    Raises:
        OSError: The file cannot be read.
    """
    rows: list[Row] = []
    newest: dict[str, int] = {}
    attempt, offset, epoch, when = 1, 0, nan, nan
    for line in _lines(path):
        parsed = parse_line(line)
        when = _time(line, when)
        if parsed is None:
            continue
        raw, values = parsed
        if any(newest.get(key, raw + offset) > raw + offset for key in values if key != "epoch"):
            if values.get("epoch", nan) > epoch:
                offset = max(newest.values()) + 1 - raw
            else:
                attempt, offset, newest = attempt + 1, 0, {}
        epoch = values.get("epoch", epoch)
        newest.update(dict.fromkeys(values, raw + offset))
        rows.append(make_row(raw + offset, when, dict(values), attempt))
    return Reading("log", path.stem, rows) if rows else None


def parse_line(line: str) -> tuple[int, dict[str, float]] | None:
    """Return the step of a line and its metrics, or None; ints stay ints."""
    line = _ESCAPE.sub("", line)
    rank = _RANK.search(line)
    if rank is not None and int(rank[1]):
        return None
    pairs: dict[str, float] = {}
    prefix = _PREFIX.match(line)
    line = line[prefix.end() :] if prefix else line
    for match in _PAIR.finditer(line):
        text = match["number"]
        if match["name"].endswith(".py"):  # train.py:45
            continue
        # A blank is a separator only where commas divide the pairs; else it is between words of a sentence.
        if line[match.end("name")] == " " and line[match.end("name") + 1] != "=" and "," not in line:
            continue
        pairs[match["name"]] = int(text) if text.lstrip("+-").isdigit() and len(text) < _DIGITS else float(text)
    name = next((name for name in _STEPS if type(pairs.get(name)) is int), None)
    if name is None:
        return None
    step = int(pairs.pop(name))
    metrics = {key: value for key, value in pairs.items() if key not in _STEPS or key == "epoch"}
    return (step, metrics) if set(metrics) - {"epoch"} else None


def _time(line: str, before: float) -> float:
    match = _TIME.search(line[:80])
    if match is None:
        return before
    clock = match[2].replace(":", "")
    try:
        stamp = datetime.strptime(f"{match[1]} {clock}.{match[3] or 0}", "%Y-%m-%d %H%M%S.%f")  # noqa: DTZ007  # local time
        return stamp.timestamp()
    except (ValueError, OverflowError):  # no time after all
        return before


def _lines(path: Path, most: int | None = None) -> Iterator[str]:
    with open(path, "rb", opener=open_regular) as file:  # Path.open has no opener
        number = 0
        while (raw := file.readline(_LONGEST)) and (most is None or number < most):
            number += 1
            yield raw.decode(errors="replace")
