"""Choose the CPUs of each local rank: those of ``--cpu-bind``, those of the site's table, or none.

none                          the launcher's own default stays
auto                          the cores that a host grants, shared among its ranks in order
list:0-7,64-71:8-15           CPUs of local rank 0, 1, …  as PALS writes it
map_cpu:0,8                   one CPU each                 as srun writes it
mask_cpu:0xff,0xff00          the same as hexadecimal masks
cores, threads, depth, …      a word for a launcher that has a binding of its own
"""

from __future__ import annotations

import re

from ezpz.errors import UsageError
from ezpz.records import NamedTuple

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.cluster.site import Site

_WORDS = ("none", "auto", "cores", "threads", "sockets", "depth", "numa")
_CPUS = r"\d+(-\d+)?(,\d+(-\d+)?)*\Z"


class Binding(NamedTuple):
    """A binding as it was asked for, the CPUs of each local rank when it names them, and who asked."""

    text: str = "none"
    cpus: tuple[str, ...] = ()
    origin: str = "no binding is known here"

    @property
    def masks(self) -> tuple[str, ...]:
        """The CPUs of each local rank as hexadecimal masks."""
        return tuple(hex(sum(1 << cpu for cpu in parse_cpus(cpus))) for cpus in self.cpus)

    def shortened(self, ranks: int) -> Binding:
        """Return the binding of the first local ranks alone."""
        return self._replace(cpus=self.cpus[:ranks])


def by_agents(binding: Binding, title: str) -> Binding:
    """Return the binding that the agents of the hosts can make in place of a launcher that binds ranks itself.

    Raises:
        UsageError: It is a word that only the launcher understands.
    """
    if binding.cpus or binding.text == "auto" or binding == Binding("none", (), "--cpu-bind"):
        return binding
    if binding.text == "none":
        return Binding("auto", (), f"{title} binds no rank where agents start them")
    raise UsageError(
        f"cannot bind ranks by {binding.text!r} (from {binding.origin}): {title} itself knows what that is, and under "
        "--mpi no it starts agents, not ranks; expected auto, none or the CPUs of each local rank. Use `--cpu-bind "
        "auto`, or `--mpi yes`."
    )


_UNBOUND = Binding("none", (), "no devices are used, and the site's bindings go by device")


def choose_binding(requested: str, site: Site | None, ranks_per_host: int, devices_per_host: int = 0) -> Binding:
    """Return the binding for hosts of so many ranks.

    Args:
        requested: ``--cpu-bind``, or empty.
        site: The machine, whose table may hold bindings for several numbers of ranks.
        ranks_per_host: Ranks of the fullest host.
        devices_per_host: Local rank i uses device i: fewer ranks than devices are bound as the first of as many ranks
            as devices. Without devices only a binding for just so many ranks fits, where the site has none either:
            others would leave CPUs unused.

    Raises:
        UsageError: The request cannot be read, or names fewer ranks than a host holds.
    """
    if requested:
        binding = _parse(requested, "--cpu-bind")
        if binding.cpus and len(binding.cpus) < ranks_per_host:
            raise UsageError(
                f"the binding is too short: {requested} (from --cpu-bind) names the CPUs of {len(binding.cpus)} local "
                f"ranks; expected {ranks_per_host}, one per rank of a host. Add {ranks_per_host - len(binding.cpus)}, "
                f"or use `--ppn {len(binding.cpus)}` or `--cpu-bind auto`."
            )
        return binding.shortened(ranks_per_host)
    table = site.cpu_bind if site else {}
    if site and table and not devices_per_host and not ("any" in table or _fits_cpus(site, ranks_per_host)):
        return _UNBOUND
    fitting = sorted(int(key) for key in table if key.isdigit() and int(key) >= ranks_per_host)
    if site and (fitting or "any" in table):
        key = str(devices_per_host if devices_per_host in fitting else fitting[0]) if fitting else "any"
        return _parse(table[key], f"site {site.name}, cpu_bind.{key}").shortened(ranks_per_host)
    return Binding()


def _fits_cpus(site: Site, ranks_per_host: int) -> bool:
    return site.device == "cpu" and str(ranks_per_host) in site.cpu_bind


def _parse(text: str, origin: str) -> Binding:
    kind, colon, rest = text.partition(":")
    if not colon and kind in _WORDS:
        return Binding(text, (), origin)
    groups = rest.split(":" if kind == "list" else ",")
    try:
        if kind == "list" and all(re.match(_CPUS, group) for group in groups):
            for group in groups:
                parse_cpus(group)
            return Binding(text, tuple(groups), origin)
        if kind == "map_cpu":
            return Binding(text, tuple(str(int(group)) for group in groups), origin)
        if kind == "mask_cpu":
            return Binding(text, tuple(_unmasked(int(group, 16)) for group in groups), origin)
    except ValueError:
        pass  # refused below
    raise UsageError(
        f"cannot read the binding {text!r} (from {origin}); expected {', '.join(_WORDS)}, or the CPUs of each local "
        "rank as list:0-3:4-7, map_cpu:0,4 or mask_cpu:0xf,0xf0."
    )


def parse_cpus(text: str) -> list[int]:
    """Return the CPUs of ``0-3,8``.

    Raises:
        ValueError: A range descends.
    """
    cpus: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        if int(high or low) < int(low):
            raise ValueError(text)
        cpus += range(int(low), int(high or low) + 1)
    return cpus


def share(allowed: set[int], local_rank: int, local_world_size: int) -> list[int]:
    """Return a rank's part of the CPUs that a host allows: whole cores in order, those left over to the first ranks.

    Hardware threads of one core stay together
    (``/sys/devices/system/cpu/cpu0/topology/thread_siblings_list``: ``0,64``).
    More ranks than cores share them all.
    """
    cores: dict[str, list[int]] = {}
    for cpu in sorted(allowed):
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", encoding="ascii") as file:
                core = file.read().strip()
        except OSError:
            core = str(cpu)
        cores.setdefault(core, []).append(cpu)
    parts = list(cores.values())
    if len(parts) < local_world_size:
        return sorted(allowed)
    each, left = divmod(len(parts), local_world_size)
    start = local_rank * each + min(local_rank, left)
    return sorted(cpu for part in parts[start : start + each + (local_rank < left)] for cpu in part)


def _unmasked(mask: int) -> str:
    cpus = [str(cpu) for cpu in range(mask.bit_length()) if mask >> cpu & 1]
    if not cpus:
        raise ValueError(mask)
    return ",".join(cpus)
