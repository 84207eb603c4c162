r"""Wait until what an earlier attempt of a launch has left on this host gives back the memory of its devices.

A rank that was killed in a call of its driver, or that has much memory to give back, goes seconds later than its
launch, and a rank of the next attempt would find the device full. Only processes of this launch's earlier attempts are
waited for, and those of the same user that are ending right now, whose variables the kernel has dropped already.

    /proc/4711/environ    EZPZ_LAUNCH_ID=9425ec0dbb097ccc\0    the first 8 characters are those of all its attempts
    /proc/4711/stat       4711 (python3) D 1 4711 4711 0 -1 4194564 …    the ninth number has PF_EXITING, 0x4
    /proc/4711/fdinfo/7   drm-memory-vram: 2097152 KiB        AMD (Documentation/gpu/drm-usage-stats.rst)
                          drm-resident-vram0: 2097152 KiB     Intel's xe, and i915 for its local0

NVIDIA's driver is asked by NVML which processes compute on its cards.
"""

from __future__ import annotations

import os
import re
import time

from ezpz import proc

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LIMIT", "holders", "note_on", "wait", "wait_beside"]

LIMIT = 60.0  # seconds
_LOOK = 0.25  # seconds
_WORTH_A_LINE = 1.0  # seconds
_SHARED_ID = 8  # characters of its id that a launch has in common with the earlier ones, see `PlanBuilder`
_EXITING = 0x4  # include/linux/sched.h
_ON_A_DEVICE = re.compile(r"^drm-(?:memory|resident|total)-(?:vram|local)\d*:\s*(\d+)", re.MULTILINE)


def wait(launch: str, limit: float = LIMIT, look: Callable[[str], list[int]] | None = None) -> tuple[float, list[int]]:
    """Wait until no process of an earlier attempt holds memory of a device of this host.

    Args:
        launch: Id of the attempt that is to begin.
        limit: Seconds to wait at most.
        look: Returns who holds some, for tests; `holders` by default.

    Returns:
        The seconds that this took, and the processes that hold some still.
    """
    begun = time.monotonic()
    while left := (look or holders)(launch):
        if time.monotonic() - begun >= limit:
            break
        time.sleep(_LOOK)
    return time.monotonic() - begun, left


def wait_beside(launch: str) -> tuple[int, int]:
    """Do so in a child process, which a driver that answers no more may hold.

    Returns:
        Its pid, and a descriptor from which its answer comes: seconds and pids, in words.
    """
    from ezpz.launch.host import process_tree

    ours, its = os.pipe()
    pid = os.fork()
    if pid:
        os.close(its)
        return pid, ours
    try:
        process_tree.be_a_helper("ezpz-waits", its)
        seconds, left = wait(launch)
        os.write(its, " ".join([f"{seconds:.1f}", *map(str, left)]).encode())
    finally:
        os._exit(0)


def note_on(answer: str) -> str:
    """Return what to tell of an answer of `wait_beside`; empty where nobody had to wait."""
    seconds, *left = answer.split() or ["0"]
    host = os.uname().nodename
    if left:
        many = "es" * (len(left) != 1)
        return (
            f"after {seconds} s process{many} {', '.join(left)} of an earlier attempt still hold memory of a device on "
            f"{host}: the ranks begin all the same"
        )
    if float(seconds) < _WORTH_A_LINE:
        return ""
    return f"the ranks on {host} have waited {seconds} s for memory of devices that an earlier attempt held"


def holders(launch: str) -> list[int]:
    """Return the processes that an earlier attempt has left behind and that hold memory of a device of this host."""
    left = _left_behind(launch)
    if not left:
        return []  # as nearly always: no driver is asked
    computing = _computing()
    return sorted(pid for pid in left if pid in computing or on_devices(pid))


def on_devices(pid: int) -> int:
    """Return the KiB of memory on devices that the files which a process holds open tell of."""
    try:
        names = os.listdir(f"/proc/{pid}/fdinfo")
    except OSError:
        return 0
    texts = (proc.read(pid, f"fdinfo/{name}").decode("utf-8", "replace") for name in names)
    return sum(drm_memory(text) for text in texts)


def drm_memory(text: str) -> int:
    """Return the KiB of memory on a device that one ``fdinfo`` tells of; the largest of what it says about the same."""
    return max((int(number) for number in _ON_A_DEVICE.findall(text)), default=0)


def _left_behind(launch: str) -> set[int]:
    outer, slash, own = launch.rpartition("/")  # a launch inside a rank
    this, mine = f"EZPZ_LAUNCH_ID={launch}/".encode(), os.geteuid()
    beginning = f"EZPZ_LAUNCH_ID={outer}{slash}{own[:_SHARED_ID]}".encode()
    found = set()
    for pid in proc.pids():
        if proc.owner(pid) != mine:
            continue
        words = proc.environ(pid).split(b"\0")
        earlier = any(word.startswith(beginning) and not (word + b"/").startswith(this) for word in words)
        if earlier or is_exiting(proc.read(pid, "stat").decode("utf-8", "replace")):
            found.add(pid)
    return found - {os.getpid(), os.getppid()}


def is_exiting(text: str) -> bool:
    """Tell from a ``stat`` file whether its process is ending, and has not given back all that it has."""
    fields = text.rpartition(")")[2].split()
    return len(fields) > 6 and fields[0] not in {"Z", "X"} and bool(int(fields[6]) & _EXITING)


def _computing() -> set[int]:
    from ezpz.cluster.devices.nvml import Nvml
    from ezpz.cluster.devices.visible_devices import Ranks

    try:
        return Nvml(Ranks([])).computing()
    except (OSError, RuntimeError, AttributeError):  # no such driver, or one that does not answer now
        return set()
