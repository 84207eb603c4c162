"""What `prepare` and `Loop(data=)` promise of all ranks together; pytest runs this file inside every rank."""

import functools
import json
import operator
import tempfile
import weakref
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import ezpz
from ezpz.checkpoint import Checkpoints
from ezpz.errors import UsageError
from ezpz.train import Loop, TokenBatches, evaluate

SAMPLES = 23


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


class Stream(IterableDataset):
    def __init__(self, samples=SAMPLES):
        self.samples = samples

    def __iter__(self):
        return iter(range(self.samples))


class WithState(Stream):
    """Counts what it reads, so that a test sees whether it was skipped."""

    def __init__(self, samples=SAMPLES):
        super().__init__(samples)
        self.at = self.read = 0

    def __iter__(self):
        while self.at < self.samples:
            self.at, self.read = self.at + 1, self.read + 1
            yield self.at - 1
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def numbers(size=SAMPLES):
    return TensorDataset(torch.arange(size))


def seen(loader):
    """The ids that count in an epoch on all ranks, and how many batches each rank ran."""
    mine, runs = [], 0
    for batch in loader:
        ids = batch[0] if isinstance(batch, (tuple, list)) else batch
        mine += ids[: loader.samples].tolist()
        runs += 1
    return sorted(functools.reduce(operator.iadd, ezpz.gather_objects(mine), [])), ezpz.gather_objects(runs)


KINDS = {
    "loader": lambda: DataLoader(numbers(), batch_size=4, shuffle=True),
    "loader with workers": lambda: DataLoader(numbers(), batch_size=4, num_workers=1, persistent_workers=True),
    "data set": numbers,
    "list": lambda: [torch.tensor(number) for number in range(SAMPLES)],
    "stream": Stream,
    "stream with a state": WithState,
    "stream by a worker": lambda: DataLoader(Stream(), batch_size=4, num_workers=1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_comes_once_per_epoch_and_all_ranks_run_as_many_batches(kind):
    data = KINDS[kind]()
    loader = ezpz.prepare(data, batch_size=0 if isinstance(data, DataLoader) else 4)
    for _ in range(2):
        ids, runs = seen(loader)
        assert ids == list(range(SAMPLES))
        assert len(set(runs)) == 1


def test_a_rank_without_a_sample_repeats_one_that_does_not_count():
    ranks = ezpz.get_world_size()
    loader = ezpz.prepare(DataLoader(numbers(2 * ranks + 1), batch_size=2))
    weights = [(loader.weight, loader.samples) for _ in loader]
    assert weights[0] == (1.0, 2)
    assert sum(ezpz.gather_objects(weights[1][0])) == pytest.approx(ranks)
    assert sum(ezpz.gather_objects(weights[1][1])) == 1


def test_an_epoch_is_shuffled_anew_and_alike_for_every_number_of_ranks():
    def order(loader):
        mine = [batch[0].tolist() for batch in loader]
        return [one for step in zip(*ezpz.gather_objects(mine), strict=True) for part in step for one in part]

    size = 12 // ezpz.get_world_size()
    loader = ezpz.prepare(numbers(24), batch_size=size, seed=5)
    first, second = order(loader), order(loader)
    assert first != second
    for epoch, found in enumerate((first, second)):
        generator = torch.Generator().manual_seed(5 * 1_000_003 + epoch)
        assert found == torch.randperm(24, generator=generator).tolist()


def make(folder, data=None, *, batch_size=0, ids=None, model=None, **more):
    """A loop that notes the ids that count; with a fresh model unless it is given one."""
    model = ezpz.wrap_model(nn.Linear(1, 1), "ddp", dtype="fp32") if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def compute_loss(model, batch):
        x = batch[0] if isinstance(batch, (tuple, list)) else batch
        if ids is not None:
            ids.append(x.tolist())
        return model(x[:, None].float()).square().mean()

    checkpoints = Checkpoints(folder, model=model, optimizer=optimizer)
    return Loop(
        *(model, optimizer, compute_loss),
        data=data,
        batch_size=batch_size,
        checkpoints=checkpoints,
        log=lambda _: None,
        **more,
    )


def run(loop, folder):
    with ezpz.History("place", folder) as history:
        outcome = loop.run(history)
        history.finalize(plots=False)
    return outcome


def global_ids(ids):
    return Counter(one for each in ezpz.gather_objects(ids) for batch in each for one in batch)


@pytest.mark.parametrize("kind", ["data set", "stream", "stream with a state"])
def test_a_resumed_epoch_has_every_sample_once_with_another_batch_and_accumulation(kind, folder, capfd):
    ranks, before, after = ezpz.get_world_size(), [], []
    samples = 9 * ranks  # of which 4 per rank are done before, and 5 are left
    data = {"data set": numbers, "stream": Stream, "stream with a state": WithState}[kind]
    run(make(folder, data(samples), batch_size=4, steps=1, save_every=1, ids=before), folder)
    latest = max((folder / "checkpoints").glob("step-*"))
    loop = make(folder, data(samples), batch_size=1, accumulate=2, epochs=1, resume=latest, ids=after)
    assert run(loop, folder).steps == 1 + 3
    # The last step has one sample per rank for two batches: in one of the two each rank repeats a sample.
    counted, total = Counter(), global_ids(before) + global_ids(after)
    counted.update(total)
    assert sorted(counted) == list(range(samples))
    assert sum(counted.values()) == samples + ranks
    told = "".join(ezpz.gather_objects(capfd.readouterr().out))
    assert ("are read again and dropped" in told) == (kind == "stream")


def test_the_gradient_of_an_uneven_step_is_that_of_all_its_samples(folder):
    ranks = ezpz.get_world_size()
    torch.manual_seed(3)
    alone = nn.Linear(1, 1)
    model = nn.Linear(1, 1)
    model.load_state_dict(alone.state_dict())
    samples = 2 * ranks + 1
    data = ezpz.prepare(numbers(samples), batch_size=2, shuffle=False)
    model = ezpz.wrap_model(model, "ddp", dtype="fp32")
    run(make(folder, data, epochs=1, model=model, accumulate=2), folder)
    x = torch.arange(samples)[:, None].float()
    alone(x).square().mean().backward()
    with torch.no_grad():
        expected = [parameter - 1e-4 * parameter.grad for parameter in alone.parameters()]
    for ours, theirs in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(ours.detach(), theirs, rtol=1e-6, atol=1e-7)


class Rows(list):
    """A history that keeps the losses of its rows in memory."""

    def update(self, row, **_):
        self.append(row.get("loss", row.get("train_loss")))

    def sync(self):
        pass


@pytest.mark.parametrize(
    ("more", "lines"), [({}, 0), ({"accumulate": 2}, 0), ({"window": 2}, 3), ({"epoch_steps": 4}, 1)]
)
@pytest.mark.parametrize("rest", ["one", "all but one"])
def test_a_mean_of_an_uneven_step_is_recorded_as_the_mean_over_its_samples(more, lines, rest):
    """Three full steps and one that is not; the loss of a sample is its number."""
    ranks, accumulate = ezpz.get_world_size(), more.get("accumulate", 1)
    full = 2 * ranks * accumulate
    rest = 1 if rest == "one" else full - 1
    model = ezpz.wrap_model(nn.Linear(1, 1), "ddp", dtype="fp32")
    rows, told = Rows(), []
    data = TensorDataset(torch.arange(3 * full + rest).float())

    def compute_loss(model, batch):
        return (model(batch[0][:, None]) * 0 + batch[0][:, None]).mean(), {"twice": 2 * batch[0].mean()}

    loop = Loop(
        *(model, torch.optim.SGD(model.parameters(), lr=0.0), compute_loss),
        data=DataLoader(data, batch_size=2),
        epochs=1,
        log=told.append,
        **more,
    )
    loop.run(rows)
    means = [torch.arange(k * full, min((k + 1) * full, len(data))).float().mean().item() for k in range(4)]
    losses = [sum(each) / ranks for each in zip(*ezpz.gather_objects(list(rows)), strict=True)]
    if "epoch_steps" in more:
        assert losses == [pytest.approx((len(data) - 1) / 2)]
    else:
        assert losses == pytest.approx(means)
        assert rows[3] == pytest.approx(means[3])  # known to every rank
    if "window" in more and ezpz.get_rank() == 0:
        assert f"max={means[3]:g}" in told[-1] or rest > 1  # this one sample is all of the last step
        assert f"loss={(means[2] * full + means[3] * rest) / (full + rest):g}"[:9] in told[-1]


def test_batches_by_position_continue_by_samples_at_another_batch(folder):
    """What repeated half of what was trained: a run of 16 samples a step that continues with 8."""
    ranks = ezpz.get_world_size()
    tokens = torch.arange(4 * 8 * ranks + 1)
    ids = []

    def loop(size, steps, **more):
        model = ezpz.wrap_model(nn.Linear(1, 1), "ddp", dtype="fp32")
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

        def compute_loss(model, batch):
            ids.append((batch[0][:, 0] // 4).tolist())
            return model(batch[0][:, :1].float()).mean()

        batches = TokenBatches(tokens, 4, size)
        checkpoints = Checkpoints(folder, model=model, optimizer=optimizer)
        return Loop(
            *(model, optimizer, compute_loss, batches),
            steps=steps,
            batch_size=size,
            checkpoints=checkpoints,
            log=lambda _: None,
            **more,
        )

    run(loop(4, 1, save_every=1), folder)
    latest = max((folder / "checkpoints").glob("step-*"))
    run(loop(2, 3, resume=latest), folder)
    assert global_ids(ids) == Counter(range(8 * ranks))


def test_ranks_of_one_replica_see_the_same_batch():
    if ezpz.get_world_size() != 4:
        pytest.skip("needs two replicas of two")
    mesh = ezpz.init_mesh(dp_shard=2, tp=2)
    loader = ezpz.prepare(numbers(), batch_size=3)
    parts = ezpz.gather_objects([batch[0].tolist() for batch in loader])
    assert parts[0] == parts[1] != parts[2] == parts[3]
    assert ezpz.coordinate(mesh, "dp") == ezpz.get_rank() // 2
    ezpz.init_mesh()


def test_an_evaluation_counts_no_sample_twice():
    samples = 2 * ezpz.get_world_size() + 1  # so that all ranks but one repeat a sample at the end
    loader = ezpz.prepare(numbers(samples), batch_size=2, shuffle=False)
    means = evaluate(nn.Linear(1, 1), loader, lambda model, batch: batch[0].float().mean())
    assert means["loss"] == pytest.approx(torch.arange(samples).float().mean().item())


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_an_evaluation_holds_a_few_batches_at_once_and_all_ranks_compute_in_step(kind):
    ranks = ezpz.get_world_size()
    samples = 2 * ranks * 9 + 1
    data = numbers(samples) if kind == "map" else Stream(samples)
    loader = ezpz.prepare(data, batch_size=2, shuffle=False)
    seen, most, turns = [], 0, 0

    def compute(model, batch):
        nonlocal most, turns
        values = batch[0] if kind == "map" else batch
        turns += 1
        seen.append(weakref.ref(values))
        most = max(most, sum(each() is not None for each in seen))
        assert ezpz.all_reduce(turns, "max") == turns  # as a sharded model gathers its weights
        return values.float().mean()

    means = evaluate(nn.Linear(1, 1), loader, compute)
    assert means["loss"] == pytest.approx(torch.arange(samples).float().mean().item())
    assert (turns, most <= 3) == (10, True)


class OfThisRank(Stream):
    def __iter__(self):
        return iter(range(ezpz.get_rank(), self.samples, ezpz.get_world_size()))


def test_a_stream_that_is_cut_already_is_refused():
    if ezpz.get_world_size() == 1:
        pytest.skip("one rank reads all of it")
    with pytest.raises(UsageError, match="different streams"):
        list(ezpz.prepare(OfThisRank(), batch_size=2))
    with pytest.raises(UsageError, match="different data"):
        list(ezpz.prepare(numbers(5 + ezpz.get_rank()), batch_size=2))


def test_a_checkpoint_holds_the_place(folder):
    run(make(folder, numbers(8 * ezpz.get_world_size()), batch_size=2, steps=3, save_every=3), folder)
    if ezpz.get_rank() == 0:
        (latest,) = (folder / "checkpoints").glob("step-*")
        assert json.loads((latest / "checkpoint.json").read_text())["state"] == ["samples consumed"]
