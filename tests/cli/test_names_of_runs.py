"""Every verb that takes a run or a launch takes every name of it; `ezpz.track.named` finds which is meant."""

import json
import os
import subprocess
import time
from fnmatch import fnmatchcase

import pytest
from runs_on_disk import write_run

from ezpz import register
from ezpz.checkpoint.manifest import Manifest

HOST = os.uname().nodename
STAGES = {"process": 1.0, "interpreter": 2.0, "setup": 3.0, "step": 4.0}


@pytest.fixture
def world(home, tmp_path, monkeypatch):
    """Three runs, each of a launch in a job: gpt, train, which is the newest, and live, whose launcher runs here."""
    monkeypatch.chdir(tmp_path)
    started = []

    def make(name, day, launch, job, age, **more):
        folder = tmp_path / "outputs" / name / f"2026-11-{day}-162001"
        settings = {"config": {"lr": 0.1 * age}, "launch": {"EZPZ_LAUNCH_ID": launch}}
        write_run(folder, {"loss": [4.0, 3.5, float(age)]}, name=name, **settings)
        checkpoint = folder / "checkpoints" / "step-00000002"
        checkpoint.mkdir(parents=True)
        said = Manifest(
            *(2, 2, "2026-11-20T12:00:00+00:00", 1, {}, "2", "0.2.0", {}, None, "", [], False), files={}, sha256={}
        )
        (checkpoint / "checkpoint.json").write_bytes(said.to_json())
        for path in (folder / "metrics.jsonl", folder / "run.json"):
            os.utime(path, (1e9 - age, 1e9 - age))
        began = time.time() - 3600 - age
        record = home / ".local/state/ezpz/launches" / f"2026-11-{day}-161956-{launch}"
        record.mkdir(parents=True)
        (record / "rank-0.log").write_text(f"last words of {name}\n")
        times = {
            stage: dict.fromkeys(("min", "median", "max"), began + late) | {"by_rank": [began + late] * 2}
            for stage, late in STAGES.items()
        }
        plan = {"hosts": [HOST], "ranks_per_host": [2], "world_size": 2, "job_id": job, "scheduler": "pbs"}
        told = {"schema": 1, "launch_id": launch, "state": "finished", "exit_code": 0, "host": HOST, "seconds": 12.0}
        told |= {"started": began, "ended": began + 12, "command": ["python3", f"{name}.py"], "plan": plan}
        told |= {"stages": times, "run_folder": str(folder), **more}
        (record / "run.json").write_text(json.dumps(told))

    def start():
        """Begin the launch live, once more where it was ended."""
        child = subprocess.Popen(["sleep", "300"])
        started.append(child)
        process = {"pid": child.pid, "born": register._born(child.pid), "place": register._place(), "socket": ""}
        path = home / ".local/state/ezpz/launches/2026-11-18-161956-c0de1234/run.json"
        told = json.loads(path.read_text())
        path.write_text(json.dumps({**told, "launcher": process}))
        path.chmod(0o600)

    make("gpt", 20, "e7d40b19", "12.head", 2)
    make("train", 21, "6c19a0d3", "13.head", 1)
    make("live", 18, "c0de1234", "14.head", 3, state="running", ended=None, exit_code=None)
    yield start
    for child in started:
        child.kill()
        child.wait()


def names_of(name, day, launch, job, start):
    """Return every kind of name that a run has, and its launch."""
    stamp = f"2026-11-{day}-162001"
    record = f"2026-11-{day}-161956-{launch}"
    return {
        "run folder": f"outputs/{name}/{stamp}",
        "a file in it": f"outputs/{name}/{stamp}/metrics.jsonl",
        "a folder of runs": f"outputs/{name}",
        "as `ezpz runs` prints it": f"{name}/{stamp}",
        "its last part": stamp,
        "name of the run": name,
        "id": launch,
        "record's folder": f"home/.local/state/ezpz/launches/{record}",
        "record's name": record,
        "job": job,
        "job's number": job.partition(".")[0],
        "beginning of the run": f"{name}/2026-11",
        "beginning of its last part": stamp[:10],
        "beginning of the id": launch[:4],
        **({"beginning of the name": start} if start else {}),
    }


GPT = names_of("gpt", 20, "e7d40b19", "12.head", "")
LIVE = names_of("live", 18, "c0de1234", "14.head", "")
RUNS = "{here}/outputs"
# verb: its words, where {} is the name; then code and first line for gpt, for `latest`, and without a name
TABLE = {
    "why": (
        ("why", "{}"),
        (0, "finished with 0, after 12 s: python3 gpt.py (2 ranks, *"),
        (0, "*python3 train.py*"),
        0,
    ),
    "status": (("status", "{}", "--json"), (0, '*"launch_id": "e7d40b19"*'), (0, "*6c19a0d3*"), 0),
    "compare": (
        ("compare", "{}"),
        (1, f"ezpz compare: A is {RUNS}/gpt/2026-11-20-162001, B is {RUNS}/train/2026-11-21-162001"),
        (1, f"ezpz compare: A is {RUNS}/train/2026-11-21-162001, B is {RUNS}/gpt/2026-11-20-162001"),
        1,
    ),
    "report": (("report", "{}"), (0, f"{RUNS}/gpt/2026-11-20-162001/report.html"), (0, "*/train/*.html"), 0),
    "open": (("open", "--path", "{}"), (0, f"{RUNS}/gpt/2026-11-20-162001/report.html"), (0, "*/train/*.html"), 0),
    "plot": (("plot", "--list", "{}"), (0, "gpt*"), (0, "train*"), 0),
    "watch": (("watch", "--once", "{}"), (0, "* step 2 loss=2 *"), (0, "* step 2 loss=1 *"), 0),
    "export": (("export", "--csv", "{}"), (0, f"{RUNS}/gpt/2026-11-20-162001/gpt.csv"), (0, "*/train.csv"), 0),
    "goodput": (("runs", "--goodput", "{}"), (0, "gpt: 1 attempt*"), (0, "train: 1 attempt*"), 0),
    "startup": (("startup", "{}"), (0, "python3 gpt.py"), (0, "python3 train.py"), 0),
    "logs": (("logs", "{}"), (0, "last words of gpt"), (0, "last words of train"), 0),
    "checkpoint": (
        ("checkpoint", "verify", "{}"),
        (0, f"no digests {RUNS}/gpt/2026-11-20-162001/checkpoints/step-00000002: *"),
        (0, "*/train/*"),
        0,
    ),
    "kill": (("kill", "{}"), (2, "ezpz: launch e7d40b19 does not run ('{name}' from*"), None, None),
    "stacks": (("stacks", "{}"), (2, "ezpz: launch e7d40b19 does not run ('{name}' from*"), None, None),
}


def first_line(done):
    return (done.stderr + done.stdout).replace("\n ", " ").partition("\n")[0]


def check(done, expected, name, here, case):
    code, line = expected
    pattern = line.replace("{here}", str(here)).replace("{name}", name)
    assert done.returncode == code, (case, done)
    said = " ".join(done.stdout.split()) if done.stdout.startswith("{") else first_line(done)
    assert fnmatchcase(said, pattern), (case, said, pattern)


def test_every_verb_takes_every_name(world, in_process, tmp_path, subtests):
    world()
    for verb, (words, of_gpt, of_latest, without) in TABLE.items():
        for kind, name in GPT.items():
            with subtests.test(f"{verb} {kind}"):
                check(in_process([word.replace("{}", name) for word in words]), of_gpt, name, tmp_path, kind)
        with subtests.test(f"{verb} latest"):
            if of_latest:
                check(in_process([word.replace("{}", "latest") for word in words]), of_latest, "", tmp_path, "latest")
                done = in_process([word for word in words if word != "{}"])
                assert done.returncode == without
                if verb not in {"status", "compare"}:
                    check(done, of_latest, "", tmp_path, "nothing")


UNKNOWN = "ezpz: no run or launch 'gptt' (from the command line): *Did you mean gpt? `ezpz runs` lists runs*"
SEVERAL = "ezpz: '2026-11' means 3 runs (from the command line): *gpt/2026-11-20-162001*; expected one. Type one of *"


def test_what_names_nothing_or_several_is_one_error_of_all_verbs(world, in_process, tmp_path, subtests):
    world()
    for verb, (words, *_) in TABLE.items():
        if verb in {"plot", "watch"}:  # what is no run is a metric
            continue
        for name, said in (("gptt", UNKNOWN), ("2026-11", SEVERAL)):
            with subtests.test(f"{verb} {name}"):
                done = in_process([word.replace("{}", name) for word in words])
                assert done.returncode == 2
                last = done.stderr.splitlines()[-1]
                assert fnmatchcase(last, said), last
                assert done.stdout == ""


@pytest.fixture
def squeue(tmp_path):
    """Of job 5f3a's neighbours: 1234, which waits, and 12, which began now and is another one than 12.head was."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    lines = [f"1234|1234|PENDING|1|N/A|N/A|main|Priority|0|1|n/a|/me|{tmp_path}/later.out|train|"]
    lines += [f"12|12|RUNNING|1|{now}|N/A|main|None|0|1|n01|/me|{tmp_path}/job-12.out|train|"]
    lines += [f"40_3|41|RUNNING|1|{now}|N/A|main|None|1|1|n01|/me|{tmp_path}/o|train|"]
    (bin_folder / "squeue").write_text("#!/bin/sh\nprintf '%s\\n' '" + "' '".join(lines) + "'\n")
    (bin_folder / "squeue").chmod(0o755)
    return {"PATH": f"{bin_folder}:/bin", "XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_a_job_goes_before_what_its_number_begins_and_before_an_older_job(
    world, squeue, home, in_process, tmp_path, subtests
):
    world()
    for launch, state in (("1234aaaa", "finished"), ("1234bbbb/cccc", "running")):
        record = home / f".local/state/ezpz/launches/2026-11-19-161956-{launch[:8]}"
        record.mkdir()
        (record / "run.json").write_text(json.dumps({"launch_id": launch, "state": state, "started": 1.0}))
    write_run(tmp_path / "outputs/x/1234-1", {"loss": [1.0]}, name="x")
    for verb, (words, *_) in TABLE.items():
        for name, said in (
            ("1234", "*ezpz: job 1234 (queued) has no launch ('1234' from the command line); expected one in which*"),
            ("12", "*ezpz: job 12 (running) has no launch ('12' from the command line); expected one in which*"),
        ):
            with subtests.test(f"{verb} {name}"):
                done = in_process([word.replace("{}", name) for word in words], squeue)
                if verb == "status":
                    assert f'"job": "{name}"' in done.stdout
                elif verb == "logs":
                    where = tmp_path / ("later.out" if name == "1234" else "job-12.out")
                    assert (done.returncode, done.stdout) == (2, "")
                    assert f"no file {where} on {HOST}" in done.stderr
                else:
                    assert (done.returncode, done.stdout) == (2, "")
                    assert fnmatchcase(done.stderr, said), done.stderr
    (tmp_path / "job-12.out").write_text("loading modules\n")
    assert in_process(["logs", "12"], squeue).stdout == "loading modules\n"
    assert "`scancel 1234` cancels it." in in_process(["kill", "1234"], squeue).stderr


def test_a_task_of_an_array_is_called_as_its_scheduler_calls_it(world, squeue, home, in_process):
    path = home / ".local/state/ezpz/launches/2026-11-20-161956-e7d40b19/run.json"
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "plan": {**told["plan"], "job_id": "41"}}))
    for name in ("40_3", "41"):
        assert in_process(["logs", name], squeue).stdout == "last words of gpt\n"


def test_compare_alone_takes_the_last_two_runs(world, in_process, tmp_path):
    done = in_process(["compare"])
    here = tmp_path / "outputs"
    said = f"ezpz compare: A is {here}/gpt/2026-11-20-162001, B is {here}/train/2026-11-21-162001\n"
    assert (done.returncode, done.stderr) == (1, said)
    done = in_process(["compare", "--json", "train"])
    said = f"ezpz compare: A is {here}/train/2026-11-21-162001, B is {here}/gpt/2026-11-20-162001\n"
    assert (done.returncode, done.stderr) == (1, said)
    assert [run["name"] for run in json.loads(done.stdout)["runs"].values()] == ["train", "gpt"]


NOTHING = "ezpz: no run here yet (the default): *; expected one that ezpz.History recorded. Make one with *"


def test_without_a_run_every_verb_of_runs_says_so(in_process, tmp_path, subtests):
    for verb in ("open", "report", "plot", "watch", "export", "compare", "runs --goodput", "checkpoint verify"):
        for is_made in (False, True):
            if is_made and verb == "watch":  # which waits for one
                continue
            with subtests.test(f"{verb} {is_made}"):
                if is_made:
                    (tmp_path / "outputs").mkdir(exist_ok=True)
                done = in_process(verb.split())
                assert (done.returncode, done.stdout) == (2, "")
                assert fnmatchcase(done.stderr, f"{NOTHING}\n"), done.stderr
        if (tmp_path / "outputs").is_dir():
            (tmp_path / "outputs").rmdir()


def test_a_launch_of_several_runs_and_one_of_none_are_told(world, in_process, tmp_path):
    write_run(tmp_path / "outputs/gpt/second", {"loss": [1.0]}, name="gpt", launch={"EZPZ_LAUNCH_ID": "e7d40b19"})
    done = in_process(["report", "12"])
    assert done.returncode == 2
    assert fnmatchcase(done.stderr, "ezpz: '12' means 2 runs of launch e7d40b19 (from the command line): */gpt/*\n")
    record = tmp_path / "home/.local/state/ezpz/launches/2026-11-22-101010-abcd0000"
    record.mkdir()
    (record / "run.json").write_text(json.dumps({"launch_id": "abcd0000", "state": "finished", "started": 1.0}))
    done = in_process(["report", "abcd"])
    assert done.returncode == 2
    assert done.stderr.startswith("ezpz: no run of launch abcd0000 is known ('abcd' from the command line)")


def test_a_metric_goes_before_the_name_of_a_run(world, in_process, tmp_path):
    write_run(tmp_path / "outputs/loss/first", {"x": [1.0]}, name="loss")
    os.utime(tmp_path / "outputs/loss/first/run.json", (1.0, 1.0))
    os.utime(tmp_path / "outputs/loss/first/metrics.jsonl", (1.0, 1.0))
    assert in_process(["plot", "--list", "loss"]).stdout.startswith("train")
    assert in_process(["plot", "--list", "loss/first"]).stdout.startswith("loss")
    write_run(tmp_path / "outputs/accuracy/first", {"y": [1.0]}, name="accuracy")
    write_run(tmp_path / "outputs/a/first", {"accu": [1.0]}, name="a")
    os.utime(tmp_path / "outputs/a/first/run.json", (1.0, 1.0))
    os.utime(tmp_path / "outputs/a/first/metrics.jsonl", (1.0, 1.0))
    assert "accuracy:" not in in_process(["plot", "--list", "outputs/a", "accu"]).stdout


def test_a_running_launch_is_asked_or_ended_by_every_name(world, in_process, subtests):
    for kind, name in {**LIVE, "latest": "latest"}.items():
        with subtests.test(kind):
            world()
            done = in_process(["stacks", name])
            assert done.returncode == 125
            assert first_line(done).startswith(f"ezpz: launch c0de1234 on {HOST}, pid ")
            done = in_process(["kill", name])
            assert (done.returncode, first_line(done)) == (0, f"launch c0de1234: nothing is left on {HOST}")


def test_no_launch_is_ended_by_the_name_of_another(world, in_process, home, tmp_path, subtests):
    world()
    records, runs = home / ".local/state/ezpz/launches", tmp_path / "outputs"
    live = json.loads((records / "2026-11-18-161956-c0de1234/run.json").read_text())
    second = records / "2026-11-18-161957-beef5678/run.json"
    second.parent.mkdir()
    second.write_text(json.dumps({**live, "launch_id": "beef5678", "run_folder": ""}))
    second.chmod(0o600)
    write_run(runs / "live/second", {"loss": [1.0]}, name="live", launch={"EZPZ_LAUNCH_ID": "beef5678"})
    write_run(runs / "c0de/first", {"loss": [1.0]}, name="c0de", launch={"EZPZ_LAUNCH_ID": "e7d40b19"})
    several = "ezpz: '{name}' means 2 launches (from the command line): *; expected one.*"
    for verb in ("kill", "stacks"):
        for name in ("live", "outputs/live", "outputs", "live/", "c0de"):
            with subtests.test(f"{verb} {name}"):
                done = in_process([verb, name])
                line = "ezpz: launch e7d40b19 does not run ('c0de' from*" if name == "c0de" else several
                check(done, (2, line), name, tmp_path, name)


def test_what_is_left_on_other_hosts_is_ended_by_every_name(world, in_process, monkeypatch, subtests):
    asked = []
    monkeypatch.setattr("ezpz.jobs.kill._on_others", lambda ids, _: asked.extend(ids) or ())
    for kind, name in GPT.items():
        with subtests.test(kind):
            done = in_process(["kill", "--hosts", "n01", name])
            assert (done.returncode, asked.pop()) == (0, "e7d40b19")


def test_nothing_is_left_is_said_of_launches_that_there_were(world, squeue, in_process, monkeypatch, subtests):
    """A word that is mistyped is an error that says which launches and jobs there are."""
    world()
    there = ("Launches that run: c0de1234 (job 14.head).", "Jobs: 1234 (queued), 12 (running), 40_3 (running).")
    processes = []
    monkeypatch.setattr("ezpz.jobs.kill._on_others", lambda ids, _: [(ids[0], "n01", [], bool(processes))])
    for words in (["gptt"], ["--hosts", "n01", "gptt"], ["--job", "train-13"], ["--hosts", "n01", "beef000012345678"]):
        with subtests.test(str(words)):
            done = in_process(["kill", *words], squeue)
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr.startswith(f"ezpz: no run or launch '{words[-1]}' (from the command line)")
            assert all(names in done.stderr for names in there), done.stderr
    processes.append("of a launch whose record is elsewhere")
    done = in_process(["kill", "--hosts", "n01", "beef000012345678"], squeue)
    assert (done.returncode, done.stdout) == (0, f"launch beef000012345678: nothing is left on n01, {HOST}\n")
