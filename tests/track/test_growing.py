"""The columns that a journal's own thread writes say what the journal says, whatever comes in between."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ezpz.track import recorded_rows
from ezpz.track.distribution import Histogram
from ezpz.track.journal_reader import iter_journal, read_journal
from ezpz.track.journal_writer import Journal, PeriodicCall
from ezpz.track.recorded_rows import COLUMNS, known_blocks, read_stored
from ezpz.track.table import gather, table_of

SMALL = 300  # bytes of a journal in a block


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(recorded_rows, "STRETCH", SMALL)
    monkeypatch.setattr(recorded_rows, "_SHARE", 60.0)  # this machine may be busy


def shown(table):
    cells = {
        key: (each.index, [(type(value), repr(value)) for value in each.values]) for key, each in table.cells.items()
    }
    return table.steps, table.attempts, table.times, cells


def held(folder):
    """How many bytes of the journal the file of columns stands for, and whether it is newer than the journal."""
    path = Path(folder, "metrics.jsonl")
    with path.open("rb") as file:
        blocks, is_newer = known_blocks(
            f"{folder}/{COLUMNS}", lambda start, size: os.pread(file.fileno(), size, start), path.stat()
        )
    return blocks[-1].end if blocks else 0, is_newer


def agree(folder):
    """Assert that columns and tail say what the journal says."""
    rest = read_stored(str(folder), lambda: False)
    assert shown(table_of(rest.blocks)) == shown(gather(read_journal(folder)))
    assert rest.windows() == [row for row in iter_journal(folder) if row["k"] == "ranks"]
    return held(folder)


def write(journal, first, count, seed=0):
    """Write rows of all kinds."""
    throw = random.Random(seed + first)
    for step in range(first, first + count):
        values = {"loss": throw.random(), "lr": throw.choice([0.5, float("nan"), 1])}
        if throw.random() < 0.3:
            values |= {"note": throw.choice(["NaN", "ü", "\ud800"]), "many": [1, 0.5, float("inf")], "big": 10**25}
        if throw.random() < 0.1:
            values["grad"] = Histogram([1, 2], [0.0, 0.5, 1.0])
        journal.write(step, values if throw.random() > 0.05 else {})
        if throw.random() < 0.2:
            journal.write_late(step, {"late": throw.random(), "loss": 0.25})
        if throw.random() < 0.1:
            content = {"world": 1, "every": 1, "steps": [step], "keys": {"loss": {"ranks": [[0.5]]}}}
            journal.write_ranks(step, content)


WORK = {}  # what each open journal's thread would do once a second


class Still(PeriodicCall):
    """No thread: a test says when to work."""

    def __init__(self, sync, work, look):
        super().__init__(sync, work, look)
        WORK[sync.__self__] = work

    def start(self):
        self.is_on = True


def work(journal):
    """Do what the journal's thread does once a second."""
    WORK[journal]()


@pytest.fixture
def _no_thread(monkeypatch):
    monkeypatch.setattr("ezpz.track.journal_writer.PeriodicCall", Still)
    yield
    WORK.clear()


@pytest.fixture
def journal(tmp_path, _no_thread):
    opened = Journal(tmp_path / "metrics.jsonl")
    yield opened
    opened.close()


def again(tmp_path):
    return Journal(tmp_path / "metrics.jsonl")


def test_columns_follow_the_journal_and_are_complete_at_its_end(journal, tmp_path):
    write(journal, 0, 100)
    assert agree(tmp_path) == (0, False)
    work(journal)
    done, _ = agree(tmp_path)
    size = Path(journal.path).stat().st_size
    assert size - 2 * SMALL < done <= size
    write(journal, 100, 100)
    journal.close()
    assert agree(tmp_path) == (Path(journal.path).stat().st_size, True)
    assert (tmp_path / COLUMNS).stat().st_mode & 0o007 == 0


def test_a_short_run_has_no_columns_nor_when_it_is_started_again(journal, tmp_path):
    journal.write(0, {"loss": 0.5})
    work(journal)
    journal.close()
    assert not (tmp_path / COLUMNS).exists()
    second = again(tmp_path)
    second.write(1, {"loss": 0.25})
    work(second)
    second.write(2, {"loss": 0.125})
    second.close()
    assert not (tmp_path / COLUMNS).exists()


def test_a_row_of_a_late_value_counts_as_it_did(journal, tmp_path):
    for step in range(30):
        journal.write(step, {"dt": 0.5})
    for step in range(30):
        journal.write_late(step, {"loss": step / 7})
    work(journal)
    agree(tmp_path)
    table = table_of(read_stored(str(tmp_path), lambda: False).blocks)
    assert list(table.cells) == ["dt", "loss"]
    assert table.cells["loss"].values == [step / 7 for step in range(30)]
    assert len(table) == 30


def test_a_run_that_is_started_again_adds_to_its_columns(journal, tmp_path):
    write(journal, 0, 100)
    journal.close()
    first = (tmp_path / COLUMNS).stat().st_size
    second = again(tmp_path)
    work(second)
    write(second, 90, 50)
    work(second)
    done, _ = agree(tmp_path)
    assert (tmp_path / COLUMNS).stat().st_size > first
    assert done > Path(second.path).stat().st_size - 2 * SMALL
    second.close()
    assert agree(tmp_path) == (Path(second.path).stat().st_size, True)
    assert {1, 2} == set(table_of(read_stored(str(tmp_path), lambda: False).blocks).attempts)


def test_a_restart_that_ends_at_once_leaves_whole_columns(journal, tmp_path):
    write(journal, 0, 100)
    journal.close()
    second = again(tmp_path)
    second.write(100, {"loss": 0.5})
    second.close()
    assert agree(tmp_path) == (Path(second.path).stat().st_size, True)


@pytest.mark.usefixtures("_no_thread")
def test_a_folder_of_an_older_version_gets_columns_while_it_goes_on(tmp_path):
    rows = "".join(
        json.dumps({"v": 1, "t": step / 2, "step": step, "m": {"loss": step / 7}}) + "\n" for step in range(99)
    )
    (tmp_path / "metrics.jsonl").write_text(rows + '[1]\n{"v":1,')
    opened = again(tmp_path)
    work(opened)  # the line that was torn has no end yet
    write(opened, 99, 41)
    work(opened)
    assert agree(tmp_path)[0] > len(rows)
    blocks = read_stored(str(tmp_path), lambda: False).blocks
    assert (sum(block.torn for block in blocks), sum(block.foreign for block in blocks)) == (1, 1)
    assert sum(block.lines for block in blocks) == Path(opened.path).read_bytes().count(b"\n")
    opened.close()
    assert agree(tmp_path)[1]


def test_what_somebody_else_wrote_into_the_journal_is_not_taken_for_a_row(journal, tmp_path):
    write(journal, 0, 50)
    with Path(journal.path).open("a", encoding="utf-8") as file:
        file.write("a line of somebody else\n")
    write(journal, 50, 100)
    work(journal)
    write(journal, 150, 30)
    work(journal)
    done, _ = agree(tmp_path)
    assert done > Path(journal.path).stat().st_size - 2 * SMALL


def test_rows_that_waited_for_space_are_in_the_columns_too(journal, tmp_path, monkeypatch):
    write(journal, 0, 30)
    real, full, path = os.write, [False], Path(journal.path)

    def limited(descriptor, data):
        if full[0] and os.path.samestat(os.fstat(descriptor), path.stat()):
            full[0] += 1
            if full[0] > 3:
                raise OSError(28, "No space left on device")
            return real(descriptor, data[: len(data) // 2])  # a line is cut
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", limited)
    full[0] = True
    write(journal, 30, 20)
    work(journal)
    assert journal.missing()
    full[0] = False
    write(journal, 50, 40)
    assert not journal.missing()
    work(journal)
    write(journal, 90, 30)
    work(journal)
    assert agree(tmp_path)[0] > Path(journal.path).stat().st_size - 2 * SMALL


def test_columns_that_cannot_be_written_cost_one_warning_and_no_row(journal, tmp_path, monkeypatch, capsys, full_disk):
    full_disk(tmp_path / COLUMNS)
    for first in range(0, 120, 30):
        write(journal, first, 30)
        work(journal)
    said = [line for line in capsys.readouterr().out.splitlines() if "[W]" in line]
    assert len(said) == 1
    assert f"cannot write {tmp_path}/{COLUMNS}: No space left on device. Training continues" in said[0]
    assert agree(tmp_path)[0] == 0
    full_disk(None)
    work(journal)
    assert agree(tmp_path)[0] == 0  # not tried with each row
    later = time.monotonic() + 3600
    monkeypatch.setattr(recorded_rows, "monotonic", lambda: later)
    work(journal)
    assert agree(tmp_path)[0] > 0
    write(journal, 120, 30)
    journal.close()
    assert agree(tmp_path) == (Path(journal.path).stat().st_size, True)


def test_a_journal_that_was_emptied_gets_columns_of_its_own(journal, tmp_path):
    write(journal, 0, 100)
    journal.close()
    Path(journal.path).unlink()
    second = again(tmp_path)
    write(second, 0, 100, seed=1)
    work(second)
    second.close()
    assert agree(tmp_path) == (Path(second.path).stat().st_size, True)


def test_a_journal_that_is_far_ahead_is_followed_a_bit_each_second(journal, tmp_path, monkeypatch):
    write(journal, 0, 100)
    monkeypatch.setattr(recorded_rows, "_SHARE", -1.0)
    work(journal)
    assert agree(tmp_path)[0] == 0
    monkeypatch.setattr(recorded_rows, "_SHARE", 60.0)
    work(journal)
    assert agree(tmp_path)[0] > Path(journal.path).stat().st_size - 2 * SMALL


def test_columns_that_somebody_removes_or_edits_are_made_again(journal, tmp_path):
    for first, done in enumerate((b"", b"[1,{}]\n", None)):
        write(journal, 60 * first, 60)
        work(journal)
        if done is None:
            (tmp_path / COLUMNS).unlink()
        else:
            (tmp_path / COLUMNS).write_bytes(done)
    write(journal, 180, 60)
    work(journal)
    assert agree(tmp_path)[0] > Path(journal.path).stat().st_size - 2 * SMALL


KILLED = """
import os, random, sys
from ezpz.track import journal_writer as journal
from ezpz.track import recorded_rows as stored
stored.STRETCH = 2000
journal._EVERY = 0.01
opened = journal.Journal(sys.argv[1])
step = opened.next_step
while True:
    opened.write(step, {"loss": step / 7, "n": step, **({"note": "x"} if step % 5 == 0 else {})})
    if step % 7 == 0:
        opened.write_late(step, {"late": step / 3})
    if step == int(sys.argv[2]):
        print("up", flush=True)
    step += 1
"""


@pytest.mark.slow
def test_kill_9_at_any_moment_leaves_columns_and_a_tail_that_are_the_journal(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded_rows, "STRETCH", 2000)
    done, first = 0, 0
    for number in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path / "metrics.jsonl"), str(first)], stdout=subprocess.PIPE
        )
        assert process.stdout.readline() == b"up\n"
        time.sleep(0.03 * number)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        rest = read_stored(str(tmp_path), lambda: False)
        assert shown(table_of(rest.blocks)) == shown(gather(read_journal(tmp_path)))
        first = max(table_of(rest.blocks).steps) + 1
        last, done = done, held(tmp_path)[0]
        assert done >= last
    assert done > 0


@pytest.mark.parametrize("what", ["link", "pipe"])
def test_what_is_no_file_of_its_own_is_replaced_and_not_written(tmp_path, what):
    folder, other = tmp_path / "run", tmp_path / "other"
    folder.mkdir()
    other.write_text("mine")
    path = folder / COLUMNS
    path.symlink_to(other) if what == "link" else os.mkfifo(path)
    journal = Journal(folder / "metrics.jsonl")
    write(journal, 0, 50)
    journal.close()
    assert other.read_text() == "mine"
    assert agree(folder)[0] == (folder / "metrics.jsonl").stat().st_size
