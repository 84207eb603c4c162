"""Token streams by name: texts, files, and random ones."""

import hashlib
import re
import sys
import types
from importlib.resources import files

import numpy as np
import pytest
import torch

from ezpz.errors import MachineError, UsageError
from ezpz.train import load_tokens
from ezpz.train.data import text


def test_the_shipped_text_is_the_one_that_its_attribution_describes():
    told = files("ezpz.train").joinpath("shakespeare.md").read_text(encoding="utf-8")
    wanted = re.search(r"SHA-256 of the text: (\w{64})", told).group(1)
    assert hashlib.sha256(text.shakespeare().encode()).hexdigest() == wanted == text._SHAKESPEARE


def test_shakespeare_needs_no_network_and_has_the_known_sizes():
    tokens = load_tokens("shakespeare", download=False)
    assert (len(tokens.train), len(tokens.test), tokens.vocabulary) == (1_003_854, 111_540, 65)
    assert tokens.origin == "shipped with ezpz"
    assert "".join(tokens.symbols[i] for i in tokens.train[:14]) == "First Citizen:"


def test_a_damaged_installation_is_told(monkeypatch):
    monkeypatch.setattr(text, "_SHAKESPEARE", "0" * 64)
    with pytest.raises(MachineError, match="install ezpz again"):
        load_tokens("shakespeare")


def test_random_tokens_differ_by_seed():
    one = load_tokens("random", seed=1, length=4096)
    assert torch.equal(one.train, load_tokens("random", seed=1, length=4096).train)
    assert not torch.equal(one.train, load_tokens("random", seed=2, length=4096).train)
    assert len(one.test) == 512


def test_random_tokens_say_that_they_cannot_be_learned(capsys):
    tokens = load_tokens("random", length=8000)
    assert tokens.vocabulary == 32_000
    assert "cannot be learned" in tokens.origin
    assert "data=random: no model can learn it, the loss stays at ln 32000 = 10.373" in capsys.readouterr().out
    assert tokens.train.max() < 32_000


def test_a_text_file_is_read_by_characters_and_by_bytes(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("Grüße, 你好! " * 10, encoding="utf-8")
    tokens = load_tokens(str(path))
    assert tokens.origin == f"file {path}"
    assert tokens.symbols == "".join(sorted(set("Grüße, 你好! ")))
    assert tokens.vocabulary == len(tokens.symbols) == 10
    whole = torch.cat([tokens.train, tokens.test])
    assert "".join(tokens.symbols[i] for i in whole) == "Grüße, 你好! " * 10
    assert len(tokens.train) == 99
    raw = load_tokens(f"bytes:{path}")
    assert bytes(torch.cat([raw.train, raw.test]).tolist()) == path.read_bytes()
    assert (raw.vocabulary, raw.symbols[65]) == (256, "A")
    assert load_tokens("text.txt", folder=tmp_path, vocabulary=64).vocabulary == 64
    with pytest.raises(UsageError, match=r"10 different characters.*expected at least 10"):
        load_tokens(str(path), vocabulary=9)


@pytest.mark.parametrize(
    ("data", "told"),
    [(b"", "has 0 bytes"), (b"ab", "has 2 bytes"), (b"good until \xff here", "byte 0xff at offset 11.*bytes:")],
)
def test_what_is_no_text_is_told_in_one_line(tmp_path, data, told):
    path = tmp_path / "x.txt"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=told) as caught:
        load_tokens(str(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_an_absent_file_names_the_data_sets_that_there_are(tmp_path):
    for name in ("nonsense", f"bytes:{tmp_path}/x", f"tokens:{tmp_path}/x.bin", str(tmp_path)):
        with pytest.raises(UsageError, match=r"cannot read .*expected a file"):
            load_tokens(name)
    with pytest.raises(UsageError, match=r"shakespeare, random, c4, .* jsonl:PATH, hf:NAME and FILE"):
        load_tokens("shakespear")


@pytest.mark.slow
def test_a_token_file_is_mapped_and_not_read(tmp_path):
    path = tmp_path / "ids.bin"
    path.write_bytes(bytes.fromhex("0100 ff00 0001 ffff 0000 0a00 0b00 0c00 0d00 0e00"))  # little-endian
    tokens = load_tokens(f"tokens:{path}")
    assert torch.cat([tokens.train.long(), tokens.test.long()]).tolist() == [1, 255, 256, 65535, 0, 10, 11, 12, 13, 14]
    assert (len(tokens.train), tokens.vocabulary, tokens.symbols) == (9, 65536, None)
    huge = tmp_path / "huge.bin"
    with huge.open("wb") as file:
        file.truncate(1 << 34)  # 16 GiB of zeros that use no disk
    tokens = load_tokens(f"tokens:{huge}", vocabulary=100)
    assert len(tokens.train) + len(tokens.test) == 1 << 33


def test_a_token_file_brings_its_own_test_part(tmp_path):
    np.arange(100, dtype="<u2").tofile(tmp_path / "train.bin")
    np.arange(200, 220, dtype="<u2").tofile(tmp_path / "val.bin")
    tokens = load_tokens(f"tokens:{tmp_path / 'train.bin'}")
    assert (len(tokens.train), len(tokens.test), tokens.vocabulary) == (100, 20, 220)
    assert "test part" in tokens.origin


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "has 0 bytes"),
        (b"abc", "has 3 bytes.*expected 2 per token"),
        (bytes(60) + b"\x64\x00", "token 100 .*vocabulary of 100; expected at least 101"),
    ],
)
def test_bad_token_files_are_told(tmp_path, data, told):
    path = tmp_path / "ids.bin"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=told):
        load_tokens(f"tokens:{path}", vocabulary=100)


def test_impossible_sizes_are_refused():
    for wrong in ({"vocabulary": 0}, {"length": 3}):
        with pytest.raises(UsageError, match="unusable"):
            load_tokens("random", **wrong)
    with pytest.raises(UsageError, match=r"the data set markov is gone .*type shakespeare"):
        load_tokens("markov")


class Rows(list):
    features = {"id": types.SimpleNamespace(dtype="int64"), "text": types.SimpleNamespace(dtype="string")}  # noqa: RUF012


@pytest.fixture
def hugging_face(monkeypatch):
    """A stand-in for the package `datasets`; `calls` is how it was asked."""
    calls = []

    def load_dataset(*args, **more):
        calls.append((args, more))
        if args[0] == "absent":
            raise FileNotFoundError("Couldn't find any data file\nat absent")
        found = Rows([{"id": 1, "text": "first text"}, {"id": 2, "text": "zweiter: ü"}])
        if args[0] == "numbers":
            found.features = {"id": Rows.features["id"]}
        return found

    module = types.SimpleNamespace(load_dataset=load_dataset)
    monkeypatch.setitem(sys.modules, "datasets", module)
    return calls


def test_texts_of_hugging_face_become_bytes(hugging_face, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="export HF_HUB_OFFLINE=1"):
        load_tokens("hf:org/name", download=False)
    assert hugging_face == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    tokens = load_tokens("hf:org/name@plain:test", folder=tmp_path, download=False)
    whole = bytes(torch.cat([tokens.train, tokens.test]).tolist())
    assert whole.decode() == "first text\n\nzweiter: ü"
    assert tokens.origin == "Hugging Face org/name, split test, column text"
    assert hugging_face == [(("org/name", "plain"), {"split": "test", "cache_dir": str(tmp_path)})]
    load_tokens("hf:name")
    assert hugging_face[-1][0] == ("name", None)
    assert hugging_face[-1][1]["split"] == "train"
    with pytest.raises(UsageError, match=r"cannot load hf:absent: Couldn't find any data file .from datasets"):
        load_tokens("hf:absent")
    with pytest.raises(UsageError, match=r"no column of text.*among id"):
        load_tokens("hf:numbers")


def test_without_the_package_of_hugging_face_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match="pip install datasets"):
        load_tokens("hf:name")
