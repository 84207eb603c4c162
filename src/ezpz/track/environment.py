"""The machine below a run, as far as it can change numbers or speed: modules, drivers, libraries, variables.

LOADEDMODULES=gcc/12.2:cuda/12.4                                     Lmod and Environment Modules
/proc/driver/nvidia/version    NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue …
/sys/module/{amdgpu,i915,xe}/version                                 one line
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ezpz.redact import HIDDEN, SECRET, without_login

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["collect_environment", "read_text"]

# Variables that choose devices, threads, algorithms or transports; nothing else of the environment is kept. Those of
# torchrun, which name the ranks, differ in every run.
_SHOWN = re.compile(
    r"^(NCCL|RCCL|CCL|FI|MPICH|OMPI_MCA|UCX|I_MPI|PALS|CUDA|HIP|ROCR|ZE|ONEAPI|SYCL|HSA|GLOO|OMP|MKL|KMP|OPENBLAS|TORCH|PYTORCH|"
    r"TORCHINDUCTOR|TRITON|XLA|CUBLAS|NVIDIA_TF32|IPEX)_\w+$"
)
_NVIDIA = re.compile(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)")


def read_text(path: str) -> str:
    """Return a small file's text, empty where there is none."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def collect_environment(environ: Mapping[str, str], read: Callable[[str], str] = read_text) -> dict[str, object]:
    """Return what ``run.json`` says about the machine.

    Args:
        environ: The environment.
        read: Returns a file's text, empty where there is none.

    Returns:
        ``modules`` (names), ``driver`` and ``library`` (name to version), ``system``, ``variables``; what cannot be found is
        absent. Values of variables named like secrets, and logins in URLs, are left out.
    """
    found: dict[str, object] = {
        "modules": [name for name in environ.get("LOADEDMODULES", "").split(":") if name],
        "driver": _drivers(read),
        "library": _libraries(),
        "system": _system(read),
        "variables": {
            name: HIDDEN if SECRET.search(name) else without_login(value)
            for name, value in sorted(environ.items())
            if _SHOWN.match(name)
        },
    }
    return {name: value for name, value in found.items() if value}


def _drivers(read: Callable[[str], str]) -> dict[str, str]:
    nvidia = _NVIDIA.search(read("/proc/driver/nvidia/version"))
    found = {"nvidia": nvidia.group(1) if nvidia else ""}
    found |= {name: read(f"/sys/module/{name}/version").strip() for name in ("amdgpu", "i915", "xe")}
    return {name: version for name, version in found.items() if version}


def _libraries() -> dict[str, str]:
    """Return versions of what torch and mpi4py stand on, where the program has loaded them; nothing is loaded here."""
    found: dict[str, object] = {}
    if "torch" in sys.modules:
        from ezpz.dist.info import library_versions

        found |= library_versions()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None:
        found["mpi"] = str(mpi.Get_library_version()).split("\n", 1)[0].strip(" \0")[:120]
    return {name: str(version) for name, version in found.items() if version}


def _system(read: Callable[[str], str]) -> str:
    names = dict(line.split("=", 1) for line in read("/etc/os-release").splitlines() if "=" in line)
    return names.get("PRETTY_NAME", "").strip('"')
