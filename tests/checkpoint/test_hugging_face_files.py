"""Weights to and from Hugging Face's files in one process: what is written, and errors of folders that do not fit."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from ezpz.checkpoint import export_hugging_face, import_hugging_face, safetensors_files, safetensors_folder
from ezpz.errors import EzpzError, UsageError
from ezpz.models import Llama, LlamaConfig, llama_layout

CONFIG = LlamaConfig(vocab_size=48, dim=32, n_layers=2, n_heads=4, n_kv_heads=2, ffn_dim=40, max_seq_len=16)
LAYOUT = llama_layout(CONFIG)


def build(seed, **sizes):
    torch.manual_seed(seed)
    return Llama(replace(CONFIG, **sizes))


def bits(model):
    return [weight.tolist() for weight in model.state_dict().values()]


@pytest.fixture(scope="module", autouse=True)
def _kept_environment(tmp_path_factory):
    """torch sets this variable where it is not set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return export_hugging_face(build(1), tmp_path_factory.mktemp("export") / "model", LAYOUT)


@pytest.fixture
def folder(exported, tmp_path):
    """A copy of an exported model, to be spoilt."""
    return shutil.copytree(exported, tmp_path / "copy")


@pytest.mark.parametrize(
    ("dtype", "shard"), [("float32", 5 * 10**9), ("fp32", 5_000), ("bf16", 20_000), ("float16", 1)]
)
def test_weights_come_back_in_the_format_that_was_asked_for(tmp_path, dtype, shard):
    model = build(1)
    path = export_hugging_face(model, tmp_path / "out", LAYOUT, dtype=dtype, shard_bytes=shard)
    files = sorted(each.name for each in path.glob("*.safetensors"))
    weights = {word: getattr(torch, name) for word, name in safetensors_files.FORMATS.items()}
    entries = safetensors_files.find_entries(path)
    (word,) = {entry.dtype for entry in entries.values()}
    assert len(files) == {5 * 10**9: 1, 1: 21}.get(shard, len(files))
    if len(files) > 1:
        assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
        index = json.loads((path / "model.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == sum(entry.size for entry in entries.values())
        assert index["weight_map"] == {name: entry.file.name for name, entry in entries.items()}
    assert getattr(torch, word) in weights.values()
    other = build(2)
    import_hugging_face(other, path, LAYOUT)
    for (name, ours), theirs in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(ours.to(getattr(torch, word)).float(), theirs), name
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_a_tied_file_fills_an_output_of_its_own_and_a_copy_fills_a_tied_model(tmp_path):
    tied = build(1, tied=True)
    path = export_hugging_face(tied, tmp_path / "tied", llama_layout(tied.config))
    assert "lm_head.weight" not in safetensors_files.find_entries(path)
    assert json.loads((path / "config.json").read_text())["tie_word_embeddings"] is True
    free = build(2)
    import_hugging_face(free, path, LAYOUT)
    assert torch.equal(free.output.weight, tied.tok_embeddings.weight)
    copied = export_hugging_face(free, tmp_path / "copied", LAYOUT)
    again = build(3, tied=True)
    import_hugging_face(again, copied, llama_layout(again.config))
    assert bits(again) == bits(tied)
    other = export_hugging_face(build(4), tmp_path / "other", LAYOUT)
    with pytest.raises(
        UsageError, match=r"its lm_head.weight is no copy of model.embed_tokens.weight, as in this model"
    ):
        import_hugging_face(again, other, llama_layout(again.config))


def refused(path, told, model=None):
    """The import raises one line, and changes nothing."""
    model = model or build(2)
    before = bits(model)
    with pytest.raises(UsageError, match=told) as caught:
        import_hugging_face(model, path, llama_layout(model.config))
    assert bits(model) == before
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_another_model_is_refused_before_anything_is_changed(exported):
    refused(exported, r"its vocabulary of 48 is larger than the model's of 40; expected", build(2, vocab_size=40))
    refused(exported, r"its vocabulary of 48 is smaller than the model's of 64", build(2, vocab_size=64))
    refused(exported, r"it has no model.layers.2.self_attn.q_proj.weight; .* and 6 more", build(2, n_layers=3))
    refused(exported, r"this model has no model.layers.1", build(2, n_layers=1))
    refused(exported, r"gate_proj.weight is \[40, 32\] in it and \[64, 32\] here", build(2, ffn_dim=64))
    refused(exported, r"its num_attention_heads is 4, and that of this model 8", build(2, n_heads=8, n_kv_heads=4))
    refused(exported, r"its rope_theta is 10000.0, and that of this model 500000.0", build(2, rope_theta=5e5))


def test_a_folder_that_holds_something_else_is_told(tmp_path, folder):
    refused(tmp_path / "none", r"there is no such folder; .*hf download NAME")
    refused(folder / "config.json", r"it is a file")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, r"it has no model.safetensors, but config.json, pytorch_model.bin")


def test_cut_and_damaged_files_are_told(folder):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    for cut, told in (
        (data[:-7], r"model.safetensors has \d+ bytes of tensors instead of \d+: it was cut"),
        (data + b"more", r"bytes of tensors instead of"),
        (data[:40], r"is cut, or no safetensors"),
        (b"", r"is cut, or no safetensors"),
        (b"PK\x03\x04" + data, r"is cut, or no safetensors"),
        (data[:9] + b"!" + data[10:], r"is damaged: no JSON"),
        (data.replace(b'"shape":[48,32]', b'"shape":[48,31]', 1), r"has 6144 bytes for F32 \[48, 31\]"),
        (
            data.replace(b'"data_offsets"', b'"data_uffsets"', 1),
            r"its header tells no place of model.embed_tokens.weight",
        ),
        (
            data.replace(b'"dtype":"F32"', b'"dtype":"Q4K"', 1),
            rf"{FIRST} in model.safetensors has the number format Q4K, and known here are F32, BF16, F16",
        ),
    ):
        path.write_bytes(cut)
        refused(folder, told)
    path.write_bytes(data)
    (folder / "config.json").write_text("{")
    refused(folder, r"config.json is damaged")


FIRST, SECOND = "model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"


CONTRADICTIONS = [
    (FIRST, {"shape": [-48, -32]}, rf"{FIRST} has 6144 bytes for F32 \[-48, -32\]"),
    (FIRST, {"shape": [48.5, 32]}, rf"its header tells no place of {FIRST}"),
    (FIRST, {"shape": 1536}, rf"its header tells no place of {FIRST}"),
    (FIRST, {"data_offsets": [0, 6144, 6145]}, rf"its header tells no place of {FIRST}"),
    (FIRST, {"data_offsets": [float("inf"), 6144]}, rf"its header tells no place of {FIRST}"),
    (FIRST, {"data_offsets": [6144, 0]}, rf"{FIRST} has -6144 bytes"),
    (FIRST, {"data_offsets": [-6144, 0]}, rf"{FIRST} has 6144 bytes"),
    (SECOND, {"data_offsets": [4096, 8192]}, rf"{FIRST} and {SECOND} share bytes 4096 to 6144"),
    (SECOND, {"data_offsets": [0, 4096]}, r"share bytes 0 to 4096"),
    (FIRST, {"shape": [47, 32], "data_offsets": [0, 6016]}, r"bytes 6016 to 6144, before \S+, are no tensor's"),
    (SECOND, {"dtype": "F8_E4M3"}, rf"{SECOND} in model.safetensors has the number format F8_E4M3, and known here"),
    (SECOND, {"dtype": None}, rf"{SECOND} in model.safetensors has the number format None, and known here"),
    (SECOND, 7, rf"its header tells no place of {SECOND}"),
]


def test_a_header_that_contradicts_itself_is_one_line(subtests, folder):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    model = build(2)
    for name, entry, told in CONTRADICTIONS:
        header = json.loads(data[8 : 8 + length])
        header[name] = {**header[name], **entry} if isinstance(entry, dict) else entry
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
        with subtests.test(name=name, entry=entry):
            refused(folder, told, model)


def test_a_header_that_is_no_table_is_one_line(subtests, folder):
    for header in (b"[" * 100_000, b'{"a": {"dtype"', b"\xff\xfe{}", b"[]", b'"F32"'):
        (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        with subtests.test(header=header[:20]):
            refused(folder, r"model.safetensors is damaged: no (JSON|table) where it must be")


def test_a_tensor_of_an_unknown_format_has_a_size_and_is_refused_when_it_is_read(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"dtype":"F32"', b'"dtype":"Q4K"', 1))
    entry = safetensors_files.find_entries(folder)[FIRST]
    assert (entry.dtype, entry.size) == ("Q4K", 6144)
    with pytest.raises(safetensors_files.UnreadableError, match="number format Q4K, and known here are F32, BF16, F16"):
        safetensors_files.read_tensor(entry)


def test_an_index_without_its_files_is_told(tmp_path):
    path = export_hugging_face(build(1), tmp_path / "out", LAYOUT, shard_bytes=20_000)
    index = path / "model.safetensors.index.json"
    told = json.loads(index.read_text())
    lost = told["weight_map"]["model.norm.weight"]
    (path / lost).rename(path / "elsewhere")
    refused(path, f"it has no {lost}, but")
    (path / "elsewhere").rename(path / lost)
    told["weight_map"]["model.extra"] = lost
    index.write_text(json.dumps(told))
    refused(path, rf"model.extra is not in {lost}, where model.safetensors.index.json has it")
    del told["weight_map"]["model.extra"]
    other = next(file for file in told["weight_map"].values() if file != lost)
    index.write_text(json.dumps({"weight_map": {**told["weight_map"], "model.norm.weight": other}}))
    refused(path, rf"model.norm.weight is not in {other}, where model.safetensors.index.json has it")
    told["weight_map"] = {"model.norm.weight": "../out/model.safetensors"}
    index.write_text(json.dumps(told))
    refused(path, r"names files outside of the folder")
    index.write_text("[]")
    refused(path, r"no table where it must be")


def test_stretched_positions_are_said_aloud(folder, capsys):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rope_scaling": {"rope_type": "llama3", "factor": 8}}))
    import_hugging_face(build(2), folder, LAYOUT)
    assert "its rotary positions are stretched (llama3)" in capsys.readouterr().out


def test_an_export_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    (tmp_path / ".out.0badcafe.tmp").mkdir()  # of a process that was killed
    calls = []

    def full(weights):
        calls.append(weights)
        if len(calls) > 2:
            raise OSError(28, "No space left on device")
        return header(weights)

    header = safetensors_files.header_of
    monkeypatch.setattr(safetensors_folder.files, "header_of", full)
    with pytest.raises(EzpzError, match=r"cannot export .*out: No space left on device; expected"):
        export_hugging_face(build(1), tmp_path / "out", LAYOUT, shard_bytes=5000)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert export_hugging_face(build(1), tmp_path / "out", LAYOUT) == tmp_path / "out"
    with pytest.raises(UsageError, match=r"out is there already"):
        export_hugging_face(build(1), tmp_path / "out", LAYOUT)
    with pytest.raises(UsageError, match=r"cannot export as 'bf17'.*float32, bfloat16, float16"):
        export_hugging_face(build(1), tmp_path / "new", LAYOUT, dtype="bf17")


def test_a_model_that_is_not_the_layouts_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"it has no layers.2.attention.wq.weight .*model.config"):
        export_hugging_face(build(1), tmp_path / "out", llama_layout(replace(CONFIG, n_layers=3)))
    with torch.device("meta"):
        empty = Llama(CONFIG)
    for action in (export_hugging_face, import_hugging_face):
        with pytest.raises(UsageError, match=r"tok_embeddings.weight has no memory .*wrap_model"):
            action(empty, tmp_path / "out", LAYOUT)


def test_a_file_that_becomes_shorter_meanwhile_is_told(folder, monkeypatch):
    real = safetensors_files.read_tensor

    def spoil(entry):
        if entry.begin > 10_000:
            with entry.file.open("r+b") as file:
                file.truncate(entry.begin + 4)
        return real(entry)

    monkeypatch.setattr("ezpz.checkpoint.hugging_face_models.read_tensor", spoil)
    with pytest.raises(
        EzpzError, match=r"ends after \d+ bytes; expected files as they were. The model is changed in part"
    ):
        import_hugging_face(build(2), folder, LAYOUT)
