"""Let the hosts of a job meet at the first one: who reaches it, how far clocks differ, how fast neighbours speak.

Every host but the first connects to it. The first asks each for its time, which the round trip makes exact: the answer
was given between question and receipt. With `full`, it then sends everybody the list of all hosts, and each measures
latency and bandwidth to the next in the ring, in two or three rounds so that no host sends and receives at once.
"""

from __future__ import annotations

import os
import socket
import time

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from typing import Any

__all__ = ["LIMIT", "join", "receive"]

LIMIT = 3.5  # seconds for all hosts to reach the first
_ANSWER = 1.0  # seconds for a host that has connected to answer
_ASKED = 3  # times: the shortest round trip counts
_ROUND = 1.0  # seconds for one round of the ring
_SENDING = 0.3  # seconds of it in which bytes are sent
_ECHOES = 20
_BLOCK = bytes(1 << 18)


def receive(port: int, count: int, *, full: bool) -> dict[str, Any]:
    """Wait for the other hosts, as the first.

    Args:
        port: Where they connect.
        count: How many there are.
        full: Measure the ring as well.

    Returns:
        ``problem``, empty where it could listen; ``clocks`` (rank to how many seconds the clock of its host is ahead of
        this one's, and the round trip in seconds); with `full`, ``next`` as `_measure` has it.
    """
    end = time.monotonic() + LIMIT
    clocks: dict[str, list[float]] = {}
    waiting: dict[int, tuple[socket.socket, list[Any]]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server, _Sink(full) as sink:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("", port))
        except OSError as error:
            return {"problem": f"cannot listen on port {port}: {error.strerror}"}
        server.listen(1024)
        while len(waiting) < count and time.monotonic() < end:
            server.settimeout(max(0.01, end - time.monotonic()))
            try:
                connection, address = server.accept()
            except OSError:
                break  # those that did not come report it themselves
            try:
                rank, host, own = _greet(connection, clocks)
                waiting[rank] = (connection, [rank, host, address[0], own])
            except (OSError, ValueError):  # it left, was too slow, or is no host of ours
                connection.close()
        peers = [[0, os.uname().nodename, "", sink.port], *(waiting[rank][1] for rank in sorted(waiting))]
        for connection, _ in waiting.values():
            _send(connection, peers if full else [])
            connection.close()
        measured = _measure(peers, 0, sink, "") if full else {}
    return {"problem": "", "clocks": clocks, **({"next": measured} if measured else {})}


def join(name: str, port: int, rank: int, *, full: bool) -> dict[str, Any]:
    """Connect to the first host, which may not listen yet, and answer it.

    Returns:
        ``problem``, empty where it was reached; with `full`, ``next`` as `_measure` has it.
    """
    end, problem = time.monotonic() + LIMIT, "no answer"
    with _Sink(full) as sink:
        while time.monotonic() < end:
            try:
                connection = socket.create_connection((name, port), timeout=max(0.1, end - time.monotonic()))
            except OSError as error:
                problem = str(error.strerror or error)
                time.sleep(0.05)
                continue
            with connection:
                address = connection.getpeername()[0]
                try:
                    peers = _answer(connection, [rank, os.uname().nodename, sink.port], 2 * LIMIT)
                except (OSError, ValueError):
                    peers = []  # the first host had no time for this one, but it was reached
            measured = _measure(peers, rank, sink, address) if full and peers else {}
            return {"problem": "", **({"next": measured} if measured else {})}
    return {"problem": problem}


def _greet(connection: socket.socket, clocks: dict[str, list[float]]) -> tuple[int, str, int]:
    """Return rank, name and port of a host that has connected, and note how far its clock is ahead."""
    connection.settimeout(_ANSWER)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reader = connection.makefile("r", encoding="utf-8")
    rank, host, port = _read(reader)
    best: list[float] = []
    for _ in range(_ASKED):
        asked = time.time()
        _send(connection, "time")
        theirs = float(_read(reader))
        trip = time.time() - asked
        if not best or trip < best[1]:
            best = [theirs - (asked + trip / 2), trip]
    clocks[str(int(rank))] = best
    return int(rank), str(host), int(port)


def _answer(connection: socket.socket, greeting: list[Any], limit: float) -> list[Any]:
    """Greet the first host, answer its questions for the time, and return the list of hosts that it sends then."""
    connection.settimeout(limit)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reader = connection.makefile("r", encoding="utf-8")
    _send(connection, greeting)
    while (message := _read(reader)) == "time":
        _send(connection, time.time())
    return message if isinstance(message, list) else []


def _send(connection: socket.socket, message: object) -> None:
    import json

    connection.sendall(json.dumps(message).encode() + b"\n")


def _read(reader: Any) -> Any:
    import json

    return json.loads(reader.readline(1 << 22))  # an empty line, at the end of a connection, is a ValueError


# The ring


class _Sink:
    """A port where the host before this one in the ring measures: it sends back each echo, and counts what comes.

    Attributes:
        port: Where it listens; 0 where nothing is measured.
    """

    def __init__(self, wanted: bool) -> None:
        self.port = 0
        self._server: socket.socket | None = None
        if wanted:
            from threading import Thread

            self._server = socket.create_server(("", 0))
            self.port = self._server.getsockname()[1]
            Thread(target=self._serve, args=(self._server,), name="ezpz-sink", daemon=True).start()

    def __enter__(self) -> _Sink:  # noqa: PYI034  # `Self` is newer than our oldest Python
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    @staticmethod
    def _serve(server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:  # closed: all is measured
                return
            with connection:
                try:
                    connection.settimeout(2 * _ROUND)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    for _ in range(_ECHOES):
                        connection.sendall(connection.recv(1))
                    room = memoryview(bytearray(1 << 20))
                    while connection.recv_into(room):
                        pass
                    connection.sendall(b"!")
                except OSError:
                    continue


def _measure(peers: list[Any], rank: int, sink: _Sink, first: str) -> dict[str, Any]:
    """Measure to the next host of the ring when the round of this one has come, and stay until all rounds are over.

    Returns:
        ``host``, ``latency`` (s, half a round trip), ``bandwidth`` (byte/s) and ``problem``; empty for a host alone.
    """
    if len(peers) < 2 or not sink.port:
        return {}
    ranks = [peer[0] for peer in peers]
    place = ranks.index(rank)
    is_odd_end = len(peers) % 2 == 1 and place == len(peers) - 1
    begun, rounds = time.monotonic(), 2 + len(peers) % 2
    time.sleep(_ROUND * (2 if is_odd_end else place % 2))
    _, host, address, port = peers[(place + 1) % len(peers)]
    found = _to(str(host), str(address) or first, int(port))
    time.sleep(max(0.0, begun + rounds * _ROUND - time.monotonic()))
    return found


def _to(host: str, address: str, port: int) -> dict[str, Any]:
    try:
        with socket.create_connection((address, port), timeout=_ROUND / 2) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            trips = []
            for _ in range(_ECHOES):
                asked = time.perf_counter()
                connection.sendall(b"?")
                connection.recv(1)
                trips.append(time.perf_counter() - asked)
            sent, begun = 0, time.perf_counter()
            while time.perf_counter() - begun < _SENDING:
                sent += connection.send(_BLOCK)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
            seconds = time.perf_counter() - begun
    except OSError as error:
        return {"host": host, "problem": str(error.strerror or error)}
    return {"host": host, "latency": sorted(trips)[_ECHOES // 2] / 2, "bandwidth": sent / seconds, "problem": ""}
