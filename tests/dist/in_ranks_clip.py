"""Run by pytest inside each of four ranks of one launch: clipping is that of one process, on every mesh.

Not collected by itself; `test_mesh.py` launches it. Every rank sees the same batch, so that the gradients of one
process, made beside it, are the right answer.
"""

import functools
import math

import pytest
import torch
import torch.distributed as dist
from awkward_llama import Llama, full, loss_of, sharded, tensor_parallel
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import ezpz
from ezpz.dist import clip
from ezpz.dist.mesh import axis, fsdp_mesh, init_mesh


@pytest.fixture(scope="module", autouse=True)
def _group():
    ezpz.setup_torch(seed=7)
    yield
    dist.barrier()
    ezpz.cleanup()


@pytest.fixture
def reductions(monkeypatch):
    """The groups' sizes of the all-reduces that clipping makes."""
    seen = []
    real = dist.all_reduce

    def counted(tensor, op=dist.ReduceOp.SUM, group=None):
        seen.append(dist.get_world_size(group))
        return real(tensor, op, group=group)

    monkeypatch.setattr(dist, "all_reduce", counted)
    return seen


LAYOUTS = {
    "none": lambda model: model,
    "fsdp": lambda model: sharded(model, fsdp_mesh(init_mesh())),
    "hsdp": lambda model: sharded(model, fsdp_mesh(init_mesh(dp_replicate=2))),
    "tp": lambda model: tensor_parallel(model, axis(init_mesh(tp=4), "tp")),
    "tp x fsdp": lambda model: sharded(tensor_parallel(model, init_mesh(tp=2)["tp"]), fsdp_mesh(init_mesh(tp=2))),
    "hsdp x cp": lambda model: sharded(model, fsdp_mesh(init_mesh(dp_replicate=2, dp_shard=1, cp=2))),
    "tp x cp": lambda model: sharded(
        tensor_parallel(model, init_mesh(cp=2, tp=2)["tp"]), fsdp_mesh(init_mesh(cp=2, tp=2))
    ),
}
# One per process group over which something is sharded: copies of the model need none.
REDUCTIONS = {"none": [], "fsdp": [4], "hsdp": [2], "tp": [4], "tp x fsdp": [2, 2], "hsdp x cp": [2], "tp x cp": [2, 2]}


def pair(layout):
    torch.manual_seed(3)
    dense = Llama()
    torch.manual_seed(3)
    model = LAYOUTS[layout](Llama())
    for each in (dense, model):
        loss_of(each).backward()
    return dense, model


@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, math.inf])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_norm_and_clipped_gradients_are_those_of_one_process(layout, norm_type, reductions):
    dense, model = pair(layout)
    limit = 0.1 if norm_type != math.inf else 0.01
    expected = nn.utils.clip_grad_norm_(dense.parameters(), limit, norm_type)
    reductions.clear()  # those of the backward
    found = clip.clip_grad_norm_(model.parameters(), limit, norm_type)
    assert sorted(reductions) == sorted(REDUCTIONS[layout])
    assert expected > limit
    assert type(found) is torch.Tensor
    assert found.shape == ()
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    for (name, mine), theirs in zip(model.named_parameters(), dense.parameters(), strict=True):
        torch.testing.assert_close(full(mine.grad), theirs.grad, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_ranks_get_the_same_bits(layout):
    found = [torch.empty(()) for _ in range(4)]
    dist.all_gather(found, clip.clip_grad_norm_(pair(layout)[1].parameters(), 1.0))
    assert all(torch.equal(found[0], other) for other in found)


def test_small_gradients_are_left_as_they_are():
    dense, model = pair("fsdp")
    clip.clip_grad_norm_(model.parameters(), 1e6)
    for mine, theirs in zip(model.parameters(), dense.parameters(), strict=True):
        torch.testing.assert_close(full(mine.grad), theirs.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("norm_type", [2.0, math.inf])
def test_a_gradient_that_is_not_finite_on_one_rank_is_told_to_all(poison, norm_type):
    _, model = pair("fsdp")
    if dist.get_rank() == 2:
        model.output.weight.grad.to_local()[0, 0] = poison
    found = clip.clip_grad_norm_(model.parameters(), 1.0, norm_type).item()
    assert math.isnan(found) if math.isnan(poison) else found == math.inf


def test_a_rank_without_gradients_takes_part():
    _, model = pair("tp x fsdp")
    if dist.get_rank() == 1:
        for parameter in model.layers.parameters():
            parameter.grad = None
    total = clip.clip_grad_norm_(model.parameters(), 1.0)
    assert 0 < total < math.inf
    for parameter in model.parameters():
        parameter.grad = None
    assert clip.clip_grad_norm_(model.parameters(), 1.0) == 0


def distributed(local, mesh, placements):
    parameter = nn.Parameter(DTensor.from_local(torch.zeros_like(local), mesh, [Replicate()] * mesh.ndim))
    return parameter, DTensor.from_local(local, mesh, placements)


def test_a_gradient_that_is_still_a_sum_over_ranks_is_added_up_first():
    mesh = init_mesh(tp=2)
    place = torch.full((3,), float(dist.get_rank() + 1))
    parameter, gradient = distributed(place, mesh, [Partial(), Replicate()])
    parameter.grad = gradient
    whole = gradient.full_tensor()
    found = clip.clip_grad_norm_([parameter], 1.0)
    assert found.item() == pytest.approx(whole.norm().item(), rel=1e-6)
    torch.testing.assert_close(parameter.grad.full_tensor(), whole / whole.norm(), rtol=1e-5, atol=0)
    assert parameter.grad.placements == (Partial(), Replicate())


def test_shards_that_are_empty_or_uneven_count_as_what_they_hold():
    mesh = init_mesh()
    whole = torch.arange(6.0).reshape(3, 2) + 1  # four ranks, three rows
    parameter = nn.Parameter(torch.distributed.tensor.distribute_tensor(torch.zeros_like(whole), mesh, [Shard(0)]))
    for norm_type in (1.0, 2.0, math.inf):
        parameter.grad = torch.distributed.tensor.distribute_tensor(whole, mesh, [Shard(0)])
        found = clip.clip_grad_norm_([parameter], 1.0, norm_type)
        assert found.item() == pytest.approx(torch.linalg.vector_norm(whole, norm_type).item(), rel=1e-6)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("norm_type", [2.0, math.inf])
def test_pipeline_stages_share_one_norm(norm_type, given):
    mesh = init_mesh(pp=2)
    stages = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(5))]
    for number, stage in enumerate(stages):
        stage.grad = torch.arange(stage.numel()) + 1.0 + number
    mine = stages[dist.get_rank() // 2]
    expected = nn.utils.get_total_norm([stage.grad for stage in stages], norm_type)
    found = clip.clip_grad_norm_(iter([mine]), 0.5, norm_type, mesh=mesh if given else None)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    init_mesh()


def test_a_stage_without_parameters_takes_part():
    mesh = init_mesh(pp=2)
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    found = clip.clip_grad_norm_([parameter] if dist.get_rank() < 2 else [], 1.0, mesh=mesh)
    assert found == 5
    init_mesh()


def test_low_precision_is_measured_in_float32():
    parameter = nn.Parameter(torch.zeros(4097, dtype=torch.bfloat16))
    parameter.grad = torch.full_like(parameter, 0.1)
    expected = parameter.grad.double().norm().item()
    found = clip.clip_grad_norm_([parameter], 1.0, mesh=init_mesh())
    assert (found.dtype, parameter.grad.dtype) == (torch.float32, torch.bfloat16)
    assert found.item() == pytest.approx(expected, rel=1e-5)  # a norm in bfloat16 would be 4e-3 off


def test_nothing_of_it_waits_for_the_device(monkeypatch):
    _, model = pair("tp x fsdp")
    for name in ("item", "__bool__", "__float__", "tolist", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, functools.partial(pytest.fail, f"Tensor.{name} was called"))
    found = clip.clip_grad_norm_(model.parameters(), 1.0)
    monkeypatch.undo()
    assert found > 0
