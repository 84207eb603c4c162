"""The network interface and address by which this host speaks with the others of its job.

The kernel is asked, not guessed at by names: a UDP socket that is connected to a host sends nothing, but its own
address is the one that packets to that host would carry. On Linux the interface is found by its address
(``SIOCGIFADDR``, netdevice(7)).
"""

from __future__ import annotations

import socket
import struct
import sys

from ezpz.fields import Record

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_SIOCGIFADDR = 0x8915  # linux/sockios.h
INTERFACE_VARIABLES = (  # which interface a library is to use
    "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "CCL_KVS_IFACE", "FI_TCP_IFACE",
)  # fmt: skip
REFUSED_ON_THE_WAY = "a firewall refuses the connection"  # why a host is not reached
_RECVERR = {  # of linux/in.h and linux/in6.h: messages of ICMP are kept for the socket, see ip(7)
    socket.AF_INET: (socket.IPPROTO_IP, 11),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 25),
}
_NOWHERE = "192.0.2.1"  # RFC 5737: an address of no host; the kernel answers with its default route


class Route(Record):
    """Where packets to a host leave this one: interface and address are empty when there is no way."""

    interface: str
    address: str
    origin: str


def route_to(host: str = "") -> Route:
    """Return the route to a host, or the default route.

    Args:
        host: A name or an address; empty for the default route.
    """
    origin = f"the route to {host}" if host else "the default route"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host or _NOWHERE, 9))
            address = probe.getsockname()[0]
    except OSError as error:
        return Route("", "", f"{origin}: {error.strerror or error}")
    return Route(_interface(address), address, origin)


def _interface(address: str) -> str:
    """Return the name of the interface that has an address; empty where the system does not tell."""
    return next((name for name, own in interface_addresses() if own == address), "")


def keep_icmp(connection: socket.socket) -> None:
    """Have the kernel keep what `is_refused_by_icmp` asks for, before a socket is connected; Linux alone does."""
    if sys.platform == "linux":
        connection.setsockopt(*_RECVERR[connection.family], 1)


def is_refused_by_icmp(connection: socket.socket) -> bool:
    """Tell whether a message of ICMP has refused a connection.

    A firewall does so (``REJECT`` of iptables, ``reject`` of nft); a host where nobody listens resets it. False where
    that is not known.
    """
    connection.setblocking(False)  # with a time limit Python would wait for such a message
    try:
        return bool(connection.recvmsg(1, 512, socket.MSG_ERRQUEUE)[1])
    except (OSError, AttributeError):  # no such message; not Linux
        return False


def interface_addresses() -> Iterator[tuple[str, str]]:
    """Yield each interface and its IPv4 address, which is empty where it has none; nothing where the system cannot."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
                yield name, socket.inet_ntoa(answer[20:24])
            except OSError:  # an interface without an address; macOS, which numbers its questions differently
                yield name, ""


def chosen_interfaces(name: str, value: str, interfaces: Sequence[str]) -> list[str]:
    """Return those of a host's interfaces that a variable of `INTERFACE_VARIABLES` allows.

    NCCL takes prefixes unless ``=`` is in front, the others whole names; ``^`` is all but these.
    """
    is_not = value.startswith("^")
    words = value.removeprefix("^")
    by_prefix = name.startswith("NCCL") and not words.startswith("=")
    parts = [part.partition(":")[0].lstrip("=") for part in words.split(",")]
    matches = [each for each in interfaces for part in parts if each == part or (by_prefix and each.startswith(part))]
    return [each for each in interfaces if (each in matches) is not is_not]


def missing_interfaces(environ: Mapping[str, str], interfaces: Sequence[str]) -> list[str]:
    """Return the variables, ``GLOO_SOCKET_IFNAME=ib7``, that name only interfaces that are not there."""
    return [
        f"{name}={value}"
        for name in INTERFACE_VARIABLES
        if (value := environ.get(name, "")) and not chosen_interfaces(name, value, interfaces)
    ]
