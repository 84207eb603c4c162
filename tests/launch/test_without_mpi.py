"""``--mpi no``: an agent per host forks the ranks, and one that starts an MPI ends with 125, never as a world of 1."""

import json
import os
import re
import shlex
import signal
import socket
import sys
import threading
import time
from contextlib import closing

import pytest

from ezpz import proc
from ezpz.cluster.site import Site
from ezpz.dist.verify_world import check_mpi
from ezpz.errors import LaunchError, RankError, UsageError
from ezpz.launch import LaunchPlan, Placement
from ezpz.launch.contract import inherited
from ezpz.launch.cpu_binding import Binding, by_agents, choose_binding
from ezpz.launch.event_loop import Loop
from ezpz.launch.explain import as_json, as_text
from ezpz.launch.flavours import flavour as flavour_named
from ezpz.launch.flavours.base import AGENT
from ezpz.launch.flavours.request import Setting
from ezpz.launch.host.mpi_trap import MpiTrap, cleared
from ezpz.launch.launcher_choice import Choice, choose_mpi
from ezpz.launch.plan import Chosen
from ezpz.ranks import Ranks
from lab import flavours
from lab import process as lab
from lab.flavours import remote
from lab.require import require
from lab.shown import SHOW, SHOW_INPUT, shown

LAUNCH = [sys.executable, "-m", "ezpz.launch"]
NO = Setting("no", "--mpi")
YES = Setting("yes", "default")
TWO = Placement(("n01", "n02"), (3, 1), "-n", cpus=8)


def plan(name, placement=TWO, **more):
    launcher = Choice(flavour_named(name) if name else None, f"/bin/{name}", "test")
    more.setdefault("mpi", NO)
    how = {name: more.pop(name) for name in ("mpi", "binding", "communication", "site") if name in more}
    return LaunchPlan(placement, Chosen(launcher, **how), **{"command": ("true",), "environ": {}, **more})


# Who decides, and what each launcher does.


def decided(name, requested="site", *, table="", args=(), site_args=()):
    site = Site("den", "none", launcher="srun", launcher_args=site_args, mpi=table)
    return choose_mpi(requested, Choice(flavour_named(name) if name else None, "x", "test"), site, args)


def test_the_option_decides_then_the_sites_table_and_nothing_is_guessed():
    assert tuple(decided("mpich")) == ("yes", "default")
    assert tuple(decided("mpich", table="no")) == ("no", "site den")
    assert tuple(decided("mpich", "site", table="yes")) == ("yes", "site den")
    assert tuple(decided("mpich", "yes", table="no")) == ("yes", "--mpi")
    assert tuple(decided("mpich", "no", table="yes")) == ("no", "--mpi")
    assert tuple(decided("mpich", "", table="no")) == ("yes", "default")  # a plain line, which starts each rank
    assert tuple(decided("", table="no")) == ("no", "site den")
    assert tuple(decided("ssh", "no")) == ("no", "--mpi")
    assert tuple(decided("")) == ("none", "local brings none")
    assert tuple(decided("pals", table="no")) == ("yes", "PALS cannot start agents, as site den wants")


def test_a_launcher_that_cannot_do_as_the_option_says_is_refused(subtests):
    world_of_1 = r"cannot start one agent per host \(from --mpi no; .* Leave --mpi out"
    brings_none = r"starts ranks without an MPI .*from --mpi yes.*mpiexec"
    for value, names, words in (
        ("no", ("pals", "flux", "torchrun"), world_of_1),
        ("yes", ("", "ssh", "torchrun"), brings_none),
    ):
        for name in names:
            with subtests.test(name, mpi=value), pytest.raises(LaunchError, match=words):
                decided(name, value)


def test_options_that_give_each_rank_its_part_of_a_host_are_refused(subtests):
    part = r"\(from --launcher-args\) gives each rank a part of its host.*`--mpi yes`"
    of_srun = "-c7", "--gpus-per-task=1", "--gpu-bind closest", "-l --cpu-bind=cores"
    for line in (*(f"srun {words}" for words in of_srun), "mpich -bind-to core", "openmpi5 --map-by core"):
        with subtests.test(line):
            name, *words = line.split()
            with pytest.raises(UsageError, match=part):
                decided(name, "no", args=words)
            assert tuple(decided(name, "yes", args=words)) == ("yes", "--mpi")
            if name == "srun":
                with pytest.raises(UsageError, match=r"\(from site den\) gives each rank"):
                    decided(name, table="no", site_args=words)


def test_options_that_bind_nothing_are_left_alone():
    assert decided("srun", "no", args=("--gpu-bind=none", "--label", "--cpu-bind", "none")).value == "no"
    assert decided("openmpi4", "no", args=("--bind-to", "none", "--tag-output")).value == "no"


def test_the_agents_bind_what_a_launcher_would_have_bound():
    listed = choose_binding("list:0-1:2-3", None, 2)
    assert by_agents(listed, "srun") == listed
    assert by_agents(Binding(), "srun") == Binding("auto", (), "srun binds no rank where agents start them")
    assert by_agents(Binding("none", (), "--cpu-bind"), "srun").text == "none"
    assert by_agents(choose_binding("cores", None, 2), "srun").text == "cores"
    made = plan("srun", mpi=Setting("no", "--mpi"), binding=choose_binding("cores", None, 2))
    assert tuple(made.variables["EZPZ_CPUS"]) == ("cores", "--cpu-bind")
    for name in ("srun", "mpich"):
        made = plan(name, binding=listed)
        assert made.variables["EZPZ_CPUS"].value == "0-1:2-3"


def test_the_line_starts_one_agent_on_each_host(subtests):
    for name, words in [
        ("mpich", "-n 2 -f /f"),
        ("impi", "-n 2 -machinefile /f"),
        ("openmpi5", "-n 2 --map-by slot:OVERSUBSCRIBE --bind-to none --hostfile /f"),
        ("srun", "-N 2 -n 2 --ntasks-per-node=1 --nodelist=n01,n02 --distribution=block -c 8 --overlap --mpi=none"),
    ]:
        with subtests.test(name):
            made = plan(name, hostfile="/f")
            line = shlex.join(made.argv())
            assert f"{words} " in line
            assert made.argv()[-6:] == [sys.executable, "-I", "-S", AGENT, "--by-launcher", "true"]
            assert made.launcher_environment()["EZPZ_PLACEMENT"] == "3,1"
            assert made.launcher_environment()["EZPZ_NO_MPI"] == "--mpi no"
            assert "OMP_NUM_THREADS" not in made.variables
            again = made.prefix()
            assert again[-9:] == ["--flavour", name, "--mpi", "no", "-n", "4", "--hosts", "n01,n02", "--"]


def test_srun_gives_an_agent_all_that_the_ranks_of_its_host_would_get():
    job = {"SLURM_CPUS_PER_TASK": "2", "SLURM_GPUS_PER_TASK": "1", "SLURM_JOB_ID": "7"}
    made = plan("srun", environ=job)
    assert " -c 6 " in f" {shlex.join(made.argv())} "  # three ranks of two CPUs on the fuller host
    assert not {"SLURM_GPUS_PER_TASK"} & set(made.launcher_environment())
    assert "SLURM_GPUS_PER_TASK" in plan("srun", environ=job, mpi=YES).launcher_environment()


def test_the_way_and_who_chose_it_are_shown():
    made = plan("mpich", hostfile="/f")
    assert json.loads(as_json(made))["mpi"] == {"value": "no", "origin": "--mpi"}
    text = as_text(made)
    assert re.search(r"mpi +no: an agent per host forks the ranks.*\[--mpi\]", text)
    assert "behind ezpz's agent of each host" in text
    assert re.search(r"EZPZ_NO_MPI +site den", as_text(plan("mpich", hostfile="/f", mpi=Setting("no", "site den"))))


# What an MPI finds when a rank starts it.


def test_what_a_launcher_told_its_own_process_reaches_no_rank_and_the_users_settings_do():
    kept = {"OMPI_MCA_btl": "tcp", "PMIX_MCA_gds": "hash", "OMPI_ALLOW_RUN_AS_ROOT": "1", "FI_PROVIDER": "tcp"}
    told = ("PMI_FD", "PMIX_NAMESPACE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "HYDI_CONTROL_FD")
    told = {**dict.fromkeys(told, "7"), "OMPI_MCA_ess": "^singleton", "OMPI_MCA_orte_hnp_uri": "x"}
    assert cleared({**kept, **told}) == kept
    trapped = MpiTrap(Loop(), lambda _: None).variables(3)
    assert inherited({**kept, **trapped, "EZPZ_NO_MPI": "--mpi no"}) == kept  # a launch inside a rank
    assert inherited({**kept, "PMI_FD": "7", "EZPZ_NO_MPI": "1"}) == {**kept, "PMI_FD": "7"}


@pytest.fixture
def trap():
    loop, caught = Loop(), []
    made = MpiTrap(loop, caught.append)
    host, _, port = made.variables(3)["PMI_PORT"].partition(":")

    def call(*pieces):
        with closing(socket.create_connection((host, int(port)))) as caller:
            for piece in pieces:
                caller.sendall(piece)
                for _ in range(3):
                    loop.after("enough", 0.05, lambda: None)
                    loop.turn()
        return caught

    call.address = (host, int(port))
    call.loop, call.caught = loop, caught
    return call


PMIX_CALL = (
    b"\xff" * 8 + b"3" + bytes(7) + b"native\0\0\0\0\0\x08" + bytes(10) + b"ezpz-rank-5\0\0\0\0\x035.0.11rc1\0v41\0"
)


def test_a_call_of_pmi_or_pmix_tells_which_rank_it_is(trap):
    assert trap(b"cmd=initack pmiid=3\n") == [3]
    assert trap(PMIX_CALL) == [3, 5]
    assert trap(b"cmd=initack pmi", b"id=12\n") == [3, 5, 12]


def test_whatever_else_comes_means_nothing(trap):
    for text in (b"", b"GET / HTTP/1.1\r\n", b"cmd=initack pmiid=-1\n", b"x" * 10_000, b"\0ezpz-rank-\0"):
        trap(text)
    silent = []
    for _ in range(100):
        silent.append(socket.create_connection(trap.address))
        trap.loop.turn()
    assert trap(b"cmd=initack pmiid=1\n") == [1]
    for one in silent:
        one.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_users_call_means_nothing(trap):
    stay, gone = os.pipe()
    pid = os.fork()
    if not pid:
        os.setuid(65534)
        caller = socket.create_connection(trap.address)
        caller.sendall(b"cmd=initack pmiid=3\n")
        os.close(gone)
        os.read(stay, 1)
        os._exit(0)
    os.close(stay)
    for _ in range(5):
        trap.loop.after("enough", 0.1, lambda: None)
        trap.loop.turn()
    os.close(gone)
    os.waitpid(pid, 0)
    assert trap.caught == []


def test_an_orphaned_connection_belongs_to_nobody(trap):
    """The kernel tells user 0 for it: a stranger who hangs up at once shall not pass for root."""
    caller = socket.create_connection(trap.address)
    caller.sendall(b"cmd=initack pmiid=3\n")
    caller.close()
    for _ in range(5):
        trap.loop.after("enough", 0.05, lambda: None)
        trap.loop.turn()
    assert trap.caught == []


def test_setup_torch_refuses_an_mpi_that_the_agent_did_not_notice(monkeypatch):
    class Mpi:
        class COMM_WORLD:  # noqa: N801  # mpi4py's name
            Get_rank, Get_size = staticmethod(lambda: 0), staticmethod(lambda: 1)

        Is_initialized, Is_finalized = staticmethod(lambda: True), staticmethod(lambda: False)
        Get_library_version = staticmethod(lambda: "Cray MPICH 8")

    monkeypatch.setitem(sys.modules, "mpi4py.MPI", Mpi)
    ranks = Ranks(0, 4, 0, 4, 0, "contract")
    told = {"RANK": "0", "EZPZ_RUN_ID": "a", "TORCHELASTIC_RUN_ID": "a"}
    told |= {"EZPZ_FLAVOUR": "srun", "EZPZ_NO_MPI": "--mpi no"}
    with pytest.raises(RankError, match=r"\(from --mpi no\).*`launch --mpi yes`"):
        check_mpi(ranks, told)


MPI4PY = "from mpi4py import MPI; print('a world of', MPI.COMM_WORLD.size)"
LATE = f"import time; time.sleep(0.3); {MPI4PY}"
# What a rank starts, its words thrown away: nothing but the call itself can tell.
HIDDEN = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], stderr=subprocess.DEVNULL)"
REFUSED = r"ezpz: rank \d on host \S+ \(pid \d+\) cannot start an MPI: .*\(from --mpi no\).*`launch --mpi yes`"


def check_refused(done):
    assert done.returncode == 125, done.stderr
    assert re.search(REFUSED, done.stderr), done.stderr
    assert "a world of" not in done.stdout


# Under its own mpiexec and another: what catches an MPI is its library's, what a launcher leaves is the other's.
PAIRS = [*zip(flavours.NAMES, flavours.NAMES, strict=True), ("mpich", "openmpi"), ("openmpi", "impi")]


@pytest.mark.parametrize(
    ("flavour", "module"), [*PAIRS, ("openmpi4", "mpich"), ("impi", "openmpi4")], indirect=["flavour"]
)
def test_mpi4py_of_every_mpi_is_refused_under_every_mpiexec(flavour, launch, module):
    other = flavours.Flavour(module)
    require(module, other.problem())
    env = flavour.env(OPAL_PREFIX=str(other.bin.parent)) if module == "openmpi4" else flavour.env()
    check_refused(launch("--mpi", "no", "-n", "2", other.python, "-c", LATE, env=env))


def test_programs_that_start_an_mpi_later_are_refused_wherever_they_run(flavour, launch):
    """A program of C is what ctypes makes of Python: MPI_Init without mpi4py."""
    env = flavour.env(OPAL_PREFIX=str(flavour.bin.parent)) if flavour.name == "openmpi4" else flavour.env()
    check_refused(launch("--mpi", "no", "-n", "2", flavour.python, "-c", HIDDEN, MPI4PY, env=env))
    library = max((flavour.bin.parent / "lib").glob("libmpi.so*"), key=lambda path: path.stat().st_size)
    lib = library.parent
    env["LD_LIBRARY_PATH"] = f"{lib}:{lib}/openmpi:{lib}/mpich"
    init = f"import ctypes; ctypes.CDLL({str(library)!r}, mode=ctypes.RTLD_GLOBAL).MPI_Init(None, None)"
    check_refused(launch("--mpi", "no", "-n", "2", sys.executable, "-I", "-S", "-c", init, env=env))


@pytest.mark.parametrize(
    ("flavour", "flavour_words"),
    [("mpich", []), ("openmpi", ["--flavour", "ssh", "--hosts", "localhost"])],
    ids=["local", "ssh"],
    indirect=["flavour"],
)
def test_ranks_that_no_mpi_starts_are_refused_as_well(flavour, launch, clean_env, flavour_words):
    words = [*flavour_words, "--mpi", "no", "-n", "2"]
    check_refused(launch(*words, flavour.python, "-c", MPI4PY, env={**clean_env, "EZPZ_SSH": "/bin/false"}))


@pytest.mark.parametrize(
    ("flavour", "more"),
    [
        *((name, []) for name in flavours.NAMES),
        ("openmpi", ["--launcher-args=--mpi=none"]),
        ("mpich", ["--launcher-args=--mpi=pmi2"]),
    ],
    indirect=["flavour"],
)
def test_ranks_under_srun_are_refused(slurm, flavour, clean_env, more):
    env = {**clean_env, "OPAL_PREFIX": str(flavour.bin.parent)} if flavour.name == "openmpi4" else clean_env
    line = [*LAUNCH, "--flavour", "srun", "--mpi", "no", *more, flavour.python, "-c", MPI4PY]
    check_refused(slurm.salloc(["-N2", "-n2"], line, env))


# All else is as where shims or other agents start the ranks.


def test_every_rank_is_who_it_would_be_and_no_shim_is_there(flavour, launch, start_launch, survivors):
    words = ["", "a b", "'", "$HOME", "-n", "--", ":", "ünï"]
    env = flavour.env(MINE="a 'b'", RANK="7")
    done = launch("--mpi", "no", "-n", "2", "--", *SHOW_INPUT, *words, env=env, stdin="to rank 0")
    assert done.returncode == 0, done.stderr
    ranks = shown(done.stdout)
    assert [text for *_, text in ranks] == ["to rank 0", ""]
    assert [(environ["RANK"], environ["LOCAL_RANK"]) for environ, *_ in ranks] == [("0", "0"), ("1", "1")]
    assert [(environ["MINE"], argv) for environ, argv, *_ in ranks] == [("a 'b'", words)] * 2
    assert "ranks forked by an agent per host (--mpi no)" in done.stderr
    stay = ["sh", "-c", "echo $PPID; exec sleep 600"]
    run = start_launch("--mpi", "no", "-n", "4", "--oversubscribe", *stay, env=flavour.env())
    parents = {int(run.stdout.readline()) for _ in range(4)}
    names = [proc.name(pid) for pid in survivors()]
    assert len(parents) == 1
    assert (names.count("ezpz-shim"), names.count("ezpz-agent")) == (0, 2)  # the agent, and what mpiexec started
    run.terminate()
    run.communicate(timeout=200)


def test_a_pasted_line_starts_the_same_ranks_and_refuses_an_mpi(flavour, launch, run_cli):
    env = flavour.env(OPAL_PREFIX=str(flavour.bin.parent)) if flavour.name == "openmpi4" else flavour.env()
    has_end = flavour.name != "openmpi"  # Open MPI 5.0.11 never passes the end of its input on: a bare `cat` hangs
    line = launch("--mpi", "no", "-n", "2", "--dry-run", *(SHOW_INPUT if has_end else SHOW), "a:b", env=env).stdout
    ranks = shown(run_cli(["bash", "-c", line], env=env, stdin="pasted").stdout)
    told = [(environ["RANK"], argv, text) for environ, argv, _, text in ranks]
    assert told == [("0", ["a:b"], "pasted" * has_end), ("1", ["a:b"], "")]
    line = launch("--mpi", "no", "-n", "2", "--dry-run", flavour.python, "-c", MPI4PY, env=env).stdout
    done = run_cli(["bash", "-c", line], env=env)
    assert re.search(REFUSED, done.stderr), done.stderr
    assert done.returncode != 0
    assert "a world of" not in done.stdout


@pytest.mark.parametrize("flavour", ["mpich"], indirect=True)
def test_the_sites_table_decides_for_launch_and_not_for_a_plain_line(flavour, launch, run_cli, home):
    (home / "ezpz").mkdir()
    (home / "ezpz" / "sites.toml").write_text('[site.den]\nscheduler = "none"\nmpi = "no"\n')
    env = {**flavour.bare_env(), "XDG_CONFIG_HOME": str(home), "EZPZ_SITE": "den"}
    shown_plan = json.loads(launch("-n", "2", "--json", "true", env=env).stdout)
    assert shown_plan["mpi"] == {"value": "no", "origin": "site den"}
    assert json.loads(launch("--mpi", "yes", "-n", "2", "--json", "true", env=env).stdout)["mpi"]["value"] == "yes"
    told = run_cli([sys.executable, "-m", "ezpz.cluster", "--sh"], env=env).stdout
    assert "--mpi" not in told
    assert "mpiexec" in told


# Endings.

FAIL_ONE = 'if [ "$RANK" = 1 ]; then {}; else sleep 600; fi'


def test_the_first_failure_stops_all_and_is_the_exit_code(flavour, launch):
    program = FAIL_ONE.format("kill -SEGV $$")
    done = launch("--mpi", "no", "-n", "2", "bash", "-c", program, env=flavour.env(), timeout=30)
    assert done.returncode == 139, done.stderr
    assert sum("stopping the other ranks" in line for line in done.stderr.splitlines()) == 1
    assert "BAD TERMINATION" not in done.stderr


# Also a daemon that has left its rank's session and wiped its environment.
STAYS = [sys.executable, "-c", lab.WIPED_DAEMON]


# What becomes of those behind mpiexec is each mpiexec's own affair; launch, agents and ranks are ours.
@pytest.mark.parametrize(
    ("flavour", "victim"),
    [
        *((name, victim) for name in flavours.NAMES for victim in ("mpiexec", "what mpiexec started")),
        ("mpich", "launch"),
        ("openmpi", "launch"),
        ("openmpi", "the agent"),
        ("mpich", "a rank"),
    ],
    indirect=["flavour"],
)
def test_whoever_is_killed_takes_all_along(flavour, start_launch, survivors, victim):
    seconds = str(10**6 + os.getpid())
    run = start_launch("--mpi", "no", "-n", "2", *STAYS, seconds, env=flavour.env())
    lab.wait_until(lambda: len(lab.daemons(seconds)) == 2, 20, "a daemon of each rank")
    front, agent = sorted(
        (pid for pid in survivors() if proc.name(pid) == "ezpz-agent"),
        key=lambda pid: proc.stat(pid).parent in survivors() and proc.name(proc.stat(pid).parent) == "ezpz-agent",
    )
    assert proc.stat(agent).parent == front
    rank = next(pid for pid in survivors() if proc.stat(pid).parent == agent)
    servant = next(pid for pid in survivors() if proc.stat(pid).parent == run.pid)
    pids = {"launch": run.pid, "mpiexec": servant, "what mpiexec started": front, "the agent": agent, "a rank": rank}
    os.kill(pids[victim], signal.SIGKILL)
    errors = run.communicate(timeout=200)[1]
    assert run.returncode == {"launch": -9, "a rank": 137}.get(victim, 125), errors
    if victim == "mpiexec":
        assert re.search(r"ezpz: \S+ \(pid \d+\) was killed by SIGKILL, and the ranks with it", errors), errors
    lab.wait_until(lambda: not survivors() and not lab.daemons(seconds), 5, "the end of all processes")


@pytest.mark.parametrize("flavour", ["mpich", "openmpi"], indirect=True)
def test_a_second_ctrl_c_kills_ranks_that_ignore_the_first(flavour, start_launch, survivors, in_time):
    script = "trap '' INT TERM; echo up; while :; do sleep 0.1; done"

    def attempt():
        run = start_launch("--mpi", "no", "-n", "2", "bash", "-c", script, env=flavour.env())
        assert [run.stdout.readline() for _ in range(2)] == ["up\n"] * 2
        begin = time.monotonic()
        run.send_signal(signal.SIGINT)
        assert any("SIGINT received" in line for line in iter(run.stderr.readline, ""))
        run.send_signal(signal.SIGINT)
        run.wait(200)
        assert run.returncode == 130
        lab.wait_until(lambda: not survivors(), 3, "the end of the ranks")
        return time.monotonic() - begin

    in_time(9, attempt)  # ten seconds after the first they are killed in any case


@pytest.mark.parametrize("flavour", ["mpich", "openmpi"], indirect=True)
def test_a_signal_that_mpiexec_passes_on_reaches_each_rank_once(flavour, start_launch, survivors, tmp_path):
    script = "trap 'echo came >>came.$RANK' USR1; echo up; until [ -e go ]; do sleep 0.1; done"
    run = start_launch("--mpi", "no", "-n", "2", "bash", "-c", script, env=flavour.env())
    assert [run.stdout.readline() for _ in range(2)] == ["up\n"] * 2
    front = next(
        pid
        for pid in survivors()
        if proc.name(pid) == "ezpz-agent" and proc.name(proc.stat(pid).parent) != "ezpz-agent"
    )
    begin = time.monotonic()
    os.kill(front, signal.SIGUSR1)
    lab.wait_until(lambda: len(list(tmp_path.glob("came.*"))) == 2, 5, "the signal in each rank")
    run.send_signal(signal.SIGUSR1)  # the same by another way, a moment later
    is_moment = time.monotonic() - begin < 1.5  # after 2 s it would be another one: so it may be on a busy machine
    threading.Event().wait(0.5)
    (tmp_path / "go").touch()
    assert run.wait(200) == 0, run.communicate()[1]
    most = 1 if is_moment else 2
    assert all(1 <= path.read_text().count("came\n") <= most for path in tmp_path.glob("came.*"))


def test_hosts_get_uneven_blocks_bound_ranks_and_an_mpi_there_is_refused(flavour, hosts, tmp_path):
    (tmp_path / "hosts").write_text("n01:2\nn02:1\n")
    env = flavour.env(MINE="a 'b' \"c\"", **remote(hosts))
    line = [*LAUNCH, "--mpi", "no", "--hostfile", "hosts"]
    done = hosts["head"].run([*line, *SHOW], env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ranks = shown(done.stdout)
    assert [host for _, _, host, _ in ranks] == ["n01", "n01", "n02"]
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "WORLD_SIZE")
    assert ["".join(environ[name] for name in names) for environ, *_ in ranks] == ["00203", "11203", "20113"]
    assert {(environ["MASTER_ADDR"], environ["MINE"]) for environ, *_ in ranks} == {("n01", "a 'b' \"c\"")}
    last = "import os, sys, time; time.sleep(600 * (os.environ['RANK'] != '2')); sys.exit(5)"
    failed = hosts["head"].run([*line, sys.executable, "-c", last], env, cwd=tmp_path, timeout=30)
    assert failed.returncode == 5, failed.stderr
    assert "rank 2 on host n02" in failed.stderr
    if flavour.name == "openmpi4":
        env["OPAL_PREFIX"] = str(flavour.bin.parent)
    only = f"import os, time; os.environ['RANK'] == '2' or time.sleep(600); {MPI4PY}"
    check_refused(hosts["head"].run([*line, flavour.python, "-c", only], env, cwd=tmp_path, timeout=30))


@pytest.mark.parametrize("flavour", ["mpich", "openmpi"], indirect=True)
def test_a_host_that_is_lost_ends_the_run(flavour, make_hosts, tmp_path):
    three = make_hosts("head", "n01", "n02", "n03")
    (tmp_path / "hosts").write_text("n01:2\nn02:1\nn03:1\n")
    line = [*LAUNCH, "--mpi", "no", "--hostfile", "hosts", "bash", "-c", "touch up.$RANK; exec sleep 600"]
    run = three["head"].popen(line, flavour.env(**remote(three)), cwd=tmp_path, stderr=-1, text=True)
    lab.wait_until(lambda: len(list(tmp_path.glob("up.*"))) == 4, 30, "all ranks")
    three["n02"].vanish()
    errors = run.communicate(timeout=200)[1]
    assert run.returncode == 125, errors
    assert "n02" in errors
    others = lambda: [name for name in map(proc.name, three["n01"].pids()) if "sleep" in name]  # noqa: E731
    lab.wait_until(lambda: not others(), 5, "the other ranks' end")


def test_a_job_of_slurm_gets_agents_by_srun_whose_ranks_have_devices_input_and_ends(slurm, clean_env):
    line = [*LAUNCH, "--mpi", "no"]
    uneven = slurm.salloc(["-N2", "-n4"], [*line, "-n", "3", "--ppn", "2", *SHOW], clean_env)
    told = [f"{environ['RANK']} on {host}" for environ, _, host, _ in shown(uneven.stdout)]
    assert told == ["0 on n01", "1 on n01", "2 on n02"], uneven.stderr
    show = ["bash", "-c", "echo $RANK $CUDA_VISIBLE_DEVICES $(wc -c)"]
    job = ["-N2", "--gres=gpu:4", "--gpus-per-task=2", "-n4"]
    piped = f"head -c 300000 /dev/zero | {shlex.join([*line, '--devices', '2,3', *show])}"
    done = slurm.salloc(job, ["bash", "-c", piped], {**clean_env, "EZPZ_NGPU_PER_HOST": "4"})
    assert sorted(done.stdout.splitlines()) == ["0 2,3 300000", "1 2,3 0", "2 2,3 0", "3 2,3 0"], done.stderr
    failed = slurm.salloc(["-N2", "-n2"], [*line, "bash", "-c", FAIL_ONE.format("exit 7")], clean_env)
    assert failed.returncode == 7, failed.stderr
    assert "rank 1 on host n02" in failed.stderr


WORLDS = [
    ({}, "1 agents came up, 1 of them here (from alone); expected 2, one on each host"),
    ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, "2 agents came up, 2 of"),
    ({"PMI_RANK": "x", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}, "incomplete rank variables"),
]


@pytest.mark.slow
def test_another_world_of_agents_starts_no_rank(run_cli, clean_env, subtests):
    line = [sys.executable, "-I", "-S", AGENT, "--by-launcher", "echo", "never"]
    env = {**clean_env, "EZPZ_PLACEMENT": "2,1", "MASTER_PORT": "0", "MASTER_ADDR": "127.0.0.1"}
    for told, words in WORLDS:
        with subtests.test(words):
            done = run_cli(line, {**env, **told})
            assert (done.returncode, done.stdout) == (125, "")
            assert words in done.stderr
