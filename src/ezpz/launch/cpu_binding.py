"""Choose the CPUs of each local rank: those of ``--cpu-bind``, those of the site's table, or none.

none                          the launcher's own default stays
auto                          the cores that a host grants, shared among its ranks in order
list:0-7,64-71:8-15           CPUs of local rank 0, 1, …  as PALS writes it
map_cpu:0,8                   one CPU each                 as srun writes it
mask_cpu:0xff,0xff00          the same as hexadecimal masks
depth:8                       eight CPUs each, in order     PALS: --cpu-bind depth --depth 8
cores, threads, sockets, numa one of these parts of a host each
"""

from __future__ import annotations

import glob
import re

from ezpz.errors import UsageError
from ezpz.fields import Record, replace

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.cluster.site import Site

_WORDS = ("none", "auto", "cores", "threads", "sockets", "depth", "numa")
_DEPTH = r"depth(?:(?::|\s+-d\s*|\s+--depth[\s=])([1-9][0-9]{0,3}))?\Z"
_LOUD = re.compile(r"(?:(?:verbose|v|quiet|q),)+")  # in front of a binding of srun and PALS
_CPUS = r"\d+(-\d+)?(,\d+(-\d+)?)*\Z"


_BY_USER = ("--cpu-bind", "--depth", "CPU_BIND")


class Binding(Record):
    """A binding as it was asked for, the CPUs of each local rank when it names them, and who asked."""

    text: str = "none"
    cpus: tuple[str, ...] = ()
    origin: str = "no binding is known here"

    @property
    def masks(self) -> tuple[str, ...]:
        """The CPUs of each local rank as hexadecimal masks."""
        return tuple(hex(sum(1 << cpu for cpu in parse_cpus(cpus))) for cpus in self.cpus)

    @property
    def is_chosen(self) -> bool:
        """Whether the user has named it."""
        return self.origin in _BY_USER

    @property
    def depth(self) -> int:
        """CPUs of each rank; 0 where it is another binding."""
        kind, _, count = self.text.partition(":")
        return int(count or 1) if kind == "depth" else 0

    def shortened(self, ranks: int) -> Binding:
        """Return the binding of the first local ranks alone."""
        return replace(self, cpus=self.cpus[:ranks])


def by_agents(binding: Binding, title: str) -> Binding:
    """Return the binding that the agents of the hosts can make in place of a launcher that binds ranks itself."""
    if binding.text == "none" and not binding.is_chosen:
        return Binding("auto", (), f"{title} binds no rank where agents start them")
    return binding


_UNBOUND = Binding("none", (), "no devices are used, and the site's bindings go by device")


def choose_binding(
    requested: str,
    site: Site | None,
    ranks_per_host: int,
    devices_per_host: int = 0,
    *,
    origin: str = "--cpu-bind",
) -> Binding:
    """Return the binding for hosts of so many ranks.

    Args:
        requested: What the user asked for, or empty.
        site: The machine, whose table may hold bindings for several numbers of ranks.
        ranks_per_host: Ranks of the fullest host.
        devices_per_host: Local rank i uses device i: fewer ranks than devices are bound as the first of as many ranks
            as devices. Without devices only a binding for just so many ranks fits, where the site has none either:
            others would leave CPUs unused.
        origin: Where the user asked for it.

    Raises:
        UsageError: The request cannot be read, or names fewer ranks than a host holds.
    """
    if requested:
        binding = _parse(requested, origin)
        if binding.cpus and len(binding.cpus) < ranks_per_host:
            raise UsageError(
                f"the binding is too short: {requested} (from {origin}) names the CPUs of {len(binding.cpus)} local "
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
    text = _LOUD.sub("", re.sub(r"^--cpu-bind[=\s]\s*", "", text.strip()))
    by_depth = re.match(_DEPTH, text)
    if by_depth:
        return Binding(f"depth:{by_depth[1]}" if by_depth[1] else "depth", (), origin)
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
        f"cannot read the binding {text!r} (from {origin}); expected {', '.join(_WORDS)}, depth:N, or the CPUs of each "
        "local rank as list:0-3:4-7, map_cpu:0,4 or mask_cpu:0xf,0xf0."
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


def chosen_cpus(text: str, allowed: set[int], local_rank: int, local_world_size: int) -> tuple[list[int], str]:
    """Return the CPUs of a rank on this host, and why they are all that it allows where a binding does not fit.

    Args:
        text: ``auto``, ``depth:8``, ``cores``, ``threads``, ``sockets``, ``numa``, or the CPUs of each local rank with
            a colon between them.
        allowed: The CPUs that this host grants.
        local_rank: Which rank of this host.
        local_world_size: How many there are.
    """
    kind, _, count = text.partition(":")
    if kind == "auto":
        return share(allowed, local_rank, local_world_size), ""
    if kind not in _WORDS:
        return parse_cpus(text.split(":")[local_rank]), ""
    if kind == "depth":
        each = int(count or 1)
        parts = _chunks(sorted(allowed), each)
    else:
        parts = _parts(kind, allowed)
    if kind in {"sockets", "numa"} and local_world_size > len(parts):
        return parts[local_rank * len(parts) // local_world_size], ""
    if local_world_size > len(parts):
        wanted = f"{local_world_size} x {count or 1} CPUs" if kind == "depth" else f"{local_world_size} {kind}"
        return sorted(allowed), f"shares all CPUs that are allowed: there are {len(allowed)}, and {text} needs {wanted}"
    return parts[local_rank], ""


def _chunks(cpus: list[int], each: int) -> list[list[int]]:
    return [cpus[at : at + each] for at in range(0, len(cpus) - each + 1, each)]


def _parts(kind: str, allowed: set[int]) -> list[list[int]]:
    """Return the allowed CPUs by cores, threads, sockets or NUMA domains, in the order of their first CPU.

    From ``/sys/devices/system/cpu/cpu0/topology/thread_siblings_list`` (``0,64``), ``…/physical_package_id`` (``0``)
    and the folders ``/sys/devices/system/cpu/cpu0/node1``. A machine that shows none of it has one of each.
    """
    parts: dict[str, list[int]] = {}
    for cpu in sorted(allowed):
        folder = f"/sys/devices/system/cpu/cpu{cpu}"
        if kind == "threads":
            name = str(cpu)
        elif kind == "numa":
            name = next((path.rpartition("/")[2] for path in glob.glob(f"{folder}/node[0-9]*")), "")
        elif kind == "cores":
            name = _first_line(f"{folder}/topology/thread_siblings_list") or str(cpu)
        else:
            name = _first_line(f"{folder}/topology/physical_package_id")
        parts.setdefault(name, []).append(cpu)
    return list(parts.values())


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.readline().strip()
    except OSError:
        return ""


def share(allowed: set[int], local_rank: int, local_world_size: int) -> list[int]:
    """Return a rank's part of the CPUs that a host allows: whole cores in order, those left over to the first ranks.

    Hardware threads of one core stay together
    More ranks than cores share them all.
    """
    parts = _parts("cores", allowed)
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
