"""Read when jobs started and when they had made their first step, from a table or from logs of other programs.

A Markdown or CSV table with a column ``start`` and a column ``stop`` (also ``begin``, ``end``, ``t0``, ``t1``):

    | log           | model_size | world_size |       start       |       stop        |  dt  |
    | job-nhosts2   |  GPT1T_1L  |     8      | 2023-10-15-185952 | 2023-10-15-190046 | 4094 |

and a log, in which a line says when the job started and another has the first step after its time:

    Job started at: 2023-11-02-183323 on x3004c0s13b0n0
    [2023-11-02 18:34:13,122] [INFO] [logging.py:96:log_dist] [Rank 0] step=0, skipped=0, lr=[0.0, 0.0]
    18:34:13 iter=0 loss=2.3024 accuracy=0.07812 dt=0.0276 s

A time is a date and a time of day, or a time of day alone (``235958``), which is after the start. No zone is known.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime

from ezpz.track.intervals import Interval

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence

_DAY = 86400.0
_DATE = r"(\d{4})[-/](\d\d)[-/](\d\d)[-T _]?"
_CLOCK = r"(\d{1,2}):?(\d\d):?(\d\d)(?:[.,](\d{1,6}))?"
_IN_LINE = re.compile(rf"(?<!\d){_DATE}{_CLOCK}(?!\d)")
_LINES_CLOCK = re.compile(r"\W{0,3}(\d{1,2}:\d\d:\d\d(?:[.,]\d{1,6})?)(?!\d)")  # at the beginning of a line
_WHOLE = re.compile(rf"(?:{_DATE})?{_CLOCK}")
_START = re.compile(r"\b(?:job|run|launch)?\s*start(?:ed|ing)?(?:\s+(?:at|time))?\b\s*[:=]", re.IGNORECASE)
_FIRST = re.compile(r"\b(?:global_)?(?:step|iter(?:ation)?)\s*(?:[=:]\s*)?(?:0\b|1\s*/)", re.IGNORECASE)
_COLUMNS = (
    ("start", "begin", "started", "start_time", "t0"),
    ("stop", "end", "stopped", "end_time", "t1"),
    ("world_size", "ranks", "world", "nproc", "gpus", "ngpu", "ngpus"),
    ("dt", "seconds", "duration", "took"),
)
_LONGEST = 4096  # characters of a line that are looked at


class StartTime(Interval):
    """One start, up to the first step, in seconds since 1970, or since the midnight of a day that is not known.

    Attributes:
        world: Ranks, empty where none are named.
        lines: The lines of the file that say so, counted from 1.
        given: The seconds that the table itself names.
    """

    world: str = ""
    lines: tuple[int, ...] = ()
    given: float | None = None


def read_start_times(text: str, name: str) -> tuple[list[StartTime], list[tuple[int, str]]]:
    """Return the starts of a table, or else of a log of this name; and lines that look like a row, with what is wrong.

    Neither holds anything where the text is none of both.
    """
    lines = [line[:_LONGEST] for line in text.splitlines()]
    rows, unusable = _read_tables(lines)
    return (rows, unusable) if rows else (_read_log(lines, name), [])


def _read_tables(lines: Sequence[str]) -> tuple[list[StartTime], list[tuple[int, str]]]:
    rows: list[StartTime] = []
    unusable: list[tuple[int, str]] = []
    titles: list[str] = []
    for number, line in enumerate(lines, 1):
        cells = _cells(line)
        lowered = [cell.lower().replace(" ", "_") for cell in cells]
        begin, end, *_ = _places(lowered)
        if begin is not None and end is not None:
            titles = lowered
        elif len(cells) < 2:
            titles = []
        elif len(cells) == len(titles) and not all(set(cell) <= set(":-= ") for cell in cells):
            try:
                rows.append(_row(_places(titles), cells, number))
            except ValueError as error:
                unusable.append((number, str(error)))
    return rows, unusable


def _places(titles: Sequence[str]) -> list[int | None]:
    return [next((titles.index(name) for name in names if name in titles), None) for names in _COLUMNS]


def _cells(line: str) -> list[str]:
    line = line.strip().lstrip("> ")
    mark = "|" if line.startswith("|") else next((mark for mark in ("\t", ",", ";") if mark in line), "")
    return [cell.strip('"*_` \t') for cell in line.strip("|").split(mark)] if mark else []


def _row(places: Sequence[int | None], cells: Sequence[str], number: int) -> StartTime:
    """Return the start that a row holds.

    Raises:
        ValueError: It holds none; says why.
    """
    started, stopped, world, took = ("" if place is None else cells[place] for place in places)
    begin = _time(started)
    end = _time(stopped, begin)
    if end < begin:
        raise ValueError(f"ends before it starts: {started} to {stopped}")
    given = None
    with suppress(ValueError):
        given = float(took)
    label = next((cell for place, cell in enumerate(cells) if place not in places and cell), "")
    return StartTime("table", label, begin, end, world=world, lines=(number,), given=given)


def _time(text: str, after: float | None = None) -> float:
    """Return a time; one without a date is the first of its kind that is not before ``after``.

    Raises:
        ValueError: It is none.
    """
    found = _WHOLE.fullmatch(text if not text.isdecimal() or len(text) > 6 else text.zfill(6))
    when = _seconds(found.groups()) if found else None
    if found is None or when is None:
        raise ValueError(f"no time: {text!r}")
    if found[1] is None and after is not None:
        when += after // _DAY * _DAY
        when += _DAY if when < after else 0.0
    return when


def _seconds(parts: Sequence[str | None]) -> float | None:
    *numbers, fraction = (part or "" for part in parts)
    year, month, day, hour, minute, second = (int(part or 0) for part in numbers)
    with suppress(ValueError):
        when = datetime(year or 1970, month or 1, day or 1, hour, minute, second, int(fraction.ljust(6, "0")))  # noqa: DTZ001
        return (when - datetime(1970, 1, 1)).total_seconds()  # noqa: DTZ001  # of no zone, as in the file
    return None


def _read_log(lines: Sequence[str], name: str) -> list[StartTime]:
    rows: list[StartTime] = []
    begun: tuple[float, int] | None = None
    earliest: tuple[float, int] | None = None
    for number, line in enumerate(lines, 1):
        found = _IN_LINE.search(line)
        when = _seconds(found.groups()) if found else _clock_in(line, begun[0]) if begun else None
        if when is None:
            continue
        earliest = earliest or (when, number)
        if _START.search(line):
            rows += [_of_log(name, rows, begun)] if begun else []
            begun = (when, number)
        elif _FIRST.search(line):
            begun = begun or (earliest if not rows else None)
            if begun is not None and begun[0] <= when:
                rows.append(_of_log(name, rows, begun, (when, number)))
                begun = None
    return [*rows, *([_of_log(name, rows, begun)] if begun else [])]


def _clock_in(line: str, after: float) -> float | None:
    """Return the time of a line that begins with a time of day alone, on the day of ``after`` or the next one."""
    found = _LINES_CLOCK.match(line)
    with suppress(ValueError):
        return _time(found[1], after) if found else None
    return None


def _of_log(
    name: str, rows: Sequence[StartTime], begun: tuple[float, int], ended: tuple[float, int] | None = None
) -> StartTime:
    (begin, line), label = begun, f"{name}:{begun[1]}" if rows else name
    end, lines = (ended[0], (line, ended[1])) if ended else (None, (line,))
    return StartTime("log", label, begin, end, lines=lines)
