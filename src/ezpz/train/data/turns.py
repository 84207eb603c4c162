"""One process at a time fetches a data set into a folder, also when several hosts share it.

    /shared/data/mnist.lock:    n01 4711 17        host, pid, a count that goes up while its holder works

The count stands still for good when its holder has died. Clocks of hosts are not compared: whoever waits looks how long the count
stands still on its own clock. Nothing depends on the lock: files come by rename and are proven, so that two holders at once cost
only traffic.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Turn", "wait_for_turn"]

_EVERY = 2.0  # seconds between two counts
_LOOKS = (0.1, 2.0)  # seconds between two looks at another's lock, at first and later: a thousand hosts may look at one


class Turn:
    """The right to fetch; ``with`` gives it back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = 0
        self._next = 0.0
        self._who = f"{os.uname().nodename} {os.getpid()}"

    def take(self) -> bool:
        """Make the lock; False when another one has it.

        Raises:
            OSError: The folder cannot be written.
        """
        try:
            descriptor = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(self._text())
        self._next = time.monotonic() + _EVERY
        return True

    def go_on(self) -> None:
        """Tell those who wait that work goes on; cheap, call it often."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _EVERY
        self._count += 1
        try:
            if _content(self._path).startswith(self._who):
                self._path.write_text(self._text(), encoding="ascii")
        except OSError:
            pass  # the others may take it for dead, and fetch too

    def __enter__(self) -> Turn:  # noqa: PYI034  # Self needs Python 3.11
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the lock, unless it was taken over."""
        try:
            if _content(self._path).startswith(self._who):
                self._path.unlink(missing_ok=True)
        except OSError:
            pass  # it stands still from now on, and is taken over

    def _text(self) -> str:
        return f"{self._who} {self._count}"


def wait_for_turn(path: Path, *, until: float = float("inf"), stale: float = 30.0) -> tuple[Turn | None, str]:
    """Take the turn, or wait until whoever has it is done.

    Args:
        path: The lock.
        until: The moment, of `time.monotonic`, at which not to wait any longer.
        stale: Seconds after which a count that stands still means that its holder is dead.

    Returns:
        The turn, taken at once or over from a dead holder; or None after another holder has gone or time is up. And who that was.

    Raises:
        OSError: The folder cannot be written.
    """
    turn = Turn(path)
    seen, since, other, pause = "", time.monotonic(), "", _LOOKS[0]
    while not turn.take():
        content = _content(path)
        if content != seen:
            seen, since = content, time.monotonic()
        who = " ".join(content.split()[:2])
        if other and who not in {"", other}:
            return None, other
        other = who or other
        if time.monotonic() - since > stale or _is_dead(content):
            _take_away(path, content)
            seen, other = "", ""
        else:
            time.sleep(pause)
            pause = min(1.5 * pause, _LOOKS[1])
        if other and (time.monotonic() > until or not path.exists()):
            return None, other
    return turn, ""


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return ""


def _is_dead(content: str) -> bool:
    """Tell whether the holder was a process of this host that is gone."""
    words = content.split()
    if len(words) < 2 or words[0] != os.uname().nodename or not words[1].isdigit():
        return False
    try:
        os.kill(int(words[1]), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def _take_away(path: Path, content: str) -> None:
    """Remove a dead holder's lock, unless it has changed hands since."""
    if _content(path) == content:
        path.unlink(missing_ok=True)
