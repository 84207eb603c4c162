"""What `ezpz compare` says of batches, random generators and settings that were changed by hand."""

import sys

import numpy as np
import pytest

from ezpz.track.run_reader import open_run
from ezpz.track.step_states import BatchSeen, Seen, StepStates
from ezpz.view.compare.comparison import compare_runs
from ezpz.view.compare.comparison_output import as_object, render
from ezpz.view.compare.step_differences import compare_seen
from lab import process
from lab.run_folders import leave_run

STEPS = 400
CURVE = 2.0 * np.exp(-np.arange(STEPS) / 200) + 1.0 + 0.05 * np.random.default_rng(0).standard_normal(STEPS)
LETTERS = ("A", "B")


@pytest.fixture
def run(tmp_path):
    """`run("a", sums={step: sum}, settings={step: {name: value}}, generators={step: {…}}, curve=…, lr=…)`."""

    def make(name, *, sums=(), settings=(), generators=(), curve=CURVE, lr=None, form="f", places=1, ranks=(), **facts):
        lines = []

        def write(step, kind, content):
            lines.append({"t": 1.0 + step, "step": step, **({"k": kind} if kind else {}), "m": content})

        for step, value in enumerate(curve):
            write(step, "", {"loss": float(value), **({} if lr is None else {"lr": lr[step]})})
        keeper = StepStates(lambda step, content: write(step, "seen", content), None)
        sums, settings, generators = dict(sums), dict(settings), dict(generators)
        for step in sorted({*sums, *settings, *generators}):
            batch = BatchSeen(sums[step], form, 0, places) if step in sums else None
            keeper.add(step, Seen(batch, generators.get(step, {}), settings.get(step, {})))
        keeper.write()
        for step, text in ranks:
            window = {"world": 2, "every": 1, "steps": [step], "held": [2], "keys": {}, "batches": {str(step): text}}
            write(step, "ranks", window)
        return leave_run(tmp_path / name, lines, {"name": name, "state": "finished", **facts})

    return make


def sums(other_from=STEPS, steps=STEPS):
    return {step: step if step < other_from else 5000 + step for step in range(steps)}


def later(at, size=0.3):
    """Return a curve that parts from the other at a step."""
    return np.where(np.arange(STEPS) >= at, CURVE * (1 + size), CURVE)


# Batches


@pytest.mark.parametrize("at", [1, 50, 152, 399])
def test_the_step_with_other_data_is_named_exactly(run, at):
    batches, notes, _ = compare_seen(run("a", sums=sums()), run("b", sums=sums(at)), LETTERS)
    assert batches.text == f"same batches until step {at - 1}, then other data"
    assert (batches.other_from, notes) == (at, [])


def test_the_same_batches_and_other_ones_are_told_from_the_first_common_step_on(run):
    a = run("a", sums=sums())
    assert compare_seen(a, run("b", sums=sums()), LETTERS)[0].text == "the same batches throughout (400 steps)"
    assert compare_seen(a, run("c", sums=sums(0)), LETTERS)[0].text == "other data from the first step"
    late = {step: total for step, total in sums().items() if step >= 123}
    found = compare_seen(run("a", sums=sums()), run("b", sums=late), LETTERS)[0]
    assert (
        found.text
        == "the same batches throughout (277 steps from step 123 on, before which they are not known of both)"
    )


def test_where_nothing_or_another_cut_is_known_nothing_is_said(run):
    a = run("a", sums=sums())
    assert compare_seen(a, run("b"), LETTERS)[0] is None
    assert compare_seen(a, run("c", sums=sums(), places=2), LETTERS) == (None, [], [])
    assert compare_seen(a, run("d", sums=sums(0), form="g"), LETTERS) == (
        None,
        ["batches have another form: A f, B g"],
        [],
    )


def test_another_rank_with_other_data_is_named(run):
    one, two = "0" * 26, "0" * 13 + "00001000000ff"
    a = run("a", sums=sums(), ranks=[(0, one), (50, one)])
    b = run("b", sums=sums(), ranks=[(0, one), (50, two)], curve=later(31))
    told = "rank 1 has other data at step 50 and the same at step 0; rank 0 has the same throughout"
    batches, notes, _ = compare_seen(a, b, LETTERS)
    assert (batches.text, notes) == (told, [])
    [found] = compare_runs([a, b])
    assert (found.verdict.text, found.verdict.notes) == ("data of rank 1 differs from step 31", [told])
    [elsewhere] = compare_runs([a, run("c", sums=sums(), ranks=[(0, one), (50, two)], curve=later(201))])
    assert "data" not in elsewhere.verdict.text


@pytest.mark.parametrize(
    ("forms", "told"),
    [
        (("int64[16,24] int64[16]", "int64[15,24] int64[15]"), "batch size 16 in A and 15 in B"),
        (("int64[16,24]", "int64[8,24]"), "batch size 16 in A and 8 in B"),
        (("int64[16,24]", "int64[16,22]"), ""),
        (("int64[16,24]", "float32[15,24]"), ""),
        (("int64[16,24] int64[24]", "int64[15,24] int64[24]"), ""),
    ],
    ids=["odd", "half", "length", "type", "one of two"],
)
def test_batches_of_other_sizes_cannot_be_compared_where_curves_part(run, forms, told):
    other = CURVE + 0.3 * np.random.default_rng(4).standard_normal(STEPS)
    a, b = run("a", sums=sums(), form=forms[0]), run("b", sums=sums(0), form=forms[1], curve=other)
    verdict = compare_runs([a, b])[0].verdict
    assert (verdict.exit_code == 2) == bool(told)
    assert told in verdict.text
    [same] = compare_runs([a, run("c", sums=sums(0), form=forms[1])])  # gradient accumulation makes up for it
    assert same.verdict.exit_code == 0


def test_other_data_is_the_cause_with_its_step(run):
    a = run("a", sums=sums())
    noise = 0.3 * np.random.default_rng(3).standard_normal(STEPS)
    [found] = compare_runs([a, run("b", sums=sums(152), curve=np.where(np.arange(STEPS) >= 152, CURVE + noise, CURVE))])
    assert found.verdict.text == "data differs from step 152"
    assert "same batches until step 151, then other data" in found.verdict.notes
    shown = as_object([a, a], [a.folder, a.folder], [found])["comparisons"][0]["batches"]
    assert shown["other_from"] == 152
    assert "same batches until step 151, then other data" in render([a, a], [a.folder, a.folder], [found])


def test_data_that_is_the_same_is_not_the_cause(run):
    """Curves that part from the first step and do not go up and down together, on the same batches."""
    other = CURVE + 0.3 * np.random.default_rng(4).standard_normal(STEPS)
    [unknown] = compare_runs([run("a"), run("b", curve=other)])
    assert unknown.verdict.text == "data differs from step 0"
    [found] = compare_runs([run("c", sums=sums()), run("d", sums=sums(), curve=other)])
    assert found.verdict.text == "different from step 0: both have the same batches: look at the code"
    assert "the same batches throughout (400 steps)" in found.verdict.notes


# Random generators


def test_generators_that_differ_are_named_with_the_step(run):
    one = {step: {"torch": step, "python": 7, "numpy": 1} for step in range(0, 400, 50)}
    two = {step: {"torch": step + (step > 150), "python": 8, "numpy": 1 + step} for step in range(0, 400, 50)}
    a, b = run("a", sums=sums(), generators=one), run("b", sums=sums(), generators=two)
    assert compare_seen(a, b, LETTERS)[1] == [
        "numpy's random numbers differ: the same state after step 0, another one after step 50",
        "torch's random numbers differ: the same state after step 150, another one after step 200",
    ]  # Python's were seeded apart, and nobody has drawn from them
    one = {step: {"torch": step} for step in range(0, 400, 50)}
    two = {step: {"torch": 1000 + step} for step in range(0, 400, 50)}
    a, b = run("a", sums=sums(), generators=one), run("b", sums=sums(), generators=two)
    assert compare_seen(a, b, LETTERS)[1] == ["torch's random numbers differ from step 0 on"]


# Settings that were changed by hand


def test_a_learning_rate_that_was_changed_by_hand_is_named_with_the_run(run):
    a = run("a", settings={0: {"lr": 0.001, "weight_decay": 0.1}})
    b = run("b", settings={0: {"lr": 0.001, "weight_decay": 0.1}, 300: {"lr": 0.0001}}, curve=later(301))
    [found] = compare_runs([a, b])
    assert found.verdict.text == (
        "diverges at step 301: learning-rate schedule (lr 0.001 -> 0.0001 at step 300 in B only)"
    )


def test_a_learning_rate_in_the_rows_is_named_with_the_run_too(run):
    rates = [0.001 if step < 300 else 0.0001 for step in range(STEPS)]
    a = run("a", lr=[0.001] * STEPS, settings={0: {"lr": 0.001}})
    b = run("b", lr=rates, settings={0: {"lr": 0.001}, 300: {"lr": 0.0001}}, curve=later(301))
    [found] = compare_runs([a, b])
    assert found.verdict.text.endswith("(lr 0.001 -> 0.0001 at step 300 in B only)")
    assert [item.key for item in found.differences] == ["lr at step 300 in B only"]


@pytest.mark.parametrize("curve", [later(201), CURVE], ids=["curves part", "curves agree"])
def test_a_dropout_that_was_changed_by_hand_is_named(run, curve):
    start = {"dropout.h.*.drop": 0.1}
    a = run("a", settings={0: start})
    b = run("b", settings={0: start, 200: {"dropout.h.*.drop": 0.0}}, curve=curve)
    [found] = compare_runs([a, b])
    assert "stochastic layers (drop 0.1 -> 0.0 at step 200 in B only)" in found.verdict.text
    assert found.verdict.exit_code == 1


def test_settings_of_one_layer_and_of_the_start_are_named_once(run):
    start = {"dropout.h.*.drop": 0.1}
    a, b = run("a", settings={0: start}), run("b", settings={0: start, 200: {"dropout.h.3.drop": 0.0}})
    (found,) = compare_seen(a, b, LETTERS)[2]
    assert (found.key, found.a, found.b) == ("dropout.h.3.drop at step 200 in B only", 0.1, 0.0)
    facts = {"effective": {"optimizer.groups.0.lr": 0.1}}
    one, two = {0: {"lr": 0.1}}, {0: {"lr": 0.2}}
    assert compare_seen(run("a", settings=one, **facts), run("b", settings=two, **facts), LETTERS)[2] == []
    (found,) = compare_seen(run("c", settings=one), run("d", settings=two), LETTERS)[2]
    assert found.key == "optimizer.groups.0.lr at step 0"


def test_schedules_of_which_only_some_steps_are_recorded_are_no_difference(run):
    """Two runs with one schedule, of which one was started again in the middle."""
    rates = {step: {"lr": 1.0 / (1 + step)} for step in range(STEPS)}
    resumed = {step: value for step, value in rates.items() if step >= 120}
    assert compare_seen(run("a", settings=rates), run("b", settings=resumed), LETTERS)[2] == []
    other = {step: {"lr": 0.5 / (1 + step)} if step >= 210 else rates[step] for step in rates}
    (found,) = compare_seen(run("c", settings=rates), run("d", settings=other), LETTERS)[2]
    assert 210 <= int(found.key.split()[3]) <= 250


# From the loop of real ranks

PROGRAM = """\
import torch
import ezpz
from torch import nn
from ezpz.train import Loop

rank = ezpz.setup_torch(backend="gloo", seed=0)


def train(name, changes=None, other_from=10**9):
    torch.manual_seed(1)
    model = ezpz.wrap_model(nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.1), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

    def batches(position):
        seed = 100 * position + rank + (50 if position >= other_from else 0)
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
        return x, x.sum(1, keepdim=True)

    def loss(model, batch):
        return ((model(batch[0]) - batch[1]) ** 2).mean()

    step = [0]

    def ended():
        step[0] += 1
        if changes is not None:
            changes(step[0], model, optimizer)

    with ezpz.History(name, outdir=name) as history:
        history.log_config(model=model, optimizer=optimizer)
        Loop(model, optimizer, loss, batches, steps=120, batch_size=8, log_every=1000, ended=ended).run(history)
        history.finalize(plots=False, show=False)


def slower(step, model, optimizer):
    if step == 70:
        optimizer.param_groups[0]["lr"] = 0.0001


def no_dropout(step, model, optimizer):
    if step == 40:
        next(each for each in model.modules() if isinstance(each, nn.Dropout)).p = 0.0


train("a")
train("again")
train("slower", slower)
train("no-dropout", no_dropout)
train("other-data", other_from=52)
ezpz.cleanup()
"""


@pytest.mark.slow
@pytest.mark.timeout(320)
def test_what_was_changed_by_hand_in_real_ranks_is_named(clean_env, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    line = [sys.executable, "-m", "ezpz.launch", "-n", "2", sys.executable, str(program)]
    done = process.run(line, {**clean_env, "XDG_STATE_HOME": str(tmp_path / "state")}, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    runs = [open_run(tmp_path / name) for name in ("a", "again", "slower", "no-dropout", "other-data")]
    again, slower, no_dropout, other = (compare_runs([runs[0], run])[0].verdict for run in runs[1:])
    assert (again.exit_code, again.text) == (0, "identical: 120 steps, equal to the last bit")
    assert again.notes == ["the same batches throughout (120 steps)"]
    assert "learning-rate schedule (lr 0.001 -> 0.0001 at step 70 in B only)" in slower.text
    assert slower.notes == ["the same batches throughout (120 steps)"]
    assert "stochastic layers (dropout 0.1 -> 0.0 at step 40 in B only)" in no_dropout.text
    assert no_dropout.notes[0] == "the same batches throughout (120 steps)"
    assert other.text == "data differs from step 52"
    assert other.notes[0] == "same batches until step 51, then other data"
