"""Connect the launcher with its host agents: let in those that know the secret, read reports, and send orders.

An agent that has gone without reporting `Done` is lost, and its host with it. Where only its connection for output is
cut, it makes that once more and goes on behind the last piece that came (`_Stream`). Whoever does not know the secret
is a stranger: few of them are kept, for seconds, and nothing that they send or leave unsent touches the run.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import sys
import time
from itertools import islice

from ezpz import local_socket
from ezpz.fields import Malformed, Record
from ezpz.launch import frames
from ezpz.launch.agent_messages import (
    HELLOS,
    LONGEST_PIECE,
    ORDERS,
    PIECE,
    REPORTS,
    WELCOMES,
    ConnectOutput,
    Done,
    Hello,
    Lost,
    Note,
    OutputTaken,
    Piece,
    Welcome,
)
from ezpz.launch.backlog import Backlog
from ezpz.launch.event_loop import NO_ROOM, ready
from ezpz.launch.frames import GREETING_SIZE, UNSIGNED, FrameReader, FrameWriter, Greeting
from ezpz.launch.host.connection import keep_alive
from ezpz.launch.shared_slots import Slots

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ezpz.launch.agent_messages import Message, Settings
    from ezpz.launch.frames import Keys
    from ezpz.launch.master import ListenAddress

_DEADLINE = 5.0  # seconds for a stranger to show that it knows the secret
_MORE_STRANGERS = 64  # at a time, besides one for each host
_CUT = 20.0  # seconds for an agent to make a connection for output once more that was cut
_TOLD_AFTER = 1 << 20  # bytes of output until its agent gets to know that they have come
_READ = 1 << 18
_ORDERED_AT_ONCE = 1 << 18  # bytes
_MOST_ORDERED = 32 << 20  # bytes of orders that an agent has not read; a hundred worlds may begin at once
_ORDER = 256  # bytes, about, that an order takes besides its own
_READS = 16  # of all hosts' output in a turn, about: signals and reports wait meanwhile


class Report(Record):
    """What the agent of the host with this index reports of a world: `Hello` when it has come, `Lost` when it has
    gone, and with it all worlds of the host.
    """

    host: int
    message: Message
    world: int = 0


class WayBack(Record):
    """The other direction of an agent's connection for output, which carries the input of rank 0."""

    connection: socket.socket
    writer: FrameWriter


class _Stranger:
    """A connection that has not shown that it knows the secret."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.is_local = connection.family == socket.AF_UNIX
        self.challenge = frames.challenge(os.urandom(16).hex())
        self.deadline = time.monotonic() + _DEADLINE
        self.came = b""


class _Stream:
    """All output of an agent, on one connection after another; its pieces are counted, and its end says how many.

    Attributes:
        agent: Its random name.
        index: Its host.
        peer: The connection on which it comes; None while that is cut.
        slots: Memory that the agent fills.
        taken: Pieces that have come, the end among them.
        has_ended: Whether the end has come.
        cut_at: When the connection was cut, by the monotonic clock.
    """

    def __init__(self, agent: str, index: int) -> None:
        self.agent, self.index = agent, index
        self.peer: _Peer | None = None
        self.slots: Slots | None = None
        self.taken = 0
        self.has_ended = False
        self.cut_at = 0.0
        self._untold = 0  # bytes of pieces that the agent keeps, because it does not know that they have come

    def take(self, content: memoryview) -> Piece | None:
        """Return the piece in a frame; None for the end.

        Raises:
            Malformed: It is none, or the end of more or fewer pieces.
        """
        end = Piece.decode_end(content)
        if end is None:
            piece = Piece.decode(content, self.slots)
            self._untold += len(piece.data) + PIECE
        elif end == self.taken:
            piece, self.has_ended = None, True
        else:
            raise Malformed(f"the end of {end} pieces of output, of which {self.taken} have come")
        self.taken += 1
        return piece

    def must_tell(self) -> bool:
        """Tell whether the agent shall know now what has come; this is taken for granted then."""
        if self._untold < _TOLD_AFTER and not self.has_ended:
            return False
        self._untold = 0
        return True


class _Peer:
    """A connection of an agent; the one for messages is a host's when the agent has sent `Hello`."""

    def __init__(self, connection: socket.socket, greeting: Greeting, keys: Keys) -> None:
        self.connection = connection
        self.kind, self.index, self.agent = greeting
        self.has_host = False
        longest = HELLOS.longest if self.kind == frames.REPORTS else LONGEST_PIECE
        self.reader, self.writer = FrameReader(keys.from_agent, longest), FrameWriter(keys.from_launcher)
        self.orders = Backlog()  # what its host has not read yet


class Control:
    """All agents of a launch; a selector can watch it by `fileno`.

    Attributes:
        heard: Hosts whose agent has come, by index.
        done: Hosts whose agent has reported that all is over there, or is lost.
        settings: What every agent gets to know when it comes.
    """

    def __init__(self, settings: Settings, listening: ListenAddress | None = None, hosts: int = 1) -> None:
        """Listen for the agents of so many hosts; without ``listening``, they are handed over by `adopt`."""
        self.heard: dict[int, str] = {}
        self.done: set[int] = set()
        self.settings = settings
        self._hosts = hosts
        self._secret = os.urandom(16).hex()
        self._names = listening.names if listening else ()
        self._selector = selectors.DefaultSelector()
        self._strangers: dict[_Stranger, None] = {}  # the oldest first
        self._agents: dict[str, _Peer] = {}  # their connections for messages
        self._streams: dict[str, _Stream] = {}  # their output, as long as more may come
        self._had_output: set[str] = set()  # agents
        self._paused = False
        self._listener: socket.socket | None = None
        self._spare = -1
        if listening:
            self._listener = socket.create_server((listening.address, 0), backlog=4096)
            for listener in (self._listener, self._claim_local()):
                if listener:
                    listener.setblocking(False)
                    self._selector.register(listener, selectors.EVENT_READ, None)
            self._spare = os.open(os.devnull, os.O_RDONLY)

    @property
    def variable(self) -> str:
        """Value of ``EZPZ_CONTROL`` for the shims; empty where no agent connects by itself."""
        if self._listener is None:
            return ""
        return f"{self._secret}@{self._listener.getsockname()[1]}@{','.join(self._names)}"

    @property
    def open_outputs(self) -> bool:
        """Whether output may still come."""
        return not all(stream.has_ended for stream in self._streams.values())

    @property
    def all_done(self) -> bool:
        """Whether all is over on every host whose agent has come."""
        return set(self.heard) <= self.done

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when an agent sends something: a selector can be selected on."""
        return self._selector.fileno()

    @staticmethod
    def get_ready() -> None:
        """Import what the first agent needs, in the time that the ranks take to start."""
        import hmac  # noqa: F401  # for the frames
        import json  # noqa: F401  # for the messages and run.json

    def adopt(
        self, index: int, host: str, control: socket.socket, output: socket.socket, slots: Slots | None = None
    ) -> None:
        """Take the connections of an agent that was started by fork, and the memory that it shares: it needs to prove
        nothing.
        """
        for kind, connection in ((frames.REPORTS, control), (frames.OUTPUTS, output)):
            connection.setblocking(False)
            peer = self._admit(connection, Greeting(kind, index, "forked"), UNSIGNED)
            self._selector.register(connection, selectors.EVENT_READ, peer)
        self._streams["forked"].slots = slots
        self._get_host(self._agents["forked"], host)

    def read(self) -> Iterator[Report | Piece]:
        """Yield what has come since the last call; does not block."""
        for key in ready(self._selector, 0):
            if key.data is None:
                assert isinstance(key.fileobj, socket.socket)
                self._accept(key.fileobj)
            elif isinstance(key.data, _Stranger):
                self._listen_to(key.data)
            else:
                if key.data.orders.size:
                    self._push(key.data, waited=True)
                yield from self._read(key.data)

    def due(self) -> float | None:
        """Return the monotonic time of the next `tick`, or None."""
        dues = [stream.cut_at + _CUT for stream in self._streams.values() if not stream.peer]
        return min([*dues, *(stranger.deadline for stranger in islice(self._strangers, 1))], default=None)

    def tick(self, now: float) -> None:
        """Hang up on strangers whose time is over, and on agents that do not send their output any more."""
        for stranger in [stranger for stranger in self._strangers if now >= stranger.deadline]:
            self._turn_away(stranger)
        for stream in list(self._streams.values()):
            if not stream.peer and now >= stream.cut_at + _CUT:
                del self._streams[stream.agent]
                if stream.agent in self._agents:
                    _hang_up(self._agents[stream.agent])

    def pause(self, full: bool) -> None:
        """Stop reading output while the screen is full; reports are read all the same."""
        if full == self._paused:
            return
        self._paused = full
        for peer in self._output_peers():
            if full:
                self._selector.unregister(peer.connection)
            else:
                self._selector.register(peer.connection, selectors.EVENT_READ, peer)

    def order(self, order: Message, hosts: set[int] | None = None, world: int = 0) -> set[int]:
        """Send an order for a world to the agents of some hosts, or of all; return the hosts that it was sent to."""
        content = ORDERS.encode(order, world)
        to = [peer for peer in self._agents.values() if peer.has_host and (hosts is None or peer.index in hosts)]
        return {peer.index for peer in to if self._send(peer, content)}

    def _send(self, peer: _Peer, order: bytes) -> bool:
        """Send an order behind those that an agent has not read yet; one that reads none is lost at some point."""
        waiting = peer.orders
        waited = waiting.size > 0
        waiting.put(peer.writer.frame(order))
        if waiting.size + waiting.pieces * _ORDER > _MOST_ORDERED:
            _hang_up(peer)
            return False
        return waited or self._push(peer)

    def _push(self, peer: _Peer, *, waited: bool = False) -> bool:
        """Send what an agent takes of its orders, and the rest when it takes more; tell whether it is there."""
        try:
            while peer.orders.size and peer.orders.write(peer.connection.sendmsg, _ORDERED_AT_ONCE):
                pass
        except OSError as error:
            if not local_socket.will_pass(error):  # it has gone
                peer.orders.clear()
                _hang_up(peer)
                return False
        waits = peer.orders.size > 0
        if waits != waited:
            more = selectors.EVENT_WRITE if waits else 0
            self._selector.modify(peer.connection, selectors.EVENT_READ | more, peer)
        return True

    def _tell(self, stream: _Stream, order: Message) -> None:
        """Send an order to the agent of some output, if it is still there."""
        if stream.agent in self._agents:
            self._send(self._agents[stream.agent], ORDERS.encode(order))

    def way_back(self, index: int) -> WayBack | None:
        """Return the way on which a host's agent expects input for rank 0: the connection of its output."""
        peer = next((peer for peer in self._output_peers() if peer.index == index), None)
        return WayBack(peer.connection, peer.writer) if peer else None

    def drop(self, index: int) -> None:
        """Hang up on the agent of a host that is lost although its connections have not ended."""
        self.done.add(index)
        for peer in [*self._agents.values(), *self._output_peers()]:
            if peer.index == index:
                self._close(peer)
        self._streams = {agent: stream for agent, stream in self._streams.items() if stream.index != index}

    def close(self) -> None:
        """Stop listening, and hang up: agents whose launcher has gone kill their ranks."""
        if self._selector.get_map() is None:
            return
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        for peer in self._output_peers():
            peer.connection.close()
        self._selector.close()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def give_up(self) -> None:
        """Wait for no more output."""
        for peer in self._output_peers():
            self._close(peer)
        self._streams.clear()

    def _output_peers(self) -> list[_Peer]:
        return [stream.peer for stream in self._streams.values() if stream.peer]

    # Strangers.

    def _claim_local(self) -> socket.socket | None:
        """Return what agents of this host can connect to without TCP.

        Their frames need no tag: the kernel tells whose they are.
        """
        assert self._listener is not None
        where = local_socket.control_address(self._listener.getsockname()[1])
        claimed = local_socket.claim(where) if sys.platform == "linux" else None
        return socket.socket(fileno=claimed.detach()) if claimed else None  # the name may be another's

    def _accept(self, listener: socket.socket) -> None:
        """Take one connection; the others wait for the next turn, so that many cannot keep the agents from being
        heard.
        """
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in NO_ROOM:
                self._refuse_one(listener)
            return  # or it went away again
        if listener is not self._listener and not local_socket.is_own(connection):
            connection.close()
            return
        connection.setblocking(False)
        if len(self._strangers) >= self._hosts + _MORE_STRANGERS:
            self._turn_away(next(iter(self._strangers)))
        stranger = _Stranger(connection)
        self._strangers[stranger] = None
        self._selector.register(connection, selectors.EVENT_READ, stranger)
        try:
            connection.send(stranger.challenge)
        except OSError:
            self._turn_away(stranger)

    def _refuse_one(self, listener: socket.socket) -> None:
        """Make room where no more files can be open: a connection that waits unaccepted would wake us for ever."""
        if self._strangers:
            self._turn_away(next(iter(self._strangers)))
            return
        if self._spare >= 0:
            os.close(self._spare)
        try:
            listener.accept()[0].close()
            self._spare = os.open(os.devnull, os.O_RDONLY)
        except OSError:
            self._spare = -1

    def _listen_to(self, stranger: _Stranger) -> None:
        """Read at most a greeting, and let in whoever has made it from the secret."""
        connection = stranger.connection
        try:
            came = connection.recv(GREETING_SIZE - len(stranger.came))
        except OSError as error:
            if isinstance(error, BlockingIOError) or local_socket.will_pass(error):
                return
            came = b""
        stranger.came += came
        if not came or not frames.may_be_greeting(stranger.came):
            self._turn_away(stranger)
        elif len(stranger.came) == GREETING_SIZE:
            try:
                greeting, keys = frames.check(self._secret, stranger.challenge, stranger.came)
                peer = self._admit(connection, greeting, UNSIGNED if stranger.is_local else keys)
            except Malformed:
                self._turn_away(stranger)
                return
            del self._strangers[stranger]
            self._selector.modify(connection, selectors.EVENT_READ, peer)
            if self._paused and peer.kind == frames.OUTPUTS:
                self._selector.unregister(connection)
            if not stranger.is_local:
                keep_alive(connection, may_wait=peer.kind == frames.OUTPUTS)
            taken = self._streams[peer.agent].taken if peer.kind == frames.OUTPUTS else 0
            welcome = Welcome(time=time.time(), settings=self.settings, taken=taken)
            self._welcome(peer, peer.writer.frame(WELCOMES.encode(welcome)))

    def _welcome(self, peer: _Peer, frame: bytes) -> None:
        """Send the first words, to an agent of this host with memory for its output."""
        is_local = peer.connection.family == socket.AF_UNIX
        stream = self._streams[peer.agent] if is_local and peer.kind == frames.OUTPUTS else None
        shared = Slots.with_file() if stream and not stream.slots else None
        files: tuple[int, ...] = ()
        if stream and shared:
            stream.slots, files = shared[0], shared[1:]
        try:
            local_socket.send(peer.connection, frame, files)
        except OSError:
            pass  # read() sees its end
        for file in files:
            os.close(file)

    def _turn_away(self, stranger: _Stranger) -> None:
        self._strangers.pop(stranger, None)
        self._selector.unregister(stranger.connection)
        stranger.connection.close()

    def _admit(self, connection: socket.socket, greeting: Greeting, keys: Keys) -> _Peer:
        """Take a connection of an agent that knows the secret.

        Raises:
            Malformed: There is such a connection already, or its agent has no other, or the plan no such host.
        """
        peer = _Peer(connection, greeting, keys)
        known = self._agents.get(peer.agent)
        if not -1 <= peer.index < self._hosts or (known is None) != (peer.kind == frames.REPORTS):
            raise Malformed("a second introduction")
        if known is None:
            self._agents[peer.agent] = peer
            return peer
        stream = self._streams.get(peer.agent)
        if known.index != peer.index or (stream is None and peer.agent in self._had_output):
            raise Malformed("output of another host, or behind its end")
        if stream is None:
            self._had_output.add(peer.agent)
            stream = self._streams[peer.agent] = _Stream(peer.agent, peer.index)
        earlier, stream.peer = stream.peer, peer
        if earlier:  # its agent has noticed before this process that it was cut
            self._close(earlier)
        return peer

    # Agents.

    def _read(self, peer: _Peer) -> Iterator[Report | Piece]:
        """Yield what a connection holds; of output also what comes meanwhile, unless it is paused."""
        data, is_silent = b"", False
        try:
            if peer.kind == frames.OUTPUTS:
                for _ in range(max(1, _READS // len(self._streams))):
                    data = peer.connection.recv(_READ)
                    yield from self._pieces(peer, data)
                    if self._paused or not data:
                        break
            else:
                data = peer.connection.recv(_READ)
                yield from self._reports(peer, data)
        except OSError as error:
            if isinstance(error, BlockingIOError) or local_socket.will_pass(error):
                return
            data, is_silent = b"", error.errno not in {errno.ECONNRESET, errno.EPIPE}
        except Malformed:  # nothing more of this peer can be understood
            data = b""
            if peer.kind == frames.OUTPUTS and peer.agent in self._agents:
                _hang_up(self._agents[peer.agent])
        if not data and peer.connection.fileno() >= 0:
            self._close(peer)
            stream = self._streams.get(peer.agent)
            if is_silent and stream and stream.peer:  # input under way to it would keep this one for 15 minutes
                self._close(stream.peer)
            if peer.has_host and peer.index not in self.done:
                self.done.add(peer.index)
                yield Report(peer.index, Lost())

    def _pieces(self, peer: _Peer, data: bytes) -> Iterator[Piece]:
        """Yield what an agent's output holds, and let the agent know what it need not keep any longer."""
        stream = self._streams[peer.agent]
        for content in peer.reader.feed(data):
            piece = stream.take(content)
            if piece:
                yield piece
        if data and stream.must_tell():
            self._tell(stream, OutputTaken(pieces=stream.taken))

    def _reports(self, peer: _Peer, data: bytes) -> Iterator[Report]:
        for content in peer.reader.feed(data):
            if not peer.has_host:
                yield self._introduced(peer, bytes(content))
                continue
            world, message = REPORTS.addressed(bytes(content))
            if isinstance(message, Done) and not world:
                self.done.add(peer.index)
            yield Report(peer.index, message, world)

    def _introduced(self, peer: _Peer, content: bytes) -> Report:
        """Take an agent's first words; a host of the plan has one agent, and the first stays."""
        hello = HELLOS.decode(content)
        assert isinstance(hello, Hello)
        if peer.index >= 0 and peer.index in self.heard:
            _hang_up(peer)
            peer.reader.longest = 0
            first = self.heard[peer.index]
            text = f"{hello.host} is refused: its agent says that it is host {peer.index} of the plan, as {first} does"
            return Report(peer.index, Note(text=text))
        self._get_host(peer, hello.host)
        return Report(peer.index, hello)

    def _get_host(self, peer: _Peer, host: str) -> None:
        peer.has_host = True
        peer.reader.longest = REPORTS.longest
        self.heard[peer.index] = host

    def _close(self, peer: _Peer) -> None:
        if peer.connection in self._selector.get_map():
            self._selector.unregister(peer.connection)
        peer.connection.close()
        stream = self._streams.get(peer.agent)
        if peer.kind == frames.REPORTS:
            self._agents.pop(peer.agent, None)
            if stream and not stream.peer:  # its agent cannot make that connection once more
                del self._streams[peer.agent]
        elif stream and stream.peer is peer:
            stream.peer, stream.cut_at = None, time.monotonic()
            if stream.has_ended or stream.agent not in self._agents:
                del self._streams[peer.agent]
            else:
                self._tell(stream, ConnectOutput())


def _hang_up(peer: _Peer) -> None:
    """End the conversation with an agent; `read` sees it, the host is lost, and its agent kills its ranks."""
    try:
        peer.connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has hung up itself
