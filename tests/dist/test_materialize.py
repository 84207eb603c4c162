"""Initial weights in one process: what they may be, what is refused; ranks: `in_ranks_materialize.py`."""

import subprocess
import sys

import pytest
import torch
from awkward_llama import Llama, Norm
from torch import nn

from ezpz.dist.meta_init import materialize
from ezpz.errors import UsageError


@pytest.fixture(autouse=True)
def _torchs_cache(monkeypatch, tmp_path):
    # Torch writes this variable when a sharded or meta tensor first makes it import its compiler.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


def on_meta(make):
    with torch.device("meta"):
        return make()


def test_a_process_alone_needs_no_group():
    model = on_meta(lambda: Llama(tied=True))
    materialize(model, seed=2)
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    assert model.output.weight is model.embedding.weight
    assert model.layers[0].attention.rope is model.layers[1].attention.rope


def test_a_model_inside_the_meta_context_still_gets_memory():
    with torch.device("meta"):
        model = nn.Linear(2, 2)
        materialize(model)
    assert model.weight.device.type == "cpu"


def test_a_dtype_and_what_needs_no_gradient_stay():
    model = on_meta(lambda: nn.Linear(2, 2, dtype=torch.bfloat16).requires_grad_(requires_grad=False))
    materialize(model, build=lambda: nn.Linear(2, 2))
    assert (model.weight.dtype, model.weight.requires_grad) == (torch.bfloat16, False)


def test_names_that_wrappers_change_still_fit_what_was_built():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = on_meta(lambda: nn.Sequential(checkpoint_wrapper(nn.Linear(2, 2))))
    plain = on_meta(lambda: nn.Sequential(nn.Linear(2, 2)))
    for each in (model, plain):
        materialize(each, build=lambda: nn.Sequential(nn.Linear(2, 2)), seed=3)
    assert torch.equal(next(model.parameters()), plain[0].weight)


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("index", torch.arange(4), persistent=False)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))


class Stray(Norm):
    def __init__(self):
        super().__init__(2)
        self.table = torch.arange(3)


class Demanding(Norm):
    def __init__(self):
        super().__init__(2)

    def init_weights(self, std):
        nn.init.normal_(self.weight, 0, std)


class Partly(Scale):
    def reset_parameters(self):
        nn.init.zeros_(self.weight[:1])


GARBAGE = [
    (lambda: nn.Sequential(Table()), r"buffer 0\.index has no value .*Give Table a reset_buffers\(\) or"),
    (
        lambda: nn.Sequential(Scale()),
        r"parameter 0\.weight has no value .*Give Scale a reset_parameters\(\), or pass build=",
    ),
    (Partly, "parameter weight has no value"),
    (lambda: nn.Sequential(Stray()), r"0\.table is a tensor on the meta device.*self\.register_buffer\('table'"),
    (Demanding, r"Demanding\.init_weights\(std\) takes arguments.*Give initialize=lambda model"),
]


def test_what_would_be_garbage_is_named(subtests):
    for make, message in GARBAGE:
        with subtests.test(make=make):
            with pytest.raises(UsageError, match=message) as caught:
                materialize(on_meta(make))
            assert "\n" not in str(caught.value)


def test_an_initialiser_that_forgets_something_is_told_what():
    with pytest.raises(UsageError, match=r"parameter bias has no value after initialize\(\)"):
        materialize(on_meta(lambda: nn.Linear(2, 2)), lambda model: nn.init.zeros_(model.weight))


@pytest.mark.parametrize(
    ("built", "message"), [(nn.Linear(2, 3), r"shape \(3, 2\).*expected shape \(2, 2\)"), (nn.Identity(), "nothing")]
)
def test_another_model_than_the_sharded_one_is_refused(built, message):
    with pytest.raises(UsageError, match=rf"build\(\) makes another model: for weight it has {message}"):
        materialize(on_meta(lambda: nn.Linear(2, 2)), build=lambda: built)


def grow(model):
    model.index = torch.arange(5)


def drop(model):
    model.index = None


@pytest.mark.parametrize(
    ("initialize", "message"), [(grow, r"shape \(5,\).*expected shape \(4,\)"), (drop, "nothing of that name")]
)
def test_an_initialiser_that_changes_the_model_is_refused(initialize, message):
    with pytest.raises(UsageError, match=rf"initialize\(\) makes another model: for index it has {message}"):
        materialize(on_meta(Table), initialize)


def test_an_initialiser_may_tie_weights_anew():
    def initialize(model):
        nn.init.ones_(model[0].weight)
        model[1].weight = model[0].weight

    model = on_meta(lambda: nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)))
    materialize(model, initialize)
    assert model[1].weight.tolist() == [[1, 1], [1, 1]]


def test_two_ways_at_once_are_refused():
    with pytest.raises(UsageError, match="both initialize and build"):
        materialize(nn.Linear(2, 2), nn.init.zeros_, build=lambda: nn.Linear(2, 2))


SIMULATED = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from ezpz.dist.clip import clip_grad_norm_
from ezpz.dist.meta_init import materialize
from ezpz.dist.mesh import fsdp_mesh, init_mesh

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4096)
with torch.device("meta"):  # 64 GiB, if any rank held it
    model = torch.nn.Sequential(*(torch.nn.Linear(1 << 16, 1 << 16, bias=False) for _ in range(4)))
for layer in model:
    fully_shard(layer, mesh=fsdp_mesh(init_mesh()))
materialize(model)
print(sum(parameter.to_local().numel() for parameter in model.parameters()))
for parameter in model.parameters():
    parameter.grad = parameter.detach().clone()
print(0 < clip_grad_norm_(model.parameters(), 1.0).item() < float("inf"))
"""


@pytest.mark.slow
def test_a_simulated_rank_holds_its_shards_and_nobody_the_whole(clean_env):
    done = subprocess.run(
        [sys.executable, "-c", SIMULATED], env=clean_env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [str(4 * 16 * (1 << 16)), "True"]
