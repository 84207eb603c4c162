"""Which flavour an ``mpiexec`` is, by what it says of itself; asked once per program and kept.

The answer is kept in ``$XDG_CACHE_HOME/ezpz/launchers.json`` under the program's real path, size and time of change:

    {"/opt/mpich/bin/mpiexec.hydra 123456 1795188151000000000": ["mpich", "5.0.2"]}
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from ezpz.cluster.cache import keep, kept, state_of
from ezpz.launch import flavours

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.allocation import Run

__all__ = ["Identity", "identify"]

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
