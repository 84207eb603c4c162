"""An agent that stays, and the worlds that it is ordered to start: each has its own gate, signals, output and end."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ezpz.launch import agent_messages
from ezpz.launch.agent_messages import (
    Begin,
    Done,
    Finished,
    InputWanted,
    Kill,
    Piece,
    RankFailed,
    Refused,
    Release,
    Signal,
    Start,
    Up,
)
from ezpz.launch.contract import BY_LAUNCHER
from ezpz.launch.event_loop import Loop
from ezpz.launch.host import start_agent
from ezpz.launch.host.connection import NoConnection, pair
from ezpz.launch.host.local_world import LocalWorld
from ezpz.launch.host.payload import pack
from ezpz.launch.host.rank_process import RankProcess
from ezpz.launch.master import ListenAddress
from ezpz.launch.run.control import Control, Report
from ezpz.launch.watchers import Watchers
from lab.agents import settings
from lab.process import WIPED_DAEMON, daemons, program, survivors, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets, and marks of processes")
SRC = str(Path(start_agent.__file__).parents[3])
LOOPBACK = ListenAddress("127.0.0.1", ("127.0.0.1",), "for tests")
LAUNCH = os.urandom(8).hex()
FORKED = f"""
import socket, sys
sys.path[:0] = {SRC!r}, {str(Path(__file__).parents[1])!r}
from ezpz.launch.host.start_agent import run_local
from lab.agents import settings
ends = [socket.socket(fileno=int(number)) for number in sys.argv[1:]]
sys.exit(run_local(ends, {LAUNCH!r}, [], [], settings(stays=True), slots=None, terminal=True))
"""


class Host:
    """A launcher's end and the agent behind it.

    Attributes:
        came: Reports and pieces, in their order.
    """

    def __init__(self, control, agent, environ, folder):
        self.control, self.agent, self.environ, self.folder, self.came = control, agent, environ, folder, []

    def start(self, world, *command, ranks=1, index=0, folder=None, more=None, **fields):
        """Order a world of one host, or of more by `EZPZ_PLACEMENT`, and wait for nothing."""
        environ = {"EZPZ_PLACEMENT": str(ranks), "EZPZ_SOCKET": f"@ezpz-test-{os.getpid()}-{LAUNCH}"}
        environ |= {"TORCHELASTIC_RUN_ID": str(world), "EZPZ_RUN_ID": str(world), "PYTHONPATH": SRC}
        environ = {**self.environ, **environ, **(more or {})}
        self.order(
            Start(
                index=index,
                command=list(map(str, command)),
                folder=str(self.folder if folder is None else folder),
                environ=list(environ.items()),
                settings=settings(**fields),
            ),
            world,
        )

    def run(self, world, *command, **more):
        """Order a world, and let it begin when it is up."""
        self.start(world, *command, **more)
        self.heard(Up, world)
        self.order(Begin(), world)

    def order(self, order, world=0):
        assert self.control.order(order, world=world) == {0}

    def read(self):
        self.came += self.control.read()
        return self.came

    def of(self, kind, world):
        """The reports of a kind that have come of a world."""
        reports = [item for item in self.read() if isinstance(item, Report) and item.world == world]
        return [report.message for report in reports if isinstance(report.message, kind)]

    def kinds(self, world):
        """The kinds of all reports that have come of a world."""
        return {message.kind for message in self.of(agent_messages.Message, world)}

    def heard(self, kind, world):
        """Wait for a report of a world, and return the last one."""
        return wait_until(lambda: self.of(kind, world), 20, f"{kind} of world {world}", every=0.01)[-1]

    def shown(self, world):
        """What the ranks of a world have written so far."""
        pieces = [item for item in self.read() if isinstance(item, Piece) and item.world == world]
        return b"".join(bytes(piece.data) for piece in pieces).decode()

    def writes(self, text, world):
        """Wait until ranks of a world have written this."""
        wait_until(lambda: text in self.shown(world), 20, f"{text!r} of world {world}", every=0.01)

    def ended(self):
        """Release the agent, and return its exit code."""
        self.order(Release(codes=False))
        wait_until(lambda: self.read() is not None and self.agent.poll() is not None, 20, "the agent's end", every=0.01)
        assert isinstance(self.heard(Done, 0), Done)
        return self.agent.returncode


def forked(welcome, environ, folder):
    """An agent of `run_local`, behind what its launcher inherits to it."""
    control = Control(welcome)
    ours, its = pair()
    words = [sys.executable, "-c", FORKED, *(str(end.fileno()) for end in its)]
    agent = subprocess.Popen(words, pass_fds=[end.fileno() for end in its], env=environ)
    for end in its:
        end.close()
    control.adopt(0, "here", *ours)
    return Host(control, agent, environ, folder)


def behind_ssh(welcome, environ, folder):
    """An agent as ssh starts it; the command and the folder of its payload are nobody's."""
    control = Control(welcome, LOOPBACK)
    words = [sys.executable, "-I", "-S", start_agent.__file__, "0"]
    variables = {"EZPZ_CONTROL": control.variable, "EZPZ_LAUNCH": LAUNCH, "EZPZ_PLACEMENT": "2"}
    variables |= {"EZPZ_STDIN": "none", "EZPZ_IGNORED": str(int(signal.SIGHUP))}
    agent = subprocess.Popen(words, stdin=subprocess.PIPE, env=environ, cwd="/")
    agent.stdin.write(pack(["false"], {**environ, **variables, "PWD": str(folder)}))
    agent.stdin.close()
    return Host(control, agent, environ, folder)


def by_mpiexec(welcome, environ, folder):
    """One as an mpiexec starts it on its only host."""
    control = Control(welcome, LOOPBACK)
    words = [sys.executable, "-I", "-S", start_agent.__file__, BY_LAUNCHER, "false"]
    variables = {"EZPZ_CONTROL": control.variable, "EZPZ_LAUNCH": LAUNCH, "EZPZ_PLACEMENT": "2"}
    variables |= {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    variables |= {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    return Host(control, subprocess.Popen(words, env={**environ, **variables}), environ, folder)


@pytest.fixture
def starts(clean_env, tmp_path):
    """`starts(way, **fields)`: a host with an agent that stays, started in this way, whatever holds it."""
    hosts = []

    def start(way, **fields):
        host = way(settings(stays=True, **fields), clean_env, tmp_path)
        hosts.append(host)
        wait_until(lambda: host.read() is not None and host.control.heard, 20, "the agent", every=0.01)
        return host

    yield start
    for host in hosts:
        host.control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            host.agent.wait(20)
        host.agent.kill()
        host.agent.wait()


@pytest.fixture(params=[forked, behind_ssh, by_mpiexec])
def host(request, starts):
    made = starts(request.param)
    assert made.heard(Up, 0).ranks == 0
    return made


@pytest.fixture
def one(starts):
    return starts(behind_ssh)


def test_a_world_that_fails_touches_no_other(host, tmp_path):
    program(tmp_path / "second" / "own.sh", "#!/bin/sh\npwd; echo rank $RANK of $EZPZ_LAUNCH_ID\n")
    host.start(1, "sh", "-c", "echo begun; read line; exit 1")
    host.start(2, "sh", "-c", "echo a word >&2; exit $((3 * (1 - RANK)))", ranks=2, folder=tmp_path)
    for world in (1, 2):
        host.heard(Up, world)
    host.order(Begin(), 2)
    assert host.heard(RankFailed, 2).code == 3
    assert host.heard(Done, 2).stuck == []
    host.order(Signal(number=15), 2)  # it has ended: this is nobody's
    host.writes("a word\n", 2)
    host.run(3, "./own.sh", ranks=2, folder=tmp_path / "second")
    host.heard(Done, 3)
    host.writes("rank 1 of", 3)
    host.writes("rank 0 of", 3)
    assert f"{tmp_path / 'second'}\n" in host.shown(3)
    assert f"of {LAUNCH}/00000003\n" in host.shown(3)
    assert host.shown(1) == ""
    assert host.of(Done, 1) == []
    host.order(Begin(), 1)
    host.writes("begun\n", 1)
    assert host.heard(RankFailed, 1).code == 1  # its stdin is empty
    host.heard(Done, 1)
    assert host.of(Done, 0) == []
    assert host.ended() == 0
    assert host.shown(0) == ""


def test_many_worlds_are_ordered_faster_than_they_start(host):
    """Each has a whole environment, and an agent reads nothing while it starts one."""
    for world in range(1, 41):
        host.start(world, "true", more={f"LARGE_{number}": "x" * 99_999 for number in range(3)})
    for world in range(1, 41):
        host.heard(Up, world)
        host.order(Begin(), world)
    for world in range(1, 41):
        host.heard(Done, world)
    assert host.ended() == 0


def test_a_world_ends_while_another_writes_more_than_is_read(one, monkeypatch):
    """Behind its own output, and no other's."""
    monkeypatch.setattr("ezpz.launch.run.control._READS", 1)
    monkeypatch.setattr("ezpz.launch.run.control._READ", 1 << 16)
    one.run(1, "yes")
    one.writes("y\n", 1)
    one.run(2, "bash", "-c", "sleep 0.5; echo over")
    assert one.heard(Done, 2).stuck == []
    assert "over\n" in one.shown(2)
    one.order(Kill(), 1)
    monkeypatch.undo()
    assert one.ended() == 0


def test_a_kill_of_one_world_leaves_the_others_and_that_of_the_host_leaves_none(host):
    numbers = {world: str(700000 + os.getpid() % 10000 * 10 + world) for world in (1, 2, 3)}
    for world, number in numbers.items():
        host.run(world, sys.executable, "-c", WIPED_DAEMON, number)
    wait_until(lambda: all(map(daemons, numbers.values())), 20, "a daemon of each")
    host.order(Kill(), 2)
    assert host.heard(Done, 2).stuck == []
    assert [bool(daemons(number)) for number in numbers.values()] == [True, False, True]
    assert not host.of(RankFailed, 2)
    host.order(Signal(number=int(signal.SIGTERM)), 3)
    assert host.heard(RankFailed, 3).code == -signal.SIGTERM
    host.heard(Done, 3)
    assert [bool(daemons(number)) for number in numbers.values()] == [True, False, False]
    host.order(Kill())
    host.heard(Done, 1)
    host.heard(Done, 0)
    assert not any(map(daemons, numbers.values()))
    host.control.order(Release(codes=True))
    assert host.agent.wait(20) == 0


def test_all_worlds_end_with_the_connection(host, clean_env):
    numbers = {world: str(800000 + os.getpid() % 10000 * 10 + world) for world in (1, 2)}
    for world, number in numbers.items():
        host.run(world, sys.executable, "-c", WIPED_DAEMON, number)
    host.start(3, "true")
    host.heard(Up, 3)
    wait_until(lambda: all(map(daemons, numbers.values())), 20, "a daemon of each")
    host.control.close()
    host.agent.wait(20)
    wait_until(lambda: not any(map(daemons, numbers.values())), 10, "the end of both daemons")
    wait_until(lambda: not survivors(clean_env["EZPZ_TEST_TAG"]), 10, "the end of all processes")


def test_ranks_of_all_worlds_may_end_well_when_a_scheduler_has_killed_the_launcher(starts, tmp_path):
    host = starts(behind_ssh, parting=20.0)
    script = f"trap 'sleep 0.2; touch {tmp_path}/asked-$1; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    for world in (1, 2):
        host.run(world, "bash", "-c", script, "bash", str(world))
        host.writes("ready\n", world)
    host.start(3, "true")
    host.heard(Up, 3)
    host.control.close()
    host.agent.wait(20)
    assert sorted(path.name for path in tmp_path.glob("asked-*")) == ["asked-1", "asked-2"]


def test_the_launchers_input_goes_to_the_world_that_has_it(host):
    host.run(1, "cat")
    host.run(2, "cat", input=True)
    host.heard(Done, 1)
    assert host.heard(InputWanted, 2).taken == 0
    way = host.control.way_back(0)
    for piece in (b"some\n", b"input\n", b""):
        way.connection.sendall(way.writer.frame(piece))
    host.heard(Done, 2)
    host.writes("some\ninput\n", 2)
    assert not host.of(InputWanted, 1)
    assert host.ended() == 0


def test_a_world_that_cannot_be_started_is_refused_and_no_other_hears_of_it(one, tmp_path, subtests):
    one.run(1, "sh", "-c", "echo $$; exec sleep 600")
    (tmp_path / "file").write_text("")
    taken = socket.create_server(("", 0))
    port = {"MASTER_PORT": str(taken.getsockname()[1]), "MASTER_ADDR": "127.0.0.1", "EZPZ_PLACEMENT": "1,1"}
    for number, (words, more) in enumerate(
        (
            (f"cannot enter {tmp_path}/none", {"folder": tmp_path / "none"}),
            ("Not a directory", {"folder": tmp_path / "file"}),
            ("'two' is not a count", {"ranks": "two"}),
            ("on host 1 of 1", {"index": 1}),
            (f"port {port['MASTER_PORT']} of", {"more": port}),
            ("cannot start 100000000 ranks", {"ranks": 100000000}),
        ),
        2,
    ):
        with subtests.test(words):
            one.start(number, "true", **more)
            one.heard(Done, number)
            (refused,) = one.of(Refused, number)
            assert words in refused.text
            assert refused.cannot
            assert not one.of(Up, number)
            one.order(Begin(), number)
    taken.close()
    one.run(9, "true", more=port)  # and its port is given back at its end
    one.heard(Done, 9)
    one.run(10, "true", more=port)
    one.heard(Done, 10)
    for number in (0, 1, 9):
        one.start(number, "true")
        assert "expected a new number" in one.heard(Refused, number).text
    assert one.of(Done, 1) == one.of(Done, 0) == []
    one.run(11, "./no-such-program")
    assert one.heard(RankFailed, 11).code == 127
    one.heard(Done, 11)
    one.order(Release(codes=False))
    one.start(12, "true")
    assert "about to end" in one.heard(Refused, 12).text
    one.heard(Done, 12)
    assert one.of(Done, 0) == []
    one.order(Kill(), 1)
    one.heard(Done, 0)
    assert one.agent.wait(20) == 0


def test_an_agent_with_a_world_of_its_own_starts_no_other(clean_env, tmp_path):
    host = behind_ssh(settings(), clean_env, tmp_path)
    host.heard(Up, 0)
    host.start(1, "true")
    assert "expected one that stays" in host.heard(Refused, 1).text
    host.heard(Done, 1)
    host.order(Begin(), 1)
    host.order(Begin())
    assert host.heard(RankFailed, 0).code == 1
    host.heard(Done, 0)
    assert host.agent.wait(20) == 0
    host.control.close()


def test_a_pid_that_comes_again_is_not_that_of_a_rank_which_has_ended():
    world = LocalWorld(Loop(), NoConnection(), LAUNCH, print, number=1)
    rank = RankProcess(0, pid=1 << 29)
    world.add(rank)
    assert world.child_ended(1 << 29, 3)
    assert not world.child_ended(1 << 29, 4)
    assert rank.code == 3


def test_signals_are_a_worlds_own(one):
    script = "trap 'echo user' USR1; trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    late = "echo ready; sleep 1; trap 'echo user; exit 0' USR1; while :; do sleep 0.05; done"
    one.run(1, "bash", "-c", script)
    one.run(2, "bash", "-c", script)
    one.run(3, "bash", "-c", late)
    one.run(4, "sh", "-c", "kill -HUP $$; echo outlived it")  # as the launcher was started with it ignored
    one.writes("outlived it\n", 4)
    for world in (1, 2, 3):
        one.writes("ready\n", world)
    one.order(Signal(number=int(signal.SIGUSR1)), 3)  # held until there is a handler
    one.order(Signal(number=int(signal.SIGTERM)), 1)
    one.heard(Done, 1)
    one.heard(Done, 3)
    one.writes("user\n", 3)
    assert "SIGUSR1 came before" in one.heard(agent_messages.Note, 3).text
    assert "user" not in one.shown(1) + one.shown(2)
    one.order(Signal(number=int(signal.SIGUSR1)))  # of the host: all worlds
    one.writes("user\n", 2)
    assert "asked" not in one.shown(2)
    one.order(Signal(number=int(signal.SIGTERM)))
    one.heard(Done, 2)
    assert one.ended() == 0


SPEAKS = """
import sys, time
from ezpz import progress
progress.heartbeat(int(sys.argv[1]))
time.sleep(600 if len(sys.argv) > 2 else 0)
"""


def test_ranks_speak_to_their_own_world_and_its_watchers(one):
    rows = [("progress", "", -1.0, "", "", "")]
    Watchers(rows, "launcher", lambda *_: None, print)  # reports of watchers are understood here
    one.run(1, sys.executable, "-c", SPEAKS, "7", "stays", idle=0.5, watchers=rows)
    one.run(2, sys.executable, "-c", SPEAKS, "9", watchers=rows)
    one.run(3, sys.executable, "-c", SPEAKS, "5", "stays", watchers=[])
    wait_until(lambda: "idle" in one.kinds(1), 20, "that world 1 is idle")
    assert one.heard(Finished, 2).step == 9
    assert one.heard(Done, 2).step == 9
    wait_until(
        lambda: "step" in {stages.stage for stages in one.of(agent_messages.Stages, 3)}, 20, "a stage of world 3"
    )
    assert "idle" not in one.kinds(2) | one.kinds(3)
    one.order(Kill(), 1)
    one.order(Kill(), 3)
    assert one.heard(Done, 1).step == 7
    one.heard(Done, 3)
    assert one.ended() == 0


HOST_WATCHER = """
from ezpz.launch.watchers import HostSide, Watcher

WATCHER = Watcher("gate", "gates", host=":Gate", scope="host", begins=True)
WORDS = REPORTS = ORDERS = ()


class Gate(HostSide):
    def before_begin(self, environ, *, first):
        self.handle.hold(True)
        self.handle.after(1.0, self.open)

    def open(self):
        self.handle.note("the gate is open")
        self.handle.hold(False)

    def ended(self, rank):
        self.handle.note(f"{sum(each.alive for each in self.handle.ranks.values())} others are left")
"""


def test_a_watcher_of_the_host_looks_at_all_worlds(starts, tmp_path):
    (tmp_path / "gate.py").write_text(HOST_WATCHER)
    row = ("gate", str(tmp_path / "gate.py"), 0.0, "", "", "")
    host = starts(behind_ssh, watchers=[row])
    for world in (1, 2):
        host.start(world, "sh", "-c", "echo runs; exec sleep 600", watchers=[row])
    for world in range(3):
        host.heard(Up, world)
    reports = [item for item in host.read() if isinstance(item, Report)]
    kinds = [(report.world, report.message.kind) for report in reports if report.message.kind != "hello"]
    assert sorted(kinds[1:]) == [(0, "up"), (1, "up"), (2, "up")]
    assert reports[-4].message.text == "the gate is open"
    for world in (1, 2):
        host.order(Begin(), world)
        host.writes("runs\n", world)
    host.order(Kill(), 1)
    host.heard(Done, 1)
    host.order(Kill(), 2)
    host.heard(Done, 2)
    assert host.ended() == 0
    assert [note.text for note in host.of(agent_messages.Note, 0)][1:] == ["1 others are left", "0 others are left"]
    assert host.of(agent_messages.Note, 1) == host.of(agent_messages.Note, 2) == []
