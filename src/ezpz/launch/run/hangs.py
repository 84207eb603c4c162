"""Put together what every rank of a run is doing, for a run that is ended because it hangs and for ``ezpz stacks``.

``ezpz stacks`` asks through a Unix socket of the launcher's (`ezpz.launch.record` knows it): it sends a line ``stacks``
and gets one object in JSON.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections import namedtuple

from ezpz.launch.host.local_socket import claim, is_own
from ezpz.launch.loop import NO_ROOM
from ezpz.launch.messages import TakeStacks, TellCollectives

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ezpz.launch.host.stacks import Frame
    from ezpz.launch.loop import Loop
    from ezpz.launch.messages import CollectivesTold, StacksTaken

__all__ = ["Askers", "Collectives", "Inquiry", "Place", "locate", "summarise"]

# Where the ranks are, in one line: the stacks of all of them, put together by what the user's own code called.

# ezpz's own files, wherever the rank's Python has them: it need not be the launcher's. A user's folder may be called
# ezpz too.
_OWN = (
    r"/ezpz/(?:(?:cli|cluster|dist|launch|models|track|train)/"
    r"|(?:__init__|__main__|errors|log|progress|ranks|test_dist)\.py$)"
)
_LIBRARY = r"[/\\](?:site|dist)-packages[/\\]|/lib(?:64)?/(?:python|pypy)3[.\d]*t?/|/python3\d+\.zip/|^<frozen "
_IMPORT = r"^<frozen importlib|^<frozen zipimport|/importlib/__init__\.py$"
# The first folder or file below the place where packages are kept: torch in
# /usr/lib/python3.11/site-packages/torch/__init__.py
_PACKAGE = r".*/(?:(?:site|dist)-packages|(?:python|pypy)3[.\d]*t?)/([^/.]+)"
_DATA_LOADER = "/torch/utils/data/dataloader.py"
# Functions around the one that the user called; names with an underscore in front are passed over as well.
_AROUND = {"compile_wrapper", "decorate_context", "decorator", "inner", "profile_hook_step", "wrapped", "wrapper"}
_NAMED = 8  # ranks of a group that are named; a larger one is counted
_PLACES = 8
_HOSTS = 3
_LAST_ANSWERS = 1.0  # seconds, when the launch ends


class Place(namedtuple("Place", "what file line")):  # noqa: PYI024
    """What a rank is in, as its user says it, and where in the user's code that is."""

    __slots__ = ()

    if TYPE_CHECKING:
        what: str
        file: str
        line: int


def locate(frames: list[Frame]) -> Place:
    """Return what the user's code called last.

    The user's frame is the innermost one outside Python, its installed packages and ezpz; `what` is the public function
    that it called: ``all_reduce``, ``barrier``, ``DataLoader`` for all of torch's loader, ``import torch`` while that
    is on its way. Where it called no Python function, as with ``time.sleep``, `what` is the user's own function.

    Args:
        frames: A thread's frames, innermost first; not empty.
    """
    at = _users(frames)
    frame, inside = frames[at], frames[:at][::-1]
    return Place(_called(inside) or frame.function, frame.file, frame.line)


def summarise(places: Iterable[tuple[int, str, Place | str]]) -> str:
    """Return one line that says where all ranks are, the place of most ranks first.

    Args:
        places: Rank, host, and its place or what the kernel says of it.

    Returns:
        For example ``15 ranks in all_reduce (train.py:88), rank 7 on n02 in DataLoader (data.py:31)``.
    """
    groups: dict[Place | str, list[tuple[int, str]]] = {}
    for rank, host, place in sorted(places, key=lambda each: each[0]):
        groups.setdefault(place, []).append((rank, host))
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    most = len(ordered[0][1]) if ordered else 0
    clear = len(ordered) < 2 or most > len(ordered[1][1])
    parts = []
    for place, ranks in ordered[:_PLACES]:
        counted = len(ranks) > _NAMED or (clear and len(ranks) == most > 1)
        parts.append(f"{f'{len(ranks)} ranks' if counted else _named(ranks)} {_words(place)}")
    rest = len(ordered) - len(parts)
    more = f" and {rest} more place{'s' * (rest > 1)}" if rest else ""
    return ", ".join(parts) + more


def _words(place: Place | str) -> str:
    return place if isinstance(place, str) else f"in {place.what} ({os.path.basename(place.file)}:{place.line})"


def _named(ranks: list[tuple[int, str]]) -> str:
    """Return ``rank 7 on n02`` or ``ranks 4-6,9 on n01,n02``."""
    spans: list[list[int]] = []
    for rank, _ in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    numbers = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
    hosts = list(dict.fromkeys(host for _, host in ranks))
    where = ",".join(hosts) if len(hosts) <= _HOSTS else f"{len(hosts)} hosts"
    return f"rank{'s' * (len(ranks) > 1)} {numbers} on {where}"


def _users(frames: list[Frame]) -> int:
    """Return the index of the user's frame; ezpz's own trainers are the user's code where there is no other."""
    for index, frame in enumerate(frames):
        if not re.search(_LIBRARY, frame.file) and not re.search(_OWN, frame.file):
            return index
    for index, frame in enumerate(frames):
        if re.search(_OWN, frame.file):
            return index
    return len(frames) - 1


def _called(inside: list[Frame]) -> str:
    """Return what the user's frame called, from the frames inside it, outermost first; empty when nothing that has a
    name.
    """
    if any(frame.file.endswith(_DATA_LOADER) for frame in inside):
        return "DataLoader"
    theirs = next((index for index, frame in enumerate(inside) if not re.search(_OWN, frame.file)), len(inside))
    if theirs < len(inside) and re.search(_IMPORT, inside[theirs].file):
        return _imported(inside[theirs:])
    public = (frame.function for frame in inside if frame.function not in _AROUND and frame.function[:1] not in "_<")
    return next(public, inside[0].function if inside else "")


def _imported(inside: list[Frame]) -> str:
    """Return ``import torch``; ``import`` alone where Python still searches for it."""
    package = next((re.match(_PACKAGE, frame.file) for frame in inside if not re.search(_IMPORT, frame.file)), None)
    return f"import {package[1]}" if package else "import"


class Inquiry:
    """One question to all hosts after another: what is every rank doing? Nothing is sent or waited for here.

    Attributes:
        reason: Why the run ends with the answer; empty where it does not.
        waiting: Hosts that have not answered.
        dumps: Files of torch's flight recorder.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.waiting: set[int] = set()
        self.dumps: list[str] = []
        self._number = 0
        self._ranks: list[dict[str, Any]] = []

    def begin(self, *, fatal: bool) -> TakeStacks:
        """Return the order that asks anew; answers to earlier ones count no more."""
        self._number += 1
        self._ranks, self.dumps = [], []
        return TakeStacks(fatal=fatal, id=self._number)

    def answered(self, index: int, host: str, answer: StacksTaken) -> bool:
        """Take one host's answer; tell whether it was the last."""
        if answer.id != self._number:
            return False
        for rank in answer.ranks:
            frames = [list(frame) for frame in rank.frames]
            self._ranks.append(
                {"rank": rank.rank, "pid": rank.pid, "frames": frames, "where": rank.where, "host": host}
            )
        self.dumps += answer.dumps
        self.waiting.discard(index)
        return not self.waiting

    def result(self, hosts: dict[int, str]) -> dict[str, Any]:
        """Return a line that says where all ranks are, and each of them.

        Args:
            hosts: The names of the hosts, by index.
        """
        from ezpz.launch.host.stacks import Frame

        places = []
        for rank in self._ranks:
            place = locate([Frame(*frame) for frame in rank["frames"]]) if rank["frames"] else rank["where"]
            if not isinstance(place, str):
                rank["where"] = f"{place.what} ({os.path.basename(place.file)}:{place.line})"
            places.append((rank["rank"], rank["host"], place))
        silent = [hosts[index] for index in sorted(self.waiting)]
        more = f"; {', '.join(silent[:3])} did not answer" if silent else ""
        summary = (summarise(places) or "no rank reported what it is doing") + more
        return {"summary": summary, "ranks": sorted(self._ranks, key=lambda rank: int(rank["rank"]))}


class Collectives:
    """The last collectives of all ranks, as their agents tell them. Nothing is sent or waited for here.

    Attributes:
        waiting: Hosts that have not answered.
        until: When they are waited for no more, by the monotonic clock.
    """

    def __init__(self) -> None:
        self.waiting: set[int] = set()
        self.until = 0.0
        self._number = 0
        self._ranks: dict[int, dict[str, Any]] = {}

    def begin(self, until: float) -> TellCollectives:
        """Return the order that asks anew; answers to earlier ones count no more."""
        self._number += 1
        self._ranks, self.until = {}, until
        return TellCollectives(id=self._number)

    def answered(self, index: int, host: str, answer: CollectivesTold) -> bool:
        """Take one host's answer; tell whether it was the last that is waited for.

        What ranks left at their end, unasked, counts only where there is nothing else of them: our own signals may
        have come before.
        """
        if answer.id not in {0, self._number}:
            return False
        from ezpz.launch.shim_messages import to_fields

        for each in answer.ranks:
            known = self._ranks.get(each.rank)
            if known is None or (not known["answered"] and each.answered and not known["silent"]):
                self._ranks[each.rank] = {**to_fields(each), "host": host}
        return bool(answer.id) and self.gone(index)

    def gone(self, index: int) -> bool:
        """Wait for a host no more; tell whether it was the last that is waited for."""
        if index not in self.waiting:
            return False
        self.waiting.discard(index)
        return not self.waiting

    def as_json(self, launch_id: str) -> dict[str, Any]:
        """Return the content of ``collectives.json``; docs/why.md describes the fields."""
        from ezpz.launch.host.stacks import Frame

        ranks = []
        for rank in sorted(self._ranks):
            fields = dict(self._ranks[rank])
            groups = [dict(zip(_GROUP, row, strict=True)) for row in fields["groups"]]
            entries = [dict(zip(_ENTRY, row, strict=True)) for row in fields["entries"]]
            frames = [Frame(*frame) for frame in fields.pop("frames")]
            place = locate(frames) if frames else None
            ranks.append({**fields, "at": place and _words(place)[3:], "groups": groups, "entries": entries})
        return {"schema": 1, "launch_id": launch_id, "ranks": ranks}

    def __bool__(self) -> bool:
        return bool(self._ranks)


_GROUP = ("group", "enqueued", "started", "completed")
_ENTRY = ("group", "seq", "op", "sizes", "state", "line", "created", "started", "completed", "peer")


class Askers:
    """The connections of ``ezpz stacks``. None of them is waited for, but at the end of the launch."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None
        self._silent: set[socket.socket] = set()
        self._asked: list[socket.socket] = []  # have sent `stacks`, and wait for the answer
        self._answers: dict[socket.socket, bytes] = {}  # what of it has not been sent
        self._loop: Loop | None = None

    def __bool__(self) -> bool:
        return bool(self._asked)

    def listen(self, address: str, loop: Loop, asked: Callable[[], None]) -> None:
        """Let ``ezpz stacks`` ask; without a socket the run continues unasked."""
        self._loop = loop
        listener = claim(address) if address else None
        if listener:
            self._listener = socket.socket(fileno=listener.detach())
            self._listener.setblocking(False)
            loop.read(self._listener, lambda listener: self._accept(listener, asked))

    def answer(self, result: dict[str, Any]) -> None:
        """Send all that have asked the result, and hang up on each that has it."""
        import json

        assert self._loop
        for connection in self._asked:
            self._answers[connection] = json.dumps(result).encode() + b"\n"
            self._loop.write(connection, self._send)
            self._send(connection)
        self._asked = []

    def close(self) -> None:
        """Hang up, when those that read have read; all of them together get a second."""
        end = time.monotonic() + _LAST_ANSWERS
        for connection, rest in self._answers.items():
            try:
                connection.settimeout(max(0.001, end - time.monotonic()))
                connection.sendall(rest)
            except OSError:
                pass  # the asker has gone, or does not read
            connection.close()
        for connection in (*self._silent, *self._asked, *([self._listener] if self._listener else [])):
            connection.close()

    def _accept(self, listener: socket.socket, asked: Callable[[], None]) -> None:
        assert self._loop
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in NO_ROOM:
                self._loop.rest(listener)
            return  # or it went away again
        if not is_own(connection):
            connection.close()
            return
        connection.setblocking(False)
        self._silent.add(connection)
        self._loop.read(connection, lambda connection: self._hear(connection, asked))

    def _hear(self, connection: socket.socket, asked: Callable[[], None]) -> None:
        assert self._loop
        try:
            word = connection.recv(64)
        except BlockingIOError:
            return
        except OSError:
            word = b""
        self._loop.forget(connection)
        self._silent.discard(connection)
        if not word:
            connection.close()
            return
        self._asked.append(connection)
        asked()

    def _send(self, connection: socket.socket) -> None:
        assert self._loop
        rest = self._answers[connection]
        try:
            rest = rest[connection.send(rest) :]
        except BlockingIOError:
            pass
        except OSError:
            rest = b""  # the asker has gone
        self._answers[connection] = rest
        if not rest:
            del self._answers[connection]
            self._loop.forget(connection)
            connection.close()
