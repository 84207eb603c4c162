"""The map of lags: ranks by windows of time, what is left out of a large one, and words where nothing was recorded."""

import json

import pytest

from ezpz.track.run_reader import open_run
from ezpz.view.report import lags
from ezpz.view.report.lags import lags_part

LAUNCH = "5f3a90c2"


@pytest.fixture
def run_of(tmp_path, monkeypatch):
    """`run_of(rows, world)` -> a run whose launch has recorded these rows."""

    def make(rows, world=2):
        folder = tmp_path / f"record{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        if rows is not None:
            (folder / "arrivals.jsonl").write_text("".join(f"{row}\n" for row in rows))
        monkeypatch.setattr(lags, "find_launch", lambda launch: (folder / "run.json", {}) if launch == LAUNCH else None)
        run = folder / "run"
        run.mkdir()
        facts = {"name": "r", "launch": {"EZPZ_LAUNCH_ID": LAUNCH}, "ranks": {"world_size": world}}
        (run / "run.json").write_text(json.dumps(facts))
        return open_run(run)

    return make


def row(end, lag, seconds=30.0):
    return json.dumps({"v": 1, "t": end, "s": seconds, "source": "host", "groups": [], "lag": lag})


def test_a_cell_for_each_rank_and_window(run_of):
    run = run_of([row(130.0, {"0": 0.0, "1": 0.16}), "torn {", row(160.0, {"0": 0.0, "1": 0.08}), '{"v":1,"lag":3}'])
    inside = lags_part(run).inside
    assert inside.count("<tr>") == 3
    assert '--share:1.00">160\u00a0ms' in inside
    assert '--share:0.50">80\u00a0ms' in inside
    assert inside.index("30 s") < inside.index("1 min")
    assert "times of hosts" in inside


def test_many_ranks_and_windows_are_made_few(run_of):
    rows = [row(100.0 + 30 * index, {str(rank): 0.001 * rank for rank in range(100)}) for index in range(100)]
    inside = lags_part(run_of(rows, 100)).inside
    assert inside.count("<tr>") == 1 + 64
    assert inside.count("<th>") <= 1 + 24
    assert "rank 99<" in inside
    assert "rank 1<" not in inside
    assert "the 64 latest of 100 ranks" in inside


def test_what_cannot_tell_is_said_and_one_rank_waits_for_nobody(subtests, run_of):
    for rows in [None, [], ["x"], [row(1.0, {"<b>": 1.0})], [row(1.0, {"0": float("nan")})]]:
        with subtests.test(str(rows)):
            assert "Nothing was recorded that could tell which rank" in lags_part(run_of(rows)).inside
    assert lags_part(run_of([row(130.0, {"0": 0.0})], 1)).inside == ""
