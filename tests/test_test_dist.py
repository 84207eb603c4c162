"""The smoke test as users run it: real ranks, real files, and what is printed is true."""

import json
import math
import re
import signal
import subprocess
import sys

import pytest

from ezpz import test_dist
from ezpz.errors import UsageError
from ezpz.track import read_journal

MODULE = ["-m", "ezpz.test_dist"]
LINE = re.compile(r"^\d\d:\d\d:\d\d iter=(\d+) loss=(\S+) accuracy=(\S+) dt=(\S+) s sps=(\S+) samples/s$", re.MULTILINE)
TITLE = re.compile(r"── test_dist finished: 100 steps in \S+ \S+(?: \d+ s)?, 2 ranks ─+$")
LONGEST = 47  # lines of the main job, what `launch` says on stderr apart


def run_folder(base):
    return next((base / "outputs").glob("*/*"))


def stored(path):
    """Return the variables of a file of results."""
    import xarray

    with xarray.open_dataset(path, engine="h5netcdf") as dataset:
        return {name: values.values for name, values in dataset.load().variables.items()}


@pytest.mark.slow
def test_two_ranks_learn_the_digits_and_leave_a_true_record_in_a_pipe_at_200_columns(run_cli, clean_env, tmp_path):
    wide = {**clean_env, "COLUMNS": "200", "TERM": "xterm"}
    done = run_cli([sys.executable, "-m", "ezpz.launch", "-n", "2", sys.executable, *MODULE], wide, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout
    assert len(done.stderr.splitlines()) == 2
    out = done.stdout
    lines = LINE.findall(out)
    assert [int(line[0]) for line in lines] == [*range(0, 100, 10), 99]
    assert out.count("[dist_info]:") == out.count("[CONFIG]:") == 1
    assert "756,874 parameters" in out
    assert "['" in out
    assert re.search(r"\[rank=0/2\]\[local_rank=0/2\]$", out, re.MULTILINE)  # without a mesh nothing follows
    shown = out.splitlines()
    assert len(shown) <= LONGEST
    assert max(map(len, shown)) <= 200
    (frames,) = [line for line in shown if "┌" in line]
    assert frames.count("┌") == 2  # side by side
    card = {line[2:14].strip(): line[14:] for line in shown[shown.index(next(filter(TITLE.match, shown))) + 1 :]}
    assert list(card) == ["loss", "accuracy", "speed", "step", "first step", "report", "next"]

    folder = run_folder(tmp_path)
    rows = read_journal(folder / "metrics.jsonl")
    assert len(rows) == 100
    dataset = stored(folder / "test_dist.h5")
    assert dataset["step"].tolist() == list(range(100))
    for name in ("iter", "loss", "accuracy", "dt", "dtf", "dtb", "sps"):
        assert dataset[name].tolist() == [row["m"][name] for row in rows]
    loss, accuracy, dt, sps = (dataset[name] for name in ("loss", "accuracy", "dt", "sps"))
    assert dataset["sps_ranks"].shape == (100, 2)
    assert (dataset["loss_min"] <= dataset["loss_max"]).all()
    assert loss[-10:].mean() < 0.3 * loss[0]
    assert accuracy[-10:].mean() > 0.9
    assert all(math.isclose(rate * seconds, 2 * 64) for rate, seconds in zip(sps, dt, strict=True))

    assert [float(value) for value in card["loss"].split(" → ")] == pytest.approx([loss[0], loss[-1]], rel=1e-3)
    assert card["accuracy"].count(" %") == 2
    rate, each = (
        float(text.replace(",", "")) for text in re.findall(r"([\d,.]+) (?:samples/s|per rank)", card["speed"])
    )
    assert rate == pytest.approx(2 * each, rel=1e-3)
    assert min(sps) <= rate <= max(sps)
    assert tmp_path / card["report"] == folder / "report.html"
    assert card["next"] == f"ezpz open {folder.relative_to(tmp_path)}"
    assert {path.stem for path in folder.glob("plots/mplot/pngs/*.png")} == {
        "loss",
        "accuracy",
        "dt",
        "dtf",
        "dtb",
        "sps",
    }
    assert [path.name for path in folder.glob("plots/mplot/ranks/*.png")] == ["dtf.png"]
    assert json.loads((folder / "run.json").read_text())["state"] == "finished"


@pytest.mark.slow
def test_alone_with_every_option(run_cli, tmp_path):
    options = [
        *("--dataset", "random", "--input-size", "32", "--layer-sizes", "64,16", "--batch-size", "8", "--lr", "0.01"),
        *("--train-iters", "12", "--warmup", "2", "--log-freq", "5", "--dtype", "bf16", "--seed", "3", "--no-plots"),
        *("--profile", "--outdir", "here", "--name", "mine"),
    ]
    done = run_cli([sys.executable, *MODULE, *options], timeout=120)

    assert done.returncode == 0, done.stderr
    assert re.findall(r"iter=(\d+)", done.stdout) == ["0", "5", "10", "11"]
    rows = read_journal(tmp_path / "here" / "metrics.jsonl")
    assert [row["m"]["warmup"] for row in rows] == [True] * 2 + [False] * 10
    assert rows[-1]["m"]["loss"] < rows[0]["m"]["loss"]
    assert "accuracy" not in rows[0]["m"]
    assert (tmp_path / "here" / "mine.h5").exists()
    assert not (tmp_path / "here" / "plots").exists()
    kinds = sorted(path.suffix for path in (tmp_path / "here" / "profile").glob("pyinstrument-profile-*"))
    assert kinds == [".html", ".txt"]
    assert "\x1b" not in next((tmp_path / "here" / "profile").glob("*.txt")).read_text()
    config = json.loads((tmp_path / "here" / "run.json").read_text())["config"]
    assert (config["dtype"], config["layer_sizes"], config["world_size"]) == ("bfloat16", [64, 16], 1)


@pytest.mark.slow
def test_under_torchrun_two_ranks_share_the_layers_and_their_samples(run_cli, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    options = ["--tp", "2", "--backend", "gloo", "--layer-sizes", "32,16", "--train-iters", "3", "--no-plots"]
    done = run_cli([*torchrun, *MODULE, *options], timeout=240)
    assert done.returncode == 0, done.stderr
    assert len(read_journal(run_folder(tmp_path) / "metrics.jsonl")) == 3
    assert "WORLD_SIZE=2" in done.stdout
    assert "[rank=0/2][local_rank=0/2][tp:0/2][dp:0/1]" in done.stdout + done.stderr
    assert "=None" not in done.stdout
    assert "JOB_ID=" not in done.stdout


@pytest.mark.dear
def test_under_each_mpi(flavour, run_cli, tmp_path):
    launch = [flavour.python, "-m", "ezpz.launch", "-n", "2", flavour.python]
    done = run_cli([*launch, *MODULE, "--train-iters", "3", "--no-plots"], flavour.env(), 120)
    assert done.returncode == 0, done.stderr
    rows = read_journal(run_folder(tmp_path) / "metrics.jsonl")
    assert len(rows) == 3
    assert math.isclose(rows[0]["m"]["sps"] * rows[0]["m"]["dt"], 128)
    assert "\x1b" not in done.stdout
    assert len(list((tmp_path / "outputs").glob("*/*"))) == 1


@pytest.mark.slow
def test_a_drawing_that_fails_costs_neither_data_nor_the_exit_code(run_cli, clean_env, tmp_path):
    broken = tmp_path / "broken"
    (broken / "plotext").mkdir(parents=True)
    (broken / "plotext" / "__init__.py").write_text("raise ImportError('built for another machine')")
    env = {**clean_env, "PYTHONPATH": str(broken)}
    done = run_cli([sys.executable, *MODULE, "--train-iters", "3"], env, 120)
    assert done.returncode == 0
    assert "cannot draw the text plot" in done.stdout
    assert (run_folder(tmp_path) / "test_dist.h5").exists()
    assert list(run_folder(tmp_path).glob("plots/mplot/pngs/loss.png"))


def test_an_option_that_cannot_be_is_refused_by_name(capsys):
    for options, words in (
        (["--train-iters", "0"], "'0' is not a whole number of at least 1"),
        (["--layer-sizes", "64,x"], "'x' is not a whole number"),
        (["--dtype", "bf17"], "invalid choice: 'bf17'"),
        (["--epochs", "3"], "unrecognized arguments: --epochs 3"),
    ):
        with pytest.raises(SystemExit) as caught:
            test_dist.parse_args(options)
        assert caught.value.code == 2
        assert words in capsys.readouterr().err


def test_options_that_do_not_fit_each_other_are_refused(subtests):
    for options, words in (
        (["--lr", "0"], "--lr 0.0 is no learning rate"),
        (["--lr", "nan"], "--lr nan is no learning rate"),
        (["--warmup", "100"], "--warmup 100 does not fit --train-iters 100"),
        (["--warmup", "-1"], "expected 0 to 99"),
        (["--input-size", "65"], "do not fit the digits; expected 64 and 10"),
        (["--tp", "2", "--strategy", "ddp"], "--strategy ddp cannot run with --tp 2"),
        (["--tp", "2", "--layer-sizes", "7"], "7"),
        (["--dataset", "random", "--output-size", "3"], "reconstructs its input; expected 128"),
    ):
        with subtests.test(options=options), pytest.raises(UsageError, match=re.escape(words)):
            test_dist.configure(test_dist.parse_args(options))


@pytest.mark.slow
def test_tensor_parallel_layers_and_what_else_is_asked_for():
    config = test_dist.configure(test_dist.parse_args(["--tp", "2", "--backend", "gloo", "--compile"]))
    assert (config.tp, config.strategy, config.backend, config.compile) == (2, "fsdp", "gloo", True)
    assert test_dist.configure(test_dist.parse_args([])).strategy == "ddp"


@pytest.mark.slow
def test_an_interrupt_keeps_the_data_and_shows_no_traceback(clean_env, tmp_path):
    launch = [sys.executable, "-m", "ezpz.launch", "-n", "2", sys.executable, *MODULE, "--train-iters", "100000"]
    run = subprocess.Popen(
        launch, env=clean_env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for line in run.stdout:
        if "iter=10 " in line:
            break
    run.send_signal(signal.SIGINT)
    rest, errors = run.communicate(timeout=250)
    assert run.returncode == 130, rest + errors
    assert "interrupted; what was recorded until now is written" in rest
    assert "── test_dist stopped by SIGINT (Ctrl-C): " in rest
    assert "Traceback" not in errors
    folder = run_folder(tmp_path)
    steps = stored(folder / "test_dist.h5")["step"].tolist()
    assert steps == [row["step"] for row in read_journal(folder / "metrics.jsonl")]
    kept = json.loads((folder / "run.json").read_text())
    assert (kept["state"], kept["cause"]) == ("stopped", "SIGINT (Ctrl-C)")


@pytest.mark.slow
def test_an_unusable_folder_is_one_line(run_cli, tmp_path):
    (tmp_path / "file").touch()
    done = run_cli([sys.executable, *MODULE, "--outdir", "file"], timeout=120)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "ezpz.test_dist: " in done.stderr
