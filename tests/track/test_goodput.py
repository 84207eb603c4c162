"""Where the granted seconds of a run went: planted times and losses, worked out by hand."""

import json
import tracemalloc

import numpy as np
import pytest

from ezpz.fields import replace
from ezpz.track.goodput_account import ROWS, Span, account, advise, best_interval, read_spans, share_lost
from ezpz.track.run_reader import open_run
from lab.run_folders import leave_run

BEGIN = 1_795_188_000.0


def attempt(begin=0.0, first=0, count=10, step=1.0, data=0.1, save=(), evaluation=(), load=0.0, tail=2.0, **more):
    """An attempt of a `Loop`: a second of start, two of imports, three more until the loop begins, then its steps.

    `save` and `evaluation` hold (step, seconds) of pauses after steps.
    """
    at = BEGIN + begin
    born, imported = at + 1.0, at + 3.0
    now = imported + 3.0 + load
    saves, evaluations = dict(save), dict(evaluation)
    times, steps = [], []
    for number in range(first, first + count):
        now += step + saves.get(number, 0.0) + evaluations.get(number, 0.0)
        times.append(now)
        steps.append(number)
    sections = [(first, {"load": load})] if load else []
    sections += [(number, {"checkpoint": seconds}) for number, seconds in save]
    sections += [(number, {"evaluation": seconds}) for number, seconds in evaluation]
    fields = {
        "begin": at,
        "end": now + tail,
        "born": born,
        "imported": imported,
        "by_loop": True,
        "times": times,
        "steps": steps,
        "took": [step] * count,
        "waited": [data] * count,
        "evaluated": [evaluations.get(number, 0.0) for number in steps],
        "saved": [saves.get(number, 0.0) for number in steps],
        "sections": sections,
    }
    return Span(**{**fields, **more})


def shown(*spans):
    """Return the rows that are not 0, to a hundredth."""
    made = account(spans)
    assert sum(made.rows.values()) == pytest.approx(made.granted, rel=0.005)
    return {name: round(seconds, 2) for name, seconds in made.rows.items() if abs(seconds) >= 0.005}


PLAIN = {"start": 4.0, "imports": 2.0, "first step": 0.9, "steps": 8.1, "data": 1.0, "tail": 2.0}


PLANTED = [
    (attempt(), {}),
    (attempt(data=0.6), {"first step": 0.4, "steps": 3.6, "data": 6.0}),
    (attempt(save=[(4, 3.0), (9, 3.0)]), {"save": 6.0}),
    (attempt(save=[(0, 3.0)]), {"save": 3.0}),
    (attempt(evaluation=[(5, 7.0)]), {"evaluation": 7.0}),
    (attempt(load=5.0), {"load": 5.0}),
    (attempt(tail=9.0), {"tail": 9.0}),
    (attempt(tail=9.0, failed=True), {"tail": 0.0, "dead time": 9.0}),
    (attempt(born=BEGIN + 1, imported=BEGIN + 5), {"start": 2.0, "imports": 4.0}),
    (attempt(sections=[(3, {"upload": 0.5})]), {"section upload": 0.5, "unexplained": -0.5}),
    (attempt(took=[1.0] * 9 + [0.4]), {"steps": 7.5, "unexplained": 0.6}),
]


def test_a_planted_time_is_in_its_row(subtests):
    for span, changed in PLANTED:
        with subtests.test(str(changed)):
            expected = {name: seconds for name, seconds in {**PLAIN, **changed}.items() if seconds}
            assert shown(span) == expected


def test_a_save_counts_as_one_also_without_its_section_and_behind_the_last_row():
    span = attempt(save=[(4, 3.0)])
    assert shown(replace(span, sections=[]))["save"] == 3.0
    span = attempt(tail=9.0)
    assert shown(replace(span, sections=[(10, {"checkpoint": 4.0})])) == {**PLAIN, "save": 4.0, "tail": 5.0}


def test_steps_that_a_later_attempt_did_again_are_counted_as_repeated():
    lost = attempt(count=17, failed=True, tail=1.5, launch="a")
    again = attempt(begin=lost.end - BEGIN + 4.0, first=10, count=10, launch="a")
    made = account([lost, again])
    assert (made.repeated, made.steps) == (7, 20)
    assert made.rows["repeated steps"] == pytest.approx(7.0)
    assert made.rows["dead time"] == pytest.approx(1.5 + 4.0)
    assert made.rows["unexplained"] == pytest.approx(0.0, abs=0.01)
    assert made.failures == 1


GAPS = [
    ({"job": "12"}, {"job": "13"}, 30.0, 0.0),
    ({"job": "12"}, {"job": "12"}, 0.0, 30.0),
    ({"launch": "/records/a"}, {"launch": "/records/a"}, 0.0, 30.0),
    ({"launch": "/records/a"}, {"launch": "/records/b"}, 30.0, 0.0),
    ({}, {}, 30.0, 0.0),
]


def test_time_between_attempts_was_granted_only_within_a_job_or_a_launch(subtests):
    for before, after, queue, dead in GAPS:
        with subtests.test(f"{before} {after}"):
            first = attempt(**before)
            second = attempt(begin=first.end - BEGIN + 30.0, first=10, **after)
            made = account([first, second])
            assert made.queue == pytest.approx(queue)
            assert made.rows["dead time"] == pytest.approx(dead)
            assert sum(made.rows.values()) == pytest.approx(made.granted)


def test_an_attempt_without_steps_or_without_times_of_its_own_is_accounted_for():
    span = replace(attempt(count=10), times=[], steps=[], took=[], waited=[], evaluated=[], saved=[], failed=True)
    assert shown(span) == {"imports": 2.0, "dead time": 16.0}
    span = replace(attempt(save=[(4, 3.0)]), by_loop=False, took=(), ready=BEGIN + 5.5)
    assert shown(span) == {"start": 3.5, "imports": 2.0, "first step": 1.5, "steps": 9.0, "save": 3.0, "tail": 2.0}
    names = list(account([attempt(sections=[(3, {"upload": 0.5})])]).rows)
    assert [name for name in names if name in ROWS] == list(ROWS)
    assert "section upload" in names


# What another interval would have cost.


def test_the_best_interval_costs_least(subtests):
    for save, between in [(2.0, 3600.0), (60.0, 7200.0), (0.1, 86400.0)]:
        with subtests.test(f"a save of {save} s, {between} s between failures"):
            best = best_interval(save, 1.0, between)
            costs = {every: share_lost(every, save, 1.0, between) for every in range(max(1, best // 2), best * 2)}
            assert share_lost(best, save, 1.0, between) <= min(costs.values()) + 0.002
            assert best == pytest.approx((2 * save * between) ** 0.5, rel=0.15)  # Young's


def test_the_advice_names_both_intervals_and_what_the_better_one_saves():
    text = advise(10, save=4.0, step=1.0, granted=30_000.0, failures=3)
    assert text.startswith("saving every 280 steps instead of 10 would have cost 25.8 %")
    assert text.endswith("less (3 failures in 8 h 20 min, 4 s a save)")
    assert "near the best" in advise(280, save=4.0, step=1.0, granted=30_000.0, failures=3)


def test_there_is_no_advice_before_the_third_failure():
    saves = [(number, 0.5) for number in range(1, 10, 2)]
    spans, begin = [], 0.0
    for number in range(3):
        spans.append(attempt(begin=begin, first=5 * number, save=[(5 * number + s, t) for s, t in saves], failed=True))
        begin = spans[-1].end - BEGIN + 1.0
    assert account(spans[:2]).advice == ""
    made = account(spans)
    assert made.save_every == 2
    assert made.advice.startswith("saving every ")


# What is read from a run folder.


def test_spans_are_read_from_a_run_that_was_killed_and_continued(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    rows = []
    for number, first, count, start in ((1, 0, 4, 100.0), (2, 2, 3, 200.0)):
        more = {"a": number} if number > 1 else {}
        for place in range(count):
            values = {"dt": 1.0, "dtd": 0.25, **({"dt_save": 0.5} if place == 1 else {})}
            time = start + place + (0.5 if place > 0 else 0.0)
            rows.append({"t": time, "step": first + place, **more, "m": values})
        rows.append({"t": start + 9, "step": first + count, **more, "k": "sections", "m": {"checkpoint": 0.75}})

    def facts(number, began, **more):
        told = {"attempt": number, "process": {"host": "n01", "pid": 1, "birth": "1", "began": began}, **more}
        return {"schema": 1, "name": "run", "timeline": {"setup": 2.0, "history": 2.5, "data": 3.0}, **told}

    newest = facts(2, 195.0, state="finished", ended="1970-01-01T00:03:30+00:00")
    earlier = [facts(1, 95.0, state="running")]
    spans = read_spans(leave_run(tmp_path / "run", rows, {**newest, "earlier": earlier}))
    assert [(span.begin, span.end, span.failed) for span in spans] == [(95.0, 109.0, True), (195.0, 210.0, False)]
    assert [span.imported for span in spans] == [97.0, 197.0]
    assert spans[0].sections == [(4, {"checkpoint": 0.75})]
    made = account(spans)
    assert (made.repeated, made.steps, made.attempts) == (2, 5, 2)
    assert made.queue == pytest.approx(195.0 - 109.0)
    assert made.rows["save"] == pytest.approx(2 * 0.75)


def test_an_attempt_without_rows_ends_with_its_launch(tmp_path, monkeypatch):
    """As that of a training which had nothing left to do: the next one has the same number, and the rows."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    record = tmp_path / "state" / "ezpz" / "launches" / "2026-11-20-162001-abcd1234"
    record.mkdir(parents=True)
    ended = {"launch_id": "abcd1234ef", "state": "finished", "started": 150.0, "ended": 160.0}
    (record / "run.json").write_text(json.dumps(ended))
    rows = [{"t": 100.0, "step": 0, "m": {"dt": 1.0}}, {"t": 200.0, "step": 1, "a": 2, "m": {"dt": 1.0}}]
    facts = {"schema": 1, "name": "run", "state": "finished", "attempt": 2}
    idle = {**facts, "launch": {"EZPZ_LAUNCH_ID": "abcd1234ef"}}
    spans = read_spans(leave_run(tmp_path / "run", rows, {**facts, "earlier": [{**facts, "attempt": 1}, idle]}))
    assert [(span.begin, span.end, len(span.times)) for span in spans] == [
        (100.0, 100.0, 1),
        (150.0, 160.0, 0),
        (200.0, 200.0, 1),
    ]


def test_the_account_of_a_long_run_needs_little_memory(tmp_path):
    """Arrays of 8 bytes a value, the journal a piece at a time; a float of Python and its place in a list are 32."""
    rows, step = 60_000, '{{"v":1,"t":{time},"step":{step},"m":{{"dt":0.5,"dtd":0.125,"dt_eval":0.0}}}}\n'
    lines = [step.format(time=100.5 + number, step=number) for number in range(rows)]
    sections = '{"v":1,"t":40000.5,"step":39999,"k":"sections","m":{"checkpoint":0.25}}\n'  # far into the journal
    (tmp_path / "metrics.jsonl").write_text("".join([*lines[:40_000], sections, *lines[40_000:]]))
    (tmp_path / "run.json").write_text(json.dumps({"schema": 1, "name": "run", "state": "finished"}))
    run = open_run(tmp_path)
    assert len(run.rows) == rows
    tracemalloc.start()
    try:
        spans = read_spans(run)
        made = account(spans)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (made.steps, made.rows["save"]) == (rows, 0.25)
    assert all(isinstance(each, np.ndarray) for each in (spans[0].times, spans[0].steps, spans[0].waited))
    assert peak < 12e6  # 8 arrays of 8 bytes are 3.8 MB


def test_what_was_not_granted_is_called_what_it_is():
    first, second = attempt(), attempt(begin=100.0, first=10)
    assert account([first, second]).besides.endswith(" between launches")
    first, second = (replace(each, job=str(number)) for number, each in enumerate((first, second), 1))
    assert account([first, second]).besides.endswith(" in the queue or between jobs")
    assert account([first]).besides == ""
