"""The core behaviours on every MPI flavour, on this host and over two."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from ezpz import proc
from ezpz.interpreter import module_line
from ezpz.ranks import CONTRACT
from lab import flavours, traps
from lab import process as lab
from lab.flavours import remote
from lab.leaving import LEAVING, check_leaving
from lab.shown import AGREE, SHOW, SHOW_INPUT, STALE, agreed, shown

FAIL_ONE = 'if [ "$RANK" = 1 ]; then {}; else sleep 600; fi'


def test_every_rank_has_the_contract_the_users_variables_exact_arguments_and_rank_0_the_input(flavour, launch):
    words = ["", "a b", "'", '"', "$HOME", "-n", "--", "ünï", "*"]
    stale = {"RANK": "7", "WORLD_SIZE": "9", "LOCAL_RANK": "3"}
    done = launch("-n", "2", "--", *SHOW_INPUT, *words, env=flavour.env(MINE="a 'b'", **stale), stdin="to rank 0")

    assert done.returncode == 0, done.stderr
    ranks = shown(done.stdout)
    assert [text for _, _, _, text in ranks] == ["to rank 0", ""]  # and no other rank waits for any
    assert [(environ["RANK"], environ["LOCAL_RANK"]) for environ, _, _, _ in ranks] == [("0", "0"), ("1", "1")]
    assert all(environ["WORLD_SIZE"] == environ["LOCAL_WORLD_SIZE"] == "2" for environ, _, _, _ in ranks)
    assert all(name in environ for environ, _, _, _ in ranks for name in CONTRACT)
    assert [(environ["MINE"], argv) for environ, argv, _, _ in ranks] == [("a 'b'", words)] * 2
    assert all(environ["OMP_NUM_THREADS"] for environ, _, _, _ in ranks)
    assert f"launcher ({flavour.mpiexec} on PATH)" in done.stderr


def test_a_launch_in_each_rank_of_a_bare_mpiexec_is_refused_once(flavour, run_cli):
    line = [flavour.python, *module_line("ezpz.launch")[1:], "echo", "it runs"]
    done = run_cli(flavour.command(3, line), flavour.bare_env())
    assert (done.returncode, "it runs" in done.stdout) == (2, False), done
    assert (done.stdout + done.stderr).count("Write `launch -n 3 echo 'it runs'`, without mpiexec;") == 1


@pytest.mark.parametrize("words", [[], ["--mpi", "no"]], ids=["ranks", "agents"])
def test_ranks_are_told_the_same_by_every_name_whatever_a_launcher_around_has_left(flavour, launch, words):
    asked = ["--flavour", {"openmpi": "openmpi5"}.get(flavour.name, flavour.name), "-n", "2", *words]
    done = launch(*asked, *AGREE, env=flavour.env(**STALE, EZPZ_LAUNCH_ID="outer"))
    assert agreed(done.stdout) == ["0 2 0 2 0 False", "1 2 1 2 0 False"], done.stderr
    job = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": os.uname().nodename, "SLURM_TASKS_PER_NODE": "4"}
    done = launch(*asked, *AGREE, env=flavour.env(**{**STALE, "SLURM_STEP_NUM_TASKS": "1"}, **job))
    assert agreed(done.stdout) == ["0 2 0 2 0 True", "1 2 1 2 0 True"], done.stderr


@pytest.fixture
def own_python(flavour, tmp_path):
    """An environment whose ``python3`` lies in another folder than ``mpiexec``, which has one too."""
    own = tmp_path / "own" / "bin"
    lab.program(own / "python3", f'#!/bin/sh\nEZPZ_TEST_OWN=1 exec "{flavour.python}" "$@"\n')
    environ = flavour.env(LD_LIBRARY_PATH="/mine")
    return {**environ, "PATH": f"{own}{os.pathsep}{environ['PATH']}"}


OWN = "import os; print(*map(os.environ.get, ('EZPZ_TEST_OWN', 'PATH', 'LD_LIBRARY_PATH')))"


def test_every_rank_has_the_users_own_python_and_paths(own_python, launch, run_cli):
    expected = f"1 {own_python['PATH']}"
    assert launch("-n", "2", "python3", "-c", OWN, env=own_python).stdout == f"{expected} /mine\n" * 2
    pasted = launch("-n", "2", "--dry-run", "python3", "-c", OWN, env=own_python).stdout
    assert run_cli(["bash", "-c", pasted], env=own_python).stdout == f"{expected} /mine\n" * 2

    # What ``DIST_LAUNCH`` holds runs without the shim, which could put the paths right.
    line = f'eval "$({sys.executable} -m ezpz.cluster --sh)"; $DIST_LAUNCH python3 -c "$0"'
    done = run_cli(["bash", "-c", line, OWN], env={**own_python, **flavours.AS_ROOT["openmpi"]})
    assert {line.rpartition(" ")[0] for line in done.stdout.splitlines()} == {f"1 {own_python['PATH']}"}, done

    del own_python["LD_LIBRARY_PATH"]
    assert launch("-n", "1", "python3", "-c", OWN, env=own_python).stdout == f"{expected} None\n"


@pytest.mark.parametrize("flavour", ["mpich"], indirect=True)
def test_no_process_of_ours_imports_from_the_working_folder(flavour, launch, tmp_path):
    sprung = traps.lay(tmp_path)
    for more in ([], ["--timeout", "60"], ["--dry-run"]):
        done = launch(*more, "-n", "2", "true", env=flavour.env(), line=module_line("ezpz.launch"))
        assert (done.returncode, sprung()) == (0, []), done.stderr


def test_the_first_failure_stops_all_and_is_the_exit_code(flavour, launch):
    done = launch("-n", "2", "bash", "-c", FAIL_ONE.format("kill -SEGV $$"), env=flavour.env(), timeout=30)
    assert done.returncode == 139, done.stderr
    assert sum("stopping the other ranks" in line for line in done.stderr.splitlines()) == 1


@pytest.mark.parametrize("flavour", ["mpich", "openmpi"], indirect=True)
def test_sigterm_reaches_the_ranks_and_nothing_stays(flavour, start_launch):
    script = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    run = start_launch("-n", "2", "bash", "-c", script, env=flavour.env())
    assert [run.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=200)
    assert run.returncode == 143


@pytest.mark.parametrize("flavour", ["mpich", "openmpi"], indirect=True)
def test_an_ignored_signal_stays_ignored_in_launch_and_its_ranks(flavour, start_launch):
    script = "echo $$; until [ -e go ]; do sleep 0.1; done"
    run = start_launch("-n", "2", "sh", "-c", script, env=flavour.env(), before=lab.ignoring("HUP INT"))
    told = [run.stdout.readline() for _ in range(2)]
    assert all(told), run.communicate(timeout=200)[1]
    for pid in (run.pid, *map(int, told)):
        os.kill(pid, signal.SIGHUP)
        os.kill(pid, signal.SIGINT)
    time.sleep(0.3)
    Path(f"/proc/{run.pid}/cwd/go").touch()
    assert (run.communicate(timeout=200)[1].count("received"), run.returncode) == (0, 0)


@pytest.mark.parametrize(
    ("flavour", "number", "words"),
    [
        ("mpich", signal.SIGABRT, "Aborted"),
        ("openmpi", signal.SIGSEGV, "Segmentation fault"),
        ("openmpi4", signal.SIGABRT, "Aborted"),
        ("impi", signal.SIGSEGV, "Segmentation fault"),
    ],
    indirect=["flavour"],
)
def test_a_shim_that_crashes_is_the_cause_and_no_abort_of_mpi(flavour, start_launch, number, words):
    run = start_launch("-n", "2", "sh", "-c", "echo $$; exec sleep 600", env=flavour.env())
    shims = [lab.shim_of(int(run.stdout.readline())) for _ in range(2)]
    assert Path(f"/proc/{shims[1]}/comm").read_text().strip() == "ezpz-shim"
    os.kill(shims[1], number)
    errors = run.communicate(timeout=200)[1]
    assert run.returncode == 137, errors
    assert f"the shim in front of it (pid {shims[1]}) crashed: {words}" in errors
    assert "MPI_Abort" not in errors


@pytest.mark.parametrize(
    ("flavour", "victim"),
    [
        *((name, victim) for name in flavours.NAMES for victim in ("launch", "mpiexec's servant")),
        ("mpich", "shim"),
        ("openmpi", "shim"),
    ],
    indirect=["flavour"],
)
def test_a_daemon_that_wiped_its_environment_goes_with_the_launch(flavour, start_launch, survivors, victim):
    seconds = str(10**6 + os.getpid())
    run = start_launch("-n", "2", sys.executable, "-c", lab.WIPED_DAEMON, seconds, env=flavour.env())
    lab.wait_until(lambda: len(lab.daemons(seconds)) == 2, 20, "a daemon of each rank")
    shims = [pid for pid in survivors() if Path(f"/proc/{pid}/comm").read_text() == "ezpz-shim\n"]
    servant = proc.stat(shims[0]).parent
    os.kill({"launch": run.pid, "shim": shims[0]}.get(victim, servant), signal.SIGKILL)
    errors = run.communicate(timeout=200)[1]
    assert run.returncode in ({-9} if victim == "launch" else {125, 137}), errors
    lab.wait_until(lambda: not survivors() and not lab.daemons(seconds), 5, "the end of all processes")


def test_a_pasted_dry_run_starts_the_same_ranks(flavour, launch, run_cli):
    env = flavour.env(RANK="5")
    line = launch("-n", "2", "--dry-run", *SHOW, "a b", env=env).stdout
    ranks = shown(run_cli(["bash", "-c", line], env=env).stdout)
    assert [(environ["RANK"], argv) for environ, argv, _, _ in ranks] == [("0", ["a b"]), ("1", ["a b"])]


@pytest.mark.parametrize("flavour", ["mpich", "openmpi"], indirect=True)
def test_a_world_that_is_not_the_planned_one_is_refused(flavour, launch, run_cli):
    env = flavour.env()
    line = launch("-n", "2", "--dry-run", "echo", "never", env=env).stdout
    done = run_cli(["bash", "-c", line.replace("EZPZ_PLACEMENT=2", "EZPZ_PLACEMENT=3")], env=env)
    assert "never" not in done.stdout
    assert "expected a world of 3 (from the plan)" in done.stderr
    assert done.returncode != 0


def test_ranks_of_two_hosts_have_the_users_python_and_the_first_failure_ends_all(flavour, hosts, tmp_path, own_python):
    (tmp_path / "hosts").write_text("n01:2\nn02:1\n")
    far = remote(hosts)
    line = [sys.executable, "-m", "ezpz.launch", "--hostfile", "hosts", *SHOW]
    by_name = [*line[: -len(SHOW)], "python3", "-c", OWN]
    done = hosts["head"].run(by_name, {**own_python, **far}, cwd=tmp_path)
    assert done.stdout == f"1 {own_python['PATH']} /mine\n" * 3, done.stderr

    odd = {"BASH_FUNC_module%%": "() {  echo 'a;b'\n}", "x.y": "1", "my-var": "ü"}
    count = "import os; print(sum(os.environ.get(name) == value for name, value in ODD.items()))"
    told = hosts["head"].run(
        [*line[:-2], "-c", count.replace("ODD", repr(odd))], flavour.env(**far, **odd), cwd=tmp_path
    )
    assert told.stdout == "3\n" * 3, told.stderr

    line[-2:] = ["-c", "import os, sys, time; time.sleep(600 * (os.environ['RANK'] != '2')); sys.exit(5)"]
    failed = hosts["head"].run(line, flavour.env(**far), cwd=tmp_path, timeout=30)
    assert failed.returncode == 5, failed.stderr
    assert "rank 2 on host n02" in failed.stderr


@pytest.mark.parametrize("flavour", ["mpich", "openmpi"], indirect=True)
def test_ranks_of_a_host_that_cannot_reach_the_launcher_run_on_and_the_user_is_told(flavour, launch, run_cli, tag):
    env = flavour.env()
    line = launch("-n", "2", "--dry-run", "bash", "-c", f"echo out $RANK; {FAIL_ONE.format('exit 3')}", env=env).stdout
    # As behind a firewall: no packet comes through to the launcher's host.
    told = {"EZPZ_CONTROL": "00@1@255.255.255.255", "EZPZ_LAUNCH": tag, "EZPZ_SOCKET": f"@{tag}"}
    done = run_cli(["bash", "-c", line], env={**env, **told})
    assert sorted(done.stdout.splitlines()) == ["out 0", "out 1"]
    assert f"host {os.uname().nodename} is unsupervised: " in done.stderr
    assert "cannot reach the launcher at port 1" in done.stderr
    assert f"ezpz: rank 1 on host {os.uname().nodename} (pid " in done.stderr
    assert done.returncode == 3


@pytest.mark.parametrize("flavour", ["mpich", "openmpi"], indirect=True)
def test_a_rank_that_leaves_with_0_is_the_cause_of_what_others_lose(flavour, launch):
    check_leaving(launch("-n", "3", "--oversubscribe", *LEAVING, env=flavour.env()))
