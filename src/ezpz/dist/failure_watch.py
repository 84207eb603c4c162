r"""End all ranks when one fails, under launchers that do not: a bare mpiexec or srun.

A rank that waits in NCCL, in a sleep or in MPI_Finalize does not notice that another one has failed. Rank 0 therefore
listens, every rank keeps one TCP connection to it, and these lines go over it; the end of a connection says nothing by
itself.

    8c1f…                                  a rank's first line: the secret that rank 0 has put into the store
    failed 3 1 ValueError: no such key     of a failing rank to rank 0, and from there to all: rank, exit code, reason

Plain sockets and Python's threads: a thread that waits inside torch's store would abort an interpreter that ends.
"""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, NoReturn

from ezpz.log import get_logger

if TYPE_CHECKING:
    import torch.distributed as dist

    from ezpz.ranks import Ranks

MOST_RANKS = 2048  # one connection each at rank 0; larger jobs need a launcher that looks after them
_GRACE = 5.0  # seconds for the program's own handler of SIGTERM
_LONGEST = 400  # characters of a reason


def join(ranks: Ranks, store: dist.Store, host: str) -> Watch | None:
    """Connect every rank with rank 0; all ranks call it together.

    Args:
        ranks: Who this rank is.
        store: Where rank 0 publishes its port and the secret.
        host: Address of rank 0 as this rank reaches it.

    Returns:
        This rank's end; None where rank 0 cannot listen or be reached, or the job is too large: then no rank hears of a
        failure.
    """
    if ranks.world_size > MOST_RANKS:
        return None
    try:
        if ranks.rank == 0:
            secret = secrets.token_hex(16)
            listener = _listen_everywhere()
            address = f"{listener.getsockname()[1]} {secret}" if listener else ""
            store.set("watch", address)
            if listener:
                _Hub(listener, secret)
            host = "localhost"
        else:
            address = store.get("watch").decode()
        if not address:
            return None
        port, secret = address.split()
        return Watch(ranks.rank, socket.create_connection((host, int(port)), timeout=30), secret)
    except OSError as error:
        get_logger(__name__).warning(f"rank {ranks.rank} does not hear when another one fails: {error}")
        return None


def _listen_everywhere() -> socket.socket | None:
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
        return socket.create_server(("", 0), backlog=1024)
    except OSError as error:
        get_logger(__name__).warning(f"ranks do not hear when another one fails: {error}")
        return None


class Watch:
    """One rank's end of the watch."""

    def __init__(self, rank: int, connection: socket.socket, secret: str) -> None:
        self._rank = rank
        self._leaving = False
        self._connection = connection
        connection.settimeout(None)
        connection.sendall(f"{secret}\n".encode())
        threading.Thread(target=self._listen, name="ezpz-watch", daemon=True).start()

    def tell(self, code: int, reason: str) -> None:
        """Tell all other ranks that this one has failed."""
        self._leaving = True
        line = f"failed {self._rank} {code} {' '.join(reason.split())[:_LONGEST]}\n"
        try:
            self._connection.sendall(line.encode())
            self._connection.shutdown(socket.SHUT_WR)
        except OSError:
            return  # rank 0 has gone, and takes the others along
        if self._rank == 0:
            time.sleep(0.3)  # the hub lives in this process and must have passed it on

    def leave(self) -> None:
        """Take no notice of the others any more: this rank is done."""
        self._leaving = True

    def _listen(self) -> None:
        try:
            with self._connection.makefile("r", encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    word, rank, code, reason = line.rstrip("\n").split(" ", 3)
                    if word == "failed" and not self._leaving and int(rank) != self._rank:
                        _end(int(rank), int(code), reason)
        except (OSError, ValueError):
            return  # rank 0 has ended; the collectives tell if that was too early


def _end(rank: int, code: int, reason: str) -> NoReturn:
    """End this process with the exit code of the rank that failed, after its own handler of SIGTERM, if it has one."""
    # To the descriptor: the main thread may hold the lock of sys.stderr.
    os.write(2, f"ezpz: this rank ends because rank {rank} failed: {reason}\n".encode())
    handler = signal.getsignal(signal.SIGTERM)
    # A history's handler (ezpz.track.signals) would end this process by the signal, and so hide the code.
    complete = getattr(handler, "complete", None)
    if callable(handler) and not (complete is not None and complete()):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE)
    for stream in (sys.stdout, sys.stderr):
        # Not flushed while the main thread might hold its lock for good.
        flushing = threading.Thread(target=_flush, args=(stream,), daemon=True)
        flushing.start()
        flushing.join(0.5)
    os._exit(code)


def _flush(stream: object) -> None:
    flush = getattr(stream, "flush", None)
    try:
        if flush is not None:
            flush()
    except (OSError, ValueError):
        return  # the reader is gone, or it is closed


class _Hub:
    """Rank 0's side: hears one failure and passes it on to every connection."""

    def __init__(self, listener: socket.socket, secret: str) -> None:
        self._secret = secret.encode()
        self._listener = listener
        self._failure = b""  # the first that was heard: ranks that connect later hear it too
        threading.Thread(target=self._serve, name="ezpz-watch-hub", daemon=True).start()

    def _serve(self) -> None:
        heard: dict[socket.socket, bytes] = {}
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._listener:
                        self._accept(selector, heard)
                    elif isinstance(key.fileobj, socket.socket):
                        self._hear(key.fileobj, selector, heard)

    def _accept(self, selector: selectors.BaseSelector, heard: dict[socket.socket, bytes]) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:  # too many open files: the run continues, less well watched
            get_logger(__name__).warning(f"cannot watch all ranks: {error.strerror}")
            time.sleep(1.0)
            return
        connection.setblocking(False)
        heard[connection] = b""
        selector.register(connection, selectors.EVENT_READ)

    def _hear(
        self, connection: socket.socket, selector: selectors.BaseSelector, heard: dict[socket.socket, bytes]
    ) -> None:
        try:
            data = connection.recv(4096)
        except OSError:
            data = b""
        heard[connection] += data
        first, end, rest = heard[connection].partition(b"\n")
        if not data or len(heard[connection]) > 8192 or (end and first != self._secret):
            selector.unregister(connection)
            del heard[connection]
            connection.close()
            return
        if self._failure and end:
            _send(connection, self._failure)
        elif b"\n" in rest:
            self._failure = rest.partition(b"\n")[0] + b"\n"
            for other in heard:
                if heard[other].partition(b"\n")[0] == self._secret:
                    _send(other, self._failure)


def _send(connection: socket.socket, line: bytes) -> None:
    try:
        connection.send(line)
    except OSError:
        return  # it has ended already
