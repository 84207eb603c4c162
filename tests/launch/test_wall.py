"""The end of the job's wall time is told in time, from variables or from what the scheduler's command says."""

import itertools
import re
import selectors
import time

import pytest

from ezpz.cluster.allocation import Allocation
from ezpz.launch.wall import Wall, ends
from lab import process

JOB = Allocation("slurm", "12", ("n01",))


class Clock:
    """What `ezpz.launch.wall` takes for the module `time`: it stands still until it is moved."""

    localtime, strftime = staticmethod(time.localtime), staticmethod(time.strftime)

    def __init__(self):
        self.passed = 0.0

    def time(self):
        return 1795289400.0 + self.passed

    def monotonic(self):
        return 50.0 + self.passed

    def slurm(self, seconds):
        """Variables of a job that ends in so many seconds."""
        return {"SLURM_JOB_ID": "12", "SLURM_JOB_END_TIME": str(int(self.time() + seconds))}


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("ezpz.launch.wall.time", made)
    return made


def told(wall):
    """All that is said within a loop as the launcher's, until something is or nothing will come."""
    end = time.monotonic() + 60
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


def test_a_launch_that_starts_late_is_told_at_once_and_once(clock, subtests):
    for left, text in ((45, "45 seconds"), (58, "58 seconds"), (59, "1 minute"), (200, "3 minutes"), (600, "10 min")):
        with subtests.test(left):
            wall, now = Wall(JOB, clock.slurm(left)), clock.monotonic()
            assert wall.due() == now
            said = wall.take(now)
            assert said.startswith(f"the job's wall time ends in {text}")
            end = time.strftime("%H:%M:%S", time.localtime(clock.time() + left))
            assert said.endswith(f" (at {end}, from SLURM_JOB_END_TIME)")
            assert wall.take(now) is None
            assert wall.due() == (None if left <= 75 else now + left - 60)


def test_ten_minutes_and_one_minute_before_each_are_told(clock):
    wall = Wall(JOB, clock.slurm(602))
    assert (wall.take(clock.monotonic()), wall.due()) == (None, clock.monotonic() + 2)
    clock.passed += 2
    assert "10 minutes" in wall.take(clock.monotonic())
    assert wall.due() == clock.monotonic() + 540
    clock.passed += 540
    assert "1 minute" in wall.take(clock.monotonic())
    assert wall.due() is None
    late = Wall(JOB, clock.slurm(62))
    assert "1 minute" in late.take(clock.monotonic() + 2)
    assert late.due() is None
    nearly = Wall(JOB, clock.slurm(602))
    assert "1 minute" in nearly.take(clock.monotonic() + 532)  # as late as 70 s before the end
    assert nearly.due() is None  # the same once more, ten seconds later, were no news


def test_an_end_that_is_over_or_far_is_no_trouble(clock):
    assert "was to end at" in Wall(JOB, clock.slurm(-100)).take(clock.monotonic())
    wall = Wall(JOB, clock.slurm(30 * 86400))
    assert wall.take(clock.monotonic()) is None
    assert wall.due() == clock.monotonic() + 3600  # selectors cannot wait for weeks


def test_what_the_allocation_knows_comes_first(clock):
    known = Allocation("pbs", "1", ("n",), end_time=int(clock.time() + 300), origin={"end_time": "qstat -f 1"})
    said = Wall(known, {}).take(clock.monotonic())
    assert "in 5 minutes" in said
    assert "from qstat -f 1)" in said


def test_without_a_job_nobody_is_asked():
    wall = Wall(Allocation("none", "", ("n01",)), {"PATH": "/nonexistent"})
    assert wall.due() is None
    assert wall.take(time.monotonic()) is None
    wall.close()


@pytest.fixture
def command(tmp_path, clean_env):
    """`command(name, script)` puts a scheduler's command on PATH and returns the environment."""
    folders = (tmp_path / f"scheduler-{number}" for number in itertools.count())

    def put(name, script):
        folder = process.program(next(folders) / name, f"#!/bin/bash\n{script}\n").parent
        return {**clean_env, "PATH": f"{folder}:{clean_env['PATH']}"}

    return put


def stamp(seconds, form):
    return time.strftime(form, time.localtime(time.time() + seconds))


@pytest.mark.slow
def test_scontrol_is_asked_in_the_background(command, tmp_path):
    end = stamp(250, "%Y-%m-%dT%H:%M:%S")
    answer = f"JobId=12 JobName=x\n EndTime={end}\n NodeList=n01\n NumNodes=1 NumCPUs=2"
    env = command("scontrol", f"until [ -e {tmp_path}/go ]; do sleep 0.05; done\necho '{answer}'")
    wall = Wall(JOB, {**env, "SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n01", "SLURM_GPUS": "1"})
    assert wall.take(time.monotonic()) is None  # the launch goes on while scontrol has not answered
    (tmp_path / "go").touch()
    [said] = told(wall)
    assert re.search("the job's wall time ends in [34] minutes ", said)
    assert f"(at {end[-8:]}, from scontrol" in said
    wall.close()


@pytest.mark.slow
def test_qstat_is_asked_for_a_job_that_was_found_by_the_hosts_name(command):
    start = stamp(0, "%a %b %d %H:%M:%S %Y")
    env = command(
        "qstat",
        "[ $3 = -F ] && exit 1\n"
        "printf 'Job Id: 1.head\\n    exec_host = n01/0\\n    Resource_List.walltime = 00:09:40\\n"
        f'    stime = {start}\\n\'\n[ "$2" = -F ] && exit 1 || exit 0',
    )
    wall = Wall(Allocation("pbs", "1.head", ("n01",)), env)
    [said] = told(wall)
    assert re.search(r" in ([3-9]|10) minutes \(at ", said)
    assert "from qstat -f 1.head)" in said
    wall.close()


@pytest.mark.slow
def test_a_scheduler_that_does_not_know_leaves_the_end_unknown(command):
    job = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n01"}
    scripts = ("exit 1", "echo nonsense", "echo 'JobId=12\n EndTime=Unknown\n NodeList=n01'")
    for wall in [Wall(JOB, {**command("scontrol", script), **job}) for script in scripts]:  # all ask at once
        assert told(wall) == []
        assert wall.due() is None
        wall.close()


@pytest.mark.slow
def test_a_command_that_hangs_ends_with_the_launch(command, survivors, tmp_path):
    env = command("scontrol", f"touch {tmp_path}/asked; sleep 300")
    wall = Wall(JOB, {**env, "SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n01"})
    process.wait_until((tmp_path / "asked").exists, 20, "the question")
    assert wall.take(time.monotonic()) is None
    wall.close()
    process.wait_until(lambda: not survivors(), 5, "the end of scontrol")
    assert wall.due() is None
