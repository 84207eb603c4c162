"""Runs that the real wandb, TensorBoard and torch wrote once (`recorded`), read back whole, cut off and damaged."""

import math
import random
import shutil
import sys
from pathlib import Path

import pytest

from ezpz.errors import UsageError
from ezpz.view.foreign import open_foreign
from ezpz.view.foreign.protobuf import parse, put_bytes, put_double, put_int
from ezpz.view.foreign.tfevents import frame

RECORDED = Path(__file__).with_name("recorded")
WANDB = next((RECORDED / "wandb").glob("*/run-abc123.wandb"))


def close(values):
    return pytest.approx([1, 1 / 2, 1 / 3][: len(values)], rel=1e-7)


def test_a_wandb_run_from_its_file_and_the_folders_above_it(subtests, tmp_path):
    above = shutil.copytree(RECORDED / "wandb", tmp_path / "wandb").parent
    for path in (WANDB, WANDB.parent, WANDB.parents[1], above):
        with subtests.test(path.name):
            run = open_foreign(path)
            assert (run.name, run.state, run.windows) == ("first", "finished", [])
            assert run.facts["config"] == {"lr": 0.1, "model": {"width": 64}, "api_key": "<redacted>", "later": "x"}
            assert run.facts["wandb"] == {"id": "abc123", "project": "p"}
            assert run.facts["versions"] == {"wandb": "0.31.0"}
            assert run.table.steps == [0, 10, 20]
            assert run.table.times[0] < run.table.times[2] < run.table.times[0] + 60
            cells = {key: cells.values for key, cells in run.table.cells.items()}
            assert cells["train/loss"] == close(cells["train/loss"])
            assert cells["n"] == [2**60, 2**60 + 1, 2**60 + 2]
            assert all(map(math.isnan, cells["nan"]))
            assert (cells["note"], cells["ok"]) == (["hi"] * 3, [True] * 3)
            assert not [key for key in cells if key.startswith(("h", "_"))]  # a histogram, and wandb's own


def test_a_wandb_run_that_went_on_in_a_second_folder_is_one_run_of_two_attempts(tmp_path):
    for number in (1, 2):
        shutil.copytree(WANDB.parent, tmp_path / f"offline-run-2026112{number}_000000-abc123")
    (tmp_path / "offline-run-20261122_000000-abc123" / "files").mkdir()
    (tmp_path / "offline-run-20261122_000000-abc123" / "files" / "requirements.txt").write_text("torch==2.13.0\nx==1\n")
    run = open_foreign(tmp_path)
    assert run.rows.attempts == [1, 1, 1, 2, 2, 2]
    assert run.table.steps == [0, 10, 20]
    assert run.facts["versions"] == {"wandb": "0.31.0", "torch": "2.13.0"}


def test_wandbs_link_to_the_latest_run_is_that_run(tmp_path):
    (tmp_path / "offline-run-1-abc123").mkdir()
    shutil.copy(WANDB, tmp_path / "offline-run-1-abc123" / "run-abc123.wandb")
    (tmp_path / "latest-run").symlink_to("offline-run-1-abc123")
    assert open_foreign(tmp_path / "latest-run").table.steps == open_foreign(tmp_path).table.steps == [0, 10, 20]


def test_two_wandb_runs_are_not_one(tmp_path):
    for name in ("abc123", "def456"):
        (tmp_path / f"offline-run-1-{name}").mkdir()
        shutil.copy(WANDB, tmp_path / f"offline-run-1-{name}" / f"run-{name}.wandb")
    with pytest.raises(UsageError, match=r"2 wandb runs in .* expected one"):
        open_foreign(tmp_path)


def test_records_that_span_blocks_are_put_together(tmp_path):
    from zlib import crc32

    def record(text):
        item = put_bytes(1, "note") + put_bytes(16, f'"{text}"')
        return put_bytes(2, put_bytes(1, item) + put_bytes(2, put_int(1, 7)))

    def physical(kind, data):
        return (
            crc32(bytes([kind]) + data).to_bytes(4, "little") + len(data).to_bytes(2, "little") + bytes([kind]) + data
        )

    long, short = record("x" * 70_000), record("y")
    head = WANDB.read_bytes()[:7]
    first = physical(2, long[: 32768 - 14])
    second = physical(3, long[32768 - 14 : 65536 - 21])
    third = physical(4, long[65536 - 21 :])
    blocks = head + first + second + third
    blocks += physical(1, record("")) + b"\0" * (3 * 32768 - len(blocks) - 7 - len(record("")))
    path = tmp_path / "run-x.wandb"
    path.write_bytes(blocks + physical(1, short))
    values = open_foreign(path).rows.cells["note"].values
    assert [(len(value), value[:1]) for value in values] == [(70_000, "x"), (0, ""), (1, "y")]


@pytest.mark.parametrize(("folder", "more"), [("tensorboard", {"double"}), ("torch", {"lr", "note", "hp/final"})])
def test_event_files_of_both_kinds_of_scalars(folder, more):
    run = open_foreign(RECORDED / folder)
    cells = run.table.cells
    assert run.name == folder
    assert run.table.steps == [0, 10, 20]
    assert cells["train/loss"].values == close(cells["train/loss"].values)
    assert set(cells) == {"train/loss", *more}
    assert run.facts["host"] == "vm"
    assert run.facts.get("config") == ({"lr": 0.1, "act": "gelu", "bias": 1} if folder == "torch" else None)


def test_one_event_file_is_a_run_too():
    (path,) = (RECORDED / "tensorboard").iterdir()
    assert open_foreign(path).table.steps == [0, 10, 20]


def events(path, times, tag="loss"):
    path.parent.mkdir(parents=True, exist_ok=True)
    value = lambda number: put_bytes(1, put_bytes(1, tag) + b"\x15" + number.to_bytes(4, "little"))  # noqa: E731
    path.write_bytes(
        b"".join(frame(put_double(1, when) + put_int(2, step) + put_bytes(5, value(step))) for step, when in times)
    )


def test_files_of_one_folder_are_attempts_when_one_ended_before_the_next(tmp_path):
    events(tmp_path / "events.out.tfevents.1.h.1.0", [(0, 100), (1, 101), (2, 102)])
    events(tmp_path / "events.out.tfevents.2.h.1.0", [(1, 200), (2, 201)])
    run = open_foreign(tmp_path)
    assert run.rows.attempts == [1, 1, 1, 2, 2]
    assert run.table.steps == [0, 1, 2]


def test_files_of_other_metrics_or_of_the_same_time_are_one_attempt(tmp_path):
    events(tmp_path / "events.out.tfevents.1.h.1.0", [(0, 100), (1, 101)])
    events(tmp_path / "events.out.tfevents.2.h.1.0", [(0, 200)], tag="eval")
    events(tmp_path / "sub" / "events.out.tfevents.2.h.1.0", [(0, 100)])
    run = open_foreign(tmp_path)
    assert run.table.steps == [0, 1]
    assert set(run.table.cells) == {"loss", "eval", "sub/loss"}


def copies(tmp_path):
    """Each recorded file, as a path that a test may change."""
    for path in sorted(file for file in RECORDED.rglob("*") if file.is_file()):
        copy = tmp_path / path.name
        shutil.copy(path, copy)
        yield copy


@pytest.mark.slow
def test_a_file_that_was_cut_off_anywhere_gives_its_readable_part(tmp_path, capsys):
    for path in copies(tmp_path):
        data, rows = path.read_bytes(), []
        for size in [*range(8, len(data), 7), len(data)]:
            path.write_bytes(data[:size])
            rows.append(len(open_foreign(path).rows.steps))
        assert rows == sorted(rows)
        assert rows[-1] in {1, 3}
    assert "broken" not in capsys.readouterr().out  # a torn end is what every killed run leaves


@pytest.mark.slow
def test_damaged_bytes_give_the_readable_part_and_one_warning_or_one_error(tmp_path, capsys):
    random.seed(7)
    for path in copies(tmp_path):
        data = path.read_bytes()
        for _ in range(60):
            damaged = bytearray(data)
            for _ in range(random.randint(1, 4)):
                damaged[random.randrange(7, len(data))] = random.randrange(256)
            path.write_bytes(damaged)
            capsys.readouterr()
            run = open_foreign(path)
            assert len(run.rows.steps) <= 3
            assert capsys.readouterr().out.count("[W]") <= 1


def test_what_does_not_begin_as_a_wandb_file_is_one_clear_error(subtests, tmp_path):
    for data in [b"", b":W", b":W&B\xe1\xbe\x07", b"no wandb at all"]:
        with subtests.test(repr(data)):
            (tmp_path / "run-x.wandb").write_bytes(data)
            with pytest.raises(UsageError, match="expected ':W&B' and version 0"):
                open_foreign(tmp_path / "run-x.wandb")


def test_bytes_that_are_no_message_are_told(subtests):
    for data in [b"\xff", b"\x0a", b"\x0a\x05abc", b"\x80" * 20, b"\x0b", b"\x09abc"]:
        with subtests.test(repr(data)), pytest.raises(ValueError, match="no protobuf message"):
            parse(data)


@pytest.mark.slow
def test_reading_loads_none_of_the_libraries(run_python):
    names = ("wandb", "tensorboard", "google.protobuf", "torch", "numpy", "yaml")
    code = f"import sys\nfrom ezpz.view.foreign import open_foreign\nopen_foreign({str(RECORDED / 'wandb')!r})\n"
    code += f"open_foreign({str(RECORDED / 'torch')!r})\nprint([n for n in {names} if n in sys.modules])"
    assert run_python(code).stdout == b"[]\n", sys.version
