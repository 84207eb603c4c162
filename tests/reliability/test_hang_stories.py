"""Runs of torch that hang or raise, told to their end: one line names who, on which host, where. Real gloo ranks."""

import re
from pathlib import Path

import pytest
from lost import with_fakes
from stages import Stage, problem

from lab import process
from lab.require import require

STORIES = Path(__file__).parent / "stories"
THREADS = {"OMP_NUM_THREADS": "1"}
# Where the shim of rank 2 never starts: each rank gets what Hydra would tell it.
ABSENT = """#!/bin/bash
[[ $* == *--version* ]] && exec {real} "$@"
while [[ $1 != /* ]]; do shift; done
export PMI_SIZE=3 MPI_LOCALNRANKS=3
for rank in 0 1; do PMI_RANK=$rank MPI_LOCALRANKID=$rank "$@" & done
sleep 600
"""


def line_of(story, words):
    """The number of the line of a story that holds `words`."""
    lines = (STORIES / f"{story}.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if words in line)


@pytest.fixture
def tell(grounds):
    """`tell(flavour, options, story)` -> the ended `Run`, of three ranks unless told."""
    stages = []

    def run_story(name, options, story, *more, setup=None, timeout=60):
        if name != "local":
            require({"srun": "slurm", "ssh": "hosts"}.get(name, name), problem(name))
        stage = Stage(name, grounds)
        stages.append(stage)
        if setup:
            setup(stage)
        command = ["python3", STORIES / f"{story}.py", *more]
        run = stage.start(options, command, env=THREADS, wrap=with_fakes if setup else None)
        process.wait_until(lambda: run.process.poll() is not None, timeout, "the end of the launch")
        process.wait_until(lambda: not run.left(), 3, f"the end of all processes: {run.left()}")
        assert b"never" not in run.output()
        return run

    yield run_story
    for stage in stages:
        stage.close()


def the_line(run, pattern):
    found = [line for line in run.errors().splitlines() if re.search(pattern, line)]
    assert len(found) == 1, f"{pattern}:\n{run.errors()}"
    return found[0]


@pytest.mark.dear
@pytest.mark.timeout(600)
def test_a_rank_that_sleeps_before_a_collective_is_named_with_its_line(tell):
    run = tell("mpich", ["--timeout", "15"], "sleeper")
    assert run.process.returncode == 124, run.errors()
    line = the_line(run, r"^ezpz: (?!.*asking).*--timeout")
    assert f"oversleep (sleeper.py:{line_of('sleeper', 'time.sleep')})" in line
    assert re.search(r"rank 1 (on \S+ )?in oversleep", line)
    assert re.search(rf"all_reduce \(sleeper\.py:{line_of('sleeper', 'dist.all_reduce')}\)", line)


@pytest.mark.timeout(600)
def test_mismatched_collectives_are_named_with_their_lines(tell):
    run = tell("srun", ["--idle-timeout", "3"], "mismatched")
    assert run.process.returncode == 124, run.errors()
    line = the_line(run, r"^ezpz: (?!.*asking)rank \d on host n0[12] .*--idle-timeout")
    assert re.search(rf"rank 1 on n01 in barrier \(mismatched\.py:{line_of('mismatched', 'dist.barrier')}\)", line)
    assert re.search(rf"all_reduce \(mismatched\.py:{line_of('mismatched', 'dist.all_reduce')}\)", line)


@pytest.mark.dear
@pytest.mark.timeout(600)
def test_a_worker_that_raises_is_the_cause_and_its_words_stand_once(tell):
    run = tell("openmpi", ["--timeout", "50"], "loader")
    assert run.process.returncode == 1, run.errors()
    the_line(run, r"^ezpz: rank 1 on host \S+ \(pid \d+\) exited with code 1")
    assert len(re.findall(r"^(\[rank1\]: )?ValueError: sample 9 is broken", run.errors(), re.MULTILINE)) == 1, (
        run.errors()
    )


@pytest.mark.dear
@pytest.mark.timeout(600)
def test_a_worker_that_never_delivers_is_named_as_the_data_loader_of_its_rank(tell):
    run = tell("impi", ["--idle-timeout", "4"], "stuck_loader")
    assert run.process.returncode == 124, run.errors()
    line = the_line(run, r"^ezpz: (?!.*asking).*--idle-timeout")
    where = line_of("stuck_loader", "in DataLoader(")
    assert re.search(rf"rank 1 (on \S+ )?in DataLoader \(stuck_loader\.py:{where}\)", line), line
    assert re.search(rf"all_reduce \(stuck_loader\.py:{line_of('stuck_loader', 'dist.all_reduce')}\)", line), line


@pytest.mark.timeout(600)
def test_a_rank_that_never_starts_is_told_before_anybody_waits_for_it(tell):
    def absent(stage):
        (stage.folder / "bin").mkdir()
        process.program(stage.folder / "bin" / "mpiexec", ABSENT.format(real=stage.mpi.mpiexec))

    run = tell("mpich", ["--start-timeout", "3"], "sleeper", setup=absent, timeout=20)
    assert run.process.returncode == 125, run.errors()
    assert "2 of 3 ranks" in the_line(run, r"^ezpz: .*within 3 s"), run.errors()


@pytest.mark.dear
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "name"), [("fabric", "local"), ("accelerate", "mpich")])
def test_a_script_that_raises_shows_its_own_traceback_once_and_last(tell, kind, name):
    run = tell(name, ["-n", "2"], "raises", kind)
    errors = run.errors()
    assert run.process.returncode == 1, errors
    assert errors.count("Traceback (most recent call last)") == 1, errors
    assert errors.count('raise ValueError("loss is nan at step 2")') == 1, errors
    the_line(run, r"^ezpz: rank 1 on host \S+ \(pid \d+\) exited with code 1")
    assert errors.rstrip().endswith("ValueError: loss is nan at step 2"), errors
    assert "/ezpz/launch/" not in errors
