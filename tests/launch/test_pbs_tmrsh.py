"""`launch` in a job of PBS without any MPI: its task manager starts an agent per host. A stand-in answers as it did."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ezpz.cluster.scheduler import scheduler
from lab import process
from lab.shown import SHOW, shown
from lab.ssh import READY
from lab.task_manager import JOB, RECORD, TaskManager

SECRET = "Zq7Xw2Lp9Rt4Vb6Nm1Kc"
LOOK = """
import json, os, pathlib
def read(path):  # nothing of a process that has ended meanwhile
    try:
        return path.read_bytes()
    except OSError:
        return b""
def mine(folder):
    try:
        return os.readlink(folder / "ns/net") == os.readlink("/proc/self/ns/net")
    except OSError:
        return False
def lines(): return [read(path) for path in pathlib.Path("/proc").glob("[0-9]*/cmdline") if mine(path.parent)]
def agents(): return [read(p.parent / "environ") for p in pathlib.Path("/proc").glob("[0-9]*/cmdline")
                      if b"start_agent.py" in read(p) and mine(p.parent)]
words = [os.environ["HF_TOKEN"].encode(), os.environ["PBS_JOBCOOKIE"].encode()]
print(json.dumps([os.environ["RANK"], os.uname().nodename, any(word in line for line in lines() for word in words),
                  len(agents()), any(b"EZPZ_CONTROL" in one or words[0] in one for one in agents())]))
"""


@pytest.fixture
def job(make_hosts, tmp_path):
    hosts = make_hosts("n01", "n02", "n03")
    with TaskManager(hosts, ["n01", "n02", "n03"], tmp_path / "a job") as manager:
        yield manager
        process.wait_until(lambda: not process.survivors(hosts.prefix), 5, "the end of the job's processes")


def kept(job):
    """What launches have left in the user's state folder, by name."""
    return sorted(path.name for path in (job.home / ".local/state/ezpz/launches").glob("*/*"))


def out_of_job(*more):
    """Variables as a second shell of the job has them: those that `ezpz_setup_job` keeps, and none that is secret."""
    return dict.fromkeys(("PBS_JOBCOOKIE", "PBS_NODENUM", "PBS_TASKNUM", "PBS_MOMPORT", *more))


@pytest.mark.slow
def test_the_stand_in_answers_as_the_real_one_did(job):
    for answer in RECORD["answers"]:
        env = {**job.environ, "PATH": f"{job.bin}:/usr/bin:/bin", **answer.get("set", {})}
        env = {name: value for name, value in env.items() if name not in answer.get("unset", ())}
        done = job.hosts["n01"].run(["pbs_tmrsh", *answer["words"]], env)
        told = (done.returncode, done.stdout, done.stderr)
        assert told == (answer["code"], "", answer["stderr"].replace("JOB", JOB)), answer["when"]
    env = {**job.environ, "PATH": f"{job.bin}:/usr/bin:/bin"}
    job.output.write_text("")
    line = ["pbs_tmrsh", "n02", sys.executable, "-c", "import os; print([*os.environ, os.readlink('/proc/self/fd/0')])"]
    assert job.hosts["n01"].run(line, env).stdout == ""
    variables = [*RECORD["task"]["variables"], RECORD["task"]["stdin"]]
    assert set(variables) <= set(re.findall(r"'(.*?)'", job.output.read_text()))


def test_agents_read_what_to_do_from_a_file_that_goes_and_no_secret_is_on_any_command_line(job):
    mine = {"HF_TOKEN": SECRET, "MINE": "a 'b' \"c\"\n$d"}
    (job.home / "look.py").write_text(LOOK)
    done = job.launch(sys.executable, "look.py", env=mine)
    assert done.returncode == 0, done.stderr
    told = sorted(json.loads(line) for line in done.stdout.splitlines())
    assert [rank[:3] for rank in told] == [[str(rank), f"n0{rank // 2 + 1}", False] for rank in range(6)]
    # Of its environment an agent of another host has nothing: it was started by the daemon there.
    assert all(rank[3] == 2 and not rank[4] for rank in told[2:]), told
    assert "pbs_tmrsh launcher (no mpiexec on PATH; PBS reaches the hosts), rendezvous at n01:" in done.stderr
    assert kept(job) == ["run.json"]
    record = next((job.home / ".local/state/ezpz/launches").glob("*/run.json")).read_text()
    assert SECRET not in record
    assert job.cookie not in record
    assert not job.output.exists() or not job.output.read_bytes()

    done = job.launch(*SHOW, "a b", env=mine, stdin="hello\n")
    told = [(host, argv, environ["MINE"]) for environ, argv, host, _ in shown(done.stdout)]
    assert told == [(f"n0{rank // 2 + 1}", ["a b"], mine["MINE"]) for rank in range(6)]
    assert job.launch("cat", stdin="to rank 0\n").stdout == "to rank 0\n"


def test_failures_and_signals_are_as_everywhere(job):
    done = job.launch("bash", "-c", "if [ $RANK = 4 ]; then exit 7; fi; sleep 600")
    assert done.returncode == 7
    assert "ezpz: rank 4 on host n03 (pid " in done.stderr
    script = f"trap 'echo got TERM; exit 0' TERM; {READY} while :; do sleep 0.1; done"
    run = job.start("bash", "-c", script)
    assert sorted(run.stdout.readline().split()[0] for _ in range(6)) == ["ready"] * 6
    job.signal(signal.SIGTERM)  # as at qdel: the agents, and the script with the launch
    run.send_signal(signal.SIGTERM)
    rest, errors = run.communicate(timeout=200)
    assert (run.returncode, rest.splitlines()) == (143, ["got TERM"] * 6), errors


def test_a_killed_launch_leaves_neither_ranks_nor_the_file(job):
    # Agents that come late read the file when the launch has gone.
    script = f'#!/bin/sh\nsleep 1\nexec setsid {shlex.quote(str(job.bin))}/pbs_tmrsh "$@"\n'
    slow = process.program(job.folder / "slow" / "pbs_tmrsh", script).parent
    run = job.start("sleep", "600", env={"PATH": f"{slow}:/usr/bin:/bin"})
    files = (job.home / ".local/state/ezpz/launches").glob
    process.wait_until(lambda: list(files("*/agents-*")), 10, "the file of the payload")
    [file] = files("*/agents-*")
    assert file.stat().st_mode & 0o777 == 0o600
    lines = lambda: process.survivors(job.hosts.prefix).values()  # noqa: E731
    process.wait_until(lambda: any("--" not in line and "start_agent" in line for line in lines()), 10, "an agent")
    run.kill()
    run.communicate()
    process.wait_until(lambda: not process.survivors(job.hosts.prefix), 15, "the end of all")


def test_hosts_without_the_shared_folder_are_named_in_one_error(job):
    job.unshared = str(job.home)
    done = job.launch("true", timeout=40)
    assert done.returncode == 125
    [line] = [line for line in done.stderr.splitlines() if "cannot start ranks" in line]
    assert re.match(r"ezpz: cannot start ranks on n0[23]: pbs_tmrsh ended with 66: it cannot read /\S", line), line
    assert "expected a folder that all hosts of the job share" in line
    assert "`launch --log-dir DIR`, or set XDG_STATE_HOME" in line
    assert "which holds what to start: No such file or directory" in job.output.read_text()
    shared = job.folder / "shared"
    assert job.launch("--log-dir", str(shared), "true", timeout=40).returncode == 0
    assert not list(shared.glob("agents-*"))


def test_a_python_that_hosts_lack_is_told(job):
    job.unshared = str(Path(sys.executable).parent)
    done = job.launch("true", timeout=40)
    assert done.returncode == 125
    assert f"pbs_tmrsh ended with 127: it cannot run {sys.executable}; expected the same Python" in done.stderr


def test_without_the_task_manager_ssh_is_used_and_a_note_says_why(job):
    ssh = {"EZPZ_SSH": str(job.hosts.rsh)}
    done = job.launch(*SHOW, env={**ssh, "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    assert len(shown(done.stdout)) == 6
    notes = [line for line in done.stderr.splitlines() if "note:" in line]
    assert notes == ["ezpz: note: ssh starts the agents, and not pbs_tmrsh: no pbs_tmrsh on PATH"]
    other = {**ssh, **out_of_job()}
    note = f"ssh starts the agents, and not pbs_tmrsh: neither this shell nor any other process of yours on this host \
belongs to job {JOB}; where ssh is closed, run this on n01, in a shell of the job"
    assert note in job.launch("true", env=other).stderr
    forced = job.launch("--flavour", "pbs_tmrsh", "true", env=other)
    assert forced.returncode == 125
    assert f"belongs to job {JOB}; expected a shell of the job on its first host. Run this on n01, use" in forced.stderr
    assert "note:" not in job.launch("--flavour", "ssh", "true", env=other).stderr


def second_shell(job, *words, **more):
    return job.launch(*words, env={**out_of_job(), "HF_TOKEN": SECRET, **more})


@pytest.fixture
def script(job):
    """A process of the job on its first host, as its script is one."""
    run = job.hosts["n01"].popen(["sleep", "600"], job.environ)
    yield run
    run.kill()
    run.wait()


@pytest.mark.usefixtures("script")
def test_a_second_shell_uses_the_cookie_of_a_process_of_the_job_and_shows_it_nowhere(job):
    program = "import os; print(os.environ['RANK'], os.uname().nodename, os.environ.get('PBS_JOBCOOKIE'))"
    done = second_shell(job, sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    told = [f"{rank} n0{rank // 2 + 1} None" for rank in range(6)]
    assert sorted(done.stdout.splitlines()) == told  # ranks have what the shell has
    texts = [second_shell(job, option, "true").stdout for option in ("--dry-run", "--explain", "--json")]
    texts.insert(0, done.stderr)
    texts += [path.read_text() for path in job.home.rglob("*") if path.is_file()]
    assert len(texts) > 4
    assert not any(job.cookie in text or SECRET in text for text in texts)
    assert "PBS reaches the hosts, for process" in texts[2]


def test_a_second_shell_on_a_host_without_a_process_of_the_job_uses_ssh(job, script):
    script.kill()
    script.wait()
    done = second_shell(job, "true", EZPZ_SSH=str(job.hosts.rsh))
    assert done.returncode == 0, done.stderr
    assert "ssh starts the agents, and not pbs_tmrsh" in done.stderr


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.usefixtures("script")
def test_a_pasted_dry_run_starts_the_same_ranks_and_shows_no_secret(job, second):
    more = out_of_job() if second else {}
    tell = "import os; print(os.environ['RANK'], os.uname().nodename, os.environ['HF_TOKEN'] == 'SECRET')"
    tell = tell.replace("SECRET", SECRET[::-1] + "'[::-1] + '")
    lines = job.launch("--dry-run", sys.executable, "-c", tell, env={**more, "HF_TOKEN": SECRET}).stdout
    assert SECRET not in lines
    assert job.cookie not in lines
    env = {**job.environ, "PATH": f"{job.bin}:/usr/bin:/bin", **more, "HF_TOKEN": SECRET}
    env = {name: value for name, value in env.items() if value is not None}
    done = job.hosts["n01"].run(["bash", "-c", lines], env, cwd=job.home)
    assert done.returncode == 0, done.stderr
    there = done.stdout + job.output.read_text()  # tasks write into the job's output
    told = sorted(line.split()[:2] for line in there.splitlines())
    assert told == [[str(rank), f"n0{rank // 2 + 1}"] for rank in range(6)]
    assert not list(job.home.rglob("agents-*"))


# ---- whose variables a second shell takes ---------------------------------------------------------------------------


@pytest.fixture
def processes(tmp_path):
    """`processes(**variables)` starts one with these alone and returns its pid."""
    started = []

    def start(**variables):
        started.append(subprocess.Popen(["/bin/sleep", "600"], env=variables))
        pid = started[-1].pid
        process.wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n", 5, "the process")
        return pid

    yield start
    for one in started:
        one.kill()
        one.wait()


def test_only_a_process_of_this_job_counts_the_eldest_first(processes, tmp_path):
    (tmp_path / "nodes").write_text("n01\n")
    process.program(tmp_path / "pbs_tmrsh", "#!/bin/sh\n")
    pbs, shell = scheduler("pbs"), {"PATH": str(tmp_path)}
    whole = dict.fromkeys(pbs.remote_needs, "1") | {"PBS_NODEFILE": f"{tmp_path}/nodes"}
    mine = f"{os.getpid()}.head"
    processes(**{**whole, "PBS_JOBID": f"1{mine}"})
    processes(PBS_JOBID=mine)
    problem, pid = pbs.reach(shell, mine)
    none = f"neither this shell nor any other process of yours on this host belongs to job {mine}"
    assert (problem, pid) == (none, 0)
    eldest = processes(**{**whole, "PBS_JOBID": mine, "OTHER": "PBS_NODEFILE=/x"})
    processes(**{**whole, "PBS_JOBID": mine})
    assert tuple(pbs.reach(shell, mine)) == ("", eldest)
    assert tuple(pbs.reach({**shell, **whole}, mine)) == ("", 0)
    assert pbs.reach({"PATH": "/nowhere", **whole}, mine).problem == "no pbs_tmrsh on PATH"
    (tmp_path / "nodes").unlink()
    first = f"pbs_tmrsh works on the job's first host alone, which has {tmp_path}/nodes"
    assert pbs.reach(shell, mine).problem == first
    assert pbs.reach({**shell, **whole}, mine).problem == first
    assert scheduler("flux").reach({}, "1").problem
    assert not scheduler("slurm").reach({}, "1").problem


def test_the_remote_shell_takes_the_variables_of_a_process_and_nothing_else(processes, run_cli, clean_env):
    script = Path(__file__).parents[2] / "src/ezpz/bin/remote_shell"
    odd = {"PBS_JOBCOOKIE": "$(touch no) `touch no` * 'x'", "PBS_JOBID": "7", "OTHER": "a\nPBS_JOBID=8", "MINE": "no"}
    shell = {**clean_env, "EZPZ_REMOTE_SHELL": "env", "EZPZ_REMOTE_AS": f"{processes(**odd)},PBS_JOBID,PBS_JOBCOOKIE"}
    done = run_cli([script, "-x", "HOST=n01", 'echo "$HOST $PBS_JOBID $PBS_JOBCOOKIE ${MINE-none}"; exit 3'], shell)
    assert (done.returncode, done.stdout) == (3, f"n01 7 {odd['PBS_JOBCOOKIE']} none\n"), done.stderr
    gone = run_cli([script, "n01", "true"], {**shell, "EZPZ_REMOTE_AS": "999999999,PBS_JOBID"})
    assert gone.returncode == 255
    assert "remote_shell: process 999999999 of the job has ended; run" in gone.stderr
