"""Read every kind of loader on these ranks, stop in its second epoch, and go on: here, and where other ranks stopped.

    every_kind_of_loader.py FOLDER [RANKS]

A program of `test_every_kind.py`. Rank 0 writes FOLDER/found-WORLD.json, what came of each kind, and FOLDER/KIND.WORLD,
where it stopped; RANKS names whose places are to be continued.
"""

import io
import json
import logging
import sys
import tarfile
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

import ezpz
from ezpz.errors import UsageError

IDS = 47
FOLDER = Path(sys.argv[1])


class Numbers(Dataset):
    def __len__(self):
        return IDS

    def __getitem__(self, index):
        return torch.tensor([index])


class ByKey(Numbers):
    def __getitem__(self, key):
        return torch.tensor([int(key.removeprefix("key-"))])


class Halves:
    """A sampler of one's own."""

    def __iter__(self):
        order = torch.randperm(IDS).tolist()
        return iter(sorted(order, key=lambda index: index % 2))


class Keys:
    def __iter__(self):
        return iter([f"key-{index}" for index in torch.randperm(IDS)])

    def __len__(self):
        return IDS


class Buckets:
    """A batch sampler of one's own: batches of two sizes, in an order that differs by epoch, as their number does."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        sizes, begin = (2, 5) if self.epoch % 2 else (3, 4), 0
        while begin < IDS:
            size = sizes[begin % 2]
            yield list(range(begin, min(begin + size, IDS)))
            begin += size


class Batches(Numbers):
    """Makes its batches itself."""

    def __len__(self):
        return (IDS + 3) // 4

    def __getitem__(self, index):
        return torch.arange(index * 4, min(index * 4 + 4, IDS))


class Opaque(IterableDataset):
    def __iter__(self):
        yield from (torch.tensor([int(each)]) for each in torch.randperm(IDS))


class ByWorker(IterableDataset):
    """As the documentation of torch shares a stream out; the shuffled order is drawn before."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        yield from (torch.tensor([int(each)]) for each in torch.randperm(IDS)[first::step])


class ByRank(IterableDataset):
    """Cut by rank and worker, unevenly."""

    def __iter__(self):
        info, rank, world = get_worker_info(), ezpz.get_rank(), ezpz.get_world_size()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        mine = range(5) if rank and rank == world - 1 else range(5 if world > 1 else 0, IDS)
        mine = mine if rank == world - 1 else mine[rank :: max(1, world - 1)]
        yield from (torch.tensor([each]) for each in mine[first::step])


def shards():
    """Four files of webdataset; made by rank 0."""
    folder = FOLDER / "shards"
    if not folder.exists() and ezpz.get_rank() == 0:
        folder.mkdir()
        for number in range(4):
            with tarfile.open(folder / f"{number}.tar", "w") as file:
                for index in range(number * IDS // 4, (number + 1) * IDS // 4):
                    text = json.dumps({"id": index}).encode()
                    entry = tarfile.TarInfo(f"{index:04}.json")
                    entry.size = len(text)
                    file.addfile(entry, io.BytesIO(text))
    ezpz.barrier()
    return f"{folder}/{{0..3}}.tar"


def web(**more):
    import webdataset

    return webdataset.WebDataset(shards(), shardshuffle=more.pop("shardshuffle", False), **more).decode()


def web_loader(**more):
    import webdataset

    return webdataset.WebLoader(web().shuffle(9), **more)


def as_tuple(sample):
    return (torch.tensor([sample["json"]["id"]]),)


def rebatched():
    import webdataset

    found = webdataset.WebLoader(web().map(as_tuple), batch_size=3)
    return found.unbatched().shuffle(5).batched(4)


def by_node():
    import webdataset

    return webdataset.split_by_node


def rows(streaming=4):
    import datasets

    found = datasets.Dataset.from_dict({"id": list(range(IDS))})
    return found.to_iterable_dataset(num_shards=streaming) if streaming else found


def split(data):
    from datasets.distributed import split_dataset_by_node

    return split_dataset_by_node(data, ezpz.get_rank(), ezpz.get_world_size())


def stateful(data, **more):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(data, **more)


def mine():
    return Subset(Numbers(), range(ezpz.get_rank(), IDS, ezpz.get_world_size()))


def loader(data, **more):
    return DataLoader(data, batch_size=more.pop("batch_size", 3), **more)


CUT = {"cut": True}
KINDS = {
    "`shuffle=True`": lambda: loader(Numbers(), shuffle=True, num_workers=2),
    "`DistributedSampler`": lambda: loader(Numbers(), sampler=DistributedSampler(Numbers())),
    "`WeightedRandomSampler`": lambda: loader(Numbers(), sampler=WeightedRandomSampler(torch.arange(1.0, 48), 40)),
    "a sampler of your own": lambda: loader(Numbers(), sampler=Halves()),
    "a sampler of keys": lambda: loader(ByKey(), sampler=Keys()),
    "a batch sampler of your own": lambda: DataLoader(Numbers(), batch_sampler=Buckets()),
    "`BatchSampler` of a sampler of your own": lambda: DataLoader(
        Numbers(), batch_sampler=BatchSampler(Halves(), 3, drop_last=False)
    ),
    "`batch_size=None`, a data set of batches": lambda: DataLoader(Batches(), batch_size=None, shuffle=True),
    "a `Subset` by rank, `cut=True`": (lambda: loader(mine(), shuffle=True), CUT),
    "a sampler by rank, `cut=True`": (
        lambda: loader(Numbers(), sampler=SubsetRandomSampler(range(ezpz.get_rank(), IDS, ezpz.get_world_size()))),
        CUT,
    ),
    "a stream that nobody can divide": lambda: loader(Opaque(), num_workers=2),
    "a stream that asks `get_worker_info`": lambda: loader(ByWorker()),
    "the same, two workers": lambda: loader(ByWorker(), num_workers=2),
    "a stream cut by rank, `cut=True`": (lambda: loader(ByRank()), CUT),
    "the same, two workers, `cut=True`": (lambda: loader(ByRank(), num_workers=2), CUT),
    "Hugging Face, with a length": lambda: loader(rows(0), shuffle=True),
    "Hugging Face, `.shard`, `cut=True`": (
        lambda: loader(rows(0).shard(ezpz.get_world_size(), ezpz.get_rank()), shuffle=True),
        CUT,
    ),
    "Hugging Face, a stream": lambda: loader(rows()),
    'the same, `with_format("torch")`, two workers': lambda: loader(rows().with_format("torch"), num_workers=2),
    "the same, shuffled in a buffer": lambda: loader(rows().shuffle(seed=3, buffer_size=5)),
    "the same, `split_dataset_by_node`": lambda: loader(split(rows())),
    "the same, `split_dataset_by_node`, `cut=True`": (lambda: loader(split(rows())), CUT),
    "webdataset": lambda: loader(web()),
    "webdataset, two workers": lambda: loader(web(), num_workers=2),
    "webdataset, `split_by_node`": lambda: loader(web(nodesplitter=by_node())),
    "webdataset, `split_by_node`, `cut=True`": (lambda: loader(web(nodesplitter=by_node(), empty_check=False)), CUT),
    "webdataset, shards and samples shuffled": lambda: loader(web(shardshuffle=4).shuffle(9)),
    "`WebLoader`": lambda: web_loader(batch_size=3, num_workers=1),
    "`WebLoader`, batches shuffled again": rebatched,
    "`StatefulDataLoader`": lambda: stateful(Numbers(), batch_size=3, shuffle=True, num_workers=1),
    "`StatefulDataLoader`, a stream": lambda: stateful(ByWorker(), batch_size=3, num_workers=2),
}
NEEDS = {"Hugging Face": "datasets", "split_dataset_by_node": "datasets", "with_format": "datasets"}
NEEDS |= {"buffer": "datasets", "web": "webdataset", "Web": "webdataset", "Stateful": "torchdata"}
DRAWN = ("`WeightedRandomSampler`",)  # which draws some twice


def prepared(kind):
    made = KINDS[kind]
    make, more = made if isinstance(made, tuple) else (made, {})
    return ezpz.prepare(make(), **more)


def ids(batch, count):
    """The ids of a batch that count."""
    return list(flat(batch))[:count]


def flat(batch):
    if isinstance(batch, dict):
        yield from flat(batch.get("id", batch.get("json")))
    elif isinstance(batch, (list, tuple)):
        for each in batch:
            yield from flat(each)
    else:
        yield from torch.as_tensor(batch).flatten().tolist()


def read(data, most=None):
    """Read so many batches of an epoch; return the ids that count of all ranks."""
    own = []
    for number, batch in enumerate(data, 1):
        own += ids(batch, data.samples)
        if number == most:
            break
    return [each for theirs in ezpz.gather_objects(own) for each in theirs]


class Lines(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def outcome(read_before, read_now, expected, told):
    if Counter(read_before) + Counter(read_now) == Counter(expected):
        return "at the sample"
    return (
        "says what it cannot keep"
        if any("not exactly" in line for line in told.lines)
        else f"lost or twice: {read_now}"
    )


def whole(kind):
    data = prepared(kind)
    epochs = [read(data) for _ in range(2)]
    if kind in DRAWN:
        return "once" if all(len(each) == 40 for each in epochs) else f"not once: {epochs}", epochs[1]
    good = all(sorted(each) == list(range(IDS)) for each in epochs)
    return "once" if good else f"not once: {[sorted(Counter(each).items()) for each in epochs]}", epochs[1]


def resumed(kind, path, expected, told):
    told.lines.clear()
    kept = ezpz.broadcast(torch.load(path, weights_only=True) if ezpz.get_rank() == 0 else None)
    data = prepared(kind)
    data.load_state_dict(kept["state"])
    return outcome(kept["read"], read(data), expected, told)


def stop(kind, path):
    data = prepared(kind)
    read(data)
    found = read(data, 3)
    state = data.state_dict()
    if ezpz.get_rank() == 0:
        torch.save({"state": state, "read": found}, path)
    ezpz.barrier()


def main():
    ezpz.setup_torch(seed=5)
    torch.set_num_threads(1)
    world, found, told = ezpz.get_world_size(), {}, Lines()
    logging.getLogger("ezpz.train").addHandler(told)
    for number, kind in enumerate(KINDS):
        missing = [package for word, package in NEEDS.items() if word in kind and find_spec(package) is None]
        if missing:
            found[kind] = {"missing": missing[0]}
            continue
        begin = time.perf_counter()
        try:
            found[kind] = {}
            found[kind]["epoch"], second = whole(kind)
            stop(kind, FOLDER / f"{number}.{world}")
            found[kind]["same"] = resumed(kind, FOLDER / f"{number}.{world}", second, told)
            for other in sys.argv[2:]:
                found[kind]["other"] = resumed(kind, FOLDER / f"{number}.{other}", second, told)
        except UsageError as error:
            found[kind]["error"] = str(error)
        found[kind]["seconds"] = round(time.perf_counter() - begin, 1)
        if ezpz.get_rank() == 0:
            print(world, kind, found[kind], flush=True)
    if ezpz.get_rank() == 0:
        (FOLDER / f"found-{world}.json").write_text(json.dumps(found))
    ezpz.cleanup()


if __name__ == "__main__":
    main()
