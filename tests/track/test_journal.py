import errno
import json
import math
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_values import VALUES, same

from ezpz.errors import TrackError, UsageError
from ezpz.track import journal_reader, read_journal
from ezpz.track.column_blocks import ParsedLines
from ezpz.track.journal_reader import last_row
from ezpz.track.journal_writer import Journal
from lab.process import wait_until


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path / "metrics.jsonl")
    yield journal
    journal.close()


def test_a_row_is_one_line_of_the_documented_form(journal):
    before = time.time()
    journal.write(3, {"train/loss": 0.25, "lr": math.nan, "tokens": 2**53 + 1})
    text = Path(journal.path).read_bytes()
    row = json.loads(text)
    stamp = json.dumps(row["t"]).encode()
    assert text == b'{"v":1,"t":' + stamp + b',"step":3,"m":{"train/loss":0.25,"lr":"NaN","tokens":9007199254740993}}\n'
    assert before <= row["t"] <= time.time()


@given(
    rows=st.lists(
        st.tuples(st.integers(-(2**63), 2**63 - 1), st.dictionaries(st.text(), VALUES, max_size=4)), max_size=6
    )
)
def test_every_row_is_read_back_in_order_and_to_the_bit(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("journal") / "metrics.jsonl"
    journal = Journal(path)
    for step, values in rows:
        journal.write(step, values)
    journal.close()
    read = read_journal(path)
    assert [row["step"] for row in read] == [step for step, _ in rows]
    for row, (_, values) in zip(read, rows, strict=True):
        assert list(row["m"]) == list(values)
        assert all(same(row["m"][key], value) for key, value in values.items())


def test_a_row_can_be_read_by_another_process_before_anything_is_closed(journal, run_python):
    journal.write(0, {"loss": 1.5})
    code = "import sys; from ezpz.track import read_journal; print(read_journal(sys.argv[1])[0]['m'])"
    assert run_python(code, journal.path).stdout.decode().strip() == "{'loss': 1.5}"


def test_a_folder_stands_for_the_journal_in_it(journal, tmp_path):
    journal.write(7, {})
    assert read_journal(tmp_path)[0]["step"] == 7


def test_a_row_in_the_making_is_left_out(journal):
    journal.write(0, {"a": 1})
    with Path(journal.path).open("ab") as file:
        file.write(b'{"v":1,"t":1.0,"step":1,"m":{"a":2}}')  # whole, but for its newline
    assert [row["step"] for row in read_journal(journal.path)] == [0]


def test_a_writer_that_follows_a_torn_line_starts_a_new_one(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"v":1,"t":1.0,"step":0,"m":{}}\n{"v":1,"t":2.0,"st')
    journal = Journal(path)
    journal.write(1, {})
    journal.close()
    assert path.read_bytes().count(b"\n") == 3
    assert [row["step"] for row in read_journal(path)] == [0, 1]
    assert "passed over 1 torn line" in capsys.readouterr().out


def test_a_missing_journal_and_a_version_from_the_future_are_errors_that_name_the_place(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"v":2,"t":1.0,"step":0,"m":{}}\n')
    with pytest.raises(TrackError, match=r"metrics\.jsonl:1\); expected a row of version 1"):
        read_journal(path)
    with pytest.raises(TrackError, match=r"no/metrics\.jsonl: No such file"):
        read_journal(tmp_path / "no" / "metrics.jsonl")


def test_lines_of_somebody_else_are_passed_over_and_told(subtests, tmp_path, capsys):
    for line in [b'{"loss":1}', b"[1]", b'{"v":1,"t":"x","step":0,"m":{}}', b'{"v":1,"t":1,"step":0,"m":[]}']:
        with subtests.test(repr(line)):
            path = tmp_path / "metrics.jsonl"
            path.write_bytes(
                b'{"v":1,"t":1.0,"step":0,"m":{"x":1}}\n' + line + b'\n{"v":1,"t":1.0,"step":1,"m":{"x":2}}\n'
            )
            assert [row["m"] for row in read_journal(path)] == [{"x": 1}, {"x": 2}]
            assert "metrics.jsonl:2: passed over what is no record of ezpz" in capsys.readouterr().out


def test_values_that_came_late_stand_in_their_row_and_other_kinds_are_passed_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [
        '{"v":1,"t":1.0,"step":0,"m":{"a":1}}',
        '{"v":1,"t":1.0,"step":1,"m":{"a":2}}',
        '{"v":1,"t":2.0,"step":0,"k":"late","m":{"g":"NaN"}}',
        '{"v":1,"t":2.0,"step":9,"k":"late","m":{"g":5}}',
        '{"v":1,"t":2.0,"step":9,"k":"of tomorrow","m":{"g":7}}',
    ]
    path.write_text("\n".join(lines) + "\n")
    rows = read_journal(path)
    assert [row["step"] for row in rows] == [0, 1, 9]
    assert rows[0]["m"].keys() == {"a", "g"}
    assert rows[2]["m"] == {"g": 5}
    assert [row["a"] for row in rows] == [1, 1, 1]


def test_an_int_too_long_to_print_is_refused_and_leaves_the_journal_whole(journal):
    with pytest.raises(TrackError, match="cannot record step 0"):
        journal.write(0, {"x": 10**5000})
    journal.write(1, {"x": 1})
    assert [row["step"] for row in read_journal(journal.path)] == [1]


def test_the_last_step_is_found_behind_a_torn_end(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"")
    assert last_row(path) is None
    journal = Journal(path)
    for step in (5, 0):
        journal.write(step, {"text": "x" * 2_000_000})  # longer than the tail that is read first
    journal.write(8, {})
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"v":1,"t":')
    assert last_row(path) == (8, 1)


@pytest.mark.slow
def test_rows_reach_the_disk_at_most_a_second_late_and_a_silent_journal_asks_nothing(journal, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", lambda _: synced.append(threading.current_thread().name))
    for step in range(25):
        journal.write(step, {})
    wait_until(lambda: synced, 60, "a sync", every=0.02)
    time.sleep(1.5)
    count = len(synced)  # 1, or 2 where the rows took their time
    assert count < 5
    assert set(synced) == {"ezpz-journal"}  # no write of the training waits for the disk
    time.sleep(1.5)
    assert len(synced) == count
    journal.sync()
    assert len(synced) == count + 1


def test_a_journal_opened_again_is_a_further_attempt(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for steps in ((0, 1, 2), (), (2, 3)):
        journal = Journal(path)
        for step in steps:
            journal.write(step, {"x": step})
        journal.close()
    assert [(row["step"], row["a"]) for row in read_journal(path)] == [(0, 1), (1, 1), (2, 1), (2, 2), (3, 2)]
    assert b'"a":1' not in path.read_bytes()
    assert (journal.attempt, journal.next_step) == (2, 3)


def test_a_second_writer_is_refused_while_the_first_one_lives(journal):
    with pytest.raises(UsageError, match="another process writes it"):
        Journal(journal.path)
    journal.write(0, {})
    journal.close()
    Journal(journal.path).close()


def test_a_forked_child_lets_go_of_its_parents_journal(journal):
    journal.write(0, {})
    reader, writer = os.pipe()
    began, ready = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.write(ready, b"x")
        os.read(reader, 1)
        os._exit(0)
    os.read(began, 1)
    journal.close()
    Journal(journal.path).close()  # would be refused if the child held it still
    for descriptor in (writer, reader, began, ready):
        os.close(descriptor)
    os.waitpid(child, 0)


FULL_DISK = """
import resource, sys
from ezpz.track.journal_writer import Journal
from ezpz.track.journal_reader import read_journal
journal = Journal(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))   # a disk that is full after 1000 bytes
for step in range(50):
    journal.write(step, {"loss": step / 7})
print("missing:", journal.missing())
print("whole", *[row["step"] for row in read_journal(sys.argv[1])])
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.write(50, {"loss": 0.5})
print("missing:", journal.missing())
journal.close()
print("read", *[row["step"] for row in read_journal(sys.argv[1])])
"""


def test_rows_of_a_full_disk_wait_in_memory_and_are_written_when_there_is_space(run_python, tmp_path):
    result = run_python(FULL_DISK, tmp_path / "metrics.jsonl")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.decode().splitlines()
    first = len(next(line for line in lines if line.startswith("whole")).split()) - 1
    assert [line for line in lines if line.startswith("missing:")] == [
        f"missing: {50 - first} rows of steps {first} to 49 could not be written",
        "missing: ",
    ]
    assert lines[-1] == " ".join(["read", *map(str, range(51))])
    warnings = [line.split("] ")[1] for line in lines if "[W]" in line]
    assert warnings == [
        (
            f"cannot write {tmp_path}/metrics.jsonl: File too large. Training continues; rows from step {first} on "
            "wait in memory, at most 64 MB of them, until there is space."
        ),
        f"{tmp_path}/metrics.jsonl: there is space again; {50 - first} rows, from step {first} on, were written.",
    ]
    assert (tmp_path / "metrics.jsonl").read_bytes().count(b"\n") == 51  # the line that was cut goes on where it was


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk is mounted, as root")
def test_a_really_full_disk_is_left_with_whole_rows_and_a_true_word(tmp_path, capsys):
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(words, capture_output=True, check=False).returncode != 0:
        pytest.skip("this container may not mount")
    try:
        (disk / "other").write_bytes(bytes(40_000))
        journal = Journal(disk / "metrics.jsonl")
        for step in range(2000):
            journal.write(step, {"loss": step / 7})
        count = len(read_journal(disk))
        assert 100 < count < 1000
        assert journal.missing() == f"{2000 - count} rows of steps {count} to 1999 could not be written"
        assert "No space left on device. Training continues; rows from step" in capsys.readouterr().out
        (disk / "other").unlink()
        # Without a further row: a thread looks once a second.
        wait_until(lambda: not journal.missing().startswith(f"{2000 - count} "), 60, "the rows that waited", every=0.02)
        later = len(read_journal(disk))
        assert count < later < 2000
        journal.close()
        assert journal.missing() == f"{2000 - later} rows of steps {later} to 1999 could not be written"
        assert [row["step"] for row in read_journal(disk)] == list(range(later))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def refuse_writing(monkeypatch, number=errno.EDQUOT):
    def full(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.write", full)


def test_memory_for_waiting_rows_has_a_limit_and_what_goes_beyond_is_told(journal, monkeypatch, capsys):
    monkeypatch.setattr("ezpz.track.journal_writer._MOST_WAITING", 10_000)
    journal.write(0, {"x": 0})
    with monkeypatch.context() as patch:
        refuse_writing(patch)
        for step in range(1, 101):
            journal.write(step, {"text": "x" * 100})
        assert journal.missing() == "100 rows of steps 1 to 100 could not be written"
    journal.write(101, {"x": 1})
    held = len(read_journal(journal.path)) - 2
    assert 20 < held < 60  # each has over 150 bytes
    lost = f"{100 - held} rows of steps {held + 1} to 100 could not be written"
    assert journal.missing() == lost
    journal.write(102, {"x": 1})
    assert journal.missing() == lost
    assert [row["step"] for row in read_journal(journal.path)] == [*range(held + 1), 101, 102]
    told = [line.split("] ")[1] for line in capsys.readouterr().out.splitlines()]
    assert [line.split(": ", 1)[1] for line in told] == [
        (
            "Disk quota exceeded. Training continues; rows from step 1 on wait in memory, at most 0 MB of them, until "
            "there is space."
        ),
        (
            f"Disk quota exceeded. {held} rows wait in memory, which is all that is kept there: rows from step "
            f"{held + 1} on are lost until there is space."
        ),
        f"there is space again; {held} rows, from step 1 on, were written. {lost}.",
    ]


def test_a_disk_that_takes_a_row_now_and_then_is_told_once_a_minute(journal, monkeypatch, capsys):
    for step in range(20):
        with monkeypatch.context() as patch:
            refuse_writing(patch, errno.ENOSPC)
            journal.write(2 * step, {})
        journal.write(2 * step + 1, {})
    assert len(read_journal(journal.path)) == 40
    assert capsys.readouterr().out.count("[W]") == 2
    refuse_writing(monkeypatch, errno.ENOSPC)
    journal.write(40, {})
    assert capsys.readouterr().out == ""
    later = time.monotonic() + 61
    monkeypatch.setattr("ezpz.track.journal_writer.monotonic", lambda: later)
    journal.write(41, {})
    assert "rows from step 40 on wait" in capsys.readouterr().out
    monkeypatch.undo()


ODD_LINES = [
    '{"v":1,"t":1.5,"step":1,"m":{"a":NaN,"b":-Infinity}}',  # as other programs write them
    '{"v":1,"t":1.5,"step":2,"m":{"a":"\\ud800"}}',
    '{"v":1,"t":1.5,"step":3,"m":{"a":1e400,"b":-0.0,"c":1E5,"d":true,"e":0.00012345678901234567}}',
    '{"v":1,"t":1.5,"step":4,"a":2,"k":"late","m":{"a":[1,2.5],"b":"NaN","a":3}}',
    '{"v":1,"t":1.5,"step":5,"m":{"é":"ü"}} \r',
    '{"v":1,"t":1.5,"step":6,"m":{"a":1.}}',
    '{"v":1,"t":1.5,"step":7,"m":{"a":',
    '{"v":1,"t":2,"step":8.0,"m":{}}',
    "null",
    "[" * 3000,
]
LONG_INTEGERS = [
    f'{{"v":1,"t":1.5,"step":9,"m":{{"a":{value}}}}}' for value in (2**63 - 1, -(2**63), 2**64, -(2**70), 10**30)
]


@pytest.mark.parametrize(
    "odd", [ODD_LINES, LONG_INTEGERS, [*LONG_INTEGERS[:1], *ODD_LINES]], ids=["odd", "long", "both"]
)
def test_large_pieces_are_read_alike_with_and_without_orjson(odd, monkeypatch):
    pytest.importorskip("orjson")
    plain = [f'{{"v":1,"t":{1.5 + step},"step":{step},"m":{{"loss":{step / 7},"n":{step}}}}}' for step in range(3000)]
    data = "".join(f"{line}\n" for line in [*plain, *odd, *plain[:5]]).encode()
    assert len(data) > 100_000
    found = []
    for has_orjson in (True, False):  # as if it were installed or not, which is asked once in a process
        monkeypatch.setattr(journal_reader, "_has_orjson", lambda known=has_orjson: known)
        part, added = ParsedLines(0, 0), []
        monkeypatch.setattr(part.records, "add", lambda *row, added=added: added.append(repr(row)))
        journal_reader.read_stretch(data, part, ("metrics.jsonl", 0))
        found.append((added, part.windows, part.lines, part.torn, part.foreign, part.at, part.end))
    assert found[0] == found[1]
    assert len(found[0][0]) > 3005
