"""Kinds of launcher, one file each; every one answers the same questions.

    NAME                                  what the user reads
    command(exe, placement, hostfile)     the words up to the program, as a list
    environment(placement)                variables that the launcher itself needs
    hostfile_line(host, count)            the dialect of its host file
    recognises(version)                   whether ``EXE --version`` speaks of it (flavours behind an mpiexec only)

Adding a flavour is one file and one word in the tuple below.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from ezpz.launch.placement import Placement

__all__ = ["MPI_FLAVOURS", "Flavour", "flavour", "identify"]

# Intel MPI is asked before MPICH: it is built on the same Hydra and some builds print both names.
MPI_FLAVOURS = ("impi", "openmpi", "mpich")


class Flavour(Protocol):
    """The module of one flavour."""

    NAME: str

    def command(self, exe: str, placement: Placement, hostfile: str) -> list[str]:
        """Return the words in front of the program; ``hostfile`` is empty on one host."""

    def environment(self, placement: Placement) -> dict[str, str]:
        """Return the variables that the launcher itself needs."""

    def hostfile_line(self, host: str, count: int) -> str:
        """Return one line of the host file."""

    def recognises(self, version: str) -> bool:
        """Tell whether the text that ``--version`` printed is this flavour's."""


def flavour(name: str) -> Flavour:
    """Return the module of a flavour by its name."""
    return cast("Flavour", import_module(f"ezpz.launch.flavours.{name}"))


def identify(version: str) -> Flavour | None:
    """Return the flavour that an ``mpiexec`` says it is, from the text of ``--version``; None when unknown."""
    return next((found for found in map(flavour, MPI_FLAVOURS) if found.recognises(version)), None)
