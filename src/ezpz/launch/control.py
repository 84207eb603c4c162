r"""The thin channel from shims to the launcher: one short TCP connection per event.

A shim connects when the first rank of its host is up and when its rank fails, so connections grow with hosts. Record:

    TOKEN EVENT HOST RANK PID CODE\n        EVENT is up, ended or mismatch; CODE is minus the signal for a signal

The token keeps strangers on a shared network from ending the job.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Control", "Event", "send"]

_PATIENCE = 5.0  # seconds: a shim that cannot reach the launcher must still end with its rank's exit code


class Event(NamedTuple):
    """What a shim said."""

    kind: str
    host: str
    rank: str
    pid: int
    code: int


class Control:
    """The launcher's end: a listening socket to select on."""

    def __init__(self, addresses: list[str]) -> None:
        self._token = os.urandom(8).hex()  # the module `secrets` costs a launch 10 ms
        self._socket = socket.create_server(("", 0), backlog=512)
        self._socket.setblocking(False)
        self._addresses = addresses

    @property
    def variable(self) -> str:
        """Value of ``EZPZ_CONTROL`` for the ranks."""
        return f"{self._token}@{self._socket.getsockname()[1]}@{','.join(self._addresses)}"

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a shim speaks."""
        return self._socket.fileno()

    def events(self) -> Iterator[Event]:
        """Yield what shims have said since the last call; never blocks for long."""
        from hmac import compare_digest

        while True:
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return
            with connection:
                connection.settimeout(_PATIENCE)
                try:
                    words = connection.makefile("r", encoding="utf-8").readline(512).split()
                except (OSError, UnicodeDecodeError):
                    continue
            if len(words) == 6 and compare_digest(words[0], self._token):
                yield Event(words[1], words[2], words[3], int(words[4]), int(words[5]))

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


def send(variable: str, event: str, rank: int | str, pid: int, code: int) -> bool:
    """Tell the launcher, and return whether it could be reached: when not, the rank ends as it would have."""
    token, port, addresses = variable.split("@")
    line = f"{token} {event} {os.uname().nodename} {rank} {pid} {code}\n".encode()
    for address in addresses.split(","):
        try:
            with socket.create_connection((address, int(port)), timeout=_PATIENCE) as connection:
                connection.sendall(line)
                return True
        except OSError:
            continue
    return False
