"""Collect facts about a run when it starts: arguments, versions, host, ranks, commit, launch, without secrets.

Reads, besides what `ezpz.track.run_facts` says: EZPZ_LAUNCH_CMD EZPZ_LAUNCH_ID EZPZ_HOSTS EZPZ_SCHEDULER EZPZ_JOBID
EZPZ_CHAIN.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

from ezpz import proc
from ezpz.files import read_text
from ezpz.progress import reached
from ezpz.redact import HIDDEN, redact_argv, redact_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ezpz.ranks import Ranks


# The machine below a run, as far as it can change numbers or speed: modules, drivers, libraries, variables.
#
# LOADEDMODULES=gcc/12.2:cuda/12.4                                     Lmod and Environment Modules
# /proc/driver/nvidia/version    NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue …
# /sys/module/{amdgpu,i915,xe}/version                                 one line

# Variables that choose devices, threads, algorithms or transports; nothing else of the environment is kept. Those of
# torchrun, which name the ranks, differ in every run.
_SHOWN = re.compile(
    r"^(NCCL|RCCL|CCL|FI|MPICH|OMPI_MCA|UCX|I_MPI|PALS|CUDA|HIP|ROCR|ZE|ONEAPI|SYCL|HSA|GLOO|OMP|MKL|KMP|OPENBLAS|"
    r"TORCH|PYTORCH|TORCHINDUCTOR|TRITON|XLA|CUBLAS|NVIDIA_TF32|IPEX)_\w+$"
)
_NVIDIA = re.compile(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)")


def text_of(path: str) -> str:
    """Return a small file's text, empty where there is none."""
    return read_text(path) or ""


def collect_environment(environ: Mapping[str, str], read: Callable[[str], str] = text_of) -> dict[str, object]:
    """Return what ``run.json`` says about the machine.

    Args:
        environ: The environment.
        read: Returns a file's text, empty where there is none.

    Returns:
        ``modules`` (names), ``driver`` and ``library`` (name to version), ``system``, ``variables``; what cannot be
        found is absent. Secrets are left out.
    """
    facts: dict[str, object] = {
        "modules": [name for name in environ.get("LOADEDMODULES", "").split(":") if name],
        "driver": _drivers(read),
        "library": _libraries(),
        "system": _system(read),
        "variables": redact_config(
            {name: value for name, value in sorted(environ.items()) if _SHOWN.match(name)}, "", environ
        ),
    }
    return {name: value for name, value in facts.items() if value}


def _drivers(read: Callable[[str], str]) -> dict[str, str]:
    nvidia = _NVIDIA.search(read("/proc/driver/nvidia/version"))
    versions = {"nvidia": nvidia.group(1) if nvidia else ""}
    versions |= {name: read(f"/sys/module/{name}/version").strip() for name in ("amdgpu", "i915", "xe")}
    return {name: version for name, version in versions.items() if version}


def _libraries() -> dict[str, str]:
    """Return versions of what torch and mpi4py stand on, where the program has loaded them; nothing is loaded here."""
    versions: dict[str, object] = {}
    if "torch" in sys.modules:
        from ezpz.dist.info import library_versions

        versions |= library_versions()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None:
        versions["mpi"] = str(mpi.Get_library_version()).split("\n", 1)[0].strip(" \0")[:120]
    return {name: str(version) for name, version in versions.items() if version}


def _system(read: Callable[[str], str]) -> str:
    names = dict(line.split("=", 1) for line in read("/etc/os-release").splitlines() if "=" in line)
    return names.get("PRETTY_NAME", "").strip('"')


# How long a run took to its first step, stage by stage, since its process began.


def began() -> float:
    """Return when this process began, in epoch seconds; now, where there is no ``/proc``.

    Field 22 of ``/proc/self/stat`` counts clock ticks since the host's start, which ``btime`` of ``/proc/stat`` tells
    (proc(5)); that is whole seconds, so the host's uptime, to a hundredth, is subtracted from the clock instead.
    """
    try:
        ticks = int(proc.start_time("self"))
        uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return time()
    return time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


def timeline(**moments: float) -> dict[str, float]:
    """Return the stages of the start in their order, in seconds since the process began.

    Args:
        moments: Further stages, epoch seconds.
    """
    start = began()
    stages = {**{name: when for name, when in reached.items() if name != "step"}, **moments}
    return {name: round(max(0.0, when - start), 3) for name, when in sorted(stages.items(), key=lambda item: item[1])}


_LAUNCH = ("EZPZ_LAUNCH_CMD", "EZPZ_LAUNCH_ID", "EZPZ_HOSTS", "EZPZ_SCHEDULER", "EZPZ_JOBID", "EZPZ_CHAIN")
_LIBRARIES = (
    "ezpz",
    "torch",
    "numpy",
    "h5py",
    "h5netcdf",
    "xarray",
    "matplotlib",
    "plotext",
    "wandb",
    "mlflow",
    "pyinstrument",
    "mpi4py",
)


def collect_facts(environ: Mapping[str, str], ranks: Ranks, argv: Sequence[str]) -> dict[str, object]:
    """Return what ``run.json`` says about how a run was started.

    Args:
        environ: The environment; what is read is named above.
        ranks: Who this process is.
        argv: Arguments of the program, its name first.

    Returns:
        A dict that JSON can hold, without secrets; facts that cannot be found are absent.
    """
    launch = {name: _redact_line(environ[name], environ) for name in _LAUNCH if environ.get(name)}
    commit = git_commit(Path.cwd())
    return {
        "argv": redact_argv(argv, environ),
        "cwd": str(Path.cwd()),
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "versions": {name: known for name in _LIBRARIES if (known := version(name))},
        "host": os.uname().nodename,
        "ranks": {field: value for field, value in ranks.named().items() if value is not None},
        **({"git_commit": commit} if commit else {}),
        **({"launch": launch} if launch else {}),
        "environment": collect_environment(environ),
    }


def version(name: str) -> str | None:
    """Return the version of an installed library, which is not imported for it; None where there is none."""
    from importlib import metadata  # 20 ms that only rank 0 needs to spend

    loaded = getattr(sys.modules.get(name), "__version__", None)
    if loaded:
        return str(loaded)
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def script_name() -> str:
    """Return the running program's name: ``test_dist`` for ``python3 -m ezpz.test_dist``, ``train`` for ``train.py``.

    Returns:
        The last part of the module's name, the script's name without its ending, or ``history`` at a prompt.
    """
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        name: str = spec.name.removesuffix(".__main__").rpartition(".")[2]
        return name
    path = getattr(main, "__file__", None)
    return Path(path).stem if path else "history"


def _redact_line(text: str, environ: Mapping[str, str]) -> str:
    """Redact a command line; text without secrets comes back letter for letter."""
    try:
        words = shlex.split(text)
    except ValueError:  # an open quote: not a command line after all, and not one that can be searched
        return HIDDEN
    shown = redact_argv(words, environ)
    return text if shown == words else shlex.join(shown)


def flatten(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``("model.width", 64)`` for ``{"model": {"width": 64}}``, in order; an empty mapping is a value."""
    for key, value in facts.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def git_commit(folder: Path) -> str | None:
    """Return the commit that ``folder``'s checkout is at, or None.

    Reads git's own files: starting a process from a rank that holds a network device can hang on some machines.

        .git/HEAD          ref: refs/heads/main     or the commit itself
        .git/packed-refs   <commit> refs/heads/main
        .git               gitdir: <path>           a file, in worktrees and submodules
    """
    dot_git = next((base / ".git" for base in (folder, *folder.parents) if (base / ".git").exists()), None)
    if dot_git is None:
        return None
    try:
        git_dir = (
            dot_git if dot_git.is_dir() else (dot_git.parent / dot_git.read_text().removeprefix("gitdir: ").strip())
        )
        head = (git_dir / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        return _ref(git_dir, head.removeprefix("ref: "))
    except OSError:
        return None


def _ref(git_dir: Path, ref: str) -> str | None:
    common = git_dir / "commondir"  # a worktree keeps its branches with the checkout that it was made from
    for base in (git_dir, git_dir / common.read_text().strip()) if common.exists() else (git_dir,):
        if (base / ref).exists():
            return (base / ref).read_text().strip()
        packed = base / "packed-refs"
        for line in packed.read_text().splitlines() if packed.exists() else ():
            commit, _, name = line.partition(" ")
            if name == ref:
                return commit
    return None
