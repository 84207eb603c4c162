"""`ezpz startup`: a real launch with a planted delay, tables over launches, logs, and what it cannot read."""

import json
import os
import sys
from datetime import datetime, timedelta

import pytest
from test_widths import on_terminal

from lab.ssh import Site

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
for name in ("met", "group", "own", "model"):
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
        "process", "interpreter", "torch", "setup", "met", "group", "own", "model", "step", "second_step",
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


@pytest.mark.slow
def test_a_long_table_whose_differences_are_of_digits_has_every_row_right(run_cli, environ, tmp_path):
    """As people keep them by hand: HHMMSS subtracted as whole numbers, 119 rows, over midnights and ends of months."""
    head = "> |  ****  | **model_size** | **world_size** | **start** | **stop** | **t0** | **t1** | **dt** |"
    lines, right = ["# Times", "", head, "> |:--:|:--:|:--:|:--:|:--:|:--:|:--:|:--:|"], []
    begin = datetime(2024, 2, 28, 23, 58, 58)  # noqa: DTZ001  # as it is in such tables
    for number in range(119):
        seconds = 3 + number * 7 % 900
        end = begin + timedelta(seconds=seconds)
        t0, t1 = (int(f"{time:%H%M%S}") for time in (begin, end))
        name, world = f"job-{number}.log", 4 << number % 8
        lines.append(
            f"> |  `{name}`  |  GPT1T_1L  |  {world}  |  {begin:%Y-%m-%d-%H%M%S}  |  {end:%Y-%m-%d-%H%M%S}  |"
            f"  {t0}  |  {t1}  |  {t1 - t0}  |"
        )
        took = f"{seconds} s" + (f" (not {t1 - t0})" if t1 - t0 != seconds else "")
        right.append([name, str(world), *f"{begin:%Y-%m-%d %H:%M:%S}".split(), *took.split(), str(len(lines))])
        begin += timedelta(hours=7, minutes=11, seconds=13)
    (tmp_path / "times.md").write_text("\n".join(lines) + "\n")
    done = run_cli([*STARTUP, "times.md"], environ, 60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines() if line.startswith("job-")] == right
    wrong = sum("(not" in row for row in right)
    assert 100 < wrong < 119
    assert f"{wrong} of 119 differences in the file are not the seconds between its two times" in done.stdout
    [told] = json.loads(run_cli([*STARTUP, "--json", "times.md"], environ, 60, cwd=tmp_path).stdout)
    assert [row["seconds"] for row in told["starts"]] == [3 + number * 7 % 900 for number in range(119)]


@pytest.mark.slow
def test_the_median_of_two_starts_is_between_them_and_one_row_is_one_row(run_cli, environ, tmp_path):
    rows = ["| log | world_size | start | stop |", "|--|--|--|--|"]
    rows += ["| a | 8 | 2023-10-31-120000 | 2023-10-31-120054 |", "| b | 8 | 2023-10-31-120000 | 2023-10-31-120254 |"]
    for count, median, counted in ((2, "1 min 54 s", "2 rows of tables"), (1, "54 s", "1 row of tables")):
        (tmp_path / "table.md").write_text("\n".join(rows[: 2 + count]))
        done = run_cli([*STARTUP, "table.md"], environ, 60, cwd=tmp_path)
        by_world = next(line for line in done.stdout.splitlines() if line.split()[:2] == ["8", str(count)])
        assert [each.strip() for each in by_world.split("  ") if each.strip()][3] == median, done.stdout
        assert f"\n{counted} in table.md" in done.stdout


NOTHING = [
    (["nothing"], "no run or launch 'nothing' (from the command line)"),
    (["text"], "no start in text (from the command line)"),
    ([], "recorded a stage; expected one of `launch`"),
    (["--last", "0"], "--last 0 (from the command line)"),
    (["--last", "2", "text"], "--last N is for this machine's launches"),
    (["run"], "started without `launch`"),
    (["record"], "holds no stages: no rank reached any"),
]


def test_what_tells_nothing_is_one_error(in_process, environ, tmp_path, subtests):
    (tmp_path / "text").write_text("hello\n")
    for name, told in {"run": {"name": "train"}, "record": {"launch_id": "x", "stages": {}, "state": "failed"}}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps(told))
    for words, said in NOTHING:
        with subtests.test(str(words)):
            done = in_process(["startup", *words], environ)
            assert done.returncode == 2
            assert said in done.stderr
            assert done.stderr.count("\n") == 1


def large_record(folder, hosts):
    """The record of 4,096 ranks, of which 2405 imports torch for 30 s more."""
    times, before = {}, [0.0] * 4096
    for number, name in enumerate(
        ("process", "interpreter", "torch", "setup", "met", "group", "model", "data", "step")
    ):
        gate = name in {"process", "met", "group", "step"}
        begin = [max(before)] * 4096 if gate else before
        before = [when + number + 30.0 * (name == "setup" and rank == 2405) for rank, when in enumerate(begin)]
        ordered = sorted(before)
        times[name] = {"min": ordered[0], "median": ordered[2048], "max": ordered[-1], "by_rank": before}
    plan = {"hosts": hosts, "ranks_per_host": [8] * 512, "world_size": 4096}
    record = {"launch_id": "x", "command": ["python3", "train.py"], "started": 1.8e9, "plan": plan, "stages": times}
    (folder / "run.json").write_text(json.dumps(record))


HOST_NAMES = ["nid{:06}", "x3{:03}c0s13b0n0.hostmgmt.site.example", "10.0.{}.7"]


@pytest.mark.slow
def test_no_line_of_4096_ranks_is_wider_than_a_terminal(clean_env, tmp_path, subtests):
    for name in HOST_NAMES:
        with subtests.test(str(name)):
            hosts = [name.format(number) for number in range(512)]
            large_record(tmp_path, hosts)
            code, text = on_terminal(["startup", "run.json"], {**clean_env, "TERM": "xterm"}, tmp_path)
            assert code == 0, text
            lines = [line for line in text.splitlines() if not line.startswith("record: ")]  # a path stays whole
            assert max(map(len, lines)) <= 80, max(lines, key=len)
            assert len(lines) < 70
            said = " ".join(line.strip() for line in lines)
            assert f"33 s of imports and own code on {hosts[300]} (rank 2405) held up 511 hosts for 30 s" in said
            shown = hosts[300] if name.startswith("10") else hosts[300].partition(".")[0]
            assert f"  2405 on {shown}" in text  # the late host is in the table, and in the picture,
            assert f"\n{shown}  " in text
            assert "480 more hosts were not later than these" in text  # as one of 32


# On two hosts: rank 1 comes late to the rendezvous, and all wait; its first step is slow, and all wait again.
TWO_WAITS = """
import os, time
from ezpz.progress import heartbeat, stage
rank = int(os.environ["RANK"])
def gate(name):
    open(f"{name}-{rank}", "w").close()
    while not all(os.path.exists(f"{name}-{each}") for each in range(2)):
        time.sleep(0.005)
stage("setup")
gate("ready")
time.sleep(3.0 * rank)
gate("met")
for name in ("met", "group", "model", "data"):
    stage(name)
gate("data")
time.sleep(5.0 * rank)
gate("step")
heartbeat(0)
heartbeat(1)
"""


@pytest.mark.slow
def test_a_slow_rendezvous_and_a_slow_first_step_on_two_hosts_are_found(make_hosts, environ, run_cli, tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "program.py").write_text(TWO_WAITS)
    site = Site(make_hosts("head", "n01", "n02"), environ, folder)
    words = ("--flavour", "ssh", sys.executable, "program.py")
    done = site.launch(*words, hosts="n01:1\nn02:1\n", timeout=120)
    assert done.returncode == 0, done.stderr
    [launch] = json.loads(run_cli([*STARTUP, "--json"], environ, 60).stdout)
    took = {each["stage"]: each["took"] for each in launch["stages"]}
    assert launch["hosts"] == ["n01", "n02"]
    assert took["met"] == pytest.approx(3.0, rel=0.1)
    assert took["step"] == pytest.approx(5.0, rel=0.1)
    text = run_cli(STARTUP, environ, 60).stdout
    assert "\nlongest: first step, 5" in text or "\nlongest: first step, 4.9" in text  # 5 s
