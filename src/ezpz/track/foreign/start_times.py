"""Read when jobs started and when they had made their first step, from a table or from logs of other programs.

A Markdown or CSV table with a column ``start`` and a column ``stop`` (also ``begin``, ``end``, ``t0``, ``t1``):

    | log           | model_size | world_size |       start       |       stop        |  dt  |
    | job-nhosts2   |  GPT1T_1L  |     8      | 2023-10-15-185952 | 2023-10-15-190046 | 4094 |

and a log, in which a line says when the job started and another has the first step after its time:

    Job started at: 2023-11-02-183323 on x3004c0s13b0n0
    [2023-11-02 18:34:13,122] [INFO] [logging.py:96:log_dist] [Rank 0] step=0, skipped=0, lr=[0.0, 0.0]

A time is a date and a time of day with any separators, or a time of day alone (``23:59:58``, ``235958``, ``5958``),
which then belongs to the day of the start or the one after. Times of a table are of the same zone.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime, timedelta

from ezpz.fields import Record

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence

_DATED = r"(\d{4})[-/](\d\d)[-/](\d\d)[-T _]?(\d\d):?(\d\d):?(\d\d)(?:[.,](\d{1,6}))?"
_IN_LINE = re.compile(rf"(?<!\d){_DATED}(?!\d)")
_WHOLE = re.compile(_DATED)
_OF_DAY = re.compile(r"(\d{1,2}):?(\d\d):?(\d\d)(?:[.,](\d{1,6}))?")
_START = re.compile(r"\b(?:job|run|launch)?\s*start(?:ed|ing)?(?:\s+(?:at|time))?\b\s*[:=]", re.IGNORECASE)
_FIRST = re.compile(r"\b(?:global_)?(?:step|iter(?:ation)?)\s*(?:[=:]\s*)?(?:0\b|1\s*/)", re.IGNORECASE)
_STARTS, _STOPS = ("start", "begin", "started", "start_time", "t0"), ("stop", "end", "stopped", "end_time", "t1")
_SECONDS = ("dt", "seconds", "duration", "took")
_WORLDS = ("world_size", "ranks", "world", "nproc", "gpus", "ngpu", "ngpus")
_LONGEST = 4096  # characters of a line that are looked at


class StartTime(Record):
    """One start.

    Attributes:
        name: What the table or the file calls it.
        world: Ranks, empty where none are named.
        started: When it started.
        stopped: When its first step was done; None where none is in the log.
        lines: The lines of the file that say so, counted from 1.
        given: The seconds that the table itself names; None where it names none.
    """

    name: str
    world: str
    started: datetime
    stopped: datetime | None
    lines: tuple[int, ...]
    given: float | None = None

    @property
    def seconds(self) -> float | None:
        """Seconds from the start to the first step."""
        return None if self.stopped is None else (self.stopped - self.started).total_seconds()


class StartTimes(Record):
    """What a file says.

    Attributes:
        kind: ``table`` or ``log``.
        rows: The starts, in the order of the file.
        unusable: Lines that look like a row and are none, counted from 1, with the reason.
    """

    kind: str
    rows: tuple[StartTime, ...]
    unusable: tuple[tuple[int, str], ...] = ()


def read_start_times(text: str, name: str) -> StartTimes | None:
    """Read a table, or else a log; None where the text is neither.

    Args:
        text: The file's text.
        name: What a log without names is called.
    """
    lines = [line[:_LONGEST] for line in text.splitlines()]
    return _read_tables(lines) or _read_log(lines, name)


# Tables


def _read_tables(lines: Sequence[str]) -> StartTimes | None:
    rows: list[StartTime] = []
    unusable: list[tuple[int, str]] = []
    titles: list[str] = []
    for number, line in enumerate(lines, 1):
        cells = _cells(line)
        if len(cells) < 2:
            titles = []
            continue
        lowered = [cell.strip("*_` ").lower().replace(" ", "_") for cell in cells]
        if _column(lowered, _STARTS) is not None and _column(lowered, _STOPS) is not None:
            titles = lowered
        elif titles and len(cells) == len(titles) and not all(set(cell) <= set(":-= ") for cell in cells):
            row = _row(titles, cells, number)
            if isinstance(row, str):
                unusable.append((number, row))
            else:
                rows.append(row)
    return StartTimes("table", tuple(rows), tuple(unusable)) if rows else None


def _cells(line: str) -> list[str]:
    line = line.strip().lstrip("> ")
    if line.startswith("|"):
        return [cell.strip() for cell in line.strip("|").split("|")]
    for mark in ("\t", ",", ";"):
        if mark in line:
            return [cell.strip().strip('"') for cell in line.split(mark)]
    return []


def _row(titles: Sequence[str], cells: Sequence[str], number: int) -> StartTime | str:
    """Return the start that a row holds, or why it holds none."""
    begin, end = _column(titles, _STARTS), _column(titles, _STOPS)
    assert begin is not None and end is not None  # noqa: PT018  # the titles were chosen by them
    started = _time(cells[begin])
    if started is None:
        return f"no time: {cells[begin]!r}"
    stopped = _time(cells[end], started)
    if stopped is None:
        return f"no time: {cells[end]!r}"
    if stopped < started:
        return f"ends before it starts: {cells[begin]} to {cells[end]}"
    world, took = _column(titles, _WORLDS), _column(titles, _SECONDS)
    given = None
    if took is not None:
        with suppress(ValueError):
            given = float(cells[took])
    label = next((cell for place, cell in enumerate(cells) if place not in {begin, end, world, took} and cell), "")
    return StartTime(label.strip("*` "), cells[world] if world is not None else "", started, stopped, (number,), given)


def _column(titles: Sequence[str], names: Sequence[str]) -> int | None:
    return next((titles.index(name) for name in names if name in titles), None)


def _time(text: str, after: datetime | None = None) -> datetime | None:
    """Return a time; one without a date is the first of its kind that is not before ``after``."""
    text = text.strip("`* ")
    dated = _WHOLE.fullmatch(text)
    if dated:
        return _made(dated.groups())
    of_day = _OF_DAY.fullmatch(text if ":" in text else text.zfill(6))
    if not of_day:
        return None
    day = after or datetime(1900, 1, 1)  # noqa: DTZ001  # as in the file: of no zone
    found = _made((str(day.year), str(day.month), str(day.day), *of_day.groups()))
    if found is not None and after is not None and found < after:
        found += timedelta(days=1)
    return found


def _made(parts: Sequence[str | None]) -> datetime | None:
    year, month, day, hour, minute, second, fraction = (int(part or 0) for part in (*parts[:6], _micro(parts[6])))
    with suppress(ValueError):
        return datetime(year, month, day, hour, minute, second, fraction)  # noqa: DTZ001
    return None


def _micro(fraction: str | None) -> str:
    return (fraction or "").ljust(6, "0")


# Logs


def _read_log(lines: Sequence[str], name: str) -> StartTimes | None:
    rows: list[StartTime] = []
    begun: tuple[datetime, int] | None = None
    earliest: tuple[datetime, int] | None = None

    def close(stopped: tuple[datetime, int] | None) -> None:
        nonlocal begun
        if begun is not None:
            label = name if not rows else f"{name}:{begun[1]}"
            ends = (begun[1], stopped[1]) if stopped else (begun[1],)
            rows.append(StartTime(label, "", begun[0], stopped[0] if stopped else None, ends))
        begun = None

    for number, line in enumerate(lines, 1):
        found = _IN_LINE.search(line)
        when = _made(found.groups()) if found else None
        if when is None:
            continue
        if earliest is None:
            earliest = (when, number)
        if _START.search(line):
            close(None)
            begun = (when, number)
        elif _FIRST.search(line):
            if begun is None and not rows:
                begun = earliest
            if begun is not None and begun[0] <= when:
                close((when, number))
    close(None)
    return StartTimes("log", tuple(rows)) if rows else None
