"""Open MPI 4, whose process manager is ORTE; measured with 4.1.8.

    $ mpiexec --version
    mpiexec (OpenRTE) 4.1.8

The line is that of Open MPI 5; root is allowed under fewer names.
"""

from __future__ import annotations

import re

from ezpz.launch.flavours.openmpi5 import OpenMpi5

__all__ = ["FLAVOUR"]

_VERSION = re.compile(r"\((?:Open MPI|OpenRTE)\) ([1-4])\.")


class OpenMpi4(OpenMpi5):
    """The mpiexec of Open MPI before 5."""

    name = "openmpi4"
    title = "Open MPI 4"
    root_switches = OpenMpi5.root_switches[:2]

    def recognises(self, text: str) -> bool:
        """Tell whether ``--version`` names Open MPI before 5."""
        return bool(_VERSION.search(text))


FLAVOUR = OpenMpi4()
