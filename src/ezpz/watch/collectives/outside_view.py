"""See from outside what a rank does: in the kernel's words, by its memory maps, and in the line of its program.

Nothing of it asks the rank itself, so it is there also for one that a signal is about to end.
"""

from __future__ import annotations

import os
import signal
import stat
import time

from ezpz import proc
from ezpz.launch.host import process_stacks
from ezpz.launch.stack_groups import locate
from ezpz.watch.collectives import messages

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.launch.host.process_stacks import Frame
    from ezpz.launch.host.rank_process import RankProcess

__all__ = ["LOADER", "OutsideView", "may_be_saving", "source_lines"]

_RECENTLY = 10.0  # seconds since a file was written to, of a rank that may be saving
_READ = 0.3  # seconds for the lines of the program that ranks are in, whose file system may hang
LOADER = "DataLoader"  # as `stack_groups.locate` calls it


class OutsideView:
    """What is known of a rank from outside, before a signal may end it.

    Attributes:
        place: File and number of the user's line that it is in; None as long as that is not known.
        loads: Whether it waits for its loader of data.
    """

    def __init__(self, rank: RankProcess, pid: int) -> None:
        self.place: tuple[str, int] | None = None
        self.loads = False
        self._pid = pid or rank.pid
        known = proc.stat(self._pid)
        self._cpu = known.cpu if known and pid else -1.0
        self._switches = process_stacks.switches(pid) if pid else -1
        self._kernel = process_stacks.kernel_state(self._pid)
        self._child = process_stacks.awaited_child(self._pid, by_reading=False)
        self._if_reading = self._child or process_stacks.awaited_child(self._pid, by_reading=True)
        self._mpi = bool(pid) and process_stacks.maps_mpi4py(pid)
        self._folder = proc.link(self._pid, "cwd")
        self._words = rank.output.last_traceback() if rank.output else ""

    def told(self, rank: RankProcess, frames: list[Frame]) -> messages.RankStack:
        """Return it as it is reported, with the frames of the main thread."""
        by_reading = any(frame.file.endswith("/subprocess.py") for frame in frames)
        if frames:
            place = locate(frames)
            self.loads = place.what == LOADER
            is_known = place.line > 0 and not place.file.startswith("<")
            self.place = (os.path.join(self._folder, place.file), place.line) if is_known else None
        return messages.RankStack(
            rank=rank.rank,
            pid=rank.pid,
            frames=[(frame.function, frame.file, frame.line) for frame in frames],
            where="" if frames else self._kernel,
            mpi=self._mpi,
            cpu=self._cpu,
            switches=self._switches,
            child=self._if_reading if by_reading else self._child,
            words=self._words,
        )


def source_lines(places: Mapping[int, tuple[str, int]]) -> dict[int, str]:
    """Return the line that each place names; none where the file system does not answer in time."""
    import threading

    found: dict[tuple[str, int], str] = {}

    def look() -> None:
        for place in set(places.values()):
            found[place] = process_stacks.source_line(*place)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(_READ)
    known = dict(found)
    return {number: known.get(place, "") for number, place in places.items()}


def may_be_saving(pid: int) -> bool:
    """Tell whether a process may be saving, or wants to at its SIGTERM: an abort would keep it from that.

    It has a handler for SIGTERM, waits for a file system, or has a file open that it has written to not long ago.
    """
    status = proc.stat(pid)
    return proc.catches(pid, signal.SIGTERM) or (status is not None and status.state == "D") or _writes(pid)


def _writes(pid: int) -> bool:
    """Tell whether a process has written to a file in the last seconds that it has open, but for its logs.

    Source: proc(5): ``flags`` of ``fdinfo/NUMBER`` are those of open(2), in octal. Logs are opened to append.
    """
    try:
        numbers = [each for each in os.listdir(f"/proc/{pid}/fd") if int(each) > 2]
    except OSError:
        return False
    for number in numbers:
        words = proc.read(pid, f"fdinfo/{number}").split()
        flags = int(words[words.index(b"flags:") + 1], 8) if b"flags:" in words else os.O_RDONLY
        if flags & os.O_ACCMODE == os.O_RDONLY or flags & os.O_APPEND:
            continue
        try:
            file = os.stat(f"/proc/{pid}/fd/{number}")
        except OSError:
            continue
        if stat.S_ISREG(file.st_mode) and file.st_nlink and time.time() - file.st_mtime < _RECENTLY:
            return True
    return False
