"""Healthy launches are taken for healthy: in `make matrix` 40 cheap ones, and one of each kind that needs a library."""

import os

import healthy
import pytest
from planted import SCORE

SEED = os.environ.get("EZPZ_SEED", "27")
CHEAP = 40
in_matrix = pytest.mark.skipif(not os.environ.get(SCORE), reason="49 launches, and 300 more: make matrix")


@pytest.mark.slow
@pytest.mark.timeout(7200)
@in_matrix
def test_healthy_launches_have_no_cause_and_stderr_is_the_ranks_own(tmp_path, subtests):
    for number in range(CHEAP):
        with subtests.test(number):
            healthy.run(number, SEED, tmp_path, cheap=True)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@in_matrix
def test_healthy_programs_with_libraries_have_no_cause(tmp_path, subtests):
    for number in range(4, 5 * len(healthy.DEAR), 5):
        with subtests.test(healthy.chosen(number).name):
            try:
                healthy.run(number, SEED, tmp_path)
            except LookupError as problem:
                pytest.skip(str(problem))


@pytest.mark.slow
def test_a_run_that_is_not_healthy_is_an_alarm(tmp_path, monkeypatch):
    def noisy(_draw, _folder):
        return ["sh", "-c", "echo more >&2"], lambda _rank: []

    def failing(_draw, _folder):
        return ["sh", "-c", "exit 3"], healthy.silent

    for make, words in ((noisy, "stderr has"), (failing, "exit code 3")):
        monkeypatch.setattr(healthy, "CHEAP", [healthy.Kind(make, ranks=(2,))])
        with pytest.raises(healthy.FalseAlarmError, match=words):
            healthy.run(0, SEED, tmp_path, cheap=True)


def test_a_series_has_every_kind():
    assert {healthy.chosen(number).name for number in range(300)} == {each.name for each in healthy.KINDS}
    assert {healthy.chosen(number, cheap=True).name for number in range(CHEAP)} == {each.name for each in healthy.CHEAP}


def test_only_the_lines_of_the_plan_are_allowed():
    for line, is_plan in (
        ("ezpz: 2 ranks on vm (-n), cpu", True),
        ("ezpz: local launcher (no mpiexec on PATH), rendezvous at 127.0.0.1:43083", True),
        ("ezpz: note: 8 ranks share 2 cores", True),
        ("ezpz: note: device 3 on n07 was idle", False),
        ("ezpz: rank 1 arrives last in 92 %", False),
        ("2 ranks on vm (-n), cpu", False),
    ):
        assert bool(healthy.PLAN_LINES.fullmatch(line)) == is_plan, line
