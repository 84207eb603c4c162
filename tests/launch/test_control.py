"""The line between launcher and leaders: who is let in, what crosses it, and what a lost one means."""

import json
import socket
import threading
import time

import pytest

from ezpz.errors import LaunchError
from ezpz.launch.host.connection import Link, connect, pair
from ezpz.launch.run.control import Control, Event, Piece
from lab.process import wait_until


@pytest.fixture
def control():
    made = Control({"log_dir": "/logs", "idle": 5.0}, ["127.0.0.1"])
    yield made
    made.close()


@pytest.fixture
def heard(control):
    """``heard(kind, count)``: wait until so many events of a kind, or pieces, have come; all that came so far."""
    found = []

    def wait(kind, count=1):
        def enough():
            found.extend(control.read())
            return sum(getattr(item, "kind", "piece") == kind for item in found) >= count

        wait_until(enough, 5, kind, every=0.01)
        return found

    return wait


@pytest.fixture
def link(control):
    made = []
    thread = threading.Thread(target=lambda: made.append(connect(control.variable, 1)))
    thread.start()
    wait_until(lambda: list(control.read()) is None or made, 5, "both connections", every=0.01)
    thread.join(5)
    return made[0]


def test_a_leader_is_let_in_and_told_the_settings(control, link):
    assert link.settings == {"log_dir": "/logs", "idle": 5.0}
    assert abs(link.clock) < 1.0
    assert set(control.heard) == {1}
    assert control.done == set()


def test_what_it_says_and_shows_arrives_whole(link, heard):
    link.say("ended", rank=3, code=-9)
    big = bytes(range(256)) * 4000
    link.show(3, 1, big)
    link.show(3, 2, b"err\n")
    link.flush()
    said = heard("piece", 2)
    assert Event("ended", 1, {"rank": 3, "code": -9}) in said
    assert [item for item in said if isinstance(item, Piece)] == [Piece(3, 1, big), Piece(3, 2, b"err\n")]


def test_orders_reach_the_hosts_that_are_meant(control, link):
    assert control.order("signal", {0}, number=15) == set()
    assert control.order("signal", {1}, number=15) == {1}
    assert list(link.orders()) == [{"do": "signal", "number": 15}]


def test_a_screen_that_is_full_holds_output_back_and_no_news(control, link, heard):
    control.pause(True)
    link.show(0, 1, b"x\n")
    link.say("note", text="news")
    said = heard("note")
    time.sleep(0.1)
    assert not [item for item in [*said, *control.read()] if isinstance(item, Piece)]
    control.pause(False)
    assert Piece(0, 1, b"x\n") in heard("piece")


def test_a_leader_that_goes_without_a_word_is_lost_and_one_that_is_done_is_not(link, heard, control):
    link.control.close()
    assert Event("lost", 1, {}) in heard("lost")
    assert control.done == {1}


def test_a_leader_that_is_done_is_not_lost(link, heard, control):
    link.say("done", stuck=[])
    link.control.close()
    link.output.close()
    heard("done")
    wait_until(lambda: not (list(control.read()) or control.open_outputs), 5, "the end of both connections", every=0.01)
    assert control.done == {1}


@pytest.mark.parametrize(
    "words",
    [
        b'{"say": "hello", "host": "n01", "index": 0, "pid": 1, "nonce": "00", "mac": "00"}\n',
        b'{"say": "ended", "rank": 0, "code": 1}\n',
        b"GET / HTTP/1.1\r\n\r\n",
        b"[]\n",
        b"\xff" * 5000,
    ],
)
def test_a_stranger_is_hung_up_on_and_nothing_it_says_counts(control, words):
    port = int(control.variable.split("@")[1])
    with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
        wait_until(lambda: not list(control.read()) and stranger.recv(4096), 5, "the challenge")
        stranger.sendall(words)
        said = []
        stranger.setblocking(False)

        def hung_up():
            said.extend(control.read())
            try:
                return stranger.recv(4096) == b""
            except BlockingIOError:
                return False
            except ConnectionResetError:
                return True

        wait_until(hung_up, 5, "the end of the connection", every=0.01)
    assert said == []
    assert control.heard == {}


def test_the_secret_never_crosses_the_network(control):
    secret, port, _ = control.variable.split("@")
    crossed = b""
    with socket.create_server(("127.0.0.1", 0)) as tap:

        def listen():
            nonlocal crossed
            ends = []
            for _ in range(2):
                near, _ = tap.accept()
                near.sendall(json.dumps({"nonce": "ab", "time": time.time()}).encode() + b"\n")
                ends.append(near)
            for near in ends:
                crossed += near.recv(4096)
                near.sendall(b'{"proof": "00", "settings": {}}\n')

        thread = threading.Thread(target=listen)
        thread.start()
        with pytest.raises(LaunchError, match="another program answers"):
            connect(f"{secret}@{tap.getsockname()[1]}@127.0.0.1", 0)
        thread.join(5)
    assert b'"mac"' in crossed
    assert secret.encode() not in crossed
    assert port.encode() not in crossed


def test_a_launcher_that_cannot_be_reached_is_named():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(
        LaunchError, match=rf"cannot reach the launcher at port {port} \(127.0.0.1: Connection refused\)"
    ):
        connect(f"00@{port}@127.0.0.1", 0)


def test_a_leader_that_was_forked_off_needs_no_secret():
    control = Control({})
    ours, its = pair()
    control.adopt(0, "here", *ours)
    link = Link(*its)
    link.say("up", ranks=2)
    link.show(0, 1, b"x\n")
    said = []
    wait_until(lambda: said.extend(control.read()) or len(said) == 2, 5, "both", every=0.01)
    assert Piece(0, 1, b"x\n") in said
    assert Event("up", 0, {"ranks": 2}) in said
    link.control.close()
    wait_until(lambda: said.extend(control.read()) or said[-1] == Event("lost", 0, {}), 5, "lost", every=0.01)
    control.close()
