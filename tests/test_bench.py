"""`make bench`: what it says of budgets, and its exit code."""

import importlib.util
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    spec = importlib.util.spec_from_file_location("bench_run", BENCH / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for name in ("contenders", "measure"):
        sys.modules.pop(name, None)


@pytest.fixture
def make_row(bench):
    from measure import Contender

    def make(name, samples, budget="", **more):
        return Contender("group", name, [], {}, samples=list(samples), budget=budget, **more)

    return make


def test_a_budget_is_missed_where_the_least_of_all_runs_is_over_it(bench, make_row):
    for budget, samples, word in [
        ("60 ms", (50.0, 55.0, 90.0), "held"),
        ("0.06 s", (50.0, 70.0, 90.0), "not decided"),
        ("60 ms", (61.0, 70.0, 90.0), "missed"),
        ("+40 ms", (50.0, 55.0, 90.0), "held"),
        ("+40 ms", (50.0, 65.0, 90.0), "not decided"),
        ("+40 ms", (51.0, 65.0, 90.0), "missed"),
        ("x3.0", (30.0, 60.0, 61.0), "held"),
        ("x3.0", (31.0, 61.0, 61.0), "missed"),
        ("", (51.0,), ""),
        ("60 ms", (), ""),
    ]:
        rows = [make_row("peer", (10.0, 20.0, 500.0)), make_row("ours", samples, budget, peer="peer")]
        assert bench.verdict(rows[1], rows) == word, (budget, samples)
        assert not bench.verdict(rows[0], rows)


def test_a_budget_beside_a_peer_that_failed_is_none(bench, make_row):
    rows = [make_row("peer", ()), make_row("ours", (10.0,), "+1 ms", peer="peer")]
    assert (bench.verdict(rows[1], rows), bench.summary(rows)) == ("", "0 of 0 budgets missed, 0 not decided")


@pytest.mark.slow
def test_every_budget_of_every_group_is_one_that_is_understood(bench, monkeypatch, tmp_path):
    import contenders

    monkeypatch.setattr(contenders, "VENV", Path(sys.executable).parent)  # a group makes runs with it
    rows = [row for group in bench.GROUPS.values() for row in group(str(tmp_path))]
    for row in rows:
        row.samples = [1.0]
    words = [bench.verdict(row, rows) for row in rows if row.budget]
    assert len(words) > 40
    assert all(words), [row.name for row in rows if row.budget and not bench.verdict(row, rows)]


@pytest.mark.parametrize(("words", "code"), [([], 0), (["--strict"], 1)])
def test_the_exit_code_tells_of_missed_budgets_where_that_is_asked_for(
    bench, make_row, monkeypatch, capsys, words, code
):
    rows = [make_row("bare", (10.0,)), make_row("ours", (90.0,), "+40 ms", peer="bare"), make_row("x", (1.0,), "2 ms")]
    monkeypatch.setattr(bench, "GROUPS", {"group": lambda folder: rows})
    monkeypatch.setattr(bench, "measure", lambda *rest: None)
    monkeypatch.setattr(sys, "argv", ["run.py", *words])
    assert bench.main() == code
    printed = capsys.readouterr().out
    assert "+40 ms, missed" in printed
    assert "2 ms, held" in printed
    assert printed.splitlines()[-1] == "1 of 2 budgets missed, 0 not decided: group: ours"
