"""No secret reaches the files of a run, of a launch, what trackers get, or what verbs show of older runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ezpz
from ezpz.cli.compare import main as compare
from ezpz.cli.report import main as report
from ezpz.launch import record
from lab import process

SRC = str(Path(ezpz.__file__).parents[1])
SECRET = "Zq7Xw2Lp9Rt4Vb6Nm1Kc"
SHORT = "q9z"

PROGRAM = f"""
import sys
import ezpz

class Tracker:
    name = "mine"
    def start(self, about): return {{"url": "https://me:{SECRET}@example.org/run"}}
    def log(self, step, values): pass
    def config(self, config): print("CONFIG", config)
    def finish(self, state): pass

with ezpz.History(outdir=sys.argv[1], trackers=[Tracker()]) as history:
    history.log_config({{"auth": "{SHORT}", "db": {{"pass": "{SHORT}"}}, "note": "with {SECRET}", "lr": 0.1}})
    history.update({{"loss": 1.0, "note": "{SECRET}"}})
    raise RuntimeError("401 for token='{SHORT}' and {SECRET}")
"""


def in_files(folder, *words):
    """Return which files below a folder hold which of these words."""
    return [
        (path.name, word)
        for path in folder.rglob("*")
        for word in words
        if path.is_file() and word.encode() in path.read_bytes()
    ]


def test_no_file_of_a_run_holds_a_secret(tmp_path, monkeypatch, capsys):
    (tmp_path / "train.py").write_text(PROGRAM)
    environ = {**os.environ, "HF_TOKEN": SECRET, "EZPZ_LAUNCH_CMD": f"bash -c 'DB_PASSWORD={SHORT} python3 train.py'"}
    done = subprocess.run(
        [sys.executable, "train.py", "run", "--pat", SHORT],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    monkeypatch.setenv("HF_TOKEN", SECRET)
    assert report([str(tmp_path / "run")]) == 0
    # A text that the program itself records is in the journal as it was given; nothing is looked at per step.
    assert {name for name, _ in in_files(tmp_path / "run", SECRET, SHORT)} <= {"metrics.jsonl", "train.h5"}
    shown = json.loads((tmp_path / "run" / "run.json").read_text())
    assert shown["argv"] == ["train.py", "run", "--pat", "<redacted>"]
    assert shown["config"] == {"auth": "<redacted>", "db": {"pass": "<redacted>"}, "note": "with <redacted>", "lr": 0.1}
    assert shown["cause"] == "RuntimeError: 401 for token='<redacted>' and <redacted>"
    assert SECRET not in done.stdout
    assert SHORT not in done.stdout


@pytest.mark.slow
def test_what_an_older_ezpz_wrote_is_not_shown_either(tmp_path, capsys):
    for name in ("a", "b"):
        with ezpz.History(outdir=tmp_path / name) as history:
            history.update({"loss": 1.0})
        facts = json.loads((tmp_path / name / "run.json").read_text())
        facts |= {"config": {"tokens": [f"hf_{SECRET}"], "db_pass": name + SHORT}, "argv": ["t.py", "--pwd", SHORT]}
        facts |= {"state": "failed", "cause": f"E: https://me:{SHORT}@host"}
        (tmp_path / name / "run.json").write_text(json.dumps(facts))
    capsys.readouterr()
    assert report([str(tmp_path / "a")]) == 0
    compare([str(tmp_path / "a"), str(tmp_path / "b"), "--no-picture"])
    compare([str(tmp_path / "a"), str(tmp_path / "b"), "--no-picture", "--json"])
    page = (tmp_path / "a" / "report.html").read_text()
    for text in (page, capsys.readouterr().out):
        assert SECRET not in text
        assert SHORT not in text


@pytest.mark.slow
def test_a_launch_keeps_no_secret_of_its_command_or_of_what_ranks_wrote(tmp_path):
    program = f"import sys; sys.exit('no access with {SECRET}, password={SHORT}')"
    command = ["bash", "-c", f'DB_PWD={SHORT} exec {sys.executable} -c "{program}"']
    done = process.run(
        [sys.executable, "-m", "ezpz.launch", "-n", "1", *command],
        {**process.minimal_env(tmp_path, "secrets"), "PYTHONPATH": SRC, "HF_TOKEN": SECRET},
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert f"no access with {SECRET}, password={SHORT}" in done.stderr  # what ranks write passes as it is
    kept = next((tmp_path / ".local/state/ezpz/launches").glob("*/run.json"))
    assert {name for name, _ in in_files(kept.parent, SECRET, SHORT)} <= {"rank-0.log"}  # the same words
    assert "DB_PWD=<redacted>" in json.loads(kept.read_text())["plan"]["line"]


def test_whatever_is_added_to_a_record_goes_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    text = f"failed with {SECRET} and --token {SHORT}"
    for fields in ({"notes": [text]}, {"launcher_words": text}):
        assert record.write(str(tmp_path), fields) == ""
        assert in_files(tmp_path, SECRET, SHORT) == [], fields
