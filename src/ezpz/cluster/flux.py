"""Flux: the hosts of the instance that this shell talks to, or of the job that this process is a task of.

    FLUX_URI=local:///run/flux/local       set in every shell and task of an instance; the outermost is the system's own
    FLUX_JOB_ID=f2XkGqvd9                  set in tasks of ``flux run``, not in shells of ``flux batch`` or ``alloc``

An instance that is itself a job knows its id and hosts: ``flux getattr jobid`` prints ``f2XkGqvd9`` (base 58, after
U+0192 in a UTF-8 locale), ``flux getattr hostlist`` a host expression such as ``tuolumne[1001-1004]``; ``flux hostlist
JOBID`` the hosts of a job. ``flux resource list --states=all --no-header --format='{nnodes} {ncores} {ngpus}'`` prints
``4 384 16``. ``flux job timeleft`` prints the seconds that are left, or ``infinity``. An instance made by ``flux
start`` has no job id; like every instance it tells in ``flux getattr security.owner`` whose it is: the user's number,
or another for the system's instance.

Written from the manual pages of flux-core 0.66 (flux-environment(7), flux-getattr(1), flux-hostlist(1),
flux-resource(1), flux-job(1)); replayed in tests, never run on a Flux machine.
"""

from __future__ import annotations

import time
from os import getuid

from ezpz.cluster.allocation import Allocation, checked_job
from ezpz.cluster.earlier_exports import earlier_hosts
from ezpz.cluster.hostlist import expand
from ezpz.cluster.questions import ask, ask_ahead
from ezpz.cluster.scheduler import Scheduler
from ezpz.errors import MachineError

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.allocation import Read, Run


_JOB = ["flux", "getattr", "jobid"]
_OWNER = ["flux", "getattr", "security.owner"]
_RESOURCES = ["flux", "resource", "list", "--states=all", "--no-header", "--format={nnodes} {ncores} {ngpus}"]


class Flux(Scheduler):
    """Flux, whose instances are jobs of other schedulers or of Flux itself.

    A shell that was opened by ssh speaks with the system's instance, which knows no enclosing job: nothing is found for
    it.
    """

    name = "flux"
    title = "Flux"
    job_variables = ("FLUX_JOB_ID",)
    other_marks = ("FLUX_URI",)
    ancestor_prefixes = ("flux-shell", "flux-broker")
    hides_others = True
    own_launcher = "flux"
    programs = ("flux",)
    output_variables = ("FLUX_JOBS_FORMAT", "FLUX_RESOURCE_LIST_FORMAT")  # flux-jobs(1), flux-resource(1)

    def detect(self, environ: Mapping[str, str], read: Read, run: Run, *, more: bool = False) -> Allocation | None:
        """Return the instance or job of ``environ``; None outside Flux and on a login host of a Flux machine.

        Raises:
            MachineError: There is a job, but ``flux`` does not name its hosts.
            UsageError: The host expression cannot be read.
        """
        del read
        if not self.is_marked(environ):
            return None
        job, job_origin = environ.get("FLUX_JOB_ID", ""), "FLUX_JOB_ID"
        command = ["flux", "hostlist", checked_job(job, job_origin)] if job else ["flux", "getattr", "hostlist"]
        if not job:
            ask_ahead(run, [_JOB, command])
            ask_ahead(run, [_OWNER, _RESOURCES])
            job, job_origin = (ask(run, _JOB) or "").strip(), "flux getattr jobid"
            if job:
                checked_job(job, job_origin)
            elif (run(_OWNER) or "").strip() != str(getuid()):
                return None  # the system's own, as on a login host: jobs are submitted to it, nothing runs in it
        text = (ask(run, command) or "").strip()
        if not text:
            earlier = earlier_hosts(environ, "flux", job)
            if earlier:
                return earlier
            raise MachineError(
                f"no hosts of the Flux job {job or '(without id)'} (from {job_origin}): {' '.join(command)} gave no "
                "answer; expected a host expression. "
                "Run inside `flux alloc` or `flux batch`, or name the hosts with `launch --hostfile FILE`."
            )
        brokers = expand(text)
        hosts = tuple(dict.fromkeys(brokers))
        devices, cpus = _resources(run, len(brokers)) if command[1] == "getattr" else (None, None)
        listing = "flux resource list"
        return Allocation(
            scheduler="flux",
            job_id=job,
            hosts=hosts,
            cpus=(cpus,) * len(hosts) if cpus and len(brokers) == len(hosts) else None,
            devices=(devices,) * len(hosts) if devices is not None and len(brokers) == len(hosts) else None,
            end_time=_end(job, run) if more and job else None,
            notes=(f"{len(brokers)} brokers of Flux share {len(hosts)} hosts",) if len(brokers) > len(hosts) else (),
            origin={
                "scheduler": next(name for name in self.marks if environ.get(name)),
                "job_id": job_origin,
                "hosts": " ".join(command),
                "cpus": listing,
                "devices": listing,
                "end_time": f"flux job timeleft {job}",
            },
        )

    def doubt(self, environ: Mapping[str, str], run: Run) -> str:
        """Return that there is an instance whose owner flux does not tell."""
        uri = environ.get("FLUX_URI", "")
        return f"flux does not tell whose instance FLUX_URI={uri} is" if uri and run(_OWNER) is None else ""


def _resources(run: Run, brokers: int) -> tuple[int | None, int | None]:
    """Return GPUs and cores per host, where all hosts have the same."""
    words = (run(_RESOURCES) or "").split()
    if len(words) != 3 or not all(word.isdigit() for word in words):
        return None, None
    nodes, cores, gpus = map(int, words)
    if nodes != brokers or cores % nodes or gpus % nodes:
        return None, None
    return gpus // nodes, cores // nodes


def _end(job: str, run: Run) -> int | None:
    left = (run(["flux", "job", "timeleft", job]) or "").strip()
    try:
        return int(time.time() + float(left))
    except (ValueError, OverflowError):  # OverflowError: "infinity"
        return None


SCHEDULER = Flux()
