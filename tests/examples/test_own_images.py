"""Both trainers of images on a folder of one's own, by two ranks, and resumed."""

import sys
from pathlib import Path

import numpy as np
import pytest

import ezpz
from ezpz.track import read_journal


def make(folder):
    """Write 60 images: bright ones, and dark ones with some noise."""
    from PIL import Image

    draw = np.random.default_rng(3)
    for name, level in (("bright", 170), ("dark", 20)):
        (folder / name).mkdir(parents=True)
        for number in range(30):
            noise = draw.integers(0, 60, (20, 28, 3), dtype=np.uint8)
            Image.fromarray(noise + np.uint8(level)).save(folder / name / f"{number}.png")
    return folder


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("module", "first", "then"),
    [
        (
            "vit",
            ["--preset", "debug", "--max_iters", "8", "--save_freq", "4", "--eval_freq", "8"],
            ["--max_iters", "12"],
        ),
        ("fsdp", ["--epochs", "2", "--save_freq", "3"], []),
    ],
)
def test_they_learn_a_folder_of_images(run_cli, clean_env, tmp_path, module, first, then):
    pytest.importorskip("PIL.Image")
    folder = make(tmp_path / "pictures")
    env = {**clean_env, "PYTHONPATH": str(Path(ezpz.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "ezpz.launch", "-n", 2, sys.executable, "-m", f"ezpz.examples.{module}"]
    line += [
        "--dataset",
        f"images:{folder}",
        "--image_size",
        "16",
        "--batch_size",
        "8",
        "--no_plots",
        "--outdir",
        "run",
    ]
    line += ["--lr", "0.003"]
    done = run_cli([*line, *first], env, 280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "54 images to train, 6 to test" in done.stdout
    rows = [row["m"] for row in read_journal(tmp_path / "run" / "metrics.jsonl")]
    scores = [row["val_accuracy"] if module == "vit" else row["test_acc"] / 100 for row in rows if "dt_eval" in row]
    assert scores[-1] >= 0.8
    if then:
        done = run_cli([*line, *first, *then, "--resume", "run/checkpoints/step-8"], env, 280)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "step-00000008: step 8" in done.stdout
