"""Our Llama and the one of transformers, both ways.

Not collected by itself; `tests/train/test_tokenizers.py` runs it in .test/hugging_face.
"""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM
from transformers import LlamaConfig as TheirConfig

from ezpz.checkpoint import Checkpoints, export, export_hugging_face, import_hugging_face
from ezpz.models import Llama, LlamaConfig, llama_layout

SIZES = {"vocab_size": 300, "dim": 64, "n_layers": 2, "n_heads": 8, "ffn_dim": 96, "max_seq_len": 128}
CASES = {
    "grouped": {"n_kv_heads": 2, "rope_theta": 500000.0},
    "ungrouped, other eps": {"n_kv_heads": 8, "norm_eps": 1e-3},
    "tied": {"n_kv_heads": 4, "tied": True},
}


def logits(model):
    tokens = torch.randint(0, 300, (2, 100), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        found = model.eval()(tokens)
    return getattr(found, "logits", found)


@pytest.mark.parametrize("sizes", CASES.values(), ids=CASES)
def test_what_we_export_computes_the_same_there(tmp_path, sizes):
    torch.manual_seed(1)
    model = Llama(LlamaConfig(**SIZES, **sizes))
    layout = llama_layout(model.config, bos=298, eos=299)
    theirs = AutoModelForCausalLM.from_pretrained(export_hugging_face(model, tmp_path / "one", layout))
    assert isinstance(theirs, LlamaForCausalLM)
    assert (logits(theirs) - logits(model)).abs().max() < 1e-5
    assert (theirs.config.bos_token_id, theirs.config.eos_token_id) == (298, 299)
    half = AutoModelForCausalLM.from_pretrained(
        export_hugging_face(model, tmp_path / "cut", layout, dtype="bf16", shard_bytes=30_000), dtype="auto"
    )
    assert half.dtype == torch.bfloat16
    assert len(list((tmp_path / "cut").glob("model-*.safetensors"))) > 3
    for name, weight in theirs.state_dict().items():
        assert torch.equal(weight.bfloat16(), half.state_dict()[name])


@pytest.mark.parametrize("sizes", CASES.values(), ids=CASES)
def test_what_they_save_computes_the_same_here(tmp_path, sizes):
    torch.manual_seed(2)
    ours = Llama(LlamaConfig(**SIZES, **sizes))
    layout = llama_layout(ours.config)
    theirs = LlamaForCausalLM(TheirConfig(**layout.config))
    theirs.save_pretrained(tmp_path / "one")
    theirs.save_pretrained(tmp_path / "cut", max_shard_size="60KB")
    assert len(list((tmp_path / "cut").glob("model-*.safetensors"))) > 1
    for name in ("one", "cut"):
        model = Llama(ours.config)
        import_hugging_face(model, tmp_path / name, layout)
        assert (logits(theirs) - logits(model)).abs().max() < 1e-5


def test_files_are_as_the_library_of_the_format_reads_them(tmp_path):
    model = Llama(LlamaConfig(**SIZES))
    layout = llama_layout(model.config)
    folder = export_hugging_face(model, tmp_path / "out", layout, dtype="float16")
    read = load_file(folder / "model.safetensors")
    assert list(read) == list(layout.names.values()) or sorted(read) == sorted(layout.names.values())
    for ours, name in layout.names.items():
        assert torch.equal(read[name], layout.to_theirs(ours, model.state_dict()[ours]).half())
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == "float16"


@pytest.mark.parametrize("tied", [False, True])
def test_a_checkpoint_of_their_model_becomes_a_folder_of_theirs(tmp_path, tied):
    config = TheirConfig(
        vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=8
    )
    config.tie_word_embeddings = tied
    torch.manual_seed(4)
    model = LlamaForCausalLM(config).bfloat16()
    export(Checkpoints(tmp_path / "run", model=torch.compile(model)).save(1), tmp_path / "llama")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "llama", dtype="auto")
    assert isinstance(again, LlamaForCausalLM)
    assert again.dtype == torch.bfloat16
    for name, weight in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name
