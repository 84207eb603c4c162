"""Where `launch` itself breaks, all ranks are killed, run.json tells the end, and the exit code is 125."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab import process, seed
from lab.process import wait_until
from lab.ssh import READY, SRC, Site

pytestmark = pytest.mark.slow

# A launch in which one function raises: at its n-th call, or when a file appears.
DRIVER = """
import importlib, os, sys
from ezpz.launch import entry
module, name, error, when, *args = sys.argv[1:]
*path, last = name.split(".")
owner = importlib.import_module(module)
for part in path:
    owner = getattr(owner, part)
real, calls, pid = getattr(owner, last), [], os.getpid()
def broken(*args, **kwargs):
    calls.append(os.getpid() == pid)  # not in the agent, which is forked
    if calls[-1] and (len(calls) == int(when)) if when.isdigit() else os.path.exists(when):
        raise eval(error)
    return real(*args, **kwargs)
setattr(owner, last, broken)
sys.exit(entry.main(args))
"""
RANKS = f"{READY} sleep 600 & (setsid sleep 601 &); env -i setsid sleep 602 & wait"
RUN = "ezpz.launch.run."
BREAKS = [  # module, function, error; at its first call
    (RUN + "supervisor", "Supervisor._hear", "ValueError('boom')"),
    (RUN + "supervisor", "Supervisor.listen", "RecursionError()"),
    (RUN + "control", "Control.read", "KeyError('boom')"),
    (RUN + "control", "Control.tick", "MemoryError()"),
    (RUN + "terminal", "Screen.show", "OSError(5, 'boom')"),
    (RUN + "terminal", "Screen.tick", "BrokenPipeError(32, 'boom')"),
    (RUN + "start", "Run._keep_first_record", "TypeError('boom\\nin two lines')"),
    ("ezpz.launch.record", "started", "AttributeError('boom')"),
    ("ezpz.launch.record", "write", "ValueError('boom')"),
    ("ezpz.launch.event_loop", "Loop.turn", "IndexError('boom')"),
    (RUN + "launcher_child", "Children.add", "AssertionError('boom')"),
]


def records(home):
    return [json.loads(path.read_text()) for path in Path(home).glob(".local/state/ezpz/launches/*/run.json")]


def killed(survivors):
    """Wait until nothing of the run is left, in any session or environment."""

    def none():
        left = survivors()
        sleepers = [pid for pid, line in left.items() if "sleep 60" in line]
        return not sleepers

    wait_until(none, 10, "the end of all ranks")


def check(done, home, error="boom"):
    assert done.returncode == 125, done.stderr
    words = "launch cannot go on: " if error == "MemoryError" else "launch itself broke: "
    lines = [line for line in done.stderr.splitlines() if words in line]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "all ranks were killed" in lines[0]
    assert error in lines[0]
    kept = Path(lines[0].rpartition("[traceback: ")[2].removesuffix("]"))
    assert error in kept.read_text()
    (record,) = records(home)
    assert (record["state"], record["exit_code"]) == ("failed", 125)
    assert record["cause"]["text"].startswith(words)
    assert error in record["cause"]["text"]
    assert record["started"] < record["ended"] <= time.time()
    assert record["plan"]["world_size"] == 2


@pytest.mark.parametrize(("module", "name", "error"), BREAKS, ids=[name for _, name, *_ in BREAKS])
def test_all_is_killed_and_told(run_cli, clean_env, home, survivors, module, name, error):
    env = {**clean_env, "EZPZ_SSH": "false"}
    flavour = seed.pick(seed.of_the_day(), name, ["local", "ssh"])
    line = [sys.executable, "-c", DRIVER, module, name, error, "1", "--flavour", flavour, "-n", "2"]
    line += ["bash", "-c", RANKS]
    done = run_cli(line, env, 60)
    check(done, home, error.partition("(")[0])
    killed(survivors)


# The same for what is only reported: each kind of report leaves a file when the launcher hears it first.
ONLY_REPORTED = """
import sys
from ezpz.launch import entry
from ezpz.watch.hardware.launcher import HardwareRecord
from ezpz.watch.stragglers.launcher import ArrivalRecord
breaks = sys.argv[1]
def wrap(owner, name):
    real = getattr(owner, name)
    def wrapped(*args):
        open(owner.__name__, "w").close()
        if name == breaks:
            raise KeyError(7)
        return real(*args)
    setattr(owner, name, wrapped)
for owner in (ArrivalRecord, HardwareRecord):
    wrap(owner, "hear")
    wrap(owner, "end")
sys.exit(entry.main(sys.argv[2:]))
"""
# Trains until both kinds of reports have been heard, or for a minute at least.
TRAINS = """
import os, sys, time
sys.path.insert(0, SRC)
import torch, ezpz
ezpz.setup_torch()
for _ in range(1000):
    left = torch.tensor([not all(map(os.path.exists, ("ArrivalRecord", "HardwareRecord")))], dtype=torch.float)
    torch.distributed.all_reduce(left)
    if not left:
        break
    time.sleep(0.06)
ezpz.cleanup()
"""


@pytest.mark.parametrize("breaks", ["hear", "end"])
def test_a_mistake_in_what_is_only_reported_ends_no_run(run_cli, home, tmp_path, breaks):
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(TRAINS.replace("SRC", repr(SRC)))
    line = [sys.executable, "-c", ONLY_REPORTED, breaks, "-n", "2", sys.executable, tmp_path / "train.py"]
    done = run_cli(line, timeout=200)
    assert done.returncode == 0, done.stderr
    for what in ("stragglers", "devices"):
        assert done.stderr.count(f"ezpz: note: {what} are not looked at any more: KeyError: 7\n") == 1, done.stderr
    (record,) = records(home)
    assert (record["state"], record["causes"]) == ("finished", [])


@pytest.mark.parametrize("name", ["Screen.close", "Screen.finish"])
def test_a_terminal_that_breaks_at_the_end_is_told_too(run_cli, home, name):
    line = [sys.executable, "-c", DRIVER, RUN + "terminal", name, "ValueError('boom')", "1", "-n", "2", "true"]
    check(run_cli(line), home)


def test_a_failure_of_a_rank_is_kept_beside_it(run_cli, home):
    line = [sys.executable, "-c", DRIVER, RUN + "terminal", "Screen.close", "ValueError('boom')", "1", "-n", "2"]
    check(run_cli([*line, "bash", "-c", "exit 3"]), home)
    (record,) = records(home)
    assert any(failure["code"] == 3 for failure in record["failures"])


def test_what_breaks_while_ranks_are_being_ended_leaves_none(run_cli, home, survivors):
    stubborn = f"trap '' TERM; {READY} if [ $RANK = 1 ]; then exit 3; fi; sleep 600"
    line = [sys.executable, "-c", DRIVER, RUN + "supervisor", "Supervisor.kill", "ValueError('boom')", "1", "-n", "2"]
    check(run_cli([*line, "bash", "-c", stubborn]), home)
    killed(survivors)


def test_before_the_first_rank_nothing_is_recorded(run_cli, home):
    words = ["ezpz.launch.survey", "survey", "ValueError('boom')", "1"]
    done = run_cli([sys.executable, "-c", DRIVER, *words, "-n", "2", "true"])
    assert done.returncode == 125
    (told,) = done.stderr.splitlines()
    assert told.startswith("ezpz: launch itself broke: ValueError: boom (")
    assert told.endswith("; no rank was started. `export EZPZ_DEBUG=1` shows where")
    assert records(home) == []


def test_the_traceback_is_shown_to_who_asks(run_cli, clean_env):
    words = [RUN + "terminal", "Screen.close", "ValueError('boom')", "1"]
    done = run_cli([sys.executable, "-c", DRIVER, *words, "-n", "2", "true"], {**clean_env, "EZPZ_DEBUG": "1"})
    assert done.returncode == 125
    assert "Traceback" in done.stderr
    assert "ValueError: boom" in done.stderr


def test_a_port_that_stays_taken_ends_the_record_too(run_cli, home):
    """An error that was foreseen, after a first start."""
    taken = "from ezpz.launch import entry, session; session._MOST_STARTS = 1; "
    taken += "import ezpz.launch.run.supervisor as supervisor; supervisor.PORT_TAKEN = 0; "
    program = taken + "import sys; sys.exit(entry.main(sys.argv[1:]))"
    done = run_cli([sys.executable, "-c", program, "-n", "2", "true"])
    assert done.returncode == 125
    assert "no free port" in done.stderr


def test_ranks_on_other_hosts_die_with_the_line(hosts, clean_env, tmp_path, home):
    folder = tmp_path / "a folder"
    folder.mkdir()
    site = Site(hosts, clean_env, folder)
    (folder / "hosts").write_text("n01:1\nn02:1\n")
    words = [RUN + "supervisor", "Supervisor.listen", "ValueError('boom')", str(folder / "break")]
    ranks = f"touch up$RANK; while sleep 0.2; do echo; done & {RANKS}"
    line = [sys.executable, "-c", DRIVER, *words, "--hostfile", "hosts", "bash", "-c", ranks]
    launch = hosts["head"].popen(line, site.env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: all((folder / f"up{rank}").exists() for rank in range(2)), 20, "both ranks")
    (folder / "break").touch()
    output, errors = launch.communicate(timeout=60)
    check(subprocess.CompletedProcess(line, launch.returncode, output, errors), home)
    wait_until(lambda: not (hosts["n01"].pids() or hosts["n02"].pids()), 10, "the end of all on the other hosts")


def test_ranks_of_an_mpi_die_too(flavour, tmp_path, home, survivors):
    env = {**flavour.env(), "PYTHONPATH": SRC}
    words = [RUN + "supervisor", "Supervisor._hear", "ValueError('boom')", "2"]
    line = [flavour.python, "-c", DRIVER, *words, "-n", "2", "bash", "-c", RANKS]
    done = process.run(line, env, timeout=60, cwd=tmp_path)
    check(done, home)
    killed(survivors)
    assert os.getpid() not in survivors()
