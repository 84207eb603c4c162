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
from time import monotonic

from ezpz import proc
from ezpz.fields import Record

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "PY_SPY_SECONDS",
    "Frame",
    "SeenThread",
    "awaited_child",
    "awaited_file",
    "find_py_spy",
    "kernel_state",
    "main_of",
    "maps_mpi4py",
    "maps_torch",
    "parse_dump",
    "parse_threads",
    "parse_traceback",
    "py_spy",
    "pythons",
    "source_line",
    "stage_of",
    "switches",
    "thread_seconds",
]

PY_SPY_SECONDS = 5.0
_TREE_SECONDS = 0.25  # how old the list of all processes may be for `stage_of`, which is asked for every rank
# Not at the start of a line only: a progress bar may come before it. "Current thread's C stack trace" (3.14) is
# another. What is in between, an address and a name, is short.
_BLOCK = re.compile(r"(?P<who>Current thread|Thread|Stack)\b(?!')[^\n]{0,200}?\(most recent call first\):")
_FRAME = re.compile(r'  File (?:"(?P<file>[^"\n]*)"|\?\?\?), line (?P<line>\d+|\?\?\?) in (?P<function>[^\r\n]*)')
_RAISED = "Traceback (most recent call last)"
_TRACED = re.compile(r'(?m)^(?:\[rank\d+\]: ?)?  File "([^"\n]*)", line (\d+), in ([^\r\n]*)')  # with torch's tag
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


class Frame(Record):
    """A function without its class, the file as Python names it, the line (0 when not known)."""

    function: str
    file: str
    line: int


def pythons(pid: int) -> list[int]:
    """Return the Python processes among a process and its descendants, parents first."""
    return [each for each in tree(pid, 0.0) if _is_python(each)]


def stage_of(pid: int) -> str:
    """Return how far a rank has come, from outside.

    Args:
        pid: The process that was started as the rank: perhaps a shell.

    Returns:
        ``torch`` when a Python of its tree has torch's library mapped, ``interpreter`` when there is any, else nothing.
    """
    stage = ""
    for each in tree(pid):
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


def parse_threads(text: str) -> list[list[Frame]]:
    """Return the frames of the threads that `threading` started, from what faulthandler wrote, innermost first."""
    stacks = (_frames(text, match.end()) for match in _BLOCK.finditer(text))
    return [frames for frames in stacks if frames and frames[-1].function == "_bootstrap"]


def parse_traceback(text: str) -> list[Frame]:
    """Return the frames of the last traceback of an exception in a text, innermost first; empty without one."""
    _, found, after = text.rpartition(_RAISED)
    traced = _TRACED.findall(after) if found else []
    return [Frame(function, file, int(line)) for file, line, function in traced[::-1]]


class SeenThread(Record):
    """A Python thread of a process: its kernel's number, its name, and its frames, innermost first."""

    number: int
    name: str
    frames: list[Frame]


def main_of(threads: Iterable[SeenThread], pid: int) -> SeenThread | None:
    """Return the main thread of a process; None where it is not among these."""
    return next((each for each in threads if each.number == pid or each.name == "MainThread"), None)


def py_spy(pid: int, seconds: float = PY_SPY_SECONDS) -> list[SeenThread] | None:
    """Return the Python threads of a process as py-spy sees them.

    Returns:
        None when py-spy is neither on PATH nor beside this Python, may not look (ptrace), or does not answer in time.
    """
    import json
    import subprocess

    program = find_py_spy()
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
        output, _ = process.communicate(timeout=seconds)
        threads = json.loads(output) if process.returncode == 0 else []
        return [
            SeenThread(int(each["os_thread_id"] or 0), str(each["thread_name"] or ""), [*map(_spied, each["frames"])])
            for each in threads
        ] or None
    except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError):  # later versions may write other names
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout:
            process.stdout.close()


def find_py_spy() -> str | None:
    """Return the path of py-spy, on PATH or beside this Python; None where there is none."""
    import shutil

    return shutil.which("py-spy") or shutil.which("py-spy", path=os.path.dirname(sys.executable))


def thread_seconds(pid: int) -> dict[int, float]:
    """Return the seconds in which each thread of a process had a CPU or waited for one, by its number.

    Source: the kernel's Documentation/scheduler/sched-stats.rst: ``schedstat`` begins with both, in nanoseconds.
    """
    try:
        numbers = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return {}
    spent = {number: proc.read(pid, f"task/{number}/schedstat").split() for number in numbers}
    return {number: (int(words[0]) + int(words[1])) * 1e-9 for number, words in spent.items() if len(words) > 1}


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
    awaited = awaited_file(pid) if process.state == "D" else ""
    if awaited:
        words += f", for {awaited}"
    return f"{words} ({process.name})"


# System calls that may wait for a file system: those whose first argument is a descriptor, those whose first is a path,
# and those whose first is a folder's descriptor and second a path (syscalls(2); the kernel's tables of numbers).
_CALLS = {
    "x86_64": (
        {0, 1, 5, 8, 16, 17, 18, 19, 20, 72, 73, 74, 75, 77, 78, 217, 277, 285, 295, 296, 306, 327, 328},
        {2, 4, 6, 21, 76, 80, 82, 83, 84, 85, 86, 87, 88, 89, 90, 92, 132, 137, 188, 191},
        {257, 258, 260, 262, 263, 264, 265, 267, 268, 269, 280, 332, 437, 439},
    ),
    "aarch64": (
        {25, 29, 32, 44, 46, 47, 50, 52, 55, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 80, 82, 83, 84, 267, 286, 287},
        {5, 8, 43, 45, 49},
        {34, 35, 37, 38, 48, 53, 54, 56, 78, 79, 88, 276, 291, 437, 439},
    ),
}
_LONGEST = 120  # the end of a path that is told
_HERE = 0xFFFFFF9C  # AT_FDCWD, the working folder in the place of a folder's descriptor


def awaited_file(pid: int) -> str:
    """Return the file that a process waits for inside a system call, and where its file system is mounted.

    Such as ``/scratch/me/shard on /scratch (nfs4)``; empty where it waits for no file, or may not be looked at. Nothing
    here asks that file system, which may answer no more.

    Source: proc(5): ``syscall`` has the number of the call, then its arguments in hex; ``mem`` is what the process
    has in memory.
    """
    words = proc.read(pid, "syscall").split()
    calls = _CALLS.get(os.uname().machine)
    if calls is None or len(words) < 3 or not words[0].isdigit():  # running, or -1 outside of a call
        return ""
    number, first, second = int(words[0]), int(words[1], 16), int(words[2], 16)
    descriptors, paths, below = calls
    folder = "cwd"
    if number in descriptors:
        path = proc.link(pid, f"fd/{first}")
    elif number in paths:
        path = _text_at(pid, first)
    elif number in below:
        path = _text_at(pid, second)
        folder = "cwd" if first & 0xFFFFFFFF == _HERE else f"fd/{first}"
    else:
        return ""
    if path and not path.startswith("/") and number not in descriptors:  # a descriptor may be a pipe or a socket
        path = os.path.normpath(os.path.join(proc.link(pid, folder), path))
    if not path.startswith("/"):
        return ""
    mounts = proc.parse_mounts(proc.read(pid, "mounts").decode("utf-8", "replace"))
    around = [mount for mount in mounts if path == mount[0] or path.startswith(f"{mount[0].rstrip('/')}/")]
    if not around:
        return path[-_LONGEST:]
    place, kind, _ = max(reversed(around), key=lambda mount: len(mount[0]))  # of two at one place the later is on top
    return f"{path[-_LONGEST:]} on {place[-_LONGEST:]} ({kind})"


def _text_at(pid: int, address: int) -> str:
    """Return a text of C in the memory of a process; empty where it cannot be read."""
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
        try:
            found = os.pread(memory, 4096, address)
        finally:
            os.close(memory)
    except (OSError, OverflowError):
        return ""
    return found.partition(b"\0")[0].decode("utf-8", "replace")


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
    return _maps(pid, b"/libtorch_cpu.", b"/libtorch_python.")


def maps_mpi4py(pid: int) -> bool:
    return _maps(pid, b"/mpi4py/MPI.")


def _maps(pid: int, *names: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/maps", "rb") as maps:
            return any(name in line for line in maps for name in names)
    except OSError:
        return False


# wait4(pid, …) and waitid(type, id, …), where type 1 is that of a pid (syscalls(2); the kernel's tables of numbers).
_WAITS = {"x86_64": (61, 247), "aarch64": (260, 95)}
_OF_PID = 1
_ANY = 1 << 31  # a pid below 0, as the unsigned number that the kernel shows, means any child


def awaited_child(pid: int, *, by_reading: bool) -> str:
    """Return the child that a process waits for, as ``sleep 600 (pid 4711: sleeping in hrtimer_nanosleep (sleep))``.

    Args:
        pid: The process.
        by_reading: Whether it is known to wait by reading what its child writes, as `subprocess` does.

    Returns:
        Empty where it waits for none, or nothing tells for which one.
    """
    from ezpz.redact import redact_argv

    words = proc.read(pid, "syscall").split()
    wait4, waitid = _WAITS.get(os.uname().machine, (-1, -1))
    number = int(words[0]) if len(words) > 2 and words[0].isdigit() else -2
    child = 0
    if number == wait4:
        child = int(words[1], 16)
    elif number == waitid and int(words[1], 16) == _OF_PID:
        child = int(words[2], 16)
    elif not by_reading and number != waitid:
        return ""
    if not 0 < child < _ANY:
        alive = [each for each in proc.children(pid) or () if not _is_dead(each)]
        child = alive[0] if len(alive) == 1 else 0
    if not child:
        return ""
    argv = proc.read(child, "cmdline").decode("utf-8", "replace").split("\0")
    line = " ".join(redact_argv([os.path.basename(argv[0]), *filter(None, argv[1:])])).strip() or proc.name(child)
    return f"{line[:_LONGEST]} (pid {child}: {kernel_state(child)})"


def _is_dead(pid: int) -> bool:
    found = proc.stat(pid)
    return found is None or found.is_dead


def switches(pid: int) -> int:
    """Return how often the main thread of a process has gone to sleep; -1 where that is not known.

    Source: proc(5), ``voluntary_ctxt_switches`` of ``status``. It does not grow while a thread waits in one call.
    """
    found = re.search(rb"(?m)^voluntary_ctxt_switches:\s*(\d+)$", proc.read(pid, f"task/{pid}/status"))
    return int(found[1]) if found else -1


def source_line(file: str, line: int) -> str:
    """Return a line of a program without the blanks around it, at most 200 characters; empty where it is not there."""
    from ezpz.files import open_regular

    if file.startswith(("/dev/", "/proc/")):  # descriptors of the process that reads
        return ""
    try:
        with open(file, "rb", opener=open_regular) as source:
            lines = source.read(_SOURCE_BYTES).splitlines()
    except (OSError, ValueError):
        return ""
    return lines[line - 1].decode("utf-8", "replace").strip()[:_SOURCE_LINE] if 0 < line <= len(lines) else ""


_SOURCE_BYTES = 1 << 20
_SOURCE_LINE = 200


def tree(pid: int, oldest: float = _TREE_SECONDS) -> Iterator[int]:
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
