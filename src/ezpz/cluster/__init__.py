"""Where am I? Scheduler, job, hosts and devices, each answer with its origin. Standard library only."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.allocation import Allocation as Allocation
    from ezpz.cluster.allocation import Read, Run
    from ezpz.cluster.devices import Devices as Devices
    from ezpz.cluster.devices import count_devices as count_devices
    from ezpz.cluster.hostlist import expand as expand

__all__ = ["Allocation", "Devices", "count_devices", "detect", "expand"]

_HOME_OF = {"Allocation": "allocation", "Devices": "devices", "count_devices": "devices", "expand": "hostlist"}

# Detection order, the same in bin/utils.sh: the first whose job variables are set. The last entry always answers.
SCHEDULERS = ("slurm", "pbs", "single")


def detect(environ: Mapping[str, str] | None = None, read: Read | None = None, run: Run | None = None) -> Allocation:
    """Return the hosts that this process may use.

    Args:
        environ: The environment to read; this process's by default.
        read: Returns the text of a file or None; the real one by default.
        run: Returns what a command printed or None; the real one by default.

    Raises:
        MachineError: A job is told of, but its hosts cannot be found.
    """
    import os
    from importlib import import_module

    from ezpz.cluster import probe

    for name in SCHEDULERS:
        found: Allocation | None = import_module(f"ezpz.cluster.{name}").detect(
            os.environ if environ is None else environ, read or probe.read, run or probe.run
        )
        if found is not None:
            return found
    raise AssertionError("the last scheduler always answers")


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOME_OF:
        raise AttributeError(f"module 'ezpz.cluster' has no attribute {name!r}")
    return getattr(import_module(f"ezpz.cluster.{_HOME_OF[name]}"), name)
