"""Which scheduler's job this process is in: by variables, the inner of two, or by the name of the host."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ezpz.cluster import SCHEDULERS
from ezpz.cluster.allocation import Allocation
from ezpz.cluster.earlier import said_no_job
from ezpz.cluster.probe import host_name, is_same_host, run_nothing
from ezpz.errors import EzpzError
from ezpz.proc import parse_stat

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ezpz.cluster.allocation import Read, Run

__all__ = ["by_host", "by_variables", "this_host"]

_DEEPEST = 64  # ancestors that are looked at: far more than shells are ever nested


def by_variables(environ: Mapping[str, str], read: Read, run: Run, *, more: bool) -> Allocation | None:
    """Return the job that variables tell of; the inner one, with a note, where two schedulers have set theirs."""
    told = {name: module for name, module in _modules() if any(environ.get(mark) for mark in module.MARKS)}
    if "flux" in told:
        found = told.pop("flux").detect(environ, read, run, more=more)
        if found:
            return _with_note(found, environ, list(told.values()), "Flux hides the schedulers around it")
    if not told:
        return None
    name, why = next(iter(told)), ""
    if len(told) > 1:
        name, why = _innermost(told, environ, read)
    chosen = told.pop(name)
    found = chosen.detect(environ, read, run, more=more)
    return _with_note(found, environ, list(told.values()), why)


def by_host(environ: Mapping[str, str], read: Read, run: Run) -> Allocation | None:
    """Return the user's running job on this host, for a shell that was opened by ssh and has no variables of it."""
    host = host_name(read)
    if said_no_job(environ, host):
        return None
    user = environ.get("USER") or environ.get("LOGNAME") or _user()
    for _, module in _modules():
        found: Allocation | None = module.find(host, user, run)
        if found:
            note = f"this shell has no variables of the job: it was found by the name of this host, {host}"
            return replace(found, notes=(*found.notes, note))
    return None


def this_host(environ: Mapping[str, str], read: Read) -> Allocation:
    """Return this host alone: the ordinary answer on a laptop, a workstation and a login host."""
    del environ
    marks = ", ".join(f"no {mark}" for _, module in _modules() for mark in module.MARKS[:1])
    looked = f"{marks}; no running job of yours on this host"
    origin = {"scheduler": looked, "job_id": looked, "hosts": "the host name"}
    return Allocation("none", "", (host_name(read),), origin=origin)


def _modules() -> Iterator[tuple[str, Any]]:
    for name in SCHEDULERS:
        yield name, import_module(f"ezpz.cluster.{name}")


def _innermost(told: dict[str, Any], environ: Mapping[str, str], read: Read) -> tuple[str, str]:
    """Return the scheduler whose job is the inner one, and why."""
    for program in _ancestors(read):
        for name, module in told.items():
            if program.startswith(module.ANCESTORS):
                return name, f"{program} is the nearest above this process"
    host = host_name(read)
    here = [name for name, module in told.items() if _holds(module, host, environ, read)]
    if len(here) == 1:
        return here[0], f"only its job holds this host, {host}"
    return next(iter(told)), "neither the process tree nor this host's name tells which is the inner one"


def _ancestors(read: Read) -> Iterator[str]:
    """Yield the names of the programs above this process."""
    pid: int | str = "self"
    for _ in range(_DEEPEST):
        process = parse_stat(read(f"/proc/{pid}/stat") or "")
        if process is None:
            return
        yield process.name
        pid = process.parent


def _holds(module: Any, host: str, environ: Mapping[str, str], read: Read) -> bool:
    try:
        found: Allocation | None = module.detect(environ, read, run_nothing)
    except EzpzError:  # this job's hosts are not known without asking: it cannot be the only one that holds this host
        return False
    return found is not None and any(is_same_host(host, name) for name in found.hosts)


def _with_note(found: Allocation, environ: Mapping[str, str], others: list[Any], why: str) -> Allocation:
    if not others:
        return found
    marks = ", ".join(f"{mark}={environ[mark]}" for module in others for mark in module.MARKS[:1] if environ.get(mark))
    return replace(
        found,
        notes=(*found.notes, f"another scheduler's job is told of too ({marks}); {found.scheduler} is used: {why}"),
    )


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):  # KeyError: Python < 3.13, a user number without a name, as in containers
        return ""
