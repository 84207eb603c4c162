"""What stands for the agent of a host where only its ranks' words are tested."""

from __future__ import annotations

import socket
import threading
import uuid

from lab.process import wait_until


class Listener:
    """Collects the lines of every connection: `lines[0]` is a list of those of the first that came."""

    def __init__(self):
        name = f"ezt-{uuid.uuid4().hex}"
        self.address = f"@{name}"
        self.lines = []
        self.connections = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(f"\0{name}")
        self._socket.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections.append(connection)
            self.lines.append([])
            threading.Thread(target=self._read, args=(connection, self.lines[-1]), daemon=True).start()

    @staticmethod
    def _read(connection, lines):
        with connection.makefile() as file:
            lines.extend(line.rstrip("\n") for line in iter(file.readline, ""))
        lines.append("end")

    def wait(self, line, timeout=30):
        """Wait until every connection, and at least one, has sent the line."""
        wait_until(
            lambda: self.lines and all(line in lines for lines in self.lines), timeout, f"{line!r}: {self.lines}"
        )

    def of(self, rank):
        """The lines of a rank's connection."""
        return next((lines for lines in self.lines if lines and lines[0].startswith(f"rank {rank} ")), [])

    def close(self):
        self._socket.close()
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the rank has closed it
            connection.close()


def as_rank(rank=0, world=1, address="", run="run-1"):
    """The variables of a rank of a launch on one host."""
    told = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world, "GROUP_RANK": 0}
    ours = {"TORCHELASTIC_RUN_ID": run, "EZPZ_RUN_ID": run, "EZPZ_PLACEMENT": world, "EZPZ_SOCKET": address}
    return {name: str(value) for name, value in {**told, **ours}.items()}
