"""Run by pytest inside each of four ranks of one launch: meshes, their parts, and their process groups.

Not collected by itself; `test_mesh.py` launches it.
"""

import pytest
import torch
import torch.distributed as dist

import ezpz
from ezpz.dist import parallel_groups as groups
from ezpz.dist.mesh import axis, coordinate, degree, fsdp_mesh, get_mesh, init_mesh, stage_mesh
from ezpz.errors import UsageError


@pytest.fixture(scope="module", autouse=True)
def _group():
    ezpz.setup_torch(seed=7)
    yield
    dist.barrier()
    ezpz.cleanup()
    assert get_mesh() is None  # it belonged to the group


def ranks_of(mesh):
    return dist.get_process_group_ranks(mesh.get_group())


def rank():
    return dist.get_rank()


def test_without_a_mesh_all_ranks_are_data_parallel():
    assert get_mesh() is None
    assert (groups.get_data_parallel_rank(), groups.get_data_parallel_world_size()) == (rank(), 4)
    assert groups.get_data_parallel_group() is dist.group.WORLD
    assert (groups.get_tensor_parallel_rank(), groups.get_tensor_parallel_world_size()) == (0, 1)
    assert (groups.get_pipeline_parallel_rank(), groups.get_context_parallel_world_size()) == (0, 1)


def test_a_group_of_one_reduces_over_nobody_else():
    value = torch.tensor([float(rank())])
    dist.all_reduce(value, group=groups.get_tensor_parallel_group())
    assert value.item() == rank()
    assert groups.get_tensor_parallel_group() is groups.get_context_parallel_group()


def test_one_rank_alone_may_ask_for_its_group_of_one():
    if rank() == 2:
        assert dist.get_world_size(groups.get_pipeline_parallel_group()) == 1


def test_all_ranks_shard_by_default_and_the_mesh_is_remembered():
    mesh = init_mesh()
    assert (mesh.mesh_dim_names, mesh.shape, mesh.device_type) == (("dp_shard",), (4,), "cpu")
    assert get_mesh() is mesh
    assert init_mesh(dp_shard=4) is mesh  # the same wish in other words makes no second one
    assert mesh.get_group() is dist.group.WORLD
    assert fsdp_mesh(mesh) is mesh
    assert axis(mesh, "tp") is None
    assert stage_mesh(mesh) is None


def test_neighbours_share_a_layer_and_the_others_shard():
    mesh = init_mesh(tp=2)
    assert mesh.mesh_dim_names == ("dp_shard", "tp")
    assert ranks_of(axis(mesh, "tp")) == [rank() // 2 * 2, rank() // 2 * 2 + 1]
    assert ranks_of(axis(mesh, "dp")) == ranks_of(fsdp_mesh(mesh)) == [rank() % 2, rank() % 2 + 2]
    assert (coordinate(mesh, "tp"), coordinate(mesh, "dp"), coordinate(mesh, "pp")) == (rank() % 2, rank() // 2, 0)
    assert (degree(mesh, "tp"), degree(mesh, "dp"), degree(mesh, "dp_replicate")) == (2, 2, 1)
    assert (groups.get_tensor_parallel_rank(), groups.get_data_parallel_rank()) == (rank() % 2, rank() // 2)
    assert dist.get_process_group_ranks(groups.get_tensor_parallel_group()) == ranks_of(axis(mesh, "tp"))


def test_copies_and_shards_are_one_data_parallel_axis():
    mesh = init_mesh(dp_replicate=2)
    assert mesh.mesh_dim_names == ("dp_replicate", "dp_shard")
    assert fsdp_mesh(mesh) is mesh
    assert ranks_of(axis(mesh, "dp")) == [0, 1, 2, 3]
    assert (coordinate(mesh, "dp"), degree(mesh, "dp")) == (rank(), 4)
    assert (coordinate(mesh, "dp_replicate"), coordinate(mesh, "dp_shard")) == divmod(rank(), 2)


def test_ranks_of_one_sequence_share_in_the_sharding_but_not_in_the_data():
    mesh = init_mesh(cp=2)
    assert ranks_of(fsdp_mesh(mesh)) == [0, 1, 2, 3]
    assert (fsdp_mesh(mesh).ndim, coordinate(mesh, "dp"), coordinate(mesh, "cp")) == (1, rank() // 2, rank() % 2)
    both = fsdp_mesh(init_mesh(dp_replicate=2, dp_shard=1, cp=2))
    assert both.shape == (2, 2)
    assert dist.get_process_group_ranks(both.get_group(1)) == [rank() // 2 * 2, rank() // 2 * 2 + 1]


def test_stages_lie_farthest_apart():
    mesh = init_mesh(pp=2, tp=2)
    assert (mesh.mesh_dim_names, mesh.shape) == (("pp", "dp_shard", "tp"), (2, 1, 2))
    assert ranks_of(axis(mesh, "pp")) == [rank() % 2, rank() % 2 + 2]
    assert ranks_of(stage_mesh(mesh)) == [rank() // 2 * 2, rank() // 2 * 2 + 1]
    assert groups.get_pipeline_parallel_rank() == rank() // 2


def test_asking_again_makes_no_group(monkeypatch):
    mesh = init_mesh(dp_replicate=2, cp=2, dp_shard=1)
    found = [axis(mesh, "dp"), fsdp_mesh(mesh), axis(mesh, "cp")]
    monkeypatch.setattr(dist, "new_group", None)
    monkeypatch.setattr("torch.distributed.device_mesh.new_group", None)
    assert init_mesh(dp_replicate=2, cp=2, dp_shard=1) is mesh
    again = [axis(mesh, "dp"), fsdp_mesh(mesh), axis(mesh, "cp")]
    assert [part.get_all_groups() for part in again] == [part.get_all_groups() for part in found]


def test_degrees_that_do_not_fit_are_refused_on_every_rank():
    before = get_mesh()
    with pytest.raises(UsageError, match=r"tp=3 does not divide 4 ranks.*tp=2 or tp=4 is nearest"):
        init_mesh(tp=3)
    assert get_mesh() is before


@pytest.mark.parametrize(
    ("wished", "said"),
    [
        ({"ep": 2}, r"unknown degree ep=2 \(from init_mesh\); expected dp_replicate, dp_shard, cp, tp or pp\. Type"),
        ({"dp": 2}, "Type dp_shard= for ranks that share the weights"),
        ({"dp_shards": 2}, "Did you mean dp_shard"),
        ({"qqq": 2}, r"tp or pp\.$"),
    ],
)
def test_a_degree_that_does_not_exist_is_named(wished, said):
    with pytest.raises(UsageError, match=said):
        init_mesh(**wished)


def test_a_host_of_the_plan_bounds_tensor_parallel(monkeypatch):
    monkeypatch.setenv("EZPZ_PLACEMENT", "3,1")
    with pytest.raises(UsageError, match=r"tp=2 does not fit inside hosts of 1 and 3 ranks.*tp_across_hosts=True"):
        init_mesh(tp=2)
    assert init_mesh(tp=2, tp_across_hosts=True).shape == (2, 2)


def test_a_dimension_that_does_not_exist_is_named():
    with pytest.raises(UsageError, match="no dimension 'data'; expected dp or one of pp, dp_replicate"):
        degree(init_mesh(), "data")
