"""Run by pytest inside each of two ranks: a profile per rank, one that starts late, and what rank 0 alone may look at.

Not collected by itself; `test_profile_ranks.py` launches it. Loads torch once for all of it.
"""

import gzip
import json
import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import ezpz
from ezpz.track import history as history_module
from ezpz.track.profiles.profiling import profile
from ezpz.view.effective import describe

FOLDER = Path(os.environ["EZPZ_TEST_FOLDER"])


@pytest.fixture(scope="module", autouse=True)
def _group():
    ezpz.setup_torch(seed=7)
    yield
    dist.barrier()
    ezpz.cleanup()


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 1))


def learn(model):
    model(torch.ones(4, 8)).sum().backward()


def test_every_rank_writes_files_of_its_own():
    model = build()
    with profile("py+torch:steps=1-2,ranks=all", outdir=FOLDER / "own") as prof:
        for _ in range(5):
            learn(model)
            prof.step()
    names = sorted({path.name.partition(".")[0] for path in prof.files})
    told = ezpz.gather_objects([str(path) for path in prof.files])
    rank = ezpz.get_rank()
    assert [name.split("-profile-")[0] for name in names] == (["pyinstrument", "torch"] if rank == 0 else ["torch"])
    assert all(name.endswith("-rank1") == (rank == 1) for name in names)
    assert len({path for paths in told for path in paths}) == 6
    trace = next(path for path in prof.files if path.name.endswith(".json.gz"))
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert {event["name"] for event in events if event["name"].startswith("ProfilerStep#")} == {
        "ProfilerStep#1",
        "ProfilerStep#2",
    }


def test_a_touched_file_starts_a_window_on_every_rank(monkeypatch):
    folder = FOLDER / "late"
    monkeypatch.setattr(history_module, "current_folder", lambda: folder, raising=False)
    if ezpz.get_rank() == 0:
        folder.mkdir(parents=True)
    dist.barrier()
    model = build()
    end = time.monotonic() + 60
    with profile() as prof:
        dist.barrier()  # a file from before the block would ask for nothing
        if ezpz.get_rank() == 0:
            (folder / "PROFILE_NOW").write_text("torch:ranks=all\n")
        while len(prof.files) < 2 and time.monotonic() < end:
            learn(model)
            prof.step()
            time.sleep(0.005)
    assert [path.parent for path in prof.files] == [folder / "profile"] * 2
    assert all(("-rank1." in path.name) == (ezpz.get_rank() == 1) for path in prof.files)
    assert (folder / "PROFILE_NOW").exists()


def looked_at(model):
    """Return what rank 0 sees, on all ranks: an assertion on rank 0 alone would leave the other one waiting."""
    return ezpz.broadcast(describe(model) if ezpz.get_rank() == 0 else None)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_rank_0_alone_looks_at_a_wrapped_model_and_training_goes_on(strategy):
    inner = build()
    plain = describe(inner)
    model = ezpz.wrap_model(inner, strategy, dtype="fp32")
    told = looked_at(model)
    learn(model)
    assert "problems" not in told
    assert told["model.parameters"] == plain["model.parameters"] == 81
    assert told["model.class"] == "Sequential"
    assert 0.1 in [rate for name, rate in told.items() if name.startswith("dropout.")]
    if strategy == "ddp":
        assert told["model.checksum"] == plain["model.checksum"]
        assert told["model.wrappers"] == ["DistributedDataParallel"]
    else:
        assert "model.checksum" not in told
        assert (told["model.sharded"], told["model.wrappers"]) == (True, ["fully_shard"])


def trained(*, looks):
    model = ezpz.wrap_model(build(), "fsdp", dtype="fp32")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(ezpz.get_rank())
    losses = []
    for _ in range(4):
        if looks and ezpz.get_rank() == 0:
            describe(model, optimizer)
        loss = model(torch.randn(4, 8)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [parameter.to_local().tolist() for parameter in model.parameters()]


def test_training_of_a_cut_model_is_bit_identical_with_and_without_looks():
    assert trained(looks=True) == trained(looks=False)


def test_rank_0_alone_looks_at_a_model_that_fsdp1_has_packed():
    from torch.distributed.fsdp import FullyShardedDataParallel

    for keeps_names in (False, True):
        model = FullyShardedDataParallel(build(), use_orig_params=keeps_names, device_id=torch.device("cpu"))
        told = looked_at(model)
        learn(model)
        assert "problems" not in told
        assert (told["model.parameters"], told["model.sharded"]) == (81, True)
        assert "model.checksum" not in told
        assert told["model.wrappers"] == ["FullyShardedDataParallel"]


def test_zero_redundancy_is_told_by_what_it_holds():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = build()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.5)
    told = describe(optimizer=optimizer)
    assert (told["optimizer.class"], told["optimizer.wrappers"]) == ("Adam", ["ZeroRedundancyOptimizer"])
    assert (told["optimizer.groups.0.lr"], told["optimizer.groups.0.parameters"]) == (0.5, 81)
