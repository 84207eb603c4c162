"""Which parameters decay, which kernel updates them, and that the update is torch's."""

import pytest
import torch
from torch import nn

import ezpz
from ezpz.dist.adamw import decay_groups, has_fused, make_adamw
from ezpz.models import GPT, GPTConfig, Llama, LlamaConfig, VisionTransformer, ViTConfig

GPT_SIZES = GPTConfig(vocab_size=11, block_size=8, n_layer=1, n_head=1, n_embd=8)


@pytest.fixture(autouse=True)
def no_trace(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "unused")  # torch's optimizers may set it to a folder of their own


def names_without_decay(model):
    groups = decay_groups(model, 0.1)
    kept = {id(each) for group in groups if not group["weight_decay"] for each in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    return {name for name, each in model.named_parameters() if id(each) in kept}


def test_in_a_gpt_matrices_and_words_decay():
    model = GPT(GPT_SIZES)
    left = names_without_decay(model)
    assert "transformer.wpe.weight" in left
    assert "transformer.wte.weight" not in left
    assert {name for name, each in model.named_parameters() if each.dim() < 2} == left - {"transformer.wpe.weight"}


def test_in_a_vision_transformer_positions_do_not():
    model = VisionTransformer(ViTConfig(16, 8, 1, 1, 8, 3))
    matrices = {name for name, each in model.named_parameters() if each.dim() > 1}
    assert names_without_decay(model) & matrices == {"pos_embed"}


def test_in_a_llama_only_norms_do_not():
    with torch.device("meta"):
        model = Llama(LlamaConfig(dim=16, n_layers=1, n_heads=2, n_kv_heads=2, vocab_size=8))
    left = names_without_decay(model)
    assert left
    assert all("norm" in name for name in left), left


POSITIONS = [
    "pos_embed",
    "cls_token",
    "encoder.pos_embedding",
    "wpe.weight",
    "bert.embeddings.position_embeddings.weight",
    "model.decoder.embed_positions.weight",
    "layers.0.attn.relative_position_bias_table",
    "absolute_pos_embed",
    "class_token",
]


def test_tables_of_positions_are_known_by_name(subtests):
    for name in POSITIONS:
        with subtests.test(name=name):
            model, at = nn.Module(), None
            *path, last = name.split(".")
            at = model
            for part in path:
                at.add_module(part, nn.Module())
                at = getattr(at, part)
            at.register_parameter(last, nn.Parameter(torch.zeros(2, 2)))
            model.register_parameter("other", nn.Parameter(torch.zeros(2, 2)))
            assert names_without_decay(model) == {name}


def test_other_names_are_not(subtests):
    for name in ("proj", "composition", "tokens", "tok_embeddings", "disposal", "wte", "c_proj"):
        with subtests.test(name=name):
            model = nn.Module()
            model.register_parameter(name, nn.Parameter(torch.zeros(2, 2)))
            assert names_without_decay(model) == set()


def test_a_model_says_itself_what_does_not_decay():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model.no_weight_decay = lambda: {"1.weight"}
    assert names_without_decay(model) == {"1.weight"}


def test_frozen_parameters_are_in_no_group_and_one_group_is_enough_without_decay():
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    assert [len(group["params"]) for group in decay_groups(model, 0.1)] == [1]
    assert [len(group["params"]) for group in decay_groups(nn.Linear(2, 2), 0.0)] == [2]


def test_it_is_fused_where_torch_can_and_the_update_is_that_of_torch():
    torch.manual_seed(1)
    ours, theirs = nn.Linear(4, 4), nn.Linear(4, 4)
    theirs.load_state_dict(ours.state_dict())
    assert has_fused(ours.parameters())
    assert not has_fused([torch.zeros(2, device="meta")])
    optimizer = make_adamw(ours, lr=0.1, weight_decay=0.3, betas=(0.8, 0.9))
    assert all(group["fused"] for group in optimizer.param_groups)
    groups = [{"params": [theirs.weight], "weight_decay": 0.3}, {"params": [theirs.bias], "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=0.1, betas=(0.8, 0.9))
    for _ in range(5):
        inputs = torch.randn(3, 4)
        for model, each in ((ours, optimizer), (theirs, reference)):
            model(inputs).pow(2).sum().backward()
            each.step()
            each.zero_grad()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    assert not any(group.get("fused") for group in ezpz.make_adamw(ours, fused=False).param_groups)
