"""Run by pytest inside every rank of one launch: what `ezpz.track.over_ranks.across` promises across ranks.

Not collected by itself; `test_across_ranks.py` launches it. Loads torch once for all of it.
"""

import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
from windows import unpack

import ezpz
from ezpz.ranks import from_environ
from ezpz.track.over_ranks.across import Across

STEPS = 250
FOLDER = Path("/some/where/schlüssel")
COLLECTIVES = ("all_reduce", "gather", "broadcast", "barrier", "all_gather", "reduce")
COLLECTIVES += ("gather_object", "all_gather_object")


@pytest.fixture(scope="module", autouse=True)
def _group():
    ezpz.setup_torch()
    yield
    dist.barrier()
    ezpz.cleanup()


@pytest.fixture(autouse=True)
def _together():
    """Begin each test at the same time, so that what one rank waits for here was not spent on the test before."""
    dist.barrier()


@pytest.fixture
def rank():
    return dist.get_rank()


@pytest.fixture
def world():
    return dist.get_world_size()


class One:
    """One `Across` and what it has recorded and found."""

    def __init__(self, name="run", window=100):
        ranks = from_environ(os.environ)
        self.windows, self.found, root = [], [], ranks.rank == 0
        self.across = Across(
            ranks,
            window,
            name=name,
            folder=FOLDER if root else None,
            record=(lambda step, m: self.windows.append((step, unpack(m)))) if root else None,
            on_folder=None if root else self.found.append,
        )

    def record(self, key, value, steps=STEPS):
        """Add rows of one value, and end."""
        for step in range(steps):
            self.across.add(step, {key: value})
        self.across.finish()

    def column(self, key, part="mean"):
        """One statistic of all windows, in the order of steps."""
        return np.concatenate([window.keys[key][part] for _, window in self.windows], axis=-1)

    def steps(self):
        return [step for _, window in self.windows for step in window.steps.tolist()]


def only_of_many(one, rank, world):
    """Tell whether this rank has records to look at; the others must have none."""
    if rank == 0 and world > 1:
        return True
    assert one.windows == []
    return False


def test_statistics_are_exact_and_every_window_comes_once(rank, world):
    one = One()
    values = np.random.default_rng(5).normal(size=(world, STEPS)) + 1e6
    weights = np.arange(1, world + 1) / 3
    for step in range(STEPS):
        one.across.add(step, {"loss": values[rank, step].item(), "rank": rank, "text": "x"}, weights[rank].item())
    begin = time.monotonic()
    one.across.finish()
    assert time.monotonic() - begin < 20
    one.across.finish()
    one.across.add(STEPS, {"loss": 0.0})
    if not only_of_many(one, rank, world):
        return
    assert [step for step, _ in one.windows] == [99, 199, 249]
    assert one.steps() == list(range(STEPS))
    np.testing.assert_array_equal(one.column("loss", "ranks"), values)
    np.testing.assert_allclose(one.column("loss"), np.average(values, axis=0, weights=weights), rtol=1e-15)
    centre = np.average(values, axis=0, weights=weights)
    spread = np.sqrt(np.average((values - centre) ** 2, axis=0, weights=weights))
    np.testing.assert_allclose(one.column("loss", "std"), spread, rtol=1e-9)
    np.testing.assert_array_equal(one.column("loss", "min"), values.min(axis=0))
    np.testing.assert_array_equal(one.column("loss", "argmax"), values.argmax(axis=0))
    assert set(one.windows[0][1].keys) == {"loss", "rank"}
    assert set(one.column("rank", "argmax").tolist()) == {world - 1}


def test_the_others_learn_the_run_folder_once(rank, world):
    one = One()
    deadline = time.monotonic() + 20
    while rank and not one.found and time.monotonic() < deadline:
        time.sleep(0.02)
    dist.barrier()
    one.across.finish()
    assert one.found == ([FOLDER] if rank else [])


def test_ranks_record_what_they_like(rank, world):
    one = One()
    for step in range(rank, STEPS, rank + 1):
        one.across.add(step, {f"only/{rank}": float(step)})
    one.across.finish()
    if not only_of_many(one, rank, world):
        return
    for other in range(world):
        told = [column for _, window in one.windows for column in window.keys[f"only/{other}"]["ranks"][other]]
        mine = {step: value for step, value in zip(one.steps(), told, strict=True) if not np.isnan(value)}
        assert mine == {step: float(step) for step in range(other, STEPS, other + 1)}


def test_a_rank_with_fewer_rows_holds_nobody_up(rank, world):
    one = One()
    one.record("a", 1.0, 37 if rank == world - 1 else STEPS)
    if only_of_many(one, rank, world):
        there = ~np.isnan(one.column("a", "ranks"))
        assert there.sum(axis=1).tolist() == [STEPS] * (world - 1) + [37]


def test_a_rank_without_a_history_holds_nobody_up(rank, world):
    if rank == world - 1 and world > 1:
        return
    one, begin = One("partial"), time.monotonic()  # a name of its own: those of one name are told apart by their order
    one.record("a", 1.0)
    assert time.monotonic() - begin < 20
    if rank == 0 and world > 2:
        assert [set(window.held.tolist()) for _, window in one.windows] == [{world - 1}] * 3
    else:
        assert one.windows == []


@pytest.mark.parametrize("backwards", [False, True])
def test_ranks_end_in_any_order(rank, world, backwards):
    one = One()
    for step in range(STEPS):
        one.across.add(step, {"a": float(rank)})
    time.sleep(0.4 * (world - 1 - rank if backwards else rank))
    one.across.finish()
    if only_of_many(one, rank, world):
        assert one.steps() == list(range(STEPS))
        np.testing.assert_array_equal(one.column("a", "ranks"), np.repeat(np.arange(world)[:, None], STEPS, axis=1))


def test_rank_0_finalizes_alone_while_the_others_wait_for_it(rank, world):
    one = One()
    for step in range(STEPS):
        one.across.add(step, {"a": float(rank)})
    begin = time.monotonic()
    if rank == 0:
        one.across.finish()
    dist.barrier()
    assert time.monotonic() - begin < 20
    if only_of_many(one, rank, world):
        assert one.steps() == list(range(STEPS))
        assert not np.isnan(one.column("a", "ranks")).any()
    one.across.finish()


def test_histories_of_one_name_and_of_two_do_not_mix(rank, world):
    ones = [One("x"), One("x", window=50), One("y")]
    for step in range(STEPS):
        for number, one in enumerate(ones):
            one.across.add(step, {"a": 100.0 * number + rank})
    for one in ones:
        one.across.finish()
    for number, one in enumerate(ones):
        if only_of_many(one, rank, world):
            wanted = np.repeat(100.0 * number + np.arange(world)[:, None], STEPS, axis=1)
            np.testing.assert_array_equal(one.column("a", "ranks"), wanted)
    assert len(ones[1].windows) == (5 if rank == 0 and world > 1 else 0)


def test_nothing_is_a_collective_of_the_program(rank, world, monkeypatch):
    one = One()
    with monkeypatch.context() as patch:
        for name in COLLECTIVES:
            patch.setattr(dist, name, lambda *_, name=name, **__: pytest.fail(f"{name} was called"))
            if hasattr(dist.distributed_c10d, name):
                patch.setattr(dist.distributed_c10d, name, getattr(dist, name))
        for step in range(STEPS):
            one.across.add(step, {"a": float(rank)})
            time.sleep(0.004)
        one.across.finish()
    if only_of_many(one, rank, world):
        assert one.steps() == list(range(STEPS))


def test_training_collectives_run_beside_it(rank, world):
    one, value = One(), 0.0
    for step in range(STEPS):
        value = ezpz.all_reduce(float(step))
        one.across.add(step, {"sum": value})
    group = dist.new_group(backend="gloo")
    dist.barrier(group=group)
    assert value == (STEPS - 1) * world
    one.across.finish()
    if only_of_many(one, rank, world):
        np.testing.assert_array_equal(one.column("sum"), np.arange(STEPS) * world)


def test_rank_0_may_come_when_the_others_have_ended(rank, world):
    if rank == 0:
        time.sleep(1.5)
    begin, one = time.monotonic(), One()
    one.record("a", float(rank), 5)
    assert time.monotonic() - begin < 20
    if only_of_many(one, rank, world):
        (window,) = [window for _, window in one.windows]
        assert (window.steps.tolist(), window.held.tolist()) == (list(range(5)), [world] * 5)
    dist.barrier()


def test_a_row_larger_than_a_message_of_the_store_arrives_whole(rank, world, monkeypatch):
    monkeypatch.setattr("ezpz.track.over_ranks.transport._MOST_IN_ONE", 1000)
    one = One()
    for step in range(120):
        one.across.add(step, {f"key{number}": float(number + rank) for number in range(30)})
    one.across.finish()
    if only_of_many(one, rank, world):
        for number in range(30):
            wanted = np.repeat(number + np.arange(world)[:, None], 120, axis=1)
            np.testing.assert_array_equal(one.column(f"key{number}", "ranks"), wanted)
    dist.barrier()
