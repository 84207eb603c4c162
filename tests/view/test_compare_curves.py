"""Where curves part, on curves that were made for it, and what is said of them."""

import time

import numpy as np
import pytest

from ezpz.errors import UsageError
from ezpz.track.values import encode
from ezpz.view.compare.comparison import compare_runs
from ezpz.view.compare.comparison_output import render
from ezpz.view.compare.divergence import Tolerance, measure, tolerance, window_of
from ezpz.view.compare.paired_curves import Pair
from lab.run_folders import leave_run

NOISE = np.random.default_rng(0)
STEPS = 400
CURVE = 2.0 * np.exp(-np.arange(STEPS) / 200) + 1.0 + 0.05 * NOISE.standard_normal(STEPS)


@pytest.fixture
def make_run(tmp_path):
    """`make_run("a", curve, lr=…, effective={…}, config={…}, attempts={step: attempt})` -> Run."""

    def make(name, curve, *, first=0, every=1, lr=None, attempts=(), key="loss", **facts):
        attempt, rows = 1, []
        for number, value in enumerate(curve):
            step = first + every * number
            attempt += step in attempts
            metrics = {key: encode(float(value)), **({} if lr is None else {"lr": lr[number]})}
            rows.append({"t": 100.0 + number, "step": step, "a": attempt, "m": metrics})
        return leave_run(tmp_path / name, rows, {"name": name, "state": "finished", **facts})

    return make


def rounded(size=1e-5, seed=1):
    """Return what rounding does to a curve: a little at first, more later."""
    noise = np.random.default_rng(seed).standard_normal(STEPS)
    return 1 + size * (1 + np.arange(STEPS) / 50) * noise


def test_rounding_is_no_difference_and_a_late_change_is_found_at_its_step(make_run):
    a = make_run("a", CURVE)
    later = np.where(np.arange(STEPS) >= 250, 1 + 0.02 * NOISE.standard_normal(STEPS) + 0.01, 1.0)
    same, late = compare_runs([a, make_run("b", CURVE * rounded()), make_run("c", CURVE * rounded() * later)])
    assert same.verdict.text == "same within numerics: no divergence in 400 steps"
    assert late.verdict.exit_code == 1
    assert late.verdict.text.startswith("diverges at step 25")
    assert abs(late.divergence.numerics - 250) <= 2


def test_one_outlier_is_no_divergence(make_run):
    spike = np.where(np.arange(STEPS) == 200, 1.02, 1.0)
    [found] = compare_runs([make_run("a", CURVE), make_run("b", CURVE * rounded() * spike)])
    assert found.verdict.exit_code == 0


def test_other_batches_are_seen_though_all_first_losses_are_alike(make_run):
    warm = np.minimum(np.arange(STEPS) / 200, 1.0)  # a large model with a slow warm-up begins at log(vocabulary)
    one, two = (10 - 5 * warm + 0.1 * warm * np.random.default_rng(seed).standard_normal(STEPS) for seed in (1, 2))
    [found] = compare_runs([make_run("a", one), make_run("b", two)])
    assert found.verdict.text == "data differs from step 1"  # the first is 10.0 in both, to the last bit


def test_the_same_batches_under_other_code_are_not_called_other_data(make_run):
    [found] = compare_runs([make_run("a", CURVE), make_run("b", CURVE * 1.01)])
    assert found.verdict.text.startswith("different from step 0: both seem to see the same batches")


def test_data_that_changes_in_the_middle_is_called_so_and_a_restart_there_is_told(make_run):
    other = CURVE + np.where(np.arange(STEPS) >= 200, 0.07 * NOISE.standard_normal(STEPS), 0.0)
    [found] = compare_runs([make_run("a", CURVE), make_run("b", other, attempts={200})])
    assert found.verdict.exit_code == 1
    assert "step 200" in found.verdict.text
    assert "B was started again at step 200" in found.verdict.text + " ".join(found.verdict.notes)


def test_a_recorded_learning_rate_explains_without_any_configuration(make_run):
    rates = [1e-3] * 200 + [1e-4] * 200
    slower = CURVE * np.where(np.arange(STEPS) > 200, 1 + 0.0005 * np.arange(STEPS), 1.0)
    [found] = compare_runs([make_run("a", CURVE, lr=[1e-3] * STEPS), make_run("b", slower, lr=rates)])
    assert (
        found.verdict.text == "diverges at step 201: learning-rate schedule (lr 0.001 -> 0.0001 at step 200 in B only)"
    )


@pytest.mark.slow
def test_nan_in_one_curve_is_said_first_and_in_both_it_is_the_same(make_run):
    broken = np.where(np.arange(STEPS) >= 300, np.nan, CURVE)
    [found] = compare_runs([make_run("a", CURVE), make_run("b", broken)])
    assert (found.verdict.text, found.verdict.exit_code) == ("B is NaN or infinite from step 300 on", 1)
    [found] = compare_runs([make_run("c", broken), make_run("d", broken)])
    assert found.verdict.text.startswith("identical: 400 steps")
    assert found.verdict.notes == ["both are NaN or infinite from step 300 on"]
    hole = np.where(np.arange(STEPS) == 30, np.inf, CURVE)
    [found] = compare_runs([make_run("e", CURVE), make_run("f", hole)])
    assert found.verdict.text.startswith("one of the two is not finite at 1 of 400 steps")
    [found] = compare_runs([make_run("g", CURVE * np.nan), make_run("h", CURVE * np.nan)])
    assert found.verdict.exit_code == 0


def test_a_material_setting_counts_though_three_steps_agree(make_run):
    off, on = {"dropout.h": 0.0, "stochastic": []}, {"dropout.h": 0.1}  # the first run is of an older ezpz
    few = CURVE[:3]
    [found] = compare_runs([make_run("a", few, effective=off), make_run("b", few * (1 + 1e-5), effective=on)])
    assert found.verdict.exit_code == 1
    assert found.verdict.text == (
        "same within numerics: no divergence in 3 steps, but other stochastic layers (h 0.0 -> 0.1)"
    )


def test_what_is_not_material_does_not_count_where_curves_agree(make_run):
    ours = {"model.checksum": "x", "attention.backends": {"flash": True}, "memory": 1, "device.name": "one"}
    theirs = {"model.checksum": "y", "attention.backends": {"flash": False}, "memory": 2, "device.name": "two"}
    places = [{"versions": {"torch": v}, "host": v, "config": {"outdir": v, "seed": v}} for v in ("1", "2")]
    one = make_run("a", CURVE, effective=ours, **places[0])
    [found] = compare_runs([one, make_run("b", CURVE * rounded(), effective=theirs, **places[1])])
    assert found.verdict.exit_code == 0
    assert len(found.differences) == 8


def test_losses_below_zero_near_zero_or_rounded_when_written_are_compared(make_run):
    below = -CURVE
    [found] = compare_runs([make_run("a", below), make_run("b", below * rounded())])
    assert found.verdict.exit_code == 0
    [found] = compare_runs([make_run("c", below), make_run("d", below - 0.02)])
    assert found.verdict.exit_code == 1
    fit = np.exp(-np.arange(STEPS) / 20) * (1 + 0.1 * NOISE.standard_normal(STEPS))
    fit[380:] = 0.0
    [found] = compare_runs([make_run("e", fit), make_run("f", fit * rounded() + np.where(fit == 0, 1e-12, 0.0))])
    assert found.verdict.exit_code == 0
    one, two = np.round(CURVE, 2), np.round(CURVE * rounded(3e-4), 2)
    [found] = compare_runs([make_run("a", one), make_run("b", two)])
    assert found.verdict.exit_code == 0
    assert "recorded to" in found.allowed.source


def test_steps_pair_by_their_number_and_only_common_ones_count(make_run):
    a = make_run("a", CURVE)
    [found] = compare_runs([a, make_run("b", CURVE[::10], every=10)])
    assert found.verdict.text == "identical: 40 common steps (A has 400, B 40), equal to the last bit"
    [found] = compare_runs([a, make_run("c", CURVE[:50], first=1000)])
    assert found.verdict.exit_code == 2
    assert "no step of loss in common (A has 0 to 399, B has 1000 to 1049)" in found.verdict.text
    [found] = compare_runs([a, make_run("d", CURVE[:1])])
    assert (found.verdict.exit_code, found.divergence.points) == (0, 1)
    assert found.verdict.text.startswith("identical: 1 common step (A has 400, B 1)")


MODULES = [  # module settings of A, of B, more of B, the curve's factor, what is said
    ({"n.eps": 1e-5}, {"n.eps": 1e-2}, {}, 1.0, "identical: 400 steps, equal to the last bit"),
    ({"act": "gelu"}, {"act": "relu"}, {}, 1.1, "different from step 0: model settings (act gelu -> relu)"),
    (
        {"n.eps": 1e-5},
        {"n.eps": 1e-2},
        {"dropout.h": 0.1},
        1.1,
        "different from step 0: stochastic layers (h 0.0 -> 0.1)",
    ),
    ({}, {"act": "relu"}, {}, 1.0, "identical: 400 steps, equal to the last bit"),
]


@pytest.mark.parametrize(("first", "second", "more", "factor", "told"), MODULES)
def test_settings_of_modules_are_listed_and_explain_where_nothing_stronger_does(
    make_run, first, second, more, factor, told
):
    effective = [{f"module.{name}": value for name, value in each.items()} for each in (first, second)]
    base = {"model.class": "Net", "dropout.h": 0.0}
    a = make_run("a", CURVE, effective={**base, **effective[0]})
    [found] = compare_runs([a, make_run("b", CURVE * factor, effective={**base, **effective[1], **more})])
    assert found.verdict.text == told
    assert {item.key for item in found.differences} == ({*effective[1], *more} if first else set())


def test_which_run_is_better_is_told_by_every_metric_of_the_card(tmp_path):
    def rows(loss, held_out, accuracy):
        noise = np.random.default_rng(5).standard_normal(100)
        train = [{"loss": loss + 0.01 * noise[step], "accuracy": 0.5, "lr": 0.1} for step in range(100)]
        train[-1] |= {"val/loss": held_out, "val/accuracy": accuracy}
        return [{"t": 100.0 + step, "step": step, "m": metrics} for step, metrics in enumerate(train)]

    a, b = (leave_run(tmp_path / n, rows(*r), {"name": n}) for n, r in (("a", (2.0, 2.2, 0.6)), ("b", (1.9, 2.3, 0.7))))
    [found] = compare_runs([a, b])
    told = {each.metric: each.better for each in found.reached}
    assert told == {"loss": "B", "val/loss": "A", "accuracy": "", "val/accuracy": "B"}
    text = render([a, b], [a.folder, b.folder], [found])
    assert "val/accuracy  A 60 %   B 70 %   B is better" in text
    [same] = compare_runs([a, a])
    assert "better" not in render([a, a], [a.folder, a.folder], [same])


def test_only_a_difference_that_nobody_set_is_red(make_run):
    a, other = make_run("a", CURVE), CURVE * np.where(np.arange(STEPS) >= 250, 1.1, 1.0)
    [unknown] = compare_runs([a, make_run("b", other)])
    [known] = compare_runs([make_run("c", CURVE, config={"lr": 1}), make_run("d", other, config={"lr": 2})])
    heads = [render([a, a], [a.folder, a.folder], [each], color=True)[:7] for each in (unknown, known)]
    assert heads == ["\x1b[1;31m", "\x1b[1;33m"]


def test_metrics_are_chosen_by_name_and_a_missing_one_is_told(make_run):
    a, b = make_run("a", CURVE, key="train/loss"), make_run("b", CURVE, key="train/loss")
    assert compare_runs([a, b])[0].metric == "train/loss"
    other = make_run("c", CURVE, key="reward")
    [found] = compare_runs([a, other])
    assert found.verdict.exit_code == 2
    assert compare_runs([other, other], "reward")[0].verdict.exit_code == 0
    with pytest.raises(UsageError, match=r"no metric 'nonsense' \(from --metric\).*train/loss"):
        compare_runs([a, b], "nonsense")
    with pytest.raises(UsageError, match="2 to 26"):
        compare_runs([a])


def test_a_third_run_does_not_change_how_the_second_is_judged(make_run):
    a = make_run("a", CURVE)
    b, rerun = (make_run(name, CURVE * rounded(2e-3, seed)) for name, seed in (("b", 7), ("rerun", 5)))
    [alone] = compare_runs([a, b])
    found, other = compare_runs([a, b, rerun])
    assert (found.verdict, found.allowed) == (alone.verdict, alone.allowed)
    assert other.letters == ("A", "C")


def test_throughput_is_a_ratio_with_a_range_that_holds_it(make_run):
    [found] = compare_runs([make_run("a", CURVE), make_run("b", CURVE)])
    assert found.throughput.ratio == 1.0
    assert found.throughput.low <= 1.0 <= found.throughput.high
    assert found.throughput.source.startswith("steps per second")


def test_windows_are_a_quarter_of_short_runs_and_half_precision_gets_more_room():
    assert [window_of(points) for points in (1, 3, 10, 40, 100, 1000)] == [1, 3, 5, 10, 25, 50]
    both = Pair("loss", np.arange(STEPS), CURVE, CURVE)
    assert tolerance(both, half=True).mean == 2 * tolerance(both).mean


@pytest.mark.slow
def test_a_million_steps_are_compared_at_once():
    points = 1_000_000
    curve = 2.0 * np.exp(-np.arange(points) / 3e5) + 1.0 + 0.05 * NOISE.standard_normal(points)
    other = curve * (1 + 1e-5 * NOISE.standard_normal(points))
    other[899_999:] *= 1.02
    both = Pair("loss", np.arange(float(points)), curve, other)
    begin = time.thread_time()
    found = measure(both, tolerance(both))
    assert time.thread_time() - begin < 60
    assert (found.numerics, found.how) == (899_999, "jump")


def test_every_length_of_a_run_can_be_measured(subtests):
    for points in range(1, 60):
        with subtests.test(f"{points} steps"):
            both = Pair("loss", np.arange(float(points)), CURVE[:points], CURVE[:points] * rounded()[:points])
            assert measure(both, tolerance(both)).numerics is None
            jump = CURVE[:points] * np.where(np.arange(points) >= points - 6, 1.05, 1.0)
            both = Pair("loss", np.arange(float(points)), CURVE[:points], jump)
            assert measure(both, tolerance(both)).numerics == max(0, points - 6)


def jump_by_the_book(size, step):
    """The first place whose 10 values ahead are 4 times as large as the 25 behind, looked for everywhere."""
    for place in range(10, len(size) - 4):
        before = np.percentile(size[max(0, place - 25) : place], 90)
        after = np.median(size[place : place + 10])
        if after > 4 * before and after > step / 2:
            between = np.clip(np.sqrt(before * after), 2 * before, 3 * before)
            return place + int(np.flatnonzero(size[place:] > between)[0])
    return None


def test_a_jump_is_found_where_looking_everywhere_finds_it(subtests):
    for seed in range(120):
        with subtests.test(f"seed {seed}"):
            throw = np.random.default_rng(seed)
            count = int(throw.choice([3, 9, 12, 30, 34, 36, 60, 100, 400]))
            size = np.abs(throw.normal(size=count))
            if seed % 3 and count > 14:
                size[int(throw.integers(10, count)) :] *= throw.choice([8.0, 12.0, 16.0, 100.0])
            if seed % 4 == 0:
                size[throw.random(count) < 0.3] = 0.0
            pair = Pair("loss", np.arange(float(count)), np.ones(count), np.exp(size / 100))
            step = 1.01 * float(np.sqrt(np.mean(pair.ratio[:10] ** 2)))  # no start; and no mean is too large, below
            found = measure(pair, Tolerance(step, 1e9, 1e9, ""))
            place = jump_by_the_book(np.abs(pair.ratio), step)
            assert (found.numerics, found.how) == (place, "" if place is None else "jump")
