"""Apple: a Mac with Apple silicon has one device, which torch calls mps; uname tells ("Darwin", "arm64")."""

from __future__ import annotations

import os

from ezpz.cluster.devices.device_answer import Devices

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ezpz.cluster.allocation import Read, Run

KIND = "mps"
LOOKED = "uname: Darwin, arm64"


def exists(environ: Mapping[str, str], read: Read, uname: Callable[[], os.uname_result] = os.uname) -> int | None:
    """Return 1 on Apple silicon, else None; a Python that runs as x86_64 there has a torch without mps."""
    del environ, read
    machine = uname()
    return 1 if (machine.sysname, machine.machine) == ("Darwin", "arm64") else None


def probe(environ: Mapping[str, str], read: Read, run: Run) -> Devices:
    """Return the one device."""
    del environ, read, run
    return Devices(1, KIND, LOOKED)
