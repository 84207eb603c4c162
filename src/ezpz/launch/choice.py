"""Who starts the ranks: the user's word, the scheduler's own launcher, the site's, the ``mpiexec`` on PATH, or ourselves."""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import TYPE_CHECKING, NamedTuple

from ezpz.cluster.cache import keep, kept, state_of
from ezpz.errors import LaunchError, UsageError, did_you_mean
from ezpz.launch import flavours
from ezpz.launch.flavours import FLAVOURS, MPI_FLAVOURS, flavour

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ezpz.cluster.allocation import Allocation, Run
    from ezpz.cluster.site import Site
    from ezpz.launch.flavours import Flavour


# Which flavour an ``mpiexec`` is, by what it says of itself; asked once per program and kept.
#
# The answer is kept in ``$XDG_CACHE_HOME/ezpz/launchers.json`` under the program's real path, size and time of change:
#
# {"/opt/mpich/bin/mpiexec.hydra 123456 1795188151000000000": ["mpich", "5.0.2"]}

_MOST_KEPT = 64


class Identity(NamedTuple):
    """A flavour by name, empty when unknown; its version; and what the program said when it is unknown."""

    name: str
    version: tuple[int, ...] = ()
    said: str = ""


def identify(path: str, environ: Mapping[str, str], run: Run) -> Identity:
    """Return the flavour of a launcher's program.

    Args:
        path: Path of the program, as found on PATH.
        environ: Tells where caches stand.
        run: Runs a command; called at most twice, and not at all for a program that is known.
    """
    key = state_of(path)
    known = kept(environ, "launchers")
    told = known.get(key)
    if isinstance(told, list) and len(told) == 2 and told[0] in flavours.FLAVOURS:
        return Identity(told[0], _numbers(str(told[1])))
    found = _ask(path, run)
    if found.name:
        others = dict(list(known.items())[-_MOST_KEPT:])
        keep(environ, "launchers", {**others, key: [found.name, ".".join(map(str, found.version))]})
    return found


def _ask(path: str, run: Run) -> Identity:
    said = run([path, "--version"]) or ""
    if os.path.basename(path) == "srun":
        return Identity("srun", _numbers(said), said)
    name = flavours.identify(said)
    if not name:
        # PALS has no version that names it: its folder or its options do.
        said = f"{said}\n{run([path, '--help']) or ''}"
        name = flavours.identify(f"{os.path.realpath(path)}\n{said}")
    return Identity(name, _numbers(said), said.strip())


def _numbers(text: str) -> tuple[int, ...]:
    found = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(map(int, found.group().split("."))) if found else ()


__all__ = ["Choice", "choose", "identify"]

_JOBS_OWN = {"slurm": "srun", "flux": "flux"}
_SAID = 200  # characters of what an unknown mpiexec said


class Choice(NamedTuple):
    """The flavour (None for local: the launcher starts the ranks itself), its program, its version, and why."""

    flavour: Flavour | None
    exe: str
    reason: str
    version: tuple[int, ...] = ()


class _Scene(NamedTuple):
    allocation: Allocation
    is_here: bool
    environ: Mapping[str, str]
    run: Run
    site: Site | None


def choose(
    allocation: Allocation,
    environ: Mapping[str, str],
    run: Run,
    *,
    is_here: bool,
    wish: str = "",
    site: Site | None = None,
) -> Choice:
    """Return the launcher for this job.

    Args:
        allocation: The job, if any.
        environ: The environment; PATH tells what is there.
        run: Runs a command; asks an ``mpiexec`` that was never seen who it is.
        is_here: Whether all ranks run on this host.
        wish: ``--flavour``, or empty.
        site: The machine, whose table may name its launcher.

    Raises:
        UsageError: ``--flavour`` names no flavour.
        LaunchError: What is wished for is not there, an ``mpiexec`` does not say what it is, or nothing could start the ranks.
    """
    scene = _Scene(allocation, is_here, environ, run, site)
    if wish:
        return _wished(scene, wish)
    own = _JOBS_OWN.get(allocation.scheduler, "")
    exe = shutil.which(own, path=environ.get("PATH")) if own else None
    if exe:
        return _known(scene, own, exe, f"{own} of {allocation.scheduler.capitalize()} job {allocation.job_id}")
    found = _mpiexec(scene)
    if found:
        return found
    if is_here:
        return Choice(None, "", "no mpiexec on PATH")
    ssh = environ.get("EZPZ_SSH") or shutil.which("ssh", path=environ.get("PATH"))
    if ssh and not own:
        return Choice(flavour("ssh"), ssh, "no mpiexec on PATH")
    raise LaunchError(
        f"cannot start ranks on {', '.join(allocation.hosts[:3])}: no {own or 'mpiexec, and no ssh'} on PATH "
        f"(PATH={environ.get('PATH')}); expected {own or 'an mpiexec'}. Load the site's module for it, or run on this host alone "
        "with `launch --hosts` naming it."
    )


def _wished(scene: _Scene, wish: str) -> Choice:
    if wish not in FLAVOURS:
        hint = did_you_mean(wish, FLAVOURS)
        raise UsageError(f"unknown flavour {wish!r} (from --flavour); expected one of {', '.join(FLAVOURS)}.{hint}")
    why = "--flavour"
    if wish == "local":
        if not scene.is_here:
            raise LaunchError(
                f"the local flavour cannot start ranks on {', '.join(scene.allocation.hosts[:3])} (from --flavour): it serves "
                "this host alone. Use `--hosts` with this host, or `--flavour ssh`."
            )
        return Choice(None, "", why)
    if wish == "torchrun":
        return Choice(flavour(wish), sys.executable, why)
    if wish not in MPI_FLAVOURS:
        exe = shutil.which(wish, path=scene.environ.get("PATH"))
        if wish == "ssh":
            exe = scene.environ.get("EZPZ_SSH") or exe
        if exe:
            return _known(scene, wish, exe, why)
        raise LaunchError(
            f"no {wish} on PATH (from --flavour {wish}; PATH={scene.environ.get('PATH')}); expected the program."
        )
    programs = list(_programs(scene.environ))
    for path in programs:
        found = identify(path, scene.environ, scene.run)
        if found.name == wish:
            return Choice(flavour(wish), path, why, found.version)
    # One that does not say what it is may still be what the user says it is.
    unknown = next((path for path in programs if not identify(path, scene.environ, scene.run).name), None)
    if unknown:
        return Choice(flavour(wish), unknown, f"--flavour, although {unknown} does not say so")
    raise LaunchError(
        f"no mpiexec of {flavour(wish).NAME} on PATH (from --flavour {wish}); found {', '.join(programs) or 'none'}. Load its module, or "
        "leave --flavour away."
    )


def _known(scene: _Scene, name: str, exe: str, reason: str) -> Choice:
    version = identify(exe, scene.environ, scene.run).version if name == "srun" else ()
    return Choice(flavour(name), exe, reason, version)


def _mpiexec(scene: _Scene) -> Choice | None:
    """Return the ``mpiexec`` to use: in a job the site's before one that an environment of Python put first on PATH."""
    programs = list(_programs(scene.environ))
    if not programs:
        return None
    first = programs[0]
    wanted = scene.site.launcher if scene.site and scene.allocation.job_id else ""
    if wanted == "openmpi":
        wanted = "openmpi5 openmpi4"
    for path in programs if wanted else ():
        found = identify(path, scene.environ, scene.run)
        if scene.site and found.name and found.name in wanted.split():
            passed = f", not {first}, which stands first on PATH" if path != first else ""
            return Choice(flavour(found.name), path, f"{path} of site {scene.site.name}{passed}", found.version)
    path = first
    if scene.allocation.job_id and _in_python(first, scene.environ):
        path = next((other for other in programs if not _in_python(other, scene.environ)), first)
    found = identify(path, scene.environ, scene.run)
    if not found.name:
        raise _unknown(path, found)
    passed = f", not {first} of a Python environment" if path != first else " on PATH"
    return Choice(flavour(found.name), path, f"{path}{passed}", found.version)


def _unknown(path: str, found: Identity) -> LaunchError:
    said = " ".join(found.said.split())[:_SAID]
    names = ", ".join(("local", *MPI_FLAVOURS, "ssh"))
    return LaunchError(
        f"{path} does not say which MPI it is: it said {said!r} (to --version and --help); expected one of {names}. Name it with "
        "`launch --flavour NAME …`."
    )


def _programs(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield each ``mpiexec`` (else ``mpirun``) of PATH, a program that links lead to twice only once."""
    seen = set()
    for folder in environ.get("PATH", "").split(os.pathsep):
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
