import json
import os
import subprocess
import sys
import time

import pytest

from ezpz.errors import TrackError
from ezpz.track.journal_writer import Journal
from ezpz.view.terminal.follow import Tail
from lab.run_folders import environ


def line(step, **metrics):
    return json.dumps({"v": 1, "t": 1.5, "step": step, "m": metrics}).encode() + b"\n"


def steps(rows):
    return [row["step"] for row in rows]


@pytest.fixture
def journal(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"")
    return path


def append(path, data):
    with path.open("ab") as file:
        file.write(data)


def test_each_look_returns_what_is_new(journal):
    tail = Tail(journal)
    assert tail.poll() == []
    append(journal, line(0, loss=1.0) + line(1, loss="NaN"))
    rows = tail.poll()
    assert steps(rows) == [0, 1]
    assert rows[1]["m"]["loss"] != rows[1]["m"]["loss"]  # decoded
    assert (rows[0]["a"], rows[0]["k"]) == (1, "")
    assert tail.poll() == []
    append(journal, line(2))
    assert steps(tail.poll()) == [2]


def test_a_row_in_the_making_waits_for_its_end(journal):
    tail = Tail(journal)
    whole = line(7, note="é" * 10)
    for byte in whole[:-1]:
        append(journal, bytes([byte]))
        assert tail.poll() == []
    append(journal, whole[-1:])
    assert steps(tail.poll()) == [7]
    assert tail.passed == 0


def test_torn_and_foreign_lines_are_passed_over_and_counted(journal):
    tail = Tail(journal)
    append(journal, line(0) + line(1)[:20] + b"\n\n[1]\n\xff\xfe\n" + line(2))
    assert steps(tail.poll()) == [0, 2]
    assert tail.passed == 3


def test_records_of_other_kinds_are_returned_and_another_version_is_an_error(journal):
    append(journal, b'{"v":1,"t":1.0,"step":3,"a":2,"k":"late","m":{"x":"-Infinity"}}\n')
    (row,) = Tail(journal).poll()
    assert (row["a"], row["k"], row["m"]) == (2, "late", {"x": float("-inf")})
    append(journal, b'{"v":2,"step":0}\n')
    with pytest.raises(TrackError, match="version 1"):
        Tail(journal).poll()


def test_a_file_that_comes_late_is_followed_from_its_start(tmp_path):
    tail = Tail(tmp_path / "metrics.jsonl")
    assert tail.poll() == []
    (tmp_path / "metrics.jsonl").write_bytes(line(0))
    assert steps(tail.poll()) == [0]
    assert tail.restarts == 0


@pytest.mark.parametrize("how", ["replaced", "shrank"])
def test_another_file_in_its_place_is_read_from_its_start(journal, how):
    tail = Tail(journal)
    append(journal, line(0) + line(1) + line(2)[:10])
    assert steps(tail.poll()) == [0, 1]
    if how == "replaced":
        (journal.parent / "new").write_bytes(line(5) + line(6) + line(7))
        (journal.parent / "new").replace(journal)
    else:
        journal.write_bytes(line(5))
    assert steps(tail.poll())[0] == 5
    assert tail.restarts == 1
    journal.unlink()
    assert tail.poll() == []


def test_no_lock_is_taken_and_none_is_needed(journal, run_python):
    writer = Journal(journal)
    tail = Tail(journal)
    writer.write(0, {"x": 1})
    assert steps(tail.poll()) == [0]
    writer.write(1, {"x": 1})  # the lock of this process is still its own: a close of the file did not give it up
    code = f"from ezpz.track.journal_writer import Journal; Journal({str(journal)!r})"
    assert b"another process writes it" in run_python(code).stderr
    writer.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_a_folder_that_only_may_be_read_can_be_followed(journal):
    append(journal, line(0))
    journal.chmod(0o400)
    journal.parent.chmod(0o500)
    assert steps(Tail(journal).poll()) == [0]
    journal.parent.chmod(0o700)


WRITE = """
import sys
from ezpz.track.journal_writer import Journal
journal = Journal(sys.argv[1])
for step in range(int(sys.argv[2])):
    journal.write(step, {"loss": step / 7, "dt": float("nan") if step % 1000 == 3 else 0.25, "note": "é" * (step % 40)})
journal.close()
"""


@pytest.mark.slow
def test_100000_rows_are_tailed_without_a_torn_line_while_a_process_writes_them(journal):
    number = 100_000
    child = subprocess.Popen([sys.executable, "-c", WRITE, journal, str(number)], env=environ(journal.parent))
    tail, seen, looks = Tail(journal), [], 0
    try:
        end = time.monotonic() + 600
        while len(seen) < number and time.monotonic() < end:
            running = child.poll() is None
            rows = tail.poll()
            looks += bool(rows)
            seen += [(row["step"], row["m"]["loss"], len(row["m"]["note"])) for row in rows]
            if not running and not rows:
                break
    finally:
        child.kill()
        child.wait()
    assert seen == [(step, step / 7, step % 40) for step in range(number)]
    assert tail.passed == 0
    assert looks > 5  # it was read while it was written, not only afterwards
