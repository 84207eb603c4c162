"""One line of progress below the output of a run, on a terminal.

    step 42/100 [████████            ] 42 %, 12.3 steps/s, 5 s left
    train: step 42/100 42 %, loss 0.2103, 12.3 steps/s, after 3 s, 5 s left
    train: step 42, loss 0.2103, 12.3 steps/s, after 3 s

`launch` draws the first for its ranks, of which rank 0 tells once per second how far its loop is
(`ezpz.progress.pace`); `ezpz.track.live_run` draws the others where no `launch` is. ``EZPZ_LIVE=0``, ``TERM=dumb`` and
``CI`` leave the line out; in a pipe or a file it never appears. Where the locale has no UTF-8 the bar is made of ``#``.
"""

from __future__ import annotations

import os
from collections import deque

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

_STDOUT = 1
_BAR = 20  # columns
_LEAST = 30  # columns of a terminal below which nothing is drawn
_REPORTS = 30  # by which the pace is measured, about as many seconds

_NO = {"0", "no", "off", "false"}


def may_draw(environ: Mapping[str, str], fd: int = _STDOUT) -> bool:
    """Tell whether a line that is drawn again and again belongs where a descriptor leads."""
    if environ.get("EZPZ_LIVE", "").strip().lower() in _NO or environ.get("TERM", "dumb") in {"", "dumb"}:
        return False
    if environ.get("CI", "").strip().lower() not in {"", *_NO}:  # its terminal, if it makes one, is a file
        return False
    try:
        return os.isatty(fd)
    except OSError:
        return False


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
        environ: The environment of the process that draws.
        fd: The terminal, whose width is asked for each time.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, fd: int = _STDOUT) -> None:
        self._full = "█" if is_utf8(os.environ if environ is None else environ) else "#"
        self._fd = fd
        self._seen: deque[tuple[float, int]] = deque(maxlen=_REPORTS)

    def text(self, done: int, total: int, now: float) -> str:
        """Return the line of a launch for a report that came now, on the monotonic clock; empty for none."""
        if not 0 < done <= total:
            self._seen.clear()
            return ""
        width = self._note(done, now)
        if not width:
            return ""
        return f"step {done:,}/{total:,} {self._bar(done, total)} {_share(done, total)}{self._pace(total)}"[:width]

    def text_of_run(self, name: str, step: int, total: int, now: float, *, loss: str, seconds: float) -> str:
        """Return the line of a run without launch; empty where the terminal is too narrow.

        Args:
            name: The run's, which a terminal can show.
            step: Its last step; with a total the number of steps done.
            total: Steps in all; 0 where nobody knows.
            now: When that was, on the monotonic clock.
            loss: The last loss, in words; empty without one.
            seconds: How long the run has lasted.
        """
        width = self._note(step, now)
        # A letter beyond ASCII may take two columns.
        width -= sum(not letter.isascii() for letter in name)
        if width < _LEAST:
            return ""
        counted, share = f"{name}: step {step:,}", ""
        if total:
            counted, share = f"{counted}/{total:,}", f" {_share(step, total)}"
        loss = f", loss {loss}" if loss else ""
        pace = self._pace(total, after=f", after {_duration(seconds)}")
        plain = f"{counted}{share}{loss}{pace}"
        if total and len(plain) + _BAR + 3 <= width:
            return f"{counted} {self._bar(step, total)}{share}{loss}{pace}"
        return plain[:width]

    def _note(self, done: int, now: float) -> int:
        """Note a report, and return how wide its line may be; 0 where there shall be none."""
        if self._seen and done < self._seen[-1][1]:  # another loop
            self._seen.clear()
        self._seen.append((now, done))
        try:
            width = os.get_terminal_size(self._fd).columns - 1  # a full line would move the cursor to the next
        except OSError:
            return 0
        return width if width >= _LEAST else 0

    def _bar(self, done: int, total: int) -> str:
        return f"[{(self._full * int(_BAR * done / total)).ljust(_BAR)}]"

    def _pace(self, total: int, after: str = "") -> str:
        (began, first), (now, done) = self._seen[0], self._seen[-1]
        if done <= first or now <= began:
            return after
        rate = (done - first) / (now - began)
        pace = f", {rate:,.3g} steps/s" if rate >= 1 else f", {1 / rate:,.3g} s a step"
        left = f", {_duration((total - done) / rate)} left" if done < total else ""
        return f"{pace}{after}{left}"


def _share(done: int, total: int) -> str:
    return f"{int(100 * done / total)} %"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    for size, word, part, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {word} {whole % size // part} {smaller}"
    return f"{whole} s"
