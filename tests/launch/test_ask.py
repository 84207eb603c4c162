"""What a running launch answers at its socket, to whom, and what holds nothing up."""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from ezpz import register
from ezpz.errors import MachineError
from ezpz.launch.ask_launch import ask
from ezpz.launch.event_loop import Loop
from ezpz.launch.run import socket_requests

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and abstract sockets"),
]
KILL = [sys.executable, "-m", "ezpz", "kill"]
RANK = "import sys, time; print('up', flush=True); time.sleep(300)"
STRANGER = """
import os, socket, sys
os.seteuid(12345)
connection = socket.socket(socket.AF_UNIX)
connection.connect("\\0" + sys.argv[1][1:])
connection.settimeout(30)
print(connection.recv(1000).decode(), end="")
assert not connection.recv(1000)
"""


@pytest.fixture
def running(start_launch, home, clean_env):
    """`running(*options)` starts a launch with one rank, and returns its process and itself as it is registered."""

    def start(*options, **more):
        child = start_launch(*options, "-n", "1", sys.executable, "-c", RANK, env={**clean_env, **more})
        assert child.stdout.readline() == "up\n"
        (path,) = home.glob(".local/state/ezpz/launches/*/run.json")
        return child, register.as_here(register.read(str(path)))

    return start


def connect(where):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(30)
    connection.connect(f"\0{where[1:]}" if where.startswith("@") else where)
    return connection


def told(connection):
    """Return the line that comes before the other side hangs up."""
    data = b""
    with connection:
        while part := connection.recv(1000):
            data += part
    return json.loads(data) if data else None


QUESTIONS = {
    b"reboot login1\n": "nothing answers 'reboot' here; expected one of end, kill, stacks",
    b"end a b\n": "a question is a word and a host",
    b"\n": "a question is a word and a host",
    b"\xff\x00\x1b[2J\n": "expected one of end, kill, stacks",
    b"x" * 2000: "a question is a word and a host in a line of less than 512 bytes",
    b"stacks " + b"y" * 505 + b"\n": "in a line of less than 512 bytes",
}


def test_what_is_no_question_is_refused_in_a_line_and_touches_nothing(running, subtests):
    child, launch = running()
    silent, half, gone = (connect(launch.socket) for _ in range(3))
    half.send(b"sta")
    gone.send(b"stacks\n")
    gone.close()
    for question, said in QUESTIONS.items():
        with subtests.test(repr(question[:20])):
            connection = connect(launch.socket)
            connection.sendall(question)
            assert said in told(connection)["refused"]
    half.send(b"cks login1\n")
    assert [rank["rank"] for rank in told(half)["ranks"]] == [0]
    assert [rank["rank"] for rank in ask(launch, "stacks")["ranks"]] == [0]
    assert child.poll() is None
    assert ask(launch, "end") == {"taken": "end"}
    assert child.wait(60) == 143
    assert told(silent) is None
    assert f"`ezpz kill` on {os.uname().nodename} ends this launch" in child.stderr.read()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_another_user_is_refused_in_a_line(running, run_cli):
    child, launch = running()
    done = run_cli([sys.executable, "-c", STRANGER, launch.socket])
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"refused": "this launch is another user's"}
    assert ask(launch, "kill") == {"taken": "kill"}
    assert child.wait(60) == 143


@pytest.mark.slow
def test_a_stopped_launcher_does_not_answer_and_is_killed_all_the_same(running, run_cli):
    child, launch = running()
    os.kill(child.pid, signal.SIGSTOP)
    with pytest.raises(
        MachineError, match=rf"within 0.5 s; it may be stopped: look at `ps .*{child.pid}`; expected where"
    ):
        ask(launch, "stacks", 0.5)
    done = run_cli([*KILL, "--now", launch.launch_id[:8]])
    assert (done.returncode, done.stderr) == (0, "")
    assert child.wait(60) == -signal.SIGKILL


@pytest.mark.slow
def test_a_launch_whose_record_is_missing_is_listed_asked_and_ended(running, run_cli):
    child, launch = running()
    Path(launch.folder, "run.json").unlink()
    listed = run_cli([*KILL]).stdout
    assert launch.launch_id in listed
    assert "ezpz.launch -n 1" in listed
    assert run_cli([sys.executable, "-m", "ezpz", "stacks"]).returncode == 0
    assert run_cli([*KILL, launch.launch_id[:4]]).returncode == 0
    assert child.wait(60) == 143


WATCHER = """
from ezpz.launch.watchers import LauncherSide, Watcher
class Queue(LauncherSide):
    def question(self, word):
        if word == "crash":
            raise ValueError("no")
        self.handle.answer(word, {"word": word, "asked": self.handle.is_asked(word)})
WATCHER = Watcher("queue", "queues", launcher=":Queue", answers=("queue", "crash"ENDS))
"""


def test_a_watcher_answers_words_of_its_own_and_one_that_fails_lets_nobody_wait(running, tmp_path):
    (tmp_path / "queue.py").write_text(WATCHER.replace("ENDS", ""))
    child, launch = running(EZPZ_WATCHERS=str(tmp_path / "queue.py"))
    assert ask(launch, "queue", 20.0) == {"word": "queue", "asked": True}
    for _ in "ab":
        with pytest.raises(MachineError, match=r"nothing answers 'crash' here; expected one of end, kill, stacks"):
            ask(launch, "crash", 20.0)
    assert ask(launch, "end") == {"taken": "end"}
    assert child.wait(60) == 143


def test_a_watcher_cannot_take_a_word_of_another(launch, tmp_path, clean_env):
    for word in ("stacks", "end"):
        (tmp_path / "queue.py").write_text(WATCHER.replace("ENDS", f", {word!r}"))
        done = launch("-n", "1", "true", env={**clean_env, "EZPZ_WATCHERS": str(tmp_path / "queue.py")})
        assert done.returncode == 2
        assert f"another answers {word} already" in done.stderr


# Without a launch.


@pytest.fixture
def asked(tmp_path):
    """`asked()` returns askers that answer nothing by themselves, their address and a way to give them turns."""
    loop = Loop()
    made = []

    def start(answer=lambda *_: None):
        where = str(tmp_path / f"{len(made)}.sock")
        made.append(socket_requests.Askers(loop, answer))
        made[-1].listen(where)

        def turns(seconds=0.2):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                loop.turn(end)

        return made[-1], where, turns

    yield start
    loop.close()


def test_who_waits_is_told_that_the_launch_has_ended(asked):
    some, where, turns = asked()
    waiting, gone = connect(where), connect(where)
    for connection in (waiting, gone):
        connection.sendall(b"stacks n01\n")
    turns()
    gone.close()
    turns()
    assert some.words == {"stacks"}
    some.answer("other", {})
    some.close()
    assert told(waiting) == {"ended": True}


def test_each_word_has_its_own_answer_and_who_does_not_read_holds_nothing_up(asked):
    some, where, turns = asked()
    one, other, deaf = (connect(where) for _ in range(3))
    for connection, word in ((one, b"stacks\n"), (other, b"queue n01\n"), (deaf, b"stacks\n")):
        connection.sendall(word)
    turns()
    begin = time.monotonic()
    some.answer("stacks", {"text": "x" * 3_000_000})
    some.answer("queue", {"text": "y"})
    assert time.monotonic() - begin < 5
    assert told(other) == {"text": "y"}
    one.settimeout(0.05)
    data = b""
    while not data.endswith(b"}\n"):
        turns(0.01)
        data += one.recv(1 << 20)
    assert len(json.loads(data)["text"]) == 3_000_000
    begin = time.monotonic()
    some.close()
    assert time.monotonic() - begin < 5


def test_silence_ends_a_connection_and_too_many_are_refused(asked, monkeypatch):
    monkeypatch.setattr(socket_requests, "_SILENCE", 0.3)
    monkeypatch.setattr(socket_requests, "_MOST", 3)
    some, where, turns = asked()
    silent = [connect(where) for _ in range(3)]
    turns(0.1)
    late = connect(where)
    turns(0.1)
    assert told(late) == {"refused": "3 others ask already"}
    turns(0.5)
    assert [told(each) for each in silent] == [None] * 3
    again = connect(where)
    again.sendall(b"stacks\n")
    turns(0.6)  # longer than silence may last: it has asked
    some.answer("stacks", {"ranks": []})
    assert told(again) == {"ranks": []}
    some.close()


def test_an_address_that_is_too_long_leaves_the_launch_unasked():
    loop = Loop()
    some = socket_requests.Askers(loop, lambda *_: None)
    some.listen("@" + "x" * 200)
    some.close()
    loop.close()
