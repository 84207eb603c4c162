"""Who starts the ranks, and the reason that is told."""

import json

import pytest

from ezpz.cluster import Allocation
from ezpz.cluster.scheduler import RemoteShellAccess, scheduler
from ezpz.cluster.site import Recognise, Site
from ezpz.errors import LaunchError, UsageError
from ezpz.launch.launcher_choice import choose, identify
from lab import process

SAID = {
    "mpich": "HYDRA build details:\n    Version:                                 5.0.2\n",
    "openmpi": "mpiexec (Open MPI) 5.0.11\n",
    "pbs": "pbs_version = 23.06.06\n",
    "odd": "a wrapper of our site",
    "pals": " --cpu-bind --depth --no-vni",
}
NONE = Allocation("none", "", ("localhost",))
PBS = Allocation("pbs", "1.head", ("n01", "n02"))
SLURM = Allocation("slurm", "7", ("n01", "n02"))


@pytest.fixture
def machine(tmp_path):
    """`machine("a/mpiexec=mpich", "b/srun=slurm 22.05.8")` -> environ, run: programs on PATH, in the folders' order."""

    def make(*programs):
        said, folders = {}, []
        for program in programs:
            name, _, text = program.partition("=")
            path = process.program(tmp_path / name, f"#!/bin/sh\n# {name}\n")
            said[str(path)] = SAID.get(text, text)
            folders += [str(path.parent)] * (str(path.parent) not in folders)

        def run(argv):
            run.asked += 1
            is_help = argv[1] == "--help"
            text = said.get(argv[0], "")
            return text if is_help or "cpu-bind" not in text else None

        run.asked = 0
        return {"PATH": ":".join(folders) or "/nowhere", "HOME": str(tmp_path / "home")}, run

    return make


def chosen(machine_, allocation, *, here, **more):
    environ, run = machine_
    environ |= more.pop("environ", {})
    found = choose(allocation, scheduler(allocation.scheduler), environ, run, is_here=here, **more)
    name = found.flavour.name if found.flavour else "local"
    return name, found.exe.rpartition("/")[0].rpartition("/")[2], found.reason


def test_inside_a_job_its_own_launcher_comes_first_and_on_one_host_without_an_mpi_ezpz_itself(machine):
    assert chosen(machine(), NONE, here=True) == ("local", "", "no mpiexec on PATH")
    both = machine("a/mpiexec=mpich", "b/srun=slurm-wlm 22.05.8", "b/flux=x")
    assert chosen(both, SLURM, here=False) == ("srun", "b", "srun of Slurm job 7")
    flux = Allocation("flux", "f9", ("n01", "n02"))
    assert chosen(both, flux, here=False) == ("flux", "b", "flux of Flux job f9")
    assert chosen(both, NONE, here=True)[:2] == ("mpich", "a")


def test_an_mpiexec_of_a_python_environment_is_passed_over_inside_a_job_and_told(machine, tmp_path):
    two = machine("venv/bin/mpiexec=mpich", "site/mpiexec=openmpi")
    active = {"VIRTUAL_ENV": str(tmp_path / "venv")}
    name, folder, reason = chosen(two, PBS, here=False, environ=active)
    assert (name, folder) == ("openmpi5", "site")
    assert f"not {tmp_path}/venv/bin/mpiexec of a Python environment" in reason
    assert chosen(two, NONE, here=True, environ=active)[:2] == ("mpich", "bin")
    only = machine("venv/bin/mpiexec=mpich")
    assert chosen(only, PBS, here=False, environ=active)[0] == "mpich"


def test_the_sites_launcher_is_preferred_and_what_it_passes_over_is_told(machine):
    site = Site("toy", "pbs", recognise=Recognise(), launcher="pals")
    two = machine("a/mpiexec=mpich", "b/mpiexec=pals")
    name, folder, reason = chosen(two, PBS, here=False, site=site)
    assert (name, folder) == ("pals", "b")
    assert "of site toy, not " in reason
    assert chosen(machine("c/mpiexec=mpich"), PBS, here=False, site=site)[0] == "mpich"


def test_a_host_list_without_any_mpi_is_reached_by_ssh(machine):
    hosts = Allocation("none", "", ("n01", "n02"))
    assert chosen(machine("a/ssh=x"), hosts, here=False)[:2] == ("ssh", "a")
    with pytest.raises(LaunchError, match=r"no mpiexec, and no ssh on PATH .*Load the site's module"):
        chosen(machine("b/nothing=x"), hosts, here=False)
    with pytest.raises(LaunchError, match="no srun"):
        chosen(machine("a/ssh=x"), SLURM, here=False)


def test_the_mpi_behind_the_mpiexec_of_pbs_is_used_without_it(machine, tmp_path):
    both = machine("pbs/mpiexec=pbs", "mpich/mpiexec=mpich")
    name, folder, reason = chosen(both, PBS, here=False)
    assert (name, folder) == ("mpich", "mpich")
    assert reason.endswith(f"/mpich/mpiexec, to which {tmp_path}/pbs/mpiexec only passes on")
    assert chosen(both, PBS, here=False, requested="mpich")[:2] == ("mpich", "mpich")
    assert chosen(both, NONE, here=True)[:2] == ("mpich", "mpich")
    alone = {"PATH": f"{tmp_path}/pbs", "PBS_O_PATH": f"{tmp_path}/pbs:{tmp_path}/mpich"}
    assert chosen(both, PBS, here=False, environ=alone)[:2] == ("mpich", "mpich")
    assert chosen(both, PBS, here=False, environ=alone, requested="mpich")[:2] == ("mpich", "mpich")


def test_the_mpiexec_of_pbs_without_an_mpi_behind_it_starts_nothing(machine, tmp_path):
    (tmp_path / "home").mkdir()
    environ, run = pbs = machine("pbs/mpiexec=pbs", "a/ssh=x")
    why = f"{tmp_path}/pbs/mpiexec has no MPI behind it"
    assert chosen(pbs, PBS, here=True) == ("local", "", why)
    assert chosen(pbs, PBS, here=False) == ("ssh", "a", why)
    assert run.asked == 1  # it is asked for its version alone, once
    for _ in range(2):  # asked, and as kept
        identity = identify(f"{tmp_path}/pbs/mpiexec", environ, run)
        assert (identity.name, identity.passes_on) == ("", True)
    with pytest.raises(LaunchError, match=r"no mpiexec of MPICH on PATH .*; found /"):
        chosen(pbs, PBS, here=False, requested="mpich")


def test_the_task_manager_of_pbs_starts_agents_where_there_is_no_mpi(machine, tmp_path):
    environ, run = machine("a/ssh=x", "a/pbs_tmrsh=x", "pbs/mpiexec=pbs")

    def choice(job=PBS, here=False, requested="", **how):
        found = choose(
            job,
            scheduler(job.scheduler),
            environ,
            run,
            is_here=here,
            requested=requested,
            reach=RemoteShellAccess(**how),
        )
        return found.flavour.name if found.flavour else "local", found.reason

    why = f"{tmp_path}/pbs/mpiexec has no MPI behind it"
    assert choice() == ("pbs_tmrsh", f"{why}; PBS reaches the hosts")
    assert choice(process=4711) == ("pbs_tmrsh", f"{why}; PBS reaches the hosts, for process 4711 of the job")
    assert choice(problem="no") == ("ssh", why)
    assert choice(here=True) == ("local", why)
    assert choice(job=NONE) == ("ssh", why)
    assert choice(requested="pbs_tmrsh") == ("pbs_tmrsh", "--flavour")
    with pytest.raises(LaunchError, match=r"pbs_tmrsh cannot start ranks on n01, n02 .*: why; .* `--flavour ssh`"):
        choice(requested="pbs_tmrsh", problem="why")


def test_an_mpiexec_that_does_not_say_what_it_is_is_refused_with_its_words(machine):
    for here in (True, False):
        with pytest.raises(LaunchError, match=r"it printed 'a wrapper of our site.*--flavour NAME"):
            chosen(machine("a/mpiexec=odd"), NONE, here=here)
        with pytest.raises(LaunchError, match="it printed ''"):
            chosen(machine("a/mpiexec="), NONE, here=here)


def test_the_users_word_decides(machine):
    three = machine("a/mpiexec=mpich", "b/mpiexec=openmpi", "c/ssh=x")
    assert chosen(three, NONE, here=True, requested="openmpi5")[:2] == ("openmpi5", "b")
    assert chosen(three, NONE, here=True, requested="local")[0] == "local"
    assert chosen(three, NONE, here=True, requested="torchrun")[0] == "torchrun"
    assert chosen(three, NONE, here=False, requested="ssh")[:2] == ("ssh", "c")
    name, _, reason = chosen(machine("a/mpiexec=odd"), NONE, here=True, requested="mpich")
    assert name == "mpich"
    assert "does not say so" in reason


def test_a_wish_that_cannot_be_met_says_why(machine, subtests):
    for requested, (error, words) in {
        "mpichh": (UsageError, "unknown flavour 'mpichh' .*Did you mean mpich"),
        "impi": (LaunchError, "no mpiexec of Intel MPI on PATH"),
        "srun": (LaunchError, "no srun on PATH"),
        "local": (LaunchError, "this host alone"),
    }.items():
        with subtests.test(requested), pytest.raises(error, match=words):
            chosen(machine("a/mpiexec=mpich"), PBS, here=False, requested=requested)


def test_a_program_is_asked_once_until_it_changes(machine, tmp_path):
    environ, run = machine("a/mpiexec=mpich")
    (tmp_path / "home").mkdir()
    path = str(tmp_path / "a/mpiexec")
    first = identify(path, environ, run)
    assert (first.name, first.version, run.asked) == ("mpich", (5, 0, 2), 1)
    again = identify(path, environ, run)
    assert (again.name, again.version, run.asked) == ("mpich", (5, 0, 2), 1)
    (tmp_path / "a/mpiexec").write_text("#!/bin/sh\n# another one\n")
    identify(path, environ, run)
    assert run.asked == 2
    kept = tmp_path / "home/.cache/ezpz/launchers.json"
    assert len(json.loads(kept.read_text())) == 2
    kept.write_text("[broken")
    assert identify(path, environ, run).name == "mpich"
    assert identify(path, {"HOME": "/proc/nowhere"}, run).name == "mpich"
