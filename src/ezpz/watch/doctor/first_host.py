"""Let the hosts of a job meet at the first one: who reaches it, and how far clocks differ.

Every host but the first connects to it. The first asks each for its time, which the round trip makes exact: the answer
was given between question and receipt.
"""

from __future__ import annotations

import socket
import time

from ezpz.cluster.network import REFUSED_ON_THE_WAY, is_refused_by_icmp, keep_icmp

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from typing import Any

__all__ = ["LIMIT", "join", "receive"]

LIMIT = 3.5  # seconds for all hosts to reach the first
_ANSWER = 1.0  # seconds for a host that has connected to answer
_ASKED = 3  # times: the shortest round trip counts


def receive(port: int, count: int) -> dict[str, Any]:
    """Wait for the other hosts, as the first.

    Args:
        port: Where they connect.
        count: How many there are.

    Returns:
        ``problem``, empty where it could listen; ``clocks`` (rank to how many seconds the clock of its host is ahead of
        this one's, and the round trip in seconds).
    """
    end = time.monotonic() + LIMIT
    clocks: dict[str, list[float]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("", port))
        except OSError as error:
            return {"problem": f"cannot listen on port {port}: {error.strerror}"}
        server.listen(1024)
        while len(clocks) < count and time.monotonic() < end:
            server.settimeout(max(0.01, end - time.monotonic()))
            try:
                connection, _ = server.accept()
            except OSError:
                break  # those that did not come report it themselves
            with connection:
                try:
                    rank, clock = _greet(connection)
                except (OSError, ValueError, TypeError, OverflowError):  # it left, was too slow, or is no host of ours
                    continue
                clocks[str(rank)] = clock
    return {"problem": "", "clocks": clocks}


def join(name: str, port: int, rank: int) -> dict[str, Any]:
    """Connect to the first host, which may not listen yet, and answer it.

    Returns:
        ``problem``, empty where it was reached.
    """
    end, problem = time.monotonic() + LIMIT, "no answer"
    while time.monotonic() < end:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
            keep_icmp(connection)
            connection.settimeout(max(0.1, end - time.monotonic()))
            try:
                connection.connect((name, port))
            except OSError as error:
                if isinstance(error, ConnectionRefusedError) and is_refused_by_icmp(connection):
                    return {"problem": REFUSED_ON_THE_WAY}
                problem = str(error.strerror or error)
                time.sleep(0.05)
                continue
            try:
                _answer(connection, rank, 2 * LIMIT)
            except (OSError, ValueError):
                pass  # the first host had no time for this one, but it was reached
        return {"problem": ""}
    return {"problem": problem}


def _greet(connection: socket.socket) -> tuple[int, list[float]]:
    """Return the rank of a host that has connected, how far its clock is ahead, and the round trip."""
    connection.settimeout(_ANSWER)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reader = connection.makefile("r", encoding="utf-8")
    rank = int(_read(reader))
    best: list[float] = []
    for _ in range(_ASKED):
        asked = time.time()
        _send(connection, "time")
        theirs = float(_read(reader))
        trip = time.time() - asked
        if not best or trip < best[1]:
            best = [theirs - (asked + trip / 2), trip]
    return rank, best


def _answer(connection: socket.socket, rank: int, limit: float) -> None:
    """Greet the first host, and answer its questions for the time until it ends the connection."""
    connection.settimeout(limit)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reader = connection.makefile("r", encoding="utf-8")
    _send(connection, rank)
    while _read(reader) == "time":
        _send(connection, time.time())


def _send(connection: socket.socket, message: object) -> None:
    import json

    connection.sendall(json.dumps(message).encode() + b"\n")


def _read(reader: Any) -> Any:
    import json

    return json.loads(reader.readline(1 << 22))  # an empty line, at the end of a connection, is a ValueError
