"""What the loop promises of all ranks together; pytest runs this file inside every rank."""

import functools
import gc
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch import nn
from torch.nn.functional import cross_entropy

import ezpz
import ezpz.train.stopping
from ezpz.checkpoint import Checkpoints
from ezpz.train import BatchIndices, Cost, Loop, compile_loss, load_digits
from ezpz.train.stopping import NOTHING, SAVE, STOP, StopRequests

GLOBAL_BATCH, STEPS, LR, CLIP = 24, 10, 1e-2, 0.5
WINDOW = ["step", "loss", "max", "dt", "tps", "mfu"]


@pytest.fixture(scope="module", autouse=True)
def group_of_ranks():
    ezpz.setup_torch(seed=7)
    torch.set_num_threads(1)
    yield
    dist.barrier()
    ezpz.cleanup()


@pytest.fixture
def folder():
    """The same fresh folder on all ranks."""
    return Path(ezpz.broadcast(tempfile.mkdtemp() if ezpz.get_rank() == 0 else ""))


def network():
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def compute_loss(model, batch):
    images, labels = batch
    outputs = model(images)
    return cross_entropy(outputs, labels), {"accuracy": (outputs.argmax(1) == labels).float().mean()}


def batches(size, *, alone=False):
    images, labels = load_digits()
    place = {} if alone else {"rank": ezpz.get_rank(), "world_size": ezpz.get_world_size()}
    indices = BatchIndices(len(images), size, seed=3, **place)
    return lambda position: (images[indices(position)], labels[indices(position)])


def by_one_process():
    """Losses of plain torch on the whole batch, with clipping and a schedule."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    draw, losses = batches(GLOBAL_BATCH, alone=True), []
    for step in range(STEPS):
        loss = compute_loss(model, draw(step))[0]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def make_loop(strategy="ddp", *, accumulate=1, steps=STEPS, loss_of=compute_loss, **more):
    model = ezpz.wrap_model(network(), strategy, dtype="fp32")
    optimizer = ezpz.make_optimizer(model, torch.optim.AdamW, lr=LR)
    size = GLOBAL_BATCH // ezpz.get_world_size() // accumulate
    more = {"max_norm": CLIP, "schedule": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), **more}
    return Loop(model, optimizer, loss_of, batches(size), steps=steps, batch_size=size, accumulate=accumulate, **more)


@contextmanager
def recorded(folder):
    """A history that draws nothing at its end."""
    with ezpz.History("loop", folder) as history:
        yield history
        history.finalize(plots=False)


def rows_of(folder):
    """All rows, on all ranks."""
    dist.barrier()
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [record["m"] for record in map(json.loads, lines) if "k" not in record]


def global_losses(loop, folder):
    """The mean over ranks of each step's loss, as the history gathers it."""
    seen = []
    with recorded(folder) as history:
        update = history.update
        history.update = lambda row, **more: (seen.append(row["loss"]), update(row, **more))[1]
        loop.run(history)
    return [ezpz.all_reduce(loss, "mean") for loss in seen]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_any_number_of_ranks_follows_one_process(strategy, folder):
    assert global_losses(make_loop(strategy), folder) == pytest.approx(by_one_process(), abs=1e-5)


def test_accumulated_batches_are_the_whole_batch(folder):
    assert GLOBAL_BATCH % (3 * ezpz.get_world_size()) == 0
    losses = global_losses(make_loop("fsdp", accumulate=3), folder)
    assert losses == pytest.approx(by_one_process(), abs=1e-5)


def test_rates_and_times_fit_each_other(folder):
    tokens, flops = 64, 1e6
    os.environ["EZPZ_PEAK_FLOPS"] = "1e9"
    loop = make_loop(cost=Cost(flops, tokens), steps=30)
    del os.environ["EZPZ_PEAK_FLOPS"]
    with recorded(folder) as history:
        outcome = loop.run(history)
    ranks = ezpz.get_world_size()
    for row in rows_of(folder):
        assert row["sps"] * row["dt"] == pytest.approx(GLOBAL_BATCH)
        assert row["tps"] == pytest.approx(row["sps"] * tokens)
        assert row["sps_per_gpu"] * ranks == pytest.approx(row["sps"])
        assert row["tps_per_gpu"] * ranks == pytest.approx(row["tps"])
        assert row["mfu"] == pytest.approx(100 * flops * row["sps"] / (ranks * 1e9))
        assert row["dtd"] + row["dtf"] + row["dtb"] + row["dto"] == pytest.approx(row["dt"])
        assert min(row[name] for name in ("dtd", "dtf", "dtb", "dto")) > 0
    assert sum(outcome.times["dt"]) == pytest.approx(outcome.seconds, rel=0.05, abs=0.02)


def test_an_epoch_row_is_the_mean_over_its_steps_and_ranks(folder):
    loop = make_loop(epoch_steps=5, evaluate=lambda: {"test_acc": 50.0})
    with recorded(folder) as history:
        outcome = loop.run(history)
    rows = rows_of(folder)
    expected = by_one_process()
    assert [row["epoch"] for row in rows] == [1, 2]
    assert [row["test_acc"] for row in rows] == [50.0, 50.0]
    assert [row["train_loss"] for row in rows] == pytest.approx(
        [sum(expected[:5]) / 5, sum(expected[5:]) / 5], abs=1e-5
    )
    if ezpz.get_rank() == 0:
        assert sum(row["dt"] for row in rows) == pytest.approx(sum(outcome.times["dt"]))
    assert outcome.steps == STEPS


def test_a_line_per_window_has_losses_of_all_steps_and_ranks(folder):
    os.environ["EZPZ_PEAK_FLOPS"] = "1e9"
    lines, stepwise = [], []
    # One token per sample: where a fast machine has a tps of seven digits, no line would have room for the mfu.
    loop = make_loop(cost=Cost(1e6, 1), window=4, log=lines.append, evaluate=lambda: {"val_loss": 2.5})
    del os.environ["EZPZ_PEAK_FLOPS"]
    with recorded(folder) as history:
        update = history.update
        history.update = lambda row, **more: (stepwise.append(row["loss"]), update(row, **more))[1]
        loop.run(history)
    told = [dict(re.findall(r"(\w+)=(\S+)", line)) for line in lines]
    # A line of 80 columns leaves out what does not fit: at last the mfu, where another number is long.
    named = [[name for name in each if name != "mfu"] for each in told]
    assert named == [[name for name in WINDOW if name != "mfu"]] * 4 + [["step", "val_loss"]]
    assert any("mfu" in each for each in told)
    assert told.pop() == {"step": "10", "val_loss": "2.5"}
    assert [int(each["step"]) for each in told] == [1, 4, 8, 10]
    assert all(re.search(r" dt=\S+ s tps=\S+ tok/s( mfu=\S+ %)?$", line) for line in lines[:-1])
    for each, (first, end) in zip(told, ((0, 1), (1, 4), (4, 8), (8, 10)), strict=True):
        losses = stepwise[first:end]
        mean, most = ezpz.all_reduce(sum(losses) / len(losses), "mean"), ezpz.all_reduce(max(losses), "max")
        assert float(each["loss"]) == pytest.approx(mean, rel=1e-2)
        assert float(each["max"]) == pytest.approx(most, rel=1e-2)
    rows = rows_of(folder)
    for each, (first, end) in zip(told, ((0, 1), (1, 4), (4, 8), (8, 10)), strict=True):  # the rows are rank 0's
        if ezpz.get_rank() == 0:
            seconds = sum(row["dt"] for row in rows[first:end])
            tokens = (end - first) * GLOBAL_BATCH
            mfu = tokens / ezpz.get_world_size() * 1e6 / seconds / 1e9 * 100
            assert float(each["tps"]) == pytest.approx(tokens / seconds, rel=1e-2)
            assert "mfu" not in each or float(each["mfu"]) == pytest.approx(mfu, rel=1e-2)
            assert float(each["dt"]) == pytest.approx(seconds / (end - first), rel=1e-2)
    assert [row["iter"] for row in rows if "global_max_loss" in row] == [0, 3, 7, 9]


def test_garbage_is_collected_between_steps_and_by_python_again_afterwards(folder):
    seen = []
    assert gc.isenabled()
    before = gc.get_stats()[1]["collections"]
    loop = make_loop(gc_every=3, ended=lambda: seen.append(gc.isenabled()))
    with recorded(folder) as history:
        loop.run(history)
    assert seen == [False] * STEPS
    assert gc.isenabled()
    assert gc.get_stats()[1]["collections"] - before >= STEPS // 3


class Layers(nn.Module):
    """What a backward that counts for nothing could change: running statistics, and random numbers of three kinds."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Dropout(0.2)
        self.last = nn.Linear(32, 10)

    def forward(self, images):
        images = images * (1 + 0.01 * random.random() + 0.01 * np.random.rand())  # noqa: NPY002  # the state that everybody shares
        return self.last(self.drop(torch.relu(self.norm(self.first(images)))))


class Recomputed(Layers):
    """The same, with activations that are computed again in the backward."""

    def forward(self, images):
        return torch.utils.checkpoint.checkpoint(super().forward, images, use_reentrant=False)


class Unused(Layers):
    """The same with a layer that no output depends on."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(4, 4)


RESUMED = {
    "ddp": ("ddp", Layers, {}),
    "zero1": ("zero1", Layers, {}),
    "ddp, recomputed": ("ddp", Recomputed, {}),
    "ddp, accumulated": ("ddp", Layers, {"accumulate": 2}),
    "ddp, an unused layer": ("ddp", Unused, {"find_unused_parameters": True}),
}


@pytest.mark.parametrize("case", RESUMED)
def test_a_resumed_run_has_the_losses_of_the_unbroken_one_bit_for_bit(case, folder):
    strategy, make, more = RESUMED[case]
    accumulate, of_ddp = more.get("accumulate", 1), {k: v for k, v in more.items() if k != "accumulate"}

    def run(name, steps, *, resume=None):
        torch.manual_seed(5)
        random.seed(100 + ezpz.get_rank())
        np.random.seed(100 + ezpz.get_rank())  # noqa: NPY002
        model = ezpz.wrap_model(make(), strategy, dtype="fp32", **of_ddp)
        optimizer = ezpz.make_optimizer(model, torch.optim.AdamW, lr=LR)
        size = GLOBAL_BATCH // ezpz.get_world_size() // accumulate
        saves = Checkpoints(folder / name, model=model, optimizer=optimizer)
        at = {"batch_size": size, "accumulate": accumulate, "checkpoints": saves, "save_every": 5, "resume": resume}
        loop = Loop(model, optimizer, compute_loss, batches(size), steps=steps, **at)
        return global_losses(loop, folder / f"{name}-{steps}"), saves.latest

    unbroken, _ = run("unbroken", 10)
    before, saved = run("broken", 5)
    after, _ = run("broken", 10, resume=saved)
    assert before + after == unbroken


@pytest.mark.usefixtures("quick")
def test_checkpoints_by_the_clock_are_of_one_step_on_all_ranks(folder):
    saves = Saves()
    loop = make_loop(steps=60, checkpoints=saves, save_seconds=0.3, ended=lambda: time.sleep(0.02))
    began = time.monotonic()
    with recorded(folder) as history:
        loop.run(history)
    assert 2 <= len(saves.steps) <= 2 + (time.monotonic() - began) / 0.3, saves.steps
    assert ezpz.all_ranks_agree(saves.steps)


class Saves:
    """Checkpoints that are only counted."""

    def __init__(self):
        self.steps, self.waited = [], 0

    def include(self, name, stateful, *, optional=False):
        pass

    def complete(self, **objects):
        pass

    def claim(self):
        pass

    def save(self, step, *, wait=False):
        self.steps.append((step, wait))

    def wait(self):
        self.waited += 1


def signalled(saves, number, folder, *, steps, at):
    """Run a loop whose ranks get a signal after the steps in `at`; return whether it ended by SIGTERM."""
    caught = []
    before = signal.signal(signal.SIGTERM, lambda *_: caught.append(1))
    count = [0]

    def ended():
        count[0] += 1
        if count[0] == at.get(ezpz.get_rank()):
            signal.raise_signal(number)

    loop = make_loop(steps=steps, checkpoints=saves, ended=ended)
    try:
        with recorded(folder) as history:
            loop.run(history)
    finally:
        signal.signal(signal.SIGTERM, before)
    return bool(caught)


@pytest.fixture
def quick(monkeypatch):
    """Ask ranks twenty times per second, so that a short loop hears a signal."""
    monkeypatch.setattr(ezpz.train.stopping, "_EVERY", 0.05)


@pytest.mark.usefixtures("quick")
def test_a_signal_to_one_rank_saves_on_all_of_them_at_one_step_and_goes_on(folder):
    saves = Saves()
    last = ezpz.get_world_size() - 1
    assert not signalled(saves, signal.SIGUSR2, folder, steps=100, at={last: 3})
    assert len(saves.steps) == 1, saves.steps
    assert 3 <= saves.steps[0][0] <= 100
    assert ezpz.all_ranks_agree(saves.steps)
    assert len(rows_of(folder)) == 100
    assert saves.waited == 1


@pytest.mark.usefixtures("quick")
def test_a_signal_that_ranks_get_one_after_the_other_saves_once(folder):
    saves = Saves()
    at = {rank: 3 + 40 * rank for rank in range(ezpz.get_world_size())}
    assert not signalled(saves, signal.SIGUSR2, folder, steps=300, at=at)
    assert len(saves.steps) == 1, saves.steps
    assert ezpz.all_ranks_agree(saves.steps)


@pytest.mark.usefixtures("quick")
def test_sigterm_to_one_rank_saves_and_stops_all_of_them_at_one_step(folder):
    saves = Saves()
    assert signalled(saves, signal.SIGTERM, folder, steps=5000, at={0: 3})
    ((step, wait),) = saves.steps
    assert wait
    assert 3 <= step < 5000
    assert ezpz.all_ranks_agree(saves.steps)
    rows = rows_of(folder)
    assert [row["iter"] for row in rows] == list(range(step))
    assert "dt_save" in rows[-1]


@pytest.fixture
def asked(monkeypatch):
    """One entry for each reduction that ranks have begun."""
    begun, reduce = [], dist.all_reduce
    monkeypatch.setattr(dist, "all_reduce", lambda *args, **more: (begun.append(1), reduce(*args, **more))[1])
    return begun


def test_ranks_are_asked_about_once_per_second_and_not_once_per_step(asked):
    steps, began = 20_000, time.monotonic()
    with StopRequests() as requests:
        assert all(requests.after(step) == NOTHING for step in range(steps))
    if ezpz.get_world_size() > 1:
        assert 2 <= len(asked) <= 5 + steps / 1000 + 2 * (time.monotonic() - began)
    else:
        assert not asked


def test_ranks_of_a_resumed_run_ask_each_other_again_after_one_step(asked):
    """The steps before the resume took this run no time: a signal would have been noticed a thousand steps later."""
    with StopRequests() as requests:
        requests.after(100_000)
        requests.after(100_001)
    assert len(asked) == (2 if ezpz.get_world_size() > 1 else 0)


def test_wishes_are_heard_in_their_order(monkeypatch):
    monkeypatch.setattr(ezpz.train.stopping, "_EVERY", 0.0)  # ask at every step, however fast they are
    heard = []
    with StopRequests() as requests:
        for step in range(6):
            if step == 1:
                signal.raise_signal(signal.SIGUSR2)
            heard.append(requests.after(step))
        assert heard.count(SAVE) == 1
        assert set(heard) == {NOTHING, SAVE}
        signal.raise_signal(signal.SIGTERM)
        heard += [requests.after(step) for step in range(6, 9)]
        assert heard[6:].count(STOP) == 1


def test_one_graph_of_model_and_loss_learns_as_the_plain_model(folder, monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    monkeypatch.setenv("CXX", sys.executable)  # any program: this backend builds nothing
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))  # torch writes it when it imports its compiler
    found = []
    for name, loss_of in {"plain": compute_loss, "graph": compile_loss(compute_loss)}.items():
        with recorded(folder / name) as history:
            make_loop(loss_of=loss_of, steps=4).run(history)
        found.append([row["loss"] for row in rows_of(folder / name)])
    assert found[0] == pytest.approx(found[1], rel=1e-5)
