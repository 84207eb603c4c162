"""Launches in jobs of a real OpenPBS: its task manager starts the daemons of an MPI, or agents where there is none."""

import json
import re

import pytest

from ezpz import proc
from lab import openpbs, process
from lab.flavours import NAMES, Flavour
from lab.require import require
from lab.task_manager import RECORD

ROOT = openpbs.Path(__file__).parents[2]
JOB = """#!/bin/bash
export PATH={path} PYTHONPATH={source} EZPZ_NGPU_PER_HOST=0
launch() {{ /usr/bin/python3 -m ezpz.launch -n 6 bash -c "$1"; echo "ended with $?"; }}
launch 'echo rank $RANK on $(hostname)'
launch 'if [ $RANK = 4 ]; then exit 7; fi; sleep 600'
launch 'if [ $RANK = 5 ]; then kill -KILL $$; fi; sleep 600'
"""


OPTIONS = ("-l", "select=3:ncpus=2:mpiprocs=2", "-l", "place=scatter")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, "no MPI"])
def test_the_task_manager_reaches_hosts_without_ssh_behind_the_mpiexec_of_pbs(open_pbs, name):
    path = f"{openpbs.PREFIX}/bin:/usr/bin:/bin"
    if name in NAMES:
        mpi = Flavour(name)
        require(name, mpi.problem())
        path = f"{openpbs.PREFIX}/bin:{mpi.bin}:/usr/bin:/bin"
    done = open_pbs.job(JOB.format(path=path, source=ROOT / "src"), *OPTIONS, timeout=200)
    lines = done.stdout.splitlines()
    ranks = sorted(line for line in lines if line.startswith("rank "))
    assert ranks == [f"rank {rank} on n0{rank // 2 + 1}" for rank in range(6)], done.stdout
    assert re.findall("^ended with (.*)$", done.stdout, re.MULTILINE) == ["0", "7", "137"]
    own = f"{openpbs.PREFIX}/bin/mpiexec"
    if name in NAMES:
        assert f"/mpiexec, to which {own} only passes on)" in done.stdout
    else:
        assert f"pbs_tmrsh launcher ({own} has no MPI behind it; PBS reaches the hosts)" in done.stdout
    assert "rank 4 on host n03" in done.stdout
    left = [pid for host in ("n01", "n02", "n03") for pid in open_pbs.hosts[host].pids() if is_rank(pid)]
    assert not left


def is_rank(pid):
    try:
        return b"sleep\0600" in (openpbs.Path("/proc") / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False


WAITING = """#!/bin/bash
touch ready
until [ -e go ]; do sleep 0.1; done
"""


@pytest.fixture
def running(open_pbs):
    """A job that does nothing until the test is over."""
    for name in ("ready", "go"):
        (open_pbs.home / name).unlink(missing_ok=True)
    job, _ = open_pbs.qsub(WAITING, *OPTIONS)
    process.wait_until((open_pbs.home / "ready").exists, 60, "the start of the job")
    yield job
    (open_pbs.home / "go").touch()
    open_pbs.wait(job)


SECOND = """
export PATH={path} PYTHONPATH={source} EZPZ_NGPU_PER_HOST=0
launch() {{ /usr/bin/python3 -m ezpz.launch "$@"; echo "ended with $?"; }}
launch bash -c 'echo rank $RANK on $(hostname) ${{PBS_JOBCOOKIE-no cookie}}'
source {source}/ezpz/bin/utils.sh
ezpz_setup_job >/dev/null
$DIST_LAUNCH true
echo "plain line ended with $?"
launch --dry-run true
launch --explain true
cat ~/.local/state/ezpz/launches/*/run.json
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, "no MPI"])
def test_a_shell_that_is_none_of_the_job_reaches_its_hosts_and_never_shows_its_cookie(open_pbs, running, name):
    bins = f"{Flavour(name).bin}:" if name in NAMES else ""
    path = f"{openpbs.PREFIX}/bin:{bins}/usr/bin:/bin"
    cookies = {cookie for pid in open_pbs.hosts["n01"].pids() for cookie in cookies_of(pid)}
    assert len(cookies) == 1
    line = ["bash", "-c", SECOND.format(path=path, source=ROOT / "src")]
    done = open_pbs.as_user(line, host="n01", timeout=200)
    ranks = sorted(line.partition(" no ")[0] for line in done.stdout.splitlines() if line.startswith("rank "))
    # Daemons of an MPI on other hosts are tasks of the job, and have its cookie from PBS.
    ranks = [re.sub(r" [0-9A-F]{32}$", "", rank) for rank in ranks]
    assert ranks == [f"rank {rank} on n0{rank // 2 + 1}" for rank in range(6)], (done.stdout, done.stderr)
    assert "ended with 0" in done.stdout
    assert "plain line ended with 0" in done.stdout
    shown = [line for line in done.stdout.splitlines() if not line.startswith("rank ")]
    assert not any(cookie in text for cookie in cookies for text in (*shown, done.stderr))
    assert running in done.stdout


def cookies_of(pid):
    return re.findall(r"(?<=\0PBS_JOBCOOKIE=)[^\0]+", proc.environ(pid).decode(errors="replace"))


ANSWER = """
import json, os, subprocess, sys
told = []
for answer in json.load(open(sys.argv[1]))["answers"]:
    env = {name: value for name, value in {**os.environ, **answer.get("set", {})}.items()}
    for name in answer.get("unset", ()):
        del env[name]
    done = subprocess.run(["pbs_tmrsh", *answer["words"]], env=env, capture_output=True, text=True)
    told.append([answer["when"], done.returncode, done.stdout, done.stderr])
look = "[*os.environ, os.environ['PATH'], os.readlink('/proc/self/fd/0')]"
task = f"import json, os; print(json.dumps({look}))"
subprocess.run(["pbs_tmrsh", "n02", "/usr/bin/python3", "-c", task])
print(json.dumps(told))
"""


@pytest.mark.slow
def test_the_recorded_answers_are_those_of_this_openpbs(open_pbs):
    record = open_pbs.home / "record.json"
    record.write_text(json.dumps(RECORD))
    (open_pbs.home / "answer.py").write_text(ANSWER)
    job = f"#!/bin/bash\nexport PATH={openpbs.PREFIX}/bin:$PATH\n/usr/bin/python3 answer.py record.json\n"
    done = open_pbs.job(job, *OPTIONS)
    lists = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    [task] = [one for one in lists if isinstance(one[0], str)]
    [told] = [one for one in lists if isinstance(one[0], list)]
    name = next(word for word in re.findall(r"job <(.*?)>", json.dumps(told)))
    assert told == [[one["when"], one["code"], "", one["stderr"].replace("JOB", name)] for one in RECORD["answers"]]
    *variables, path, stdin = task
    assert set(RECORD["task"]["variables"]) <= set(variables)
    assert "PBS_O_WORKDIR" in variables
    assert (path, stdin) == (RECORD["task"]["PATH"], RECORD["task"]["stdin"])
