"""Statistics over ranks: exact to rounding, whatever is missing, and read back as they were written."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from windows import unpack

from ezpz.track.over_ranks.slices import Slice
from ezpz.track.over_ranks.window import records, statistics

NAN, INF = math.nan, math.inf
REAL = st.floats(allow_nan=False, allow_infinity=False)


def one(values, weights=None, mask=None):
    """Statistics of one step; `values` by rank, None for what was not recorded."""
    mask = [value is not None for value in values] if mask is None else mask
    column = np.array([[NAN if value is None else value] for value in values], dtype=np.float64)
    weights = None if weights is None else np.array([[NAN if w is None else w] for w in weights], dtype=np.float64)
    found = statistics(column, np.array(mask)[:, None], weights)
    return {name: array[0].item() if there[0] else None for name, (array, there) in found.items()}


def close(found, exact, scale):
    """Equal to rounding; `scale` is the size of the numbers that went in."""
    return abs(Fraction(found) - Fraction(exact)) <= Fraction(1, 2**44) * Fraction(scale) + Fraction(1, 10**320)


@settings(max_examples=3 * settings.default.max_examples)
@given(st.lists(st.tuples(REAL, st.one_of(st.just(0.0), st.floats(1e-3, 1e9))), min_size=1, max_size=9), st.booleans())
def test_mean_and_std_are_those_of_exact_arithmetic(pairs, weighted):
    values, weights = [value for value, _ in pairs], [weight for _, weight in pairs]
    found = one(values, weights if weighted else None)
    w = list(map(Fraction, weights)) if weighted and any(weights) else [Fraction(1)] * len(values)
    mean = sum(a * Fraction(x) for a, x in zip(w, values, strict=True)) / sum(w)
    variance = sum(a * (Fraction(x) - mean) ** 2 for a, x in zip(w, values, strict=True)) / sum(w)
    size = max(map(abs, values))
    assert close(found["mean"], mean, size)
    assert abs(Fraction(found["std"]) ** 2 - variance) <= Fraction(1, 2**40) * Fraction(size) ** 2 + Fraction(
        1, 10**300
    )
    assert (found["min"], found["max"]) == (min(values), max(values))
    assert (found["argmin"], found["argmax"]) == (values.index(min(values)), values.index(max(values)))


@given(REAL, st.integers(1, 100))
def test_equal_ranks_have_that_mean_and_no_spread(value, world):
    found = one([value] * world)
    assert (found["mean"], found["std"], found["min"], found["max"]) == (value, 0.0, value, value)


def test_a_spread_is_exact_around_a_large_number_and_of_those_that_recorded():
    assert one([1e9 + 1, 1e9 + 2, 1e9 + 3])["std"] == pytest.approx(math.sqrt(2 / 3), rel=1e-12)
    assert one([None, 2.0, 4.0]) == {"mean": 3.0, "std": 1.0, "min": 2.0, "max": 4.0, "argmin": 1, "argmax": 2}
    assert set(one([None, None]).values()) == {None}


def test_nan_goes_on_into_the_mean_alone_and_infinities_are_numbers():
    found = one([3.0, NAN, 1.0])
    assert math.isnan(found["mean"])
    assert math.isnan(found["std"])
    assert (found["min"], found["max"], found["argmin"], found["argmax"]) == (1.0, 3.0, 2, 0)
    found = one([None, NAN, NAN])
    assert all(math.isnan(found[name]) for name in ("mean", "std", "min", "max"))
    assert (found["argmin"], found["argmax"]) == (1, 1)
    found = one([None, INF, 1.0, NAN])
    assert (found["max"], found["argmax"], found["min"], found["argmin"]) == (INF, 1, 1.0, 2)
    found = one([None, INF, INF])
    assert (found["mean"], found["min"], found["argmin"]) == (INF, INF, 1)
    assert one([None, -INF])["argmax"] == 1


def test_weights_count_where_every_rank_gave_one_and_0_does_not_count():
    assert one([1.0, 4.0], [3, 1])["mean"] == 1.75
    assert one([1.0, 4.0], [3, None])["mean"] == 2.5
    assert one([1.0, 4.0, None], [3, 1, None])["mean"] == 1.75
    assert one([1.0, 4.0], [-3, 1])["mean"] == 2.5
    assert one([1.0, 4.0], [1e308, 1e308])["mean"] == 2.5
    assert one([1.0, NAN, 3.0], [1, 0, 1])["mean"] == 2.0
    assert one([1.0, 3.0], [0, 0])["mean"] == 2.0


def piece(rank, steps, weights=None, **columns):
    made = {}
    for key, values in columns.items():
        mask = None if None not in values else np.array([value is not None for value in values])
        made[key] = np.array([NAN if value is None else value for value in values], dtype=np.float64), mask
    weights = None if weights is None else np.array(weights, dtype=np.float64)
    return Slice(rank, 0, 0, 0, np.array(steps, dtype=np.int64), weights, made)


def record(slices, world):
    (one,) = records(slices, world)
    return one


def test_a_record_is_json_and_comes_back_as_arrays():
    slices = {
        0: [piece(0, [0, 2], loss=[1.0, NAN], lr=[0.5, None])],
        1: [piece(1, [0], loss=[3.0]), piece(1, [1, 2], loss=[7.0, INF])],
    }
    m = json.loads(json.dumps(record(slices, 3), allow_nan=False))
    assert (m["world"], m["every"], m["steps"]) == (3, 1, [0, 1, 2])
    assert m["keys"]["loss"]["ranks"] == [[1.0, None, "NaN"], [3.0, 7.0, "Infinity"], [None, None, None]]
    assert m["keys"]["loss"]["mean"] == [2.0, 7.0, "NaN"]
    assert m["keys"]["loss"]["max"] == [3.0, 7.0, "Infinity"]
    assert m["keys"]["loss"]["argmax"] == [1, 1, 1]
    assert m["keys"]["lr"]["mean"] == [0.5, None, None]
    assert m["keys"]["lr"]["argmin"] == [0, None, None]
    window = unpack(m)
    assert (window.world, window.every, window.steps.tolist()) == (3, 1, [0, 1, 2])
    assert window.steps.dtype == np.int64
    loss = window.keys["loss"]
    assert loss["ranks"].shape == (3, 3)
    np.testing.assert_array_equal(loss["ranks"], [[1, NAN, NAN], [3, 7, INF], [NAN, NAN, NAN]])
    np.testing.assert_array_equal(window.keys["lr"]["std"], [0, NAN, NAN])
    assert window.keys["lr"]["argmin"].tolist() == [0, -1, -1]
    assert window.keys["lr"]["argmin"].dtype == np.int64


def test_weights_and_the_last_of_a_step_sent_twice_reach_the_record():
    m = record({0: [piece(0, [5], a=[1.0]), piece(0, [5], a=[2.0])]}, 2)
    assert m["keys"]["a"]["ranks"] == [[2.0], [None]]
    slices = {
        rank: [piece(rank, [0, 1], [weight, 1], loss=[float(rank), float(rank)])] for rank, weight in ((0, 3), (1, 1))
    }
    assert record(slices, 2)["keys"]["loss"]["mean"] == [0.25, 0.5]


def test_a_large_world_keeps_one_mean_per_rank():
    slices = {rank: [piece(rank, [0, 1], a=[rank, rank + 1.0])] for rank in range(64)}
    slices[64] = [piece(64, [0, 1], a=[None, 9.0])]
    window = unpack(record(slices, 66))
    assert (window.every, window.keys["a"]["ranks"].shape) == (0, (66, 1))
    assert window.keys["a"]["ranks"][:3, 0].tolist() == [0.5, 1.5, 2.5]
    assert window.keys["a"]["ranks"][64, 0] == 9.0
    assert math.isnan(window.keys["a"]["ranks"][65, 0])
    assert window.keys["a"]["max"].tolist() == [63.0, 64.0]


def test_a_large_window_is_several_records_that_make_up_the_whole():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(64, 50))
    slices = {rank: [piece(rank, range(50), a=values[rank], b=values[rank])] for rank in range(64)}
    windows = [unpack(json.loads(json.dumps(m))) for m in records(slices, 64)]
    assert len(windows) == 1
    slices = {rank: [piece(rank, range(50), **{f"k{n}": values[rank] for n in range(8)})] for rank in range(64)}
    windows = [unpack(json.loads(json.dumps(m))) for m in records(slices, 64)]
    assert [len(window.steps) for window in windows] == [14, 14, 14, 8]
    np.testing.assert_array_equal(np.concatenate([window.keys["k7"]["ranks"] for window in windows], axis=1), values)
    np.testing.assert_array_equal(np.concatenate([window.steps for window in windows]), np.arange(50))


def test_a_large_world_has_a_record_for_each_key_and_one_without_rows_none():
    slices = {rank: [piece(rank, range(50), a=[1.0] * 50, b=[2.0] * 50)] for rank in range(65)}
    windows = [unpack(m) for m in records(slices, 65)]
    assert [list(window.keys) for window in windows] == [["a"], ["b"]]
    assert [window.steps.tolist() for window in windows] == [list(range(50))] * 2
    assert list(records({}, 2)) == []
