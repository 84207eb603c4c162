"""Keep when ranks arrived at collectives: windows of 30 s in a file of the launch's record, and a summary for run.json.

    arrivals.jsonl, a line per window:

    {"v":1,"t":1795287630.2,"s":30.1,"source":"host","groups":[{"group":"gloo:0","size":2,"n":80,"step":0.37,"rank":1,
     "last":0.92,"lag":0.16,"wait":0.43,"batches":[0.16,0.158,0.161,0.16]}],"hosts":[],"seldom":[],
     "lag":{"0":0,"1":0.16}}

``t`` is its end by the launcher's clock, ``s`` its length; `window`, `host_window` and `seldom_window` of
`ezpz.why.lag` say what the fields of ``groups``, ``hosts`` and ``seldom`` are, and ``lag`` is the mean of each rank, of
many ranks those of the last. A window with too few meetings continues until it has enough. Of a run that ends before it
has three of them, what was seen is divided into three.
"""

from __future__ import annotations

import contextlib
import json
import os
import time

from ezpz.files import open_closed, write_whole
from ezpz.launch.watchers import LauncherHandle, LauncherSide
from ezpz.watch.stragglers.messages import ArrivalsTold, RankArrivals
from ezpz.why.lag import FEWEST, CollectiveArrival, host_window, mean_lags, meetings, seldom_window, window

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any

    from ezpz.launch.agent_messages import Message
    from ezpz.launch.run.failures import Outcome
    from ezpz.why.lag import Meeting

__all__ = ["ARRIVALS", "ArrivalRecord", "read_times"]

ARRIVALS = "arrivals.jsonl"
_WINDOW = 30.0  # seconds
_LATER = 8.0  # seconds for the lines of all ranks of a moment to come
_MOST_WINDOWS = 240  # in memory, in the file and in run.json: of more, each two neighbours become one
_LAST_WINDOWS = 60  # of which run.json has the figures of groups
_MOST_LINES = 16  # of code, of each rank
_MOST_HOSTS = 60  # in run.json
_LATE = ("groups", "hosts", "seldom")  # in a window, each a list of who is late
_MOST_LAGS = 1024  # ranks in a window
_MOST_GROUPS = 4096
_KEPT = 2048  # collectives of a group that wait for the arrival of more ranks
_FIGURES = ("delay", "cpu", "faults", "throttled", "steal", "loader")
_RATES = 5  # of them are counted over the span; the others are shares
_DIVIDED = 3
_SHORTEST = 5.0  # seconds that windows at an end must have together
_MICRO = 1e-6


def read_times(text: str) -> list[tuple[int, float, float | None]]:
    """Return sequence, host's time in seconds since 1970 and device's seconds of each arrival; empty of a damaged text.

    Args:
        text: As `ezpz.dist.arrivals.arrivals` writes it.
    """
    found: list[tuple[int, float, float | None]] = []
    number, micros = 0, 0
    try:
        for word in text.split(","):
            grown, _, rest = word.rpartition(":")
            at, _, device = rest.partition("~")
            number += int(grown) if grown else 1
            micros += int(at)
            found.append((number, micros * _MICRO, int(device) * _MICRO if device else None))
    except ValueError:
        return []
    return found


class _RankSums:
    """What one rank has reported of itself: sums over its lines."""

    __slots__ = ("lines", "omp", "span", "sums", "threads")

    def __init__(self) -> None:
        self.span, self.sums = 0.0, [0.0] * len(_FIGURES)
        self.threads = self.omp = 0  # the last that it told
        self.lines: dict[str, float] = {}  # line of code: seconds

    def add(self, report: RankArrivals) -> None:
        self.span += report.span
        self.threads, self.omp = report.threads, report.omp
        for index, value in enumerate(report.figures[: len(_FIGURES)]):
            self.sums[index] += value if index < _RATES else value * report.span
        for place in report.where.split("\t"):
            share, _, line = place.partition(" ")
            with contextlib.suppress(ValueError):
                self.lines[line] = self.lines.get(line, 0.0) + min(1.0, max(0.0, float(share))) * report.span
        while len(self.lines) > _MOST_LINES:
            del self.lines[min(self.lines, key=self.lines.__getitem__)]

    def shares(self) -> dict[str, Any]:
        span = max(self.span, 1e-3)
        return {name: _short(value / span) for name, value in zip(_FIGURES, self.sums, strict=True)}

    def places(self) -> dict[str, float]:
        """Return the share of the looks in which it was in each line."""
        span = max(self.span, 1e-3)
        return {line: seconds / span for line, seconds in self.lines.items()}


class ArrivalRecord(LauncherSide):
    """The windows of one launch."""

    def __init__(self, handle: LauncherHandle) -> None:
        super().__init__(handle)
        self._path = os.path.join(handle.folder, ARRIVALS) if handle.folder else ""
        self._open: dict[str, dict[int, dict[int, CollectiveArrival]]] = {}  # group -> collective -> rank
        self._members: dict[str, set[int]] = {}
        self._before: dict[str, tuple[int, float]] = {}  # of a group, its last collective and the meeting of that
        self._ready: list[Meeting] = []  # of the window that is open
        self._first: list[Meeting] = []  # of those before, as long as they are too few
        self._windows: list[dict[str, Any]] = []
        self._of: dict[int, _RankSums] = {}
        self._hosts: dict[int, str] = {}  # of each rank, the name of its host
        self._cores: dict[str, dict[str, int]] = {}  # of a host, which CPUs are there, and may be used
        self._heard_at = 0.0
        self._begin: float | None = None
        self._on_device = False
        self._is_broken = False

    def hear(self, host: int, report: Message) -> None:
        """Take in what the ranks of a host have reported."""
        if not isinstance(report, ArrivalsTold):
            return
        name = self.handle.host(host)
        self._cores[name] = {"cores": report.cores, "allowed": report.allowed, "there": report.there}
        # A new look of all ranks: what came at the one before is complete.
        now = time.monotonic()
        if self._heard_at and now - self._heard_at > 2.0:
            self._match()
            self._close_window()
        self._heard_at = now
        for one in report.ranks:
            if one.rank < 0 or (one.group not in self._open and len(self._open) >= _MOST_GROUPS):
                continue
            self._of.setdefault(one.rank, _RankSums()).add(one)
            self._hosts[one.rank] = name
            waiting = self._open.setdefault(one.group, {})
            self._join(one.rank, one.group)
            for number, at, device in read_times(one.times):
                self._on_device = self._on_device or device is not None
                waiting.setdefault(number, {})[one.rank] = CollectiveArrival(at + report.clock, device)
            for number in sorted(waiting)[: max(0, len(waiting) - _KEPT)]:
                del waiting[number]

    def _join(self, rank: int, group: str) -> None:
        """Count a rank among its group; what the others did before it first reported were no meetings of all."""
        members = self._members.setdefault(group, set())
        if rank not in members:
            members.add(rank)
            self._ready = [meeting for meeting in self._ready if meeting.group != group]
            self._first = [meeting for meeting in self._first if meeting.group != group]

    def _match(self) -> None:
        """Make meetings of the collectives that every rank of their group has reported."""
        for group, waiting in self._open.items():
            size = len(self._members[group])
            whole = {number: arrivals for number, arrivals in waiting.items() if len(arrivals) == size}
            if size < 2 or not whole:
                continue
            last = max(whole)
            found = meetings(group, whole, self._before.get(group))
            self._ready += found
            self._before[group] = last, found[-1].at
            for number in [each for each in waiting if each <= last]:
                del waiting[number]

    def _close_window(self, *, final: bool = False) -> None:
        """Make a row of what is ready, where that is long enough."""
        if not self._ready:
            return
        begin = min(meeting.at for meeting in self._ready) if self._begin is None else self._begin
        end = max(meeting.at for meeting in self._ready)
        if not final and (end - begin < _WINDOW - _LATER or not window(self._ready)):
            self._begin = begin
            return
        self._keep(self._ready, begin, end)
        if len(self._windows) <= _DIVIDED:
            self._first += self._ready
        else:
            self._first = []
        self._ready, self._begin = [], end

    def _keep(self, found: Sequence[Meeting], begin: float, end: float) -> None:
        row = self._row(found, begin, end)
        self._windows.append(row)
        if len(self._windows) > _MOST_WINDOWS:
            pairs = [self._windows[index : index + 2] for index in range(0, len(self._windows), 2)]
            self._windows = [_joined(pair) for pair in pairs]
            self._write(self._windows, whole=True)
        else:
            self._write([row])

    def _row(self, found: Sequence[Meeting], begin: float, end: float) -> dict[str, Any]:
        lags = mean_lags(found)
        ranks = sorted(sorted(lags, key=lambda rank: (-lags[rank], rank))[:_MOST_LAGS])
        return {
            "v": 1,
            "t": round(end, 3),
            "s": round(end - begin, 3),
            "source": "device" if self._on_device else "host",
            "groups": window(found),
            "hosts": host_window(found, self._hosts),
            "seldom": seldom_window(found),
            "lag": {str(rank): lags[rank] for rank in ranks},
        }

    def end(self, outcome: Outcome | None = None) -> Mapping[str, Any]:
        """Write what waits, and return the summary for ``run.json``; nothing where no two ranks have met."""
        del outcome
        summary = self._summary()
        return {"arrivals": summary} if summary else {}

    def _summary(self) -> dict[str, Any] | None:
        self._match()
        self._close_window(final=True)
        if not self._windows:
            return None
        if len(self._windows) <= _DIVIDED and self._first:
            self._divide()
        late = {str(group["rank"]) for row in self._windows for name in _LATE for group in row[name]}
        late_hosts = {group["host"] for row in self._windows for group in row["hosts"]}
        shares = {rank: one.shares() for rank, one in self._of.items()}
        others = [rank for rank in shares if str(rank) not in late and self._hosts[rank] not in late_hosts] or list(
            shares
        )
        return {
            "source": self._windows[-1]["source"],
            "seconds": _short(sum(row["s"] for row in self._windows)),
            "windows": [{name: row[name] for name in ("t", "s", *_LATE)} for row in self._windows[-_LAST_WINDOWS:]],
            "ranks": {
                str(rank): {**shares[rank], **self._place([rank], others)}
                for rank in sorted(map(int, late))[:_LAST_WINDOWS]
                if rank in shares
            },
            "others": {**_typical([shares[rank] for rank in others]), **self._place(others, [])},
            "hosts": self._of_hosts(shares, late_hosts, others),
        }

    def _place(self, ranks: Sequence[int], others: Sequence[int]) -> dict[str, Any]:
        """Return the line in which ranks were more than others, with their share of looks and that of the others."""
        own = _typical_places([self._of[rank].places() for rank in ranks])
        usual = _typical_places([self._of[rank].places() for rank in others if rank not in ranks])
        where = max(own, key=lambda line: own[line] - usual.get(line, 0.0), default="")
        return {
            "here": _short(own.get(where, 0.0)),
            "where": where,
            "others_here": _short(usual.get(where, 0.0)),
        }

    def _of_hosts(
        self, shares: Mapping[int, dict[str, Any]], late: Collection[str], others: Sequence[int]
    ) -> dict[str, Any]:
        """Return what is known of the hosts that were late, and of those whose ranks waited longest for a core."""
        members: dict[str, list[int]] = {}
        for rank in sorted(shares):
            members.setdefault(self._hosts[rank], []).append(rank)
        delay = {
            name: sorted(shares[rank]["delay"] for rank in ranks)[(len(ranks) - 1) // 2]
            for name, ranks in members.items()
        }
        found = {}
        for name in sorted(members, key=lambda each: (each not in late, -delay[each], each))[:_MOST_HOSTS]:
            ranks = members[name]
            busiest = max((self._of[rank] for rank in ranks), key=lambda one: one.threads)
            found[name] = {
                **_typical([shares[rank] for rank in ranks]),
                **self._place(ranks, others),
                "delay": delay[name],
                "ranks": len(ranks),
                **self._cores[name],
                "threads": busiest.threads,
                "omp": busiest.omp,
            }
        return found

    def _divide(self) -> None:
        """Make three windows of equal length of all that was seen, where it is enough for them."""
        found = sorted(self._first, key=lambda meeting: meeting.at)
        begin, end = found[0].at, found[-1].at
        if end - begin < _SHORTEST or len(found) < _DIVIDED * FEWEST:
            return
        span = (end - begin) / _DIVIDED
        parts: list[list[Meeting]] = [[] for _ in range(_DIVIDED)]
        for meeting in found:
            parts[min(_DIVIDED - 1, int((meeting.at - begin) / span))].append(meeting)
        self._windows = [
            self._row(part, begin + span * index, begin + span * (index + 1)) for index, part in enumerate(parts)
        ]
        self._write(self._windows, whole=True)

    def _write(self, rows: Sequence[dict[str, Any]], *, whole: bool = False) -> None:
        if not self._path or self._is_broken:
            return
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        try:
            if whole or len(self._windows) == 1:  # an earlier launch may have used the same --log-dir
                write_whole(self._path, text, closed=True)
            else:
                with open(self._path, "a", encoding="utf-8", opener=open_closed) as file:
                    file.write(text)
        except OSError:
            self._is_broken = True  # a full disk: run.json has the summary


def _joined(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return two rows as one: of groups and batches the later one's, of lags the mean."""
    first, last = rows[0], rows[-1]
    if first is last:
        return first
    span = (first["s"] + last["s"]) or 1.0
    lag = {
        rank: _short((first["lag"].get(rank, value) * first["s"] + value * last["s"]) / span)
        for rank, value in last["lag"].items()
    }
    return {**last, "s": round(first["s"] + last["s"], 3), "lag": lag}


def _typical(shares: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each figure over ranks."""
    return {name: sorted(share[name] for share in shares)[len(shares) // 2] for name in _FIGURES} if shares else {}


def _typical_places(places: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median over ranks of the share of looks in each line; a rank that was never there counts with 0."""
    known: dict[str, list[float]] = {}
    for each in places:
        for line, share in each.items():
            known.setdefault(line, []).append(share)
    middle = len(places) // 2
    return {
        line: sorted(shares)[middle - absent]
        for line, shares in known.items()
        if middle >= (absent := len(places) - len(shares))
    }


def _short(value: float) -> float:
    return float(f"{value:.4g}")
