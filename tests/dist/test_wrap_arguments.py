"""What `wrap_model` and its parts accept, refuse and say, in one process without ranks."""

import copy
import logging

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ezpz.dist import precision, wrap
from ezpz.dist.precision import resolve_dtype, usable_dtype
from ezpz.dist.recompute import recompute_blocks, stride_of
from ezpz.dist.sharding import make_optimizer
from ezpz.dist.tensor_parallel import HUGGING_FACE_NAMES, LLAMA_NAMES, STYLES, check_divisible, llama_plan, make_style
from ezpz.dist.weighting import scale_loss
from ezpz.dist.wrap import wrap_model
from ezpz.errors import UsageError
from ezpz.train.preparing import prepare


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        hidden = self.one(x)
        return {"logits": self.two(hidden), "more": [(hidden, 3), None]}


OLDER = [
    (("ddp", {}), "ddp"),
    (("FSDP", {}), "fsdp"),
    ((True, {}), "fsdp"),
    ((False, {}), "ddp"),
    (("ddp", {"use_fsdp": True}), "fsdp"),
    (("ddp", {"use_fsdp": False}), "ddp"),
]


def test_older_spellings_of_a_strategy_keep_their_meaning(subtests):
    for given, means in OLDER:
        with subtests.test(given=given):
            strategy, extra = given
            with pytest.raises(UsageError, match=f"unknown keyword 'nonsense' .*strategy='{means}'"):
                wrap_model(Net(), strategy, nonsense=1, **extra)


def test_device_mesh_is_the_older_name_of_mesh_and_both_are_one_too_many():
    with pytest.raises(UsageError, match="mesh= is given with strategy='deepspeed'"):
        wrap_model(Net(), "deepspeed", device_mesh=object())
    with pytest.raises(UsageError, match="both mesh= and device_mesh= are given"):
        wrap_model(Net(), "ddp", object(), device_mesh=object())


def test_an_unknown_strategy_names_the_nearest(subtests):
    for typed, near in (("fdsp", "fsdp"), ("zero", "zero1"), ("deepsped", "deepspeed")):
        with (
            subtests.test(typed=typed),
            pytest.raises(UsageError, match=f"unknown strategy '{typed}'.* Did you mean {near}"),
        ):
            wrap_model(Net(), typed)


KEYWORDS = [
    ("ddp", "find_unused_parameter", "find_unused_parameters"),
    ("fsdp", "reshard_after_foward", "reshard_after_forward"),
    ("fsdp", "offload", "offload_policy"),
    ("none", "block", "blocks"),
]


def test_an_unknown_keyword_names_the_nearest(subtests):
    for strategy, keyword, near in KEYWORDS:
        with (
            subtests.test(keyword=keyword),
            pytest.raises(UsageError, match=f"unknown keyword '{keyword}'.* Did you mean {near}"),
        ):
            wrap_model(Net(), strategy, **{keyword: True})


def test_a_keyword_of_others_is_answered_by_what_to_type(subtests):
    typed = {
        "mixed_precision": 'dtype="bf16"',
        "device_ids": "goes to this rank",
        "gradient_accumulation_steps": "with",
    }
    for call in (lambda **more: wrap_model(Net(), "ddp", **more), lambda **more: prepare([1], **more)):
        for keyword, cure in typed.items():
            with (
                subtests.test(keyword=keyword),
                pytest.raises(UsageError, match=f"no keyword '{keyword}' here .*expected .*{cure}"),
            ):
                call(**{keyword: 2})


def test_a_keyword_of_another_strategy_is_not_swallowed():
    with pytest.raises(UsageError, match=r"unknown keyword 'find_unused_parameters' .*strategy='fsdp'"):
        wrap_model(Net(), "fsdp", find_unused_parameters=True)


def test_without_a_process_group_setup_torch_is_named(subtests):
    for strategy in ("ddp", "fsdp", "hsdp", "zero1"):
        with (
            subtests.test(strategy=strategy),
            pytest.raises(UsageError, match=r"expected setup_torch\(\) before wrap_model"),
        ):
            wrap_model(Net(), strategy, dtype="fp32")


FORMATS = [
    ("bf16", torch.bfloat16),
    ("BFloat16", torch.bfloat16),
    ("fp16", torch.float16),
    ("float16", torch.float16),
    ("fp32", torch.float32),
    ("float32", torch.float32),
    (torch.bfloat16, torch.bfloat16),
]


def test_names_of_number_formats(subtests):
    for name, dtype in FORMATS:
        with subtests.test(name=name):
            assert resolve_dtype(name) == dtype


def test_any_other_number_format_is_refused(subtests):
    for name in ("bf61", "half", "float64", torch.float64, torch.int8, 16, "torch.nn"):
        with (
            subtests.test(name=name),
            pytest.raises(UsageError, match=r"unknown dtype .*expected one of bf16, bfloat16, fp16"),
        ):
            wrap_model(Net(), "none", dtype=name)


def test_a_device_without_bfloat16_computes_in_float32_and_says_so_once(monkeypatch, caplog):
    import ezpz.dist.device

    monkeypatch.setattr(ezpz.dist.device, "is_bf16_supported", lambda _: False)
    monkeypatch.setattr(ezpz.dist.device, "device_name", lambda _: "Tesla V100")
    logger = logging.getLogger("ezpz.dist.precision")
    logger.addHandler(caplog.handler)
    try:
        assert usable_dtype("bf16", torch.device("cuda", 0)) == torch.float32
        assert usable_dtype("fp16", torch.device("cuda", 0)) == torch.float16
        assert usable_dtype("bf16", torch.device("cpu")) == torch.bfloat16
    finally:
        logger.removeHandler(caplog.handler)
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith('dtype=bf16 becomes fp32: Tesla V100 does not compute bfloat16. Write dtype="fp32"')


def test_a_model_computes_in_the_dtype_and_returns_float32_and_keeps_its_weights(subtests):
    for dtype in ("bf16", "fp16", "fp32"):
        with subtests.test(dtype=dtype):
            seen, model = [], Net()
            model.one.register_forward_hook(lambda _module, _inputs, output, seen=seen: seen.append(output.dtype))
            output = wrap_model(model, "none", dtype=dtype)(torch.ones(3, 4))
            assert seen == [precision.resolve_dtype(dtype)]
            assert output["logits"].dtype == output["more"][0][0].dtype == torch.float32
            assert output["more"][0][1:] == (3,)
            assert output["more"][1] is None
            assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_without_a_dtype_a_model_computes_in_its_own():
    network = nn.Identity()
    network.scale = nn.Parameter(torch.ones(()))
    assert wrap_model(network, "none")(torch.tensor([1001.0])).item() == 1001.0
    assert wrap_model(Net().double(), "none")(torch.ones(3, 4).double())["logits"].dtype == torch.float64
    seen = []
    model = Net().bfloat16()
    model.one.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    assert wrap_model(model, "none")(torch.ones(3, 4).bfloat16())["logits"].dtype == torch.bfloat16
    assert seen == [torch.bfloat16]


OWN = " (the model's own; lower precision: dtype=)"
SCALED = "; small gradients vanish in it: Loop scales its losses, a loop of your own needs torch.amp.GradScaler"


@pytest.mark.parametrize(
    ("strategy", "stored", "dtype", "line"),
    [
        ("ddp", "float32", None, "float32, reduces gradients in float32, stores weights in float32" + OWN),
        ("ddp", "float32", "bf16", "bfloat16, reduces gradients in float32, stores weights in float32"),
        ("ddp", "bfloat16", None, "bfloat16, reduces gradients in bfloat16, stores weights in bfloat16" + OWN),
        ("ddp", "bfloat16", "fp32", "bfloat16, reduces gradients in bfloat16, stores weights in bfloat16"),
        ("fsdp", "bfloat16", None, "bfloat16, reduces gradients in float32, stores weights in bfloat16" + OWN),
        ("fsdp", "bfloat16", "fp32", "float32, reduces gradients in float32, stores weights in bfloat16"),
        ("hsdp", "float64", None, "float64, reduces gradients in float64, stores weights in float64" + OWN),
        ("none", "float32", "fp16", "float16, stores weights in float32" + SCALED),
    ],
)
def test_the_line_says_what_computes_reduces_and_stores(caplog, strategy, stored, dtype, line):
    logger = logging.getLogger("ezpz.dist.precision")
    logger.addHandler(caplog.handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        wished = None if dtype is None else resolve_dtype(dtype)
        precision.log_precision(strategy, wished, [getattr(torch, stored)])
    finally:
        logger.setLevel(level)
        logger.removeHandler(caplog.handler)
    *warned, said = (record.getMessage() for record in caplog.records)
    assert said == f"{strategy} computes in {line}"
    assert len(warned) == (strategy == "ddp" and stored == "bfloat16" and dtype == "fp32")
    assert all(text.startswith("dtype=fp32 has no effect: the model's weights are bfloat16") for text in warned)


def test_mixed_weights_are_listed_by_size():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(9, 9).bfloat16())
    assert precision.stored_formats(model) == [torch.bfloat16, torch.float32]


def test_a_copy_of_a_wrapped_model_is_independent():
    model = wrap_model(Net(), "none")
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.two.bias.fill_(100.0)
        twin.two.weight.zero_()
    assert model(torch.ones(3, 4))["logits"].max() < 50
    assert twin(torch.ones(3, 4))["logits"].min() == 100


def test_wishes_for_recomputation(subtests):
    for wish, stride in ((None, 0), ("none", 0), ("full", 1), ("selective", 2), (1, 1), (3, 3)):
        with subtests.test(wish=wish):
            assert stride_of(wish) == stride


def test_other_wishes_for_recomputation_are_refused(subtests):
    for wish in ("ful", 0, -1, True, 1.5):
        with subtests.test(wish=wish), pytest.raises(UsageError, match="unknown activation_checkpoint"):
            wrap_model(Net(), "none", activation_checkpoint=wish)


def test_recomputation_without_blocks_is_refused_instead_of_saving_nothing():
    with pytest.raises(UsageError, match=r"found no repeated blocks in Net; .* blocks=<module class>"):
        wrap_model(Net(), "none", activation_checkpoint="full")


def test_without_a_compiler_there_is_one_warning_and_the_model_runs(monkeypatch, caplog):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(wrap.shutil, "which", lambda _: None)
    monkeypatch.setattr(nn.Module, "compile", lambda *_, **__: pytest.fail("it is compiled"))
    logger = logging.getLogger("ezpz.dist.wrap")
    logger.addHandler(caplog.handler)
    try:
        model = wrap_model(Net(), "none", compile=True)
    finally:
        logger.removeHandler(caplog.handler)
    (warning,) = (record for record in caplog.records if record.levelno >= logging.WARNING)
    assert "no C++ compiler (" in warning.getMessage()
    model(torch.ones(3, 4))


def test_sizes_that_do_not_divide_name_the_nearest_that_do():
    check_divisible(4, n_heads=8, n_kv_heads=4)
    with pytest.raises(
        UsageError, match=r"n_heads=6 cannot be cut into tp=4 equal parts; expected n_heads=4 or 8, or tp=1 or 2\."
    ):
        check_divisible(4, n_kv_heads=4, n_heads=6)
    with pytest.raises(UsageError, match=r"n_kv_heads=2 .*expected n_kv_heads=4, or tp=1 or 2\."):
        check_divisible(4, n_kv_heads=2)


def test_every_word_is_a_style(subtests):
    for word in STYLES:
        with subtests.test(word):
            assert make_style(word)


def test_an_unknown_word_is_no_style():
    with pytest.raises(UsageError, match="unknown style 'columnwise'"):
        make_style("columnwise")


@pytest.mark.parametrize("names", [LLAMA_NAMES, HUGGING_FACE_NAMES])
def test_a_plan_covers_all_named_modules_with_and_without_sequence_parallel(names):
    everything = {name for group in names.values() for name in group}
    assert set(llama_plan(names=names)) == everything
    moved = {*names["inputs"], *names.get("entry", ())}
    assert set(llama_plan(names=names, sequence_parallel=False)) == everything - moved
    assert llama_plan(names=names, loss_parallel=True)[names["output"][0]].use_local_output is False


def test_a_loss_is_a_mean_where_there_is_one_rank():
    total = torch.tensor(6.0, requires_grad=True)
    assert scale_loss(total, 4).item() == 1.5
    assert scale_loss(total, torch.tensor(4)).item() == 1.5
    assert scale_loss(total * 0, 0).item() == 0


def test_the_degrees_that_are_advised_fit_all_sizes():
    expected = r"n_heads=4 cannot be cut into tp=3 equal parts, nor n_kv_heads=2, ranks=4; expected tp=1 or 2\."
    with pytest.raises(UsageError, match=expected):
        check_divisible(3, n_heads=4, n_kv_heads=2, ffn_dim=12, ranks=4)
    with pytest.raises(UsageError, match=r"n_kv_heads=2 cannot .* expected n_kv_heads=4, or tp=1 or 2\."):
        check_divisible(4, n_heads=4, n_kv_heads=2)


OF_NO_USE = [
    ({"strategy": "deepspeed", "mesh": object()}, "mesh= is given with strategy='deepspeed'"),
    ({"strategy": "deepspeed", "compile": True}, "compile= is given with strategy='deepspeed'"),
    ({"strategy": "deepspeed", "activation_checkpoint": "full"}, "activation_checkpoint= is given"),
    ({"strategy": "ddp", "reshard_after_forward": False}, "reshard_after_forward=False is given with .*'ddp'"),
    ({"strategy": "none", "reshard_after_forward": 2}, "reshard_after_forward=2 is given with .*'none'"),
]


def test_an_argument_that_a_strategy_has_no_use_for_is_refused(subtests):
    for given, words in OF_NO_USE:
        with subtests.test(words), pytest.raises(UsageError, match=words):
            wrap_model(torch.nn.Linear(2, 2), **given)


def test_an_optimizer_takes_trainable_parameters_or_the_groups_given(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # torch writes it when its first optimizer is made
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    model = Net()
    model.one.weight.requires_grad_(False)
    assert len(make_optimizer(model, torch.optim.AdamW, lr=0.1).param_groups[0]["params"]) == 3
    groups = make_optimizer(
        model, torch.optim.SGD, params=[{"params": [model.two.bias], "lr": 1.0}], lr=0.1
    ).param_groups
    assert [group["lr"] for group in groups] == [1.0]


class Layer(nn.Module):
    def __init__(self, *, bias):
        super().__init__()
        self.products = nn.ModuleList(nn.Linear(4, 4, bias=bias) for _ in range(4))

    def forward(self, x):
        for each in self.products:
            x = torch.tanh(each(x))
        return x


class Products(TorchDispatchMode):
    """Counts the matrix products between two tensors that a block computes, with and without a bias."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen += function in {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
        return function(*args, **(kwargs or {}))


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
def test_op_recomputes_every_second_product_also_of_layers_with_a_bias(bias, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch sets it
    torch.manual_seed(1)
    plain = nn.ModuleList(Layer(bias=bias) for _ in range(2))
    again = copy.deepcopy(plain)
    recompute_blocks(nn.Sequential(*again), again, "op")
    x = torch.randn(3, 4)
    counts, gradients = [], []
    for layers in (plain, again):
        loss = layers[1](layers[0](x)).square().sum()
        with Products() as products:
            loss.backward()
        counts.append(products.seen)
        gradients.append([each.grad for each in layers.parameters()])
    assert counts[1] - counts[0] == 4  # two of the four products of each of the two layers
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))
