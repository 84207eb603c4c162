"""Lines, as lists of words, for every flavour."""

import shlex
import sys

import pytest

from ezpz.cluster import Allocation
from ezpz.errors import LaunchError
from ezpz.launch import LaunchPlan, Placement
from ezpz.launch.contract import inherited
from ezpz.launch.flavours import flavour, identify
from ezpz.launch.plan import SHIM, choose

ONE = Placement(("here",), (2,), "-n")
TWO = Placement(("n01", "n02"), (2, 1), "-n")
EVEN = Placement(("n01", "n02"), (2, 2), "-n")
VERSIONS = {
    "mpich": "HYDRA build details:\n    Version:                                 5.0.2\n",
    "impi": "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)\n",
    "openmpi": "mpiexec (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n",
}


def test_a_flavour_is_known_by_what_it_says():
    assert {name: identify(text).__name__.rpartition(".")[2] for name, text in VERSIONS.items()} == dict(
        zip(VERSIONS, VERSIONS, strict=True)
    )
    assert identify("mpiexec (OpenRTE) 4.1.8\n").NAME == "Open MPI"
    assert identify("garbage") is None
    assert identify("") is None


@pytest.mark.parametrize(
    ("name", "placement", "hostfile", "line"),
    [
        ("mpich", ONE, "", "mpiexec -n 2 -launcher fork"),
        ("mpich", TWO, "/f", "mpiexec -n 3 -f /f"),
        ("impi", ONE, "", "mpiexec -n 2 -bootstrap fork"),
        ("impi", TWO, "/f", "mpiexec -n 3 -machinefile /f"),
        ("openmpi", ONE, "", "mpiexec -n 2 --map-by slot:OVERSUBSCRIBE --bind-to none"),
    ],
)
def test_the_line_of_a_flavour(name, placement, hostfile, line):
    assert shlex.join(flavour(name).command("mpiexec", placement, hostfile)) == line


def test_srun_states_every_count(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "16(x2)")
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    even = flavour("srun").command("srun", EVEN, "/f")
    uneven = flavour("srun").command("srun", TWO, "/f")

    assert even[:5] == ["srun", "-N", "2", "-n", "4"]
    assert {"--ntasks-per-node=2", "--nodelist=n01,n02", "--export=ALL", "--kill-on-bad-exit=1"} < set(even)
    assert even[even.index("-c") + 1] == "8"
    assert {"--distribution=arbitrary", "--nodelist=/f"} < set(uneven)
    assert flavour("srun").environment(EVEN) == {"OMP_NUM_THREADS": "8"}


def test_open_mpi_names_the_users_variables_for_other_hosts(monkeypatch):
    monkeypatch.setenv("MY_OWN", "a b")
    monkeypatch.setenv("BASH_FUNC_f%%", "() { :; }")
    others = ("SSH_AUTH_SOCK", "DISPLAY", "PBS_JOBID", "PWDX", "HOSTNAME_MAP")
    for name in (*others, "PWD", "HOSTNAME", "OMPI_MCA_x", "SLURM_PROCID"):
        monkeypatch.setenv(name, "1")
    words = flavour("openmpi").command("mpiexec", TWO, "/f")
    assert {"MY_OWN", *others} < set(words)
    assert not {"PWD", "HOSTNAME", "OMPI_MCA_x", "SLURM_PROCID"} & set(words)
    assert not any("%" in word for word in words)
    plan = LaunchPlan(TWO, flavour("openmpi"), "mpiexec", "test", hostfile="/f")
    assert {"MASTER_ADDR", "EZPZ_PLACEMENT"} < set(plan.argv(["true"]))


def test_the_shim_stands_in_front_of_the_program():
    plan = LaunchPlan(ONE, flavour("mpich"), "mpiexec", "test")
    assert plan.argv(["x", "a b"])[-6:] == [sys.executable, "-I", "-S", SHIM, "x", "a b"]
    assert plan.prefix() == ["mpiexec", "-n", "2", "-launcher", "fork"]


@pytest.mark.parametrize(
    ("name", "lines"),
    [("mpich", ["n01:2", "n02:1"]), ("impi", ["n01:2", "n02:1"]), ("openmpi", ["n01 slots=2", "n02 slots=1"])],
)
def test_host_files_speak_the_dialect(name, lines):
    assert [flavour(name).hostfile_line(*pair) for pair in zip(TWO.hosts, TWO.counts, strict=True)] == lines
    assert flavour("srun").hostfile_line("n01", 2) == "n01\nn01"


def test_the_choice_of_a_launcher(tmp_path):
    def program(name):
        path = tmp_path / name
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return str(path)

    environ = {"PATH": str(tmp_path)}
    here = Placement(("localhost",), (2,), "-n")
    alone = Allocation("none", "", ("localhost",))
    slurm = Allocation("slurm", "7", ("n01", "n02"))

    assert choose(alone, here, environ, lambda _: None)[0] is None
    with pytest.raises(LaunchError, match=r"no mpiexec on PATH.*Load the site's MPI module"):
        choose(alone, TWO, environ, lambda _: None)
    mpiexec = program("mpiexec")
    assert choose(alone, here, environ, lambda _: VERSIONS["mpich"])[:2] == (flavour("mpich"), mpiexec)
    assert choose(alone, here, environ, lambda _: "who knows")[0] is None
    with pytest.raises(LaunchError, match="does not say which MPI it is"):
        choose(alone, TWO, environ, lambda _: "who knows")
    srun = program("srun")
    assert choose(slurm, TWO, environ, lambda _: VERSIONS["mpich"])[:2] == (flavour("srun"), srun)
    assert choose(alone, here, environ, lambda _: VERSIONS["impi"])[0].NAME == "Intel MPI"


def test_leftovers_of_another_launcher_are_dropped_and_the_users_variables_kept():
    stale = {"RANK": "5", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x", "EZPZ_CONTROL": "t@1@h", "MINE": "1"}
    assert inherited(stale) == {"MINE": "1"}
    assert inherited({"OMP_NUM_THREADS": "3"}) == {"OMP_NUM_THREADS": "3"}
    assert inherited({"PBS_JOBID": "1", "NCPUS": "64", "OMP_NUM_THREADS": "64"}) == {"PBS_JOBID": "1", "NCPUS": "64"}
    assert inherited({"PBS_JOBID": "1", "NCPUS": "64", "OMP_NUM_THREADS": "8"})["OMP_NUM_THREADS"] == "8"
