"""What verbs show on a terminal of 80 columns, a real one: no line is wider, and colours have their meaning."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
from runs_on_disk import write_run

from ezpz.view.terminal.follow import Followed
from ezpz.view.terminal.frame import log_line

COLOR = re.compile(r"\x1b\[[0-9;]*m")


def on_terminal(words, env, folder, columns=80):
    """The exit code, and what a terminal of so many columns gets from `ezpz`."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    child = subprocess.Popen(
        [sys.executable, "-m", "ezpz", *words], cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # EIO: the other end is closed
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    return child.wait(60), b"".join(parts).decode().replace("\r\n", "\n")


@pytest.fixture
def runs(tmp_path):
    names = {f"train/metric_{number}": [1.0, 0.5, 0.25] for number in range(12)}
    write_run(tmp_path / "outputs" / "one", {"loss": [3.0, 2.0, 1.0], **names})
    write_run(
        tmp_path / "outputs" / "two", {"loss": [3.0, 2.5, 2.0]}, state="failed", cause="ValueError: " + "why " * 30
    )
    return tmp_path


LINES = (
    ["where"], ["fetch", "--list", "--folder", "/a/folder/" + "with-a-long-name/" * 8], ["benchmark", "--list"],
    ["sites"], ["runs"], ["watch", "--once", "outputs/one"], ["--help"], [],
)  # fmt: skip


@pytest.mark.slow
def test_no_line_is_wider_than_the_terminal(runs, clean_env, subtests):
    for words in LINES:
        with subtests.test(str(words)):
            code, text = on_terminal(words, {**clean_env, "TERM": "xterm", "EZPZ_A_LONG_NAME": "x"}, runs)
            assert code == 0, text
            lines = COLOR.sub("", text).splitlines()
            assert len(lines) > 4
            assert max(map(len, lines)) <= 80, max(lines, key=len)


@pytest.mark.slow
def test_states_and_verdicts_have_their_colours(runs, clean_env):
    env = {**clean_env, "TERM": "xterm"}
    _, text = on_terminal(["runs"], env, runs)
    assert "\x1b[32mfinished\x1b[0m" in text
    assert "\x1b[31mfailed\x1b[0m" in text
    assert "\x1b[31mValueError: why" in text
    _, plain = on_terminal(["runs"], {**env, "TERM": "dumb"}, runs)
    assert "\x1b" not in plain
    assert COLOR.sub("", text).split()[:6] == plain.split()[:6]
    code, text = on_terminal(["compare", "outputs/one", "outputs/two", "--no-picture"], env, runs)
    assert code == 1
    assert text.startswith("\x1b[1;31mdata differs from step 1\x1b[0m")


def test_a_line_of_a_log_leaves_out_what_was_not_asked_for(runs):
    followed = Followed(runs / "outputs" / "one")
    followed.look()
    wide, narrow = (log_line(followed.live, [], width=width) for width in (0, 80))
    assert len(wide) > 80 >= len(narrow)
    assert "loss=1 " in narrow
    assert re.search(r"\+1\d more", narrow)
    asked = log_line(followed.live, ["metric_*"], width=80)
    assert all(f"metric_{number}=" in asked for number in range(12))
