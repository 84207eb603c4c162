"""Draw the map of lags: how long after the first rank each one came to collectives, by rank and time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ezpz.fields import from_fields
from ezpz.files import read_bytes
from ezpz.quantities import duration
from ezpz.records.launch_record import LagRow
from ezpz.track.launches import find_launch
from ezpz.view.report.markup import shown
from ezpz.view.report.page_tables import PagePart

if TYPE_CHECKING:
    from pathlib import Path

    from ezpz.track.run_reader import Run

_FILE = "arrivals.jsonl"  # `ezpz.watch.stragglers.launcher` writes it, and says what its fields are
_ROWS, _COLUMNS = 64, 24  # at most; of more ranks the latest, of more windows each column is several


def lags_part(run: Run) -> PagePart:
    """Return the map of a run's launch, or why there is none; nothing of a run without other ranks or a launch."""
    world = run.record.ranks.world_size
    launch = run.record.launch_id if run.folder.is_absolute() else ""  # a public report does not know where it is
    if not launch or world is None or world < 2:
        return PagePart("lags", "Arrival at collectives", "")
    found = find_launch(launch)
    windows = _windows(found[0].parent / _FILE) if found else []
    inside = _map(windows) if windows else f'<p class="none">{_WHY_NOT}</p>\n'
    return PagePart("lags", "Arrival at collectives", inside, bool(windows))


_WHY_NOT = (
    "Nothing was recorded that could tell which rank the others wait for: no window of arrivals is over yet, torch's "
    "flight recorder is off, or the record of the launch is not here. After the end "
    "<code>ezpz report RUN</code> draws what was seen."
)


def _windows(path: Path) -> list[LagRow]:
    """Return the windows that a file holds, in the order of time."""
    try:
        lines = read_bytes(path).split(b"\n")
    except OSError:
        return []
    windows = []
    for line in lines:
        try:
            row = from_fields(LagRow, {"source": "", **json.loads(line)}) if line else None
        except (ValueError, TypeError, RecursionError):  # torn by a crash, no row, or JSON of absurd depth
            continue
        if row and row.lag and all(map(str.isdecimal, row.lag)):
            windows.append(row)
    return sorted(windows, key=lambda row: row.t)


def _map(windows: list[LagRow]) -> str:
    """Return a coloured table of ranks by time, with its scale."""
    together = -(-len(windows) // _COLUMNS)
    columns = [windows[first : first + together] for first in range(0, len(windows), together)]
    totals: dict[int, float] = {}
    for row in windows:
        for rank, value in row.lag.items():
            totals[int(rank)] = totals.get(int(rank), 0.0) + value * row.s
    latest = sorted(sorted(totals, key=lambda rank: (-totals[rank], rank))[:_ROWS])
    begin = windows[0].t - windows[0].s
    heads = [duration(max(0.0, column[-1].t - begin), whole=True) for column in columns]
    cells = {rank: [_mean(column, str(rank)) for column in columns] for rank in latest}
    high = max((value for values in cells.values() for value in values if value is not None), default=0.0)
    head = "".join(f"<th>{shown(text)}</th>" for text in ("until", *heads))
    lines = [
        f'<tr><th scope="row">rank {rank}</th>{"".join(_cell(value, high) for value in values)}</tr>'
        for rank, values in cells.items()
    ]
    table = f'<table class="map"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
    source = "the devices' own times" if windows[-1].source == "device" else "times of hosts"
    notes = [f"Mean time after the first rank ({source}) 0 ms <i></i> {_ms(high)}"]
    if len(totals) > len(latest):
        notes.append(f"the {len(latest)} latest of {len(totals):,} ranks")
    return f'<div class="scroll">{table}</div><p class="scale">{". ".join(notes)}</p>\n'


def _mean(column: list[LagRow], rank: str) -> float | None:
    known = [(row.lag[rank], max(row.s, 1e-3)) for row in column if rank in row.lag]
    weight = sum(seconds for _, seconds in known)
    return sum(value * seconds for value, seconds in known) / weight if known else None


def _cell(value: float | None, high: float) -> str:
    if value is None:
        return "<td></td>"
    share = value / high if high > 0 else 0.0
    return f'<td style="--share:{min(1.0, max(0.0, share)):.2f}">{shown(_ms(value))}</td>'


def _ms(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:,.0f}\u00a0ms" if value >= 10 else f"{value:.2g}\u00a0ms"
