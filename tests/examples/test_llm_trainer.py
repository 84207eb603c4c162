"""The language-model trainer as its users start it, and inside ranks on every mesh."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ezpz
from ezpz.dist.peaks import Peak
from ezpz.examples import llm, llm_parts
from ezpz.models import LLAMA_SIZES, Llama
from ezpz.track import read_journal
from ezpz.train import Cost, parse, run_trainer, transformer_flops
from ezpz.train.flops import rates

SOURCES = str(Path(ezpz.__file__).parents[1])
LLAMA_8B = Path(__file__).parents[2] / "examples" / "train_configs" / "llama3_8b.toml"
IN_RANKS = Path(__file__).with_name("in_ranks_llm.py")
# At the preset's own rate rounding grows to 1e-4 within six steps.
SMALL = (
    "--preset debug --training.steps 6 --training.warmup_steps 2 --training.seq_len 16 --training.eval_samples 16 "
    "--metrics.log_freq 2 --no_plots --optimizer.lr 1e-3"
)
LINE = re.compile(r"step=(\d+) loss=(\S+) max=(\S+) dt=(\S+) s tps=(\S+) tok/s\n")
EVALUATED = re.compile(r"step=(\d+) val_loss=(\S+)\n")


@pytest.fixture
def env(clean_env):
    return {**clean_env, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"}


def start(ranks, *words):
    line = [sys.executable, "-m", "ezpz.examples.llm", *map(str, words)]
    return line if ranks == 1 else [sys.executable, "-m", "ezpz.launch", "-n", str(ranks), *line]


@pytest.mark.learn
@pytest.mark.timeout(1800)
def test_without_a_file_it_learns_what_follows_a_letter(run_cli, env, tmp_path):
    loss = train_two_ranks(run_cli, env, tmp_path, steps=100, tokens=2 * 32 * 64)
    assert 2.2 <= loss <= 2.488  # counting pairs of characters reaches 2.488; far less would be a leak


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_without_a_file_it_learns_and_its_lines_are_those_of_its_rows(run_cli, env, tmp_path):
    words = ["training.steps=20", "training.seq_len=32", "training.warmup_steps=2", "training.eval_samples=64"]
    loss = train_two_ranks(run_cli, env, tmp_path, *words, steps=20, tokens=2 * 32 * 32)
    assert 2.2 <= loss <= 3.347  # counting single characters


def train_two_ranks(run_cli, env, folder, *words, steps, tokens):
    """Train the debug preset on two ranks, check its lines against the journal; return held-out loss."""
    words = ["--no_plots", "--metrics.disable_color_printing", *words]
    done = run_cli(start(2, *words), {**env, "FORCE_COLOR": "1"}, 280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b[" not in done.stdout
    assert "Traceback" not in done.stderr
    lines = LINE.findall(done.stdout)
    assert [int(line[0]) for line in lines] == [1, *range(10, steps + 1, 10)]
    assert float(lines[0][1]) == pytest.approx(math.log(258), abs=0.15)
    assert all(float(line[1]) <= float(line[2]) for line in lines)
    ((last, loss),) = EVALUATED.findall(done.stdout)
    assert int(last) == steps
    (run,) = (folder / "outputs" / "llm").glob("*")
    rows = [row["m"] for row in read_journal(run / "metrics.jsonl")]
    windows = [(0, 1), (1, 10), *((first, first + 10) for first in range(10, steps, 10))]
    for line, (first, end) in zip(lines, windows, strict=True):
        seconds = [row["dt"] for row in rows[first:end]]
        assert float(line[3]) == pytest.approx(sum(seconds) / len(seconds), rel=1e-2)
        assert float(line[4]) == pytest.approx(tokens * len(seconds) / sum(seconds), rel=1e-2)
    record = json.loads((run / "run.json").read_text())
    assert record["state"] == "finished"
    assert record["config"]["model"]["flavor"] == "debug"
    return float(loss)


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("ranks", "which"), [(2, ""), (4, "mesh or resumed or weights")])
def test_inside_ranks(run_cli, env, tmp_path, ranks, which):
    env |= {
        "EZPZ_TEST_FOLDER": str(tmp_path),
        "EZPZ_TEST_WORDS": SMALL,
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
    }
    one = run_cli(start(1, *SMALL.split(), "--training.batch_size=8", "--outdir", tmp_path / "one"), env, 120)
    assert one.returncode == 0, one.stdout + one.stderr
    inside = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "--color=no", "--timeout=1200"]
    line = [sys.executable, "-m", "ezpz.launch", "-n", str(ranks), sys.executable, *inside, "-k", which, IN_RANKS]
    done = run_cli(line, env, 500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^\d+ passed", done.stdout, re.MULTILINE)) == ranks, done.stdout


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_and_resumed_it_ends_with_the_loss_of_an_unbroken_run(run_cli, env, tmp_path):
    words = [*SMALL.split(), "training.steps=40", "checkpoint.enable_checkpoint=true", "checkpoint.interval=4"]
    words += ["--checkpoint.async_mode", "async", "--checkpoint.keep_latest_k=2", "--resume", "auto"]
    whole = run_cli(start(2, *words, "--outdir", tmp_path / "whole"), env, 200)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    broken = [*start(2, *words, "--outdir", tmp_path / "broken")]
    with subprocess.Popen(
        broken, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        for line in run.stdout:
            if "step=14 " in line:
                record = json.loads((tmp_path / "broken" / "run.json").read_text())
                os.kill(record["process"]["pid"], signal.SIGKILL)
                break
        run.communicate(timeout=600)
    assert run.returncode == 137
    done = run_cli(broken, env, 200)
    assert done.returncode == 0, done.stdout + done.stderr
    ends = [[row["m"] for row in read_journal(tmp_path / name / "metrics.jsonl")][-1] for name in ("whole", "broken")]
    assert ends[0]["step"] == ends[1]["step"] == 40
    assert (ends[0]["loss"], ends[0]["val_loss"]) == (ends[1]["loss"], ends[1]["val_loss"])


@pytest.mark.dear
@pytest.mark.slow
def test_flavours_have_the_parameters_that_are_known(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    tokens = type("Tokens", (), {"vocabulary": 256, "name": "any"})
    for flavor, vocabulary, parameters in (
        ("8B", 128_256, 8_030_261_248),
        ("8B", 2_256, 6_998_069_248),
        ("debugmodel", 2_256, 7_975_168),
    ):
        config = parse(llm.options(), [f"model.flavor={flavor}", f"model.vocab_size={vocabulary}"]).config
        with torch.device("meta"):
            model = Llama(llm_parts.sizes(config, tokens))
        assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("seq_len", "recompute", "code", "verdict"),
    [
        (4096, "none", 1, "fits in 40 GB: no"),
        (2048, "none", 0, "fits in 40 GB: yes, but only just"),
    ],
)
def test_the_8b_is_asked_for_before_a_job_waits(run_cli, env, tmp_path, seq_len, recompute, code, verdict):
    words = ["--config", LLAMA_8B, f"training.seq_len={seq_len}", "training.steps=2", "training.dataset=random"]
    words += [f"activation_checkpoint.mode={recompute}", "training.eval_samples=8", "--no_plots"]
    asked = [sys.executable, "-m", "ezpz", "simulate", "-n", "8", "--memory", "40GB", "--no-data", *start(1, *words)]
    done = run_cli(asked, env, 280)
    assert done.returncode == code, done.stdout + done.stderr
    assert "8,030,261,248 total parameters" in done.stdout
    assert verdict in done.stdout


def test_the_seeds_mfu_follows_from_their_throughput():
    size, peak = LLAMA_SIZES["8b"], Peak(312e12, "the data sheet of an A100")
    for tps, seq_len, vocabulary, expected in (  # of one device, as the seeds' runs printed them
        (268.175160, 8192, 2_256, 4.711792),
        (112.290594, 2048, 128_256, 1.736573),
        (110.670108, 2048, 128_256, 1.711512),
    ):
        multiplied = {2_256: 6_998_069_248, 128_256: 8_030_261_248}[vocabulary] - vocabulary * size.dim
        per_token = transformer_flops(multiplied, size.n_layers, size.n_heads, size.head_dim, seq_len)
        cost = Cost(seq_len * per_token, seq_len)
        assert rates(tps / seq_len, 1, cost, peak)["mfu"] == pytest.approx(expected, rel=2e-6)


def test_what_it_does_not_know_is_one_line(subtests, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for words, told in {
        "--training.seq_lne=8": "Did you mean",
        "--training.mixed_precision_param=bf17": "bf17",
        "--trainig.steps=3": "Did you mean",
        "--float8.enable_float8_linear": "float8 needs kernels",
        "--training.steps=5 --training.warmup_steps=5": "--training.warmup_steps 5 does not fit training.steps=5",
        "--model.flavor=9B": "9B",
        "--config nowhere.toml": "nowhere.toml",
    }.items():
        with subtests.test(words):
            assert llm.main(words.split()) == 2
            out, err = capsys.readouterr()
            assert told in err
            assert err.count("\n") == 1
            assert not out


def test_a_file_that_does_not_parse_is_named_with_its_line(tmp_path, capsys):
    bad = tmp_path / "bad.toml"
    bad.write_text("[training]\nsteps = 3\nseq_len = = 4\n")
    assert llm.main(["--job.config_file", str(bad)]) == 2
    err = capsys.readouterr().err
    assert "bad.toml" in err
    assert "line 3" in err


def test_every_key_that_is_not_refused_has_an_effect():
    """A setting that is parsed and ignored would be a lie; the one that is says so in its help."""
    read = "".join(Path(module.__file__).read_text(encoding="utf-8") for module in (llm, llm_parts, run_trainer))
    elsewhere = {"job.use_for_integration_test", "job.config_file", "job.print_args"}
    by_name = {"metrics.enable_tensorboard", "metrics.enable_wandb"}  # read by getattr
    unread = {
        name
        for name, key in llm.options().plan.keys.items()
        if not key.rule.only and not re.search(rf"\.{name.partition('.')[2]}\b", read)
    }
    assert unread <= elsewhere | by_name
    assert "print_args" in read
    assert 'f"enable_{name}"' in read


def test_it_is_short_enough_to_be_read():
    for module in (llm, llm_parts):
        assert len(Path(module.__file__).read_text(encoding="utf-8").splitlines()) <= 220
