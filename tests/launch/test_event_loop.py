"""The loop alone: files, timers and signals, each with what belongs to it."""

import contextlib
import errno
import json
import os
import resource
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ezpz import local_socket
from ezpz.launch import agent_messages
from ezpz.launch.event_loop import Loop, SignalPipe
from ezpz.launch.host import local_world
from ezpz.launch.run.socket_requests import Askers


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
        with contextlib.suppress(OSError):  # the test has closed it
            os.close(fd)


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


def test_what_came_for_a_closed_file_is_not_taken_for_the_next_with_its_descriptor(loop):
    """A descriptor that is closed is the first to be given out again, in the same turn as well."""
    first, second, third = os.pipe(), os.pipe(), os.pipe()
    came, replaced = [], []

    def replace(fd):
        replaced.append(fd)
        other = second if fd == first[0] else first
        loop.forget(other[0])
        os.dup2(third[0], other[0])  # another file, with nothing to read
        loop.read(other[0], came.append)

    for read, write in (first, second):
        os.write(write, b"x")
        loop.read(read, replace)
    loop.turn(0.0)
    assert (len(replaced), came) == (1, [])
    loop.forget(replaced[0])
    os.write(third[1], b"x")
    loop.turn(time.monotonic() + 60)
    assert {*came, *replaced} == {first[0], second[0]}
    for fd in (*first, *second, *third):
        os.close(fd)


def test_a_loop_that_an_action_closes_takes_nothing_more(loop, pipe):
    other = os.pipe()
    came = []
    for read, write in (pipe, other):
        os.write(write, b"x")
        loop.read(read, lambda fd: (came.append(fd), loop.close()))
    loop.turn(0.0)
    assert len(came) == 1
    for fd in other:
        os.close(fd)


def test_a_file_that_rests_and_is_forgotten_is_not_watched_again(loop, pipe):
    read, write = pipe
    came = []
    os.write(write, b"x")
    loop.read(read, loop.rest)
    loop.turn(0.0)
    loop.forget(read)
    os.close(read)
    turns(loop, 0.2)  # longer than a rest
    again, end = os.pipe()
    assert again == read
    loop.read(again, came.append)
    loop.turn(0.0)
    assert came == []
    os.write(end, b"x")
    loop.turn(time.monotonic() + 60)
    assert came == [again]
    loop.forget(again)
    os.close(end)  # the fixture closes the other end


def test_timers_come_once_and_only_when_they_are_due(loop):
    came = []
    loop.after("late", 60, lambda: came.append("late"))
    loop.after("soon", 0.02, lambda: came.append("soon"))
    begin = time.monotonic()
    now = loop.turn()
    assert came == ["soon"]
    assert 0.02 <= now - begin < 60
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


def test_a_timer_that_another_puts_off_does_not_come_yet(loop):
    came = []
    loop.after("first", 0, lambda: loop.at("second", time.monotonic() + 60, lambda: came.append("late")))
    loop.after("second", 0, lambda: came.append("early"))
    loop.turn()
    assert came == []
    assert loop.waits_for("second")


def test_a_turn_comes_back_at_the_earliest_moment_that_it_is_given(loop):
    begin = time.monotonic()
    loop.turn(None, begin + 60, begin + 0.02)
    assert 0.02 <= time.monotonic() - begin < 60


def test_a_part_has_its_turns_with_the_whole_until_it_is_closed(loop, pipe):
    read, write = pipe
    came = []
    part, other = loop.part(), loop.part()
    for name, each in (("whole", loop), ("part", part), ("other", other)):
        each.at("the same name", 0.0, lambda name=name: came.append(name))
    part.read(read, lambda fd: came.append(os.read(fd, 1)))
    os.write(write, b"abc")
    loop.turn(0.0)
    assert came == [b"a", "whole", "part", "other"]
    part.at("late", time.monotonic() + 0.01, lambda: came.append("late"))
    part.forget(read)
    loop.turn()
    assert came[4:] == ["late"]
    part.read(read, came.append)
    part.at("never", 0.0, lambda: came.append("never"))
    part.close()
    other.read(read, lambda fd: came.append(os.read(fd, 1)))
    loop.turn(0.0)
    assert came[5:] == [b"b"]


def test_a_part_that_is_closed_leaves_a_descriptor_that_is_another_files_by_now(loop, pipe):
    read, write = pipe
    came = []
    part = loop.part()
    part.read(read, lambda _: came.append("gone"))
    loop.forget(read)  # as when its file is closed, and another gets its number
    loop.read(read, lambda fd: came.append(os.read(fd, 1)))
    part.close()
    os.write(write, b"a")
    loop.turn(0.0)
    assert came == [b"a"]


def test_signals_wake_the_loop_and_are_given_back(loop):
    before = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGUSR2)
    came = []
    with SignalPipe([signal.SIGUSR1], ignored=[signal.SIGUSR2]) as signals:
        loop.read(signals, lambda signals: came.extend(signals.take()))
        for number in (signal.SIGUSR2, signal.SIGUSR1):
            os.kill(os.getpid(), number)
        loop.turn(time.monotonic() + 60)
        loop.forget(signals)
    assert came == [signal.SIGUSR1]
    assert (signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGUSR2)) == before


@pytest.fixture
def where(tmp_path):
    return local_socket.address(os.urandom(8).hex(), str(tmp_path))


@pytest.fixture
def heard(loop, where):
    """What an agent that listens there has heard."""
    came = []
    connections = local_world.LocalConnections(loop, lambda _, message, __: came.append(message), lambda _: None)
    connections.listen(socket.socket(fileno=local_socket.claim(where).detach()))
    return came


@pytest.fixture
def asked(loop, where):
    """Who asks a launcher that listens there, and how often it was asked."""
    came = []
    askers = Askers(loop, lambda *_: came.append(1))
    askers.listen(where)
    yield askers, came
    askers.close()


def test_an_agent_hears_all_that_call_in_one_turn(loop, where, heard):
    """Else a rank's end would be told before the last step, which it told in the moment before."""
    calls = [local_socket.reach(where) for _ in range(3)]
    for rank, call in enumerate(calls):
        local_socket.send(call, f"rank {rank} 7\nstage {rank}\n".encode())
    loop.turn(time.monotonic() + 60)
    assert [message.stage for message in heard if isinstance(message, agent_messages.StageReached)] == ["0", "1", "2"]
    for call in calls:
        call.close()


@pytest.fixture
def no_room():
    """``no_room()``: from now on this process can open no more files; ``no_room.end()``: it can again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    filled = []

    class NoRoom:
        def __call__(self):
            used = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, hard))
            with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
                filled.extend(os.dup(0) for _ in range(1000))

        def end(self):
            while filled:
                os.close(filled.pop())
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    made = NoRoom()
    yield made
    made.end()


def turns(loop, seconds=0.3):
    """Return how often a loop comes back within some time."""
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        loop.turn(end)
        count += 1
    return count


def turn_until(loop, condition):
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        loop.turn(end)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_an_agent_without_a_free_descriptor_does_not_spin_and_hears_the_caller_later(loop, where, heard, no_room):
    call = local_socket.reach(where)
    local_socket.send(call, b"rank 0 7\nstage 3\n")
    no_room()
    assert turns(loop) < 30
    no_room.end()
    turn_until(loop, lambda: heard)
    assert [message.stage for message in heard if isinstance(message, agent_messages.StageReached)] == ["3"]
    call.close()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_who_asks_a_launcher_without_a_free_descriptor_is_answered_later(loop, where, asked, no_room):
    call = local_socket.reach(where)
    call.sendall(b"stacks\n")
    no_room()
    assert turns(loop) < 30
    no_room.end()
    turn_until(loop, lambda: asked[1])
    assert asked[1] == [1]
    call.close()


def test_askers_that_say_or_read_nothing_hold_up_no_launcher(loop, where, asked):
    askers, came = asked
    silent = [local_socket.reach(where) for _ in range(5)]
    slow = local_socket.reach(where)
    slow.sendall(b"stacks\n")
    turn_until(loop, lambda: came)
    assert came == [1]
    answer = {"ranks": [], "summary": "x" * 3_000_000}
    askers.answer("stacks", answer)  # and comes back before it is read, without giving the rest up
    turns(loop, 0.05)
    assert not askers.words
    with ThreadPoolExecutor() as pool:
        read = pool.submit(lambda: b"".join(iter(lambda: slow.recv(1 << 20), b"")))
        turns(loop, 0.05)
        askers.close()
    assert json.loads(read.result()) == answer
    for call in (*silent, slow):
        call.close()
