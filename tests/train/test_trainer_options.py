"""The command line of trainers: spellings, presets under what is typed, and every mistake in one line."""

import re
import sys
from pathlib import Path

import pytest

import ezpz
from ezpz.errors import EzpzError, UsageError
from ezpz.train import make_parser, parse, positive_int, rank_batch_size, run_main

PRESETS = {"debug": {"max_iters": 5, "lr": 0.1, "n_layers": 2}, "large": {"batch_size": 4, "warmup_iters": 50}}


@pytest.fixture
def parser():
    parser = make_parser("ezpz.examples.x", "Train x.", presets=PRESETS, name="x", max_iters=100, batch_size=16)
    parser.group("model").add_argument("--n_layers", type=positive_int, default=8, metavar="N", help="number of blocks")
    parser.group("model").add_argument("--cut-first", action="store_true", help="cut the first")
    return parser


SPELLINGS = [
    ["--max_iters", "7"],
    ["--max-iters", "7"],
    ["--max_iters=7"],
    ["--max-iters=7"],
    ["--max_iters", "3", "--max-iters=7"],
]


def test_underscores_and_dashes_are_alike(subtests, parser):
    for words in SPELLINGS:
        with subtests.test(words=words):
            assert parse(parser, words).max_iters == 7


def test_options_of_the_trainer_itself_are_spelled_both_ways_too(parser):
    args = parse(parser, ["--n-layers=3", "--cut_first", "--no-plots", "--name", "my-name_x"])
    assert (args.n_layers, args.cut_first, args.no_plots, args.name) == (3, True, True, "my-name_x")


def test_a_preset_stands_above_defaults_and_under_what_is_typed(parser):
    args = parse(parser, ["--lr", "0.5", "--preset", "debug"])
    assert (args.preset, args.max_iters, args.lr, args.n_layers, args.batch_size) == ("debug", 5, 0.5, 2, 16)
    assert args.typed == ["lr", "preset"]
    assert parse(parser, []).preset is None
    assert parse(parser, []).max_iters == 100  # a preset leaves nothing behind in the parser


def test_the_words_of_the_process_are_the_default(parser, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x", "--max_iters", "9"])
    assert parse(parser).max_iters == 9


def test_a_warm_up_that_nobody_typed_gives_way_to_a_short_run(parser):
    assert parse(parser, ["--preset", "large", "--max_iters", "20"]).warmup_iters == 2
    assert parse(parser, ["--preset", "large"]).warmup_iters == 50


def test_number_formats_have_one_name_in_the_end(subtests, parser):
    for name in ("bf16", "bfloat16", "BF16"):
        with subtests.test(name=name):
            assert parse(parser, ["--dtype", name]).dtype == "bf16"


MISTAKES = [
    (
        ["--preset", "debig"],
        "unknown --preset 'debig' (from the command line); expected one of debug, large. Did you mean debug?",
    ),
    (
        ["--dtype", "bf17"],
        "unknown --dtype 'bf17' (from the command line); expected one of fp32, bf16, fp16. Did you mean bf16?",
    ),
    (["--strategy", "fsdp2"], "expected one of fsdp, ddp, hsdp, zero1. Did you mean fsdp?"),
    (["--schedule", "cosin"], "Did you mean cosine?"),
    (
        ["--max-iter", "3"],
        ("unknown option --max-iter (from the command line); expected one of this trainer. Did you mean --max_iters?"),
    ),
    (["--cut_frist"], "Did you mean --cut-first?"),
    (["--max_iters"], "--max_iters: expected one argument"),
    (["--max_iters", "0"], "--max_iters: '0' is no whole number from 1 on"),
    (["--max_iters", "-3"], "--max_iters: '-3' is no whole number from 1 on"),
    (["--batch_size", "1.5"], "--batch_size: '1.5' is no whole number from 1 on"),
    (["--n_layers", "two"], "--n_layers: 'two' is no whole number from 1 on"),
    (["--lr", "nan"], "--lr: 'nan' is no number above 0"),
    (["--lr", "inf"], "--lr: 'inf' is no number above 0"),
    (["--lr", "0"], "--lr: '0' is no number above 0"),
    (["--max_norm", "-1"], "--max_norm: '-1' is no number from 0 on"),
    (["--min_lr_ratio", "2"], "--min_lr_ratio: '2' is no number from 0 to 1"),
    (["--warmup_iters", "-1"], "--warmup_iters: '-1' is no whole number from 0 on"),
    (
        ["--warmup_iters", "100"],
        "--warmup_iters 100 does not fit --max_iters 100 (from the command line); expected 0 to 99",
    ),
    (["--activation_checkpoint", "some"], "'some' is none of full, selective"),
    (["--profile=xx"], "cannot profile 'xx'"),
    (["more"], "unknown word 'more'"),
]


def test_every_mistake_is_one_line_and_exit_code_2(subtests, parser, capsys):
    for words, told in MISTAKES:
        with subtests.test(words=words):

            def run(args):
                raise AssertionError(args)

            assert run_main(run, parser, words) == 2
            out, err = capsys.readouterr()
            assert told in err
            assert err.startswith("ezpz.examples.x: ")
            assert err.count("\n") == 1
            assert not out


def test_a_default_that_is_no_option_is_refused():
    with pytest.raises(UsageError, match="unknown default batchsize"):
        make_parser("x", "X.", presets={}, name="x", batchsize=3)


def test_the_help_tells_every_option_its_default_and_the_presets(parser, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(parser, ["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    silent = re.findall(r"^  -.*\S(?=\n {0,3}\S)", text, re.MULTILINE)
    assert not [line for line in silent if not re.search(r"\S {2,}\S", line.strip())]
    shown = " ".join(text.split())
    assert "--max_iters N steps to train (100)" in shown
    assert "--n_layers N number of blocks (8)" in shown
    assert "--dtype {fp32,bf16,fp16} number format of the forward pass; weights stay fp32 (fp32)" in shown
    assert "debug max_iters=5 lr=0.1 n_layers=2" in shown
    order = [shown.index(f" {title}: ") for title in ("model", "data", "training", "checkpoints", "output")]
    assert order == sorted(order)


def test_other_ranks_print_no_help(parser, capsys, monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        parse(parser, ["--help"])
    assert not capsys.readouterr().out


def test_a_global_batch_is_shared_by_ranks_and_steps_of_accumulation(parser):
    args = parse(parser, ["--global_batch_size", "48", "--accumulate", "3"])
    assert rank_batch_size(args, 4) == 4
    assert rank_batch_size(parse(parser, []), 4) == 16
    assert rank_batch_size(parse(parser, ["--global_batch_size", "64", "--batch_size", "16"]), 4) == 16


UNSHARED = [
    (["--global_batch_size", "3"], "4 data-parallel ranks x --accumulate 1 = 4; expected for example 4."),
    (["--global_batch_size", "10"], "expected for example 8 or 12."),
    (["--global_batch_size", "10", "--accumulate", "3"], "expected for example 12."),
    (["--global_batch_size", "64", "--batch_size", "8"], "is not --batch_size 8 x 4"),
]


def test_a_global_batch_that_cannot_be_shared_names_the_nearest(subtests, parser):
    for words, told in UNSHARED:
        with subtests.test(words=words):
            with pytest.raises(UsageError) as caught:
                rank_batch_size(parse(parser, words), 4)
            assert told in str(caught.value)


def test_errors_of_the_run_end_it_with_their_code_and_an_interrupt_with_130(parser, capsys):
    def fails(args):
        raise EzpzError("no such thing.")

    def is_interrupted(args):
        raise KeyboardInterrupt

    assert run_main(fails, parser, []) == 1
    assert capsys.readouterr().err == "ezpz.examples.x: no such thing.\n"
    assert run_main(is_interrupted, parser, []) == 130


def test_what_all_ranks_refuse_is_left_to_the_first_however_busy_the_machine_is(parser, monkeypatch, capsys):
    """A launch ends the others when rank 0 has spoken; a rank with an error of its own speaks after a second."""
    waited = []
    monkeypatch.setattr("ezpz.train.run_trainer.is_first_rank", lambda: False)
    monkeypatch.setattr("ezpz.train.run_trainer.time.sleep", waited.append)

    def refuses(args):
        raise UsageError("cannot resume from 'x'").everywhere()

    def own(args):
        raise UsageError("no such device")

    assert [run_main(refuses, parser, []), run_main(print, parser, ["--nonsense"]), run_main(own, parser, [])] == [
        2
    ] * 3
    assert waited[0] == waited[1] >= 30 * waited[2] > 0
    assert capsys.readouterr().err.count("cannot resume") == 1


def test_a_run_gets_what_was_parsed_and_the_peak_reaches_where_it_is_read(parser, monkeypatch):
    monkeypatch.setenv("EZPZ_PEAK_FLOPS", "1")
    seen = []
    assert run_main(seen.append, parser, ["--peak_flops", "2e12"]) == 0
    assert seen[0].peak_flops == 2e12
    assert ezpz.peak_flops("bf16").flops == 2e12


@pytest.mark.slow
def test_all_ranks_stop_and_one_of_them_says_why(run_cli, clean_env, tmp_path):
    (tmp_path / "x.py").write_text(
        "import sys\nfrom ezpz.train import make_parser, run_main\n"
        "sys.exit(run_main(print, make_parser('x', 'X.', presets={}, name='x', max_iters=3)))\n"
    )
    env = {**clean_env, "PYTHONPATH": str(Path(ezpz.__file__).parents[1])}
    done = run_cli([sys.executable, "-m", "ezpz.launch", "-n", "3", sys.executable, "x.py", "--lr", "fast"], env)
    assert done.returncode == 2
    assert done.stderr.count("--lr: 'fast' is no number above 0") == 1
