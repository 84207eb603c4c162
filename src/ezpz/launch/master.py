"""Choose the address and port where the ranks meet, and where the launcher listens for its agents."""

from __future__ import annotations

import os
import socket
import time

from ezpz import proc
from ezpz.cluster.network import route_to
from ezpz.cluster.probe import is_here
from ezpz.errors import LaunchError, UsageError
from ezpz.fields import Record
from ezpz.launch.flavours.request import Setting

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.site import Site
    from ezpz.launch.placement import Placement

# Below the ports that Linux hands out for outgoing connections (32768 on), above the well-known ones.
_REMOTE_PORTS = range(20_000, 32_000)
_NAMES = 3  # addresses of this host that agents try
_TRIED = 8  # hosts that are looked up for one whose name is known
_FOR_ROUTES = 2.0  # seconds for the names of all hosts to become routes


class Master(Record):
    """An address, and who chose it; a note when it is not what was advised."""

    address: str
    origin: str
    note: str = ""


class Rendezvous:
    """Address and port where the ranks of one start meet; a context manager that holds the port.

    Attributes:
        address: The address, and who chose it.
        port: The port, and who chose it.
        note: What the user should know about the address; or empty.
    """

    __slots__ = ("_held", "address", "note", "port")

    def __init__(self, address: Setting, port: Setting, note: str, held: socket.socket | None) -> None:
        self.address, self.port, self.note, self._held = address, port, note, held

    def __enter__(self) -> Rendezvous:  # noqa: PYI034  # Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        if self._held:
            self._held.close()


def choose_rendezvous(
    placement: Placement,
    environ: Mapping[str, str],
    site: Site | None,
    *,
    must_know: bool,
    wanted: tuple[str, str] = ("", ""),
) -> Rendezvous:
    """Return where the ranks meet: `choose_address` and `choose_port` together.

    Args:
        placement: Ranks per host.
        environ: Holds the user's own ``MASTER_ADDR`` and ``MASTER_PORT``, perhaps.
        site: The machine, whose rule names hosts.
        must_know: As in `choose_address`.
        wanted: ``--master-addr`` and ``--master-port``, above the environment; empty where they were not given.

    Raises:
        EzpzError: No address or port can be used.
    """
    address = choose_address(placement, environ, site, must_know=must_know, wanted=wanted[0])
    port, origin, held = choose_port(placement, environ, wanted[1])
    return Rendezvous(Setting(address.address, address.origin), Setting(str(port), origin), address.note, held)


def choose_address(
    placement: Placement, environ: Mapping[str, str], site: Site | None, *, must_know: bool = True, wanted: str = ""
) -> Master:
    """Return the address of rank 0's host as all ranks can reach it.

    Args:
        placement: Ranks per host.
        environ: Holds the user's own ``MASTER_ADDR``, perhaps.
        site: The machine, whose rule names hosts.
        must_know: Refuse a name that is unknown on this host; without it such a name is a note, because a host that is
            none of the job's, such as a login host, need not know the names that the job's hosts know.
        wanted: ``--master-addr``, or empty.

    Raises:
        UsageError: The user's own address is this host's loopback, while ranks run on other hosts too.
        LaunchError: No name of the first host can be resolved to an address that other hosts reach.
    """
    first = placement.hosts[0]
    requested, origin_asked, undo = _requested(wanted, "--master-addr", environ, "MASTER_ADDR")
    if len(placement.hosts) == 1 and is_here(first):
        return Master(requested or "127.0.0.1", origin_asked if requested else "all ranks are here")
    if requested:
        if _is_loopback(requested):
            raise UsageError(
                f"unusable address {requested!r} (from {origin_asked}): ranks run on {len(placement.hosts)} hosts "
                f"from {first} on, and it means each host itself; expected an address of the first host. "
                f"{undo}."
            )
        return Master(requested, origin_asked)
    advised = _by_site(first, site) if site else first
    origin = f"first host, as site {site.name} names it" if site and advised != first else "first host"
    if _reachable(advised):
        return Master(advised, origin)
    if advised != first and _reachable(first):
        return Master(
            first,
            "first host",
            f"{advised}, as site {site.name if site else ''} names it, does not resolve here: {first} is used",
        )
    if not must_know and not _resolved(advised):
        return Master(advised, origin, f"{advised} is unknown on this host; the ranks' hosts must know it")
    if is_here(first):
        # Debian's /etc/hosts gives a host's own name 127.0.1.1: the address on the route to the others is meant.
        route = route_to(next(host for host in placement.hosts if not is_here(host)))
        if route.address and not _is_loopback(route.address):
            return Master(route.address, f"{route.origin}, because {first} is a loopback address here")
    raise LaunchError(
        f"no address of {first} (the first host) that other hosts reach: {advised} is unknown or a loopback address "
        "here; expected a name in DNS or /etc/hosts. Set it: `export MASTER_ADDR=ADDRESS`."
    )


def refuse_without_loopback() -> None:
    """Refuse to let ranks meet on this host where they cannot: torch would wait for its 300 s.

    Raises:
        LaunchError: Nothing reaches 127.0.0.1, as in a sandbox whose interface ``lo`` is down.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as looks:
            looks.connect(("127.0.0.1", 9))  # sends nothing
    except OSError as error:
        raise LaunchError(
            f"ranks cannot meet at 127.0.0.1: {error.strerror} (from this host's network); expected its loopback "
            "interface to be up. Run `ip link set lo up` as root, start the sandbox with a network, or, for programs "
            "that do not meet, write `launch --check off …`."
        ) from None


def _requested(wanted: str, option: str, environ: Mapping[str, str], name: str) -> tuple[str, str, str]:
    """Return what the user asked for, where, and how to take it back; with RANK a variable is a leftover."""
    if wanted:
        return wanted, option, f"Leave {option} out"
    return ("" if "RANK" in environ else environ.get(name, "")), name, f"Run `unset {name}`"


def choose_port(
    placement: Placement, environ: Mapping[str, str], wanted: str = ""
) -> tuple[int, str, socket.socket | None]:
    """Return a port for the rendezvous, who chose it, and the socket that keeps it ours.

    On this host the socket is bound but does not listen: with ``SO_REUSEADDR`` on both sides the kernel lets rank 0's
    store listen on it, while it gives the port to no other, neither to another launch nor to an outgoing connection.
    On another host the shim of rank 0 does the same; when the port is taken there, a second start chooses another.

    Raises:
        UsageError: The user's ``MASTER_PORT`` is no port, or another process holds it.
    """
    requested, origin_asked, undo = _requested(wanted, "--master-port", environ, "MASTER_PORT")
    if requested and not (requested.isdigit() and 0 < int(requested) < 65536):
        raise UsageError(f"unusable port {requested!r} (from {origin_asked}); expected 1 to 65535. {undo}.")
    if not is_here(placement.hosts[0]):
        if requested:
            return int(requested), origin_asked, None
        return _REMOTE_PORTS[int.from_bytes(os.urandom(4), "big") % len(_REMOTE_PORTS)], "random", None
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind(("", int(requested or 0)))
    except OSError as error:
        held.close()
        holder = _holder(int(requested))
        raise UsageError(
            f"cannot use port {requested} (from {origin_asked}): {error.strerror}{holder}; expected a free one. "
            f"{undo}, or set another."
        ) from None
    return held.getsockname()[1], origin_asked if requested else "free on this host, and held", held


class ListenAddress(Record):
    """Where the launcher listens for its agents.

    Attributes:
        address: Of the interface; empty for all interfaces.
        names: Addresses and names by which agents try to reach it, in this order.
        origin: Why there.
        exposed: Whether it is all interfaces because the one that leads to the hosts is not known.
    """

    address: str
    names: tuple[str, ...]
    origin: str
    exposed: bool = False


def listening(placement: Placement) -> ListenAddress:
    """Return where to listen for the agents: on the interface through which this host reaches all others, else on all.

    What this host would use as its own address towards another is where that one can answer to.
    """
    others = [host for host in placement.hosts if not is_here(host)]
    if not others:
        return ListenAddress("127.0.0.1", ("127.0.0.1",), "all ranks are here")
    end = time.monotonic() + _FOR_ROUTES
    found: dict[str, str] = {}  # address: the first host towards which it is used
    unknown = ""
    for number, host in enumerate(others):
        if unknown and (found or number > _TRIED):
            break  # what the others would say changes little, and unknown names take long
        if time.monotonic() > end:
            unknown = unknown or f"it took more than {_FOR_ROUTES:g} s to look up {number} of {len(others)} hosts"
            break
        address = route_to(host).address
        if address:
            found.setdefault(address, host)
        else:
            unknown = unknown or f"this host knows no route to {host}"
    if len(found) == 1 and not unknown:
        (address,) = found
        several = f"all {len(others)} other hosts"
        return ListenAddress(address, (address,), f"the route to {several if len(others) > 1 else others[0]}")
    why = unknown or "; ".join(f"{address} is the way to {host}" for address, host in list(found.items())[:_NAMES])
    outside = [address for address in found if not _is_loopback(address)][:_NAMES]
    return ListenAddress("", (*outside, socket.gethostname()), why, exposed=True)


def _by_site(host: str, site: Site) -> str:
    name = site.address.replace("{host}", host).replace("{short}", host.split(".", 1)[0])
    if "{ip}" not in name:
        return name
    try:
        return name.replace("{ip}", socket.gethostbyname(host))
    except OSError:
        return host


def _reachable(name: str) -> bool:
    """Tell whether a name is known here and means no loopback address."""
    from ipaddress import ip_address

    texts = _resolved(name)
    return bool(texts) and not any(ip_address(text).is_loopback for text in texts)


def _resolved(name: str) -> list[str]:
    """Return the addresses of a name; none when it is unknown here."""
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [str(where[0]).split("%", maxsplit=1)[0] for *_, where in answers]


def _is_loopback(name: str) -> bool:
    from ipaddress import ip_address

    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.startswith("localhost.")


def _holder(port: int) -> str:
    """Return `` by NAME (pid N)`` of the process that listens on a port, where /proc shows it to this user."""
    sockets = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                rows = [line.split() for line in file.readlines()[1:]]
        except OSError:
            continue
        sockets |= {f"socket:[{row[9]}]" for row in rows if int(row[1].rsplit(":", 1)[1], 16) == port}
    for pid in proc.pids() if sockets else ():
        try:
            if any(proc.link(pid, f"fd/{fd}") in sockets for fd in os.listdir(f"/proc/{pid}/fd")):
                return f" by {proc.name(pid)} (pid {pid})"
        except OSError:
            continue  # another user's process, or one that has just ended
    return ""
