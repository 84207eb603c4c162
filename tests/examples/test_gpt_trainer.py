"""The character GPT as users start it: what it prints and leaves behind, that it learns and outlives its ends."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ezpz
from ezpz.track import read_journal
from ezpz.track.run_reader import open_run
from lab import process

IN_RANKS = Path(__file__).with_name("in_ranks_gpt.py")
LINE = re.compile(
    r"step=(\d+) loss=(\S+) dt=\S+ s tps=\S+ tok/s mfu=\S+ %\n"
    r"(\d\d:\d\d:\d\d step=\d+ train_loss=(\S+) val_loss=(\S+)\n)?"
)


@pytest.fixture
def env(clean_env, tmp_path):
    here = {"PYTHONPATH": str(Path(ezpz.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    return {**clean_env, **here, "EZPZ_DATA": str(tmp_path / "data")}


def launch(ranks, *words):
    program = [sys.executable, "-m", "ezpz.examples.gpt", *map(str, words)]
    return [sys.executable, "-m", "ezpz.launch", "-n", str(ranks), *program]


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_passes_the_bigrams_and_writes_by_two_ranks(run_cli, env, tmp_path):
    words = ["--preset", "debug", "--no_plots", "train.max_iters=80", "optimizer.lr_decay_iters=80", "--outdir", "out"]
    more = ["train.backend=FSDP", "train.eval_interval=40", "train.eval_iters=4", "train.sample_tokens=40"]
    done = run_cli(launch(2, *words, *more, "--peak_flops=1e12", "data=shakespeare"), env, 280)
    assert done.returncode == 0, done.stdout + done.stderr
    out = done.stdout
    assert "data=shakespeare: shipped with ezpz; 1,003,854 tokens to train, 111,540 to test" in out
    assert "parameters=402,176 without the table of positions" in out
    assert "num decayed parameter tensors: 9, with 401,536 parameters" in out
    assert "num non-decayed parameter tensors: 6, with 8,832 parameters" in out

    lines = LINE.findall(out)
    assert [int(line[0]) for line in lines] == [0, 10, 20, 30, 39, 40, 50, 60, 70, 79]
    assert [line[0] for line in lines if line[2]] == ["39", "79"]  # losses of an evaluation stand where they are new
    before = re.search(r"after 0 steps: train_loss=(\S+) val_loss=(\S+)\n", out)
    assert [float(loss) for loss in before.groups()] == pytest.approx([math.log(65)] * 2, abs=0.15)
    assert float(lines[-1][4]) < 2.488  # what counting pairs of characters reaches
    samples = re.findall(r"\['prompt'\]: 'What is an LLM\?'\n.*\['response'\]:\nWhat is an LLM\?", out)
    assert len(samples) == 3

    rows = [row["m"] for row in read_journal(tmp_path / "out" / "metrics.jsonl")]
    per_sample = 64 * (6 * 402_176 + 12 * 2 * 128 * 64)
    for row in rows:
        assert row["sps"] * row["dt"] == pytest.approx(64)
        assert row["tps"] == pytest.approx(row["sps"] * 64)
        assert row["tps_per_gpu"] * 2 == pytest.approx(row["tps"])
        assert row["mfu"] == pytest.approx(100 * per_sample * row["sps_per_gpu"] / 1e12)
    assert [path.name[-2:] for path in sorted((tmp_path / "out" / "checkpoints").glob("step-*"))] == ["40", "80"]
    config = json.loads((tmp_path / "out" / "run.json").read_text())["config"]
    assert config["train"]["backend"] == "FSDP"
    assert config["data"]["dataset"] == "shakespeare_char"

    words = [
        "--preset",
        "debug",
        "--outdir",
        "out",
        "train.init_from=resume",
        "train.eval_only=true",
        "train.prompt=KING",
    ]
    again = run_cli(launch(1, *words, "train.eval_iters=8", "train.sample_tokens=40"), env, 100)
    assert again.returncode == 0, again.stdout + again.stderr
    found = re.search(r"after 80 steps: train_loss=(\S+) val_loss=(\S+)\n", again.stdout)
    assert [float(loss) for loss in found.groups()] == pytest.approx(
        [float(lines[-1][3]), float(lines[-1][4])],
        abs=1e-3,  # lines have five digits
    )
    assert "['prompt']: 'KING'" in again.stdout
    assert "step=" not in again.stdout


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("ranks", "which"), [(2, ""), (4, "follows or meta or plain_torch")])
def test_ranks_follow_one_process(ranks, which, run_cli, env, tmp_path):
    inside = [*(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "--color=no")]
    env |= {"EZPZ_TEST_FOLDER": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    words = [*inside, "--timeout=1200", "-k", which, str(IN_RANKS)]
    done = run_cli([sys.executable, "-m", "ezpz.launch", "-n", str(ranks), *words], env, 380)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^\d+ passed", done.stdout, re.MULTILINE)) == ranks, done.stdout


TINY = [
    *("--preset", "debug", "--no_plots", "--resume", "auto", "model.n_layer=1", "model.block_size=16"),
    *("model.batch_size=4", "train.max_iters=60", "train.save_interval=4", "train.keep=2", "train.eval_interval=30"),
    *("train.eval_iters=2", "train.sample_tokens=5", "train.backend=fsdp", "model.dropout=0.1"),
]


def final(folder):
    """Return the last step, its loss, and all validation losses."""
    table = open_run(folder).table
    losses = dict(zip(table.cells["loss"].index, table.cells["loss"].values, strict=True))
    return table.steps[-1], losses[len(table.steps) - 1], list(table.cells["val_loss"].values)


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_and_resumed_it_ends_with_the_loss_of_an_unbroken_run(run_cli, env, tmp_path):
    whole = run_cli(launch(2, *TINY, "--outdir", tmp_path / "whole"), env, 100)
    assert whole.returncode == 0, whole.stdout + whole.stderr

    broken = tmp_path / "broken"
    line = launch(2, *TINY, "--outdir", broken, "train.async_save=true")
    with subprocess.Popen(
        line, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        saved = lambda: list(broken.glob("checkpoints/step-*")) or run.poll() is not None  # noqa: E731  # one expression
        process.wait_until(saved, 100, "a checkpoint", every=0.002)
        os.kill(json.loads((broken / "run.json").read_text())["process"]["pid"], signal.SIGKILL)
        said = run.communicate(timeout=1000)[0]
    assert run.returncode == 137, said
    done = run_cli(line, env, 100)
    assert done.returncode == 0, done.stdout + done.stderr

    assert final(broken) == final(tmp_path / "whole")
    assert sorted(open_run(broken).table.steps) == list(range(60))
    assert {row["a"] for row in read_journal(broken / "metrics.jsonl")} == {1, 2}


@pytest.mark.dear
@pytest.mark.slow
def test_deepspeed_that_is_not_there_is_one_error(run_cli, env, tmp_path):
    (tmp_path / "deepspeed.py").write_text("raise ImportError('none here')")
    words = ["train.backend=ds", "model.n_layer=1", "model.n_embd=24", "train.sample_tokens=0"]
    program = [sys.executable, "-m", "ezpz.examples.gpt", *words]
    done = run_cli(program, {**env, "PYTHONPATH": f"{tmp_path}:{env['PYTHONPATH']}"}, 60)
    assert done.returncode == 125, done.stdout + done.stderr
    assert "no DeepSpeed: none here (from strategy='deepspeed')" in done.stderr
