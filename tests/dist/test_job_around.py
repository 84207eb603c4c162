"""The job around a rank: hosts, devices, machine, scheduler, from the launcher, a scheduler or this host alone."""

import os
import sys
import types

import pytest

import ezpz
from ezpz.cluster.devices.device_answer import Devices
from ezpz.dist import info, job_around
from ezpz.errors import MachineError, UsageError

HERE = os.uname().nodename
LAUNCHED = {"EZPZ_FLAVOUR": "MPICH", "EZPZ_SCHEDULER": "pbs", "EZPZ_JOBID": "4.head"}
LEFTOVERS = (
    *(
        "EZPZ_FLAVOUR",
        "EZPZ_HOSTS",
        "EZPZ_PLACEMENT",
        "EZPZ_SCHEDULER",
        "EZPZ_SITE",
        "EZPZ_JOBID",
        "EZPZ_NGPU_PER_HOST",
    ),
    *("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "PBS_JOBID", "PBS_NODEFILE", "FLUX_JOB_ID", "TORCH_DEVICE", "GROUP_RANK"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "NERSC_HOST", "TACC_SYSTEM"),
)


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    for name in LEFTOVERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def be(monkeypatch, rank=3, world=8, local=1, local_world=2, **more):
    told = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": local_world, **more}
    for name, value in told.items():
        monkeypatch.setenv(name, str(value))


def test_alone_there_is_one_host_and_its_cpus():
    assert (ezpz.get_num_nodes(), ezpz.get_node_index(), ezpz.get_hostname()) == (1, 0, HERE)
    assert ezpz.get_cpus_per_node() == os.cpu_count()
    assert ezpz.query_environment() == {"world_size": 1, "rank": 0, "local_rank": 0}
    assert ezpz.get_scheduler() == "UNKNOWN"


def test_the_launch_counts_its_own_hosts_where_the_job_has_more(monkeypatch):
    be(monkeypatch, **LAUNCHED, EZPZ_HOSTS="n01,n02,n03", EZPZ_PLACEMENT="3(x2),2", GROUP_RANK=1)
    assert ezpz.get_num_nodes() == 3
    monkeypatch.delenv("EZPZ_HOSTS")  # too many hosts for a variable: the counts still tell
    assert ezpz.get_num_nodes() == 3
    assert ezpz.get_scheduler() == "PBS"


def test_the_index_of_the_host_is_no_division_of_the_rank(monkeypatch):
    be(monkeypatch, rank=6, world=8, local=1, local_world=2, GROUP_RANK=2)  # three hosts with 3, 2 and 3 ranks
    assert ezpz.get_node_index() == 2
    monkeypatch.delenv("GROUP_RANK")
    be(monkeypatch, **LAUNCHED, EZPZ_HOSTS=f"n01,{HERE}.cluster.org")
    assert ezpz.get_node_index() == 1


def test_a_host_that_nobody_names_has_no_index_and_the_summary_says_so(monkeypatch):
    be(monkeypatch, **LAUNCHED, EZPZ_HOSTS="n01,n02")
    with pytest.raises(MachineError, match=rf"cannot tell the index of host {HERE}.*n01, n02"):
        ezpz.get_node_index()
    assert "[host=?/2]" in ezpz.print_dist_setup(display=False)


def test_a_slurm_job_tells_hosts_cpus_and_scheduler(monkeypatch):
    told = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": f"n01,{HERE}", "SLURM_JOB_CPUS_PER_NODE": "4,16"}
    be(monkeypatch, **told, SLURM_NNODES="2")
    assert (ezpz.get_num_nodes(), ezpz.get_cpus_per_node(), ezpz.get_scheduler()) == (2, 16, "SLURM")


@pytest.mark.parametrize(
    ("origin", "count", "local_world", "expected"),
    [
        ("EZPZ_NGPU_PER_HOST", 4, 2, 4),
        ("CUDA_VISIBLE_DEVICES", 1, 2, 2),  # the launcher shows each rank its own device
        ("ZE_AFFINITY_MASK, FLAT", 1, 12, 12),
        ("/proc/driver/nvidia", 1, 2, 1),  # two ranks share the one device that there is
        ("/proc/driver/nvidia", 0, 2, 0),
    ],
)
def test_devices_are_counted_and_never_the_ranks_of_a_cpu_host(monkeypatch, origin, count, local_world, expected):
    be(monkeypatch, world=24, local_world=local_world)
    monkeypatch.setattr(job_around, "count_devices", lambda *args: Devices(count, "cuda" if count else "cpu", origin))
    assert ezpz.get_gpus_per_node() == expected
    assert ezpz.get_world_size_total() == max(expected, 1)
    assert ezpz.get_world_size_in_use() == 24


def test_a_rank_starts_no_program_to_count_and_a_shell_may(monkeypatch):
    asked = []
    monkeypatch.setattr(
        job_around, "count_devices", lambda environ, read, run, *rest: asked.append(run) or Devices(0, "cpu", "x")
    )
    ezpz.get_gpus_per_node()
    be(monkeypatch)
    ezpz.get_gpus_per_node()
    assert [run.__name__ for run in asked] == ["run", "run_nothing"]


MACHINES = [
    ("x4105c0s0b0n0.hostmgmt2105.cm.aurora.alcf.anl.gov", "Aurora"),
    ("x3001c0s1b0n0", "Polaris"),
    ("login01.frontier.olcf.ornl.gov", "Frontier"),
    ("nid001234.perlmutter.nersc.gov", "Perlmutter"),
    ("login1", "login1"),  # on every machine there is one
    ("my.workstation.org", "my.workstation.org"),
]


def test_a_machine_is_known_by_names_that_no_other_shares(subtests):
    for hostname, machine in MACHINES:
        with subtests.test(hostname=hostname):
            assert ezpz.get_machine(hostname) == machine


def test_this_machine_is_what_the_user_says_or_its_host_name(monkeypatch):
    assert ezpz.get_machine() == HERE
    monkeypatch.setenv("EZPZ_SITE", "frontier")
    assert ezpz.get_machine() == "Frontier"
    assert ezpz.get_scheduler() == "SLURM"
    assert ezpz.get_scheduler("pbs") == "PBS"


def test_a_scheduler_that_is_wished_for_counts_outside_a_job(monkeypatch):
    monkeypatch.setenv("EZPZ_SCHEDULER", "slurm")
    assert ezpz.get_scheduler() == "SLURM"


def test_a_host_file_names_each_host_once_in_every_dialect(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# the job's\nn01\nn01\nn02:4\n\nme@n03 slots=4\n")
    assert ezpz.dist.get_nodes_from_hostfile(path) == ["n01", "n02", "n03"]
    assert ezpz.get_num_nodes(hostfile=path) == 3


@pytest.mark.parametrize(("text", "what"), [(None, "it cannot be read"), ("# nothing\n", "it names no host")])
def test_a_host_file_without_hosts_is_refused(tmp_path, text, what):
    if text is not None:
        (tmp_path / "hosts").write_text(text)
    with pytest.raises(UsageError, match=f"no hosts from .*/hosts .*: {what}"):
        ezpz.get_num_nodes(tmp_path / "hosts")


def test_what_a_rank_knows_of_itself(monkeypatch, capsys):
    be(monkeypatch, **LAUNCHED, EZPZ_HOSTS="n01,n02", EZPZ_LAUNCH_CMD="mpiexec …", GROUP_RANK=1)
    monkeypatch.setitem(
        sys.modules, "mpi4py.MPI", types.SimpleNamespace(Get_library_version=lambda: "MPICH Version: 4.2\nx")
    )
    shape = types.SimpleNamespace(mesh_dim_names=("dp_shard", "tp"), mesh=types.SimpleNamespace(shape=(4, 2)))
    monkeypatch.setitem(sys.modules, "ezpz.dist.mesh", types.SimpleNamespace(get_mesh=lambda: shape))
    monkeypatch.setenv("TORCH_DEVICE", "cpu")
    told = ezpz.get_dist_info(framework="pytorch", verbose=True)
    expected = {
        "RANK": 3,
        "WORLD_SIZE": 8,
        "HOST_INDEX": 1,
        "NUM_HOSTS": 2,
        "HOSTS": ["n01", "n02"],
        "SCHEDULER": "pbs",
    }
    expected |= {"JOB_ID": "4.head", "MESH": {"dp_shard": 4, "tp": 2}, "MPI": "MPICH Version: 4.2", "DEVICE": "cpu"}
    assert {name: told[name] for name in expected} == expected
    assert "RANK" not in capsys.readouterr().out  # rank 0 says it for all
    assert "[host=1/2][local_rank=1/2][rank=3/8]" in ezpz.print_dist_setup()
    assert "[rank=3/8]" in capsys.readouterr().out


def test_a_mapping_is_logged_with_a_line_for_each_entry(capsys):
    info.log_dict_as_bulleted_list({"lr": 0.1, "MESH": None, "JOB_ID": "", "steps": 5}, name="CONFIG")
    lines = capsys.readouterr().out.splitlines()
    assert [lines[0].rpartition("] ")[2], *lines[1:]] == ["[CONFIG]", "  - lr=0.1", "  - steps=5"]
