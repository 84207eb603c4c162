"""`played(name, case)` waits for a case that is played beside others; they mostly wait for grace and silence."""

import concurrent.futures
import contextlib
import datetime as dt
import os
import threading
from functools import cache
from pathlib import Path

import pytest
from cases import why_no_stage
from playing import foreign_trouble, play
from stages import Grounds, Stage, flavour_of, problem
from tables import keep

from lab import process
from lab.checkout import ROOT
from lab.require import PARTS, require

MATRIX = os.environ.get("EZPZ_MATRIX", "")
AT_ONCE = max(3, min(6, os.cpu_count() or 1))


@pytest.fixture(scope="module")
def grounds(request):
    slurm = threading.Lock()

    def running():
        with slurm:
            return request.getfixturevalue("_slurm")

    with Grounds(slurm=running) as value:
        yield value


class Floor:
    """Who plays: some at the same time, or one alone, which may break what the others stand on."""

    def __init__(self):
        self._turn = threading.Condition()
        self._playing, self._alone = 0, False

    @contextlib.contextmanager
    def take(self, *, alone):
        with self._turn:
            self._turn.wait_for(lambda: not self._alone and not (alone and self._playing))
            self._alone = alone
            self._playing += 1
        try:
            yield
        finally:
            with self._turn:
                self._playing -= 1
                self._alone = False
                self._turn.notify_all()


@pytest.fixture(scope="module")
def played(request, grounds):
    """Starts all selected cases of the module in order, `AT_ONCE` at a time; `played(name, case)` is one's result.

    Where xdist deals the cases of a file out to several workers (`make matrix ARGS="-n 4"`), each plays its own, one
    after the other.
    """
    floor = Floor()
    wanted = [
        item.callspec.params
        for item in request.session.items
        if item.path == request.path and "case" in item.callspec.params
    ]

    def one(name, case):
        missing = why_no_stage(case, name)
        if missing:
            require(
                "slurm" if flavour_of(name) == "srun" else flavour_of(name) if flavour_of(name) in PARTS else "hosts",
                missing,
            )
        with floor.take(alone=case.alone and flavour_of(name) == "srun"):
            try:
                on_a_stage(name, case)
            except AssertionError as error:
                if not foreign_trouble(str(error)):
                    raise
                on_a_stage(name, case)

    def on_a_stage(name, case):
        stage = Stage(name, grounds, over_hosts=case.over_hosts, fresh=case.fresh)
        try:
            play(case, stage)
        finally:
            stage.close()

    if getattr(request.config, "workerinput", {"dist": "loadfile"})["dist"] not in {"loadfile", "loadscope"}:
        yield one
        return
    pool = concurrent.futures.ThreadPoolExecutor(AT_ONCE)
    if any(flavour_of(params["name"]) == "srun" for params in wanted) and not problem("srun"):
        grounds.job()  # fixtures are made here and not in a thread
    results = {}
    for params in wanted:
        name, case = params["name"], params["case"]
        results[name, case.id] = pool.submit(one, name, case)
    yield lambda name, case: results[name, case.id].result()
    pool.shutdown(cancel_futures=True)


def pytest_runtest_logreport(report):
    """With ``EZPZ_MATRIX=FILE`` note what came of each cell, when, why it was skipped or the test's note, the commit.

    What earlier runs have found stays beside it. With xdist the reports of all workers come to the process that has
    started them, which alone writes.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    properties = dict(report.user_properties)
    told = properties.get("cell")
    if not (MATRIX and told) or (report.when != "call" and report.passed):
        return
    today = dt.datetime.now(dt.timezone.utc).date().isoformat()
    outcome = "skipped" if report.skipped else "ok" if report.passed else "**failed**"
    why = report.longrepr[2].removeprefix("Skipped: ") if report.skipped else properties.get("note", "")
    keep(Path(MATRIX), told, [outcome, today, why, _commit()])


@cache
def _commit():
    """The short hash of what is tested, with ``-dirty`` where files differ from it; "" without git."""
    return process.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--exclude=*"]).stdout.strip()
