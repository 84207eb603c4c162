"""A training whose loss becomes NaN: in real ranks, on a rank and at a step drawn at random; and the rule alone."""

import json
import math
import random
import sys
import textwrap
import weakref
from pathlib import Path

import pytest

import ezpz
from ezpz.errors import UsageError
from ezpz.train.lost_loss import LossWatch

SOURCES = str(Path(ezpz.__file__).parents[1])
FIRST = random.SystemRandom()


@pytest.fixture
def env(clean_env):
    return {**clean_env, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"}


class Batch:
    def __init__(self, step):
        self.step = step


class Step:
    """What the watch asks of a step."""

    def __init__(self, step, loss, own=None):
        self.step, self._loss, self._own = step, loss, loss if own is None else own

    def numbers(self):
        return {"loss": self._loss}

    def own_loss(self):
        return self._own


def noticed_after(losses, *, skips=False):
    """The step whose loss makes the watch ask for an end; None if none does."""
    watch, told, now = LossWatch("stop", skips=skips), [], [0]
    watch.noticed = lambda: told.append(now[0])
    for now[0], loss in enumerate(losses):
        watch.look(Step(now[0], loss))
    assert len(told) <= 1, "it asks once"
    return told[0] if told else None


def test_a_loss_that_is_no_number_is_noticed_at_its_step(subtests):
    for lost in (math.nan, math.inf, -math.inf):
        with subtests.test(lost=lost):
            assert noticed_after([1.0, 0.5, lost, lost, 1.0]) == 2
            assert noticed_after([1.0, 0.5, 1e300]) is None


def test_steps_that_a_gradient_scaler_leaves_out_are_none():
    assert noticed_after([1.0, *[math.inf] * 16, 1.0, *[math.nan] * 16, 1.0], skips=True) is None
    assert noticed_after([1.0, *[math.inf] * 16, 1.0, *[math.nan] * 17], skips=True) == 34


def test_a_word_that_is_none_of_the_three_is_refused():
    with pytest.raises(UsageError, match=r"unusable on_nan='halt' .*expected one of go-on, stop, dump"):
        LossWatch("halt", skips=False)


def test_batches_are_let_go_when_their_loss_was_looked_at():
    watch = LossWatch("dump", skips=False)
    held = weakref.WeakSet()

    def keep(step):
        batch = Batch(step)
        held.add(batch)
        watch.keep(step, batch)

    for step in range(200):
        keep(step)
    assert len(held) == 64
    for step in range(199):
        watch.look(Step(step, 1.0))
    watch.look(Step(199, math.nan))
    keep(200)
    assert [batch.step for batch in held] == [199]


SCRIPT = """
    import json, sys
    import torch
    import ezpz
    from ezpz.errors import EzpzError, end_with
    from ezpz.checkpoint import Checkpoints
    from ezpz.train import Loop

    how = json.loads(sys.argv[1])
    rank = ezpz.setup_torch(seed=1)
    model = ezpz.wrap_model(torch.nn.Linear(3, 1), how["strategy"], dtype="fp32")
    optimizer = ezpz.make_optimizer(model, torch.optim.SGD, lr=1e-4)

    def batches(position):
        torch.manual_seed(position)
        batch = torch.rand(2, 3) + 10 * rank
        return batch.fill_(float("nan")) if (rank, position) == (how["rank"], how["step"]) else batch

    def compute_loss(model, batch):
        loss = (model(batch) ** 2).mean()
        return (loss * 2, 2) if how["sums"] else loss

    try:
        with ezpz.History("lost", "run") as history:
            saved = Checkpoints(history.outdir, model=model, optimizer=optimizer) if how["save"] else None
            Loop(model, optimizer, compute_loss, batches, steps=how["steps"], batch_size=2, checkpoints=saved,
                 save_every=how["save"], on_nan=how["on_nan"]).run(history)
    except EzpzError as error:
        print(f"rank {rank}: {type(error).__name__}", flush=True)
        sys.exit(end_with(error, "mine"))
    ezpz.cleanup()
"""


def run_lost(run_cli, env, **how):
    how = {"strategy": "ddp", "sums": False, "steps": 4000, "save": 0, "on_nan": "stop", **how}
    launch = [sys.executable, "-m", "ezpz.launch", "-n", 2, sys.executable, "-c", textwrap.dedent(SCRIPT)]
    return run_cli([*launch, json.dumps(how)], env, 240)


def last_step(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return max(row["step"] for row in rows if "k" not in row)


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.parametrize("sums", [False, True], ids=["means", "sums"])
def test_all_ranks_stop_at_the_same_step(run_cli, env, tmp_path, sums):
    rank, step = FIRST.randrange(2), FIRST.randrange(1, 300)
    done = run_lost(run_cli, env, rank=rank, step=step, sums=sums)
    told = f"planted on rank {rank} at step {step}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == 1, told
    assert f"mine: loss=nan on rank {rank} at step {step}; all ranks ended after step " in done.stderr, told
    assert done.stderr.count("mine: loss=nan") == 1, told
    assert "Traceback" not in done.stderr, told
    assert step <= last_step(tmp_path / "run") < 3999, told
    assert json.loads((tmp_path / "run" / "run.json").read_text())["state"] == "failed", told
    assert not (tmp_path / "run" / "nan").exists(), told


@pytest.mark.dear
@pytest.mark.slow
def test_no_checkpoint_is_written_from_after_the_nan(run_cli, env, tmp_path):
    rank, step = FIRST.randrange(2), FIRST.randrange(1, 12)
    done = run_lost(run_cli, env, rank=rank, step=step, save=2, steps=12)  # over before ranks ask each other
    told = f"planted on rank {rank} at step {step}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == 1, told
    assert f"mine: loss=nan on rank {rank} at step {step}; " in done.stderr, told
    saved = sorted(int(path.name.split("-")[-1]) for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert saved == list(range(2, step + 1, 2))[-3:], told


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_dump_writes_the_batch_and_the_model_of_the_first_rank(run_cli, env, tmp_path, strategy):
    import torch

    rank, step = FIRST.randrange(2), FIRST.randrange(1, 300)
    done = run_lost(run_cli, env, rank=rank, step=step, strategy=strategy, on_nan="dump")
    told = f"planted on rank {rank} at step {step}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == 1, told
    assert [path.name for path in (tmp_path / "run" / "nan").iterdir()] == [f"rank-{rank}-step-{step}.pt"], told
    path = tmp_path / "run" / "nan" / f"rank-{rank}-step-{step}.pt"
    assert f"{path} has the batch of that step and this rank's part of the model after step " in done.stderr, told
    content = torch.load(path)
    assert (content["rank"], content["step"]) == (rank, step)
    assert math.isnan(content["loss"])
    [batch] = content["batches"]
    assert batch.shape == (2, 3)
    assert batch.isnan().all()
    assert {name.rpartition(".")[2] for name in content["model"]} == {"weight", "bias"}
    assert content["model_after_step"] == last_step(tmp_path / "run")


@pytest.mark.dear
@pytest.mark.slow
def test_by_itself_the_training_goes_on(run_cli, env, tmp_path):
    done = run_lost(run_cli, env, rank=1, step=5, steps=20, on_nan="go-on")
    assert done.returncode == 0, done.stdout + done.stderr
    assert last_step(tmp_path / "run") == 19


@pytest.mark.dear
@pytest.mark.slow
def test_a_trainer_takes_the_word_from_the_command_line(run_cli, env):
    words = ["--on-nan", "stop", "--lr", "1e30", "--no-plots", "--outdir", "run", "--train-iters", "400"]
    launch = [sys.executable, "-m", "ezpz.launch", "-n", 2]
    done = run_cli([*launch, sys.executable, "-m", "ezpz.test_dist", *words], env, 240)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.count("ezpz.test_dist: loss=") == 1, done.stdout + done.stderr
    assert "(on_nan=stop)" in done.stderr


SINGLE = """
    import sys, torch, ezpz
    from ezpz.errors import EzpzError, end_with
    from ezpz.train import Loop

    ezpz.setup_torch(seed=1)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    try:
        with ezpz.History("lost", "run") as history:
            if sys.argv[1] == "no folder":
                (history.outdir / "nan").write_text("a file")
            Loop(model, optimizer, lambda model, batch: (model(batch[0]) ** 2).mean(),
                 lambda position: (torch.rand(2, 3) * (float("nan") if position == 7 else 1.0), lambda: 1),
                 steps=500, batch_size=2, on_nan="dump").run(history)
    except EzpzError as error:
        sys.exit(end_with(error, "mine"))
"""


@pytest.mark.slow
def test_of_a_batch_that_cannot_be_written_the_model_is(run_cli, env, tmp_path):
    import torch

    done = run_cli([sys.executable, "-c", textwrap.dedent(SINGLE), "a lambda"], env)
    assert done.returncode == 1, done.stdout + done.stderr
    [path] = (tmp_path / "run" / "nan").iterdir()
    content = torch.load(path)
    assert content["batches"] is None
    assert set(content["model"]) == {"weight", "bias"}
    assert f"{path} has no batch (it cannot be written: " in done.stderr, done.stderr


@pytest.mark.slow
def test_where_nothing_can_be_written_the_line_says_so_and_the_run_ends(run_cli, env, tmp_path):
    done = run_cli([sys.executable, "-c", textwrap.dedent(SINGLE), "no folder"], env)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "mine: loss=nan on rank 0 at step 7; " in done.stderr
    assert (
        f"Nothing could be written to {tmp_path / 'run' / 'nan' / 'rank-0-step-7.pt'}: FileExistsError" in done.stderr
    )
    assert (tmp_path / "run" / "nan").read_text() == "a file"
