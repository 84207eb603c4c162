"""The rules of `ezpz.launch.decision`, one by one, as a table; incidents of other launchers; failures at random."""

import random

from ezpz.launch.decision import Again, Attempts, Clock, Raised, Stop, decide, needs_probe, raised
from ezpz.records.launch_record import Attempt, ProbedHost

HOSTS = ("n01", "n02", "n03", "n04")
THREE = ["n01", "n02", "n03"]
OK = ProbedHost(answered=True)
ALL_OK = dict.fromkeys(HOSTS, OK)
NOON = Clock(now=1000.0)

BUG = """Traceback (most recent call last):
  File "/home/me/train.py", line {line}, in <module>
    main()
  File "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1775, in _call_impl
    return forward_call(*args, **kwargs)
ValueError: my bug
"""
LOST_PEER = """Traceback (most recent call last):
  File "/home/me/train.py", line 88, in <module>
    dist.all_reduce(x)
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:543] Connection closed by peer [10.0.0.2]:4711
"""
ECC = """Traceback (most recent call last):
  File "/home/me/train.py", line 3, in <module>
    x = torch.ones(3, device="cuda")
torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered
"""
ILLEGAL = ECC.replace("uncorrectable ECC error", "an illegal memory access was")
OUT_OF_MEMORY = ECC.replace("AcceleratorError: CUDA error: uncorrectable ECC error encountered", "OutOfMemoryError: x")
FULL = """Traceback (most recent call last):
  File "/home/me/train.py", line 90, in save
    file.write(data)
OSError: [Errno 28] No space left on device

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/me/train.py", line 95, in <module>
    save()
RuntimeError: cannot save
"""
BAD_ALLOC = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"


def attempt(code=1, *, hosts=THREE, began=True, step=None, **more):
    """A row as run.json has it; `more` may name the fields of its cause."""
    known = ("silent", "lost", "blames", "refused", "stopped", "hang", "retired", "probe")
    row = {"exit_code": code, "hosts": list(hosts), "began": began, "step": step}
    row |= {name: more.pop(name) for name in known if name in more}
    return {**row, "cause": {"text": "it failed", "words": "", "why": None, **more}}


def rank(code=1, words="", host="n02", at=None, **more):
    """An attempt that ended of a rank on `host`, whose last step was `at`."""
    return attempt(code, rank=1, host=host, words=words, step=at, **more) | {
        "cause": {"text": "rank 1 failed", "rank": 1, "host": host, "words": words, "step": at}
    }


PEERS = (  # what a rank raises that has waited in vain for others: none is a mistake of its program
    "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 2/3 clients joined.",
    (
        "torch.distributed.DistBackendError: [../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:628] [Rank 0] "
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE) ran for 600000 "
        "milliseconds before timing out."
    ),
    (
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for "
        "recv operation to complete"
    ),
    (
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:138] Timed out waiting 30000ms for "
        "send operation to complete"
    ),
    "RuntimeError: [c10d] The client socket has timed out after 60000ms while trying to connect to (n01, 29500).",
    (
        "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of "
        "(n01, 29500). The client socket has timed out after 60000ms while trying to connect to (n01, 29500)."
    ),
    "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cpu//0/rank_1",
)
UNCLEAR = (  # of a device, and nothing that a program does wrong
    "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    "torch.AcceleratorError: CUDA error: unknown error",
    "torch.distributed.DistBackendError: NCCL error in: ../x.cpp:77, unhandled system error (run with NCCL_DEBUG=INFO)",
)
OF_PROGRAMS = (13, 31, 43, 45)  # Xid of what a program did wrong

PROBED = {"probe": {host: {"answered": True, "fails": ""} for host in HOSTS}}
LACKS = {"n02": "it cannot read train.py (No such file or directory)"}
ALONE = {"n01": "no other host reaches it (n02: No route to host)"}
REFUSED = {"began": False, "text": "cannot start: cannot read train.py", "refused": "cannot read train.py"}
GIVEN_UP = {"why": "its node failed", "host": "n02", "lost": ["n02"]}
LOST = {"why": "its connection ended, or answered no more", "host": "n02", "lost": ["n02"]}


def decided(*rows, probe=ALL_OK, clock=NOON, limit=9, hosts=HOSTS, wanted=3):
    attempts = Attempts(limit=limit, hosts=hosts, wanted=wanted, rows=tuple(map(Attempt.of, rows)))
    return decide(attempts, probe if needs_probe(attempts, clock) else None, clock)


REPLACED, SAME = ("n01", "n03", "n04"), ("n01", "n02", "n03")
# What has happened, what follows: the hosts of the next attempt or a word of why it stops, and who is retired.
TABLE = {
    "success": ([attempt(0)], "succeeded", []),
    "a user's signal": ([attempt(143, stopped=True)], "signal from outside", []),
    "a rank's SIGTERM from elsewhere is no signal to launch": ([rank(143)], SAME, []),
    "the time of the whole run": (
        [attempt(124, stopped=True, hang={"ranks": []}, text="(--timeout, of the whole)")], "time", [],
    ),
    "a rank without progress": ([attempt(124, stopped=True, hang={"ranks": []}, text="(--idle-timeout)")], SAME, []),
    "a program that is missing": ([rank(127)], "cannot be run", []),
    "a wrong option of the program": ([rank(2, "usage: train.py [-h]\n")], "command line", []),
    "a full disk": ([rank(1, FULL, at=5)], "disk is full", []),
    "a quota": ([rank(1, FULL.replace("[Errno 28] No space left on device", "Disk quota exceeded"))], "quota", []),
    "a bug once": ([rank(1, BUG.format(line=88), at=5)], SAME, []),
    "a bug twice, on a host that passed": (
        [rank(1, BUG.format(line=88), at=5, **PROBED), rank(1, BUG.format(line=88), at=5)], "ValueError at train.py:88",
        [],
    ),
    "a bug twice, on a host that was not probed": (
        [rank(1, BUG.format(line=88), at=5), rank(1, BUG.format(line=88), at=5)], SAME, [],
    ),
    "a bug twice, on two hosts": (
        [rank(1, BUG.format(line=88), at=5), rank(1, BUG.format(line=88), at=5, host="n03")], "it is the program", [],
    ),
    "a bug at two places": (
        [rank(1, BUG.format(line=88), at=5, **PROBED), rank(1, BUG.format(line=89), at=5)], SAME, [],
    ),
    "a bug at two steps": (
        [rank(1, BUG.format(line=88), at=5, **PROBED), rank(1, BUG.format(line=88), at=6)], SAME, [],
    ),
    "a lost peer twice": ([rank(1, LOST_PEER, at=5, **PROBED), rank(1, LOST_PEER, at=5)], SAME, []),
    "no newer step": (
        [rank(137, at=5), rank(137, at=5), rank(137, at=3), rank(137, at=5)],
        "3 attempts made no progress: none came further than step 5", [],
    ),
    "a newer step in between": ([rank(137, at=5), rank(137, at=5), rank(137, at=7), rank(137, at=5)], SAME, []),
    "no step at all": ([rank(137), rank(137), rank(137)], "none has told a step", []),
    "hosts lost, no step at all": (
        [attempt(125, retired={"n09": "lost"}, **LOST), attempt(125, **LOST), attempt(125, **LOST)], REPLACED, ["n02"],
    ),
    "a host lost": ([attempt(125, **LOST)], REPLACED, ["n02"]),
    "all hosts lost": ([attempt(125, **{**LOST, "lost": THREE})], SAME, []),
    "mpiexec killed": ([attempt(125, host=None, pid=12)], SAME, []),
    "a host silent until the limit": (
        [attempt(125, began=False, why="not started", host="n02", silent=["n02"])], REPLACED, ["n02"],
    ),
    "all hosts silent": ([attempt(125, began=False, why="not started", silent=THREE)], SAME, []),
    "a host that ssh does not reach": (
        [attempt(125, began=False, why="not reached", host="n02", silent=["n02"])], REPLACED, ["n02"],
    ),
    "no host reached": ([attempt(125, began=False, why="not reached", host="n02", silent=THREE)], SAME, []),
    "a host of which the launcher complains": ([attempt(125, began=False, host="n03", silent=["n03"])],
        ("n01", "n02", "n04"), ["n03"]),
    "a node that its scheduler gives up": ([attempt(125, **GIVEN_UP)], REPLACED, ["n02"]),
    "two of them": ([attempt(125, **{**GIVEN_UP, "lost": ["n02", "n03"]})], "2 of 4 hosts are left", ["n02", "n03"]),
    "all of them": ([attempt(125, **{**GIVEN_UP, "lost": THREE})], SAME, []),
    "the whole job is ended for it": ([attempt(143, stopped=True, **GIVEN_UP)], "it failed", []),
    "a script that one host lacks": ([attempt(125, blames=LACKS, **REFUSED)], REPLACED, ["n02"]),
    "a script that two of three lack": ([attempt(125, blames={**LACKS, "n03": "too"}, **REFUSED)], SAME, []),
    "the same twice, after a probe": (
        [attempt(125, **REFUSED), attempt(125, **REFUSED)], "no rank may begin, for the same reason as before: cannot",
        [],
    ),
    "a first host that the others do not reach": (
        [attempt(125, blames=ALONE, **REFUSED)], ("n02", "n03", "n04"), ["n01"],
    ),
    "and then another": (
        [attempt(125, blames=ALONE, retired=ALONE, **REFUSED), attempt(125, blames={"n02": ALONE["n01"]}, **REFUSED)],
        "no host reaches n01, nor n02: the network between the hosts is closed", [],
    ),
    "a device that the driver reports": ([rank(1, ECC)], REPLACED, ["n02"]),
    "the same at a step": ([rank(1, ECC, at=7)], REPLACED, ["n02"]),
    "a program that talks of it": ([rank(1, "watching for uncorrectable ECC errors\n" + BUG.format(line=1))], SAME, []),
    "an illegal access": ([rank(1, ILLEGAL)], SAME, []),
    "device memory used up": ([rank(1, OUT_OF_MEMORY)], SAME, []),
    "a killed rank": ([rank(137)], SAME, []),
    "a crashed rank": ([rank(139)], SAME, []),
    "bad_alloc": ([rank(134, BAD_ALLOC)], SAME, []),
    "bad_alloc with the code of SIGTERM": ([rank(143, BAD_ALLOC)], SAME, []),
}  # fmt: skip


def test_the_table(subtests):
    for name, (rows, expected, retired) in TABLE.items():
        with subtests.test(name):
            step = decided(*rows)
            assert sorted(step.retired) == retired, step
            if isinstance(expected, str):
                assert isinstance(step, Stop), step
                assert expected in step.because
            else:
                assert isinstance(step, Again), step
                assert step.hosts == expected


def test_what_a_rank_says_of_peers_or_of_an_unclear_device_is_not_the_program(subtests):
    for words in (*PEERS, *UNCLEAR):
        with subtests.test(words):
            told = BUG.format(line=3).replace("ValueError: my bug", words)
            step = decided(rank(1, told, at=None, **PROBED), rank(1, told, at=None))
            assert (step.hosts, step.retired) == (SAME, {})


def test_an_xid_that_a_program_causes_is_no_evidence_against_its_host():
    for number in (*OF_PROGRAMS, 48, 79):
        step = decided(rank(1, f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=77, name=python3, what it is\n"))
        assert [*step.retired] == ([] if number in OF_PROGRAMS else ["n02"]), number


def test_the_clock_tells_the_end_of_the_allocation_and_no_code_does():
    lost = attempt(125, **LOST)
    assert "allocation ends in 30 s" in decided(lost, clock=Clock(now=1000.0, end=1030.0)).because
    assert isinstance(decided(lost, clock=Clock(now=1000.0, end=1200.0)), Again)
    ended = decided(attempt(143, stopped=True), clock=Clock(now=1000.0, end=990.0))
    assert "start it again" in ended.because
    assert isinstance(decided(rank(143), clock=Clock(now=1000.0, end=9000.0)), Again)


def test_what_a_probe_finds():
    def probed(**verdicts):
        return decided(rank(137), probe={**ALL_OK, **verdicts})

    gone = ProbedHost(answered=True, fails="it has 3 devices; expected 4")
    assert (probed(n01=gone).hosts, [*probed(n01=gone).retired]) == (("n02", "n03", "n04"), ["n01"])
    spare = probed(n04=gone)
    assert (spare.hosts, [*spare.retired]) == (SAME, ["n04"])
    silent = ProbedHost(answered=False)
    assert probed(n02=silent).hosts == REPLACED
    two = probed(n02=silent, n03=silent)  # the network, or the probe itself
    assert (two.hosts, two.retired) == (SAME, {})
    full = ProbedHost(answered=True, notes=("TMPDIR (/tmp) has 0 MiB left", "the clock of n02 is 9 s behind"))
    assert (probed(n02=full).hosts, probed(n02=full).retired) == (SAME, {})


def test_a_host_stays_retired_and_the_size_of_the_world_is_kept():
    first = attempt(125, retired={"n02": "lost"}, **LOST)
    second = attempt(125, hosts=REPLACED, **{**LOST, "host": "n04", "lost": ["n04"]})
    step = decided(first, second)
    assert isinstance(step, Stop)
    assert "2 of 4 hosts are left, and 3 are needed" in step.because
    assert [*step.retired] == ["n04"]
    assert decided(first, rank(137)).hosts == REPLACED


def test_the_number_of_attempts_is_a_limit_and_pauses_grow():
    assert "that was the last (--attempts 2)" in decided(rank(137, at=1), rank(137, at=2), limit=2).because
    pauses = [decided(*(rank(137, at=step) for step in range(count))).pause for count in range(1, 9)]
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    assert decided(attempt(125, **LOST)).pause == 0


def test_the_exception_is_that_of_the_last_traceback_and_the_users_own_line():
    assert raised(BUG.format(line=88)) == Raised("ValueError", "/home/me/train.py", 88)
    tagged = "".join(f"[rank1]: {line}\n" for line in BUG.format(line=3).splitlines())
    assert raised(tagged) == Raised("ValueError", "/home/me/train.py", 3)
    assert raised(FULL) == Raised("RuntimeError", "/home/me/train.py", 95)
    assert raised("Killed\n") is None
    assert raised("Traceback (most recent call last)") is None


def test_the_incidents_of_other_launchers():
    """Each as its thread tells it, with what was decided there and what is right."""
    # 130 hosts of a scheduler whose failure patterns nobody had written: the first host was evicted, the sick one kept.
    many = tuple(f"x{number:03d}" for number in range(132))
    hung = attempt(124, hosts=many[:130], stopped=True, hang={"ranks": []}, text="(--idle-timeout)")
    sick = {**dict.fromkeys(many, OK), "x077": ProbedHost(answered=False)}
    step = decided(hung, hosts=many, wanted=130, probe=sick)
    assert [*step.retired] == ["x077"]
    assert step.hosts[0] == "x000"
    # A checkpoint without space: two healthy hosts were retired.
    assert decided(rank(1, FULL, at=400)).retired == {}
    # What is evidence is told from what is none: a swap without any never happens.
    assert decided(rank(1, BUG.format(line=1))).hosts == SAME
    # Exit code 143 and std::bad_alloc, read as the wall time: ten spares unused, 522 hosts idle for half a day.
    spares = tuple(f"y{number:03d}" for number in range(532))
    step = decided(rank(143, BAD_ALLOC, host="y007", hosts=spares[:522]), hosts=spares, wanted=522,
                   probe=dict.fromkeys(spares, OK), clock=Clock(now=0.0, end=40000.0))  # fmt: skip
    assert (step.hosts, step.retired) == (spares[:522], {})
    # "couldn't forward RPC to child X": the host that reported it was evicted, and X kept. Here words name no host
    # but the one that never came up, and where that is unclear all are probed.
    step = decided(
        attempt(125, began=False, host=None, silent=THREE), probe={**ALL_OK, "n03": ProbedHost(answered=False)}
    )
    assert [*step.retired] == ["n03"]
    # A spare that joins a rendezvous which others hold closes it for good: an attempt is a whole launch here, and its
    # hosts are all that it has.
    step = decided(attempt(125, **LOST))
    assert step.hosts == REPLACED


def test_application_failures_retire_no_healthy_host_and_each_sick_one_is_found():
    draw = random.Random(26)
    sick_found = sick_planted = 0
    for _ in range(300):
        sick = draw.choice([None, None, "n02", "n04"])
        verdicts = {
            host: ProbedHost(
                answered=True, notes=(draw.choice(["TMPDIR has 0 MiB left", "importing torch took 19 s", ""]),)
            )
            for host in HOSTS
        }
        if sick:
            verdicts[sick] = ProbedHost(answered=True, fails="device 2 computes wrongly")
        host, at = draw.choice(THREE), draw.choice([None, 0, 7])
        words = draw.choice(["", BUG.format(line=draw.randrange(9)), BAD_ALLOC, OUT_OF_MEMORY, ILLEGAL, LOST_PEER])
        row = rank(draw.choice([1, 3, 134, 137, 139, 143]), words, host=host, at=at)
        step = decided(row, probe=verdicts)
        sick_planted += bool(sick)
        sick_found += [*step.retired] == [sick]
        assert set(step.retired) <= {sick}, (row, step)
    assert sick_found == sick_planted > 100
