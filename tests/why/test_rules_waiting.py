"""Ranks that ended because others had not come in time, each with the cause that must stand first.

The words are torch's: those of gloo and of the store are 2.13's, those of NCCL's watchdog are as logs in public issues
show them (torch 1.13, 2.3, 2.4, 2.6 and 2.8).
"""

import pytest

from ezpz.why import Certainty, Facts, diagnose, last_line
from ezpz.why.waiting_words import Watchdog, called_in, wait_in, waited_in_vain, watchdog_in

SITE = "/venv/lib/python3.11/site-packages/torch/distributed"
GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] "
RECV = f"{GLOO}Timed out waiting 5000ms for recv operation to complete"
LOST = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed by peer [10.0.0.1]:4711"
)
KEY = "torch.distributed.DistStoreError: wait timeout after 15000ms, keys: /default_pg/0//cpu//0/{}"
JOINED = "torch.distributed.DistStoreError: Timed out after 16 seconds waiting for clients. {}/{} clients joined."
NO_MASTER = (
    "torch.distributed.DistNetworkError: The client socket has timed out after 15000ms while trying to connect to "
    "({}, 29500)."
)
BARRIER = "RuntimeError: [Rank 0]: Ranks 2 failed to pass monitoredBarrier in 5000 ms"
REDUCE, BACKWARD, START = "all_reduce (train.py:21)", "backward (train.py:16)", "init_process_group (train.py:4)"


def traceback(exception, call="all_reduce", line=21, code="dist.all_reduce(x)"):
    """A traceback of torch's, which tags its lines."""
    lines = (
        "Traceback (most recent call last):",
        f'  File "/home/me/train.py", line {line}, in <module>',
        f"    {code}",
        f'  File "{SITE}/c10d_logger.py", line 83, in wrapper',
        "    return func(*args, **kwargs)",
        f'  File "{SITE}/distributed_c10d.py", line 3251, in {call}',
        "    work.wait()",
        exception,
    )
    return "".join(f"[rank0]: {line}\n" for line in lines)


def start(exception, code='dist.init_process_group("gloo")'):
    return traceback(exception, "init_process_group", 4, code)


def failure(number, words, **more):
    return {"text": f"rank {number} on host n01 (pid 1{number}) exited with code 1; stopping the other ranks",
            "rank": number, "code": 1, "words": words, **more}  # fmt: skip


def rank(number, at=None, state="S"):
    """A rank of a plain script that lived; where it was is known where it was asked."""
    return {"rank": number, "pid": 10 + number, "state": state, "at": at, "entries": [], "groups": []}


def facts(failures, ranks=(), *, world=3, hosts=1, **more):
    names = [f"n0{number + 1}" for number in range(hosts)]
    plan = {"hosts": names, "ranks_per_host": [world // hosts] * hosts, "world_size": world, "master": "n01:29500"}
    first, *rest = (failure(*each) if isinstance(each, tuple) else each for each in failures)
    record = {"state": "failed", "exit_code": 1, "plan": plan, "cause": first, "failures": rest, **more}
    return Facts(record, collectives={"ranks": list(ranks)})


# case: facts, cause, rank that it names, its sentence
CASES = {
    "one is elsewhere": (
        facts([(0, traceback(RECV))], [rank(1, "save (train.py:7)"), rank(2, REDUCE)]),
        ("collective-missing", 1, "rank 1 is in save (train.py:7), and never came to all_reduce (train.py:21): rank 0"),
    ),
    "one is elsewhere, and another lost the first": (
        facts([(0, traceback(RECV)), (2, traceback(LOST))], [rank(1, "save (train.py:7)")]),
        ("collective-missing", 1, "rank 1 is in save (train.py:7), and never came to all_reduce (train.py:21): ranks "),
    ),
    "one is stopped, which needs no question": (
        facts([(0, traceback(RECV))], [rank(1, state="T")], world=2),
        ("stopped", 1, "rank 1 is stopped by a signal, and never came to all_reduce (train.py:21): rank 0 waits for i"),
    ),
    "one waits in another call": (
        facts([(0, traceback(RECV))], [rank(1, "barrier (train.py:30)"), rank(2, REDUCE)]),
        ("other-collective", 1, "rank 1 called barrier (train.py:30), where the others called another collective: ran"),
    ),
    "one has left its loop, and the others wait in a backward": (
        facts([(1, traceback(RECV))], [rank(0, BACKWARD), rank(2, BACKWARD)]),
        ("other-collective", 1, "rank 1 called all_reduce (train.py:21), where the others called another collective: "),
    ),
    "one of two waits in another call": (
        facts([(0, traceback(RECV))], [rank(1, "barrier (train.py:30)")], world=2),
        ("other-collective", None, "ranks 0 and 1 called different collectives: rank 0 called all_reduce (train.py:21"),
    ),
    "nobody told where it was": (
        facts([(0, traceback(RECV))], [rank(1), rank(2)]),
        (
            "waited-in-vain",
            None,
            (
                "rank 0 waited 5 s for others in all_reduce (train.py:21) in vain; ranks 1 and 2 still ran, and "
                "where is not known"
            ),
        ),
    ),
    "all are in the same call": (
        facts([(0, traceback(RECV))], [rank(1, REDUCE), rank(2, REDUCE)]),
        ("waited-in-vain", None, "rank 0 waited 5 s for others in all_reduce (train.py:21) in vain; ranks 1 and 2 sti"),
    ),
    "nothing is known of others": (
        facts([(0, traceback(RECV)), (1, traceback(RECV)), (2, traceback(RECV))]),
        (
            "waited-in-vain",
            None,
            "rank 0 waited 5 s for others in all_reduce (train.py:21) in vain; what became of them is not known",
        ),
    ),
    "another one raises, and is slow to end": (
        facts([(0, traceback(RECV)), (2, traceback("ValueError: no such shard", "load", 9))], [rank(1, REDUCE)]),
        ("exception", 2, "rank 2 raised ValueError: no such shard (train.py:9)"),
    ),
    "a barrier names who did not come": (
        facts([(0, traceback(BARRIER, "monitored_barrier"))], [rank(1), rank(2)]),
        (
            "waited-in-vain",
            None,
            (
                "rank 0 waited 5 s for rank 2 in monitored_barrier (train.py:21) in vain; rank 2 still ran, and "
                "where is not known"
            ),
        ),
    ),
    "a key names who did not come, and it is elsewhere": (
        facts([(1, start(KEY.format(2)))], [rank(0, START), rank(2, "unpack (data.py:3)")]),
        ("collective-missing", 2, "rank 2 is in unpack (data.py:3), and never came to init_process_group (train.py:4)"),
    ),
    "a store counts who came, and one is elsewhere": (
        facts([(0, start(JOINED.format(2, 3)))], [rank(1, START), rank(2, "unpack (data.py:3)")]),
        ("collective-missing", 2, "rank 2 is in unpack (data.py:3), and never came to init_process_group (train.py:4)"),
    ),
    "a store counts who came": (
        facts([(0, start(JOINED.format(2, 3)))], [rank(1), rank(2)]),
        (
            "waited-in-vain",
            None,
            (
                "rank 0 waited 16 s for others (2 of 3 had come) in init_process_group (train.py:4) in vain; ranks "
                "1 and 2 still ran, and where is not known"
            ),
        ),
    ),
    "a world size of the script's own": (
        facts([(0, start(JOINED.format(2, 4)))], [rank(1, START)], world=2),
        (
            "other-world-size",
            None,
            (
                "rank 0 waited for 4 ranks in init_process_group (train.py:4), and launch started 2 ranks: the "
                "script has a world size of its own"
            ),
        ),
    ),
    "the same, said by the script's own line": (
        facts([(1, start(KEY.format(2), "dist.init_process_group(rank=rank, world_size=4)"))], [rank(0)], world=2),
        ("other-world-size", None, "rank 1 waited for 4 ranks in init_process_group (train.py:4), and launch started "),
    ),
    "the same, shown by a rank that cannot be": (
        facts([(1, start(KEY.format(2)))], [rank(0)], world=2),
        ("other-world-size", None, "rank 1 waited for rank 2 in init_process_group (train.py:4), and launch started 2"),
    ),
    "LOCAL_RANK as rank": (
        facts([(each, start(KEY.format(2))) for each in (1, 2)], [rank(0, START), rank(3, START)], world=4, hosts=2),
        (
            "other-rank",
            None,
            (
                "rank 1 on n01 waited 15 s for rank 2 on n02 in init_process_group (train.py:4) in vain, and rank "
                "2 on n02 was there as well: it came as another rank, or to another address"
            ),
        ),
    ),
    "a master of the script's own": (
        facts([(1, start(NO_MASTER.format("10.254.1.1")))], [rank(0, START)], world=2),
        (
            "other-master",
            None,
            (
                "rank 1 did not reach 10.254.1.1:29500 in init_process_group (train.py:4), and launch lets the "
                "ranks meet at n01:29500: the script has a MASTER_ADDR of its own"
            ),
        ),
    ),
    "a master that cannot be reached": (
        facts([(2, start(NO_MASTER.format("n01")))], [rank(0, START), rank(1, START)], hosts=3),
        (
            "master-not-reached",
            None,
            (
                "rank 2 on n03 did not reach n01:29500, where the ranks meet, for 15 s in init_process_group "
                "(train.py:4); rank 0 on n01, which listens there, was in init_process_group (train.py:4)"
            ),
        ),
    ),
    "rank 0 has not come to listen": (
        facts([(1, start(NO_MASTER.format("n01")))], [rank(0, "unpack (data.py:3)")], world=2, hosts=2),
        ("collective-missing", 0, "rank 0 on n01 is in unpack (data.py:3), and never came to init_process_group (trai"),
    ),
}  # fmt: skip


def test_who_waited_is_not_the_cause(subtests):
    for case, (known, (name, culprit, text)) in CASES.items():
        with subtests.test(case):
            first = diagnose(known)[0]
            assert (first.cause, first.rank, first.certainty) == (name, culprit, Certainty.SHOWN)
            assert first.text.startswith(text)
            if name != "exception":
                assert last_line([first], failed=True) == first.text


OTHER_CAUSES = {
    "it was killed, whatever it had written before": failure(0, traceback(RECV), code=None, signal="SIGKILL"),
    "it survived that, and raised something else": failure(0, traceback(RECV) + traceback("KeyError: 3", "load", 9)),
    "a download timed out": failure(0, traceback("TimeoutError: timed out waiting 5000ms for recv", "load", 9)),
}


@pytest.mark.parametrize("case", OTHER_CAUSES)
def test_other_ends_are_no_waits(case):
    causes = diagnose(facts([OTHER_CAUSES[case]], [rank(1, "save (train.py:7)")], world=2))
    assert causes[0].cause in {"killed-by-signal", "exception"}
    assert causes[0].rank == 0


def test_a_hang_has_rules_of_its_own():
    known = facts([(0, traceback(RECV))], [rank(1, "save (train.py:7)")], world=2, hang={"summary": "…", "ranks": []})
    assert "waited-in-vain" not in {cause.cause for cause in diagnose(known)}


# NCCL's watchdog

CAUGHT = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType={}{}, Timeout(ms)=600000) ran for 600{} "
)
CAUGHT += "milliseconds before timing out."
NUMEL = ", NumelIn=8, NumelOut=8"
DETECTED = (
    " Exception (either an error or timeout) detected by watchdog at work: {}, last enqueued NCCL work: {}, last "
)
DETECTED += "completed NCCL work: {}."
STATUS = (
    "  failure detected by watchdog at work sequence id: {} PG status: last enqueued work: {}, last completed work: {}"
)
DUMP = (
    " Received a dump signal due to a collective timeout from  rank 0 and we will try our best to dump the debug info. "
)
DUMP += "Last enqueued NCCL work: {}, last completed NCCL work: {}.This is most likely caused by incorrect usages"
ABORTED = "terminate called after throwing an instance of 'c10::DistBackendError'\n"


def watchdog(number, seq, op="ALLREDUCE", enqueued=None, version="2.8"):
    """What a rank writes whose work has timed out, by the version of torch."""
    enqueued = seq if enqueued is None else enqueued
    e, caught = "E808 04:21:41.161005534 ProcessGroupNCCL.cpp:", CAUGHT.format(seq, op, NUMEL, "013")
    return {
        "1.13": f"[E ProcessGroupNCCL.cpp:737] [Rank {number}] {CAUGHT.format(seq, op, '', '212')}\n",
        "2.3": f"[rank{number}]:[E ProcessGroupNCCL.cpp:523] [Rank {number}] {caught}\n",
        "2.4": f"[rank{number}]:[{e}607] [Rank {number}] {caught}\n"
        f"[rank{number}]:[{e}1664] [PG 0 (default_pg) Rank {number}]{DETECTED.format(seq, enqueued, seq - 1)}\n",
        "2.6": f"[rank{number}]:[{e}616] [Rank {number}] {caught}\n"
        f"[rank{number}]:[{e}1785] [PG ID 0 PG GUID 0(default_pg) Rank {number}]"
        f"{DETECTED.format(seq, enqueued, seq - 1)}\n",
        "2.8": f"[rank{number}]:[{e}655] [Rank {number}] {caught}\n"
        f"[rank{number}]:[{e}2299] [PG ID 0 PG GUID 0(default_pg) Rank {number}]"
        f"{STATUS.format(seq, enqueued, seq - 1)}\n",
    }[version] + ABORTED  # fmt: skip


def dumped(number, enqueued):
    """What a rank writes that is told of another's timeout."""
    says = DUMP.format(enqueued, enqueued)
    return f"[rank{number}]:[E ProcessGroupNCCL.cpp:1987] [PG ID 0 PG GUID 0(default_pg) Rank {number}]{says}\n"


def aborted(*words):
    """Ranks that NCCL's watchdog aborted, by rank."""
    return [failure(number, said, code=None, signal="SIGABRT") for number, said in enumerate(words) if said]


def test_each_versions_watchdog_is_read(subtests):
    for version, group, enqueued, completed in (
        ("1.13", "", -1, -1),
        ("2.3", "", -1, -1),
        ("2.4", "0 (default_pg)", 48, 45),
        ("2.6", "0(default_pg)", 48, 45),
        ("2.8", "0(default_pg)", 48, 45),
    ):
        with subtests.test(version):
            words = watchdog(1, 46, enqueued=48, version=version)
            (found,) = watchdog_in(words)
            assert found == Watchdog(group, 46, "ALLREDUCE", enqueued, completed)
            assert waited_in_vain(words)
            assert found.is_of_all
    (found,) = watchdog_in(dumped(2, 16))
    assert (found.seq, found.enqueued, found.completed) == (-1, 16, 16)
    part = watchdog(1, 7).replace("ID 0 PG GUID 0(default_pg)", "ID 2 PG GUID 3")
    assert [one.is_of_all for one in watchdog_in(part)] == [False]
    first = "PG status: last enqueued work: 1, last started work: -1, last completed work: -1"
    assert watchdog_in(first)[0].completed == -1


WATCHDOGS = {
    "one has given NCCL less work": (
        facts(aborted(watchdog(0, 167), watchdog(1, 167), dumped(2, 166))),
        ("collective-missing", 2, "rank 2 never came to ALLREDUCE #167 of NCCL: ranks 0 and 1 waited 600 s for it"),
    ),
    "one of them is in a plain script, and was asked": (
        facts(aborted(watchdog(0, 167), watchdog(1, 167)), [rank(2, "save (train.py:7)")]),
        ("waited-in-vain", None, "rank 0 waited 600 s for others in vain; rank 2 still ran"),
    ),
    "one gave it another operation": (
        facts(aborted(watchdog(0, 9), watchdog(1, 9), watchdog(2, 9, "_ALLGATHER_BASE"))),
        (
            "other-collective",
            2,
            "rank 2 called _ALLGATHER_BASE as work #9 of NCCL, where ranks 0 and 1 called ALLREDUCE",
        ),
    ),
    "of two nobody knows which one is wrong": (
        facts(aborted(watchdog(0, 9), watchdog(1, 9, "BROADCAST")), world=2),
        ("other-collective", None, "ranks 0 and 1 gave NCCL different work as #9: "),
    ),
    "all say the same": (
        facts(aborted(*(watchdog(number, 18, enqueued=39) for number in range(3)))),
        ("waited-in-vain", None, "rank 0 waited 600 s for others in vain; what became of them is not known"),
    ),
    "an old torch": (
        facts(aborted(watchdog(0, 9, version="1.13"), watchdog(1, 9, version="1.13"))),
        ("waited-in-vain", None, "rank 0 waited 600 s for others in vain"),
    ),
}


def test_watchdogs_of_ranks_are_compared(subtests):
    for case, (known, (name, culprit, text)) in WATCHDOGS.items():
        with subtests.test(case):
            first = diagnose(known)[0]
            assert (first.cause, first.rank) == (name, culprit)
            assert first.text.startswith(text)


# gloo's abort

STACKS = """Fatal Python error: Aborted

Thread 0x00007f (most recent call first):
  File "/home/other/ezpz/src/ezpz/dist/arrivals.py", line 82 in run
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007e (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/other/ezpz/src/ezpz/dist/arrivals.py", line 40 in wrapped
  File "/home/me/train.py", line 21 in <module>
"""


def entry(seq):
    return {
        "group": "gloo:0",
        "seq": seq,
        "op": "all_reduce",
        "sizes": "60",
        "state": "scheduled",
        "created": 100.0 + seq,
    }


def test_a_rank_that_ran_ahead_is_named_by_its_line():
    ranks = [{**rank(number, BACKWARD), "entries": [entry(22), entry(23)]} for number in (0, 2, 3)]
    gone = failure(1, STACKS, code=None, signal="SIGABRT")
    first = diagnose(facts([gone], ranks, world=4))[0]
    assert (first.cause, first.rank) == ("other-collective", 1)
    assert first.text == (
        "rank 1 called all_reduce (train.py:21) where ranks 0, 2 and 3 were in backward (train.py:16): it left its "
        "loop earlier, or skipped a call"
    )
    same = diagnose(facts([gone], [rank(number, REDUCE) for number in (0, 2, 3)], world=4))[0]
    assert (same.cause, same.rank) == ("aborted-in-collective", 1)
    assert same.text.startswith("rank 1 was aborted by torch inside all_reduce (train.py:21), mostly because")
    elsewhere = diagnose(facts([gone], [rank(number, "load (a.py:1)") for number in (0, 2, 3)], world=4))[0]
    assert elsewhere.cause == "aborted-in-collective"


def test_the_victim_of_a_rank_that_ran_ahead_is_not_accused():
    ranks = [rank(0, BACKWARD), rank(1, "all_reduce (train.py:30)"), rank(3, BACKWARD)]
    stacks = STACKS.replace("3252 in all_reduce", "3252 in backward").replace("line 21", "line 16")
    assert called_in(stacks) == BACKWARD
    first = diagnose(facts([failure(2, stacks, code=None, signal="SIGABRT")], ranks, world=4))[0]
    assert (first.cause, first.rank) == ("other-collective", 1)


def test_what_a_wait_says():
    own = wait_in(start(KEY.format(2), "dist.init_process_group(rank=r, world_size=4)"))
    assert (own.seconds, own.ranks, own.own_world) == (15.0, (2,), 4)
    assert wait_in(start(KEY.format(2).replace("default_pg/0", "default_pg/1"))).ranks == ()  # of another group
    root = (
        "DistBackendError: [2] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
    )
    root += "store by store->get('0'), but got error: wait timeout after 600000ms, keys: /default_pg/0//cuda//0"
    assert wait_in(traceback(root)).ranks == (0,)
