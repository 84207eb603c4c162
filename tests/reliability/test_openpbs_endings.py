"""Jobs of a real OpenPBS that end before their training does: the newest checkpoint loads, and no step is missing.

`make matrix` runs them, into docs/reliability.md, where an OpenPBS is installed; elsewhere they are skipped.
"""

import concurrent.futures
import os
from typing import NamedTuple

import pytest
from endings import PROGRAMS, Ending, NotStaged
from openpbs_endings import ROWS, PbsJob
from test_slurm_endings import check_left

AT_ONCE = 4
TRIES = 3  # to set the stage, on a machine that is too busy for a training to begin in time


class Planned(NamedTuple):
    """One job of the series."""

    ending: Ending
    program: str
    number: int

    @property
    def cell(self):
        """Its name in the results."""
        return self.ending.cells(self.program)[self.number]


SERIES = [
    Planned(ending, program, number) for ending in ROWS for number in range(ending.repetitions) for program in PROGRAMS
]
if not os.environ.get("EZPZ_MATRIX"):
    pytest.skip("minutes of jobs of a real OpenPBS: make matrix", allow_module_level=True)


@pytest.fixture(scope="module")
def ended(request, _open_pbs):
    """`ended(planned)` waits for the end of a job; `AT_ONCE` run at a time."""
    wanted = [item.callspec.params["planned"] for item in request.session.items if item.path == request.path]

    def bring(planned):
        for left in reversed(range(TRIES)):
            job = PbsJob(_open_pbs, planned.program, planned.ending, planned.ending.ways[planned.number])
            try:
                job.run()
            except NotStaged:
                if not left:
                    raise
            else:
                return job
        raise AssertionError("it is tried at least once")

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        futures = {planned: pool.submit(bring, planned) for planned in wanted} if _open_pbs else {}
        yield lambda planned: futures[planned].result()
        pool.shutdown(cancel_futures=True)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("planned", [pytest.param(planned, id=planned.cell) for planned in SERIES])
def test_a_job_that_ends_loses_nothing(planned, ended, open_pbs, record_property, monkeypatch):
    del open_pbs  # it skips where there is none
    record_property("cell", planned.cell)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "unused")  # torch's optimizers may set it to a folder of their own
    job = ended(planned)
    assert job.status() in planned.ending.state, job.told()
    check_left(job, planned.program, planned.ending)
