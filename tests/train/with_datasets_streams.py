"""Streams of Hugging Face's own library through `prepare`; `test_place.py` runs this in .test/hugging_face."""

import json
from pathlib import Path

import pytest
import torch
from datasets import Dataset, concatenate_datasets, interleave_datasets, load_dataset
from torch.utils.data import DataLoader

import ezpz
from ezpz import train
from ezpz.checkpoint import Checkpoints, choose

ROWS = 37


def plain():
    return Dataset.from_list([{"id": index} for index in range(ROWS)]).to_iterable_dataset(num_shards=3)


def moved(row):
    return {"id": row["id"] + 100}


def twice(rows):
    return {"id": [each for row in rows["id"] for each in (row, row + 1000)]}


def odd(row):
    return row["id"] % 2 == 1


def of_files():
    """A stream of files, as it would come from the hub; made in the working folder."""
    files = [f"part{number}.jsonl" for number in range(3)]
    for number, name in enumerate(files):
        rows = range(ROWS * number // 3, ROWS * (number + 1) // 3)
        Path(name).write_text("".join(json.dumps({"id": row}) + "\n" for row in rows), encoding="utf-8")
    return load_dataset("json", data_files=files, split="train", streaming=True)


STREAMS = {
    "files": of_files,
    "filter": lambda: plain().filter(odd),
    "batched map": lambda: plain().map(twice, batched=True, batch_size=5),
    "tensors": lambda: plain().with_format("torch"),
    "joined": lambda: concatenate_datasets([plain(), plain().map(moved)]),
    "mixed": lambda: interleave_datasets([plain(), plain().map(moved)], probabilities=[0.3, 0.7], seed=1),
}
WITH_A_BUFFER = {
    "shuffled": lambda: plain().shuffle(seed=3, buffer_size=8),
    "mixed of shuffled": lambda: interleave_datasets([plain().shuffle(seed=3, buffer_size=8), plain().map(moved)]),
}


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def prepared(make, workers, size=3):
    return ezpz.prepare(DataLoader(make(), batch_size=size, num_workers=workers))


def ids(batches):
    return [each for batch in batches for each in batch["id"].tolist()]


def part_of_an_epoch(loader, batches):
    """Read so many batches of its second epoch; return their ids and the state."""
    list(loader)
    iterator = iter(loader)
    read = ids(next(iterator) for _ in range(batches))
    return read, loader.state_dict()


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_goes_on_at_its_place_with_any_number_of_workers(name):
    make = STREAMS[name]
    loader = prepared(make, 0)
    list(loader)
    second = ids(loader)
    assert len(set(second)) == len(second) > ROWS // 3
    for workers, others in ((0, 1), (1, 0), (2, 2)):
        read, state = part_of_an_epoch(prepared(make, workers), 4)
        assert state["stream"]
        again = prepared(make, others, size=5)
        again.load_state_dict(state)
        found = read + ids(again)  # parts come side by side, and each sample once all the same
        assert sorted(found) == sorted(second), (workers, others)
        assert found == second or workers == 2, (workers, others)


@pytest.mark.parametrize("name", WITH_A_BUFFER)
def test_a_shuffle_buffer_is_filled_again_from_the_start_and_a_line_says_so(name, capsys):
    make = WITH_A_BUFFER[name]
    loader = prepared(make, 0)
    list(loader)
    second = ids(loader)
    read, state = part_of_an_epoch(prepared(make, 1), 4)
    assert state["stream"] is None
    again = prepared(make, 1)
    again.load_state_dict(state)
    assert read + ids(again) == second
    said = capsys.readouterr()
    words = "the state of this stream leaves out its shuffle buffer, so that its first 12 samples are read again"
    assert words in said.out + said.err


def test_a_loop_goes_on_at_the_place_of_its_checkpoint(tmp_path):
    seen = []

    def run(steps):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

        def compute_loss(model, batch):
            seen.extend(batch["id"].tolist())
            return model(batch["id"].float()[:, None]).mean()

        data = prepared(STREAMS["mixed"], 1)
        checkpoints = Checkpoints(tmp_path, model=model, optimizer=optimizer)
        resume = choose("auto", name="streams", outdir=str(tmp_path)).checkpoint
        loop = train.Loop(
            model, optimizer, compute_loss, data=data, checkpoints=checkpoints, resume=resume, save_every=3, steps=steps
        )
        loop.run(ezpz.History(name="streams", outdir=str(tmp_path / f"run of {steps}")))

    run(6)
    run(10)
    assert seen == ids(prepared(STREAMS["mixed"], 0))[: len(seen)]
    assert len(seen) == 30
