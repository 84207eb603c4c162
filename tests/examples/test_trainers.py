"""Each trainer as users start it: what it prints, what it leaves behind, and that it learns what can be learned."""

import json
import math
import re
import statistics
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import ezpz
from ezpz.examples import fsdp, fsdp_tp, vit
from ezpz.models import LLAMA_SIZES, Llama
from ezpz.track import read_journal
from ezpz.train import parse

IN_RANKS = Path(__file__).with_name("in_ranks_trainers.py")
LINE = re.compile(r"^\d\d:\d\d:\d\d iter=(\d+) loss=(\S+) (?:accuracy=\S+ )?dt=(\S+) s (?:sps|tps)=", re.MULTILINE)


@pytest.fixture
def start(run_cli, clean_env, tmp_path):
    """`start(ranks, module, *options)` -> (standard output, rows, run.json) of a run that succeeded."""
    env = {**clean_env, "PYTHONPATH": str(Path(ezpz.__file__).parents[1]), "OMP_NUM_THREADS": "1"}

    def start(ranks, module, *options):
        command = [sys.executable, "-m", f"ezpz.examples.{module}", *map(str, options)]
        done = run_cli([sys.executable, "-m", "ezpz.launch", "-n", ranks, *command], env, 280)
        assert done.returncode == 0, done.stdout + done.stderr
        (folder,) = (tmp_path / "outputs" / module).glob("*")
        assert "Traceback" not in done.stderr
        assert (folder / f"{module}.h5").exists()
        rows = [row["m"] for row in read_journal(folder / "metrics.jsonl")]
        return done.stdout, rows, json.loads((folder / "run.json").read_text())

    return start


def in_order(text, *parts):
    """Check that parts follow each other in a text, each found once or more."""
    place = -1
    for part in parts:
        place = text.find(part, place + 1)
        assert place >= 0, f"{part!r} is not where it is expected in:\n{text}"


def check_rates(rows, *, ranks, samples, tokens=0):
    """Check what must hold between the numbers of each row, whatever the machine does."""
    for row in rows:
        assert row["sps"] * row["dt"] == pytest.approx(samples)
        assert row["sps_per_gpu"] * ranks == pytest.approx(row["sps"])
        assert sum(row[part] for part in ("dtd", "dtf", "dtb", "dto")) <= row["dt"] * 1.001
        if tokens:
            assert row["tps"] == pytest.approx(row["sps"] * tokens)
            assert row["tps_per_gpu"] * ranks == pytest.approx(row["tps"])
        assert "mfu" not in row  # nobody has stated the peak of a CPU


def check_times(folder, rows):
    """Check that a step takes as long as it says, by the times at which the journal's rows were written.

    The middle one of all steps is compared: between two others the machine may have done something else.
    """
    (journal,) = folder.glob("*/metrics.jsonl")
    written = [row["t"] for row in read_journal(journal)]
    gaps = [after - before for before, after in pairwise(written[:-1])]  # an evaluation comes before the last
    assert statistics.median(row["dt"] for row in rows[1:-1]) == pytest.approx(statistics.median(gaps), rel=0.15)
    assert sum(row["dt"] for row in rows[1:]) <= written[-1] - written[0]


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_cnn_learns_the_digits_by_two_ranks(start, tmp_path):
    out, rows, record = start(2, "fsdp", "--preset", "debug", "--save_freq", "100", "--no-plots")
    in_order(out, "[CONFIG]", "[dist_info]", "CNN", "151,306", "data=digits: shipped with ezpz", "epoch=1 train_loss=")
    in_order(out, "epoch=10 train_loss=", "── fsdp finished: 10 epochs in ", "test_loss ", "test_acc ", "samples/s, ")
    assert re.search(r"epoch=10 train_loss=\S+ test_loss=\S+ test_acc=9\S+( dt=\S+ s)?$", out, re.MULTILINE)
    assert [row["epoch"] for row in rows] == list(range(1, 11))
    assert rows[-1]["test_acc"] >= 96.0
    assert rows[-1]["train_loss"] < 0.3 * rows[0]["train_loss"]
    assert rows[-1]["lr"] < 0.1 * rows[0]["lr"]
    assert record["state"] == "finished"
    assert record["config"]["data_origin"] == "shipped with ezpz"
    assert record["config"]["flops_per_sample"] > 1e6
    rates = [rate for name, rate in record["effective"].items() if name.startswith("dropout.")]
    assert sorted(rates) == [0.25, 0.5]
    (folder,) = (tmp_path / "outputs" / "fsdp").glob("*")
    assert [path.name[-3:] for path in sorted((folder / "checkpoints").glob("step-*"))] == ["100", "200", "220"]
    xarray = pytest.importorskip("xarray")
    with xarray.open_dataset(folder / "fsdp.h5", engine="h5netcdf") as dataset:
        assert dataset["test_acc"].values.tolist() == [row["test_acc"] for row in rows]


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_vision_transformer_learns_made_images_by_two_ranks(start):
    out, rows, record = start(2, "vit", "--preset", "debug", "--no-plots")
    in_order(
        out, "[CONFIG]", "[dist_info]", "VisionTransformer", "Total params: 113,738", "data=synthetic", "iter=0 loss="
    )
    assert [int(line[0]) for line in LINE.findall(out)] == [0, 10, 20, 30, 40, 50, 59]
    in_order(out, "── vit finished: 60 steps in ", "val_loss ", "accuracy ", "val_accuracy ", "next ")
    check_rates(rows, ranks=2, samples=64)
    assert rows[-1]["val_accuracy"] >= 0.7  # of ten classes; 0.92 is usual
    assert rows[0]["lr"] < rows[9]["lr"] > rows[-1]["lr"]
    assert record["config"]["parameters"] == 113_738


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_language_model_learns_pairs_of_letters_by_two_times_two_ranks(start, tmp_path):
    shorter = ["--n_layers", "1", "--max_iters", "50", "--batch_size", "64"]  # four ranks on two cores are slow
    out, rows, record = start(
        4, "fsdp_tp", "--preset", "debug", "--tp", "2", *shorter, "--no-plots", "--print-freq", "1"
    )
    in_order(out, "[CONFIG]", "tp=2", "'dp_shard': 2, 'tp': 2", "Llama", "Total params: 79,040", "data=shakespeare:")
    lines = LINE.findall(out)
    assert [int(line[0]) for line in lines] == list(range(50))
    assert float(lines[0][1]) == pytest.approx(math.log(256), abs=0.15)
    check_rates(rows, ranks=4, samples=128, tokens=64)
    check_times(tmp_path / "outputs" / "fsdp_tp", rows)
    assert record["config"]["data"] == "shakespeare"
    assert 2.3 <= rows[-1]["val_loss"] <= 2.7  # counting pairs of characters reaches 2.488
    assert "random tokens" not in out


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_shortest_trainer_learns(start):
    out, rows, record = start(2, "minimal", "--max_iters", "60")
    in_order(out, "── minimal finished: 60 steps in ", "report ", "report.html", "next ", "ezpz open ")
    assert [row["iter"] for row in rows] == list(range(60))
    assert sum(row["loss"] for row in rows[-5:]) < 0.7 * sum(row["loss"] for row in rows[:5])
    assert record["state"] == "finished"


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_way_to_cut_a_model_in_four_ranks(run_cli, clean_env, tmp_path):
    inside = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--noconftest",
        "--color=no",
        "--timeout=1200",
    ]
    env = {**clean_env, "PYTHONPATH": str(Path(ezpz.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    env |= {"EZPZ_TEST_FOLDER": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    done = run_cli([sys.executable, "-m", "ezpz.launch", "-n", "4", *inside, IN_RANKS], env, 400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^\d+ passed", done.stdout, re.MULTILINE)) == 4, done.stdout


def test_every_preset_names_options_and_the_help_explains_them():
    for trainer in (fsdp, fsdp_tp, vit):
        parser = trainer.options()
        for name, values in parser.presets.items():
            args = vars(parse(parser, ["--preset", name]))
            assert {key: args[key] for key in values} == dict(values)
        options = re.split(r"\n  (?=-)", parser.format_help().replace("\n\n", "\n"))[1:]
        assert len(options) > 20
        assert [each for each in options if not re.search(r"\s{2,}\w", each)] == []  # its name, spaces, words


def test_presets_of_the_language_model_are_the_sizes_of_the_models():
    parser = fsdp_tp.options()
    assert list(parser.presets) == list(LLAMA_SIZES)
    for name, config in LLAMA_SIZES.items():
        found = fsdp_tp.configure(parse(parser, ["--preset", name]))
        assert found.rope_theta == config.rope_theta
        assert (found.dim, found.n_layers, found.ffn_dim, found.vocab_size) == (
            *(config.dim, config.n_layers, config.ffn_dim, config.vocab_size),
        )


MISFITS = {
    "--tp 3": "tp=3 equal parts, nor n_kv_heads=4, vocab_size=32000, seq_len=128; expected tp=1 or 2",
    "--tp 8": "n_kv_heads=4 cannot be cut into tp=8 equal parts; expected n_kv_heads=8, or tp=2 or 4",
    "--tp 2 --ffn_dim 721": "ffn_dim=721 cannot be cut into tp=2 equal parts; expected ffn_dim=720 or 722",
    "--tp 4 --seq_len 30": "seq_len=30 cannot be cut into tp=4 equal parts; expected seq_len=28 or 32",
    "--tp 2 --strategy ddp": "--strategy ddp cannot run with --tp 2",
    "--n_kv_heads 3": "n_kv_heads=3 does not divide n_heads=16",
    "--dim 100": "dim=100 is no multiple of 32",
    "--preset 9b": "unknown --preset '9b' (from the command line); expected one of",
    "--tpsise 2": "Did you mean --tpsize?",
}


def test_sizes_that_do_not_fit_are_refused_before_anything_starts(subtests, capsys):
    for words, told in MISFITS.items():
        with subtests.test(words):
            assert fsdp_tp.main(words.split()) == 2
            out, err = capsys.readouterr()
            assert told in err
            assert err.startswith("ezpz.examples.fsdp_tp: ")
            assert err.count("\n") == 1
            assert not out


def test_what_a_trainer_does_not_know_is_refused_by_name(subtests, capsys):
    for trainer, words, told in (
        (vit, "--attn flesh", "'flesh' (from the command line); expected one of math, sdpa, flash, efficient"),
        (vit, "--dataset synthetics", "Did you mean synthetic?"),
        (fsdp, "--dataset minst", "Did you mean mnist?"),
        (fsdp, "--max_iters 3", "unknown option --max_iters"),
        (fsdp, "--epochs 0", "--epochs: '0' is no whole number from 1 on"),
        (fsdp, "--global_batch_size 3 --accumulate 2", "expected for example 2 or 4"),
    ):
        with subtests.test(words):
            assert trainer.main(words.split()) == 2
            assert told in capsys.readouterr().err


def test_a_sequence_without_sequence_parallel_need_not_be_cut():
    config = fsdp_tp.configure(parse(fsdp_tp.options(), ["--tp", "4", "--seq_len", "30", "--no-sequence-parallel"]))
    assert config.max_seq_len == 2048


@pytest.mark.dear
@pytest.mark.slow
def test_the_seeds_models_are_the_default(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch sets it
    with torch.device("meta"):
        model = Llama(fsdp_tp.configure(parse(fsdp_tp.options(), ["--n_layers", "24"])))
    assert sum(parameter.numel() for parameter in model.parameters()) == 33_599_744
    args = parse(vit.options(), [])
    assert (args.dtype, args.depth, args.patch_size, args.attn) == ("bf16", 24, 16, "sdpa")
    assert args.warmup_iters > 0 < args.max_norm
