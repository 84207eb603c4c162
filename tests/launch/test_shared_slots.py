"""Memory that a launcher and an agent of one host share: all output arrives whole and in order, with and without."""

import contextlib
import gc
import os
import random
import select
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from ezpz import local_socket
from ezpz.fields import Malformed
from ezpz.launch.agent_messages import Piece
from ezpz.launch.event_loop import Loop
from ezpz.launch.host.connection import Connection, End, connect, pair
from ezpz.launch.host.local_world import RankPipes
from ezpz.launch.host.rank_output import RankOutput
from ezpz.launch.host.rank_process import RankProcess
from ezpz.launch.master import ListenAddress
from ezpz.launch.run.control import Control
from ezpz.launch.run.terminal import Screen
from ezpz.launch.shared_slots import SLOT_SIZE, SLOTS, Slots
from lab.agents import settings
from lab.process import wait_until

SETTINGS = settings()
LOOPBACK = ListenAddress("127.0.0.1", ("127.0.0.1",), "for tests")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux's")
TRACEBACK = b'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nOSError: x\n'
WARNING = b"a.py:3: UserWarning: this is old\n"


def both_of_file():
    """The launcher's and the agent's view of the same file."""
    shared = Slots.with_file()
    assert shared
    return shared[0], Slots.of_file(shared[1])


def forked():
    shared = Slots.inherited()
    return shared, shared


def none():
    return None, None


class Agent:
    """Two ranks whose pipes an agent reads, and a launcher's screen over two pipes, all in this process."""

    def __init__(self, slots, log_dir="", **options):
        ours, its = pair()
        self.slots, agents = slots
        self.control = Control(SETTINGS)
        self.control.adopt(0, "here", *ours, self.slots)
        self.connection = Connection(*map(End.made, its), SETTINGS, slots=agents)
        self.lent = self.copied = 0
        lend, show = self.connection.lend, self.connection.show
        self.connection.lend = lambda *piece: (self.count("lent", piece[3]), lend(*piece))
        self.connection.show = lambda *piece: (self.count("copied", len(piece[2])), show(*piece))
        self.pipes = [[os.pipe() for _ in range(2)] for _ in range(2)]
        self.ranks = {
            rank: RankProcess(rank, pid=1, pipes=tuple(read for read, _ in ends), log_dir=str(log_dir))
            for rank, ends in enumerate(self.pipes)
        }
        self.loop = Loop()
        self.reads = RankPipes(self.loop, self.ranks, self.connection)
        for rank in self.ranks.values():
            self.reads.add(rank)
        self.sinks = [os.pipe(), os.pipe()]
        self.screen = Screen(2, out=self.sinks[0][1], err=self.sinks[1][1], **options)
        self.came = [bytearray(), bytearray()]

    def count(self, kind, size):
        setattr(self, kind, getattr(self, kind) + size)

    def turn(self, now):
        """What the loops of both do in turn."""
        self.reads.keep_pace()
        self.loop.turn(0.0)
        self.reads.show()
        self.screen.push()
        self.control.pause(self.screen.full)
        for piece in self.control.read():
            self.screen.show(piece.rank, piece.stream, piece.data, now, piece.release)
        self.screen.push()

    def receive(self, most):
        for (read, _), came in zip(self.sinks, self.came, strict=True):
            if select.select((read,), (), (), 0)[0]:
                came.extend(os.read(read, most))

    def write(self, texts, size):
        """Let the ranks write ``texts[rank, stream]`` in pieces of about this size, each from a thread of its own."""
        draw = random.Random(5)

        def one(fd, text):
            while text:
                cut = draw.randint(1, size)
                os.write(fd, text[:cut])
                text = text[cut:]
            os.close(fd)

        threads = []
        for rank, ends in enumerate(self.pipes):
            for stream, (_, fd) in enumerate(ends, 1):
                threads.append(threading.Thread(target=one, args=(fd, texts.get((rank, stream), b"")), daemon=True))
                threads[-1].start()
        return threads

    def close(self):
        for rank in self.ranks.values():
            self.reads.close(rank)
        self.loop.close()
        self.control.close()
        self.connection.control.close()
        self.connection.output.close()
        self.screen.close()
        for ends in self.sinks:
            for fd in ends:
                os.close(fd)

    def run(self, texts, size, most, wanted=0):
        """Pass all on to a reader of so many bytes at a time; return both streams, and the lines of each writer."""
        threads = self.write(texts, size)
        wanted = wanted or sum(map(len, texts.values()))
        now = 0.0
        deadline = time.monotonic() + 250
        while sum(map(len, self.came)) < wanted:
            assert time.monotonic() < deadline, "bytes are missing"
            now += 0.001
            self.turn(now)
            self.receive(most)
            self.screen.tick(now)
        for thread in threads:
            thread.join(200)
        return {
            (rank, stream): [line for line in self.came[stream - 1].splitlines(True) if line.startswith(b"%d:" % rank)]
            for rank, stream in texts
        }


def all_are_free(slots):
    """Whether no slot is lent: each is handed out in turn."""
    free = [slot for slot in range(SLOTS) if slots.free() == slot and (slots.lend(slot) or True)]
    for slot in free:
        slots.give_back(slot)
    return len(free) == SLOTS


def lines(rank, count, seed):
    draw = random.Random(seed)
    return b"".join(b"%d:%d %s\n" % (rank, number, b"x" * draw.randint(0, 300)) for number in range(count))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "slots", [forked, pytest.param(both_of_file, marks=LINUX), none], ids=["forked", "file", "none"]
)
@pytest.mark.parametrize(("size", "most"), [(300_000, 1 << 20), (200_000, 30_000)], ids=["quick", "slow reader"])
def test_all_lines_arrive_whole_and_in_the_order_of_their_writer(slots, size, most):
    agent = Agent(slots())
    texts = {(rank, stream): lines(rank, 9000, 3 * rank + stream) for rank in (0, 1) for stream in (1, 2)}
    came = agent.run(texts, size, most)
    assert {who: b"".join(whole) for who, whole in came.items()} == texts
    if agent.slots:
        assert agent.lent > sum(map(len, texts.values())) / 10
        assert all_are_free(agent.slots)
    else:
        assert agent.lent == 0
    agent.close()


def test_a_log_and_labels_are_as_without_slots(tmp_path):
    text = lines(0, 5000, 1)
    agent = Agent(forked(), log_dir=tmp_path)
    agent.run({(0, 1): text}, 300_000, 1 << 20)
    assert (agent.lent, (tmp_path / "rank-0.log").read_bytes()) == (0, text)
    agent.close()
    agent = Agent(forked(), label=True)
    labelled = b"".join(b"[0]: " + line for line in text.splitlines(True))
    agent.run({(0, 1): text}, 300_000, 1 << 20, len(labelled))
    assert agent.came[0] == labelled
    assert agent.lent
    assert all_are_free(agent.slots)
    agent.close()


def test_words_that_are_held_back_or_folded_are_not_lent():
    output, now = RankOutput(0), 0.0
    text = b"x\n" * 9000
    for words in (TRACEBACK, b"Fatal Python error: Aborted\n"):
        assert output.may_lend(2)
        assert output.lend(2, memoryview(text + words + text), now) == 0
    assert output.lend(2, memoryview(text + b"begun"), now) == len(text)
    assert bytes(output.rest(2)) == b"begun"
    assert output.lend(1, memoryview(b"y" * 9000), now) == 0  # a line that does not end
    output.feed(2, b"\n" + TRACEBACK, now)
    output.take(now)
    assert not output.may_lend(2)
    assert not output.may_lend(1)  # not before what is held
    output.end(True, now)
    assert output.words == TRACEBACK.decode()
    quiet = RankOutput(0)
    assert quiet.lend(2, memoryview(b"one\ntwo\n"), now) == 8
    quiet.end(True, now)
    assert quiet.words == "one\ntwo\n"


def test_a_slot_is_given_back_when_it_is_written_and_when_it_never_will_be():
    read, write = os.pipe()
    slots = forked()[0]
    screen = Screen(2, out=write, err=write)

    def show(slot, stream, text):
        slots.lend(slot)
        slots.room(slot)[: len(text)] = text
        screen.show(0, stream, slots.room(slot, len(text)), 0.0, lambda: slots.give_back(slot))

    show(0, 1, b"a\n" * 60_000)
    screen.push()
    assert slots.free() == 1  # the pipe holds less
    show(1, 2, WARNING + b"behind it\n")
    assert slots.free() == 1  # all of it is copied, because it waits for the other rank
    os.read(read, 1 << 20)
    while slots.free():
        screen.push()
        os.read(read, 1 << 20)
    os.close(read)
    show(0, 1, b"b\n" * 60_000)
    screen.push()
    assert screen.lost
    assert slots.free() == 0
    show(0, 1, b"c\n")
    assert slots.free() == 0
    screen.close()
    os.close(write)


def test_what_an_agent_lent_before_it_was_killed_arrives():
    ours, its = pair()
    slots = Slots.inherited()
    control = Control(SETTINGS)
    control.adopt(0, "here", *ours, slots)
    pid = os.fork()
    if not pid:
        connection = Connection(*map(End.made, its), SETTINGS, slots=slots)
        for slot in range(SLOTS):
            text = b"%d\n" % slot * 1000
            slots.room(slot)[: len(text)] = text
            connection.lend(0, 1, slot, len(text))
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    for end in its:
        end.close()
    came = []
    wait_until(lambda: came.extend(control.read()) or not control.open_outputs, 5, "its end", every=0.01)
    came = [bytes(item.data) for item in came if isinstance(item, Piece)]
    assert came == [b"%d\n" % slot * 1000 for slot in range(SLOTS)]
    control.close()


@LINUX
def test_nobody_can_make_the_memory_shorter():
    _, file = Slots.with_file()
    with pytest.raises(PermissionError):
        os.ftruncate(file, 10)
    os.close(file)
    short = os.memfd_create("short")
    os.ftruncate(short, 4096)
    assert Slots.of_file(short) is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(short)


def memories():
    """How many files of slots are open in this process."""
    gc.collect()  # those of other tests
    links = []
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the folder itself
            links.append(str(file.readlink()))
    return sum("memfd:ezpz output" in link for link in links)


@LINUX
@pytest.mark.parametrize("way", ["Unix socket", "TCP", "no memory"])
def test_an_agent_of_this_host_gets_memory_and_one_behind_tcp_none(way, monkeypatch):
    def refuse(*_):
        raise OSError

    if way == "TCP":
        monkeypatch.setattr(local_socket, "reach", refuse)
    if way == "no memory":
        monkeypatch.setattr(os, "memfd_create", refuse)
    control, made = Control(SETTINGS, LOOPBACK, hosts=2), []
    before = memories()
    thread = threading.Thread(target=lambda: made.append(connect(control.variable, 1)))
    thread.start()
    wait_until(lambda: list(control.read()) is None or (made and control.heard), 5, "both connections", every=0.01)
    thread.join(200)
    connection, items = made[0], []
    assert memories() == before + (2 if way == "Unix socket" else 0)  # Python keeps the file of a map open, no more
    assert bool(connection.slots) == (way == "Unix socket")
    if connection.slots:
        connection.slots.room(3)[:4] = b"abc\n"
        connection.lend(7, 2, 3, 4)
    else:
        connection.show(7, 2, b"abc\n")
    wait_until(lambda: items.extend(control.read()) or items, 5, "the piece", every=0.01)
    assert [(item.rank, item.stream, bytes(item.data)) for item in items] == [(7, 2, b"abc\n")]
    for end in (connection.control, connection.output):
        assert end.family == (socket.AF_INET if way == "TCP" else socket.AF_UNIX)
        end.close()
    control.close()


def test_a_frame_that_names_no_part_of_a_slot_ends_the_connection(subtests):
    of_none = b"0 1 %d 5\n" % SLOTS, b"0 1 -1 5\n", b"0 1 0 0\n", b"0 1 0 %d\n" % (SLOT_SIZE + 1)
    for content in (*of_none, b"0 3 0 5\n", b"0 1 0 5 -6\n", b"0 1 0 5 6 7\n", b"0 1 0 5\nand more"):
        with subtests.test(content), pytest.raises(Malformed):
            Piece.decode(memoryview(content), Slots.inherited())
    with pytest.raises(Malformed):  # where there are no slots
        Piece.decode(memoryview(b"0 1 0 5\n"))


def test_flags_and_slots_do_not_overlap():
    slots = Slots.inherited()
    slots.room(0)[:] = b"\xff" * SLOT_SIZE
    slots.room(SLOTS - 1)[:] = b"\xff" * SLOT_SIZE
    assert slots.free() == 0
    for slot in range(SLOTS):
        slots.lend(slot)
    assert slots.free() is None
    assert len(slots.room(SLOTS - 1)) == SLOT_SIZE
