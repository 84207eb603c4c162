"""Rank 0's stdin on every flavour: any size, any bytes, its end, and no faster than the rank reads."""

import functools
import hashlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab import process as lab

# What each rank has read, in all.
DIGEST = "import hashlib, os, sys; print(os.environ['RANK'], hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"


@pytest.fixture
def piped(start_launch):
    """`piped(args, env)` starts a launch whose stdin, stdout and stderr are pipes of bytes."""
    return functools.partial(start_launch, text=False, stdin=subprocess.PIPE)


@pytest.fixture(params=["clean_env", pytest.param("mpich", marks=pytest.mark.lab)], ids=["local", "mpich"])
def env(request):
    """The environment of both ways: rank 0 inherits the launcher's stdin, or gets what the launcher reads."""
    return request.getfixturevalue(request.param)


def taken(descriptor, enough):
    """How many bytes a pipe's other side takes before it takes no more for half a second; `enough` at most."""
    os.set_blocking(descriptor, False)
    count = 0
    while count < enough and select.select([], [descriptor], [], 0.5)[1]:
        count += os.write(descriptor, bytes(1 << 16))
    return count


def is_broken(descriptor):
    try:
        taken(descriptor, 1 << 20)
    except BrokenPipeError:
        return True
    return False


def test_every_byte_and_the_end_arrive(flavour, piped, tmp_path):
    data = os.urandom(3 << 20)
    (tmp_path / "data").write_bytes(data)
    told = [f"{rank} {hashlib.sha256(read).hexdigest()}" for rank, read in enumerate((data, b""))]
    out, err = piped("-n", "2", sys.executable, "-c", DIGEST, env=flavour.env()).communicate(data, timeout=60)
    assert sorted(out.decode().splitlines()) == told, err
    with (tmp_path / "data").open("rb") as file:
        file.seek(1000)
        run = piped("-n", "1", sys.executable, "-c", DIGEST, env=flavour.env(), stdin=file)
        out, err = run.communicate(timeout=60)
    assert out.decode().split() == ["0", hashlib.sha256(data[1000:]).hexdigest()], err


@pytest.mark.slow
def test_a_line_arrives_before_the_next_is_written(env, piped):
    run = piped("-n", "2", "bash", "-c", 'while read word; do echo "got $word"; done', env=env)
    for word in (b"one", b"two"):
        run.stdin.write(word + b"\n")
        run.stdin.flush()
        assert run.stdout.readline() == b"got " + word + b"\n"
    out, err = run.communicate(timeout=60)
    assert (run.returncode, out) == (0, b""), err


@pytest.mark.slow
def test_what_rank_0_does_not_read_waits_outside_and_ends_nothing(env, piped):
    run = piped("-n", "2", "bash", "-c", 'echo up; if [ "$RANK" = 0 ]; then sleep 2; fi', env=env)
    assert [run.stdout.readline() for _ in range(2)] == [b"up\n"] * 2
    assert taken(run.stdin.fileno(), 64 << 20) < 16 << 20  # what sockets and pipes hold
    out, err = run.communicate(timeout=60)
    assert (run.returncode, out) == (0, b""), err


@pytest.mark.slow
@pytest.mark.parametrize("leaves", ["exit 0", "exec <&-; echo closed; sleep 600"])
def test_who_writes_to_rank_0_notices_that_it_reads_no_more(env, piped, leaves):
    """Although another rank runs on."""
    script = f'if [ "$RANK" = 0 ]; then read word; echo "$word"; {leaves}; else sleep 600; fi'
    run = piped("-n", "2", "bash", "-c", script, env=env)
    run.stdin.write(b"word\n")
    run.stdin.flush()
    assert run.stdout.readline() == b"word\n"
    lab.wait_until(lambda: is_broken(run.stdin.fileno()), 20, "the end of the pipe")
    run.send_signal(signal.SIGTERM)
    run.stdin = None
    run.communicate(timeout=60)
    assert run.returncode == 143


@pytest.mark.slow
def test_a_reader_that_has_had_enough_ends_the_run(env, piped):
    """As in `yes | launch head`: neither does SIGPIPE kill the launcher, nor does it wait for the end of the input."""
    endless = subprocess.Popen(["yes"], stdout=subprocess.PIPE)
    run = piped("-n", "1", "head", "-n", "1", env=env, stdin=endless.stdout)
    endless.stdout.close()
    out, err = run.communicate(timeout=60)
    assert (run.returncode, out) == (0, b"y\n"), err
    assert endless.wait(60) == -signal.SIGPIPE


@pytest.mark.slow
def test_a_failure_while_input_flows_is_the_launchs_own(env, piped):
    script = 'if [ "$RANK" = 0 ]; then exec cat >/dev/null; else sleep 1; exit 3; fi'
    with Path("/dev/zero").open("rb") as zeros:
        run = piped("-n", "2", "bash", "-c", script, env=env, stdin=zeros)
        _, err = run.communicate(timeout=60)
    assert run.returncode == 3, err


@pytest.mark.slow
def test_output_that_nobody_reads_and_input_that_nobody_reads_do_not_wait_for_each_other(env, piped):
    run = piped("-n", "1", "cat", env=env)
    written = taken(run.stdin.fileno(), 64 << 20)
    assert written < 32 << 20
    os.set_blocking(run.stdin.fileno(), True)
    out, err = run.communicate(b"end", timeout=60)
    assert (run.returncode, len(out)) == (0, written + 3), err


@pytest.mark.lab
def test_stdin_that_cannot_be_read_is_told(mpich, piped, tmp_path):
    with (tmp_path / "written").open("wb") as file:
        out, err = piped("-n", "1", sys.executable, "-c", DIGEST, env=mpich, stdin=file).communicate(timeout=60)
    assert out.decode().split() == ["0", hashlib.sha256(b"").hexdigest()]
    assert b"ezpz: note: stdin cannot be read: Bad file descriptor; rank 0 gets the end of its input\n" in err


@pytest.mark.lab
def test_two_launches_that_share_a_pipe_share_its_bytes(mpich, piped):
    """Neither waits in a `read` for what the other took."""
    read, write = os.pipe()
    runs = [piped("-n", "1", "cat", env=mpich, stdin=read) for _ in range(2)]
    os.close(read)
    for _ in range(200):
        os.write(write, b"x")
        time.sleep(0.005)
    for run in runs:  # each still hears
        run.send_signal(signal.SIGTERM)
    assert [run.wait(60) for run in runs] == [143, 143]
    os.close(write)


@pytest.mark.slow
@pytest.mark.lab
def test_memory_does_not_grow_with_the_input(mpich, piped, survivors):
    run = piped("-n", "1", "bash", "-c", "wc -c; echo done; sleep 600", env=mpich)
    block = bytes(1 << 20)
    for _ in range(300):
        run.stdin.write(block)
    run.stdin.close()
    assert [run.stdout.readline() for _ in range(2)] == [b"%d\n" % (300 << 20), b"done\n"]
    agent = next(int(pid) for pid in survivors() if Path(f"/proc/{pid}/comm").read_text() == "ezpz-agent\n")
    for pid in (run.pid, agent):
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
        assert peak < 64 << 10  # KiB
