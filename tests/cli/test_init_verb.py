"""`ezpz init`: what is written for which machine, and that nothing is ever replaced."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from ezpz.cli import init
from ezpz.cli.init import main
from ezpz.cli.shell import main as print_line
from ezpz.cluster import probe, site
from ezpz.cluster.site_shell import shell_functions

SITES = site.load({}, probe.read)
NAMES = {"slurm": "job.slurm", "pbs": "job.pbs", "laptop": "run.sh"}
MARKS = {"slurm": "#SBATCH ", "pbs": "#PBS ", "laptop": "#nothing "}


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """An empty folder, and a machine without site, scheduler and job."""
    for name in list(os.environ):
        if name.startswith(("SLURM", "PBS", "FLUX", "EZPZ", "NERSC", "TACC", "LMOD", "FORCE_COLOR")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(probe, "read", lambda _: None)
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "bin").mkdir()
    monkeypatch.chdir(folder)
    return folder


def checked(path):
    text = path.read_text()
    assert not re.search(r"@[A-Z]+@", text)
    assert shell_functions() in text
    assert max(map(len, text.splitlines())) <= 140
    bash = shutil.which("bash", path="/usr/local/bin:/usr/bin:/bin")
    assert subprocess.run([bash, "-n", path], check=False).returncode == 0
    return text


def test_every_site_has_a_whole_job_script(bare, capsys, monkeypatch, subtests):
    for name in sorted({*NAMES, *SITES}):
        folder = bare / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        with subtests.test(name):
            assert main([name]) == 0
            known = SITES.get(name)
            kind = known.scheduler if known else name
            text = checked(folder / NAMES[kind])
            said = capsys.readouterr().out
            assert f"{NAMES[kind]}: written for {name if known else ''}" in said
            options = [line.removeprefix(MARKS[kind]) for line in text.splitlines() if line.startswith(MARKS[kind])]
            names = [option.partition("=")[0] for option in options if option.startswith("--")]
            assert len(names) == len(set(names))  # nothing is asked for twice
            assert set(known.job if known else ()) <= set(options)
            assert (folder / "train.py").read_text().count("import ezpz\n") == 1
            assert os.access(folder / NAMES[kind], os.X_OK) == (kind == "laptop")


def test_nothing_is_replaced(bare, capsys):
    (bare / "train.py").write_text("mine")
    assert main(["laptop"]) == 0
    assert "train.py: there already, left as it is" in capsys.readouterr().out
    (bare / "run.sh").write_text("mine too")
    assert main(["laptop"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("ezpz: run.sh and train.py are in ")
    assert err.count("\n") == 1
    assert ((bare / "train.py").read_text(), (bare / "run.sh").read_text()) == ("mine", "mine too")
    (bare / "job.pbs").symlink_to(bare / "gone")  # what a link leads to is not written either
    assert main(["pbs"]) == 2
    assert not (bare / "gone").exists()


def test_without_a_word_the_machine_decides_and_the_reason_is_said(bare, capsys, monkeypatch, tmp_path):
    assert main([]) == 0
    assert "run.sh: written for this machine (no scheduler was found)" in capsys.readouterr().out
    (tmp_path / "bin" / "qsub").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "qsub").chmod(0o755)
    assert main([]) == 0
    assert "job.pbs: written for any PBS cluster (qsub is on PATH)" in capsys.readouterr().out
    monkeypatch.setenv("NERSC_HOST", "perlmutter")
    assert main([]) == 0
    assert "job.slurm: written for perlmutter (from NERSC_HOST=perlmutter)" in capsys.readouterr().out
    assert "#SBATCH --constraint=gpu\n" in (bare / "job.slurm").read_text()


def test_a_site_of_ones_own_brings_its_options(bare, capsys, monkeypatch):
    own = '[site.ours]\nscheduler = "pbs"\njob = ["-A team", "-l filesystems=home"]\n'
    monkeypatch.setattr(probe, "read", lambda path: own if path.endswith("ezpz/sites.toml") else None)
    assert main(["ours"]) == 0
    assert "#PBS -A team\n#PBS -l filesystems=home\n#PBS -l select=2\n#PBS -l walltime" in checked(bare / "job.pbs")
    capsys.readouterr()


def test_an_unknown_site_is_one_line(bare, capsys):
    assert main(["polari"]) == 2
    err = capsys.readouterr().err
    assert "unknown site: 'polari' (from the command line); expected a name of `ezpz sites`, or one of slurm" in err
    assert "near it: polaris" in err
    assert not list(bare.iterdir())


def test_a_folder_that_cannot_be_written_is_one_line(bare, capsys, monkeypatch):
    real = init.Path.open

    def refuse(path, mode="r", *more, **named):
        if mode == "x":
            raise PermissionError(13, "Permission denied")
        return real(path, mode, *more, **named)

    monkeypatch.setattr(init.Path, "open", refuse)
    assert main(["slurm"]) == 2
    assert f"cannot write job.slurm in {bare}: Permission denied (from the working folder)" in capsys.readouterr().err


def test_shell_prints_a_line_that_a_shell_reads(capsys, run_cli):
    assert print_line([]) == 0
    line = capsys.readouterr().out
    assert line == f"source {shell_functions()}\n"
    done = run_cli(["/bin/bash", "-c", f"{line} type -t launch ezpz_setup_env"])
    assert (done.stdout, done.stderr) == ("function\nfunction\n", "")


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_starter_trains_alone_and_continues_on_two_ranks(bare, clean_env, run_cli):
    assert main(["laptop"]) == 0
    train = [sys.executable, "train.py", "--batch-size", "32"]
    env = {**clean_env, "OMP_NUM_THREADS": "1"}
    first = run_cli([*train, "--steps", "60"], env, timeout=250, cwd=bare)  # alone, without a launcher
    assert first.returncode == 0, first.stderr
    from ezpz.track import read_journal

    assert len(read_journal(bare / "outputs" / "train" / "metrics.jsonl")) == 60
    idle = run_cli([*train, "--steps", "60"], env, timeout=250, cwd=bare)
    assert idle.returncode == 0, idle.stderr
    assert "nothing was left to train: all 60 steps are done in outputs/train. " in idle.stdout
    assert "train finished: no new step, 60 before, 1 rank " in idle.stdout
    launch = [sys.executable, "-m", "ezpz.launch", "-n", "2"]
    again = run_cli([*launch, *train, "--steps", "70"], env, timeout=250, cwd=bare)
    assert again.returncode == 0, again.stderr
    assert "train finished: 10 new steps in " in again.stdout
    assert (bare / "outputs" / "train" / "report.html").exists()
    rows = read_journal(bare / "outputs" / "train" / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(70))
    losses = [row["m"]["loss"] for row in rows]
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])
