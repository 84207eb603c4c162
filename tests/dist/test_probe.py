import copy
import random
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # after the check that torch is there

from ezpz.track.effective.dropout_probe import probe  # noqa: E402  # as above
from ezpz.track.effective.live_model import checksum  # noqa: E402  # as above

LEGACY = np.random  # the old generator is the one that user code draws from


@pytest.fixture(autouse=True)
def _inductor(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "unused")  # torch's optimizers may set it to a folder of their own


class DropPath(nn.Module):
    """As timm has it: whole samples are dropped, the others made larger."""

    def __init__(self, drop_prob):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x):
        if not self.training or self.drop_prob == 0.0:
            return x
        keep = 1 - self.drop_prob
        return x * x.new_empty((x.shape[0], *(1,) * (x.ndim - 1))).bernoulli_(keep) / keep


class GaussianNoise(nn.Module):
    """Throws with a generator of its own, counts its calls and keeps a buffer: all of that is to be as it was."""

    def __init__(self, std):
        super().__init__()
        self.std, self.calls, self.seen = std, 0, []
        self.rng = torch.Generator().manual_seed(1)
        self.numpy_rng = np.random.default_rng(1)
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        self.seen.append(float(x.detach().mean()))
        self.mean.add_(x.mean())
        if not self.training:
            return x
        return x + self.std * torch.randn(x.shape, generator=self.rng) * self.numpy_rng.random()


class LayerDropList(nn.ModuleList):
    """As fairseq has it: it has parts and no forward, so that only its probability speaks."""

    def __init__(self, modules, p):
        super().__init__(modules)
        self.p = p


class DropTokenEmbedding(nn.Module):
    """Called after dropping and throws no dice."""

    def forward(self, x):
        return 2 * x


class AlwaysDropout(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5, training=True)


class CoinDrop(nn.Module):
    """Throws with the generators of Python and of numpy."""

    def forward(self, x):
        return x * (random.random() + LEGACY.rand()) if self.training else x


class Attention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.dropout, self.out = dropout, nn.Linear(4, 4)


def model_of(*modules):
    return nn.Sequential(nn.Linear(4, 4), *modules)


DICE = [
    ([nn.Dropout(0.1) for _ in range(24)], ["24 x Dropout(p=0.1)"]),
    ([nn.Dropout(0.0), nn.ReLU(), nn.BatchNorm2d(4), DropTokenEmbedding()], []),
    ([nn.Dropout(1.0)], ["1 x Dropout(p=1)"]),
    ([nn.Dropout(0.0001)], ["1 x Dropout(p=0.0001)"]),
    ([nn.Dropout(0.1, inplace=True)], ["1 x Dropout(p=0.1)"]),
    ([nn.Dropout1d(0.2), nn.Dropout2d(0.2)], ["1 x Dropout1d(p=0.2)", "1 x Dropout2d(p=0.2)"]),
    ([nn.Dropout3d(0.2), nn.AlphaDropout(0.2)], ["1 x Dropout3d(p=0.2)", "1 x AlphaDropout(p=0.2)"]),
    ([nn.FeatureAlphaDropout(0.3)], ["1 x FeatureAlphaDropout(p=0.3)"]),
    ([nn.RReLU()], ["1 x RReLU(lower=0.125, upper=0.333333)"]),
    ([DropPath(0.0), DropPath(0.1), DropPath(0.1)], ["2 x DropPath(drop_prob=0.1)"]),
    ([GaussianNoise(0.5)], ["1 x GaussianNoise(std=0.5)"]),
    ([CoinDrop()], ["1 x CoinDrop()"]),
    ([AlwaysDropout()], ["1 x AlwaysDropout(), in eval mode too"]),
    ([LayerDropList([nn.Linear(4, 4)], 0.2)], ["1 x LayerDropList(p=0.2), not called"]),
    ([Attention(0.1), Attention(0.1), Attention(0.0)], ["2 x Attention(dropout=0.1), not called"]),
    ([nn.MultiheadAttention(4, 2, dropout=0.1)], ["1 x MultiheadAttention(dropout=0.1), not called"]),
    ([nn.LSTM(4, 4, 2, dropout=0.1)], ["1 x LSTM(dropout=0.1), not called"]),
    ([nn.Dropout(0.1), nn.Dropout(0.1).eval()], ["1 x Dropout(p=0.1)", "1 x Dropout(p=0.1), in eval mode now"]),
]


def test_what_throws_dice_is_named(subtests):
    for modules, lines in DICE:
        with subtests.test(lines=lines), warnings.catch_warnings():
            warnings.simplefilter("error")
            assert probe(model_of(*modules)) == lines


def test_it_works_in_the_models_own_dtype(subtests):
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        with subtests.test(dtype=dtype):
            assert probe(model_of(nn.Dropout(0.1)).to(dtype)) == ["1 x Dropout(p=0.1)"]


def test_it_works_without_memory_and_without_weights():
    with torch.device("meta"):
        model = model_of(nn.Dropout(0.1))
    assert probe(model) == ["1 x Dropout(p=0.1)"]
    assert probe(nn.Dropout(0.1)) == ["1 x Dropout(p=0.1)"]
    assert probe(nn.Sequential()) == []


def test_a_model_in_eval_mode_is_told_as_it_will_train_and_stays_in_eval_mode():
    model = model_of(nn.Dropout(0.1)).eval()
    assert probe(model) == ["1 x Dropout(p=0.1)"]
    assert not any(module.training for module in model.modules())


def test_a_very_long_list_is_bounded():
    lines = probe(model_of(*(nn.Dropout(0.001 + number / 1000) for number in range(100))))
    assert len(lines) == 65
    assert lines[-1] == "36 more kinds"


def test_no_hook_and_no_replaced_forward_is_called():
    calls = []
    module = nn.Dropout(0.1)
    module.register_forward_hook(lambda *_: calls.append("hook"))
    module.register_forward_pre_hook(lambda *_: calls.append("pre-hook"))
    module.register_full_backward_hook(lambda *_: calls.append("backward"))
    module.forward = lambda x: calls.append("forward")
    everywhere = nn.modules.module.register_module_forward_hook(lambda *_: calls.append("global"))
    try:
        assert probe(model_of(module)) == ["1 x Dropout(p=0.1)"]
    finally:
        everywhere.remove()
    assert calls == []


def test_what_a_module_does_to_itself_is_forgotten():
    noise = GaussianNoise(0.5)
    model = model_of(noise, CoinDrop())
    python, numpy_state, cpu = random.getstate(), LEGACY.get_state()[1].tolist(), torch.get_rng_state()
    own, numpy_own = noise.rng.get_state(), copy.deepcopy(noise.numpy_rng.bit_generator.state)
    held = dict(vars(noise))
    assert len(probe(model)) == 2
    assert (noise.calls, noise.seen, noise.mean.item()) == (0, [], 0.0)
    assert torch.equal(noise.rng.get_state(), own)
    assert noise.numpy_rng.bit_generator.state == numpy_own
    assert vars(noise) == held
    assert random.getstate() == python
    assert LEGACY.get_state()[1].tolist() == numpy_state
    assert torch.equal(torch.get_rng_state(), cpu)


def trained(looks, *, evaluates=False):
    """Train five steps of a model full of dice and return the losses and the weights' checksum."""
    torch.manual_seed(5)
    random.seed(5)
    LEGACY.seed(5)
    parts = (nn.Dropout(0.1), GaussianNoise(0.1), DropPath(0.2), CoinDrop(), nn.RReLU(), nn.Dropout(0.3, inplace=True))
    model = nn.Sequential(nn.Linear(8, 32), *parts, nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if looks and evaluates:
        probe(model.eval())
        model.train()
    losses = []
    for _ in range(5):
        if looks:
            probe(model)
        loss = model(torch.randn(16, 8)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        if looks:
            probe(model)
        optimizer.step()
        losses.append(loss.item())
    return losses, checksum(model.state_dict().items()), [module.training for module in model.modules()]


@pytest.mark.parametrize("evaluates", [False, True])
def test_training_is_bit_identical_with_and_without_it(evaluates):
    plain = trained(looks=False)
    assert trained(looks=True, evaluates=evaluates) == plain
    assert len(set(plain[0])) == 5


def test_a_checksum_tells_numbers_shapes_and_names_apart_and_nothing_else():
    torch.manual_seed(0)
    weights = {"a": torch.randn(300_000), "b": torch.randn(3, 4).to(torch.bfloat16), "c": torch.tensor([1 + 2j])}
    told = checksum(weights.items())
    assert len(told) == 16
    assert checksum(reversed(weights.items())) == told
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert checksum(weights.items()) == told
    finally:
        torch.set_num_threads(threads)
    assert checksum({**weights, "a": weights["a"].view(600, 500).t().contiguous().t().reshape(-1)}.items()) == told
    changed = weights["a"].clone()
    changed[7] = torch.nextafter(changed[7], torch.tensor(9.0))
    assert checksum({**weights, "a": changed}.items()) != told
    assert checksum({**weights, "a": weights["a"].view(600, 500)}.items()) != told
    assert checksum({"z": weights["a"], "b": weights["b"], "c": weights["c"]}.items()) != told
    assert checksum({"e": torch.zeros(0)}.items()) != checksum([])
