"""Send messages of every rank to rank 0 in the background, through keys of the program's own store.

A store of torch is there as long as rank 0's process, or torchrun's agent, and answers without Python. So a rank puts
down what it has and may end; rank 0 may come later and still find it. Nothing waits for another rank, nothing is a
collective, and no process group is made. Below the history's own prefix are

    folder      rank 0's run folder, set when rank 0 has made the history: from then on it takes messages
    ask         set when rank 0 is finishing: ranks send what they have, also of windows that are not full
    closed      set when rank 0 takes nothing any more
    count       a counter: how many messages were announced
    1, 2, …     the messages: the rank in 4 bytes, a 1 if its next message continues this one, the content; rank 0
                deletes what it has read

As long as a rank runs, one message of it at most lies in the store; the next one follows when that was read.
"""

from __future__ import annotations

import os
import socket
import sys
from collections import deque
from contextlib import suppress
from stat import S_ISSOCK
from typing import TYPE_CHECKING, Any

from ezpz import proc
from ezpz.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ezpz.ranks import Ranks

__all__ = ["Inbox", "Keys", "Outbox", "StoreEndedError", "find_keys", "joined", "parted"]

MOST_BYTES = 8_000_000  # that wait to be sent: a million float64
_MOST_IN_ONE = 4_000_000  # torch's store closes the connection of who sends more than 8 MiB at once
_RANK = 4  # bytes of a rank in front of a message


class StoreEndedError(RuntimeError):
    """The store cannot be reached any more."""


def joined(messages: list[bytes]) -> bytes:
    """Return messages as one, each after its length in 8 bytes."""
    return b"".join(len(message).to_bytes(8, "little") + message for message in messages)


def parted(data: bytes) -> Iterator[bytes]:
    """Yield the messages of `joined`."""
    at = 0
    while at < len(data):
        end = at + 8 + int.from_bytes(data[at : at + 8], "little")
        yield data[at + 8 : end]
        at = end


def find_keys(ranks: Ranks, prefix: str) -> Keys | None:
    """Return keys in the store of the program's process group, for use from another thread.

    Args:
        ranks: Who this process is; a group that counts otherwise is not the one that is meant.
        prefix: What every key begins with.

    Returns:
        None as long as there is no group. torch is not imported when the program has not.

    Raises:
        StoreEndedError: The store has ended.
    """
    # Parents get the attribute when the import of a submodule has ended, which another thread may be at.
    dist: Any = getattr(sys.modules.get("torch"), "distributed", None)
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    try:
        if (dist.get_rank(), dist.get_world_size()) != (ranks.rank, ranks.world_size) or dist.get_backend() == "fake":
            return None
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001  # torch has no public way to it
    except (AttributeError, RuntimeError, ValueError) as error:  # destroyed at this moment, or another torch
        get_logger(__name__).debug(f"no store to meet in: {error}")
        return None
    return None if store is None else Keys(store, prefix)


class Keys:
    """Keys below a prefix of a store. Every method raises `StoreEndedError` when the store has ended.

    Args:
        store: A ``torch.distributed.Store``.
        prefix: What every key begins with.
    """

    def __init__(self, store: Any, prefix: str) -> None:
        import torch.distributed as dist

        self._line = _line_to(store)
        # A client answers one question at a time: with its own (torch 2.8 and newer) the program's thread need not wait
        # for ours. Making one tries for minutes to reach a store that has ended.
        own = self._ask(store.clone) if hasattr(store, "clone") else store
        self._store = dist.PrefixStore(prefix, own)

    def _ask(self, act: Any, *args: Any) -> Any:
        """Call the store. One that has ended is not called: torch would print a page of warning."""
        if self._line is not None and _has_ended(self._line):
            raise StoreEndedError("the store has ended")
        try:
            return act(*args)
        except RuntimeError as error:
            raise StoreEndedError(str(error)) from error

    def set(self, key: str, value: bytes) -> None:
        """Set a key; the store may not have it yet when this returns."""
        self._ask(self._store.set, key, value)

    def get(self, key: str) -> bytes:
        """Return the value of a key that is there."""
        return bytes(self._ask(self._store.get, key))

    def has(self, *keys: str) -> bool:
        """Tell whether all of these keys are there."""
        return bool(self._ask(self._store.check, list(keys)))

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return what it is now."""
        return int(self._ask(self._store.add, key, amount))

    def delete(self, key: str) -> None:
        """Delete a key."""
        self._ask(self._store.delete_key, key)

    def close(self) -> None:
        """Let go of the store."""
        self._store = None
        if self._line is not None:
            self._line.close()
            self._line = None


def _line_to(store: Any) -> socket.socket | None:
    """Return a second handle on this process's connection to a store; None where that is no matter of TCP."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    port = getattr(store, "port", None)
    # Where sockets have a time limit by default, making a handle would change the connection itself.
    if port is None or not hasattr(store, "host") or socket.getdefaulttimeout() is not None:
        return None
    for fd in proc.open_files():
        with suppress(OSError):  # closed meanwhile
            if not S_ISSOCK(os.fstat(fd).st_mode):
                continue
            handle = socket.socket(fileno=os.dup(fd))
            with suppress(OSError, IndexError, TypeError):  # not connected, or not by TCP
                if handle.getpeername()[1] == port:
                    return handle
            handle.close()
    return None


def _has_ended(line: socket.socket) -> bool:
    """Tell whether the other end of a connection is closed. Nothing is taken from what has come."""
    try:
        return not line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


class Outbox:
    """What a rank sends to rank 0. All calls come from one thread and raise `StoreEndedError`.

    Attributes:
        dropped: Messages that were dropped because too many were waiting.
    """

    def __init__(self, keys: Keys, rank: int) -> None:
        self._keys, self._rank = keys, rank.to_bytes(_RANK, "little")
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._pieces: deque[bytes] = deque()
        self._sent = ""  # the newest message of ours that may lie in the store
        self.dropped = 0

    def put(self, message: bytes) -> None:
        """Have a message wait; too many that wait push out the oldest."""
        self._waiting.append(message)
        self._bytes += len(message)
        while self._bytes > MOST_BYTES and len(self._waiting) > 1:
            self._bytes -= len(self._waiting.popleft())
            self.dropped += 1

    def turn(self) -> None:
        """Send one piece of what waits, if rank 0 has read the one before."""
        if not (self._pieces or self._waiting) or (self._sent and self._keys.has(self._sent)):
            return
        if not self._pieces:
            self._cut()
        self._send(self._pieces.popleft())

    def finish(self) -> None:
        """Send all that waits; when this returns the store has it."""
        if self._waiting:
            self._cut()
        while self._pieces:
            self._send(self._pieces.popleft())
        self._keys.has("count")  # answered after all that was sent before

    def _cut(self) -> None:
        data = joined(list(self._waiting))
        self._waiting.clear()
        self._bytes = 0
        pieces = [data[at : at + _MOST_IN_ONE] for at in range(0, len(data), _MOST_IN_ONE)]
        for number, piece in enumerate(pieces, 1):
            self._pieces.append(self._rank + bytes([number < len(pieces)]) + piece)

    def _send(self, piece: bytes) -> None:
        self._sent = str(self._keys.add("count", 1))
        self._keys.set(self._sent, piece)


class Inbox:
    """What rank 0 reads. All calls come from one thread and raise `StoreEndedError`."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._count = 0
        self._announced: set[int] = set()
        self._begun: dict[bytes, bytes] = {}  # of each rank, what is to be continued

    def take(self) -> list[bytes]:
        """Return the messages that have come, each rank's in its order."""
        count = self._keys.add("count", 0)
        self._announced.update(range(self._count + 1, count + 1))
        self._count = count
        return [message for number in self._there() for message in self._read(number)]

    def _there(self) -> list[int]:
        """Return the numbers that can be read; a rank may have been killed between announcing one and sending it."""
        if not self._announced or self._keys.has(*map(str, self._announced)):
            return sorted(self._announced)
        # The latest is looked at first: if it is there, so is all that its rank sent before.
        return [number for number in sorted(self._announced, reverse=True) if self._keys.has(str(number))][::-1]

    def _read(self, number: int) -> Iterator[bytes]:
        piece = self._keys.get(str(number))
        self._keys.delete(str(number))
        self._announced.remove(number)
        rank, more, content = piece[:_RANK], piece[_RANK], piece[_RANK + 1 :]
        content = self._begun.pop(rank, b"") + content
        if more:
            self._begun[rank] = content
        else:
            yield from parted(content)
