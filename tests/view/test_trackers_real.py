"""The real wandb, TensorBoard and MLflow: what ezpz copied there reads back, and what they wrote reads here."""

import json
import math
import os
import subprocess
from pathlib import Path

import pytest

from ezpz.view.foreign import open_foreign
from lab.require import require

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".test" / "trackers" / "bin" / "python"

COPY = """
import json, math, sys
from pathlib import Path
from typing import NamedTuple
from ezpz.view.trackers import About, Trackers

class Histogram(NamedTuple):
    counts: list
    edges: list

attempt, resumed = int(sys.argv[1]), json.loads(sys.argv[2])
config = {"lr": 0.1 * attempt, "model": {"width": 64, "act": "gelu"}}
trackers = Trackers("wandb,tensorboard,mlflow", About("train", Path("out"), config, resumed, "stamp"))
early = trackers.state
for step in range(3 * attempt - 3, 3 * attempt):
    trackers.log(step, {"train/loss": 1 / (step + 1), "n": 2**60 + step, "nan": math.nan, "note": "hi", "../x%": 1.0,
                        "weights": Histogram([1, 2], [0.0, 1.0, 2.0])})
trackers.config({"later": "x"})
trackers.finish("finished")
print(json.dumps([early, trackers.state, "torch" in sys.modules]))
"""

READ = """
import json, os, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator("out/trackers/tensorboard", size_guidance={"histograms": 0})
events.Reload()
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
from mlflow import MlflowClient
client = MlflowClient(os.path.abspath("out/trackers/mlflow"))
run = client.get_run(sys.argv[1])
history = client.get_metric_history(sys.argv[1], "train/loss")
print(json.dumps({
    "loss": [[e.step, e.value] for e in events.Scalars("train/loss")],
    "histogram": [len(e.histogram_value.bucket) for e in events.Histograms("weights")],
    "sum": events.Histograms("weights")[0].histogram_value.sum,
    "texts": [e.tensor_proto.string_val[0].decode() for e in events.Tensors("note")],
    "config": events.Tensors("config")[-1].tensor_proto.string_val[0].decode(),
    "hparams": events.SummaryMetadata("_hparams_/session_start_info").plugin_data.plugin_name,
    "mlflow": [[m.step, m.value] for m in history], "names": sorted(run.data.metrics), "params": run.data.params,
    "tags": {k: v for k, v in run.data.tags.items() if k.startswith("changed.")}, "status": run.info.status,
    "runs": len(client.search_runs([run.info.experiment_id])),
}))
"""

WRITE = """
import math, sys
import numpy as np, wandb
run = wandb.init(project="p", name="theirs", config={"lr": 0.1, "model": {"width": 64}}, mode="offline", dir=".")
for step in range(100):
    run.log({"train/loss": 1 / (step + 1), "nan": math.nan, "list": [1, 2.5], "big": "x" * 700,
             "h": wandb.Histogram(np_histogram=(np.array([1, 2]), np.array([0.0, 1, 2])))}, step=step * 10)
run.finish(exit_code=3)
from torch.utils.tensorboard import SummaryWriter
from tensorboard.summary import Writer
writer = SummaryWriter("torch")
for step in range(100):
    writer.add_scalar("train/loss", 1 / (step + 1), step * 10)
    writer.add_scalars("both", {"a": step, "b": -step}, step * 10)
writer.add_histogram("h", np.arange(100.0), 0)
writer.add_image("i", np.zeros((3, 300, 300), np.uint8), 0)
writer.close()
writer = Writer("theirs")
for step in range(100):
    writer.add_scalar("train/loss", np.float32(1 / (step + 1)), step * 10)
writer.close()
"""


@pytest.fixture(scope="module", autouse=True)
def _there():
    require("trackers", "" if PYTHON.exists() else "no .test/trackers (tests/lab/setup trackers)")


def real(code, folder, *arguments, **environ):
    """stdout of code that runs with the real libraries, in `folder` as home and current folder."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT / "src"), "WANDB_SILENT": "true"}
    env |= {
        "EZPZ_TRACKER_SECONDS": "100",
        "WANDB_ERROR_REPORTING": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        **environ,
    }
    done = subprocess.run(
        [PYTHON, "-c", code, *map(str, arguments)],
        env=env, cwd=folder, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "[W]" not in done.stdout
    return done.stdout.splitlines()[-1] if done.stdout else ""


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """A folder with a run of two attempts at all three places, and what the trackers said of themselves."""
    folder = tmp_path_factory.mktemp("copied")
    early, state, torch = json.loads(real(COPY, folder, 1, "{}"))
    assert not torch
    again = json.loads(real(COPY, folder, 2, json.dumps(early)))  # as if the first had been killed at once
    assert again[1] == state
    return folder, state


@pytest.mark.dear
@pytest.mark.slow
def test_wandb_keeps_no_argument_that_is_a_secret(tmp_path):
    secret = "Zq7Xw2Lp9Rt4Vb6Nm1Kc"
    code = """
from pathlib import Path
from ezpz.view.trackers import About, Trackers
trackers = Trackers("wandb", About("train", Path("out"), {"lr": 0.1}, {}, "stamp"))
trackers.log(0, {"loss": 1.0})
trackers.finish("finished")
"""
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "src"), "WANDB_MODE": "offline"}
    command = [PYTHON, "-c", code, "--api-key", secret]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files)
    assert not [path for path in files if secret.encode() in path.read_bytes()]


@pytest.mark.dear
@pytest.mark.slow
def test_wandb_gets_the_same_run_in_both_attempts(copied):
    folder, state = copied
    run = open_foreign(folder / "out" / "trackers")
    assert run.facts["wandb"] == {"id": state["wandb"]["id"], "project": "train"}
    assert run.table.steps == list(range(6))
    assert run.table.attempts == [1, 1, 1, 2, 2, 2]
    cells = {key: cells.values for key, cells in run.table.cells.items()}
    assert cells["train/loss"] == [1 / (step + 1) for step in range(6)]
    assert cells["n"] == [2**60 + step for step in range(6)]
    assert all(map(math.isnan, cells["nan"]))
    assert run.facts["config"] == {"lr": 0.2, "model": {"width": 64, "act": "gelu"}, "later": "x"}
    assert run.state == "finished"
    assert run.facts["versions"]["torch"]


@pytest.mark.dear
@pytest.mark.slow
def test_tensorboard_and_mlflow_read_what_was_copied(copied):
    folder, state = copied
    there = json.loads(real(READ, folder, state["mlflow"]["run_id"]))
    expected = [[step, 1 / (step + 1)] for step in range(6)]
    assert [step for step, _ in there["loss"]] == list(range(6))
    assert there["loss"] == [[step, pytest.approx(value, rel=1e-7)] for step, value in expected]
    assert there["histogram"] == [2] * 6
    assert there["sum"] == pytest.approx(1 * 0.5 + 2 * 1.5)
    assert there["texts"] == ["hi"] * 6
    assert '"width": 64' in there["config"]
    assert there["hparams"] == "hparams"
    assert there["mlflow"] == expected
    assert there["names"] == ["_/x_", "n", "nan", "train/loss"]
    assert there["params"] == {"lr": "0.1", "model.width": "64", "model.act": "gelu", "later": "x"}
    assert there["tags"] == {"changed.lr": "0.2"}
    assert (there["status"], there["runs"]) == ("FINISHED", 1)


@pytest.mark.dear
@pytest.mark.slow
def test_what_the_libraries_wrote_themselves_reads_here(tmp_path):
    real(WRITE, tmp_path)
    expected = pytest.approx([1 / (step + 1) for step in range(100)], rel=1e-7)
    for folder in ("wandb", "torch", "theirs"):
        run = open_foreign(tmp_path / folder)
        assert run.table.steps == [step * 10 for step in range(100)]
        assert run.table.cells["train/loss"].values == expected
    run = open_foreign(tmp_path / "wandb")
    assert (run.state, run.cause, run.facts["config"]) == ("failed", "exit code 3", {"lr": 0.1, "model": {"width": 64}})
    assert run.table.cells["list"].values == [[1, 2.5]] * 100
    assert set(open_foreign(tmp_path / "torch").table.cells) == {"train/loss", "both_a/both", "both_b/both"}
