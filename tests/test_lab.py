"""The laboratory itself: what the other tests rely on, with real processes."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import textwrap
from fnmatch import fnmatch
from pathlib import Path

import pytest

from lab import hosts as lab_hosts
from lab import process, seed
from lab.require import PARTS

HERE = Path(__file__).resolve().parent
CONNECT = "import socket,sys; socket.create_connection((sys.argv[1], 7077), timeout=2).close()"
LISTEN = "import socket; s = socket.create_server(('', 7077)); print('ready', flush=True); s.accept(); s.accept()"


def test_every_host_has_its_own_name_and_address_and_knows_the_others(hosts):
    seen = {host.run(["sh", "-c", "hostname; hostname -I; echo $TMPDIR"]).stdout for host in hosts}
    assert seen == {f"{host.name}\n{host.address} \n{host.tmp}\n" for host in hosts}
    assert hosts["n01"].run(["getent", "hosts", "n02"]).stdout.split() == [hosts["n02"].address, "n02"]


def test_hosts_reach_one_another_until_one_vanishes(hosts):
    with hosts["n02"].popen([sys.executable, "-c", LISTEN], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline() == "ready\n"
        hosts["n01"].run([sys.executable, "-c", CONNECT, "n02"]).check_returncode()
        hosts["n02"].vanish()
        lost = hosts["n01"].run([sys.executable, "-c", CONNECT, "n02"], timeout=20)
        assert lost.returncode == 1
        assert "timed out" in lost.stderr or "No route to host" in lost.stderr
        assert hosts["n01"].run([hosts.rsh, "n02", "true"]).returncode == 255
        server.kill()


def test_rsh_takes_a_command_as_ssh_does(hosts):
    env = {**process.minimal_env("/", "x"), "SECRET": "1"}
    done = hosts["n01"].run([hosts.rsh, "-x", "-p", "22", "n02", "echo", '$(hostname) "a  b" ${SECRET-none}'], env)
    assert done.stdout == "n02 a  b none\n"
    assert "Could not resolve" in hosts["n01"].run([hosts.rsh, "n09", "true"]).stderr


def test_closing_a_lab_kills_what_runs_there(make_hosts):
    lab = make_hosts("n01")
    child = lab["n01"].popen(["setsid", "--fork", "sleep", "600"])
    child.wait(10)
    there = lambda: list(process.survivors(lab.prefix).values()) == ["sleep 600"]  # noqa: E731  # after its exec
    process.wait_until(there, 30, "the sleep on n01")
    lab.close()
    assert not process.survivors(lab.prefix)
    assert not list(lab_hosts.NETNS.glob(f"{lab.prefix}-*"))
    assert not lab.folder.exists()


def test_two_labs_do_not_meet(make_hosts):
    one, two = make_hosts("n01"), make_hosts("n01")
    assert one["n01"].namespace != two["n01"].namespace
    assert one["n01"].address != two["n01"].address
    assert one["n01"].run(["hostname"]).stdout == two["n01"].run(["hostname"]).stdout == "n01\n"


def test_bare_mpiexec_of_each_flavour_runs_over_two_hosts(flavour, hosts):
    # Open MPI 5.0 sometimes waits for ever for remote ranks that end within milliseconds; real ones do not.
    line = flavour.command(4, ["sh", "-c", "hostname; sleep 0.3"], hosts=("n01", "n02"), rsh=hosts.rsh)
    done = hosts["head"].run(line, flavour.bare_env(), timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["n01", "n01", "n02", "n02"]


def test_bare_mpiexec_of_each_flavour_runs_on_this_host(flavour, run_cli):
    done = run_cli(flavour.command(3, ["echo", "here"]), flavour.bare_env())
    assert (done.returncode, done.stdout) == (0, "here\n" * 3), done.stderr


def test_the_python_of_each_flavour_sees_torch_and_this_ezpz(flavour, run_cli):
    code = "import importlib.util as u; print(u.find_spec('torch').name, u.find_spec('ezpz').origin)"
    done = run_cli(["python3", "-c", code], flavour.env())
    assert done.stdout.split() == ["torch", str(HERE.parent / "src/ezpz/__init__.py")], done.stderr
    assert run_cli(["sh", "-c", "command -v mpiexec"], flavour.env()).stdout.strip() == str(flavour.mpiexec)


def test_salloc_reaches_both_hosts(slurm, clean_env):
    done = slurm.salloc(["-N2", "-n2"], ["sh", "-c", "hostname; srun hostname"], clean_env)
    assert done.returncode == 0, done.stderr
    head, *workers = done.stdout.split()
    assert (head, sorted(workers)) == ("head", ["n01", "n02"])


def test_sbatch_returns_the_output_and_the_exit_code_of_the_job(slurm, clean_env):
    script = "#!/bin/bash\nsrun -l hostname | sort\necho $SLURM_JOB_NUM_NODES\nexit 3\n"
    done = slurm.sbatch(["-N2", "--ntasks-per-node=2"], script, clean_env)
    assert done.returncode == 3, done.stderr
    assert done.stdout.split() == ["0:", "n01", "1:", "n01", "2:", "n02", "3:", "n02", "2"]


def test_slurm_grants_devices(slurm, clean_env):
    done = slurm.srun(
        ["-N1", "--gres=gpu:2"], ["sh", "-c", "echo $SLURM_GPUS_ON_NODE $CUDA_VISIBLE_DEVICES"], clean_env
    )
    assert done.stdout == "2 0,1\n", done.stderr


def test_a_job_over_its_time_limit_frees_the_hosts(slurm, clean_env):
    with pytest.raises(subprocess.TimeoutExpired):
        slurm.salloc(["-N2"], ["srun", "sleep", "600"], clean_env, timeout=3)
    assert set(slurm.states().values()) == {"idle"}


def test_clean_env_holds_no_leftovers(run_cli, monkeypatch, clean_env, tmp_path):
    names = {"HOME", "PATH", "LANG", "OMP_WAIT_POLICY"}
    for name in ("RANK", "SLURM_JOB_ID", "PMI_RANK", "EZPZ_NRANKS", "PYTHONPATH"):
        monkeypatch.setenv(name, "1")
    fresh = process.minimal_env("/home", "x")
    assert {name for name in fresh if not name.startswith(process.KEPT_PREFIXES)} - set(process.KEPT_NAMES) == names
    assert run_cli(["pwd"]).stdout.strip() == str(tmp_path)


@pytest.mark.slow
def test_survivors_finds_a_child_that_left_session_and_parent(run_cli, survivors, clean_env):
    run_cli(["setsid", "--fork", "sleep", "600"])
    found = process.wait_until(survivors, 5, "the daemon")
    assert list(found.values()) == ["sleep 600"]
    process.kill_all(found)


@pytest.mark.slow
def test_a_time_limit_kills_the_group_and_keeps_the_output(run_cli, survivors):
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        run_cli(["bash", "-c", "echo begun; sleep 600 & wait"], timeout=1)
    assert caught.value.stdout == "begun\n"
    process.wait_until(lambda: not survivors(), 5, "the end of the group")


def inner_pytest(folder, body, **env):
    """Run pytest on `body` under a copy of these fixtures' conftest, in a process of its own."""
    shutil.copy(HERE / "conftest.py", folder)
    (folder / "test_inner.py").write_text(textwrap.dedent(body))
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder), "--rootdir", str(folder)]
    return process.run(
        line, {**process.minimal_env(folder, "inner"), "PYTHONPATH": str(HERE), **env}, timeout=60, cwd=folder
    )


ABSENT = """
    from lab.require import require
    def test_it(): require("browser", "no chromium on PATH")
"""


@pytest.mark.slow
def test_a_missing_part_skips_and_says_why(tmp_path):
    done = inner_pytest(tmp_path, ABSENT)
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout


@pytest.mark.slow
def test_ezpz_require_turns_the_skip_into_a_failure(tmp_path):
    done = inner_pytest(tmp_path, ABSENT, EZPZ_REQUIRE="browser")
    assert done.returncode == 1
    assert "browser is required (EZPZ_REQUIRE) but missing: no chromium on PATH" in done.stdout


@pytest.mark.slow
def test_an_unknown_name_in_ezpz_require_is_an_error(tmp_path):
    done = inner_pytest(tmp_path, ABSENT, EZPZ_REQUIRE="slrum")
    assert done.returncode == 4
    assert "EZPZ_REQUIRE names slrum; known parts: " + ", ".join(PARTS) in done.stderr


@pytest.mark.slow
def test_a_test_that_changes_the_environment_fails(tmp_path):
    body = """
        import os
        def test_it(): os.environ["LEAKED"] = "1"
        def test_next(): assert "LEAKED" not in os.environ
        def test_patched(monkeypatch): monkeypatch.setenv("FINE", "1")
    """
    done = inner_pytest(tmp_path, body)
    assert "left os.environ changed: LEAKED" in done.stdout
    assert "3 passed, 1 error" in done.stdout


@pytest.mark.slow
def test_a_test_that_leaves_a_process_behind_fails(tmp_path):
    body = """
        import subprocess
        def test_it(clean_env): subprocess.Popen(["sleep", "600"], env=clean_env)
    """
    done = inner_pytest(tmp_path, body)
    assert "processes outlived the test (killed now)" in done.stdout
    assert "sleep 600" in done.stdout


def test_a_record_holds_no_errors_of_commands_that_are_not_installed(run_cli, clean_env):
    job = {**clean_env, "PATH": "", "PBS_JOBID": "7.head", "PBS_NODEFILE": ""}
    told = json.loads(run_cli([sys.executable, Path(__file__).parent / "lab" / "record.py", "bare"], job).stdout)
    assert (told["commands"], told["files"], told["recorded"]) == ({}, {}, "")
    assert told["env"]["PBS_JOBID"] == "7.head"


TOYS = {
    "test_a.py": """
        import os, signal, sys, time
        from pathlib import Path

        import pytest

        def count(name):
            with Path(name).open("a") as file:
                file.write("x")
            return Path(name).stat().st_size

        def test_passes(): count("passes")
        def test_sees_the_folders_that_any_pytest_has():
            assert not [folder for folder in sys.path if Path(folder, "tries.py").exists()]
        def test_fails_once(): assert count("fails_once") > 1
        def test_fails_twice(): assert count("fails_twice") > 2
    """,
    "test_fails.py": """
        from test_a import count
        def test_fails_always(): assert not count("always")
        def test_fails_in_teardown_once(request):
            number = count("teardown")
            request.addfinalizer(lambda: [][0] if number < 2 else None)
    """,
    "test_worker.py": """
        import os
        from test_a import count
        def test_ends_the_worker_once():
            if count("worker") < 2: os._exit(1)
        def test_after_it(): count("after_it")
    """,
    "test_signal.py": """
        import os, signal, time
        from test_a import count
        def test_interrupts_its_parent():
            count("interrupts")
            os.kill(os.getppid(), signal.SIGINT)
            time.sleep(1)
    """,
    "test_group.py": """
        import os, signal, time
        from test_a import count
        def test_ends_its_group_once():
            if count("group") < 2:
                os.killpg(0, signal.SIGTERM)
                time.sleep(8)
    """,
    "test_import.py": """
        from test_a import count
        assert count("import") > 2
        def test_in_it(): count("in_it")
    """,
    "conftest.py": """
        import pytest
        from test_a import count

        @pytest.fixture(scope="session")
        def browser(): count("opened")
    """,
    "test_browser_a.py": """
        from test_a import count
        def test_looks(browser): count("looked")
        def test_looks_again(browser): count("looked")
        def test_beside_it(): count("beside")
    """,
    "test_browser_b.py": """
        from test_a import count
        def test_looks_elsewhere(browser): count("looked")
    """,
    "test_slow.py": """
        import time
        from test_a import count
        def test_takes_long(): count("slow"); time.sleep(60)
    """,
}


@pytest.fixture
def toys(tmp_path, clean_env):
    """``toys("test_a.py", …)``: the line that runs these files as `make test` does; ``toys.env``, ``toys.cwd``."""
    folder = tmp_path / "toys"
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -q -p no:cacheprovider --timeout=120\n")

    def line(*names, options=()):
        for name in names:
            (folder / name).write_text(textwrap.dedent(TOYS[name]))
        return [sys.executable, str(HERE / "lab" / "tries.py"), "2", ".", *options]

    line.cwd = folder
    # Of all plugins only that of the line above: the others are half of what a worker costs.
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_timeout"}
    line.env = {**clean_env, **plugins, "PYTHONPATH": str(folder)}
    return line


def ran(toys, name):
    path = toys.cwd / name
    return path.stat().st_size if path.exists() else 0


def listed(text):
    """What `make test` prints at its end: for each try, the tests that failed."""
    tries = []
    for line in text.splitlines():
        if line.startswith("make test: try ") and line.endswith(" failed"):
            tries.append([])
        elif tries and line.startswith("  "):
            tries[-1].append(line.strip())
    return tries


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_fails_beside_other_tests_runs_twice_again_alone(toys):
    done = process.run(toys("test_a.py", "test_fails.py"), toys.env, cwd=toys.cwd, timeout=240)
    assert done.returncode == 1, done.stdout + done.stderr
    assert [ran(toys, name) for name in ("passes", "fails_once", "fails_twice", "always", "teardown")] == [
        1,
        2,
        3,
        3,
        2,
    ]
    always, twice = "test_fails.py::test_fails_always", "test_a.py::test_fails_twice"
    once = ["test_a.py::test_fails_once", "test_fails.py::test_fails_in_teardown_once"]
    assert [sorted(names) for names in listed(done.stdout)] == [
        sorted([always, twice, *once]),
        sorted([always, twice]),
        [always],
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_failure_is_hidden_by_an_interruption(toys):
    """A signal to the group and a worker that ends: all other tests run, and these again. The parent hears nothing."""
    names = ("test_a.py", "test_worker.py", "test_signal.py", "test_group.py")
    done = process.run(toys(*names), toys.env, cwd=toys.cwd, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = [ran(toys, name) for name in ("fails_once", "fails_twice", "worker", "interrupts", "group")]
    assert counted == [2, 3, 2, 1, 2], done.stdout
    assert ran(toys, "passes") == ran(toys, "after_it") == 1
    assert listed(done.stdout)[-1] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_file_that_cannot_be_collected_fails_and_the_others_run(toys):
    done = process.run(toys("test_a.py", "test_import.py"), toys.env, cwd=toys.cwd, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [ran(toys, name) for name in ("passes", "in_it")] == [1, 1], done.stdout
    assert "test_import.py" in listed(done.stdout)[0]
    (toys.cwd / "test_import.py").write_text("import nothing_of_this_name")
    done = process.run(toys(), toys.env, cwd=toys.cwd, timeout=240)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "test_import.py" in listed(done.stdout)[-1]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_that_is_chosen_is_no_failure_of_a_test_and_a_mistake_is_told_once(toys):
    done = process.run(toys("test_a.py", options=["-k", "nothing"]), toys.env, cwd=toys.cwd, timeout=240)
    assert (done.returncode, listed(done.stdout)) == (5, [])
    done = process.run(toys(options=["--no-such-option"]), toys.env, cwd=toys.cwd, timeout=240)
    assert done.returncode == 4
    assert done.stderr.count("unrecognized arguments") == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_first_failure_stops_all_where_that_is_wanted(toys):
    done = process.run(toys("test_fails.py", "test_a.py", options=["-x"]), toys.env, cwd=toys.cwd, timeout=240)
    assert done.returncode == 1
    assert listed(done.stdout)[-1] == ["test_fails.py::test_fails_always"]


@pytest.mark.slow
def test_what_is_dear_to_set_up_is_set_up_once(toys):
    """Tests of two files that need the browser run in one worker, whatever else is in their files."""
    names = ("conftest.py", "test_browser_a.py", "test_browser_b.py", "test_a.py")
    done = process.run(toys(*names), toys.env, cwd=toys.cwd, timeout=240)
    assert (done.returncode, ran(toys, "opened"), ran(toys, "looked")) == (0, 1, 3), done.stdout + done.stderr
    assert ran(toys, "beside") == 1


def test_three_days_have_all_that_is_dear():
    days = [f"2026-{month}" for month in ("11-30", "12-01", "12-02")]
    assert {seed.turn(day, "tests/test_lab.py", 3) for day in days} == {0, 1, 2}
    assert seed.turn("any word", "tests/test_lab.py", 3) in range(3)


def test_every_test_file_is_collected():
    """pytest leaves out folders of some names, and so a whole folder of tests can be silent."""
    tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
    left_out = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    folders = {folder for path in HERE.rglob("test_*.py") for folder in path.relative_to(HERE).parts[:-1]}
    assert folders
    assert not [name for name in folders for pattern in left_out["norecursedirs"] if fnmatch(name, pattern)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ctrl_c_ends_all_tries_and_their_processes(toys, survivors):
    line = toys("test_slow.py", "test_a.py")
    run = subprocess.Popen(line, env=toys.env, cwd=toys.cwd, stdout=subprocess.PIPE, start_new_session=True)
    process.wait_until(lambda: ran(toys, "slow"), 200, "the slow test")
    run.send_signal(signal.SIGINT)
    assert run.communicate(timeout=200)[0].count(b"make test:") == 1  # the seed, at the beginning
    assert run.returncode == 130
    process.wait_until(lambda: not survivors(), 60, "the end of pytest and its workers")
    assert ran(toys, "slow") == 1
