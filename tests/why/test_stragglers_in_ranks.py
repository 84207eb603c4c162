"""Real gloo ranks of which one is late: by sleeping, by a core that it shares, by its loader; and healthy ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from planted import judge

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("straggling.py")
STEPS = 60


@pytest.fixture
def findings(run_cli, tmp_path):
    """`findings(kind, late, seconds, ranks)` -> the causes of a launch of the program, and its record."""

    def run(kind, late, seconds, ranks=2, env=None, collectives=1):
        line = [sys.executable, "-m", "ezpz.launch", "-n", str(ranks), "--log-dir", str(tmp_path / "log")]
        words = [sys.executable, str(PROGRAM), kind, str(late), str(seconds), str(STEPS), str(collectives)]
        result = run_cli([*line, *words], env, timeout=400)
        assert result.returncode == 0, result.stderr
        record = json.loads((tmp_path / "log" / "run.json").read_text())
        return [cause for cause in record["causes"] if cause["cause"] == "straggler"], record

    pytest.importorskip("torch")
    return run


@pytest.mark.dear
@pytest.mark.parametrize("collectives", [1, 20])
def test_a_rank_that_sleeps(findings, draw, collectives):
    ranks = 2 if collectives > 1 else draw.choice([2, 4])  # more make each collective slow on two cores
    late, seconds = draw.randrange(ranks), draw.uniform(0.35, 0.5)
    (cause,), record = findings("sleep", late, seconds, ranks, collectives=collectives)
    judge(
        "a straggler that sleeps in each step",
        record["causes"],
        rank=late,
        where=f"{ranks} ranks, {collectives} a step",
    )
    lags = [row["groups"][0]["lag"] for row in record["arrivals"]["windows"]]
    assert 0.5 * seconds < sum(lags) / len(lags)  # and more, where a busy machine adds its own
    assert cause["text"].startswith(f"rank {late} arrives last in ")


@pytest.mark.dear
def test_a_rank_with_a_slow_loader(findings, draw):
    late = draw.randrange(2)
    (cause,), record = findings("loader", late, 0.4)
    judge("a straggler whose loader is slow", record["causes"], rank=late)
    assert cause["text"].endswith("it waits for its loader")


@pytest.mark.dear
@pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="a core of its own for each of two ranks"
)
def test_a_rank_whose_core_is_shared(findings, draw):
    late = draw.randrange(2)
    (_,), record = findings("core", late, 0)
    judge("a straggler whose core is shared", record["causes"], rank=late)
    assert record["arrivals"]["ranks"][str(late)]["delay"] > record["arrivals"]["others"]["delay"]


@pytest.mark.dear
def test_healthy_ranks_on_busy_cores_are_no_finding(findings):
    cores = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    busy = [
        subprocess.Popen(
            [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile os.getppid() != 1: pass"]
        )
        for core in cores[:2]
    ]
    try:
        causes, record = findings("none", 0, 0)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert causes == []
    assert record["arrivals"]["seconds"] > 0  # there was something to look at
