"""The loop alone: files, timers and signals, each with what belongs to it."""

import os
import signal
import socket
import time

import pytest

from ezpz.launch import messages
from ezpz.launch.host import agent, local_socket
from ezpz.launch.loop import Loop, SignalPipe


@pytest.fixture
def loop():
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def pipe():
    read, write = os.pipe()
    yield read, write
    for fd in (read, write):
        try:
            os.close(fd)
        except OSError:
            pass  # the test has closed it


def test_a_file_that_can_be_read_calls_its_action_until_it_is_forgotten(loop, pipe):
    read, write = pipe
    came = []
    loop.read(read, lambda fd: came.append(os.read(fd, 1)))
    os.write(write, b"abc")
    loop.turn(0.0)
    loop.turn(0.0)
    assert came == [b"a", b"b"]
    loop.forget(read)
    loop.forget(read)
    loop.turn(0.0)
    assert came == [b"a", b"b"]


def test_a_file_may_change_from_reading_to_writing(loop, pipe):
    _, write = pipe
    came = []
    loop.read(write, lambda _: came.append("read"))
    loop.write(write, lambda _: came.append("write"))
    loop.write(write, lambda _: came.append("another"))  # it is watched already
    loop.turn(0.0)
    assert came == ["write"]


def test_a_file_that_an_earlier_action_closed_is_passed_over(loop):
    ends = [os.pipe() for _ in range(2)]
    came = []

    def close(fd):
        came.append(fd)
        for read, write in ends:
            loop.forget(read)
            os.close(read)
            os.close(write)

    for read, write in ends:
        os.write(write, b"x")
        loop.read(read, close)
    loop.turn(0.0)
    assert len(came) == 1


def test_timers_come_once_and_only_when_they_are_due(loop):
    came = []
    loop.after("late", 60, lambda: came.append("late"))
    loop.after("soon", 0.02, lambda: came.append("soon"))
    begin = time.monotonic()
    now = loop.turn()
    assert came == ["soon"]
    assert 0.02 <= now - begin < 5
    assert loop.waits_for("late")
    assert not loop.waits_for("soon")
    assert loop.due("soon") == float("inf")


def test_after_keeps_an_earlier_timer_and_at_replaces_it(loop):
    came = []
    loop.after("one", 60, lambda: came.append("first"))
    due = loop.due("one")
    loop.after("one", 0, lambda: came.append("second"))
    assert loop.due("one") == due
    loop.at("one", time.monotonic(), lambda: came.append("third"))
    loop.turn()
    assert came == ["third"]
    loop.after("one", 0, lambda: came.append("fourth"))
    loop.cancel("one")
    loop.cancel("one")
    loop.turn(0.0)
    assert came == ["third"]


def test_a_timer_may_cancel_another_that_is_due_and_start_itself_again(loop):
    came = []

    def first():
        came.append("first")
        loop.cancel("second")
        loop.after("first", 60, first)

    loop.after("first", 0, first)
    loop.after("second", 0, lambda: came.append("second"))
    loop.turn()
    assert came == ["first"]
    assert loop.waits_for("first")


def test_a_turn_comes_back_at_the_earliest_moment_that_it_is_given(loop):
    begin = time.monotonic()
    loop.turn(None, begin + 60, begin + 0.02)
    assert 0.02 <= time.monotonic() - begin < 5


def test_signals_wake_the_loop_and_are_given_back(loop):
    before = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGUSR2)
    came = []
    with SignalPipe([signal.SIGUSR1], ignored=[signal.SIGUSR2]) as signals:
        loop.read(signals, lambda signals: came.extend(signals.take()))
        for number in (signal.SIGUSR2, signal.SIGUSR1):
            os.kill(os.getpid(), number)
        loop.turn(time.monotonic() + 5)
        loop.forget(signals)
    assert came == [signal.SIGUSR1]
    assert (signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGUSR2)) == before


def test_an_agent_hears_all_that_call_in_one_turn(loop, tmp_path):
    """Else a rank's end would be told before the last step, which it told in the moment before."""
    heard = []
    connections = agent.LocalConnections(loop, lambda _, message, __: heard.append(message), lambda _: None)
    where = local_socket.address(os.urandom(8).hex(), str(tmp_path))
    listener = local_socket.claim(where)
    connections.listen(socket.socket(fileno=listener.detach()))
    calls = [local_socket.reach(where) for _ in range(3)]
    for rank, call in enumerate(calls):
        local_socket.send(call, f"rank {rank} 7\nat {rank}\n".encode())
    loop.turn(time.monotonic() + 5)
    assert [message.step for message in heard if isinstance(message, messages.At)] == [0, 1, 2]
    for call in calls:
        call.close()
