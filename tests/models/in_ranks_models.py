"""Run by pytest inside every rank of one launch: the shipped models on many ranks follow one process.

Not collected by itself; `test_models_in_ranks.py` launches it. The reference runs in every rank, on the whole global
batch.
"""

import warnings
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import ezpz
import ezpz.errors
from ezpz.models import CNN, Llama, LlamaConfig, VisionTransformer, ViTConfig
from ezpz.train.flops import count_flops, parameters_for_flops

LLAMA = LlamaConfig(vocab_size=256, dim=64, n_layers=3, n_heads=4, n_kv_heads=2, ffn_dim=96, max_seq_len=48)
VIT = ViTConfig(image_size=16, patch_size=4, depth=3, n_heads=4, head_dim=8, classes=10, channels=1)
LENGTH, BATCH, STEPS = 32, 8, 6
CLIP = 0.1  # below every gradient norm here, so that clipping is always at work

MODELS = {
    "llama": lambda: Llama(LLAMA),
    "tied llama": lambda: Llama(replace(LLAMA, tied=True)),
    "cnn": lambda: CNN(16).eval(),  # without dropout, which draws other numbers on every rank
    "vit": lambda: VisionTransformer(VIT),
    "vit flash": lambda: VisionTransformer(replace(VIT, attention="flash")),
}
# name: model, degrees of the mesh, arguments of wrap_model
CASES = {
    "llama ddp": ("llama", {}, {"strategy": "ddp"}),
    "llama fsdp": ("llama", {}, {"strategy": "fsdp"}),
    "llama fsdp with recompute": ("llama", {}, {"strategy": "fsdp", "activation_checkpoint": "full"}),
    "tied llama fsdp": ("tied llama", {}, {"strategy": "fsdp"}),
    "llama hsdp": ("llama", {"dp_replicate": 2}, {"strategy": "hsdp"}),
    "llama tp sp": ("llama", {"tp": 2}, {"strategy": "fsdp", "tp_plan": ezpz.llama_plan}),
    "llama tp sp with recompute": (
        "llama",
        {"tp": 2},
        {"strategy": "fsdp", "tp_plan": ezpz.llama_plan, "activation_checkpoint": "full"},
    ),
    "tied llama tp sp": ("tied llama", {"tp": 2}, {"strategy": "fsdp", "tp_plan": ezpz.llama_plan}),
    "cnn ddp": ("cnn", {}, {"strategy": "ddp"}),
    "cnn fsdp": ("cnn", {}, {"strategy": "fsdp"}),
    "vit ddp": ("vit", {}, {"strategy": "ddp"}),
    "vit fsdp": ("vit", {}, {"strategy": "fsdp"}),
    "vit flash fsdp with recompute": ("vit flash", {}, {"strategy": "fsdp", "activation_checkpoint": "full"}),
}


@pytest.fixture(scope="module", autouse=True)
def _group():
    ezpz.setup_torch(seed=7)
    torch.set_num_threads(1)
    yield
    dist.barrier()
    ezpz.cleanup()


def build(name, seed=11):
    ezpz.seed_everything(seed)
    return MODELS[name]()


def batch_of(name, step):
    generator = torch.Generator().manual_seed(100 + step)
    if "llama" in name:
        tokens = torch.randint(LLAMA.vocab_size, (BATCH, LENGTH + 1), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]
    return torch.randn(BATCH, 1, 16, 16, generator=generator), torch.randint(10, (BATCH,), generator=generator)


def loss_of(model, x, y):
    return cross_entropy(model(x).flatten(0, -2), y.flatten())


@cache
def alone(name):
    """Return loss and gradient norm of each step of one process, without anything of ezpz around the model."""
    model, steps = build(name), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        loss = loss_of(model, *batch_of(name, step))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        assert norm > CLIP
        steps.append((loss.item(), norm.item()))
    return steps


def together(name, model, mesh):
    optimizer = ezpz.make_optimizer(model, torch.optim.AdamW, lr=1e-3)
    part, parts = ezpz.coordinate(mesh, "dp"), ezpz.degree(mesh, "dp")
    for step in range(STEPS):
        loss = loss_of(model, *(each.chunk(parts)[part] for each in batch_of(name, step)))
        loss.backward()
        norm = ezpz.clip_grad_norm_(model.parameters(), CLIP, mesh=mesh)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().double()
        dist.all_reduce(mean)
        yield mean.item() / dist.get_world_size(), float(norm)


@pytest.mark.parametrize("case", CASES)
def test_it_follows_one_process(case):
    name, degrees, wishes = CASES[case]
    mesh = ezpz.init_mesh(**degrees)
    plan = {"tp_plan": wishes["tp_plan"]()} if "tp_plan" in wishes else {}
    model = ezpz.wrap_model(build(name), mesh=mesh, dtype="fp32", **{**wishes, **plan})
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*returned a view tensor")
        ours = list(together(name, model, mesh))
    pairs = list(zip(ours, alone(name), strict=True))
    assert max(abs(a[0] - b[0]) for a, b in pairs) <= 1e-5, pairs
    assert max(abs(a[1] - b[1]) for a, b in pairs) <= 1e-5, pairs


@pytest.mark.parametrize(
    ("name", "degrees"), [("llama", {}), ("llama", {"tp": 2}), ("tied llama", {"tp": 2}), ("vit", {}), ("cnn", {})]
)
def test_weights_of_a_sharded_model_are_bit_for_bit_those_of_a_whole_one(name, degrees):
    with torch.device("meta"):
        dense, model = MODELS[name](), MODELS[name]()
    ezpz.materialize(dense, seed=11)
    mesh = ezpz.init_mesh(**degrees)
    plan = {"tp_plan": ezpz.llama_plan()} if degrees else {}
    model = ezpz.wrap_model(model, "fsdp", mesh, "fp32", seed=11, **plan)
    expected = {**dict(dense.named_parameters()), **dict(dense.named_buffers())}
    found = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    assert found.keys() == expected.keys()
    for each, tensor in found.items():
        assert torch.equal(tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor, expected[each]), each
    assert parameters_for_flops(model) == parameters_for_flops(dense)  # what is cut over ranks counts whole
    x, _ = batch_of(name, 0)
    with pytest.raises(ezpz.errors.UsageError, match="before wrap_model"):
        count_flops(model, x)
    assert torch.allclose(model(x), dense(x), atol=1e-5)


def test_logits_may_stay_cut_along_the_vocabulary():
    mesh = ezpz.init_mesh(tp=2)
    plan = ezpz.llama_plan(loss_parallel=True)
    model = ezpz.wrap_model(build("llama"), "fsdp", mesh, "fp32", tp_plan=plan)
    x, y = batch_of("llama", 0)
    with ezpz.loss_parallel():
        logits = model(x)
        loss = cross_entropy(logits.flatten(0, 1), y.flatten())
        loss.backward()
    assert logits.to_local().shape == (BATCH, LENGTH, LLAMA.vocab_size // 2)
    expected, norm = alone("llama")[0]
    assert abs(loss.full_tensor().item() - expected) <= 1e-5
    assert abs(float(ezpz.clip_grad_norm_(model.parameters(), CLIP, mesh=mesh)) - norm) <= 1e-5


@pytest.mark.parametrize("name", ["llama", "vit"])
def test_bf16_stays_near_float32(name):
    mesh = ezpz.init_mesh()
    model = ezpz.wrap_model(build(name), "fsdp", mesh, "bf16")
    losses = [loss for loss, _ in together(name, model, mesh)]
    assert losses == pytest.approx([loss for loss, _ in alone(name)], abs=4e-3)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_table_of_positions_is_float32_in_every_layer(strategy, monkeypatch):
    used = []
    rotate = ezpz.models.llama.rotate
    monkeypatch.setattr(
        ezpz.models.llama, "rotate", lambda x, rope: used.append((x.dtype, rope.values)) or rotate(x, rope)
    )
    network = build("llama")
    table = network.rope.clone()
    model = ezpz.wrap_model(network, strategy, ezpz.init_mesh(), "bf16")
    model(torch.zeros(1, 8, dtype=torch.int64))
    assert {dtype for dtype, _ in used} == {torch.bfloat16}
    assert len(used) == 2 * LLAMA.n_layers
    assert all(rope.dtype == torch.float32 and torch.equal(rope, table[:, :8]) for _, rope in used)


def test_heads_that_do_not_divide_are_named():
    if dist.get_world_size() < 4:
        pytest.skip("two ranks divide every number of heads here")
    mesh = ezpz.init_mesh(tp=4)
    with pytest.raises(ezpz.errors.UsageError, match="n_kv_heads=2 cannot be cut into tp=4"):
        ezpz.wrap_model(build("llama"), "fsdp", mesh, tp_plan=ezpz.llama_plan())
