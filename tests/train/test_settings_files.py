"""TOML files of settings: the line of everything, and what is wrong with them in one line that says where."""

import dataclasses
import sys
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ezpz.errors import UsageError
from ezpz.train import as_toml, make_settings_parser, parse, setting
from ezpz.train.settings import read_settings_file


@dataclass(frozen=True)
class Model:
    size: int = setting(4, "width", least=1)
    rate: float = setting(0.1, "rate")
    name: str = setting("llama", "name")
    option: str = setting("2", "a number as text")
    fast: bool = setting(False, "be fast")
    slow: bool = setting(False, "be slow", only="nobody wants that")
    words: tuple[str, ...] = setting((), "words")
    file: str = setting("", "file", in_files=False)
    most: int | None = setting(None, "at most")


@dataclass(frozen=True)
class Data:
    dataset: str = setting("shakespeare", "name of the data")


@dataclass(frozen=True)
class Config:
    model: Model
    data: Data


PARSER = make_settings_parser(
    "x", "X.", Config, files=("--config",), aliases={"model.width": "model.size", "sizes.width": "model.size"}, name="x"
)


@pytest.fixture
def load(tmp_path):
    """`load(text)` -> what `parse` returns for a file a.toml with that text."""

    def read(text):
        path = tmp_path / "a.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return parse(PARSER, ["--config", str(path)])

    return read


AWKWARD = '''\
# a comment = 1

[model] # [data]
name = """
[data]
size = 99
"""
words = [
  "a",  # size = 98
  "b]",
]
"size" = 7

[ data ]
'dataset' = "x # size = 97"
'''


@pytest.mark.parametrize("text", [AWKWARD, AWKWARD.replace("\n", "\r\n"), b"\xef\xbb\xbf" + AWKWARD.encode()])
def test_every_value_knows_its_line_whatever_stands_around_it(load, text):
    args = load(text)
    assert args.config.model.name == "[data]\nsize = 99\n"
    assert args.config.model.words == ("a", "b]")
    assert args.config.data.dataset == "x # size = 97"
    assert {name: origin for name, origin in args.origins.items() if origin.startswith("a.toml")} == {
        "model.name": "a.toml, line 4",
        "model.words": "a.toml, line 8",
        "model.size": "a.toml, line 12",
        "data.dataset": "a.toml, line 15",
    }


def test_dotted_keys_and_inline_tables_have_lines_too(load):
    args = load("model.rate = 1\nmodel.size = 3\ndata = { dataset = 'y' }\n")
    assert (args.config.model.rate, type(args.config.model.rate)) == (1.0, float)
    assert args.origins["model.size"] == "a.toml, line 2"
    assert args.origins["data.dataset"] == "a.toml, line 3"


WRONG = [
    (
        "[model]\nsize = \n",
        "cannot read {path}: Invalid value (from a.toml, line 2, column 8); expected TOML. Correct that place.",
    ),
    ("[model]\nname = 'x\n[data]\n", "(from a.toml, line 2); expected TOML"),
    ("[model\n", "(from a.toml, line 1, column"),
    ("[model]\nwords = ['a',\n\n", "(from a.toml, line 2); expected TOML"),
    ("[model]\nsize = 1\nname = 'x", "(from a.toml, line 3); expected TOML"),
    ("[model]\nsize = 1\nsize = 2\n", "(from a.toml, line 3, column"),
    (b"[model]\nname = '\xff'\n", "invalid start byte at byte 16 (from --config); expected TOML in UTF-8."),
    (
        "size = 3\n",
        "size is in no section (from a.toml, line 1); expected a [section] above it. Did you mean model.size?",
    ),
    (
        "[modell]\nsize = 3\n",
        (
            "unknown section 'modell' of modell.size (from a.toml, line 1); expected one of model, data. "
            "Did you mean model.size?"
        ),
    ),
    ("[[model]]\nsize = 3\n", "model is in no section (from a.toml, line 1)"),
    (
        "\n[wholly.other]\nx = 3\n",
        "unknown section 'wholly' of wholly.other (from a.toml, line 2); expected one of model, data.",
    ),
    (
        "[data]\n\n[model]\n# x\nsiz = 3\n",
        "unknown key model.siz (from a.toml, line 5); expected a key of [model]. Did you mean model.size?",
    ),
    ("[model]\nsize = 'x'\n", "model.size='x' is wrong (from a.toml, line 2); expected a whole number from 1 on."),
    ("[model]\nsize = '3'\n", "model.size='3' is wrong"),
    ("[model]\nsize = true\n", "model.size=true is wrong"),
    ("[model]\nsize = 3.0\n", "model.size=3.0 is wrong"),
    ("[model]\nsize = 0\n", "model.size=0 is wrong (from a.toml, line 2)"),
    ("[model]\nfast = 1\n", "model.fast=1 is wrong (from a.toml, line 2); expected true or false."),
    ("[model]\nrate = inf\n", "model.rate=inf is wrong"),
    ("[model]\noption = 2\n", "model.option=2 is wrong (from a.toml, line 2); expected text in quotes."),
    ("[model]\nwords = [1]\n", "model.words=[1] is wrong (from a.toml, line 2); expected a list of words."),
    ("[model]\nsize = {a = 1}\n", "model.size={'a': 1} is wrong"),
    ("[model]\nsize = 2026-01-01\n", "model.size=2026-01-01 is wrong"),
    (
        "[model]\nslow = true\n",
        "model.slow=true is not supported: nobody wants that (from a.toml, line 2); expected false. Leave it out.",
    ),
    ("[model]\nsize = 1\nwidth = 2\n", "model.width is model.size once more (from a.toml, line 3)"),
    ("[model]\nfile = 'x'\n", "model.file cannot be in a file (from a.toml, line 2); expected it on the command line."),
]


def test_what_is_wrong_in_a_file_is_told_with_its_place(subtests, load, tmp_path):
    for text, told in WRONG:
        with subtests.test(text=text):
            with pytest.raises(UsageError) as caught:
                load(text)
            assert told.replace("{path}", str(tmp_path / "a.toml")) in str(caught.value)
            assert "\n" not in str(caught.value)
            assert caught.value.__cause__ is None


def test_sections_of_other_names_alone_are_known(load):
    assert load("[sizes]\nwidth = 9\n").config.model.size == 9
    assert load("[model]\nslow = false\nmost = 'none'\nwords = 'a,b'\n").config.model.words == ("a", "b")
    with pytest.raises(UsageError, match=r"unknown key sizes\.widht .*Did you mean sizes\.width\?"):
        load("[sizes]\nwidht = 9\n")


def test_a_file_that_is_not_there_is_told_with_its_nearest_neighbour(tmp_path):
    (tmp_path / "llama3_8b.toml").touch()
    for path, told in (
        (
            tmp_path / "lama3_8b.toml",
            "No such file or directory (from --config); expected a TOML file of settings. Did you mean llama3_8b.toml?",
        ),
        (tmp_path / "none" / "a.toml", "No such file or directory (from --config); expected a TOML file of settings."),
        (tmp_path, "Is a directory (from --config)"),
    ):
        with pytest.raises(UsageError) as caught:
            parse(PARSER, ["--config", str(path)])
        assert f"cannot read {str(path)!r}: {told}" in str(caught.value)


TEXT = st.text(st.characters(exclude_categories=["Cs"]))  # lone surrogates cannot be written to a file


@given(
    name=TEXT,
    words=st.lists(TEXT.filter(lambda word: word.strip() == word and word and "," not in word)),
    size=st.integers(min_value=1),
    rate=st.floats(allow_nan=False, allow_infinity=False),
    most=st.none() | st.integers(),
)
def test_whatever_a_configuration_holds_is_read_back_with_the_right_lines(
    tmp_path_factory, name, words, size, rate, most
):
    path = tmp_path_factory.getbasetemp() / "written.toml"
    default = parse(PARSER, []).config
    model = dataclasses.replace(default.model, name=name, words=tuple(words), size=size, rate=rate, most=most)
    config = dataclasses.replace(default, model=model)
    text = as_toml(config)
    path.write_bytes(text.encode())
    args = parse(PARSER, ["--config", str(path)])
    assert args.config == config
    lines = text.split("\n")
    for key, origin in args.origins.items():
        if origin != "default":
            assert lines[int(origin.rpartition(" ")[2]) - 1].startswith(f"{key.partition('.')[2]} = ")


@pytest.mark.slow
def test_a_long_file_has_the_line_of_every_name(tmp_path):
    path = tmp_path / "long.toml"
    path.write_text("".join(f"[section{i}]\nkey = {i}\n" for i in range(5000)))
    file = read_settings_file(str(path), "--config")
    assert file.origin("section4999", "key") == "long.toml, line 10000"
    assert len(file.lines) == 10000


def test_settings_load_no_torch(run_cli, clean_env):
    from pathlib import Path

    import ezpz

    code = (
        "import sys; from ezpz.examples.llm_config import options; from ezpz.train import parse, as_toml; "
        "as_toml(parse(options(), []).config); assert not {'torch', 'numpy', 'rich'} & set(sys.modules)"
    )
    env = {**clean_env, "PYTHONPATH": str(Path(ezpz.__file__).parents[1])}
    done = run_cli([sys.executable, "-c", code], env)
    assert done.returncode == 0, done.stderr
