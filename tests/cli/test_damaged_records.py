"""Records that somebody else has damaged or replaced: no verb hangs, none takes much memory, each error is one line.

Every verb that reads runs or launches meets every record as a FIFO, a device, a folder, a file that is too large, cut,
or holds JSON of another type. A verb runs in a fork of this process with limits on memory and CPU; one that hangs is
ended by an alarm.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import socket
import tempfile
from pathlib import Path

import pytest

from cli.in_fork import run_verb
from cli.runs_on_disk import write_run
from ezpz.checkpoint.manifest import NAME, Manifest
from ezpz.cli import main
from ezpz.files import read_bytes
from ezpz.records.launch_record import LaunchRecord
from ezpz.track.run_folder import RunFile, read_record
from lab.seed import of_the_day, some

MOST_LINES = 4  # of stderr: what is wrong, and what was left out for it

LAUNCH = {
    "schema": 1, "launch_id": "abcd1234", "state": "failed", "command": ["python3", "train.py"], "cwd": "/tmp",
    "host": "n01", "output": None, "started": 1795188000.0, "ended": 1795188100.0, "seconds": 100.0,
    "plan": {"hosts": ["n01", "n02"], "ranks_per_host": [1, 1], "world_size": 2, "flavour": "ssh", "program": None,
             "reason": "x", "mpi": "no", "line": "x", "scheduler": "slurm", "job_id": "12"},
    "stages": {name: {"ranks": 2, "min": at, "median": at, "max": at + 1.0, "slowest_host": "n02",
                      "by_rank": [at, at + 1.0]}
               for at, name in enumerate(("process", "interpreter", "setup", "met", "group", "step", "second_step"))},
    "silent": ["n03"], "lost": ["n02"], "blames": {"n01": "x"}, "step": 3, "began": True, "job_ends": 1795189000.0,
    "ends_within": 30.0, "asked_to_save": {"because": "x", "at": 1.0, "ends": True, "saved_at": 2.0, "step": 3},
    "verdict": "again", "exit_code": 1, "attempt": 1, "most_attempts": 2,
    "cause": {"text": "rank 1 exited with code 1; stopping", "rank": 1, "host": "n02", "pid": 7, "code": 1,
              "signal": None, "log": "rank-1.log", "words": 'Traceback (most recent call last)\n  File "t.py", line'
              " 3, in <module>\nValueError: x", "why": "x", "step": 3,
              "kernel": {"group": "/x", "oom_kill": [0, 1], "host_oom_kill": [0, 1], "limit": 1 << 30, "peak": 1},
              "room": [{"path": "/", "free": 1, "size": 2, "files": 3}]},
    "failures": [{"text": "rank 0 exited with code 2", "rank": 0, "host": "n01", "code": 2, "words": "x"}],
    "hang": {"summary": "2 ranks",
             "ranks": [{"rank": 0, "host": "n01", "pid": 7, "where": "x", "frames": [["f", "a.py", 1]]}]},
    "causes": [{"cause": "exit-code", "certainty": 2, "text": "x", "rank": 1, "host": "n02", "evidence": ["x"]}],
    "arrivals": {"source": "host", "seconds": 30.0, "windows": [{"t": 1.0, "s": 10.0, "groups": [
        {"group": "gloo:0", "rank": 1, "n": 20, "size": 4, "last": 0.9, "lag": 0.5, "step": 1.0, "wait": 0.4,
         "batches": [0.5, 0.51, 0.49, 0.5]}]} for _ in range(4)],
        "ranks": {"1": {"throttled": 0.5, "steal": 0.1, "faults": 20.0, "here": 0.5, "where": "x"}},
        "others": {"throttled": 0.1, "where": "y"}},
    "hardware": {"seconds": 10.0, "joules": 10.0, "hosts": {
        "n01": {"devices": {"0": {"clock": [1500, 1400, 1600], "given": True}}},
        "n02": {"devices": {"0": {"clock": [900, 800, 1000], "given": True}}}}},
    "run_folder": None, "notes": ["x"], "launcher_words": "x", "check": {"level": "x", "hosts": {}, "notes": ["x"]},
    "decision": "again", "because": "x",
    "attempts": [{"launch_id": "ffff0000", "attempt": 1, "state": "failed", "started": 1.0, "ended": 2.0,
                  "cause": {"text": "x"}, "decision": "again", "because": "x", "hosts": ["n01"]}],
    "chain": {"folder": "chain", "number": 1, "jobs": 3, "job": "12"},
}  # fmt: skip
COLLECTIVES = {
    "launch_id": "abcd1234",
    "ranks": [
        {"rank": rank, "at": "all_reduce", "stack": [{"file": "t.py", "line": 3, "name": "f"}],
         "entries": [{"seq": 3 + rank, "op": "all_reduce", "group": "0", "sizes": "[2]", "state": "started",
                      "line": "t.py:3", "created": 3.0, "started": 3.0, "completed": None, "peer": None}],
         "groups": [{"group": "0", "enqueued": 3, "started": 3, "completed": 2}], "step": 3, "silent": False}
        for rank in range(2)
    ],
}  # fmt: skip
RUN = {
    "process": {"host": "n01", "pid": 7, "birth": "1.5", "began": 1795188000.0},
    "attempt": 2, "argv": ["train.py", "--lr", "0.1"], "python": "3.11.2", "versions": {"torch": "2.13.0"},
    "host": "n01", "ranks": {"rank": 0, "world_size": 2, "local_world_size": 2}, "git_commit": "0" * 40,
    "launch": {"EZPZ_LAUNCH_ID": "abcd1234", "EZPZ_HOSTS": "n01,n02", "EZPZ_CHAIN": "chain"},
    "environment": {"modules": ["a/1"], "driver": {"nvidia": "1"}, "system": "x", "variables": {"A": "b"}},
    "config": {"lr": 0.1, "model": {"width": 64}}, "seconds": 100.0,
    "effective": {"stochastic": ["dropout"], "optimizer.groups.0.lr": 0.1, "model.parameters": 7},
    "timeline": {"history": 10.0, "first_step": 12.0, "setup": 3.0, "data": 4.0},
    "paths": {"journal": "metrics.jsonl"}, "problems": ["one"], "cause": "ValueError: x",
    "earlier": [{"state": "failed", "cause": "x", "started": "2026-11-23T00:00:00+00:00", "attempt": 1,
                 "launch": {"EZPZ_LAUNCH_ID": "abcd1234"}, "timeline": {"setup": 1.0}, "process": {"began": 1.0}}],
    "trackers": {"wandb": {"id": "x"}}, "hardware": {"joules": 10.0, "seconds": 5.0, "devices": 1},
    "speed": {"value": 3.0, "unit": "tok/s", "median": 3.0}, "findings": [{"kind": "x", "text": "y", "step": 3}],
}  # fmt: skip
HARDWARE = {"v": 1, "t": 1795188030.0, "s": 30.0, "host": "n01", "now": {"cpu": [1.0, 1.0, 1.0]},
            "devices": [{"id": "0", "name": "x", "given": True, "power": [1, 1, 1]}]}  # fmt: skip

# What each record is, and the verbs that read it; those without a word mean the newest launch, or list all.
RECORD = "state/ezpz/launches/2026-11-20-162001-abcd1234"
ONE_RUN = (
    ["why", "RUN"], ["startup", "RUN"], ["report", "RUN"], ["plot", "RUN", "--width", "60"],
    ["watch", "RUN", "--once"], ["open", "RUN"], ["export", "RUN", "--csv"], ["logs", "RUN"],
    ["compare", "RUN", "OTHER"],
    ["runs", "--goodput", "RUN"],
)  # fmt: skip
LISTS = (["runs"], ["runs", "--json"], ["status"], ["status", "--json"], ["stacks"], ["kill"])
LAUNCHES = (["why"], ["startup"], ["startup", "--last", "3"], ["logs"], ["why", "abcd"], ["logs", "12"])
NAMED = (
    ["why", "logs"],
    ["startup", "logs"],
    ["logs", "logs"],
    ["logs", "logs", "--rank", "0"],
    ["why", "logs/run.json"],
)
RECORDS = {
    "outputs/train/1/run.json": (*ONE_RUN, *LISTS, ["report", "outputs"]),
    "outputs/train/1/metrics.jsonl": (*ONE_RUN, *LISTS, ["report", "outputs"]),
    "outputs/train/1/metrics.columns": ONE_RUN,
    "outputs/train/1/hardware.jsonl": ONE_RUN,
    "outputs/train/1/arrivals.jsonl": ONE_RUN,
    "outputs/train/1/report.html": (["open", "RUN"], ["report", "RUN"]),
    f"{RECORD}/run.json": (*LAUNCHES, *LISTS, *ONE_RUN, ["checkpoint", "verify", "RUN"]),
    f"{RECORD}/collectives.json": (["why"], ["why", "RUN"]),
    f"{RECORD}/rank-0.log": (["logs"], ["why"]),
    "logs/run.json": NAMED,
    "logs/collectives.json": NAMED,
    "logs/rank-0.log": NAMED,
    "chain/chain.json": (["runs"], ["runs", "--goodput", "chain"], ["runs", "--json"]),
    "chain/jobs.json": (["runs"], ["runs", "--goodput", "chain"]),
    "chain/verdict": (["runs"], ["runs", "--goodput", "chain"]),
    "outputs/train/1/checkpoints/step-00000003/checkpoint.json": (["checkpoint", "verify", "RUN"], ["RESUME"]),
    "outputs/train/1/checkpoints/step-00000003/.metadata": (["checkpoint", "verify", "RUN"], ["RESUME"]),
    "tmp/ezpz-UID/records/2026-11-20-162001-bcde2345/run.json": (["stacks"], ["kill"], ["status"], ["logs"], ["why"]),
}


@pytest.fixture
def lab(tmp_path, monkeypatch, clean_env):
    """A folder with runs, launches, logs, a chain and a checkpoint, and ``lab(words)`` -> Ended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))  # what it has found once it does not look for again
    for name in list(os.environ):
        monkeypatch.delenv(name)
    more = {"XDG_STATE_HOME": str(tmp_path / "state"), "TMPDIR": str(tmp_path / "tmp"), "COLUMNS": "80"}
    for name, value in {**clean_env, **more, "PATH": "/nowhere"}.items():
        monkeypatch.setenv(name, value)
    make(tmp_path)
    return tmp_path


def make(root):
    """Write what all verbs find in order."""
    for name, more in (("train", RUN), ("other", {})):
        state = {"state": "failed"} if more else {}
        write_run(root / f"outputs/{name}/1", {"loss": [3.0, 2.0, 1.0], "dt": [0.1] * 3}, name=name, **state, **more)
    run = root / "outputs/train/1"
    (run / "hardware.jsonl").write_text(json.dumps(HARDWARE) + "\n")
    (run / "arrivals.jsonl").write_text("{}\n")
    (run / "metrics.columns").write_text("")
    (run / "report.html").write_text("x")
    for folder in (root / RECORD, root / "logs"):
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({**LAUNCH, "run_folder": str(run)}))
        (folder / "collectives.json").write_text(json.dumps(COLLECTIVES))
        (folder / "rank-0.log").write_text("last words\n")
    (root / "chain").mkdir()
    (root / "chain/chain.json").write_text(json.dumps({"jobs": 3, "ids": ["12"], "queued_at_once": True}))
    (root / "chain/jobs.json").write_text(json.dumps({"jobs": [{"job": "12", "run": str(run)}], "waiting": ["13"]}))
    (root / "chain/verdict").write_text("again\n")
    saved = run / "checkpoints/step-00000003"
    saved.mkdir(parents=True)
    (saved / ".metadata").write_bytes(b"x")
    manifest = Manifest(
        step=3, number=1, saved="2026-11-20T16:20:01+01:00", world_size=1, mesh={}, torch="2", ezpz="1", model={},
        optimizer=None, schedule="", state=[], own_objects=False, files={".metadata": 1},
        sha256={".metadata": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"},
    )  # fmt: skip
    (saved / NAME).write_bytes(manifest.to_json())
    kept = root / f"tmp/ezpz-{os.getuid()}/records/2026-11-20-162001-bcde2345"
    kept.mkdir(parents=True, mode=0o700)
    (root / f"tmp/ezpz-{os.getuid()}").chmod(0o700)
    older = {"launch_id": "bcde2345", "state": "running", "started": LAUNCH["started"] - 1.0}
    (kept / "run.json").write_text(json.dumps({**LAUNCH, **older}))


def _fifo(path):
    os.mkfifo(path)


def _socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's path may have some 100 characters
        made.bind(path.name)
        os.chdir(here)


def _sparse(path):
    with path.open("wb") as file:
        file.truncate(8 << 30)


DAMAGES = {
    "fifo": _fifo,
    "socket": _socket,
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "tty": lambda path: path.symlink_to("/dev/tty"),
    "folder": lambda path: path.mkdir(),
    "loop": lambda path: path.symlink_to(path.name),
    "sparse": _sparse,
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(b'{"schema": 1, "na'),
    "list": lambda path: path.write_bytes(b"[]"),
    "number": lambda path: path.write_bytes(b"3"),
    "text": lambda path: path.write_bytes(b'"x"'),
    "null": lambda path: path.write_bytes(b"null"),
    "deep": lambda path: path.write_bytes(b"[" * 100_000_000),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 100),
}
CASES = [
    (record, damage, tuple(words))
    for record, verbs in RECORDS.items()
    for damage in DAMAGES
    for words in verbs
    if (damage, record[-4:]) != ("sparse", ".log")  # a log is printed, however long it is
]


def damage_record(root, record, damage):
    path = root / record.replace("UID", str(os.getuid()))
    path.unlink()
    DAMAGES[damage](path)
    return path


def complaint(ended):
    """Return what is wrong with the end of a verb; empty where nothing is."""
    first = ended.err.splitlines()[:1]
    if ended.code < 0:
        return f"ended by {signal.Signals(-ended.code).name}, {first}"
    if "Traceback" in ended.err or ended.code not in {0, 1, 2, 125}:
        return f"code {ended.code}: {ended.err.splitlines()[-1:]}"
    if ended.code and not ended.err and not ended.out:
        return f"code {ended.code} without a word"
    if len(ended.err.splitlines()) > MOST_LINES:
        return f"{len(ended.err.splitlines())} lines of stderr, {first}"
    return ""


def _resume(_):
    """Look for what ``--resume auto`` takes up, as rank 0 does."""
    from ezpz.checkpoint.finding import newest

    print(newest("outputs"))
    return 0


def words_of(words):
    return [{"RUN": "outputs/train/1", "OTHER": "outputs/other/1"}.get(word, word) for word in words]


def complaints(root, cases):
    """Yield each of these cases whose verb has not ended as it must, and how it has."""
    for record, damage, words in cases:
        with tempfile.TemporaryDirectory(dir=root) as place:
            here = Path(place)
            make(here)
            damage_record(here, record, damage)
            os.chdir(here)
            os.environ.update(XDG_STATE_HOME=f"{here}/state", TMPDIR=f"{here}/tmp")
            tempfile.tempdir = os.environ["TMPDIR"]
            wrong = complaint(run_verb(words_of(words), _resume if "RESUME" in words else main))
            os.chdir(root)
            if wrong:
                yield f"{record} as {damage}, ezpz {' '.join(words)}: {wrong}"


# Each key of a record in turn holds something else.

_ODD = (None, True, 3, -1.5, 10**30, "x", "", [], [3], [None], ["x"], [{}], {}, {"x": 3}, {"x": {}})
MISTYPED = {
    "launch": (LAUNCH, (f"{RECORD}/run.json", "logs/run.json"), (
        ["why"], ["why", "--json"], ["why", "RUN"], ["startup"], ["startup", "--json"], ["logs"], ["logs", "logs"],
        ["status"], ["kill"], ["stacks"], ["runs", "--json"], ["runs", "--goodput", "RUN"],
        ["watch", "RUN", "--once"])),
    "collectives": (COLLECTIVES, (f"{RECORD}/collectives.json",), (["why"], ["why", "--json"])),
    "run": (RUN, ("outputs/train/1/run.json",), (*ONE_RUN, ["runs"], ["runs", "--json"], ["status"])),
    "hardware": (HARDWARE, ("outputs/train/1/hardware.jsonl",), (["report", "RUN"], ["watch", "RUN", "--once"])),
    "chain": ({"jobs": 3, "ids": ["12"], "queued_at_once": True}, ("chain/chain.json",), (["runs"],)),
    "jobs": ({"jobs": [{"job": "12", "run": "outputs/train/1"}], "waiting": ["13"]}, ("chain/jobs.json",),
             (["runs"], ["runs", "--goodput", "chain"])),
}  # fmt: skip


def places_in(value, path=()):
    """Yield the path of every key and index in a JSON value, outermost first."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*path, key)
        yield from places_in(each, (*path, key))


def mistyped():
    """Yield every record with one value replaced: its name, the path of the value, and what is there now."""
    for name, (sample, *_) in MISTYPED.items():
        for path in places_in(sample):
            for odd in _ODD:
                yield name, path, odd
            yield name, path, "absent"


def with_odd(sample, path, odd):
    """Return a record with something else in one place."""
    changed = node = copy.deepcopy(sample)
    for key in path[:-1]:
        node = node[key]
    if odd == "absent" and isinstance(node, dict):
        del node[path[-1]]
    else:
        node[path[-1]] = odd
    return changed


def verbs_on_mistyped(name, path, odd):
    """Yield how each verb, run in this process, has not ended as it must."""
    sample, places, verbs = MISTYPED[name]
    before = {place: Path(place).read_bytes() for place in places}
    for place in places:
        whole = json.loads(before[place])
        Path(place).write_text(json.dumps(with_odd({**whole, **sample}, path, odd)) + "\n")
    Path("outputs/train/1/report.html").unlink(missing_ok=True)
    for words in verbs:
        wrong = ended_here(words_of(words))
        if wrong:
            yield f"{name} with {odd!r} at {'.'.join(map(str, path))}, ezpz {' '.join(words)}: {wrong}"
    for place in places:
        Path(place).write_bytes(before[place])


def ended_here(words):
    """Return what is wrong with the end of a verb in this process; empty where nothing is."""
    import contextlib
    import io
    import traceback

    out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
    except SystemExit as left:
        code = left.code
    except Exception as error:  # noqa: BLE001  # of any kind
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:90]} ({Path(last.filename).name}:{last.lineno})"
    return (
        "" if code in {0, 1, 2, 125} and "Traceback" not in err.getvalue() else f"code {code}: {err.getvalue()[-200:]}"
    )


# The tests


def test_no_verb_hangs_over_a_damaged_record(lab):
    assert list(complaints(lab, some(of_the_day(), "damaged records", CASES, 6))) == []


@pytest.mark.dear
@pytest.mark.slow
def test_no_verb_hangs_over_any_damaged_record(lab):
    assert list(complaints(lab, CASES)) == []


def test_no_verb_breaks_over_a_field_of_another_type(lab):
    cases = some(of_the_day(), "mistyped records", mistyped(), 6)
    assert [each for case in cases for each in verbs_on_mistyped(*case)] == []


@pytest.mark.dear
@pytest.mark.slow
def test_no_verb_breaks_over_any_field_of_another_type(lab):
    cases = some(of_the_day(), "many mistyped records", mistyped(), 2000)
    assert [each for case in cases for each in verbs_on_mistyped(*case)] == []


SAID = (  # a damaged record that is named, or met in a list: what the verb says, and its exit code
    ("RUN/run.json", "fifo", ["report", "RUN"], 2, "ezpz: cannot read ", "run.json: it is a FIFO; expected a"),
    ("RUN/run.json", "zero", ["compare", "RUN", "OTHER"], 2, "ezpz: cannot read ", "it is a device; expected"),
    ("RUN/run.json", "sparse", ["plot", "RUN"], 2, "ezpz: cannot read ", "it has 8192 MiB; expected a record"),
    ("RUN/metrics.jsonl", "sparse", ["plot", "RUN"], 1, "ezpz: cannot read the journal ", "a line of over 64 MiB"),
    ("RUN/metrics.jsonl", "fifo", ["runs"], 0, "ezpz runs: left out: cannot read ", "it is a FIFO; expected"),
    ("RUN/run.json", "zero", ["runs"], 0, "ezpz runs: left out: cannot read ", "it is a device; expected"),
    ("logs/run.json", "fifo", ["why", "logs"], 2, "ezpz: cannot read logs/run.json: ", "it is a FIFO; expected a"),
    ("logs/rank-0.log", "fifo", ["logs", "logs"], 2, "ezpz: cannot read ", "rank-0.log: it is a FIFO; expected a"),
)  # fmt: skip


def test_what_is_no_file_is_named_in_one_line(lab, subtests):
    for record, damage, words, code, start, part in SAID:
        with subtests.test(f"{record} {damage} {words}"), tempfile.TemporaryDirectory(dir=lab) as place:
            here = Path(place)
            make(here)
            damage_record(here, record.replace("RUN", "outputs/train/1"), damage)
            os.chdir(here)
            ended = run_verb(words_of(words))
            os.chdir(lab)
            assert (ended.code, ended.err.count("\n")) == (code, 1), ended.err
            assert ended.err.startswith(start)
            assert part in ended.err
            assert ("other/1" in ended.out) == (words == ["runs"])


def test_a_run_goes_on_in_a_folder_whose_run_json_is_no_file(lab):
    damage_record(lab, "outputs/train/1/run.json", "fifo")
    facts = RunFile(lab / "outputs/train/1", "train", {}).facts
    assert facts["earlier"] == ["not read: it is a FIFO, and no regular file"]


def test_a_foreign_record_has_no_file_of_elsewhere_printed(lab, subtests):
    secret = lab / "secret.txt"
    secret.write_text("of somebody else\n")
    record = lab / "logs/run.json"
    for how in ("output", "log"):
        with subtests.test(how):
            (lab / "logs/rank-0.log").unlink()
            if how == "log":
                (lab / "logs/rank-0.log").symlink_to(secret)
            record.write_text(json.dumps({**LAUNCH, "output": str(secret)}))
            ended = run_verb(["logs", "logs"])
            assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
            assert "another folder; expected a file in that of the record" in ended.err
            (lab / "logs/rank-0.log").unlink(missing_ok=True)
            (lab / "logs/rank-0.log").write_text("")
    (lab / "logs/rank-0.log").unlink()
    (lab / "logs/job.out").write_text("of this job\n")
    record.write_text(json.dumps({**LAUNCH, "output": "job.out"}))
    assert run_verb(["logs", "logs"]).out == "of this job\n"
    # What the record of an own launch names is where the user had it written.
    (lab / RECORD / "run.json").write_text(json.dumps({**LAUNCH, "output": str(secret)}))
    assert run_verb(["logs"]).out == "of somebody else\n"


def test_a_record_that_fits_is_left_as_it_is(lab):
    wrong = []
    LaunchRecord.of(LAUNCH, wrong)
    assert wrong == []
    facts = read_record(lab / "outputs/train/1/run.json").raw
    assert {**facts, **RUN} == facts


def test_a_pipe_that_the_user_gives_is_read():
    """As of ``ezpz startup <(zcat log.gz)``."""
    read, write = os.pipe()
    os.write(write, b"a" * 100)
    os.close(write)
    assert read_bytes(f"/dev/fd/{read}") == b"a" * 100
    os.close(read)
