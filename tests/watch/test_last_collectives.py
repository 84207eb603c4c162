"""What ranks leave of their last collectives: torch's own pickles are read, and nothing else is."""

import json
import os
import pickle
import subprocess
import sys
from types import SimpleNamespace

import pytest

from ezpz.fields import from_fields, to_fields
from ezpz.launch.host import rank_start
from ezpz.watch.collectives.last_collectives import CollectivesQuery, MalformedDump, collected, read_dump, read_last
from ezpz.watch.collectives.launcher import Collectives

# An entry as torch 2.13 writes it (gloo, and in the second one what NCCL adds).
GLOO = {"process_group": ("0", "default_pg"), "collective_seq_id": 7, "p2p_seq_id": 0, "is_p2p": False,
        "profiling_name": "gloo:all_reduce", "input_sizes": [[4], [2, 3]], "state": "scheduled", "retired": True,
        "time_created_ns": 1795486177112402745, "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None}  # fmt: skip
NCCL = {**GLOO, "profiling_name": "nccl:broadcast", "collective_seq_id": 8, "state": "started", "retired": False,
        "time_discovered_started_ns": 1795486177112500000, "input_sizes": [[]],
        "frames": [{"name": "broadcast", "filename": "/venv/site-packages/torch/d.py", "line": 9},
                   {"name": "main", "filename": "/home/me/train.py", "line": 33}]}  # fmt: skip
DUMP = {"version": "2.10", "pg_status": {"0": {"last_enqueued_collective": 8, "last_started_collective": -1,
        "last_completed_collective": 7}}, "entries": [GLOO, NCCL]}  # fmt: skip


def leave(folder, rank, *dumps, **head):
    parts = [pickle.dumps(dump, 2) for dump in dumps]
    line = {"frames": [["all_reduce", "/venv/site-packages/torch/d.py", 1], ["f", "/home/me/train.py", 33]],
            "ended": False, "dumps": [len(part) for part in parts], **head}  # fmt: skip
    path = folder / f"last_{rank}"
    path.write_bytes(json.dumps(line).encode() + b"\n" + b"".join(parts))
    return path


def process(rank, *, alive=False, pid=0):
    return SimpleNamespace(rank=rank, pid=pid, alive=alive, step=6, code=None if alive else 1)


def test_a_dump_is_read_as_pickle_reads_it():
    value = {**DUMP, "big": 1 << 70, "negative": -5, "true": True, "float": 1.5}
    value |= {"text": "ä" * 300, "none": None}
    as_lists = {**json.loads(json.dumps(value)), 70: [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]}
    assert read_dump(pickle.dumps({**value, 70: ((1,), (1, 2), (1, 2, 3), (1, 2, 3, 4))}, 2)) == as_lists


HOSTILE = {  # what would take the agent's memory, its time or its life
    "a memo of a far index": b"}Nr\xff\xff\xff\xff0.",
    "a long text that is not there": b"}X\xff\xff\xff\xffa.",
    "bytes that are not there": b"}\x96\xff\xff\xff\xff\x0f\0\0\0.",
    "a number of many digits": b"}I" + b"9" * 1_000_000 + b"\n.",
    "a deep key": b"})" + b"\x85" * 1_000_000 + b"Ns.",
    "a deep value": b"}" + b"]" * 1_000_000 + b"a" * 1_000_000 + b".",
    "many values": b"(" + b"}" * (4 << 20),
}
READ = """
import sys
from ezpz.watch.collectives.last_collectives import MalformedDump, read_dump
data = sys.stdin.buffer.read()
try:
    read_dump(data)
except MalformedDump as error:
    print(str(error)[:200])
# The peak of this program alone; getrusage keeps that of the process which started it.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) >> 10)
"""


def test_a_hostile_dump_is_refused_at_once_and_takes_little_memory(subtests):
    for what, data in HOSTILE.items():
        with subtests.test(what):
            done = subprocess.run(
                [sys.executable, "-c", READ], check=False, input=b"\x80\x02" + data, capture_output=True, timeout=60
            )
            assert done.returncode == 0, done.stderr
            *_, most = done.stdout.split()
            assert int(most) < 600, f"{most} MiB"


def test_values_that_hold_each_other_are_not_written_out(tmp_path):
    laughs = ["ha"]
    for _ in range(64):
        laughs = [laughs] * 2
    names = ("profiling_name", "state", "input_sizes", "process_group")
    leave(tmp_path, 0, {**DUMP, "entries": [{**GLOO, **dict.fromkeys(names, laughs)}]})
    (told,) = collected(str(tmp_path), [process(0)], set(), 0.0, whole=True)
    assert len(str(told.entries)) < 500


class Bad:
    def __reduce__(self):
        return os.mkdir, ("made",)


def test_what_is_no_plain_dictionary_is_refused_and_never_executed(tmp_path, monkeypatch, subtests):
    monkeypatch.chdir(tmp_path)
    for value in ({"a": Bad()}, [1], {"a": {1}}, {"a": b"x"}, {"a": Exception}):
        with subtests.test(value=value), pytest.raises(MalformedDump):
            read_dump(pickle.dumps(value, 2))
    assert not list(tmp_path.iterdir())


def test_an_answer_that_is_none_is_refused(tmp_path, subtests):
    for head in (b"", b"[]", b"{", b'{"dumps": 3}', b'{"dumps": [9]}', b'{"dumps": [-1]}', b"[" * 9999):
        (tmp_path / "last_0").write_bytes(head + b"\n")
        with subtests.test(head[:20]), pytest.raises(MalformedDump):
            read_last(str(tmp_path / "last_0"))


def test_what_is_kept_crosses_the_connection_and_becomes_json(tmp_path):
    leave(tmp_path, 1, DUMP)
    (told,) = collected(str(tmp_path), [process(0), process(1)], set(), 2.0, whole=True)
    told = from_fields(type(told), json.loads(json.dumps(to_fields(told))))
    all_ranks = Collectives()
    order = all_ranks.begin(0.0)
    all_ranks.waiting = {0}
    answer = SimpleNamespace(id=order.id, ranks=[told])
    assert all_ranks.answered(0, "n01", answer)
    found = all_ranks.as_json("abcd")
    (rank,) = found["ranks"]
    told = found["launch_id"], rank["rank"], rank["host"], rank["at"]
    assert told == ("abcd", 1, "n01", "all_reduce (train.py:33)")
    assert rank["groups"] == [{"group": "0", "enqueued": 8, "started": -1, "completed": 7}]
    first, second = rank["entries"]
    assert (first["op"], first["seq"], first["sizes"], first["state"]) == ("all_reduce", 7, "4, 2x3", "completed")
    assert first["created"] == pytest.approx(1795486179.112402)
    assert (second["op"], second["state"], second["line"]) == ("broadcast", "started", "train.py:33")


def test_a_large_world_keeps_few(tmp_path):
    entries = [{**GLOO, "collective_seq_id": number, "time_created_ns": 1000 * number} for number in range(200)]
    leave(tmp_path, 0, {**DUMP, "entries": entries})
    for whole, kept in ((True, 64), (False, 4)):
        (told,) = collected(str(tmp_path), [process(0)], set(), 0.0, whole=whole)
        assert [entry[1] for entry in told.entries] == list(range(200 - kept, 200))


def test_what_tells_orders_of_collectives_apart(tmp_path):
    part = {**NCCL, "process_group": ("1", "mesh_dp"), "profiling_name": "nccl:all_reduce"}
    config = {"0": {"ranks": "[0, 1, 2, 3]"}, "1": {"ranks": "[2, 3]"}}
    leave(tmp_path, 0, DUMP, {**DUMP, "pg_config": config, "entries": [NCCL, part]})
    (told,) = collected(str(tmp_path), [process(0)], set(), 0.0, whole=True)
    assert {entry[0] for entry in told.entries} == {"gloo:0", "nccl:0", "nccl:1@2"}


def test_a_busy_group_does_not_hide_another(tmp_path):
    many = [{**GLOO, "collective_seq_id": number, "time_created_ns": 1000 * number} for number in range(200)]
    other = {**GLOO, "process_group": ("1", "pair"), "time_created_ns": 1}
    leave(tmp_path, 0, {**DUMP, "entries": [other, *many]})
    (told,) = collected(str(tmp_path), [process(0)], set(), 0.0, whole=True)
    assert [entry[0] for entry in told.entries] == ["gloo:1", *["gloo:0"] * 64]


def test_what_a_rank_left_at_its_end_counts_although_it_does_not_answer(tmp_path):
    leave(tmp_path, 0, DUMP, ended=True)
    (told,) = collected(str(tmp_path), [process(0, alive=True, pid=os.getpid())], {0}, 0.0, whole=True)
    assert (told.ended, told.silent, len(told.entries)) == (True, False, 2)


def test_a_rank_that_does_not_answer_is_silent_and_its_old_words_do_not_count(tmp_path):
    leave(tmp_path, 0, DUMP)
    os.mkfifo(tmp_path / "ask_0.pipe")
    reader = os.open(tmp_path / "ask_0.pipe", os.O_RDWR)
    me = process(0, alive=True, pid=os.getpid())
    question = CollectivesQuery(str(tmp_path), [me], 1)
    assert os.read(reader, 9) == b"1"
    assert question.silent == {0}
    (told,) = question.answer("n01", 0.0, whole=True).ranks
    assert (told.silent, told.answered, told.entries) == (True, False, [])
    assert told.state in {"R", "S", "D"}
    (tmp_path / "new").write_bytes((tmp_path / "last_0").read_bytes())
    (tmp_path / "new").rename(tmp_path / "last_0")
    assert question.silent == set()
    os.close(reader)
    rank_start.clear(str(tmp_path))
    assert not tmp_path.exists()


def test_a_rank_that_nobody_can_ask_is_not_waited_for(tmp_path):
    question = CollectivesQuery(str(tmp_path), [process(0, alive=True, pid=os.getpid()), process(1)], 1)
    assert question.silent == set()
    assert [rank.rank for rank in question.answer("n01", 0.0, whole=True).ranks] == [0]


def test_answers_to_older_questions_count_no_more_and_last_words_do_not_hide_an_answer():
    ranks = Collectives()
    ranks.begin(0.0)
    order = ranks.begin(0.0)
    ranks.waiting = {0, 1}

    assert not ranks.answered(0, "n01", SimpleNamespace(id=order.id - 1, ranks=[]))
    assert not ranks.answered(0, "n01", SimpleNamespace(id=order.id, ranks=[]))
    assert ranks.gone(1)
    assert not ranks.gone(1)
