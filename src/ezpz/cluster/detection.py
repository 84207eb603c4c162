"""Find the scheduler whose job this process is in: by variables, the inner of two jobs, or by the name of the host.

What a scheduler did not answer in time is in a note: it may have been a job, or a part of one.
"""

from __future__ import annotations

from ezpz.cluster.allocation import Allocation
from ezpz.cluster.earlier_exports import is_known_jobless
from ezpz.cluster.probe import host_name, is_same_host, run_nothing
from ezpz.cluster.questions import ask_ahead, failed, finish, listed, said, unanswered
from ezpz.cluster.scheduler import schedulers
from ezpz.errors import EzpzError
from ezpz.fields import replace
from ezpz.proc import parse_stat

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ezpz.cluster.allocation import Read, Run
    from ezpz.cluster.scheduler import Scheduler

_DEEPEST = 64  # ancestors that are looked at: far more than shells are ever nested
_SHOWN = 120  # characters of what a program said as it failed


def find(environ: Mapping[str, str], read: Read, run: Run, *, more: bool) -> Allocation:
    """Return the hosts that this process may use, with notes on what schedulers have left unsaid."""
    try:
        found = _by_variables(environ, read, run, more=more) or _by_host(environ, read, run)
    finally:
        finish(run)
    notes = (*found.notes, *_unsaid(found, environ, run, more=more))
    if found.scheduler == "none" and (environ.get("PE_HOSTFILE") or environ.get("COBALT_NODEFILE")):
        from ezpz.cluster.unknown_jobs import unknown_job

        notes = (*notes, *filter(None, [unknown_job(environ, read)]))
    return replace(found, notes=notes) if notes != found.notes else found


def _by_variables(environ: Mapping[str, str], read: Read, run: Run, *, more: bool) -> Allocation | None:
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


def _by_host(environ: Mapping[str, str], read: Read, run: Run) -> Allocation:
    """Return the user's running job on this host, for a shell that was opened by ssh and has no variables of it.

    Where there is none it is this host alone, with a note on jobs that run on others: such a shell is no part of them.
    """
    host = host_name(read)
    if is_known_jobless(environ, host):
        return _this_host(read, run)
    user = environ.get("USER") or environ.get("LOGNAME") or _user()
    every = schedulers()
    ask_ahead(run, [line for one in every for line in one.about_host(host, user)])
    for one in every:
        allocation = one.find(host, user, run)
        if allocation:
            note = f"this shell has no variables of the job: it was found by the name of this host, {host}"
            return replace(allocation, notes=(*allocation.notes, note))
    jobs = {job: hosts for one in every for job, hosts in one.running(user, run).items() if hosts}
    return replace(_this_host(read, run), notes=tuple(_on_others(jobs)))


def _on_others(jobs: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield where the first of the user's jobs runs, of those that are not on this host."""
    for job, hosts in list(jobs.items())[:1]:
        more = f" ({len(jobs) - 1} more elsewhere too)" if len(jobs) > 1 else ""
        shown = ", ".join(hosts[:3]) + ", …" * (len(hosts) > 3)
        yield f"job {job} of yours runs on {shown} and not here{more}; to use its hosts, run this on {hosts[0]}"


def _this_host(read: Read, run: Run) -> Allocation:
    """Return this host alone: the ordinary answer on a laptop, a workstation and a login host."""
    marks = ", ".join(f"no {mark}" for one in schedulers() for mark in one.marks[:1])
    programs = [program for one in schedulers() for program in one.programs]  # in one order, whichever was done first
    silent, broken = ([name for name in programs if name in names] for names in (unanswered(run), failed(run)))
    doubts = [f"no answer of {listed(silent)}"] * bool(silent)
    doubts += [f"{name} failed{': ' if words else ''}{words[:_SHOWN]}" for name, words in _words_of(broken, run)]
    looked = f"{marks}; {', '.join(doubts) or 'no running job of yours on this host'}"
    origin = {"scheduler": looked, "job_id": looked, "hosts": "the host name"}
    return Allocation("none", "", (host_name(read),), origin=origin)


def _words_of(programs: list[str], run: Run) -> list[tuple[str, str]]:
    """Return names of programs that failed, each with what it said; those that said the same share one entry."""
    names: dict[str, list[str]] = {}
    for program in programs:
        words = said(run, program)
        names.setdefault(words, []).append(program)
    return [(listed(each), words) for words, each in names.items()]


def _unsaid(found: Allocation, environ: Mapping[str, str], run: Run, *, more: bool) -> Iterator[str]:
    """Yield what may be missing because a scheduler did not answer."""
    silent = unanswered(run)
    for one in schedulers():
        who = [program for program in one.programs if program in silent]
        if not who:
            doubt = one.doubt(environ, run) if one.name != found.scheduler else ""
            if doubt:
                yield f"{doubt}; {_instead(found)}"
            continue
        late = f"{listed(who)} gave no answer in time"
        if one.name != found.scheduler:
            hint = "" if found.job_id else f"; in a job of {one.title}, run `export {one.job_variables[0]}=ID`"
            yield f"{late}: whether this shell is in a job of {one.title} is not known, {_instead(found)}{hint}"
            continue
        unknown = ["the devices that were granted on each host"] if found.devices is None else []
        unknown += ["when the job ends"] if more and found.end_time is None else []
        yield f"{late}: job {found.job_id or 'without id'} is used as far as it is known without it" + (
            f"; not known: {' and '.join(unknown)}" if unknown else ""
        )


def _instead(found: Allocation) -> str:
    return f"{found.scheduler} job {found.job_id} is used" if found.scheduler != "none" else "this host alone is used"


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
