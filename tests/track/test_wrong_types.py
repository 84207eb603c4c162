"""Journals and run.json with JSON of another type than ezpz writes: what is wrong is left out, and said in one line."""

import json

import pytest

from ezpz.cli import compare, export, plot, report, runs
from ezpz.track import read_journal
from ezpz.track.lazy_dataset import open_dataset
from ezpz.track.run_folder import RunFile
from ezpz.track.run_reader import open_run

GOOD = [
    {"v": 1, "t": 1795194001.0 + step, "step": step, "m": {"loss": 1.0 / (step + 1), "lr": 0.1}} for step in range(4)
]
WINDOW = {"world": 2, "every": 1, "steps": [0], "held": [2], "keys": {"loss": {"mean": [1.0], "ranks": [[1.0], [1.0]]}}}
FACTS = {"name": "train", "state": "finished", "started": "2026-11-23T01:00:00+00:00"}


def row(**more):
    return {**GOOD[0], "step": 9, **more}


def window(**more):
    return row(k="ranks", m={**WINDOW, **more})


WRONG_ROWS = [
    [],
    row(step=2**63),
    row(step=True),
    row(t=1e999),
    row(t="now"),
    row(a="x"),
    row(a=0),
    row(k=[]),
    row(m=[]),
    row(m={"loss": None}),
    row(m={"loss": [[1.0]]}),
    row(m={"loss": {"counts": 1}}),
    row(m={"loss": {"counts": [1, 2], "edges": [0.0]}}),
    row(m={"loss": {"counts": [1], "edges": [0, 10**400]}}),
    row(m={"loss": {"counts": [1], "edges": [0.0, 1e999]}}),
    row(k="late", m={"loss": None}),
    window(world="2"),
    window(world=0),
    window(steps=[]),
    window(steps=["0"]),
    window(every=7),
    window(held=["2"]),
    window(keys=[]),
    window(keys={"loss": 1}),
    window(keys={"loss": {"mean": 1.0}}),
    window(keys={"loss": {"mean": ["x"]}}),
    window(keys={"loss": {"mean": [10**400], "ranks": [[10**400]]}}),
    window(keys={"loss": {"ranks": [[1.0]] * 3}}),
    window(keys={"loss": {"ranks": [1.0, 2.0]}}),
]
WRONG_FACTS = [
    *(
        {**FACTS, name: value}
        for name in ("argv", "config", "effective", "ranks", "versions", "launch")
        for value in (7, "x")
    ),
    *({**FACTS, name: [1]} for name in ("state", "cause", "started", "ended", "process", "timeline", "git_commit")),
    {**FACTS, "problems": 1, "earlier": "x", "attempt": "2", "seconds": [], "schema": "x", "name": 7},
    {**FACTS, "process": {"pid": "x", "host": 1}, "ranks": {"world_size": "2"}, "effective": {"problems": 1}},
    [FACTS],
    7,
]


def make(folder, rows, facts=FACTS):
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    (folder / "run.json").write_text(json.dumps(facts))
    return folder


def verbs(folder, good):
    """The exit codes of all verbs that read a run; together they cost a quarter of a second."""
    codes = [verb.main([str(folder)]) for verb in (export, plot, report)]
    return [*codes, runs.main([str(folder.parent)]), compare.main([str(good), str(folder)])]


def test_a_row_of_wrong_types_is_left_out_and_counted(subtests, tmp_path, capsys):
    for number, wrong in enumerate(WRONG_ROWS):
        with subtests.test(json.dumps(wrong)[:200]):
            folder = make(tmp_path / str(number), [GOOD[0], wrong, *GOOD[1:], wrong])
            assert [row["step"] for row in read_journal(folder)] == [0, 1, 2, 3]
            said = capsys.readouterr().out.splitlines()
            assert len(said) == 1
            assert "metrics.jsonl:2: passed over what is no record of ezpz: 2 line(s), this the first." in said[0]
            assert open_run(folder).windows == []
            capsys.readouterr()


def test_every_verb_passes_over_rows_of_wrong_types(tmp_path):
    run = make(tmp_path / "run", [GOOD[0], *WRONG_ROWS, *GOOD[1:], *WRONG_ROWS])
    good = make(tmp_path / "good", GOOD)
    assert verbs(run, good) == [0] * 5
    assert open_dataset(run / "train.h5")["loss"].values.tolist() == [row["m"]["loss"] for row in GOOD]


def test_a_window_of_right_types_is_read(tmp_path, capsys):
    folder = make(tmp_path / "run", [*GOOD, window()])
    assert [row["m"] for row in open_run(folder).windows] == [WINDOW]
    assert "passed over" not in capsys.readouterr().out


def test_facts_of_wrong_types_count_as_missing(subtests, tmp_path, capsys):
    for number, facts in enumerate(WRONG_FACTS):
        with subtests.test(json.dumps(facts)):
            run = open_run(make(tmp_path / str(number), GOOD, facts))
            assert run.table.steps == [0, 1, 2, 3]
            assert capsys.readouterr().out.count("as missing") == int(isinstance(facts, dict))


@pytest.mark.slow
def test_every_verb_takes_facts_of_wrong_types_and_says_so_once(subtests, tmp_path, capsys):
    for number, facts in enumerate(WRONG_FACTS):
        with subtests.test(json.dumps(facts)):
            folder = tmp_path / str(number)
            run, good = make(folder / "run", GOOD, facts), make(folder / "good", GOOD)
            assert verbs(run, good) in ([0] * 5, [0] * 4 + [1])
            noted = [line for line in capsys.readouterr().out.splitlines() if "as missing" in line]
            assert len(noted) == int(isinstance(facts, dict))


def test_a_run_goes_on_in_a_folder_whatever_its_facts_hold(subtests, tmp_path):
    for number, earlier in enumerate([7, "x", {"a": 1}, [1, "x", {"trackers": 3}]]):
        with subtests.test(str(earlier)):
            facts = RunFile(make(tmp_path / str(number), GOOD, {**FACTS, "earlier": earlier}), "train", {}).facts
            assert facts["earlier"][-1] == FACTS
            assert facts["earlier"][:-1] == (earlier if isinstance(earlier, list) else [earlier])


def test_the_note_names_the_fields(tmp_path, capsys):
    open_run(make(tmp_path / "run", GOOD, WRONG_FACTS[-3]))
    said = capsys.readouterr().out
    assert "run.json: took ranks.world_size, process.pid, process.host, effective.problems as missing" in said
