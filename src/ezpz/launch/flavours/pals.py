"""Cray PALS, the ``mpiexec`` of HPE Cray EX under PBS (Aurora, Polaris, Crux).

It has no text that names it: its program is in a folder ``…/pals/…``, and its ``--help`` has ``--cpu-bind``,
``--depth`` and ``--no-vni``, which no other mpiexec has together. From the sites' pages
(argonne-lcf/user-guides@7d04a3f9, running jobs):

    mpiexec -n 24 -ppn 12 --hostfile FILE --cpu-bind list:4-7:8-11:… --envall python3 …

Host file: a host per line. ``--ppn`` ranks go to each host in turn, so only the last host can hold fewer. It rejects
the words of Hydra and Open MPI (``--bind-to``, ``--map-by``, ``-x``).
"""

from __future__ import annotations

from ezpz.errors import LaunchError
from ezpz.launch.cpu_binding import Binding
from ezpz.launch.flavours.base import MpiFlavour
from ezpz.launch.flavours.request import Flag

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.launch.flavours.request import Order


class Pals(MpiFlavour):
    """The mpiexec of Cray PALS."""

    name = "pals"
    title = "PALS"
    family = "pals"
    binds = True
    may_start_agents = False  # Cray's MPI asks PALS itself who it is: nothing is known to keep it from a world of 1

    def recognises(self, text: str) -> bool:
        """Tell whether ``--help`` is that of PALS, or the text is a path of it."""
        return "/pals/" in text or all(word in text for word in ("--cpu-bind", "--depth", "--no-vni"))

    def command(self, order: Order) -> list[Flag]:
        """Return ``mpiexec --envall -n 24 --ppn 12 --hostfile FILE --cpu-bind list:…``.

        Raises:
            LaunchError: Another host than the last is to hold fewer ranks.
        """
        counts = order.placement.counts
        if any(count != counts[0] for count in counts[:-1]) or counts[-1] > counts[0]:
            raise LaunchError(
                f"PALS cannot place {order.placement.encode()} ranks (from {order.placement.origin}): it puts the "
                "same number on every host but the last. Use `--ppn N`, or name the fuller hosts with --hosts in a "
                "launch of their own."
            )
        flags = [
            Flag((order.exe,), "launcher"),
            Flag(("--envall",), "the user's variables"),
            Flag(("-n", str(order.placement.world_size)), order.placement.origin),
            Flag(("--ppn", str(counts[0])), "ranks per host"),
        ]
        if order.hostfile:
            flags.append(Flag(("--hostfile", order.hostfile), "hosts"))
        if order.binding.depth:
            depth = ("--depth", str(order.binding.depth))
            flags.append(Flag(("--cpu-bind", "depth", *depth), order.binding.origin))
        elif order.binding.text not in {"none", "auto"}:
            words = f"list:{':'.join(order.binding.cpus)}" if order.binding.cpus else order.binding.text
            flags.append(Flag(("--cpu-bind", words), order.binding.origin))
        elif order.binding.text == "none" and order.binding != Binding():  # chosen, and not for want of an answer
            flags.append(Flag(("--cpu-bind", "none"), order.binding.origin))
        return [*flags, *order.tail()]

    def hostfile_line(self, host: str, count: int) -> str:
        """Return the host alone."""
        del count
        return host


FLAVOUR = Pals()
