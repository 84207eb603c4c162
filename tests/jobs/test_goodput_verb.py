"""`ezpz runs --goodput` of real runs: planted sleeps and a planted loss of steps are found in their rows."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ezpz
from ezpz.cli.runs import main
from lab import process

SRC = str(Path(ezpz.__file__).parents[1])
TRAIN = """
import os, signal, sys, time

begun = time.perf_counter()
truth = open(f"{sys.argv[1]}.truth", "a") if os.environ["RANK"] == "0" else None


def note(name, seconds):
    if truth:
        print(name, seconds, file=truth, flush=True)


def timed(name, function):
    def run(*words, **more):
        begun = time.perf_counter()
        try:
            return function(*words, **more)
        finally:
            note(name, time.perf_counter() - begun)

    return run


names = ("import", "data", "eval", "save", "load")
planted = {name: float(os.environ.get(f"PLANT_{name.upper()}", 0)) for name in names}
time.sleep(planted["import"])
import torch
import ezpz
from ezpz.checkpoint import Checkpoints
from ezpz.checkpoint.finding import complete_in
from ezpz.train import Loop


class Slow:
    def state_dict(self):
        time.sleep(planted["save"])
        return {}

    def load_state_dict(self, state):
        time.sleep(planted["load"])


def batches(position):
    time.sleep(planted["data"])
    return torch.ones(2, 4)


def compute_loss(model, batch):
    time.sleep(0.02)
    return model(batch).square().mean()


def evaluate():
    time.sleep(planted["eval"])
    return {"eval_loss": 1.0}


def row(values):
    if values["iter"] == int(os.environ.get("DIES_AT", -1)):
        os.kill(os.getpid(), signal.SIGKILL)
    return values


note("imports", time.perf_counter() - begun)
ezpz.setup_torch()
model = ezpz.wrap_model(torch.nn.Linear(4, 1), "none")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
folder = sys.argv[1]
with ezpz.History("train", outdir=folder) as history:
    checkpoints = Checkpoints(folder, model=model, optimizer=optimizer, state={"slow": Slow()})
    for name in ("save", "wait", "load"):
        setattr(checkpoints, name, timed("load" if name == "load" else "save", getattr(checkpoints, name)))
    there = complete_in(checkpoints.folder)
    loop = Loop(
        model, optimizer, compute_loss, timed("data", batches), steps=40, batch_size=2,
        evaluate=timed("evaluation", evaluate), eval_every=20,
        checkpoints=checkpoints, save_every=10, resume=there[-1][0] if there else None, row=row, log_every=40,
    )
    loop.run(history)
    history.finalize(plots=False, show=False)
"""


def seconds(folder, capsys):
    assert main(["--goodput", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(row["seconds"] for row in found["rows"]) == pytest.approx(found["granted_seconds"], rel=0.005)
    return found, {row["name"]: row["seconds"] for row in found["rows"]}


def told(path, *, repeated):
    """Return what rank 0 has measured of itself by row, without the data of steps that were done again."""
    pairs = [line.split() for line in path.read_text().splitlines()]
    names = [name for name, _ in pairs]
    last = names.index("load") if repeated else len(names)  # where the second attempt begins
    batches = [place for place in range(last) if names[place] == "data"]
    dropped = batches[-repeated - 1 :] if repeated else []  # the step that died has no row
    sums = {}
    for place, (name, seconds) in enumerate(pairs):
        sums[name] = sums.get(name, 0.0) + (0.0 if place in dropped else float(seconds))
    return sums


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_planted_sleeps_and_a_planted_loss_are_found(clean_env, tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "train.py").write_text(TRAIN)

    def launch(folder, code=0, **planted):
        environ = {**clean_env, "PYTHONPATH": SRC, "XDG_STATE_HOME": os.environ["XDG_STATE_HOME"]}
        environ |= {name: str(value) for name, value in planted.items()}
        line = [sys.executable, "-m", "ezpz.launch", "-n", "2", sys.executable, "train.py", folder]
        done = process.run(line, environ, timeout=200, cwd=tmp_path)
        assert done.returncode == code, done.stderr

    launch("plain")
    launch("planted", 137, PLANT_IMPORT=6, PLANT_DATA=0.1, PLANT_SAVE=4, DIES_AT=17)
    launch("planted", PLANT_EVAL=4, PLANT_LOAD=4)
    plain, usual = seconds(tmp_path / "plain", capsys)
    found, rows = seconds(tmp_path / "planted", capsys)
    assert (plain["repeated_steps"], plain["failures"], plain["steps"]) == (0, 0, 40)
    assert (found["repeated_steps"], found["failures"], found["steps"]) == (7, 1, 40)
    assert (found["attempts"], found["saves"]) == (2, 4)
    least = {"imports": 6, "data": 1, "save": 4, "evaluation": 8, "load": 4, "repeated steps": 7 * 0.12}
    for name, planted in least.items():
        assert rows[name] >= planted, (name, rows)
    # What the program has measured itself: a busy machine makes that longer as well.
    for folder, each in (("plain", usual), ("planted", rows)):
        truth = told(tmp_path / f"{folder}.truth", repeated=7 if folder == "planted" else 0)
        assert {*truth} == {"imports", "data", "save", "evaluation", *(["load"] if folder == "planted" else [])}
        for name, measured in truth.items():
            attempts = 2 if name == "imports" and folder == "planted" else 1  # an interpreter starts before it measures
            assert abs(each[name] - measured) < attempts, (folder, name, measured, each)
    for made, each in ((plain, usual), (found, rows)):
        assert abs(each["unexplained"]) <= 0.02 * made["granted_seconds"], each


def test_the_table_fits_80_columns_and_says_what_it_counts(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "outputs" / "train" / "2026-11-20-162001"
    folder.mkdir(parents=True)
    rows = [{"v": 1, "t": 1000.0 + n, "step": n, "m": {"loss": 1.0}} for n in range(20)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    facts = {"state": "finished", "process": {"began": 990.0}, "timeline": {"setup": 4.0, "history": 8.0}}
    (folder / "run.json").write_text(json.dumps({"name": "train", **facts}))
    assert main(["--goodput"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["train: 1 attempt", "29 s granted, 65.5 % of it in steps that count"]
    shown = {line[:16].strip(): line.split()[-4:] for line in lines if " %" in line}
    assert "20 steps that count" in lines
    assert any(line.startswith("imports") and "4.0  13.8 %" in line for line in lines), (lines, shown)
    assert max(map(len, lines)) <= 80


WRONG = [
    (["--goodput", "nowhere"], "no run or launch 'nowhere'"),
    (["--goodput", "--state", "failed"], "--state failed chooses from a list"),
    (["a", "b"], "2 folders (from the command line)"),
]


def test_wrong_words_are_one_line(refuses):
    refuses(main, WRONG)


@pytest.mark.slow
def test_100_000_rows_take_little_time(tmp_path, clean_env):
    folder = tmp_path / "run"
    folder.mkdir()
    with (folder / "metrics.jsonl").open("w") as file:
        for number in range(100_000):
            values = '"loss":1.0,"dt":0.9,"dtd":0.1,"lr":0.1'
            file.write(f'{{"v":1,"t":{1000.0 + number},"step":{number},"m":{{{values}}}}}\n')
    facts = {"state": "finished", "process": {"began": 990.0}, "timeline": {"setup": 4.0, "data": 8.0}}
    (folder / "run.json").write_text(json.dumps({"name": "run", **facts}))
    line = [sys.executable, "-m", "ezpz", "runs", "--goodput", str(folder), "--json"]
    environ = {**clean_env, "PYTHONPATH": SRC}
    subprocess.run(line, env=environ, check=True, capture_output=True, timeout=120)  # writes the columns
    before = os.times()
    done = subprocess.run(line, env=environ, check=True, capture_output=True, timeout=120)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    assert json.loads(done.stdout)["steps"] == 100_000
    assert used < 3.0  # CPU seconds; 0.4 alone
