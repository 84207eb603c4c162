"""Find out what a process is doing: its Python stack by faulthandler or py-spy, else what the kernel says of it.

On the host of the ranks, by its agent, without their help: a script need not import ezpz. faulthandler writes its text
into the rank's stderr when the agent sends the signal that `ezpz.progress` named, or SIGABRT where PYTHONFAULTHANDLER
is set:

    Fatal Python error: Aborted                                  (SIGABRT alone)

    Thread 0x00007f4f9ecc06c0 (most recent call first):          3.14: Thread 0x00007f4f9ecc06c0 [Thread-1 (w)] (most …
      File "/usr/lib/python3.10/threading.py", line 320 in wait
      …
    Current thread 0x00007f4f9f5dcb80 (most recent call first):  not there when a thread without Python got the signal
      File "/home/me/train.py", line 5 in f
      File "/home/me/train.py", line 6 in <module>

(CPython, Python/traceback.c, of 3.10 to 3.14.) Without /proc (macOS) only the text can be read.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections import namedtuple
from time import monotonic

from ezpz import proc

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Frame", "kernel_state", "maps_torch", "parse_dump", "py_spy", "pythons", "stage_of"]

_PY_SPY_SECONDS = 5.0
_TREE_SECONDS = 0.25  # how old the list of all processes may be for `stage_of`, which is asked for every rank
# Not at the start of a line only: a progress bar may come before it. "Current thread's C stack trace" (3.14) is
# another.
_BLOCK = re.compile(r"(?P<who>Current thread|Thread|Stack)\b(?!')[^\n]*?\(most recent call first\):")
_FRAME = re.compile(r'  File (?:"(?P<file>[^\n]*?)"|\?\?\?), line (?P<line>\d+|\?\?\?) in (?P<function>[^\r\n]*)')
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in uninterruptible sleep",
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "ended",
    "X": "ended",
    "I": "idle",
}


class Frame(namedtuple("Frame", "function file line")):  # noqa: PYI024
    """A function without its class, the file as Python names it, the line (0 when not known)."""

    __slots__ = ()

    if TYPE_CHECKING:
        function: str
        file: str
        line: int


def pythons(pid: int) -> list[int]:
    """Return the Python processes among a process and its descendants, parents first."""
    return [each for each in _tree(pid, 0.0) if _is_python(each)]


def stage_of(pid: int) -> str:
    """Return how far a rank has come, from outside.

    Args:
        pid: The process that was started as the rank: perhaps a shell.

    Returns:
        ``torch`` when a Python of its tree has torch's library mapped, ``interpreter`` when there is any, else nothing.
    """
    stage = ""
    for each in _tree(pid, _TREE_SECONDS):
        if _is_python(each):
            if maps_torch(each):
                return "torch"
            stage = "interpreter"
    return stage


def parse_dump(text: str) -> list[Frame]:
    """Return the main thread's frames from what faulthandler wrote, innermost first.

    The main thread is the current one, which gets the signal, unless `threading` started that; then it is the last that
    `threading` did not start, because Python lists new threads first. Of several dumps the last counts. Lines of
    others in between are passed over.

    Returns:
        The frames; empty when the text holds no dump, or the thread ran no Python.
    """
    blocks = [(match["who"], _frames(text, match.end())) for match in _BLOCK.finditer(text)]
    mains = [(who, frames) for who, frames in blocks if frames and frames[-1].function != "_bootstrap"]
    current = [frames for who, frames in mains if who == "Current thread"]
    candidates = current or [frames for _, frames in mains] or [frames for _, frames in blocks]
    return candidates[-1] if candidates else []


def py_spy(pid: int) -> list[Frame] | None:
    """Return the main thread's frames as py-spy sees them, innermost first.

    Returns:
        None when py-spy is neither on PATH nor beside this Python, may not look (ptrace), or does not answer in 5 s.
    """
    import json
    import shutil
    import subprocess

    program = shutil.which("py-spy") or shutil.which("py-spy", path=os.path.dirname(sys.executable))
    if program is None:
        return None
    process = subprocess.Popen(
        [program, "dump", "--json", "--pid", str(pid)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=_PY_SPY_SECONDS)
        threads = json.loads(output) if process.returncode == 0 else []
        main = [thread for thread in threads if thread["os_thread_id"] == pid or thread["thread_name"] == "MainThread"]
        return [_spied(frame) for frame in main[0]["frames"]] if main else None
    except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError):  # later versions may write other names
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout:
            process.stdout.close()


def kernel_state(pid: int) -> str:
    """Return what the kernel says of a process, e.g. ``sleeping in do_wait (bash)``; ``gone`` when there is none.

    Source: proc(5). ``wchan`` is the kernel's function that a process waits in; ``0`` when it runs, or is hidden.
    """
    process = proc.stat(pid)
    if process is None:
        return "gone"
    words = _STATES.get(process.state, f"in state {process.state}")
    waits = proc.read(pid, "wchan").decode("utf-8", "replace").strip()
    if process.state in "SD" and waits not in {"", "0"}:
        words += f" in {waits}"
    return f"{words} ({process.name})"


def _frames(text: str, start: int) -> list[Frame]:
    """Return the frames between a block's header and the next, or the end of that thread's stack."""
    following = _BLOCK.search(text, start)
    end = following.start() if following else len(text)
    frames = []
    for match in _FRAME.finditer(text, start, end):
        line = match["line"]
        frames.append(Frame(match["function"], match["file"] or "", int(line) if line.isdigit() else 0))
    return frames


def _spied(frame: dict[str, str | int]) -> Frame:
    """Take over a frame of py-spy 0.4: ``{"name": "Queue.get", "filename": "/usr/lib/…/queue.py", "line": 171, …}``."""
    return Frame(str(frame["name"]).rpartition(".")[2], str(frame["filename"]), int(frame["line"]))


def _is_python(pid: int) -> bool:
    return os.path.basename(proc.link(pid, "exe")).startswith("python")


def maps_torch(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/maps", "rb") as maps:
            return any(b"/libtorch_cpu." in line or b"/libtorch_python." in line for line in maps)
    except OSError:
        return False


def _tree(pid: int, oldest: float) -> Iterator[int]:
    """Yield a process and its descendants, parents first; ``oldest`` in seconds, where all processes must be looked
    at.
    """
    waiting = [pid]
    for each in waiting:
        yield each
        waiting += _children(each, oldest)


def _children(pid: int, oldest: float) -> list[int]:
    children = proc.children(pid)
    return _all_children(oldest).get(pid, []) if children is None else children


_seen: tuple[float, dict[int, list[int]]] = (0.0, {})


def _all_children(oldest: float) -> dict[int, list[int]]:
    """Return the children of every process."""
    global _seen
    if _seen[1] and monotonic() - _seen[0] < oldest:
        return _seen[1]
    children: dict[int, list[int]] = {}
    for pid in proc.pids():
        process = proc.stat(pid)
        if process:
            children.setdefault(process.parent, []).append(pid)
    _seen = (monotonic(), children)
    return children
