import argparse
import copy
import functools
import json
import math
import time

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # after the check that torch is there
from torch.optim import lr_scheduler as schedulers  # noqa: E402  # as above

from ezpz.view.effective import describe  # noqa: E402  # as above


@pytest.fixture(autouse=True)
def _inductor(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "unused")  # torch.compile sets it to a folder of its own otherwise


class Attention(nn.Module):
    """Drops by an attribute that a function is given, as the seed story's did."""

    def __init__(self, config):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.dropout = getattr(config, "attention_dropout", 0.1)
        self.flash = True
        self.attn_impl = "math"


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attn = Attention(config)
        self.drop = nn.Dropout(config.hidden_dropout)


class Model(nn.Module):
    def __init__(self, config, layers=4):
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(Block(config) for _ in range(layers))
        self.register_buffer("table", torch.zeros(16, dtype=torch.int64))


def config(**more):
    told = {
        "attention_dropout": 0.1,
        "hidden_dropout": 0.2,
        "_attn_implementation": "sdpa",
        "hub_token": "hf_x",
        "layers": 4,
    }
    return argparse.Namespace(**{**told, **more})


def linear(**more):
    model = nn.Linear(2, 2)
    return model, torch.optim.SGD(model.parameters(), lr=1.0, **more)


def test_a_default_that_stood_in_no_command_line_is_found():
    model = Model(config())
    told = describe(model)
    assert told["dropout.layers.*.attn.dropout"] == 0.1
    assert told["dropout.layers.*.drop"] == 0.2
    assert told["dropout.config.attention_dropout"] == 0.1
    assert told["dropout.config.hidden_dropout"] == 0.2
    assert told["dropout_places"] == {"layers.*.attn.dropout": 4, "layers.*.drop": 4}
    off = describe(Model(config(attention_dropout=0.0, hidden_dropout=0.0)))
    assert (off["dropout.layers.*.attn.dropout"], off["dropout.layers.*.drop"]) == (0.0, 0.0)


def test_layers_that_differ_are_told_one_by_one_and_not_without_end():
    model = Model(config())
    model.layers[2].drop.p = 0.5
    told = describe(model)
    assert [told[f"dropout.layers.{layer}.drop"] for layer in range(4)] == [0.2, 0.2, 0.5, 0.2]
    assert told["dropout.layers.*.attn.dropout"] == 0.1
    told = describe(nn.ModuleList(nn.Dropout(number / 1000) for number in range(100)))
    assert told["dropout_more"] == 36
    assert len([key for key in told if key.startswith("dropout.")]) == 64


def test_dropouts_of_many_spellings_are_found_and_other_numbers_are_not():
    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.cfg = {
                "attn_pdrop": 0.1,
                "resid_pdrop": 0.2,
                "drop_last": True,
                "dropout_mode": "x",
                "text_config": {"hidden_dropout_prob": 0.3},
            }
            self._dropout_p, self.drop_rate, self.drop_after, self.dropout_seed = 0.4, 1, 3000, -1
            self.lstm = nn.LSTM(2, 2, 2, dropout=0.5)
            self.heads = nn.MultiheadAttention(2, 1, dropout=0.6)
            self.distance = nn.PairwiseDistance(p=2.0)

    told = {key: value for key, value in describe(Gpt()).items() if key.startswith("dropout.")}
    assert told == {
        "dropout.cfg.attn_pdrop": 0.1,
        "dropout.cfg.resid_pdrop": 0.2,
        "dropout.cfg.text_config.hidden_dropout_prob": 0.3,
        "dropout.dropout_p": 0.4,
        "dropout.drop_rate": 1,
        "dropout.lstm.dropout": 0.5,
        "dropout.heads.dropout": 0.6,
    }  # fmt: skip
    assert describe(nn.Dropout(0.7))["dropout.(model)"] == 0.7


def test_what_a_model_is_made_of():
    model = Model(config()).to(torch.bfloat16)
    model.layers[0].norm.weight.requires_grad_(False)
    told = describe(model.eval())
    assert told["model.class"] == "Model"
    assert told["model.parameters"] == 4 * (8 * 24 + 24 + 16)
    assert told["model.trainable"] == told["model.parameters"] - 8
    assert told["model.dtypes"] == {"bfloat16": told["model.parameters"]}
    assert told["model.buffers"] == {"int64": 16}
    assert told["model.devices"] == {"cpu": told["model.parameters"]}
    assert told["model.modules"] == {"LayerNorm": 4, "Linear": 4, "Dropout": 4}
    assert told["model.training"] is False
    assert "model.wrappers" not in told


@pytest.mark.slow
def test_wrappers_are_looked_through():
    torch.manual_seed(0)
    model = Model(config())
    plain = describe(model)
    around = nn.DataParallel(torch.compile(model))
    told = describe(around)
    assert told["model.wrappers"] == ["DataParallel", "torch.compile"]
    assert {**told, "model.wrappers": None} == {**plain, "model.wrappers": None}
    model.layers[0] = torch.compile(model.layers[0])
    told = describe(model)
    assert told["model.wrappers"] == ["torch.compile"]
    assert told["model.checksum"] == plain["model.checksum"]
    assert told["dropout_places"] == plain["dropout_places"]


def test_the_checksum_is_that_of_the_numbers_and_absent_without_memory():
    torch.manual_seed(0)
    first = describe(nn.Linear(3, 3))["model.checksum"]
    torch.manual_seed(0)
    assert describe(nn.Linear(3, 3))["model.checksum"] == first
    assert describe(nn.Linear(3, 3))["model.checksum"] != first
    with torch.device("meta"):
        told = describe(nn.Linear(3, 3))
    assert told["model.meta"] is True
    assert "model.checksum" not in told
    assert told["model.parameters"] == 12


def test_attention_and_the_switches_of_torch():
    told = describe(Model(config()))
    assert set(told["attention.backends"]) >= {"flash", "mem_efficient", "math"}
    assert told["attention.layers.*.attn.flash"] is True
    assert told["attention.layers.*.attn.attn_impl"] == "math"
    assert told["attention.config.attn_implementation"] == "sdpa"
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert describe(nn.Linear(1, 1))["attention.backends"]["flash"] is False
    assert told["numerics.default_dtype"] == "float32"
    assert told["numerics.deterministic"] is False
    assert "numerics.autocast.cpu" not in told
    with torch.autocast("cpu", torch.bfloat16):
        assert describe(nn.Linear(1, 1))["numerics.autocast.cpu"] == "bfloat16"


def test_plain_settings_of_modules_are_told_once_for_equal_layers():
    model = nn.ModuleDict({"norms": nn.ModuleList(nn.LayerNorm(4, eps=1e-3) for _ in range(2)), "act": nn.GELU("tanh")})
    model.heads, model.skip, model.folder, model._seen, model.drop_rate = 4, True, "/data/x", 7, 0.1
    told = {key: value for key, value in describe(model).items() if key.startswith("module")}
    assert told == {
        "module.heads": 4,
        "module.skip": True,
        "module.norms.*.eps": 1e-3,
        "module.norms.*.elementwise_affine": True,
        "module.act.approximate": "tanh",
        "module_places": {"norms.*.eps": 2, "norms.*.elementwise_affine": 2},
    }


def test_an_optimizer_by_its_groups():
    model = Model(config())
    groups = [
        {"params": model.layers[0].parameters()},
        {"params": model.layers[1].parameters(), "weight_decay": 0.0, "lr": torch.tensor(0.5)},
    ]
    told = describe(optimizer=torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), capturable=False, foreach=False))
    assert told["optimizer.class"] == "AdamW"
    assert told["optimizer.groups.0.lr"] == 1e-3
    assert told["optimizer.groups.0.betas"] == [0.9, 0.95]
    assert (told["optimizer.groups.0.weight_decay"], told["optimizer.groups.1.weight_decay"]) == (0.01, 0.0)
    assert (told["optimizer.groups.0.parameters"], told["optimizer.groups.0.tensors"]) == (232, 4)
    assert told["optimizer.groups.1.lr"] == 0.5
    many = torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))]} for _ in range(20)], lr=1.0)
    assert describe(optimizer=many)["optimizer.more_groups"] == 4


def test_wrappers_of_optimizers_and_schedulers_are_looked_through():
    class Accelerated:
        def __init__(self, optimizer, scheduler=None):
            self.optimizer, self.scheduler = optimizer, scheduler

        def get_lr(self):
            return self.scheduler.get_lr()

    told = describe(optimizer=Accelerated(linear()[1]))
    assert (told["optimizer.class"], told["optimizer.wrappers"]) == ("SGD", ["Accelerated"])
    assert told["optimizer.groups.0.lr"] == 1.0
    told = describe(scheduler=Accelerated(None, schedulers.StepLR(linear()[1], 3)))
    assert (told["schedule.class"], told["schedule.wrappers"], told["schedule.step_size"]) == (
        "StepLR",
        ["Accelerated"],
        3,
    )


def sequential(optimizer):
    parts = [schedulers.LinearLR(optimizer, 0.1, total_iters=20), schedulers.CosineAnnealingLR(optimizer, 5000)]
    return schedulers.SequentialLR(optimizer, parts, milestones=[20])


class Counting:
    """A rate that counts its calls, which a look must not add to."""

    def __init__(self):
        self.calls = 0

    def __call__(self, step):
        self.calls += 1
        return 1 / (1 + step)


def warmup(step, *, num_training_steps):
    return max(0.0, 1 - step / num_training_steps)


SCHEDULERS = [
    (lambda o: schedulers.LambdaLR(o, lambda step: 1 / (1 + step)), ()),
    (lambda o: schedulers.LambdaLR(o, Counting()), ()),
    (lambda o: schedulers.LambdaLR(o, functools.partial(warmup, num_training_steps=3000)), (300, 1500, 3000)),
    (lambda o: schedulers.MultiplicativeLR(o, lambda _: 0.99), ()),
    (lambda o: schedulers.StepLR(o, 300), (30, 150, 300)),
    (lambda o: schedulers.MultiStepLR(o, [7, 40, 1500]), (7, 40, 1500)),
    (lambda o: schedulers.ConstantLR(o, 0.5, 12), (12,)),
    (lambda o: schedulers.LinearLR(o, 0.1, total_iters=200), (20, 100, 200)),
    (lambda o: schedulers.ExponentialLR(o, 0.999), ()),
    (lambda o: schedulers.PolynomialLR(o, 4000, 2), (400, 2000, 4000)),
    (lambda o: schedulers.CosineAnnealingLR(o, 2000, 0.1), (200, 2000)),
    (lambda o: schedulers.CosineAnnealingWarmRestarts(o, 50), (5, 25, 50)),
    (lambda o: schedulers.OneCycleLR(o, 2.0, total_steps=1500), (150, 750, 1499)),
    (lambda o: schedulers.OneCycleLR(o, 2.0, total_steps=30), (3, 15, 29)),
    (lambda o: schedulers.CyclicLR(o, 0.1, 1.0, step_size_up=30), ()),
    (sequential, (20, 520, 2520, 5020)),
    (lambda o: schedulers.ChainedScheduler([schedulers.ConstantLR(o, 0.5, 5), schedulers.ExponentialLR(o, 0.99)]), ()),
]


@pytest.mark.parametrize(
    "kinds", [SCHEDULERS[:6], pytest.param(SCHEDULERS[6:], marks=pytest.mark.slow)], ids=["some", "the others"]
)
def test_the_rates_told_ahead_are_those_that_come_and_nothing_is_touched(subtests, kinds):
    for make, landmarks in kinds:
        with subtests.test(str(landmarks)):
            model, optimizer = linear(momentum=0.9)
            scheduler = make(optimizer)
            before = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
            told = describe(model, optimizer, scheduler)
            assert (optimizer.state_dict(), scheduler.state_dict()) == before
            assert "problems" not in told
            rates = {int(step): rate for step, rate in told["schedule.lr"].items()}
            last = {30: 29, 1500: 1499}.get(getattr(scheduler, "total_steps", 0), 5020)
            assert {step for step in (0, 1, 10, 100, 1000, *landmarks) if step <= last} <= set(rates)
            for step in range(max(rates) + 1):
                if step in rates:
                    assert math.isclose(rates[step], optimizer.param_groups[0]["lr"], rel_tol=1e-9, abs_tol=1e-12), step
                optimizer.step()
                if step < last:
                    scheduler.step()


def test_a_schedule_is_told_from_where_it_is_and_for_each_group():
    _, optimizer = linear()
    scheduler = schedulers.LinearLR(optimizer, 0.1, total_iters=100)
    for _ in range(50):
        optimizer.step()
        scheduler.step()
    told = describe(scheduler=scheduler)
    assert (told["schedule.class"], told["schedule.step"], told["schedule.total_iters"]) == ("LinearLR", 50, 100)
    assert {step: round(rate, 6) for step, rate in told["schedule.lr"].items()} == {"50": 0.55, "100": 1.0, "1000": 1.0}
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(3)]
    groups = [
        {"params": [weights[0]], "lr": torch.tensor(1.0)},
        {"params": [weights[1]], "lr": 0.5},
        {"params": [weights[2]], "lr": 1.0},
    ]
    optimizer = torch.optim.Adam(groups, lr=1.0)
    scheduler = schedulers.StepLR(optimizer, 1, 0.5)
    told = describe(scheduler=scheduler)
    assert (told["schedule.lr"]["1"], told["schedule.groups.1.lr"]["1"]) == (0.5, 0.25)
    assert "schedule.groups.2.lr" not in told
    assert optimizer.param_groups[0]["lr"].item() == 1.0


def test_schedules_that_cannot_be_told_ahead_say_why():
    class Loud(schedulers.LRScheduler):
        def get_lr(self):
            return [group["lr"] for group in self.optimizer.param_groups]

        def step(self):
            pytest.fail("it was called") if hasattr(self, "is_made") else super().step()

    class Broken(schedulers.LRScheduler):
        def get_lr(self):
            if self.last_epoch:
                raise KeyError("future")
            return [1.0]

    told = describe(scheduler=schedulers.ReduceLROnPlateau(linear()[1]))
    assert told["schedule.note"] == "its rates depend on a metric"
    assert told["schedule.patience"] == 10
    loud = Loud(linear()[1])
    loud.is_made = True
    assert "its step() is not torch's" in describe(scheduler=loud)["schedule.note"]
    assert "KeyError('future')" in describe(scheduler=Broken(linear()[1]))["schedule.note"]
    assert describe(scheduler=object())["schedule.class"] == "object"


def test_json_can_hold_it_without_secrets_and_long_texts():
    model = Model(config())
    model.attention_token = "hf_secret"
    model.attn_note = "x" * 500
    told = describe(model, *linear()[1:])
    text = json.dumps(told, allow_nan=False)
    assert "hf_" not in text
    assert max(len(value) for value in told.values() if isinstance(value, str)) == 200


def test_an_object_that_raises_costs_one_entry_and_foreign_ones_none():
    class Hostile(nn.Module):
        def named_parameters(self, *_, **__):
            raise RuntimeError("not now")

    told = describe(Hostile(), linear()[1])
    assert any("not now" in problem for problem in told["problems"])
    assert told["optimizer.class"] == "SGD"
    assert describe() == {}
    told = describe(argparse.Namespace(dropout=0.1))
    assert (told["model.class"], told["dropout.dropout"]) == ("Namespace", 0.1)


def test_torch_is_not_loaded_for_it(run_python):
    code = """
import sys
from types import SimpleNamespace
from ezpz.view.effective import describe
optimizer = SimpleNamespace(param_groups=[{"params": [], "lr": 0.1}])
print(describe(SimpleNamespace(dropout=0.1), optimizer, SimpleNamespace(gamma=0.5)))
assert "torch" not in sys.modules and "numpy" not in sys.modules
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr.decode()
    assert b"'optimizer.groups.0.lr': 0.1" in done.stdout


@pytest.mark.slow
def test_a_thousand_modules_take_a_moment():
    model = Model(config(), layers=200)
    assert sum(1 for _ in model.modules()) > 1000
    describe(model)
    start = time.thread_time()  # of this thread alone: other work does not count
    describe(model)
    assert time.thread_time() - start < 2.0  # 0.1 s is usual, a third of it the checksum
