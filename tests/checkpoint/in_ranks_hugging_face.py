"""Run by pytest in every rank of a launch of 4: weights of any strategy go out, and come in, as of one process.

Not collected by itself; `test_checkpoint_ranks.py` launches it.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_llama import group_of_ranks

import ezpz
from ezpz.checkpoint import export_hugging_face, import_hugging_face, safetensors_folder
from ezpz.dist.whole_tensors import gathered
from ezpz.errors import EzpzError, UsageError
from ezpz.models import Llama, LlamaConfig, llama_layout

__all__ = ["group_of_ranks"]  # a fixture, which pytest finds by its name here

# 50 words over 4 ranks are 13, 13, 13 and 11
CONFIG = LlamaConfig(vocab_size=50, dim=32, n_layers=2, n_heads=4, n_kv_heads=2, ffn_dim=40, max_seq_len=16)
LAYOUT = llama_layout(CONFIG)
CASES = {
    "ddp": ({}, "ddp", CONFIG),
    "zero1": ({}, "zero1", CONFIG),
    "fsdp": ({}, "fsdp", CONFIG),
    "fsdp tied": ({}, "fsdp", replace(CONFIG, tied=True)),
    "hsdp": ({"dp_replicate": 2}, "hsdp", CONFIG),
    "tp2 fsdp": ({"tp": 2}, "fsdp", CONFIG),
    "tp2 fsdp tied": ({"tp": 2}, "fsdp", replace(CONFIG, tied=True)),
}


def dense(seed, config=CONFIG):
    torch.manual_seed(seed)
    return Llama(config)


def wrapped(seed, case):
    degrees, strategy, config = CASES[case]
    mesh = ezpz.init_mesh(**degrees)
    plan = ezpz.llama_plan() if "tp" in degrees else None
    return ezpz.wrap_model(dense(seed, config), strategy, mesh, dtype="fp32", tp_plan=plan), llama_layout(config)


def whole(model):
    return {name.removeprefix("module."): gathered(weight) for name, weight in model.named_parameters()}


@pytest.fixture
def folder(tmp_path):
    """A folder that all ranks share."""
    return ezpz.broadcast(tmp_path)


def files_of(path):
    return {each.name: each.read_bytes() for each in Path(path).iterdir()}


@pytest.mark.parametrize("case", CASES)
def test_weights_go_out_and_come_in_as_those_of_one_process(case, folder):
    model, layout = wrapped(11, case)
    path = export_hugging_face(model, folder / "out", layout, shard_bytes=9000)
    if ezpz.get_rank() == 0:
        assert len(files_of(path)) > 3
    alone = dense(11, CASES[case][2])
    other, _ = wrapped(12, case)
    ours = dict(alone.named_parameters())
    assert any(not torch.equal(weight, ours[name]) for name, weight in whole(other).items())
    import_hugging_face(other, path, layout)
    found = whole(other)
    assert found.keys() == ours.keys()
    for name, weight in found.items():
        assert torch.equal(weight, ours[name]), name
    tokens = torch.arange(16).remainder(50)[None]
    with torch.no_grad():
        assert torch.allclose(other(tokens), alone(tokens), atol=1e-5)


def test_files_are_the_same_whatever_the_mesh(folder):
    one, _ = wrapped(11, "ddp")
    two, _ = wrapped(11, "tp2 fsdp")
    paths = [export_hugging_face(each, folder / str(place), LAYOUT) for place, each in enumerate((one, two))]
    assert files_of(paths[0]) == files_of(paths[1])


def test_all_ranks_have_the_same_error_and_go_on(folder, monkeypatch):
    model, _ = wrapped(11, "fsdp")
    (folder / f"seen-by-{ezpz.get_rank()}").mkdir()
    ezpz.barrier()
    with pytest.raises(UsageError, match="is there already"):
        export_hugging_face(model, folder, LAYOUT)
    with pytest.raises(UsageError, match="there is no such folder"):
        import_hugging_face(model, folder / "none", LAYOUT)
    path = export_hugging_face(model, folder / "good", LAYOUT)
    small, layout = dense(1, replace(CONFIG, vocab_size=40)), llama_layout(replace(CONFIG, vocab_size=40))
    with pytest.raises(UsageError, match="its vocabulary of 50 is larger than the model's of 40"):
        import_hugging_face(ezpz.wrap_model(small, "fsdp", dtype="fp32"), path, layout)
    if ezpz.get_rank() == 0:

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(safetensors_folder.files, "header_of", full)
    with pytest.raises(EzpzError, match="No space left on device"):
        export_hugging_face(model, folder / "full", LAYOUT)
    assert not (folder / "full").exists()
    monkeypatch.undo()
    export_hugging_face(model, folder / "full", LAYOUT)
