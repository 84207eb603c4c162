"""Run by pytest inside each of four ranks of one launch: a model built without memory gets the dense one's weights.

Not collected by itself; `test_mesh.py` launches it.
"""

import pytest
import torch
import torch.distributed as dist
from awkward_llama import Llama, full, loss_of, sharded, tensor_parallel
from torch import nn

import ezpz
from ezpz.dist.mesh import fsdp_mesh, init_mesh
from ezpz.dist.meta_init import materialize
from ezpz.errors import MachineError, UsageError


@pytest.fixture(scope="module", autouse=True)
def _group():
    ezpz.setup_torch(seed=7)
    yield
    dist.barrier()
    ezpz.cleanup()


@pytest.fixture(autouse=True)
def _alike():
    torch.manual_seed(5)


LAYOUTS = {
    "none": lambda model: model,
    "fsdp": lambda model: sharded(model, fsdp_mesh(init_mesh())),
    "hsdp": lambda model: sharded(model, fsdp_mesh(init_mesh(dp_replicate=2))),
    "tp": lambda model: tensor_parallel(model, init_mesh(tp=4)["tp"]),
    "tp x fsdp": lambda model: sharded(tensor_parallel(model, init_mesh(tp=2)["tp"]), fsdp_mesh(init_mesh(tp=2))),
    "hsdp x cp": lambda model: sharded(model, fsdp_mesh(init_mesh(dp_replicate=2, dp_shard=1, cp=2))),
    "tp x cp": lambda model: sharded(
        tensor_parallel(model, init_mesh(cp=2, tp=2)["tp"]), fsdp_mesh(init_mesh(cp=2, tp=2))
    ),
}


def on_meta(layout, make=Llama):
    with torch.device("meta"):
        model = make()
    return LAYOUTS[layout](model)


def assert_same(model, dense):
    mine = dict(model.named_parameters()) | dict(model.named_buffers())
    theirs = dict(dense.named_parameters()) | dict(dense.named_buffers())
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert tensor.device.type == "cpu"
        assert torch.equal(full(tensor), theirs[name]), name


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_weights_are_bit_for_bit_those_of_one_process(layout, tied):
    torch.manual_seed(11)
    dense = Llama(tied=tied)
    model = on_meta(layout, lambda: Llama(tied=tied))
    materialize(model, seed=11)
    assert_same(model, dense)
    assert (model.output.weight is model.embedding.weight) == tied
    found, expected = loss_of(model), loss_of(dense)
    found.backward()
    expected.backward()
    assert abs(full(found).item() - expected.item()) < 1e-5
    assert torch.allclose(full(model.embedding.weight.grad), dense.embedding.weight.grad, atol=1e-6)


def test_shards_are_as_large_as_shards():
    model = on_meta("fsdp")
    materialize(model)
    held = sum(parameter.to_local().numel() for parameter in model.parameters())
    whole = sum(parameter.numel() for parameter in model.parameters())
    assert held <= 0.3 * whole  # a quarter, and the rows that do not divide


def test_an_optimizer_steps_on_it():
    model = on_meta("tp x fsdp")
    materialize(model)
    before = loss_of(model).item()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    assert loss_of(model).item() < before


def test_without_a_seed_the_generator_decides_and_moves_on_alike_everywhere():
    torch.manual_seed(23)
    dense = Llama()
    after = torch.rand(3)
    torch.manual_seed(23)
    model = on_meta("fsdp")
    materialize(model)
    assert_same(model, dense)
    assert torch.equal(torch.rand(3), after)


def test_a_generator_that_stood_elsewhere_stays_there():
    torch.manual_seed(100 + dist.get_rank())
    before = torch.get_rng_state()
    materialize(on_meta("fsdp"))
    assert torch.equal(torch.get_rng_state(), before) == (dist.get_rank() != 0)


def test_a_seed_leaves_the_generator_alone():
    before = torch.get_rng_state()
    materialize(on_meta("fsdp"), seed=3)
    assert torch.equal(torch.get_rng_state(), before)


class OwnInit(nn.Module):
    """Draws twice: in its parts' constructors, and again as its own constructor ends."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 7), nn.Linear(7, 3)
        self.register_buffer("steps", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool))
        if not self.first.weight.is_meta:
            self.init_weights()

    def init_weights(self):
        for part in (self.first, self.second):
            part.weight.data.normal_(0, 0.02)
            nn.init.zeros_(part.bias)
        self.steps = torch.tensor([1, 2])
        self.mask = torch.tensor([True, False, True])


def whole_shard(make):
    with torch.device("meta"):
        model = make()
    return torch.distributed.fsdp.fully_shard(model, mesh=fsdp_mesh(init_mesh()))


def test_the_models_own_init_weights_is_asked():
    dense = OwnInit()
    torch.manual_seed(4)
    dense.init_weights()
    model = whole_shard(OwnInit)
    materialize(model, seed=4)
    assert_same(model, dense)


def test_build_repeats_what_a_constructor_draws():
    torch.manual_seed(4)
    dense = OwnInit()
    model = whole_shard(OwnInit)
    materialize(model, build=OwnInit, seed=4)
    assert_same(model, dense)


def test_an_initialiser_of_the_users_own_sees_a_dense_model():
    def initialize(model):
        assert type(model.first.weight.data) is torch.Tensor
        for number, parameter in enumerate(model.parameters()):
            nn.init.constant_(parameter, number)
        model.steps.fill_(9)
        model.mask.logical_not_()

    model = whole_shard(OwnInit)
    materialize(model, initialize)
    assert [full(parameter).unique().tolist() for parameter in model.parameters()] == [[0], [1], [2], [3]]
    assert (model.steps.tolist(), model.mask.tolist()) == ([9, 9], [False] * 3)


def test_what_has_memory_is_left_alone():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1] = nn.Linear(4, 4)
    kept = model[1].weight.clone()
    torch.distributed.fsdp.fully_shard(model, mesh=fsdp_mesh(init_mesh()))
    materialize(model)
    assert torch.equal(full(model[1].weight), kept)
    materialize(model)  # nothing is left to do


def test_torchs_attention_is_initialised_as_its_constructor_does():
    torch.manual_seed(6)
    dense = nn.MultiheadAttention(8, 2)
    model = whole_shard(lambda: nn.MultiheadAttention(8, 2))
    materialize(model, seed=6)
    assert_same(model, dense)


class Forgotten(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = nn.Linear(2, 2)
        self.register_buffer("table", torch.arange(3.0), persistent=False)


def test_a_buffer_that_nobody_fills_is_named_and_no_rank_waits():
    model = whole_shard(Forgotten)
    error, message = (
        (UsageError, r"buffer table has no value .*Give .*Forgotten a reset_buffers\(\)")
        if dist.get_rank() == 0
        else (MachineError, "rank 0 could not initialise the model")
    )
    with pytest.raises(error, match=message):
        materialize(model)
    materialize(model, build=Forgotten)
    assert model.table.tolist() == [0, 1, 2]


def test_a_stage_of_a_pipeline_takes_its_part_of_the_whole_model():
    mesh = init_mesh(pp=2)
    torch.manual_seed(8)
    dense = Llama()
    with torch.device("meta"):
        model = Llama()
    del model.layers[1 - mesh.get_local_rank("pp")]
    model.layers = nn.ModuleDict(
        {str(mesh.get_local_rank("pp")): model.layers[0]}
    )  # a stage keeps the names of the whole
    for layer in model.layers.values():
        torch.distributed.fsdp.fully_shard(layer, mesh=fsdp_mesh(mesh))
    with pytest.raises(UsageError, match=r"one pipeline stage of several.*Pass build="):
        materialize(model)
    materialize(model, build=Llama, seed=8)
    theirs = dict(dense.named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(full(parameter), theirs[name]), name
    init_mesh()
