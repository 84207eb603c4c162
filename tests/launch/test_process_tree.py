"""What of a launch still lives on this host. A process in an uninterruptible sleep cannot be staged here."""

import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from ezpz.launch.host import process_tree
from lab import hosts, process
from lab.require import require

SRC = str(Path(process_tree.__file__).parents[3])

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")

# Each program prints pids of processes that shall be found, then stays.
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(300)
    os._exit(0)
os.wait()
"""
WIPED = """
import os, sys
if os.fork() == 0:
    os.setsid()
    print(os.getpid(), flush=True)
    os.execve("/bin/sleep", ["sleep", "300"], {})
os._exit(0)
"""
CHAIN = """
import os, sys, time
os.setsid()  # as every rank
print(os.getpid(), flush=True)
end = time.monotonic() + 50
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    SETSID
    time.sleep(0.002)
"""
SPRINKLER = """
import os, time
print(os.getpid(), flush=True)
end = time.monotonic() + 50
while time.monotonic() < end:
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        time.sleep(50)
        os._exit(0)
    time.sleep(0.005)
"""
KILLER = """
import os, subprocess, sys, time
from ezpz.launch.host import process_tree as survivors
if sys.argv[1] == "adopt":
    survivors.adopt()
child = subprocess.Popen(sys.argv[4:], stdout=subprocess.PIPE, text=True)
pid = int(child.stdout.readline())
time.sleep(0.3)
before = survivors.descendants(os.getpid())
left = survivors.kill_all(sys.argv[2], patience=float(sys.argv[3]))
print(pid in before, left, survivors.children(), survivors.reap())
"""


@pytest.fixture
def killer(clean_env, survivors):
    """Run a program below a process that kills it; return what that found: below it before, left, children."""

    def run(program, launch="l1", *, adopt=True, tagged=True):
        env = {**clean_env, "PYTHONPATH": SRC}
        env |= {"EZPZ_LAUNCH_ID": launch} if tagged else {}
        line = [sys.executable, "-c", KILLER, "adopt" if adopt else "no", launch, "20", sys.executable, "-c", program]
        done = process.run(line, env, timeout=50)
        assert done.returncode == 0, done.stderr
        assert not survivors()  # at once, and not only when the test ends
        return done.stdout.strip()

    return run


@pytest.fixture
def start(clean_env):
    """Start a process with an EZPZ_LAUNCH_ID and return it."""
    started = []

    def run(launch, argv=("sleep", "300"), **more):
        child = subprocess.Popen(argv, env={**clean_env, "EZPZ_LAUNCH_ID": launch, **more}, start_new_session=True)
        started.append(child)
        return child

    yield run
    for child in started:
        child.kill()
        child.wait()


@pytest.mark.slow
def test_a_daemon_in_another_session_is_below_whoever_adopts(killer):
    assert killer(DAEMON, tagged=False) == "True [] [] []"


def test_a_daemon_that_nobody_adopted_is_found_by_its_environment(killer):
    assert killer(DAEMON, adopt=False) == "False [] [] []"


@pytest.mark.slow
def test_a_process_that_wiped_its_environment_is_found_in_the_tree(killer):
    assert killer(WIPED) == "True [] [] []"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "tagged"), [("pass", True), ("os.setsid() if os.getpid() != os.getsid(0) else 0", False)]
)
def test_a_chain_of_forks_does_not_escape(killer, step, tagged):
    assert killer(CHAIN.replace("SETSID", step), tagged=tagged).endswith("[] [] []")


@pytest.mark.slow
def test_a_process_that_forks_all_the_time_does_not_escape(killer):
    assert killer(SPRINKLER).endswith("[] [] []")


def test_only_the_launch_and_those_inside_it_are_tagged(start):
    outer, inner, other, longer = start("l7"), start("l7/in"), start("l8"), start("l77")
    process.wait_until(lambda: len(process_tree.tagged("l7")) == 2, 5, "exec of both")
    assert process_tree.tagged("l7") == sorted([outer.pid, inner.pid])
    assert process_tree.tagged("l7/in") == [inner.pid]
    assert process_tree.tagged("") == process_tree.tagged("7") == []
    assert set(process_tree.children()) >= {outer.pid, inner.pid, other.pid, longer.pid}


def test_a_daemon_that_left_the_tree_and_wiped_its_environment_bears_the_mark_of_its_launch(clean_env, tmp_path):
    """As an ordinary user, who may lower the limit that is the mark and never raise it; nobody adopts here."""
    one, two = (uuid.uuid4().hex[:16] for _ in range(2))
    code = f"""
import os, resource, subprocess, sys, time
from ezpz.launch.host.process_tree import kill_all, mark_rank, tagged
if os.getuid() == 0:
    os.setresuid(65534, 65534, 65534)
def sleepers():  # not what forks on the way to them
    for pid in {{*tagged("{one}"), *tagged("{two}")}}:
        try:
            with open(f"/proc/{{pid}}/cmdline") as words:
                if words.read().startswith("sleep"):
                    yield pid
        except OSError:
            pass
def daemon(*launches):
    before = set(sleepers())
    if os.fork() == 0:
        for launch in launches:
            mark_rank(launch)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execve("/bin/sleep", ["sleep", "300"], {{}})
        os._exit(0)
    os.wait()
    end = time.monotonic() + 100
    while time.monotonic() < end:
        new = set(sleepers()) - before
        if new:
            return new.pop()
        time.sleep(0.01)
outer, other = daemon("{one}"), daemon("{two}")
inner = daemon("{one}", "{one}/{"3" * 16}")
beside = daemon("{one}", "{one}/{"4" * 16}")
deepest = daemon("{one}", "{one}/{"3" * 16}", "{one}/{"3" * 16}/{"5" * 16}")
assert None not in (outer, other, inner, beside, deepest)
assert tagged("{one}/{"3" * 16}/{"5" * 16}") == tagged("no id") == tagged("") == []
assert tagged("{two}") == [other]
assert tagged("{one}/{"3" * 16}") == sorted([inner, deepest])
assert kill_all("{one}/{"3" * 16}", own=False) == [] and tagged("{one}") == sorted([outer, beside])
assert kill_all("{one}", own=False) == [] and tagged("{one}") == [] and tagged("{two}") == [other]
assert kill_all("{two}", own=False) == [] and tagged("{two}") == []
"""
    done = process.run([sys.executable, "-c", code], {**clean_env, "PYTHONPATH": SRC}, timeout=200)
    assert done.returncode == 0, done.stderr


def test_what_is_spared_lives_and_the_others_are_told_when_they_end(clean_env):
    code = """
import os, subprocess
from ezpz.launch.host import process_tree as survivors
kept, gone = (subprocess.Popen(["sleep", "300"]) for _ in "ab")
assert survivors.kill_all("l1", spare={kept.pid}) == []
assert survivors.children() == [kept.pid] and kept.poll() is None
kept.kill()
while not (ended := survivors.reap()):
    pass
assert ended == [(kept.pid, 9)] and survivors.reap() == []
"""
    env = {**clean_env, "PYTHONPATH": SRC, "EZPZ_LAUNCH_ID": "l1"}
    done = process.run([sys.executable, "-c", code], env, timeout=30)
    assert done.returncode == 0, done.stderr


def test_a_rank_dies_with_its_parent_by_the_signal_asked_for(clean_env, tmp_path):
    code = f"""
import os, signal, sys
from ezpz.launch.host.process_tree import die_with_parent
if os.fork() == 0:
    die_with_parent(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: (open({str(tmp_path / "term")!r}, "w").close(), os._exit(0)))
    os.write(1, b"x")
    while True:
        signal.pause()
os.read(0, 1)
"""
    env = {**clean_env, "PYTHONPATH": SRC}
    line = [sys.executable, "-c", code]
    parent = subprocess.Popen(line, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout.read(1) == b"x"
    parent.send_signal(signal.SIGKILL)
    parent.communicate(timeout=200)
    process.wait_until((tmp_path / "term").exists, 10, "SIGTERM")


def test_a_process_of_another_host_on_this_machine_is_not_this_hosts(start):
    require("hosts", hosts.problem())
    far = start("l9", ["unshare", "--net", "sleep", "300"])
    near = start("l9")
    process.wait_until(lambda: b"sleep" in Path(f"/proc/{far.pid}/cmdline").read_bytes()[:5], 5, "exec")
    process.wait_until(lambda: process_tree.tagged("l9") == [near.pid], 5, "exec")


def test_it_costs_a_shim_next_to_nothing_and_an_agent_little(clean_env):
    both = {"typing", "dataclasses", "ctypes"}
    of_a_shim = both | {"re", "json", "socket", "signal", "selectors", "enum", "importlib"}
    of_an_agent = both | {"pathlib", "subprocess", "tempfile", "threading", "hmac", "inspect"}
    code = f"""
import sys
import ezpz.launch.host.process_tree, ezpz.launch.host.shim
print(sorted({of_a_shim!r} & set(sys.modules)))
import ezpz.launch.host.start_agent
print(sorted({of_an_agent!r} & set(sys.modules)))
"""
    done = process.run([sys.executable, "-S", "-c", code], {**clean_env, "PYTHONPATH": SRC})
    assert done.stdout.split() == ["[]", "[]"], done.stderr
