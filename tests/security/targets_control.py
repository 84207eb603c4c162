"""The control protocol: every line that crosses a connection between launcher, agents, shims and ranks."""

from __future__ import annotations

import socket
import time

from fuzz import target

from ezpz.fields import Malformed
from ezpz.launch import agent_messages, frames
from ezpz.launch.agent_messages import Piece
from ezpz.launch.frames import FrameReader, FrameWriter, Greeting
from ezpz.launch.host.connection import Connection, End, pair
from ezpz.launch.master import ListenAddress
from ezpz.launch.run.control import Control, Report
from ezpz.launch.shared_slots import Slots
from ezpz.watch.collectives import messages as hangs
from ezpz.watch.progress import messages as progress
from lab.watching import watch_all

SHARED = Slots.inherited()
watch_all()

REPORTS = (
    agent_messages.Up(ranks=2),
    agent_messages.Note(text="a note"),
    agent_messages.RankFailed(
        rank=3,
        pid=7,
        code=-9,
        at=1.5,
        why="",
        words="last words\n",
        shown=True,
        step=-1,
        memory=agent_messages.NOTHING_COUNTED,
        room=[("/scratch", 0, -1, 1 << 40)],
    ),
    agent_messages.Stages(stage="torch", count=2, low=1.0, median=1.5, high=2.0, ranks=[(0, 1.0), (1, 2.0)]),
    agent_messages.Mismatch(host="n01", worlds=[("1", "openmpi", "text")]),
    hangs.StacksTaken(
        id=1,
        host="n01",
        ranks=[hangs.RankStack(rank=0, pid=7, frames=[("f", "a.py", 3)], where="x")],
        dumps=["/tmp/dump"],
        left=[1],
    ),
    progress.Idle(rank=0, pid=7, seconds=601.0, limit=600.0, section="checkpoint", ending=False),
    agent_messages.Done(stuck=[1, 2], step=-1),
)
ORDERS = (
    agent_messages.Begin(),
    agent_messages.Signal(number=15),
    agent_messages.Kill(),
    hangs.TakeStacks(fatal=False, id=1),
    agent_messages.Release(codes=True),
)


def why(error):
    """The reason without what it quotes and without numbers, so that each reason counts as one behaviour."""
    return str(error).partition(" b'")[0].translate(str.maketrans("", "", "0123456789"))[:60]


def happened(direction, line):
    try:
        message = direction.decode(line)
    except Malformed as error:
        return why(error)
    direction.encode(message)  # what was taken can be sent on
    return type(message).__name__


@target(inputs=10000, seeds=[agent_messages.REPORTS.encode(one) for one in REPORTS], words=[b'"say"', b'"ended"'])
def reports(data):
    return happened(agent_messages.REPORTS, data)


@target(inputs=10000, seeds=[agent_messages.ORDERS.encode(one) for one in ORDERS], words=[b'"do"', b'"signal"'])
def orders(data):
    return happened(agent_messages.ORDERS, data)


@target(
    inputs=10000,
    seeds=[
        b"shim 0 2 0 2 0 openmpi 7 1.5",
        b"ready",
        b"up 7",
        b"ended 1",
        b"cannot 2 a b",
        b"rank 0 7",
        b"stage torch",
        b"beat",
        b"section 600.0 1 checkpoint",
        b"section 0 0 ",
    ],
    words=[b"shim ", b"note "],
)
def from_ranks(data):
    return happened(agent_messages.FROM_RANKS, data)


@target(inputs=10000, seeds=[b"0 1\nabc", b"-3 2\n", b"0 1 15 131072\n"], words=[b"0 1 ", b"16777216", b"16777217"])
def output(data):
    try:
        return Piece.decode(memoryview(data), SHARED).stream
    except Malformed as error:
        return why(error)


# Whole connections. The launcher is asked after each input whether it still hears its agents.

SETTINGS = agent_messages.Settings(
    log_dir="",
    idle=None,
    input=False,
    recorder="",
    collectives="",
    parting=0.0,
    by_rank=True,
    live=False,
    stays=False,
    watchers=[],
)
GREETING = b"ezpz-agent-1 reports 00000001 " + b"0" * 32 + b" " + b"0" * 64 + b"\n"
HEAD = b"\0\0\0\5" + b"\0" * 16


class Launcher:
    """A launcher with one agent, and a way to be called by strangers."""

    def __init__(self):
        self.control = Control(SETTINGS, ListenAddress("127.0.0.1", ("127.0.0.1",), "for tests"), hosts=4)
        self.secret, port, _ = self.control.variable.split("@")
        self.address = ("127.0.0.1", int(port))
        self.agent = self.call(frames.REPORTS, 0, "a" * 32)
        self.agent.connection.sendall(
            self.agent.writer.frame(agent_messages.HELLOS.encode(agent_messages.Hello(host="n01")))
        )
        self.read_until(lambda items: items)

    def read_until(self, enough):
        items, end = [], time.monotonic() + 60
        while not enough(items):
            assert time.monotonic() < end, "nothing comes of it"
            items.extend(self.control.read())
        return items

    def dial(self):
        """A stranger's connection that has got its challenge."""
        connection = socket.create_connection(self.address, timeout=5)
        self.read_until(lambda _: self.control.due())
        return connection, connection.recv(4096)

    def call(self, kind, host, agent):
        """An agent's connection that has been let in."""
        connection, challenged = self.dial()
        line, keys = frames.greet(self.secret, challenged, Greeting(kind, host, agent))
        connection.sendall(line)
        self.read_until(lambda _: not self.control.due())
        return End.made(connection, keys)

    def hears_its_agent(self):
        self.agent.connection.sendall(
            self.agent.writer.frame(agent_messages.REPORTS.encode(agent_messages.Up(ranks=1)))
        )
        up = Report(0, agent_messages.Up(ranks=1))
        items = self.read_until(lambda items: up in items)
        assert 0 not in self.control.done
        return items


LAUNCHER = []


def launcher():
    if not LAUNCHER:
        LAUNCHER.append(Launcher())
    return LAUNCHER[0]


@target(inputs=1000, seeds=[GREETING, GREETING[:-1], GREETING * 2, HEAD, b'{"say": []}\n', b"GET / HTTP/1.1\r\n\r\n"])
def stranger(data):
    """Whatever a stranger says, the launcher hears its agent, and nothing else."""
    called = launcher()
    connection, _ = called.dial()
    with connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it was hung up on before
        called.read_until(lambda _: not called.control.due())
    assert len(called.hears_its_agent()) == 1


@target(inputs=1000, seeds=[agent_messages.REPORTS.encode(one) for one in REPORTS], words=[b'"say"', HEAD])
def false_agent(data):
    """What an agent of another host says wrongly loses that host, and no other."""
    called = launcher()
    for seen in (called.control.heard, called.control.done):
        seen.pop(1, None) if isinstance(seen, dict) else seen.discard(1)
    end = called.call(frames.REPORTS, 1, "b" * 32)
    with end.connection:
        hello = end.writer.frame(agent_messages.HELLOS.encode(agent_messages.Hello(host="n02")))
        end.connection.sendall(hello + end.writer.frame(data))
    items = called.read_until(lambda items: Report(1, agent_messages.Lost()) in items or 1 in called.control.done)
    called.hears_its_agent()
    return len(items)


@target(inputs=10000, seeds=[HEAD + b"abcde", FrameWriter(b"k").frame(b"abc") + FrameWriter(b"k").frame(b"")])
def frame(data):
    """No bytes make a frame but those of the key's holder; cut anywhere, they come to the same."""

    def read(parts):
        reader, came = FrameReader(b"k", 1 << 16), []
        try:
            for part in parts:
                for content in reader.feed(part):
                    came.append(bytes(content))  # noqa: PERF401  # those before an error count
        except Malformed as error:
            came.append(why(error))
        return came

    came = read([data])
    assert came == read([data[: len(data) // 2], data[len(data) // 2 :]])
    assert set(came[:1]) <= {b"abc", b"", "a frame with a wrong tag", "a frame of  bytes; expected at most "}
    return str(came[:2])


@target(
    inputs=4000, seeds=[FrameWriter(b"").frame(agent_messages.ORDERS.encode(one)) for one in ORDERS], words=[b'"do"']
)
def agent_side(data):
    """What an agent hears is orders, and at the end that its launcher has gone."""
    ours, its = pair()
    with ours[0], ours[1], its[0], its[1]:
        agent = Connection(End.made(its[0]), End.made(its[1]), SETTINGS)
        its[0].setblocking(False)
        ours[0].setblocking(False)
        try:
            ours[0].sendall(data)
        except BlockingIOError:
            return None
        ours[0].close()
        kinds = []
        while "Lost" not in kinds:
            kinds += [type(order).__name__ for _, order in agent.orders()]
        assert kinds.count("Lost") == 1
        assert set(kinds) <= {"Begin", "Signal", "Kill", "TakeStacks", "Release", "CountAnew", "Lost"}
        return str(kinds[-3:])
