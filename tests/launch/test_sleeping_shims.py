"""Shims that hand their rank over to the agent and sleep as a shell, on an agent that the test plays."""

import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ezpz import proc
from ezpz.launch import messages
from ezpz.launch.host import local_socket, shim
from ezpz.launch.host.process_tree import is_gone
from ezpz.launch.plan import SHIM
from lab import process as lab

SHELLS = [path for path in map(shutil.which, ("dash", "bash", "busybox")) if path]

MANY_DESCRIPTORS = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
fd = 0
while fd < 1050:
    fd = os.dup(0)
    os.set_inheritable(fd, True)
os.execv(sys.argv[1], sys.argv[1:])
"""

AWAKE = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system's shims stay awake")
pytestmark = [pytest.mark.slow, AWAKE]


class Agent:
    """The agent's end of one shim's connection."""

    def __init__(self, connection):
        self.connection = connection
        self.connection.settimeout(200)
        self.files = []
        self._lines = []

    def hear(self):
        """The next message, as its words; None when the shim has hung up."""
        while not self._lines:
            data, files = local_socket.receive(self.connection)
            self.files += files
            if not data:
                return None
            self._lines += data.decode().splitlines()
        return self._lines.pop(0).split()

    def order(self, message):
        local_socket.send(self.connection, messages.TO_SHIMS.encode(message))

    def close(self):
        self.connection.close()
        for fd in self.files:
            os.close(fd)


@pytest.fixture
def start_shim(clean_env, tmp_path):
    """Start a shim in front of a command; returns it and the agent that it has reached."""
    started = []

    def start(*command, before=(), **more):
        where = f"@ezpz-test-{os.getpid()}-{len(started)}"
        listener = socket.socket(fileno=local_socket.claim(f"{where}-0").detach())  # that of host 0
        world = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "EZPZ_PLACEMENT": "1"}
        own = {"EZPZ_CONTROL": "unused", "EZPZ_LAUNCH": "5f3a90c2", "EZPZ_SOCKET": where, lab.TAG: where}
        line = [*before, sys.executable, "-I", "-S", SHIM, *command]
        run = subprocess.Popen(line, env={**clean_env, **world, **own, **more}, cwd=tmp_path, stdin=subprocess.DEVNULL)
        agent = Agent(listener.accept()[0])
        listener.close()
        started.append((run, agent, where))
        assert agent.hear()[:2] == ["shim", "0"]
        assert agent.hear() == ["ready"]
        return run, agent

    yield start
    for run, agent, where in started:
        agent.close()
        run.wait(200)
        lab.wait_until(lambda where=where: not lab.survivors(where), 10, "the end of all processes")


def asleep(run, agent):
    """Let the rank of a shim begin; returns its pid and its holder's when the shim is a shell."""
    agent.order(messages.HandOver())
    kind, pid, holder = agent.hear()
    assert kind == "over"
    agent.order(messages.Sleep())
    # A shell that has its traps answers to its name.
    lab.wait_until(lambda: "python" not in program(run.pid) and proc.name(run.pid) == "ezpz-shim", 20, "a shell")
    return int(pid), int(holder)


def leave(run, agent, code):
    agent.order(messages.Leave(code=code))
    assert run.wait(200) == code


def program(pid):
    return Path(proc.link(pid, "exe")).name


def private_memory(pid):
    """Kilobytes that a process shares with no other."""
    rows = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(words[1]) for words in rows if words[0].startswith("Private_"))


def test_a_shim_that_sleeps_holds_little_and_leaves_with_the_code_it_is_given(start_shim):
    run, agent = start_shim("sleep", "600")
    pid, holder = asleep(run, agent)
    assert proc.stat(pid).parent == holder
    assert proc.stat(holder).parent == run.pid
    assert private_memory(run.pid) + private_memory(holder) <= 1536  # 2.5 MB a bare Python, 4.4 MB the shim awake
    os.kill(pid, signal.SIGKILL)
    lab.wait_until(lambda: proc.wait_status(pid) == signal.SIGKILL, 10, "the zombie of the rank")
    leave(run, agent, 9)


def test_a_shim_may_inherit_more_descriptors_than_select_takes(start_shim):
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and most < 1200:
        pytest.skip(f"only {most} descriptors are allowed here")
    run, agent = start_shim("sleep", "600", before=[sys.executable, "-I", "-S", "-c", MANY_DESCRIPTORS])
    agent.order(messages.Signal(number=signal.SIGUSR2))  # the shim waits for orders as one that is awake
    agent.order(messages.HandOver())
    assert agent.hear()[0] == "over"
    leave(run, agent, 9)


def test_a_signal_to_a_shim_that_sleeps_is_told_each_time_and_ends_nothing(start_shim):
    run, agent = start_shim("sleep", "600", EZPZ_IGNORED=str(int(signal.SIGHUP)))
    asleep(run, agent)
    os.kill(run.pid, signal.SIGHUP)  # as under nohup
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGTERM):
        os.kill(run.pid, number)
        assert agent.hear() == ["passed", str(int(number))]
    leave(run, agent, 0)


def test_signals_that_come_before_the_shim_sleeps_are_told_too(start_shim):
    run, agent = start_shim("sleep", "600")
    agent.order(messages.Signal(number=signal.SIGUSR2))
    agent.order(messages.HandOver())
    assert agent.hear()[0] == "over"
    assert agent.hear() == ["missed", "12"]
    os.kill(run.pid, signal.SIGUSR1)
    assert agent.hear() == ["passed", "10"]
    os.kill(run.pid, signal.SIGUSR1)
    agent.order(messages.Sleep())
    assert agent.hear() == ["passed", "10"]
    leave(run, agent, 0)


def test_a_shim_that_never_slept_leaves_as_well(start_shim):
    run, agent = start_shim("true")
    agent.order(messages.HandOver())
    assert agent.hear()[0] == "over"
    leave(run, agent, 4)


def test_a_shim_wakes_to_find_out_how_its_rank_ended(start_shim):
    run, agent = start_shim("sh", "-c", "exit 7")
    pid, _ = asleep(run, agent)
    lab.wait_until(lambda: is_gone(pid), 10, "the end of the rank")
    agent.order(messages.Wake())
    assert agent.hear() == ["ended", "7"]
    agent.order(messages.Release(codes=True))
    assert run.wait(200) == 7


def test_a_shim_whose_agent_has_gone_wakes_and_kills_all_that_is_left(start_shim):
    seconds = str(10**6 + os.getpid())
    run, agent = start_shim(sys.executable, "-c", lab.WIPED_DAEMON, seconds)
    pid, _ = asleep(run, agent)
    lab.wait_until(lambda: lab.daemons(seconds), 20, "the rank's daemon")
    agent.close()
    agent.files.clear()
    assert run.wait(200) == 137
    assert not lab.daemons(seconds)
    assert proc.stat(pid) is None


def test_the_rank_goes_with_a_shim_that_is_killed_in_its_sleep(start_shim):
    run, agent = start_shim("sleep", "600")
    pid, holder = asleep(run, agent)
    run.kill()
    assert agent.hear() is None
    lab.wait_until(lambda: is_gone(holder) and is_gone(pid), 10, "the end of holder and rank")


def test_a_crash_of_a_shim_that_sleeps_is_its_last_word(start_shim):
    run, agent = start_shim("sleep", "600")
    asleep(run, agent)
    os.kill(run.pid, signal.SIGABRT)
    assert agent.hear() == ["Fatal", "error:", "Aborted"]
    assert run.wait(200) == -signal.SIGABRT


@pytest.mark.parametrize("more", [{"EZPZ_SIGNALLED_BY": "slurmstepd"}, {}], ids=["slurm signals ranks", "not asked to"])
def test_a_shim_stays_awake(start_shim, more):
    run, agent = start_shim("sh", "-c", "exit 3", **more)
    agent.order(messages.HandOver() if more else messages.Begin())
    assert agent.hear()[0] == "up"
    assert agent.hear() == ["ended", "3"]
    agent.order(messages.Release(codes=False))
    assert run.wait(200) == 0


@pytest.mark.parametrize("shell", SHELLS, ids=os.path.basename)
def test_each_shell_sleeps_alike(shell, tmp_path):
    link = tmp_path / "sh"
    link.symlink_to(shell)
    orphan = tmp_path / "orphan"
    first = f'sh -c "exit 1" & echo $! >{orphan}; ' if shell.endswith("dash") else ""

    def start():
        ours, its = socket.socketpair()
        script = first + shim.sleep_script()
        run = subprocess.Popen([link, "-c", script, "ezpz-shim", "echo", "awake"], stdin=its, stdout=subprocess.PIPE)
        its.close()
        lab.wait_until(lambda: proc.name(run.pid) == "ezpz-shim", 20, "the shell's name")
        return run, Agent(ours)

    run, agent = start()
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):
        os.kill(run.pid, number)
        assert agent.hear() == ["passed", str(int(number))]
    if first:
        zombie = int(orphan.read_text())
        lab.wait_until(lambda: is_gone(zombie), 10, "the end of a child")
    agent.order(messages.Tidy())
    if first:
        lab.wait_until(lambda: proc.stat(zombie) is None, 10, "the end of a zombie")
    leave(run, agent, 5)
    agent.close()
    for ends in (Agent.close, lambda agent: agent.order(messages.Wake())):
        run, agent = start()
        ends(agent)
        assert run.communicate(timeout=200)[0] == b"awake\n"
        agent.close()


def test_how_a_zombie_ended():
    for status in (0, 3 << 8, 9):
        pid = os.fork()
        if not pid:
            if status == 9:
                os.kill(os.getpid(), 9)
            os._exit(status >> 8)
        lab.wait_until(lambda pid=pid: is_gone(pid), 10, "a zombie")
        assert proc.wait_status(pid, "6.1.0-13-amd64") == status
        assert proc.wait_status(pid, "5.14.0-427.el9") == (status or None)
        assert os.waitpid(pid, 0)[1] == status
        assert proc.wait_status(pid) is None
    assert proc.wait_status(os.getpid()) is None


def test_whoever_has_read_a_message_may_hang_up_before_its_sender_looks_again():
    """The agent of a rank that has ended closes the connection as soon as it knows of the rank."""

    class HungUp:
        def sendmsg(self, parts, _):
            return sum(map(len, parts))

        def sendall(self, data):
            raise BrokenPipeError(data)

    local_socket.send(HungUp(), b"handed over\n", (0,))
    with pytest.raises(BrokenPipeError):
        local_socket.send(HungUp(), b"handed over\n")
