"""`ezpz startup`: a real launch with a planted delay, tables over launches, logs, and what it cannot read."""

import json
import os
import sys

import pytest

STARTUP = [sys.executable, "-m", "ezpz", "startup"]
# No torch: the stages are those that setup_torch, wrap_model and History tell the agent of.
PROGRAM = """
import os, time
from ezpz.progress import heartbeat, stage
rank = int(os.environ["RANK"])
time.sleep(SECONDS if rank == 1 else 0.0)
stage("setup")
last = os.environ["GATE"]
open(f"{last}-{rank}", "w").close()
while not all(os.path.exists(f"{last}-{each}") for each in range(2)):
    time.sleep(0.005)
for name in ("met", "group", "model"):
    stage(name)
heartbeat(0)
heartbeat(0)  # the same step
time.sleep(0.3)
heartbeat(1)
"""


@pytest.fixture
def environ(clean_env, tmp_path):
    return {**clean_env, "XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path), "COLUMNS": "80"}


@pytest.fixture
def start(run_cli, environ, tmp_path):
    def run(seconds, *words):
        script = tmp_path / "program.py"
        script.write_text(PROGRAM.replace("SECONDS", "float(os.environ['DELAY'])"))
        gate = tmp_path / f"gate-{os.urandom(4).hex()}"
        here = {**environ, "GATE": str(gate), "DELAY": str(seconds)}
        done = run_cli([sys.executable, "-m", "ezpz.launch", "-n", "2", *words, sys.executable, str(script)], here, 60)
        assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.mark.slow
def test_a_planted_delay_is_named_within_a_tenth(start, run_cli, environ):
    start(0.0)
    start(4.0)
    done = run_cli([*STARTUP, "--json"], environ, 60)
    assert done.returncode == 0, done.stderr
    [launch] = json.loads(done.stdout)
    stages = {each["stage"]: each for each in launch["stages"]}
    assert list(stages) == [
        "process", "interpreter", "torch", "setup", "met", "group", "model", "step", "second_step",
    ]  # fmt: skip
    [delay] = launch["delays"]
    assert (delay["rank"], delay["others"]) == (1, 1)
    assert delay["waited"] == pytest.approx(4.0, rel=0.1, abs=0.4)
    assert stages["setup"]["rank"] == 1
    assert stages["second_step"]["min"] - stages["step"]["min"] >= 0.29
    assert launch["first_step_seconds"] == stages["step"]["max"] > 4.0

    text = run_cli(STARTUP, environ, 60).stdout
    assert f"\n{delay['text']}\n" in text
    assert "since this command's last good launch, " in text
    assert max(map(len, text.splitlines()[:-1])) <= 80  # the last line is a path
    table = run_cli([*STARTUP, "--last", "2"], environ, 60).stdout
    assert sum(line.startswith("20") for line in table.splitlines()) == 2
    assert max(map(len, table.splitlines()[:-1])) <= 80


def test_a_table_of_someone_else_is_read_with_its_lines(run_cli, environ, tmp_path):
    rows = "".join(f"| job{n} | {2**n} | 2023-10-31-23595{n} | 2023-11-01-00000{n} | 9 |\n" for n in range(4))
    (tmp_path / "table.md").write_text(f"| log | world_size | start | stop | dt |\n|--|--|--|--|--|\n{rows}")
    done = run_cli([*STARTUP, "table.md"], environ, 60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["job0", "1", "2023-10-31", "23:59:50", "10", "s", "3"]
    assert "4 rows of tables in table.md" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "no file or folder nothing (from the command line)"),
        (["text"], "no start in text (from the command line)"),
        ([], "recorded a stage; expected one of `launch`"),
        (["--last", "0"], "--last 0 (from the command line)"),
        (["--last", "2", "text"], "--last N is for this machine's launches"),
        (["run"], "names no launch"),
        (["record"], "holds no stages: no rank reached any"),
    ],
)
def test_what_tells_nothing_is_one_error(words, said, run_cli, environ, tmp_path):
    (tmp_path / "text").write_text("hello\n")
    for name, told in {"run": {"name": "train"}, "record": {"launch_id": "x", "stages": {}, "state": "failed"}}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps(told))
    done = run_cli([*STARTUP, *words], environ, 60, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
