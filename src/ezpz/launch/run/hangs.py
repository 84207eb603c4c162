"""Runs that do not end: what every rank is doing, asked of all hosts and told in one line before anything is killed.

``ezpz stacks`` asks the same of a launch that goes on, through a Unix socket of the launcher's (`ezpz.launch.record` knows it): it
sends a line ``stacks`` and gets one object in JSON.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from typing import TYPE_CHECKING, Any

from ezpz.launch.host import connection
from ezpz.launch.run.failures import Failure

if TYPE_CHECKING:
    from ezpz.launch.run.supervisor import Supervisor

__all__ = ["Hangs"]

_ANSWERS = 12.0  # seconds for all hosts to tell what their ranks are doing
_TIME_LIMIT = 124


class Hangs:
    """The stacks of a run's ranks, for its own end or for whoever asks.

    Attributes:
        first_to_leave: The first rank that ended with 0.
        socket: Address at which `ezpz stacks` asks.
    """

    def __init__(self, run: Supervisor) -> None:
        self.first_to_leave: int | None = None
        self.socket = ""
        self._run = run
        self._reason = ""
        self._number = 0
        self._found: list[dict[str, Any]] = []
        self._dumps: list[str] = []
        self._waiting: set[int] = set()
        self._askers: list[socket.socket] = []
        self._listener: socket.socket | None = None

    @property
    def pending(self) -> bool:
        """Whether the run is to end of a time limit, and has not been told to yet."""
        return bool(self._reason)

    def listen(self) -> None:
        """Let `ezpz stacks` ask; without a socket the run goes on unasked."""
        listener = connection.claim(self.socket) if self.socket else None
        if listener:
            self._listener = socket.socket(fileno=listener.detach())
            self._listener.setblocking(False)
            self._run.selector.register(self._listener, selectors.EVENT_READ, self._asked)

    def close(self) -> None:
        """Hang up."""
        for connection in (*self._askers, *([self._listener] if self._listener else [])):
            connection.close()

    def idle(self, host: str, told: dict[str, Any]) -> None:
        """A rank shows no progress."""
        limit = f"{self._run.limits.idle:g} s (--idle-timeout)"
        self.begin(f"rank {told['rank']} on host {host} (pid {told['pid']}) has shown no progress for {limit}")

    def left_behind(self) -> None:
        """One rank ended long ago, and others still run."""
        limit = f"{self._run.limits.leave:g} s (--exit-timeout)"
        self.begin(f"rank {self.first_to_leave} ended with 0, and others still run {limit} later")

    def begin(self, reason: str) -> None:
        """A time limit is over: ask what all ranks are doing, and then stop them."""
        if self._run.stopping or self._reason:
            return
        self._reason = reason
        self._run.say(f"{reason}; asking every rank what it is doing")
        self._ask(fatal=True)

    def answered(self, index: int, told: dict[str, Any]) -> None:
        """Take one host's answer."""
        if told["id"] != self._number:
            return
        host = self._run.control.heard.get(index, told["host"])
        self._found += [{**rank, "host": host} for rank in told["ranks"]]
        self._dumps += told["dumps"]
        self._waiting.discard(index)
        if not self._waiting:
            self.conclude()

    def conclude(self) -> None:
        """Tell what was found, and stop the run when it has taken too long."""
        run = self._run
        run.timers.pop("stacks", None)
        if not self._reason and not self._askers:
            return
        summary = self._summary()
        told = {"summary": summary, "ranks": sorted(self._found, key=lambda rank: int(rank["rank"]))}
        self._answer(told)
        if self._reason:
            run.outcome.hang = {**told, "summary": f"{self._reason}: {summary}", "recorder": sorted(self._dumps)}
            if self._dumps:
                run.note(f"torch's last collectives of {len(self._dumps)} ranks: {os.path.dirname(self._dumps[0])}")
            run.outcome.stopped = True
            run.blame(Failure(f"{self._reason}:", summary, _TIME_LIMIT, time.time()))
            self._reason = ""

    def _summary(self) -> str:
        from ezpz.launch.grouping import locate, summarise
        from ezpz.launch.host.stacks import Frame

        places = []
        for rank in self._found:
            place = locate([Frame(*frame) for frame in rank["frames"]]) if rank["frames"] else rank["where"]
            rank["where"] = (
                place if isinstance(place, str) else f"{place.what} ({os.path.basename(place.file)}:{place.line})"
            )
            places.append((rank["rank"], rank["host"], place))
        silent = [self._run.control.heard[index] for index in sorted(self._waiting)]
        more = f"; {', '.join(silent[:3])} did not answer" if silent else ""
        return (summarise(places) or "no rank told what it is doing") + more

    def _ask(self, *, fatal: bool) -> None:
        run = self._run
        self._number += 1
        self._found, self._dumps = [], []
        running = set(run.control.heard) - run.control.done
        self._waiting = run.control.order("stacks", running, fatal=fatal, id=self._number)
        run.timers["stacks"] = time.monotonic() + (_ANSWERS if self._waiting else 0.0)

    def _asked(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # it went away again
            return
        if not connection.is_own(connection):
            connection.close()
            return
        self._askers.append(connection)
        if not self._waiting:
            self._ask(fatal=False)

    def _answer(self, told: dict[str, Any]) -> None:
        import json

        for connection in self._askers:
            try:
                connection.settimeout(1.0)
                connection.recv(64)  # the line `stacks`: closed with that unread, the answer would be lost
                connection.sendall(json.dumps(told).encode() + b"\n")
            except OSError:
                pass  # whoever asked has gone
            connection.close()
        self._askers = []
