"""The tree that messages go through, and what a rank does that has nobody yet."""

import sys
import threading

import pytest
import torch.distributed as dist

from ezpz.ranks import Ranks
from ezpz.track.over_ranks.transport import FAN_OUT, Funnel, find_store, groups_of, joined, parted


@pytest.mark.parametrize(
    ("size", "fan_out"), [(1, 64), (2, 64), (4, 2), (7, 3), (64, 64), (65, 64), (1000, 8), (4096, 64)]
)
def test_every_rank_but_the_first_has_one_parent_and_all_ways_lead_to_rank_0(size, fan_out):
    parents = {}
    for rank in range(size):
        for group in groups_of(rank, size, fan_out):
            assert rank in group.ranks
            assert 2 <= len(group.ranks) <= fan_out
            assert group in groups_of(group.ranks[0], size, fan_out)
            if group.ranks[0] != rank:
                assert rank not in parents
                parents[rank] = group.ranks[0]
    assert sorted(parents) == list(range(1, size))
    assert all(parent < rank for rank, parent in parents.items())


def test_4096_ranks_are_two_levels_of_at_most_63_connections_each():
    assert [len(groups_of(rank, 4096)) for rank in (0, 1, 63, 64, 4032, 4095)] == [2, 1, 1, 2, 2, 1]
    assert FAN_OUT - 1 == 63


def test_messages_are_parted_as_they_were_joined():
    messages = [b"", b"x", b"\0" * 1000, b"last"]
    assert list(parted(joined(messages))) == messages
    assert list(parted(joined([]))) == []


def pair(fan_out=64, size=2):
    """The ends of a world inside one process, each made by a thread because gloo waits for all."""
    store = dist.HashStore()
    ends = [Funnel(store, rank, size, fan_out) for rank in range(size)]
    for end in ends:
        end._store.set("hello", b"")

    def meet(end):
        while not end.ready:
            end.meet()

    threads = [threading.Thread(target=meet, args=[end]) for end in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return ends


def turns(ends, until, limit=2000):
    came = []
    for _ in range(limit):
        for end in ends:
            came += end.turn()
        if until(came):
            return came
        threading.Event().wait(0.002)
    raise AssertionError(came)


@pytest.mark.parametrize(("size", "fan_out"), [(2, 64), (4, 2), (5, 64)])
def test_every_message_arrives_once_and_in_its_order(size, fan_out):
    ends = pair(fan_out, size)
    sent = [[b"%d %d" % (rank, number) + b"." * 10_000 * number for number in range(5)] for rank in range(1, size)]
    for end, messages in zip(ends[1:], sent, strict=True):
        for message in messages:
            end.put(message)
    came = turns(ends, lambda came: len(came) == 5 * (size - 1))
    for messages in sent:
        assert [message for message in came if message.split()[0] == messages[0].split()[0]] == messages
    turns(ends, lambda _: all(end.delivered for end in ends[1:]))
    for end in ends[1:]:
        end.end()
    turns(ends, lambda _: all(end.done for end in ends))
    assert not any(end.lost or end.orphaned for end in ends)


def test_an_asked_child_hears_it_through_its_parent():
    ends = pair(2, 4)
    ends[0].ask()
    turns(ends, lambda _: all(end.asked for end in ends[1:]))


def test_a_child_that_is_gone_is_lost_with_all_that_came_through_it():
    ends = pair(2, 4)
    gone = ends.pop(2)
    gone._parent._group.shutdown()
    del gone._parent
    for _ in range(100):
        ends[0].ask()
        ends[0].turn()
        if ends[0].lost:
            break
        threading.Event().wait(0.02)
    assert ends[0].lost == [(2, 4)]


def test_a_parent_that_is_gone_makes_an_orphan():
    parent, child = pair()
    parent._children[0]._group.shutdown()
    parent._children.clear()
    child.put(b"x")
    child.end()
    turns([child], lambda _: child.orphaned)
    assert child.done
    assert child.delivered


def test_too_much_that_waits_pushes_out_the_oldest():
    end = Funnel(dist.HashStore(), 1, 2)
    for _ in range(9):
        end.put(b"x" * 1_000_000)
    assert (end.dropped, len(end._waiting)) == (1, 8)


def test_a_rank_whose_neighbours_never_come_only_looks():
    end = Funnel(dist.HashStore(), 0, 3)
    for _ in range(3):
        end.meet()
    assert (end.ready, end.connected, end.anybody(), end.turn()) == (False, False, False, [])
    Funnel(end._store, 2, 3).meet()
    end.meet()
    assert (end.ready, end.anybody()) == (False, True)


def test_there_is_no_store_without_torch_or_without_a_group(monkeypatch):
    ranks = Ranks(0, 2, 0, 2, 0, "contract")
    assert find_store(ranks, "x") is None
    monkeypatch.delitem(sys.modules, "torch")
    assert find_store(ranks, "x") is None
    assert "torch" not in sys.modules
