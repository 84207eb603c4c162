"""No verb sends what others have written to a terminal as it is: no escape sequence, no mark of direction."""

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ezpz
from ezpz.jobs.running_launches import table
from ezpz.register import Launch

SRC = str(Path(ezpz.__file__).parents[1])
HOSTILE = "x\x1b]0;owned\x07\x1b[2J\x1b[31m\x1b[8m\x9b5m\u202eabc\u2066\ud800\r\x85"
IN_FOLDER = HOSTILE.replace("\ud800", "")
# Those that ezpz writes: colours, and what `watch` needs to draw in its place, which a pipe does not get.
OURS = re.compile(r"\x1b\[(0|[12](;3[1-6])?|3[1-6]|38;5;\d+)m")
STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def write_run(folder, loss, **facts):
    folder.mkdir(parents=True)
    metrics = {"loss": loss, f"loss/{HOSTILE}": 1.0, "text": HOSTILE}
    rows = [{"v": 1, "t": 1795188001.0 + step, "step": step, "m": metrics} for step in range(30)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = {"name": HOSTILE, "state": "failed", "cause": HOSTILE, "started": "2026-11-20T16:20:01+01:00", **facts}
    (folder / "run.json").write_text(json.dumps(told))
    return folder


@pytest.fixture
def runs(tmp_path):
    one = write_run(
        tmp_path / "runs" / f"a{IN_FOLDER}", 1.0, config={HOSTILE: HOSTILE, "note": HOSTILE, "list": [HOSTILE]}
    )
    two = write_run(
        tmp_path / "runs" / "b", 2.0, config={HOSTILE: "y", "note": HOSTILE + "z"}, host=HOSTILE, state=HOSTILE
    )
    return one, two


def ezpz_verb(folder, *words, color=False, **environ):
    command = [sys.executable, "-m", "ezpz", *map(os.fsencode, words)]
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": SRC, "COLUMNS": "100", **environ}
    env |= {"FORCE_COLOR": "1"} if color else {}
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, timeout=120, check=False)


def steering(done, *, color=False):
    """Return what a terminal would be steered by, of both streams."""
    found = []
    for data in (done.stdout, done.stderr):
        text = data.decode("utf-8", "surrogateescape")
        found += STEERS.findall(OURS.sub("", text) if color else text)
    return found


@pytest.mark.slow
def test_verbs_about_runs_are_not_steered(tmp_path, runs, subtests):
    one, two = map(str, runs)
    lines = {
        "compare": ["compare", one, two, "--no-picture"],
        "runs": ["runs", "runs"],
        "plot": ["plot", one],
        "list": ["plot", one, two, "--list"],
        "watch": ["watch", one, "--once"],
        "other": ["compare", two, one, "--metric", "text", "--no-picture"],
    }
    for (verb, words), color in itertools.product(lines.items(), (False, True)):
        with subtests.test(f"{verb}, {'colour' if color else 'plain'}"):
            done = ezpz_verb(tmp_path, *words, color=color, COLUMNS="400")  # so that no name is cut
            assert b"Traceback" not in done.stderr
            assert steering(done, color=color) == []
            said = done.stdout + done.stderr
            assert b"\\x1b]0;owned" in said or verb == "other"
            # Of colours only those that ezpz itself has put there: every one ends in its own line.
            for line in said.decode("utf-8", "replace").splitlines() if color else ():
                assert not re.search(r"owned\\x07\\x1b\[2J\x1b\[31m", line)


WRONG = (
    ["compare", f"no{IN_FOLDER}", "b"],
    ["runs", f"no{IN_FOLDER}"],
    ["plot", f"no{IN_FOLDER}"],
    ["watch", f"no{IN_FOLDER}", "--once"],
    ["report", f"no{IN_FOLDER}"],
    ["export", f"no{IN_FOLDER}"],
    ["kill", f"no{IN_FOLDER}"],
    ["sites", f"no{IN_FOLDER}"],
    ["where", f"--no{IN_FOLDER}"],
    [f"no{IN_FOLDER}"],
    ["launch", "--hosts", f"n{IN_FOLDER}", "true"],
    ["launch", "-n", f"n{IN_FOLDER}", "true"],
    ["launch", f"no{IN_FOLDER}"],
    ["launch", "--hostfile", f"no{IN_FOLDER}", "true"],
    ["simulate", "-n", "2", f"no{IN_FOLDER}"],
)


@pytest.mark.slow
def test_errors_are_not_steered(tmp_path, subtests):
    for words in WRONG:
        with subtests.test(ascii(words)):
            done = ezpz_verb(tmp_path, *words)
            assert done.returncode not in {0, 1}
            assert b"Traceback" not in done.stderr
            assert b"\\x1b]0;owned" in done.stderr
            assert steering(done) == []


@pytest.mark.slow
def test_what_a_launch_says_is_visible_and_what_a_rank_says_is_not_touched(tmp_path):
    script = "printf '\\033[31mred\\033[0m'; exit 3"
    done = ezpz_verb(tmp_path, "launch", "-n", "1", "--log-dir", f"logs{IN_FOLDER}", "sh", "-c", script)
    assert done.returncode == 3
    assert done.stdout == b"\x1b[31mred\x1b[0m"
    assert b"\\x1b]0;owned" in done.stderr
    assert STEERS.findall(done.stderr.decode()) == []


def test_a_plan_is_visible_and_means_the_same_command(tmp_path):
    words = ["-n", "1", "sh", "-c", "printf '%s' \"$0\"", IN_FOLDER]
    explained, planned = (ezpz_verb(tmp_path, "launch", option, *words) for option in ("--explain", "--dry-run"))
    for done in (explained, planned):
        assert done.returncode == 0
        assert steering(done) == []
    pasted = subprocess.run(["bash", "-c", planned.stdout], stdout=subprocess.PIPE, check=True).stdout
    assert pasted == IN_FOLDER.encode()


@pytest.mark.slow
def test_a_path_for_a_program_is_exact(tmp_path, runs):
    done = ezpz_verb(tmp_path, "export", str(runs[0]), "--csv")
    assert done.returncode == 0
    assert os.fsdecode(done.stdout) == f"{runs[0]}/run.csv\n"  # not the name in run.json, which is that of no file


@pytest.mark.slow
def test_an_export_stays_in_its_folder(tmp_path):
    folder = write_run(tmp_path / "runs" / "a", 1.0)
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**facts, "name": "../elsewhere"}))
    assert ezpz_verb(tmp_path, "export", str(folder)).returncode == 0
    assert (folder / "run.h5").exists()
    assert not (tmp_path / "runs" / "elsewhere.h5").exists()


def test_a_command_of_several_lines_is_one_line_of_the_table():
    launch = Launch("5f3a", command=("python3", "-c", f"a\n{IN_FOLDER}"), hosts=("n01",), ranks=2)
    text = table([launch])
    assert len(text.splitlines()) == 2
    assert STEERS.findall(text) == []
