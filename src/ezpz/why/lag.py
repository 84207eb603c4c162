"""Turn the times at which ranks arrive at collectives into windows: who is last, how late, and how long others wait.

Collectives of a group that overlap are one *meeting*: a rank that is late at the first bucket of gradients is as late
at the second, and the others have waited once. Meetings that follow each other at once, such as 60 reductions after one
backward, are one as well, in which a rank is as late as in all of them together. A meeting counts where the others
waited for at least a quarter of what the longest tenth of them did; a barrier at which all arrive together says nothing
about who is slow.

Times of different hosts are compared by the launcher's clock, to which agents have corrected them. Where a device has
measured how long each collective took on it, the rank with the shortest time is the last, and no clock is needed.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from ezpz.fields import Record

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = [
    "BATCHES",
    "FEWEST",
    "CollectiveArrival",
    "Meeting",
    "host_window",
    "mean_lags",
    "meetings",
    "seldom_window",
    "window",
]

BATCHES = 4  # of a window, each with the mean lag of its last rank: what the significance test compares
FEWEST = 8  # meetings that count in a window
_FEWEST_SELDOM = 2  # of those that hold all up seldom and for long
_GAP = 16  # collectives of other kinds that may lie between two: with more between them, some were not recorded
_COUNTED, _TENTH = 0.25, 0.9  # share of which quantile of all waits a wait must have to count
_LEAST = 50e-6  # seconds: a shorter wait is none
_MOST_GROUPS = 8  # of a window
# Work between two meetings parts them where it is a quarter of what typically lies between two steps: of the longest
# stretches of work that make up a quarter of all. On busy cores even 60 short ones make up half. A few longer ones,
# such as evaluations, count no more than the next.
_PARTED, _SMALLER, _ODD = 0.25, 0.75, 3


class CollectiveArrival(Record):
    """One rank at one collective: when it came, and how long its device was in it (seconds; None if not measured)."""

    at: float
    device: float | None = None


class Meeting(Record):
    """Collectives that all ranks of a group have entered.

    Attributes:
        group: Name of the group.
        at: When the first rank came, by the launcher's clock.
        cycle: Seconds since the first rank came to the meeting before; None where that was not recorded.
        lags: Of each rank, seconds that it came after the first one.
    """

    group: str
    at: float
    cycle: float | None
    lags: Mapping[int, float]


def meetings(
    group: str, collectives: Mapping[int, Mapping[int, CollectiveArrival]], earlier: tuple[int, float] | None = None
) -> list[Meeting]:
    """Return the meetings of a group.

    Args:
        group: Its name.
        collectives: Sequence number to the arrival of every rank of the group.
        earlier: Sequence number of the collective before them, and when the first rank came to its meeting; None where
            none is known.
    """
    found: list[Meeting] = []
    before, since = earlier or (None, 0.0)
    last = float("-inf")  # when the last rank had come to the present meeting
    for number in sorted(collectives):
        arrivals = collectives[number]
        lags = _lags(arrivals)
        first = min(arrival.at for arrival in arrivals.values())
        end = first + max(lags.values())
        is_next = before is not None and number - before <= _GAP
        before = number
        if is_next and first < last:
            last = max(last, end)
            continue
        found.append(Meeting(group, first, first - since if is_next else None, lags))
        last, since = end, first
    return found


def _lags(arrivals: Mapping[int, CollectiveArrival]) -> dict[int, float]:
    devices = [arrival.device for arrival in arrivals.values() if arrival.device is not None]
    if len(devices) == len(arrivals):
        longest = max(devices)
        return {rank: longest - (arrival.device or 0.0) for rank, arrival in arrivals.items()}
    first = min(arrival.at for arrival in arrivals.values())
    return {rank: arrival.at - first for rank, arrival in arrivals.items()}


def window(found: Sequence[Meeting]) -> list[dict[str, Any]]:
    """Return what the meetings of a stretch of time say of each group, the one whose last rank costs most first.

    ``rank`` is the rank that was last most often, in the share ``last`` of the ``n`` meetings that count, ``lag``
    seconds after the median of the others; ``step`` is the time from one of them to the next, ``wait`` the share of all
    time in which the others waited for it, ``size`` the ranks of the group, and ``batches`` its mean lag in each
    quarter of the meetings. A group with fewer meetings than `FEWEST` is left out.
    """
    rows = [row for name, own in _by_group(found).items() if (row := _of_group(name, own))]
    return sorted(rows, key=lambda row: (-row["wait"], row["group"]))[:_MOST_GROUPS]


def _by_group(found: Sequence[Meeting]) -> dict[str, list[Meeting]]:
    """Return the meetings of each group in the order of time, those that follow each other at once as one."""
    groups: dict[str, list[Meeting]] = {}
    for meeting in sorted(found, key=lambda one: one.at):
        groups.setdefault(meeting.group, []).append(meeting)
    return {name: _joined(own) for name, own in groups.items()}


def _joined(found: Sequence[Meeting]) -> list[Meeting]:
    """Join meetings of a group between which the first rank to come has hardly worked.

    The work is that of the rank that comes first: what holds up another one does not part them. Where some are joined,
    a first one of which the beginning was not recorded is left out.
    """
    work = {  # index of a meeting: seconds from the end of the one before
        index: max(0.0, one.cycle - max(found[index - 1].lags.values()))
        for index, one in enumerate(found)
        if index and one.cycle is not None and one.lags.keys() == found[index - 1].lags.keys()
    }
    least = _PARTED * _typical(sorted(work.values()))
    joined: list[list[Meeting]] = []
    for index, one in enumerate(found):
        if index in work and work[index] < least:
            joined[-1].append(one)
        else:
            joined.append([one])
    if len(joined) == len(found):
        return list(found)
    out: list[Meeting] = []
    for before, parts in zip([[], *joined], joined, strict=False):
        first = parts[0]
        if first.cycle is not None:
            sums = {rank: sum(part.lags[rank] for part in parts) for rank in first.lags}
            soonest = min(sums.values())
            cycle = first.cycle + sum(part.cycle or 0.0 for part in before[1:]) if before else None
            lags = {rank: lag - soonest for rank, lag in sums.items()}
            out.append(Meeting(first.group, first.at, cycle, lags))
    return out


def _typical(values: Sequence[float]) -> float:
    """Return the value below which `_SMALLER` of the sum of all lies; 0 where there is none.

    Args:
        values: In their order; the `_ODD` largest count as the one before them.
    """
    most = values[max(0, len(values) - 1 - _ODD)] if values else 0.0
    weights = [min(value, most) for value in values]
    least, total = _SMALLER * sum(weights), 0.0
    for weight in weights:
        total += weight
        if total >= least:
            return weight
    return most


def host_window(found: Sequence[Meeting], hosts: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return the same by host, of each group with ranks on several hosts of which one at least has more than one.

    A host comes to a meeting when its first rank does, so that one slow rank makes no slow host. In a row, ``host`` is
    the host that was last most often, ``rank`` its lowest rank, and ``lag`` how many seconds after the median of all
    ranks on other hosts it came.

    Args:
        found: The meetings.
        hosts: Of each rank, the name of its host.
    """
    rows = [row for name, own in _by_group(found).items() if (row := _of_hosts(name, own, hosts))]
    return sorted(rows, key=lambda row: (-row["wait"], row["group"]))[:_MOST_GROUPS]


def seldom_window(found: Sequence[Meeting]) -> list[dict[str, Any]]:
    """Return the same of each group by time in place of meetings: who is seldom last, and then holds all up for long.

    Only the meetings count that took most of what ranks have waited. ``rank`` is the one for which the others waited
    longest in all, ``of`` the number of all meetings, and ``batches`` is empty. A group in which half of the meetings
    count or more is left out: `window` tells of it.
    """
    rows = [row for name, own in _by_group(found).items() if (row := _seldom(name, own))]
    return sorted(rows, key=lambda row: (-row["wait"], row["group"]))[:_MOST_GROUPS]


def _of_group(name: str, found: Sequence[Meeting]) -> dict[str, Any] | None:
    lasts = [_last(meeting.lags) for meeting in found]
    waits = [_behind(meeting.lags, last) for meeting, last in zip(found, lasts, strict=True)]
    counted = _counted(waits)
    if len(counted) < FEWEST:
        return None
    times_last = Counter(lasts[index] for index in counted)
    rank = min(times_last, key=lambda each: (-times_last[each], each))
    behind = [_behind(found[index].lags, rank) for index in counted]
    row = _row(found, counted, [wait if last == rank else 0.0 for wait, last in zip(waits, lasts, strict=True)])
    return row and {
        **row,
        "group": name,
        "rank": rank,
        "last": _short(times_last[rank] / len(counted)),
        "lag": _short(sum(behind) / len(counted)),
        "batches": _batches(behind),
    }


def _of_hosts(name: str, found: Sequence[Meeting], hosts: Mapping[int, str]) -> dict[str, Any] | None:
    members: dict[str, list[int]] = {}
    for rank in found[0].lags:
        members.setdefault(hosts.get(rank, ""), []).append(rank)
    if len(members) < 2 or all(len(ranks) < 2 for ranks in members.values()):
        return None

    def others(lags: Mapping[int, float], host: str) -> float:
        return _median(sorted(lag for rank, lag in lags.items() if hosts.get(rank, "") != host))

    firsts = [{host: min(one.lags[rank] for rank in own) for host, own in members.items()} for one in found]
    lasts = [max(first, key=lambda host: (first[host], host)) for first in firsts]
    waits = [
        max(one.lags[rank] for rank in members[last]) - others(one.lags, last)
        for one, last in zip(found, lasts, strict=True)
    ]
    counted = _counted(waits)
    if len(counted) < FEWEST:
        return None
    times_last = Counter(lasts[index] for index in counted)
    host = min(times_last, key=lambda each: (-times_last[each], each))
    behind = [firsts[index][host] - others(found[index].lags, host) for index in counted]
    row = _row(found, counted, [wait if last == host else 0.0 for wait, last in zip(waits, lasts, strict=True)])
    return row and {
        **row,
        "group": name,
        "host": host,
        "rank": min(members[host]),
        "last": _short(times_last[host] / len(counted)),
        "lag": _short(sum(behind) / len(counted)),
        "batches": _batches(behind),
    }


def _seldom(name: str, found: Sequence[Meeting]) -> dict[str, Any] | None:
    lasts = [_last(meeting.lags) for meeting in found]
    waits = [_behind(meeting.lags, last) for meeting, last in zip(found, lasts, strict=True)]
    long, total = 0.0, 0.0  # the shortest wait of the longest ones that make up half of all
    for long in sorted(waits, reverse=True):
        total += long
        if total >= sum(waits) / 2:
            break
    counted = [index for index, wait in enumerate(waits) if wait >= max(_LEAST, _COUNTED * long)]
    if len(counted) < _FEWEST_SELDOM or 2 * len(counted) >= len(found):
        return None
    lost: dict[int, float] = {}
    for index in counted:
        lost[lasts[index]] = lost.get(lasts[index], 0.0) + waits[index]
    rank = min(lost, key=lambda each: (-lost[each], each))
    own = {index for index in counted if lasts[index] == rank}
    row = _row(found, counted, [wait if index in own else 0.0 for index, wait in enumerate(waits)])
    return row and {
        **row,
        "group": name,
        "of": len(found),
        "rank": rank,
        "last": _short(len(own) / len(counted)),
        "lag": _short(lost[rank] / len(own)),
        "batches": [],
    }


def _row(found: Sequence[Meeting], counted: Sequence[int], waits: Sequence[float]) -> dict[str, Any] | None:
    """Return what every row has: size, meetings that count, time from one to the next, and the share that was waited.

    Args:
        found: The meetings of a group.
        counted: Which of them count.
        waits: Seconds that was waited at each of them for the one that the row is about.
    """
    covered = sum(meeting.cycle for meeting in found if meeting.cycle is not None)
    followed = sum(found[index].cycle is not None for index in counted)
    if covered <= 0 or not followed:
        return None
    # A wait belongs to the cycle that follows the meeting before it.
    waited = sum(wait for wait, one in zip(waits, found, strict=True) if one.cycle is not None)
    return {
        "size": len(found[0].lags),
        "n": len(counted),
        "step": _short(covered / followed),
        "wait": _short(min(1.0, waited / covered)),
    }


def _batches(behind: Sequence[float]) -> list[float]:
    ends = [round(len(behind) * part / BATCHES) for part in range(BATCHES + 1)]
    parts = [behind[first:last] for first, last in pairwise(ends)]
    return [_short(sum(part) / len(part)) for part in parts]


def _counted(waits: Sequence[float]) -> list[int]:
    """Return which meetings count, by the seconds that the others waited for the last rank of each."""
    least = max(_LEAST, _COUNTED * sorted(waits)[int(_TENTH * (len(waits) - 1))]) if waits else 0.0
    return [index for index, wait in enumerate(waits) if wait >= least]


def mean_lags(found: Sequence[Meeting]) -> dict[int, float]:
    """Return of each rank how long after the first one it came to the meetings that count, on average in seconds."""
    sums: dict[int, list[float]] = {}
    together = [meeting for own in _by_group(found).values() for meeting in own]
    for index in _counted([_behind(meeting.lags, _last(meeting.lags)) for meeting in together]):
        for rank, lag in together[index].lags.items():
            sums.setdefault(rank, []).append(lag)
    return {rank: _short(sum(each) / len(each)) for rank, each in sums.items()}


def _last(lags: Mapping[int, float]) -> int:
    return max(lags, key=lambda rank: (lags[rank], rank))


def _behind(lags: Mapping[int, float], rank: int) -> float:
    """Return how long after the median of the others a rank came; below 0 where it came before."""
    return lags[rank] - _median(sorted(lag for other, lag in lags.items() if other != rank))


def _median(values: Sequence[float]) -> float:
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def _short(value: float) -> float:
    return float(f"{value:.4g}")
