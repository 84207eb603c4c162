"""Whoever reaches the control port without the secret gets nothing, and harms nothing."""

import contextlib
import errno
import itertools
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

from ezpz import local_socket
from ezpz.fields import Malformed
from ezpz.launch import agent_messages, frames
from ezpz.launch.agent_messages import HELLOS, ORDERS, REPORTS, Hello, Note, Piece, Up
from ezpz.launch.frames import FrameReader, FrameWriter, Greeting
from ezpz.launch.host import connection as agent_side
from ezpz.launch.host.connection import End, connect
from ezpz.launch.master import ListenAddress
from ezpz.launch.run import control as control_module
from ezpz.launch.run.control import Control, Report
from lab.agents import settings
from lab.process import wait_until

SETTINGS = settings(log_dir="/logs", by_rank=True)
LOOPBACK = ListenAddress("127.0.0.1", ("127.0.0.1",), "for tests")


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


def keys_of(control, stranger, kind=frames.REPORTS, host=0, agent="0" * 32):
    """Send a right greeting; the keys of the connection."""
    stranger.settimeout(60)
    line, keys = frames.greet(secret(control), stranger.recv(4096), Greeting(kind, host, agent))
    stranger.sendall(line)
    return keys


def is_challenged(stranger):
    """Whether the launcher has taken the call."""
    stranger.setblocking(False)
    try:
        return bool(stranger.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def greeted(control, stranger, **who):
    """Send a right greeting; the agent's end."""
    return End.made(stranger, keys_of(control, stranger, **who))


def introduced(control, heard, stranger, **who):
    """The same with a `Hello`, read by the launcher."""
    heard(control.due)
    end = greeted(control, stranger, **who)
    stranger.sendall(end.writer.frame(HELLOS.encode(Hello(host="n01"))))
    heard(lambda: control.heard)
    return end


def test_a_surprise_closes_that_connection_and_nothing_else(control, heard, call, subtests, monkeypatch):
    monkeypatch.setattr(control_module, "_DEADLINE", 0.2)
    agent = in_thread(connect, control.variable, 1)
    heard(lambda: control.heard)
    agent.join(60)
    for number, (name, words) in enumerate(attack.WORDS.items()):
        with subtests.test(name):
            stranger = call()
            heard(control.due)
            stranger.sendall(words)
            heard(lambda stranger=stranger: is_over(stranger))
            told = Report(1, Note(text=str(number)))
            agent.result.report(told.message)
            items = heard(lambda: True)
            heard(lambda told=told, items=items: told in items)
            assert items[1:] == [Report(1, Note(text=str(each))) for each in range(number + 1)]


def test_a_greeting_is_one_line_of_fixed_length():
    assert frames.GREETING_SIZE <= 512
    line, _ = frames.greet("s", frames.challenge("a" * 32), Greeting(frames.OUTPUTS, -1, "b" * 32))
    assert len(line) == frames.GREETING_SIZE == len(attack.GREETING)
    assert len(frames.challenge("a" * 32)) == frames.CHALLENGE_SIZE


def test_a_stranger_that_says_nothing_goes_after_five_seconds(control, heard, call):
    stranger = call()
    heard(control.due)
    deadline = control.due()
    assert deadline - time.monotonic() <= 5.0
    control.tick(deadline - 0.1)
    assert not is_over(stranger)
    control.tick(deadline)
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


def test_of_too_many_strangers_the_oldest_go_first_and_an_agent_gets_in(control, heard, call, monkeypatch):
    monkeypatch.setattr(control_module, "_DEADLINE", 600.0)  # however busy the machine is
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
    heard(lambda: all(map(is_challenged, strangers)))
    local = local_socket.control_address(port(control))
    for turn in range(20):
        later = [call(), socket.socket(fileno=local_socket.reach(local).detach())]
        strangers[2 * turn].sendall(attack.GREETING[:1])  # of those that are left, it has come first
        strangers += later
        heard(lambda later=later: all(map(is_challenged, later)))
        assert all(map(is_over, strangers[: 2 * turn + 2]))
    assert not is_over(strangers[-1])
    for stranger in strangers:
        stranger.close()


FLOOD = """
import select, socket, sys
kept, was_hung_up_on = [], False
def is_hung_up_on(connection):
    try:
        return not connection.recv(4096)
    except OSError:
        return True
while True:
    try:
        kept.append(socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=1))
    except OSError:
        continue
    try:
        kept[-66 if len(kept) > 66 else 0].send(b"e")  # when it may just be hung up on
    except OSError:
        pass
    if not was_hung_up_on and any(map(is_hung_up_on, select.select(kept, [], [], 0)[0])):
        was_hung_up_on = True
        print("flooded", flush=True)
    if len(kept) > 500:
        kept.pop(0).close()
"""


@pytest.mark.slow
def test_agents_get_in_through_a_flood(control):
    def serve(condition):
        end = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < end
            select.select([control], [], [], 0.05)
            list(control.read())
            control.tick(time.monotonic())

    line = [sys.executable, "-I", "-c", FLOOD, str(port(control))]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as flooder:
        try:
            serve(lambda: select.select([flooder.stdout], [], [], 0)[0])
            agents = [in_thread(connect, control.variable, -1) for _ in range(5)]
            serve(lambda: not any(agent.is_alive() for agent in agents))
        finally:
            flooder.kill()
    assert [getattr(agent.result, "settings", agent.result) for agent in agents] == [SETTINGS] * 5


@pytest.fixture
def relay(control):
    """``relay(take)``: the variable of a way to the launcher, and all that goes there.

    `take(number, connection)` is called with each connection of an agent; where it returns False, that is closed.
    """
    opened = []

    def copy(one, other, through):
        try:
            while data := one.recv(65536):
                other.sendall(through(data))
        except OSError:  # the test is over
            pass

    def serve(tap, take):
        for number in itertools.count():
            try:
                near, _ = tap.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", port(control)))
            opened.extend((near, far))
            if take(number, near) is False:
                near.close()
                continue
            in_thread(copy, near, far, heard_on_the_way)
            in_thread(copy, far, near, heard_on_the_way)

    def heard_on_the_way(data):
        crossed.extend(data)
        return data

    crossed = bytearray()

    def make(take=lambda _number, _near: True):
        tap = socket.create_server(("127.0.0.1", 0))
        opened.append(tap)
        in_thread(serve, tap, take)
        return f"{secret(control)}@{tap.getsockname()[1]}@127.0.0.1", crossed

    yield make
    for one in opened:
        with contextlib.suppress(OSError):  # it may be closed by now
            one.shutdown(socket.SHUT_RDWR)
        one.close()


def test_an_agent_that_is_hung_up_on_tries_again(control, heard, relay):
    calls = []

    def unlucky(number, _near):
        calls.append(number)
        return number >= 2

    variable, _ = relay(unlucky)
    agent = in_thread(connect, variable, 1)
    heard(lambda: control.heard)
    agent.join(60)
    assert calls == [0, 1, 2, 3]  # both connections in the end
    assert agent.result.settings == SETTINGS


def test_a_launcher_without_a_free_descriptor_turns_strangers_away_and_hears_its_agents(control, heard, call):
    agent = in_thread(connect, control.variable, 1)
    heard(lambda: control.heard)
    agent.join(60)
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
    heard(control.due)
    keys = keys_of(control, stranger, agent="a" * 32)
    end, other = End.made(stranger, keys), FrameWriter(b"k" * 32)
    stranger.sendall(end.writer.frame(HELLOS.encode(Hello(host="n01"))))
    heard(lambda: control.heard)
    up, note = (end.writer.frame(REPORTS.encode(one)) for one in (Up(ranks=1), Note(text="x")))
    sent = {
        "changed": up.replace(b"1", b"2"),
        "repeated": up + up,
        "left out": note,
        "turned round": FrameWriter(keys.from_launcher).frame(REPORTS.encode(Up(ranks=1))),
        "of another connection": other.frame(REPORTS.encode(Up(ranks=1))),
    }[damage]
    assert sent not in {up, note} or damage == "left out"
    stranger.sendall(sent)
    items = heard(lambda: 0 in control.done)
    reports = [item.message for item in items[1:]]
    assert reports == [*[Up(ranks=1)] * (damage == "repeated"), agent_messages.Lost()]


def test_what_the_launcher_says_cannot_be_said_back_to_it(control, heard, call):
    stranger = call()
    introduced(control, heard, stranger)
    welcome = stranger.recv(4096)
    stranger.sendall(welcome)
    assert heard(lambda: 0 in control.done)[-1] == Report(0, agent_messages.Lost())


def test_frames_in_another_order_are_refused():
    writer, reader = FrameWriter(b"k"), FrameReader(b"k", 100)
    first, second = writer.frame(b"1"), writer.frame(b"2")
    with pytest.raises(Malformed, match="a wrong tag"):
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
    with pytest.raises(Malformed, match="a frame of 101 bytes; expected at most 100"):
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
    while control.order(agent_messages.Signal(number=15)):
        assert time.monotonic() - began < 300
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


def test_an_agent_obeys_no_launcher_without_the_secret(false_launcher, monkeypatch, subtests):
    monkeypatch.setattr(agent_side, "_PATIENCE", 0.3)
    for words, reason in (
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "another program answers"),
        (CHALLENGE + b"\0\0\0\2" + bytes(16) + b"{}", "a frame with a wrong tag"),
        (CHALLENGE + b"\xff" * 100, "a frame of 4294967295 bytes"),
        (CHALLENGE, "timed out"),
        (b"", "timed out"),
        (b"ezpz", "timed out"),
    ):
        with subtests.test(words):
            came = []

            def answer(connection, words=words, came=came):
                connection.sendall(words)
                came.append(connection.recv(4096))

            port = false_launcher(answer)
            with pytest.raises(agent_side.LaunchError, match=reason):
                connect(f"{'5ec3e7' * 5}@{port}@127.0.0.1", 0)
            assert b"5ec3e7" not in b"".join(came)


def test_an_agent_waits_for_a_false_launcher_that_drips_no_longer_than_for_a_silent_one(false_launcher, monkeypatch):
    monkeypatch.setattr(agent_side, "_PATIENCE", 0.5)
    sent = []

    def drip(connection):
        for byte in CHALLENGE:
            connection.sendall(bytes([byte]))
            sent.append(byte)
            time.sleep(0.3)

    port = false_launcher(drip)
    with pytest.raises(agent_side.LaunchError, match="timed out"):
        connect(f"00@{port}@127.0.0.1", 0)
    assert len(sent) < len(CHALLENGE)


def test_the_secret_does_not_cross_the_connection(control, heard, relay):
    variable, crossed = relay()
    agent = in_thread(connect, variable, 1)
    heard(lambda: control.heard)
    agent.join(60)
    agent.result.show(0, 1, b"seen\n")
    items = heard(lambda: True)
    heard(lambda: Piece(0, 1, b"seen\n") in items)
    assert b"ezpz-agent-1 outputs" in crossed
    assert b"seen" in crossed
    assert secret(control).encode() not in crossed
    agent.result.control.close()
    agent.result.output.close()


def test_an_order_of_a_stranger_on_an_open_connection_ends_it(control, heard, relay):
    """As on a path between the hosts: bytes are put into the connection itself."""
    connections = []
    variable, _ = relay(lambda _number, near: connections.append(near))
    agent = in_thread(connect, variable, 0)
    heard(lambda: control.heard)
    agent.join(60)
    connections[0].sendall(FrameWriter(b"x").frame(ORDERS.encode(agent_messages.Kill())))
    assert list(agent.result.orders()) == [(0, agent_messages.Lost())]
