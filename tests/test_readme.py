"""The first hour: the README's line, typed literally in a fresh folder with an empty home."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from ezpz.track import read_journal
from lab import process
from lab.checkout import ROOT, copy_checkout, readme_line
from lab.require import require


@pytest.fixture
def checkout(tmp_path):
    """A copy of what git would give, without the tests' own state."""
    return copy_checkout(tmp_path / "ezpz")


def shape(text):
    """What the main job says about its steps and at its end: names of step lines, first words of the card."""
    steps = {
        tuple(re.findall(r"(\w+)=", line)) for line in text.splitlines() if re.match(r"\d\d:\d\d:\d\d iter=", line)
    }
    card = text.partition("\n── test_dist finished: ")[2].partition("```")[0].splitlines()[1:]
    return steps, [line[2:14].strip() for line in card if line.startswith("  ")]


def test_the_readmes_sample_holds_steps_and_the_card():
    steps, card = shape((ROOT / "README.md").read_text(encoding="utf-8"))
    assert steps == {("iter", "loss", "accuracy", "dt", "sps")}
    assert card == ["loss", "accuracy", "speed", "step", "first step", "report", "next"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_readmes_line_ends_with_a_trained_plotted_saved_run(checkout, home, tag):
    import xarray

    env = process.minimal_env(home, tag)  # the system's own python3: nothing of the tests' environment is on PATH
    line = readme_line()

    done = process.run(["bash", "--norc", "--noprofile", "-c", line], env, timeout=1000, cwd=checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"installing into {checkout}/.venv" in done.stderr  # it says where, before it installs
    assert "[HOSTS]" in done.stdout
    assert "[DIST INFO]" in done.stdout
    assert "┤" in done.stdout
    assert "[rank=0/2]" in done.stdout
    job = done.stdout.partition("[CONFIG]:\n")[2].splitlines()
    assert len(job) > 20
    assert [text for text in job if len(text) > 80 and not text.startswith("[")] == []  # but for lines of the log
    assert shape(done.stdout) == shape((ROOT / "README.md").read_text(encoding="utf-8"))
    (folder,) = runs = list((checkout / "outputs" / "test_dist").iterdir())
    losses = [row["m"]["loss"] for row in read_journal(folder / "metrics.jsonl")]
    with xarray.open_dataset(folder / "test_dist.h5", engine="h5netcdf") as dataset:
        assert dataset["loss"].values.tolist() == losses
    assert sum(losses[-10:]) < 0.3 * sum(losses[:10])

    # Once more, in the other shell and only some steps: it trains at once.
    installed = (checkout / ".venv" / "ezpz-install.log").stat().st_mtime_ns
    require("zsh", None if shutil.which("zsh") else "no zsh on PATH")
    again = process.run(["zsh", "-f", "-c", f"{line} --train-iters 5 --no-plots"], env, timeout=250, cwd=checkout)
    assert again.returncode == 0, again.stderr
    assert "installing" not in again.stderr
    assert (checkout / ".venv" / "ezpz-install.log").stat().st_mtime_ns == installed
    (second,) = set((checkout / "outputs" / "test_dist").iterdir()) - set(runs)
    assert len(read_journal(second / "metrics.jsonl")) == 5


def test_the_readmes_line_trains_over_two_hosts_of_a_slurm_job(slurm, clean_env, tmp_path):
    venv = Path(sys.executable).parents[1]
    line = readme_line().replace("source src", f"source {ROOT}/src") + " --train-iters 5 --no-plots"
    env = {**clean_env, "VIRTUAL_ENV": str(venv)}
    done = slurm.salloc(["-N2", "-n2"], ["bash", "-c", line], env, timeout=180, cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "• NHOSTS=2" in done.stdout
    assert "EZPZ_NRANKS=2" in done.stdout
    assert "['n01'][device='cpu'][rank=0/2][local_rank=0/1]" in done.stdout
    assert "['n02'][device='cpu'][rank=1/2][local_rank=0/1]" in done.stdout
    rows = read_journal(next(tmp_path.glob("outputs/*/*")) / "metrics.jsonl")
    assert len(rows) == 5
    assert abs(rows[0]["m"]["sps"] * rows[0]["m"]["dt"] - 128) < 1e-6
