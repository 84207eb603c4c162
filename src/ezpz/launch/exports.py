"""The job in shell words: what ``ezpz_setup_job`` evaluates, every value quoted."""

from __future__ import annotations

import os
import shlex
import tempfile
from typing import TYPE_CHECKING

from ezpz.errors import LaunchError
from ezpz.launch.contract import named_hosts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ezpz.cluster.allocation import Allocation
    from ezpz.cluster.devices import Devices
    from ezpz.launch.plan import LaunchPlan

__all__ = ["exports", "private_folder", "write_lines"]


def exports(allocation: Allocation, devices: Devices, plan: LaunchPlan, hostfile: str) -> list[str]:
    """Return the lines of ``launch --sh``, e.g. ``export NHOSTS=2``."""
    hosts = allocation.hosts
    values = {
        "EZPZ_SCHEDULER": allocation.scheduler,
        "EZPZ_JOBID": allocation.job_id,
        "EZPZ_NRANKS": plan.placement.world_size,
        "NHOSTS": len(hosts),
        "NGPU_PER_HOST": devices.count,
        "NGPUS": devices.count * len(hosts),
        "HOSTFILE": allocation.hostfile or hostfile,
        "DIST_LAUNCH": " ".join(plan.prefix()),
    }
    lines = [f"export {name}={shlex.quote(str(value))}" for name, value in values.items()]
    # A list of hosts that is too long for the environment of a program is still a variable of the shell.
    export = "export " if named_hosts(hosts) else ""
    return [*lines, f"{export}EZPZ_HOSTS={shlex.quote(','.join(hosts))}"]


def private_folder(name: str) -> str:
    """Return a folder of this user alone under the temporary folder; made when absent.

    Raises:
        LaunchError: The folder belongs to somebody else.
    """
    folder = os.path.join(tempfile.gettempdir(), f"ezpz-{os.getuid()}")
    try:
        for path in (folder, os.path.join(folder, name)):
            os.makedirs(path, mode=0o700, exist_ok=True)
            if os.stat(path).st_uid != os.getuid():
                raise PermissionError(1, "it belongs to another user")
    except OSError as error:
        raise LaunchError(
            f"cannot use the temporary folder {folder} (from TMPDIR): {error.strerror}; expected a folder of this user. "
            "Set TMPDIR to a folder that you may write."
        ) from None
    return path


def write_lines(path: str, lines: Iterable[str]) -> str:
    """Write a file of this user and return its path."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    return path
