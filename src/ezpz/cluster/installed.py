"""Find versions of packages by the names of their metadata: nothing is imported, and no file is opened.

``importlib.metadata`` reads more and costs 45 ms of CPU to import, on every host that is looked at.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["MPICH_KIND", "OPEN_MPI", "installed_versions", "mpi_of_mpi4py"]

OPEN_MPI, MPICH_KIND = "Open MPI", "MPICH or Intel MPI"  # programs of the one do not run under the other

_MOST_READ = 1 << 24  # bytes of an extension module
# What the dynamic linker is asked for: libmpi.so.40 of Open MPI (20 before 3.0), libmpi.so.12 of all who keep MPICH's
# binary interface (MPICH, Intel MPI, MVAPICH, Cray: libmpi_cray, libmpi_gnu), libmpich.so.12 on Debian.
_OPEN_MPI = re.compile(rb"\0libmpi\.so\.(?:20|40)\0")
_MPICH = re.compile(rb"\0libmpi(?:ch|_cray|_gnu_\w+|_intel)?\.so\.12\0")


def installed_versions(folders: Iterable[str], packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of packages that are in these folders; the first folder counts, as for an import.

    ``torch-2.13.0+cpu.dist-info`` has the version 2.13.0+cpu. A folder that cannot be listed has none.

    Args:
        folders: Where a Python looks for modules.
        packages: Names that need no normalisation: lower case, without dots and dashes.
    """
    pattern = re.compile(rf"({'|'.join(packages)})-(.+?)(?:-py3\.\d+)?\.(?:dist|egg)-info")
    found: dict[str, str] = {}
    for folder in folders:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            match = pattern.fullmatch(name)
            if match:
                found.setdefault(match[1], match[2])
    return found


def mpi_of_mpi4py(folders: Iterable[str]) -> str:
    """Return `OPEN_MPI` or `MPICH_KIND`, what mpi4py was built for; empty where it fits several, or is unknown.

    Args:
        folders: Where a Python looks for modules; the first mpi4py counts.
    """
    for folder in folders:
        place = os.path.join(folder, "mpi4py")
        try:
            modules = [name for name in os.listdir(place) if name.startswith("MPI.") and name.endswith(".so")]
        except OSError:
            continue
        if len(modules) != 1:  # wheels hold one for each MPI, and take the one that fits
            return ""
        try:
            with open(os.path.join(place, modules[0]), "rb") as file:
                content = file.read(_MOST_READ)
        except OSError:
            return ""
        return OPEN_MPI if _OPEN_MPI.search(content) else MPICH_KIND if _MPICH.search(content) else ""
    return ""
