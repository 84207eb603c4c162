"""A training whose host dies: the next attempt on a spare host has the losses of the unbroken run, bit for bit."""

import json
import os
import random
import re
import subprocess
import sys

import pytest

from ezpz.track import read_journal
from lab import process
from lab.ssh import LAUNCH, Site

NAMES = ("n01", "n02", "n03", "n04")
STEPS, EVERY = 200, 10
TRAINING = [
    *("-m", "ezpz.examples.gpt", "--preset", "debug", "--resume", "auto", "--no_plots", "--train.dtype", "fp32"),
    *("--train.max_iters", str(STEPS), "--train.save_interval", str(EVERY), "--train.eval_interval", "1000"),
    *("--train.log_interval", "1", "--train.prompt", "", "--model.n_layer", "2", "--model.n_embd", "32"),
    *("--model.n_head", "2", "--model.block_size", "32", "--model.batch_size", "4", "--model.dropout", "0.1"),
]


def losses(folder):
    """Return the loss of each step as exact text; of a step that was done twice, that of the last attempt."""
    journal = next(folder.glob("**/metrics.jsonl"))
    rows = [row["m"] for row in read_journal(journal.parent)]
    return {row["step"]: float(row["loss"]).hex() for row in rows if "loss" in row}


def start(lab, site, folder, *options):
    line = [*LAUNCH, "--hosts", ",".join(NAMES), "--nhosts", "3", "--ppn", "1", "--check", "off", *options]
    with (folder / "err").open("wb") as err, (folder / "out").open("wb") as out:
        env = {**site.env, "XDG_STATE_HOME": str(folder / "state"), "OMP_NUM_THREADS": "1"}
        words = [sys.executable, *TRAINING, "--outdir", str(folder / "run")]
        return lab["head"].popen([*line, *words], env, cwd=folder, stdout=out, stderr=err)


@pytest.mark.timeout(900)
@pytest.mark.skipif(not os.environ.get("EZPZ_MATRIX"), reason="two trainings on three hosts: make matrix")
def test_a_training_whose_host_dies_ends_as_if_it_had_not(make_hosts, clean_env, tmp_path, capsys):
    seed = int(os.environ.get("EZPZ_SEED") or random.randrange(10**6))
    step = random.Random(seed).randrange(EVERY + 2, STEPS // 2)
    print(f"EZPZ_SEED={seed}: n02 dies after step {step}")
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    lab = make_hosts("head", *NAMES)
    site = Site(lab, clean_env, tmp_path / "whole")
    whole = start(lab, site, tmp_path / "whole")
    assert whole.wait(300) == 0, (tmp_path / "whole" / "err").read_text()

    broken = start(lab, site, tmp_path / "broken", "--attempts", "3")
    shown = tmp_path / "broken" / "out"
    process.wait_until(lambda: re.search(rf"\bstep={step}\b", shown.read_text()), 200, f"step {step}")
    lab["n02"].vanish()
    try:
        assert broken.wait(400) == 0, (tmp_path / "broken" / "err").read_text()
    except subprocess.TimeoutExpired:
        pytest.fail((tmp_path / "broken" / "err").read_text())
    err = (tmp_path / "broken" / "err").read_text()
    record = next((tmp_path / "broken" / "state").glob("ezpz/launches/*/run.json"))
    rows = json.loads(record.read_text())["attempts"]
    assert [row["hosts"] for row in rows] == [["n01", "n02", "n03"], ["n01", "n03", "n04"]], err
    assert list(rows[0]["retired"]) == ["n02"]
    assert set(losses(tmp_path / "whole")) == {*range(STEPS)}
    assert losses(tmp_path / "broken") == losses(tmp_path / "whole")
