"""Jobs of a real Slurm that end before their training does: the newest checkpoint loads, and no step is missing.

`make test` runs one with each program, in a way that the seed of the day draws, of those that do not wait for a minute
to be over; `make matrix` each as often as its row says, some at a time, into docs/reliability.md.
"""

import concurrent.futures
import os
from typing import NamedTuple

import pytest
from endings import ENDINGS, FOR_EVER, LIMIT, PROGRAMS, RECORDED, TRAINER, Ending, Job, NotStaged

from lab import seed

EVERYTHING = bool(os.environ.get("EZPZ_MATRIX"))
AT_ONCE = 5
TRIES = 3  # to set the stage, on a machine that is too busy for a training to begin within a minute
FIRST_STEPS = 100  # within which the loop saves when the signal came before it


class Planned(NamedTuple):
    """One job of the series."""

    ending: Ending
    program: str
    number: int

    @property
    def cell(self):
        """Its name in the results."""
        return self.ending.cells(self.program)[self.number]


def series():
    """Return the jobs to run."""
    jobs = [
        Planned(ending, program, number)
        for ending in ENDINGS
        for number in range(ending.repetitions)
        for program in PROGRAMS
    ]
    if EVERYTHING:
        return jobs
    short = [job for job in jobs if LIMIT not in job.ending.options and job.number < len(job.ending.ways)]
    return [
        seed.pick(seed.of_the_day(), f"slurm endings {program}", [job for job in short if job.program == program])
        for program in PROGRAMS
    ]


@pytest.fixture(scope="module")
def ended(request, tmp_path_factory):
    """`ended(planned)` waits for the end of a job, and tells how often it was staged; `AT_ONCE` run at a time."""
    slurm = request.getfixturevalue("_slurm_by_groups")
    wanted = [item.callspec.params["planned"] for item in request.session.items if item.path == request.path]

    def bring(planned):
        way = planned.ending.ways[planned.number % len(planned.ending.ways)]
        tries = 0
        while True:
            tries += 1
            job = Job(slurm, tmp_path_factory.mktemp("job"), planned.program, planned.ending, way)
            try:
                job.run()
            except NotStaged:
                if tries == TRIES:
                    raise
            else:
                return job, tries

    with (
        concurrent.futures.ThreadPoolExecutor(AT_ONCE - 1) as together,
        concurrent.futures.ThreadPoolExecutor(1) as alone,
    ):
        pools = {False: together, True: alone}
        futures = {planned: pools[planned.ending.alone].submit(bring, planned) for planned in wanted} if slurm else {}
        yield lambda planned: futures[planned].result()
        for pool in pools.values():
            pool.shutdown(cancel_futures=True)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("planned", [pytest.param(planned, id=planned.cell) for planned in series()])
def test_a_job_that_ends_loses_nothing(planned, ended, slurm_by_groups, record_property, monkeypatch):
    pytest.importorskip("torch")
    record_property("cell", planned.cell)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "unused")  # torch's optimizers may set it to a folder of their own
    (job, tries), ending = ended(planned), planned.ending
    if tries > 1:
        record_property("note", f"staged {tries} times")
    assert job.ended in ending.state, (job.ended, job.told())
    check_left(job, planned.program, ending)


def check_left(job, program, ending):
    """Fail when a job that is over has lost anything."""
    from ezpz.track import read_journal
    from ezpz.track.lazy_dataset import open_dataset
    from ezpz.track.run_reader import open_run

    told = job.told()
    run = open_run(job.out)
    launch = job.launch()
    if ending.finishes:
        assert (launch["state"], launch["exit_code"], run.state) == ("finished", 0, "finished"), told
    else:
        assert launch["exit_code"] == 143, (launch, told)
        assert (run.state, run.cause.partition(",")[0]) == ("stopped", "SIGTERM"), told

    steps = [row["step"] for row in read_journal(job.out)]
    last = max(steps)
    assert sorted(set(steps)) == list(range(last + 1)), told
    assert last + 1 == job.steps if ending.finishes else last + 1 >= RECORDED, told
    dataset = open_dataset(job.out / f"{program}.h5")
    assert dataset.sizes["draw"] == len(steps), told
    assert len(steps) - len(set(steps)) <= (0 if program == "fsdp_tp" else 10), told

    done = done_of_checkpoint(job, told)
    if program == "plain":
        assert last - 10 < done <= last + 1, told
    else:
        assert len(list(job.out.glob("checkpoints/step-*"))) >= ending.saves, told
        assert done <= last + 1 if ending.finishes else done == last + 1, told
        assert not ending.compiles or done <= FIRST_STEPS, told


def done_of_checkpoint(job, told):
    """Load the newest checkpoint and return how many steps were done then."""
    import torch  # here, as all that needs it: the quick run collects this file and runs none of it

    from ezpz import checkpoint, train
    from ezpz.checkpoint import find_latest
    from ezpz.examples import fsdp_tp
    from ezpz.models import Llama

    if job.program == "plain":
        saved = torch.load(job.out / "saved.pt")
        assert saved["weights"].isfinite().all()
        return saved["done"]
    newest = find_latest(job.out)
    assert newest is not None, told
    args = train.parse(fsdp_tp.options(), [*TRAINER, "--max_iters", str(min(job.steps, FOR_EVER))])
    model = Llama(fsdp_tp.configure(args))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    schedule = train.make_schedule(optimizer, steps=args.max_iters, **train.schedule_options(args))
    into = checkpoint.Checkpoints(job.folder / "none", model=model, optimizer=optimizer, schedule=schedule)
    return into.load(newest)
