"""Whether a rank refuses a world that was not planned.

mpi4py is staged by a module of that name: the suite has no wheel of it. The words and values are those of mpi4py 4.1.2
on the libraries of MPICH 5.0.2 and Open MPI 5.0.11 under each other's mpiexec.
"""

import os
import sys
from pathlib import Path

import pytest

import ezpz
from ezpz.dist.verify_world import check_mpi, check_plan
from ezpz.errors import RankError
from ezpz.ranks import Ranks, from_environ
from lab import process
from lab.listener import as_rank

SRC = str(Path(ezpz.__file__).parents[1])
pytestmark = pytest.mark.timeout(120)

OPEN_MPI = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11"
MPI4PY = """\
import os
Is_initialized = lambda: os.environ.get("FAKE_MPI") != "not started"
Is_finalized = lambda: os.environ.get("FAKE_MPI") == "finalized"
Get_library_version = lambda: os.environ["FAKE_LIBRARY"]
class COMM_WORLD:
    Get_rank = staticmethod(lambda: int(os.environ["FAKE_MPI"].split("/")[0]))
    Get_size = staticmethod(lambda: int(os.environ["FAKE_MPI"].split("/")[1]))
"""


@pytest.fixture
def mpi(tmp_path, monkeypatch):
    """`mpi("0/1")` loads a module called mpi4py.MPI that says rank 0 of 1."""

    def load(says, library=OPEN_MPI):
        (tmp_path / "mpi4py").mkdir()
        (tmp_path / "mpi4py" / "__init__.py").touch()
        (tmp_path / "mpi4py" / "MPI.py").write_text(MPI4PY)
        monkeypatch.setenv("FAKE_MPI", says)
        monkeypatch.setenv("FAKE_LIBRARY", library)
        monkeypatch.syspath_prepend(str(tmp_path))
        __import__("mpi4py.MPI")

    yield load
    for name in ("mpi4py", "mpi4py.MPI"):
        sys.modules.pop(name, None)


def rank(rank, world, family="contract"):
    return Ranks(rank, world, rank, world, 0, family)


def planned(number, world, flavour="MPICH", **more):
    return {**as_rank(number, world), "EZPZ_FLAVOUR": flavour, **more}


def test_the_planned_world_is_accepted():
    environ = planned(3, 8, EZPZ_PLACEMENT="4(x2)")
    check_plan(from_environ(environ), environ)


def test_another_world_than_the_planned_one_is_refused():
    environ = planned(0, 4, EZPZ_PLACEMENT="4(x2)")
    with pytest.raises(
        RankError, match=r"rank 0 belongs to a world of 4 \(from contract\); expected 8 \(EZPZ_PLACEMENT=4\(x2\)"
    ):
        check_plan(from_environ(environ), environ)


@pytest.mark.parametrize(
    "changed", [{"TORCHELASTIC_RUN_ID": "none"}, {"EZPZ_RUN_ID": ""}], ids=["torchrun inside a rank", "no launch"]
)
def test_a_world_inside_a_rank_is_its_own(changed):
    environ = planned(0, 4, EZPZ_PLACEMENT="1(x2)", **changed)
    check_plan(from_environ(environ), environ)


def test_nobody_is_asked_where_no_mpi_was_started(mpi):
    check_mpi(rank(3, 8), {})
    mpi("not started")
    check_mpi(rank(3, 8), {})


def test_an_mpi_that_agrees_or_has_ended_is_no_trouble(mpi, monkeypatch):
    mpi("3/8")
    check_mpi(rank(3, 8), planned(3, 8))
    monkeypatch.setenv("FAKE_MPI", "finalized")
    check_mpi(rank(3, 8), planned(3, 8))


def test_an_mpi4py_for_another_mpi_is_named_with_both(mpi):
    mpi("0/1")
    words = (
        r"mpi4py says rank 0 of 1, the launch planned 8: mpi4py was built for another MPI \(Open MPI v5\.0\.11\) than "
        r"the launcher's \(MPICH\); expected rank 3 of 8\. Install mpi4py"
    )
    with pytest.raises(RankError, match=words):
        check_mpi(rank(3, 8), planned(3, 8))


def test_the_same_holds_under_a_bare_mpiexec(mpi):
    mpi("0/1", "MPICH Version:      5.0.2\nMPICH Release date: Fri Sep 25")
    with pytest.raises(RankError, match=r"the launcher says rank 3 of 8: .* \(MPICH Version: 5\.0\.2\) .* \(openmpi\)"):
        check_mpi(rank(3, 8, "openmpi"), {})


@pytest.mark.parametrize("flavour", ["local", "ssh", "torchrun"])
def test_an_mpi4py_that_no_mpi_started_is_a_warning(mpi, capsys, flavour):
    """Libraries import mpi4py unasked."""
    mpi("0/1")
    check_mpi(rank(0, 8), planned(0, 8, flavour, EZPZ_NO_MPI="1"))
    assert f"no MPI started these ranks ({flavour})" in capsys.readouterr().out


def test_ranks_in_another_order_are_refused_under_every_launcher(mpi):
    mpi("5/8")
    with pytest.raises(RankError, match=r"mpi4py says rank 5 of 8, .* \(this is rank 3 from RANK, WORLD_SIZE\)"):
        check_mpi(rank(3, 8), planned(3, 8, "local", EZPZ_NO_MPI="1"))


IN_TORCH = """\
import os, sys
import torch.distributed as dist
import ezpz
from ezpz.errors import RankError

def refused(word):
    try:
        ezpz.setup_torch()
    except RankError as error:
        assert word in str(error), error
        print(error)
    else:
        sys.exit("not refused")

# A world that the script made smaller than the plan.
os.environ.update(EZPZ_PLACEMENT="2")
refused("belongs to a world of 1 (from contract); expected 2")
os.environ.update(EZPZ_PLACEMENT="1")

# mpi4py from the folder of this test, which says rank 0 of 3.
import mpi4py.MPI
refused("mpi4py says rank 0 of 3, the launch planned 1")
os.environ.update(FAKE_MPI="0/1")

# A group that the script made, and one that is not this rank's.
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
assert ezpz.setup_torch() == 0
os.environ.update(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2", EZPZ_PLACEMENT="2")
refused("torch's process group says rank 0 of 1 (from the script's init_process_group), but this is rank 1 of 2")
"""


@pytest.mark.slow
def test_setup_torch_refuses_each_of_them(clean_env, tmp_path):
    """One process for all that needs torch."""
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").touch()
    (tmp_path / "mpi4py" / "MPI.py").write_text(MPI4PY)
    path = os.pathsep.join([SRC, str(tmp_path)])
    told = {**planned(0, 1), "PYTHONPATH": path, "FAKE_MPI": "0/3", "FAKE_LIBRARY": OPEN_MPI}
    done = process.run([sys.executable, "-c", IN_TORCH], {**clean_env, **told}, timeout=90, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 3
