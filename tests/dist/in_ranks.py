"""Run by pytest inside every rank of one launch: what `ezpz.dist` and the trainers promise across ranks.

Not collected by itself; `test_ranks_agree.py` launches it under each launcher. Loads torch once for all of it.
"""

import os
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.distributed as dist

import ezpz
from ezpz import test_dist
from ezpz.errors import UsageError
from ezpz.train import BatchIndices

if os.environ.get("EZPZ_TEST_MPI4PY"):
    from mpi4py import MPI

HOSTS = os.environ.get("EXPECTED_HOSTS", os.uname().nodename).split(",")
PLACES = [(host, local) for host in HOSTS for local in range(int(os.environ["EXPECTED_WORLD"]) // len(HOSTS))]


@pytest.fixture(scope="module", autouse=True)
def _group():
    ezpz.setup_torch(seed=7)
    yield
    dist.barrier()
    ezpz.cleanup()


def everybody(value):
    return ezpz.gather_objects(value)


@pytest.mark.skipif("EZPZ_TEST_MPI4PY" not in os.environ, reason="without mpi4py")
def test_mpi_and_torch_agree():
    assert (MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()) == (dist.get_rank(), dist.get_world_size())
    assert MPI.COMM_WORLD.allgather(ezpz.get_local_rank()) == everybody(ezpz.get_local_rank())


def test_every_getter_tells_the_same_world():
    world = ezpz.get_world_size()
    told = ezpz.get_dist_info()
    assert (told["RANK"], told["WORLD_SIZE"], told["LOCAL_RANK"]) == (ezpz.get_rank(), world, ezpz.get_local_rank())
    assert ezpz.query_environment() == {
        "world_size": world,
        "rank": ezpz.get_rank(),
        "local_rank": ezpz.get_local_rank(),
    }
    assert ezpz.get_hostname() == os.uname().nodename
    assert (ezpz.get_num_nodes(), HOSTS[ezpz.get_node_index()]) == (len(HOSTS), ezpz.get_hostname())
    assert ezpz.all_ranks_agree((ezpz.get_scheduler(), ezpz.get_torch_backend()))
    assert ezpz.get_machine() == ezpz.get_hostname()  # no known site
    assert (ezpz.get_torch_device_type(), ezpz.device()) == ("cpu", torch.device("cpu"))


def test_values_are_broadcast_gathered_and_reduced():
    rank, world = ezpz.get_rank(), ezpz.get_world_size()
    assert ezpz.broadcast({"from": rank}) == {"from": 0}
    assert ezpz.broadcast(rank, root=world - 1) == world - 1
    assert ezpz.gather_objects(("x", rank), root=0) == ([("x", other) for other in range(world)] if rank == 0 else [])
    assert ezpz.all_reduce(2**60 + rank) == world * 2**60 + sum(range(world))
    assert ezpz.all_reduce(rank, "mean") == sum(range(world)) / world
    assert (ezpz.all_reduce(rank, "max"), ezpz.all_reduce(float(rank), "min")) == (world - 1, 0.0)
    assert ezpz.all_reduce(rank == 0, "min") is (world == 1)
    assert ezpz.all_reduce(np.array([1.0, rank])).tolist() == [world, sum(range(world))]
    mine = torch.tensor([rank, 1])
    assert ezpz.all_reduce(mine, "mean").tolist() == [sum(range(world)) / world, 1.0]
    assert mine.tolist() == [rank, 1]
    ezpz.barrier()


@dataclass
class Settings:
    name: str
    sizes: tuple
    weights: torch.Tensor


EQUAL = [
    (1.5, 1.5),
    ({"b": {1, 2}, "a": [None, "x"]}, {"b": {2, 1}, "a": [None, "x"]}),
    (Settings("n", (1, 2), torch.ones(3)), Settings("n", (1, 2), torch.ones(3))),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({"x", "y", "z"}, {"z", "y", "x"}),
    (float("nan"), float("nan")),
    (torch.arange(6).reshape(2, 3).T, torch.arange(6).reshape(2, 3).T.contiguous()),
    (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)),
]
OTHERS = [
    (0, 3),
    ({"a": True}, {"a": False}),
    (Settings("n", (1, 2), torch.zeros(3)), Settings("n", (1, 2), torch.ones(3))),
    (1, 1.0),
    (1, True),
    ("1", 1),
    ([1, [2]], [[1], 2]),
    (["ab", "c"], ["a", "bc"]),
    ({"a": 1, "b": 2}, {"a": 2, "b": 1}),
    (torch.zeros(2, 3), torch.zeros(3, 2)),
    (torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
    (np.zeros(2), np.zeros(3)),
]


def of_last_rank(one, other):
    """Return `other` on the last rank, if there are several, and `one` elsewhere."""
    return other if 0 < ezpz.get_rank() == ezpz.get_world_size() - 1 else one


def test_ranks_agree_on_equal_values():
    found = [ezpz.all_ranks_agree(of_last_rank(*pair)) for pair in EQUAL]
    assert found == [True] * len(EQUAL)


def test_one_other_value_is_noticed_on_every_rank():
    found = [ezpz.all_ranks_agree(of_last_rank(*pair)) for pair in OTHERS]
    assert found == [ezpz.get_world_size() == 1] * len(OTHERS)


def test_seeds_of_data_differ_and_those_of_weights_do_not():
    world = ezpz.get_world_size()
    assert len(set(everybody(ezpz.data_seed(5)))) == world
    ezpz.seed_dropout(5)
    assert len(set(everybody(torch.rand(4).sum().item()))) == world
    ezpz.seed_everything(7)


def test_a_mesh_that_does_not_fit_the_world_is_refused_before_anybody_waits():
    with pytest.raises(UsageError, match="tp=7"):
        ezpz.setup_torch(tensor_parallel_size=7)


def test_ranks_are_distinct_and_the_launchers_answer_is_torchs():
    assert (ezpz.get_rank(), ezpz.get_world_size()) == (dist.get_rank(), dist.get_world_size())
    assert everybody(ezpz.get_rank()) == list(range(ezpz.get_world_size()))
    # A bare Open MPI deals ranks over sockets, so that local ranks may come in another order.
    assert sorted(everybody((ezpz.get_hostname(), ezpz.get_local_rank()))) == PLACES
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
    world, local_world = dist.get_world_size(), dist.get_world_size() // len(HOSTS)
    assert [int(os.environ[name]) for name in names] == [dist.get_rank(), world, ezpz.get_local_rank(), local_world]


def test_the_same_seed_gives_the_same_weights_everywhere():
    ezpz.seed_everything(7)
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
    model, optimizer, *_ = test_dist.make_model(config, world_size)
    batches, compute_loss = test_dist.make_batches(config, rank, world_size), test_dist.make_loss(config)
    for step in range(steps):
        own, _ = compute_loss(model, batches(step))
        optimizer.zero_grad()
        own.backward()
        optimizer.step()
        loss = own.detach().double()
        if world_size > 1:
            dist.all_reduce(loss)
        yield loss.item() / world_size


def test_ddp_follows_one_process_on_the_same_global_batch():
    world, rank = ezpz.get_world_size(), ezpz.get_rank()
    together = list(losses(world, rank))
    alone = list(losses(1, 0))
    assert alone[-1] < alone[0]
    assert max(abs(a - b) for a, b in zip(together, alone, strict=True)) <= 1e-5
