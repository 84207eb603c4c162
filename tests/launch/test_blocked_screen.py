"""Nobody reads what `launch` writes, for a while or ever: nothing is lost, and nothing false is said."""

import errno
import os
import pty
import signal
import socket
import subprocess
import sys
import time
import tty

import pytest

from ezpz.launch.host.connection import keep_alive

MANY = "yes 0123456789012345678901234567890123456789 | head -n 70000"


@pytest.fixture
def start(start_launch):
    """Start a launch whose stdout nobody reads yet; `job.reader` is its other end."""
    readers = []

    def run(*words):
        reader, writer = os.pipe()
        job = start_launch("-n", 2, *words, stdout=writer)
        os.close(writer)
        readers.append(reader)
        job.reader = reader
        return job

    yield run
    for reader in readers:
        os.close(reader)


def drain(fd):
    """Read to the end, and count the bytes but for newlines: a line that waits long is shown in two."""
    size = 0
    while data := os.read(fd, 1 << 20):
        size += len(data) - data.count(b"\n")
    return size


@pytest.mark.slow
def test_a_failure_meanwhile_is_told_and_nothing_false(start):
    job = start("sh", "-c", f"if [ $RANK = 1 ]; then sleep 1; exit 3; fi; {MANY}; exec sleep 60")
    time.sleep(14)  # SIGTERM after a second, and more than the 8 s for hosts to say that all is over
    size = drain(job.reader)
    errors = job.communicate(timeout=60)[1]
    assert job.returncode == 3, errors
    assert "did not report" not in errors
    assert size > 1 << 20


@pytest.mark.slow
def test_what_was_written_comes_whole_however_late(start):
    job = start("sh", "-c", MANY)
    time.sleep(4)
    assert drain(job.reader) == 2 * 70000 * 40
    assert job.wait(60) == 0


COUNT = """
import os, sys
for number in range(20000):
    line = f"{os.environ['RANK']} %s {number} {'x' * (number % 90)} end\\n"
    sys.stdout.write(line % 1)
    if number % 4 == 0:
        sys.stderr.write(line % 2)
"""


@pytest.fixture(params=["pipe", "non-blocking pipe", "non-blocking terminal", "socket"])
def ends(request):
    """Where a launch writes both its streams, and where that is read."""
    if "terminal" in request.param:
        reader, writer = pty.openpty()
        tty.setraw(writer)
    elif request.param == "socket":
        sockets = socket.socketpair()
        reader, writer = (one.detach() for one in sockets)
    else:
        reader, writer = os.pipe()
    os.set_blocking(writer, "non-blocking" not in request.param)
    yield reader, writer
    os.close(reader)


@pytest.mark.slow
def test_lines_are_whole_and_in_order_for_a_reader_that_reads_slowly_and_odd_numbers_of_bytes(ends, start_launch):
    reader, writer = ends
    job = start_launch("-n", 2, sys.executable, "-c", COUNT, stdout=writer, stderr=writer)
    os.close(writer)
    data, reads = b"", 0
    while part := read_or_end(reader, 7919):
        data += part
        reads += 1
        if reads % 50 == 0:
            time.sleep(0.01)
    assert job.wait(60) == 0
    lines = [line.split() for line in data.decode().splitlines() if not line.startswith("ezpz: ")]
    for rank, stream, step in (("0", "1", 1), ("0", "2", 4), ("1", "1", 1), ("1", "2", 4)):
        mine = [line for line in lines if line[:2] == [rank, stream]]
        expected = (f"{number} {'x' * (number % 90)} end".split() for number in range(0, 20000, step))
        assert [line[2:] for line in mine] == list(expected)
    assert len(lines) == 2 * 25000


def read_or_end(fd, size):
    """Return what can be read; of a terminal whose other side is closed, nothing."""
    try:
        return os.read(fd, size)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""


@pytest.mark.slow
@pytest.mark.parametrize("stream", [1, 2])
def test_a_reader_that_has_seen_enough_ends_nothing_but_its_stream(start_launch, tmp_path, stream):
    """As `launch … | head -n 1`: the ranks, whose own pipes live on, do their work, and the code is theirs."""
    rank = f"{MANY} >&{stream}; echo done > done.$RANK; exit 7"
    job = start_launch("-n", 1, "sh", "-c", rank)
    pipe = (job.stdout, job.stderr)[stream - 1]
    pipe.readline()
    pipe.close()
    rest = (job.stderr, job.stdout)[stream - 1].read()
    assert job.wait(60) == 7, rest
    assert (tmp_path / "done.0").exists()
    assert "Traceback" not in rest


@pytest.mark.slow
def test_ctrl_c_again_and_again_ends_it(start):
    job = start("sh", "-c", "exec yes")
    time.sleep(1)
    for _ in range(10):
        job.send_signal(signal.SIGINT)
        try:
            job.wait(0.5)
            break
        except subprocess.TimeoutExpired:
            pass
    errors = job.communicate(timeout=60)[1]
    assert job.returncode in {-signal.SIGINT, 130}
    assert "did not report" not in errors


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux's")
def test_only_messages_must_be_read_in_time():
    for may_wait, milliseconds in ((False, 25000), (True, 0)):
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as mine:
            keep_alive(mine, may_wait=may_wait)
            assert mine.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == milliseconds
            assert mine.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
