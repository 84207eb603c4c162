"""What `prepare` and `Loop(data=)` promise of all ranks together; pytest runs this file inside every rank."""

import functools
import itertools
import json
import operator
import random
import tempfile
import weakref
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    get_worker_info,
)

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


@pytest.mark.parametrize("used", ["", "weight", "samples", "scale_loss", "even", "drop_last", "evaluation"])
def test_a_loop_that_does_not_weigh_an_uneven_batch_is_told_once(used, monkeypatch):
    ranks, warned = dist.get_world_size(), []
    monkeypatch.setattr("ezpz.log.logging.Logger.warning", lambda _self, text, *_, **__: warned.append(text))
    left = {"even": 0, "evaluation": 1}.get(used, 3)
    loader = ezpz.prepare(list(range(4 * ranks + left)), batch_size=4, drop_last=used == "drop_last")
    for _ in range(2):
        for batch in loader:
            if used in {"weight", "samples"}:
                getattr(loader, used)
            elif used == "scale_loss":
                ezpz.scale_loss(batch.sum(), len(batch))
    if used == "evaluation":  # there sums and counts are right as long as nothing is repeated
        warned.clear()
        with torch.no_grad():
            for _ in ezpz.prepare(list(range(4 * ranks + 2 * ranks)), batch_size=4):
                pass
    told = [text for text in warned if "`(loss * loader.weight).backward()`" in text]
    assert len(told) == (not used and ranks > 1), warned


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


class ByWorker(Stream):
    """Shares itself out as the documentation of torch does."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return iter(range(first, self.samples, step))


def cut_by_rank(samples):
    rank, ranks = ezpz.get_rank(), ezpz.get_world_size()
    return Subset(numbers(samples), range(rank * samples // ranks, (rank + 1) * samples // ranks))


@pytest.mark.parametrize("kind", ["data set", "stream", "stream with a state", "stream in parts", "cut"])
def test_a_resumed_epoch_has_every_sample_once_with_another_batch_and_accumulation(kind, folder, capfd):
    ranks, before, after = ezpz.get_world_size(), [], []
    samples = 9 * ranks  # of which 4 per rank are done before, and 5 are left
    data = {"data set": numbers, "stream": Stream, "stream with a state": WithState, "stream in parts": ByWorker}.get(
        kind
    )
    if kind == "cut":

        def data(samples):
            size = 1 if before else 4
            return ezpz.prepare(cut_by_rank(samples), batch_size=size, cut=True)

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
    is_whole = kind == "stream" or (kind == "stream in parts" and ranks == 1)
    assert ("are read again and dropped" in told) == is_whole


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", ["data set", "batches", "stream", "stream in parts"])
def test_parts_that_ranks_have_cut_weigh_as_their_samples_do(kind, accumulate):
    """Rank 0 has 3 samples, each other rank 8: the average over ranks of weighed means is the mean of a step."""
    rank, ranks = ezpz.get_rank(), ezpz.get_world_size()
    own = range(3) if rank == 0 else range(8 * rank, 8 * rank + 8)
    data = {
        "data set": lambda: DataLoader(Subset(numbers(8 * ranks), own), batch_size=2),
        "batches": lambda: DataLoader(
            numbers(8 * ranks), batch_sampler=[[*own[k : k + 2]] for k in range(0, len(own), 2)]
        ),
        "stream": lambda: DataLoader([*own], batch_size=2),
        "stream in parts": lambda: DataLoader(OwnByWorker(own), batch_size=2, num_workers=2),
    }[kind]()
    loader, seen = ezpz.prepare(data, cut=True), []
    if kind != "stream in parts":
        assert len(loader) == (4 if ranks > 1 else 2)
    for each in loader.epoch_batches(accumulate):
        x = each.batch[0] if isinstance(each.batch, list) else each.batch
        seen.append((x.float().mean().item() * each.share, x[: each.samples].tolist(), each.is_even))
    every = ezpz.gather_objects(seen)
    assert len({len(each) for each in every}) == 1
    ids = []
    for first in range(0, len(seen), accumulate):
        step = [each for theirs in every for each in theirs[first : first + accumulate]]
        own = [one for _, each, _ in step for one in each]
        assert sum(mean for mean, _, _ in step) / ranks == pytest.approx(sum(own) / len(own))
        assert all(even == (len({len(each) for _, each, _ in step}) == 1) for _, _, even in step)
        ids += own
    assert sorted(ids) == [*range(3), *range(8, 8 * ranks)]


class OwnByWorker(Stream):
    def __init__(self, own):
        super().__init__()
        self.own = own

    def __iter__(self):
        info = get_worker_info()
        return iter(self.own[info.id :: info.num_workers])


def test_ranks_of_one_replica_read_the_same_parts():
    ranks = ezpz.get_world_size()
    mesh = ezpz.init_mesh(tp=ranks)
    try:
        for workers in (0, 2):
            loader = ezpz.prepare(DataLoader(ByWorker(), batch_size=4, num_workers=workers))
            mine = [batch[: loader.samples].tolist() for batch in loader]
            assert ezpz.all_ranks_agree(mine)
            assert sorted(itertools.chain(*mine)) == list(range(SAMPLES))
    finally:
        ezpz.init_mesh()
    assert ezpz.degree(mesh, "dp") == 1


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


def draw():
    """A number of each of the process' own generators."""
    return torch.rand(1).item(), random.random(), np.random.rand()  # noqa: NPY002  # what data sets of users draw from


class Tensors(IterableDataset):
    """Samples of any kind, in an order that the epoch draws from the process' own generators."""

    def __init__(self, wrap=lambda x: x):
        self.wrap = wrap

    def __iter__(self):
        order = list(range(SAMPLES))
        random.shuffle(order)
        order = torch.tensor(order)[torch.randperm(SAMPLES)]
        for number in order[np.random.permutation(SAMPLES)]:  # noqa: NPY002
            yield self.wrap(number)


class Odd:
    """No tensor, and nothing that can be summed up or pickled."""

    def __init__(self, number):
        self.number, self.call = {number.item()}, lambda: None


WRAPPED = {
    "tensor": lambda x: x,
    "nested": lambda x: {"x": (x, [x.float().numpy()]), "object": np.array([str(x)], dtype=object)},
    "object": Odd,
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", WRAPPED)
def test_a_stream_that_shuffles_itself_is_the_same_on_all_ranks_in_every_epoch(kind, workers):
    def collate(samples):
        found = [one["x"][0] if kind == "nested" else one for one in samples]
        return torch.tensor([next(iter(one.number)) if kind == "object" else int(one) for one in found])

    stream = Tensors(WRAPPED[kind])
    loader = ezpz.prepare(DataLoader(stream, batch_size=4, num_workers=workers, collate_fn=collate))
    order = []
    for _ in range(3):
        mine = []
        for batch in loader:
            mine += batch[: loader.samples].tolist()
            for _ in range(ezpz.get_rank()):  # a rank that draws more than others
                draw()
        order.append(functools.reduce(operator.iadd, ezpz.gather_objects(mine), []))
        assert sorted(order[-1]) == list(range(SAMPLES))
    assert order[0] != order[1] != order[2]


def test_the_numbers_of_the_training_are_not_those_of_its_stream():
    ezpz.seed_everything(5)
    expected = draw()
    ezpz.seed_everything(5)
    next(iter(ezpz.prepare(Tensors(), batch_size=4)))
    assert draw() == expected


class OfThisRank(Stream):
    """Cut by rank from some epoch on, at some sample of it."""

    def __init__(self, epoch=0, at=0):
        super().__init__()
        self.epoch, self.at, self.now = epoch, at, 0

    def set_epoch(self, epoch):
        self.now = epoch

    def __iter__(self):
        own = ezpz.get_rank() * 100 if self.now == self.epoch else 0
        return iter(number + own * (number >= self.at) for number in range(self.samples))


class Files(Dataset):
    """Samples that are slow and random, of which it knows the names."""

    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return torch.rand(1) + ezpz.get_rank()


class ArrowRows:
    """As `datasets.Dataset`: its rows in Arrow are what its transforms begin with."""

    def __init__(self, rows, plain=False):
        self.rows, self.plain = rows, plain

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = {"id": self.rows[index]}
        return SimpleNamespace(to_pylist=lambda: [row]) if self.plain else {**row, "crop": random.random()}

    def with_format(self, _):
        return ArrowRows(self.rows, plain=True)


ArrowRows.__module__ = "datasets.arrow_dataset"


def by_rank(sequence, count=6):
    return list(sequence[ezpz.get_rank() * count :][:count])


LETTERS = "abcdefghijklmnopqrstuvwxyz"
NOT_ALIKE = {
    "a stream that is cut already": (OfThisRank, "in epoch 0 the first sample of rank 1 is not that"),
    "a later epoch": (lambda: OfThisRank(1), "in epoch 1 the first sample of rank 1 is not that of rank 0"),
    "the end of an epoch": (lambda: OfThisRank(1, 9), r"samples of epoch 1 were not the same .* from step [23] of it"),
    "another length": (lambda: numbers(5 + ezpz.get_rank()), "samples=5 on rank 0 and samples=6 on rank 1"),
    "a list": (lambda: by_rank(LETTERS), r"the list\[0\] is 'a' on rank 0 and 'g' on rank 1"),
    "tensors": (lambda: TensorDataset(torch.zeros(6), torch.tensor(by_rank(range(30)))), r"tensors\[1\]\[0\] is 0"),
    "a subset": (
        lambda: Subset(numbers(30), by_rank(range(30))),
        r"Subset.indices\[0\] is 0 on rank 0 and 6 on rank 1",
    ),
    "files": (lambda: Files(["first", *by_rank(LETTERS)]), r"Files.files\[1\] is 'a' on rank 0 and 'g' on rank 1"),
    "rows of Hugging Face": (
        lambda: ArrowRows(by_rank(LETTERS)),
        r"Rows\[0\] is {'id': 'a'} on rank 0 and {'id': 'g'} on",
    ),
    "sets in a set": (
        lambda: ConcatDataset([Files("same"), Subset(Files(by_rank(LETTERS)), range(3))]),
        r"ConcatDataset.datasets\[1\].dataset.files\[0\] is 'a'",
    ),
    "a sampler that knows the rank": (
        lambda: DataLoader(numbers(30), batch_size=2, sampler=by_rank(range(30))),
        "the order of list is not the same on all ranks",
    ),
    "a sampler": (
        lambda: DataLoader(numbers(30), batch_size=2, sampler=SubsetRandomSampler(by_rank(range(30)))),
        r"the sampler's indices\[0\] is 0 on rank 0",
    ),
}


@pytest.mark.parametrize("kind", NOT_ALIKE)
def test_data_that_differ_by_rank_are_refused_on_all_ranks_with_the_same_words(kind, monkeypatch):
    if ezpz.get_world_size() == 1:
        pytest.skip("one rank reads all of it")
    make, says = NOT_ALIKE[kind]

    def epochs(data):
        loader = ezpz.prepare(data, batch_size=0 if isinstance(data, DataLoader) else 2)
        for _ in range(2):
            list(loader)

    with pytest.raises(UsageError, match=says) as caught:
        epochs(make())
    assert ezpz.all_ranks_agree(str(caught.value))
    if "samples=" not in says:
        monkeypatch.setenv("EZPZ_COMPARE_DATA", "0")
        epochs(make())


def test_what_differs_and_is_no_data_is_not_refused():
    """Random samples, caches, what a rank keeps for itself, and what nobody can compare."""
    data = Files(list(LETTERS))
    data.rank, data.cache = ezpz.get_rank(), [None] * (26 - ezpz.get_rank()) + [Odd(torch.ones(()))] * ezpz.get_rank()
    data.tables = {"mine": ezpz.get_rank()}
    ids, _ = seen(ezpz.prepare(data, batch_size=4))
    assert len(ids) == 26
    list(ezpz.prepare(ArrowRows(LETTERS), batch_size=2))
    list(ezpz.prepare([Odd(torch.ones(())) for _ in range(4)], batch_size=2, collate_fn=len))


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_no_batch_of_an_epoch_has_one_sample_which_batch_norm_would_refuse(kind):
    ranks = ezpz.get_world_size()
    model = nn.BatchNorm1d(1)
    for samples in range(3 * ranks, 6 * ranks + 2):
        data = numbers(samples) if kind == "map" else Stream(samples)
        loader, ids = ezpz.prepare(data, batch_size=3), []
        for batch in loader:
            x = batch[0] if kind == "map" else batch
            ids += x[: loader.samples].tolist()
            model(x[:, None].float())
        assert sorted(functools.reduce(operator.iadd, ezpz.gather_objects(ids), [])) == list(range(samples))


def test_the_order_follows_from_the_seed_of_the_run_and_a_resumed_one_goes_on_in_its_own(capfd):
    def order(loader, state=None):
        if state is not None:
            loader.load_state_dict(state)
        return [batch[0].tolist() for batch in loader]

    of_run, chosen = order(ezpz.prepare(numbers(), batch_size=4)), order(ezpz.prepare(numbers(), batch_size=4, seed=0))
    assert of_run == order(ezpz.prepare(numbers(), batch_size=4, seed=7))  # as in setup_torch(seed=7)
    assert of_run != chosen
    old = {**ezpz.prepare(numbers(), batch_size=4).state_dict(), "seed": 0}  # of a version whose default was 0
    resumed = ezpz.prepare(numbers(), batch_size=4)
    assert order(resumed, old) == chosen
    assert resumed.state_dict()["seed"] == 0
    assert order(ezpz.prepare(numbers(), batch_size=4, seed=7), old) == of_run  # an own one counts
    told = "".join(ezpz.gather_objects(capfd.readouterr().out))
    assert told.count("data: seed=0 (from the checkpoint)") == 1


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_steps_that_are_left_over_make_a_row_of_their_own_with_the_last_evaluation(kind, folder):
    rows = Rows()
    rows.update = lambda row, **_: rows.append((row["epoch"], row["steps"], row["test"]))
    samples = 18 * ezpz.get_world_size()
    data = numbers(samples) if kind == "map" else Stream(samples)
    loop = make(folder, data, batch_size=1, epochs=1, epoch_steps=4, evaluate=lambda: {"test": 1.0})
    loop.run(rows)
    assert rows == [(1, 4, 1.0), (2, 4, 1.0), (3, 4, 1.0), (4, 4, 1.0), (5, 2, 1.0)]


def test_a_checkpoint_holds_the_place(folder):
    run(make(folder, numbers(8 * ezpz.get_world_size()), batch_size=2, steps=3, save_every=3), folder)
    if ezpz.get_rank() == 0:
        (latest,) = (folder / "checkpoints").glob("step-*")
        assert json.loads((latest / "checkpoint.json").read_text())["state"] == ["samples consumed"]
