"""What is told of the chain of jobs to which a run belongs, and which runs a chain has."""

import json
import shutil

import pytest

from ezpz.cli import runs as runs_verb
from ezpz.jobs.chain_folder import chain_of, in_words, run_folders
from ezpz.records.run_record import RunRecord


@pytest.fixture
def make_chain(tmp_path, monkeypatch):
    """`make_chain(rows, waiting, verdict, **limits)` -> the folder of a chain."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def make(rows, waiting=(), verdict="", **limits):
        folder = tmp_path / "chain"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        facts = {"file": "gpt.slurm", "jobs": 8, "ids": ["1"], "queued_at_once": False, **limits}
        (folder / "chain.json").write_text(json.dumps(facts))
        (folder / "jobs.json").write_text(json.dumps({"jobs": rows, "waiting": list(waiting)}))
        if verdict:
            (folder / "verdict").write_text(f"{verdict}\n")
        return folder

    return make


def of_run(launch):
    return chain_of(RunRecord.of({"launch": launch}))


def told(folder):
    return in_words(of_run({"EZPZ_CHAIN": str(folder)}))


ROWS = [{"job": "1", "run": "/runs/a"}, {"job": "2", "run": "/runs/a"}, {"job": "3", "run": "/runs/b"}]


STANDS = [
    (["4"], "", {}, "chain: job 3 of at most 8, next 4 queued"),
    ([], "", {}, "chain: job 3 of at most 8"),
    (["4"], "again", {}, "chain: job 3 of at most 8, next 4 queued; again"),
    ([], "done", {}, "chain: job 3 of at most 8; done"),
    ([], "stop: a bug", {}, "chain: job 3 of at most 8; stop: a bug"),
    (["4"], "stop: a bug", {}, "chain: job 3 of at most 8, next 4 queued; stop: a bug"),  # it could not be cancelled
    ([], "", {"queued_at_once": True, "ids": list("12345")}, "chain: job 3 of at most 8, next 4 queued"),
    ([], "done", {"queued_at_once": True, "ids": list("12345")}, "chain: job 3 of at most 8; done"),
]


def test_how_a_chain_stands(subtests, make_chain):
    for waiting, verdict, limits, words in STANDS:
        with subtests.test(words):
            assert told(make_chain(ROWS, waiting, verdict, **limits)) == words


def test_damaged_files_are_no_failure_nor_a_run_of_no_chain_or_one_that_is_gone(subtests, make_chain, tmp_path):
    for text in ["", "[]", '{"jobs": 3, "waiting": 4}', '{"jobs": [3, {}]}', "{"]:
        with subtests.test(repr(text)):
            folder = make_chain(ROWS)
            (folder / "jobs.json").write_text(text)
            assert told(folder).startswith("chain: job ")
            assert run_folders(folder) == []
    assert of_run({}) is None
    assert of_run({"EZPZ_CHAIN": str(tmp_path / "gone")}) is None


def test_a_running_job_is_known_by_the_record_of_its_launch(make_chain, tmp_path):
    folder = make_chain([*ROWS, {"job": "4"}])
    for number, (chain, run) in enumerate([(folder, "/runs/c"), (tmp_path / "other", "/runs/d")]):
        record = tmp_path / "state" / "ezpz" / "launches" / f"2026-11-24-000000-0000000{number}"
        record.mkdir(parents=True)
        fields = {"launch_id": f"0000000{number}", "chain": {"folder": str(chain), "job": "4"}, "run_folder": run}
        (record / "run.json").write_text(json.dumps(fields))
    assert list(map(str, run_folders(folder))) == ["/runs/a", "/runs/b", "/runs/c"]
    assert of_run({"EZPZ_LAUNCH_ID": "00000000"})["folder"] == str(folder)


def test_a_chain_without_a_run_is_refused(make_chain, capsys):
    assert runs_verb.main(["--goodput", str(make_chain([]))]) == 2
    assert "no run of the chain" in capsys.readouterr().err
