"""The live line of a run without `launch`: what is on the terminal at last, and what was there in between."""

import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import termios
import time

import pytest

from ezpz.live_line import LiveLine
from lab.terminal import open_terminal, screen_after

pytestmark = pytest.mark.slow

# `train(say)` records rows until the test has seen what it waits for, and calls `say` with each step.
BEGIN = """
import logging, os, sys, time
import ezpz

def train(say=lambda step: None, until="seen", history=None):
    step = 0
    while not os.path.exists(until):
        (history or runs[0]).update({"loss": 0.25, "eval/loss": 0.5}, step=step)
        say(step)
        step += 1
        time.sleep(0.05)

def over(until="seen"):
    while not os.path.exists(until):
        time.sleep(0.05)

runs = [ezpz.History("mine", "run", trackers=[])]
"""
END = """
runs[0].finalize(plots=False, show=False)
"""
LINE = re.compile(r"mine: step [\d,]+, loss 0\.25, [\d.]+ (steps/s|s a step), after \d+ s")


class Program:
    """A Python program on a terminal of its own, of which it is the foreground."""

    def __init__(self, terminal, folder, code, environ, *, python=(), **streams):
        self.screen, end = terminal
        self.folder, self.seen, self.place = folder, "", 0
        folder.mkdir(exist_ok=True)
        streams = {"stdin": end, "stdout": end, "stderr": end, **streams}
        self.process = subprocess.Popen(
            [sys.executable, *python, "-c", code],
            cwd=folder,
            env=environ,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(end, termios.TIOCSCTTY, 0),  # noqa: PLW1509  # this process has one thread
            **streams,
        )

    def read(self):
        """Read what there is, and tell whether there was anything."""
        came = bool(select.select([self.screen], [], [], 0.1)[0])
        if came:
            self.seen += os.read(self.screen, 65536).decode()
        return came

    def until(self, pattern, seconds=120):
        """Wait until the screen has shown this behind what the last call waited for."""
        end = time.monotonic() + seconds
        while not (found := re.compile(pattern).search(self.seen, self.place)):
            assert time.monotonic() < end, self.seen
            assert self.process.poll() is None, self.seen
            self.read()
        self.place = found.end()
        return self

    def read_for(self, seconds):
        """Read for a while in which nothing is to be shown."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read()

    def tell(self, name="seen"):
        (self.folder / name).touch()
        return self

    def type(self, text):
        os.write(self.screen, text.encode())
        return self

    def end(self, code=0):
        """Return what the screen shows at last, without our own words about the end."""
        end = time.monotonic() + 120
        while self.process.poll() is None:
            assert time.monotonic() < end, self.seen
            self.read()
        while self.read():
            pass
        assert self.process.returncode == code, self.seen
        lines = screen_after(self.seen, 80)
        return [line for line in "\n".join(lines).strip("\n").split("\n") if line]


@pytest.fixture
def start(clean_env, tmp_path):
    """`start(code)` -> a Program on a terminal of 80 columns."""
    opened, programs = [], []

    def begin(code, *, name="here", environ=None, **more):
        opened.append(open_terminal(80, 24))
        terminal = opened[-1].__enter__()
        variables = {**clean_env, "TERM": "xterm", "LANG": "C", "LC_ALL": "C", "EZPZ_LOG_LEVEL": "WARNING"}
        programs.append(Program(terminal, tmp_path / name, code, {**variables, **(environ or {})}, **more))
        return programs[-1]

    yield begin
    for program in programs:
        program.process.kill()
        program.process.wait()
    for each in opened:
        each.__exit__(None, None, None)


def test_a_silent_program_has_a_line_that_leaves_nothing_behind(start):
    program = start(BEGIN + "train()" + END).until(LINE).tell()
    assert program.end() == []


@pytest.mark.parametrize("python", [(), ("-u",)])
def test_what_a_program_prints_stands_above_the_line_whole(start, python):
    say = "lambda step: print('row', step)"
    program = start(BEGIN + f"train({say})" + END, python=python).until(LINE).until(LINE).tell()
    shown = program.end()
    assert shown == [f"row {step}" for step in range(len(shown))]
    assert len(shown) > 10


@pytest.mark.parametrize("raised", ["1 / 0", "sys.exit('no data')"])
def test_the_words_of_an_error_are_whole(start, raised):
    code = BEGIN + "train(lambda step: print('row', step) if step % 10 == 0 else None)\n" + raised
    without = start(code, name="without", environ={"EZPZ_LIVE": "0"})
    program = start(code).until(LINE).until(LINE).tell()
    without.until("row 0").tell()
    shown, expected = program.end(1), without.end(1)
    assert [line for line in shown if "row" not in line] == [line for line in expected if "row" not in line]


def test_ctrl_c_neither_tears_nor_repeats_a_line(start):
    code = BEGIN + "train(lambda step: [print('row', 20 * step + part) for part in range(20)])"
    program = start(code).until("row").until("row 100").type("\x03")
    shown = [line.removeprefix("^C") for line in program.end(-signal.SIGINT)]
    rows = [line for line in shown if line.startswith("row")]
    assert rows == [f"row {number}" for number in range(len(rows))]
    silent = start(BEGIN + "train()", name="silent").until(LINE).type("\x03").end(-signal.SIGINT)
    assert silent[0] == "^CTraceback (most recent call last):"
    assert silent[-1].startswith("KeyboardInterrupt")


def test_sigterm_ends_a_run_without_a_trace_of_the_line(start):
    program = start(BEGIN + "train()").until(LINE)
    program.process.terminate()
    first, *rest = program.end(-signal.SIGTERM)
    assert first.startswith("mine stopped by SIGTERM")
    assert not any("loss" in line for line in rest)


ASKING = {
    "input": ("answer = input('name? ')", ["name? bob"]),
    "readline": ("import readline\nanswer = input('name? ')", ["name? bob"]),
    "stdin": ("print('name?')\nanswer = sys.stdin.readline().strip()", ["name?", "bob"]),
    "fileno": ("os.write(sys.stdout.fileno(), b'name? ')\nanswer = os.read(0, 9).decode().strip()", ["name? bob"]),
}


@pytest.mark.parametrize("kind", ASKING)
def test_nothing_is_drawn_while_a_program_asks(start, kind):
    ask, expected = ASKING[kind]
    code = BEGIN + f"train()\n{ask}\nprint('got', answer)\ntrain(until='more')" + END
    program = start(code).until(LINE).tell().until(r"name\? ?")
    program.read_for(2)
    assert [line for line in screen_after(program.seen, 80) if line] == ["name?"]
    program.type("bob\n").until("got bob").until(LINE).tell("more")
    assert program.end() == [*expected, "got bob"]


BARS = {
    "carriage return": "sys.stderr.write('\\r50 %'); sys.stderr.flush()",
    "movement": "print('\\x1b[1A50 %')",
    "tqdm": "from tqdm import tqdm\n[time.sleep(0.3) for _ in tqdm(range(10))]",
    "rich": "from rich.progress import track\n[time.sleep(0.3) for _ in track(range(10))]",
}


@pytest.mark.parametrize("kind", BARS)
def test_a_program_that_draws_itself_has_no_line(start, kind):
    if kind in {"tqdm", "rich"}:
        pytest.importorskip(kind)
    again = "train(until='more')\nruns.append(ezpz.History('mine', 'other', trackers=[]))"
    more = f"\n{again}\ntrain(until='last', history=runs[1])\nprint('end')"
    late = start(BEGIN + f"train()\nprint('now')\n{BARS[kind]}{more}" + END, name="late")
    early = start(BEGIN + f"{BARS[kind]}{more}" + END, name="early")
    late.until(LINE).tell().until("now").until("50")
    early.until("50")
    for program in (early, late):
        program.read_for(2.5)
        program.tell("more").read_for(2.5)
        program.tell("last").until("end")
        drawn = program.seen.rindex("now") if program is late else 0
        assert not LINE.search(program.seen[program.seen.index("50", drawn) :])
        assert program.process.wait(60) == 0


def test_an_unfinished_line_is_left_alone(start):
    code = """
train(until="first")
print("loading ... ", end="", flush=True)
train()
print("done")
train(until="more")
"""
    program = start("print('begun: ', end='', flush=True)" + BEGIN + code + END).until(LINE).tell("first")
    program.until("loading").read_for(2.5)
    assert not LINE.search(program.seen[program.seen.index("loading") :])
    program.tell().until("done").until(LINE).tell("more")
    assert program.end() == ["begun:", "loading ... done"]  # where the cursor was at the beginning, nobody knew


def test_where_stdout_is_a_file_the_line_is_on_stderr_with_what_is_logged_there(start, tmp_path):
    code = "import logging\nlogging.basicConfig(format='%(message)s')" + BEGIN
    code += "train(lambda step: (print('row', step), logging.warning('said %d', step)))" + END
    with (tmp_path / "out").open("w") as file:
        program = start(code, stdout=file).until(LINE).until(LINE).tell()
        shown = program.end()
    assert shown == [f"said {step}" for step in range(len(shown))]
    assert (tmp_path / "out").read_text() == "".join(f"row {step}\n" for step in range(len(shown)))


def test_no_line_where_it_does_not_belong(start, subtests):
    code = BEGIN + "train(lambda step: print('row', step))" + END
    where = {
        "off": {"environ": {"EZPZ_LIVE": "0"}},
        "dumb": {"environ": {"TERM": "dumb"}},
        "CI": {"environ": {"CI": "true"}},
        "launch": {"environ": {"EZPZ_LAUNCH_ID": "1"}},
        "mpiexec": {"environ": {"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}},
        "pipe": {"stdout": subprocess.PIPE},
        "pipe of errors": {"stderr": subprocess.PIPE},
        "background": {"code": "import os\nif os.fork():\n    os.wait()\n    os._exit(0)\nos.setpgid(0, 0)\n" + code},
        "notebook": {"code": "import builtins\nbuiltins.__IPYTHON__ = True" + code},
        "thread": {
            "code": "import threading\nthread = threading.Thread(target=exec, args=(" + repr(code) + ", {}))\n"
            "thread.start()\nthread.join()"
        },
    }
    programs = {name: start(more.pop("code", code), name=name, **more) for name, more in where.items()}
    for program in programs.values():
        program.read_for(0.5)
    programs["off"].read_for(2)
    for name, program in programs.items():
        with subtests.test(name):
            shown = program.tell().end()
            stdout = program.process.stdout
            rows = shown if stdout is None else stdout.read().decode().splitlines()
            assert rows == [f"row {step}" for step in range(len(rows))]
            assert "\x1b" not in program.seen
            assert "mine:" not in program.seen


def test_two_processes_on_one_terminal_draw_none(start):
    code = f"""
import subprocess
other = subprocess.Popen([sys.executable, "-c", {BEGIN.replace('"run"', '"second"') + "train(until='first')"!r}])
train()
other.wait()
train(until="more")
"""
    program = start(BEGIN + code + END)
    program.read_for(4)
    assert not LINE.search(program.seen)
    program.tell("first").until(LINE).tell().until(LINE).tell("more")
    assert program.end() == []


def test_of_two_histories_one_has_the_line(start):
    code = """
runs.append(ezpz.History("other", "second", trackers=[]))
train(lambda step: runs[1].update({"loss": 0.75}))
runs[0].finalize(plots=False, show=False)
train(history=runs[1], until="more")
runs[1].finalize(plots=False, show=False)
print("end", vars(sys.stdout.buffer).keys() & {"write", "flush", "fileno"})
"""
    program = start(BEGIN + code).until(LINE).until(LINE)
    assert "other" not in program.seen
    program.tell().until(r"other: step [\d,]+, loss 0\.25").tell("more")
    assert program.end() == ["end set()"]


def test_a_forked_child_draws_nothing_and_writes_above_the_line(start):
    code = """
train()
children = []
for leave in (os._exit, sys.exit):
    child = os.fork()
    if not child:
        for number in range(3):
            print("child", number, flush=True)
            time.sleep(0.6)
        history = ezpz.History("mine", "own", trackers=[])
        for number in range(40):
            history.update({"loss": 9.0})
            time.sleep(0.05)
        leave(0)
    os.waitpid(child, 0)
train(until="more")
"""
    program = start(BEGIN + code + END).until(LINE).tell().until("child 2").until("child 2").until(LINE).tell("more")
    assert program.end() == [f"child {n}" for n in (0, 1, 2)] * 2
    assert "loss 9" not in program.seen


def test_streams_of_the_program_stay_its_own(start):
    code = (
        """
class Tee:
    def write(self, text):
        sys.__stdout__.write(text)
    def flush(self):
        sys.__stdout__.flush()

train()
tee = sys.stdout = Tee()
train(lambda step: print("tee", step), until="more")
sys.stderr = open(sys.__stderr__.fileno(), "w", closefd=False)
train(lambda step: print("own", step, file=sys.stderr, flush=True), until="last")
"""
        + END
        + "print('end', sys.stdout is tee, vars(sys.__stdout__.buffer).keys() & {'write', 'flush', 'fileno'})"
    )
    program = start(BEGIN + code).until(LINE).tell().until(LINE).until(LINE).tell("more").until("own").until(LINE)
    program.until(LINE).tell("last")
    shown = program.end()
    count = sum(line.startswith("tee") for line in shown)
    own = [f"own {step}" for step in range(len(shown) - count - 1)]
    assert shown == [*(f"tee {step}" for step in range(count)), *own, "end True set()"]


def test_what_waits_in_a_buffer_is_not_torn_and_a_file_in_the_place_of_the_terminal_gets_no_line(start):
    code = """
train()
sys.stdout.buffer.write(b"half ")
print("said", file=sys.stderr)
sys.stdout.flush()
train(until="more")
print("whole")
os.dup2(os.open("log", os.O_CREAT | os.O_WRONLY), 1)
train(lambda step: print("row", step, flush=True), until="last")
sys.stdout = open(sys.stdout.detach().fileno(), "w", closefd=False)
train(until="end")
"""
    program = start(BEGIN + code + END).until(LINE).tell().until("half")
    program.read_for(2.5)
    assert screen_after(program.seen[program.seen.index("said") :], 80) == ["said", "half"]
    program.tell("more").until("whole").read_for(2.5)
    program.tell("last").read_for(1.5)
    shown = program.tell("end").end()
    assert shown[:2] == ["said", "half whole"]
    assert len(shown) <= 3  # the line of the moment in which its terminal was taken away
    rows = (program.folder / "log").read_text().splitlines()
    assert rows == [f"row {step}" for step in range(len(rows))]


def test_what_other_programs_write_is_not_lost(start):
    program = start(BEGIN + "train()\nos.system('echo of a child')\ntrain(until='more')" + END)
    shown = program.until(LINE).tell().until("of a child").until(LINE).tell("more").end()
    assert len(shown) == 1
    assert shown[0].startswith("of a child")


def test_a_loop_tells_how_many_steps_there_are(start):
    code = BEGIN + "from ezpz.progress import pace\ntrain(lambda step: pace(min(step + 1, 999), 0, 1000))" + END
    program = start(code).until(r"mine: step \d+/1,000 \d+ %, loss 0\.25, .* steps/s, after \d+ s, \d+ s left").tell()
    assert program.end() == []


def test_the_line_has_a_bar_where_there_is_room_and_ends_at_the_edge():
    with open_terminal(120) as (_, end):
        line = LiveLine({"LANG": "C.UTF-8"}, end)
        line.text_of_run("train", 10, 100, 0.0, loss="", seconds=0.2)
        assert line.text_of_run("train", 20, 100, 1.0, loss="0.25", seconds=65.0) == (
            "train: step 20/100 [████                ] 20 %, loss 0.25, 10 steps/s, after 1 min 5 s, 8 s left"
        )
    with open_terminal(40) as (_, end):
        line = LiveLine({"LANG": "C"}, end)
        assert len(line.text_of_run("a" * 24, 10**9, 0, 0.0, loss="0.25", seconds=65.0)) == 39
        assert line.text_of_run("名" * 24, 10**9, 0, 0.0, loss="0.25", seconds=65.0) == ""
