import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from ezpz.view.terminal.screen import LEAST, PIPED, look, say
from lab.run_folders import environ


@pytest.fixture
def terminal():
    """`terminal(lines, columns)` -> a stream on a pseudo terminal of that size."""
    opened = []

    def make(lines, columns):
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        stream = os.fdopen(follower, "w", encoding="utf-8")
        opened.append((stream, leader))
        return stream

    yield make
    for stream, leader in opened:
        stream.close()
        os.close(leader)


@pytest.fixture
def stdout_file(tmp_path):
    with (tmp_path / "out").open("w", encoding="utf-8") as file:
        yield file


@pytest.fixture(autouse=True)
def _no_size(monkeypatch):
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "LC_ALL", "PYTHONIOENCODING"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_the_users_width_stands_above_columns_above_the_terminal_above_100(terminal, stdout_file, monkeypatch):
    assert look(stdout_file).width == PIPED == 100
    assert look(stdout_file, piped=75).width == 75
    stream = terminal(40, 132)
    assert tuple(look(stream))[:2] == (132, 40)
    monkeypatch.setenv("COLUMNS", "90")
    assert look(stream).width == look(stdout_file).width == 90
    assert look(stream, width=50).width == 50
    monkeypatch.setenv("COLUMNS", "3")
    assert look(stream).width == LEAST
    for odd in ("", "0", "-5", "wide", "²"):
        monkeypatch.setenv("COLUMNS", odd)
        assert look(stream).width == 132


def test_colour_needs_a_terminal_that_has_a_size(terminal, stdout_file, monkeypatch):
    assert tuple(look(terminal(0, 0)))[:2] == (100, 0)
    assert look(terminal(24, 80)).color
    assert not look(stdout_file).color
    monkeypatch.setenv("NO_COLOR", "1")
    assert not look(terminal(24, 80)).color


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "iso8859-15"])
def test_a_stream_that_cannot_encode_blocks_gets_ascii(encoding):
    assert look(io.TextIOWrapper(io.BytesIO(), encoding=encoding)).ascii_only
    assert not look(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")).ascii_only


def test_lc_all_c_means_ascii_although_python_would_write_utf8(stdout_file, monkeypatch):
    monkeypatch.setenv("LC_ALL", "C")
    assert look(stdout_file).ascii_only
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8")
    assert not look(stdout_file).ascii_only


def test_what_cannot_be_encoded_is_replaced_and_a_closed_stream_is_no_reader(tmp_path):
    with (tmp_path / "x").open("w", encoding="ascii") as file:
        assert say(file, "é")
    assert (tmp_path / "x").read_bytes() == b"?\n"
    stream = io.StringIO()
    stream.close()
    assert not say(stream, "x")
    assert not say(None, "x")


SHOW = """
import sys, numpy as np
from pathlib import Path
from ezpz.view import plots
from ezpz.track.series import Series
plots.draw_pictures = lambda *_: []
for _ in range(20):
    plots.draw_all([Series("loss", np.arange(100.0), np.arange(100.0))], Path.cwd(), "2026", show=True)
print("more")
"""


@pytest.mark.slow
def test_a_closed_stdout_does_not_raise(run_python):
    assert run_python(f"import os; os.close(1)\n{SHOW.replace('print', 'str')}").returncode == 0
    assert run_python(f"import sys; sys.stdout = None\n{SHOW}").returncode == 0


@pytest.mark.slow
def test_a_reader_that_left_does_not_change_the_exit_code(tmp_path):
    """`train.py | head -1`: Python would turn the failed flush at its end into exit code 120."""
    read, write = os.pipe()
    os.close(read)
    known = {"stdout": write, "stderr": subprocess.PIPE, "env": environ(tmp_path), "cwd": tmp_path}
    result = subprocess.run([sys.executable, "-c", SHOW], **known, check=False)
    os.close(write)
    assert (result.returncode, result.stderr) == (0, b"")
