"""The live line of `launch`: drawn on a terminal alone, taken away before anything else, and gone at the end."""

import fcntl
import os
import re
import struct
import sys
import termios

import pytest

from ezpz.launch.run.terminal import Screen
from ezpz.live_line import LiveLine, is_utf8, may_draw
from lab.terminal import open_terminal, shown_by

ERASE = "\r\x1b[K"
UTF8 = {"LANG": "en_US.UTF-8", "TERM": "xterm"}


@pytest.fixture
def terminal():
    """A terminal of 80 columns: the descriptor of its screen, and one to write to it; newlines stay as they are."""
    with open_terminal(80, 24) as descriptors:
        yield descriptors


def texts(fd, environ, *reports, total=100):
    line = LiveLine(environ, fd)
    return [line.text(done, total, now) for now, done in reports]


def test_it_says_how_far_the_run_is_and_how_long_it_takes(terminal):
    first, second, last = texts(terminal[1], UTF8, (0.0, 10), (1.0, 20), (9.0, 100))
    assert first == "step 10/100 [██                  ] 10 %"
    assert second == "step 20/100 [████                ] 20 %, 10 steps/s, 8 s left"
    assert last == "step 100/100 [████████████████████] 100 %, 10 steps/s"
    *_, slow = texts(terminal[1], UTF8, (0.0, 1), (100.0, 2), total=100)
    assert slow.endswith("2 %, 100 s a step, 2 h 43 min left")
    assert all(len(text) < 80 for text in texts(terminal[1], UTF8, (0.0, 10**9), (1.0, 10**9 + 1), total=10**12))


def test_it_begins_anew_with_another_loop_and_ends_with_none(terminal):
    told = texts(terminal[1], UTF8, (0.0, 10), (1.0, 20), (2.0, 1), (3.0, 0))
    assert told[2] == "step 1/100 [                    ] 1 %"
    assert told[3] == ""


def test_a_terminal_without_utf8_gets_ascii_and_a_narrow_one_what_fits(terminal):
    (text,) = texts(terminal[1], {"LANG": "C", "TERM": "xterm"}, (0.0, 50))
    assert text == "step 50/100 [##########          ] 50 %"
    fcntl.ioctl(terminal[1], termios.TIOCSWINSZ, struct.pack("HHHH", 24, 35, 0, 0))
    assert len(texts(terminal[1], UTF8, (0.0, 50))[0]) == 34
    fcntl.ioctl(terminal[1], termios.TIOCSWINSZ, struct.pack("HHHH", 24, 20, 0, 0))
    assert texts(terminal[1], UTF8, (0.0, 50)) == [""]


def test_the_locale_is_that_of_the_user_and_not_of_python(subtests):
    for environ, expected in [
        *(({"LANG": each}, True) for each in ("en_US.UTF-8", "C.UTF-8", "de_DE.utf8@euro")),
        *(({"LANG": each}, False) for each in ("C", "de_DE.ISO-8859-1")),
        ({"LC_ALL": "C", "LANG": "en_US.UTF-8"}, False),
        ({"LC_ALL": "C.UTF-8", "LANG": "C"}, True),
        ({"LC_CTYPE": "C.UTF-8", "LANG": "C"}, False),  # Python's own doing
        ({"LC_CTYPE": "C.UTF-8"}, False),
        ({}, False),
    ]:
        with subtests.test(environ=environ):
            assert is_utf8(environ) is expected


def test_it_is_drawn_on_a_terminal_alone(terminal, tmp_path):
    fd = terminal[1]
    assert may_draw({"TERM": "xterm"}, fd)
    assert not may_draw({"TERM": "dumb"}, fd)
    assert not may_draw({}, fd)
    assert not may_draw({"TERM": "xterm", "EZPZ_LIVE": "0"}, fd)
    assert not may_draw({"TERM": "xterm", "CI": "true"}, fd)
    assert may_draw({"TERM": "xterm", "CI": "false"}, fd)
    with (tmp_path / "file").open("w") as file:
        assert not may_draw({"TERM": "xterm"}, file.fileno())
    reader, writer = os.pipe()
    assert not may_draw({"TERM": "xterm"}, writer)
    os.close(reader)
    os.close(writer)


def test_other_output_never_meets_the_line(terminal):
    screen = Screen(2, out=terminal[1], err=terminal[1])

    def shown():
        screen.push()
        return os.read(terminal[0], 65536).decode()

    screen.live("step 1/2")
    assert shown() == "step 1/2"
    screen.show(0, 1, b"hello\n", 0.0)
    assert shown() == f"{ERASE}hello\n"
    assert shown() == "step 1/2"  # again, as soon as nothing else waits
    screen.show(1, 1, b"half", 0.0)
    assert shown() == f"{ERASE}half"
    screen.live("step 2/2")  # after a line that has not ended it waits
    screen.show(1, 1, b" a line\n", 0.0)
    assert shown() == " a line\n"
    assert shown() == "step 2/2"
    screen.show(0, 1, b"bar 10 %\r", 0.0)  # the program draws its own
    assert shown() == f"{ERASE}bar 10 %\r"
    screen.say("ezpz: words of ours")
    assert shown() == "ezpz: words of ours\n"
    assert shown() == "step 2/2"
    screen.close()
    assert os.read(terminal[0], 65536).decode() == ERASE
    screen.push()
    os.write(terminal[1], b"end")
    assert os.read(terminal[0], 65536).decode() == "end"


PROGRAM = """
import os, time
from ezpz import heartbeat
from ezpz.progress import end_pace, pace
for step in range(24):
    pace(step + 1, 0, 24)
    heartbeat(step)
    if os.environ["RANK"] == "0":
        print("line", step, flush=True)
    time.sleep(0.15)
end_pace()
print("over", flush=True)
"""
LINE = ["-n", "2", sys.executable, "-c", PROGRAM]


@pytest.mark.slow
@pytest.mark.parametrize("dumb", [False, True])
def test_a_launch_draws_it_and_leaves_nothing_behind(start_launch, clean_env, terminal, dumb):
    screen, program = terminal
    environ = {**clean_env, "TERM": "dumb" if dumb else "xterm", "LANG": "C", "LC_ALL": "C"}
    run = start_launch(*LINE, env=environ, stdout=program, stderr=program)
    text = shown_by(run, screen, 120)
    assert run.returncode == 0
    assert ("step " in text.replace("line ", "")) != dumb
    assert (ERASE in text) != dumb
    assert "█" not in text
    rest = re.sub(r"step \d+/24 \[[# ]{20}\][^\r\n]*\r\x1b\[K", "", text)  # what is taken away
    assert "\x1b" not in rest
    assert re.findall(r"^line (\d+)$", rest, re.MULTILINE) == [str(step) for step in range(24)]
    assert rest.count("over\n") == 2


@pytest.mark.slow
def test_a_pipe_gets_no_line(launch, clean_env):
    done = launch(*LINE, env={**clean_env, "TERM": "xterm"}, timeout=120)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "step" not in done.stdout
