r"""Let agents meet the launcher, and cut what crosses their connections into frames that none can change unnoticed.

A connection begins with two lines of fixed length; whoever sends anything else is a stranger:

    launcher to agent   ezpz-launch-1 CHALLENGE\n               32 hexadecimal digits
    agent to launcher   ezpz-agent-1 KIND HOST AGENT PROOF\n    reports or outputs; 8 digits; 32 and 64 hexadecimal ones

From the launch's secret and these lines, both sides make the same three keys: one for the proof, and one for each
direction. Then frames follow, in both directions:

    SIZE (4 bytes, the highest first)   TAG (16 bytes)   SIZE bytes of a message or of output

The tag is BLAKE2b (RFC 7693) with the direction's key, over the number of the frame and its bytes. A frame that was
changed, repeated, left out, moved, turned round or taken from another connection has a wrong tag, and its reader hangs
up. Nothing is encrypted. On a Unix socket, where the kernel tells who is on the other side, frames have no tag, and
between a launcher and an agent that it has forked there is no secret either.
"""

from __future__ import annotations

from ezpz.fields import Malformed, Record

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator

REPORTS, OUTPUTS = "reports", "outputs"  # the two connections of an agent
_CHALLENGE, _GREETING = b"ezpz-launch-1 ", b"ezpz-agent-1 "
CHALLENGE_SIZE = len(_CHALLENGE) + 32 + 1
_SIGNED_SIZE = len(_GREETING) + 7 + 1 + 8 + 1 + 32 + 1
GREETING_SIZE = _SIGNED_SIZE + 64 + 1
_SIZE, _TAG = 4, 16


class Greeting(Record):
    """What an agent says of itself: which connection this is, its host's number or -1, and its own random name."""

    kind: str
    host: int
    agent: str


class Keys(Record):
    """The keys of both directions of one connection; empty where frames are not signed."""

    from_agent: bytes
    from_launcher: bytes


UNSIGNED = Keys(b"", b"")


def challenge(digits: str) -> bytes:
    """Return the launcher's first line; ``digits`` are 32 random hexadecimal ones."""
    return b"%b%b\n" % (_CHALLENGE, digits.encode())


def greet(secret: str, challenged: bytes, greeting: Greeting) -> tuple[bytes, Keys]:
    """Return an agent's answer to a challenge, and the keys of the connection.

    Raises:
        Malformed: ``challenged`` is no challenge of a launcher.
    """
    if len(challenged) != CHALLENGE_SIZE or not challenged.startswith(_CHALLENGE):
        raise Malformed("another program answers")
    signed = b"%b%b %08d %b " % (_GREETING, greeting.kind.encode(), greeting.host + 1, greeting.agent.encode())
    proof, keys = _derive(secret, challenged, signed)
    return b"%b%b\n" % (signed, proof), keys


def may_be_greeting(begun: bytes) -> bool:
    """Tell whether what has come so far may become a greeting."""
    return len(begun) <= GREETING_SIZE and begun[: len(_GREETING)] == _GREETING[: len(begun)]


def check(secret: str, challenged: bytes, came: bytes) -> tuple[Greeting, Keys]:
    """Return who has greeted, and the keys of the connection.

    Raises:
        Malformed: Whoever it is does not know the secret; nothing but the proof is looked at before that.
    """
    from hmac import compare_digest

    proof, keys = _derive(secret, challenged, came[:_SIGNED_SIZE])
    if not compare_digest(proof + b"\n", came[_SIGNED_SIZE:]):
        raise Malformed("a stranger")
    _, kind, host, agent = came[: _SIGNED_SIZE - 1].decode("ascii").split(" ")
    return Greeting(kind, int(host) - 1, agent), keys


def _derive(secret: str, challenged: bytes, signed: bytes) -> tuple[bytes, Keys]:
    """Return the proof of knowing the secret, and the keys of a connection that began with these two lines."""
    from hashlib import blake2b

    root = blake2b(challenged + signed, key=secret.encode(), digest_size=32).digest()
    proof, *keys = (
        blake2b(purpose, key=root, digest_size=32)
        for purpose in (b"proof of the agent", b"agent to launcher", b"launcher to agent")
    )
    return proof.hexdigest().encode(), Keys(*(key.digest() for key in keys))


class _Seal:
    """Tags for the frames of one direction, each valid for one place in their order."""

    def __init__(self, key: bytes) -> None:
        from hashlib import blake2b

        self._keyed = blake2b(key=key, digest_size=_TAG)
        self._number = 0

    def tag(self, *parts: bytes | memoryview) -> bytes:
        """Return the tag of the next frame."""
        made = self._keyed.copy()
        made.update(self._number.to_bytes(8, "big"))
        for part in parts:
            made.update(part)
        self._number += 1
        return made.digest()


class FrameWriter:
    """Makes the frames of one direction, in their order.

    Args:
        key: Of the direction; empty for frames without tags.
    """

    def __init__(self, key: bytes) -> None:
        self._seal = _Seal(key) if key else None

    def frame(self, *parts: bytes) -> bytes:
        """Return the frame that holds these bytes."""
        return b"".join((self.head(*parts), *parts))

    def head(self, *parts: bytes) -> bytes:
        """Return what precedes these bytes in the frame that holds them."""
        size = sum(map(len, parts)).to_bytes(_SIZE, "big")
        return size + self._seal.tag(*parts) if self._seal else size


class FrameReader:
    """Cuts what arrives from one direction into the contents of its frames.

    Args:
        key: Of the direction; empty for frames without tags.
        longest: Bytes that a frame may hold.

    Attributes:
        longest: The same; may change between two frames.
    """

    def __init__(self, key: bytes, longest: int) -> None:
        self.longest = longest
        self._seal = _Seal(key) if key else None
        self._head = _SIZE + (_TAG if key else 0)
        self._came: list[bytes] = []  # of a frame that is not whole
        self._have, self._need = 0, self._head

    @property
    def missing(self) -> int:
        """How many bytes the next frame, or its head, still lacks."""
        return self._need - self._have

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """Yield the contents of the frames that are whole now.

        Raises:
            Malformed: A frame is too long, or its tag is wrong; the connection is worth nothing any more.
        """
        self._have += len(data)
        if self._have < self._need:
            self._came.append(data)
            return
        if self._came:
            data = b"".join((*self._came, data))
            self._came = []
        start, head = 0, self._head
        view, whole = memoryview(data), len(data)
        self._need = head
        while whole - start >= head:
            size = int.from_bytes(view[start : start + _SIZE], "big")
            if size > self.longest:
                raise Malformed(f"a frame of {size} bytes; expected at most {self.longest}")
            if whole - start < head + size:
                self._need = head + size
                break
            content = view[start + head : start + head + size]
            if self._seal:
                self._check(view[start + _SIZE : start + head], content)
            start += head + size
            yield content
        self._have = whole - start
        if self._have:
            self._came.append(data[start:])

    def _check(self, tag: memoryview, content: memoryview) -> None:
        from hmac import compare_digest

        assert self._seal
        if not compare_digest(self._seal.tag(content), tag):
            raise Malformed("a frame with a wrong tag")
