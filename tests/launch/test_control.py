"""Connections between the launcher and its agents: who is let in, what crosses them, and what a lost one means."""

import contextlib
import select
import socket
import sys
import threading
import time

import pytest

from ezpz import local_socket
from ezpz.errors import LaunchError
from ezpz.launch.agent_messages import ConnectOutput, Done, Lost, Note, OutputTaken, Piece, Signal, Up
from ezpz.launch.host.connection import Connection, End, LauncherGoneError, connect, is_launcher_gone, pair
from ezpz.launch.master import ListenAddress
from ezpz.launch.run.control import Control, Report
from lab.agents import failed, settings
from lab.process import wait_until

SETTINGS = settings(log_dir="/logs", idle=5.0, by_rank=True)
LOOPBACK = ListenAddress("127.0.0.1", ("127.0.0.1",), "for tests")
NOWHERE = "255.255.255.255"  # no host has it, and nothing is sent
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux's")


@pytest.fixture
def control():
    made = Control(SETTINGS, LOOPBACK, hosts=2)
    yield made
    made.close()


def hearing(control):
    """``heard(kind, count)``: wait until so many reports of a kind, or pieces, have come; all that came so far."""
    items = []

    def heard(kind, count=1):
        def enough():
            items.extend(control.read())
            return sum(isinstance(getattr(item, "message", item), kind) for item in items) >= count

        wait_until(enough, 5, kind.__name__, every=0.01)
        return items

    return heard


@pytest.fixture
def heard(control):
    return hearing(control)


def no_socket(*_):
    raise ConnectionRefusedError


@pytest.fixture(params=[socket.AF_INET, pytest.param(socket.AF_UNIX, marks=LINUX)], ids=["TCP", "Unix"])
def connection(control, request, monkeypatch):
    """That of an agent, which finds the launcher's Unix socket on its own host only."""
    if request.param == socket.AF_INET:
        monkeypatch.setattr(local_socket, "reach", no_socket)
    made = []
    thread = threading.Thread(target=lambda: made.append(connect(control.variable, 1)))
    thread.start()
    wait_until(lambda: list(control.read()) is None or (made and control.heard), 5, "both connections", every=0.01)
    thread.join(60)
    assert {made[0].control.family, made[0].output.family} == {request.param}
    return made[0]


def readable(connection):
    return bool(select.select([connection], [], [], 0.0)[0])


def finish(connection):
    """Send what waits and the end of the output, as an agent does at its own end."""
    connection.end_output()
    while connection.waiting:
        connection.push()
        time.sleep(0.001)


def test_an_agent_is_let_in_and_told_the_settings(control, connection):
    assert connection.settings == SETTINGS
    assert abs(connection.clock) < 60
    assert set(control.heard) == {1}
    assert control.done == set()


def test_what_it_says_and_shows_arrives_whole(connection, heard):
    connection.report(failed())
    big = bytes(range(256)) * 4000
    connection.show(3, 1, big)
    connection.show(3, 2, b"err\n")
    flush = threading.Thread(target=finish, args=[connection])
    flush.start()
    items = heard(Piece, 2)
    assert Report(1, failed()) in items
    assert [item for item in items if isinstance(item, Piece)] == [Piece(3, 1, big), Piece(3, 2, b"err\n")]


def test_a_pause_that_begins_between_two_pieces_loses_none(control, connection):
    pieces = [b"%d" % number * 50000 + b"\n" for number in range(100, 180)]
    sender = threading.Thread(target=lambda: ([connection.show(0, 1, data) for data in pieces], finish(connection)))
    sender.start()
    came = []

    def read(is_paused):
        for item in control.read():
            came.append(item.data)
            control.pause(is_paused)
        return len(came)

    wait_until(lambda: read(True), 5, "the first piece", every=0.01)
    before = read(True)
    assert before < 10  # what one read had brought
    control.pause(False)
    wait_until(lambda: read(False) == len(pieces), 10, "the others", every=0.001)
    sender.join(60)
    assert came == pieces


@LINUX
def test_a_unix_socket_of_another_user_is_neither_spoken_to_nor_heard(control, monkeypatch):
    monkeypatch.setattr(local_socket, "is_own", lambda _: False)
    made = []
    thread = threading.Thread(target=lambda: made.append(connect(control.variable, 1)))
    thread.start()
    wait_until(lambda: list(control.read()) is None or (made and control.heard), 5, "both connections", every=0.01)
    thread.join(60)
    assert made[0].control.family == socket.AF_INET
    caller = socket.socket(socket.AF_UNIX)
    caller.connect("\0" + local_socket.control_address(port(control))[1:])
    assert list(control.read()) == []
    assert caller.recv(100) == b""
    caller.close()


@LINUX
def test_where_another_has_the_name_tcp_is_left(monkeypatch):
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind("\0ezpz-control-taken")
        monkeypatch.setattr(local_socket, "control_address", lambda _: "@ezpz-control-taken")
        control = Control(SETTINGS, LOOPBACK)
    with socket.create_connection(("127.0.0.1", port(control)), timeout=60) as caller:
        wait_until(lambda: list(control.read()) == [] and control.due(), 5, "a stranger", every=0.01)
        assert caller.recv(100).startswith(b"ezpz-launch-1 ")
    control.close()


def port(control):
    return int(control.variable.split("@")[1])


def test_orders_reach_the_hosts_that_are_meant(control, connection):
    assert control.order(Signal(number=15), {0}) == set()
    assert control.order(Signal(number=15), {1}) == {1}
    assert list(connection.orders()) == [(0, Signal(number=15))]


def test_a_screen_that_is_full_holds_output_back_and_no_report(control, connection, heard):
    control.pause(True)
    connection.show(0, 1, b"x\n")
    connection.report(Note(text="news"))
    items = heard(Note)
    time.sleep(0.1)
    assert not [item for item in [*items, *control.read()] if isinstance(item, Piece)]
    control.pause(False)
    assert Piece(0, 1, b"x\n") in heard(Piece)


def test_an_agent_that_goes_without_a_word_is_lost(connection, heard, control):
    connection.control.close()
    assert Report(1, Lost()) in heard(Lost)
    assert control.done == {1}


def test_an_agent_that_is_done_is_not_lost(connection, heard, control):
    connection.report(Done(stuck=[], step=-1))
    connection.control.close()
    connection.output.close()
    heard(Done)
    wait_until(lambda: not (list(control.read()) or control.open_outputs), 5, "the end of both connections", every=0.01)
    assert control.done == {1}


def test_a_launcher_that_cannot_be_reached_is_named():
    with pytest.raises(
        LaunchError, match=rf"cannot reach the launcher at port 1 \({NOWHERE}: Network is unreachable\)"
    ):
        connect(f"00@1@{NOWHERE}", 0)


def test_a_launcher_that_has_ended_is_told_from_one_behind_a_firewall():
    """On its own host nothing stands between: there a refused port means that it is gone."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        control = f"00@{free.getsockname()[1]}@127.0.0.1"
        assert not is_launcher_gone(control)
    assert is_launcher_gone(control)
    assert not is_launcher_gone(f"00@1@{NOWHERE}")
    with pytest.raises(LauncherGoneError, match="has ended"):
        connect(control, 0)


def test_output_goes_on_where_a_cut_connection_ended(control, connection, heard):
    def show(*numbers):
        for number in numbers:
            connection.show(0, 1, b"%d\n" % number)

    show(*range(10))
    heard(Piece, 5)
    control.pause(True)  # what is under way when the connection is cut is lost
    show(*range(10, 20))
    connection.cut()
    show(20)
    again = threading.Thread(target=connection.connect_again)
    again.start()
    wait_until(lambda: not (list(control.read()) or again.is_alive()), 5, "another connection", every=0.01)
    control.pause(False)
    finish(connection)
    came = [item.data for item in heard(Piece, 21) if isinstance(item, Piece)]
    assert came == [b"%d\n" % number for number in range(21)]

    def delivered():
        list(control.read())
        for _, order in connection.orders():
            assert isinstance(order, OutputTaken)
            connection.obey(order)
        return connection.delivered

    wait_until(delivered, 5, "the launcher's word that it has all")


def test_small_pieces_are_forgotten_in_time_too(control, connection):
    """Each takes more than its byte where it is kept; an agent that kept too many would let its ranks wait."""
    kept = 0
    for _ in range(40):
        for _ in range(1000):
            connection.show(0, 1, b"\n")
        wait_until(
            lambda: connection.push() or list(control.read()) is None or not connection.waiting, 5, "room", every=0.001
        )
        for _, order in connection.orders() if readable(connection.control) else ():
            connection.obey(order)
            kept = max(kept, order.pieces)
    assert kept >= 20_000
    assert not connection.full


def test_an_agent_learns_that_its_output_was_cut_and_is_lost_when_it_does_not_mend_that(control, connection, heard):
    connection.output.shutdown(socket.SHUT_WR)
    wait_until(lambda: list(control.read()) is None or control.due(), 5, "the end of the connection", every=0.01)
    assert list(connection.orders()) == [(0, ConnectOutput())]
    assert control.open_outputs
    control.tick(control.due())
    assert heard(Lost)[-1] == Report(1, Lost())
    assert not control.open_outputs


@contextlib.contextmanager
def forked():
    """A launcher and the agent that it has forked off: what it has heard, and the agent's connection and its ends."""
    control = Control(SETTINGS)
    ours, its = pair()
    control.adopt(0, "here", *ours)
    ends = [End.made(each) for each in its]
    yield control, hearing(control), Connection(*ends, SETTINGS), ends
    control.close()


def test_an_agent_that_was_forked_off_needs_no_secret():
    with forked() as (_, heard, connection, _):
        connection.report(Up(ranks=2))
        connection.show(0, 1, b"x\n")
        assert Report(0, Up(ranks=2)) in heard(Up)
        assert Piece(0, 1, b"x\n") in heard(Piece)
        connection.control.close()
        assert heard(Lost)[-1] == Report(0, Lost())


def test_an_agent_that_sends_what_is_no_report_is_lost_and_the_launch_lives_on(subtests):
    for line in [
        b'{"say": []}',
        b'{"say": "no such kind"}',
        b'{"say": "up"}',
        b'{"say": "up", "ranks": "2"}',
        b'{"say": "done", "stuck": [1, "two"]}',
        b'{"say": "mismatch", "host": "n01", "worlds": [["1", "openmpi"]]}',
        b'{"say": "up", "ranks": 1' + b"0" * 400 + b"}",
        b"[" * 100_000,
    ]:
        with subtests.test(line[:70]), forked() as (_, heard, connection, ends):
            connection.report(Note(text="before"))
            connection.control.sendall(ends[0].writer.frame(line))
            assert heard(Lost) == [Report(0, Note(text="before")), Report(0, Lost())]


def test_output_that_is_none_loses_the_host(subtests):
    for content in (b"a b\n", b"0 3\nx", b"0 1", b"0 1 -1\n", b"", b"0" * 4096):
        with subtests.test(content[:20]), forked() as (control, heard, connection, ends):
            connection.show(0, 1, b"x\n")
            connection.output.sendall(ends[1].writer.frame(content))
            assert Piece(0, 1, b"x\n") in heard(Lost)
            assert not control.open_outputs
