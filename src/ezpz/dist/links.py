"""Two ranks of a gloo group that exchange messages, one step at a time and without waiting.

    parent to child    two int64: _GO, 0 lets it send one message; _ASK, 0 wants one now
    child to parent    two int64: length, 1 if it is the last; then as many bytes and a 1

A wait in gloo cannot be given up: one that times out closes all connections of its group (unbound_buffer.cc of gloo), and one
that returns while Python ends aborts the process. So nobody waits: the memory of a posted receive is filled with what no
sender sends, and looked at now and then. A child sends only when it was let, so that one message at most is on its way, and
the next leave says that it has come. What the other end has left raises RuntimeError when something new is begun.
"""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Child", "Parent", "joined", "parted"]

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
        )  # gloo forgets a message that nobody holds; three at most are on their way
        self._say(_GO)

    def _say(self, word: int) -> None:
        tensor = _pair(word, 0)
        self._sent.append((tensor, self._group.send([tensor], self._peer, _DOWN)))

    def ask(self) -> None:
        """Have it send what it has, unless it was asked already."""
        if not self._asked:
            self._asked = True
            self._say(_ASK)

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
        self._say(_GO)  # to the last message too: it says that it has come
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
        """Read what the parent has said; tell whether it asks for a message.

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
            self._group.recv([_pair(0, 0)], 0, _NEVER)  # raises where the connection has ended; nobody sends this
        return asks

    def send(self, data: bytes, *, last: bool) -> None:
        """Send one message, for which there must be leave."""
        import torch

        head, body = _pair(len(data), int(last)), torch.frombuffer(bytearray(data + b"\1"), dtype=torch.uint8)
        self.may_send, self.done = False, last
        parts = ((head, _UP), (body, _BODY))
        self.on_its_way = [(tensor, self._group.send([tensor], 0, tag)) for tensor, tag in parts]
