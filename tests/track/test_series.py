from itertools import pairwise

import numpy as np
import pytest

from ezpz.track.series import captions, limits, logged, numeric_series, ordered, thin
from ezpz.track.table import gather
from lab.drawn_series import series


def test_numbers_and_bools_are_drawn_text_lists_and_counters_are_not():
    metrics = {"loss": 1.0, "n": 2**60, "ok": True, "split": "a", "h": [1], "iter": 1, "train/epoch": 2, "step": 0}
    table = gather([{"v": 1, "t": 0.0, "step": 0, "m": metrics}])
    assert [item.name for item in numeric_series(table)] == ["loss", "n", "ok"]
    named = [item.name for item in numeric_series(table, counters=True)]
    assert named == ["loss", "n", "ok", "iter", "train/epoch", "step"]
    table = gather([{"v": 1, "t": 0.0, "step": step, "m": {"n": n}} for step, n in enumerate([1, 10**400, -(10**400)])])
    assert numeric_series(table)[0].values.tolist() == [1.0, np.inf, -np.inf]


def test_losses_come_first_then_throughput_then_times_then_the_rest():
    names = ["lr", "dt", "sps", "val/loss", "grad_norm", "train/loss", "tokens_per_sec", "step_time", "mfu"]
    assert [item.name for item in ordered([series([1.0])._replace(name=name) for name in names])] == [
        *("val/loss", "train/loss", "sps", "tokens_per_sec", "mfu", "dt", "step_time", "lr", "grad_norm")
    ]


def test_points_lie_at_their_steps_and_in_their_order():
    """A metric that was not recorded at a step has no point there; a resumed run may step back."""
    rows = [(5, {"a": 1.0}), (6, {}), (7, {"a": 3.0}), (6, {"a": 2.0})]
    (drawn,) = numeric_series(gather({"v": 1, "t": 0.0, "step": step, "m": m} for step, m in rows))
    assert drawn.steps.tolist() == [5, 6, 7]
    assert drawn.values.tolist() == [1, 2, 3]


def test_thinning_keeps_every_spike_and_the_order_of_steps():
    values = np.sin(np.arange(100_000) / 5000)
    values[77_777], values[12_345] = 50, -50
    thinned = thin(series(values), 70)
    assert len(thinned.values) <= 140
    assert {50.0, -50.0} <= set(thinned.values.tolist())
    assert (np.diff(thinned.steps) > 0).all()
    assert set(zip(thinned.steps, thinned.values, strict=True)) <= set(enumerate(values))


def test_thinning_leaves_a_gap_where_nothing_is_finite():
    values = np.ones(10_000)
    values[4000:6000] = np.nan
    values[100] = np.inf
    thinned = thin(series(values), 50)
    assert np.isnan(thinned.values).any()
    assert not np.isinf(thinned.values).any()
    gap = thinned.steps[np.isnan(thinned.values)]
    assert ((gap >= 4000) & (gap < 6000)).all()


@pytest.mark.parametrize("steps", [np.arange(5000.0), np.sort(np.random.default_rng(1).integers(0, 90, 5000)) * 1.0])
def test_each_stretch_of_steps_keeps_its_extremes(steps):
    values = np.random.default_rng(0).standard_normal(5000)
    thinned = thin(series(values, steps), 10)
    assert len(thinned.values) <= 20
    edges = np.linspace(steps[0], steps[-1], 11)
    for low, high in pairwise(edges):
        inside = values[(steps >= low) & (steps < high)]
        assert {inside.min(), inside.max()} <= set(thinned.values.tolist())


def test_steps_that_are_all_alike_can_be_thinned():
    assert sorted(thin(series(np.arange(100.0), np.full(100, 7)), 10).values) == [0, 99]


def test_logarithms_are_of_what_is_above_zero():
    np.testing.assert_array_equal(logged(series([100.0, 0.0, -1.0, np.inf, np.nan])).values, [2, *[np.nan] * 4])
    assert captions(series([100.0, 0.0, -1.0, np.inf, np.nan]), log=True) == [
        "1 NaN, first at step 4",
        "1 infinite, first at step 3",
        "2 points not above 0, first at step 1",
    ]


def test_captions_tell_what_is_not_drawn_with_its_first_step():
    assert captions(series([1.0, 2.0, 3.0]), (1.0, 2.5)) == ["1 point above, max 3 at step 2"]
    values = [1.0, np.inf, 2.0, np.nan, np.nan, -np.inf, np.nan]
    assert captions(series(values, steps=[0, 1, 2, 412, 413, 414, 500])) == [
        "3 NaN, first at step 412",
        "2 infinite, first at step 1",
    ]


def test_short_series_stay_as_they_are():
    thinned = thin(series([1, np.inf, np.nan, 2]), 4)
    np.testing.assert_array_equal(thinned.values, [1, np.nan, np.nan, 2])


def test_captions_tell_far_points_with_the_most_extreme():
    values = np.full(200, 0.01) + np.arange(200) % 5 / 1000
    values[0] = 0.197
    assert limits(series(values)) == (0.01, 0.014)
    assert captions(series(values)) == ["1 point above, max 0.197 at step 0"]
    values = np.linspace(1, 2, 300)
    values[[10, 20]] = -50, -90
    assert captions(series(values)) == ["2 points below, min -90 at step 20"]


def test_the_range_of_what_has_no_outlier_is_whole_and_of_nothing_none(subtests):
    for values in [[5.0], [0, 1], [9, 1, 1.1], [1] * 50, [0] * 20 + [1], np.geomspace(10, 1, 300), [0, 1] * 10]:
        with subtests.test(str(values)[:60]):
            assert limits(series(values)) == (min(values), max(values))
            assert captions(series(values)) == []
    for values in [[], [np.nan], [np.inf, -np.inf]]:
        with subtests.test(str(values)):
            assert limits(series(values)) is None
