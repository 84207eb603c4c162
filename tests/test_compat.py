"""What older names do on today's functions."""

import re
import sys
import types

import pytest

import ezpz
from ezpz.dist import arguments
from ezpz.errors import MachineError, UsageError


def test_a_backend_says_what_moves_tensors_or_what_trains():
    for backend, expected in {
        None: (None, None),
        "": (None, None),
        "DDP": (None, "ddp"),
        "fsdp2": (None, "fsdp"),
        "DeepSpeed": (None, "deepspeed"),
        "ds": (None, "deepspeed"),
        "NCCL": ("nccl", None),
        "gloo": ("gloo", None),
    }.items():
        assert arguments.split_backend(backend) == expected
    for backend, what in {"horovod": "no Horovod", "hvd": "no Horovod", "tcp": "unknown backend 'tcp'"}.items():
        with pytest.raises(UsageError, match=what):
            arguments.split_backend(backend)


def test_a_port_may_be_text():
    assert [arguments.whole_port(port) for port in ("5432", 5432, None, "")] == [5432, 5432, None, None]
    for port in ("any", "-1", 0, 65536):
        with pytest.raises(UsageError, match=f"unusable port {port!r}"):
            arguments.whole_port(port)


@pytest.fixture
def given(monkeypatch):
    """The keywords that `setup_torch` gets."""
    got = []
    monkeypatch.setattr("ezpz.dist.setup_rank.setup_torch", lambda **keywords: got.append(keywords) or 3)
    return got


def test_setup_is_setup_torch_and_says_what_has_no_effect(given, capsys):
    assert ezpz.setup("pytorch", "deepspeed", "5432", seed=1, precision="fp16", ngpus=4) == 3
    assert given == [{"backend": None, "port": 5432, "seed": 1}]
    assert "precision=fp16, ngpus=4 has no effect" in capsys.readouterr().out
    ezpz.setup(backend="gloo")
    assert given[1] == {"backend": "gloo", "port": None, "seed": None}
    assert capsys.readouterr().out == ""


def test_the_older_ones_answer_with_who_the_process_is(given):
    told = ezpz.setup_torch_DDP("2345", "3600")
    assert set(told) == {"world_size", "rank", "local_rank"}
    assert given == [{"backend": None, "port": 2345, "timeout": 3600.0}]


def test_tensorflow_gets_a_clear_answer(given):
    for call in (lambda: ezpz.setup("tensorflow"), lambda: ezpz.setup_tensorflow(None, ngpus=2)):
        with pytest.raises(UsageError, match=r"no framework 'tensorflow'.*still runs under `launch`"):
            call()
    assert given == []


def test_deepspeed_adopts_the_group_or_is_said_to_be_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(MachineError, match=r"no DeepSpeed.*pip install deepspeed"):
        ezpz.init_deepspeed()
    got = []
    monkeypatch.setitem(
        sys.modules, "deepspeed", types.SimpleNamespace(init_distributed=lambda **more: got.append(more))
    )
    ezpz.init_deepspeed(dist_backend="gloo")
    assert got == [{"dist_backend": "gloo"}]


def test_wrapping_by_older_names_is_wrap_model(monkeypatch):
    stand_in = types.SimpleNamespace(wrap_model=lambda *args, **more: (args, more))
    monkeypatch.setitem(sys.modules, "ezpz.dist.wrap", stand_in)
    names = {ezpz.wrap_with_ddp: "ddp", ezpz.wrap_with_fsdp: "fsdp", ezpz.wrap_with_fsdp2: "fsdp"}
    for wrap, strategy in names.items():
        given = wrap("model", dtype="bf16", device_mesh="mesh")
        assert given == (("model", strategy), {"dtype": "bf16", "mesh": "mesh"})


def test_memory_under_older_names(monkeypatch):
    monkeypatch.setattr("ezpz.dist.device.max_memory_allocated", lambda device: 100 if device == "cuda:1" else 7)
    assert (ezpz.get_max_memory_allocated(), ezpz.get_max_memory_allocated("cuda:1")) == (7, 100)
    monkeypatch.setenv("TORCH_DEVICE", "cpu")
    assert ezpz.get_max_memory_reserved() == 7  # no allocator of torch's own there
    import torch

    monkeypatch.setattr(
        torch, "cuda", types.SimpleNamespace(is_available=lambda: True, max_memory_reserved=lambda device: 9)
    )
    monkeypatch.setenv("TORCH_DEVICE", "cuda")
    assert ezpz.get_max_memory_reserved("cuda:1") == 9


def test_a_deepspeed_configuration_is_read(tmp_path):
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8}')
    assert ezpz.load_ds_config(tmp_path / "ds.json") == {"train_batch_size": 8}
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "torn.json").write_text("{")
    for name, what in (("list.json", "no mapping"), ("torn.json", "Expecting"), ("none.json", "No such file")):
        with pytest.raises(UsageError, match=f"{name} .*{what}"):
            ezpz.load_ds_config(str(tmp_path / name))


def test_a_deepspeed_configuration_of_yaml_needs_pyyaml(tmp_path, monkeypatch):
    (tmp_path / "ds.yaml").write_text("train_batch_size: 8\n")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UsageError, match="yaml"):
        ezpz.load_ds_config(tmp_path / "ds.yaml")
    told = types.SimpleNamespace(safe_load=lambda text: dict([text.strip().split(": ")]), YAMLError=RuntimeError)
    monkeypatch.setitem(sys.modules, "yaml", told)
    assert ezpz.load_ds_config(tmp_path / "ds.yaml") == {"train_batch_size": "8"}


def test_a_summary_shows_floats_with_six_digits():
    assert ezpz.summarize_dict({"test": 5, "loss": 5.123456}) == "test=5 loss=5.123456"
    assert (
        ezpz.summarize_dict({"loss": 5.123456, "name": "a", "none": None}, precision=2) == "loss=5.12 name=a none=None"
    )


def test_a_time_stamp_sorts():
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-\d{6}", ezpz.get_timestamp())
    assert re.fullmatch(r"\d\d", ezpz.get_timestamp("%d"))
