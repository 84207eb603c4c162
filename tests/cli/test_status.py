"""`ezpz status`: jobs as squeue and qstat list them, launches by their records, in one table and as JSON."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ezpz
from cli.runs_on_disk import write_run
from ezpz.jobs.pbs_jobs import HANDLER as PBS
from ezpz.jobs.queued_jobs import my_jobs
from ezpz.jobs.slurm_jobs import HANDLER as SLURM
from lab import process
from lab.small_pbs import SmallPbs

SRC = str(Path(ezpz.__file__).parents[1])
pytestmark = pytest.mark.timeout(120)
NOTHING = "no job and no launch of yours waits, runs or ended within a day\n"
ISO, ASCTIME = "%Y-%m-%dT%H:%M:%S", "%a %b %d %H:%M:%S %Y"


def at(seconds, form=ISO):
    return time.strftime(form, time.localtime(time.time() + seconds))


def squeue_line(job, state, hosts, start, end, reason="None", name="train", **more):
    """A line of fields as `squeue --Format=JobArrayID:|,JobID:|,…` prints them."""
    told = {"number": job, "restarts": 0, "batch": 1, "host": "n01", "folder": "/nowhere", "output": "(null)", **more}
    about = (told["restarts"], told["batch"], told["host"], told["folder"], told["output"], name)
    return "|".join(map(str, (job, told["number"], state, hosts, start, end, "main", reason, *about, "")))


@pytest.fixture
def user(clean_env, tmp_path):
    """What a user has: `user.status(*words)`, `user.program(name, text)`, `user.launch(id, **fields)`."""

    class User:
        def __init__(self):
            self.bin, self.state = tmp_path / "bin", tmp_path / "state"
            self.env = {**clean_env, "PATH": f"{self.bin}:/usr/bin:/bin", "PYTHONPATH": SRC, "TMPDIR": str(tmp_path)}
            self.env |= {"XDG_STATE_HOME": str(self.state), "XDG_CACHE_HOME": str(tmp_path / "cache")}

        def program(self, name, text, code=0, error=""):
            """Put a program on PATH that prints a text, and counts how often it was asked."""
            (tmp_path / f"{name}.answer").write_text(text)
            script = f'#!/bin/sh\necho "$@" >> {tmp_path}/{name}.asked\ncat {tmp_path}/{name}.answer\n'
            script += f"printf %s {shlex.quote(error)} >&2\nexit {code}\n"
            (self.bin / name).write_text(script)
            (self.bin / name).chmod(0o755)

        def asked(self, name):
            return (tmp_path / f"{name}.asked").read_text().splitlines()

        def launch(self, launch, ago=100.0, **fields):
            begun = time.time() - ago
            name = time.strftime("%Y-%m-%d-%H%M%S", time.localtime(begun)) + f"-{launch[:8]}"
            folder = self.state / "ezpz" / "launches" / name
            folder.mkdir(parents=True)
            plan = {"hosts": ["n01", "n02"], "world_size": 4, "job_id": fields.pop("job", None)}
            plan["scheduler"] = fields.pop("scheduler", None)
            told = {"schema": 1, "launch_id": launch, "state": "running", "command": ["python3", "train.py"]}
            told |= {"started": begun, "host": "n01", "plan": plan, **fields}
            (folder / "run.json").write_text(json.dumps(told, indent=1))
            return folder

        def status(self, *words):
            done = process.run([sys.executable, "-m", "ezpz", "status", *words], self.env, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout) if "--json" in words else done.stdout

    (tmp_path / "bin").mkdir()
    # No scheduler of this machine is asked, whether it is installed or not.
    for name in ("squeue", "qstat"):
        User().program(name, "")
    return User()


def test_jobs_and_launches_are_one_table_of_80_columns(user, tmp_path):
    run = write_run(tmp_path / "runs" / "gpt", {"loss": [3.0, 2.5, 2.0]}, name="gpt", state="running")
    died = tmp_path / "slurm-11.out"
    died.write_text("loading modules\nModuleNotFoundError: No module named 'torch'\n\n")
    lines = [
        squeue_line("12", "RUNNING", 2, at(-600), at(3000)),
        squeue_line("13", "PENDING", 4, at(7200), "N/A", "Priority", name="a long name " * 9),
        squeue_line("11", "FAILED", 1, at(-400), at(-390), "NonZeroExitCode", output=str(died)),
    ]
    user.program("squeue", "\n".join(lines) + "\n")
    user.launch("5f3a90c2aabb", job="12", run_folder=str(run))
    user.launch("77aa0000", 300, state="failed", ended=time.time() - 200, cause={"text": "rank 1 failed; stopping all"})
    text = user.status()
    shown = text.splitlines()
    assert max(map(len, (shown[0], *shown[2:]))) <= 80, text
    assert re.fullmatch(r"Slurm was asked .*", shown[-2]), text
    assert shown[1].endswith("a long name " * 8 + "a long name"), text  # piped: nothing is cut
    assert shown[0].split() == ["JOB", "STATE", "HOSTS", "STEP", "LOSS", "TIME", "WHAT"]
    assert shown[1].startswith("13")
    assert "starts in 2.0 h" in shown[1]
    assert shown[2].strip() == "Priority"
    running = shown[3].split()
    assert running[:5] == ["12", "running", "2", "3", "2"]
    assert "50 min left" in shown[3]
    assert shown[4].strip().startswith("last row ")  # that of write_run is old
    assert shown[5].split()[:2] == ["11", "ended"]
    assert "ended before `launch`: FAILED NonZeroExitCode" in text
    whole = " ".join(text.split())
    assert f"output: {died}" in whole.replace(" ", "").replace("output:", "output: ") or str(died) in whole
    assert "its last line: ModuleNotFoundError: No module named 'torch'" in whole
    assert "rank 1 failed\n" in text


def test_the_same_as_json(user, tmp_path):
    lines = [squeue_line("13", "PENDING", 4, "N/A", "N/A", "Resources"), squeue_line("9", "RUNNING", 2, at(-90), "N/A")]
    user.program("squeue", "\n".join(lines))
    user.launch("77aa0000", job="9", host="n77", job_ends=time.time() + 500)
    found = user.status("--json")
    assert found["silent"] == []
    assert found["asked"].keys() == {"slurm", "pbs"}
    queued, running = found["rows"]
    assert (queued["job"], queued["state"], queued["starts"], queued["reason"]) == ("13", "queued", None, "Resources")
    assert (running["job"], running["launch_id"], running["host"]) == ("9", "77aa0000", "n77")
    assert running["state"] == "running"


@pytest.mark.slow
def test_the_scheduler_is_asked_once_in_half_a_minute(user, tmp_path):
    user.program("squeue", squeue_line("13", "PENDING", 4, "N/A", "N/A") + "\n")
    user.program("qstat", "")
    first = user.status("--json")
    for _ in range(3):
        assert user.status("--json") == first
    assert [len(user.asked(name)) for name in ("squeue", "qstat")] == [1, 1]
    assert user.asked("squeue")[0].startswith("--me --states=all ")
    assert re.fullmatch(r"-x -u \S+ -f -w", user.asked("qstat")[0])
    for path in (tmp_path / "cache" / "ezpz").glob("jobs-*.json"):
        known = json.loads(path.read_text())
        path.write_text(json.dumps({**known, "at": known["at"] - 31}))
    user.status()
    assert [len(user.asked(name)) for name in ("squeue", "qstat")] == [2, 2]


def test_what_did_not_answer_is_named_and_asked_again(user):
    (user.bin / "qstat").unlink()
    user.program("squeue", "", code=1, error="squeue: error: first\nUnable to contact slurm controller\n")
    failed = "squeue failed: Unable to contact slurm controller; its jobs are missing here\n"
    assert user.status() == f"{NOTHING}{failed}"
    user.launch("77aa0000")
    text = user.status()
    assert text.endswith(failed)
    assert "77aa0000" in text
    assert user.status("--json")["silent"] == ["squeue"]
    assert len(user.asked("squeue")) == 3


def test_a_command_that_fails_beside_the_scheduler_that_is_here_is_none(user):
    """Slurm comes with a qstat, which knows no options of PBS."""
    user.program("squeue", squeue_line("13", "PENDING", 4, "N/A", "N/A") + "\n")
    user.program("qstat", "Unknown option: x", code=255)
    found = user.status("--json")
    assert found["silent"] == []
    assert [row["job"] for row in found["rows"]] == ["13"]


@pytest.mark.parametrize("has_history", [True, False])
def test_jobs_of_pbs_are_found_by_a_question_that_pbs_takes(tmp_path, has_history):
    with SmallPbs(tmp_path) as pbs:
        if not has_history:
            pbs.keep_no_history()
        script = tmp_path / "job.pbs"
        script.write_text("#!/bin/bash\nsleep 60\n")
        running = pbs.submit(script)
        waiting = pbs.submit(script, after=running)
        process.wait_until(lambda: pbs.states()[running] == "R", 20, "a job that runs")
        environ = {"XDG_CACHE_HOME": str(tmp_path / "cache"), **pbs.env()}

        def run(line):
            if line[0] != "qstat":
                return None  # another scheduler of this machine
            done = subprocess.run(line, env=environ, capture_output=True, text=True, check=False)
            return None if done.returncode else done.stdout

        found = my_jobs(environ, "me", run)
        assert [(each.job, each.state, each.name) for each in found.jobs] == [
            (running, "running", "job"),
            (waiting, "queued", "job"),
        ]
        assert (found.silent, found.failed, found.asked.keys()) == ([], {}, {"pbs"})
        pbs.end(running, "qdel")


def test_without_anything_it_says_so_and_a_launch_whose_launcher_is_gone_is_not_running(user):
    assert re.fullmatch(rf"{NOTHING}Slurm was asked .*\nPBS was asked .*\n", user.status())
    user.launch("77aa0000", host=os.uname().nodename)
    user.launch("88aa0000", host="n77", job_ends=time.time() - 3600)
    states = {row["launch_id"]: (row["state"], row["cause"]) for row in user.status("--json")["rows"]}
    assert states["77aa0000"] == ("ended", "its launcher is gone and could not say why")
    assert states["88aa0000"] == ("ended", "its job's time is over, and it recorded no end")


FORGOT = "Slurm does not know its job, and it recorded no end"
SLURM_JOB = {"job": "9", "scheduler": "slurm"}
# What is known of a launch on n77 that recorded no end: its job, the age of its run's last row, what squeue says and
# with which code; then its state and the beginning of why.
RECORDED_RUNNING = [
    (SLURM_JOB, None, "", 0, ("ended", FORGOT)),
    (SLURM_JOB, 3600, "", 0, ("ended", f"{FORGOT}; its last row is 60 min old")),
    (SLURM_JOB, 5, "", 0, ("unknown", f"{FORGOT}; its last row is")),  # it may be of another cluster
    (SLURM_JOB, 3600, squeue_line("9", "RUNNING", 2, at(-90), "N/A"), 0, ("running", "")),
    (SLURM_JOB, None, squeue_line("9", "RUNNING", 2, at(3600), "N/A"), 0, ("ended", FORGOT)),  # it is another job now
    (SLURM_JOB, None, squeue_line("8_1", "RUNNING", 2, at(-90), "N/A", number="9"), 0, ("running", "")),
    (SLURM_JOB, None, "", 1, ("running", "")),  # no answer says nothing
    ({"job": "9.head", "scheduler": "pbs"}, None, "", 0, ("running", "")),  # qstat is not here
    ({"job": "9"}, None, "", 0, ("ended", FORGOT)),
    ({}, None, "", 0, ("running", "")),
    ({}, 60, "", 0, ("running", "")),
    ({}, 3600, "", 0, ("unknown", "it recorded no end; its last row is 60 min old; `ezpz stacks 77aa0000` asks it")),
]


def test_what_cannot_be_known_to_run_is_not_running(user, tmp_path, subtests):
    (user.bin / "qstat").unlink()
    for number, (job, age, told, code, (state, cause)) in enumerate(RECORDED_RUNNING):
        with subtests.test(f"{number} {job} {age} {told}"):
            more = dict(job)
            if age is not None:
                run = write_run(tmp_path / f"run-{number}", {}, state="running", launch={"EZPZ_LAUNCH_ID": "77aa0000"})
                (run / "metrics.jsonl").write_text(
                    json.dumps({"v": 1, "t": time.time() - age, "step": 1, "m": {}}) + "\n"
                )
                more["run_folder"] = str(run)
            folder = user.launch("77aa0000", host="n77", **more)
            user.program("squeue", told, code)
            for path in (tmp_path / "cache").glob("ezpz/jobs-*.json"):
                path.unlink()
            (row,) = [row for row in user.status("--json")["rows"] if row["launch_id"]]
            shutil.rmtree(folder)
            assert row["state"] == state
            assert row["cause"].startswith(cause)


def test_other_verbs_do_not_take_it_for_running_either(user, tmp_path):
    (user.bin / "qstat").unlink()
    folder = user.launch("77aa0000", host="n77", **SLURM_JOB)
    (folder / "rank-0.log").write_text("step 7\n")
    user.env["EZPZ_SSH"] = "/bin/false"

    def said(*words):
        done = process.run([sys.executable, "-m", "ezpz", *words], user.env, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert said("logs", "-f", "77aa0000") == "step 7\n"
    why = said("why", "77aa0000")
    assert why.startswith("lost: python3 train.py")
    assert "Slurm does not know its job 9" in why
    listed = said("kill")
    assert "launch 77aa0000 on n77 recorded no end, and Slurm does not know its job 9" in listed
    assert "on other hosts" not in listed


def test_a_launch_shows_its_own_step(user, tmp_path):
    """Its last run, and none of another launch in the same folder."""
    outputs = tmp_path / "outputs"
    mine, other = ({"launch": {"EZPZ_LAUNCH_ID": name}} for name in ("77aa0000", "88aa0000"))
    first = write_run(outputs / "a" / "2026-11-20-162001", {"loss": [1.0] * 3}, **mine)
    last = write_run(outputs / "b" / "2026-11-20-162002", {"loss": [4.0] * 6}, **mine)
    taken = write_run(outputs / "c" / "2026-11-20-162003", {"loss": [1.0] * 9}, **other)
    for number, folder in enumerate((first, last, taken)):
        for path in folder.iterdir():
            os.utime(path, (time.time() + number, time.time() + number))
    user.launch("77aa0000", host="n77", run_folder=str(first), cwd=str(tmp_path))
    user.launch("99aa0000", state="failed", ended=time.time() - 50, run_folder=str(taken), step=4)
    rows = {row["launch_id"]: row for row in user.status("--json")["rows"]}
    row = rows["77aa0000"]
    assert (row["run_folder"], row["step"], row["loss"]) == (str(last), 6, 4.0)
    row = rows["99aa0000"]
    assert (row["step"], row["loss"], row["name"]) == (4, None, "train.py")


def test_jobs_are_asked_for_again_when_something_has_changed(user, tmp_path):
    (user.bin / "qstat").unlink()
    user.program("squeue", squeue_line("13", "RUNNING", 4, at(-90), at(900)))
    user.status()
    assert "Slurm was asked " in user.status()
    assert len(user.asked("squeue")) == 1
    user.launch("77aa0000", ago=0.0, job="13", scheduler="slurm")  # which the answer cannot know of
    user.status()
    assert len(user.asked("squeue")) == 2
    for path in (tmp_path / "cache" / "ezpz").glob("jobs-*.json"):
        known = json.loads(path.read_text())
        known["jobs"][0]["end"] = time.time() - 1.0
        path.write_text(json.dumps(known))
    user.status()
    assert len(user.asked("squeue")) == 3
    (tmp_path / "job.slurm").write_text("#!/bin/bash\n#SBATCH -N 1\n")
    user.program("sbatch", "14\n")
    queue = "from ezpz.jobs.queued_jobs import submit, cancel; print(submit('job.slurm')); cancel('slurm', ['9'])"
    assert process.run([sys.executable, "-c", queue], user.env, cwd=tmp_path).stdout == "14\n"
    user.status()
    assert len(user.asked("squeue")) == 4


def test_a_running_launch_without_a_home_is_shown(user, tmp_path):
    folder = user.launch("77aa0000", host="n77")
    place = tmp_path / f"ezpz-{os.getuid()}" / "records"
    place.mkdir(parents=True)
    place.parent.chmod(0o700)
    folder.rename(place / folder.name)
    assert [row["launch_id"] for row in user.status("--json")["rows"]] == ["77aa0000"]
    user.env = {name: value for name, value in user.env.items() if name not in {"HOME", "XDG_STATE_HOME"}}
    assert [row["launch_id"] for row in user.status("--json")["rows"]] == ["77aa0000"]


@pytest.mark.slow
def test_500_runs_and_20_large_launches_cost_little(user, tmp_path):
    """At most 0.15 s of CPU on an idle machine, of which a bare Python takes 0.02."""
    for number in range(500):
        write_run(tmp_path / "outputs" / f"run-{number}", {"loss": [1.0] * 5})
    stages = {f"stage-{number}": {"by_rank": [1.25] * 4096} for number in range(10)}
    for number in range(100):
        fields = {"state": "finished", "job": str(number), "stages": stages, "exit_code": 0}
        run = str(tmp_path / "outputs" / f"run-{number}")
        folder = user.launch(f"{number:08d}", 1000 + 600 * number, **fields, run_folder=run)
        if number > 20:
            when = time.time() - 3600 * number
            os.utime(folder / "run.json", (when, when))
    lines = [squeue_line(str(number), "COMPLETED", 1, at(-1010 - 600 * number), at(-300)) for number in range(20)]
    user.program("squeue", "\n".join(lines) + "\n")

    def used(*line):
        before = os.times()
        subprocess.run([sys.executable, *line], env=user.env, cwd=tmp_path, check=True, stdout=-3, timeout=60)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    times = [(used("-c", "pass"), used("-m", "ezpz", "status")) for _ in range(5)]
    bare, status = (min(each) for each in zip(*times, strict=True))
    print(f"bare {bare:.3f} s, status {status:.3f} s")
    assert status < max(0.3, 15 * bare), times  # whatever else keeps the machine busy
    found = user.status("--json")["rows"]
    assert [row["step"] for row in found[-20:]] == [5] * 20  # each was looked into


def test_a_record_is_read_whatever_it_holds_of_its_ranks_and_left_out_where_it_is_torn(user):
    ranks = [{}, {"step": {"by_rank": [1.0, 2.0]}}, {"a": {"b": {"c": "\n },"}}}]
    cause = {"text": '"stages": {'}
    for number, stages in enumerate(ranks):
        user.launch(f"5f3a000{number}", stages=stages, state="failed", cause=cause, ended=time.time() - 50)
    user.launch("5f3a0003", state="failed", cause=cause, ended=time.time() - 50, stages=ranks[1])  # the last key
    torn = user.launch("5f3a0004", stages=ranks[1]) / "run.json"
    torn.write_text(torn.read_text()[:-9])
    rows = user.status("--json")["rows"]
    assert sorted(row["launch_id"] for row in rows) == [f"5f3a000{number}" for number in range(4)]
    assert {row["cause"] for row in rows} == {cause["text"]}


# What schedulers print


def test_squeue_is_read():
    text = "12_3|14|RUNNING|2|2026-11-20T19:21:32|2026-11-20T19:31:32|main|None|1|1|n01|/home/me|/home/me/o|a|b|\n"
    text += "13|13|PENDING|4|N/A|N/A|main|Resources|0|0|n/a|/home/me|/home/me/slurm-13.out|train|\nno such line\n"
    running, waiting = SLURM.read(text)
    assert (running.job, running.number, running.state, running.hosts) == ("12_3", "14", "running", 2)
    assert (running.name, running.restarts, running.end - running.start) == ("a|b", 1, 600)
    assert running.output == "/home/me/o"
    assert (waiting.state, waiting.start, waiting.reason, waiting.output) == ("queued", None, "Resources", "")


# What squeue tells of the file, and which file slurmd writes: of job 12, or task 3 of array 12, which is job 14.
OUTPUTS = [
    ("12", "/data/logs/%x-%j.txt", "/data/logs/train-12.txt"),
    ("12", "/data/%A.out", "/data/12.out"),
    ("12", "/data/%5j_%u_%N_%t%n%s.%%j", "/data/00012_me_n01_00batch.%j"),
    ("12", "o.%J", "/nowhere/o.12"),
    ("12", "/data/slurm-12.out", "/data/slurm-12.out"),
    ("12", "/data/\\%j", "/data/%j"),  # a backslash: nothing is a pattern
    ("12", "(null)", ""),
    ("12_3", "/data/%A_%a-%j.out", "/data/12_3-14.out"),
    ("12_3", "/data/slurm-14.out", "/data/slurm-12_3.out"),  # nothing was asked for
    ("12_[3-5]", "/data/%x-%a.out", ""),
    ("12_[3-5]", "/data/%x.out", "/data/train.out"),
]


def test_the_output_of_a_job_is_where_the_user_wants_it(subtests):
    for job, told, output in OUTPUTS:
        with subtests.test(f"{job} {told}"):
            number = "14" if "_" in job else job
            (found,) = SLURM.read(squeue_line(job, "FAILED", 1, at(-9), at(-5), number=number, output=told), "me")
            assert found.output == output


# As OpenPBS prints them: a line for each attribute, an empty one after each job.
QSTAT = """\
Job Id: 12.head
    Job_Name = train
    Job_Owner = me@login
    job_state = R
    Resource_List.nodect = 2
    Resource_List.walltime = 01:00:00
    stime = {began}
    Variable_List = PBS_O_HOME=/home/me,PBS_O_LANG=C = D

Job Id: 13.head
    Job_Owner = me@login
    comment = Not Running: no hosts
    estimated.start_time = {starts}
    job_state = Q
    queue = prod

Job Id: 14.head
    Job_Owner = you@login
    job_state = Q

Job Id: 11.head
    Exit_status = {code}
    Job_Owner = me@login
    Output_Path = login:/home/me/a
\t train.o11
    job_state = F
    mtime = {ended}

"""


def test_qstat_is_read():
    times = {"began": at(-60, ASCTIME), "starts": at(3600, ASCTIME), "ended": at(-90, ASCTIME), "code": 1}
    running, waiting, ended = PBS.read(QSTAT.format(**times), "me")
    assert (running.job, running.state, running.hosts, running.name) == ("12.head", "running", 2, "train")
    assert running.end == pytest.approx(time.time() + 3540, abs=60)
    assert (waiting.state, waiting.reason, waiting.queue) == ("queued", "Not Running: no hosts", "prod")
    assert waiting.start == pytest.approx(time.time() + 3600, abs=60)
    assert (ended.state, ended.exit_code, ended.output) == ("ended", 1, "/home/me/a train.o11")
    unknown = PBS.read(QSTAT.format(**{**times, "starts": "UNKNOWN", "code": -29}), "me")
    assert [(each.start, each.exit_code) for each in unknown[1:]] == [(None, None), (None, None)]
    assert unknown[2].state == "time limit"


def test_answers_that_are_none_are_no_jobs():
    table = "head: \n              Req'd\nJob ID          Username Queue\n1.head          me       workq\n"
    for text in ("", "no jobs", table, '{"Jobs": {"1": {}}}', "qstat: conflicting options.\n"):
        assert PBS.read(text, "me") == SLURM.read(text) == [], text


def test_a_cache_of_another_user_or_version_is_not_used(tmp_path, monkeypatch):
    environ = {"XDG_CACHE_HOME": str(tmp_path), "PATH": str(tmp_path)}
    (tmp_path / "squeue").write_text("#!/bin/sh\n")
    (tmp_path / "squeue").chmod(0o755)
    asked = []
    (tmp_path / "ezpz").mkdir()
    for content in ({"user": "you", "jobs": []}, {"user": "me", "jobs": [{"x": 1}]}):
        (tmp_path / "ezpz" / "jobs-slurm.json").write_text(json.dumps({"at": time.time(), **content}))
        assert my_jobs(environ, "me", lambda line: asked.append(line) or "").jobs == []
    assert len(asked) == 2
