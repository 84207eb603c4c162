"""Find the scheduler whose job this process is in: by variables, the inner of two jobs, or by the name of the host."""

from __future__ import annotations

from ezpz.cluster.allocation import Allocation
from ezpz.cluster.earlier import is_known_jobless
from ezpz.cluster.probe import host_name, is_same_host, run_nothing
from ezpz.cluster.scheduler import schedulers
from ezpz.errors import EzpzError
from ezpz.proc import parse_stat
from ezpz.records import replace

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ezpz.cluster.allocation import Read, Run
    from ezpz.cluster.scheduler import Scheduler

_DEEPEST = 64  # ancestors that are looked at: far more than shells are ever nested


def by_variables(environ: Mapping[str, str], read: Read, run: Run, *, more: bool) -> Allocation | None:
    """Return the job that variables describe; the inner one, with a note, where two schedulers have set theirs."""
    marked = [one for one in schedulers() if one.is_marked(environ)]
    for one in [one for one in marked if one.hides_others]:
        marked.remove(one)
        allocation = one.detect(environ, read, run, more=more)
        if allocation:
            return _with_note(allocation, environ, marked, f"{one.title} hides the schedulers around it")
    if not marked:
        return None
    chosen, why = _innermost(marked, environ, read) if len(marked) > 1 else (marked[0], "")
    allocation = chosen.detect(environ, read, run, more=more)
    marked.remove(chosen)
    return _with_note(allocation, environ, marked, why) if allocation else None


def by_host(environ: Mapping[str, str], read: Read, run: Run) -> Allocation | None:
    """Return the user's running job on this host, for a shell that was opened by ssh and has no variables of it."""
    host = host_name(read)
    if is_known_jobless(environ, host):
        return None
    user = environ.get("USER") or environ.get("LOGNAME") or _user()
    for one in schedulers():
        allocation = one.find(host, user, run)
        if allocation:
            note = f"this shell has no variables of the job: it was found by the name of this host, {host}"
            return replace(allocation, notes=(*allocation.notes, note))
    return None


def this_host(environ: Mapping[str, str], read: Read) -> Allocation:
    """Return this host alone: the ordinary answer on a laptop, a workstation and a login host."""
    del environ
    marks = ", ".join(f"no {mark}" for one in schedulers() for mark in one.marks[:1])
    looked = f"{marks}; no running job of yours on this host"
    origin = {"scheduler": looked, "job_id": looked, "hosts": "the host name"}
    return Allocation("none", "", (host_name(read),), origin=origin)


def _innermost(marked: list[Scheduler], environ: Mapping[str, str], read: Read) -> tuple[Scheduler, str]:
    """Return the scheduler whose job is the inner one, and why."""
    for program in _ancestors(read):
        for one in marked:
            if program.startswith(one.ancestor_prefixes):
                return one, f"{program} is the nearest above this process"
    host = host_name(read)
    here = [one for one in marked if _holds(one, host, environ, read)]
    if len(here) == 1:
        return here[0], f"only its job holds this host, {host}"
    return marked[0], "neither the process tree nor this host's name tells which is the inner one"


def _ancestors(read: Read) -> Iterator[str]:
    """Yield the names of the programs above this process."""
    pid: int | str = "self"
    for _ in range(_DEEPEST):
        process = parse_stat(read(f"/proc/{pid}/stat") or "")
        if process is None:
            return
        yield process.name
        pid = process.parent


def _holds(one: Scheduler, host: str, environ: Mapping[str, str], read: Read) -> bool:
    try:
        allocation = one.detect(environ, read, run_nothing)
    except EzpzError:  # this job's hosts are not known without asking: it cannot be the only one that holds this host
        return False
    return allocation is not None and any(is_same_host(host, name) for name in allocation.hosts)


def _with_note(allocation: Allocation, environ: Mapping[str, str], others: list[Scheduler], why: str) -> Allocation:
    if not others:
        return allocation
    marks = ", ".join(f"{mark}={environ[mark]}" for one in others for mark in one.marks[:1] if environ.get(mark))
    note = f"another scheduler's job has set variables too ({marks}); {allocation.scheduler} is used: {why}"
    return replace(allocation, notes=(*allocation.notes, note))


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):  # KeyError: Python < 3.13, a user number without a name, as in containers
        return ""
