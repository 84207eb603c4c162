"""What a user can ask of a launch on one host, and what an odd machine answers."""

import json
import os

import pytest

from lab.process import program
from lab.shown import AGREE, SHOW, STALE, agreed, shown

pytestmark = pytest.mark.slow


def test_cpus_that_this_host_has_not_are_a_note_and_no_failure(launch):
    done = launch("-n", "1", "--cpu-bind", "list:4000", "echo", "ran")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "cannot be bound to CPUs 4000 to 4000" in done.stderr


@pytest.mark.parametrize("flavour", ["local", "torchrun"])
def test_ranks_of_this_host_are_told_the_same_by_every_name(launch, clean_env, flavour):
    job = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": os.uname().nodename, "SLURM_TASKS_PER_NODE": "4"}
    env = {**clean_env, **STALE, "EZPZ_LAUNCH_ID": "outer"}
    for around, told in (({}, "False"), (job, "True")):
        done = launch("-n", "2", "--flavour", flavour, *AGREE, env={**env, **around}, timeout=120)
        assert agreed(done.stdout) == [f"{rank} 2 {rank} 2 0 {told}" for rank in range(2)], done.stderr


def test_torchruns_agent_serves_as_a_launcher(launch):
    done = launch("-n", "2", "--flavour", "torchrun", *SHOW, "a b", timeout=120)
    assert done.returncode == 0, done.stderr
    ranks = shown(done.stdout)
    told = [(environ["RANK"], environ["WORLD_SIZE"], *argv) for environ, argv, _, _ in ranks]
    assert told == [("0", "2", "a b"), ("1", "2", "a b")]
    assert {environ["TORCHELASTIC_USE_AGENT_STORE"] for environ, *_ in ranks} == {"True"}
    assert "torchrun launcher (--flavour)" in done.stderr


@pytest.mark.parametrize(
    ("text", "shown_words"),
    [
        ("echo a wrapper of our site", ["it printed 'a wrapper of our site"]),
        ("exit 3", ["it printed ''"]),
        ("sleep 300", ["ezpz: waiting for an answer of mpiexec, for 5 s at most", "it printed ''"]),
    ],
)
def test_an_mpiexec_that_says_nothing_useful_is_refused_and_named_by_the_user(
    launch, clean_env, tmp_path, text, shown_words
):
    script = f'#!/bin/sh\ncase "$1" in --*) echo >>{tmp_path}/asked; {text}; exit ;; esac\n'
    script += 'shift 4; exec env PMI_RANK=0 PMI_SIZE=1 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 "$@"\n'
    env = {**clean_env, "PATH": f"{program(tmp_path / 'odd' / 'mpiexec', script).parent}:{clean_env['PATH']}"}
    done = launch("-n", "1", "true", env=env)
    assert (done.returncode, len(done.stderr.splitlines())) == (125, len(shown_words))
    assert all(words in line for words, line in zip(shown_words, done.stderr.splitlines(), strict=True))
    assert "launch --flavour NAME" in done.stderr
    if "sleep" in text:
        assert (tmp_path / "asked").read_text() == "\n"  # who has not answered is not asked again
    else:
        named = launch("-n", "1", "--flavour", "mpich", *SHOW, env=env)
        assert (named.returncode, len(shown(named.stdout))) == (0, 1), named.stderr


def test_what_the_site_advises_against_is_a_note(launch, clean_env, tmp_path):
    env = {**clean_env, "TACC_SYSTEM": "vista"}
    done = launch("-n", "1", "--explain", "true", env=env)
    assert "site vista advises ibrun, which ezpz does not start; local is used" in done.stdout
    program(tmp_path / "srun", "#!/bin/sh\necho slurm 23.11.4\n")
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "c[1-2]", "SLURM_NNODES": "2", "SLURM_TASKS_PER_NODE": "1(x2)"}
    done = launch("--ppn", "1", "true", env={**env, **job, "PATH": f"{tmp_path}:{env['PATH']}"})
    assert "note: site vista advises ibrun, which ezpz does not start; srun is used" in done.stderr
    env = {**clean_env, "NERSC_HOST": "perlmutter"}
    answer = json.loads(launch("-n", "1", "--launcher-args", "--gpus-per-task=1", "--json", "true", env=env).stdout)
    assert "site perlmutter advises against --gpus-per-task=1 (from --launcher-args)" in answer["notes"]


def test_that_no_devices_could_be_counted_is_told_where_the_ranks_follow_from_them(launch, clean_env, tmp_path):
    """From a host that is none of the job's, as that of ``salloc`` may be."""
    program(tmp_path / "srun", "#!/bin/sh\necho slurm 23.11.4\n")
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "c[1-2]", "SLURM_NNODES": "2", "SLURM_TASKS_PER_NODE": "2(x2)"}
    env = {**clean_env, **job, "PATH": f"{tmp_path}:{clean_env['PATH']}"}

    def is_told(*options):
        done = launch(*options, "true", env=env)
        return "no source tells the devices of the job's hosts" in done.stdout + done.stderr

    assert is_told()
    assert not is_told("-n", "4")
    assert not is_told("--ppn", "1")
    assert is_told("--ppn", "1", "--explain")
    assert is_told("-n", "4", "--dry-run")
