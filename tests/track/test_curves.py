"""Losses of all ranks with something planted in them, and healthy ones, in which nothing may be found."""

import json
import math
import random

import numpy as np
import pytest

from ezpz.cli.runs import main as runs
from ezpz.track import History
from ezpz.track.loss_findings import curve_findings
from ezpz.track.values import encode
from lab.curve_kinds import HEALTHY as HEALTHY_KINDS
from lab.curve_kinds import TROUBLED
from lab.run_folders import leave_run

NAN, INF = math.nan, math.inf


def falling(steps, seed=0, noise=0.05, start=2.3, end=0.2):
    """A loss that falls, with noise of a part of its value."""
    chance = random.Random(seed)
    return [
        (end + (start - end) * math.exp(-5 * step / steps)) * (1 + noise * chance.gauss(0, 1)) for step in range(steps)
    ]


def journal(folder, ranks, key="loss", **more):
    """Write a run of several ranks: `ranks` holds the values of each; `more` further metrics of rank 0."""
    steps = len(ranks[0])
    lines = []
    for step in range(steps):
        row = {key: ranks[0][step], **{name: values[step] for name, values in more.items()}}
        lines.append({"t": 1000.0 + step, "step": step, "m": {name: encode(value) for name, value in row.items()}})
    for first in range(0, steps, 100):
        of = range(first, min(first + 100, steps))
        entry = {"ranks": [[None if values[at] is None else encode(values[at]) for at in of] for values in ranks]}
        m = {"world": len(ranks), "every": 1, "steps": list(of), "held": [len(ranks)] * len(of), "keys": {key: entry}}
        if len(ranks) > 1:
            lines.append({"t": 1000.0 + of[-1], "step": of[-1], "k": "ranks", "m": m})
    return leave_run(folder, lines, {"schema": 1, "name": "r", "state": "finished"})


def kinds(run):
    return [(each["kind"], each["key"], each["rank"], each["step"]) for each in curve_findings(run)]


# Something planted


def test_the_first_rank_whose_loss_is_lost_is_named(subtests, tmp_path):
    for value in [NAN, INF, -INF]:
        for seed in range(5):
            with subtests.test(f"{value} {seed}"):
                chance = random.Random(seed)
                world, steps = chance.choice([2, 4, 16]), chance.randint(20, 300)
                rank, at = chance.randrange(world), chance.randrange(5, steps - 2)
                ranks = [falling(steps, seed=each) for each in range(world)]
                for number, values in enumerate(ranks):  # gradients carry it to the others one step later
                    first = at if number == rank else at + 1
                    values[first:] = [value] * (steps - first)
                rate = [1e-3 * (steps - step) for step in range(steps)]
                norms = [step + 0.5 for step in range(steps)]
                run = journal(tmp_path / f"{value} {seed}", ranks, lr=rate, grad_norm=norms)
                (found,) = curve_findings(run)
                assert (found["kind"], found["rank"], found["step"], found["ranks"]) == ("non-finite-loss", rank, at, 1)
                assert found["value"] == encode(value)
                assert (found["before"], found["before_step"]) == (ranks[rank][at - 1], at - 1)
                assert found["beside"] == {"lr": rate[at - 1], "grad_norm": at - 0.5}
                assert f"from step {at} on, first on rank {rank}; it was " in found["text"]


def test_all_ranks_at_once_are_no_single_culprit_and_the_last_row_is_enough(tmp_path):
    ranks = [[*falling(30, seed=each), NAN, NAN] for each in range(4)]
    (found,) = curve_findings(journal(tmp_path / "r", ranks))
    assert (found["rank"], found["ranks"], found["step"]) == (None, 4, 30)
    assert "on every rank at once" in found["text"]
    assert kinds(journal(tmp_path / "r", [[*falling(20), NAN]])) == [("non-finite-loss", "loss", 0, 20)]


def test_a_spike_is_found_with_its_numbers(subtests, tmp_path):
    for seed in range(5):
        with subtests.test(f"seed {seed}"):
            chance = random.Random(seed)
            ranks = [falling(400, seed=each) for each in range(4)]
            rank, at, length = chance.randrange(4), chance.randrange(60, 380), chance.randint(1, 5)
            ranks[rank][at : at + length] = [30.0 - each for each in range(length)]
            (found,) = curve_findings(journal(tmp_path / str(seed), ranks))
            assert (found["kind"], found["rank"], found["step"], found["value"]) == ("loss-spike", rank, at, 30.0)
            assert found["back"] == at + length
            assert found["median"] == pytest.approx(sorted(ranks[rank][at // 25 * 25 - 25 : at // 25 * 25])[12])


def test_a_spike_that_does_not_come_back_says_so(tmp_path):
    (found,) = curve_findings(journal(tmp_path / "r", [falling(100) + [9.0 + step / 100 for step in range(12)]]))
    assert found["back"] is None
    assert "it has not come back" in found["text"]


def test_a_loss_that_stands_still_is_found_from_where_it_does(tmp_path):
    values = [*falling(70), *(0.25 + 1e-9 * (step % 2) for step in range(60))]
    (found,) = curve_findings(journal(tmp_path / "r", [values]))
    assert (found["kind"], found["step"], found["last_step"]) == ("loss-still", 70, 129)
    assert "stands still at 0.25 from step 70 to step 129" in found["text"]


# Nothing is there to be found

HEALTHY = {
    "falls": falling(300),
    "falls with much noise": falling(300, noise=0.4),
    "begins with what was not measured": [NAN] * 10 + falling(50),
    "NaN where it was not measured": [value if step % 10 == 9 else NAN for step, value in enumerate(falling(200))],
    "not measured in the last steps": [value if step % 10 == 0 else NAN for step, value in enumerate(falling(200))],
    "a scaler skipped steps": [INF if step in {0, 1, 57} else value for step, value in enumerate(falling(100))],
    "never finite": [NAN] * 40,
    "one row": [1.0],
    "two rows": [1.0, 2.0],
    "all is learned": [*falling(60), *([0.0] * 100)],
    "a few equal rows": [*falling(60), *([0.5] * 20)],
    "near zero": [abs(value) * 1e-4 for value in falling(300, noise=1.0)],
    "steps of an epoch": [1 / (1 + step // 50) + 0.01 * (step % 7) for step in range(300)],
}


def test_nothing_is_found_in_a_healthy_loss(subtests, tmp_path):
    for name, values in HEALTHY.items():
        with subtests.test(name):
            assert kinds(journal(tmp_path / name, [values])) == []
            three = [values, values, falling(len(values), seed=9)]
            assert kinds(journal(tmp_path / f"{name}, 3 ranks", three)) == []


def test_values_at_the_edge_of_floats_give_no_warning_and_no_number_that_is_not_finite(subtests, tmp_path, recwarn):
    sizes = [1e308, -1e308, 5e-324, 0.0, INF, -INF, NAN, 1.0]
    for seed in range(30):
        with subtests.test(f"seed {seed}"):
            chance = random.Random(seed)
            held = chance.sample(sizes, chance.choice([2, 3, 8]))
            values, rate = ([chance.choice(held) for _ in range(130)] for _ in range(2))
            run = journal(tmp_path / str(seed), [values, falling(130)], lr=rate, stage=rate)
            json.dumps(curve_findings(run), allow_nan=False)
    assert not recwarn.list


def test_no_alarm_in_noise_of_any_size(subtests, tmp_path):
    for seed in range(60):
        with subtests.test(f"seed {seed}"):
            chance = random.Random(seed)
            noise = chance.choice([0.01, 0.1, 0.3])
            values = falling(500, seed, noise, start=chance.choice([2.3, 10.0]), end=chance.choice([0.001, 0.1, 2.0]))
            assert kinds(journal(tmp_path / str(seed), [values])) == []


def test_a_step_that_a_rank_did_not_record_is_no_nan(tmp_path):
    ranks = [falling(40), [*falling(30, seed=1), *([None] * 10)]]
    assert kinds(journal(tmp_path / "r", ranks)) == []


def test_metrics_that_take_turns_or_are_measured_now_and_then_or_no_loss_are_no_trouble(tmp_path):
    first = [value if step % 2 else NAN for step, value in enumerate(falling(60))]
    second = [NAN if step % 2 else value for step, value in enumerate(falling(60, seed=2))]
    assert kinds(journal(tmp_path / "r", [first], key="d_loss", g_loss=second)) == []
    warm, late = [*falling(20), *([NAN] * 40)], [NAN] * 20 + falling(40)
    assert kinds(journal(tmp_path / "s", [warm], key="d_loss", g_loss=late)) == []
    checks = [2.0, *([NAN] * 59)]
    assert kinds(journal(tmp_path / "r", [falling(60)], val_loss=checks)) == []
    norms = [1.0] * 30 + [INF] * 30
    assert kinds(journal(tmp_path / "r", [falling(60)], grad_norm=norms, ppl=norms, loss_scale=norms)) == []


def test_both_of_two_losses_that_are_lost_are_named(tmp_path):
    lost = [*falling(20), *([NAN] * 40)]
    found = kinds(journal(tmp_path / "r", [lost], key="d_loss", g_loss=lost))
    assert [each[1] for each in found] == ["d_loss", "g_loss"]


# Kinds of curves, drawn from seeds


def drawn_run(folder, drawn):
    """Write a run as `lab.curve_kinds` has drawn it."""
    metrics = dict(drawn.metrics)
    ranks = [list(map(float, each)) for each in drawn.ranks] or [list(map(float, metrics.pop(drawn.main)))]
    steps = len(ranks[0])
    more = {name: np.broadcast_to(values, steps).tolist() for name, values in metrics.items()}
    return journal(folder, ranks, key=drawn.main, **more)


def kinds_with_seeds(kinds, few):
    """Every kind with a few seeds, and with more of them as a slow test."""
    found = []
    for name, draw_kind in kinds.items():
        found.append(pytest.param(draw_kind, range(few), id=name))
        found.append(pytest.param(draw_kind, range(few, 20), id=f"{name}, more", marks=pytest.mark.slow))
    return found


@pytest.mark.parametrize(("draw_kind", "seeds"), kinds_with_seeds(HEALTHY_KINDS, 2))
def test_nothing_is_said_of_a_healthy_kind(draw_kind, seeds, tmp_path):
    for seed in seeds:
        found = curve_findings(drawn_run(tmp_path / str(seed), draw_kind(np.random.default_rng(seed))))
        assert [each["text"] for each in found] == [], seed


@pytest.mark.parametrize(("draw_kind", "seeds"), kinds_with_seeds(TROUBLED, 2))
def test_a_trouble_is_said_once_with_its_step(draw_kind, seeds, tmp_path):
    for seed in seeds:
        drawn = draw_kind(np.random.default_rng(seed))
        found = curve_findings(drawn_run(tmp_path / str(seed), drawn))
        texts = [each["text"] for each in found]
        assert [each["kind"] for each in found] == [kind for kind, _, _ in drawn.says], (seed, texts)
        for each, (_, first, last) in zip(found, drawn.says, strict=True):
            assert first <= each["step"] <= last, (seed, texts)
        assert drawn.words in "\n".join(texts), (seed, texts)
        assert drawn.unsaid not in "\n".join(texts), (seed, texts)


def test_a_rate_that_only_the_steps_saw_counts_as_well(tmp_path):
    seen = {"step": 49, "k": "seen", "m": {"first": 0, "set lr": [0, 0.5, 40, 0.0], "set weight_decay": [0, 0.1]}}
    flat = [1.4 + 0.05 * math.sin(step * step) for step in range(160)]
    run = leave_run(tmp_path / "r", [seen, *({"step": step, "m": {"loss": each}} for step, each in enumerate(flat))])
    assert kinds(run) == [("zero-lr", "lr", None, 40)]
    seen["m"]["set lr"] = [0, 0.5, 70, 9.0]
    high = [each if step < 70 else 20 * each for step, each in enumerate(flat)]
    run = leave_run(tmp_path / "s", [seen, *({"step": step, "m": {"loss": each}} for step, each in enumerate(high))])
    (found,) = curve_findings(run)
    assert (found["kind"], found["step"], found["beside"]) == ("loss-rise", 70, {"lr": 9.0})


# The end of a run


def test_a_run_says_what_was_found_and_is_finished_all_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    history = History("mine", outdir=tmp_path / "run")
    for step in range(30):
        history.update({"loss": 1.0 / (1 + step) if step < 17 else NAN, "lr": 0.1}, step=step, summarize=False)
    history.finalize(show=False)
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["state"] == "finished"
    (found,) = facts["findings"]
    assert (found["step"], found["value"], found["beside"]) == (17, "NaN", {"lr": 0.1})
    assert found["text"] in (tmp_path / "run" / "report.html").read_text()
    capsys.readouterr()
    assert runs([str(tmp_path / "run")]) == 0
    assert "! loss is NaN from step 17 on; it was 0.0588235 at step 16" in " ".join(capsys.readouterr().out.split())
    assert runs([str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["findings"] == [found["text"]]


def test_a_healthy_run_has_no_finding(tmp_path):
    history = History("mine", outdir=tmp_path / "run")
    for value in falling(30):
        history.update({"loss": value}, summarize=False)
    history.finalize(show=False, plots=False)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["findings"] == []
