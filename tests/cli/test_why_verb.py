"""`ezpz why`, over records on disk and over real launches."""

import json
import sys

import pytest

WHY = [sys.executable, "-m", "ezpz", "why"]
LAUNCH = [sys.executable, "-m", "ezpz.launch", "-n", "2"]
FAILS = "import os, sys, time; os.environ['RANK'] == '1' and sys.exit(3); time.sleep(60)"


@pytest.fixture
def why(run_cli):
    return lambda *args: run_cli([*WHY, *map(str, args)])


def records(home):
    return sorted(home.glob("**/launches/*/run.json"))


def test_a_launch_is_explained_by_name_by_id_and_as_the_last_one(run_cli, why, home):
    failed = run_cli([*LAUNCH, sys.executable, "-c", FAILS])
    assert failed.returncode == 3
    assert failed.stderr.count("exited with code 3") == 1  # the engine adds nothing to that line
    (record,) = records(home)
    fields = json.loads(record.read_text())
    assert [cause["cause"] for cause in fields["causes"]] == ["exit-code"]
    texts = [why(*words).stdout for words in ((), (record.parent,), (record,), (fields["launch_id"][:6],))]
    assert texts[0].splitlines()[0].startswith("failed with 3, after ")
    assert "\nrank 1 exited with code 3\n  seen  rank 1 on host " in texts[0]
    assert texts == [texts[0]] * 4
    assert max(map(len, texts[0].splitlines())) <= 80
    told = json.loads(why("--json").stdout)
    assert (told["launch_id"], told["exit_code"], told["record"]) == (fields["launch_id"], 3, str(record))
    assert told["causes"] == fields["causes"]


@pytest.mark.slow
def test_of_a_good_end_nothing_stands_out(run_cli, why, home):
    done = run_cli([*LAUNCH, "true"])
    text = why().stdout
    assert (done.returncode, "nothing stands out" in text) == (0, True)
    assert text.startswith("finished with 0, after ")
    assert json.loads(records(home)[0].read_text())["causes"] == []


def test_what_is_not_known_is_not_guessed(why, home, tmp_path):
    record = tmp_path / "record" / "run.json"
    record.parent.mkdir()
    record.write_text(json.dumps({"launch_id": "abcd1234", "state": "failed", "exit_code": 1, "command": ["x"],
                                  "started": 1.0, "notes": ["the disk is full"], "step": 4}))  # fmt: skip
    text = why(record).stdout
    assert "I do not know why; this is what I saw\n" in text
    assert "  seen  the last step that a rank reported is 4\n  seen  the disk is full\n" in text
    record.write_text(json.dumps({"launch_id": None, "state": 7, "command": ["x"], "started": 1.0}))
    text = " ".join(why(record).stdout.split())
    assert text.startswith("state unknown: x (0 ranks, ")
    assert "id ?)" in text


NONE = ["nothing-here", "ab", "tmp"]


def test_what_is_no_launch_is_refused_in_one_line(why, tmp_path, subtests):
    (tmp_path / "tmp").mkdir(exist_ok=True)
    for word in NONE:
        with subtests.test(str(word)):
            done = why(word)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
            assert "(from the command line)" in done.stderr


def test_an_interrupted_run_without_a_launch_is_the_last_thing_that_ran_and_says_how_it_goes_on(why, tmp_path):
    run = tmp_path / "outputs" / "vit" / "2026-11-20-162001"
    (run / "checkpoints" / "step-00000040").mkdir(parents=True)
    (run / "metrics.jsonl").write_text('{"v":1,"t":1.0,"step":45,"m":{"iter":45,"loss":1.0}}\n')
    facts = {"name": "vit", "state": "stopped", "cause": "SIGINT (Ctrl-C)", "steps": 46, "findings": []}
    facts |= {"argv": ["/x/ezpz/examples/vit.py"], "started": "2026-11-20T16:20:01+00:00"}
    (run / "run.json").write_text(json.dumps(facts))
    text = why().stdout
    assert "\nYou pressed Ctrl-C at step 46\n" in text
    assert "step-00000040\n" in text
    assert "  try   the same command with --resume auto\n" in text


def test_without_any_launch_the_verb_says_where_it_looked(why):
    done = why()
    assert (done.returncode, "no launch in " in done.stderr) == (2, True)
