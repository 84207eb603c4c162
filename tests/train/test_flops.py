from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from ezpz.dist.peaks import Peak
from ezpz.errors import UsageError
from ezpz.models import CNN, LLAMA_SIZES, MLP, Llama, LlamaConfig, VisionTransformer, ViTConfig
from ezpz.train.flops import count_flops, mfu, parameters_for_flops, transformer_flops

A100 = 312e12


@pytest.fixture(autouse=True)
def _cache_of_inductor(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch's optimizers, compiler and meta kernels set it


def on_meta(make):
    with torch.device("meta"):
        return make()


def formula(model, length):
    config = model.config
    sizes = (config.n_layers, config.n_heads, config.head_dim, length)
    return transformer_flops(parameters_for_flops(model), *sizes)


def per_token(model, length):
    return count_flops(model, torch.zeros(1, length, dtype=torch.int64)) / length


@pytest.mark.slow
def test_formula_and_count_agree_for_the_seeds_transformer_up_to_its_norms():
    model = on_meta(Llama)
    assert formula(model, 128) == 161_883_648
    assert per_token(model, 128) == 161_808_384
    norms = sum(each.numel() for each in model.parameters() if each.dim() == 1)
    assert formula(model, 128) - per_token(model, 128) == 6 * norms  # which are multiplied, but by no matrix product


@pytest.mark.slow
def test_formula_and_count_agree_for_llama_3():
    model = on_meta(lambda: Llama(LLAMA_SIZES["8b"]))
    assert formula(model, 2048) == pytest.approx(4.82508e10, rel=1e-6)
    assert per_token(model, 2048) == pytest.approx(4.82492e10, rel=1e-6)
    assert formula(model, 8192) == pytest.approx(5.79144e10, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", "math", "cudnn"])
def test_a_vision_transformer_costs_the_same_whatever_computes_its_attention(attention):
    model = on_meta(lambda: VisionTransformer(ViTConfig(attention=attention)))
    assert count_flops(model, torch.zeros(1, 3, 224, 224)) == pytest.approx(367.09e9, abs=0.005e9)


@pytest.mark.slow
def test_a_vision_transformers_forward_is_the_known_count():
    from torch.utils.flop_counter import FlopCounterMode

    model = on_meta(VisionTransformer)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, 224, 224, device="meta"))
    assert counter.get_total_flops() == pytest.approx(122.47e9, abs=0.005e9)


def test_a_count_is_that_of_the_samples_given():
    model = MLP(128, (1024, 512, 256, 128), 128)
    weights = sum(each.numel() for each in model.parameters() if each.dim() == 2)
    # The input of the first layer needs no gradient.
    assert count_flops(model, torch.zeros(3, 128)) == 3 * (6 * weights - 2 * 128 * 1024)


def test_counting_changes_nothing_and_takes_no_memory():
    model = CNN()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    labels = torch.zeros(2, dtype=torch.int64, device="meta")
    images = torch.zeros(2, 1, 28, 28)
    with torch.no_grad():
        counted = count_flops(model, images, loss=lambda logits: cross_entropy(logits, labels))
    assert counted == count_flops(model, images)
    assert torch.equal(state, torch.get_rng_state())
    for name, parameter in model.named_parameters():
        assert parameter.grad is None
        assert torch.equal(parameter, before[name])


def test_a_wrapped_model_or_one_without_a_tensor_is_refused():
    model = MLP(2, (3,), 4)
    model.no_sync = lambda: None  # as DistributedDataParallel has it
    with pytest.raises(UsageError, match="before wrap_model"):
        count_flops(model, torch.zeros(1, 2))

    class Pair(torch.nn.Module):
        def forward(self, x):
            return x, x

    with pytest.raises(UsageError, match=r"gives a tuple .*loss="):
        count_flops(Pair(), torch.zeros(1))


def test_embeddings_do_not_count_unless_they_are_multiplied_too():
    untied, tied = on_meta(Llama), on_meta(lambda: Llama(LlamaConfig(tied=True)))
    assert parameters_for_flops(untied) == 33_599_744 - 32000 * 256
    assert parameters_for_flops(tied) == 33_599_744 - 32000 * 256


# What the four recorded runs printed.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("vocabulary", "length", "tokens_per_second", "shown"),
    [(2256, 8192, 268.175160, 4.711792), (128256, 2048, 112.290594, 1.736573)],
    ids=["aurora", "polaris"],
)
def test_llama_3_has_the_printed_mfu(vocabulary, length, tokens_per_second, shown):
    model = on_meta(lambda: Llama(replace(LLAMA_SIZES["8b"], vocab_size=vocabulary)))
    assert round(mfu(formula(model, length) * tokens_per_second, A100), 6) == shown


def test_wordplay_has_the_printed_mfu():
    flops = transformer_flops(85_003_776, n_layers=12, n_heads=12, head_dim=64, seq_len=1024)  # with the tied embedding
    step_10, step_20 = (mfu(flops * 64 * 1024 / seconds, A100) for seconds in (0.282833, 0.306263))
    assert step_10 == pytest.approx(46.288281, abs=1e-4)  # its seconds are printed to six digits
    assert 0.9 * step_10 + 0.1 * step_20 == pytest.approx(45.934162, abs=1e-4)  # it shows a moving mean


def test_an_unknown_device_has_no_mfu():
    assert mfu(1e12, None) is None
    assert mfu(78e12, Peak(312e12, "a data sheet")) == 25.0
