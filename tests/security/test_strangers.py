"""Whoever reaches the control port without the secret gets nothing, and harms nothing."""

import errno
import os
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import attack
import pytest

from ezpz.launch import frames, messages
from ezpz.launch.frames import FrameReader, FrameWriter, Greeting
from ezpz.launch.host import connection as agent_side
from ezpz.launch.host import local_socket
from ezpz.launch.host.connection import End, connect
from ezpz.launch.master import Listening
from ezpz.launch.messages import HELLOS, ORDERS, REPORTS, Hello, MalformedMessage, Note, Piece, Up
from ezpz.launch.run import control as control_module
from ezpz.launch.run.control import Control, Report
from lab.process import wait_until

SETTINGS = messages.Settings(
    log_dir="/logs",
    idle=None,
    input=False,
    recorder="",
    collectives="",
    parting=0.0,
    by_rank=True,
    live=False,
    hardware=0.0,
    look=messages.NO_LOOK,
)
LOOPBACK = Listening("127.0.0.1", ("127.0.0.1",), "for tests")


@pytest.fixture
def control():
    made = Control(SETTINGS, LOOPBACK, hosts=2)
    yield made
    made.close()


@pytest.fixture
def heard(control):
    """``heard(condition)``: read until it holds; all that came so far."""
    items = []

    def wait(condition, seconds=10):
        def met():
            items.extend(control.read())
            control.tick(time.monotonic())
            return condition()

        wait_until(met, seconds, "what the test waits for", every=0.005)
        return items

    return wait


@pytest.fixture
def call(control):
    """``call()``: a stranger's connection; all are closed at the end."""
    made = []

    def call():
        made.append(socket.create_connection(("127.0.0.1", port(control)), timeout=5))
        return made[-1]

    yield call
    for stranger in made:
        stranger.close()


def port(control):
    return int(control.variable.split("@")[1])


def secret(control):
    return control.variable.split("@")[0]


def in_thread(function, *args):
    """Call a function beside the test; `.result` is what it returned or raised."""

    def run():
        try:
            thread.result = function(*args)
        except Exception as error:  # noqa: BLE001  # the test looks at it
            thread.result = error

    thread = threading.Thread(target=run)
    thread.result = None
    thread.start()
    return thread


def is_over(stranger):
    """Whether the launcher has hung up."""
    stranger.setblocking(False)
    try:
        while stranger.recv(4096):
            pass  # the challenge
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


def greeted(control, stranger, kind=frames.REPORTS, host=0, agent="0" * 32):
    """Send a right greeting; the agent's end."""
    stranger.settimeout(5)
    line, keys = frames.greet(secret(control), stranger.recv(4096), Greeting(kind, host, agent))
    stranger.sendall(line)
    return End.made(stranger, keys)


def introduced(control, heard, stranger, **who):
    """The same with a `Hello`, read by the launcher."""
    heard(control.due)
    end = greeted(control, stranger, **who)
    stranger.sendall(end.writer.frame(HELLOS.encode(Hello(host="n01"))))
    heard(lambda: control.heard)
    return end


@pytest.mark.parametrize("words", attack.WORDS.values(), ids=attack.WORDS)
def test_a_surprise_closes_that_connection_and_nothing_else(control, heard, call, words, monkeypatch):
    monkeypatch.setattr(control_module, "_DEADLINE", 0.2)
    agent = in_thread(connect, control.variable, 1)
    heard(lambda: control.heard)
    stranger = call()
    heard(control.due)
    stranger.sendall(words)
    items = heard(lambda: is_over(stranger))
    agent.result.report(Up(ranks=1))
    heard(lambda: Report(1, Up(ranks=1)) in items)
    assert items == [Report(1, Hello(host=os.uname().nodename)), Report(1, Up(ranks=1))]


def test_a_greeting_is_one_line_of_fixed_length():
    assert frames.GREETING_SIZE <= 512
    line, _ = frames.greet("s", frames.challenge("a" * 32), Greeting(frames.OUTPUTS, -1, "b" * 32))
    assert len(line) == frames.GREETING_SIZE == len(attack.GREETING)
    assert len(frames.challenge("a" * 32)) == frames.CHALLENGE_SIZE


def test_a_stranger_that_says_nothing_goes_after_five_seconds(control, heard, call):
    stranger = call()
    heard(control.due)
    assert control.due() - time.monotonic() <= 5.0
    control.tick(time.monotonic() + 4.0)
    assert not is_over(stranger)
    control.tick(time.monotonic() + 5.0)
    assert is_over(stranger)
    assert control.due() is None


def test_a_stranger_that_drips_gets_no_more_time(control, heard, call):
    stranger = call()
    heard(control.due)
    deadline = control.due()
    stranger.sendall(attack.GREETING[:1])
    heard(lambda: True)
    stranger.sendall(attack.GREETING[1:2])
    heard(lambda: True)
    assert control.due() == deadline


def test_of_too_many_strangers_the_oldest_go_first_and_an_agent_gets_in(control, heard, call):
    strangers = [call() for _ in range(2 + 64 + 10)]
    heard(lambda: is_over(strangers[9]))
    assert all(map(is_over, strangers[:10]))
    assert not any(map(is_over, strangers[10:]))
    agent = in_thread(connect, control.variable, 1)
    heard(lambda: control.heard)
    assert agent.result.settings == SETTINGS


@pytest.mark.skipif(sys.platform != "linux", reason="the second listener is a Unix socket of Linux")
def test_a_caller_that_gets_the_descriptor_of_one_that_was_hung_up_on_is_not_taken_for_it(
    control, heard, call, monkeypatch
):
    """Both listeners are served in one turn: what the oldest stranger has sent belongs to nothing that comes later."""
    monkeypatch.setattr(control_module, "_DEADLINE", 600.0)  # however busy the machine is
    strangers = [call() for _ in range(2 + 64)]
    heard(lambda: len(control._strangers) == len(strangers))
    local = local_socket.control_address(port(control))
    for _ in range(20):
        oldest = next(iter(control._strangers))
        later = [call(), socket.socket(fileno=local_socket.reach(local).detach())]
        for stranger in strangers:
            if stranger.getsockname() == oldest.connection.getpeername():
                stranger.sendall(attack.GREETING[:1])
        strangers += later
        heard(lambda later=later: all(len(one.recv(1, socket.MSG_PEEK)) for one in later))
    assert not is_over(strangers[-1])
    for stranger in strangers:
        stranger.close()


FLOOD = """
import socket, sys
kept = []
while True:
    try:
        kept.append(socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=1))
        kept[-66 if len(kept) > 66 else 0].send(b"e")  # when it may just be hung up on
    except OSError:
        pass
    if len(kept) > 500:
        kept.pop(0).close()
"""


@pytest.mark.slow
def test_agents_get_in_through_a_flood(control):
    def serve(condition):
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end
            select.select([control], [], [], 0.05)
            list(control.read())
            control.tick(time.monotonic())

    with subprocess.Popen([sys.executable, "-I", "-c", FLOOD, str(port(control))]) as flooder:
        try:
            serve(lambda: len(control._strangers) == 2 + 64)
            agents = [in_thread(connect, control.variable, -1) for _ in range(5)]
            serve(lambda: not any(agent.is_alive() for agent in agents))
        finally:
            flooder.kill()
    assert [getattr(agent.result, "settings", agent.result) for agent in agents] == [SETTINGS] * 5


def test_an_agent_that_is_hung_up_on_tries_again(control, heard, monkeypatch):
    evicted = []
    accept = Control._accept

    def unlucky(self, listener):
        accept(self, listener)
        if len(evicted) < 2:
            evicted.append(next(iter(self._strangers)))
            self._turn_away(evicted[-1])

    monkeypatch.setattr(Control, "_accept", unlucky)
    agent = in_thread(connect, control.variable, 1)
    heard(lambda: control.heard)
    assert len(evicted) == 2
    assert agent.result.settings == SETTINGS


def test_a_launcher_without_a_free_descriptor_turns_strangers_away_and_hears_its_agents(control, heard, call):
    agent = in_thread(connect, control.variable, 1)
    heard(lambda: control.heard)
    agent.join(5)
    strangers = [call() for _ in range(3)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, hard))
    filled = []
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            filled.extend(os.dup(0) for _ in range(1000))
        agent.result.report(Note(text="still here"))
        heard(lambda: all(map(is_over, strangers)))
        items = heard(lambda: True)
        assert Report(1, Note(text="still here")) in items
    finally:
        for fd in filled:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    late = call()
    heard(control.due)
    assert not is_over(late)


def test_a_recorded_greeting_opens_no_second_connection(control, heard, call):
    first = call()
    heard(control.due)
    challenged = first.recv(4096)
    line, _ = frames.greet(secret(control), challenged, Greeting(frames.REPORTS, 0, "a" * 32))
    first.sendall(line)
    heard(lambda: not control.due())
    again = call()
    heard(control.due)
    again.sendall(line)
    heard(lambda: is_over(again))
    assert not control.heard


@pytest.mark.parametrize("damage", ["changed", "repeated", "left out", "turned round", "of another connection"])
def test_a_frame_that_was_tampered_with_ends_its_connection(control, heard, call, damage):
    stranger = call()
    end = introduced(control, heard, stranger, agent="a" * 32)
    other = FrameWriter(b"k" * 32)
    up, note = (end.writer.frame(REPORTS.encode(one)) for one in (Up(ranks=1), Note(text="x")))
    sent = {
        "changed": up.replace(b"1", b"2"),
        "repeated": up + up,
        "left out": note,
        "turned round": FrameWriter(end.reader._seal._keyed.digest()).frame(REPORTS.encode(Up(ranks=1))),
        "of another connection": other.frame(REPORTS.encode(Up(ranks=1))),
    }[damage]
    assert sent not in {up, note} or damage == "left out"
    stranger.sendall(sent)
    items = heard(lambda: 0 in control.done)
    reports = [item.message for item in items[1:]]
    assert reports == [*[Up(ranks=1)] * (damage == "repeated"), messages.Lost()]


def test_what_the_launcher_says_cannot_be_said_back_to_it(control, heard, call):
    stranger = call()
    introduced(control, heard, stranger)
    welcome = stranger.recv(4096)
    stranger.sendall(welcome)
    assert heard(lambda: 0 in control.done)[-1] == Report(0, messages.Lost())


def test_frames_in_another_order_are_refused():
    writer, reader = FrameWriter(b"k"), FrameReader(b"k", 100)
    first, second = writer.frame(b"1"), writer.frame(b"2")
    with pytest.raises(MalformedMessage, match="a wrong tag"):
        list(reader.feed(second + first))


@pytest.mark.parametrize("key", [b"", b"k"])
def test_frames_may_arrive_in_any_pieces(key):
    writer, reader = FrameWriter(key), FrameReader(key, 100)
    data = writer.frame() + writer.frame(b"a", b"b") + writer.frame(b"x" * 100)
    came = [bytes(content) for byte in data for content in reader.feed(bytes([byte]))]
    assert came == [b"", b"ab", b"x" * 100]
    assert reader.missing == (20 if key else 4)


def test_a_frame_that_is_too_large_is_refused_before_it_comes():
    writer, reader = FrameWriter(b"k"), FrameReader(b"k", 100)
    with pytest.raises(MalformedMessage, match="a frame of 101 bytes; expected at most 100"):
        list(reader.feed(writer.frame(b"x" * 101)[:20]))


def test_an_agent_has_one_connection_of_each_kind(control, heard, call):
    first, second, third = call(), call(), call()
    introduced(control, heard, first, agent="a" * 32)
    greeted(control, second, agent="a" * 32)
    heard(lambda: is_over(second))
    greeted(control, third, kind=frames.OUTPUTS, agent="b" * 32)  # of no agent that is here
    heard(lambda: is_over(third))
    assert not control.open_outputs
    assert control.done == set()


def test_a_second_agent_for_the_same_host_is_refused_and_named(control, heard, call):
    first, second = call(), call()
    end = introduced(control, heard, first, agent="a" * 32)
    items = heard(lambda: True)
    other = greeted(control, second, agent="b" * 32)
    second.sendall(other.writer.frame(HELLOS.encode(Hello(host="n09"))))
    heard(lambda: len(items) == 2)
    assert "n09 is refused" in items[1].message.text
    heard(lambda: is_over(second))
    first.sendall(end.writer.frame(REPORTS.encode(Up(ranks=1))))
    heard(lambda: Report(0, Up(ranks=1)) in items)
    assert control.done == set()


@pytest.mark.parametrize("host", [2, -2, 10**7])
def test_a_host_that_the_plan_lacks_is_refused(control, heard, call, host):
    stranger = call()
    heard(control.due)
    greeted(control, stranger, host=host)
    heard(lambda: is_over(stranger))


@pytest.mark.slow
def test_an_agent_that_reads_no_orders_is_lost_and_holds_nobody_up(control, heard, call):
    stranger = call()
    introduced(control, heard, stranger)
    began = time.monotonic()
    while control.order(messages.Signal(number=15)):
        assert time.monotonic() - began < 30
    heard(lambda: 0 in control.done)


# An agent that meets another program at the port, when its launcher has gone.


@pytest.fixture
def false_launcher():
    """``false_launcher(function)``: a server that calls it with each connection; its port."""
    opened = []

    def serve(function):
        server = socket.create_server(("127.0.0.1", 0))
        opened.append(server)

        def run():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                opened.append(connection)
                try:
                    function(connection)
                except OSError:
                    pass

        threading.Thread(target=run, daemon=True).start()
        return server.getsockname()[1]

    yield serve
    for one in opened:
        one.close()


CHALLENGE = frames.challenge("a" * 32)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "another program answers"),
        (CHALLENGE + b"\0\0\0\2" + bytes(16) + b"{}", "a frame with a wrong tag"),
        (CHALLENGE + b"\xff" * 100, "a frame of 4294967295 bytes"),
        (CHALLENGE, "timed out"),
        (b"", "timed out"),
        (b"ezpz", "timed out"),
    ],
)
def test_an_agent_obeys_no_launcher_without_the_secret(false_launcher, words, reason, monkeypatch):
    monkeypatch.setattr(agent_side, "_PATIENCE", 0.3)
    came = []

    def answer(connection):
        connection.sendall(words)
        came.append(connection.recv(4096))

    port = false_launcher(answer)
    with pytest.raises(agent_side.LaunchError, match=reason):
        connect(f"{'5ec3e7' * 5}@{port}@127.0.0.1", 0)
    assert b"5ec3e7" not in b"".join(came)


def test_an_agent_waits_for_a_false_launcher_that_drips_no_longer_than_for_a_silent_one(false_launcher, monkeypatch):
    monkeypatch.setattr(agent_side, "_PATIENCE", 0.5)

    def drip(connection):
        for byte in CHALLENGE * 10:
            connection.sendall(bytes([byte]))
            time.sleep(0.1)

    port = false_launcher(drip)
    began = time.monotonic()
    with pytest.raises(agent_side.LaunchError, match="timed out"):
        connect(f"00@{port}@127.0.0.1", 0)
    assert time.monotonic() - began < 5


def test_the_secret_does_not_cross_the_connection(control, heard):
    crossed = bytearray()

    def relay(near):
        far = socket.create_connection(("127.0.0.1", port(control)))
        for one, other in ((near, far), (far, near)):
            in_thread(copy, one, other)

    def copy(one, other):
        while data := one.recv(65536):
            crossed.extend(data)
            other.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as tap:
        agent = in_thread(connect, f"{secret(control)}@{tap.getsockname()[1]}@127.0.0.1", 1)
        relay(tap.accept()[0])
        heard(lambda: control._agents)
        relay(tap.accept()[0])
        heard(lambda: control.heard)
        agent.join(5)
    agent.result.show(0, 1, b"seen\n")
    items = heard(lambda: True)
    heard(lambda: Piece(0, 1, b"seen\n") in items)
    assert b"ezpz-agent-1 outputs" in crossed
    assert b"seen" in crossed
    assert secret(control).encode() not in crossed
    agent.result.control.close()
    agent.result.output.close()


def test_an_order_of_a_stranger_on_an_open_connection_ends_it(control, heard, call):
    """As on a path between the hosts: bytes are put into the connection itself."""
    agent = in_thread(connect, control.variable, 0)
    heard(lambda: control.heard)
    agent.join(5)
    (peer,) = control._agents.values()
    peer.connection.sendall(FrameWriter(b"x").frame(ORDERS.encode(messages.Kill())))
    assert list(agent.result.orders()) == [messages.Lost()]
