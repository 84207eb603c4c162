"""Ranks wait until those of all hosts have come, or none begins (of every flavour: tests/reliability/starts.py)."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from ezpz import proc
from lab import process as lab
from lab.ssh import LAUNCH

# Answers as Hydra does, and starts rank N when there is a file `start.N` where it was called; `twice` is started twice.
MPIEXEC = """#!{python}
import os, signal, subprocess, sys, time
words = sys.argv[1:]
if words == ["--version"]:
    sys.exit(print("HYDRA build details:"))
size, deaf, twice, hosts = int(words[1]), "TEST_DEAF" in os.environ, os.environ.get("TEST_TWICE"), "-f" in words
if deaf:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
words = words[next(at for at, word in enumerate(words) if "python" in word):]
waiting, ranks = set(range(size)), []
while waiting:
    for rank in sorted(waiting):
        if os.path.exists(f"start.{{rank}}"):
            waiting.remove(rank)
            where = (0, 1) if hosts else (rank, size)
            more = {{"MPI_LOCALRANKID": str(where[0]), "MPI_LOCALNRANKS": str(where[1])}}
            env = {{**os.environ, **more, "PMI_RANK": str(rank), "PMI_SIZE": str(size)}}
            if os.environ.get("TEST_CUT_OFF") == str(rank):
                env["EZPZ_CONTROL"] = "00@1@255.255.255.255"
            for _ in range(1 + (twice == str(rank))):
                ranks.append(subprocess.Popen(words, env=env))
    time.sleep(0.01)
sys.exit(max(abs(rank.wait()) for rank in ranks))
"""
pytestmark = pytest.mark.slow
BEGIN = ["sh", "-c", "echo began $RANK; touch began.$RANK"]


class Launch:
    """A launch whose ranks are started one by one, where the test says so."""

    def __init__(self, start_launch, env, folder):
        self._start, self._env, self.folder = start_launch, env, folder

    def begin(self, *options, ranks=(), command=BEGIN, line=LAUNCH, **more):
        self.start(*ranks)
        self.run = self._start("--flavour", "mpich", *options, *command, env={**self._env, **more}, line=line)

    def start(self, *ranks):
        for rank in ranks:
            (self.folder / f"start.{rank}").touch()

    def ours(self, comm):
        pids = lab.survivors(self._env[lab.TAG])
        return sorted(pid for pid in pids if proc.name(pid) == comm)

    def wait_for_shims(self, count):
        """Return the shims when surely all of them wait for other ranks."""
        lab.wait_until(lambda: len(self.ours("ezpz-shim")) == count, 10, f"{count} shims")
        time.sleep(0.3)
        return self.ours("ezpz-shim")

    def end(self):
        """Return the exit code, what the ranks wrote, and the launch's words."""
        output, errors = self.run.communicate(timeout=60)
        assert "Traceback" not in errors, errors
        lab.wait_until(lambda: not lab.survivors(self._env[lab.TAG]), 3, "the end of all processes")
        return self.run.returncode, sorted(output.splitlines()), errors

    def began(self):
        return sorted(path.name for path in self.folder.glob("began.*"))


@pytest.fixture
def launched(start_launch, clean_env, tmp_path):
    bins = lab.program(tmp_path / "bin" / "mpiexec", MPIEXEC.format(python=sys.executable)).parent
    return Launch(start_launch, {**clean_env, "PATH": f"{bins}:{clean_env['PATH']}"}, tmp_path)


def test_ranks_begin_together_when_the_last_has_come(launched):
    launched.begin("-n", "3", ranks=(0, 2))
    shims = launched.wait_for_shims(2)

    def wait_in_the_kernel():
        used = [Path(f"/proc/{pid}/stat").read_text().split()[13:15] for pid in shims]
        time.sleep(0.3)
        return [Path(f"/proc/{pid}/stat").read_text().split()[13:15] for pid in shims] == used

    lab.wait_until(wait_in_the_kernel, 60, "shims that use no CPU")
    assert launched.began() == []
    launched.start(1)
    assert launched.end()[:2] == (0, ["began 0", "began 1", "began 2"])


@pytest.mark.parametrize(
    ("comm", "number", "code", "words"),
    [
        ("ezpz-shim", signal.SIGTERM, 143, "rank 0 on host {} was killed by SIGTERM: its launcher sent it that signal"),
        ("ezpz-shim", signal.SIGKILL, 137, "rank 0 on host {} was killed by SIGKILL"),
        ("ezpz-shim", signal.SIGABRT, 137, "crashed: Aborted"),
        ("ezpz-agent", signal.SIGKILL, 125, "host {} is lost: "),
    ],
)
def test_a_shim_or_agent_that_goes_before_all_have_come_ends_the_launch(launched, comm, number, code, words):
    launched.begin("-n", "2", ranks=(0,))
    launched.wait_for_shims(1)
    os.kill(launched.ours(comm)[0], number)
    returned, output, errors = launched.end()
    assert (returned, output, launched.began()) == (code, [], []), errors
    (line,) = (line for line in errors.splitlines() if words.format(os.uname().nodename) in line)
    assert line.endswith("; no rank has begun")


def test_a_signal_that_comes_while_ranks_wait_reaches_each_once(launched):
    script = 'trap "echo got $RANK" USR1; touch began.$RANK; until [ -e go ]; do sleep 0.05; done'
    launched.begin("-n", "2", ranks=(0,), command=["sh", "-c", script])
    (shim,) = launched.wait_for_shims(1)
    for pid in (launched.run.pid, shim):  # as a scheduler does that signals all processes of a job
        os.kill(pid, signal.SIGUSR1)
    time.sleep(0.3)
    launched.start(1)
    lab.wait_until(lambda: len(launched.began()) == 2, 10, "two ranks")
    time.sleep(0.5)
    (launched.folder / "go").touch()
    code, output, errors = launched.end()
    assert (code, output) == (0, ["got 0", "got 1"]), errors


def test_ranks_of_one_number_are_none_of_the_plan(launched):
    launched.begin("-n", "2", ranks=(1,), TEST_TWICE="1")  # with rank 0, both may be over before the second one comes
    code, output, errors = launched.end()
    assert (code, output) == (125, []), errors
    assert "a rank came up that is there already (from hydra); expected each once (from the plan)" in errors


def test_a_shim_that_comes_when_the_launch_ends_is_turned_away(launched):
    launched.begin("-n", "2", ranks=(0,), TEST_DEAF="1")
    launched.wait_for_shims(1)
    launched.run.terminate()
    assert any("SIGTERM" in line for line in launched.run.stderr)
    launched.start(1)
    code, output, errors = launched.end()
    assert (code, output) == (143, []), errors
    assert "note:" not in errors


def test_a_host_that_cannot_reach_the_launcher_keeps_no_other_host_waiting(launched):
    hosts = ("--hosts", "n01,n02", "--ppn", "1", "--start-timeout", "60")
    launched.begin(*hosts, ranks=(0,), TEST_CUT_OFF="1", MASTER_ADDR="192.0.2.1")
    launched.wait_for_shims(1)
    assert launched.began() == []
    launched.start(1)
    code, output, errors = launched.end()
    assert (code, output) == (0, ["began 0", "began 1"]), errors
    assert "is unsupervised: " in errors
    assert "Its ranks begin without waiting for any others." in errors


# After a minute otherwise.
SOONER = "import ezpz.launch.run.world as it; it._LATE = 1; from ezpz.launch.entry import main; main()"


def test_a_long_wait_is_told_with_whom_it_is_for(launched):
    launched.begin("-n", "2", ranks=(0,), line=[sys.executable, "-c", SOONER])
    told = " hosts has not come up after 1 s: "
    assert any(line.startswith("ezpz: note: 1 of 1") and told in line for line in launched.run.stderr)
    launched.start(1)
    assert launched.end()[:2] == (0, ["began 0", "began 1"])


@pytest.mark.parametrize(
    ("option", "code", "words"),
    [
        ("--start-timeout", 125, "1 of 1 hosts did not come up within 6 s: {} (1 of 2 ranks came); expected 2 ranks"),
        ("--timeout", 124, " 6 s (--timeout, of the whole run; of one without progress: --idle-timeout): "),
    ],
)
def test_a_time_limit_ends_the_wait_and_names_the_host(launched, option, code, words):
    launched.begin("-n", "2", option, "6", ranks=(0,))
    returned, output, errors = launched.end()
    assert (returned, output) == (code, []), errors
    (line,) = (line for line in errors.splitlines() if words.format(os.uname().nodename) in line)
    assert line.endswith("; no rank has begun")
