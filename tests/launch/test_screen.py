"""What many ranks write, on one screen: real pipes, terminals and full disks."""

import fcntl
import itertools
import os
import pty
import select
import socket
import subprocess
import sys
import threading
import tty
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ezpz.launch.run import terminal
from ezpz.launch.run.terminal import Screen

WARNING = b"a.py:3: UserWarning: this is old\n"
PAIR = WARNING + b"  model = build()\n"


class Files:
    """A screen over two files, for what does not depend on who reads."""

    def __init__(self, tmp_path, world_size=4, **options):
        self.paths = [tmp_path / "out", tmp_path / "err"]
        self.fds = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for path in self.paths]
        self.screen = Screen(world_size, out=self.fds[0], err=self.fds[1], **options)

    def err(self):
        return self.paths[1].read_bytes()

    def out(self):
        return self.paths[0].read_bytes()

    def close(self):
        self.screen.close()
        for fd in self.fds:
            os.close(fd)


@pytest.fixture
def make_files(tmp_path):
    made = []

    def make(*args, **options):
        made.append(Files(tmp_path, *args, **options))
        return made[-1]

    yield make
    for files in made:
        files.close()


@pytest.fixture
def pipe():
    read, write = os.pipe()
    ends = {read, write}

    class Pipe:
        reader, writer = read, write

        def close_reader(self):
            os.close(read)
            ends.discard(read)

    yield Pipe()
    for fd in ends:
        os.close(fd)


def test_each_stream_goes_where_it_belongs(make_files):
    files = make_files()
    files.screen.show(0, 1, b"out\n", 0.0)
    files.screen.show(1, 2, b"err\n", 0.0)
    files.screen.show(None, 2, b"mpiexec's words\n", 0.0)
    files.screen.say("ezpz: ours")
    assert (files.out(), files.err()) == (b"out\n", b"err\nmpiexec's words\nezpz: ours\n")
    assert files.screen.wants() == []


def test_a_line_never_goes_on_with_the_words_of_another(make_files):
    files = make_files()
    for rank, data in [(0, b"half"), (0, b" line"), (1, b"other\n"), (1, b" 10%\r"), (0, b"last")]:
        files.screen.show(rank, 1, data, 0.0)
    assert files.out() == b"half line\nother\n 10%\rlast"
    files.screen.show(2, 2, b"prompt? ", 0.0)
    files.screen.say("ezpz: ours")
    assert files.err() == b"prompt? \nezpz: ours\n"


def test_bytes_of_a_single_rank_are_left_alone(make_files):
    files = make_files(1)
    data = [b"\x00\xff", b"\r\n\r", WARNING, b"a warning", b"end"]
    for piece in data:
        files.screen.show(0, 1, piece, 0.0)
        files.screen.show(0, 2, piece, 0.0)
    files.screen.close()
    assert files.out() == files.err() == b"".join(data)


def test_labels_stand_in_front_of_every_line(make_files):
    files = make_files(12, label=True)
    pieces = (3, b"a\nb\n"), (11, b"half"), (11, b" and\nhalf"), (0, b"x\r"), (0, b"\ny\r\n"), (None, b"m\n")
    for rank, data in pieces:
        files.screen.show(rank, 1, data, 0.0)
    assert files.out() == b"[3]: a\n[3]: b\n[11]: half and\n[11]: half\n[0]: x\r\n[0]: y\r\nm\n"


# Folding


def test_a_warning_of_all_ranks_is_shown_once_and_at_once(make_files):
    files = make_files()
    for rank in (2, 0, 3):
        files.screen.show(rank, 2, PAIR, 0.0)
    assert files.err() == b""
    files.screen.show(1, 2, PAIR, 0.1)
    assert files.err() == b"a.py:3: UserWarning: this is old [4 ranks]\n  model = build()\n"
    assert files.screen.due() is None


def test_a_folded_warning_is_labelled_with_its_ranks(make_files):
    files = make_files(9, label=True)
    for rank in (7, 0, 1, 2, 3):
        files.screen.show(rank, 2, PAIR, 0.0)
    files.screen.tick(0.3)
    assert files.err() == b"[0-3,7]: " + WARNING + b"[0-3,7]:   model = build()\n"


def test_a_warning_of_one_rank_waits_a_moment_and_is_shown_as_it_is(make_files):
    files = make_files()
    files.screen.show(2, 2, b"first\n" + WARNING + b"behind\n", 1.0)
    files.screen.show(2, 1, b"stdout\n", 1.0)
    files.screen.show(1, 2, b"other\n", 1.1)
    assert (files.err(), files.out(), files.screen.due()) == (b"first\nother\n", b"stdout\n", 1.3)
    files.screen.tick(1.3)
    assert files.err() == b"first\nother\n" + WARNING + b"behind\n"
    assert files.screen.due() is None


def test_late_repetitions_are_counted_and_told_once(make_files):
    files = make_files(8)
    files.screen.show(0, 2, WARNING, 0.0)
    files.screen.show(1, 2, WARNING, 0.1)
    files.screen.tick(0.3)
    for rank in (4, 5, 6):
        files.screen.show(rank, 2, b"before\n" + WARNING + b"behind\n", 4.0)
    assert files.err() == b"a.py:3: UserWarning: this is old [2 ranks]\n" + b"before\nbehind\n" * 3
    assert files.screen.due() == 10.3
    files.screen.tick(10.3)
    assert files.err().endswith(b"behind\nezpz: 3 more ranks wrote the same: a.py:3: UserWarning: this is old\n")
    files.screen.show(7, 2, WARNING, 11.0)
    files.screen.close()
    assert files.err().endswith(b"is old\n" + WARNING)


def test_counts_are_told_at_the_end_with_the_first_sixty_characters(make_files):
    files = make_files()
    long = b"\x1b[33mWARNING\x1b[0m " + "ä".encode() * 80 + b"\n"
    files.screen.show(0, 2, long, 0.0)
    files.screen.tick(0.4)
    files.screen.show(1, 2, long, 0.5)
    files.screen.close()
    told = files.err().decode().splitlines()[-1]
    assert told == "ezpz: 1 more rank wrote the same: WARNING " + "ä" * 52 + "…"


def test_a_rank_that_repeats_itself_is_shown_and_those_that_repeat_it_fold(make_files):
    files = make_files()
    for rank in (0, 1, 2, 3):
        files.screen.show(rank, 2, WARNING * 2, 0.0)
    assert files.err() == b"a.py:3: UserWarning: this is old [4 ranks]\n" * 2
    files.screen.show(0, 2, WARNING, 2.0)
    files.screen.tick(2.3)
    assert files.err().endswith(WARNING)


def test_warnings_of_torch_fold_though_their_ranks_and_times_differ(make_files):
    for line in (
        "[rank%d]:[W1121 19:12:49.12345678%d socket.cpp:464] no IPv6",
        "[W1121 19:12:%02d.12345678%d socket.cpp:464] no IPv6",
        "[rank%d]:W1121 19:12:49.123000 471%d torch/_inductor/utils.py:1137] [0/0] few cores",
    ):
        files = make_files(3)
        for rank in range(3):
            files.screen.show(rank, 2, f"{line % (rank, rank)}\n".encode(), 0.0)
        assert files.err() == f"{line % (0, 0)} [3 ranks]\n".encode()


def test_the_end_of_a_line_that_is_on_the_screen_does_not_fold(make_files):
    files = make_files(2)
    files.screen.show(0, 2, b"loading ", 0.0)
    files.screen.show(0, 2, b"warn.py\n", 0.1)
    assert files.err() == b"loading warn.py\n"


def test_our_own_words_come_behind_what_was_shown_before(make_files):
    files = make_files()
    files.screen.show(0, 2, WARNING, 0.0)
    files.screen.say("ezpz: rank 0 exited with code 3")
    assert files.err() == WARNING + b"ezpz: rank 0 exited with code 3\n"


def test_what_is_remembered_of_warnings_is_bounded(make_files):
    files = make_files(2)
    for number in range(1000):
        files.screen.show(0, 2, b"warning %d\n" % number, 0.0)
    files.screen.show(0, 2, b"warning " + b"x" * 5000 + b"\n", 0.0)
    files.screen.show(0, 2, b"y" * (2 << 20) + b"\n", 0.0)
    assert files.screen.full
    files.screen.tick(0.3)
    assert not files.screen.full
    assert files.err().count(b"warning") == 1001
    for number in range(1000):  # those that are forgotten are shown again
        files.screen.show(1, 2, b"warning %d\n" % number, 1.5)
    shown_again = files.err().count(b"warning") - 1001
    files.screen.tick(20.0)
    assert files.err().count(b"1 more rank wrote the same: warning") == 1000 - shown_again
    assert 0 < 1000 - shown_again <= 256


# Who reads


def write_what_can_be(terminal):
    for fd in terminal.wants():
        if select.select([], [fd], [], 0)[1]:
            terminal.write(fd)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1, 2]), st.integers(1, 9000), st.booleans())), st.booleans()
)
def test_lines_of_ranks_never_mix_and_nothing_is_lost(pieces, label):
    """Both streams share one pipe, as with `2>&1`; every piece is one line of its own letter."""
    read, write = os.pipe()
    err = os.dup(write)
    terminal = Screen(4, label=label, out=write, err=err)
    got = []
    reader = threading.Thread(target=lambda: got.extend(iter(lambda: os.read(read, 65536), b"")))
    reader.start()
    sent = dict.fromkeys(itertools.product(range(4), (1, 2)), b"")
    for rank, stream, size, whole in pieces:
        letter = b"abcdefgh"[rank * 2 + stream - 1 :][:1]
        sent[rank, stream] += letter * size
        terminal.show(rank, stream, letter * size + b"\n" * whole, 0.0)
        write_what_can_be(terminal)
    terminal.close()
    os.close(err)
    os.close(write)
    reader.join(200)
    os.close(read)
    for line in b"".join(got).split(b"\n"):
        label_of, _, rest = line.rpartition(b": ")
        assert len(set(rest)) <= 1
        assert not label or not rest or label_of == b"[%d]" % (b"abcdefgh".index(rest[:1]) // 2)
    for (rank, stream), data in sent.items():
        assert b"".join(got).count(b"abcdefgh"[rank * 2 + stream - 1 :][:1]) == len(data)


@pytest.fixture(params=["a second way", "small pieces"])
def way(request, monkeypatch):
    """How a screen writes without waiting: on a way of its own, or where the system has none."""
    if request.param == "small pieces":
        opened = os.open

        def refuse(path, *more, **options):
            if str(path).startswith("/proc/self/fd/"):
                raise PermissionError(path)
            return opened(path, *more, **options)

        monkeypatch.setattr(os, "open", refuse)


@pytest.mark.usefixtures("way")
def test_a_reader_that_reads_nothing_holds_nobody_up(pipe, make_files):
    terminal = Screen(2, out=pipe.writer, err=make_files().fds[1])
    total = 0
    while not terminal.full:
        terminal.show(0, 1, b"x" * 9999 + b"\n", 0.0)
        total += 10000
        while terminal.wants() and select.select([], terminal.wants(), [], 0)[1]:
            terminal.write(pipe.writer)
    assert terminal.wants() == [pipe.writer]
    assert os.get_blocking(pipe.writer)
    with ThreadPoolExecutor() as pool:
        got = pool.submit(pipe_read, pipe.reader, total)
        terminal.close()
    assert got.result() == (b"x" * 9999 + b"\n") * (total // 10000)
    assert (terminal.full, terminal.wants()) == (False, [])


def pipe_read(fd, total):
    data = b""
    while len(data) < total:
        data += os.read(fd, 1 << 16)
    return data


def test_a_reader_that_has_gone_ends_one_stream_and_not_the_job(pipe, make_files):
    files = make_files()
    terminal = Screen(2, out=pipe.writer, err=files.fds[1])
    terminal.show(0, 1, b"one\n", 0.0)
    pipe.close_reader()
    terminal.write(pipe.writer)
    assert terminal.lost == {pipe.writer: "Broken pipe"}
    terminal.show(0, 1, b"two\n" * 1000000, 0.0)
    terminal.show(0, 2, b"err\n", 0.0)
    assert (terminal.wants(), terminal.full, files.err()) == ([], False, b"err\n")
    terminal.close()


def test_a_full_disk_ends_one_stream_and_not_the_job(make_files):
    files = make_files()
    full = os.open("/dev/full", os.O_WRONLY)
    terminal = Screen(2, out=full, err=files.fds[1])
    terminal.show(0, 1, b"one\n", 0.0)
    terminal.say("ezpz: ours")
    terminal.close()
    os.close(full)
    assert terminal.lost == {full: "No space left on device"}
    assert files.err() == b"ezpz: ours\n"


def test_a_closed_descriptor_and_the_null_device_are_nobody():
    null, closed = os.open(os.devnull, os.O_WRONLY), os.open(os.devnull, os.O_WRONLY)
    os.close(closed)
    terminal = Screen(2, out=null, err=closed)
    terminal.show(0, 1, b"one\n", 0.0)
    terminal.show(0, 2, b"one\n", 0.0)
    assert (terminal.wants(), terminal.lost) == ([], {closed: "Bad file descriptor"})
    terminal.close()
    os.close(null)


@pytest.mark.usefixtures("way")
def test_many_short_pieces_and_one_large_one_arrive_in_order(pipe):
    terminal = Screen(2, out=pipe.writer, err=pipe.writer)
    pieces = [b"%d\n" % number for number in range(3000)] + [b"x" * 30000 + b"\n"] + [b"y\n"] * 10
    for piece in pieces:
        terminal.show(0, 1, piece, 0.0)
    with ThreadPoolExecutor() as pool:
        got = pool.submit(pipe_read, pipe.reader, len(b"".join(pieces)))
        while terminal.wants():
            select.select([], terminal.wants(), [])
            terminal.write(pipe.writer)
    assert got.result() == b"".join(pieces)


def test_somebody_elses_non_blocking_pipe_loses_nothing(pipe):
    os.set_blocking(pipe.writer, False)
    terminal = Screen(2, out=pipe.writer, err=pipe.writer)
    terminal.show(0, 1, b"x" * 300000, 0.0)
    with ThreadPoolExecutor() as pool:
        got = pool.submit(pipe_read, pipe.reader, 300000)
        terminal.close()
    assert got.result() == b"x" * 300000


def writes():
    """How many writes this process has asked the kernel for."""
    return int(Path("/proc/self/io").read_text().partition("syscw: ")[2].split()[0])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="no /proc")
def test_large_output_takes_few_writes(pipe, make_files):
    terminal = Screen(2, out=pipe.writer, err=make_files().fds[1])
    line, got, before = b"x" * 99 + b"\n", 0, writes()
    for number in range(128):
        terminal.show(number % 2, 1, line * 655, 0.0)
        terminal.push()
        while select.select([pipe.reader], [], [], 0)[0]:
            got += len(os.read(pipe.reader, 1 << 20))
            terminal.push()
    assert got == 128 * 65500
    assert writes() - before <= 3 * 128


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's")
def test_a_pipe_that_was_full_is_made_larger_and_no_other(pipe, make_files):
    usual = fcntl.fcntl(pipe.writer, fcntl.F_GETPIPE_SZ)
    read, write = os.pipe()
    try:
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 20)
    except OSError as error:
        pytest.skip(f"this user may not have larger pipes: {error}")
    finally:
        os.close(read)
        os.close(write)
    terminal = Screen(2, out=pipe.writer, err=make_files().fds[1])
    sizes = []
    for size in (1000, 2 * usual):
        terminal.show(0, 1, b"x" * size + b"\n", 0.0)
        terminal.push()
        sizes.append(fcntl.fcntl(pipe.writer, fcntl.F_GETPIPE_SZ))
    assert sizes == [usual, max(usual, 1 << 20)]


def test_a_socket_whose_reader_sleeps_holds_nobody_up():
    """As of `ssh HOST launch …`, whose server reads a socket."""
    reader, writer = socket.socketpair()
    terminal = Screen(2, out=writer.fileno(), err=writer.fileno())
    while not terminal.full:
        terminal.show(0, 1, b"x" * 9999 + b"\n", 0.0)
        terminal.push()
    assert terminal.wants() == [writer.fileno()]
    assert os.get_blocking(writer.fileno())
    with ThreadPoolExecutor() as pool:
        got = pool.submit(lambda: b"".join(iter(lambda: reader.recv(1 << 16), b"")))
        terminal.close()
        writer.close()
    reader.close()
    assert set(got.result().split(b"\n")) == {b"x" * 9999, b""}
    assert terminal.lost == {}


@pytest.mark.usefixtures("way")
def test_a_terminal_that_stands_still_holds_nobody_up():
    master, slave = pty.openpty()
    tty.setraw(slave)
    err = os.dup(slave)
    terminal = Screen(2, out=slave, err=err)
    for number in range(200):
        terminal.show(number % 2, 1 + number % 2, b"%d" % (number % 2) * 999 + b"\n", 0.0)
        write_what_can_be(terminal)
    assert terminal.wants() == [slave]
    assert os.get_blocking(slave)
    data = b""
    while len(data) < 200000:
        if select.select([master], [], [], 0)[0]:
            data += os.read(master, 65536)
        write_what_can_be(terminal)
    assert data == (b"0" * 999 + b"\n" + b"1" * 999 + b"\n") * 100
    os.close(err)
    os.close(slave)
    os.close(master)


def test_both_streams_on_one_terminal_share_its_lines():
    master, slave = pty.openpty()
    tty.setraw(slave)
    err = os.dup(slave)
    terminal = Screen(2, out=slave, err=err)
    terminal.show(0, 1, b"step 3 ", 0.0)
    terminal.show(1, 2, b"oh\n", 0.0)
    terminal.say("ezpz: ours")
    terminal.close()
    assert os.read(master, 100) == b"step 3 \noh\nezpz: ours\n"
    os.close(master)
    terminal.show(0, 1, b"nobody sees this\n", 0.0)
    terminal.close()
    assert terminal.lost == {slave: "Input/output error", err: "Input/output error"}
    os.close(err)
    os.close(slave)


BURST = """
import os, select, sys, time
from ezpz.launch.run.terminal import Screen
screen = Screen(4, out=1, err=2)
line = b"x" * 79 + b"\\n"
for number in range(100):
    screen.show(number % 4, 1, line * 800, 0.0)
    while screen.full:
        select.select([], [1], [])
        screen.write(1)
screen.close()
"""


@pytest.mark.slow
def test_large_output_passes_through_a_pipe_untouched(clean_env):
    env = {**clean_env, "PYTHONPATH": str(Path(terminal.__file__).parents[3])}
    process = subprocess.run([sys.executable, "-c", BURST], env=env, capture_output=True, check=True, timeout=250)
    assert process.stdout == (b"x" * 79 + b"\n") * 800 * 100


@pytest.mark.slow
@pytest.mark.parametrize("streams", ["2>/dev/full", "2>&-", ">&- 2>&-", "<&- >&- 2>&-", "<&- 2>&-"])
def test_streams_that_are_full_or_closed_change_no_exit_code(launch, streams):
    line = ["bash", "-c", f'exec "$@" {streams}', "bash", sys.executable, "-m", "ezpz.launch"]
    done = launch("-n", "2", "bash", "-c", "echo hi; exit 3", line=line)
    assert done.returncode == 3
    assert done.stdout == ("" if streams.startswith((">&-", "<&- >&-")) else "hi\nhi\n")
