"""What a stranger does first, on distributions with their own Python and MPIs: `make distros`.

Each test is a row of a table in docs/reliability.md, in this order.
"""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from cases import CASES
from distributions import LAUNCHERS, NOBODY, OTHERS, ROOT_USER, Distribution, StageThere, give, own_name
from playing import play
from stages import Grounds

from ezpz.track import read_journal
from lab import process
from lab.checkout import ROOT, copy_checkout, readme_line
from lab.require import require

if not os.environ.get("EZPZ_MATRIX"):
    pytest.skip("some 20 minutes for all distributions: make distros", allow_module_level=True)
NAMES = tuple(dict.fromkeys((own_name(), *OTHERS)))
UTILS = ROOT / "src" / "ezpz" / "bin" / "utils.sh"
PROGRAMS = ROOT / "tests" / "reliability"
FAULTS = [case for case in CASES if case.core]
MPIS = [name for name in LAUNCHERS if name != "none"]


@pytest.fixture(scope="module", params=NAMES)
def distribution(request):
    """Each distribution in turn, this machine's own first."""
    value = Distribution(request.param)
    problem = value.problem()
    require("distribution" if value.own else "distributions", problem)
    return value


@pytest.fixture
def row(distribution, record_property):
    """`row(text)` names the row of the table that a test fills."""
    return lambda text: record_property("cell", f"{distribution.name} {text}")


@pytest.fixture
def folder(tmp_path):
    """The working folder of who runs there."""
    path = tmp_path / "work"
    path.mkdir()
    return path


def told(done):
    return f"exit code {done.returncode}\n--- stdout\n{done.stdout[-3000:]}\n--- stderr\n{done.stderr[-3000:]}"


def test_setting_up_without_the_package_python3_venv_is_one_clear_line(distribution, row, folder, tag):
    row("`ezpz_setup_env` without the package python3-venv: one line, exit code 125")
    if distribution.own:
        pytest.skip("python3-venv is installed on this machine")
    line = f"source {UTILS} && ezpz_setup_env"
    env = {**distribution.env(folder, tag), "PATH": "/usr/bin:/bin"}
    done = distribution.run(["bash", "-c", line], folder, tag, env=env, with_venv=False)
    assert done.returncode == 125, told(done)
    (error,) = [line for line in done.stderr.splitlines() if "error" in line]
    version = ".".join(distribution.versions()["Python"].split(".")[:2])
    assert f"Install the package python3-venv (python{version}-venv)" in error, error
    assert sorted(path.name for path in folder.iterdir()) == ["home"]


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("mpi", MPIS)
def test_the_readmes_two_commands_and_then_twice_more(distribution, row, folder, tag, mpi):
    row(f"the README's two commands, then twice more, {LAUNCHERS[mpi]}")
    need_torch(distribution)
    checkout = copy_checkout(folder / "ezpz")
    env = {**distribution.env(folder, tag), "PATH": "/usr/bin:/bin"}
    del env["PYTHONPATH"]
    for number in range(3):
        line = f"cd {checkout} && {readme_line()}"
        done = distribution.run(
            ["bash", "-c", line], folder, tag, mpi=mpi, env=env, timeout=1000 if not number else 120
        )
        assert done.returncode == 0, told(done)
        assert f"python3 is {checkout}/.venv/bin/python3" in done.stderr, told(done)
        assert re.search(rf"ezpz: {LAUNCHERS[mpi]}[ \d]* launcher \(/usr/bin/mpiexec on PATH\)", done.stderr), told(
            done
        )
        assert "[rank=0/2]" in done.stdout, told(done)
        assert len(list((checkout / "outputs" / "test_dist").iterdir())) == number + 1


@pytest.mark.parametrize("mpi", MPIS)
def test_a_rank_that_starts_the_distributions_mpi_is_ended_where_no_mpi_was_wanted(distribution, row, folder, tag, mpi):
    row(f"`launch --mpi no`, and a rank starts {LAUNCHERS[mpi]}: exit code 125, no world of 1")
    library = {"mpich": "libmpich.so.12", "openmpi": "libmpi.so.40"}[mpi]
    init = f"import ctypes; ctypes.CDLL('{library}', mode=ctypes.RTLD_GLOBAL).MPI_Init(None, None); print('alone')"
    words = ["python3", "-m", "ezpz.launch", "--mpi", "no", "-n", "2", "python3", "-c", init]
    done = distribution.run(words, folder, tag, mpi=mpi)
    assert done.returncode == 125, told(done)
    assert "cannot start an MPI: " in done.stderr, told(done)
    assert "launch --mpi yes" in done.stderr, told(done)
    assert "alone" not in done.stdout, told(done)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mpi", MPIS)
def test_a_trainer_is_killed_and_goes_on_from_its_checkpoint(distribution, row, folder, tag, mpi):
    row(f"a trainer saves, is killed with SIGKILL and goes on, {LAUNCHERS[mpi]}")
    need_torch(distribution)
    run = folder / "run"
    words = ["python3", "-m", "ezpz.launch", "-n", "2", "python3", "-m", "ezpz.examples.fsdp_tp", "--preset", "debug"]
    words += ["--max_iters", "200", "--seq_len", "32", "--batch_size", "4", "--save_freq", "10", "--no_plots"]
    words += ["--resume", "auto", "--outdir", str(run)]
    env = distribution.env(folder, tag, OMP_NUM_THREADS="1")
    give(folder, NOBODY)
    start = distribution.entering(mpi=mpi, folder=folder)
    with (
        (folder / "said").open("w") as said,
        subprocess.Popen(
            [*start, *words], env=env, cwd=folder, stdout=said, stderr=said, start_new_session=True
        ) as launch,
    ):
        process.wait_until(lambda: len(list(run.glob("checkpoints/step-*"))) >= 2, 120, "two checkpoints", every=0.02)
        os.kill(json.loads((run / "run.json").read_text())["process"]["pid"], signal.SIGKILL)
        code = launch.wait(30)
    assert code == 128 + signal.SIGKILL, (folder / "said").read_text()
    assert "was killed by SIGKILL" in (folder / "said").read_text()

    newest = max(int(path.name[5:13]) for path in run.glob("checkpoints/step-*"))
    done = distribution.run(words, folder, tag, mpi=mpi, env=env, timeout=150)
    assert done.returncode == 0, told(done)
    assert f"step-{newest:08d}" in done.stdout, told(done)
    assert newest < 200
    # The row of the step that saved tells how long that took, and so is written after it.
    assert {row["step"] for row in read_journal(run)} >= set(range(200)) - {newest - 1}


@pytest.mark.parametrize("mpi", LAUNCHERS)
def test_three_launches_of_python3_by_its_name(distribution, row, folder, tag, mpi):
    row(f"`launch python3 …` three times, {LAUNCHERS[mpi]}")
    program = "import os, sys; print(os.environ['RANK'], sys.executable)"
    for _ in range(3):
        words = ["-m", "ezpz.launch", "-n", "3", "python3", "-c", program]
        done = distribution.run(["python3", *words], folder, tag, mpi=mpi)
        assert done.returncode == 0, told(done)
        assert sorted(done.stdout.splitlines()) == [f"{rank} {distribution.bin}/python3" for rank in range(3)], told(
            done
        )
        assert LAUNCHERS[mpi] in done.stderr, told(done)
        assert all(line.startswith("ezpz: ") for line in done.stderr.splitlines()), told(done)


@pytest.mark.parametrize("mpi", LAUNCHERS)
def test_root_launches_too(distribution, row, folder, tag, mpi):
    row(f"the same as root, {LAUNCHERS[mpi]}")
    words = ["python3", "-m", "ezpz.launch", "-n", "2", "sh", "-c", 'echo "$RANK of $WORLD_SIZE"; exit 0']
    done = distribution.run(words, folder, tag, mpi=mpi, user=ROOT_USER)
    assert done.returncode == 0, told(done)
    assert sorted(done.stdout.splitlines()) == ["0 of 2", "1 of 2"], told(done)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mpi", LAUNCHERS)
def test_faults_end_as_promised(distribution, row, mpi):
    row(f"ends and faults, {LAUNCHERS[mpi]}")
    with Grounds() as grounds:
        for case in FAULTS:
            if distribution.flavour(mpi) not in case.not_on:
                stage = StageThere(distribution, mpi, grounds)
                try:
                    play(case, stage)
                finally:
                    stage.close()


def test_a_history_without_torch_is_finished_listed_drawn_and_reported(distribution, row, folder, tag):
    row("a `History` without torch: `finalize`, `ezpz runs`, `plot`, `export`, `report`")
    if distribution.own:
        need_torch(distribution)  # its venv sees what .test/venv has, or nothing
    run = folder / "outputs" / "plain" / "one"
    lines = [["python3", PROGRAMS / "record_history.py", run]]
    verbs = (["runs"], ["plot", run, "loss"], ["export", run, "--csv"], ["report", run])
    lines += [["python3", "-m", "ezpz", *words] for words in verbs]
    said = []
    for words in lines:
        done = distribution.run(words, folder, tag)
        assert done.returncode == 0, told(done)
        assert "Warning" not in done.stderr, told(done)
        said.append(done.stdout)
    assert re.search(r"^finished .* 199 .* plain/one$", said[1], re.MULTILINE), said[1]
    assert "┤" in said[2]
    assert (run / "plain.h5").stat().st_size > 1000
    assert (run / "report.html").stat().st_size > 10_000


def test_the_shell_tells_the_job_and_launches(distribution, row, folder, tag):
    row("`ezpz_setup_job` and `launch` of `utils.sh`")
    line = f'set -euo pipefail; source {UTILS}; ezpz_setup_job; launch -n 2 echo up; echo "$NHOSTS of $EZPZ_SCHEDULER"'
    done = distribution.run(["bash", "-c", line], folder, tag)
    assert done.returncode == 0, told(done)
    assert done.stdout.splitlines()[-3:] == ["up", "up", "1 of none"], told(done)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_quick_tests_of_an_ordinary_user(distribution, row, folder, tag):
    row("the quick tests (`pytest`), without torch")
    if distribution.own:
        pytest.skip("`make test` runs them on this machine")
    checkout = copy_checkout(folder / "ezpz", without=())
    env = distribution.env(folder, tag, PYTHONPATH=str(checkout / "src"))
    del env["EZPZ_NGPU_PER_HOST"]
    line = f"cd {checkout} && python3 -m pytest -q -p no:cacheprovider"
    done = distribution.run(["bash", "-c", line], folder, tag, env=env, timeout=800)
    assert done.returncode == 0, told(done)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Folders with a checkpoint's `.metadata` as each distribution's Python pickles it, and as the tests' own does."""
    top = tmp_path_factory.mktemp("written")
    program = PROGRAMS / "metadata_pickles.py"
    (top / "tests").mkdir()
    process.run([sys.executable, program, "write", top / "tests"], timeout=60).check_returncode()
    for name in NAMES:
        there = Distribution(name)
        if not there.problem():
            (top / name).mkdir()
            done = there.run(["python3", program, "write", top / name], top / name, "ezt-pickles")
            assert done.returncode == 0, told(done)
    return top


def test_the_metadata_that_every_other_python_pickles_is_read(distribution, row, folder, tag, written):
    row("`.metadata` of a checkpoint as every other Python pickles it is read")
    found = sorted(path for path in written.iterdir())
    assert len(found) >= 2
    for path in found:
        (folder / path.name).mkdir()
        (folder / path.name / ".metadata").write_bytes((path / ".metadata").read_bytes())
    words = ["python3", PROGRAMS / "metadata_pickles.py", "read", *(path.name for path in found)]
    done = distribution.run(words, folder, tag)
    assert done.returncode == 0, told(done)
    assert done.stdout.splitlines() == [f"read {path.name}" for path in found]


def need_torch(distribution):
    problem = distribution.torch_problem()
    if problem:
        pytest.skip(problem)
