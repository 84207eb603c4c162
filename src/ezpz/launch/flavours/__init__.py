"""Kinds of launcher, one file each; every one answers the same questions about an `Order`.

    NAME                     what the user reads
    BINDS                    whether it binds ranks to CPUs itself; else the shim in front of a rank does
    command(order)           the words up to the program, each with its reason
    environment(order)       variables that the launcher itself needs, each with its reason
    hostfile_line(host, n)   the dialect of its host file
    recognises(said)         whether ``EXE --version`` or ``--help`` speaks of it

Adding a flavour is one file and one word in a tuple below; docs/launch.md tells which tests fail until it is complete.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.launch.flavours.request import Flag, Order, Setting

__all__ = ["FLAVOURS", "MPI_FLAVOURS", "Flavour", "flavour", "identify"]

# Behind an `mpiexec`. Intel MPI is asked before MPICH: it is built on the same Hydra and some builds print both names.
MPI_FLAVOURS = ("impi", "openmpi5", "openmpi4", "pals", "mpich")
FLAVOURS = ("local", *MPI_FLAVOURS, "srun", "flux", "torchrun", "ssh")


class Flavour(Protocol):
    """The module of one flavour."""

    NAME: str
    BINDS: bool

    def command(self, order: Order) -> list[Flag]:
        """Return the words in front of the program."""

    def environment(self, order: Order) -> Mapping[str, Setting]:
        """Return the variables that the launcher itself needs."""

    def hostfile_line(self, host: str, count: int) -> str:
        """Return one line of the host file."""

    def recognises(self, said: str) -> bool:
        """Tell whether what the program said of itself is this flavour's."""


def flavour(name: str) -> Flavour:
    """Return the module of a flavour by its name."""
    return cast("Flavour", import_module(f"ezpz.launch.flavours.{name}"))


def identify(said: str) -> str:
    """Return the flavour that a program says it is; empty when unknown."""
    return next((name for name in MPI_FLAVOURS if flavour(name).recognises(said)), "")
