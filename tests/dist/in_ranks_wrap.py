"""Run by pytest inside every rank of one launch: a model wrapped in any way follows one process on the global batch.

Not collected by itself; `test_wrap.py` launches it. The reference runs in every rank, on the whole batch and in
float32.
"""

import os
import shutil
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.distributed as dist
from small_llama import (
    CLIP,
    STEPS,
    adamw,
    alone,
    apart,
    batch_of,
    build,
    follows,
    group_of_ranks,
    mean_loss,
    share_of,
    together,
    world_mean,
)
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy

from ezpz.dist.clip import clip_grad_norm_
from ezpz.dist.mesh import init_mesh
from ezpz.dist.tensor_parallel import LLAMA_NAMES, llama_plan, loss_parallel
from ezpz.dist.weighting import accumulating, scale_loss
from ezpz.dist.wrap import wrap_model

__all__ = ["group_of_ranks"]  # a fixture, which pytest finds by its name here


def without_norms():
    plan = llama_plan(sequence_parallel=False)
    return {name: style for name, style in plan.items() if name not in LLAMA_NAMES["norms"]}


# name: degrees of the mesh for 4 ranks and for 2, arguments of wrap_model, sizes of the model
CASES = {
    "ddp": ({}, {"strategy": "ddp"}, {}),
    "ddp with recompute": ({}, {"strategy": "ddp", "activation_checkpoint": "full"}, {}),
    "zero1": ({}, {"strategy": "zero1"}, {}),
    "fsdp": ({}, {"strategy": "fsdp"}, {}),
    "fsdp kept after forward": ({}, {"strategy": "fsdp", "reshard_after_forward": False}, {}),
    "fsdp with recompute of all": ({}, {"strategy": "fsdp", "activation_checkpoint": "full"}, {}),
    "fsdp with recompute of cheap operations": ({}, {"strategy": "fsdp", "activation_checkpoint": "op"}, {}),
    "fsdp with recompute of half": ({}, {"strategy": "fsdp", "activation_checkpoint": "selective"}, {}),
    "fsdp with tied weights": ({}, {"strategy": "fsdp"}, {"tied": True}),
    "hsdp": ({"dp_replicate": 2}, {"strategy": "hsdp"}, {}),
    "tp2 sp fsdp": ({"tp": 2}, {"strategy": "fsdp", "tp_plan": True}, {}),
    "tp2 sp fsdp with recompute": (
        {"tp": 2},
        {"strategy": "fsdp", "tp_plan": True, "activation_checkpoint": "full"},
        {},
    ),
    "tp2 sp fsdp with tied weights": ({"tp": 2}, {"strategy": "fsdp", "tp_plan": True}, {"tied": True}),
    "tp2 with whole copies": ({"tp": 2, "dp_replicate": -1, "dp_shard": 1}, {"strategy": "fsdp", "tp_plan": True}, {}),
    "tp2 without sp fsdp": ({"tp": 2}, {"strategy": "fsdp", "tp_plan": {"sequence_parallel": False}}, {}),
    "tp2 with norms outside of the plan fsdp": ({"tp": 2}, {"strategy": "fsdp", "tp_plan": without_norms}, {}),
    "tp2 sp loss parallel fsdp": ({"tp": 2}, {"strategy": "fsdp", "tp_plan": {"loss_parallel": True}}, {}),
    "tp of all ranks sp": ({"tp": -1}, {"strategy": "none", "tp_plan": True}, {"n_kv_heads": 4}),
    "tp of all ranks sp fsdp": ({"tp": -1}, {"strategy": "fsdp", "tp_plan": True}, {"n_kv_heads": 4}),
}


def mesh_of(degrees):
    world = dist.get_world_size()
    degrees = {name: world if size == -1 and name == "tp" else size for name, size in degrees.items()}
    if degrees.get("dp_replicate") == -1:
        degrees["dp_replicate"] = world // degrees["tp"]
    return init_mesh(**degrees)


def arguments_of(wishes):
    wishes = dict(wishes)
    plan = wishes.pop("tp_plan", None)
    if plan is not None:
        wishes["tp_plan"] = plan() if callable(plan) else llama_plan(**({} if plan is True else plan))
    return wishes


@pytest.mark.parametrize("name", CASES)
def test_it_follows_one_process(name):
    degrees, wishes, sizes = CASES[name]
    mesh = mesh_of(degrees)
    model = wrap_model(build(**sizes), mesh=mesh, dtype="fp32", **arguments_of(wishes))
    follows(together(model, mesh, cut_logits="loss parallel" in name), alone(**sizes))


def test_without_a_mesh_all_ranks_are_data_parallel():
    init_mesh()
    for strategy in ("ddp", "fsdp"):
        model = wrap_model(build(), strategy, dtype="fp32")
        follows(together(model, None, steps=2), alone(steps=2))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_bf16_follows_one_process_in_float32_and_keeps_float32_weights(strategy):
    mesh = init_mesh()
    model = wrap_model(build(), strategy, mesh, "bf16")
    follows(together(model, mesh), alone(), loss=2e-3, norm=2e-3)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model(batch_of(0)[0]).dtype == torch.float32


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero1"])
def test_without_a_dtype_the_models_own_computes(strategy):
    """A default of 16 bits would miss 1e-5 by far."""
    mesh = init_mesh()
    follows(together(wrap_model(build(), strategy, mesh), mesh, steps=2), alone(steps=2))


def test_a_bf16_model_stays_one_and_is_reduced_in_float32():
    model = wrap_model(build().bfloat16(), "fsdp", init_mesh())
    tokens, labels = (each.chunk(dist.get_world_size())[dist.get_rank()] for each in batch_of(0))
    output = model(tokens)
    mean_loss(output.float(), labels).backward()
    assert output.dtype == torch.bfloat16
    assert {each.grad.dtype for each in model.parameters()} == {torch.bfloat16}
    assert {model._get_fsdp_state()._mp_policy.reduce_dtype} == {torch.float32}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_fp16_learns_with_a_scaler_and_leaves_a_step_out_on_all_ranks(strategy):
    mesh = init_mesh()
    model = wrap_model(build(), strategy, mesh, "fp16")
    optimizer, scaler = adamw(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    tokens, labels = (each.chunk(dist.get_world_size())[dist.get_rank()] for each in batch_of(0))
    losses = []
    for step in range(STEPS):
        loss = mean_loss(model(tokens), labels)
        broken = step == 3 and dist.get_rank() == 0
        scaler.scale(loss * (torch.inf if broken else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(world_mean(loss))
    assert losses[-1] < losses[0] - 0.5
    assert losses[4] == losses[3]  # nothing was learned from the broken step
    assert scaler.get_scale() == 512.0
    scales = [None] * dist.get_world_size()
    dist.all_gather_object(scales, scaler.get_scale())
    assert set(scales) == {512.0}


def weighted(model, mesh, size, loss_of):
    optimizer = adamw(model)
    part, parts = share_of(mesh)
    for step in range(STEPS):
        tokens, labels = (each.tensor_split(parts)[part] for each in batch_of(step, size))
        logits = model(tokens)
        with loss_parallel() if isinstance(logits, DTensor) else nullcontext():
            loss = loss_of(logits, labels, mesh)
            loss.backward()
        norm = clip_grad_norm_(model.parameters(), CLIP, mesh=mesh)
        optimizer.step()
        optimizer.zero_grad()
        yield world_mean(loss), float(norm)


def by_tokens(logits, labels, mesh):
    return scale_loss(cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"), labels.numel(), mesh)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp", "loss parallel"])
def test_a_batch_that_does_not_divide_counts_every_token_once(strategy):
    size = 2 * dist.get_world_size() + 1
    mesh = init_mesh(dp_replicate=2 if strategy == "hsdp" else 1, tp=2 if strategy == "loss parallel" else 1)
    plan = llama_plan(loss_parallel=True) if strategy == "loss parallel" else None
    model = wrap_model(build(), "fsdp" if plan else strategy, mesh, "fp32", tp_plan=plan)
    follows(weighted(model, mesh, size, by_tokens), alone(size=size))


def test_a_mean_of_means_does_not():
    size = 2 * dist.get_world_size() + 1
    mesh = init_mesh()
    model = wrap_model(build(), "ddp", mesh, "fp32")
    differences = apart(
        weighted(model, mesh, size, lambda logits, labels, _: mean_loss(logits, labels)), alone(size=size)
    )
    assert max(differences) > 1e-3, differences


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_accumulated_gradients_are_exchanged_once_and_are_those_of_the_whole_batch(strategy):
    mesh = init_mesh()
    model = wrap_model(build(), strategy, mesh, "fp32")
    tokens, labels = (each.chunk(dist.get_world_size())[dist.get_rank()] for each in batch_of(0))
    for index, (x, y) in enumerate(zip(tokens.chunk(2), labels.chunk(2), strict=True)):
        with accumulating(model, last=index == 1):
            (mean_loss(model(x), y) / 2).backward()
        gradient = next(model.parameters()).grad
        if strategy == "ddp":
            norms = [None] * dist.get_world_size()
            dist.all_gather_object(norms, gradient.norm().item())
            assert (len(set(norms)) == 1) == (index == 1)
        else:
            assert (gradient is not None) == (index == 1)
    norm = clip_grad_norm_(model.parameters(), CLIP, mesh=mesh)
    assert float(norm) == pytest.approx(next(alone(steps=1))[1], abs=1e-5)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
@pytest.mark.skipif("WORLD_SIZE" in os.environ and os.environ["WORLD_SIZE"] != "2", reason="slow: 2 ranks are enough")
def test_a_compiled_block_follows_one_process(monkeypatch):
    if os.environ.get("EZPZ_TEST_DRAW"):  # `make test`: without torch's C++, a minute of it; `make learn` has all
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    mesh = init_mesh()
    model = wrap_model(build(n_layers=1), "fsdp", mesh, "fp32", compile=True)
    follows(together(model, mesh, steps=1), alone(steps=1, n_layers=1))
    assert model.layers[0]._compiled_call_impl is not None
