"""Texts through a tokenizer: documents, the file of ids that a host's ranks share, names of Hugging Face."""

import gzip
import json
import types

import numpy as np
import pytest
import torch
from hub import put

from ezpz.errors import MachineError, UsageError
from ezpz.train import TokenBatches, load_tokenizer, load_tokens
from ezpz.train.data import documents, encoded
from ezpz.train.data.text import shakespeare
from ezpz.train.data.tokenizers import Tokenizer

BYTES = load_tokenizer("bytes")


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    """The data folder of a test."""
    monkeypatch.setenv("EZPZ_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def long(monkeypatch):
    """Let every text be a long one."""
    monkeypatch.setattr(encoded, "_SHORT", -1)


def whole(tokens):
    return [*tokens.train.tolist(), *tokens.test.tolist()]


def lines(*texts):
    return "".join(json.dumps({"text": text, "url": "x"}) + "\n" for text in texts).encode()


def test_a_text_becomes_the_ids_of_its_tokenizer_and_ends(tmp_path, data_folder):
    (tmp_path / "text.txt").write_bytes("Grüße\r\n, 你好!".encode())
    tokens = load_tokens("text.txt", folder=tmp_path, tokenizer=BYTES)
    assert bytes(whole(tokens)[:-1]).decode() == "Grüße\r\n, 你好!"
    assert whole(tokens)[-1] == 257
    assert (tokens.vocabulary, tokens.symbols) == (258, None)
    assert tokens.origin == f"file {tmp_path / 'text.txt'}, by tokenizer bytes"
    assert load_tokens("text.txt", folder=tmp_path, tokenizer=BYTES, vocabulary=300).vocabulary == 300
    with pytest.raises(UsageError, match=r"tokenizer bytes has 258 different words .*too many for a vocabulary of 65"):
        load_tokens("text.txt", folder=tmp_path, tokenizer=BYTES, vocabulary=65)
    assert not data_folder.exists()  # short texts stay in memory


def test_the_shipped_text_goes_through_a_tokenizer_and_into_batches():
    tokens = load_tokens("shakespeare", tokenizer=BYTES)
    assert bytes(whole(tokens)[:-1]).decode() == shakespeare()
    assert tokens.origin == "shipped with ezpz, by tokenizer bytes"
    x, y = TokenBatches(tokens, 16, 4, rank=0, world_size=1)(3)
    assert x.dtype == y.dtype == torch.int64
    assert torch.equal(x[:, 1:], y[:, :-1])


@pytest.mark.usefixtures("long")
def test_a_long_text_is_encoded_once_and_mapped_from_then_on(tmp_path, data_folder, monkeypatch):
    monkeypatch.setattr(documents, "_PIECE", 10)
    path, calls = tmp_path / "text.txt", []
    path.write_text("one line\n\n  two lines\n" * 9 + "a line that is very long and has no end " * 3)
    counted = Tokenizer("counted", 258, None, 257, "d1", lambda text: calls.append(text) or list(text.encode()), str)
    first = load_tokens(str(path), tokenizer=counted)
    assert bytes(whole(first)[:-1]) == path.read_bytes()
    assert "".join(calls).encode() == path.read_bytes()
    assert all(not call[0].isspace() for call in calls)
    assert max(map(len, calls)) <= 50
    count = len(calls)
    assert whole(load_tokens(str(path), tokenizer=counted)) == whole(first)
    assert len(calls) == count
    (file,) = (data_folder / "encoded").iterdir()
    assert file.suffix == ".u2"
    assert np.fromfile(file, "<u2").tolist() == whole(first)
    path.write_text("another text\n")
    assert len(whole(load_tokens(str(path), tokenizer=counted))) == 14
    large = Tokenizer("large", 70_000, None, None, "d2", lambda text: [69_999 for _ in text], str)
    tokens = load_tokens(str(path), tokenizer=large)
    assert whole(tokens) == [69_999] * 13  # no eos: nothing stands between documents
    assert TokenBatches(tokens.train, 4, 1, rank=0, world_size=1)(0)[0].tolist() == [[69_999] * 4]
    assert sorted(each.suffix for each in (data_folder / "encoded").iterdir()) == [".i4", ".u2", ".u2"]


@pytest.mark.usefixtures("long")
def test_what_cannot_be_encoded_leaves_nothing_behind(tmp_path, data_folder):
    path = tmp_path / "text.txt"
    path.write_bytes(b"good until " + b"x" * 5000 + b"\xff here")
    with pytest.raises(UsageError, match=r"is no UTF-8 text: byte 0xff .*bytes:"):
        load_tokens(str(path), tokenizer=BYTES)
    assert list((data_folder / "encoded").iterdir()) == []
    data_folder.joinpath("encoded").rmdir()
    data_folder.joinpath("encoded").write_text("a file where a folder should be")
    path.write_text("good text")
    with pytest.raises(UsageError, match=r"cannot write the tokens of .*text.txt: .*export EZPZ_DATA"):
        load_tokens(str(path), tokenizer=BYTES)


@pytest.mark.usefixtures("long")
def test_ranks_do_not_wait_for_ever_for_a_text_that_is_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(encoded, "_PATIENCE", -1.0)
    monkeypatch.setattr("ezpz.dist.get_world_size", lambda: 2)
    (tmp_path / "text.txt").write_text("some text")
    with pytest.raises(MachineError, match=r"takes more than -1 s, and the other ranks wait.*done ahead"):
        load_tokens(str(tmp_path / "text.txt"), tokenizer=BYTES)


def test_lines_of_json_are_documents_each_with_its_end(tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "b.jsonl").write_bytes(lines("third") + b"\n")
    (folder / "a.json.gz").write_bytes(gzip.compress(lines("first", "zweiter: ü")))
    (folder / "README.md").write_text("no data")
    tokens = load_tokens(f"jsonl:{folder}")
    texts = bytes(255 if each == 257 else each for each in whole(tokens)).split(b"\xff")
    assert [text.decode() for text in texts] == ["first", "zweiter: ü", "third", ""]
    assert tokens.origin == f"2 files of {folder}, by tokenizer bytes"
    one = load_tokens(f"jsonl:{folder / 'b.jsonl'}", tokenizer=BYTES)
    assert whole(one) == [*b"third", 257]
    assert whole(load_tokens("c4_test", path=folder)) == whole(tokens)
    assert load_tokens("c4", path=folder / "b.jsonl", download=False).origin.startswith(f"file {folder / 'b.jsonl'}")


BAD = {
    "no json": (b'{"text": "a"}\nnonsense\n', "x.jsonl", r"x.jsonl, line 2 is no document: Expecting value"),
    "no text": (b'{"body": "a"}\n', "x.jsonl", r'line 1 is no document: it has no "text"'),
    "no UTF-8": (b'{"text": "\xff"}\n', "x.jsonl", r"line 1 is no document: .*utf-8"),
    "a cut gzip": (gzip.compress(lines("a" * 999, "b"))[:-9], "x.jsonl.gz", r"is cut after line"),
    "no gzip": (lines("first"), "x.jsonl.gz", r"is damaged: Not a gzipped file"),
    "nothing": (b"", "x.jsonl", r"has 0 bytes"),
    "no file": (None, "x.jsonl", r"cannot read .*x.jsonl: No such file.*jsonl:PATH"),
    "a folder without any": (None, "", r"holds no file of documents .*\*.jsonl"),
}


def test_bad_documents_are_told_in_one_line(subtests, tmp_path):
    for kind, (data, name, told) in BAD.items():
        with subtests.test(kind):
            folder = tmp_path / kind
            folder.mkdir()
            if data is not None:
                (folder / name).write_bytes(data)
            for words in ({"name": f"jsonl:{folder / name}"}, {"name": "c4_test", "path": folder / name}):
                with pytest.raises(UsageError, match=told) as caught:
                    load_tokens(**words)
                assert "\n" not in str(caught.value)


def test_what_holds_no_text_is_compared_with_the_tokenizer_or_left_alone(tmp_path):
    path = tmp_path / "ids.bin"
    np.array([1, 2, 300, 4], "<u2").tofile(path)
    with pytest.raises(UsageError, match=r"holds token 300 .*vocabulary of 258"):
        load_tokens(f"tokens:{path}", tokenizer=BYTES)
    np.array([1, 2, 257, 4], "<u2").tofile(path)
    assert load_tokens(f"tokens:{path}", tokenizer=BYTES).vocabulary == 258
    assert load_tokens(f"bytes:{path}", tokenizer=BYTES).vocabulary == 256
    assert load_tokens("random", tokenizer=BYTES, length=64).vocabulary == 32_000
    with pytest.raises(UsageError, match=r"path .* does not go with the data set random .*c4 or c4_test.*jsonl:"):
        load_tokens("random", path=path)


class Texts(list):
    """Rows of a data set that has texts."""

    features = {"text": types.SimpleNamespace(dtype="string")}  # noqa: RUF012


def test_c4_is_a_part_of_one_file_of_the_hub(monkeypatch):
    hub = put(monkeypatch, c4=Texts([{"text": "page 0"}, {"text": "page 1"}]))
    tokens = load_tokens("c4_test")
    assert whole(tokens) == [*b"page 0", 257, *b"page 1", 257]
    file = "en/c4-train.00000-of-01024.json.gz"
    assert tokens.origin == f"Hugging Face allenai/c4/{file}, split train[:2000], column text, by tokenizer bytes"
    asked = {"split": "train[:2000]", "data_files": file, "cache_dir": None}
    assert hub.asked == [("allenai/c4", None, asked)]
    load_tokens("c4")
    assert hub.asked[-1][2]["split"] == "train[:100000]"
    hub.holds.clear()
    with pytest.raises(MachineError, match=r"cannot load hf:allenai/c4/en/.*: Couldn't reach 'allenai/c4' on the Hub"):
        load_tokens("c4")


def test_texts_of_hugging_face_end_each_with_eos(monkeypatch):
    put(monkeypatch, name=Texts([{"text": "first"}, {"text": "zweiter: ü"}]))
    tokens = load_tokens("hf:org/name", tokenizer=BYTES)
    assert whole(tokens) == [*b"first", 257, *"zweiter: ü".encode(), 257]
    assert tokens.origin == "Hugging Face org/name, split train, column text, by tokenizer bytes"
