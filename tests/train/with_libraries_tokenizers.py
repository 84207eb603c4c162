"""Tokenizers of the real libraries. Run by `test_tokenizers.py` in .test/hugging_face, not collected by itself."""

import json
from base64 import b64encode

import pytest
import tiktoken
import tokenizers
from test_tokenizers import ranks
from tiktoken.load import load_tiktoken_bpe
from tokenizers import decoders, models, pre_tokenizers, trainers

from ezpz.errors import UsageError
from ezpz.train import load_tokenizer, load_tokens
from ezpz.train.data import documents, encoded
from ezpz.train.data.text import shakespeare

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
SAID = "First Citizen:\nWe're 1234 — Grüße, 你好!  \n\n\tEnd </s> <|end_of_text|>"


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("EZPZ_DATA", str(tmp_path / "data"))


@pytest.fixture
def llama(tmp_path):
    """A tokenizer.model of 2,000 lines, as a seed's."""
    path = tmp_path / "tokenizer.model"
    tokens = [bytes([byte]) for byte in range(256)]
    words = sorted({word[:4] for word in shakespeare().split()})
    tokens += [
        word[:length].encode()
        for length in (2, 3, 4)
        for word in sorted({w[:length] for w in words if len(w) >= length})
    ]
    path.write_bytes(lines_of(list(dict.fromkeys(tokens))[:2000]))
    return path


def lines_of(tokens, first=0):
    return b"".join(b64encode(token) + b" %d\n" % number for number, token in enumerate(tokens, first))


@pytest.fixture
def trained(tmp_path):
    """A folder with a tokenizer.json, trained on the shipped text."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([shakespeare()[:20_000]], trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_llama_3s_tokenizer_has_the_seeds_numbers_and_the_ids_of_tiktoken(llama):
    tokenizer = load_tokenizer(llama)
    assert (tokenizer.size, tokenizer.bos, tokenizer.eos) == (2256, 2000, 2001)
    peer = tiktoken.Encoding("peer", pat_str=SPLIT, mergeable_ranks=load_tiktoken_bpe(str(llama)), special_tokens={})
    for text in (SAID, shakespeare()[:30_000]):
        assert tokenizer.encode(text) == peer.encode_ordinary(text)
        assert tokenizer.decode([tokenizer.bos, *tokenizer.encode(text), tokenizer.eos]) == text
    assert load_tokenizer(llama.parent).digest == tokenizer.digest  # a folder


def test_a_run_of_spaces_does_not_end_the_process(llama):
    tokenizer = load_tokenizer(llama)
    text = "a" + " " * 200_000 + "b"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_tokenizer_json_has_the_ids_of_its_library(trained):
    tokenizer = load_tokenizer(trained)
    assert (tokenizer.size, tokenizer.bos, tokenizer.eos) == (400, 0, 1)
    peer = tokenizers.Tokenizer.from_file(str(trained / "tokenizer.json"))
    text = shakespeare()[:30_000]
    assert tokenizer.encode(text) == peer.encode(text, add_special_tokens=False).ids
    assert 1 not in tokenizer.encode(SAID)  # "</s>" in a text is text
    assert tokenizer.decode([0, *tokenizer.encode(SAID), 1]) == SAID


def test_files_beside_a_tokenizer_tell_what_begins_and_ends_a_text(trained):
    plain = load_tokenizer(trained)
    (trained / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "!"}, "bos_token": None}))
    told = load_tokenizer(trained / "tokenizer.json")
    assert told.eos == plain.encode("!")[0]
    assert told.bos == 0
    assert told.digest != plain.digest


def test_a_tokenizer_json_that_the_library_refuses_is_told_in_one_line(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Nonsense"}}')
    with pytest.raises(UsageError, match=r"is no usable tokenizer: .*from tokenizers") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_text_cut_into_pieces_has_the_ids_of_the_whole(llama, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "_PIECE", 1000)
    monkeypatch.setattr(encoded, "_SHORT", 0)
    text = shakespeare()[:50_000]
    (tmp_path / "text.txt").write_text(text, newline="")
    for path in (llama, trained / "tokenizer.json"):
        tokenizer = load_tokenizer(path)
        tokens = load_tokens(str(tmp_path / "text.txt"), tokenizer=tokenizer)
        assert [*tokens.train.tolist(), *tokens.test.tolist()] == [*tokenizer.encode(text), tokenizer.eos]
        assert tokens.vocabulary == tokenizer.size


def test_a_model_of_llama_3s_size_counts_its_words(tmp_path):
    path = tmp_path / "tokenizer.model"
    more = [b"#%d" % number for number in range(300, 128_000)]
    path.write_bytes(ranks() + lines_of(more, 300))
    tokenizer = load_tokenizer(path)
    assert (tokenizer.size, tokenizer.bos, tokenizer.eos) == (128_256, 128_000, 128_001)
