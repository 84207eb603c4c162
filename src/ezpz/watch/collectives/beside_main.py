"""Say what goes on in a rank beside its main thread: busy threads, and Pythons that it has started.

A rank whose main thread waits may be held up by another one that computes, or by a worker of its loader. No signal goes
to a worker: where py-spy sees nothing of it, the kernel tells.
"""

from __future__ import annotations

import os
import time

from ezpz import proc
from ezpz.launch.host import process_stacks
from ezpz.launch.stack_groups import locate, words_of
from ezpz.why.users_files import is_users

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ezpz.launch.host.process_stacks import Frame, SeenThread

__all__ = ["BesideMain", "awaited_threads"]

LOOK = 0.1  # seconds over which threads are looked at
_BUSY = 0.5  # share of them in which a busy thread had one, or waited for one
_MOST = 8  # threads and groups of processes of a rank that are told, and its processes that py-spy looks at
_NAMED = 3  # threads that keep a rank at its end
_OWN = ("ezpz-", "pydev")  # names of our threads, and of debuggers'
_SERVICES = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver", b"_inductor/compile_worker")


class BesideMain:
    """What one rank's process does beside its main thread, from now on.

    Attributes:
        children: Pythons that it has started.
    """

    def __init__(self, pid: int) -> None:
        """Begin to look; at nothing where a rank has no Python, and ``pid`` is 0."""
        pythons = process_stacks.pythons(pid)[1:] if pid else []
        self.children = [each for each in pythons if not _is_service(each)]
        self._pid = pid
        self._began, self._spent = time.monotonic(), process_stacks.thread_seconds(pid) if pid else {}

    @property
    def to_spy(self) -> list[int]:
        """The children that py-spy is to look at."""
        return self.children[:_MOST]

    def told(self, threads: Sequence[SeenThread], spied: Mapping[int, Sequence[SeenThread] | None]) -> list[str]:
        """Return what goes on, as ``thread Thread-1 (load) is busy in load (data.py:31)``.

        Args:
            threads: The Python threads of the rank.
            spied: Those of its children, as far as py-spy sees them.
        """
        seconds = max(time.monotonic() - self._began, LOOK)
        spent = process_stacks.thread_seconds(self._pid)
        told = []
        for thread in threads:
            used = spent.get(thread.number, 0.0) - self._spent.get(thread.number, 0.0)
            is_own = thread.number == self._pid or thread.name == "MainThread" or thread.name.startswith(_OWN)
            if used >= _BUSY * seconds and thread.frames and not is_own:
                told.append(f"thread {thread.name or thread.number} is busy {words_of(locate(thread.frames))}")
        groups: dict[str, list[int]] = {}
        for child in self.children:
            main = process_stacks.main_of(spied.get(child) or (), child)
            where = words_of(locate(main.frames)) if main and main.frames else process_stacks.kernel_state(child)
            if where != "gone":
                groups.setdefault(where, []).append(child)
        for where, pids in groups.items():
            who = f"process {pids[0]}" if len(pids) == 1 else f"{len(pids)} processes, such as {pids[0]},"
            told.append(f"{who} {where}")
        return told[:_MOST]


def awaited_threads(main: Sequence[Frame], threads: Iterable[list[Frame]]) -> str:
    """Return where threads of the program are that keep it at its end, as ``prefetch (train.py:3)``, the first few.

    Python waits in ``threading._shutdown`` for all threads that are no daemons; stacks do not tell which ones are.

    Args:
        main: Frames of the main thread, innermost first.
        threads: Those of others.
    """
    if not any(frame.function == "_shutdown" and frame.file.endswith("threading.py") for frame in main[:3]):
        return ""
    places = [locate(frames) for frames in threads if frames]
    own = [f"{place.what} ({os.path.basename(place.file)}:{place.line})" for place in places if is_users(place.file)]
    return ", ".join(list(dict.fromkeys(own))[:_NAMED])


def _is_service(pid: int) -> bool:
    """Tell whether a process only serves others, and does nothing of the user's."""
    line = proc.read(pid, "cmdline")
    return any(word in line for word in _SERVICES)
