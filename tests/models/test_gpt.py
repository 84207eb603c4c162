import dataclasses
import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from ezpz.dist.model_blocks import find_blocks
from ezpz.errors import UsageError
from ezpz.models import GPT, GPTConfig
from ezpz.train import count_flops, mfu, parameters_for_flops, transformer_flops
from ezpz.train.sampling import sample_tokens

SMALL = GPTConfig(vocab_size=65, n_layer=2, n_head=4, n_embd=64, block_size=32)


@pytest.fixture(autouse=True)
def _cache_of_inductor(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch's optimizers and meta kernels set it


def on_meta(config):
    with torch.device("meta"):
        return GPT(config)


def size_of(model):
    return sum(parameter.numel() for parameter in model.parameters())


def tokens_of(config, batch=4, length=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.vocab_size, (batch, length + 1), generator=generator)


def loss_of(model, tokens):
    return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def test_the_defaults_are_the_seeds_model():
    model = on_meta(GPTConfig())
    assert model.counted == 85_003_776
    assert size_of(model) == 85_003_776 + 1024 * 768
    decayed = [each.numel() for each in model.parameters() if each.dim() >= 2]
    plain = [each.numel() for each in model.parameters() if each.dim() < 2]
    assert (len(decayed), sum(decayed), len(plain), sum(plain)) == (50, 85_771_008, 25, 19_200)


def test_with_its_own_vocabulary_and_biases_it_is_gpt_2():
    assert on_meta(GPTConfig(vocab_size=50257, bias=True)).counted == 124_439_808 - 1024 * 768


def test_the_mfu_of_a_recorded_step_follows_from_its_inputs():
    model = on_meta(GPTConfig())
    assert parameters_for_flops(model) == model.counted
    per_token = transformer_flops(model.counted, 12, 12, 64, 1024)
    assert mfu(per_token * 64 * 1024 / 0.282833, 312e12) == pytest.approx(46.288281, abs=1e-4)


def test_the_formula_is_what_torch_counts():
    model = on_meta(SMALL)
    tokens = torch.zeros(1, 32, dtype=torch.int64)
    per_token = transformer_flops(parameters_for_flops(model), 2, 4, 16, 32)
    assert count_flops(model, tokens) == pytest.approx(32 * per_token, rel=0.01)  # the weights of the norms


def test_parts_have_the_names_of_the_released_weights():
    names = {name for name, _ in GPT(dataclasses.replace(SMALL, bias=True, n_layer=1)).state_dict().items()}
    block = {"ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"}
    modules = {f"transformer.h.0.{name}" for name in block} | {"transformer.ln_f"}
    expected = {f"{name}.{kind}" for name in modules for kind in ("weight", "bias")}
    assert names == expected | {"transformer.wte.weight", "transformer.wpe.weight", "lm_head.weight"}


def test_its_blocks_are_found_and_output_and_embedding_are_one():
    model = on_meta(SMALL)
    assert find_blocks(model) == list(model.transformer.h)
    assert model.lm_head.weight is model.transformer.wte.weight


def test_no_position_sees_a_later_one():
    model, tokens = GPT(SMALL), tokens_of(SMALL)
    changed = tokens.clone()
    changed[:, 20] = (changed[:, 20] + 1) % SMALL.vocab_size
    differs = (model(tokens[:, :32]) != model(changed[:, :32])).any(-1).any(0)
    assert not differs[:20].any()
    assert differs[20:].all()


def test_attention_is_the_softmax_written_out():
    torch.manual_seed(1)
    attention = GPT(dataclasses.replace(SMALL, bias=True)).transformer.h[0].attn
    x = torch.randn(2, 8, 64)
    q, k, v = (each.unflatten(-1, (4, 16)).transpose(1, 2) for each in attention.c_attn(x).split(64, dim=-1))
    hidden = torch.ones(8, 8, dtype=torch.bool).triu(1)
    weights = (q @ k.transpose(-1, -2) / 4.0).masked_fill(hidden, -math.inf).softmax(-1)
    expected = attention.c_proj((weights @ v).transpose(1, 2).flatten(2))
    assert torch.allclose(attention(x), expected, atol=1e-6)


def test_training_starts_near_the_logarithm_of_the_vocabulary():
    for config in (SMALL, GPTConfig(n_layer=2), GPTConfig(vocab_size=5000, n_layer=2, n_embd=384)):
        torch.manual_seed(0)
        with torch.no_grad():
            loss = loss_of(GPT(config), tokens_of(config))
        assert abs(loss.item() - math.log(config.vocab_size)) < 0.25


@pytest.mark.few(1)
@pytest.mark.parametrize("more", [{}, {"bias": True, "activation": "relu"}, {"activation": "silu"}])
def test_it_learns_one_batch_by_heart(more):
    torch.manual_seed(0)
    config = dataclasses.replace(SMALL, **more)
    model, tokens = GPT(config), tokens_of(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(200):
        loss = loss_of(model, tokens)
        if loss < 0.05:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.05


def test_dropout_works_in_training_only():
    model, tokens = GPT(dataclasses.replace(SMALL, dropout=0.5)), tokens_of(SMALL)
    assert not torch.equal(model(tokens[:, :32]), model(tokens[:, :32]))
    model.eval()
    assert torch.equal(model(tokens[:, :32]), model(tokens[:, :32]))


def test_init_weights_draws_again_what_the_constructor_drew():
    torch.manual_seed(3)
    model = GPT(dataclasses.replace(SMALL, bias=True))
    drawn = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    torch.manual_seed(3)
    model.init_weights()
    assert all(torch.equal(tensor, drawn[name]) for name, tensor in model.state_dict().items())
    ends = model.transformer.h[0].mlp.c_proj.weight
    assert ends.std().item() == pytest.approx(0.02 / math.sqrt(4), rel=0.05)


def test_a_sequence_that_is_too_long_is_refused():
    with pytest.raises(UsageError, match=r"33 tokens is longer than block_size=32 .*block_size=33"):
        GPT(SMALL)(torch.zeros(1, 33, dtype=torch.int64))


def test_sizes_that_do_not_fit_are_refused():
    for sizes, message in (
        ({"n_head": 5}, r"n_head=5 does not divide n_embd=768 .*Use n_head=4\."),
        ({"n_layer": 0}, r"unusable n_layer=0"),
        ({"dropout": 1.0}, r"unusable dropout=1\.0"),
        ({"activation": "glu"}, r"unknown activation 'glu' .*Did you mean gelu\?"),
    ):
        with pytest.raises(UsageError, match=message):
            GPTConfig(**sizes)


def counting():
    """Return a model that has learned to count to 64 and begin again."""
    torch.manual_seed(0)
    model = GPT(dataclasses.replace(SMALL, dropout=0.1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(60):
        loss = loss_of(model, (torch.arange(33) + torch.arange(step, step + 64, 4)[:, None]) % 65)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@pytest.mark.slow
def test_samples_follow_what_was_learned_and_the_seed():
    model = counting()
    model.train()
    state = torch.get_rng_state()
    likeliest = sample_tokens(model, [5], 70, context=32, temperature=0.0, seed=0)
    assert likeliest == [(6 + place) % 65 for place in range(70)]  # longer than the context
    wild = [sample_tokens(model, [5], 40, context=32, temperature=5.0, seed=seed) for seed in (1, 1, 2)]
    assert wild[0] == wild[1] != wild[2]
    assert sample_tokens(model, [5], 9, context=32, temperature=50.0, top_k=1, seed=3) == list(range(6, 15))
    assert sample_tokens(model, [5], 0, context=32, seed=3) == []
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert model.transformer.drop.training


@pytest.mark.slow
def test_samples_are_distributed_as_the_model_says():
    class Fixed(torch.nn.Module):
        def forward(self, tokens):
            return torch.tensor([[[0.1, 0.2, 0.3, 0.4]]]).log().expand(1, tokens.shape[1], 4)

    drawn = sample_tokens(Fixed(), [0], 4000, context=1, temperature=1.0, top_k=3, seed=0)
    shares = torch.bincount(torch.tensor(drawn), minlength=4) / 4000
    assert torch.allclose(shares, torch.tensor([0.0, 2 / 9, 3 / 9, 4 / 9]), atol=0.03)


def test_samples_of_impossible_sizes_are_refused():
    for prompt, more, message in (
        ([], {}, "an empty prompt"),
        ([1], {"context": 0}, "unusable context=0"),
        ([1], {"temperature": -1.0}, r"unusable temperature=-1\.0"),
        ([1], {"temperature": math.nan}, "unusable temperature=nan"),
        ([1], {"top_k": -2}, "unusable top_k=-2"),
    ):
        with pytest.raises(UsageError, match=message):
            sample_tokens(None, prompt, 1, **{"context": 8, "seed": 0, **more})
