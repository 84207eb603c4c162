"""The job in shell words: what ``python3 -m ezpz.cluster --sh`` prints, every value quoted.

export NHOSTS=2
export DIST_LAUNCH='mpiexec -n 4 -f /tmp/ezpz-1000/job-7-n01/hosts-MPICH'
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

from ezpz.cluster import detect, probe
from ezpz.errors import LaunchError
from ezpz.launch.contract import named_hosts
from ezpz.launch.folder import private_folder, write_lines
from ezpz.launch.options import parse
from ezpz.launch.planning import Survey, draw_up, survey, untold_job
from ezpz.launch.second_shell import SCHEDULERS, load, read, save, state_file

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["exports"]

# Questions that a scheduler within reach answers, whatever runs: then a job that it does not know here is over.
_QUESTIONS = {"slurm": ["squeue", "--noheader", "--states=RUNNING"], "pbs": ["qstat"]}


def exports(*, second: bool = False) -> list[str]:
    """Return the lines for the job that this process is in, and save them for a second shell.

    A host file is written where the scheduler's own is not plain: the launch line may name it later.

    Args:
        second: This is a second shell of a job: take the variables that the first one saved.

    Raises:
        EzpzError: The job's hosts cannot be found.
    """
    # What an earlier shell found is asked for anew: a job may have begun on this host since.
    environ = {name: value for name, value in os.environ.items() if name != "EZPZ_SCHEDULER"}
    taken = _taken(environ) if second else {}
    environ |= taken
    os.environ.update(taken)  # the launcher that is looked for below reads it
    found = survey(parse([], environ), environ)
    for note in found.notes:
        _say(f"note: {note}")
    values = _values(found, environ)
    _save(environ, found, values)
    schedulers = {name: value for name, value in taken.items() if name in SCHEDULERS}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in {**schedulers, **values}.items()]
    # A list of hosts that is too long for the environment of a program is still a variable of the shell; an earlier, shorter one
    # may have been exported.
    hosts = found.allocation.hosts
    how = "export" if named_hosts(hosts) else "unset EZPZ_HOSTS;"
    return [*lines, f"{how} EZPZ_HOSTS={shlex.quote(','.join(hosts))}"]


def _values(found: Survey, environ: Mapping[str, str]) -> dict[str, str]:
    allocation, devices, placement, site = found[:4]
    hosts = allocation.hosts
    # The name becomes a word of DIST_LAUNCH, which shells split and glob: no brackets of an array job in it.
    job = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in allocation.job_id or "none")
    folder = private_folder(f"job-{job}-{os.uname().nodename}")
    return {
        "EZPZ_SCHEDULER": allocation.scheduler,
        "EZPZ_JOBID": allocation.job_id,
        "EZPZ_SITE": site.site.name if site.site else "",
        "EZPZ_NRANKS": str(placement.world_size),
        "NHOSTS": str(len(hosts)),
        "NGPU_PER_HOST": str(devices.count),
        "NGPUS": str(devices.count * len(hosts)),
        "HOSTFILE": allocation.hostfile or write_lines(os.path.join(folder, "hostfile"), hosts),
        "DIST_LAUNCH": _prefix(found, folder, environ),
    }


def _prefix(found: Survey, folder: str, environ: Mapping[str, str]) -> str:
    """Return the plain launch line; empty, with a word on stderr, where no launcher is known: the rest is of use."""
    try:
        return " ".join(draw_up(found, parse([], {}), environ).with_hostfile(folder).prefix())
    except LaunchError as error:
        _say(str(error))
        return ""


def _taken(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the scheduler's variables that an earlier shell of this host's job saved, unless this shell has its own."""
    if any(environ.get(name) for name in SCHEDULERS):
        return {}
    here = detect(environ)
    if here.job_id:
        return {**read(state_file(environ, here.scheduler, here.job_id)), **untold_job(here)}
    answering = [scheduler for scheduler, question in _QUESTIONS.items() if probe.run(question) is not None]
    told, path = load(environ, probe.host_name(probe.read), answering)
    if path:
        _say(f"note: job {told.get('EZPZ_JOBID')} is taken from {path}; no scheduler was asked")
    return told


def _save(environ: Mapping[str, str], found: Survey, values: Mapping[str, str]) -> None:
    allocation = found.allocation
    path = state_file(environ, allocation.scheduler, allocation.job_id) if allocation.job_id else ""
    told = {**values, "EZPZ_HOSTS": ",".join(allocation.hosts), "EZPZ_JOB_END": str(allocation.end_time or "")}
    try:
        if path:
            save(environ, path, told)
    except OSError as error:
        _say(f"note: a second shell will not find this job: {error}")


def _say(text: str) -> None:
    print(f"ezpz: {text}", file=sys.stderr)
