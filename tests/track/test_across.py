"""Rows into slices, slices into windows, and what a history does whose other ranks are not there."""

import math
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from windows import unpack

from ezpz.ranks import Ranks
from ezpz.track.over_ranks.across import Across
from ezpz.track.over_ranks.collector import Collector
from ezpz.track.over_ranks.gathering import _named
from ezpz.track.over_ranks.slices import ENDED, NO_STEP, Slice, Slicer, pack, read_slice

NAN = math.nan


def threads():
    """The threads that gather values here."""
    return {thread for thread in threading.enumerate() if thread.name == "ezpz-across"}


def end_of(begun):
    """Wait for the end of threads that a test has begun; a hang is a failure."""
    for thread in begun:
        thread.join(60)
        assert not thread.is_alive()


def across(world=2, rank=0, **more):
    return Across(Ranks(rank, world, rank, world, 0, "contract"), 10, name="t", folder=None, record=None, **more)


def same(a, b):
    np.testing.assert_equal(tuple(a), tuple(b))


def test_rows_become_a_slice_when_a_later_window_begins():
    slicer = Slicer(3, 10)
    assert [slicer.add(step, {"a": step, "b": 0.5}, None) for step in range(10)] == [None] * 10
    full = slicer.add(10, {"a": 10}, None)
    assert (full.rank, full.upto, full.end, full.steps.tolist()) == (3, 10, 0, list(range(10)))
    assert full.columns["a"][0].tolist() == list(range(10))
    assert full.columns["a"][1] is None
    rest = slicer.cut(end=ENDED)
    assert (rest.upto, rest.end, rest.steps.tolist()) == (11, ENDED, [10])
    assert slicer.cut().steps.tolist() == []


def test_only_numbers_are_kept():
    slicer = Slicer(0, 10)
    slicer.add(0, {"i": 2**60, "f": NAN, "b": True, "s": "x", "l": [1, 2], "big": 10**400, "low": -(10**400)}, None)
    cut = slicer.cut()
    assert {key: values.tolist()[0] for key, (values, _) in cut.columns.items() if key != "f"} == {
        "i": float(2**60),
        "b": 1.0,
        "big": math.inf,
        "low": -math.inf,
    }
    assert math.isnan(cut.columns["f"][0][0])


def test_values_that_come_later_join_the_row_of_their_step():
    slicer = Slicer(0, 10)
    slicer.add(4, {"a": 1.0}, 5.0)
    slicer.add(5, {"a": 2.0}, None)
    slicer.add(4, {"late": 3.0}, None)
    cut = slicer.cut()
    assert cut.columns["late"][1].tolist() == [True, False]
    np.testing.assert_array_equal(cut.weights, [5.0, NAN])


def test_rows_that_are_late_and_negative_steps_have_windows_too():
    slicer = Slicer(0, 10)
    for step in (0, 10, 3, 12):
        slicer.add(step, {"a": step}, None)
    cut = slicer.cut()
    assert (cut.late, cut.steps.tolist()) == (1, [10, 12])
    slicer = Slicer(0, 10)
    assert slicer.add(-15, {"a": 1}, None) is None
    assert slicer.add(-10, {"a": 1}, None).steps.tolist() == [-15]
    assert slicer.add(1000, {"a": 1}, None).steps.tolist() == [-10]


@pytest.mark.parametrize("end", [0, ENDED])
def test_a_slice_survives_its_packing(end):
    mask = np.array([True, False])
    columns = {"schlüssel\n": (np.array([1.0, NAN]), mask), "b": (np.array([math.inf, -0.0]), None)}
    for weights in (None, np.array([1.0, NAN])):
        whole = Slice(7, 2**62, end, 3, np.array([-1, 5]), weights, columns)
        same(read_slice(pack(whole)), whole)
    empty = Slicer(1, 10).cut()
    same(read_slice(pack(empty)), empty)


def filled(rank, first, last, upto=None, end=0, late=0):
    steps = np.arange(first, last)
    return Slice(rank, last if upto is None else upto, end, late, steps, None, {"a": (steps * 1.0, None)})


def steps_of(records):
    return [m["steps"] for m in records]


def collected(world, *slices, window=10):
    collector = Collector(world, window)
    for each in slices:
        collector.take(each)
    return collector


def test_a_window_is_recorded_when_every_rank_has_passed_it():
    collector = collected(2, filled(0, 0, 10))
    assert steps_of(collector.records()) == []
    collector.take(filled(1, 0, 5))
    assert steps_of(collector.records()) == []
    collector.take(filled(1, 5, 10))
    assert steps_of(collector.records()) == [list(range(10))]
    assert steps_of(collector.records()) == []


def test_a_rank_that_has_ended_is_not_waited_for():
    collector = collected(3, filled(0, 0, 10), filled(1, 0, 4), filled(1, 4, 4, end=ENDED), filled(2, 0, 10))
    assert steps_of(collector.records()) == [list(range(10))]


@pytest.fixture
def later(monkeypatch):
    """A minute from now."""

    def minute():
        now = time.monotonic()
        monkeypatch.setattr("ezpz.track.over_ranks.collector.monotonic", lambda: now + 61)

    return minute


@pytest.mark.parametrize("greets", [False, True])
def test_a_rank_that_has_sent_no_row_is_waited_for_a_minute(later, greets):
    collector = collected(3, filled(0, 0, 10), filled(1, 0, 10))
    if greets:
        collector.take(filled(2, 0, 0, upto=NO_STEP))
    assert steps_of(collector.records()) == []
    later()
    assert steps_of(collector.records()) == [list(range(10))]


def test_rank_0_is_heard_however_much_earlier_another_one_ends(later):
    collector = collected(2, filled(1, 0, 5), filled(1, 5, 5, end=ENDED), window=100)
    later()
    assert steps_of(collector.records()) == []
    collector.take(filled(0, 0, 5))
    collector.take(filled(0, 5, 5, end=ENDED))
    (m,) = collector.records()
    assert (m["held"], m["keys"]["a"]["ranks"]) == ([2] * 5, [[0.0, 1.0, 2.0, 3.0, 4.0]] * 2)


def test_a_rank_in_the_middle_of_a_window_is_waited_for_as_long_as_it_takes(later):
    collector = collected(3, filled(0, 0, 10), filled(1, 0, 10), filled(2, 0, 4))
    later()
    assert steps_of(collector.records()) == []
    collector.take(filled(2, 4, 10))
    assert [m["held"] for m in collector.records()] == [[3] * 10]


def test_too_many_values_end_the_waiting(monkeypatch):
    monkeypatch.setattr("ezpz.track.over_ranks.collector._MOST_VALUES", 25)
    collector = collected(2, filled(1, 0, 1))
    for first in (0, 10):
        collector.take(filled(0, first, first + 10))
    assert steps_of(collector.records()) == []
    collector.take(filled(0, 20, 30))
    assert steps_of(collector.records()) == [list(range(10))]
    collector.take(filled(1, 1, 10))
    assert collector.late == 9


def test_the_rest_is_recorded_in_order_but_not_of_rank_0_alone():
    collector = collected(2, filled(0, 10, 15), filled(0, 0, 10))
    assert steps_of(collector.records(rest=True)) == []
    collector = collected(2, filled(0, 10, 15), filled(0, 0, 10), filled(1, 0, 3))
    assert steps_of(collector.records(rest=True)) == [list(range(10)), list(range(10, 15))]


def test_who_is_behind_is_known():
    collector = collected(4, filled(0, 0, 10, end=ENDED), filled(1, 0, 10), filled(2, 0, 8))
    assert collector.behind(9) == [2, 3]
    collector.take(filled(2, 8, 10))
    assert collector.behind(9) == [3]
    collector.take(filled(3, 0, 0, end=ENDED))
    assert collector.behind(9) == []


def test_ranks_are_named_shortly():  # asked for by its own name: only launches of hundreds of ranks would show it
    assert [_named(ranks) for ranks in ([3], [2, 1], [9, 1, 2, 3])] == ["rank 3", "ranks 1-2", "ranks 1-3, 9"]
    assert _named(range(0, 100, 2)).endswith("14, …")


def test_a_world_of_one_starts_no_thread():
    before = threads()
    alone = across(world=1)
    alone.add(0, {"a": 1.0})
    assert threads() <= before
    alone.finish()
    alone.finish()


class Row(dict):
    """Values that can be seen to be kept, or not."""

    __hash__ = object.__hash__


def row(kept):
    made = Row(a=1.0)
    kept.add(made)
    return made


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_whose_others_never_come_keeps_little_and_ends(rank, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    before, kept, lonely = threads(), weakref.WeakSet(), across(rank=rank)
    for step in range(100_000):
        lonely.add(step, row(kept))
    assert len(kept) <= 16385
    lonely.finish()
    end_of(threads() - before)
    assert not kept
    lonely.add(0, row(kept))
    lonely.finish()
    assert not kept


def test_a_callback_that_raises_costs_one_warning(monkeypatch, capsys):
    def broken(*_):
        raise ZeroDivisionError("not here")

    monkeypatch.setattr("ezpz.track.over_ranks.transport.find_keys", broken)
    before, one = threads(), across()
    end_of(threads() - before)
    one.add(0, {"a": 1.0})
    one.finish()
    assert capsys.readouterr().out.count("no longer gathered: ZeroDivisionError: not here; training continues.") == 1


class SharedKeys:
    """A store in this process."""

    def __init__(self):
        self.content = {}

    def set(self, key, value):
        self.content[key] = value

    def get(self, key):
        return self.content[key]

    def has(self, *keys):
        return all(key in self.content for key in keys)

    def add(self, key, amount):
        self.content[key] = self.content.get(key, 0) + amount
        return self.content[key]

    def delete(self, key):
        del self.content[key]

    def close(self):
        pass


@pytest.mark.slow
@pytest.mark.parametrize(("patience", "is_all"), [(0.2, True), (0.1, False)], ids=["end", "unexpected end"])
def test_what_was_handed_over_is_recorded_or_counted_as_missing(monkeypatch, capsys, patience, is_all):
    keys, steps = SharedKeys(), []

    def slow(_, m):
        time.sleep(0.05)
        steps.extend(m["steps"])

    monkeypatch.setattr("ezpz.track.over_ranks.transport.find_keys", lambda *_: keys)
    monkeypatch.setattr("ezpz.track.over_ranks.across._PATIENCE", 0.2)
    monkeypatch.setattr("ezpz.track.over_ranks.across._GRACE", 0.1)
    before = threads()
    other, root = across(rank=1), Across(Ranks(0, 2, 0, 2, 0, "contract"), 10, name="t", folder=None, record=slow)
    for step in range(200):
        for each in (other, root):
            each.add(step, {"a": 1.0})
    other.finish()
    missing = root.finish(patience)
    end_of(threads() - before)
    if is_all:
        assert (missing, steps) == ([], list(range(200)))
    else:
        assert 0 < len(steps) < 200
        assert missing == [f"values over all ranks of {200 - len(steps)} of 200 steps could not be recorded"]
        assert missing[0] in capsys.readouterr().out


ALONE = """
import os, sys, time
from ezpz.ranks import Ranks
from ezpz.track.over_ranks.across import Across
one = Across(Ranks(1, 2, 1, 2, 0, "contract"), 100, name="t", folder=None, record=None)
"""


def test_it_loads_neither_torch_nor_numpy_by_itself(run_python):
    code = """
for step in range(1000):
    one.add(step, {"loss": 1.0})
time.sleep(0.7)
one.finish()
print([name for name in ("torch", "numpy") if name in sys.modules])
"""
    done = run_python(ALONE + code)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, b"[]", b"")


def test_a_forked_child_does_not_wait_for_a_thread_that_it_does_not_have(run_python):
    code = """
child = os.fork()
if child == 0:
    one.add(0, {"loss": 1.0})
    one.finish()
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = run_python(ALONE + code)
    assert (done.returncode, done.stdout.strip()) == (0, b"7")


def test_one_row_costs_next_to_nothing():
    one = across()
    values = {f"metric{number}": 1.0 for number in range(8)}
    costs = []  # CPU seconds of this thread: others may be busy
    for first in range(0, 10_000, 2000):
        begin = time.thread_time()
        for step in range(first, first + 2000):
            one.add(step, values)
        costs.append((time.thread_time() - begin) / 2000)
    assert min(costs) < 20e-6  # 0.2 µs here
    one.finish()


def test_a_record_of_slices_reads_back_as_what_was_added():
    slicers, collector = [Slicer(rank, 10) for rank in range(2)], Collector(2, 10)
    for step in range(25):
        for rank, slicer in enumerate(slicers):
            full = slicer.add(step, {"a": step * 10 + rank, f"only{rank}": 1}, rank + 1.0)
            if full is not None:
                collector.take(read_slice(pack(full)))
    for slicer in slicers:
        collector.take(slicer.cut(end=ENDED))
    windows = [unpack(m) for m in collector.records()]
    assert [window.steps.tolist() for window in windows] == [list(range(10)), list(range(10, 20)), list(range(20, 25))]
    for window in windows:
        np.testing.assert_array_equal(window.keys["a"]["ranks"], [window.steps * 10, window.steps * 10 + 1])
        np.testing.assert_allclose(window.keys["a"]["mean"], window.steps * 10 + 2 / 3, rtol=1e-15)
        assert window.keys["only1"]["argmax"].tolist() == [1] * len(window.steps)
