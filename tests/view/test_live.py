import json

import pytest

from ezpz.quantities import duration
from ezpz.track import recorded_rows
from ezpz.track.run_reader import Run
from ezpz.view.terminal import follow
from ezpz.view.terminal.follow import Followed, Live
from ezpz.view.terminal.run_lines import headline


def row(step, metrics, *, kind="", attempt=1, time=None):
    return {"v": 1, "t": float(step) if time is None else time, "step": step, "a": attempt, "k": kind, "m": metrics}


def points(live):
    return {item.name: list(zip(item.steps.tolist(), item.values.tolist(), strict=True)) for item in live.series()}


def test_rows_become_series_of_numbers_and_late_values_stand_at_their_step():
    live = Live()
    live.add([row(0, {"loss": 1.0, "note": "x", "epoch": 0, "h": [1]}), row(1, {"loss": 2, "ok": True, "n": 10**400})])
    assert points(live) == {"loss": [(0, 1), (1, 2)], "ok": [(1, 1)], "n": [(1, float("inf"))]}
    assert (live.rows, live.step, live.time) == (2, 1, 1.0)
    assert live.latest == {"loss": 2.0, "ok": 1.0, "n": float("inf")}
    live = Live()
    live.add(
        [row(0, {"a": 1.0}), row(1, {"a": 2.0}), row(0, {"b": 5.0, "a": 3.0}, kind="late"), row(9, {}, kind="ranks")]
    )
    assert points(live) == {"a": [(0, 1), (0, 3), (1, 2)], "b": [(0, 5)]}
    assert (live.rows, live.step) == (2, 1)


def test_what_a_later_attempt_records_again_is_dropped():
    live = Live()
    live.add([row(step, {"a": 1.0}) for step in range(5)])
    live.add([row(2, {"a": 9.0}, attempt=2), row(3, {"a": 9.0}, attempt=2)])
    assert points(live) == {"a": [(0, 1), (1, 1), (2, 9), (3, 9)]}


def test_the_speed_is_that_of_the_last_rows():
    live = Live()
    assert live.rate() is None
    live.add([row(0, {}, time=0.0)])
    assert live.rate() is None
    live.add([row(step, {}, time=1000 + step / 4) for step in range(300)])
    assert live.rate() == pytest.approx(4.0)


def test_durations_and_a_whole_run_are_told_in_one_line(tmp_path):
    told = {0.4: "0 s", 59.4: "59 s", 60: "1 min 0 s", 312: "5 min 12 s", 7500: "2 h 5 min", 93600: "1 d 2 h"}
    assert {seconds: duration(seconds, whole=True) for seconds in told} == told
    facts = {"started": "2026-11-20T16:20:01+01:00", "ended": "2026-11-20T16:25:13+01:00"}
    assert headline(Run(tmp_path, facts, "train", "finished", ""), 300, (0, 299), (None, None)) == (
        "train: finished, 300 rows, steps 0 to 299, 5 min 12 s"
    )
    started = 1795188001.0
    died = Run(tmp_path, {"started": facts["started"]}, "train", "died", "killed")
    assert headline(died, 1, (7, 7), (started + 3, started + 3)) == "train: died (killed), 1 row, step 7, 3 s"
    assert headline(Run(tmp_path, {"started": 5}, "x", "running", ""), 0, None, (None, None)) == "x: running, 0 rows"


def test_a_run_is_over_when_it_says_so_and_a_death_is_looked_at_twice(tmp_path, make_history):
    history = make_history(outdir=tmp_path / "a")
    history.update({"loss": 1.0})
    followed = Followed(tmp_path / "a")
    assert followed.look()
    assert not followed.look()
    assert not followed.over
    history.finalize(plots=False, show=False)
    followed.look()
    assert followed.over
    assert followed.run.state == "finished"

    (tmp_path / "b").mkdir()
    (tmp_path / "b/metrics.jsonl").write_text('{"v":1,"t":1.0,"step":0,"m":{"x":1}}\n')
    followed = Followed(tmp_path / "b")
    followed.look()
    assert followed.run.state == "died"
    assert not followed.over
    followed.look()
    assert followed.over


def test_a_journal_that_was_replaced_is_read_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"v":1,"t":1.0,"step":0,"m":{"x":1}}\n{"v":1,"t":1.0,"step":1,"m":{"x":1}}\n')
    followed = Followed(tmp_path)
    followed.look()
    assert followed.live.rows == 2
    path.write_text('{"v":1,"t":1.0,"step":0,"m":{"x":1}}\n')
    followed.look()
    assert followed.live.rows == 1


def test_a_long_journal_is_taken_from_its_columns_and_followed_from_their_end(tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "STRETCH", 500)
    monkeypatch.setattr(recorded_rows, "STRETCH", 500)
    rows = [row(step, {"loss": step / 7, "n": step, "epoch": 1, "note": "x"}) for step in range(60)]
    rows += [row(step, {"loss": step / 9}, attempt=2, time=step / 2) for step in range(50, 80)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows) + "[]\n")
    parsed = []
    monkeypatch.setattr(follow, "parse", lambda line, place: parsed.append(line) or None)
    followed, plain = Followed(tmp_path), Live()
    assert followed.look()
    plain.add(rows)
    assert not parsed
    assert followed.passed == 1
    assert (tmp_path / recorded_rows.COLUMNS).exists()
    monkeypatch.undo()
    more = [row(step, {"loss": 0.5, "new": 1}, attempt=2) for step in range(80, 85)]
    more += [row(step, {"loss": 0.25, "n": 3}, attempt=3) for step in range(55, 60)]
    for part in ([], more[:3], more[3:7], more[7:]):
        with path.open("a") as file:
            file.write("".join(json.dumps(each) + "\n" for each in part))
        assert followed.look() == bool(part)
        plain.add(part)
        assert points(followed.live) == points(plain)
        known = [(live.rows, live.step, live.time, live.latest, live.rate()) for live in (followed.live, plain)]
        assert known[0] == known[1]
