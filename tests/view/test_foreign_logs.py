"""Plain logs with ``key=value`` lines, read back as a run."""

import math
from datetime import datetime

import pytest

from ezpz.errors import UsageError
from ezpz.track.series import series_of
from ezpz.view.compare.comparison import compare_runs
from ezpz.view.foreign import open_foreign
from ezpz.view.foreign.plain_log import parse_line

LINES = [
    ("iter=3 loss=0.123456 dt=0.001", (3, {"loss": 0.123456, "dt": 0.001})),
    ("[2024-07-17 07:35:30.304306][INFO][__init__:156] - step=10 loss=3.154310 n=7", (10, {"loss": 3.15431, "n": 7})),
    ("[2026-11-20 16:20:01.123][I][train:45] iter=3 train/loss=0.12(±0.02)", (3, {"train/loss": 0.12})),
    ("\x1b[32m[I]\x1b[0m \x1b[1mstep=3\x1b[0m \x1b[36mloss\x1b[0m=\x1b[35m1e-3\x1b[0m", (3, {"loss": 1e-3})),
    ("2024-07-17T07:35:30 INFO train.py:885 step: 100, loss: 2.31, lr: 3e-4", (100, {"loss": 2.31, "lr": 3e-4})),
    ("INFO:root:step=100,loss=2.31,lr=.5", (100, {"loss": 2.31, "lr": 0.5})),
    ("iter 250: loss 3.0412, time 151.20ms, mfu 5.41%", (250, {"loss": 3.0412, "time": 151.2, "mfu": 5.41})),
    ("epoch=2 loss=0.5", (2, {"loss": 0.5})),
    ("epoch=2 step=7 loss=0.5", (7, {"epoch": 2, "loss": 0.5})),
    ("global_step=7/100 | grad-norm = -1.5", (7, {"grad-norm": -1.5})),
    ("[rank=0/2] step=1 loss=inf", (1, {"loss": math.inf})),
    ("[rank=1/2] step=1 loss=0.5", None),
    ("[rank=1] step=1 loss=0.5", None),
    (
        "[rank0]:[titan] - root - INFO - \x1b[31mstep: 12  \x1b[32mloss:  4.96778  memory: 9.46GiB(64.99%)  tps: 7,012",
        (12, {"loss": 4.96778, "memory": 9.46, "tps": 7012}),
    ),
    ("step=1,200 loss=2,345.5", (1200, {"loss": 2345.5})),
    ('{"step": 3, "loss": 0.5, "note": "x", "nested": {}}', (3, {"loss": 0.5})),
    ('{"step": 3, "loss"', None),
    (f'{{"step": 1, "loss": 0.5, "n": {10**30}}}', (1, {"loss": 0.5})),
    (
        " iteration   3/  200 | elapsed time per iteration (ms): 1234.5 | lm loss: 4.967783E+00 |",
        (3, {"elapsed_time_per_iteration": 1.2345, "lm_loss": 4.967783}),
    ),
    (" validation loss at iteration 100 | lm loss value: 4.0E+00 |", (100, {"val/lm_loss": 4.0})),
    (
        "steps: 3 loss: 4.9678 iter time (s): 0.123 samples/sec: 130.1",
        (3, {"loss": 4.9678, "iter_time": 0.123, "samples_per_second": 130.1}),
    ),
    ("| INFO | train_inner | epoch 001: 12 / 200 loss=4.9, num_updates=12", (12, {"epoch": 1, "loss": 4.9})),
    ('{"current_steps": 3, "total_steps": 200, "loss": 0.5}', (3, {"total_steps": 200, "loss": 0.5})),
    ("[0]: step=1 loss=0.5", (1, {"loss": 0.5})),
    ("[1]: step=1 loss=0.5", None),
    ("[1,1]<stdout>:step=1 loss=0.5", None),
    ("[prterun-host-7@1,0]<stdout>: step=1 loss=0.5", (1, {"loss": 0.5})),
    ("[default1]:step=1 loss=0.5", None),
    ("step=1 of the plan", None),
    ("loss=0.5 without a step", None),
    ("step=1.5 loss=0.5", None),
    (f"step={'9' * 5000} loss=0.5", None),
    (f"step=1 loss={'9' * 5000}", (1, {"loss": math.inf})),
    ("we took 3 of 4 at step 7", None),
    ("listening on 127.0.0.1:8080 since 12:30:01", None),
    ("", None),
]


def test_a_line_is_a_step_and_numbers_or_nothing(subtests):
    for line, expected in LINES:
        with subtests.test(line[:80]):
            assert parse_line(line) == expected


@pytest.fixture
def log(tmp_path):
    """`log(*lines)`: a run read from a log of these."""

    def log(*lines):
        (tmp_path / "train.log").write_bytes("\n".join(lines).encode())
        return open_foreign(tmp_path / "train.log")

    return log


def test_a_log_is_a_run_named_after_it_with_times_where_lines_tell_them(log):
    run = log("hello", "step=0 loss=1", "[2024-07-17 07:43:01.5][I] step=1 loss=0.5", "step=2 loss=nan note=x")
    assert (run.name, run.state, run.facts["source"], run.windows) == ("train", "unknown", "log", [])
    assert run.rows.steps == [0, 1, 2]
    assert math.isnan(run.rows.times[0])
    assert run.rows.times[1:] == [datetime(2024, 7, 17, 7, 43, 1, 500000).timestamp()] * 2  # noqa: DTZ001  # local time
    assert run.rows.cells["loss"].values[:2] == [1, 0.5]
    assert math.isnan(run.rows.cells["loss"].values[2])


def test_a_step_that_comes_again_is_a_further_attempt_unless_other_metrics_are_told_of_it(log):
    run = log(*[f"step={step} loss=0.{step}" for step in (1, 2, 3, 2, 3, 4)])
    assert run.rows.attempts == [1, 1, 1, 2, 2, 2]
    assert run.table.steps == [1, 2, 3, 4]
    run = log("step=10 loss=0.5", "step=20 loss=0.4", "step=10 eval_loss=0.6", "step=20 eval_loss=0.5")
    assert set(run.rows.attempts) == {1}


@pytest.mark.parametrize("first", [0, 1])
def test_steps_that_begin_anew_in_each_epoch_are_counted_through(log, first):
    lines = [f"epoch={epoch} iter={step} loss=1" for epoch in range(3) for step in range(first, first + 4)]
    run = log(*lines)
    assert run.table.steps == list(range(first, first + 12))


@pytest.mark.parametrize("label", ["{}: ", " {}: ", "[{}] "], ids=["srun -l", "padded", "mpiexec -l"])
def test_of_lines_with_numbers_of_ranks_those_of_one_rank_count(log, label):
    lines = [f"{label.format(rank)}step={step} loss={step}.{rank}" for step in range(3) for rank in (1, 0)]
    run = log(*lines)
    assert (run.rows.steps, set(run.rows.attempts)) == ([0, 1, 2], {1})
    assert run.rows.cells["loss"].values == [0.0, 1.0, 2.0]


def test_numbers_of_lines_and_epochs_are_none_of_ranks(log):
    assert log(*[f"{line}: step={line} loss=1" for line in range(1, 5)]).table.steps == [1, 2, 3, 4]
    run = log(*[f"[{epoch}] step={step} loss=1" for epoch in range(2) for step in range(3)])
    assert run.rows.steps == [0, 1, 2, 0, 1, 2]


def test_printed_dicts_of_hugging_face_are_counted(log):
    lines = [f"{{'loss': '{4 - step / 10}', 'learning_rate': '1e-05', 'epoch': '0.{step}'}}" for step in range(1, 4)]
    run = log(*lines, "{'eval_loss': 3.5, 'epoch': 0.3}", "{'train_runtime': 9.0, 'train_loss': 3.0, 'epoch': 0.3}")
    assert run.rows.steps == [1, 2, 3, 3]
    assert run.table.cells["loss"].values == [3.9, 3.8, 3.7]
    assert set(run.table.cells) == {"loss", "learning_rate", "epoch", "eval_loss"}


@pytest.mark.parametrize(("head", "batch"), [("[batch={}/9]:", True), ("[epoch=0][batch={}/9]:", False)])
def test_blocks_of_composer_are_rows(log, head, batch):
    lines = []
    for step in range(3):
        lines += [head.format(step), f"\t Train time/batch: {step}"] if batch else [head.format(step)]
        lines += [f"\t Train loss/train/total: {4 - step / 10}", "a word between"]
    run = log(*lines)
    assert run.table.steps == [0, 1, 2]
    assert run.table.cells["loss/train/total"].values == [4.0, 3.9, 3.8]


def test_many_lines_of_one_epoch_do_not_tell_their_steps(log):
    assert log(*[f"epoch={epoch} loss=1" for epoch in range(30)]).table.steps == list(range(30))
    with pytest.raises(UsageError, match="nor lines such as"):
        log(*[f"epoch 1: {step} / 200 loss=1, wps=3" for step in range(30)])


def test_counted_dicts_of_other_epochs_are_not_paired(tmp_path):
    def write(name, each):
        lines = [f"{{'loss': '{3 - line / 100}', 'epoch': '{line * each}'}}\n" for line in range(1, 60)]
        (tmp_path / name).write_text("".join(lines))
        return open_foreign(tmp_path / name)

    [same] = compare_runs([write("a.log", 0.5), write("b.log", 0.5)])
    [other] = compare_runs([write("a.log", 0.5), write("c.log", 1.0)])
    assert (same.verdict.exit_code, other.verdict.exit_code) == (0, 2)
    assert "line 1 is of epoch 0.5 in A and 1.0 in B" in other.verdict.text


STATE = '{"log_history": [{"step": 10, "loss": 4.5, "epoch": 0.1}, {"step": 20, "loss": 4.0, "epoch": 0.2}]}'
LIGHTNING = "epoch,step,train_loss,val_loss\n0,10,4.5,\n0,20,4.0,\n0,20,,4.2\n"
ULTRALYTICS = "       epoch, train/box_loss\n  10,  4.5\n  20,  4.0\n"


MLFLOW = {
    "meta.yaml": "run_name: bold-cat\nstatus: 3\n",
    "metrics/train/loss": "1700000000123 4.5 10\n1700000000124 4.0 20\n1700000000125 3.0 1",
    "params/batch_size": "16",
}


@pytest.mark.parametrize(
    ("files", "path", "metric"),
    [
        ({"out/trainer_state.json": STATE}, "out", "loss"),
        ({"out/checkpoint-10/trainer_state.json": "{}", "out/checkpoint-20/trainer_state.json": STATE}, "out", "loss"),
        ({"out/version_0/metrics.csv": LIGHTNING}, "out", "train_loss"),
        ({"out/lightning_logs/version_3/metrics.csv": LIGHTNING}, "out", "train_loss"),
        ({"out/results.csv": ULTRALYTICS}, "out", "train/box_loss"),
        ({"out/mine.csv": LIGHTNING}, "out/mine.csv", "train_loss"),
        ({f"out/0/7/{name}": text for name, text in MLFLOW.items()}, "out/0/7", "train/loss"),
        ({f"out/mlruns/0/7/{name}": text for name, text in MLFLOW.items()}, "out", "train/loss"),
    ],
    ids=[
        *("trainer state", "of its last checkpoint", "Lightning", "its default folder", "ultralytics", "named"),
        *("MLflow", "its default folder"),
    ],
)
def test_files_of_other_trainers_are_runs(tmp_path, files, path, metric):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    run = open_foreign(tmp_path / path)
    assert set(run.table.steps) == {10, 20}
    assert list(series_of(run.table, metric).values) == [4.5, 4.0]


def test_a_folder_with_one_log_is_that_log(log, tmp_path):
    log("step=1 loss=0.5")
    (tmp_path / "notes.txt").write_text("nothing here")
    assert open_foreign(tmp_path).name == "train"


@pytest.mark.parametrize(
    ("files", "path", "told"),
    [
        ({}, "absent", "does not exist"),
        ({}, "", "neither metrics.jsonl of ezpz, nor a run-"),
        ({"a.log": b"no numbers"}, "a.log", "nor lines such as 'step=3 loss=0.5'"),
        ({"a.log": b"\x00\xff" * 500_000}, "a.log", "nor lines such as"),
        ({"trainer_state.json": b'{"log_history": 3}'}, "trainer_state.json", "expected one of these"),
        (
            {"version_0/metrics.csv": b"step,loss\n1,2\n", "version_1/metrics.csv": b"step,loss\n1,2\n"},
            "",
            "2 runs in .*: version_0, version_1; expected one run",
        ),
        ({"a.log": b"step=1 loss=2", "b.log": b"step=1 loss=2"}, "", "2 logs in .*: a.log, b.log; expected one run"),
    ],
    ids=["absent", "empty", "words", "binary", "no state", "versions", "two"],
)
def test_what_is_no_run_is_one_clear_error(tmp_path, files, path, told):
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=told) as error:
        open_foreign(tmp_path / path)
    assert "\n" not in str(error.value)
