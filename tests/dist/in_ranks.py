"""Run by pytest inside every rank of one launch: what `ezpz.dist` and the trainers promise across ranks.

Not collected by itself; `test_ranks_agree.py` launches it under each launcher. Loads torch once for all of it.
"""

import os

import pytest
import torch
import torch.distributed as dist

import ezpz
from ezpz import test_dist
from ezpz.train import BatchIndices


@pytest.fixture(scope="module", autouse=True)
def _group():
    ezpz.setup_torch(seed=7)
    yield
    dist.barrier()
    ezpz.cleanup()


def everybody(value):
    values = [None] * ezpz.get_world_size()
    dist.all_gather_object(values, value)
    return values


def test_ranks_are_distinct_and_the_launchers_answer_is_torchs():
    assert (ezpz.get_rank(), ezpz.get_world_size()) == (dist.get_rank(), dist.get_world_size())
    assert everybody(ezpz.get_rank()) == list(range(ezpz.get_world_size()))
    # One host; a bare Open MPI deals ranks over sockets, so that local ranks may come in another order.
    assert sorted(everybody(ezpz.get_local_rank())) == list(range(ezpz.get_world_size()))
    assert ezpz.get_world_size() == int(os.environ["EXPECTED_WORLD"])


def test_a_second_setup_changes_nothing():
    group = dist.group.WORLD
    assert ezpz.setup_torch() == ezpz.get_rank()
    assert dist.group.WORLD is group


def test_a_sum_crosses_all_ranks():
    value = torch.tensor([float(ezpz.get_rank())])
    dist.all_reduce(value)
    assert value.item() == sum(range(ezpz.get_world_size()))


def test_torchruns_names_are_there_for_other_libraries():
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    world = dist.get_world_size()
    assert [int(os.environ[name]) for name in names] == [dist.get_rank(), world, ezpz.get_local_rank(), world]


def test_the_same_seed_gives_the_same_weights_everywhere():
    assert len(set(everybody(torch.rand(3).sum().item()))) == 1


def test_the_ranks_slices_are_the_global_batch():
    world = ezpz.get_world_size()
    mine = BatchIndices(100, 12 // world, rank=ezpz.get_rank(), world_size=world, seed=3)
    alone = BatchIndices(100, 12, seed=3)
    for step in (0, 8, 30):
        assert [index for part in everybody(mine(step).tolist()) for index in part] == alone(step).tolist()


def losses(world_size, rank, steps=12):
    """Global loss of each step with the trainer of the smoke test on a global batch of 48."""
    ezpz.seed_everything(11)
    args = ["--batch-size", str(48 // world_size), "--layer-sizes", "64,32", "--lr", "0.01"]
    config = test_dist.configure(test_dist.parse_args(args))
    trainer = test_dist.Trainer(config, torch.device("cpu"), world_size)
    batches = test_dist.make_batches(config, rank, world_size, torch.device("cpu"))
    for step in range(steps):
        loss = torch.tensor([trainer.step(batches(step))["loss"]], dtype=torch.float64)
        if world_size > 1:
            dist.all_reduce(loss)
        yield loss.item() / world_size


def test_ddp_follows_one_process_on_the_same_global_batch():
    world, rank = ezpz.get_world_size(), ezpz.get_rank()
    together = list(losses(world, rank))
    alone = list(losses(1, 0))
    assert alone[-1] < alone[0]
    assert max(abs(a - b) for a, b in zip(together, alone, strict=True)) <= 1e-5
