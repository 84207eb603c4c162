"""Tokenizers without a library: bytes, and what is said of files that are none, and of libraries that are not there."""

import json
import os
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from unittest.mock import Mock

import pytest

from ezpz.errors import UsageError
from ezpz.train import load_tokenizer
from ezpz.train.data import tokenizers
from lab.require import require

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".test" / "hugging_face" / "bin" / "python"
HERE = Path(__file__).parent


@pytest.mark.parametrize("name", ["", "bytes"])
def test_bytes_need_nothing_and_give_any_text_back(name):
    tokenizer = load_tokenizer(name)
    assert (tokenizer.name, tokenizer.size, tokenizer.bos, tokenizer.eos) == ("bytes", 258, 256, 257)
    assert tokenizer.encode("aé") == [97, 0xC3, 0xA9]
    assert tokenizer.decode([256, *tokenizer.encode("Grüße, 你好!"), 257]) == "Grüße, 你好!"
    assert tokenizer.decode([0xC3]) == "\N{REPLACEMENT CHARACTER}"


def test_the_special_words_of_llama_3_are_in_their_places(tmp_path, monkeypatch):
    tiktoken = Mock()
    monkeypatch.setitem(sys.modules, "tiktoken", tiktoken)
    (tmp_path / "tokenizer.model").write_bytes(ranks())
    tokenizer = load_tokenizer(tmp_path / "tokenizer.model")
    special = tiktoken.Encoding.call_args.kwargs["special_tokens"]
    assert list(special.values()) == list(range(300, 300 + 256))
    assert (tokenizer.size, tokenizer.bos, tokenizer.eos) == (556, 300, 301)
    words = [word.removeprefix("<|").removesuffix("|>") for word in special]
    assert words[:3] == ["begin_of_text", "end_of_text", "reserved_special_token_0"]
    assert words[5:11] == [
        "reserved_special_token_3",
        "start_header_id",
        "end_header_id",
        "reserved_special_token_4",
        "eot_id",
        "reserved_special_token_5",
    ]
    assert words[255] == "reserved_special_token_250"


def ranks(count=300):
    """The content of a tokenizer.model: all bytes, and pairs of letters."""
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [bytes([97 + one, 97 + two]) for one in range(26) for two in range(26)][: count - 256]
    return b"".join(b64encode(token) + b" %d\n" % number for number, token in enumerate(tokens))


BAD = {
    "a missing file": ("tokenizer.json", None, r"cannot read the tokenizer .*tokenizer.json: No such file"),
    "a folder without any": ("", None, r"holds no tokenizer.json and no tokenizer.model"),
    "a text": ("tokenizer.model", b"Once upon a time\n", r"line 1 is no base64 text with a number"),
    "one of sentencepiece": (
        "tokenizer.model",
        b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02",
        r"looks like one of sentencepiece",
    ),
    "a cut line": ("tokenizer.model", ranks()[:-6], r"line 300 is no base64 text"),
    "a cut file": (
        "tokenizer.model",
        ranks()[: ranks().index(b" 100\n") + 5],
        r"is no whole tokenizer: \d+ tokens.*fetch it again",
    ),
    "an empty file": ("tokenizer.model", b"", r"is no whole tokenizer: 0 tokens"),
    "a gap": ("tokenizer.model", ranks().replace(b" 299\n", b" 300\n"), r"numbers from 0 on"),
    "no json": ("tokenizer.json", b'{"model": {', r"tokenizer.json is no tokenizer: Expecting"),
    "another json": ("tokenizer.json", b'{"model_type": "llama"}', r'it has no "model" with a vocabulary'),
    "a list": ("tokenizer.json", b"[]", r'it has no "model"'),
}


def test_what_is_no_tokenizer_is_told_in_one_line(subtests, tmp_path):
    for kind, (name, data, told) in BAD.items():
        with subtests.test(kind):
            if data is not None:
                (tmp_path / name).write_bytes(data)
            with pytest.raises(UsageError, match=told) as caught:
                load_tokenizer(tmp_path / name)
            assert "\n" not in str(caught.value)
            assert "Leave it out for bytes" in str(caught.value)
            assert str(tmp_path) in str(caught.value)


def test_without_its_library_a_tokenizer_says_what_to_install(tmp_path, monkeypatch):
    for library, name, data in (
        ("tiktoken", "tokenizer.model", ranks()),
        ("tokenizers", "tokenizer.json", json.dumps({"model": {"vocab": {}}}).encode()),
    ):
        monkeypatch.setitem(sys.modules, library, None)
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UsageError, match=f"needs the package {library}.*pip install {library}"):
            load_tokenizer(tmp_path / name)


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_real_libraries_agree(tmp_path):
    """One process for all that needs them: tokenizers, and models of transformers (see `with_libraries_*.py`)."""
    require("hugging_face", "" if PYTHON.exists() else "no .test/hugging_face (tests/lab/setup hugging_face)")
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": str(Path(tokenizers.__file__).parents[3]),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    inside = [HERE / "with_libraries_tokenizers.py", HERE.parent / "checkpoint" / "with_libraries_weights.py"]
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "--color=no", "--timeout=100"]
    words += ["-o", f"pythonpath={HERE.parent} {HERE}"]
    done = subprocess.run(
        [PYTHON, *words, *inside], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " skipped" not in done.stdout, done.stdout
