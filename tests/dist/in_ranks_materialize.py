"""Run by pytest inside each of four ranks of one launch: a model built without memory gets the dense one's weights.

Not collected by itself; `test_mesh.py` launches it.
"""

import logging

import pytest
import torch
import torch.distributed as dist
from awkward_llama import Llama, full, loss_of, sharded, tensor_parallel
from torch import nn

import ezpz
from ezpz.dist import block_draws
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


def alone(make, **how):
    """Return the model of one process, which is not cut."""
    with torch.device("meta"):
        model = make()
    materialize(model, **how)
    return model


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(block_draws, "BLOCK", 96)  # so that shards begin and end inside of blocks


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
    dense = alone(lambda: Llama(tied=tied), seed=11)
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
    dense = alone(Llama)
    after = torch.rand(3)
    torch.manual_seed(23)
    model = on_meta("fsdp")
    materialize(model)
    assert_same(model, dense)
    assert torch.equal(torch.rand(3), after)


def test_generators_that_stand_apart_give_the_first_ranks_weights_and_stay_apart():
    torch.manual_seed(100)
    dense = alone(Llama)
    torch.manual_seed(100 + dist.get_rank())
    model = on_meta("fsdp")
    materialize(model)
    assert_same(model, dense)
    drawn = [None] * dist.get_world_size()
    dist.all_gather_object(drawn, torch.rand(()).item())
    assert len(set(drawn)) == dist.get_world_size()


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
    dense = alone(OwnInit, seed=4)
    assert 0 < dense.first.weight.std() < 0.04
    model = whole_shard(OwnInit)
    materialize(model, seed=4)
    assert_same(model, dense)


def test_build_repeats_what_a_constructor_draws():
    dense = alone(OwnInit, build=OwnInit, seed=4)
    model = whole_shard(OwnInit)
    materialize(model, build=OwnInit, seed=4)
    assert_same(model, dense)
    assert (dense.steps.tolist(), dense.mask.tolist()) == ([1, 2], [True, False, True])


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
    dense = alone(lambda: nn.MultiheadAttention(8, 2), seed=6)
    assert dense.in_proj_bias.tolist() == [0] * 24
    bound = (6 / (8 + 24)) ** 0.5  # Xavier's
    assert 0.9 * bound < dense.in_proj_weight.abs().max() <= bound
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
    init_mesh()
    dense = alone(Llama, seed=8)
    mesh = init_mesh(pp=2)
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


class Orthogonal(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(6, 5))
        self.other = nn.Linear(5, 3)

    def reset_parameters(self):
        nn.init.orthogonal_(self.weight)


def test_what_cannot_be_cut_is_initialised_whole_on_one_rank_and_a_line_says_so(caplog):
    torch.manual_seed(9)
    dense = Orthogonal()
    dense.other.reset_parameters()
    torch.manual_seed(9)
    dense.other.reset_parameters()
    dense.reset_parameters()
    model = whole_shard(Orthogonal)
    logger = logging.getLogger("ezpz.dist.meta_init")
    logger.addHandler(caplog.handler)
    try:
        materialize(model, seed=9)
    finally:
        logger.removeHandler(caplog.handler)
    assert_same(model, dense)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (dist.get_rank() == 0)
    assert all("initialised whole on one rank's CPU" in line and "weight is" in line for line in said)


def test_ranks_whose_initialisation_differs_take_the_first_ranks():
    def initialize(model):
        nn.init.constant_(model.weight, 1 + dist.get_rank())
        nn.init.zeros_(model.bias)

    model = whole_shard(lambda: nn.Linear(8, 8))
    materialize(model, initialize)
    assert full(model.weight).unique().tolist() == [1]


def test_tables_that_ranks_compute_otherwise_are_the_first_ranks():
    def initialize(model):
        model.weight.copy_(torch.arange(64.0).view(8, 8) + dist.get_rank())
        nn.init.zeros_(model.bias)

    model = whole_shard(lambda: nn.Linear(8, 8))
    materialize(model, initialize)
    assert torch.equal(full(model.weight), torch.arange(64.0).view(8, 8))


def test_nothing_is_drawn_before_a_load_but_buffers_are_there():
    model = on_meta("tp x fsdp")
    materialize(model, draw=False)
    assert all(full(parameter).isnan().all() for parameter in model.parameters())
    assert torch.equal(model.rope.table, Llama().rope.table)
