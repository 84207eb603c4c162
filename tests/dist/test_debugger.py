"""`ezpz.breakpoint` at a real terminal (a pty), alone and with another rank that waits."""

import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time

import pytest

import ezpz
from ezpz.dist import debugger
from ezpz.errors import UsageError

ALONE = """
import ezpz
def step(loss):
    ezpz.breakpoint()
    return loss * 2
print("result", step(21))
"""
TOGETHER = """
import sys, ezpz
rank = ezpz.setup_torch()
for loss in (20, 30):
    if rank == 0 or sys.argv[1] == "all":
        ezpz.breakpoint(0)
    print(f"<{loss} passed by {rank}>", flush=True)
ezpz.cleanup()
"""


class Terminal:
    """A program with a terminal of its own that controls it; `line` is run by sh."""

    def __init__(self, line, env, cwd):
        self.text = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.execve("/bin/sh", ["sh", "-c", f"exec {line}"], env)

    def read_until(self, text, seconds=60):
        end = time.monotonic() + seconds
        while text not in self.text and time.monotonic() < end:
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self.fd, 4096).decode(errors="replace")
                except OSError:  # the program has ended
                    break
        assert text in self.text, self.text

    def type(self, line):
        self.text = ""
        os.write(self.fd, line.encode() + b"\n")

    def end(self):
        """Wait for the program's end, at most ten seconds."""
        for _ in range(100):
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                break
            time.sleep(0.1)
        else:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            pytest.fail(f"still running: {self.text}")
        os.close(self.fd)


@pytest.mark.parametrize("redirect", ["", "< /dev/null"])
def test_it_stops_at_the_callers_line_and_reads_from_the_terminal(tmp_path, clean_env, redirect):
    (tmp_path / "train.py").write_text(ALONE)
    terminal = Terminal(f"{sys.executable} train.py {redirect}", clean_env, tmp_path)
    terminal.read_until("(ezpz pdb)")
    # From Python 3.13 on pdb stops at the line of the call itself.
    assert "-> return loss * 2" in terminal.text or "-> ezpz.breakpoint()" in terminal.text
    terminal.type("loss = 4")
    terminal.read_until("(ezpz pdb)")
    terminal.type("c")
    terminal.read_until("result 8")
    terminal.end()


def ranks(tmp_path, clean_env, who):
    """Start rank 1 as a plain process and rank 0 at a terminal."""
    (tmp_path / "train.py").write_text(TOGETHER)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env = [{**clean_env, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in (0, 1)]
    with (tmp_path / "out").open("w") as out:
        other = subprocess.Popen([sys.executable, "train.py", who], env=env[1], cwd=tmp_path, stdout=out, stderr=out)
    return Terminal(f"{sys.executable} train.py {who}", env[0], tmp_path), other


@pytest.mark.slow
def test_the_other_rank_waits_each_time_until_the_debugged_one_goes_on(tmp_path, clean_env):
    terminal, other = ranks(tmp_path, clean_env, "all")
    try:
        for loss in (20, 30):
            terminal.read_until("(ezpz pdb)")
            time.sleep(0.5)  # time in which the other could pass
            assert f"<{loss} passed by 1>" not in (tmp_path / "out").read_text()
            terminal.type("c")
            terminal.read_until(f"<{loss} passed by 0>")
        assert other.wait(30) == 0
        assert "<30 passed by 1>" in (tmp_path / "out").read_text()
        terminal.end()
    finally:
        other.kill()
        other.wait()


@pytest.mark.slow
def test_a_breakpoint_that_one_rank_alone_reaches_waits_for_nobody(tmp_path, clean_env):
    terminal, other = ranks(tmp_path, clean_env, "one")
    try:
        for loss in (20, 30):
            terminal.read_until("(ezpz pdb)")
            terminal.type("c")
            terminal.read_until(f"<{loss} passed by 0>")
        assert other.wait(30) == 0
        terminal.end()
    finally:
        other.kill()
        other.wait()


def test_a_rank_without_a_terminal_says_how_to_debug(run_cli, tmp_path):
    (tmp_path / "train.py").write_text(ALONE)
    done = run_cli([sys.executable, "-m", "ezpz.launch", "-n", "2", sys.executable, "train.py"])
    assert done.returncode == 1
    assert "rank 0 cannot be debugged: its stdin is no terminal" in done.stdout + done.stderr
    assert "`launch -n 1 python3 train.py`" in done.stdout + done.stderr


def test_launch_with_one_rank_passes_the_terminal_on(tmp_path, clean_env):
    (tmp_path / "train.py").write_text(ALONE)
    terminal = Terminal(f"{sys.executable} -m ezpz.launch -n 1 {sys.executable} train.py", clean_env, tmp_path)
    terminal.read_until("(ezpz pdb)")
    terminal.type("c")
    terminal.read_until("result 42")
    terminal.end()


def test_a_rank_that_is_not_in_the_world_is_refused():
    with pytest.raises(UsageError, match=r"no rank 4 to debug .* expected 0 to 0"):
        ezpz.breakpoint(4)


def test_without_a_group_the_others_go_on_and_say_so(monkeypatch, capsys):
    for name, value in (("RANK", 1), ("WORLD_SIZE", 2), ("LOCAL_RANK", 1), ("LOCAL_WORLD_SIZE", 2)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(debugger, "_store", lambda: None)
    ezpz.breakpoint(0)
    assert "without a process group this rank does not wait" in capsys.readouterr().out
