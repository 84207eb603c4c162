"""One line of progress below the output of a run, where `launch` itself writes on a terminal.

    step 42/100 [████████            ] 42 %, 12.3 steps/s, 5 s left

Rank 0 tells once per second how far its loop is (`ezpz.progress.pace`). ``EZPZ_LIVE=0`` and ``TERM=dumb`` leave the
line out; in a pipe or a file it never appears. Where the locale has no UTF-8 the bar is made of ``#``.
"""

from __future__ import annotations

import os
from collections import deque

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.watch.progress.messages import Pace

_STDOUT = 1
_BAR = 20  # columns
_LEAST = 30  # columns of a terminal below which nothing is drawn
_REPORTS = 30  # by which the pace is measured, about as many seconds


def is_utf8(environ: Mapping[str, str]) -> bool:
    """Tell whether the user's locale is UTF-8.

    Python answers the locale C by setting LC_CTYPE=C.UTF-8 for itself and its children (PEP 538): that alone says
    nothing about the terminal.
    """
    own = {name: environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG")}
    if not own["LC_ALL"] and own["LC_CTYPE"] == "C.UTF-8":
        own["LC_CTYPE"] = ""
    chosen = own["LC_ALL"] or own["LC_CTYPE"] or own["LANG"]
    return chosen.lower().replace("-", "").partition("@")[0].endswith("utf8")


class LiveLine:
    """The text of the line, from one report to the next.

    Args:
        environ: The environment of `launch`.
        fd: The terminal, whose width is asked for each time.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, fd: int = _STDOUT) -> None:
        self._full = "█" if is_utf8(os.environ if environ is None else environ) else "#"
        self._fd = fd
        self._seen: deque[tuple[float, int]] = deque(maxlen=_REPORTS)

    def text(self, report: Pace, now: float) -> str:
        """Return the line for a report that came now, on the monotonic clock; empty for none."""
        done, total = report.done, report.total
        if not 0 < done <= total:
            self._seen.clear()
            return ""
        if self._seen and done < self._seen[-1][1]:  # another loop
            self._seen.clear()
        self._seen.append((now, done))
        try:
            width = os.get_terminal_size(self._fd).columns - 1  # a full line would move the cursor to the next
        except OSError:
            return ""
        if width < _LEAST:
            return ""
        share = done / total
        bar = (self._full * int(_BAR * share)).ljust(_BAR)
        return f"step {done:,}/{total:,} [{bar}] {int(100 * share)} %{self._pace(total)}"[:width]

    def _pace(self, total: int) -> str:
        (began, first), (now, done) = self._seen[0], self._seen[-1]
        if done <= first or now <= began:
            return ""
        rate = (done - first) / (now - began)
        pace = f"{rate:,.3g} steps/s" if rate >= 1 else f"{1 / rate:,.3g} s a step"
        return f", {pace}, {_duration((total - done) / rate)} left" if done < total else f", {pace}"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    for size, word, part, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {word} {whole % size // part} {smaller}"
    return f"{whole} s"
