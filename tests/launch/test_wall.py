"""The end of the job's wall time is told in time, from variables or from what the scheduler's command says."""

import selectors
import time

import pytest

from ezpz.cluster.allocation import Allocation
from ezpz.launch.wall import Wall, ends
from lab import process

pytestmark = pytest.mark.timeout(60)

JOB = Allocation("slurm", "12", ("n01",))
NONE = Allocation("none", "", ("n01",))


def clock(seconds):
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def slurm(seconds):
    return {"SLURM_JOB_ID": "12", "SLURM_JOB_END_TIME": str(int(time.time() + seconds))}


def told(wall):
    """All that is said within a loop as the launcher's, until something is or nothing will come."""
    end = time.monotonic() + 20
    said = []
    with selectors.DefaultSelector() as selector:
        while (due := wall.due()) is not None and not said and time.monotonic() < end:
            selector.select(max(0.0, min(due, end) - time.monotonic()))
            text = wall.take(time.monotonic())
            said += [text] if text else []
    return said


def test_a_variable_tells_the_end_where_it_belongs_to_this_job(subtests):
    for environ, end in [
        ({}, None),
        ({"SLURM_JOB_END_TIME": "1795289400"}, None),  # no job around it: a leftover
        ({"SLURM_JOB_ID": "12", "SLURM_JOB_END_TIME": "1795289400"}, 1795289400.0),
        ({"SLURM_JOB_ID": "12", "SLURM_JOB_END_TIME": "soon"}, None),
        ({"PBS_JOBID": "1.head", "EZPZ_JOBID": "1.head", "EZPZ_JOB_END": "1795289400"}, 1795289400.0),
        ({"PBS_JOBID": "2.head", "EZPZ_JOBID": "1.head", "EZPZ_JOB_END": "1795289400"}, None),
        ({"EZPZ_JOBID": "1.head", "EZPZ_JOB_END": "1795289400"}, None),
        ({"PBS_JOBID": "1.head", "EZPZ_JOBID": "1.head", "EZPZ_JOB_END": ""}, None),
    ]:
        with subtests.test(environ):
            assert ends(environ) == end


def test_a_launch_that_starts_late_is_told_at_once_and_once(subtests):
    for left, text in [(45, "44 seconds|45 seconds"), (200, "3 minutes"), (60.5, "1 minute"), (600, "10 minutes")]:
        with subtests.test(left):
            environ = slurm(left)
            wall = Wall(JOB, environ)
            assert wall.due() <= time.monotonic()
            said = wall.take(time.monotonic())
            at = clock(int(environ["SLURM_JOB_END_TIME"]))
            assert said in {
                f"the job's wall time ends in {one} (at {at}, from SLURM_JOB_END_TIME)" for one in text.split("|")
            }
            assert wall.take(time.monotonic()) is None
            assert wall.due() is None if left <= 75 else wall.due() > time.monotonic() + left - 62


def test_ten_minutes_and_one_minute_before_each_are_told():
    wall = Wall(JOB, slurm(602))
    assert wall.take(time.monotonic()) is None
    assert "10 minutes" in told(wall)[0]
    assert time.monotonic() + 500 < wall.due() < time.monotonic() + 545
    late = Wall(JOB, slurm(62))
    assert "1 minute" in late.take(time.monotonic())
    assert late.due() is None  # the same once more, two seconds later, is no news
    later = Wall(JOB, slurm(90))
    assert "1 minute" in later.take(time.monotonic())
    assert time.monotonic() + 25 < later.due() < time.monotonic() + 32


def test_an_end_that_is_over_or_far_is_no_trouble():
    assert "was to end at" in Wall(JOB, slurm(-100)).take(time.monotonic())
    wall = Wall(JOB, slurm(30 * 86400))
    assert wall.take(time.monotonic()) is None
    assert time.monotonic() < wall.due() <= time.monotonic() + 3600.1  # selectors cannot wait for weeks


def test_what_the_allocation_knows_comes_first():
    known = Allocation("pbs", "1", ("n",), end_time=int(time.time() + 300), origin={"end_time": "qstat -f 1"})
    assert "in 5 minutes" in (said := Wall(known, {}).take(time.monotonic()))
    assert "from qstat -f 1)" in said


def test_without_a_job_nobody_is_asked():
    wall = Wall(NONE, {"PATH": "/nonexistent"})
    assert wall.due() is None
    assert wall.take(time.monotonic()) is None
    wall.close()


@pytest.fixture
def command(tmp_path, clean_env):
    """`command(name, script)` puts a scheduler's command on PATH and returns the environment."""

    def put(name, script):
        folder = tmp_path / "scheduler"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
        return {**clean_env, "PATH": f"{folder}:{clean_env['PATH']}"}

    return put


def stamp(seconds, form):
    return time.strftime(form, time.localtime(time.time() + seconds))


@pytest.mark.slow
def test_scontrol_is_asked_in_the_background(command):
    end = stamp(250, "%Y-%m-%dT%H:%M:%S")
    env = command(
        "scontrol", f"sleep 1\necho 'JobId=12 JobName=x\n EndTime={end}\n NodeList=n01\n NumNodes=1 NumCPUs=2'"
    )
    begin = time.monotonic()
    wall = Wall(JOB, {**env, "SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n01", "SLURM_GPUS": "1"})
    assert time.monotonic() - begin < 0.5  # the launch goes on
    [said] = told(wall)
    assert "the job's wall time ends in 4 minutes (at " in said
    assert f"{end[-8:]}, from scontrol" in said
    wall.close()


def test_qstat_is_asked_for_a_job_that_was_found_by_the_hosts_name(command):
    start = stamp(0, "%a %b %d %H:%M:%S %Y")
    env = command(
        "qstat",
        "[ $3 = -F ] && exit 1\n"
        "printf 'Job Id: 1.head\\n    exec_host = n01/0\\n    Resource_List.walltime = 00:00:40\\n"
        f'    stime = {start}\\n\'\n[ "$2" = -F ] && exit 1 || exit 0',
    )
    wall = Wall(Allocation("pbs", "1.head", ("n01",)), env)
    [said] = told(wall)
    assert " seconds (at " in said
    assert "from qstat -f 1.head)" in said
    wall.close()


@pytest.mark.parametrize("script", ["exit 1", "echo nonsense", "echo 'JobId=12\n EndTime=Unknown\n NodeList=n01'"])
def test_a_scheduler_that_does_not_know_leaves_the_end_unknown(command, script):
    wall = Wall(JOB, {**command("scontrol", script), "SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n01"})
    assert told(wall) == []
    assert wall.due() is None
    wall.close()


def test_a_command_that_hangs_ends_with_the_launch(command, survivors, tmp_path):
    env = command("scontrol", f"touch {tmp_path}/asked; sleep 300")
    wall = Wall(JOB, {**env, "SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n01"})
    process.wait_until((tmp_path / "asked").exists, 20, "the question")
    assert wall.take(time.monotonic()) is None
    wall.close()
    process.wait_until(lambda: not survivors(), 5, "the end of scontrol")
    assert wall.due() is None
