"""Know the kinds of launcher, called flavours: each file here holds one, which answers the questions of `base.Flavour`.

Their names, and the order in which an ``mpiexec`` is compared with them, are in `ezpz.cluster.launchers`. Adding a
flavour is one file and one word there; docs/launch.md names the tests that fail until it is complete.
"""

from __future__ import annotations

from importlib import import_module

from ezpz.cluster.launchers import FLAVOURS, MPI_FLAVOURS

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.launch.flavours.base import Flavour

__all__ = ["FLAVOURS", "LAST_RESORT", "LOCAL", "MPI_FLAVOURS", "flavour", "identify"]

LOCAL = FLAVOURS[0]  # no launcher at all: `launch` starts the ranks itself, on this host alone
LAST_RESORT = FLAVOURS[-1]  # for other hosts where nothing else is installed


def flavour(name: str) -> Flavour:
    """Return a flavour by its name, one of `FLAVOURS` but `LOCAL`, which is none.

    Raises:
        ValueError: It is none of them.
    """
    if name == LOCAL or name not in FLAVOURS:
        raise ValueError(f"no flavour {name!r}; expected one of {', '.join(FLAVOURS[1:])}")
    known: Flavour = import_module(f"ezpz.launch.flavours.{name}").FLAVOUR
    return known


def identify(text: str) -> str:
    """Return the name of the flavour whose ``mpiexec`` prints this; empty when unknown."""
    return next((name for name in MPI_FLAVOURS if flavour(name).recognises(text)), "")
