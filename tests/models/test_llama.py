import dataclasses
import math
import sys
import time
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

import ezpz
from ezpz.dist.model_blocks import find_blocks
from ezpz.dist.tensor_parallel import llama_plan
from ezpz.errors import UsageError
from ezpz.models import LLAMA_SIZES, Llama, LlamaConfig, ffn_width
from ezpz.models import llama as llama_module
from ezpz.models.llama import RotaryTable, rotate

DEBUG = LLAMA_SIZES["debug"]


@pytest.fixture(autouse=True)
def _cache_of_inductor(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch's optimizers, compiler and meta kernels set it


def on_meta(config):
    with torch.device("meta"):
        return Llama(config)


def size_of(model):
    return sum(parameter.numel() for parameter in model.parameters())


def tokens_of(config, batch=4, length=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.vocab_size, (batch, length + 1), generator=generator)


def loss_of(model, tokens):
    return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


SIZES = {
    "debug": 125_248,
    "debugmodel": 6_952_192,
    "10m": 9_902_336,
    "125m": 125_264_640,
    "300m": 315_933_696,
    "1b": 1_235_814_400,
    "3b": 3_212_749_824,
    "8b": 8_030_261_248,
    "70b": 70_553_706_496,
    "405b": 405_853_388_800,
}


@pytest.mark.slow
def test_every_size_has_the_stated_number_of_parameters():
    assert {name: size_of(on_meta(config)) for name, config in LLAMA_SIZES.items()} == SIZES
    text = Path(llama_module.__file__).with_name("llama_config.py").read_text(encoding="utf-8")
    assert all(f"# {parameters:,}\n" in text for parameters in SIZES.values())


def test_the_defaults_are_the_seeds_model():
    model = on_meta(LlamaConfig())
    assert size_of(model) == 33_599_744
    assert {size_of(layer) for layer in model.layers} == {717_312}


def test_llama_3_with_the_debug_tokenizer_has_the_known_number_of_parameters():
    assert size_of(on_meta(dataclasses.replace(LLAMA_SIZES["8b"], vocab_size=2256))) == 6_998_069_248


def test_a_model_of_8_billion_takes_neither_time_nor_memory_on_meta():
    start = time.process_time()
    model = on_meta(LLAMA_SIZES["8b"])
    assert time.process_time() - start < 20
    assert all(tensor.is_meta for tensor in model.state_dict().values())
    assert model.rope.is_meta


def test_the_feed_forward_is_as_wide_as_llamas_rule_says():
    for arguments, width in {(4096, 1024, 1.3): 14336, (256, 360): 720, (4096, 256): 11008}.items():
        assert ffn_width(*arguments) == width


def test_the_plan_covers_every_parameter():
    holders = [name for name, module in on_meta(DEBUG).named_modules() if list(module.parameters(recurse=False))]
    assert [name for name in holders if not any(fnmatch(name, pattern) for pattern in llama_plan())] == []


def test_its_blocks_are_found_and_the_table_of_positions_is_not_saved():
    model = on_meta(DEBUG)
    assert find_blocks(model) == list(model.layers)
    assert "rope" not in model.state_dict()


def test_positions_turn_pairs_of_features_as_complex_numbers_do():
    model = Llama(dataclasses.replace(DEBUG, rope_theta=500000.0))
    x = torch.randn(2, 32, 3, DEBUG.head_dim, generator=torch.Generator().manual_seed(1))
    turns = 500000.0 ** (-torch.arange(0, DEBUG.head_dim, 2).double() / DEBUG.head_dim)
    angles = torch.arange(32).double()[:, None] * turns
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)[:, None]).flatten(-2)
    assert torch.allclose(rotate(x, RotaryTable(model.rope[:, :32])), turned.float(), atol=1e-5)


def test_positions_are_computed_in_float32_whatever_the_model_computes_in():
    rope = RotaryTable(Llama(DEBUG).rope)
    x = torch.ones(1, 512, 1, DEBUG.head_dim)
    assert rope.values.dtype == torch.float32
    turned = rotate(x.bfloat16(), rope)
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, rotate(x, rope).bfloat16())


class Passes(TorchDispatchMode):
    """Note the operations that read or write memory."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.names += [] if "view" in name or name == "detach" else [name]
        return func(*args, **kwargs or {})


def test_positions_take_three_passes_over_memory():
    rope = RotaryTable(Llama(DEBUG).rope[:, :32])
    x = torch.randn(2, 32, 3, DEBUG.head_dim, dtype=torch.bfloat16, requires_grad=True)
    with Passes() as forward:
        turned = rotate(x, rope)
    assert forward.names == ["_to_copy", "mul", "_to_copy"]
    ahead = torch.randn_like(turned)
    with Passes() as backward:
        turned.backward(ahead)
    assert [name for name in backward.names if name not in {"_conj", "clone"}] == forward.names  # clone: of the angles


@pytest.mark.slow
def test_a_compiler_gets_real_numbers_and_the_same_angles():
    rope = Llama(DEBUG).rope[:, :32]
    x = torch.randn(2, 32, 3, DEBUG.head_dim, generator=torch.Generator().manual_seed(1))
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph.forward

    turned = torch.compile(lambda x, rope: rotate(x, RotaryTable(rope)), backend=keep)(x, rope)
    assert "complex" not in graphs[0].code
    assert torch.allclose(turned, rotate(x, RotaryTable(rope)), atol=1e-6)


def test_grouped_queries_share_keys_and_values():
    torch.manual_seed(0)
    grouped = Llama(DEBUG)
    single = Llama(dataclasses.replace(DEBUG, n_kv_heads=DEBUG.n_heads))
    groups = DEBUG.n_heads // DEBUG.n_kv_heads
    weights = grouped.state_dict()
    for name, weight in weights.items():
        if name.endswith(("wk.weight", "wv.weight")):
            weights[name] = weight.unflatten(0, (-1, DEBUG.head_dim)).repeat_interleave(groups, 0).flatten(0, 1)
    single.load_state_dict(weights)
    tokens = tokens_of(DEBUG)
    assert torch.allclose(grouped(tokens), single(tokens), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_that_repeats_by_itself_gives_the_same_numbers(monkeypatch, dtype):
    torch.manual_seed(0)
    model, tokens = Llama(DEBUG).to(dtype), tokens_of(DEBUG)
    found, asked = [], []

    def seen(*tensors, **how):
        asked.append((how.get("enable_gqa", False), tensors[1].shape[1]))
        return torch.nn.functional.scaled_dot_product_attention(*tensors, **how)

    monkeypatch.setattr(llama_module, "scaled_dot_product_attention", seen)
    for has in (True, False):
        monkeypatch.setattr(llama_module, "_HAS_GQA", has)
        model.zero_grad()
        loss = loss_of(model, tokens)
        loss.backward()
        found.append((loss.detach(), [each.grad.clone() for each in model.parameters()]))
    assert set(asked[: DEBUG.n_layers]) == {(True, DEBUG.n_kv_heads)}
    assert set(asked[DEBUG.n_layers :]) == {(False, DEBUG.n_heads)}
    (ours, gradients), (before, expected) = found
    assert torch.equal(ours, before)
    exact = 1e-6 if dtype == torch.float32 else 1e-2
    assert all(torch.allclose(*pair, atol=exact, rtol=exact) for pair in zip(gradients, expected, strict=True))


def test_the_kernel_repeats_only_where_a_fused_one_can(monkeypatch):
    monkeypatch.setattr(llama_module, "_HAS_GQA", True)
    for kind, dtype, capability, repeats in (
        ("cuda", torch.bfloat16, 9, True),
        ("cuda", torch.float16, 8, True),
        ("cuda", torch.float16, 7, False),  # no flash kernel: it would be the slow one
        ("cuda", torch.float32, 9, False),
        ("cuda", torch.bfloat16, None, True),  # simulated
        ("xpu", torch.bfloat16, 9, False),
    ):
        major = SimpleNamespace(major=capability)
        card = SimpleNamespace(
            is_available=lambda major=major: major.major is not None,
            get_device_properties=lambda device, major=major: major,
        )
        q, k = (SimpleNamespace(device=torch.device(kind), dtype=dtype, shape=(1, heads, 4, 8)) for heads in (4, 2))
        with monkeypatch.context() as patch:
            patch.setattr(torch, kind, card)
            assert llama_module.kernel_repeats(q, k) is repeats, (kind, dtype, capability)
            assert not llama_module.kernel_repeats(q, q)


def test_no_position_sees_a_later_one():
    model = Llama(DEBUG)
    tokens = tokens_of(DEBUG)
    changed = tokens.clone()
    changed[:, 20] = (changed[:, 20] + 1) % DEBUG.vocab_size
    differs = (model(tokens) != model(changed)).any(-1).any(0)
    assert not differs[:20].any()
    assert differs[20:].all()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "config", [DEBUG, LlamaConfig(), dataclasses.replace(LlamaConfig(), dim=1024, n_layers=2), LLAMA_SIZES["10m"]]
)
def test_training_starts_near_the_logarithm_of_the_vocabulary(config):
    torch.manual_seed(0)
    with torch.no_grad():
        loss = loss_of(Llama(config), tokens_of(config, batch=2, length=64))
    assert abs(loss.item() - math.log(config.vocab_size)) < 0.25


@pytest.mark.few(1)
@pytest.mark.parametrize("tied", [False, True])
def test_it_learns_one_batch_by_heart(tied):
    torch.manual_seed(0)
    config = dataclasses.replace(DEBUG, tied=tied)
    model, tokens = Llama(config), tokens_of(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(200):
        loss = loss_of(model, tokens)
        if loss < 0.05:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.05
    assert (model.output.weight is model.tok_embeddings.weight) == tied


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(replace(DEBUG, n_layers=1), marks=pytest.mark.slow, id="one block"),
        pytest.param(DEBUG, marks=pytest.mark.learn, id="debug"),
    ],
)
def test_it_compiles_as_one_graph(config):
    model, tokens = Llama(config), tokens_of(config, batch=2, length=8)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(tokens), model(tokens), atol=1e-5)
    torch.compiler.reset()


def test_init_weights_draws_again_what_the_constructor_drew():
    torch.manual_seed(3)
    model = Llama(DEBUG)
    drawn = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    torch.manual_seed(3)
    model.init_weights()
    assert all(torch.equal(tensor, drawn[name]) for name, tensor in model.state_dict().items())


def test_a_sequence_that_is_too_long_is_refused():
    with pytest.raises(UsageError, match=r"513 tokens is longer than max_seq_len=512 .*max_seq_len=513"):
        Llama(DEBUG)(torch.zeros(1, 513, dtype=torch.int64))


def test_heads_that_do_not_fit_are_refused():
    for sizes, message in (
        ({"dim": 100, "n_heads": 16}, r"dim=100 is no multiple of 32.*Use dim=128"),
        ({"dim": 48, "n_heads": 16}, r"heads of an even width. Use dim=64"),
        ({"n_heads": 16, "n_kv_heads": 3}, r"n_kv_heads=3 does not divide n_heads=16.*1, 2, 4, 8, 16"),
    ):
        with pytest.raises(UsageError, match=message):
            LlamaConfig(**sizes)


def test_sizes_can_be_listed_without_torch(clean_env, run_cli):
    code = (
        "import sys; from ezpz.models import LLAMA_SIZES; assert '8b' in LLAMA_SIZES; assert 'torch' not in sys.modules"
    )
    env = {**clean_env, "PYTHONPATH": str(Path(ezpz.__file__).parents[1])}
    done = run_cli([sys.executable, "-c", code], env)
    assert done.returncode == 0, done.stderr
