"""DeepSpeed where it is absent, and what is asked of it, by a stand-in; it is no dependency of the tests."""

import json
import sys
import types

import pytest
import torch

import ezpz
from ezpz.dist import deepspeed
from ezpz.errors import MachineError, UsageError


@pytest.fixture
def group(monkeypatch, tmp_path):
    """A process group of one."""
    for name in ("DS_ACCELERATOR", "TORCHINDUCTOR_CACHE_DIR", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def library(monkeypatch):
    """A DeepSpeed that keeps the keywords of its last call in `asked`."""
    module = types.ModuleType("deepspeed")
    module.__version__, module.asked = "0.0", {}
    module.initialize = lambda **keywords: (module.asked.update(keywords) or "engine", None, None, None)
    monkeypatch.setitem(sys.modules, "deepspeed", module)
    return module


def test_its_absence_says_what_to_install_and_what_does_without(monkeypatch, group):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(MachineError, match=r"no DeepSpeed.*pip install deepspeed.*zero1"):
        ezpz.wrap_model(torch.nn.Linear(2, 2), "deepspeed")


def test_a_configuration_is_generated_from_the_arguments(library, group):
    model = torch.nn.Linear(2, 2)
    assert ezpz.wrap_model(model, "deepspeed", dtype="bf16", stage=2, micro_batch_size=4, clip=1.0) == "engine"
    config = library.asked["config"]
    assert library.asked["model"] is model
    assert (config["zero_optimization"], config["bf16"]) == ({"stage": 2}, {"enabled": True})
    assert (config["train_micro_batch_size_per_gpu"], config["gradient_clipping"]) == (4, 1.0)
    assert config["optimizer"]["type"] == "AdamW"
    json.dumps(config)


@pytest.mark.parametrize(("stored", "section"), [("float32", None), ("bfloat16", "bf16"), ("float16", "fp16")])
def test_without_a_dtype_the_weights_say_it(library, group, stored, section):
    ezpz.wrap_model(torch.nn.Linear(2, 2, dtype=getattr(torch, stored)), "deepspeed")
    assert {"bf16", "fp16"} & set(library.asked["config"]) == ({section} if section else set())


def test_an_optimizer_of_the_script_stays_the_only_one(library, group):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    ezpz.wrap_model(model, "deepspeed", dtype="fp32", optimizer=optimizer)
    assert library.asked["optimizer"] is optimizer
    assert "optimizer" not in library.asked["config"]
    assert not {"bf16", "fp16"} & set(library.asked["config"])


def test_a_file_is_taken_as_it_is(library, group, tmp_path):
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": 8}')
    ezpz.wrap_model(torch.nn.Linear(2, 2), "deepspeed", config=path)
    assert library.asked["config"] == {"train_batch_size": 8}
    with pytest.raises(UsageError, match="configuration is given and stage too"):
        ezpz.wrap_model(torch.nn.Linear(2, 2), "deepspeed", config=path, stage=1)
    path.write_text("[]")
    with pytest.raises(UsageError, match=r"ds\.json"):
        ezpz.wrap_model(torch.nn.Linear(2, 2), "deepspeed", config=path)


def test_what_it_cannot_do_is_told_in_its_own_words(library, group):
    def refuse(**_):
        raise AssertionError("Unable to find a usable accelerator")

    library.initialize = refuse
    with pytest.raises(MachineError, match=r"DeepSpeed 0\.0 cannot train .* Unable to find a usable accelerator"):
        ezpz.wrap_model(torch.nn.Linear(2, 2), "deepspeed")


def test_a_stage_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match="unknown ZeRO stage 4"):
        deepspeed.make_config(stage=4)


def test_without_a_group_it_says_what_comes_first():
    with pytest.raises(UsageError, match="setup_torch"):
        ezpz.wrap_model(torch.nn.Linear(2, 2), "deepspeed")
