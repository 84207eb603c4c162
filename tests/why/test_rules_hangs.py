"""What ranks recorded and where they are, as real launches left it, each with the cause that must stand first."""

from ezpz.records.launch_record import LaunchRecord
from ezpz.why import Certainty, Facts, diagnose, last_line

PLAN = {"hosts": ["n01", "n02"], "ranks_per_host": [2, 2], "world_size": 4}
REDUCE, BARRIER = "all_reduce (train.py:33)", "barrier (train.py:40)"


def entries(*ops, done=None, group="0", start=1):
    """The collectives of a rank; the last one is not completed unless all are `done`."""
    made = []
    for number, word in enumerate(ops, start):
        op, _, sizes = word.partition(" ")
        state = "completed" if done or number < start + len(ops) - 1 else "scheduled"
        made.append({"group": group, "seq": number, "op": op, "sizes": sizes, "state": state, "line": "",
                     "created": 100.0 + number, "started": 0.0, "completed": 0.0, "peer": False})  # fmt: skip
    return made


def rank(number, made, at=REDUCE, *, silent=False, state="S", where="", ended=False, raised=""):
    return {"rank": number, "pid": 10 + number, "answered": not silent, "silent": silent, "ended": ended, "at": at,
            "raised": raised, "state": state, "where": where, "cpu": 1.0, "step": 6, "groups": [],
            "entries": made}  # fmt: skip


def facts(ranks, stacks=(), *, world=4, **launch):
    plan = {**PLAN, "ranks_per_host": [world // 2] * 2, "world_size": world}
    hang = {"summary": "…", "ranks": [{"rank": number, "where": where} for number, where in dict(stacks).items()]}
    record = {"state": "stopped", "exit_code": 124, "plan": plan, "hang": hang, **launch}
    return Facts(record, collectives={"ranks": ranks})


SEVEN = ["all_reduce 4"] * 7
EIGHT = [*SEVEN, "all_reduce 4"]
START = ["all_gather 2", "broadcast 9", "broadcast 9", "all_reduce 60", "broadcast 3", *["all_reduce 60"] * 3]
WAIT = [rank(number, entries(*EIGHT)) for number in range(4)]


def with_rank_2(it, stack=None):
    places = {0: REDUCE, 1: REDUCE, 2: stack or it["at"], 3: REDUCE}
    return facts([*WAIT[:2], it, WAIT[3]], {number: place for number, place in places.items() if place})


def lagging(at, **more):
    return with_rank_2(rank(2, entries(*SEVEN, done=True), at, **more))


# facts -> name, rank, beginning of the text
CASES = {
    "one of two ranks skips a call soon after DDP's own": (
        facts([rank(0, entries(*START, "barrier")), rank(1, entries(*START, "all_reduce 60"))], world=2),
        ("other-collective", 0, "rank 0 on n01 called barrier (train.py:33) as collective #9, where the others"),
    ),
    "one of two ranks gives a tensor of another size": (
        facts([rank(0, entries(*SEVEN, "all_reduce 6")), rank(1, entries(*EIGHT))], world=2),
        ("other-sizes", 0, "rank 0 on n01 called all_reduce of 6 (train.py:33) as collective #8, with other"),
    ),
    "two of four ranks, each something else": (
        facts(
            [
                *(rank(each, entries(*SEVEN, "all_reduce 4")) for each in (0, 1)),
                rank(2, entries(*SEVEN, "barrier")),
                rank(3, entries(*SEVEN, "broadcast 9")),
            ]
        ),
        ("other-collective", 2, "rank 2 on n02 called barrier (train.py:33) as collective #8, where the others"),
    ),
    "two ranks, and no order before": (
        facts([rank(0, entries("barrier")), rank(1, entries("all_reduce 60"))], world=2),
        ("other-collective", None, "ranks 0 and 1 called different collectives as #1: rank 0 on n01 called "),
    ),
    "one waits in a finally, its exception unseen": (
        with_rank_2(
            {**rank(2, entries(*SEVEN, "barrier"), "barrier (train.py:40)"), "handled": "ValueError: x (d.py:3)"}
        ),
        ("raised", 2, "rank 2 on n02 raised ValueError: x (d.py:3), and waits in barrier (train.py:40) before that"),
    ),
    "all wait in an except, and one computes": (
        facts(
            [
                *({**each, "handled": "StopIteration"} for each in (*WAIT[:2], WAIT[3])),
                rank(2, entries(*SEVEN, done=True), "forward (model.py:9)"),
            ],
            {0: REDUCE, 1: REDUCE, 2: "forward (model.py:9)", 3: REDUCE},
        ),
        ("collective-missing", 2, "rank 2 on n02 is in forward (model.py:9), and never came to all_reduce #8 (train."),
    ),
    "one rank computes": (
        lagging("forward (model.py:9)"),
        ("collective-missing", 2, "rank 2 on n02 is in forward (model.py:9), and never came to all_reduce #8 (train."),
    ),
    "one rank has done its own lines": (
        lagging("__call__ (weakref.py:666)"),
        ("left-early", 2, "rank 2 on n02 has come to the end of its program, and never came to all_reduce #8 (train."),
    ),
    "one rank is in its own script": (
        lagging("<module> (train.py:21)"),
        ("collective-missing", 2, "rank 2 on n02 is at train.py:21, and never came to all_reduce #8"),
    ),
    "one rank waits for data": (lagging("DataLoader (data.py:3)"), ("waits-for-data", 2, "rank 2 on n02 waits for")),
    "one rank loads data itself": (
        lagging("__getitem__ (data.py:3)"),
        ("waits-for-data", 2, "rank 2 on n02 waits for data in __getitem__ (data.py:3), and never came to"),
    ),
    "one rank imports": (lagging("import scipy (data.py:3)"), ("importing", 2, "rank 2 on n02 is in import scipy")),
    "one rank is stopped": (lagging("f (a.py:1)", state="T"), ("stopped", 2, "rank 2 on n02 is stopped by a signal")),
    "a debugger stopped it": (lagging("f (a.py:1)", state="t"), ("stopped", 2, "rank 2 on n02 is stopped by a debug")),
    "one rank waits for a file system": (
        lagging("read (data.py:3)", state="D", where="nfs_wait_bit_killable"),
        ("waits-for-files", 2, "rank 2 on n02 waits in the kernel (nfs_wait_bit_killable), often for a file system (d"),
    ),
    "one rank waits for a file on a mount": (
        lagging("read (data.py:3)", state="D", where="nfs_wait_bit_killable, for /big/my data/a on /big (nfs4)"),
        (
            "waits-for-files",
            2,
            "rank 2 on n02 waits in the kernel (nfs_wait_bit_killable) for /big/my data/a on /big (n",
        ),
    ),
    "one rank has left without a word": (
        with_rank_2({**rank(2, [], None, state=""), "answered": False}),
        (
            "left-early",
            2,
            "rank 2 on n02 has ended, and never came to all_reduce #8 (train.py:33): ranks 0, 1 and 3 wa",
        ),
    ),
    "one has left without a word, and another is slow to answer": (
        facts(
            [
                rank(0, entries(*EIGHT)),
                {**rank(1, [], None, state=""), "answered": False},
                rank(2, [], None, silent=True),
            ],
            {0: REDUCE, 2: "running (python)"},
            world=3,
        ),
        ("left-early", 1, "rank 1 on n02 has ended, and never came to all_reduce #8"),
    ),
    "one has left without a word, and the other one ends slowly": (
        facts(
            [
                rank(
                    0, entries(*SEVEN, done=True), raised="RuntimeError: [/gloo/pair.cc:553] Connection closed by peer"
                ),
                {**rank(1, [], None, state=""), "answered": False},
            ],
            {0: "running (python)"},
            world=2,
        ),
        ("left-early", 1, "rank 1 on n02 has ended, and rank 0 on n01 lost the connection to it"),
    ),
    "one rank has raised, and ends slowly": (
        lagging("load (data.py:3)", raised="ValueError: no such shard"),
        (
            "raised",
            2,
            "rank 2 on n02 raised ValueError: no such shard (data.py:3) and has not ended yet, and never ",
        ),
    ),
    "C code holds Python's lock": (
        with_rank_2(rank(2, [], None, silent=True, state="R"), "match (data.py:3)"),
        ("holds-python", 2, "rank 2 on n02 answers nothing: C code holds Python's lock in match (data.py:3), and nev"),
    ),
    "one rank has ended": (
        with_rank_2(rank(2, entries(*SEVEN, done=True), None, ended=True, state="")),
        ("left-early", 2, "rank 2 on n02 has ended, and never came to all_reduce #8"),
    ),
    "one rank calls another collective": (
        with_rank_2(rank(2, entries(*SEVEN, "barrier"), BARRIER)),
        ("other-collective", 2, "rank 2 on n02 called barrier (train.py:40) as collective #8, where the others called"),
    ),
    "one rank has other sizes": (
        with_rank_2(rank(2, entries(*SEVEN, "all_reduce 6"))),
        ("other-sizes", 2, "rank 2 on n02 called all_reduce of 6 (train.py:33) as collective #8, with other sizes"),
    ),
    "two ranks, and the second leaves its loop": (
        facts(
            [rank(0, entries(*EIGHT)), rank(1, entries(*SEVEN, "barrier"), BARRIER)], {0: REDUCE, 1: BARRIER}, world=2
        ),
        ("other-collective", 1, "rank 1 on n02 called barrier (train.py:40) as collective #8"),
    ),
    "two ranks, and the first leaves its loop": (
        facts(
            [rank(0, entries(*SEVEN, "barrier"), BARRIER), rank(1, entries(*EIGHT))], {0: BARRIER, 1: REDUCE}, world=2
        ),
        ("other-collective", 0, "rank 0 on n01 called barrier (train.py:40) as collective #8"),
    ),
    "two ranks, and the first is elsewhere": (
        facts(
            [rank(0, entries(*SEVEN, done=True), "load (a.py:1)"), rank(1, entries(*EIGHT))],
            {0: "load (a.py:1)", 1: REDUCE},
            world=2,
        ),
        ("collective-missing", 0, "rank 0 on n01 is in load (a.py:1), and never came to all_reduce #8"),
    ),
    "two ranks wait, and one of them is slow to answer": (
        facts([rank(0, entries(*EIGHT)), rank(1, [], None, silent=True)], {0: REDUCE, 1: REDUCE}, world=2),
        (None, None, ""),
    ),
    "plain scripts: one is elsewhere": (
        facts([], {0: REDUCE, 1: "<module> (train.py:21)"}, world=2),
        ("collective-missing", 1, "rank 1 on n02 is at train.py:21, and never came to all_reduce (train.py:33)"),
    ),
    "plain scripts: one is stopped": (
        facts([], {0: "stopped (python3)", 1: REDUCE}, world=2),
        ("stopped", 0, "rank 0 on n01 is stopped by a signal, and never came to all_reduce"),
    ),
    "plain scripts: different collectives": (
        facts([], {0: REDUCE, 1: REDUCE, 2: BARRIER, 3: REDUCE}),
        ("other-collective", 2, "rank 2 on n02 called barrier (train.py:40), where the others called another"),
    ),
    "the ring of the other is longer": (
        with_rank_2(rank(2, entries(*SEVEN[:3], done=True, start=5), "load (a.py:1)")),
        ("collective-missing", 2, "rank 2 on n02 is in load (a.py:1), and never came to all_reduce #8"),
    ),
    "one rank is at its end, and still lives": (
        with_rank_2(rank(2, entries(*SEVEN, done=True), None, ended=True, state="R"), "running (python3)"),
        ("left-early", 2, "rank 2 on n02 has come to the end of its program, and never came to all_reduce #8"),
    ),
    "a group of two backends, one of which waits": (
        facts(
            [
                rank(number, [*entries(*["broadcast 9"] * made, done=True, group="gloo:0"), *waits])
                for number, made, waits in (
                    (0, 9, entries(*EIGHT, group="nccl:0")),
                    (1, 9, entries(*EIGHT, group="nccl:0")),
                    (2, 9, entries(*SEVEN, done=True, group="nccl:0")),
                    (3, 9, entries(*EIGHT, group="nccl:0")),
                )
            ],
            {0: REDUCE, 1: REDUCE, 2: "load (a.py:1)", 3: REDUCE},
        ),
        ("collective-missing", 2, "rank 2 on n02 is in load (a.py:1), and never came to all_reduce #8 (train.py:33)"),
    ),
    "a rank that has made none of a backend's": (
        facts(
            [
                rank(
                    number,
                    [
                        *entries(*SEVEN, done=True, group="gloo:0"),
                        *(entries("all_gather 4", group="nccl:0") if number != 1 else ()),
                    ],
                )
                for number in range(4)
            ],
            {0: REDUCE, 1: "load (a.py:1)", 2: REDUCE, 3: REDUCE},
        ),
        ("collective-missing", 1, "rank 1 on n01 is in load (a.py:1), and never came to all_gather #1 (train.py:33)"),
    ),
    "a subgroup waits, and its member waits for nobody": (
        facts(
            [
                rank(0, [*entries(*SEVEN, done=True), *entries("broadcast 2", group="1")]),
                rank(1, entries(*SEVEN, done=True), "load (a.py:1)"),
                rank(2, entries(*SEVEN, done=True)),
                rank(3, entries(*SEVEN, done=True)),
            ],
        ),
        (None, None, None),  # who belongs to the subgroup is not known
    ),
}


def test_the_right_cause_stands_first(subtests):
    for case, (known, (name, culprit, text)) in CASES.items():
        with subtests.test(case):
            causes = diagnose(known)
            if name is None:
                assert causes == []
                continue
            assert (causes[0].cause, causes[0].rank) == (name, culprit)
            assert causes[0].text.startswith(text)
            assert causes[0].certainty == Certainty.SHOWN
            assert last_line(causes, failed=True) == causes[0].text


NOTHING = {
    "all wait in the same collective": facts(WAIT, dict.fromkeys(range(4), REDUCE)),
    "all compute": facts([rank(n, entries(*SEVEN, done=True), "f (a.py:1)") for n in range(4)]),
    "nobody recorded anything": facts([], {0: "f (a.py:1)", 1: "f (a.py:1)"}, world=2),
    "roots scatter, others receive": facts(
        [rank(0, entries(*SEVEN, "scatter 4, 4")), *(rank(n, entries(*SEVEN, "scatter")) for n in (1, 2, 3))]
    ),
    "no hang, and an exception of the program": facts(
        [rank(0, entries(*EIGHT)), rank(1, entries(*SEVEN, done=True))], world=2, hang=None
    ),
}


def test_what_shows_nothing_is_no_cause():
    for case, known in NOTHING.items():
        assert diagnose(known) == [], case


def test_who_waits_for_a_moment_in_a_running_launch_is_no_finding():
    ranks = [rank(0, entries(*EIGHT)), rank(1, entries(*SEVEN, done=True), "load (a.py:1)")]
    for at, expected in ((109.0, []), (120.0, [("collective-missing", 1)])):
        running = facts([], world=2, hang=None, state="running", exit_code=None)
        running.use_answer({"at": at, "ranks": [], "collectives": {"ranks": ranks}})
        assert [(cause.cause, cause.rank) for cause in diagnose(running)] == expected


def test_two_samples_tell_stuck_from_slow():
    known = lagging("load (a.py:1)")
    stack = [["load", "a.py", 1]]
    told = {"apart": 2.5, "summary": "…", "ranks": [{"rank": 2, "frames": stack}]}
    for earlier, word in ((stack, "it is stuck"), ([["load", "a.py", 2]], "it moves, and is slow")):
        hang = {**told, "earlier": {"ranks": [{"rank": 2, "frames": earlier}]}}
        known.launch = LaunchRecord.of({**known.launch.raw, "hang": hang})
        assert any(word in text and "2.5 s apart" in text for text in diagnose(known)[0].evidence)


GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection reset by peer\n"
ENFORCE = "terminate called: [enforce fail at pair.cc:449] op.preamble.length <= op.nbytes. 24 vs 16. \n"


def failed(words, ranks, **cause):
    cause = {"rank": 0, "text": "rank 0 …", "words": words, **cause}
    return facts(ranks, world=2, hang=None, exit_code=1, cause=cause)


def test_a_collective_that_failed_is_explained_before_its_exception():
    words = f"Traceback (most recent call last):\n{GLOO}"
    it = [rank(0, entries(*EIGHT, done=True), REDUCE, state=""), rank(1, entries(*SEVEN, "barrier"), BARRIER)]
    causes = diagnose(failed(words, it, code=1))
    assert [cause.cause for cause in causes] == ["other-collective", "exception"]
    it[1] = rank(1, entries(*SEVEN, done=True), "load (a.py:1)")
    causes = diagnose(failed(words, it, code=1))
    assert [(cause.cause, cause.rank) for cause in causes] == [("collective-missing", 1), ("exception", 0)]


def test_a_tensor_that_does_not_fit_names_who_sent_it():
    it = [rank(1, entries(*SEVEN, "all_reduce 6"))]
    first = diagnose(failed(ENFORCE, it, signal="SIGABRT"))[0]
    assert (first.cause, first.rank) == ("other-sizes", 1)
    assert first.text == (
        "rank 1 on n02 called all_reduce of 6 (train.py:33) as collective #8, with other sizes than the rest: "
        "a message of 24 bytes came where rank 0 on n01 had room for 16"
    )
    assert diagnose(failed(ENFORCE, [], signal="SIGABRT"))[0].rank is None
    stack = '  File "/venv/torch/distributed/distributed_c10d.py", line 3252 in all_reduce\n'
    only = diagnose(failed(f"Fatal Python error: Aborted\n{stack}", it, signal="SIGABRT"))[0]
    assert (only.cause, only.rank) == ("other-sizes", 1)
    assert only.text.endswith("with other sizes than the rest: gloo aborted rank 0 on n01 in the same one")
    usual = [rank(1, entries("all_reduce 4", "all_reduce 5", "all_reduce 6"))]  # buckets of a model differ
    assert diagnose(failed(stack, usual, signal="SIGABRT"))[0].cause != "other-sizes"
    frames = stack.replace("/venv", "/venv/lib/python3.11/site-packages")
    other = 'Thread 0x00007f (most recent call first):\n  File "/me/ezpz/dist/arrivals.py", line 82 in run\n\n'
    alone = diagnose(failed(f'{other}{frames}  File "/me/a.py", line 11 in <module>\n', [], signal="SIGABRT"))[0]
    assert (alone.cause, alone.rank) == ("aborted-in-collective", 0)
    assert alone.text.startswith("rank 0 on n01 was aborted by torch inside all_reduce (a.py:11), mostly because ranks")


WRAPS = 'Traceback (most recent call last):\n  File "/me/train.py", line 18, in <module>\n'
NUMBERS = WRAPS + (
    "RuntimeError: DDP expects same model across all ranks, but Rank {} has {} params, while rank {} has "
    "inconsistent {} params.\n"
)
SHAPES = WRAPS + (
    "RuntimeError: [{}]: params[0] in this process with sizes [{}, 32] appears not to match sizes of the same param in "
    "process 0.\n"
)


def test_a_rank_that_was_ended_while_it_raised_counts_as_well():
    raised = [
        {**rank(number, [], "__init__ (train.py:18)"), "raised": NUMBERS.format(number, 4, 0, 6)} for number in (2, 3)
    ]
    cause = {"rank": 1, "code": 1, "text": "rank 1 …", "words": NUMBERS.format(1, 4, 0, 6)}
    first = diagnose(facts(raised, hang=None, exit_code=1, state="failed", cause=cause))[0]
    assert (first.cause, first.rank) == ("other-model", 0)


MODELS = [
    ([(2, NUMBERS.format(2, 6, 0, 4)), (0, NUMBERS.format(0, 4, 2, 6))], 2, "rank 2 on n02 has another model than"),
    ([(1, NUMBERS.format(1, 4, 0, 6)), (2, NUMBERS.format(2, 4, 0, 6))], 0, "rank 0 on n01 has another model than"),
    ([(0, NUMBERS.format(0, 4, 3, 6))], 3, "rank 3 on n02 has another model than the rest (train.py:18): 6 param"),
    (
        [(2, NUMBERS.format(2, 6, 0, 4))],
        None,
        "ranks 0 and 2 have different models (train.py:18): 4 parameters, and",
    ),
    (
        [(3, SHAPES.format(3, 48))],
        None,
        "ranks 0 and 3 have different models (train.py:18): params[0] of other",
    ),
    ([(rank, SHAPES.format(rank, 32)) for rank in (3, 1, 2)], 0, "rank 0 on n01 has another model than the rest"),
]


def test_a_rank_with_another_model_is_named():
    for words, culprit, begin in MODELS:
        first, *rest = ({"rank": rank, "code": 1, "text": f"rank {rank} …", "words": said} for rank, said in words)
        causes = diagnose(facts([], hang=None, exit_code=1, state="failed", cause=first, failures=rest))
        assert (causes[0].cause, causes[0].rank) == ("other-model", culprit), begin
        assert causes[0].text.startswith(begin)
        assert last_line(causes, failed=True) == causes[0].text


# Ranks of a launch that was ended for a hang, by their stacks: as `watch/collectives` records them.

TORCH = "/venv/lib/python3.11/site-packages/torch"
INSIDE = {
    "all_reduce": [["all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 3251]],
    "recv": [["recv", f"{TORCH}/distributed/distributed_c10d.py", 2588]],
    "send": [["send", f"{TORCH}/distributed/distributed_c10d.py", 2510]],
    "backward": [["_engine_run_backward", f"{TORCH}/autograd/graph.py", 869], ["backward", f"{TORCH}/_tensor.py", 630]],
    "forward": [
        ["_sync_buffers", f"{TORCH}/nn/parallel/distributed.py", 1600],
        ["forward", f"{TORCH}/nn/parallel/distributed.py", 1636],
        ["_call_impl", f"{TORCH}/nn/modules/module.py", 1780],
    ],
    "gather_for_metrics": [
        ["all_gather", f"{TORCH}/distributed/distributed_c10d.py", 4000],
        ["gather_for_metrics", "/venv/lib/python3.11/site-packages/accelerate/accelerator.py", 9],
    ],
    "setup_torch": [["_check_in", "/venv/lib/python3.11/site-packages/ezpz/dist/rendezvous.py", 170]],
    "wait": [["wait", "/usr/lib/python3.11/threading.py", 327]],
    "run": [["wait", "/usr/lib/python3.11/subprocess.py", 1264], ["run", "/usr/lib/python3.11/subprocess.py", 550]],
}


def at(rank, where, *, cpu=3.0, switches=40, outermost="<module>", **more):
    """A rank that was asked twice, and did nothing but `cpu` and `switches` more in between."""
    call, _, line = where.rstrip(")").partition(" (")
    file, _, number = line.partition(":")
    if not number:  # the kernel's words
        return {"rank": rank, "where": where, "frames": [], "cpu": cpu, "switches": switches, **more}
    inside = INSIDE.get(call, [])
    own = [[call if not inside else "step", f"/me/{file}", int(number)]]
    outer = [[outermost, "/me/train.py", 40]] if call != "<module>" and outermost else []
    return {"rank": rank, "where": where, "frames": [*inside, *own, *outer], "cpu": cpu, "switches": switches, **more}


def hung(*asked, world, ranks=(), left=(), **launch):
    earlier = [{**each, "cpu": 3.0, "switches": 40, "words": ""} for each in asked]
    hang = {"summary": "…", "ranks": list(asked), "left": list(left), "apart": 2.1, "earlier": {"ranks": earlier}}
    return facts(list(ranks), world=world, hang=hang, **launch)


BACK = "backward (train.py:19)"
MPI = {"mpi": True, "cpu": 5.1}
VALUE_ERROR = (
    'Traceback (most recent call last):\n  File "/me/train.py", line 12, in <module>\n    raise ValueError("x")\n'
    "ValueError: negative pressure\n"
)
IN_THREAD = (
    'Exception in thread Thread-1 (feed):\nTraceback (most recent call last):\n  File "/me/train.py", line 9, in feed\n'
    "OSError: shard 6 is truncated\n"
)
DONE = [rank(each, entries(*SEVEN, done=True), "fetch (train.py:11)") for each in range(3)]
# facts -> name, rank, the sentence or its beginning
BY_STACKS = {
    "others wait in backward": (
        hung(at(0, BACK), at(1, "<module> (train.py:17)"), at(2, BACK), world=3),
        ("collective-missing", 1, "rank 1 on n02 is at train.py:17, and never came to backward (train.py:19): ranks 0"),
    ),
    "another one waits in DDP's forward": (
        hung(at(0, "forward (train.py:18)"), at(1, "load (train.py:17)"), world=2),
        (
            "collective-missing",
            1,
            "rank 1 on n02 is in load (train.py:17), and never came to DistributedDataParallel.forward (train.py:18): ",
        ),
    ),
    "others wait in a collective of a library": (
        hung(at(0, "gather_for_metrics (train.py:18)"), at(1, "wait (train.py:17)"), world=2),
        ("collective-missing", 1, "rank 1 on n02 is in wait (train.py:17), and never came to all_gather (train.py:18)"),
    ),
    "one rank waits for its child": (
        hung(at(0, BACK), at(1, "run (train.py:17)", child="sleep 600 (pid 7: sleeping)"), world=2),
        ("waits-for-child", 1, "rank 1 on n02 waits for its child sleep 600 (pid 7: sleeping) in run (train.py:17), a"),
    ),
    "a worker of a loader is stuck": (
        hung(at(0, BACK), at(1, "DataLoader (train.py:17)", worker="wait (data.py:9)"), world=2),
        (
            "waits-for-data",
            1,
            "rank 1 on n02 waits for data in DataLoader (train.py:17), whose worker is in wait (data",
        ),
    ),
    "all do the same outside of collectives": (
        hung(*(at(each, "fetch (train.py:11)", source="urlopen(url)") for each in range(3)), world=3, ranks=DONE),
        ("all-elsewhere", None, "all 3 ranks stand still in fetch (train.py:11), and none of them in a collective"),
    ),
    "all receive": (
        hung(at(0, "recv (train.py:15)"), at(1, "recv (train.py:15)"), world=2),
        ("wait-in-a-cycle", None, "all 2 ranks wait in recv (train.py:15), each for another: a cycle"),
    ),
    "one sends what none receives": (
        hung(at(0, "recv (train.py:15)"), at(1, "send (train.py:18)"), world=2),
        (
            "wait-in-a-cycle",
            None,
            "all ranks wait for each other, a cycle: rank 0 on n01 in recv (train.py:15), rank 1",
        ),
    ),
    "all receive from each other by MPI": (
        hung(*(at(each, "<module> (train.py:10)", source="comm.recv(source=0)", **MPI) for each in range(3)), world=3),
        (
            "wait-in-a-cycle",
            None,
            "all 3 ranks were in recv (train.py:10) when they were asked: a cycle, if each waits",
        ),
    ),
    "one is elsewhere, and the others are in a collective of MPI": (
        hung(
            at(0, "<module> (train.py:14)", source="total = comm.allreduce(1)", **MPI),
            at(1, "read_mesh (train.py:11)", mpi=True),
            at(2, "<module> (train.py:14)", source="total = comm.allreduce(1)", **MPI),
            world=3,
        ),
        (
            "collective-missing",
            1,
            "rank 1 on n02 is in read_mesh (train.py:11), and never came to allreduce (train.py:14): ranks 0",
        ),
    ),
    "one has left its loop early, and waits in MPI_Finalize": (
        hung(
            *(at(each, "<module> (train.py:14)", source="comm.Barrier()", **MPI) for each in (0, 2)),
            at(1, "running (python)", **MPI),
            world=3,
        ),
        ("left-early", 1, "rank 1 on n02 has come to the end of its program, and never came to Barrier (train.py:14)"),
    ),
    "different collectives of MPI": (
        hung(
            *(at(each, "<module> (train.py:14)", source="comm.allreduce(1)", **MPI) for each in (0, 2)),
            at(1, "<module> (train.py:20)", source="comm.Barrier()", **MPI),
            world=3,
        ),
        ("other-collective", 1, "rank 1 on n02 called Barrier (train.py:20), where the others called another"),
    ),
    "one has ended, and others wait for it by MPI": (
        hung(
            *(at(each, "<module> (train.py:14)", source="comm.Barrier()", **MPI) for each in (0, 2)), world=3, left=[1]
        ),
        (
            "left-early",
            1,
            "rank 1 on n02 has ended, and never came to Barrier (train.py:14): ranks 0 and 2 wait for it",
        ),
    ),
    "one has raised, and waits in MPI_Finalize": (
        hung(
            *(at(each, "<module> (train.py:14)", source="comm.allreduce(1)", **MPI) for each in (0, 1)),
            at(2, "running (python)", words=VALUE_ERROR, **MPI),
            world=3,
        ),
        (
            "raised",
            2,
            "rank 2 raised ValueError: negative pressure (train.py:12) and has not ended yet, and never c",
        ),
    ),
    "one lives in a handler at its end": (
        hung(at(1, "upload (train.py:21)", outermost=""), world=2, left=[0]),
        (
            "still-lives",
            1,
            "rank 1 on n02 is still in upload (train.py:21), at the end of its program: all others have ended",
        ),
    ),
    "one lives after all others, and has caught an exception before": (
        hung(
            at(1, "upload (train.py:21)", outermost="", words=VALUE_ERROR.replace("<module>", "load")),
            world=2,
            left=[0],
        ),
        ("still-lives", 1, "rank 1 on n02 is still in upload (train.py:21), at the end of its program: all others ha"),
    ),
    "one lives after all others": (
        hung(at(1, "plot (train.py:21)"), world=2, left=[0]),
        ("still-lives", 1, "rank 1 on n02 is still in plot (train.py:21): all others have ended"),
    ),
    "one has raised, and lives after all others": (
        hung(at(1, "join (train.py:21)", outermost="", words=VALUE_ERROR), world=2, left=[0]),
        ("raised", 1, "rank 1 on n02 raised ValueError: negative pressure (train.py:12) and has not ended yet"),
    ),
}


def test_stacks_alone_show_the_right_cause(subtests):
    for case, (known, (name, culprit, text)) in BY_STACKS.items():
        with subtests.test(case):
            first = diagnose(known)[0]
            assert (first.cause, first.rank) == (name, culprit)
            assert first.text.startswith(text)
            # MPI polls: whether a rank has waited for long is not known.
            sure = "when they were asked" not in text and case != "different collectives of MPI"
            assert first.certainty == (Certainty.SHOWN if sure else Certainty.FINDING)


BUSY = {"cpu": 4.6}
WOKEN = {"switches": 45}
SHOWS_NOTHING = {
    "all compute the same": hung(*(at(each, "step (train.py:11)", **BUSY) for each in range(2)), world=2),
    "all sleep in turn at the same line": hung(
        *(at(each, "step (train.py:11)", **WOKEN) for each in range(2)), world=2
    ),
    "all are in backward": hung(*(at(each, BACK) for each in range(2)), world=2),
    "all train, one in backward, one in all_reduce": hung(
        at(0, BACK, **BUSY), at(1, REDUCE, cpu=3.5, switches=70), world=2
    ),
    "all train, one in backward, one in its optimizer": hung(
        at(0, BACK, **BUSY), at(1, "step (train.py:9)", **BUSY), world=2
    ),
    "all wait in the same collective": hung(*(at(each, REDUCE) for each in range(2)), world=2),
    "all wait for the process group": hung(*(at(each, "setup_torch (train.py:3)") for each in range(2)), world=2),
    "all stand still at different places": hung(at(0, "f (a.py:1)"), at(1, "g (a.py:2)"), world=2),
    "one came to a collective a moment ago": facts(
        [rank(0, entries(*SEVEN, done=True), "step (a.py:1)"), rank(1, entries(*EIGHT))],
        {0: "step (a.py:1)", 1: REDUCE},
        world=2,
        hang={"summary": "the run has not ended within 30 s (--timeout): …", "at": 109.5},
    ),
    "a rank is not known": hung(at(0, "f (a.py:1)"), at(1, "f (a.py:1)"), world=3),
    "a device may wait": hung(
        *(at(each, "item (a.py:1)") for each in range(2)),
        world=2,
        ranks=[rank(each, entries(*EIGHT), "item (a.py:1)") for each in range(2)],
    ),
    "others receive from a rank that works": hung(
        at(0, "f (a.py:1)", **BUSY),
        *(at(each, "recv (a.py:9)", **WOKEN) for each in (1, 2, 3)),
        world=4,
    ),
    "others wait by MPI for a rank that computes": hung(
        *(at(each, "<module> (train.py:14)", source="comm.allreduce(1)", **MPI) for each in (0, 2)),
        at(1, "simulate (train.py:11)", **MPI),
        world=3,
    ),
    "most ranks live, and one has ended": hung(
        at(0, "f (a.py:1)", **BUSY), at(1, "f (a.py:2)", **BUSY), world=3, left=[2]
    ),
}


def test_ranks_that_train_are_not_accused_by_their_stacks(subtests):
    for case, known in SHOWS_NOTHING.items():
        with subtests.test(case):
            assert diagnose(known) == []


def test_what_a_living_rank_has_written_and_its_line_are_seen():
    where, source = "get (train.py:17)", "batches.get()"
    known = lagging(where)
    told = {"ranks": [{"rank": 2, "where": where, "source": source, "words": IN_THREAD, "frames": []}]}
    known.launch = LaunchRecord.of({**known.launch.raw, "hang": {"summary": "…", **told}})
    first = diagnose(known)[0]
    assert (first.cause, first.rank) == ("collective-missing", 2)
    assert "rank 2 on n02 is in get (train.py:17): batches.get()" in first.evidence
    assert "a thread of rank 2 on n02 raised OSError: shard 6 is truncated" in first.evidence
