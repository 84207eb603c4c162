"""The plan: what stands around the program, and the environment of its ranks."""

import shlex
import sys

import pytest

from ezpz.cluster import Allocation
from ezpz.cluster.site import Recognise, Site
from ezpz.launch import LaunchPlan, Placement
from ezpz.launch.binding import Binding, choose_binding
from ezpz.launch.choice import Choice
from ezpz.launch.contract import inherited
from ezpz.launch.flavours import flavour
from ezpz.launch.plan import SHIM
from ezpz.launch.settings import communication

ONE = Placement(("localhost",), (2,), "-n")
TWO = Placement(("n01", "n02"), (2, 1), "-n")
NOBODY = Allocation("none", "", ("localhost",))


def plan(name, placement, **more):
    chosen = Choice(flavour(name) if name else None, "mpiexec", "test")
    return LaunchPlan(placement, chosen, **{"environ": {}, **more})


def test_the_shim_stands_in_front_of_the_program():
    made = plan("mpich", ONE)
    assert made.argv(["x", "a b"])[-6:] == [sys.executable, "-I", "-S", SHIM, "x", "a b"]
    assert made.prefix() == ["mpiexec", "-n", "2", "-launcher", "fork"]


def test_open_mpi_names_the_users_variables_and_ours_for_other_hosts():
    others = ("SSH_AUTH_SOCK", "DISPLAY", "PBS_JOBID", "PWDX", "HOSTNAME_MAP", "MY_OWN")
    foreign = ("PWD", "HOSTNAME", "OMPI_MCA_x", "SLURM_PROCID", "BASH_FUNC_f%%")
    made = plan("openmpi5", TWO, environ=dict.fromkeys((*others, *foreign), "1"), hostfile="/f")
    words = made.argv(["true"])
    assert {*others, "MASTER_ADDR", "EZPZ_PLACEMENT"} < set(words)
    assert not set(foreign) & set(words)
    assert "MASTER_ADDR" not in made.prefix()  # a line without our variables: it would warn of each


def test_a_job_that_no_variable_tells_is_told_to_the_launcher():
    made = plan("srun", TWO, hostfile="/f", job={"SLURM_JOB_ID": "12"})
    assert made.prefix()[:3] == ["env", "SLURM_JOB_ID=12", "mpiexec"]


def test_a_binding_is_the_launchers_or_the_shims():
    binding = choose_binding("list:0:1", None, 2)
    assert plan("mpich", ONE, binding=binding).shared()["EZPZ_CPUS"] == "0:1"
    assert "EZPZ_CPUS" not in plan("srun", ONE, binding=binding).shared()
    local = plan("", ONE, binding=binding)
    assert [local.cpus(0), local.cpus(1), plan("", ONE).cpus(0)] == [[0], [1], None]
    assert plan("mpich", ONE, binding=Binding("auto", (), "--cpu-bind")).shared()["EZPZ_CPUS"] == "auto"


SITE = Site(
    "toy",
    "slurm",
    recognise=Recognise(),
    launcher="mpich",
    launcher_args=("-site",),
    environment={"NCCL_A": "1", "FI_B": "/tmp/{user}-{jobid}", "NCCL_C": "3"},
    environment_unset=("MPICH_X", "ABSENT"),
)


def test_the_sites_environment_stands_under_the_users():
    environ = {"NCCL_A": "9", "MPICH_X": "1", "USER": "me", "GLOO_Y": "2", "PATH": "/bin"}
    job = Allocation("slurm", "7", ("localhost",))
    told = communication(environ, SITE, job, use_site=True, unset=("NCCL_C", "PATH_X"))
    assert {name: setting.value for name, setting in told.settings.items()} == {"FI_B": "/tmp/me-7"}
    assert told.unset == {"MPICH_X": "site toy", "NCCL_C": "--unset", "PATH_X": "--unset"}
    assert told.inherited["NCCL_A"].origin == "your environment; site toy advises '1'"
    assert "GLOO_Y" in told.inherited
    assert "PATH" not in told.inherited

    made = plan("mpich", ONE, communication=told, environ=environ, site=SITE)
    assert "MPICH_X" not in made.kept()
    assert made.kept()["NCCL_A"] == "9"
    assert made.shared()["FI_B"] == "/tmp/me-7"
    assert made.prefix()[-1] == "-site"
    assert "-site" not in plan("impi", ONE, site=SITE).prefix()  # they are the words of another launcher
    assert shlex.split(made.lines(["true"])[0])[:3] == ["env", "-u", "MPICH_X"]


def test_comm_env_none_takes_nothing_from_the_site_and_still_shows_its_advice():
    told = communication({"MPICH_X": "1"}, SITE, NOBODY, use_site=False, unset=())
    assert not told.settings
    assert not told.unset
    assert "advises to unset it" in told.inherited["MPICH_X"].origin


def test_every_variable_says_who_chose_it():
    assert all(setting.origin for setting in plan("openmpi5", TWO, hostfile="/f").settings().values())


def test_leftovers_of_another_launcher_are_dropped_and_the_users_variables_kept():
    stale = {"RANK": "5", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x", "EZPZ_CONTROL": "t@1@h", "MINE": "1"}
    assert inherited(stale) == {"MINE": "1"}
    assert inherited({"OMP_NUM_THREADS": "3"}) == {"OMP_NUM_THREADS": "3"}
    assert inherited({"PBS_JOBID": "1", "NCPUS": "64", "OMP_NUM_THREADS": "64"}) == {"PBS_JOBID": "1", "NCPUS": "64"}
    assert inherited({"PBS_JOBID": "1", "NCPUS": "64", "OMP_NUM_THREADS": "8"})["OMP_NUM_THREADS"] == "8"


@pytest.mark.parametrize("name", ["mpich", "openmpi5", "pals", "srun"])
def test_a_plan_for_ten_thousand_hosts_is_small(name, tmp_path):
    hosts = tuple(f"nid{index:06d}" for index in range(10_000))
    made = plan(name, Placement(hosts, (12,) * 10_000, "-n")).with_hostfile(str(tmp_path))
    assert sum(map(len, made.argv(["true"]))) < 10_000
    assert made.shared()["EZPZ_PLACEMENT"] == "12(x10000)"
