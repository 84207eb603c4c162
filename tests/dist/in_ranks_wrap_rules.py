"""Run by pytest inside every rank, beside `in_ranks_wrap.py`: what wrapping does to a model, and what it refuses."""

import copy
import math
import warnings

import pytest
import torch
import torch.distributed as dist
from small_llama import Llama, adamw, alone, batch_of, build, follows, group_of_ranks, mean_loss, together
from torch import nn
from torch.distributed.tensor import DTensor

from ezpz.dist.mesh import init_mesh
from ezpz.dist.meta_init import materialize
from ezpz.dist.tensor_parallel import llama_plan
from ezpz.dist.wrap import wrap_model
from ezpz.errors import UsageError

__all__ = ["group_of_ranks"]  # a fixture, which pytest finds by its name here


def test_recompute_computes_again_and_leaves_all_names_as_they_are():
    plain = build()
    for wish, calls in (("full", 8), ("op", 8), ("selective", 6), (4, 5), (None, 4)):
        counted = []
        model = build()
        for layer in model.layers:
            layer.ffn_norm.register_forward_hook(lambda *_, seen=counted: seen.append(1))
        model = wrap_model(model, "fsdp", init_mesh(), "fp32", activation_checkpoint=wish)
        mean_loss(model(batch_of(0)[0]), batch_of(0)[1]).backward()
        assert len(counted) == calls, wish
        assert list(model.state_dict()) == list(plain.state_dict())
        assert [name for name, _ in model.named_parameters()] == [name for name, _ in plain.named_parameters()]


@pytest.mark.parametrize("wishes", ["fsdp", "ddp", "hsdp", "none", "tp"])
def test_a_model_on_meta_gets_the_weights_of_the_seed(wishes):
    mesh = init_mesh(dp_replicate=2 if wishes == "hsdp" else 1, tp=2 if wishes == "tp" else 1)
    with torch.device("meta"):
        model, one = Llama(n_layers=2), Llama(n_layers=2)
    strategy = "fsdp" if wishes == "tp" else wishes
    plan = llama_plan() if wishes == "tp" else None
    how = {"build": lambda: build(n_layers=2), "seed": 11}
    model = wrap_model(model, strategy, mesh, "fp32", tp_plan=plan, activation_checkpoint="full", **how)
    assert not any(tensor.is_meta for tensor in model.state_dict().values())
    materialize(one, **how)  # what one process gets that cuts nothing
    if wishes == "none":
        assert torch.equal(model.output.weight, one.output.weight)
    else:
        follows(together(model, mesh, steps=2), alone(steps=2, model=one))


def test_fsdp_leaves_each_rank_its_share_and_cuts_every_block():
    model = wrap_model(build(), "fsdp", init_mesh())
    kept = sum(parameter.to_local().numel() for parameter in model.parameters())
    whole = sum(parameter.numel() for parameter in build().parameters())
    assert kept == whole // dist.get_world_size()
    units = [name for name, module in model.named_modules() if hasattr(module, "unshard")]
    assert units == ["", "layers.0", "layers.1", "layers.2", "layers.3"]


def test_hsdp_copies_agree_although_ranks_were_seeded_apart():
    model = wrap_model(build(seed=dist.get_rank()), "hsdp", init_mesh(dp_replicate=2))
    shard = model.output.weight.to_local().detach()
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, shard.sum().item())
    half = dist.get_world_size() // 2
    assert everyone[:half] == everyone[half:]


def test_a_sum_stands_in_where_no_average_is_supported(monkeypatch):
    import ezpz.dist.torch_support

    monkeypatch.setattr(ezpz.dist.torch_support, "average_is_supported", lambda _: False)
    seen = set()
    real = dist.reduce_scatter_tensor

    def watched(*args, op=dist.ReduceOp.SUM, **kwargs):
        seen.add(str(op))
        return real(*args, op=op, **kwargs)

    for name in ("reduce_scatter_tensor", "reduce_scatter_single"):
        if hasattr(dist, name):
            real = getattr(dist, name)
            monkeypatch.setattr(dist, name, watched)
    mesh = init_mesh()
    model = wrap_model(build(), "fsdp", mesh, "fp32")
    follows(together(model, mesh, steps=2), alone(steps=2))
    assert seen == {str(dist.ReduceOp.SUM)}


def test_heads_that_cannot_be_cut_are_refused_with_the_nearest_that_can():
    world = dist.get_world_size()
    with pytest.raises(
        UsageError,
        match=f"n_kv_heads=1 cannot be cut into tp={world} equal parts; expected n_kv_heads={world}, or tp=1",
    ):
        wrap_model(build(n_kv_heads=1), "fsdp", init_mesh(tp=world), tp_plan=llama_plan())


def test_a_sequence_that_cannot_be_cut_is_refused_before_ranks_wait_for_each_other():
    model = wrap_model(build(), "fsdp", init_mesh(tp=2), "fp32", tp_plan=llama_plan())
    with pytest.raises(UsageError, match="sequence=31 cannot be cut into tp=2 equal parts; expected sequence=30 or 32"):
        model(batch_of(0)[0][:, :31])


def test_a_model_without_a_plan_and_ddp_on_a_cut_model_are_refused():
    mesh = init_mesh(tp=2)
    with pytest.raises(UsageError, match="no plan for tp=2: Llama has no tp_plan"):
        wrap_model(build(), "fsdp", mesh)
    with pytest.raises(UsageError, match="strategy='ddp' does not go with tp=2"):
        wrap_model(build(), "ddp", mesh, tp_plan=llama_plan())
    with pytest.raises(
        UsageError, match=r"'layers.\*.attention.query', but Llama has no such module.*layers.\*.attention"
    ):
        wrap_model(build(), "fsdp", mesh, tp_plan={"layers.*.attention.query": "colwise"})
    model = build()
    model.layers[1].attention.wq = nn.Sequential(model.layers[1].attention.wq)  # as a layer of LoRA is around it
    with pytest.raises(UsageError, match=r"'layers.1.attention.wq', of type Sequential; .*layers.1.attention.wq.0\."):
        wrap_model(model, "fsdp", mesh, tp_plan=llama_plan())


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero1", "fsdp under a plan"])
def test_frozen_weights_stay_as_they_are(strategy):
    """Also norms, of which torch's styles make parameters anew."""

    def frozen():
        model = build(n_layers=2, tied=True)
        for module in (model.tok_embeddings, model.layers[0], model.norm):
            module.requires_grad_(False)
        return model

    mesh = init_mesh(tp=2 if "plan" in strategy else 1)
    model = wrap_model(
        frozen(), strategy.split()[0], mesh, "fp32", tp_plan=llama_plan() if "plan" in strategy else None
    )
    kept = [name for name, each in model.named_parameters() if not each.requires_grad]
    assert len(kept) == sum(not each.requires_grad for each in frozen().parameters())
    follows(together(model, mesh), alone(model=frozen()))


def test_a_models_own_plan_of_words_is_used():
    mesh = init_mesh(tp=2)
    model = build()
    model.tp_plan = {
        "tok_embeddings": "embedding_rowwise",
        "layers.*.attention.w[qkv]": "colwise",
        "layers.*.attention.wo": "rowwise",
        "layers.*.feed_forward.w[13]": "colwise",
        "layers.*.feed_forward.w2": "rowwise",
        "layers.*.attention_norm": "replicate",
        "output": "colwise_rep",
    }
    model = wrap_model(model, "fsdp", mesh, "fp32")
    assert isinstance(model.layers[1].attention_norm.weight, DTensor)
    follows(together(model, mesh), alone())


def test_weights_that_a_plan_leaves_whole_come_from_one_rank():
    mesh = init_mesh(tp=dist.get_world_size())
    model = build(seed=dist.get_rank(), n_kv_heads=4)
    nn.init.normal_(model.norm.weight)
    nn.init.normal_(model.layers[0].ffn_norm.weight)
    plan = {name: style for name, style in llama_plan().items() if name != "norm"}
    model = wrap_model(model, "none", mesh, tp_plan=plan)
    whole = (model.norm.weight, model.layers[0].ffn_norm.weight.to_local())
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, [weight.sum().item() for weight in whole])
    assert all(each == everyone[0] for each in everyone)


def test_hsdp_on_one_host_asks_for_the_number_of_copies(monkeypatch):
    monkeypatch.setattr("ezpz.dist.mesh.get_mesh", lambda: None)
    with pytest.raises(UsageError, match=r"ranks with \d on this host .*init_mesh\(dp_replicate=2\)"):
        wrap_model(build(), "hsdp")
    with pytest.raises(UsageError, match="needs copies, and the mesh has dp_replicate=1"):
        wrap_model(build(), "hsdp", init_mesh())


def test_a_model_is_wrapped_once():
    for strategy in ("ddp", "fsdp"):
        wrapped = wrap_model(build(n_layers=1), strategy, init_mesh())
        with pytest.raises(UsageError, match="is wrapped already"):
            wrap_model(wrapped, strategy)


def test_zero1_keeps_a_share_of_the_state_and_rank_0_can_collect_it():
    model = wrap_model(build(), "zero1", init_mesh(), "fp32")
    optimizer = adamw(model)
    mean_loss(model(batch_of(0)[0]), batch_of(0)[1]).backward()
    optimizer.step()
    kept = sum(state["exp_avg"].numel() for state in optimizer.optim.state.values())
    whole = sum(parameter.numel() for parameter in model.parameters())
    assert kept < 0.6 * whole
    total = torch.tensor([kept])
    dist.all_reduce(total)
    assert total.item() == whole
    optimizer.consolidate_state_dict(to=0)
    if dist.get_rank() == 0:
        assert len(optimizer.state_dict()["state"]) == len(list(model.parameters()))


def test_a_wrapped_autocast_model_can_be_copied():
    model = wrap_model(build(n_layers=1), "none", activation_checkpoint="full")
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.output.weight.zero_()
    assert model(batch_of(0)[0]).abs().sum() > 0
    assert twin(batch_of(0)[0]).abs().sum() == 0


class Tables(nn.Module):
    """Constants that no checkpoint holds, one of them shared, beside statistics that one does."""

    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(3), nn.Linear(3, 3)
        self.register_buffer("angles", torch.polar(torch.ones(4), torch.arange(4.0)), persistent=False)
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool), persistent=False)
        self.layer.register_buffer("mask", self.mask, persistent=False)

    def forward(self, x):
        return self.layer(self.norm(x)) * self.layer.mask


def sent_in_a_forward(model, monkeypatch):
    seen = []
    real = dist._broadcast_coalesced
    monkeypatch.setattr(
        dist, "_broadcast_coalesced", lambda group, tensors, *rest: seen.extend(tensors) or real(group, tensors, *rest)
    )
    model(torch.ones(4, 3) * (1 + dist.get_rank()))
    monkeypatch.undo()
    return sum(each.numel() * each.element_size() for each in seen)


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_constants_are_sent_once_and_statistics_before_every_forward(strategy, monkeypatch):
    network = Tables()
    if dist.get_rank():
        network.angles.zero_()
        network.mask.logical_not_()
    model = wrap_model(network, strategy, init_mesh())
    assert network.mask.tolist() == [True] * 3
    assert network.angles[1].item() == pytest.approx(complex(math.cos(1), math.sin(1)))
    statistics = 3 * 4 + 3 * 4 + 8  # mean, variance, and the number of batches
    assert sent_in_a_forward(model, monkeypatch) == statistics
    everyone = [None] * dist.get_world_size()
    model(torch.ones(4, 3))  # takes the first rank's, then adds its own
    dist.all_gather_object(everyone, network.norm.running_mean.tolist())
    assert all(each == everyone[0] for each in everyone)


def test_whoever_asks_for_buffers_to_be_sent_gets_all_of_them(monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = wrap_model(Tables(), "ddp", init_mesh(), broadcast_buffers=True)
    assert sent_in_a_forward(model, monkeypatch) == 3 * 4 + 3 * 4 + 8 + 4 * 8 + 3


def test_a_model_with_constants_alone_sends_nothing_in_a_forward(monkeypatch):
    network = Tables()
    network.norm = nn.Identity()
    assert sent_in_a_forward(wrap_model(network, "ddp", init_mesh()), monkeypatch) == 0
