from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from runs_on_disk import light, row, write_run

from ezpz.cli.watch import main

SRC = str(Path(__file__).parents[2] / "src")


def facts(**changed):
    """Return the run.json of a run that this process seems to write."""
    birth = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    process = {"host": os.uname().nodename, "pid": os.getpid(), "birth": birth}
    return {"name": "train", "state": "running", "process": process, "started": "2026-11-20T16:20:01+01:00", **changed}


@pytest.fixture
def live(tmp_path):
    """A run that goes on for as long as this process lives, and has 20 rows."""
    metrics = {"dt": [0.01] * 20, "loss": [1 / (1 + step) for step in range(20)]}
    return write_run(tmp_path / "r", metrics, **{key: value for key, value in facts().items() if key != "name"})


def add(run, *steps):
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(row(step, {"dt": 0.01, "loss": 1 / (1 + step)}) for step in steps)


def end(run, **changed):
    (run / "new").write_text(json.dumps(facts(**{"state": "finished", **changed})))
    (run / "new").replace(run / "run.json")


def watching(words, cwd, more, **streams):
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": SRC, "HOME": str(cwd), "TERM": "xterm-256color", **more}
    return subprocess.Popen([sys.executable, "-c", light("watch"), *map(str, words)], env=env, cwd=cwd, **streams)


@pytest.fixture
def piped(tmp_path):
    """`piped(*words)` -> the watching process, with lines() to read."""
    started = []

    def start(*words, **more):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(watching(words, tmp_path, more, **pipes))
        return started[-1]

    yield start
    for child in started:
        child.kill()
        child.communicate()


class Terminal:
    """A pseudo terminal, the watching process on it, and the screen as a person sees it."""

    def __init__(self, words, cwd, more, size):
        self.columns = size[1]
        self.leader, follower = pty.openpty()
        self.resize(*size)
        ends = dict.fromkeys(("stdin", "stdout", "stderr"), follower)
        self.child = watching(words, cwd, more, start_new_session=True, **ends)
        os.close(follower)
        self.raw = ""
        self._half = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._lines, self._y, self._x = [""], 0, 0

    def resize(self, lines, columns):
        fcntl.ioctl(self.leader, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.columns = columns

    def read(self, seconds):
        """Take in what comes within some seconds."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and select.select([self.leader], [], [], left)[0]:
            try:
                data = self._decoder.decode(os.read(self.leader, 65536))
            except OSError:  # the other end is closed
                return
            self.raw += data
            data = self._half + data
            self._half = re.search(r"(\x1b(\[[\d;]*)?)?$", data)[0]  # an escape whose end has not come yet
            for part in re.finditer(r"\x1b\[(\d*)[\d;]*([A-Za-z])|([\s\S])", data[: len(data) - len(self._half)]):
                self._take(*part.groups())

    def wait_for(self, text, seconds=60, before=0):
        """Read until a text is on the screen, and a picture that begins behind so much of the output is whole."""
        until = time.monotonic() + seconds
        while text not in self.screen() or "\x1b[J" not in self.raw[before:] or not self.is_whole():
            assert time.monotonic() < until, self.screen()
            self.read(0.1)

    def is_whole(self):
        """Tell whether the last picture has come to its end."""
        return self.raw.endswith("\x1b[J\r\n") or self.child.poll() is not None

    def _take(self, number, command, character):
        here = self._lines[self._y]
        if command == "A":
            self._y -= int(number)
            assert self._y >= 0
        elif command in {"K", "J"}:
            self._lines[self._y] = here[: self._x]
            if command == "J":
                del self._lines[self._y + 1 :]
        elif command == "m":
            pass
        elif command:
            pytest.fail(f"an escape that is not needed: {command}")
        elif character == "\r":
            self._x = 0
        elif character == "\n":
            self._next()
        else:
            if self._x == self.columns:
                self._x = 0
                self._next()
                here = self._lines[self._y]
            self._lines[self._y] = here[: self._x].ljust(self._x) + character + here[self._x + 1 :]
            self._x += 1

    def _next(self):
        self._y += 1
        if self._y == len(self._lines):
            self._lines.append("")

    def screen(self):
        return "\n".join(line.rstrip() for line in self._lines)

    def close(self):
        self.child.kill()
        self.child.wait()
        os.close(self.leader)


@pytest.fixture
def terminal(tmp_path):
    """`terminal(*words, size=(24, 80), NAME=value)` -> Terminal."""
    opened = []

    def start(*words, size=(24, 80), **more):
        opened.append(Terminal(words, tmp_path, more, size))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.mark.slow
def test_piped_there_is_a_line_for_each_change_and_one_for_the_end(piped, live):
    child = piped(live, "--interval", "0.2")
    first = child.stdout.readline()
    clock = time.strftime("%H:%M:%S", time.localtime(1795188001.0 + 19))
    assert first == f"{clock} step 19 loss=0.05 dt=0.01 █▄▃▂▁▁▁▁▁▁▁▁▁▁▁▁ 1 rows/s\n"
    time.sleep(0.6)  # nothing changes, so nothing may be said
    add(live, 20, 21)
    assert " step 21 loss=0.0454545 " in child.stdout.readline()
    end(live, ended="2026-11-20T16:25:13+01:00")
    last, rest = child.stdout.readline(), child.stdout.read()
    assert last == "train: finished, 22 rows, step 21, 1 rows/s, 5 min 12 s\n"
    assert (rest, child.stderr.read(), child.wait(120)) == ("", "", 0)


@pytest.mark.slow
def test_a_run_of_attempts_is_followed_until_none_follows(piped, live, tmp_path):
    folder = tmp_path / "state/ezpz/launches/2026-11-20-162001-aaaaaaaa"
    folder.mkdir(parents=True)
    launch = {"launch_id": "aaaaaaaa1", "host": "n99", "state": "running", "attempt": 1, "most_attempts": 3}

    def keep(*rows, **changed):
        (folder / "new").write_text(json.dumps({**launch, "attempts": rows, **changed}))
        (folder / "new").replace(folder / "run.json")

    first = {"attempt": 1, "launch_id": "aaaaaaaa1", "decision": "again", "because": "n02 is retired"}
    keep()
    end(live, state="running", launch={"launch_id": "aaaaaaaa1"})
    child = piped(live, "--interval", "0.2", XDG_STATE_HOME=str(tmp_path / "state"))
    assert child.stdout.readline() == "train: attempt 1 of 3\n"
    assert " step 19 " in child.stdout.readline()
    end(live, state="failed", launch={"launch_id": "aaaaaaaa1"})
    keep(first, state="failed", ended=time.time())
    assert child.stdout.readline() == "train: attempt 1 of 3, again: n02 is retired\n"
    second = {"attempt": 2, "launch_id": "aaaaaaaa2"}
    keep(first, attempt=2, launch_id="aaaaaaaa2")
    end(live, state="running", launch={"launch_id": "aaaaaaaa2"})
    assert child.stdout.readline() == "train: attempt 2 of 3\n"
    add(live, 20)
    assert " step 20 " in child.stdout.readline()
    done = {**second, "decision": "stop", "because": "it has succeeded"}
    keep(first, done, attempt=2, launch_id="aaaaaaaa2", state="finished", ended=time.time())
    end(live, launch={"launch_id": "aaaaaaaa2"}, ended="2026-11-20T16:25:13+01:00")
    last = child.stdout.readline()
    assert last.startswith("train: finished, attempt 2 of 3, stop: it has succeeded, 21 rows, step 20"), last
    assert (child.stdout.read(), child.stderr.read(), child.wait(120)) == ("", "", 0)


@pytest.mark.slow
def test_piped_the_values_of_the_hardware_are_a_line_when_they_are_new(piped, live):
    def sample(ago, power):
        device = {"id": "0", "name": "H100", "power": [power] * 3, "used": [97] * 3}
        now = {"cpu": [3.5] * 3, "memory": [2**31] * 3}
        line = {"v": 1, "t": time.time() - ago, "s": 30.0, "host": "n01", "now": now, "devices": [device]}
        with (live / "hardware.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    sample(40, 612)
    child = piped(live, "--interval", "0.2")
    assert " step 19 " in child.stdout.readline()
    rest = "97 %, 3.5 cores, 2.0 GiB on 1 host"
    assert re.fullmatch(rf"hardware: 1 device, 612 W, {rest}, 4\d s ago\n", child.stdout.readline())
    time.sleep(0.6)  # nothing is new, so nothing may be said
    sample(0, 340)
    assert re.fullmatch(rf"hardware: 1 device, 340 W, {rest}, \d+ s ago\n", child.stdout.readline())
    end(live)
    assert child.stdout.read().startswith("train: finished")


@pytest.mark.slow
def test_how_a_run_ended_also_by_being_killed_is_told_and_the_exit_code_is_0(piped, live):
    for changed, said in (
        ({"state": "failed", "cause": "ValueError: no ink"}, "train: failed (ValueError: no ink), 20 rows, step 19"),
        ({"state": "running", "process": {**facts()["process"], "pid": 2**22 + 5}}, "died (its process is gone"),
    ):
        end(live, **changed)
        child = piped(live, "--interval", "0.2")
        out, err = child.communicate(timeout=120)
        assert said in out.splitlines()[-1]
        assert (err, child.returncode) == ("", 0)


@pytest.mark.slow
def test_chosen_metrics_alone_are_shown_and_others_are_told_to_be_missing(piped, live):
    out, _ = piped(live, "dt", "late*", "--once").communicate(timeout=120)
    assert " step 19 dt=0.01 (no 'late*' yet; recorded: dt, loss) ▅▅" in out
    end(live)
    child = piped(live, "los", "--interval", "0.2")
    assert "Did you mean loss" in child.communicate(timeout=120)[1]
    assert child.returncode == 2


@pytest.mark.slow
def test_it_waits_for_a_run_and_says_so_once(piped, tmp_path):
    (tmp_path / "outputs").mkdir()
    child = piped("--interval", "0.1")
    assert child.stdout.readline() == "waiting for a run in outputs\n"
    time.sleep(0.4)
    write_run(tmp_path / "outputs/train/1", {"loss": [1.0, 0.5]})
    out, err = child.communicate(timeout=120)
    step, last = (line.split(maxsplit=1)[1] for line in out.splitlines())
    assert (step, err) == ("step 1 loss=0.5 █▁ 1 rows/s", "")
    assert last == "finished, 2 rows, step 1, 1 rows/s, 5 min 12 s"


@pytest.mark.slow
def test_it_waits_for_the_first_row_and_says_so_once(piped, live):
    (live / "metrics.jsonl").write_text("")
    child = piped(live, "--interval", "0.1")
    assert child.stdout.readline() == "waiting for the first row of train\n"
    time.sleep(0.3)
    add(live, 0)
    assert "step 0 loss=1" in child.stdout.readline()


WRONG = [
    (["gone/"], "no run or launch 'gone/'"),
    (["r", "r"], "2 folders"),
    (["r", "--interval", "0"], "--interval: '0' (from the command line); expected seconds from 0.05 to 86400"),
    (["r", "--interval", "nan"], "--interval: 'nan'"),
    (["r", "--bad"], "unknown option --bad"),
]


def test_what_was_typed_wrong_is_one_line(in_process, refuses, live, tmp_path):
    refuses(main, WRONG)
    (tmp_path / "empty").mkdir()
    none = in_process(["watch", "empty", "--once"])
    assert (none.returncode, none.stderr.count("\n"), "no run in empty" in none.stderr) == (2, 1, True)
    usage = in_process(["watch", "--help"])
    assert (usage.returncode, usage.stderr, "usage:" in usage.stdout) == (0, "", True)


@pytest.mark.slow
def test_a_reader_that_leaves_ends_it_quietly(piped, live):
    child = piped(live, "--interval", "0.1")
    child.stdout.readline()
    child.stdout.close()
    for step in range(20, 40):
        add(live, step)
        time.sleep(0.05)
    assert child.wait(120) == 0
    assert child.stderr.read() == ""
    child.stdout = open(os.devnull)  # noqa: SIM115, PTH123  # for the fixture's communicate


@pytest.mark.slow
def test_interrupted_in_a_pipe_it_ends_with_130_and_no_traceback(piped, live):
    child = piped(live, "--interval", "30", PYTHONIOENCODING="ascii")
    line = child.stdout.readline()
    assert line.isascii(), "nothing else can be written"
    assert "#~-.____" in line
    child.send_signal(signal.SIGINT)
    assert child.wait(120) == 130
    assert child.stderr.read() == ""


def test_on_a_terminal_the_picture_is_drawn_again_in_its_place(terminal, live):
    shown = terminal(live, "--interval", "0.2", NO_COLOR="1")
    shown.wait_for("step 19")
    lines = shown.screen().splitlines()
    assert lines[0].startswith("train: running, 20 rows, step 19, 1 rows/s")
    assert lines[1].strip() == "loss"
    assert lines[-1].startswith("dt 0.01")
    assert len(lines) == 23  # and one for the prompt
    add(live, *range(20, 40))
    shown.wait_for("40 rows, step 39")
    assert len(shown.screen().splitlines()) == 23
    assert shown.screen().count("running") == 1
    end(live)
    shown.wait_for("finished, 40 rows")
    shown.child.wait(120)
    shown.read(0.5)
    assert shown.child.returncode == 0
    assert len(shown.screen().splitlines()) == 24
    assert shown.raw.count("\x1b[J") >= 3
    assert not re.search(r"\x1b\[(\?|2J|H|\d*;\d*H|38)", shown.raw)  # no other screen, no clearing, no colour


@pytest.mark.slow
def test_a_terminal_that_changes_its_size_gets_a_picture_of_that_size(terminal, live):
    shown = terminal(live, "--interval", "30")
    shown.wait_for("step 19")
    shown.resize(40, 130)
    before = len(shown.raw)
    shown.wait_for("step 19", before=before)
    drawn = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", shown.raw[before:]).splitlines()
    assert max(map(len, drawn)) in range(120, 131)
    assert len([line for line in drawn if line.count("┌") == 2]) == 1  # both metrics side by side
    assert "\x1b[38;5;6m" in shown.raw


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("size", [(6, 20), (12, 20), (24, 200), (100, 80)])
def test_the_picture_fits_every_terminal(terminal, live, size):
    shown = terminal(live, "--interval", "0.2", size=size)
    shown.wait_for("rows"[: size[1]] if size[1] > 40 else "train: running")
    add(live, 20)
    shown.read(1.0)
    assert len(shown.screen().splitlines()) <= size[0] - 1
    assert shown.screen().count("train: running") == 1


@pytest.mark.slow
def test_ctrl_c_ends_with_130_leaves_the_picture_and_no_traceback(terminal, live):
    shown = terminal(live, "--interval", "30")
    shown.wait_for("step 19")
    shown.child.send_signal(signal.SIGINT)
    assert shown.child.wait(120) == 130
    shown.read(0.3)
    assert "Traceback" not in shown.screen()
    assert "step 19" in shown.screen()
    assert shown.raw.endswith("\x1b[J\r\n")  # the cursor stands below the picture, and was never hidden
    assert "?25" not in shown.raw


@pytest.mark.slow
def test_once_on_a_terminal_is_a_picture_without_cursor_movements(terminal, live):
    shown = terminal(live, "--once", NO_COLOR="1")
    shown.child.wait(120)
    shown.read(0.3)
    assert shown.child.returncode == 0
    assert "┌" in shown.screen()
    assert "\x1b" not in shown.raw
