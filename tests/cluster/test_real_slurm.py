"""Where am I, asked in every kind of job of a real Slurm over two hosts."""

import json
import sys
import time

import pytest

from lab import process

WHERE = [sys.executable, "-m", "ezpz", "where", "--json"]


def answer(done):
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


def brief(told):
    return told["scheduler"], told["hosts"], told["slots"]


def test_a_shell_of_salloc(slurm, clean_env):
    told = answer(slurm.salloc(["-N2", "-n3", "--time=5"], WHERE, clean_env))
    assert brief(told) == ("slurm", ["n01", "n02"], [2, 1])
    assert told["origins"]["hosts"] == "SLURM_JOB_NODELIST"
    assert 0 < told["end_time"] - time.time() <= 301
    assert (told["interface"][:1], told["address"].split(".")[0]) == ("e", "10")


def test_devices_of_hosts_that_this_shell_is_not_on_are_asked_for(slurm, clean_env):
    told = answer(slurm.salloc(["-N2", "--gres=gpu:3"], WHERE, clean_env))
    assert (told["device"], told["devices_per_host"]) == ("cuda", 3)
    assert told["origins"]["devices_per_host"].startswith("scontrol -d show job")


def test_a_batch_job_with_uneven_slots_and_devices(slurm, clean_env):
    script = f"#!/bin/bash\nexec {' '.join(WHERE)}\n"
    told = answer(slurm.sbatch(["-N2", "-n4", "--gres=gpu:2", "--time=5"], script, clean_env))
    assert brief(told) == ("slurm", ["n01", "n02"], [3, 1])
    assert (told["device"], told["devices_per_host"]) == ("cuda", 2)


def test_a_task_of_an_array_is_a_job_of_its_own(slurm, clean_env):
    answer = f"{' '.join(WHERE)} >$0.out && cp $0.out {slurm.folder}/array.json"
    script = f"#!/bin/bash\n[ $SLURM_ARRAY_TASK_ID = 2 ] && {answer}\nexit 0\n"
    done = slurm.sbatch(["-N1", "-n1", "--array=1-2"], script, clean_env)
    assert done.returncode == 0
    told = json.loads(process.wait_until(lambda: _text(slurm.folder / "array.json"), 20, "the second task"))
    assert (told["scheduler"], len(told["hosts"]), told["slots"]) == ("slurm", 1, [1])
    assert told["job_id"].isdigit()


def test_inside_a_step_only_its_hosts_count(slurm, clean_env):
    told = answer(slurm.salloc(["-N2", "-n2"], ["srun", "-N1", "-n1", *WHERE], clean_env))
    assert brief(told) == ("slurm", ["n01"], [1])
    assert told["origins"]["hosts"] == "SLURM_STEP_NODELIST"


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_heterogeneous_job_is_its_component_0_and_in_a_step_the_steps(slurm, clean_env):
    # Slurm starts such jobs by its backfill scheduler alone, which wakes every half minute.
    outside = " ".join(WHERE)
    step = f"srun --het-group=1 -n1 {outside}"
    script = f"#!/bin/bash\n{outside} && echo ==== && {step}\n"
    done = slurm.sbatch(["-N1", "-n1", ":", "-N1", "-n2"], script, clean_env, timeout=100)
    assert done.returncode == 0, done.stdout
    first, second = map(json.loads, done.stdout.split("===="))
    assert brief(first) == ("slurm", ["n01"], [1])
    assert "component 1 has n02" in first["notes"][0]
    assert brief(second) == ("slurm", ["n02"], [1])


@pytest.mark.slow
def test_a_shell_opened_by_ssh_is_in_the_job_of_its_host_and_can_launch(slurm, clean_env):
    env = {**clean_env, **slurm.env, "USER": "root"}
    started = slurm.head.popen(["salloc", "--quiet", "--kill-command=KILL", "-N2", "-n2", "sleep", "60"], env)
    try:
        process.wait_until(
            lambda: "RUNNING" in slurm.run(["squeue", "--noheader", "--format=%T"]).stdout, 20, "the job"
        )
        told = answer(slurm.hosts["n02"].run(WHERE, env))
        assert brief(told) == ("slurm", ["n01", "n02"], [1, 1])
        assert "found by the name of this host, n02" in told["notes"][0]
        done = slurm.hosts["n02"].run([sys.executable, "-m", "ezpz.launch", "hostname"], env)
        assert (done.returncode, sorted(done.stdout.split())) == (0, ["n01", "n02"]), done.stderr
        elsewhere = answer(slurm.head.run(WHERE, env))
        assert brief(elsewhere) == (None, ["head"], None)
    finally:
        slurm.run(["scancel", "--user=root"])
        started.wait(20)
        slurm.wait_idle(30)


def _text(path):
    return path.read_text() if path.exists() else ""
