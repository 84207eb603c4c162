"""A profile that is asked for while the job runs: somebody touches ``PROFILE_NOW`` in the run folder.

    touch outputs/train/2026-11-20-162001/PROFILE_NOW
    echo torch:ranks=all > outputs/train/2026-11-20-162001/PROFILE_NOW

Every process remembers the file's time of change by itself, so that ranks need not talk to each other and nobody has to
remove it: touching it again asks again, and a file that is older than the process asks nothing.
"""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SOON", "Trigger", "seconds_between_looks"]

SOON = 0.2  # seconds until the second look at a file that has just changed
_NAME = "PROFILE_NOW"
_LONGEST = 200  # characters of a specification
_LOOKS_PER_SECOND = 100  # of the whole job: each is a question to the file system's one metadata server


def seconds_between_looks(rank: int, world_size: int) -> float:
    """Return how often a rank may ask for the file: rank 0 every second, the others less often in a large job."""
    return 1.0 if rank == 0 else max(1.0, world_size / _LOOKS_PER_SECOND)


class Trigger:
    """The ``PROFILE_NOW`` file of one run folder at a time."""

    def __init__(self) -> None:
        self._made = time()
        self._folder: Path | None = None
        self._answered = 0  # time of change, in ns, of what was acted upon
        self._fresh = 0  # the same of what was seen once

    def watch(self, folder: Path | None) -> None:
        """Take note of what lies in a folder now, so that only a later touch asks for something."""
        if folder is not None and folder != self._folder:
            self._folder, self._answered, self._fresh = folder, self._changed(folder), 0

    def look(self, folder: Path | None) -> str | None:
        """Return the text of a file that was touched; None when there is nothing to do.

        A change is acted upon when a second look finds it unchanged: ``echo py > PROFILE_NOW`` makes an empty file first.

        Args:
            folder: The run folder, None as long as nobody knows it.
        """
        if folder is None:
            return None
        changed = self._changed(folder)
        if folder != self._folder:  # it became known only now: the clock must tell what is older than this process
            self._folder, self._fresh = folder, 0
            self._answered = changed if changed <= self._made * 1e9 else 0
        if changed in {0, self._answered}:
            return None
        if changed != self._fresh:
            self._fresh = changed
            return None
        self._answered = changed
        try:
            with (folder / _NAME).open(encoding="utf-8", errors="replace") as file:
                return file.read(_LONGEST)
        except OSError:  # removed in between: whoever did that wants nothing any more
            return None

    @property
    def is_waiting(self) -> bool:
        """Whether a change was seen once, so that the next look should come soon."""
        return self._fresh not in {0, self._answered}

    @staticmethod
    def _changed(folder: Path) -> int:
        try:
            return (folder / _NAME).stat().st_mtime_ns
        except OSError:
            return 0
