"""The job in shell words: what ``python3 -m ezpz.cluster --sh`` prints, every value quoted.

export NHOSTS=2
export DIST_LAUNCH='mpiexec -n 4 -f /tmp/ezpz-1000/job-7-n01/hosts-MPICH'
"""

from __future__ import annotations

import os
import shlex
import sys

from ezpz.errors import LaunchError
from ezpz.launch.contract import named_hosts
from ezpz.launch.folder import private_folder, write_lines
from ezpz.launch.options import parse
from ezpz.launch.planning import Survey, draw_up, survey

__all__ = ["exports"]


def exports() -> list[str]:
    """Return the lines for the job that this process is in.

    A host file is written where the scheduler's own is not plain: the launch line may name it later.

    Raises:
        EzpzError: The job's hosts cannot be found.
    """
    # What an earlier shell found is asked for anew: a job may have begun on this host since.
    environ = {name: value for name, value in os.environ.items() if name != "EZPZ_SCHEDULER"}
    found = survey(parse([], environ), environ)
    allocation, devices, placement, site = found
    for note in found.notes:
        print(f"ezpz: note: {note}", file=sys.stderr)
    hosts = allocation.hosts
    # The name becomes a word of DIST_LAUNCH, which shells split and glob: no brackets of an array job in it.
    job = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in allocation.job_id or "none")
    folder = private_folder(f"job-{job}-{os.uname().nodename}")
    values = {
        "EZPZ_SCHEDULER": allocation.scheduler,
        "EZPZ_JOBID": allocation.job_id,
        "EZPZ_SITE": site.site.name if site.site else "",
        "EZPZ_NRANKS": placement.world_size,
        "NHOSTS": len(hosts),
        "NGPU_PER_HOST": devices.count,
        "NGPUS": devices.count * len(hosts),
        "HOSTFILE": allocation.hostfile or write_lines(os.path.join(folder, "hostfile"), hosts),
        "DIST_LAUNCH": _prefix(found, folder),
    }
    lines = [f"export {name}={shlex.quote(str(value))}" for name, value in values.items()]
    # A list of hosts that is too long for the environment of a program is still a variable of the shell.
    export = "export " if named_hosts(hosts) else ""
    return [*lines, f"{export}EZPZ_HOSTS={shlex.quote(','.join(hosts))}"]


def _prefix(found: Survey, folder: str) -> str:
    """Return the plain launch line; empty, with a word on stderr, where no launcher is known: the rest is of use."""
    try:
        return " ".join(draw_up(found).with_hostfile(folder).prefix())
    except LaunchError as error:
        print(f"ezpz: {error}", file=sys.stderr)
        return ""
