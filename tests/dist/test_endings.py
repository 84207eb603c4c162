"""One rank fails before, during or after set-up: the job ends soon, with every launcher, and nothing is left.

`make test` runs the cases in which a launcher is most likely to let the others wait; `make matrix` runs them all.
"""

import itertools
import os
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("end_one_rank.py")
SOON = 150  # against 300 s of the rendezvous and 600 s of a sleep; torch's import is most of what is measured
ALL = [
    case
    for case in itertools.product(("raise", "exit", "kill"), ("before", "during", "after"), ("collective", "sleep"))
    # Nobody can tell a rank that sleeps that another one has left it by sys.exit or by a signal, without a launcher
    # that looks; and before the ranks have met, none is connected with any other.
    if case[2] == "collective" or (case[0] == "raise" and case[1] != "during")
]
CORE = [("raise", "after", "sleep"), ("exit", "before", "collective"), ("kill", "after", "collective")]
MATRIX = os.environ.get("EZPZ_MATRIX")
CASES = ALL if MATRIX else CORE
CODES = {"raise": 1, "exit": 3, "kill": 137}


def few(flavour):
    """How many ranks: one flavour shows that all others are told, as each rank costs seconds for torch."""
    return 3 if MATRIX or flavour.name == "mpich" else 2


def ends(run_cli, line, env, case):
    begin = time.monotonic()
    done = run_cli([*line, SCRIPT, *case], env, SOON + 30)
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    assert time.monotonic() - begin < SOON, said
    if case[0] == "raise":
        assert "ValueError: no such luck" in said
    return done


@pytest.mark.dear
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_bare_mpiexec_ends(flavour, run_cli, case):
    ends(run_cli, flavour.command(few(flavour), [flavour.python]), flavour.bare_env(), case)


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.parametrize("case", ALL if MATRIX else CORE[:1], ids="-".join)
def test_torchrun_ends(run_cli, clean_env, case):
    ends(run_cli, [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3"], clean_env, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL if MATRIX else [CORE[0], ("exit", "after", "collective")], ids="-".join)
def test_our_launcher_ends_with_the_code_of_the_rank_that_failed(run_cli, clean_env, case):
    launch = [sys.executable, "-m", "ezpz.launch", "-n", "3", sys.executable]
    done = ends(run_cli, launch, clean_env, case)
    assert done.returncode == CODES[case[0]], done.stderr
    assert "rank 1" in done.stderr.splitlines()[-1] + done.stderr


@pytest.mark.dear
@pytest.mark.parametrize("case", ALL if MATRIX else CORE[:2], ids="-".join)
def test_a_bare_srun_ends(slurm, clean_env, case):
    begin = time.monotonic()
    line = ["srun", "-n3", "--overcommit", sys.executable, str(SCRIPT), *case]
    done = slurm.salloc(["-N1", "-n2"], line, clean_env)
    assert done.returncode != 0, done.stdout + done.stderr
    assert time.monotonic() - begin < SOON


@pytest.mark.slow
def test_an_error_of_ours_that_nobody_catches_has_its_own_code_and_no_traceback_of_ours(run_cli, clean_env, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import ezpz\n\ndef main():\n    ezpz.setup_torch(tensor_parallel_size=3)\n\nmain()\n")
    done = run_cli([sys.executable, script], clean_env)
    assert done.returncode == 2
    assert "line 4, in main" in done.stderr
    assert str(Path("ezpz", "dist")) not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("ezpz.errors.UsageError: ")


@pytest.mark.dear
@pytest.mark.parametrize("how", ["raise", "exit"] if MATRIX else ["raise"])
def test_a_rank_does_not_wait_in_mpi_finalize_for_others(flavour, run_cli, tmp_path, how):
    script = tmp_path / "script.py"
    last = "raise ValueError('no such luck')" if how == "raise" else "sys.exit(3)"
    script.write_text(
        "import sys, time\nfrom mpi4py import MPI\nimport ezpz\n"
        f"if ezpz.setup_torch() == 1:\n    {last}\n"
        "time.sleep(600 if len(sys.argv) > 1 else 0)\n"
    )
    arguments = ["others sleep"] if how == "raise" else []  # after sys.exit MPI waits for the others, as it should
    begin = time.monotonic()
    done = run_cli(flavour.command(few(flavour), [flavour.python, script, *arguments]), flavour.bare_env(), SOON + 30)
    assert done.returncode != 0, done.stdout
    assert time.monotonic() - begin < SOON
