"""`ezpz why --logs`: what launches left that ezpz did not start."""

import gzip
import json
import os
import pickle
import textwrap
from pathlib import Path

import pytest

from ezpz.cli import why

HERE = Path(__file__).parent

RAISED = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 31, in <module>
    main()
  File "/home/me/train.py", line 12, in main
    raise ValueError("negative pressure")
ValueError: negative pressure
"""
LOST = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 21, in <module>
    dist.all_reduce(x)
  File "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce
    work.wait()
RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:2345
"""
STEPS = "step 1 loss 2.41\nstep 2 loss 2.33\n"
CAUGHT = RAISED + "the shard is skipped\n" + "".join(f"step {step} loss 2.1\n" for step in range(20))
TORCHRUN = """\
W1129 07:45:01.100000 4700 torch/distributed/elastic/multiprocessing/api.py:1010] Sending process 4711 closing signal \
SIGTERM
E1129 07:45:01.200000 4700 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: {code}) \
local_rank: 1 (pid: 4712) of binary: /usr/bin/python3
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/usr/lib/python3.11/site-packages/torch/distributed/run.py", line 1039, in run
    elastic_launch(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[0]:
  time      : 2026-11-29_07:45:01
  host      : n01
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 4711)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[1]:
  time      : 2026-11-29_07:45:00
  host      : n01
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 4712)
  error_file: <N/A>
  traceback : {more}
============================================================
"""
SRUN = """\
slurmstepd: error: Detected 1 oom_kill event in StepId=123.0. Some of the step tasks have been OOM Killed.
srun: error: n02: task 3: Out Of Memory
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
srun: error: n01: tasks 0-2: Killed
"""
WATCHDOG = """\
[rank{rank}]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation \
timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600061 milliseconds \
before timing out.
[rank{rank}]:[E1206 18:44:12.715588844 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] \
Exception (either an error or timeout) detected by watchdog at work: 8, last enqueued NCCL work: 8, last \
completed NCCL work: 7.
terminate called after throwing an instance of 'c10::DistBackendError'
"""


def tagged(rank, text):
    return textwrap.indent(text, f"[rank{rank}]: ")


def labelled(rank, text):
    return textwrap.indent(text, f"{rank}: ")


def dump(rank, done, place="train.py"):
    """Return what NCCL's watchdog writes of a rank whose last collective is the one with this number."""
    entries = [
        {
            "process_group": ("0", "default_pg"),
            "collective_seq_id": seq,
            "is_p2p": False,
            "profiling_name": "nccl:all_reduce",
            "input_sizes": [[4]],
            "state": "completed" if seq < 8 else "scheduled",
            "retired": seq < 8,
            "time_created_ns": 1_790_000_000_000_000_000 + seq * 1_000_000,
            "frames": [{"filename": f"/home/me/{place}", "line": 15, "name": "<module>"}],
        }
        for seq in range(1, done + 1)
    ]
    group = {"0": {"name": "default_pg", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    return {"version": "2.10", "pg_config": group, "pg_status": {}, "entries": entries, "rank": rank}


@pytest.fixture
def asked(tmp_path, monkeypatch, capsys):
    """`asked({name: text or bytes}, *options)` returns code, stdout and stderr of `ezpz why --logs` over them."""
    monkeypatch.chdir(tmp_path)

    def ask(files, *options):
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        code = why.main([*options, "--logs", *files])
        out, err = capsys.readouterr()
        return code, out, err

    return ask


def first(asked, files):
    code, out, err = asked(files, "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    return told, (told["causes"] or [None])[0]


REPORT = TORCHRUN.format(code=1, more="To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html")
KILLED = TORCHRUN.format(code=-9, more="Signal 9 (SIGKILL) received by PID 4712")
STACK = TORCHRUN.format(code=1, more=RAISED.replace("\n", "\n  ").rstrip())
LOGS = {
    # files, how ranks are told, rank, words of the first cause
    "srun -o log.%t": ({"log.0": STEPS + tagged(0, LOST), "log.1": STEPS + RAISED}, "file names", 1,
                       "rank 1 raised ValueError: negative pressure (train.py:12)"),
    "a number that counts": ({"slurm-123_0.out": STEPS + LOST, "slurm-123_1.out": STEPS + RAISED},
                             "the numbers in file names", 1, "rank 1 raised ValueError: negative pressure"),
    "srun --label": ({"slurm-123_4.out": "loading modules\n" + labelled(0, STEPS + LOST) + labelled(1, STEPS + RAISED)},
                     "the labels of srun --label", 1, "rank 1 raised ValueError: negative pressure"),
    "mpiexec -prepend-rank": ({"job.o81": textwrap.indent(STEPS + RAISED, "[2] ")},
                              "the labels of mpiexec -prepend-rank", 2, "rank 2 raised ValueError"),
    "mpirun --tag-output": ({"job.o81": textwrap.indent(STEPS + RAISED, "[1,2]<stderr>:")},
                            "the labels of mpirun --tag-output", 2, "rank 2 raised ValueError"),
    "torchrun --tee": ({"out.txt": textwrap.indent(STEPS, "[default0]:")
                        + textwrap.indent(STEPS + RAISED, "[default1]:") + REPORT}, "the labels of torchrun --tee", 1,
                       "rank 1 raised ValueError: negative pressure"),
    "torchrun, tags": ({"train.log": STEPS + tagged(0, LOST) + tagged(1, RAISED) + REPORT}, "torch's tags [rankN]", 1,
                       "rank 1 raised ValueError: negative pressure (train.py:12)"),
    "torchrun, no tags": ({"train.log": STEPS + RAISED + REPORT}, "the report of its launcher", 1,
                          "rank 1 raised ValueError: negative pressure (train.py:12)"),
    "torchrun and @record": ({"train.log": STEPS + STACK}, "the report of its launcher", 1,
                             "rank 1 raised ValueError: negative pressure (train.py:12)"),
    "torchrun, killed": ({"train.log": STEPS + KILLED}, "the report of its launcher", 1,
                         "rank 1 was killed by SIGKILL, and nothing says who sent it"),
    "torchrun --log-dir": ({"d/x_1/attempt_0/0/stderr.log": LOST, "d/x_1/attempt_0/1/stderr.log": RAISED,
                            "d/x_1/attempt_0/1/stdout.log": STEPS}, "file names", 1, "rank 1 raised ValueError"),
    "error.json": ({"d/x_1/attempt_0/1/error.json": json.dumps({"message": {"message": "ValueError: negative pressure",
                    "extraInfo": {"py_callstack": RAISED, "timestamp": "1764403500"}}})}, "file names", 1,
                   "rank 1 raised ValueError"),
    "tags over a local rank's name": ({"d/x_1/attempt_0/0/stderr.log": tagged(4, RAISED)}, "torch's tags [rankN]", 4,
                                      "rank 4 raised ValueError"),
    "out of memory": ({"slurm-123.out": STEPS + SRUN}, "the report of its launcher", 3,
                      "rank 3 was killed by the kernel, out of memory"),
    "srun and a crash": ({"slurm-123.out": STEPS + "srun: error: n02: task 3: Segmentation fault (core dumped)\n"},
                         "the report of its launcher", 3, "rank 3 crashed with SIGSEGV"),
    "Open MPI": ({"job.o81": "mpirun noticed that process rank 1 with PID 0 on node n01 exited on signal 9 (Killed)."},
                 "the report of its launcher", 1, "rank 1 was killed by SIGKILL"),
    "Intel MPI": ({"job.o81": "=   RANK 1 PID 4711 RUNNING AT n01\n=   KILLED BY SIGNAL: 11 (Segmentation fault)\n"},
                  "the report of its launcher", 1, "rank 1 crashed with SIGSEGV"),
    "a time limit": ({"slurm-123.out": tagged(0, STEPS) + "slurmstepd: error: *** JOB 123 ON n01 CANCELLED AT "
                      "2026-11-29T07:45:00 DUE TO TIME LIMIT ***\n"}, "torch's tags [rankN]", None,
                     "Slurm ended job 123 at 2026-11-29T07:45:00: its time limit was over"),
    "nobody's": ({"job.o81": RAISED + tagged(0, STEPS)}, "torch's tags [rankN]", None,
                 "a rank raised ValueError: negative pressure (train.py:12), and no log says which one"),
    "order": ({"a.txt": STEPS, "b.txt": STEPS + RAISED}, "the order of the files, as nothing else does", 1,
              "rank 1 raised ValueError"),
    "NCCL's dumps": ({f"nccl_trace_rank_{rank}": pickle.dumps(dump(rank, 7 if rank == 1 else 8), 2)
                      for rank in range(3)},
                     "file names", 1, "rank 1 is elsewhere, and never came to all_reduce #8 (train.py:15)"),
    "the same as JSON": ({f"nccl_trace_rank_{rank}.json": json.dumps(dump(rank, 7 if rank == 1 else 8))
                          for rank in range(3)},
                         "file names", 1, "rank 1 is elsewhere, and never came to all_reduce #8"),
    "colours and progress bars": ({"log.0": STEPS, "log.1": "10%\r20%\r\n\x1b[31m" + RAISED.replace("\n", "\r\n")},
                                  "file names", 1, "rank 1 raised ValueError"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_the_rank_that_failed_first_is_named(asked, name):
    files, way, rank, words = LOGS[name]
    told, cause = first(asked, files)
    assert cause is not None, told
    assert (cause["rank"], cause["text"][: len(words)]) == (rank, words), told
    assert way in {each["by"] for each in told["logs"]}
    assert {"steps", "the kernel's counts of memory"} <= set(told["unknown"])


RECORDED = {  # logs of torchrun (torch 2.13, gloo, 3 ranks) as the shell got them: how ranks are told, rank, words
    "raised": ("torch's tags [rankN]", 1, "rank 1 raised OSError: shard 6 is truncated (train.py:6)"),
    "raised-tee": ("the labels of torchrun --tee", 1, "rank 1 raised OSError: shard 6 is truncated (train.py:6)"),
    "raised-before-the-group": ("the report of its launcher", 1,
                                "rank 1 raised RuntimeError: no licence on this host (train.py:3)"),
    "crashed": ("torch's tags [rankN]", 1, "rank 1 crashed with SIGSEGV"),
    "left-early": ("torch's tags [rankN]", 1, "rank 1 ended with code 0 while other ranks still waited for it"),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDED)
def test_a_log_that_torchrun_left_is_understood(asked, name):
    way, rank, words = RECORDED[name]
    told, cause = first(asked, {"train.log": (HERE / "recorded_logs" / f"{name}.log").read_bytes()})
    assert (cause["rank"], cause["text"][: len(words)]) == (rank, words), told
    assert [each["by"] for each in told["logs"]] == [way]


HEALTHY = {
    "no trouble": {"log.0": STEPS, "log.1": STEPS + "done\n"},
    "a traceback that was caught": {"log.0": STEPS, "log.1": CAUGHT},
    "a number in front of lines": {"notes.txt": "1: first\n2: second\nand no more\nand no more\n"},
    "dumps of ranks that are equal": {f"nccl_trace_rank_{rank}": pickle.dumps(dump(rank, 7), 2) for rank in range(3)},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_nobody_is_accused_where_no_log_shows_a_failure(asked, name):
    code, out, err = asked(HEALTHY[name])
    assert (code, err) == (0, "")
    assert "\nnothing in them says that a rank failed" in out
    assert json.loads(asked(HEALTHY[name], "--json")[1])["causes"] == []


def test_what_no_log_tells_is_said(asked):
    out = asked({"log.0": STEPS, "log.1": STEPS + RAISED})[1]
    assert out.startswith("by the logs of a launch of at least 2 ranks that ezpz did not start:\n\nrank 1 raised ")
    assert out.endswith(
        "ranks are told by file names: 2 files, log.0 to log.1\n"
        "not in these logs: steps, the kernel's counts of memory, hosts, exit codes and\n"
        "signals, the last collectives\n"
    )


def test_of_two_that_failed_without_an_order_it_says_that_it_does_not_know_it(asked):
    assert "which rank failed first" in first(asked, {"log.0": RAISED, "log.1": RAISED})[0]["unknown"]


def test_waiting_ranks_are_no_first_cause(asked):
    told, _ = first(asked, {"log.0": WATCHDOG.format(rank=0), "log.1": STEPS + tagged(1, RAISED)})
    assert told["causes"][0]["text"].startswith("rank 1 raised ValueError")


def test_a_file_that_is_not_there_or_no_file_is_one_error(asked, tmp_path, capsys):
    (tmp_path / "logs").mkdir()
    for name, words in (("gone.log", "there is no gone.log (from --logs)"), ("logs", "find logs -type f")):
        assert why.main(["--logs", name]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("ezpz: ")
        assert err.count("\n") == 1
        assert words in err


def test_empty_packed_and_binary_files_are_left_out_in_words(asked):
    files = {"log.0": STEPS, "log.1": b"", "core.7": b"\x7fELF\0\0\0", "log.2.gz": gzip.compress(b"x"), "log.3": RAISED}
    code, out, err = asked(files)
    assert (code, err) == (0, "")
    assert "\nrank 3 raised ValueError" in out
    for words in ("log.1: it is empty", "core.7: it is binary", "log.2.gz: it is compressed; give it as <(zcat FILE)"):
        assert words in out
    code, out, err = asked({"log.1": b""})
    assert (code, out) == (2, "")
    assert err.startswith("ezpz: no log among the files of --logs: log.1: it is empty")


def test_a_pickle_that_would_run_something_runs_nothing(asked, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    out = asked({"nccl_trace_rank_0": pickle.dumps(Evil(), 2), "log.1": RAISED})[1]
    assert "nccl_trace_rank_0: it is no dump of torch's recorder" in out
    assert not (tmp_path / "made").exists()


def test_of_a_huge_log_the_end_is_read(asked):
    line = b"step 1 loss 2.41\n"
    code, out, _ = asked({"log.0": line * (20 << 20 >> 4) + RAISED.encode()})
    assert code == 0
    assert "\nrank 0 raised ValueError: negative pressure" in out
    assert "log.0: only its last 16 MiB of " in out


def test_logs_and_a_launch_are_two_questions(asked):
    assert asked({"log.0": RAISED}, "4f1c")[0] == 2
