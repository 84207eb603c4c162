"""Messages through keys of a store: how they are cut, read, kept in order; and a store that has ended."""

import socket
import subprocess
import sys

import pytest
import torch.distributed as dist

from ezpz.ranks import Ranks
from ezpz.track.over_ranks import transport
from ezpz.track.over_ranks.transport import Inbox, Keys, Outbox, StoreEndedError, find_keys, joined, parted


@pytest.fixture
def server():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def keys(server):
    return Keys(dist.TCPStore("127.0.0.1", server.port, is_master=False), "x")


def send(outbox, *messages):
    for message in messages:
        outbox.put(message)
        outbox.turn()


def test_messages_are_parted_as_they_were_joined():
    messages = [b"", b"x", b"\0" * 1000, b"last"]
    assert list(parted(joined(messages))) == messages
    assert list(parted(joined([]))) == []


def test_one_message_at_most_lies_in_the_store_and_what_waits_goes_together(server):
    inbox, outbox = Inbox(keys(server)), Outbox(keys(server), 3)
    send(outbox, *(b"%d" % number for number in range(3)))
    assert inbox.take() == [b"0"]
    assert inbox.take() == []
    outbox.turn()
    assert inbox.take() == [b"1", b"2"]
    outbox.turn()
    assert (inbox.take(), server.num_keys()) == ([], 1)  # the counter


def test_what_a_rank_leaves_behind_is_read_when_it_has_ended(server):
    known = keys(server)
    outbox = Outbox(known, 1)
    send(outbox, *(b"%d" % number for number in range(3)))
    outbox.finish()
    known.close()
    assert Inbox(keys(server)).take() == [b"0", b"1", b"2"]


def test_a_long_message_travels_in_pieces_beside_those_of_others(server, monkeypatch):
    monkeypatch.setattr(transport, "_MOST_IN_ONE", 1000)
    inbox, ends = Inbox(keys(server)), [Outbox(keys(server), rank) for rank in (1, 700)]
    long = [bytes([number]) * 5000 for number in (1, 2)]
    for end, message in zip(ends, long, strict=True):
        end.put(message)
    came = []
    for _ in range(8):
        for end in ends:
            end.turn()
        came += inbox.take()
    assert came == long
    send(ends[0], long[0])
    ends[0].put(long[1])
    ends[0].finish()
    assert inbox.take() == long


def test_a_value_at_torchs_limit_gets_through(server):
    outbox, message = Outbox(keys(server), 1), b"x" * transport.MOST_BYTES
    outbox.put(message)
    outbox.finish()
    assert Inbox(keys(server)).take() == [message]


@pytest.mark.slow
def test_a_message_that_was_announced_and_never_sent_holds_nobody_up(server):
    inbox, late, other = Inbox(keys(server)), keys(server), Outbox(keys(server), 2)
    number = late.add("count", 1)
    for message in (b"a", b"b"):
        send(other, message)
        assert inbox.take() == [message]
    late.set(str(number), bytes(4) + b"\0" + joined([b"at last"]))
    assert late.has(str(number))
    assert inbox.take() == [b"at last"]


def test_too_much_that_waits_pushes_out_the_oldest(server):
    outbox = Outbox(keys(server), 1)
    for number in range(9):
        outbox.put(bytes([number]) * 1_000_000)
    outbox.finish()
    assert outbox.dropped == 1
    assert [message[0] for message in Inbox(keys(server)).take()] == list(range(1, 9))


SERVER = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
def test_a_store_that_has_ended_is_noticed_without_a_word_of_torch(capfd):
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        store = dist.TCPStore("127.0.0.1", int(process.stdout.readline()), is_master=False)
        known = Keys(store, "x")
        known.set("folder", b"here")
        assert known.get("folder") == b"here"
        process.kill()
        process.wait()
        for act in (lambda: known.has("folder"), lambda: known.set("a", b""), lambda: Keys(store, "y")):
            with pytest.raises(StoreEndedError):
                act()
    assert capfd.readouterr().err == ""


def test_a_time_limit_of_the_programs_sockets_leaves_torchs_own_as_it_is(server):
    # `_line` is the socket of ours beside torch's, if there is one: that nothing of torch breaks cannot be waited for.
    socket.setdefaulttimeout(5)
    try:
        assert keys(server)._line is None
    finally:
        socket.setdefaulttimeout(None)
    assert keys(server)._line.gettimeout() is None


def test_there_is_no_store_without_torch_or_without_a_group(monkeypatch):
    ranks = Ranks(0, 2, 0, 2, 0, "contract")
    assert find_keys(ranks, "x") is None
    monkeypatch.delitem(sys.modules, "torch")
    assert find_keys(ranks, "x") is None
    assert "torch" not in sys.modules
