"""Make a run of each kind that a user may come back to: ended, killed, interrupted, running, of others, damaged."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import ezpz
from lab import process

SRC = str(Path(ezpz.__file__).parents[1])
RECORDED = Path(__file__).parents[1] / "view" / "recorded"
STEPS = 10
_AGO = 7200  # seconds
# Rank 0 records; it, or the launch, meets what makes the kind, and rank 1 waits for that.
TRAIN = f"""
import os, signal, sys, time

import ezpz

how, rank = sys.argv[1], int(os.environ.get("RANK", 0))
while rank:
    time.sleep(0.1)
    if how == "ends" and os.path.exists("done"):
        sys.exit()
if how != "records nothing":
    history = ezpz.History("train", config={{"lr": 0.1}})
    with history:
        for step in range({STEPS}):
            history.update({{"train/loss": 1 / (step + 1)}}, step=step)
        if how == "fails":
            raise ValueError("my bug")
        if how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "waits":
            open("up", "w").close()
            time.sleep(600)
open("done", "w").close()
"""
# As `squeue --Format=JobArrayID:|,JobID:|,…` prints jobs.
SQUEUE = """\
4711|4711|PENDING|2|{later}|N/A|main|Priority|0|1||{folder}|{folder}/slurm-4711.out|train|
4710|4710|FAILED|1|{earlier}|{earlier}|main|NonZeroExitCode|0|1|n01|{folder}|{folder}/slurm-4710.out|train|
"""


class Kind:
    """A kind of run, in a folder of its own where it is the newest, with a home of its own.

    Attributes:
        name: Its name, which is that of its folder.
        title: What happened, in words.
        folder: Where its user types.
        home: Their home.
        env: Their environment.
        run: The run folder, or the folder or file that another tool wrote; None where there is none.
        launch: The id of its launch, or its job; empty without one.
        state: What became of it; empty where nobody can know.
        child: The process that was started; None where there is none.
    """

    def __init__(self, root, tag, name, title, state=""):
        self.name, self.title, self.state = name, title, state
        self.folder = root / name
        self.folder.mkdir(parents=True)
        home = root / "homes" / name
        home.mkdir(parents=True)
        self.bin = root / "bins" / name
        self.bin.mkdir(parents=True)
        for program in ("squeue", "qstat"):  # no scheduler of this machine is asked
            self.program(program, "")
        env = process.minimal_env(home, tag, self.bin, Path(sys.executable).parent)
        self.env = {
            **env,
            "PYTHONPATH": SRC,
            "COLUMNS": "300",  # no line is wrapped where a number has more letters
            "TMPDIR": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "TORCH_DEVICE": "cpu",
        }
        self.home, self.run, self.launch, self.child = home, None, "", None

    def program(self, name, text):
        """Put a program on PATH that prints a text."""
        (self.bin / f"{name}.txt").write_text(text)
        (self.bin / name).write_text(f"#!/bin/sh\ncat '{self.bin / name}.txt'\n")
        (self.bin / name).chmod(0o755)

    def start(self, how, *, ranks=2):
        """Start the training, under `launch` or, with no ranks, alone."""
        (self.folder / "train.py").write_text(TRAIN)
        line = ["python3", "train.py", how]
        launch = [sys.executable, "-m", "ezpz.launch", "--flavour", "local", "-n", str(ranks)] if ranks else []
        with (self.folder / "output.txt").open("w") as output:
            self.child = subprocess.Popen(
                [*launch, *line], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        return self

    def wait(self, code):
        """Wait for its end, and find its run and launch."""
        found = self.child.wait(120)
        assert found == code, (self.name, found, (self.folder / "output.txt").read_text())
        return self.find()

    def up(self):
        """Wait until it has recorded all steps."""
        process.wait_until((self.folder / "up").exists, 60, f"the training of {self.name}")
        return self.find()

    def find(self):
        """Note its run folder and its launch."""
        self.run = next(iter(sorted(self.folder.glob("outputs/train/*"))), None)
        record = next(iter(self.home.glob(".local/state/ezpz/launches/*/run.json")), None)
        self.launch = json.loads(record.read_text())["launch_id"] if record else ""
        return self


def make_kinds(root, tag, kinds):
    """Make all kinds of runs, and put them by name into a dict; those that run do so until `end_all`.

    Args:
        root: The folder below which all is made.
        tag: The value of EZPZ_TEST_TAG in every process.
        kinds: The dict.
    """

    def kind(name, title, state=""):
        kinds[name] = Kind(root, tag, name, title, state)
        return kinds[name]

    kind("finished", "launched, and ended well", "finished").start("ends")
    kind("failed", "launched; rank 0 raised an exception", "failed").start("fails")
    kind("rank-killed", "launched; rank 0 was killed by SIGKILL", "died").start("is killed")
    kind("interrupted", "launched, and ended by Ctrl-C", "stopped").start("waits")
    kind("launch-killed", "launched; all of its processes were killed by SIGKILL", "died").start("waits")
    kind("running", "launched, and still running", "running").start("waits")
    kind("without-history", "launched; the program records no run", "").start("records nothing", ranks=1)
    kind("alone", "started without `launch`, and ended well", "finished").start("ends", ranks=0)
    kind("alone-failed", "started without `launch`; an exception ended it", "failed").start("fails", ranks=0)
    kind("alone-killed", "started without `launch`, and killed by SIGKILL", "died").start("is killed", ranks=0)
    kinds["interrupted"].up().child.send_signal(signal.SIGINT)
    kill_whole(kinds["launch-killed"].up())
    kinds["running"].up()
    codes = {"failed": 1, "alone-failed": 1, "rank-killed": 137, "interrupted": 130}
    codes |= {"launch-killed": -signal.SIGKILL, "alone-killed": -signal.SIGKILL}
    for name, made in kinds.items():
        if name != "running":
            made.wait(codes.get(name, 0))
    _foreign(kind)
    _damaged(kind, kinds["finished"])
    _elsewhere(kind, kinds)
    kind("empty", "nothing: an empty folder")
    job = kind("queued-job", "jobs of a scheduler, one that waits and one that ended before `launch`", "")
    when = {word: time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + seconds))
            for word, seconds in (("later", 7200), ("earlier", -400))}  # fmt: skip
    job.program("squeue", SQUEUE.format(folder=job.folder, **when))
    job.launch = "4711"


def kill_whole(kind):
    """Kill a launch and all of its processes at once, as the loss of its host would."""
    for pid in process.survivors(kind.env[process.TAG]):
        with suppress(OSError):  # it has ended meanwhile
            if f"HOME={kind.home}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                os.kill(int(pid), signal.SIGKILL)


def _foreign(kind):
    """What other tools have written, where they write it."""
    wandb = kind("wandb", "a run of wandb, offline")
    wandb.run = Path(shutil.copytree(RECORDED / "wandb", wandb.folder / "wandb"))
    board = kind("tensorboard", "a run of TensorBoard")
    board.run = Path(shutil.copytree(RECORDED / "tensorboard", board.folder / "runs"))
    log = kind("log", "a log of another trainer")
    log.run = log.folder / "train.log"
    log.run.write_text("".join(f"step={step} loss={1 / (step + 1):.4f} lr=0.1\n" for step in range(STEPS)))


def _copy(kind, name, title, state, source):
    made = kind(name, title, state)
    made.run = Path(shutil.copytree(source.run, made.folder / "outputs" / "train" / source.run.name))
    return made


def _damaged(kind, finished):
    torn = _copy(kind, "torn-journal", "a copy whose journal is cut off in the middle of a row", "finished", finished)
    path = torn.run / "metrics.jsonl"
    rows = path.read_bytes().splitlines(keepends=True)
    half = next(number for number, row in enumerate(rows) if b'"step":5' in row)
    path.write_bytes(b"".join([*rows[:half], rows[half][:20]]))
    for derived in ("metrics.columns", "report.html", "train.h5"):
        (torn.run / derived).unlink(missing_ok=True)
    lost = _copy(kind, "broken-run-json", "a copy whose run.json is no JSON", "", finished)
    (lost.run / "run.json").write_text('{"schema": 1, "na')
    cut = _copy(kind, "cut-h5", "a copy whose HDF5 file is cut off", "finished", finished)
    data = (cut.run / "train.h5").read_bytes()
    (cut.run / "train.h5").write_bytes(data[: len(data) // 2])


def _elsewhere(kind, kinds):
    """Copies of runs of another host, two hours old, without the records of their launches, under another name."""
    for name, title, source in (
        ("copied", "a renamed copy of a run that ended well on another host", kinds["finished"]),
        ("copied-killed", "a renamed copy of a run that was killed on another host", kinds["launch-killed"]),
    ):
        made = kind(name, title, source.state)
        made.run = Path(shutil.copytree(source.run, made.folder / "results" / "from-n07"))
        text = (made.run / "run.json").read_text().replace(str(source.folder), "/scratch/me/work")
        told = json.loads(text.replace(f'"{os.uname().nodename}"', '"n07"'))
        told["process"]["began"] -= _AGO
        for moment in ("started", "ended"):
            if moment in told:
                told[moment] = (datetime.fromisoformat(told[moment]) - timedelta(seconds=_AGO)).isoformat()
        (made.run / "run.json").write_text(json.dumps(told, indent=1))
        rows = (made.run / "metrics.jsonl").read_text()
        rows = re.sub(r'"t":([0-9.]+)', lambda found: f'"t":{float(found[1]) - _AGO}', rows)
        (made.run / "metrics.jsonl").write_text(rows)
        for derived in ("metrics.columns", "report.html"):
            (made.run / derived).unlink(missing_ok=True)


def end_all(kinds):
    """End what still runs."""
    for kind in kinds.values():
        if kind.child is not None and kind.child.poll() is None:
            kill_whole(kind)
            kind.child.wait(60)
