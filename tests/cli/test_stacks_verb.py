"""`ezpz stacks`, against a real socket that stands in for a launcher's."""

import contextlib
import json
import os
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

import ezpz
from ezpz import register
from ezpz.errors import MachineError
from ezpz.launch import record
from ezpz.launch.ask_launch import ask

pytestmark = pytest.mark.timeout(60)

STACKS = [sys.executable, "-m", "ezpz", "stacks"]
ANSWER = {
    "summary": "7 of 8 ranks wait in all_reduce; rank 3 on n02 is in load (data.py:12)",
    "ranks": [
        {"rank": 3, "host": "n02", "pid": 4711, "where": "load (data.py:12)", "frames": [["load", "data.py", 12]]},
        {"rank": 4, "host": "n02", "pid": 4712, "where": "unknown", "frames": []},
    ],
}


@pytest.fixture
def env(clean_env, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("HOME", clean_env["HOME"])
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    return {**clean_env, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(ezpz.__file__).parents[1])}


@pytest.fixture
def stacks(run_cli, env):
    return lambda *args: run_cli([*STACKS, *args], env)


@pytest.fixture
def answering():
    """`answering(path, chunks)` answers one question on a socket, chunk by chunk, and returns what was asked."""
    servers = []

    def start(address, chunks, pause=0.0):
        server = socket.socket(socket.AF_UNIX)
        server.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        server.listen()
        asked = []

        def serve():
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                asked.append(connection.recv(100))
                for chunk in chunks:
                    connection.sendall(chunk)
                    time.sleep(pause)

        threading.Thread(target=serve, daemon=True).start()
        servers.append(server)
        return asked

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def enter(env):
    """`enter(id, socket)` records this process as a launcher."""

    def add(launch, address, **more):
        folder, _ = record.launch_folder("", launch, time.time())
        fields = {"launch_id": launch, "state": "running", "host": os.uname().nodename, "command": ["true"]}
        plan = {"world_size": 8, "hosts": []}
        record.write(
            folder, {**fields, "started": time.time(), "launcher": register.launcher(address), "plan": plan, **more}
        )

    return add


@pytest.fixture
def address_of():
    """`address_of(name)` is the path of a socket as that of a launch is called; one in `tmp_path` may be too long."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield lambda name: f"{folder}/launch-{name}.sock"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_the_summary_is_one_line_and_more_on_request(stacks, answering, enter, kind, address_of):
    if kind == "abstract" and sys.platform != "linux":
        pytest.skip("abstract sockets are Linux's")
    text = json.dumps(ANSWER).encode()
    for words in ((), ("-v",), ("--json", "5f3a")):
        name = f"{os.getpid()}-{len(words)}{'x' * ('-v' in words)}"
        address = f"@ezpz-launch-{name}" if kind == "abstract" else address_of(name)
        enter("5f3a90c2", address)
        asked = answering(address, [text[:20], text[20:]], 0.1)
        done = stacks(*words)
        assert (done.returncode, done.stderr, asked) == (0, "", [f"stacks {os.uname().nodename}\n".encode()])
        if not words:
            assert done.stdout == ANSWER["summary"] + "\n"
        elif words == ("-v",):
            assert done.stdout.splitlines()[2:4] == [
                "rank 3 on n02 (pid 4711): load (data.py:12)",
                '  File "data.py", line 12, in load',
            ]
        else:
            assert json.loads(done.stdout) == ANSWER


@pytest.mark.slow
def test_no_launch_several_and_an_unknown_one_are_errors_that_list_what_runs(stacks, enter):
    done = stacks()
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "no launch of yours runs on" in done.stderr
    enter("5f3a90c2", "@ezpz-launch-none")
    enter("5f3a77aa", "@ezpz-launch-none")
    for words, said in [((), "2 launches of yours run"), (("beef",), "no run or launch 'beef'")]:
        done = stacks(*words)
        assert done.returncode == 2
        assert said in done.stderr
        assert done.stderr.count("5f3a90c2") == done.stderr.count("5f3a77aa") == 1
    assert "means 2 launches" in stacks("5f3a").stderr
    for words, said in [(("5f3a", "90c2"), "unknown word '90c2'"), (("--verbsoe",), "Did you mean --verbose?")]:
        done = stacks(*words)
        assert (done.returncode, said in done.stderr) == (2, True)


@pytest.mark.slow
def test_a_launcher_that_is_gone_or_talks_nonsense_is_a_machine_error(stacks, answering, enter, address_of):
    enter("5f3a90c2", address_of("nobody"))
    done = stacks()
    assert (done.returncode, len(done.stderr.splitlines())) == (125, 1)
    assert f"launch 5f3a90c2 on {os.uname().nodename}, pid {os.getpid()}: nothing answers at its socket" in done.stderr
    for name, text, said in [
        ("a", b"", "no JSON"),
        ("b", b"[]", "no JSON object"),
        ("d", b"{}", "without ranks"),
        ("c", b"\xff{", "no JSON"),
    ]:
        enter("5f3a90c2", address_of(name))
        answering(address_of(name), [text])
        done = stacks("5f3a")
        assert (done.returncode, said in done.stderr) == (125, True), done.stderr


@pytest.mark.parametrize("pause", [200.0, 0.1])
def test_a_launcher_that_does_not_come_to_an_end_is_given_up(answering, pause, address_of):
    address = address_of("slow")
    answering(address, [b" "] * 2000, pause)
    begin = time.monotonic()
    launch = register.Launch("5f3a", pid=os.getpid(), socket=address, is_here=True)
    with pytest.raises(MachineError, match=r"has not answered within 1 s.*; expected where its ranks are"):
        ask(launch, "stacks", 1.0)
    assert time.monotonic() - begin < 100  # of 200
