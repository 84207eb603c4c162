"""Settings in sections: spellings, the order of defaults, preset, file, groups and words, every mistake in one line."""

import dataclasses
from dataclasses import dataclass

import pytest

from ezpz.errors import UsageError
from ezpz.train import DTYPES, as_dict, as_toml, make_settings_parser, parse, run_main, setting

AUTHORS = {"bard": {"data.dataset": "shakespeare", "training.seq_len": 512}}


@dataclass(frozen=True)
class Job:
    config_file: str = setting("", "TOML file", in_files=False)
    description: str = setting("a job", "what is logged first")


@dataclass(frozen=True)
class Training:
    seq_len: int = setting(2048, "tokens of one sample", least=1, most=10**6)
    degree: int = setting(-1, "ranks that share a copy", spellings={"all": -1})
    lr: float = setting(1e-3, "highest learning rate", above=0)
    ratio: float = setting(0.5, "a part", least=0, most=1)
    compile: bool = setting(False, "compile the blocks")
    loss_parallel: bool = setting(True, "leave logits cut")
    dtype: str = setting("fp32", "number format", choices=("fp32", "bf16", "fp16"), spellings=DTYPES)
    backend: str = setting("DDP", "strategy", choices=("DDP", "FSDP"), refused={"horovod": "it is not maintained"})
    offload: bool = setting(False, "weights elsewhere", only="weights stay on the device")
    parts: tuple[str, ...] = setting((), "names of parts")
    path: str | None = setting(None, "folder of the data")
    limit: int | None = setting(None, "samples at most", least=1)
    even: int = setting(2, "an even number", check=lambda number: "" if number % 2 == 0 else "an even number")


@dataclass(frozen=True)
class Data:
    dataset: str = setting("shakespeare", "name of the data")


@dataclass(frozen=True)
class Config:
    job: Job
    training: Training
    data: Data


def make(**more):
    given = {
        "files": ("--job.config_file", "--config"),
        "groups": {"data": lambda name: AUTHORS.get(name, {"data.dataset": name})},
        "aliases": {"training.local_seq_len": "training.seq_len", "training.whole_loss": "not training.loss_parallel"},
        "presets": {"debug": {"training.seq_len": 16, "training.dtype": "bfloat16"}, "large": {"training.lr": 1}},
        "name": "mine",
    }
    return make_settings_parser("ezpz.examples.x", "Train x.", Config, **(given | more))


@pytest.fixture
def file(tmp_path):
    """`file(text)` -> the path of a TOML file with that text, as it is typed."""

    def write(text, name="a.toml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


SPELLINGS = [
    ["--training.seq_len", "7"],
    ["--training.seq-len", "7"],
    ["--training.seq_len=7"],
    ["--training.seq-len=7"],
    ["training.seq_len=7"],
    ["training.seq-len=7"],
    ["--training.local_seq_len", "7"],
    ["--training.seq_len", "5", "training.seq_len=7"],
    ["--training.seq_len", "5", "--training.local-seq-len=7"],
    ["--training.local_seq_len=5", "--training.seq_len=+7"],
]


def test_all_spellings_of_a_setting_are_alike_and_the_last_one_counts(subtests):
    for words in SPELLINGS:
        with subtests.test(words=words):
            args = parse(make(), words)
            assert args.config.training.seq_len == 7
            assert args.origins["training.seq_len"] == "the command line"
            assert args.typed == ["training.seq_len"]


BOOLEANS = [
    (["--training.compile"], True),
    (["--training.compile", "--training.seq_len", "3"], True),
    (["--training.compile", "training.seq_len=3"], True),
    (["--training.compile", "false"], False),
    (["--training.compile", "TRUE"], True),
    (["--training.compile=no"], False),
    (["training.compile=1"], True),
]


def test_a_boolean_stands_alone_or_has_a_value(subtests):
    for words, expected in BOOLEANS:
        with subtests.test(words=words):
            args = parse(make(), words)
            assert args.config.training.compile is expected
            assert args.config.training.seq_len in {3, 2048}


def test_words_become_the_type_of_their_key():
    words = ["training.lr=3", "training.dtype=BFloat16", "--training.degree", "-1", "training.parts=a, b,", "data=pile"]
    training = parse(
        make(), [*words, "training.path=none", "training.limit=1_000", "training.backend=fsdp"]
    ).config.training
    assert (training.lr, type(training.lr), training.dtype, training.degree) == (3.0, float, "bf16", -1)
    assert (training.parts, training.path, training.limit, training.backend) == (("a", "b"), None, 1000, "FSDP")
    again = parse(
        make(), ["training.degree=all", "training.path=None", "training.limit=null", "job.description=none"]
    ).config
    assert (again.training.degree, again.training.path, again.training.limit, again.job.description) == (
        -1,
        None,
        None,
        "none",
    )
    assert parse(make(), ["--training.whole_loss"]).config.training.loss_parallel is False
    assert parse(make(), ["--training.whole_loss", "false"]).config.training.loss_parallel is True


def test_settings_and_options_stand_beside_each_other(tmp_path):
    args = parse(
        make(), ["--outdir", "a.b=c", "training.seq_len=3", "--no-plots", "resume=auto", "--data_dir", "training.lr=2"]
    )
    assert (args.outdir, args.no_plots, args.resume, args.data_dir, args.name) == (
        "a.b=c",
        True,
        "auto",
        "training.lr=2",
        "mine",
    )
    assert (args.config.training.seq_len, args.config.training.lr) == (3, 1e-3)
    assert args.typed == ["data_dir", "no_plots", "outdir", "resume", "training.seq_len"]
    assert parse(make(), ["--profile", "training.seq_len=3"]).profile == "py"


def test_defaults_preset_file_group_and_words_stand_in_this_order(file):
    path = file("[training]\nratio = 0.25\nseq_len = 32\nlr = 2\n")
    words = ["training.lr=4", "--config", path, "data=bard", "--preset", "debug"]
    args = parse(make(), words)
    training = args.config.training
    assert (training.dtype, training.ratio, training.seq_len, training.lr) == ("bf16", 0.25, 512, 4.0)
    assert args.config.data.dataset == "shakespeare"
    assert args.origins == dict.fromkeys(args.origins, "default") | {
        "job.config_file": "the command line",
        "training.dtype": "preset debug",
        "training.ratio": "a.toml, line 2",
        "training.seq_len": "data=bard, the command line",
        "data.dataset": "data=bard, the command line",
        "training.lr": "the command line",
    }
    assert parse(make(), [*words, "training.seq_len=1"]).config.training.seq_len == 1
    assert parse(make(), ["training.seq_len=1", *words]).config.training.seq_len == 1  # a group never covers a key
    assert args.config.job.config_file == path
    assert args.preset == "debug"
    with pytest.raises(dataclasses.FrozenInstanceError):
        training.seq_len = 3


def test_the_preset_for_those_who_name_nothing(file):
    parser = make(fallback="debug")
    args = parse(parser, [])
    assert (args.preset, args.config.training.seq_len, args.origins["training.seq_len"]) == (
        "debug",
        16,
        "preset debug",
    )
    assert parse(parser, ["--preset", "large"]).config.training.seq_len == 2048
    args = parse(parser, ["--config", file("")])
    assert (args.preset, args.config.training.seq_len, args.origins["training.seq_len"]) == (None, 2048, "default")
    assert parse(make(), []).preset is None


def test_a_trainer_without_presets_has_no_such_option(file):
    parser = make(presets=None)
    assert parse(parser, ["--config", file("[data]\ndataset = 'x'")]).config.data.dataset == "x"
    with pytest.raises(UsageError, match="unknown option --preset"):
        parse(parser, ["--preset", "debug"])


def test_a_configuration_can_be_stored_and_read_back(file):
    words = [
        'job.description=a "b" \\ c\nd\x7f é',
        "training.parts=a,b",
        "training.limit=5",
        "training.lr=1e-5",
        "training.compile=yes",
    ]
    config = parse(make(), ["--config", file("[training]\npath = 'x'"), *words]).config
    text = as_toml(config)
    again = parse(make(), ["--config", file(text, "b.toml")]).config
    changed = dataclasses.replace(again, job=dataclasses.replace(again.job, config_file=config.job.config_file))
    assert changed == config
    assert "config_file" not in text
    assert as_dict(config)["training"]["parts"] == ("a", "b")
    assert list(as_dict(config)) == ["job", "training", "data"]
    assert as_dict(config)["data"] == {"dataset": "shakespeare"}


COMMAND_LINE = "(from the command line)"


MISTAKES = [
    (
        ["--training.seq_le", "5"],
        f"unknown key training.seq_le {COMMAND_LINE}; expected a key of [training]. Did you mean training.seq_len?",
    ),
    (
        ["training.dataset=x"],
        (
            "unknown key training.dataset (from the command line); expected a key of [training]. "
            "Did you mean data.dataset?"
        ),
    ),
    (["data.zzzzzz=x"], f"unknown key data.zzzzzz {COMMAND_LINE}; expected one of dataset."),
    (
        ["--trainin.seq_len", "5"],
        (
            f"unknown section 'trainin' of trainin.seq_len {COMMAND_LINE}; expected one of job, training, data. "
            "Did you mean training.seq_len?"
        ),
    ),
    (["--trainin.zzz=5"], "expected one of job, training, data. Did you mean training?"),
    (
        ["--seq-len", "5"],
        f"unknown option --seq-len {COMMAND_LINE}; expected one of this trainer. Did you mean --training.seq_len?",
    ),
    (["seq_len=5"], "Did you mean --training.seq_len?"),
    (
        ["dat=x"],
        (
            f"unknown word 'dat' {COMMAND_LINE}; expected options, which begin with --, or section.key=value. "
            "Did you mean data=?"
        ),
    ),
    (["--no_plot"], "Did you mean --no_plots?"),
    (["training.seq_len"], "unknown word 'training.seq_len'"),
    (
        ["--training.seq_len"],
        (
            "--training.seq_len has no value (from the command line); expected a whole number from 1 to 1000000 "
            "after it."
        ),
    ),
    (["--training.seq_len", "--training.compile"], "--training.seq_len has no value"),
    (["--data"], "--data has no value (from the command line); expected a name after it."),
    (["--config"], "--config has no value (from the command line); expected a TOML file after it."),
    (["training.seq_len=0"], f"training.seq_len=0 is wrong {COMMAND_LINE}; expected a whole number from 1 to 1000000."),
    (["training.seq_len=1000001"], "training.seq_len=1000001 is wrong"),
    (["training.seq_len=1.5"], "training.seq_len='1.5' is wrong"),
    (["training.local_seq_len=x"], "training.local_seq_len='x' is wrong"),
    (["training.lr=0"], f"training.lr=0.0 is wrong {COMMAND_LINE}; expected a number above 0."),
    (["training.lr=nan"], "training.lr=nan is wrong"),
    (["training.ratio=1.5"], "expected a number from 0 to 1."),
    (["training.compile=maybe"], "training.compile='maybe' is wrong (from the command line); expected true or false."),
    (["training.limit=0"], "expected a whole number from 1 on, or none."),
    (["training.even=3"], "training.even=3 is wrong (from the command line); expected an even number."),
    (
        ["training.dtype=bf17"],
        f"training.dtype='bf17' is wrong {COMMAND_LINE}; expected one of fp32, bf16, fp16. Did you mean bf16?",
    ),
    (
        ["--training.offload"],
        (
            f"training.offload=true is not supported: weights stay on the device {COMMAND_LINE}; expected false. "
            "Leave it out."
        ),
    ),
    (
        ["training.backend=Horovod"],
        (
            "training.backend='Horovod' is not supported: it is not maintained (from the command line); "
            "expected DDP, FSDP."
        ),
    ),
    (["--config", "x.toml", "--job.config_file", "y.toml"], "two files of settings: x.toml, y.toml"),
    (["--preset", "debig"], "Did you mean debug?"),
]


def test_every_mistake_among_the_words_is_one_line_and_exit_code_2(subtests, capsys):
    for words, told in MISTAKES:
        with subtests.test(words=words):

            def run(args):
                raise AssertionError(args)

            assert run_main(run, make(), words) == 2
            out, err = capsys.readouterr()
            assert told in err
            assert err.startswith("ezpz.examples.x: ")
            assert err.count("\n") == 1
            assert not out


OF_THE_TRAINER = [
    ({"presets": {"debug": {"training.seq_le": 3}}}, "unknown key training.seq_le (from preset debug)"),
    ({"presets": {"debug": {"training.seq_len": 0}}}, "training.seq_len=0 is wrong (from preset debug)"),
    ({"aliases": {"training.x": "training.seq"}}, "alias 'training.x' of 'training.seq' (from make_settings_parser)"),
    ({"aliases": {"training.lr": "training.seq_len"}}, "alias 'training.lr'"),
    ({"batch_size": 3}, "unknown default batch_size (from make_settings_parser)"),
    ({"fallback": "debig"}, "unknown fallback 'debig' (from make_settings_parser); expected one of debug, large."),
]


def test_what_a_trainer_itself_gets_wrong_is_told_before_anybody_types(subtests):
    for more, told in OF_THE_TRAINER:
        with subtests.test(**more):
            with pytest.raises(UsageError) as caught:
                make(**more)
            assert told in str(caught.value)


@dataclass(frozen=True)
class Plain:
    size: int = 3


@dataclass(frozen=True)
class Strange:
    sizes: dict[str, int] = setting(None, "sizes")  # noqa: RUF009  # ruff cannot see that it returns a field


@pytest.mark.parametrize("section", [Plain, Strange])
def test_a_field_that_is_no_setting_is_a_type_error(section):
    kind = dataclasses.make_dataclass("Kind", [("part", section)], frozen=True)
    with pytest.raises(TypeError, match=r"part\.sizes? is (no setting|<class .dict)"):
        make_settings_parser("x", "X.", kind, name="x")


def test_the_help_tells_sections_keys_defaults_and_what_is_not_supported(capsys):
    with pytest.raises(SystemExit):
        parse(make(fallback="debug"), ["--help"])
    text = capsys.readouterr().out
    told = " ".join(text.split())
    assert "--job.config_file or --config FILE; what is typed overrides it" in text
    assert "(without a file or --preset: --preset debug)" in text
    for section in ("[job]", "[training]", "[data]"):
        assert f"\n{section}\n" in text
    assert "seq_len tokens of one sample (2048)" in told
    assert "dtype number format: fp32, bf16, fp16 (fp32)" in told
    assert "compile compile the blocks (false)" in told
    assert "path folder of the data limit" in told  # no default to tell
    assert "not supported: offload (weights stay on the device)" in told
    assert "training.whole_loss = not training.loss_parallel" in told
    assert "debug training.seq_len=16 training.dtype=bfloat16" in told
    assert "--outdir DIR" in told
    assert max(map(len, text.splitlines())) <= 120


ABSURD = ["lr = 1" + "0" * 400, "seq_len = 1" + "0" * 400, "lr = 1" + "0" * 5000, "lr = " + "[" * 4000]


def test_absurd_numbers_and_depths_are_one_line(subtests, file):
    for text in ABSURD:
        with subtests.test(text=text):
            with pytest.raises(UsageError) as caught:
                parse(make(), ["--config", file(f"[training]\n{text}")])
            assert "\n" not in str(caught.value)


def test_a_number_of_thousands_of_digits_is_refused_on_the_command_line_too():
    with pytest.raises(UsageError, match=r"training\.seq_len"):
        parse(make(), ["training.seq_len=" + "9" * 5000])
