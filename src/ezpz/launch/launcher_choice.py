"""Choose what starts the ranks: the user's choice, the scheduler's own launcher, the site's, the ``mpiexec`` on PATH,
or ourselves.
"""

from __future__ import annotations

import os
import re
import sys

from ezpz.cluster.cache import keep, kept, state_of
from ezpz.cluster.questions import said
from ezpz.cluster.scheduler import RemoteShellAccess, Scheduler, schedulers
from ezpz.errors import LaunchError, UsageError, did_you_mean
from ezpz.fields import Record
from ezpz.launch import flavours
from ezpz.launch.flavours import FLAVOURS, LAST_RESORT, LOCAL, MPI_FLAVOURS, flavour
from ezpz.launch.flavours.request import Setting

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ezpz.cluster.allocation import Allocation, Run
    from ezpz.cluster.site import Site
    from ezpz.launch.flavours.base import Flavour

_MOST_KEPT = 64
_PASSES_ON = "passes on"  # in the cache, in place of a flavour
_SHOWN = 200  # characters of the output of an unknown mpiexec
_NO_REACH = RemoteShellAccess("no scheduler was asked")


class Choice(Record):
    """The flavour (None for local: the launcher starts the ranks itself), its program, its version, and why."""

    flavour: Flavour | None
    exe: str
    reason: str
    version: tuple[int, ...] = ()


def choose_mpi(
    requested: str, choice: Choice, site: Site | None = None, launcher_args: tuple[str, ...] = ()
) -> Setting:
    """Return whether ranks may start an MPI, and who says so.

    ``yes``: the launcher starts each rank, so that an MPI finds them all. ``no``: they start none; an agent on each
    host forks them, and ends one that starts an MPI. ``none``: the launcher brings no MPI, and no option or site tells
    what the ranks need.

    Args:
        requested: ``--mpi``: ``yes``, ``no`` or ``site``.
        choice: The launcher.
        site: The machine, whose table may say the same.
        launcher_args: ``--launcher-args``.

    Raises:
        UsageError: Another option, or one of the site, contradicts it.
        LaunchError: This launcher cannot do it.
    """
    flavour, title = choice.flavour, choice.flavour.title if choice.flavour else LOCAL
    gives = flavour is not None and flavour.gives_mpi
    by_site = site is not None and bool(site.mpi) and requested == "site"
    wanted = site.mpi if site and by_site else requested
    origin = f"site {site.name}" if site and by_site else "--mpi"
    if wanted == "no":
        if flavour is None or flavour.starts_agents:
            return Setting("no", origin)
        if flavour.may_start_agents:
            _check_shares(flavour, origin, site, launcher_args)
            return Setting("no", origin)
        if by_site:
            return Setting("yes" if gives else "none", f"{title} cannot start agents, as {origin} wants")
        raise LaunchError(
            f"{title} cannot start one agent per host (from --mpi no; {choice.reason}): "
            f"{'nothing is known by which its ranks could be kept from starting an MPI' if gives else 'it has its own'}"
            "; expected local, ssh, srun, MPICH, Intel MPI or Open MPI. Leave --mpi out, or choose with --flavour."
        )
    if wanted == "yes" and not gives and not by_site:
        raise LaunchError(
            f"{title} starts ranks without an MPI ({choice.reason}; from --mpi yes); expected the mpiexec of an MPI, "
            "or a scheduler's launcher. Put that of your MPI first on PATH, or name it with --flavour."
        )
    if not gives:
        return Setting("none", f"{title} brings none")
    return Setting("yes", origin if wanted == "yes" else "default")


def _check_shares(flavour: Flavour, origin: str, site: Site | None, launcher_args: tuple[str, ...]) -> None:
    """Refuse words of the launch line that would give an agent what is meant for one rank."""
    of_site = site.launcher_args if site and flavour.is_meant_by(site.launcher) else ()
    for words, source in ((launcher_args, "--launcher-args"), (of_site, f"site {site.name if site else ''}")):
        word = flavour.for_each_rank(words)
        if word:
            raise UsageError(
                f"{word} (from {source}) gives each rank a part of its host, but under --mpi no (from {origin}) "
                f"{flavour.title} starts one agent per host; expected CPUs from --cpu-bind, and devices by LOCAL_RANK. "
                "Use `--mpi yes`."
            )


class Identity(Record):
    """What an ``mpiexec`` says that it is.

    Attributes:
        name: The flavour; empty when unknown, and where the program only passes on.
        version: Its version.
        output: What an unknown program printed.
        passes_on: Whether it is a scheduler's own, a script that starts the MPI behind it.
        error: What an unknown program said as it failed; empty where it did not fail.
    """

    name: str
    version: tuple[int, ...] = ()
    output: str = ""
    passes_on: bool = False
    error: str = ""


class Mpiexec(Record):
    """The ``mpiexec`` of a job, or of this shell.

    Attributes:
        path: The program; empty where there is no MPI.
        identity: What it says that it is; never one that only passes on.
        passed_on: A scheduler's own ``mpiexec``, found before it; empty without one.
        reason: Why it is this one; follows its path in a sentence.
    """

    path: str = ""
    identity: Identity = Identity("")
    passed_on: str = ""
    reason: str = " on PATH"

    @property
    def lack(self) -> str:
        """Why there is no MPI."""
        return f"{self.passed_on} has no MPI behind it" if self.passed_on else "no mpiexec on PATH"


class _Surroundings(Record):
    allocation: Allocation
    scheduler: Scheduler
    is_here: bool
    environ: Mapping[str, str]
    run: Run
    site: Site | None
    reach: RemoteShellAccess


def choose(
    allocation: Allocation,
    scheduler: Scheduler,
    environ: Mapping[str, str],
    run: Run,
    *,
    is_here: bool,
    requested: str = "",
    site: Site | None = None,
    reach: RemoteShellAccess = _NO_REACH,
) -> Choice:
    """Return the launcher for this job.

    Args:
        allocation: The job, if any.
        scheduler: Its scheduler.
        environ: The environment; PATH decides which programs there are.
        run: Runs a command; asks an ``mpiexec`` that was never seen what it is.
        is_here: Whether all ranks run on this host.
        requested: ``--flavour``, or empty.
        site: The machine, whose table may name its launcher.
        reach: Whether the scheduler can start programs on the hosts.

    Raises:
        UsageError: ``--flavour`` names no flavour.
        LaunchError: The requested launcher is not there, an ``mpiexec`` does not say what it is, or nothing could start
            the ranks.
    """
    around = _Surroundings(allocation, scheduler, is_here, environ, run, site, reach)
    if requested:
        return _requested(around, requested)
    own = flavour(scheduler.own_launcher) if scheduler.own_launcher else None
    exe = own.program(environ) if own else ""
    if own and exe:
        return _of_known(around, own, exe, f"{own.name} of {scheduler.title} job {allocation.job_id}")
    found = find_mpiexec(allocation, scheduler, environ, run, site)
    if found.path and not found.identity.name:
        raise _unknown(found)
    if found.path:
        identity = found.identity
        return Choice(flavour(identity.name), found.path, f"{found.path}{found.reason}", identity.version)
    why = found.lack
    if is_here:
        return Choice(None, "", why)
    if scheduler.agent_flavour and not reach.problem:
        agents = flavour(scheduler.agent_flavour)
        whose = f", for process {reach.process} of the job" if reach.process else ""
        return Choice(agents, agents.program(environ), f"{why}; {scheduler.title} reaches the hosts{whose}")
    other = flavour(LAST_RESORT)
    exe = "" if own else other.program(environ)
    if exe:
        return Choice(other, exe, why)
    missing = own.name if own else f"mpiexec, and no {other.name}"
    raise LaunchError(
        f"cannot start ranks on {', '.join(allocation.hosts[:3])}: no {missing} on PATH (PATH={environ.get('PATH')}); "
        f"expected {own.name if own else 'an mpiexec'}. Load the site's module for it, or run on this host alone with "
        "`launch --hosts` naming it."
    )


def _requested(around: _Surroundings, name: str) -> Choice:
    """Return the flavour that ``--flavour`` names."""
    if name not in FLAVOURS:
        hint = did_you_mean(name, FLAVOURS)
        raise UsageError(f"unknown flavour {name!r} (from --flavour); expected one of {', '.join(FLAVOURS)}.{hint}")
    if name == LOCAL:
        if not around.is_here:
            raise LaunchError(
                f"the {LOCAL} flavour cannot start ranks on {', '.join(around.allocation.hosts[:3])} (from "
                f"--flavour): it serves this host alone. Use `--hosts` with this host, or `--flavour {LAST_RESORT}`."
            )
        return Choice(None, "", "--flavour")
    asked = flavour(name)
    if asked.is_mpi:
        return _requested_mpiexec(around, asked)
    exe = asked.program(around.environ)
    if exe and asked.by_scheduler and around.reach.problem and not around.is_here:
        raise LaunchError(
            f"{name} cannot start ranks on {', '.join(around.allocation.hosts[:3])} (from --flavour): "
            f"{around.reach.problem}; expected a shell of the job on its first host. Run this on "
            f"{around.allocation.hosts[0]}, use `--flavour {LAST_RESORT}`, or leave it out."
        )
    if exe:
        return _of_known(around, asked, exe, "--flavour")
    raise LaunchError(
        f"no {name} on PATH (from --flavour {name}; PATH={around.environ.get('PATH')}); expected the program."
    )


def _requested_mpiexec(around: _Surroundings, asked: Flavour) -> Choice:
    programs = list(_programs(around.scheduler, around.environ, submitted=True))
    unknown = ""  # one that does not say what it is may still be what the user says it is
    for path in programs:
        identity = identify(path, around.environ, around.run)
        if identity.name == asked.name:
            return Choice(asked, path, "--flavour", identity.version)
        unknown = unknown or ("" if identity.name or identity.passes_on else path)
    if unknown:
        return Choice(asked, unknown, f"--flavour, although {unknown} does not say so")
    raise LaunchError(
        f"no mpiexec of {asked.title} on PATH (from --flavour {asked.name}); found {', '.join(programs) or 'none'}. "
        "Load its module, or leave --flavour away."
    )


def _of_known(around: _Surroundings, chosen: Flavour, exe: str, reason: str) -> Choice:
    """Return a flavour that is known by the name of its program."""
    version = identify(exe, around.environ, around.run, chosen.name).version if chosen.tells_version else ()
    return Choice(chosen, exe, reason, version)


def find_mpiexec(
    allocation: Allocation, scheduler: Scheduler, environ: Mapping[str, str], run: Run, site: Site | None = None
) -> Mpiexec:
    """Return the ``mpiexec`` to use: in a job the site's before one that an environment of Python put first on PATH.

    A scheduler's own, which only passes on, is left out: the MPI behind it is used without it.

    Args:
        allocation: The job, if any.
        scheduler: Its scheduler.
        environ: The environment; PATH decides which programs there are.
        run: Runs a command; asks an ``mpiexec`` that was never seen what it is.
        site: The machine, whose table may name its launcher.
    """
    passed_on: list[str] = []
    while programs := [
        path for path in _programs(scheduler, environ, submitted=bool(passed_on)) if path not in passed_on
    ]:
        path, reason = programs[0], " on PATH"
        if allocation.job_id and _in_python(path, environ):
            path = next((other for other in programs if not _in_python(other, environ)), path)
        if path != programs[0]:
            reason = f", not {programs[0]} of a Python environment"
        if passed_on:
            reason = f", to which {passed_on[0]} only passes on"
        for other in programs if site and site.launcher and allocation.job_id else ():
            name = identify(other, environ, run).name
            if site and name and flavour(name).is_meant_by(site.launcher):
                passed = f", not {programs[0]}, which comes first on PATH" if other != programs[0] else ""
                path, reason = other, f" of site {site.name}{passed}"
                break
        identity = identify(path, environ, run)
        if not identity.passes_on:
            return Mpiexec(path, identity, passed_on[0] if passed_on else "", reason)
        passed_on.append(path)
    return Mpiexec(passed_on=passed_on[0] if passed_on else "")


def _unknown(found: Mpiexec) -> LaunchError:
    output = " ".join(found.identity.output.split())[:_SHOWN]
    names = ", ".join((LOCAL, *MPI_FLAVOURS, LAST_RESORT))
    if found.identity.error and not output:
        return LaunchError(
            f"{found.path} does not run: {found.identity.error[:_SHOWN]} (--version, --help); expected the mpiexec of "
            f"an MPI. Load the module that it needs, or choose with `launch --flavour NAME …`: one of {names}."
        )
    return LaunchError(
        f"{found.path} does not say which MPI it is: it printed {output!r} (--version, --help); expected one of "
        f"{names}. Name it with `launch --flavour NAME …`."
    )


def _programs(scheduler: Scheduler, environ: Mapping[str, str], *, submitted: bool) -> Iterator[str]:
    """Yield each ``mpiexec`` (else ``mpirun``) of PATH, a program that links lead to twice only once.

    With ``submitted`` also those on the PATH of the shell that submitted the job, where the MPI of one may be that only
    passes on.
    """
    more = environ.get(scheduler.submit_path, "") if submitted and scheduler.submit_path else ""
    seen = set()
    for folder in (*environ.get("PATH", "").split(os.pathsep), *more.split(os.pathsep)):
        for name in ("mpiexec", "mpirun"):
            path = os.path.join(folder, name)
            if folder and os.path.isfile(path) and os.access(path, os.X_OK):
                real = os.path.realpath(path)
                if real not in seen:
                    yield path
                seen.add(real)
                break


def _in_python(path: str, environ: Mapping[str, str]) -> bool:
    homes = [
        environ.get("VIRTUAL_ENV", ""),
        environ.get("CONDA_PREFIX", ""),
        sys.prefix if sys.prefix != sys.base_prefix else "",
    ]
    return any(home and path.startswith(f"{home}{os.sep}") for home in homes)


# The flavour of an ``mpiexec``, by its own output; asked once per program and kept in
# ``$XDG_CACHE_HOME/ezpz/launchers.json`` under the program's real path, size and time of change:
#
# {"/opt/mpich/bin/mpiexec.hydra 123456 1795188151000000000": ["mpich", "5.0.2"]}


def identify(path: str, environ: Mapping[str, str], run: Run, name: str = "") -> Identity:
    """Return the flavour of a launcher's program, and its version.

    Args:
        path: Path of the program, as found on PATH.
        environ: Decides where caches are.
        run: Runs a command; called at most twice, and not at all for a program that is known.
        name: The flavour, where the program's name shows it already.
    """
    key = state_of(path)
    known = kept(environ, "launchers")
    entry = known.get(key)
    if isinstance(entry, list) and len(entry) == 2 and entry[0] in FLAVOURS and entry[0] != LOCAL:
        return Identity(entry[0], _numbers(str(entry[1])))
    if isinstance(entry, list) and entry[:1] == [_PASSES_ON]:
        return Identity("", passes_on=True)
    identity = _ask(path, run, name)
    is_known = _PASSES_ON if identity.passes_on else identity.name
    if is_known:
        others = dict(list(known.items())[-_MOST_KEPT:])
        keep(environ, "launchers", {**others, key: [is_known, ".".join(map(str, identity.version))]})
    return identity


def _ask(path: str, run: Run, name: str) -> Identity:
    output = run([path, "--version"]) or ""
    name = name or flavours.identify(output)
    if not name and any(one.mpiexec_mark and one.mpiexec_mark in output for one in schedulers()):
        return Identity("", passes_on=True)  # its --help would be that of the MPI behind it
    if not name:
        # PALS prints no version that names it: its folder or its options do.
        output = f"{output}\n{run([path, '--help']) or ''}"
        name = flavours.identify(f"{os.path.realpath(path)}\n{output}")
    return Identity(name, _numbers(output), output.strip(), error="" if name else said(run, path))


def _numbers(text: str) -> tuple[int, ...]:
    match = re.search(r"(?<!\d)\d{1,9}(?:\.\d{1,9})+", text)
    return tuple(map(int, match.group().split("."))) if match else ()
