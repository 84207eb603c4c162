"""What a hanging process is doing, as real Pythons, real torch ranks, py-spy and the kernel tell it."""

import os
import pickle
import signal
import sys
import time
from pathlib import Path

import pytest

import ezpz
from ezpz.launch.host import rank_start
from ezpz.launch.host.process_stacks import (
    Frame,
    SeenThread,
    awaited_child,
    awaited_file,
    kernel_state,
    main_of,
    parse_dump,
    py_spy,
    pythons,
    source_line,
    stage_of,
    switches,
)
from ezpz.launch.stack_groups import locate, summarise
from lab.listener import Listener, as_rank
from lab.process import kill_group, program, wait_until

SRC = str(Path(ezpz.__file__).parents[1])
HANG_TORCH = Path(__file__).with_name("scripts") / "hang_torch.py"
OTHERS = sorted(Path("~/.pyenv/versions").expanduser().glob("3.1[0-9]*/bin/python3"))
PYTHONS = {sys.executable: "this", **{str(path): path.parts[-3] for path in OTHERS}}

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
THREADS = """\
import queue, threading, time

def load():
    queue.Queue().get()

def rest():
    print("ready", flush=True); time.sleep(600)

threading.Thread(target=load, daemon=True).start()
rest()
"""


@pytest.fixture
def start(start_launch, clean_env, tmp_path):
    """`start(args, **env)` -> a process whose stderr goes to `process.said`, a file."""
    started = []

    def run(args, **env):
        said = tmp_path / f"stderr-{len(started)}"
        with said.open("wb") as file:
            process = start_launch(*args, env={**clean_env, **env}, line=[], text=False, stderr=file)
        process.said = said
        started.append(process)
        return process

    yield run
    for process in started:
        kill_group(process)


@pytest.fixture
def threads(tmp_path):
    path = tmp_path / "threads.py"
    path.write_text(THREADS)
    return path


def ready(process):
    assert process.stdout.readline() == b"ready\n", process.said.read_text()
    return process


def dumped(process, number, frames=1):
    """Send the signal, and return the main thread's frames once that many are there."""
    os.kill(process.pid, number)
    wait_until(lambda: len(parse_dump(process.said.read_text())) >= frames, 15, "a dump")
    return parse_dump(process.said.read_text())


def test_an_abort_shows_the_main_threads_stack(start, threads, subtests):
    started = {name: start([python, threads], PYTHONFAULTHANDLER="1") for python, name in PYTHONS.items()}
    expected = [Frame("rest", str(threads), 7), Frame("<module>", str(threads), 10)]
    for name, process in started.items():
        with subtests.test(name):
            os.kill(ready(process).pid, signal.SIGABRT)
            assert process.wait(200) == -signal.SIGABRT  # before that, threads are only partly written
            assert parse_dump(process.said.read_text()) == expected


OTHER_THREAD = """\
import faulthandler, signal, threading, time

faulthandler.register(45, all_threads=True)
other = threading.Thread(target=time.sleep, args=(600,), daemon=True)
other.start()

def rest():
    signal.pthread_kill(other.ident, 45)
    time.sleep(600)

rest()
"""


@linux
def test_a_thread_that_gets_the_signal_is_not_taken_for_the_main_one(start, tmp_path, subtests):
    """So it is when a library blocks the signal in the main thread."""
    (tmp_path / "other.py").write_text(OTHER_THREAD)
    started = {name: start([python, tmp_path / "other.py"]) for python, name in PYTHONS.items()}
    for name, process in started.items():
        with subtests.test(name):
            wait_until(lambda said=process.said: len(parse_dump(said.read_text())) >= 2, 15, "a dump")
            text = process.said.read_text()
            assert [frame.function for frame in parse_dump(text)] == ["rest", "<module>"]
            assert "_bootstrap" in text.partition("Current thread")[2].partition("\n\n")[0]


def test_lines_of_others_and_other_versions_do_not_confuse_a_dump():
    """3.14 (CPython main, Python/traceback.c): names of threads, notes, and the stack of C below that of Python."""
    text = (
        'epoch 1:  10%|#   Traceback (most recent call last):\n  File "old.py", line 3, in <module>\nOSError\n'
        "Fatal Python error: Aborted\n\n"
        "Thread 0x00007f9e466c06c0 [Thread-1 (w)] (most recent call first):\n"
        '  File "/usr/lib/python3.14/threading.py", line 369 in wait\n'
        '  File "/usr/lib/python3.14/threading.py", line 1044 in _bootstrap\n\n'
        "epoch 1:  20%|##\rCurrent thread 0x00007f9e47b5fb80 [python] (most recent call first):\n"
        "  Garbage-collecting\n"
        "[W1121 socket.cpp:1] a warning in between\n"
        '  File "/home/me/my file.py", line 5 in f\r\n'
        "  File ???, line ??? in <module>\n\n"
        "Current thread's C stack trace (most recent call first):\n"
        '  Binary file "/usr/lib/libpython3.14.so", at _Py_DumpStack+0x31 [0x7f9e47c0d0a1]\n\n'
        "Extension modules: numpy._core._multiarray_umath (total: 1)\n"
    )
    assert parse_dump(text) == [Frame("f", "/home/me/my file.py", 5), Frame("<module>", "", 0)]
    no_frame = "Timeout (0:00:01)!\nThread 0x0000000000000001 (most recent call first):\n  <no Python frame>\n"
    assert parse_dump(no_frame) == []
    assert parse_dump("nothing of the kind") == []


def test_of_two_dumps_the_last_counts():
    block = 'Current thread 0x01 (most recent call first):\n  File "a.py", line {} in f\n'
    assert parse_dump(block.format(1) + "\n" + block.format(2)) == [Frame("f", "a.py", 2)]


def test_an_import_in_progress_is_named(start, tmp_path):
    """A package whose own first import never ends, where packages are kept: `import torch` from a dead file system."""
    packages = tmp_path / "site-packages"
    program(packages / "torch" / "__init__.py", "import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    (tmp_path / "train.py").write_text("import torch\n")
    process = ready(start([sys.executable, "train.py"], PYTHONFAULTHANDLER="1", PYTHONPATH=str(packages)))
    place = locate(dumped(process, signal.SIGABRT, 3))
    assert (place.what, Path(place.file).name, place.line) == ("import torch", "train.py", 1)


@linux
def test_a_python_behind_a_shell_is_found(start, threads):
    process = ready(start(["sh", "-c", f"'{sys.executable}' '{threads}'; true"]))
    (python,) = pythons(process.pid)
    assert python != process.pid
    assert pythons(python) == [python]
    assert stage_of(process.pid) == "interpreter"
    assert stage_of(os.getpid()) == "interpreter" or "torch" in sys.modules


@linux
def test_the_kernel_says_what_a_program_without_python_does(start):
    process = start(["sleep", "600"])
    wait_until(lambda: kernel_state(process.pid).endswith("(sleep)"), 10, "sleep")
    wait_until(lambda: kernel_state(process.pid).startswith("sleeping"), 10, "its sleep")
    busy = start(["sh", "-c", "while :; do :; done"])
    wait_until(lambda: kernel_state(busy.pid).startswith("running ("), 10, "a busy shell")
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: kernel_state(process.pid).startswith("stopped"), 10, "its stop")
    process.kill()
    wait_until(lambda: kernel_state(process.pid) == "ended (sleep)", 10, "its end")
    process.wait(200)
    assert kernel_state(process.pid) == "gone"
    assert (pythons(process.pid), stage_of(process.pid)) == ([], "")


@linux
@pytest.mark.skipif(not Path("/proc/self/syscall").exists(), reason="this kernel has no /proc/PID/syscall")
def test_a_file_that_a_process_waits_for_is_named_with_its_mount(start, tmp_path):
    pipe = tmp_path / "a pipe"
    os.mkfifo(pipe)
    for name in (pipe.name, pipe):
        process = start(["sh", "-c", f"cd '{tmp_path}' && read line < '{name}'"])
        wait_until(lambda pid=process.pid: awaited_file(pid).startswith(f"{pipe} on /"), 10, "its open")
        pipe.open("w").close()
        process.wait(200)
        assert awaited_file(process.pid) == ""


@linux
def test_a_process_that_waits_for_no_file_names_none(start):
    process = start(["sleep", "600"])
    wait_until(lambda: kernel_state(process.pid).endswith("(sleep)"), 10, "sleep")
    assert awaited_file(process.pid) == ""


@pytest.fixture
def spy(tmp_path, monkeypatch):
    """`spy(script)` puts a program called py-spy first on PATH."""

    def put(script):
        made = program(tmp_path / "bin" / "py-spy", f"#!/bin/sh\n{script}\n")
        monkeypatch.setenv("PATH", f"{made.parent}:/usr/bin:/bin")

    return put


WAITS = "import subprocess; subprocess.run(['sleep', '600'], **{})"


@linux
def test_a_child_that_a_process_waits_for_is_named(start, subtests):
    for name, options, by_reading in (("by its end", {}, False), ("by what it writes", {"capture_output": True}, True)):
        with subtests.test(name):
            process = start([sys.executable, "-c", WAITS.format(options)])
            wait_until(
                lambda pid=process.pid, way=by_reading: awaited_child(pid, by_reading=way).startswith(
                    "sleep 600 (pid "
                ),
                10,
                "its wait",
            )
            assert "sleeping" in awaited_child(process.pid, by_reading=by_reading)
    alone = start(["sleep", "600"])
    assert awaited_child(alone.pid, by_reading=True) == ""


@linux
def test_a_thread_that_waits_in_one_call_does_not_wake_up(start):
    still, loops = start(["sleep", "600"]), start([sys.executable, "-c", "import time\nwhile 1: time.sleep(0.01)"])
    wait_until(lambda: kernel_state(still.pid).endswith("(sleep)"), 10, "sleep")
    wait_until(lambda: kernel_state(still.pid).startswith("sleeping"), 10, "its sleep")
    first = switches(still.pid)
    began = switches(loops.pid)
    wait_until(lambda: switches(loops.pid) > began + 20, 10, "the loop")
    assert switches(still.pid) == first >= 0
    assert switches(1 << 23) == -1


def test_a_line_of_the_program_is_read(tmp_path):
    (tmp_path / "a.py").write_text(f"x = 1\n    lock.acquire()  # {'x' * 300}\n")
    assert source_line(str(tmp_path / "a.py"), 1) == "x = 1"
    assert source_line(str(tmp_path / "a.py"), 2).startswith("lock.acquire()  # xxx")
    assert len(source_line(str(tmp_path / "a.py"), 2)) == 200
    os.mkfifo(tmp_path / "pipe")
    for file, line in (("a.py", 3), ("a.py", 0), ("none.py", 1), ("pipe", 1), ("/dev/stdin", 1), ("a\0b", 1)):
        assert source_line(str(tmp_path / file), line) == ""


def test_py_spys_answer_is_read(spy):
    """A recorded answer of py-spy 0.4.3, so that the format is tested where it is not installed."""
    frame = '{"name": "%s", "filename": "%s", "module": null, "line": %s, "locals": null}'
    other = f'{{"os_thread_id": 8, "thread_name": "Thread-1 (w)", "frames": [{frame % ("w", "w.py", 1)}]}}'
    main = f'{{"os_thread_id": 7, "thread_name": "MainThread", "frames": [{frame % ("Queue.get", "/q.py", 171)}]}}'
    spy(f"test \"$*\" = 'dump --json --pid 7' && echo '[{other}, {main}]'")
    seen = [SeenThread(8, "Thread-1 (w)", [Frame("w", "w.py", 1)])]
    seen.append(SeenThread(7, "MainThread", [Frame("get", "/q.py", 171)]))
    assert py_spy(7) == seen
    assert main_of(seen, 7) == seen[1]


def test_py_spy_that_is_refused_or_strange_is_no_answer(spy):
    spy("echo 'Permission Denied' >&2; exit 1")
    assert py_spy(7) is None
    (Path(os.environ["PATH"].split(":")[0]) / "py-spy").write_text("#!/bin/sh\necho '[{}]'\n")
    assert py_spy(7) is None


@pytest.mark.slow
def test_py_spy_that_hangs_is_killed_with_all_it_started(spy, tmp_path):
    spy(f"sleep 600 & echo $! > {tmp_path}/child; wait")
    assert py_spy(7) is None
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: kernel_state(child) in {"gone", "ended (sleep)"}, 10, "the end of py-spy's child")


def test_a_real_py_spy_shows_the_main_thread(start, threads):
    if py_spy(os.getpid()) is None:
        pytest.skip("no py-spy that may look at processes")
    process = ready(start([sys.executable, threads]))
    main = main_of(py_spy(process.pid), process.pid)
    assert main.frames == [Frame("rest", str(threads), 7), Frame("<module>", str(threads), 10)]


@pytest.mark.slow
@linux
def test_torch_ranks_that_hang_are_named_in_one_line(start, tmp_path, clean_env):
    """One launch for all that needs torch: stages of each rank, its stack by signal and by abort, flight recorder."""
    listener = Listener()
    (tmp_path / "recorder").mkdir()
    recording = rank_start.settings(str(tmp_path / "recorder"), clean_env)
    common = {"PYTHONPATH": SRC, "PYTHONFAULTHANDLER": "1", **recording}
    ranks = [start([sys.executable, HANG_TORCH], **as_rank(rank, 3, listener.address), **common) for rank in range(3)]
    wait_until(lambda: all((tmp_path / f"ready-{rank}").exists() for rank in range(3)), 100, "the ranks")
    assert [stage_of(rank.pid) for rank in ranks] == ["torch"] * 3
    wait_until(lambda: len(pythons(ranks[1].pid)) == 2, 20, "the data loader's worker")
    listener.wait("stage group")
    for rank, process in enumerate(ranks):
        assert listener.of(rank)[0] == f"rank {rank} {process.pid}"
        stages = [line for line in listener.of(rank) if line.startswith("stage")]
        assert stages == ["stage setup", "stage met", "stage group"]
    number = next(int(line.split()[1]) for line in listener.of(0) if line.startswith("dumps"))

    def places(signum):
        asked = dict.fromkeys(ranks, 0.0)
        before = {process: len(process.said.read_text()) for process in ranks}

        def all_have_told():
            silent = []
            for process, when in asked.items():
                main = process.said.read_text()[before[process] :].rpartition("Current thread")[2]
                if "hang_torch" in main:
                    continue
                silent.append(process)
                # Now and then a thread of gloo gets the signal, and a dump then names no current thread.
                if not when or (signum != signal.SIGABRT and time.monotonic() > when + 5):
                    os.kill(process.pid, signum)
                    asked[process] = time.monotonic()
            return not silent

        wait_until(all_have_told, 20, "the dumps")
        return [locate(parse_dump(process.said.read_text())) for process in ranks]

    lines = HANG_TORCH.read_text().splitlines()
    told = places(number)
    assert [place.what for place in told] == ["all_reduce", "DataLoader", "barrier"]
    for place in told:
        assert place.what in lines[place.line - 1]
        assert place.file == str(HANG_TORCH)
    assert all(process.poll() is None for process in ranks)  # looking does no harm

    dumps = rank_start.ask(str(tmp_path / "recorder"), range(4))
    assert [Path(path).name for path in dumps] == ["rank_0", "rank_1", "rank_2"]
    last = pickle.loads(Path(dumps[0]).read_bytes())["entries"][-1]
    assert (last["profiling_name"], last["state"]) == ("gloo:all_reduce", "scheduled")
    line = summarise((rank, "n01", place) for rank, place in enumerate(told))
    assert line.startswith("rank 0 on n01 in all_reduce (hang_torch.py:")

    assert places(signal.SIGABRT) == told
    listener.close()
