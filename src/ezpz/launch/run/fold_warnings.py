r"""Fold warnings that many ranks write at once into one line.

A warning waits a moment for the other ranks to write the same, and what its rank writes behind it waits too, so that
the order of each rank is kept. Windows close in the order in which they opened; a rank joins only those younger than
the last that it is in. Nothing here writes or knows the time.
"""

from __future__ import annotations

import re
from collections import deque

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    Pieces = list[tuple[tuple[int, ...], bytes | memoryview]]

__all__ = ["Folds"]

_WINDOW = 0.3  # seconds that a warning waits for other ranks
_MEMORY = 10.0  # seconds after it was shown for which its repetition by other ranks is only counted
_LONGEST = 4096  # bytes of a warning; longer ones are shown each time
_MOST = 256  # warnings that are remembered at a time
_QUOTED = 60  # characters
_SECOND = 1.0  # that is how long
_MOST_SEARCHED = 16 << 20  # bytes are searched; more is never read, and to search it takes longer than to pass it on

_COLOUR = r"\x1b\[[0-9;:]*m"
# a.py:3: UserWarning: text\n  warnings.warn("text")\n   Python's warnings, with the source line, whatever it says
# [rank0]:[W1121 19:12:49.123456789 socket.cpp:464] text\n   glog, as torch's C++ writes it, with or without the rank
# W1121 19:12:49.123000 4711 torch/_inductor/utils.py:1137] text\n   torch/_logging/_internal.py, as above
_WARNING = (
    rb"(?:(?m:^)|(?<=\r))(?:[^\r\n]{0,4096}(?i:warn)|(?:\[rank\d+\]:)?(?:\[W|W\d{4} \d\d:))[^\r\n]{0,4096}\r?\n"
    rb"(?:  [^\r\n]{0,4096}\r?\n)?"
)
# What differs from rank to rank although the same is meant: rank, time and process.
_GLOG = rb"^(?:\[rank\d+\]:)?\[?W\d{4} [\d:.]+(?: +\d+)? "
# What any of the above holds. Two searches for one letter each take a third of the time of one for both.
_MAY_WARN = {b"w": re.compile(rb"w(?i:arn)"), b"W": re.compile(rb"W(?:(?i:arn)|\d{4} |(?<=\[W))")}


class _Window:
    """One showing of a warning, as long as other ranks may join."""

    __slots__ = ("closes", "number", "ranks", "text", "time", "warned")

    def __init__(self, text: bytes, warned: _Warned, time: int, number: int, closes: float) -> None:
        self.text, self.warned, self.time, self.number, self.closes = text, warned, time, number, closes
        self.ranks: list[int] = []


class _Warned:
    """A warning of the last seconds: how often each rank wrote it, and which ranks only repeated others."""

    __slots__ = ("counts", "key", "more", "open", "text", "times", "until")

    def __init__(self, key: bytes, text: bytes) -> None:
        self.key, self.text = key, text
        self.counts: dict[int, int] = {}
        self.more: set[int] = set()
        self.open: dict[int, _Window] = {}  # by the how-many-eth time
        self.times = 0
        self.until: float | None = None  # unknown until it is shown


class Folds:
    """What ranks say on stderr. Pieces come back as (ranks, bytes); a piece of no rank is a line of ours.

    Attributes:
        held: Bytes that wait.
    """

    def __init__(self, world_size: int) -> None:
        self.held = 0
        self._world_size = world_size
        self._opened = 0
        self._warned: dict[bytes, _Warned] = {}
        self._shown: deque[_Warned] = deque()  # in order of their `until`
        self._windows: deque[_Window] = deque()
        self._behind: dict[int, deque[bytes | _Window]] = {}  # what waits, of ranks of which anything waits
        self._midline: set[int] = set()
        self._searched, self._searched_since = 0, 0.0

    def add(self, rank: int, data: bytes | memoryview, now: float) -> Pieces:
        """Return what may be shown now that a rank has written something more.

        Of data that is a view, bytes are returned, or the view itself, whose memory may change once it is shown.
        """
        ready = self.tick(now)
        continues = rank in self._midline
        (self._midline.discard if data[-1:] in b"\r\n" else self._midline.add)(rank)
        if not self._is_read(len(data), now):
            if rank not in self._behind:
                ready.append(((rank,), data))
            else:
                self._plain(rank, bytes(data), ready)
            return ready
        data = bytes(data)
        done = 0
        for match in re.finditer(_WARNING, data) if _may_warn(data) else ():
            if (continues and not match.start()) or len(match[0]) > _LONGEST:
                continue  # the end of a line that has been shown, or too much to remember
            self._plain(rank, data[done : match.start()], ready)
            done = match.end()
            self._warning(rank, match[0], now, ready)
        self._plain(rank, data[done:] if done else data, ready)
        return ready

    def _is_read(self, size: int, now: float) -> bool:
        """Tell whether so much may be searched, after all that was searched in this second."""
        if now >= self._searched_since + _SECOND:
            self._searched, self._searched_since = 0, now
        self._searched += size
        return self._searched <= _MOST_SEARCHED

    def due(self) -> float | None:
        """Return the monotonic time of the next `tick` that has something to show, or None."""
        times = [window.closes for window in self._windows][:1]
        times += [warned.until for warned in self._shown if warned.more and warned.until is not None][:1]
        return min(times, default=None)

    def tick(self, now: float) -> Pieces:
        """Return what has waited long enough."""
        ready: Pieces = []
        while self._windows and (self._windows[0].closes <= now or len(self._windows[0].ranks) == self._world_size):
            self._close(now, ready)
        while self._shown and (self._shown[0].until or 0.0) <= now:
            self._forget(ready)
        return ready

    def release(self, now: float) -> Pieces:
        """Return all that waits: another line is to be shown after it."""
        ready: Pieces = []
        while self._windows:
            self._close(now, ready)
        return ready

    def finish(self) -> Pieces:
        """Return all that waits, and all counts."""
        ready = self.release(0.0)
        while self._shown:
            self._forget(ready)
        return ready

    def _plain(self, rank: int, data: bytes, ready: Pieces) -> None:
        if data and rank in self._behind:
            self._behind[rank].append(data)
            self.held += len(data)
        elif data:
            ready.append(((rank,), data))

    def _warning(self, rank: int, text: bytes, now: float, ready: Pieces) -> None:
        key = re.sub(_GLOG, b"", text)
        warned = self._warned.get(key)
        if warned is None:
            if len(self._warned) >= _MOST:
                self._plain(rank, text, ready)
                return
            warned = self._warned[key] = _Warned(key, text)
        time = warned.counts[rank] = warned.counts.get(rank, 0) + 1
        window = warned.open.get(time)
        if time > warned.times:
            window = self._open(warned, text, now)
        elif not window:
            warned.more.add(rank)
            return
        elif self._last(rank) > window.number:  # joining would turn the order of this rank round
            self._plain(rank, text, ready)
            return
        window.ranks.append(rank)
        self._behind.setdefault(rank, deque()).append(window)
        ready += self.tick(now)

    def _open(self, warned: _Warned, text: bytes, now: float) -> _Window:
        self._opened += 1
        warned.times += 1
        window = warned.open[warned.times] = _Window(text, warned, warned.times, self._opened, now + _WINDOW)
        self._windows.append(window)
        self.held += len(text)
        return window

    def _last(self, rank: int) -> int:
        """Return the number of the last window that a rank is in."""
        return max((one.number for one in self._behind.get(rank, ()) if isinstance(one, _Window)), default=0)

    def _close(self, now: float, ready: Pieces) -> None:
        """Show the oldest window, and what its ranks have written after it."""
        window = self._windows.popleft()
        self.held -= len(window.text)
        del window.warned.open[window.time]
        if window.warned.until is None:
            window.warned.until = now + _MEMORY
            self._shown.append(window.warned)
        ready.append((tuple(sorted(window.ranks)), window.text))
        for rank in window.ranks:
            behind = self._behind[rank]
            behind.popleft()
            while behind:
                data = behind[0]
                if not isinstance(data, bytes):
                    break
                behind.popleft()
                self.held -= len(data)
                ready.append(((rank,), data))
            if not behind:
                del self._behind[rank]

    def _forget(self, ready: Pieces) -> None:
        """Tell how many repeated the oldest warning that was shown, if any did."""
        warned = self._shown.popleft()
        del self._warned[warned.key]
        if not warned.more:
            return
        text = re.sub(_COLOUR, "", warned.text.decode(errors="replace")).splitlines()[0].strip()
        quote = text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…"
        ranks = "1 more rank" if len(warned.more) == 1 else f"{len(warned.more)} more ranks"
        ready.append(((), f"ezpz: {ranks} wrote the same: {quote}\n".encode()))


def _may_warn(data: bytes) -> bool:
    """Tell quickly, for nearly all that is written, that no line of it warns."""
    return any(letter in data and expression.search(data) for letter, expression in _MAY_WARN.items())
