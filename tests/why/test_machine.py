"""The rules about the machine under a run, each with its table of records and the cause that they show."""

from ezpz.fields import as_far_as_it_fits
from ezpz.records.launch_record import Kernel
from ezpz.why import Certainty, Facts, diagnose
from ezpz.why.machine import killed_for_memory, not_killed_for_memory, size_in_words

GROUP = {
    "group": "/sys/fs/cgroup/job_1",
    "oom_kill": [0, 1],
    "host_oom_kill": [3, 4],
    "peak": 8 << 30,
    "limit": 8 << 30,
}
NONE = {**GROUP, "oom_kill": [0, 0], "host_oom_kill": [3, 3]}
ELSEWHERE = {**GROUP, "oom_kill": [2, 2]}
OF_HOST = {**GROUP, "group": None, "oom_kill": None, "limit": None, "peak": None}
TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n    go()\n'
DUMP = "Fatal Python error: Aborted\n\nCurrent thread 0x00007fc1 (most recent call first):\n"
CRASHED = (  # where one thread was, of which the other one ran no Python
    "Fatal Python error: Illegal instruction\n\n{0} 0x00007fc1 (most recent call first):\n{1}\n\n"
    "Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)\n"
)
IN_LIBRARY = '  File "/usr/lib/python3.11/ctypes/__init__.py", line 518 in string_at'
FULL = TRACEBACK + "OSError: [Errno 28] No space left on device: '/scratch/a.pt'\n"
ROOM = [{"path": "/scratch", "free": 0, "files": 9, "size": 20 << 20}]

OF_THE_MACHINE = {"out-of-memory", "disk-full", "device-fault", "memory-refused", "killed-by-signal", "crashed"}


def failed(rank=1, **more):
    return {"text": f"rank {rank} failed", "rank": rank, "host": "n02", "step": 7, "signal": None, "code": None, **more}


def first(cause, *others, state="failed"):
    found = diagnose(Facts({"state": state, "exit_code": 1, "cause": cause, "failures": list(others)}))
    return found[0] if found else None


FAILURES = [  # what run.json has of a failed rank, the cause, and what its sentence holds
    (failed(signal="SIGKILL", kernel=GROUP), "out-of-memory", "its cgroup's limit of 8 GiB, oom_kill 0 → 1"),
    (failed(signal="SIGKILL", kernel={**GROUP, "limit": None}), "out-of-memory", "the host's memory was used up"),
    (failed(signal="SIGKILL", kernel=OF_HOST), "out-of-memory", "the kernel of its host, oom_kill 3 → 4"),
    (failed(code=137, kernel=GROUP), "out-of-memory", "lost a process that it had started"),
    (failed(code=1, words="RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. ", kernel=GROUP),
     "out-of-memory", "lost a process"),
    (failed(signal="SIGKILL", kernel=NONE), "killed-by-signal", "killed by SIGKILL, which launch did not send"),
    (failed(signal="SIGKILL", kernel=ELSEWHERE), "killed-by-signal", "killed by SIGKILL"),
    (failed(signal="SIGKILL", kernel=None), "killed-by-signal", "killed by SIGKILL"),
    (failed(code=137, kernel=NONE), "killed-by-signal", "ended with its program, which was killed by SIGKILL"),
    (failed(signal="SIGTERM", kernel=NONE), "killed-by-signal", "killed by SIGTERM, which launch did not send"),
    (failed(signal="SIGTERM", why="its launcher sent it that signal"), "killed-by-signal", "had sent"),
    (failed(signal="SIGSEGV", kernel=NONE), "crashed", "crashed with SIGSEGV"),
    (failed(signal="SIGABRT", words=f'{TRACEBACK}ValueError: x\n{DUMP}  File "a.py", line 3 in f\n'), "crashed",
     "crashed with SIGABRT"),
    (failed(signal="SIGABRT", words=f"{TRACEBACK}ValueError: shown\nepoch 3\nterminate called after throwing\n"),
     "crashed", "crashed with SIGABRT"),
    (failed(code=139), "crashed", "ended with its program, which crashed with SIGSEGV"),
    (failed(code=1, words=FULL, room=ROOM), "disk-full", "no space left on /scratch (0 bytes of 20 MiB free"),
    (failed(code=1, words=FULL), "disk-full", "no space left for /scratch/a.pt"),
    (failed(code=1, words=FULL, room=[{**ROOM[0], "free": 1 << 40}]), "disk-full",
     "no space left for /scratch/a.pt"),
    (failed(code=1, words=TRACEBACK + "OSError: [Errno 122] Disk quota exceeded: '/h/a'\n", room=[]), "disk-full",
     "has used up its quota for /h/a"),
    (failed(code=1, words=TRACEBACK + "RuntimeError: PytorchStreamWriter failed writing file data/0\n", room=ROOM),
     "disk-full", "on /scratch"),
    (failed(code=1, words=TRACEBACK + "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"),
     "device-fault", "uncorrectable ECC error"),
    (failed(signal="SIGILL", words=CRASHED.format("Current thread", '  File "/home/me/train.py", line 19 in <module>')),
     "crashed", "rank 1 crashed with SIGILL at train.py:19"),
    (failed(signal="SIGSEGV", words=CRASHED.format("Thread", '  File "/home/me/train.py", line 19 in <module>')),
     "crashed", "crashed with SIGSEGV in a thread that runs no Python of yours"),
    (failed(signal="SIGSEGV", words=CRASHED.format("Current thread", IN_LIBRARY)), "crashed",
     "crashed with SIGSEGV while it ended, after step 7"),
    (failed(signal="SIGSEGV", words=CRASHED.format("Current thread", f"{IN_LIBRARY}\n  ...")), "crashed",
     "crashed with SIGSEGV"),
    (failed(signal="SIGXCPU"), "killed-by-signal", "killed by SIGXCPU, the kernel's signal for a used up limit of CPU"),
    (failed(code=128 + 24), "killed-by-signal", "ended with its program, which was killed by SIGXCPU"),
    (failed(signal="SIGPIPE"), "killed-by-signal", "killed by SIGPIPE, the kernel's signal for writing into a pipe"),
    (failed(code=1, words=TRACEBACK + "RuntimeError: unable to write to file </torch_7_8_0>: No space left on device "
     "(28)\n", room=[{**ROOM[0], "path": "/dev/shm"}]), "disk-full", "found no space left on /dev/shm"),
    (failed(code=1, words=TRACEBACK + "MemoryError\n", kernel=NONE), "memory-refused", "killed nothing"),
    (failed(signal="SIGABRT", words="  what():  std::bad_alloc\n", kernel=NONE), "memory-refused", "was refused"),
    (failed(code=1, words=TRACEBACK + "torch.OutOfMemoryError: CUDA out of memory.\n"), "out-of-device-memory",
     "its device"),
]  # fmt: skip


def test_the_cause_of_a_failure(subtests):
    for number, (failure, cause, words) in enumerate(FAILURES):
        with subtests.test(f"{number}: {cause}"):
            found = first(failure)
            assert found is not None
            assert (found.cause, found.rank, found.host, found.step) == (cause, 1, "n02", 7)
            assert words in found.text
            assert found.text.startswith("rank 1 ")


INNOCENT = [
    failed(code=3, kernel=NONE),
    failed(code=3, kernel=GROUP),  # something else was killed, and nothing says that it was the rank's
    failed(code=1, words=TRACEBACK + "ValueError: x\n", room=[], kernel=NONE),
    failed(signal="SIGABRT", words=f"{TRACEBACK}ValueError: x\n{DUMP}  <no Python frame>\n"),  # while it ended
    failed(signal="SIGABRT", words=TRACEBACK + "ValueError: x\nterminate called without an active exception\n"),
    failed(code=1, words=TRACEBACK + "RuntimeError: PytorchStreamWriter failed writing file data/0\n",
           room=[{**ROOM[0], "free": 1 << 40}]),
]  # fmt: skip


def test_what_the_machine_did_not_do(subtests):
    for number, failure in enumerate(INNOCENT):
        with subtests.test(number):
            found = first(failure)
            assert found is None or found.cause not in OF_THE_MACHINE


def test_a_rank_that_was_killed_for_memory_comes_before_those_that_lost_it():
    lost = failed(0, code=1, words=TRACEBACK + "RuntimeError: Connection closed by peer [gloo]\n", kernel=GROUP)
    found = first(lost, failed(1, signal="SIGKILL", kernel=GROUP))
    assert (found.cause, found.rank) == ("out-of-memory", 1)
    assert found.consequences == ("rank 0 failed",)


def test_a_crash_shows_its_core_and_names_no_variable_that_launch_sets():
    words = CRASHED.format("Current thread", '  File "/home/me/train.py", line 19 in <module>')
    for each in (failed(signal="SIGSEGV", words=words), failed(signal="SIGSEGV")):
        found = first(each)
        assert "PYTHONFAULTHANDLER" not in found.advice
        assert "ulimit -c" in found.advice


def test_what_was_said_before_a_crash_is_shown():
    words = CRASHED.format("Current thread", '  File "/home/me/train.py", line 19 in <module>')
    found = first(failed(signal="SIGABRT", words=f"double free or corruption (!prev)\n{words}"))
    assert found.text == "rank 1 crashed with SIGABRT at train.py:19"
    assert "it wrote before that: double free or corruption (!prev)" in found.evidence


def test_an_unknown_instruction_on_one_host_of_several_points_at_its_cpu():
    plan = {"hosts": ["n01", "n02"], "ranks_per_host": [1, 2], "world_size": 3}

    def told(*failures):
        launch = {"state": "failed", "exit_code": 132, "plan": plan, "cause": failures[0], "failures": [*failures[1:]]}
        return diagnose(Facts(launch))[0]

    here = [failed(1, signal="SIGILL"), failed(2, signal="SIGILL")]
    found = told(*here)
    assert found.text.startswith("rank 1 on n02 crashed with SIGILL")
    assert any("CPU" in each for each in found.evidence)
    assert "lscpu" in found.advice
    assert not any("CPU" in each for each in told(*here, {**failed(0, signal="SIGILL"), "host": "n01"}).evidence)


def test_an_exception_for_want_of_memory_is_shown_once():
    words = TRACEBACK + "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.46 TiB for an array\n"
    found = diagnose(Facts({"state": "failed", "exit_code": 1, "cause": failed(code=1, words=words, kernel=NONE)}))
    assert [each.cause for each in found] == ["memory-refused"]
    assert any("1.46 TiB" in each for each in found[0].evidence)


def test_a_run_that_was_stopped_or_is_well_has_no_cause_of_the_machine():
    for state in ("stopped", "finished"):
        found = first(failed(signal="SIGTERM", words=FULL, kernel=GROUP), state=state)
        assert found is None or found.cause not in OF_THE_MACHINE, state


def test_a_counter_that_is_missing_or_broken_is_unknown():
    for kernel in (None, {}, {"oom_kill": "x"}, {"oom_kill": [1]}, {"oom_kill": [None, 1]}):
        counted = as_far_as_it_fits(Kernel, kernel or {}, [])
        assert not killed_for_memory(counted), kernel
        assert not not_killed_for_memory(counted), kernel


def test_certainty_is_that_of_the_counter():
    assert first(failed(signal="SIGKILL", kernel=GROUP)).certainty == Certainty.SEEN
    assert first(failed(signal="SIGKILL", kernel=OF_HOST)).certainty == Certainty.SHOWN


def test_a_kill_elsewhere_on_the_host_is_told_as_such():
    found = first(failed(signal="SIGKILL", kernel=ELSEWHERE))
    assert "it counted 1 elsewhere on the host meanwhile" in found.evidence


def test_sizes_in_words():
    sizes = (0, 1023, 8 << 30, 1536 << 10, 1 << 62)
    assert [*map(size_in_words, sizes)] == ["0 bytes", "1023 bytes", "8 GiB", "1.5 MiB", "4096 PiB"]


def test_of_several_full_disks_none_is_picked_where_the_exception_names_no_file():
    room = [ROOM[0], {**ROOM[0], "path": "/tmp"}]
    words = TRACEBACK + "OSError: [Errno 28] No space left on device\n"
    assert first(failed(code=1, words=words, room=room)).text.endswith("found no space left on /scratch or /tmp")
    assert "on /scratch (0 bytes" in first(failed(code=1, words=FULL, room=room)).text
