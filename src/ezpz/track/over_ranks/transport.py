"""Send messages of every rank to rank 0 in the background: point to point over gloo groups of our own, without waiting.

Ranks stand in groups of at most ``fan_out`` neighbours whose first rank is the parent of the others; the first ranks
stand in groups again, up to rank 0. Each group is one gloo process group, made without `torch.distributed.new_group`:
that is a collective, and its global count belongs to the program's own thread. It is made when all its ranks have
announced themselves in the store, so that a rank that never comes keeps no rank waiting.

Only the making of a group waits, some milliseconds, for ranks that have all come; for the rest see
`ezpz.track.over_ranks.transport`.
"""

from __future__ import annotations

import sys
from collections import deque
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ezpz.ranks import Ranks


# Two ranks of a gloo group that exchange messages, one step at a time and without waiting.
#
# parent to child    two int64: _GO, 0 lets it send one message; _ASK, 0 wants one now
# child to parent    two int64: length, 1 if it is the last; then as many bytes and a 1
#
# A wait in gloo cannot be given up: one that times out closes all connections of its group (unbound_buffer.cc of gloo),
# and one that returns while Python ends aborts the process. So no rank waits: the memory of a posted receive is filled
# with what no sender sends, and looked at now and then. A child sends only when it was let, so that one message at most
# is on its way, and the next leave says that it has come. What the other end has left raises RuntimeError when
# something new is begun.

_GO, _ASK = 1, 2
_UP, _BODY, _DOWN, _NEVER = 1, 2, 3, 4  # tags; within one, gloo keeps the order of both ends
_NOTHING = -1
_SILENT = 10.0  # seconds after which a child is asked, which shows whether it is still there
_NO_LEAVE = 2.0  # seconds without leave to send after which a child looks whether its parent is still there
_NO_LEAVE_AT_END = 0.2


def joined(messages: list[bytes]) -> bytes:
    """Return messages as one, each behind its length in 8 bytes."""
    return b"".join(len(message).to_bytes(8, "little") + message for message in messages)


def parted(data: bytes) -> Iterator[bytes]:
    """Yield the messages of `joined`."""
    at = 0
    while at < len(data):
        end = at + 8 + int.from_bytes(data[at : at + 8], "little")
        yield data[at + 8 : end]
        at = end


class _Pairs:
    """Pairs of int64 from one rank: a posted receive whose memory is looked at."""

    def __init__(self, group: Any, peer: int, tag: int) -> None:
        self._group, self._peer, self._tag = group, peer, tag
        self._post()

    def _post(self) -> None:
        import torch

        self._tensor = torch.full((2,), _NOTHING, dtype=torch.int64)
        self._seen = self._tensor.numpy()
        self._work = self._group.recv([self._tensor], self._peer, self._tag)

    def look(self) -> tuple[int, int] | None:
        """Return a pair if one has come."""
        if self._seen[1] == _NOTHING:
            return None
        self._work.wait()  # what has come is there already: this ends at once
        pair = int(self._seen[0]), int(self._seen[1])
        self._post()
        return pair


def _pair(first: int, second: int) -> Any:
    import torch

    return torch.tensor([first, second], dtype=torch.int64)


class Child:
    """A rank below this one; ``ranks`` is the range that comes through it, ``here`` whether more can come."""

    def __init__(self, group: Any, peer: int, ranks: tuple[int, int]) -> None:
        self._group, self._peer, self.ranks = group, peer, ranks
        self.here = True
        self._heads = _Pairs(group, peer, _UP)
        self._body: Any = None
        self._last = self._asked = False
        self._heard = monotonic()
        self._sent: deque[Any] = deque(
            maxlen=8
        )  # gloo forgets a message without a reference; three at most are on their way
        self._send_word(_GO)

    def _send_word(self, word: int) -> None:
        tensor = _pair(word, 0)
        self._sent.append((tensor, self._group.send([tensor], self._peer, _DOWN)))

    def ask(self) -> None:
        """Have it send what it has, unless it was asked already."""
        if not self._asked:
            self._asked = True
            self._send_word(_ASK)

    @property
    def receives(self) -> bool:
        """Whether the length of a message has come, and the rest has not."""
        return self._body is not None

    def take(self) -> list[bytes]:
        """Return the messages that have come."""
        import torch

        if self._body is None:
            head = self._heads.look()
            if head is None:
                if monotonic() - self._heard > _SILENT:
                    self._heard = monotonic()
                    self.ask()
                return []
            tensor = torch.zeros(head[0] + 1, dtype=torch.uint8)
            self._body = tensor, tensor.numpy(), self._group.recv([tensor], self._peer, _BODY)
            self._last = bool(head[1])
        _, seen, work = self._body
        if not seen[-1]:
            return []
        work.wait()
        self._body, self._asked, self._heard = None, False, monotonic()
        self._send_word(_GO)  # to the last message too: it says that it has come
        self.here = not self._last
        return list(parted(seen[:-1].tobytes()))


class Parent:
    """The rank above this one."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._words = _Pairs(group, 0, _DOWN)
        self.may_send = self.done = False
        self.on_its_way: Any = None
        self._looked = monotonic()

    def look(self, *, ending: bool) -> bool:
        """Read what the parent has sent; tell whether it asks for a message.

        Raises:
            RuntimeError: The parent has ended, which is looked for more often when this rank is ending.
        """
        asks = False
        while (pair := self._words.look()) is not None:
            if pair[0] == _GO:
                self.may_send, self.on_its_way = True, None
            asks = asks or pair[0] == _ASK
        if self.may_send:
            self._looked = monotonic()
        elif monotonic() - self._looked > (_NO_LEAVE_AT_END if ending else _NO_LEAVE):
            self._looked = monotonic()
            self._group.recv([_pair(0, 0)], 0, _NEVER)  # raises where the connection has ended; no rank sends this
        return asks

    def send(self, data: bytes, *, last: bool) -> None:
        """Send one message, for which there must be leave."""
        import torch

        head, body = _pair(len(data), int(last)), torch.frombuffer(bytearray(data + b"\1"), dtype=torch.uint8)
        self.may_send, self.done = False, last
        parts = ((head, _UP), (body, _BODY))
        self.on_its_way = [(tensor, self._group.send([tensor], 0, tag)) for tensor, tag in parts]


__all__ = ["FAN_OUT", "Funnel", "Group", "find_store", "groups_of", "joined", "parted"]

FAN_OUT = 64  # a rank then has 63 connections, or 126 as a parent on two levels; two levels hold 4096 ranks
MOST_BYTES = 8_000_000  # that wait for a parent: a million float64; eight times as many where others' messages pass
_MEETING = timedelta(seconds=20)  # once all have announced themselves


class Group(NamedTuple):
    """One group of the tree: its level from 0 on, and its ranks; the first is the parent."""

    level: int
    ranks: tuple[int, ...]


def groups_of(rank: int, size: int, fan_out: int = FAN_OUT) -> list[Group]:
    """Return the groups that a rank belongs to, from the leaves up; the last one holds its parent, except on rank 0."""
    groups, stride, level = [], 1, 0
    while stride < size and rank % stride == 0:
        first = rank - rank % (stride * fan_out)
        ranks = tuple(range(first, min(first + stride * fan_out, size), stride))
        if len(ranks) > 1:
            groups.append(Group(level, ranks))
        stride, level = stride * fan_out, level + 1
    return groups


def find_store(ranks: Ranks, prefix: str) -> Any:
    """Return the store of the program's process group, for use from another thread.

    Args:
        ranks: Who this process is; a group that counts otherwise is not the one that is meant.
        prefix: What every key begins with.

    Returns:
        A ``torch.distributed.Store``; None as long as there is no group. torch is not imported when the program has
        not.
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
    if store is None or not dist.is_gloo_available():
        return None
    # A client answers one question at a time: with its own (torch 2.8 and newer) the program's thread need not wait for
    # ours.
    return dist.PrefixStore(prefix, store.clone() if hasattr(store, "clone") else store)


class Funnel:
    """This rank's place in the tree. All calls come from one thread; none waits, but for `meet` when a group is made.

    Attributes:
        ending: Whether this rank puts no more.
        ready: Whether this rank's groups are made.
        asked: Whether the parent wants a message now; whoever answers sets it back.
        lost: Ranges (first, last + 1) of ranks that are gone without having ended; whoever reads them empties the list.
        orphaned: Whether the parent or the store is gone, so that nothing can be sent any more.
        dropped: Messages that were dropped because too many were waiting.
    """

    def __init__(self, store: Any, rank: int, size: int, fan_out: int | None = None) -> None:
        self._store, self._rank, self._size, self._fan_out = store, rank, size, fan_out or FAN_OUT
        self._awaited = groups_of(rank, size, self._fan_out)
        self._announced = False
        self._children: list[Child] = []
        self._parent: Parent | None = None
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self.ending = False
        self.ready = not self._awaited
        self.asked = self.orphaned = False
        self.lost: list[tuple[int, int]] = []
        self.dropped = 0

    def meet(self) -> None:
        """Make the groups whose ranks have all come. A store that is gone, with rank 0, makes an orphan.

        Raises:
            RuntimeError: gloo cannot connect.
        """
        if self.orphaned:
            return
        try:
            if not self._announced:
                for group in self._awaited:
                    self._store.set(_key(group, self._rank), b"1")
                self._announced = True
            complete = [group for group in self._awaited if self._all_there(group)]
        except RuntimeError:
            self.orphaned = True
            return
        for group in complete:
            self._awaited.remove(group)
            self._make(group)
        self.ready = not self._awaited

    def _all_there(self, group: Group) -> bool:
        """Tell whether a group can be made: its parent looks at every rank, the others at the parent's word alone."""
        if self._rank != group.ranks[0]:
            return bool(self._store.check([_key(group, "go")]))
        if not self._store.check([_key(group, rank) for rank in group.ranks]):
            return False
        self._store.set(_key(group, "go"), b"1")
        return True

    def anybody(self) -> bool:
        """Tell whether any other rank of a group that is still awaited has announced itself."""
        others = [(group, rank) for group in self._awaited for rank in group.ranks if rank != self._rank]
        return any(self._store.check([_key(group, rank)]) for group, rank in others)

    def _make(self, group: Group) -> None:
        import torch.distributed as dist

        store = dist.PrefixStore(_key(group, "gloo"), self._store)
        made = dist.ProcessGroupGloo(store, group.ranks.index(self._rank), len(group.ranks), _MEETING)
        if group.ranks[0] != self._rank:
            self._parent = Parent(made)
            return
        below = self._fan_out**group.level
        for place, rank in list(enumerate(group.ranks))[1:]:
            self._children.append(Child(made, place, (rank, min(rank + below, self._size))))

    def put(self, message: bytes) -> None:
        """Queue a message for rank 0; too many that wait push out the oldest."""
        self._waiting.append(message)
        self._bytes += len(message)
        most = 8 * MOST_BYTES if self._children else MOST_BYTES
        while self._bytes > most and len(self._waiting) > 1:
            self._bytes -= len(self._waiting.popleft())
            self.dropped += 1

    def ask(self) -> None:
        """Have every child send what it has, and its own children too."""
        for child in self._children:
            self._try(child, child.ask)

    def end(self) -> None:
        """Say that this rank puts no more."""
        self.ending = True

    def turn(self) -> list[bytes]:
        """Move what can be moved without waiting.

        Returns:
            What came from below; above rank 0 it is handed on by itself and the list is empty.
        """
        came = [message for child in self._children for message in self._try(child, child.take) or ()]
        if self._parent is None:
            return came
        for message in came:
            self.put(message)
        try:
            self._feed(self._parent)
        except RuntimeError:
            self._orphan()
        return []

    def _feed(self, parent: Parent) -> None:
        if parent.look(ending=self.ending):
            self.asked = True
            self.ask()
        last = self.ending and not self.is_parent
        if parent.may_send and (self._waiting or (last and not parent.done)):
            messages = list(self._waiting)
            self._waiting.clear()
            self._bytes = 0
            parent.send(joined(messages), last=last)

    def _orphan(self) -> None:
        self.orphaned = True
        self._waiting.clear()
        self._bytes = 0

    def _try(self, child: Child, act: Any) -> Any:
        if not child.here:
            return None
        try:
            return act()
        except RuntimeError:  # gloo's word for a connection that has ended
            child.here = False
            self.lost.append(child.ranks)
            return None

    @property
    def connected(self) -> bool:
        """Whether there is anybody yet to send to or to receive from."""
        return self._parent is not None or bool(self._children)

    @property
    def is_parent(self) -> bool:
        """Whether more can come from below."""
        return any(child.here for child in self._children)

    @property
    def busy(self) -> bool:
        """Whether a message is half here, so that looking again soon is worth it."""
        return any(child.here and child.receives for child in self._children)

    @property
    def delivered(self) -> bool:
        """Whether the parent has everything that was put."""
        return not self._waiting and (self._parent is None or not self._parent.on_its_way)

    @property
    def done(self) -> bool:
        """Whether nothing is left to do: no child could send, and the parent knows that this rank has ended."""
        above = self._parent is None or (self._parent.done and not self._parent.on_its_way)
        return self.orphaned or (above and not self.is_parent)


def _key(group: Group, what: object) -> str:
    return f"{group.level}/{group.ranks[0]}/{what}"
