"""Runs that do not end: what every rank is doing, asked of all hosts and told in one line before anything is killed.

``ezpz stacks`` asks the same of a launch that goes on, through a Unix socket of the launcher's (`ezpz.launch.record` knows it): it
sends a line ``stacks`` and gets one object in JSON.
"""

from __future__ import annotations

import os
import re
import selectors
import socket
import time
from collections import namedtuple
from typing import TYPE_CHECKING, Any

from ezpz.launch.host.connection import claim, is_own
from ezpz.launch.run.failures import Failure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ezpz.launch.host.stacks import Frame
    from ezpz.launch.run.supervisor import Supervisor


# Where the ranks are, in one line: the stacks of all of them, put together by what the user's own code called.

# ezpz's own files, wherever the rank's Python has them: it need not be the launcher's. A user's folder may be called ezpz too.
_OWN = re.compile(
    r"/ezpz/(?:(?:cli|cluster|dist|launch|models|track|train)/|(?:__init__|__main__|errors|log|progress|ranks|test_dist)\.py$)"
)
_LIBRARY = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]|/lib(?:64)?/(?:python|pypy)3[.\d]*t?/|/python3\d+\.zip/|^<frozen "
)
_IMPORT = re.compile(r"^<frozen importlib|^<frozen zipimport|/importlib/__init__\.py$")
# The first folder or file below the place where packages are kept: torch in /usr/lib/python3.11/site-packages/torch/__init__.py
_PACKAGE = re.compile(r".*/(?:(?:site|dist)-packages|(?:python|pypy)3[.\d]*t?)/([^/.]+)")
_DATA_LOADER = "/torch/utils/data/dataloader.py"
# Functions that stand around the one that the user called; names with an underscore in front are passed over as well.
_AROUND = {"compile_wrapper", "decorate_context", "decorator", "inner", "profile_hook_step", "wrapped", "wrapper"}
_NAMED = 8  # ranks of a group that are named; of a larger one the number tells
_PLACES = 8
_HOSTS = 3


class Place(namedtuple("Place", "what file line")):  # noqa: PYI024
    """What a rank is in, as its user says it, and where in the user's code that is."""

    __slots__ = ()

    if TYPE_CHECKING:
        what: str
        file: str
        line: int


def locate(frames: list[Frame]) -> Place:
    """Return what the user's code called last.

    The user's frame is the innermost one outside Python, its installed packages and ezpz; `what` is the public function that
    it called: ``all_reduce``, ``barrier``, ``DataLoader`` for all of torch's loader, ``import torch`` while that is on its
    way. Where it called no Python function, as with ``time.sleep``, `what` is the user's own function.

    Args:
        frames: A thread's frames, innermost first; not empty.
    """
    at = _users(frames)
    frame, inside = frames[at], frames[:at][::-1]
    return Place(_called(inside) or frame.function, frame.file, frame.line)


def summarise(found: Iterable[tuple[int, str, Place | str]]) -> str:
    """Return one line that tells where all ranks are, the place of most ranks first.

    Args:
        found: Rank, host, and its place or what the kernel says of it.

    Returns:
        For example ``15 ranks in all_reduce (train.py:88), rank 7 on n02 in DataLoader (data.py:31)``.
    """
    groups: dict[Place | str, list[tuple[int, str]]] = {}
    for rank, host, place in sorted(found, key=lambda each: each[0]):
        groups.setdefault(place, []).append((rank, host))
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    most = len(ordered[0][1]) if ordered else 0
    clear = len(ordered) < 2 or most > len(ordered[1][1])
    parts = []
    for place, members in ordered[:_PLACES]:
        counted = len(members) > _NAMED or (clear and len(members) == most > 1)
        parts.append(f"{f'{len(members)} ranks' if counted else _named(members)} {_words(place)}")
    rest = len(ordered) - len(parts)
    more = f" and {rest} more place{'s' * (rest > 1)}" if rest else ""
    return ", ".join(parts) + more


def _words(place: Place | str) -> str:
    return place if isinstance(place, str) else f"in {place.what} ({os.path.basename(place.file)}:{place.line})"


def _named(members: list[tuple[int, str]]) -> str:
    """Return ``rank 7 on n02`` or ``ranks 4-6,9 on n01,n02``."""
    spans: list[list[int]] = []
    for rank, _ in members:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    ranks = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
    hosts = list(dict.fromkeys(host for _, host in members))
    where = ",".join(hosts) if len(hosts) <= _HOSTS else f"{len(hosts)} hosts"
    return f"rank{'s' * (len(members) > 1)} {ranks} on {where}"


def _users(frames: list[Frame]) -> int:
    """Return the index of the user's frame; ezpz's own trainers are the user's code where there is no other."""
    for index, frame in enumerate(frames):
        if not _LIBRARY.search(frame.file) and not _OWN.search(frame.file):
            return index
    for index, frame in enumerate(frames):
        if _OWN.search(frame.file):
            return index
    return len(frames) - 1


def _called(inside: list[Frame]) -> str:
    """Return what the user's frame called, from the frames inside it, outermost first; empty when nothing that has a name."""
    if any(frame.file.endswith(_DATA_LOADER) for frame in inside):
        return "DataLoader"
    theirs = next((index for index, frame in enumerate(inside) if not _OWN.search(frame.file)), len(inside))
    if theirs < len(inside) and _IMPORT.search(inside[theirs].file):
        return _imported(inside[theirs:])
    public = (frame.function for frame in inside if frame.function not in _AROUND and frame.function[:1] not in "_<")
    return next(public, inside[0].function if inside else "")


def _imported(inside: list[Frame]) -> str:
    """Return ``import torch``; ``import`` alone where Python still searches for it."""
    package = next((_PACKAGE.match(frame.file) for frame in inside if not _IMPORT.search(frame.file)), None)
    return f"import {package[1]}" if package else "import"


__all__ = ["Hangs", "Place", "locate", "summarise"]

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
        listener = claim(self.socket) if self.socket else None
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
        if not is_own(connection):
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
