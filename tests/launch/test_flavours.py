"""Golden lines of every flavour: one host, many, uneven blocks, a subset, and the sites' documented cases."""

import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from ezpz.cluster import Allocation, recognise
from ezpz.cluster.scheduler import RemoteShellAccess, scheduler
from ezpz.errors import LaunchError, UsageError
from ezpz.interpreter import module_line
from ezpz.launch import Placement
from ezpz.launch.cpu_binding import Binding, choose_binding, share
from ezpz.launch.flavours import FLAVOURS, base, flavour, identify
from ezpz.launch.flavours.request import Order, words
from ezpz.launch.launcher_choice import Choice
from ezpz.launch.plan import Chosen, LaunchPlan
from ezpz.launch.planning import reach
from ezpz.launch.rank_variables import communication
from lab.process import program, wait_until

ONE = Placement(("here",), (2,), "-n")
MANY = Placement(("n01", "n02", "n03"), (4, 4, 4), "one per device")
LAST = Placement(("n01", "n02"), (4, 1), "-n")
UNEVEN = Placement(("n01", "n02", "n03"), (2, 4, 1), "SLURM_TASKS_PER_NODE")
SUBSET = Placement(("n03", "n01"), (4, 4), "--hosts")


REORDERED = Placement(("n03", "n01"), (4, 4), "--hosts", is_ordered=False)


def line(name, placement, *, environ=None, binding=None, **more):
    here = placement is ONE
    exe = {"srun": "srun", "flux": "flux", "torchrun": "python3"}.get(name, "mpiexec")
    more |= {"is_here": here, "hostfile": "" if here else "/f", "environ": environ or {}}
    order = Order(exe, placement, binding or Binding(), **more)
    return shlex.join(words(flavour(name).command(order)))


OPENMPI = "mpiexec -n {} --map-by slot:OVERSUBSCRIBE --bind-to none"
SRUN = "--export=ALL --kill-on-bad-exit=1 --quit-on-interrupt --input=0"
BLOCK = f"--distribution=block -c 1 --overcommit --overlap {SRUN}"
ARBITRARY = BLOCK.replace("block", "arbitrary")
FLUX = "-o gpu-affinity=off -o cpu-affinity=per-task"
TORCHRUN = shlex.join(module_line("torch.distributed.run", "python3"))

GOLDEN = [
    ("mpich", ONE, "mpiexec -n 2 -launcher fork"),
    ("mpich", MANY, "mpiexec -n 12 -f /f"),
    ("mpich", UNEVEN, "mpiexec -n 7 -f /f"),
    ("mpich", SUBSET, "mpiexec -n 8 -f /f"),
    ("impi", ONE, "mpiexec -n 2 -bootstrap fork"),
    ("impi", MANY, "mpiexec -n 12 -machinefile /f"),
    ("impi", UNEVEN, "mpiexec -n 7 -machinefile /f"),
    ("openmpi5", ONE, OPENMPI.format(2)),
    ("openmpi5", MANY, OPENMPI.format(12) + " --hostfile /f -x MINE"),
    ("openmpi5", UNEVEN, OPENMPI.format(7) + " --hostfile /f -x MINE"),
    ("openmpi4", ONE, OPENMPI.format(2).replace("mpiexec", "mpiexec --noprefix")),
    ("openmpi4", SUBSET, OPENMPI.format(8) + " --hostfile /f -x MINE"),
    ("pals", ONE, "mpiexec --envall -n 2 --ppn 2"),
    ("pals", MANY, "mpiexec --envall -n 12 --ppn 4 --hostfile /f"),
    ("pals", LAST, "mpiexec --envall -n 5 --ppn 4 --hostfile /f"),
    ("pals", SUBSET, "mpiexec --envall -n 8 --ppn 4 --hostfile /f"),
    ("srun", MANY, f"srun -N 3 -n 12 --ntasks-per-node=4 --nodelist=n01,n02,n03 {BLOCK}"),
    ("srun", UNEVEN, f"srun -N 3 -n 7 --nodelist=/f {ARBITRARY}"),
    ("srun", SUBSET, f"srun -N 2 -n 8 --ntasks-per-node=4 --nodelist=n03,n01 {BLOCK}"),
    ("srun", REORDERED, f"srun -N 2 -n 8 --nodelist=/f {ARBITRARY}"),
    ("flux", ONE, f"flux run --nodes=1 --ntasks=2 --requires=host:here {FLUX}"),
    ("flux", MANY, f"flux run --nodes=3 --ntasks=12 --requires=host:n01,n02,n03 {FLUX}"),
    ("torchrun", ONE, f"{TORCHRUN} --nnodes=1 --nproc-per-node=2 --master-addr=127.0.0.1 --master-port=0 --no-python"),
]


def test_the_line_of_a_flavour(subtests):
    environ = {"MINE": "1", "OMPI_MCA_x": "1", "PWD": "/"}
    for name, placement, expected in GOLDEN:
        with subtests.test(name, placement=placement):
            assert line(name, placement, environ=environ) == expected


GRANTED = {"SLURM_CPUS_PER_TASK": "2", "SLURM_CPUS_PER_TASK_HET_GROUP_1": "3"}  # the first is component 0's
HEAD, REST = ("head",), ("g1", "g2")


def in_component(number, hosts, counts):
    return Placement(hosts, counts, "-n", cpus=8, component=number)


def over(*parts):
    hosts, counts = ([one for part in parts for one in getattr(part, name)] for name in ("hosts", "counts"))
    return Placement(tuple(hosts), tuple(counts), "-n", cpus=8, parts=parts)


def test_srun_names_the_node_that_failed():
    words = "srun: error: Node failure on n02\nsrun: error: n03: task 2: Killed\nNode failure on n04\n"
    assert flavour("srun").failed_hosts(words) == ("n02",)
    assert flavour("mpich").failed_hosts(words) == ()
    ended = "slurmstepd-n01: error: *** STEP 1.1 ON n01 CANCELLED AT 2026-11-26T13:30:08 DUE TO NODE FAILURE, SEE "
    assert flavour("srun").job_lost_a_host(f"{ended}SLURMCTLD LOG FOR DETAILS ***\nsrun: got SIGCONT\n")
    assert not flavour("srun").job_lost_a_host(words)


def test_srun_is_told_the_component_of_a_heterogeneous_job():
    told = line("srun", in_component(1, REST, (2, 2)), environ=GRANTED, devices=(2, 2))
    first = "srun --het-group=1 -N 2 -n 4 --ntasks-per-node=2 --nodelist=g1,g2 --distribution=block -c 3 "
    assert told.startswith(first)
    assert " -c 2 " in line("srun", in_component(0, HEAD, (2,)), environ=GRANTED)
    assert "-c 4 " in line("srun", in_component(2, HEAD, (2,)), environ=GRANTED)  # not component 0's


@pytest.mark.parametrize(
    ("counts", "named"), [((2, 2), "g1,g2 --distribution=block"), ((2, 1), "g1,g1,g2 --distribution=arbitrary")]
)
def test_one_line_of_srun_starts_ranks_in_several_components(counts, named):
    placement = over(in_component(0, HEAD, (1,)), in_component(1, REST, counts))
    told = line("srun", placement, environ=GRANTED, devices=(1, 4, 4), program=("shim", "a b"), user_args=("-v",))
    first, second = told.split(" shim 'a b' : ")
    assert first.startswith("srun --het-group=0 -N 1 -n 1 --ntasks-per-node=1 --nodelist=head ")
    assert second.startswith(f"--het-group=1 -N 2 -n {sum(counts)} ")
    assert f"--nodelist={named} -c 3 " in second
    assert first.endswith(f"--overlap {SRUN} -v")
    assert second.endswith(f"--overlap {SRUN} -v")


MPIS = ("mpich", "impi", "openmpi5", "openmpi4")


def test_components_that_a_launcher_cannot_serve_are_refused(subtests):
    placement = over(in_component(1, REST, (1, 1)), in_component(0, HEAD, (1,)))
    for name in ("srun", *MPIS):
        way_out = "`--hosts head,g1,g2`" if name == "srun" else "hosts of one component"
        with subtests.test(name):
            with pytest.raises(UsageError, match=way_out) as caught:
                line(name, placement, scheduler=scheduler("slurm"))
            assert "\n" not in str(caught.value)


def test_the_daemons_of_an_mpi_are_started_in_the_component_of_its_ranks(subtests):
    order = Order("mpiexec", in_component(1, REST, (1, 1)), Binding(), hostfile="/f", scheduler=scheduler("slurm"))
    for name in MPIS:
        with subtests.test(name):
            told = words(flavour(name).command(order))
            assert RSH in told
            leaves_out_slurms = any(word.startswith("^slurm") for word in told)
            assert leaves_out_slurms == name.startswith("openmpi")  # whose list is component 0's
            remote = flavour(name).environment(order)["EZPZ_REMOTE_SHELL"].value
            assert remote.startswith("srun --het-group=1 -N1 -n1 ")


def test_slurms_signals_are_kept_from_the_daemons_of_open_mpi_unless_the_user_has_chosen(subtests):
    for name in ("openmpi5", "openmpi4"):
        variable, program = flavour(name).daemon
        for around, mine in (("slurm", {}), ("pbs", {}), ("slurm", {variable: "mine"})):
            with subtests.test(name, around=around, mine=mine):
                order = Order("mpiexec", MANY, Binding(), hostfile="/f", scheduler=scheduler(around), environ=mine)
                told = flavour(name).environment(order).get(variable)
                if around == "slurm" and not mine:
                    assert told.value.endswith(f"bin/shielded {program}")
                else:
                    assert told is None


def test_what_is_shielded_lives_on_when_it_is_signalled_and_its_exit_code_counts(tmp_path):
    shielded = Path(base.__file__).parents[2] / "bin" / "shielded"
    script = "touch up; while [ ! -e over ]; do sleep 0.02; done; exit 7"
    process = subprocess.Popen([shielded, "sh", "-c", script], cwd=tmp_path)
    try:
        wait_until((tmp_path / "up").exists, 60, "its program", every=0.01)
        for number in (signal.SIGTERM, signal.SIGUSR2):
            process.send_signal(number)
        (tmp_path / "over").touch()
        assert process.wait(60) == 7
    finally:
        process.kill()


RSH = str(Path(base.__file__).parents[2] / "bin" / "remote_shell")
REMOTE = {
    "mpich": f"-launcher ssh -launcher-exec {RSH}",
    "impi": f"-bootstrap ssh -bootstrap-exec {RSH}",
    "openmpi4": "--mca ras '^slurm,tm' --mca plm rsh --mca orte_leave_session_attached 1 "
    f"--mca plm_rsh_no_tree_spawn 1 --mca plm_rsh_agent {RSH}",
}


def test_slurm_starts_the_daemons_of_an_mpi(subtests):
    around = {"scheduler": scheduler("slurm")}
    for name in MPIS:
        with subtests.test(name):
            assert ("slurm" in line(name, MANY, **around)) == (name in {"mpich", "impi"})
            assert RSH not in line(name, MANY, **around)
            assert REMOTE.get(name, "--hostfile") in line(name, REORDERED, **around)
            assert RSH not in line(name, REORDERED)
            told = flavour(name).environment(Order("mpiexec", REORDERED, Binding(), False, hostfile="/f", **around))
            assert ("EZPZ_REMOTE_SHELL" in told) == (name in REMOTE)


def test_the_users_own_way_to_other_hosts_counts(subtests):
    for name, chosen in {
        "mpich": {"environ": {"HYDRA_LAUNCHER": "ssh"}},
        "impi": {"user_args": ("-bootstrap", "ssh")},
        "openmpi4": {"environ": {"OMPI_MCA_plm_rsh_agent": "rsh"}},
    }.items():
        for placement in (MANY, REORDERED):
            with subtests.test(name, placement=placement):
                told = line(name, placement, scheduler=scheduler("slurm"), **chosen)
                assert "slurm" not in told
                assert RSH not in told


TASK = dict.fromkeys(("PBS_JOBCOOKIE", "PBS_NODENUM", "PBS_TASKNUM", "PBS_MOMPORT", "PBS_ENVIRONMENT"), "1")


def test_the_task_manager_of_pbs_starts_the_daemons_of_an_mpi(tmp_path, subtests):
    program(tmp_path / "pbs_tmrsh", "#!/bin/sh\n")
    (tmp_path / "nodes").write_text("n01\nn02\nn03\n")
    job = {"PATH": str(tmp_path), "PBS_JOBID": "1.head", "PBS_NODEFILE": f"{tmp_path}/nodes", **TASK}
    aurora = recognise({"EZPZ_SITE": "aurora"}, lambda _: None).site
    second = f"EZPZ_REMOTE_AS=4711,{','.join(scheduler('pbs').remote_needs)}"

    def planned(name, environ, site=None, process=0):
        found = RemoteShellAccess(process=process) if process else reach(scheduler("pbs"), "1.head", environ, site)
        choice = Choice(flavour(name), "mpiexec", "t")
        chosen = Chosen(choice, site=site, reach=found)
        return LaunchPlan(MANY, chosen, hostfile="/f", environ=environ, scheduler=scheduler("pbs"))

    for name, by_pbs in {
        **{name: REMOTE[name] for name in ("mpich", "impi")},
        "openmpi4": f"--mca orte_leave_session_attached 1 --mca plm_rsh_no_tree_spawn 1 --mca plm_rsh_agent {RSH}",
        "openmpi5": "--prtemca prte_leave_session_attached 1 "
        f"--prtemca plm_ssh_no_tree_spawn 1 --prtemca plm_ssh_agent {RSH}",
    }.items():
        with subtests.test(name):
            plan = planned(name, job)
            prefix = plan.prefix()
            assert by_pbs in shlex.join(prefix)
            assert prefix[:3] == ["env", "EZPZ_REMOTE_SHELL=pbs_tmrsh", "mpiexec"]  # ${DIST_LAUNCH} works by itself
            assert "plm rsh" not in shlex.join(prefix)  # one that has the task manager built in uses that
            assert plan.launcher_environment()["EZPZ_REMOTE_SHELL"] == "pbs_tmrsh"
            of_another_shell = planned(name, {}, process=4711).prefix()
            assert of_another_shell[:4] == ["env", "EZPZ_REMOTE_SHELL=pbs_tmrsh", second, "mpiexec"]
            for other in (
                planned(name, {**job, "PATH": "/nowhere"}),
                planned(name, {key: value for key, value in job.items() if key != "PBS_JOBCOOKIE"}),  # a second shell
                planned(name, {**job, "PBS_NODEFILE": "/f"}),  # as on a sister host
                planned(name, job, aurora),  # which names its launcher
            ):
                assert RSH not in other.prefix()
                assert "EZPZ_REMOTE_SHELL" not in other.launcher_environment()


def test_the_remote_shell_finds_the_whole_name_of_a_host(run_cli, clean_env):
    shell = {**clean_env, "EZPZ_REMOTE_SHELL": "echo", "EZPZ_HOSTS": "n01.a.b,n011,n02.a.b"}
    told = [run_cli([RSH, host, "x"], shell).stdout for host in ("n01", "n011", "n02", "n02.a.b", "n03")]
    assert told == [f"{host} sh -c x\n" for host in ("n01.a.b", "n011", "n02.a.b", "n02.a.b", "n03")]


def test_the_remote_shell_takes_sshs_arguments(run_cli, clean_env):
    shell = {**clean_env, "EZPZ_REMOTE_SHELL": "echo -w"}
    assert run_cli([RSH, "-q", "-x", "n01", "cd /a && ", '"b c"'], shell).stdout == '-w n01 sh -c cd /a &&  "b c"\n'
    done = run_cli([RSH, "HOST=n 1", 'echo "$HOST"', "two;", "exit 7"], {**shell, "EZPZ_REMOTE_SHELL": "env"})
    assert (done.stdout, done.returncode) == ("n 1 two\n", 7)


def test_what_a_launcher_cannot_place_is_refused_with_a_way_out(subtests):
    for name, placement in (("pals", UNEVEN), ("flux", UNEVEN), ("flux", LAST), ("torchrun", MANY)):
        with subtests.test(name, placement=placement), pytest.raises(LaunchError, match=r"--ppn|--flavour ssh"):
            line(name, placement)


DIALECTS = {
    **dict.fromkeys(("mpich", "impi"), ("n01:4", "n02:1")),
    **dict.fromkeys(("openmpi5", "openmpi4"), ("n01 slots=4", "n02 slots=1")),
    "pals": ("n01", "n02"),
    "srun": ("n01\nn01\nn01\nn01", "n02"),
}


def test_host_files_speak_the_dialect():
    pairs = list(zip(LAST.hosts, LAST.counts, strict=True))
    assert {name: tuple(flavour(name).hostfile_line(*pair) for pair in pairs) for name in DIALECTS} == DIALECTS


def test_every_word_and_variable_has_a_reason_and_the_users_words_come_last(subtests):
    mine = {"site_args": ("--site",), "user_args": ("--mine", "1"), "site": "s", "environ": {"OMP_NUM_THREADS": "1"}}
    order = Order("exe", ONE, Binding(), **mine)
    for name in FLAVOURS:
        if name in {"local", "pbs_tmrsh", "ssh"}:
            continue
        with subtests.test(name):
            flags = flavour(name).command(order)
            assert all(flag.words and flag.reason for flag in flags)
            assert words(flags)[-3:] == ["--site", "--mine", "1"]
            assert all(setting.origin for setting in flavour(name).environment(order).values())


def test_a_flavour_is_complete(subtests):
    """What docs/launch.md asks of a new flavour."""
    root = Path(__file__).parents[2]
    rows = [row.lower() for row in (root / "docs" / "launch.md").read_text().splitlines() if row.startswith("| ")]
    changes = (root / "CHANGELOG.md").read_text().lower()
    for name in FLAVOURS:
        spoken = {"openmpi5": "open mpi 5", "openmpi4": "open mpi 5, 4", "impi": "intel mpi"}.get(name, name)
        with subtests.test(name):
            assert any(row.startswith(f"| {spoken}") for row in rows), "no row in docs/launch.md"
            assert spoken.split(" 5")[0] in changes
            if name != "local":
                one = flavour(name)
                assert one.name == name
                assert one.title
                assert one.binds in {True, False}
                assert not one.recognises("")
                assert one.hostfile_line("n01", 1)


# ---- what programs say of themselves -------------------------------------------------------------------------------

SAID = {
    "mpich": "HYDRA build details:\n    Version:                                 5.0.2\n",
    "impi": "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)\n",
    "openmpi5": "mpiexec (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n",
    "openmpi4": "mpiexec (OpenRTE) 4.1.8\n",
    "pals": "Usage: mpiexec [options]\n --cpu-bind KEYWORD\n --depth N\n --no-vni\n --line-buffer\n",
}


def test_a_flavour_is_known_by_what_it_says():
    assert {name: identify(text) for name, text in SAID.items()} == {name: name for name in SAID}
    assert identify("mpirun (Open MPI) 4.1.4") == "openmpi4"
    assert identify("/opt/cray/pals/1.7/bin/mpiexec\n") == "pals"
    assert identify("garbage") == identify("") == ""


# ---- the documented lines of four sites ----------------------------------------------------------------------------


def at_site(environ, hosts, ppn, exe="mpiexec", name="pals", cpus=None, devices=None):
    site = recognise(environ, lambda _: None).site
    placement = Placement(hosts, (ppn,) * len(hosts), "one per device", cpus)
    how = {
        "binding": choose_binding("", site, ppn, site.devices_per_host if devices is None else devices),
        "communication": communication(environ, site, Allocation("pbs", "1", hosts), use_site=True, unset=()),
    }
    chosen = Chosen(Choice(flavour(name), exe, "test"), site=site, **how)
    plan = LaunchPlan(placement, chosen, hostfile="/f", environ=environ)
    return shlex.join(plan.prefix()), plan


def test_aurora():
    text, plan = at_site({"PBS_JOBID": "1.aurora-pbs-0001.host"}, ("x4000c0s0b0n0", "x4000c0s1b0n0"), 12)
    cpus = "list:4-7:8-11:12-15:16-19:20-23:24-27:56-59:60-63:64-67:68-71:72-75:76-79"
    assert text == f"mpiexec --envall -n 24 --ppn 12 --hostfile /f --cpu-bind {cpus}"
    assert plan.variables["CCL_ATL_TRANSPORT"].value == "mpi"
    assert plan.variables["ZE_FLAT_DEVICE_HIERARCHY"].value == "FLAT"
    assert "EZPZ_CPUS" not in plan.variables


def test_ranks_without_devices_are_not_bound_by_device():
    """Aurora's table would give the only rank of a host 16 of its 104 cores."""
    for ranks in (1, 12):
        text, plan = at_site({"PBS_JOBID": "1.aurora-pbs-0001.host"}, ("x4000c0s0b0n0",), ranks, devices=0)
        assert text == f"mpiexec --envall -n {ranks} --ppn {ranks} --hostfile /f --cpu-bind none"
        assert plan.binding.origin == "no devices are used, and the site's bindings go by device"


def test_a_site_without_devices_binds_just_as_many_ranks_as_its_table_names():
    crux = {"PBS_JOBID": "1.crux-pbs-0001.host"}
    assert "--cpu-bind list:0-15:16-31:" in at_site(crux, ("x1000c0s0b0n0",), 8)[0]
    assert at_site(crux, ("x1000c0s0b0n0",), 1)[0].endswith("--cpu-bind none")


NERSC, OLCF = {"NERSC_HOST": "perlmutter"}, {"LMOD_SYSTEM_NAME": "frontier"}
ON_TWO = "srun -N 2 -n {} --ntasks-per-node={} --nodelist={} --distribution=block"


def test_the_documented_lines_of_other_sites(subtests):
    for name, (job, expected) in {
        "polaris": (
            ({"PBS_JOBID": "1.polaris-pbs-01.hsn"}, ("x3001c0s1b0n0", "x3001c0s1b1n0"), 4),
            "mpiexec --envall -n 8 --ppn 4 --hostfile /f --cpu-bind list:24-31,56-63:16-23,48-55:8-15,40-47:0-7,32-39",
        ),
        "perlmutter": (
            (NERSC, ("nid000001", "nid000002"), 4, "srun", "srun", 128),
            f"{ON_TWO.format(8, 4, 'nid000001,nid000002')} -c 32 --overlap --cpu-bind=cores {SRUN} --gpu-bind=none",
        ),
        "frontier": (
            (OLCF, ("frontier1", "frontier2"), 8, "srun", "srun", 56),
            f"{ON_TWO.format(16, 8, 'frontier1,frontier2')} --overlap {SRUN} -c7 --gpus-per-task=1 --gpu-bind=closest",
        ),
    }.items():
        with subtests.test(name):
            text, plan = at_site(*job)
            assert text == expected
            if name == "frontier":
                assert plan.variables["NCCL_SOCKET_IFNAME"].value == "hsn0,hsn1,hsn2,hsn3"


# ---- binding -------------------------------------------------------------------------------------------------------


def test_bindings_are_read_in_the_launchers_dialects():
    listed = choose_binding("list:0-3,8:4-7", None, 2)
    assert listed.cpus == ("0-3,8", "4-7")
    assert listed.masks == ("0x10f", "0xf0")
    assert choose_binding("mask_cpu:0x10f,0xf0", None, 2).cpus == ("0,1,2,3,8", "4,5,6,7")
    assert choose_binding("map_cpu:0,8", None, 1).cpus == ("0",)
    assert line("srun", SUBSET, binding=listed).count("--cpu-bind=mask_cpu:0x10f,0xf0") == 1
    assert "--cpu-bind none" in line("pals", SUBSET, binding=choose_binding("none", None, 4))


def test_fewer_ranks_than_devices_are_bound_as_the_first_of_all():
    site = recognise({"EZPZ_SITE": "aurora"}, lambda _: None).site
    assert choose_binding("", site, 4, 12).cpus == ("4-7", "8-11", "12-15", "16-19")
    assert choose_binding("", site, 4, 6).cpus == ("1-16", "17-32", "33-48", "53-68")
    assert choose_binding("", site, 13, 12).text == "none"


def test_a_bad_binding_is_one_clear_error(subtests):
    for wish, expected in {
        "list:0-3": ("too short", "names the CPUs of 1 local ranks", "expected 2", "--ppn 1"),
        "list:3-0:1": ("cannot read the binding 'list:3-0:1'", "--cpu-bind"),
        "list:": ("cannot read the binding",),
        "mask_cpu:0,0x1": ("cannot read the binding",),
        "core": ("cannot read the binding 'core'", "cores"),
    }.items():
        with subtests.test(wish):
            with pytest.raises(UsageError) as caught:
                choose_binding(wish, None, 2)
            assert all(word in str(caught.value) for word in expected)


def test_cores_are_shared_in_order_and_more_ranks_than_cores_share_all():
    allowed = os.sched_getaffinity(0)
    parts = [share(allowed, rank, 2) for rank in range(2)]
    assert sorted(parts[0] + parts[1]) == sorted(allowed) or len(allowed) < 2
    assert share({0, 1}, 5, 1000) == [0, 1]
