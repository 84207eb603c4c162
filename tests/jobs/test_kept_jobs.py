"""What the first shell of a job leaves for a second one, and who believes it."""

import os
import shlex
import sys
import time
from pathlib import Path

import pytest

from ezpz.launch.exports import load, read, save, state_file

SH = [sys.executable, "-m", "ezpz.cluster", "--sh"]
SECRETS = {"PBS_JOBCOOKIE": "s3cret", "SLURM_JWT": "s3cret", "WANDB_API_KEY": "s3cret", "HF_TOKEN": "s3cret"}
VALUES = {"EZPZ_SCHEDULER": "pbs", "EZPZ_JOBID": "4[2].head", "EZPZ_HOSTS": "n01,n02", "NHOSTS": "2"}


@pytest.fixture
def env(tmp_path):
    return {"HOME": str(tmp_path), "PBS_JOBID": "4[2].head", "PBS_O_WORKDIR": "a 'b' $c", **SECRETS}


@pytest.fixture
def saved(env):
    path = state_file(env, "pbs", "4[2].head")
    save(env, path, VALUES)
    return path


def test_what_is_saved_is_private_quoted_and_holds_no_secret(env, saved, tmp_path):
    assert saved == str(tmp_path / ".local/state/ezpz/jobs/pbs-4_2_.head.sh")
    assert [oct(Path(path).stat().st_mode & 0o777) for path in (saved, Path(saved).parent)] == ["0o600", "0o700"]
    text = (tmp_path / ".local/state/ezpz/jobs/pbs-4_2_.head.sh").read_text()
    assert "s3cret" not in text
    assert f"export PBS_O_WORKDIR={shlex.quote(env['PBS_O_WORKDIR'])}\n" in text
    assert read(saved)["PBS_O_WORKDIR"] == env["PBS_O_WORKDIR"]


def test_a_second_shell_finds_the_newest_job_that_holds_its_host(env, saved):
    other = state_file(env, "slurm", "7")
    save({"SLURM_JOB_ID": "7"}, other, {"EZPZ_SCHEDULER": "slurm", "EZPZ_JOBID": "7", "EZPZ_HOSTS": "n02"})
    os.utime(saved, (time.time() - 60,) * 2)
    assert load(env, "n02.cluster.edu")[1] == other
    assert load(env, "n01")[1] == saved
    assert load(env, "n02", unknown_to=["slurm"])[1] == saved
    assert load(env, "n03") == ({}, "")
    assert load({}, "n01") == ({}, "")


def test_a_job_that_is_over_is_not_taken(env, saved):
    save(env, saved, {**VALUES, "EZPZ_JOB_END": str(int(time.time()) - 1)})
    assert load(env, "n01") == ({}, "")
    save(env, saved, {**VALUES, "EZPZ_JOB_END": str(int(time.time()) + 3600)})
    assert load(env, "n01")[1] == saved


def test_a_file_with_anything_else_in_it_is_not_believed(saved, subtests):
    text = Path(saved).read_text()
    for line in ("touch ran", "export PATH=/tmp", "export PBS_JOBID=1; touch ran", "export PBS_JOBID='", "x"):
        with subtests.test(line):
            Path(saved).write_text(f"{text}{line}\n")
            assert read(saved) == {}


def test_a_file_that_others_may_write_and_a_link_are_not_believed(saved, tmp_path):
    link = tmp_path / "link.sh"
    link.symlink_to(saved)
    assert read(str(link)) == {}
    Path(saved).chmod(0o620)
    assert read(saved) == {}


def test_files_of_a_month_ago_are_removed(env, saved):
    old = state_file(env, "pbs", "1.head")
    save(env, old, VALUES)
    os.utime(old, (time.time() - 40 * 86400,) * 2)
    save(env, saved, VALUES)
    assert not Path(old).exists()
    assert Path(saved).exists()


def test_a_second_shell_on_a_sister_host_without_the_schedulers_commands(run_cli, clean_env, tmp_path, hosts):
    (tmp_path / "nodes").write_text("n01\nn02\n")
    job = {"PBS_JOBID": "1.head", "PBS_NODEFILE": str(tmp_path / "nodes"), "EZPZ_NGPU_PER_HOST": "3", **SECRETS}
    first = hosts["n01"].run(SH, {**clean_env, **job}, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    (tmp_path / "nodes").unlink()  # a sister host has none

    second = hosts["n02"].run([*SH, "--second"], clean_env, cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    lines = second.stdout.splitlines()
    told = "PBS_JOBID=1.head EZPZ_JOBID=1.head EZPZ_HOSTS=n01,n02 NHOSTS=2 EZPZ_NGPU_PER_HOST=3 NGPUS=6"
    assert {f"export {each}" for each in told.split()} <= set(lines)  # the user's number holds in every shell
    own = hosts["n02"].run([*SH, "--second"], {**clean_env, "EZPZ_NGPU_PER_HOST": "1"}, cwd=tmp_path)
    assert "export NGPUS=2" in own.stdout.splitlines()
    assert "job 1.head is taken from" in second.stderr

    plain = hosts["n02"].run(SH, clean_env, cwd=tmp_path)
    assert "export EZPZ_SCHEDULER=none" in plain.stdout
    elsewhere = hosts["head"].run([*SH, "--second"], clean_env, cwd=tmp_path)
    assert "export EZPZ_SCHEDULER=none" in elsewhere.stdout


@pytest.mark.slow
def test_a_home_that_cannot_be_written_is_one_note(run_cli, clean_env, tmp_path):
    (tmp_path / "file").write_text("")
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "localhost", "SLURMD_NODENAME": "localhost"}
    done = run_cli(SH, {**clean_env, **job, "XDG_STATE_HOME": str(tmp_path / "file")})
    assert done.returncode == 0
    assert sum("a second shell will not find this job" in line for line in done.stderr.splitlines()) == 1
