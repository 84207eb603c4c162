"""What an initialisation does, recorded without memory and repeated for parts, beside torch on whole tensors."""

import itertools
import re
from hashlib import blake2b

import pytest
import torch
from torch import nn

from ezpz.dist import block_draws
from ezpz.dist.block_draws import draw_part
from ezpz.dist.meta_init import materialize
from ezpz.dist.recorded_init import record

BLOCK = 50


@pytest.fixture(autouse=True)
def _small(monkeypatch, tmp_path):
    monkeypatch.setattr(block_draws, "BLOCK", BLOCK)
    # Torch writes this variable when a meta tensor first makes it import its compiler.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


def on_meta(make):
    with torch.device("meta"):
        return make()


def by_hand(shape, fill, seed, name):
    """Return the numbers as docs/parallel.md describes them: block by block, each from a generator of its own."""
    flat = torch.empty(shape).reshape(-1)
    for number, block in enumerate(flat.split(BLOCK)):
        words = f"ezpz weights {seed} {name} {number}"
        key = int.from_bytes(blake2b(words.encode(), digest_size=8).digest(), "little")
        fill(block, torch.Generator().manual_seed(key))
    return flat.view(shape)


def writes_of(fill, shape=(7, 5, 6)):
    """Return what a function does to a parameter of this shape, and whether it can be repeated in parts."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(shape))

    recording = record(on_meta(Model), ["weight"], lambda model: fill(model.weight))
    return recording.writes.get("weight"), recording.problem


def test_every_part_of_a_parameter_has_the_numbers_of_the_whole():
    writes, problem = writes_of(lambda weight: nn.init.normal_(weight, 1.0, 2.0))
    assert problem == ""
    shape = (7, 5, 6)
    whole = by_hand(shape, lambda block, generator: block.normal_(1.0, 2.0, generator=generator), 3, "weight")
    cuts = [[(low, high) for low in range(size) for high in range(low, size + 1)] for size in shape]
    some = list(itertools.product(*cuts))[::23]
    for ranges in [*some, [(0, size) for size in shape]]:
        part = torch.full([high - low for low, high in ranges], torch.nan)
        draw_part(part, shape, ranges, writes, "3 weight")
        assert torch.equal(part, whole[tuple(slice(*each) for each in ranges)]), ranges


def test_a_part_that_lies_in_another_order_gets_the_same():
    writes, _ = writes_of(nn.init.normal_, (8, 20))
    plain, turned = torch.empty(8, 10), torch.empty(10, 8).t()
    for part in (plain, turned):
        draw_part(part, (8, 20), [(0, 8), (5, 15)], writes, "1 weight")
    assert torch.equal(plain, turned)


def test_a_block_is_a_million_numbers(monkeypatch):
    monkeypatch.undo()
    assert block_draws.BLOCK == 2**20


class Everything(nn.Module):
    """Draws by the functions that models use, some of them on rows."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(9, 11)
        self.embedding = nn.Embedding(13, 8, padding_idx=3)
        self.cut = nn.Parameter(torch.empty(10, 12))
        self.scaled = nn.Parameter(torch.empty(10, 12))
        self.old = nn.Parameter(torch.empty(10, 12))
        self.fused = nn.Parameter(torch.empty(30, 4))
        self.norm = nn.BatchNorm1d(6)

    def init_weights(self):
        self.linear.reset_parameters()
        self.embedding.reset_parameters()
        nn.init.trunc_normal_(self.cut, std=0.02, a=-0.03, b=0.03)
        self.scaled.data.uniform_(-1, 1).mul_(torch.tensor(0.5)).add_(3)
        self.old.uniform_(-0.9, 0.9).erfinv_().mul_(0.02 * 2**0.5).clamp_(-0.01, 0.01)
        for part in self.fused.chunk(3):
            nn.init.xavier_uniform_(part)
        nn.init.zeros_(self.fused[5:7])
        self.norm.reset_parameters()


def test_what_models_do_is_repeated_block_by_block():
    model = on_meta(Everything)
    materialize(model, seed=5)

    def same(name, fill):
        tensor = model.get_parameter(name)
        assert torch.equal(tensor, by_hand(tensor.shape, fill, 5, name)), name

    bound = 9**-0.5
    same("linear.weight", lambda block, generator: block.uniform_(-bound, bound, generator=generator))
    same("linear.bias", lambda block, generator: block.uniform_(-bound, bound, generator=generator))
    same("scaled", lambda block, generator: block.uniform_(-1, 1, generator=generator).mul_(0.5).add_(3))
    same("cut", lambda block, generator: nn.init.trunc_normal_(block, 0.0, 0.02, -0.03, 0.03, generator=generator))
    assert model.cut.abs().max() <= 0.03
    assert model.embedding.weight[3].tolist() == [0] * 8
    assert (model.embedding.weight != 0).sum() == 12 * 8
    assert model.old.abs().max().item() == pytest.approx(0.01)
    assert (model.fused[5:7] == 0).all()
    assert model.fused.abs().max() <= (6 / 14) ** 0.5
    assert len(model.fused.unique()) == 28 * 4 + 1  # no part repeats another
    assert (model.norm.running_var.tolist(), int(model.norm.num_batches_tracked)) == ([1] * 6, 0)


def test_names_and_seeds_give_different_numbers():
    first, second = on_meta(lambda: nn.Linear(9, 9)), on_meta(lambda: nn.Linear(9, 9))
    materialize(first, seed=1)
    materialize(second, seed=2)
    assert not torch.equal(first.weight, second.weight)
    assert not torch.equal(first.weight[0], first.bias)


def test_numbers_do_not_depend_on_the_number_of_threads():
    model = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            model.append(on_meta(Everything))
            materialize(model[-1], seed=1)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(model[0].old, model[1].old)


def copied(weight):
    weight.copy_(torch.randn(weight.shape))


def own_generator(weight):
    nn.init.normal_(weight, generator=torch.Generator().manual_seed(1))


def looks(weight):
    nn.init.normal_(weight)
    weight.mul_(1 / weight.norm())


def reads_first(weight):
    weight.mul_(2)
    nn.init.zeros_(weight[1:])
    nn.init.zeros_(weight[:1])


def another_format(weight):
    nn.init.zeros_(weight)
    weight.view(torch.int32).add_(1)


WHOLE = [
    (nn.init.orthogonal_, "is set by|not set"),
    (nn.init.eye_, "is set by|out parameter"),
    (copied, "is set by copy_|random numbers are drawn into no parameter"),
    (own_generator, r"is set by normal_"),
    (looks, "is set by mul_"),
    (reads_first, "changed by mul_.* before it is set"),
    (another_format, "another number format"),
    (lambda weight: nn.init.ones_(weight[:2]), "not set"),
    (lambda weight: nn.init.normal_(weight.t()), "is set by normal_"),
    (lambda weight: nn.init.constant_(weight, weight.sum().item()), "."),
]


def test_what_cannot_be_cut_into_parts_is_found(subtests):
    for fill, why in WHOLE:
        with subtests.test(why):
            _, problem = writes_of(fill, (6, 6))
            assert problem
            assert "\n" not in problem
            assert re.search(why, problem), problem


def test_large_tables_are_not_held_by_every_rank(monkeypatch):
    from ezpz.dist import recorded_init

    monkeypatch.setattr(recorded_init, "_MOST_COPIED", 100)
    _, problem = writes_of(lambda weight: weight.copy_(torch.ones(weight.shape)))
    assert problem.startswith("it computes tables of more than")


def test_recording_leaves_the_generator_and_torch_as_they_were():
    before, function = torch.get_rng_state(), nn.init._no_grad_trunc_normal_
    writes_of(copied)
    assert torch.equal(torch.get_rng_state(), before)
    assert nn.init._no_grad_trunc_normal_ is function


def test_weights_that_share_memory_in_the_end_have_the_same_numbers():
    def share(model):
        nn.init.normal_(model[0].weight)
        model[1].weight.data = model[0].weight.data

    model = on_meta(lambda: nn.Sequential(nn.Linear(9, 9, bias=False), nn.Linear(9, 9, bias=False)))
    materialize(model, share, seed=1)
    assert torch.equal(model[0].weight, model[1].weight)


def test_a_model_that_is_built_draws_into_what_it_makes():
    class Built(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.randn(3, 40))
            self.scale = nn.Parameter(torch.full((4,), 0.5))

    model = on_meta(Built)
    materialize(model, build=Built, seed=8)
    expected = by_hand((3, 40), lambda block, generator: block.normal_(generator=generator), 8, "token")
    assert torch.equal(model.token, expected)
    assert model.scale.tolist() == [0.5] * 4


class Shy(nn.Module):
    """Draws nothing into tensors that have no memory, as many models do."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 5))
        self.bias = nn.Parameter(torch.empty(5, device=self.weight.device))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.zeros_(self.bias)
        if not self.weight.is_meta and self.weight.is_cpu and self.bias.device.type == "cpu":
            nn.init.normal_(self.weight)


@pytest.mark.parametrize("build", [None, Shy])
def test_a_model_that_spares_tensors_without_memory_is_not_left_without_its_numbers(build):
    model = on_meta(Shy)
    materialize(model, build=build, seed=8)
    expected = by_hand((4, 5), lambda block, generator: block.normal_(generator=generator), 8, "weight")
    if build is None:
        assert torch.equal(model.weight, expected)
    assert len(model.weight.unique()) == 20


def test_before_a_load_nothing_is_drawn_and_what_was_forgotten_is_seen():
    model = on_meta(Everything)
    materialize(model, draw=False)
    assert all(parameter.isnan().all() for parameter in model.parameters())
    assert model.norm.running_mean.tolist() == [0] * 6
