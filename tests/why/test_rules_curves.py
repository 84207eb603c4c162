"""Findings in losses: what `launch` says of them, what the verb adds, and that they ended nothing."""

import json
import math
import sys

import pytest
from planted import judge

from ezpz.cli.why import main as why
from ezpz.track import History
from ezpz.why import Certainty, Facts, diagnose, last_line

NAN_ON_2 = {"kind": "non-finite-loss", "key": "loss", "rank": 1, "step": 17, "value": "NaN", "before": 0.5}
NAN_ON_2 |= {"before_step": 16, "ranks": 1, "text": "loss is NaN from step 17 on, first on rank 1"}
SPIKE = {"kind": "loss-spike", "key": "loss", "rank": 0, "step": 3, "spread": 0.01, "text": "loss of rank 0 rose"}
STILL = {"kind": "loss-still", "key": "loss", "rank": None, "step": 1, "text": "loss stands still"}
RISE = {"kind": "loss-rise", "key": "loss", "rank": None, "step": 2, "median": 0.5, "text": "loss diverges"}
ZERO = {"kind": "zero-lr", "key": "lr", "rank": None, "step": 4, "last_step": 90, "text": "lr is 0 from step 4 on"}
PLAN = {"hosts": ["n01", "n02"], "ranks_per_host": [1, 1], "world_size": 2}


def facts(*findings, **launch):
    return Facts({"state": "finished", "exit_code": 0, "plan": PLAN, **launch}, {"findings": list(findings)})


def test_a_finding_becomes_a_cause_that_ended_nothing():
    for finding, is_said in ((NAN_ON_2, True), (RISE, False), (ZERO, False), (SPIKE, False), (STILL, False)):
        (cause,) = diagnose(facts(finding))
        assert (cause.cause, cause.rank, cause.step) == (finding["kind"], finding["rank"], finding["step"])
        assert cause.certainty == Certainty.FINDING
        assert cause.text == finding["text"]
        assert cause.advice
        assert last_line([cause], failed=False) == (finding["text"] if is_said else "")
        assert last_line([cause], failed=True) == ""


def test_a_lost_loss_stands_before_a_spike_that_was_earlier():
    assert [cause.cause for cause in diagnose(facts(SPIKE, STILL, ZERO, NAN_ON_2, RISE))] == [
        "non-finite-loss",
        "loss-rise",
        "zero-lr",
        "loss-spike",
        "loss-still",
    ]
    assert diagnose(facts(NAN_ON_2))[0].host == "n02"


def test_what_is_no_finding_is_passed_over():
    for findings in (
        *(None, "x", [None], [1], [{}]),
        *([{"kind": "loss-spike"}], [{"kind": "?", "text": "x", "step": 1}]),
    ):
        assert diagnose(Facts({"state": "finished"}, {"findings": findings})) == [], findings


def test_an_end_stands_before_a_finding():
    cause = {"text": "rank 0 exited", "rank": 0, "code": 3, "signal": None}
    causes = diagnose(facts(NAN_ON_2, state="failed", exit_code=3, cause=cause))
    assert [each.cause for each in causes] == ["exit-code", "non-finite-loss"]


SAID = "loss=nan on rank 1 at step 17"


@pytest.mark.parametrize("findings", [[NAN_ON_2, SPIKE], []], ids=["a finding", "NaN from the first step on"])
def test_a_training_that_ended_itself_because_of_its_loss_ended_of_that(findings):
    cause = {"text": "rank 0 exited", "rank": 0, "code": 1, "signal": None}
    known = facts(*findings, state="failed", exit_code=1, cause=cause)
    known.run = known.run.changed(cause=f"LostLossError: {SAID}; all ranks ended after step 20 (on_nan=stop), and")
    causes = diagnose(known)
    assert [each.cause for each in causes] == ["non-finite-loss", "exit-code", *["loss-spike"] * bool(findings)]
    assert causes[0].certainty == Certainty.SEEN
    assert causes[0].text == (NAN_ON_2["text"] if findings else SAID)
    assert last_line(causes, failed=True) == causes[0].text


def test_a_run_that_was_killed_is_looked_at_on_demand(tmp_path, capsys):
    history = History("mine", outdir=tmp_path / "run")
    for step in range(20):
        history.update({"loss": 1.0 if step < 9 else math.inf}, step=step, summarize=False)
    history.sync()
    assert why([str(tmp_path / "run"), "--json"]) == 0
    (cause,) = json.loads(capsys.readouterr().out)["causes"]
    assert (cause["cause"], cause["step"]) == ("non-finite-loss", 9)
    history.finalize(show=False, plots=False)


PROGRAM = """\
import math, sys
import ezpz
rank, at = int(sys.argv[1]), int(sys.argv[2])
me = ezpz.setup_torch(backend="gloo")
with ezpz.History("mine") as history:
    for step in range(40):
        lost = step >= at if me == rank else step > at
        history.update({
            "loss": math.nan if lost else 2.0 / (1 + step) + 0.001 * me,
            "val_loss": 1.0 if step % 10 == 0 else math.nan,
            "lr": 0.1,
        }, step=step, summarize=False)
ezpz.cleanup()
"""


@pytest.mark.dear
@pytest.mark.slow
def test_a_launch_ends_with_the_rank_and_step_of_the_first_nan(ended, draw, tmp_path):
    rank, at = draw.randrange(2), draw.randrange(5, 35)
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    end = ended([sys.executable, program, str(rank), str(at)], timeout=300)
    assert end.code == 0, end.err
    judge("a loss that becomes NaN", end.causes, rank=rank)
    (cause,) = end.causes
    assert (cause["cause"], cause["rank"], cause["step"]) == ("non-finite-loss", rank, at)
    assert f"loss is NaN from step {at} on, first on rank {rank}; it was " in end.err
    assert end.err.count("is NaN from step") == 1


OTHERS = """\
import random, sys
import ezpz
kind, rank, at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
me = ezpz.setup_torch(backend="gloo")
noise = random.Random(me)
with ezpz.History("mine") as history:
    for step in range(120):
        loss = 1.0 + 2.0 / (1 + step) + noise.gauss(0, 0.01)
        if kind == "spike" and step == at and me == rank:
            loss = 9.0
        if kind == "still" and step >= at:
            loss = 1.5
        history.update({"loss": loss, "lr": 0.1}, step=step, summarize=False)
ezpz.cleanup()
"""


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "trouble"), [("spike", "a spike of one rank's loss"), ("still", "a loss that does not change any more")]
)
def test_a_launch_keeps_a_spike_and_a_plateau_for_the_report(ended, draw, tmp_path, kind, trouble):
    rank, at = draw.randrange(2), draw.randrange(30, 65)
    program = tmp_path / "train.py"
    program.write_text(OTHERS)
    end = ended([sys.executable, program, kind, str(rank), str(at)], timeout=300)
    assert end.code == 0, end.err
    judge(trouble, end.causes, rank=rank if kind == "spike" else None)
    (cause,) = end.causes
    assert cause["step"] == at
    assert cause["text"] not in end.err  # it is no matter of the terminal
