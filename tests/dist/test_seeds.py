import random

import pytest
import torch

import ezpz
import ezpz.dist.wrapped_models  # it has `coordinate` of mesh, which is patched below
from ezpz.dist import mesh
from ezpz.errors import UsageError


@pytest.fixture
def place(monkeypatch):
    """`place(rank, tp=1)`: this process is that rank of eight, and its mesh has such a tensor-parallel degree."""

    def put(rank, tp=1):
        for name, value in {"RANK": rank, "WORLD_SIZE": 8, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 8}.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(mesh, "coordinate", lambda _mesh, name: rank // tp if name == "dp" else rank % tp)

    return put


def dropout(seed):
    ezpz.seed_dropout(seed)
    return torch.rand(4).tolist()


def test_weights_are_the_same_on_every_rank(place):
    seen = []
    for rank in range(4):
        place(rank)
        ezpz.seed_everything(7)
        seen.append((torch.rand(3).tolist(), random.random()))
    assert all(one == seen[0] for one in seen)
    ezpz.seed_everything(8)
    assert torch.rand(3).tolist() != seen[0][0]


def test_data_is_another_on_every_data_parallel_rank_and_step_and_the_same_again(place):
    seen = {}
    for rank in range(8):
        place(rank, tp=2)
        for step in range(3):
            seen[rank, step] = ezpz.data_seed(7, step)
    assert seen[0, 1] == seen[1, 1] != seen[2, 1]
    assert len(set(seen.values())) == 4 * 3
    place(3, tp=2)
    assert ezpz.data_seed(7, 2) == seen[3, 2]
    assert all(0 <= value < 2**32 for value in seen.values())


def test_dropout_is_equal_across_tensor_parallel_ranks_only(place):
    masks = []
    for rank in range(4):
        place(rank, tp=2)
        masks.append(dropout(7))
    assert masks[0] == masks[1] != masks[2] == masks[3]


def test_a_seed_out_of_range_is_refused(subtests):
    for seed in (-1, 2**32):
        for function in (ezpz.seed_everything, ezpz.data_seed, ezpz.seed_dropout):
            with subtests.test(seed=seed, function=function), pytest.raises(UsageError, match=f"unusable seed {seed}"):
                function(seed)
