"""Who a rank is where the environment does not say it: mpi4py is asked, replaced here by a stand-in."""

import sys
import types

import pytest

from ezpz.dist import job_around
from ezpz.errors import RankError


@pytest.fixture(autouse=True)
def _no_answer_yet(monkeypatch):
    monkeypatch.setattr(job_around, "_by_mpi", None)
    for name in ("RANK", *job_around._SIGNS):
        monkeypatch.delenv(name, raising=False)


def mpi(monkeypatch, rank, size, local=(0, 1), *, started=True):
    """An mpi4py that answers so; its local communicator is freed after use."""
    freed = []
    host = types.SimpleNamespace(Get_rank=lambda: local[0], Get_size=lambda: local[1], Free=lambda: freed.append(1))
    everybody = types.SimpleNamespace(Get_rank=lambda: rank, Get_size=lambda: size, Split_type=lambda _kind: host)
    module = types.ModuleType("mpi4py.MPI")
    module.COMM_WORLD, module.COMM_TYPE_SHARED = everybody, 0
    module.Is_initialized, module.Is_finalized = lambda: started, lambda: False
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)
    return freed


def test_an_mpi_that_the_script_has_started_is_asked(monkeypatch):
    freed = mpi(monkeypatch, 3, 4, (1, 2))
    assert tuple(job_around.this_rank()) == (3, 4, 1, 2, None, "mpi4py")
    assert (job_around.get_rank(), job_around.get_world_size(), job_around.get_local_rank()) == (3, 4, 1)
    assert freed == [1]  # asked once: the question is collective


def test_an_mpi_that_was_only_imported_is_not_an_answer(monkeypatch):
    mpi(monkeypatch, 3, 4, started=False)
    assert job_around.this_rank().family == "alone"


def test_the_environment_stands_above_mpi(monkeypatch):
    mpi(monkeypatch, 3, 4)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert tuple(job_around.this_rank())[:2] == (1, 2)


def test_an_unknown_launcher_without_mpi4py_is_an_error_and_not_rank_0(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setenv("PMIX_RANK", "2")
    with pytest.raises(RankError, match=r"PMIX_RANK=2 .*mpi4py cannot be asked.*unset PMIX_RANK"):
        job_around.this_rank()


AURORA = {"PALS_RANKID": "3", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "2", "PALS_NODEID": "1", "PMIX_RANK": "3"}


def test_pals_without_a_size_is_solved_by_mpi_and_stays_so(monkeypatch):
    mpi(monkeypatch, 3, 4, (1, 2))
    for name, value in AURORA.items():
        monkeypatch.setenv(name, value)
    assert tuple(job_around.this_rank()) == (3, 4, 1, 2, None, "mpi4py")
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)  # as setup_torch does
    assert tuple(job_around.this_rank())[:5] == (3, 4, 1, 2, None)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(RankError, match=r"rank 0 of 4 \(from RANK, WORLD_SIZE\) but rank 3 of 4 \(from pals\)"):
        job_around.this_rank()


def test_pals_without_a_size_and_without_mpi4py_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    for name, value in AURORA.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RankError, match=r"PALS_RANKID=3 .*mpi4py cannot be asked.*ezpz launch"):
        job_around.this_rank()


def test_an_mpi4py_of_another_mpi_is_an_error_that_names_both(monkeypatch):
    mpi(monkeypatch, 0, 1)
    monkeypatch.setenv("PMIX_RANK", "2")
    with pytest.raises(RankError, match=r"mpi4py says rank 0 of 1, but PMIX_RANK=2 \(from the launcher\)"):
        job_around.this_rank()
