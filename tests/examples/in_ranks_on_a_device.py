"""Run by pytest inside both ranks of one launch: every trainer trains and evaluates on a device that is not the CPU.

The device is `hostram` (`tests/dist/outoftree`), which refuses operands of the CPU as CUDA does. Not collected by
itself; `test_on_a_device.py` builds the device and launches this.
"""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "dist" / "outoftree"))
import hostram

import ezpz
import ezpz.dist.mesh as meshes
from ezpz import test_dist
from ezpz.examples import fsdp, fsdp_tp, gpt, llm, minimal, vit
from ezpz.track import read_journal
from ezpz.train import parse

hostram.register()
FOLDER = Path(os.environ["EZPZ_TEST_FOLDER"])


@pytest.fixture(scope="module", autouse=True)
def _group():
    ezpz.setup_torch(seed=7)
    yield
    ezpz.cleanup()


@pytest.fixture(scope="module")
def images():
    """24 images of two classes, as ``images:FOLDER``."""
    pillow = pytest.importorskip("PIL.Image")
    folder = FOLDER / "pictures"
    if ezpz.get_rank() == 0:
        for name in ("bright", "dark"):
            (folder / name).mkdir(parents=True)
            for number in range(12):
                level = np.uint8(200 if name == "bright" else 20)
                pillow.fromarray(np.full((16, 16, 3), level)).save(folder / name / f"{number}.png")
    ezpz.barrier()
    return f"images:{folder}"


def words_of(name, images):
    return {
        "fsdp": ["--dataset=digits", "--epochs=1", "--batch_size=512"],
        "fsdp images": [f"--dataset={images}", "--image_size=16", "--epochs=1", "--batch_size=4"],
        "vit": ["--preset=debug", "--max_iters=2", "--eval_samples=20", "--batch_size=4"],
        "vit images": ["--preset=debug", f"--dataset={images}", "--image_size=32", "--max_iters=2", "--batch_size=4"],
        "vit real": ["--preset=debug", "--dataset=digits", "--image_size=16", "--max_iters=2", "--batch_size=4"],
        "fsdp_tp": ["--preset=debug", "--tp=2", "--max_iters=2", "--eval_samples=8", "--batch_size=2", "--seq_len=16"],
        "fsdp_tp fp16": ["--preset=debug", "--dtype=fp16", "--max_iters=2", "--eval_samples=8", "--batch_size=2"],
        "gpt": [
            "--preset=debug",
            *("model.n_layer=1", "train.max_iters=2", "train.eval_iters=1", "train.sample_tokens=4"),
        ],
        "llm": ["training.steps=2", "training.eval_samples=4", "training.seq_len=16", "training.batch_size=2"],
    }[name]


CASES = ["fsdp", "fsdp images", "vit", "vit images", "vit real", "fsdp_tp", "fsdp_tp fp16", "gpt", "llm"]
TRAINERS = {"fsdp": fsdp, "vit": vit, "fsdp_tp": fsdp_tp, "gpt": gpt, "llm": llm}


@pytest.mark.parametrize("name", CASES)
def test_a_trainer_trains_and_evaluates(name, request):
    images = request.getfixturevalue("images") if name.endswith("images") else ""
    kind, folder = name.split()[0], FOLDER / name.replace(" ", "-")
    meshes._made.clear()
    trainer = TRAINERS[kind]
    trainer.run(parse(trainer.options(), [*words_of(name, images), "--no_plots", "--outdir", str(folder)]))
    if ezpz.get_rank() == 0:
        rows = [row["m"] for row in read_journal(folder / "metrics.jsonl")]
        assert np.isfinite(rows[-1]["test_loss" if kind == "fsdp" else "val_loss"])


def test_the_check_of_a_machine_and_the_shortest_use(monkeypatch):
    test_dist.run(test_dist.parse_args(["--train-iters", "2", "--no-plots", "--outdir", str(FOLDER / "check")]))
    monkeypatch.setattr(sys, "argv", ["minimal", "--max_iters", "2", "--outdir", str(FOLDER / "minimal")])
    monkeypatch.setattr(ezpz, "cleanup", lambda: None)  # others of this file need the group
    minimal.main()
