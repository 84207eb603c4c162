"""A run's steps are steps wherever they are counted, whatever else its program has recorded in rows of its own."""

import re
from pathlib import Path

import pytest

from ezpz.cli.runs import glance
from ezpz.track import History
from ezpz.track.goodput_account import account, read_spans
from ezpz.track.run_reader import open_run
from ezpz.view.card import card
from ezpz.view.report.head import header
from ezpz.view.terminal.screen import Screen
from lab.run_folders import leave_run


def rows_of(steps, each, *after, every=40, evaluation=({"eval/loss": 0.5},)):
    """Rows as `(metrics, step)`: those of each step, evaluations after every n-th, and what stands at the end."""
    rows = []
    for step in range(steps):
        rows += each(step)
        rows += [(row, None) for row in evaluation] if (step + 1) % every == 0 else []
    return [*rows, *after]


LOSS = {"train/loss": 0.5}
PROGRAMS = {  # what is recorded, and how many steps that were
    "losses and evaluations without step=": (rows_of(120, lambda _: [(LOSS, None)], ({"test/acc": 0.9}, None)), 120),
    "losses with step=, evaluations without": (rows_of(120, lambda n: [(LOSS, n)]), 120),
    "a mean at the end, with a step of its own": (rows_of(120, lambda n: [(LOSS, n)], ({"final_loss": 1.0}, 120)), 120),
    "two rows a step, with step=": (rows_of(100, lambda n: [(LOSS, n), ({"grad_norm": 1.0}, n)]), 100),
    "the same loss twice a step": (rows_of(100, lambda n: [(LOSS, n), (LOSS, n)]), 100),
    "two rows a step without step=": (rows_of(100, lambda _: [(LOSS, None), ({"grad_norm": 1.0}, None)]), 100),
    "rows of another prefix": (rows_of(50, lambda _: [(LOSS, None), ({"gpu/watts": 1.0}, None)]), 50),
    "a loss in every tenth row": (rows_of(120, lambda n: [({"dt": 1.0} | (LOSS if n % 10 == 0 else {}), None)]), 120),
    "a loss in every tenth row of a step": (
        rows_of(120, lambda n: [({"lr": 1.0} | (LOSS if n % 10 == 0 else {}), n)]),
        120,
    ),
    "a loss in every tenth row, without step=": (
        rows_of(120, lambda n: [({"lr": 1.0} | (LOSS if n % 10 == 0 else {}), None)]),
        120,
    ),
    "two rows a step that share a metric": (
        rows_of(100, lambda _: [({"mem": 1.0, **LOSS}, None), ({"mem": 1.0, "grad_norm": 1.0}, None)]),
        100,
    ),
    "every tenth step from 9 on": (rows_of(120, lambda n: [(LOSS, n)] if n % 10 == 9 else []), 120),
    "every tenth step from 10 on": (rows_of(120, lambda n: [(LOSS, n + 1)] if n % 10 == 9 else []), 120),
    "every tenth step from 0 on, and the last": (rows_of(120, lambda n: [(LOSS, n)] if n % 10 in {0, 9} else []), 120),
    "iter instead of step=": (rows_of(120, lambda n: [({"iter": n, **LOSS}, None)] if n % 10 == 9 else []), 120),
    "a number that begins anew in each epoch": (
        rows_of(120, lambda n: [({"epoch": n // 40, "iter": n % 40, **LOSS}, None)]),
        120,
    ),
    "a start from step 100 on": (rows_of(200, lambda n: [(LOSS, n)] if n >= 100 else [], every=200), 100),
    "evaluations alone": ([({"eval/loss": 0.5}, None)] * 7, 7),
    "no metric that tells": ([({"reward": 1.0}, None)] * 7, 7),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_who_count_steps_say_the_same(name):
    rows, steps = PROGRAMS[name]
    history = History("mine", "run", trackers=[])
    for metrics, step in rows:
        history.update(metrics, step=step)
    assert glance(Path("run"), Path())["steps"] == pytest.approx(steps, rel=0.05)  # by its head and its tail
    history.finalize(plots=False, show=False)
    run = open_run("run")
    assert card(run, {}, Screen(80))[0].startswith(f"── mine finished: {steps} steps in ")
    assert re.search(rf"<dt>steps</dt><dd>{steps}( \(\d+ to \d+\))?</dd>", header(run))
    assert account(read_spans(run)).steps == steps
    assert glance(Path("run"), Path())["steps"] == steps


def test_evaluations_belong_to_the_step_before_them():
    history = History("mine", "run", trackers=[])
    for metrics in ({"loss": 1.0}, {"loss": 1.0}, {"eval/loss": 1.0}, {"eval/acc": 1.0, "epoch": 1}, {"loss": 1.0}):
        history.update(metrics)
    history.update({"eval/loss": 1.0})
    history.update({"eval/loss": 1.0})  # another one
    history.finalize(plots=False, show=False)
    assert open_run("run").rows.steps == [0, 1, 1, 1, 2, 2, 3]


def test_journals_whose_evaluations_have_steps_of_their_own_are_counted_right(tmp_path):
    rows = [{"step": n, "t": 1.0 + n, "m": {"eval/loss": 1.0} if n % 41 == 40 else {"loss": 1.0}} for n in range(123)]
    run = leave_run(tmp_path / "run", rows, {"name": "mine", "state": "finished"})
    assert card(run, {}, Screen(80))[0].startswith("── mine finished: 120 steps in ")
    assert account(read_spans(run)).steps == 120


def test_a_second_start_counts_its_own_steps():
    for first, steps in ((0, 30), (20, 30)):  # from the checkpoint of step 20 on
        history = History("mine", "run", trackers=[])
        for step in range(first, first + steps):
            history.update({"loss": 1.0}, step=step)
            if step % 10 == 9:
                history.update({"val/loss": 1.0}, step=step)
        history.finalize(plots=False, show=False)
    run = open_run("run")
    assert "30 new steps in " in card(run, {}, Screen(80))[0]
    assert ", 50 in all" in card(run, {}, Screen(80))[0]
    made = account(read_spans(run))
    assert (made.steps, made.repeated, run.record.steps) == (50, 10, 50)


@pytest.mark.parametrize("first", [1, 0, 7])  # some count from 0; a resumed training begins with a later one
def test_rows_of_epochs_tell_their_steps(first):
    history = History("mine", "run", trackers=[])
    for epoch, steps in enumerate((22, 22, 5), first):
        history.update({"epoch": epoch, "steps": steps, "dt": 1.0, "train_loss": 1.0}, step=epoch)
    assert glance(Path("run"), Path())["steps"] == 49
    history.finalize(plots=False, show=False)
    run = open_run("run")
    assert card(run, {}, Screen(80))[0].startswith("── mine finished: 3 epochs in ")
    assert (account(read_spans(run)).steps, run.record.steps) == (49, 49)
