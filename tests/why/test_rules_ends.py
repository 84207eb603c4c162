"""Ends as a launch records them, each with the cause that must stand first."""

from ezpz.why import Certainty, Facts, diagnose, last_line

PLAN = {"hosts": ["n01", "n02"], "ranks_per_host": [1, 1], "world_size": 2}
TRACE = (
    "[rank1]: Traceback (most recent call last):\n"
    '[rank1]:   File "/home/me/train.py", line 31, in <module>\n'
    "[rank1]:     step()\n"
    '[rank1]:   File "/venv/lib/python3.11/site-packages/torch/nn/module.py", line 9, in step\n'
    "[rank1]:     raise ValueError(x)\n"
    "[rank1]: ValueError: no such shard\n"
)
MISMATCH = (
    "size mismatch for weight: copying a param with shape torch.Size([4, 4]) from checkpoint, the shape in current "
    "model is torch.Size([4, 5])."
)
SIZES = (
    "Traceback (most recent call last):\n"
    '  File "/home/me/train.py", line 9, in <module>\n'
    "    wider.load_state_dict(saved.state_dict())\n"
    '  File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 2639, in load_state_dict\n'
    "    raise RuntimeError(\n"
    "RuntimeError: Error(s) in loading state_dict for Linear:\n"
    f"\t{MISMATCH}\n"
    "\tsize mismatch for bias: copying a param with shape torch.Size([4]) from checkpoint, the shape in current model "
    "is torch.Size([5]).\n"
    "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: leaked\n"
)
WORKER = (
    "Traceback (most recent call last):\n"
    '  File "/home/me/train.py", line 19, in <module>\n'
    "    for step, _ in enumerate(loader):\n"
    '  File "/venv/lib/python3.11/site-packages/torch/_utils.py", line 775, in reraise\n'
    "    raise exception\n"
    "KeyError: Caught KeyError in DataLoader worker process 0.\n"
    "Original Traceback (most recent call last):\n"
    '  File "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 358, in _worker_loop\n'
    "    data = fetcher.fetch(index)\n"
    '  File "/home/me/train.py", line 14, in __getitem__\n'
    "    raise KeyError('caption of image 77')\n"
    "KeyError: 'caption of image 77'\n\n"
)
COLOURED = '\x1b[35m"/home/me/train.py"\x1b[0m'  # Python 3.13, with FORCE_COLOR
GROUP = (
    "  + Exception Group Traceback (most recent call last):\n"
    '  |   File "/home/me/train.py", line 9, in <module>\n'
    "  |     raise ExceptionGroup('two', found)\n"
    "  |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
    "  | ExceptionGroup: two (1 sub-exception)\n"
    "  +-+---------------- 1 ----------------\n"
    "    | Traceback (most recent call last):\n"
    '    |   File "/home/me/data.py", line 4, in read\n'
    "    |     raise KeyError('b')\n"
    "    | KeyError: 'b'\n"
    "    +------------------------------------\n"
)
BOX = (  # as rich draws it
    "╭─────────────── Traceback (most recent call last) ────────────────╮\n"
    "│ /home/me/train.py:31 in <module>                                 │\n"
    "│ ❱ 31 step()                                                      │\n"
    "╰──────────────────────────────────────────────────────────────────╯\n"
    "ValueError: no such shard\n"
)
SPAWNED = (
    "Traceback (most recent call last):\n"
    '  File "<string>", line 1, in <module>\n'
    '  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 297, in _fixup_main_from_path\n'
    "    main_content = runpy.run_path(main_path,\n"
    '  File "/home/me/train.py", line 6, in <module>\n'
    "    for batch in loader:\n"
    '  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 158, in get_preparation_data\n'
    "    _check_not_importing_main()\n"
    "RuntimeError: \n"
    "        An attempt has been made to start a new process before the\n"
    "        current process has finished its bootstrapping phase.\n\n"
)
GONE = (
    "[rank1]: Traceback (most recent call last):\n"
    '[rank1]:   File "/home/me/train.py", line 6, in <module>\n'
    "[rank1]:     for batch in loader:\n"
    "[rank1]: RuntimeError: DataLoader worker (pid(s) 3451) exited unexpectedly\n"
)
ABORT = "Abort(7) on node 2 (rank 2 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 7) - process 2\n"
OPEN_MPI = (
    "--------------------------------------------------------------------------\n"
    "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n"
    "  Proc: [[5,1],1]\n  Errorcode: 7\n\nNOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.\n"
)
EMPTY = {"text": "", "rank": None, "host": None, "code": None, "signal": None, "words": None, "why": None, "step": None}
LATER = {**EMPTY, "text": "rank 0 on host n01 (pid 11) exited with code 1", "rank": 0, "code": 1}

# what run.json has as its cause -> name, beginning of the text, whether the last line of `launch` says it
CASES = {
    "an exception": (
        {"text": "rank 1 on host n02 (pid 12) exited with code 1", "rank": 1, "code": 1, "words": TRACE},
        ("exception", "rank 1 on n02 raised ValueError: no such shard (train.py:31)", False),
    ),
    "an exception without a file of the user": (
        {"text": "rank 1 …", "rank": 1, "code": 1, "words": "Traceback (most recent call last):\nKeyError: 'a'\n"},
        ("exception", "rank 1 on n02 raised KeyError: 'a'", False),
    ),
    "a code": (
        {"text": "rank 0 on host n01 (pid 11) exited with code 3", "rank": 0, "code": 3},
        ("exit-code", "rank 0 on n01 exited with code 3", False),
    ),
    "a code behind words": (
        {
            "text": "rank 1 …",
            "rank": 1,
            "code": 1,
            "words": "/a/b.py:3: UserWarning: old\n  warn('old')\nstep 3\ntraining failed: bad shard 5\n"
            "[rank1]:[W1129 07:00:00.1 ProcessGroupNCCL.cpp:1496] Warning: destroy_process_group() was not called\n",
        },
        ("exit-code", "rank 1 on n02 exited with code 1; it last wrote: training failed: bad shard 5", False),
    ),
    "a message of several lines": (
        {"text": "rank 1 …", "rank": 1, "code": 1, "words": SIZES},
        (
            "exception",
            f"rank 1 on n02 raised RuntimeError: Error(s) in loading state_dict for Linear: {MISMATCH} (train.py:9)",
            False,
        ),
    ),
    "an exception in a worker of a loader": (
        {"text": "rank 1 …", "rank": 1, "code": 1, "words": WORKER},
        (
            "exception",
            "rank 1 on n02 raised KeyError: 'caption of image 77', in DataLoader worker process 0 (train.py:14)",
            False,
        ),
    ),
    "a script without a main guard whose worker is spawned": (
        {"text": "rank 1 …", "rank": 1, "code": 1, "words": SPAWNED + GONE},
        ("spawned", "rank 1 on n02 spawned a process that ran the script again and raised RuntimeError", True),
    ),
    "a spawned process that failed, and another end": (
        {"text": "rank 1 …", "rank": 1, "code": 1, "words": SPAWNED + TRACE},
        ("exception", "rank 1 on n02 raised ValueError: no such shard (train.py:31)", False),
    ),
    "a worker that was not spawned": (
        {"text": "rank 1 …", "rank": 1, "code": 1, "words": GONE},
        ("exception", "rank 1 on n02 raised RuntimeError: DataLoader worker (pid(s) 3451) exited unexpectedly", False),
    ),
    "MPI_Abort": (
        {"text": "rank 1 …", "rank": 1, "code": 7, "words": f"solver diverged\n{ABORT}"},
        ("mpi-abort", "rank 1 on n02 called MPI_Abort(MPI_COMM_WORLD, 7); it last wrote: solver diverged", False),
    ),
    "MPI_Abort with the code of a signal": (
        {"text": "rank 1 …", "rank": 1, "code": 137, "words": ABORT.replace("7)", "137)")},
        ("mpi-abort", "rank 1 on n02 called MPI_Abort(MPI_COMM_WORLD, 137)", False),
    ),
    "MPI_Abort as older records tell it": (
        {"text": "rank 1 …", "rank": 1, "signal": "SIGKILL", "words": ABORT},
        ("mpi-abort", "rank 1 on n02 called MPI_Abort(MPI_COMM_WORLD, 7)", False),
    ),
    "MPI_Abort after an exception": (
        {"text": "rank 1 …", "rank": 1, "code": 7, "words": TRACE + ABORT},
        (
            "exception",
            "rank 1 on n02 raised ValueError: no such shard (train.py:31), and called MPI_Abort(MPI_COMM_WORLD, 7)",
            False,
        ),
    ),
    "an error of an MPI": (
        {
            "text": "rank 1 …",
            "rank": 1,
            "code": 15,
            "words": "Abort(138023695) on node 0 (rank 0 in comm 0): Fatal error in internal_Init: Other MPI error, "
            "error stack:\nInit(4): failed\n",
        },
        (
            "mpi-abort",
            "rank 1 on n02 was aborted by its MPI: Fatal error in internal_Init: Other MPI error: Init(4): failed",
            False,
        ),
    ),
    "an error of Open MPI": (
        {
            "text": "rank 1 …",
            "rank": 1,
            "code": 15,
            "words": "[n02:12] *** An error occurred in MPI_Recv\n[n02:12] *** reported by process [1,1]\n"
            "[n02:12] *** on communicator MPI_COMM_WORLD\n[n02:12] *** MPI_ERR_TRUNCATE: message truncated\n",
        },
        (
            "mpi-abort",
            "rank 1 on n02 was aborted by its MPI: An error occurred in MPI_Recv: MPI_ERR_TRUNCATE: message truncated",
            False,
        ),
    ),
    "a group of exceptions": (
        {"text": "rank 1 …", "rank": 1, "code": 1, "words": GROUP},
        ("exception", "rank 1 on n02 raised KeyError: 'b' (data.py:4)", False),
    ),
    "a group of exceptions that were not raised": (
        {
            "text": "rank 1 …",
            "rank": 1,
            "code": 1,
            "words": GROUP.partition("    | Traceback")[0]
            + "    | ValueError: a\n    +---------------- 2 ----------------\n    | TypeError: b\n"
            + f"    +{36 * '-'}\n",
        },
        ("exception", "rank 1 on n02 raised ExceptionGroup: two (1 sub-exception): ValueError: a (train.py:9)", False),
    ),
    "a traceback in colours": (
        {"text": "rank 1 …", "rank": 1, "code": 1, "words": TRACE.replace('"/home/me/train.py"', COLOURED)},
        ("exception", "rank 1 on n02 raised ValueError: no such shard (train.py:31)", False),
    ),
    "a traceback in a box": (
        {"text": "rank 1 …", "rank": 1, "code": 1, "words": BOX},
        ("exception", "rank 1 on n02 raised ValueError: no such shard (train.py:31)", False),
    ),
    "a program that cannot be run": (
        {"text": "rank 0 cannot run x", "rank": 0, "code": 127, "why": "cannot run x: No such file or directory"},
        ("exit-code", "rank 0 on n01 exited with code 127: cannot run x: No such file or directory", False),
    ),
    "a signal": (
        {"text": "rank 1 on host n02 (pid 12) was killed by SIGSEGV", "rank": 1, "signal": "SIGSEGV"},
        ("crashed", "rank 1 on n02 crashed with SIGSEGV", False),
    ),
    "a rank that left": (
        {"text": "rank 1 on host n02 (pid 12) exited with code 0 while other ranks …", "rank": 1, "code": 0, "step": 7},
        ("left-early", "rank 1 on n02 ended with code 0 after step 7 while other ranks still waited for it", False),
    ),
    "a lost host": (
        {"text": "host n02 is lost: its connection ended", "host": "n02", "why": "its connection ended"},
        ("host-lost", "host n02 is lost: its connection ended", False),
    ),
    "a host whose agent could not report": (
        {
            "text": "cannot start ranks on n02: ssh ended with 125: its agent came up there",
            "host": "n02",
            "why": "its agent: n02 cannot reach the launcher at port 46421 (10.77.125.1: Invalid argument)",
        },
        ("launch", "cannot start ranks on n02: n02 cannot reach the launcher at port 46421 (10.77.125.1: ", False),
    ),
    "a wrong world": ({"text": "world: 4 ranks came up, expected 2"}, ("launch", "world: 4 ranks came up", False)),
}


def facts(cause, **more):
    return Facts({"state": "failed", "exit_code": 1, "plan": PLAN, "cause": {**EMPTY, **cause}, **more})


def test_an_end_is_named(subtests):
    for case, (cause, (name, text, is_said)) in CASES.items():
        with subtests.test(case):
            causes = diagnose(facts(cause, failures=[LATER]))
            assert causes[0].cause == name
            assert causes[0].text.startswith(text)
            assert (causes[0].rank, causes[0].certainty) == (cause.get("rank"), Certainty.SEEN)
            assert causes[0].consequences == (LATER["text"],)
            assert last_line(causes, failed=True) == (causes[0].text if is_said else "")


def test_mpi_abort_under_open_mpi_is_told_by_its_mpiexec():
    cause = {"text": "rank 1 …", "rank": 1, "code": 7, "words": "solver diverged\n"}
    (found,) = diagnose(facts(cause, launcher_words=OPEN_MPI))
    assert found.text == "rank 1 on n02 called MPI_Abort(MPI_COMM_WORLD, 7); it last wrote: solver diverged"
    other = OPEN_MPI.replace("rank 1 in", "rank 0 in")  # then this rank has ended by itself
    assert [each.cause for each in diagnose(facts(cause, launcher_words=other))] == ["exit-code"]


def test_what_a_message_says_beyond_its_first_lines_is_shown_and_what_helps_is_said():
    (found,) = diagnose(facts({"text": "rank 1 …", "rank": 1, "code": 1, "words": SIZES}))
    assert any("size mismatch for bias" in each and "leaked" not in each for each in found.evidence)
    assert "model with other sizes" in found.advice


def test_a_long_message_is_cut_in_the_sentence_and_shown_below_it():
    long = f"RuntimeError: {'unused ' * 60}pass find_unused_parameters=True"
    words = TRACE.replace("ValueError: no such shard", f"{long}\nindices of rank 1: 2 3")
    (found,) = diagnose(facts({"text": "rank 1 …", "rank": 1, "code": 1, "words": words}))
    assert found.text.endswith("unused … (train.py:31)")
    assert any(each.endswith("pass find_unused_parameters=True indices of rank 1: 2 3") for each in found.evidence)


def test_what_led_to_an_exception_is_shown():
    link = "\nThe above exception was the direct cause of the following exception:\n\n"
    words = TRACE + link + TRACE.replace("ValueError: no such shard", "RuntimeError: cannot read")
    (found,) = diagnose(facts({"text": "rank 1 …", "rank": 1, "code": 1, "words": words}))
    assert found.text == "rank 1 on n02 raised RuntimeError: cannot read (train.py:31)"
    assert "it came of ValueError: no such shard" in found.evidence


def test_who_was_killed_did_not_end_of_what_it_had_written():
    for error in (
        "ValueError: no such shard",
        "OSError: [Errno 28] No space left on device: '/scratch/x'",
        "MemoryError",
        "AcceleratorError: CUDA error: uncorrectable ECC error encountered",
    ):
        ended = {"text": "rank 1 …", "rank": 1, "words": TRACE.replace("ValueError: no such shard", error)}
        killed, stopped = facts({**ended, "signal": "SIGKILL"}), facts({**ended, "signal": "SIGTERM"}, state="stopped")
        assert [cause.cause for cause in diagnose(killed)] == ["killed-by-signal"], error
        assert [cause.cause for cause in diagnose(stopped)] == ["signal"], error


INTERRUPTED = {  # the launch's record, the run's -> the first cause
    "a launch": ({"state": "stopped", "exit_code": 130, "step": 7, "plan": PLAN}, {}, "You pressed Ctrl-C at step 7"),
    "a run of it that counts": (
        {"state": "stopped", "exit_code": 130, "step": 7, "plan": PLAN},
        {"state": "died", "steps": 120},
        "You pressed Ctrl-C at step 120",
    ),
    "a run alone": (
        {},
        {"state": "stopped", "cause": "SIGINT (Ctrl-C)", "steps": 120},
        "You pressed Ctrl-C at step 12",
    ),
    "before a step": ({"state": "stopped", "exit_code": 130, "plan": PLAN}, {}, "You pressed Ctrl-C"),
    "a SIGTERM": ({"state": "stopped", "exit_code": 143, "plan": PLAN}, {}, None),
}


def test_ctrl_c_is_said_first_and_not_by_the_launch_itself(subtests):
    for case, (launch, run, text) in INTERRUPTED.items():
        with subtests.test(case):
            causes = diagnose(Facts(launch, run))
            assert [each.text[: len(text or "")] for each in causes] == ([text] if text else [])
            assert last_line(causes, failed=True) == ""


def test_many_consequences_are_counted():
    causes = diagnose(facts(CASES["a code"][0], failures=[LATER] * 9))
    assert causes[0].consequences[3:] == ("and 6 more",)


def test_nothing_known_is_no_cause():
    for launch in ({}, {"state": "finished", "exit_code": 0}, {"cause": None, "failures": None}):
        assert diagnose(Facts(launch)) == []
    assert last_line([], failed=True) == ""


def test_one_host_is_not_named():
    one = Facts({"plan": {"hosts": ["n01"], "ranks_per_host": [2], "world_size": 2}})
    assert (one.who(1), one.host(1), one.host(2)) == ("rank 1", "n01", None)
    assert Facts().who(3) == "rank 3"
