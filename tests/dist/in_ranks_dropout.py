"""Run by pytest inside every rank: which features tensor-parallel ranks drop, and that these are the same again."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

import ezpz
from ezpz.dist.mesh import init_mesh
from ezpz.dist.wrap import wrap_model

BLOCKS = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}
SEQUENCE = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "blocks.*": "gather_sequence",
    "blocks.*.up": "colwise",
    "blocks.*.down": RowwiseParallel(output_layouts=Shard(1)),
    "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}


@pytest.fixture(scope="session", autouse=True)
def group_of_ranks():
    ezpz.setup_torch(seed=7)
    torch.set_num_threads(1)
    yield
    dist.barrier()
    ezpz.cleanup()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 64), nn.Linear(64, 8)
        self.inner, self.outer = nn.Dropout(0.5), nn.Dropout(0.5)

    def forward(self, x):
        return self.outer(self.down(self.inner(self.up(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.output = nn.Embedding(11, 8), nn.Linear(8, 12)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.output(x)


def wrapped(plan, recompute=None):
    """The model, and a dict that fills with the masks of each dropout, in the order in which they are drawn."""
    ezpz.seed_everything(3)
    model = wrap_model(Model(), "fsdp", init_mesh(tp=2), "fp32", tp_plan=plan, activation_checkpoint=recompute)
    masks = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(
                lambda _, __, out, name=name: masks.setdefault(name, []).append((out == 0).flatten().tolist())
            )
    ezpz.seed_dropout(5)
    return model, masks


def step(model):
    model.zero_grad()
    model(torch.arange(32).view(2, 16) % 11).square().mean().backward()
    return [parameter.grad.full_tensor().clone() for parameter in model.parameters()]


def everyone(value):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


@pytest.mark.parametrize("recompute", [None, "full", "op"])
@pytest.mark.parametrize("plan", [BLOCKS, SEQUENCE], ids=["whole", "sequence"])
def test_ranks_drop_apart_what_they_hold_apart(plan, recompute):
    model, masks = wrapped(plan, recompute)
    seed = torch.initial_seed()
    gradients = step(model)
    assert torch.initial_seed() == seed
    between = torch.get_rng_state()
    step(model)
    for name, seen in masks.items():
        drawn = len(seen) // 2  # a recomputation ends when it has what backward needs: the last dropout is not drawn
        assert drawn == (2 if recompute and "inner" in name else 1), name
        assert all(forward == again for forward, again in zip(seen[::drawn], seen[drawn - 1 :: drawn], strict=True))
        assert seen[0] != seen[-1], name  # another step, other masks
        assert 0.3 < sum(seen[0]) / len(seen[0]) < 0.7
        first, second = everyone(seen)
        if plan is SEQUENCE or "inner" in name:
            assert all(a != b for a, b in zip(first, second, strict=True)), name
        else:
            assert first == second, name
    assert len({tuple(seen[0]) for name, seen in masks.items() if "inner" in name}) == 2
    # All ranks go on alike outside, and a run that is resumed from here drops the same.
    alike = everyone(torch.rand(4).tolist())
    assert alike[0] == alike[1]
    torch.set_rng_state(between)
    step(model)
    assert all(seen[-1] == seen[len(seen) * 2 // 3 - 1] for seen in masks.values())
    again, _ = wrapped(plan)  # without recomputation: the same gradients
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(gradients, step(again), strict=True))


def test_a_forward_that_failed_and_an_evaluation_leave_the_stream_as_it_was():
    model, _ = wrapped(BLOCKS)
    before = torch.get_rng_state()
    with torch.no_grad():
        model.eval()(torch.zeros(1, 16, dtype=torch.int64))
    assert torch.equal(torch.get_rng_state(), before)
    seed = torch.initial_seed()
    broken = model.train().blocks[1].inner.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(torch.zeros(1, 16, dtype=torch.int64))
    broken.remove()
    model(torch.zeros(1, 16, dtype=torch.int64))
    assert torch.initial_seed() == seed
    alike = everyone(torch.rand(4).tolist())
    assert alike[0] == alike[1]


def test_a_model_without_dropout_is_left_alone():
    model = Model()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    wrap_model(model, "none", init_mesh(tp=2), "fp32", tp_plan=BLOCKS)
    before = torch.get_rng_state()
    model(torch.zeros(1, 4, dtype=torch.int64))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_compiled_model_drops_apart_too():
    model, masks = wrapped(BLOCKS)
    model.blocks[0].compile(backend="aot_eager")
    step(model)
    first, second = everyone(masks)
    assert first["blocks.1.outer"] == second["blocks.1.outer"]
    assert first["blocks.1.inner"] != second["blocks.1.inner"]
