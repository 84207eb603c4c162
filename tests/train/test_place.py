"""What `prepare` knows and refuses without ranks; `in_ranks_place.py`, which `test_loop.py` launches, has them."""

import inspect
import itertools
import os
import random
import subprocess
import sys
from collections import Counter, OrderedDict, UserDict
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

import ezpz
from ezpz.checkpoint import Checkpoints, choose
from ezpz.errors import UsageError
from ezpz.train import Loop
from ezpz.train.counting import ignored_targets
from ezpz.train.data.copying import moved
from ezpz.train.data.place import Consumed, Cut
from ezpz.train.data.streams import StreamParts, has_state
from lab.require import require

HERE = Path(__file__).parent
HUGGING_FACE = HERE.parents[1] / ".test" / "hugging_face"
PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "--color=no", "--timeout=240"]


# Where a run is, and how what lies ahead is shared out.


sizes = st.integers(1, 5)


@given(st.integers(0, 40), st.integers(1, 40), sizes, sizes, sizes)
def test_the_slots_of_all_ranks_are_the_rest_of_the_epoch_once(begin, samples, batch, ranks, accumulate):
    slots = [list(Cut(batch, rank, ranks, accumulate).slots(begin, samples)) for rank in range(ranks)]
    assert len({len(each) for each in slots}) == 1  # no rank waits for another one
    found = Counter(place for each in slots for slot in each for place in range(slot.start, slot.stop))
    assert found == Counter(range(begin, samples))
    counts = [slot.samples for each in slots for slot in each]
    assert all(count <= batch for count in counts)
    if batch > 2 and samples - begin != 1:  # no batch of one: BatchNorm would end the training
        assert 1 not in counts
    steps = len(slots[0]) // accumulate
    assert steps == Cut(batch, 0, ranks, accumulate).steps(max(0, samples - begin))
    for step in range(steps):
        shares = [slot.share for each in slots for slot in each[step * accumulate : (step + 1) * accumulate]]
        assert sum(shares) == pytest.approx(ranks)  # their average over ranks is a whole
        counts = [slot.samples for each in slots for slot in each[step * accumulate : (step + 1) * accumulate]]
        assert max(counts) - min(count for count in counts if count or batch == 1) <= 1
        assert Cut(batch, 0, ranks, accumulate).is_even(sum(counts)) == (len(set(counts)) == 1)


@given(st.integers(0, 40), st.lists(sizes, max_size=12), sizes, sizes)
def test_batches_that_are_made_already_stay_whole_and_come_once(begin, counts, ranks, accumulate):
    ends = list(itertools.accumulate(counts))
    slots = [list(Cut(1, rank, ranks, accumulate).whole_batches(begin, ends)) for rank in range(ranks)]
    assert len({len(each) for each in slots}) == 1
    found = Counter(place for each in slots for slot in each for place in range(slot.start, slot.stop))
    assert found == Counter(range(begin, sum(counts)))
    assert all(slot.stop in ends for each in slots for slot in each if slot.samples)
    for number in range(0, len(slots[0]), accumulate):
        step = [slot for each in slots for slot in each[number : number + accumulate]]
        assert sum(slot.share for slot in step) == pytest.approx(ranks)
        assert all(slot.is_even == (len({each.samples for each in step}) == 1) for slot in step)


class Parts(StreamParts):
    """Shares out a stream without tensors."""

    def __init__(self, cut, samples):
        super().__init__(range(samples), cut, list, skip=0, state=None, drop_last=False)


@given(st.integers(0, 40), sizes, sizes, sizes)
def test_a_stream_is_shared_out_as_data_with_a_length_are(samples, batch, ranks, accumulate):
    cuts = [Cut(batch, rank, ranks, accumulate) for rank in range(ranks)]
    parts = [list(Parts(cut, samples)) for cut in cuts]
    assert Counter(one for each in parts for part in each for one in part.batch[: part.samples]) == Counter(
        range(samples)
    )
    for cut, each in zip(cuts, parts, strict=True):
        slots = list(cut.slots(0, samples))
        assert [part.total for part in each] == [slot.total for slot in slots]
        assert all(0 <= part.samples <= batch and part.batch for part in each)
        if batch > 2 and samples != 1:
            assert all(part.samples != 1 and len(part.batch) > 1 for part in each)
    for step in zip(*parts, strict=True):
        assert cuts[0].is_even(step[0].total) or len({part.samples for part in step}) > 1 or accumulate > 1


def test_a_place_counted_without_epochs_is_found_in_epochs():
    assert Consumed("positions", 0, 25, 0, 0, False).place_in(10) == (2, 5)
    assert Consumed("samples", 1, 4, 10, 0, True).total == 14


OTHER_PLACES = [
    (Consumed("samples", 0, 0, 20, 1, True), "30 samples, and here are 20"),
    (Consumed("samples", 0, 0, 30, 2, True), "shuffled by seed 1, and this one by 2"),
    (Consumed("samples", 0, 0, 30, 1, False), "a shuffled order"),
    (Consumed("samples", 0, 0, 30, 1, True), ""),
]


def test_a_place_in_another_order_is_doubted(subtests):
    for other, says in OTHER_PLACES:
        with subtests.test(says):
            doubts = Consumed("samples", 0, 7, 30, 1, True).doubts(other)
            assert says in doubts
            assert bool(says) == bool(doubts)


# What a DataLoader says of itself.


DATA = TensorDataset(torch.arange(12))


LOADERS = [
    ({"batch_size": 3}, False, 0),
    ({"batch_size": 3, "shuffle": True}, True, 0),
    ({"batch_size": 3, "shuffle": True, "generator": torch.Generator().manual_seed(9)}, True, 9),
    ({"batch_size": 3, "sampler": SequentialSampler(DATA)}, False, 0),
    ({"batch_size": 3, "sampler": SubsetRandomSampler([1, 3, 5])}, True, 0),
    ({"batch_size": 3, "sampler": DistributedSampler(DATA, 2, 1, shuffle=True, seed=4)}, True, 4),
    ({"batch_sampler": BatchSampler(RandomSampler(DATA), 3, drop_last=False)}, True, 0),
]


def test_the_settings_of_a_loader_are_kept(subtests):
    for keywords, shuffle, seed in LOADERS:
        with subtests.test(**keywords):

            def collate(samples):
                return torch.stack([sample[0] for sample in samples]) * 10

            loader = ezpz.prepare(DataLoader(DATA, collate_fn=collate, **keywords))
            assert loader.batch_size == 3
            state = loader.state_dict()
            assert (state["shuffle"], state["seed"]) == (shuffle, seed)
            ids = [number // 10 for batch in loader for number in batch.tolist()]
            subset = isinstance(keywords.get("sampler"), SubsetRandomSampler)
            assert sorted(ids) == ([1, 3, 5] if subset else list(range(12)))
            assert (ids == sorted(ids)) == (not shuffle) or subset


class Endless:
    def __iter__(self):
        return cycle(range(12))


class Advancing:
    """Keeps numbers of its own, so that a new one draws the orders of other epochs."""

    def __init__(self):
        self.numbers = random.Random(3)

    def __iter__(self):
        return iter(self.numbers.sample(range(12), 12))


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(5))


def plateau():
    return ReduceLROnPlateau(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0), patience=0)


REFUSED = [
    (lambda: list(ezpz.prepare(DataLoader(DATA, sampler=Endless()))), "Endless has not ended after 768 indices"),
    (lambda: ezpz.prepare(ezpz.prepare(DATA, batch_size=2), cut=True), "another cut"),
    (lambda: ezpz.prepare(cut=True), "nothing to prepare"),
    (lambda: ezpz.prepare(DataLoader(DATA, batch_size=4), batch_size=8), "another batch_size=8"),
    (lambda: ezpz.prepare(DataLoader(DATA, batch_size=4), num_workers=1), "another num_workers"),
    (lambda: ezpz.prepare(DATA), "unusable batch_size=0"),
    (lambda: ezpz.prepare(DATA, batch_size=2, workers=3), "argument 'workers'"),
    (lambda: ezpz.prepare({"train": DATA}, batch_size=2), "cannot take samples from a dict: train"),
    (lambda: ezpz.prepare(5, batch_size=2), "cannot take samples from a int"),
    (lambda: ezpz.prepare(iter([1]), batch_size=2), "can be read once"),
    (lambda: ezpz.prepare(Numbers(), batch_size=2, shuffle=True), "comes in its own order"),
    (lambda: Loop(None, None, None, steps=1, scheduler=None), "no keyword 'scheduler' here .* expected schedule="),
    (lambda: Loop(None, None, None, DATA, max_steps=1), "no keyword 'max_steps' here .* expected steps="),
    (lambda: Loop(None, None, None, gradient_accumulation_steps=2), "expected accumulate="),
    (lambda: Loop(None, None, torch.nn.MSELoss(), DATA), "MSELoss takes outputs and targets"),
    (lambda: Loop(None, None, None, DATA, schedule_every="day"), "unknown schedule_every='day'"),
    (lambda: Loop(None, None, None, len, steps=1, schedule_every="epoch"), "schedule_every='epoch' with batches"),
    (
        lambda: Loop(None, None, None, DATA, schedule=plateau()),
        "a ReduceLROnPlateau is stepped with what an evaluation",
    ),
    (lambda: Loop(None, None, None, DATA, data=DATA, steps=1), "both batches and data"),
    (lambda: Loop(None, None, None, steps=1), "neither batches nor data"),
    (lambda: Loop(None, None, None, len, data=DATA, steps=1), "both batches and data"),
    (lambda: Loop(None, None, None, len, epochs=1, batch_size=1), "epochs=1 with batches"),
    (lambda: Loop(None, None, None, data=DATA, batch_size=1), "no end for data="),
    (lambda: Loop(None, None, None, len, steps=1, batch_size=1, save_every=5), "save_every=5 saves"),
    (lambda: Loop(None, None, None, len, steps=1, batch_size=1, resume=Path("there")), "resume=there"),
]


def test_what_cannot_be_done_is_refused_with_a_sentence(subtests):
    for make, says in REFUSED:
        with subtests.test(says), pytest.raises(UsageError, match=says):
            make()


def test_a_sampler_with_numbers_of_its_own_is_told_to_seed_them_with_the_epoch(capsys):
    def place(sampler, epochs):
        loader = ezpz.prepare(DataLoader(DATA, batch_size=2, sampler=sampler))
        for _ in range(epochs):
            list(loader)
        next(iter(loader))
        return loader.state_dict()

    for sampler, epochs, doubted in (
        (Advancing, 1, True),
        (Advancing, 0, False),
        (lambda: RandomSampler(DATA, True), 1, False),
    ):
        loader = ezpz.prepare(DataLoader(DATA, batch_size=2, sampler=sampler()))
        loader.load_state_dict(place(sampler(), epochs))
        assert ("the sampler draws another order" in capsys.readouterr().out) == doubted, (sampler, epochs)


class Range(IterableDataset):
    """As in torch's documentation: shared out by changing what each worker has."""

    def __init__(self):
        super().__init__()
        self.start, self.step = 0, 1

    def __iter__(self):
        return iter(range(self.start, 11, self.step))


def share_out(_worker):
    info = get_worker_info()
    info.dataset.start, info.dataset.step = info.id, info.num_workers


def test_a_stream_that_worker_init_fn_shares_out_comes_once():
    for more in ({}, {"cut": True}):
        loader = ezpz.prepare(DataLoader(Range(), batch_size=3, num_workers=2, worker_init_fn=share_out), **more)
        for _ in range(2):
            assert sorted(itertools.chain(*(batch.tolist() for batch in loader))) == list(range(11)), more


class Recorded:
    """A history that keeps its rows in memory."""

    def __init__(self):
        self.rows = []

    def update(self, row, **_):
        self.rows.append(row)

    def sync(self):
        pass


SCHEDULES = [  # schedule, what else, the learning rate of each of 6 steps, 3 per epoch
    (lambda optimizer: StepLR(optimizer, 1, 0.5), {}, [1, 0.5, 0.25, 0.125, 0.0625, 0.03125]),
    (lambda optimizer: StepLR(optimizer, 1, 0.5), {"schedule_every": "epoch"}, [1, 1, 1, 0.5, 0.5, 0.5]),
    (
        lambda optimizer: ReduceLROnPlateau(optimizer, factor=0.5, patience=0),
        {"evaluate": lambda: {"loss": 1.0, "accuracy": 0.5}, "eval_every": 2},
        [1, 1, 1, 1, 0.5, 0.5],
    ),
]


@pytest.mark.parametrize(("make", "more", "rates"), SCHEDULES)
@pytest.mark.parametrize("stop", [None, 3, 4])
def test_a_loader_in_fourth_place_and_schedules_per_step_epoch_and_evaluation(make, more, rates, stop, tmp_path):
    def run(**how):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        history, schedule = Recorded(), make(optimizer)
        checkpoints = Checkpoints(tmp_path, model=model, optimizer=optimizer, schedule=schedule)
        loader = DataLoader(DATA, batch_size=4, shuffle=True)
        Loop(
            *(model, optimizer, lambda model, batch: model(batch[0].float()[:, None]).mean() * 0, loader),
            schedule=schedule,
            checkpoints=checkpoints,
            epochs=2,
            log=lambda _: None,
            **how,
            **more,
        ).run(history)
        return [row["lr"] for row in history.rows]

    found = run(steps=stop, save_every=1)
    if stop is not None:
        found += run(resume=choose("auto", name="", outdir=str(tmp_path)).checkpoint)
    if stop == 3 and "evaluate" in more:  # the run that was to end has evaluated at its end as well
        rates = [1, 1, 1, 0.5, 0.25, 0.25]
    assert found == rates


def test_a_loop_that_is_left_begins_the_next_epoch_and_a_state_continues_this_one():
    loader = ezpz.prepare(list(range(6)), batch_size=2, shuffle=False)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
    assert loader.epoch == 2
    again = ezpz.prepare(list(range(6)), batch_size=3, shuffle=False)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == [[2, 3], [4, 5]]  # and not one alone at the end
    assert again.epoch == 1


def test_a_sampler_of_the_first_samples_and_batches_out_of_order_are_taken_as_they_can_be(capsys):
    data = list(range(10))
    part = ezpz.prepare(DataLoader(data, batch_size=2, sampler=SequentialSampler(range(5))))
    assert [batch.tolist() for batch in part] == [[0, 1], [2, 3], [4]]
    if "in_order" in inspect.signature(DataLoader).parameters:
        loose = ezpz.prepare(DataLoader(data, batch_size=4, num_workers=2, in_order=False))
        assert [batch.tolist() for batch in loose] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert capsys.readouterr().out.count("in_order=False is not used") == 1


@pytest.mark.parametrize("data", [[], DataLoader(range(3), batch_size=4, drop_last=True)], ids=["none", "too few"])
def test_data_without_a_step_are_refused_and_not_trained_with_for_no_time(data, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # torch sets it when an optimizer is first made
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(UsageError, match="no sample for a step"):
        Loop(model, optimizer, None, data=data, epochs=1, batch_size=4)


class Pair(NamedTuple):
    x: torch.Tensor
    name: str


@dataclass(frozen=True)
class Item:
    x: torch.Tensor
    name: str


CONTAINERS = [
    Pair(torch.ones(2), "a"),
    Item(torch.ones(2), "a"),
    OrderedDict(x=torch.ones(2), name="a"),
    UserDict(x=torch.ones(2), name="a"),
    [(torch.ones(2), "a")],
]


def test_a_batch_of_any_container_goes_to_the_device_and_stays_of_its_kind(subtests):
    for batch in CONTAINERS:
        with subtests.test(type(batch).__name__):
            there = moved(batch, torch.device("meta"))
            assert type(there) is type(batch)
            found = there[0] if isinstance(there, list) else there
            found = (
                found.values()
                if hasattr(found, "values")
                else vars(found).values()
                if isinstance(found, Item)
                else found
            )
            tensor, name = found
            assert (tensor.device.type, name) == ("meta", "a")
            targets = moved(batch, torch.device("cpu"))
            assert not ignored_targets(targets)


def test_the_rate_of_a_short_last_step_counts_its_own_samples(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # torch sets it when an optimizer is first made

    class Rows(list):
        def update(self, row, **_):
            self.append(row)

        def sync(self):
            pass

    model = torch.nn.Linear(1, 1)
    rows = Rows()
    loop = Loop(
        *(model, torch.optim.SGD(model.parameters(), lr=0.0), lambda model, x: model(x).mean()),
        data=ezpz.prepare([torch.ones(1)] * 10, batch_size=4, shuffle=False),
        epochs=2,
        log=lambda _: None,
    )
    loop.run(rows)
    assert [round(row["sps"] * row["dt"], 6) for row in rows] == [4, 4, 2] * 2


def test_files_are_loaded_one_by_one(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(str(number * 10))
    files = sorted(tmp_path.iterdir())
    loader = ezpz.prepare(files, batch_size=2, shuffle=False, load=lambda path: int(path.read_text()))
    assert [batch.tolist() for batch in loader] == [[0, 10], [20]]
    named = ezpz.prepare(files, batch_size=2, shuffle=False)
    assert [list(batch) for batch in named] == [[str(files[0]), str(files[1])], [str(files[2])]]


# Stand-ins for libraries that are not installed: what prepare asks of them, and nothing else.


class HuggingFace:
    """As `datasets.Dataset`: no Dataset of torch, but with a length, and rows that are dictionaries."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return {"id": index, "text": f"row {index}"}


class BufferShuffledExamplesIterable:
    ex_iterable = None


class Streaming:
    """As `datasets.IterableDataset`: no IterableDataset of torch, with a state and `set_epoch`."""

    def __init__(self, inside=None):
        self._ex_iterable, self.at, self.epochs = inside, 0, []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        while self.at < 5:
            self.at += 1
            yield {"id": self.at - 1}
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def test_data_sets_of_hugging_face():
    loader = ezpz.prepare(HuggingFace(), batch_size=2, shuffle=False)
    batches = list(loader)
    assert [batch["id"].tolist() for batch in batches] == [[0, 1], [2, 3], [4]]
    assert batches[2]["text"] == ["row 4"]
    stream = Streaming()
    loader = ezpz.prepare(stream, batch_size=2)
    for _ in range(2):
        assert [batch["id"].tolist() for batch in loader] == [[0, 1], [2, 3], [4]]
    assert stream.epochs == [0, 1]


def test_a_stream_with_a_state_continues_at_once_and_one_with_a_buffer_is_read_again():
    loader = ezpz.prepare(Streaming(), batch_size=2)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    assert state["stream"] == ("stream", {"at": 2})
    again = ezpz.prepare(Streaming(), batch_size=1)
    again.load_state_dict(state)
    assert [batch["id"].tolist() for batch in again] == [[2], [3], [4]]
    assert not has_state(Streaming(BufferShuffledExamplesIterable()))


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_streams_of_the_real_library_of_hugging_face(tmp_path):
    if sys.version_info < (3, 11):
        pytest.skip("tests/lab/hugging-face-wheels.txt names its wheels for Python 3.11 and later")
    python = HUGGING_FACE / "bin" / "python"
    require("hugging_face", "" if python.exists() else "no .test/hugging_face (tests/lab/setup hugging_face)")
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": str(Path(ezpz.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    line = [python, *PYTEST, HERE / "with_datasets_streams.py"]
    done = subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " skipped" not in done.stdout, done.stdout


class StatefulDataLoader(DataLoader):
    """As torchdata's, which is a DataLoader with a state of its own."""

    next_iter_state = None


StatefulDataLoader.__module__ = "torchdata.stateful_dataloader"


def test_the_loader_of_torchdata():
    loader = StatefulDataLoader(DATA, batch_size=5, shuffle=True)
    ids = [number for (batch,) in ezpz.prepare(loader) for number in batch.tolist()]
    assert sorted(ids) == list(range(12))
    loader.next_iter_state = {"batches": 3}
    with pytest.raises(UsageError, match="has loaded a state of its own"):
        ezpz.prepare(loader)
