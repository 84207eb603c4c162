"""What is wrong with hosts: healthy facts give no word, and each planted fault its own, with the host and a cure."""

import copy
import subprocess
import sys

import pytest

from ezpz.cluster.installed import installed_versions, mpi_of_mpi4py
from ezpz.watch.doctor.diagnosis import diagnose, summary
from ezpz.watch.doctor.examine import parse_answer, stale_variables
from ezpz.watch.doctor.health import device_health, quotas

HEALTHY = {
    "host": "n01",
    "time": 1000.0,
    "python": {
        "path": "/venv/bin/python3",
        "version": "3.11.7",
        "versions": {"torch": "2.13.0", "ezpz": "0.1.0", "numpy": "2.4"},
        "torch_build": "cuda 12.8",
        "ezpz": "/venv/lib/ezpz",
        "ezpz_copies": ["/venv/lib/ezpz"],
        "ezpz_programs": ["/venv/bin/ezpz"],
        "launch_programs": ["/venv/bin/launch", "/opt/ros/bin/launch"],
    },
    "folder": {"path": "/project", "is_there": True},
    "script": {"path": "/project/train.py", "size": 812, "time": 1, "problem": ""},
    "places": {
        "the run's folder": {"path": "/project/outputs", "free": 1 << 40, "inodes": 10**6, "can_write": True},
        "/dev/shm": {"path": "/dev/shm", "free": 1 << 33, "inodes": None, "can_write": True},
    },
    "limits": {"nofile": 65536, "memlock": -1, "nproc": -1, "as": -1, "fsize": -1, "cpu": -1},
    "imports": {
        name: {
            "origin": f"/v/site-packages/{name}/__init__.py",
            "seconds": 1.0,
            "problem": "",
            "is_slow": False,
            "hidden": [],
        }
        for name in ("numpy", "torch")
    },
    "first_python": {},
    "mpi_programs": [
        {"path": "/opt/mpich/bin/mpiexec", "name": "mpich 4.2", "problem": "", "is_needed": True},
        {"path": "/usr/bin/mpiexec", "name": "mpich 4.2", "problem": "", "is_needed": True},
    ],
    "loopback": "",
    "threads": {"OMP_NUM_THREADS": "4,2", "MKL_NUM_THREADS": "64"},
    "cpus": [64, 64],
    "infiniband": True,
    "mpi": "/opt/mpich/bin/mpiexec",
    "driver": "NVRM version: 570",
    "devices": {"kind": "cuda", "count": 4, "origin": "kernel files"},
    "own_address": ["10.0.0.1"],
    "interfaces": {"lo": {"address": "127.0.0.1", "state": "unknown"}, "ib0": {"address": "10.0.0.1", "state": "up"}},
    "interface_variables": {"NCCL_SOCKET_IFNAME": "ib"},
    "master": {"name": "n01", "addresses": ["10.0.0.1"], "interface": "ib0", "problem": "", "rank": 0},
    "proxies": {"http_proxy": ""},
    "stale": {},
    "hanging": [],
}


def host(number=1, **changes):
    facts = copy.deepcopy(HEALTHY)
    address = f"10.0.0.{number}"
    facts["host"], facts["own_address"], facts["interfaces"]["ib0"]["address"] = f"n0{number}", [address], address
    facts["master"]["rank"] = number - 1
    for path, value in changes.items():
        *parts, last = path.split("__")
        place = facts
        for part in parts:
            place = place[part]
        place[last] = value
    return facts


def three(**changes):
    return [host(1), host(2), host(3, **changes)]


def test_healthy_hosts_are_not_worth_a_word():
    assert diagnose([host()]) == []
    assert diagnose(three()) == []
    assert summary(three()).startswith("Python 3.11.7, torch 2.13.0, ezpz 0.1.0, numpy 2.4, the driver NVRM")


FAULTS = [
    ({"python__torch_build": "cpu"}, True, "torch is a CPU build, and there are 4 cuda devices", "TORCH_DEVICE=cpu"),
    ({"devices": {"count": 0, "kind": "cpu"}, "driver": ""}, False, "no NVIDIA driver is here", "tenth of its size"),
    ({"python__ezpz_copies": ["/a", "/venv/lib/ezpz"]}, False, "a second ezpz is at /a", "pip uninstall ezpz"),
    ({"python__launch_programs": ["/opt/bin/launch"]}, False, "launch on PATH is /opt/bin/launch", "`ezpz launch`"),
    ({"python__ezpz_programs": ["/venv/bin/ezpz", "/b/ezpz"]}, False, "on PATH: /venv/bin/ezpz hides /b/ezpz",
     "first on PATH"),
    ({"folder__is_there": False}, True, "the working folder /project is missing: ", "all hosts share"),
    ({"script__problem": "Permission denied"}, True, "cannot read /project/train.py (from the command line): P",
     "all hosts"),
    ({"places__/dev/shm__free": 1 << 20}, False, "/dev/shm has 1 MiB left", "make room"),
    ({"places__the run's folder__inodes": 3}, False, "has room for 3 more files", "quota"),
    ({"places__the run's folder__can_write": False}, False, "the run's folder (/project/outputs) cannot be written",
     ""),
    ({"limits__nofile": 256}, False, "the limit nofile is 256", "ulimit -n 1024"),
    ({"limits__memlock": 65536}, False, "only 64 KiB of memory may be locked", "unlimited memlock"),
    ({"interface_variables": {"GLOO_SOCKET_IFNAME": "ib"}}, True, "GLOO_SOCKET_IFNAME=ib names no interface", "unset"),
    ({"interface_variables": {"NCCL_SOCKET_IFNAME": "=eth9"}}, True, "NCCL_SOCKET_IFNAME==eth9 names no", "unset"),
    ({"stale": {"RANK": "3"}}, False, "this shell is no rank, and holds RANK=3", "unset RANK"),
    ({"proxies": {"https_proxy": "timed out"}}, False, "the proxy of https_proxy cannot be reached: timed out",
     "unset"),
    ({"hanging": ["place the home folder"]}, True, "the home folder does not answer", "administrators"),
    ({"health": [{"device": "1", "errors": 3, "throttled": False}]}, False, "device 1 has 3 uncorrected memory",
     "reset"),
    ({"health": [{"device": "1", "errors": None, "throttled": True}]}, False, "device 1 is throttled", "slowest"),
    ({"quotas": [{"place": "nas:/home", "what": "files", "used": 99, "limit": 100}]}, False,
     "the quota of nas:/home is used up: 99 of 100 files", "ask for more"),
    ({"masks": {"CUDA_VISIBLE_DEVICES": "0,1,1"}}, True, "DEVICES=0,1,1 names no device of its own", "once"),
    ({"cpus": [2, 64]}, False, "processes may use 2 of 64 CPUs, and there are 4 devices", "--cpus-per-task"),
    ({"own_address": ["127.0.1.1"]}, False, "own name means 127.0.1.1", "/etc/hosts"),
    ({"interfaces__ib1": {"address": "10.9.0.1", "state": "down"}}, False, "ib1 (10.9.0.1) is down", "bring it up"),
    ({"interface_variables": {"NCCL_SOCKET_IFNAME": "docker"}, "interfaces__docker0": {"address": "172.17.0.1"}}, True,
     "names docker0, a bridge to containers", "unset NCCL_SOCKET_IFNAME"),
    ({"places__/dev/shm": {"path": "/dev/shm", "problem": "Stale"}}, True, "cannot be used: Stale", "server"),
    ({"hanging": ["own_address"]}, False, "the name server does not answer", "administrators"),
    ({"imports__torch__problem": "OSError: libgomp.so.1: file too short"}, True,
     "importing torch (/v/site-packages/torch/__init__.py) fails: OSError: libgomp.so.1: file too short",
     "install it again: /venv/bin/python3 -m pip install --force-reinstall torch==2.13.0"),
    ({"imports__torch__problem": "ImportError: libcudart.so.12: cannot open shared object file"}, True,
     "libcudart.so.12: cannot open", "load the module that brings that library"),
    ({"imports__torch__problem": "ImportError: libc10.so: undefined symbol: x"}, True, "symbol: x", "LD_LIBRARY_PATH"),
    ({"imports__torch__problem": "its process ended with SIGILL"}, True, "ended with SIGILL", "build for this CPU"),
    ({"imports__torch": {"origin": "/old/torch/__init__.py", "seconds": None, "problem": "ImportError: x",
                         "is_slow": False, "hidden": []}}, True, "importing torch (/old/torch/", "take /old out of"),
    ({"imports__numpy__problem": "ImportError: numpy.core failed", "imports__torch__problem": "numpy.core failed"},
     True, "importing numpy (/v/site-packages/numpy/__init__.py) fails: ImportError: numpy.core", "numpy==2.4"),
    ({"imports__torch__hidden": ["random"], "imports__torch__problem": "ImportError: Random"}, True,
     "random.py in /project hides a module of that name from programs there; importing torch fails: ImportError: R",
     "rename random.py"),
    ({"imports__torch__hidden": ["profile"], "imports__numpy__hidden": ["profile"]}, False, "profile.py in /project",
     "rename profile.py"),
    ({"imports__torch__is_slow": True, "imports__torch__seconds": None}, False, "importing torch has not ended within",
     "faster file system"),
    ({"imports__torch__seconds": 14.2}, False, "importing torch took 14 s", "faster file system"),
    ({"first_python": {"path": "/usr/bin/python3", "version": "3.9.2", "has_torch": False}}, False,
     "python3 on PATH is /usr/bin/python3 (3.9.2), which has no torch", "first on PATH"),
    ({"mpi_programs": [{"path": "/m/mpiexec", "name": "", "problem": "libx.so: no such file", "is_needed": True}]},
     True, "/m/mpiexec does not run: libx.so: no such file", "--flavour local"),
    ({"mpi_programs": [{"path": "/m/mpiexec", "name": "", "problem": "libx.so", "is_needed": False}]}, False,
     "/m/mpiexec does not run: libx.so", "load the module"),
    ({"mpi_programs": [{"path": "/a/mpiexec", "name": "mpich 4.2", "problem": ""},
                       {"path": "/b/mpirun", "name": "openmpi5 5.0.8", "problem": ""}]}, False,
     "2 MPIs are on PATH: /a/mpiexec (mpich 4.2) hides /b/mpirun (openmpi5 5.0.8)", "--flavour NAME"),
    ({"loopback": "Network is unreachable"}, True, "by 127.0.0.1: Network is unreachable", "ip link set lo up"),
    ({"threads": {"OMP_NUM_THREADS": "abc"}}, False, "OMP_NUM_THREADS=abc is no number of threads", "unset OMP_NUM"),
    ({"threads": {"MKL_NUM_THREADS": "-1"}}, False, "MKL_NUM_THREADS=-1 is no number", "unset MKL_NUM_THREADS"),
    ({"threads": {"OMP_NUM_THREADS": "0"}}, False, "OMP_NUM_THREADS=0 is no number of threads", "unset"),
    ({"threads": {"OMP_NUM_THREADS": "128"}}, False, "OMP_NUM_THREADS=128 asks for more threads than there are CPUs",
     "unset"),
    ({"places__/dev/shm": {"path": "/dev/shm", "size": 64 << 20, "free": 64 << 20, "inodes": None, "can_write": True}},
     False, "/dev/shm is 64 MiB large", "--shm-size"),
    ({"places__TMPDIR": {"path": "/gone", "is_there": False, "free": 1 << 40, "inodes": None, "can_write": True}},
     False, "TMPDIR (/gone) is not there", "mkdir -p /gone"),
    ({"limits__as": 2 << 30}, False, "the address space of a process is limited to 2.0 GiB", "ulimit -v unlimited"),
    ({"limits__cpu": 600}, False, "the CPU time of a process is limited to 600 s", "ulimit -t unlimited"),
    ({"mpi": "/usr/bin/mpiexec.hydra", "python__mpi4py_for": "Open MPI"}, False,
     "mpi4py is built for Open MPI, mpiexec on PATH is of MPICH or Intel MPI (/usr/bin/mpiexec.hydra)",
     "--no-binary=mpi4py"),
]  # fmt: skip


def test_a_fault_is_named_with_its_cure_and_on_several_hosts_with_the_host(subtests):
    for changes, is_problem, said, cure in FAULTS:
        with subtests.test(said=said):
            [finding] = diagnose([host(**changes)])
            assert (finding.is_problem, said in finding.text, cure in finding.cure) == (is_problem, True, True), finding
            among = [each for each in diagnose(three(**changes)) if each.check == finding.check]
            assert [each.text for each in among] == [f"n03: {finding.text}"]
            everywhere = diagnose([host(number, **changes) for number in (1, 2, 3)])
            assert [each.text for each in everywhere] == [f"all 3 hosts: {finding.text}"]


NO_FAULTS = [
    {"imports": {}},  # neither numpy nor torch is there
    {"imports": {}, "first_python": {"path": "/usr/bin/python3", "version": "3.9", "has_torch": False}},
    {"first_python": {"path": "/usr/bin/python3", "version": "3.9", "has_torch": True}},
    {"mpi_programs": []},
    {"places__/dev/shm__size": 1 << 30},
    {"places__the run's folder__is_there": False},  # a run makes it
    {"threads": {"OMP_NUM_THREADS": "64"}, "cpus": [8, 64]},  # a rank of the launch that asks is bound
]


def test_what_a_healthy_host_may_lack_is_no_fault(subtests):
    for changes in NO_FAULTS:
        with subtests.test(changes=changes):
            assert diagnose([host(**changes)]) == []


def test_an_installation_without_torch_is_a_fault_only_where_other_hosts_have_it():
    bare = {"python__versions": {"ezpz": "0.1.0", "numpy": "2.4"}}
    [alone] = diagnose([host(**bare)])
    assert (alone.is_problem, alone.text) == (False, "no torch in /venv/bin/python3")
    assert "`ezpz_setup_env`" in alone.cure
    [everywhere] = diagnose([host(number, **bare) for number in (1, 2, 3)])
    assert (everywhere.is_problem, everywhere.text) == (False, "all 3 hosts: no torch in /venv/bin/python3")
    [among] = diagnose(three(**bare))
    assert (among.is_problem, among.text) == (True, "n03: no torch in /venv/bin/python3")
    assert "--exclude n03" in among.cure


def test_names_of_interfaces_are_read_as_nccl_reads_them(subtests):
    for value in ("ib0", "=ib0", "^lo", "ib0,eth7", "ib0:1"):
        with subtests.test(value=value):
            assert diagnose([host(interface_variables={"NCCL_SOCKET_IFNAME": value})]) == []


DIFFERENCES = [
        ({"python__versions__torch": "2.12.0"}, "torch 2.12.0 on n03, 2.13.0 on 2 hosts"),
        ({"python__versions": {"torch": "2.13.0", "numpy": "2.4"}}, "ezpz is missing on n03, 0.1.0 on 2 hosts"),
        ({"python__versions__nvidia_nccl_cu13": "2.28.9"}, "NCCL 2.28.9 on n03, none on 2 hosts"),
        ({"devices__count": 3}, "devices 3 cuda on n03, 4 cuda on 2 hosts"),
        ({"script__size": 811}, "the script of 811 bytes on n03, of 812 bytes on 2 hosts"),
        ({"script__digest": "1f2e"}, "the script of 812 bytes (SHA-256 1f2e) on n03, of 812 bytes on 2 hosts"),
        ({"master__addresses": ["127.0.1.1"]}, "n01 means 127.0.1.1 on n03, 10.0.0.1 on 1 other(s)"),
        ({"master__addresses": ["127.0.1.1"], "master__problem": "Connection refused"},
         "n03 cannot reach n01, where the ranks meet: that name means the host itself (127.x)"),
        ({"master__addresses": [], "master__problem": "Name or service not known"},
         "n03 cannot reach n01, where the ranks meet: the name is unknown (Name or service not known)"),
        ({"master__problem": "Connection refused"}, "n03 cannot reach n01, where the ranks meet: Connection refused"),
        ({"interfaces__ib0__address": "10.0.0.2"}, "n02, n03 have the same address 10.0.0.2 on the interface"),
    ]  # fmt: skip


def test_hosts_are_compared_by_majority(subtests):
    for changes, said in DIFFERENCES:
        with subtests.test(said=said):
            [finding] = diagnose(three(**changes))
            assert finding.text.startswith(said)


def test_clocks_are_compared_as_the_first_host_has_measured_them():
    hosts = three()
    for off, told in ((30.0, "30 s ahead"), (-60.0, "60 s behind")):
        hosts[0]["master"]["clocks"] = {"1": [0.001, 0.0001], "2": [off, 0.0001]}
        assert [each.text for each in diagnose(hosts)] == [f"the clock of n03 is {told}"]
    hosts[0]["master"]["clocks"] = {"1": [0.001, 0.0001], "2": [-0.8, 0.0001]}
    assert [each.text for each in diagnose(hosts)] == ["the clock of n03 is 0.8 s behind"]
    hosts[0]["master"]["clocks"]["2"] = [-0.1, 0.0001]
    assert diagnose(hosts) == []


TOOLS = {
    "quota": """case $1 in -w) echo '     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace'
echo ' nas:/home  990* 900 1000 6days 12 0 0'; echo ' nas:/far  12 900 1000 99 100 100'; exit 1 ;; esac""",
    "lfs": "echo ' /lustre  5 0 1000 - 100* 90 120 3d'",
    "rocm-smi": "echo device,Block,Status,Correctable error,Uncorrectable error; echo card0,UMC,ENABLED,0,3",
}


def test_quotas_and_devices_are_those_of_the_tools_that_are_there(tmp_path):
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "USER": "ada"}
    assert (quotas({"PATH": str(tmp_path)}, ["/"]), device_health({"PATH": str(tmp_path)})) == ([], [])
    for name, text in TOOLS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    assert quotas(environ, ["/lustre/a", "/lustre/b"]) == [
        {"place": "nas:/home", "what": "room", "used": 990 << 10, "limit": 900 << 10},
        {"place": "nas:/far", "what": "files", "used": 99, "limit": 100},
        {"place": "/lustre", "what": "files", "used": 100, "limit": 90},
    ]
    assert device_health(environ) == [{"device": "0", "errors": 3, "throttled": False}]
    (tmp_path / "xpu-smi").write_text("#!/bin/sh\necho Timestamp, DeviceId, a, b; echo 12:00, 0, 0, Power Cap\n")
    (tmp_path / "xpu-smi").chmod(0o755)
    (tmp_path / "rocm-smi").unlink()
    assert device_health(environ) == [{"device": "0", "errors": 0, "throttled": True}]


def test_what_no_host_can_reach_is_one_problem_and_a_bridge_that_all_have_is_none():
    hosts = [host(1), *(host(number, master__problem="timed out") for number in (2, 3))]
    [finding] = diagnose(hosts)
    assert (finding.is_problem, finding.text) == (
        True,
        "no host reaches n01, where the ranks meet: on n02, n03, timed out",
    )
    hosts = [
        host(1),
        host(2),
        *(host(number, master__problem=why) for number, why in ((3, "timed out"), (4, "no way"))),
    ]
    assert [each.text.partition(" n01, ")[2] for each in diagnose(hosts)] == [
        "where the ranks meet: timed out", "where the ranks meet: no way",
    ]  # fmt: skip
    docker = {"address": "172.17.0.1", "state": "down"}
    assert diagnose([host(number, interfaces__docker0=docker) for number in (1, 2, 3)]) == []


def test_facts_that_could_not_be_had_are_no_fault_of_the_host():
    error = {"error": "PermissionError: x"}
    facts = host(python=error, devices=error, folder=error, script=error, interfaces=error, proxies=error, master=None)
    facts["places"] = {"TMPDIR": error, "the home folder": None}
    assert diagnose([facts]) == []


def test_only_a_shell_that_is_no_rank_holds_stale_variables():
    ours = {"WORLD_SIZE": "2", "EZPZ_WORLD_SIZE": "2"}  # of ezpz_setup_env
    assert (stale_variables(ours), stale_variables({**ours, "WORLD_SIZE": "4"})) == ({}, {"WORLD_SIZE": "4"})
    assert stale_variables({"RANK": "1", "MASTER_ADDR": "n01", "HOME": "/"}) == {"RANK": "1", "MASTER_ADDR": "n01"}
    for name in ("EZPZ_LAUNCH_ID", "TORCHELASTIC_RUN_ID"):
        assert stale_variables({"RANK": "1", name: "0"}) == {}


def test_only_whole_answers_count():
    assert parse_answer('{"examined": 1, "host": "n01"}')["host"] == "n01"
    for line in ("", "hello", '{"examined": 1, "host"', '{"examined": 1, "host": 3}', '{"host": "n01"}'):
        assert parse_answer(line) is None


def test_versions_are_the_names_of_metadata_and_the_first_folder_counts(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, name in (
        (first, "torch-2.13.0+cpu.dist-info"),
        (first, "torchvision-0.9.dist-info"),
        (second, "torch-2.12.0.dist-info"),
        (second, "ezpz-0.1.0-py3.11.egg-info"),
    ):
        (folder / name).mkdir(parents=True)
    folders = [str(tmp_path / "missing"), str(first), str(second)]
    found = installed_versions(folders, ("torch", "ezpz", "numpy"))
    assert found == {"torch": "2.13.0+cpu", "ezpz": "0.1.0"}


MODULES = [
    ({"MPI.cpython-311-x86_64-linux-gnu.so": b"\x7fELF\0libc.so.6\0libmpi.so.40\0"}, "Open MPI"),
    ({"MPI.cpython-311-x86_64-linux-gnu.so": b"\x7fELF\0libmpich.so.12\0libc.so.6\0"}, "MPICH or Intel MPI"),
    ({"MPI.cpython-311-x86_64-linux-gnu.so": b"\x7fELF\0libmpi_gnu_123.so.12\0"}, "MPICH or Intel MPI"),
    ({"MPI.cpython-311-x86_64-linux-gnu.so": b"\x7fELF\0libc.so.6\0"}, ""),
    ({"MPI.mpich.so": b"\0libmpi.so.12\0", "MPI.openmpi.so": b"\0libmpi.so.40\0"}, ""),
    ({}, ""),
]


def test_the_mpi_of_mpi4py_is_what_its_module_asks_the_linker_for(subtests, tmp_path):
    for number, (modules, built_for) in enumerate(MODULES):
        with subtests.test(modules=modules):
            folder = tmp_path / str(number)
            folder.mkdir()
            (folder / "second" / "mpi4py").mkdir(parents=True)
            for name, content in modules.items():
                (folder / "second" / "mpi4py" / name).write_bytes(content)
            assert mpi_of_mpi4py([str(folder / "first"), str(folder / "second")]) == built_for


@pytest.mark.slow
def test_a_host_is_looked_at_without_costly_imports(clean_env):
    code = "import os, sys; from ezpz.watch.doctor.examine import examine; examine({}, os.environ); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=clean_env, capture_output=True, text=True, check=True)
    costly = {"importlib.metadata", "email", "zipfile", "urllib.parse", "encodings.idna", "torch"}
    assert not costly & set(done.stdout.split())
