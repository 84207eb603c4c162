"""What ranks tell their agent: real processes against a real socket."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ezpz
from ezpz.errors import UsageError
from lab import process
from lab.listener import Listener, as_rank

SRC = str(Path(ezpz.__file__).parents[1])
# Before the first import of ezpz in a rank: its clock can be put forward, or stands still until it is put forward.
CLOCK = "import time; real, ahead = time.monotonic, [0.0]; time.monotonic = lambda: real() + ahead[0]\n"
FROZEN = "import time; ahead = [1000.0]; time.monotonic = lambda: ahead[0]\n"


@pytest.fixture
def listener():
    value = Listener()
    yield value
    value.close()


@pytest.fixture
def rank(clean_env, tmp_path, listener):
    """`rank(code, **env)` runs Python code as rank 0 of one to its end and returns what it printed."""

    def run(code, options=(), **env):
        environ = {**clean_env, **as_rank(address=listener.address), "PYTHONPATH": SRC, **env}
        done = process.run([sys.executable, *options, "-c", code], environ, timeout=30, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    return run


def spoken(listener):
    """The lines of each connection after the first, which says who speaks."""
    process.wait_until(lambda: listener.lines and all(lines[-1:] == ["end"] for lines in listener.lines), 20, "the end")
    assert all(lines[0].startswith("rank 0 ") for lines in listener.lines)
    of_every_rank = ("steps", "dumps", "ending")
    return [[line for line in lines[1:-1] if not line.startswith(of_every_rank)] for lines in listener.lines]


def test_stages_are_told_once_and_the_first_beat_is_a_stage(rank, listener):
    pid = rank(
        "import ezpz, os; from ezpz.progress import stage\n"
        "for _ in range(3): stage('torch')\n"
        "stage('group')\n"
        "for _ in range(1000): ezpz.heartbeat()\n"
        "print(os.getpid())"
    )
    assert spoken(listener) == [["stage torch", "stage group", "stage step", "beat"]]
    assert listener.lines[0][0] == f"rank 0 {pid.strip()}"


def test_at_most_one_beat_per_second_goes_out(rank, listener):
    rank(FROZEN + "import ezpz\nfor _ in range(1, 290): ezpz.heartbeat(); ahead[0] += 0.01")
    assert spoken(listener)[0].count("beat") == 3


def test_a_history_beats(rank, listener):
    rank("import ezpz\nh = ezpz.History(outdir='run')\nh.update({'loss': 1.0})\nimport os; os._exit(0)")
    ((*told, folder),) = spoken(listener)
    assert told == ["stage step", "beat", "at 0"]
    assert folder.startswith("folder /")
    assert folder.endswith("/run")


# Shorter than what users get: else these tests would take minutes.
QUICK = "import time, ezpz\nfrom ezpz import progress as p\np._EVERY, p._WAITS = 0.1, 0.5\n"
# By its own seconds: a busy machine gives a rank few of them.
WORK = """
ezpz.heartbeat(7)
began = time.monotonic()
with p.Busy():
    while time.process_time() < 1.5: sum(range(1000))
print(time.monotonic() - began, flush=True)
import os; os._exit(0)
"""


@pytest.mark.slow
def test_a_busy_rank_beats_while_it_works(rank, listener):
    took = float(rank(QUICK + WORK))
    (lines,) = spoken(listener)
    assert lines[:4] == ["stage step", "beat", "at 7", "busy 1"]
    assert lines[-1] == "busy 0"
    assert 6 <= lines[4:-1].count("beat") == len(lines[4:-1]) <= took / 0.1 + 1


@pytest.mark.slow
def test_a_busy_rank_that_only_waits_beats_no_longer_than_our_waits_take(rank, listener):
    rank(f"{QUICK}p._WAITS = 1.0\nezpz.heartbeat()\nwith p.Busy():\n    time.sleep(3)\nimport os; os._exit(0)")
    (lines,) = spoken(listener)
    assert lines[:3] == ["stage step", "beat", "busy 1"]
    assert lines[-1] == "busy 0"
    assert 1 <= lines[3:-1].count("beat") <= 15


def test_a_busy_rank_that_never_beat_is_left_alone(rank, listener):
    rank("from ezpz.progress import Busy, stage\nstage('torch')\nwith Busy(): pass")
    assert spoken(listener) == [["stage torch"]]


IN_SECTIONS = """
import ezpz, threading
from ezpz.progress import patience
with ezpz.section("load", timeout=90):
    pass
try:
    with ezpz.section("outer part", timeout="1h"):
        ezpz.heartbeat()
        with patience("checkpoint", 600.0): pass
        with ezpz.section("inner", timeout="1.5s"): raise KeyError
except KeyError: pass
def in_thread():
    with ezpz.section("thread", timeout=5): pass
thread = threading.Thread(target=in_thread); thread.start(); thread.join()
with ezpz.section("endless", timeout="off"), patience("checkpoint", 600.0): pass
again = ezpz.section("again", timeout=5)
with again, again: pass
"""


def test_a_section_is_told_at_its_begin_and_the_one_around_it_at_its_end(rank, listener):
    rank(IN_SECTIONS)
    (lines,) = spoken(listener)
    assert lines == [
        *("section 90.0 0 load", "section 0 0 ", "section 3600.0 0 outer part", "stage step", "beat"),
        *("section 3600.0 1 checkpoint", "section 3600.0 0 outer part", "section 1.5 0 inner"),
        *("section 3600.0 0 outer part", "section 0 0 ", "section 0.0 0 endless", "section 0.0 1 checkpoint"),
        *("section 0.0 0 endless", "section 0 0 ", "section 5.0 0 again", "section 0 0 "),
    ]


CLEANS_UP = """
import sys, types
import ezpz
ezpz.heartbeat()
group = types.SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_backend_config=lambda: "nccl")
group.destroy_process_group = ezpz.heartbeat
sys.modules["torch"] = types.SimpleNamespace(distributed=group)
ezpz.cleanup()
import os; os._exit(0)
"""


def test_to_leave_the_group_is_a_section(rank, listener):
    rank(CLEANS_UP)
    assert spoken(listener) == [["stage step", "beat", "section 300.0 1 cleanup", "section 0 0 "]]


def test_a_section_without_a_launch_does_nothing(rank, listener):
    rank(IN_SECTIONS, EZPZ_SOCKET="")
    assert listener.lines == []


def test_a_timeout_or_a_name_that_is_none_is_refused(subtests):
    for timeout in ("10 minutes", "", "1001d", -1, float("nan"), float("inf"), True, [5]):
        with (
            subtests.test(timeout=timeout),
            pytest.raises(UsageError, match=r"timeout.*ezpz\.section.*expected"),
        ):
            ezpz.section("checkpoint", timeout=timeout)
    for name in ("", " ", "two\nlines", "x" * 81, None):
        with subtests.test(name=name), pytest.raises(UsageError, match=r"name.*ezpz\.section.*expected"):
            ezpz.section(name, timeout=5)


def test_the_last_step_is_told_when_the_program_ends(rank, listener):
    rank("import ezpz\nfor step in range(9): ezpz.heartbeat(step)\nezpz.heartbeat()")
    assert spoken(listener) == [["stage step", "beat", "at 0", "stage second_step", "beat", "at 1", "at 8"]]


ORDERS = [
    "import ezpz",
    "import ezpz.progress, ezpz",
    "from ezpz.progress import stage; import ezpz",
    "import ezpz; ezpz.progress; ezpz.heartbeat; import ezpz.progress; from ezpz import History",
    "from ezpz import heartbeat, progress; import ezpz; assert heartbeat is progress.heartbeat",
    "import ezpz.track.history, ezpz",
]


def test_the_public_name_is_the_function_in_every_order_of_imports(rank):
    """Each in a fork of a process that has imported nothing."""
    rank(f"""
import os
for order in {ORDERS!r}:
    if not os.fork():
        exec(order)
        assert callable(ezpz.heartbeat) and ezpz.heartbeat() is None
        os._exit(0)
    assert os.wait()[1] == 0, order
""")


@pytest.mark.slow
def test_a_rank_without_an_agent_is_silent_and_fast(rank, listener):
    for address in ("", "@nobody-listens-here", "/nowhere/socket", "@" + "x" * 300):
        took = rank(
            "import ezpz, time\nfrom ezpz.progress import stage\nstage('torch'); ezpz.heartbeat()\n"
            "a = time.process_time()\nfor _ in range(100000): ezpz.heartbeat()\nprint(time.process_time() - a)",
            EZPZ_SOCKET=address,
        )
        assert float(took) < 0.5  # 5 µs a call, where 0.1 is usual
    assert listener.lines == []


def test_a_path_is_an_address_too(rank, tmp_path):
    import socket

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "agent"))
        server.listen()
        rank("import ezpz; ezpz.heartbeat()", EZPZ_SOCKET=str(tmp_path / "agent"))
        connection, _ = server.accept()
        with connection, connection.makefile() as file:
            assert file.read().endswith("stage step\nbeat\nending 300.0\n")


def test_a_forked_child_neither_beats_nor_keeps_the_connection(rank, listener):
    """A loader of data that is forked after the first beat, and one before; the last is a program the rank starts."""
    rank(
        CLOCK + "import os, sys, subprocess, ezpz, ezpz.progress\n"
        "def child():\n"
        "    pid = os.fork()\n"
        "    if pid: return os.waitpid(pid, 0)\n"
        "    ezpz.progress.stage('child'); ahead[0] += 2; ezpz.heartbeat(); os._exit(0)\n"
        "child(); ezpz.heartbeat(); child()\n"
        'sockets = \'import os; print([l for l in map(os.readlink, [f"/proc/self/fd/{n}" for n in range(3, 10) '
        'if os.path.exists(f"/proc/self/fd/{n}")]) if "socket" in l])\'\n'
        "assert subprocess.check_output([sys.executable, '-c', sockets], close_fds=False).strip() == b'[]'\n"
        "ahead[0] += 2; ezpz.heartbeat()"
    )
    assert spoken(listener) == [["stage step", "beat", "beat"]]


def test_workers_of_multiprocessing_do_not_speak(rank, listener):
    rank(
        "import multiprocessing, ezpz\n"
        "for kind in ('fork', 'spawn'):\n"
        "    worker = multiprocessing.get_context(kind).Process(target=ezpz.heartbeat)\n"
        "    worker.start(); worker.join(); assert worker.exitcode == 0"
    )
    assert listener.lines == []


def test_a_rank_of_another_launcher_or_none_does_not_speak(rank, listener):
    for env in ({"TORCHELASTIC_RUN_ID": "inner"}, {"EZPZ_RUN_ID": ""}, {"WORLD_SIZE": "nonsense"}):
        rank("import ezpz; ezpz.heartbeat(); ezpz.progress.stage('torch')", **env)
        assert listener.lines == [], env


@pytest.mark.slow
def test_threads_may_beat_at_once(rank, listener):
    rank(
        FROZEN + "import threading, ezpz\nfrom ezpz.progress import stage\n"
        "def work(name):\n"
        "    end = time.perf_counter() + 0.2\n"
        "    while time.perf_counter() < end: ezpz.heartbeat(); stage(name)\n"
        "threads = [threading.Thread(target=work, args=(f's{n}',)) for n in range(8)]\n"
        "for t in threads: t.start()\n"
        "for t in threads: t.join()"
    )
    (lines,) = spoken(listener)
    assert sorted(lines) == sorted(["beat", "stage step", *(f"stage s{n}" for n in range(8))])


def test_an_agent_that_goes_makes_ranks_silent_and_harms_none(rank, listener):
    """Also one that has made SIGPIPE deadly again."""
    listener.close()
    rank(
        f"""{CLOCK}
import os, signal, socket, ezpz
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
address = "\\0" + os.environ["EZPZ_SOCKET"][1:]
server = socket.socket(socket.AF_UNIX); server.bind(address); server.listen()
ezpz.heartbeat()
server.accept()[0].close(); server.close()
for _ in range(3):
    ahead[0] += 2
    ezpz.heartbeat()
server = socket.socket(socket.AF_UNIX); server.bind(address); server.listen(); server.setblocking(False)
ahead[0] += 1000
ezpz.heartbeat()
try:
    server.accept()
except BlockingIOError:
    pass
else:
    raise AssertionError("it speaks again")
""",
        EZPZ_SOCKET="@ezt-goes-" + os.urandom(6).hex(),
    )


def test_an_agent_that_does_not_read_holds_nobody_up(rank, listener):
    """Beats are dropped, stages wait, and no line is cut."""
    listener.close()
    rank(
        CLOCK + "import os, socket, ezpz, ezpz.progress as p\n"
        "server = socket.socket(socket.AF_UNIX); server.bind('\\0' + os.environ['EZPZ_SOCKET'][1:]); server.listen()\n"
        "p.stage('torch')\n"
        "for n in range(20000): ahead[0] += 2; ezpz.heartbeat()\n"
        "p.stage('late')\n"
        "connection = server.accept()[0]; connection.settimeout(0.5)\n"
        "text = b''\n"
        "def read(text):\n"
        "    try:\n"
        "        while chunk := connection.recv(65536): text += chunk\n"
        "    except TimeoutError: return text\n"
        "text = read(text); ahead[0] += 2; ezpz.heartbeat(); text = read(text)\n"
        "lines = text.decode().splitlines()\n"
        "assert set(lines[4:]) == {'beat', 'stage step', 'stage late'}, set(lines[4:])\n"
        "assert lines.count('stage late') == 1 and 10 < lines.count('beat') < 20000, lines.count('beat')",
        EZPZ_SOCKET="@ezt-stalls-" + os.urandom(6).hex(),
    )


def test_a_busy_queue_of_connections_is_tried_again_later(rank, listener):
    listener.close()
    rank(
        f"""{CLOCK}
import os, socket, ezpz
address = "\\0" + os.environ["EZPZ_SOCKET"][1:]
server = socket.socket(socket.AF_UNIX); server.bind(address); server.listen(0)
first = socket.socket(socket.AF_UNIX); first.connect(address)
ezpz.heartbeat()
server.accept()  # the first: now there is room
server.setblocking(False)
ahead[0] += 5
ezpz.heartbeat()
try:
    server.accept()
except BlockingIOError:
    pass
else:
    raise AssertionError("it tries again at once")
ahead[0] += 30
ezpz.heartbeat()
assert server.accept()[0].recv(99).startswith(b"rank 0 ")
""",
        EZPZ_SOCKET="@ezt-busy-" + os.urandom(6).hex(),
    )


@pytest.mark.skipif(sys.platform != "linux", reason="real-time signals")
def test_a_rank_writes_its_stacks_when_asked_and_goes_on(clean_env, tmp_path, listener):
    code = (
        "import os, time, ezpz\ndef train():\n"
        "    while not os.path.exists('end'): ezpz.heartbeat(); time.sleep(0.01)\ntrain()\n"
    )
    env = {**clean_env, **as_rank(address=listener.address), "PYTHONPATH": SRC}
    with (tmp_path / "said").open("wb") as said:
        running = subprocess.Popen([sys.executable, "-c", code], env=env, cwd=tmp_path, stderr=said)
    listener.wait("beat")
    (number,) = (int(line.split()[1]) for line in listener.lines[0] if line.startswith("dumps"))
    for _ in range(20):
        os.kill(running.pid, number)
        time.sleep(0.02)
    shown = '  File "<string>", line 3 in train'
    process.wait_until(lambda: shown in (tmp_path / "said").read_text(), 60, "the stacks")
    (tmp_path / "end").touch()
    assert running.wait(250) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="real-time signals")
def test_a_signal_that_somebody_handles_stays_theirs(rank, listener):
    for handle in (
        "signal.signal(n, print)",
        "signal.signal(n, signal.SIG_IGN)",
        "ctypes.CDLL(None).signal(n, ctypes.CDLL(None).abs)",
    ):
        rank(
            f"import ctypes, signal, ezpz; n = signal.SIGRTMIN + 11; {handle}\n"
            "before = open('/proc/self/status').read().partition('SigCgt')[2][:20]\n"
            "ezpz.heartbeat()\n"
            "assert open('/proc/self/status').read().partition('SigCgt')[2][:20] == before"
        )
    assert spoken(listener) == [["stage step", "beat"]] * 3
    assert not any(line.startswith("dumps") for lines in listener.lines for line in lines)


def test_an_open_connection_brings_no_warning_at_the_end(rank):
    rank("import ezpz; ezpz.heartbeat()", options=["-X", "dev", "-W", "error"])
