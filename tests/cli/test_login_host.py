"""What a user does on a login host of a real Slurm: `ezpz status`, `logs`, `stacks`, `why` and `kill` of a job."""

import json
import sys
from pathlib import Path

import pytest

import ezpz
from lab import process

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
TRAIN = """
import time
import ezpz
for step in range(10_000):
    ezpz.heartbeat(step)
    print("step", step, flush=True)
    time.sleep(0.2)
"""


@pytest.fixture
def login(slurm, clean_env, tmp_path):
    """`login(*words)` runs a verb on `head`; `login.submit(script)` queues a job there and returns its id."""
    env = {**clean_env, "PYTHONPATH": str(Path(ezpz.__file__).parents[1]), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    (tmp_path / "train.py").write_text(TRAIN)
    jobs = []

    def run(*words):
        for kept in (tmp_path / "cache").glob("ezpz/jobs-*.json"):  # each question is another moment
            kept.unlink()
        return slurm.run([sys.executable, "-m", "ezpz", *words], env, timeout=90, cwd=tmp_path)

    def submit(script, *options):
        (tmp_path / "job.slurm").write_text(script)
        done = slurm.run(["sbatch", "--parsable", *options, "job.slurm"], env, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        jobs.append(done.stdout.strip())
        return jobs[-1]

    run.submit = submit
    yield run
    slurm.run(["scancel", *jobs])
    slurm.wait_idle(60)


def row_of(login, job):
    done = login("status", "--json")
    assert done.returncode == 0, done.stderr
    return next((row for row in json.loads(done.stdout)["rows"] if row["job"] == job), None)


def test_a_job_is_seen_followed_asked_and_ended(login, tmp_path):
    script = f"#!/bin/sh\nexec {sys.executable} -m ezpz.launch --mpi no -n 2 {sys.executable} train.py\n"
    job = login.submit(script, "--nodes=1", "--ntasks-per-node=2", "--time=5")
    waiting = login.submit(script, "--nodes=2", "--exclusive", f"--dependency=afterany:{job}", "--time=5")
    row = process.wait_until(lambda: (each := row_of(login, job)) and each["launch_id"] and each, 90, "the launch", 1)
    assert (row["state"], row["hosts"], row["host"]) == ("running", 1, "n01")
    assert row["output"] == str(tmp_path / f"slurm-{job}.out")
    assert row["job_ends"] is not None
    queued = row_of(login, waiting)
    assert (queued["state"], queued["reason"]) == ("queued", "Dependency")
    process.wait_until(lambda: "step 3" in login("logs", job).stdout, 60, "the third step", 1)
    stacks = login("stacks", job)
    assert stacks.returncode == 0, stacks.stderr
    assert "2 ranks in" in stacks.stdout
    assert login("why", job).returncode == 0
    ended = login("kill", job)
    assert ended.returncode == 0, ended.stderr
    assert "on n01: ended with 143" in ended.stdout
    assert "`ezpz kill` on head ends this launch" in login("logs", job).stdout


def test_a_job_that_ended_before_launch_tells_its_last_line(login, tmp_path):
    script = "#!/bin/sh\n#SBATCH --output=%x.%j.txt\necho loading\necho 'module: not found' >&2\nexit 3\n"
    job = login.submit(script, "--nodes=1")
    row = process.wait_until(
        lambda: (each := row_of(login, job)) and each["state"] == "ended" and each, 60, "its end", 1
    )
    assert row["launch_id"] is None
    assert (row["scheduler_state"], row["reason"]) == ("FAILED", "NonZeroExitCode")
    text = login("status").stdout
    assert "ended before `launch`: FAILED NonZeroExitCode" in text
    assert f"{tmp_path}/job.slurm.{job}.txt" in "".join(text.split())
    assert "its last line: module: not found" in text
