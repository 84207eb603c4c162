"""What `metrics.columns` gives is what the journal says, whatever has happened to either file."""

import json
import math
import os
import re
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ezpz.errors import TrackError
from ezpz.track import recorded_rows
from ezpz.track.journal_reader import iter_journal, read_journal
from ezpz.track.recorded_rows import COLUMNS, read_stored
from ezpz.track.run_reader import Run
from ezpz.track.table import counted, gather, table_of
from ezpz.track.values import encode

SMALL = 300  # bytes of a journal in a block, so that a few rows make several


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(recorded_rows, "STRETCH", SMALL)


def read(folder, *, may_write=False):
    return table_of(read_stored(str(folder), lambda: may_write).blocks)


def only_columns(folder, monkeypatch):
    """Read without looking at a line of the journal."""
    with monkeypatch.context() as patch:
        patch.setattr(recorded_rows, "read_stretch", None)
        return read(folder)


def exactly(value):
    """A value that differs from all others, NaN included, and from equal ones of other types."""
    return type(value).__name__, repr(encode(value))


def shown(table):
    cells = {key: (each.index, list(map(exactly, each.values))) for key, each in table.cells.items()}
    return table.steps, table.attempts, table.times, cells


def expected(folder):
    """The same from the journal alone, by the plainest way."""
    steps, attempts, times, cells = [], [], [], {}
    for number, row in enumerate(read_journal(folder)):
        steps.append(row["step"])
        attempts.append(row["a"])
        times.append(row["t"])
        for key, value in row["m"].items():
            held = cells.setdefault(key, ([], []))
            held[0].append(number)
            held[1].append(exactly(value))
    return steps, attempts, times, cells


numbers = st.one_of(
    st.floats(allow_nan=True), st.integers(-9, 9), st.integers(-(2**63), 2**63 - 1), st.booleans(), st.integers()
)
scalars = st.one_of(numbers, st.sampled_from(["", "NaN", "str:x", "text", "ü\u2028\ud800", "a\nb", "\0"]))
histograms = st.lists(st.integers(0, 9), min_size=1, max_size=3).map(
    lambda counts: {"counts": counts, "edges": [float(edge) for edge in range(len(counts) + 1)]}
)
values = st.one_of(st.floats(-9, 9), scalars.map(encode), st.lists(scalars.map(encode), max_size=3), histograms)
metrics = st.dictionaries(st.sampled_from(["loss", "b/ü", "lr", 'q"', "step", "\ud800"]), values, max_size=4)


@st.composite
def lines(draw):
    kind = draw(st.sampled_from(["row"] * 6 + ["late", "ranks", "torn", "foreign", "blank", "other"]))
    step, attempt = draw(st.integers(-2, 6)), draw(st.sampled_from([1, 1, 1, 2, 3]))
    row = {"v": 1, "t": draw(st.floats(0, 2e9)), "step": step, "m": draw(metrics)}
    row |= {"a": attempt} if attempt > 1 else {}
    if kind == "ranks":
        row |= {"k": kind, "m": {"world": 1, "every": 1, "steps": [step], "keys": {"loss": {"ranks": [[0.5]]}}}}
    if kind == "late":
        row["k"] = kind
    text = json.dumps(row, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    odd = {"torn": text[: len(text) // 2], "foreign": b'[1, "x"]', "blank": b"", "other": b'{"v":1,"k":"other"}'}
    return odd.get(kind, text) + b"\n"


journals = st.lists(lines(), max_size=24)


def same(table, folder):
    steps, attempts, times, cells = expected(folder)
    found = shown(table)
    assert found[:3] == (steps, attempts, times)
    assert found[3] == cells
    if b'"late"' not in Path(folder, "metrics.jsonl").read_bytes():
        assert list(found[3]) == list(cells)


@settings(max_examples=150, deadline=None)
@given(journals, st.integers(0, 60))
def test_columns_and_tail_are_the_journal(journal, tail):
    with TemporaryDirectory() as folder:
        path = Path(folder, "metrics.jsonl")
        path.write_bytes(b"".join(journal))
        same(read(folder, may_write=True), folder)
        assert Path(folder, COLUMNS).exists() == (path.stat().st_size >= SMALL)
        same(read(folder), folder)
        windows = [row for row in iter_journal(path) if row["k"] == "ranks"]
        assert read_stored(folder, lambda: False).windows() == windows
        with path.open("ab") as file:  # it goes on, up to the middle of a line
            file.write(b"".join(journal[::-1])[: -tail or None])
        same(read(folder), folder)
        counting = counted(read(folder))
        assert shown(counting) == shown(counted(gather(read_journal(folder))))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(journals, st.sampled_from(["cut", "edited", "columns cut", "columns damaged", "other journal"]), st.integers(0))
def test_what_was_done_to_the_files_by_hand_is_noticed(journal, what, number):
    with TemporaryDirectory() as folder:
        path, columns = Path(folder, "metrics.jsonl"), Path(folder, COLUMNS)
        path.write_bytes(b"".join(journal))
        read(folder, may_write=True)
        if not columns.exists():
            return
        data, held = path.read_bytes(), columns.read_bytes()
        if what == "cut":
            path.write_bytes(data[: number % len(data)])
        elif what == "edited":
            place = number % len(data)
            data = data[:place] + (b"7" if data[place : place + 1] != b"7" else b"8") + data[place + 1 :]
            if re.search(rb'"v": ?(?!1\b)\d', data):  # of another version: an error, which is looked at below
                return
            path.write_bytes(data)
        elif what == "columns cut":
            held = held[: number % len(held)]
        elif what == "columns damaged":
            place = number % len(held)
            held = held[:place] + bytes([held[place] ^ 1 + number % 255]) + held[place + 1 :]
        else:
            path.write_bytes(b'{"v":1,"t":0.5,"step":1,"m":{"other":1}}\n' * 20)
        columns.write_bytes(held)
        os.utime(columns, (1, 1))  # what is newer than the journal is believed by its ends
        same(read(folder), folder)
        same(read(folder, may_write=True), folder)
        same(read(folder), folder)


def row(step, **more):
    return json.dumps({"v": 1, "t": 1795194001.5 + step, "step": step, "m": {"loss": step / 7, **more}}) + "\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("".join(row(step, n=step, s=f"x{step}") for step in range(100)))
    return tmp_path


def test_a_second_reader_reads_no_json(folder, monkeypatch):
    first = shown(read(folder, may_write=True))
    assert (folder / COLUMNS).stat().st_mode & 0o007 == 0
    assert shown(only_columns(folder, monkeypatch)) == first == expected(folder)


def test_a_journal_that_was_edited_without_another_size_is_read_again(folder):
    read(folder, may_write=True)
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace('"x50"', '"y50"'))
    os.utime(path, (path.stat().st_mtime + 1,) * 2)  # a file system may count in coarse steps
    assert read(folder).cells["s"].values[50] == "y50"
    before = (folder / COLUMNS).read_bytes()
    read(folder, may_write=True)
    assert (folder / COLUMNS).read_bytes() != before
    assert read(folder).cells["s"].values[50] == "y50"


def test_a_journal_that_was_put_back_from_an_older_copy_is_read_again(folder):
    path, copy = folder / "metrics.jsonl", folder / "copy"
    copy.write_bytes(path.read_bytes())
    os.utime(copy, (path.stat().st_mtime - 60,) * 2)
    path.write_text(path.read_text().replace('"x50"', '"y50"'))
    read(folder, may_write=True)
    time.sleep(0.02)  # the clock of file systems may count in steps of 10 ms
    copy.replace(path)
    assert read(folder, may_write=True).cells["s"].values[50] == "x50"
    assert read(folder).cells["s"].values[50] == "x50"


def test_columns_older_than_the_journal_are_compared_and_then_trusted(folder, monkeypatch):
    read(folder, may_write=True)
    os.utime(folder / COLUMNS, (1, 1))
    assert shown(only_columns(folder, monkeypatch)) == expected(folder)
    seen = []
    monkeypatch.setattr(recorded_rows, "sums_agree", lambda block, _: seen.append(block) or True)
    read(folder, may_write=True)
    assert len(seen) > 2
    seen.clear()
    read(folder)
    assert len(seen) == 2  # both ends


def test_columns_of_version_1_count_as_missing(folder):
    (folder / COLUMNS).write_bytes(
        b'{"v":1,"from":0,"to":99,"bytes":0,"columns":[],"sum":1}\n{"v":1,"seal":[99,1],"bytes":0}\n'
    )
    assert shown(read(folder)) == expected(folder)
    assert shown(read(folder, may_write=True)) == expected(folder)
    assert (folder / COLUMNS).read_bytes().startswith(b"[")


def test_a_folder_that_may_not_be_written_is_read_all_the_same(folder, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recorded_rows, "Replacement", full)
    assert shown(read(folder, may_write=True)) == expected(folder)
    assert not (folder / COLUMNS).exists()


def test_a_run_that_is_written_gets_no_columns_from_its_readers(folder):
    asked = []
    read_stored(str(folder), lambda: asked.append(1) or False)
    assert asked
    assert not (folder / COLUMNS).exists()
    run = Run(folder, {"process": {"host": os.uname().nodename, "pid": os.getpid(), "birth": "0"}}, "r", "died", "")
    assert len(run.rows) == 100
    assert (folder / COLUMNS).exists()  # nobody holds it


def test_lines_that_are_no_record_are_told_with_their_place_also_from_columns(folder, capsys):
    path = folder / "metrics.jsonl"
    text = path.read_text().splitlines(keepends=True)
    text[70:70] = ["[1]\n", '{"v":1,"t":\n', "{}\n"]
    path.write_text("".join(text))
    read(folder, may_write=True)
    first = capsys.readouterr().out
    assert "passed over 1 torn line(s)" in first
    assert f"{path}:71: passed over what is no record of ezpz: 2 line(s), this the first." in first
    read(folder)
    assert [line[32:] for line in capsys.readouterr().out.splitlines()] == [line[32:] for line in first.splitlines()]


def test_a_line_of_another_version_is_an_error_that_names_it(folder):
    path = folder / "metrics.jsonl"
    text = path.read_text().splitlines(keepends=True)
    text[70:70] = ['{"v":2,"step":1}\n']
    path.write_text("".join(text))
    with pytest.raises(TrackError, match=r"metrics.jsonl:71\); expected a row of version 1"):
        read(folder)


def test_a_file_that_changes_under_a_reader_is_told(folder):
    read(folder, may_write=True)
    table = read(folder)
    (folder / COLUMNS).write_bytes(b"")
    with pytest.raises(TrackError, match=r"Remove it: it is made again from metrics.jsonl."):
        table.cells["loss"].floats()


def test_ints_beside_floats_stay_ints(folder):
    path = folder / "metrics.jsonl"
    path.write_text("".join(row(step, x=step if step % 3 else step / 2, big=10**30 + step) for step in range(100)))
    table = read(folder, may_write=True)
    table = read(folder)
    assert list(map(type, table.cells["x"].values[:4])) == [float, int, int, float]
    assert table.cells["x"].floats().tolist() == [float(value) for value in table.cells["x"].values]
    assert table.cells["x"].kinds == {int, float}
    assert table.cells["big"].values[99] == 10**30 + 99
    assert table.cells["big"].array() is None
    assert math.isclose(table.cells["big"].floats()[0], 1e30)


def test_a_stranger_reads_the_columns_as_the_documentation_says(folder, monkeypatch):
    read(folder, may_write=True)
    page = Path(__file__, "../../../docs/history.md").resolve().read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(import json\nimport numpy\n.*?)```", page, re.DOTALL)
    monkeypatch.chdir(folder)
    known = {}
    exec(code.replace("outputs/train/2026-11-20-162001/", "").replace("train/loss", "loss"), known)  # ours
    assert known["losses"] == [(step, step / 7) for step in range(100)]
