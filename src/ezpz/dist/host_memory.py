"""Read from the kernel how much memory a rank on a CPU uses of its host, and what the CPU is called.

/proc/self/statm         2105 581 412 1 0 180 0          pages: whole, resident, … (proc_pid_statm(5))
/proc/self/status        VmHWM:     2324 kB              the largest resident set so far (proc_pid_status(5))
/proc/self/clear_refs    writing 5 sets VmHWM to the resident set of now (since Linux 4.0, proc_pid_clear_refs(5))
/proc/cpuinfo            model name : AMD EPYC 7A53 64-Core Processor        absent on ARM
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from pathlib import Path

from ezpz import cgroup
from ezpz.files import read_text

_ROOT = ""  # what replaces / in tests
_PROC = Path("/proc")


def current() -> int:
    """Return the resident set of this process in bytes; its peak where no /proc tells (macOS)."""
    fields = _read(_PROC / "self" / "statm").split()
    return int(fields[1]) * resource.getpagesize() if len(fields) > 1 else peak()


def peak() -> int:
    """Return the largest resident set of this process in bytes."""
    for line in _read(_PROC / "self" / "status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024  # getrusage(2): bytes on macOS, kilobytes elsewhere


def reset_peak() -> bool:
    """Let `peak` count from now on; False where the kernel does not let this process."""
    try:
        (_PROC / "self" / "clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def total() -> int:
    """Return the bytes that this host has, or the lowest limit of the control groups around this process."""
    pages = os.sysconf("SC_PHYS_PAGES")
    return min([pages * os.sysconf("SC_PAGE_SIZE"), *cgroup.memory_limits(cgroup.memory_folder("self", _ROOT))])


def cpu_model() -> str:
    """Return the CPU's name, or its architecture where the kernel does not tell (ARM, macOS)."""
    for line in _read(_PROC / "cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _read(path: Path) -> str:
    return read_text(path) or ""
