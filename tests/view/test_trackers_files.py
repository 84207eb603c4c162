"""What the trackers write that need no library: the CSV file and TensorBoard's event files."""

import csv
import json
import math
from typing import NamedTuple

import pytest

from ezpz.view.foreign import open_foreign
from ezpz.view.foreign.tfevents import crc32c
from ezpz.view.trackers import About, Trackers


class Histogram(NamedTuple):
    counts: list
    edges: list


@pytest.fixture
def record(tmp_path):
    """`record(names, rows, config)`: copy rows to trackers, all at once."""

    def record(names, rows, config=None):
        trackers = Trackers(names, About("train", tmp_path, config or {}, {}, "2026-11-20-162001"))
        for step, values in rows:
            trackers.log(step, values)
        trackers.finish("finished")

    return record


@pytest.fixture
def read_csv(tmp_path):
    def read():
        with (tmp_path / "trackers" / "metrics.csv").open(newline="", encoding="utf-8") as file:
            return list(csv.reader(file))

    return read


def test_columns_that_come_late_or_with_the_next_attempt_stand_at_the_right(record, read_csv):
    record("csv", [(0, {"loss": 0.1}), (1, {"loss": 1 / 3, "note": 'a "word",\nand more'})])
    record("csv", [(2, {"eval/loss": math.nan, "n": 2**60, "ok": True})])
    assert read_csv() == [
        ["step", "loss", "note", "eval/loss", "n", "ok"],
        ["0", "0.1", "", "", "", ""],
        ["1", repr(1 / 3), 'a "word",\nand more', "", "", ""],
        ["2", "", "", "nan", str(2**60), "True"],
    ]


def test_a_metric_called_step_and_lists_and_histograms_have_their_place(record, read_csv):
    record("csv", [(5, {"step": 5, "list": [1, 2.5], "weights": Histogram([1, 2], [0.0, 1.0, 2.0])})])
    header, row = read_csv()
    assert header == ["step", "list", "weights"]
    assert row[0] == "5"
    assert json.loads(row[1]) == [1, 2.5]
    assert json.loads(row[2]) == {"counts": [1, 2], "edges": [0.0, 1.0, 2.0]}


def test_a_line_that_a_crash_tore_is_taken_out_before_more_are_added(record, read_csv, tmp_path):
    record("csv", [(0, {"loss": 0.5}), (1, {"loss": 0.25})])
    path = tmp_path / "trackers" / "metrics.csv"
    path.write_bytes(path.read_bytes()[:-2])
    record("csv", [(1, {"loss": 0.125})])
    assert read_csv() == [["step", "loss"], ["0", "0.5"], ["1", "0.125"]]


def test_a_csv_file_of_somebody_else_is_left_alone(record, tmp_path, capsys):
    path = tmp_path / "trackers" / "metrics.csv"
    path.parent.mkdir()
    path.write_text("name,value\nx,1\n")
    record("csv", [(0, {"loss": 0.5})])
    assert path.read_text() == "name,value\nx,1\n"
    assert capsys.readouterr().out.count("does not begin with 'step'") == 1


def test_a_disk_that_cannot_be_written_costs_one_warning(record, tmp_path, capsys):
    (tmp_path / "trackers").write_text("a file where a folder should be")
    record("csv,tensorboard", [(0, {"loss": 0.5})])
    lines = [line for line in capsys.readouterr().out.splitlines() if "[W]" in line]
    assert sorted(line.split("tracker ")[1].split()[0] for line in lines) == ["csv", "tensorboard"]


def test_event_files_read_back_as_they_were_written(record, tmp_path):
    config = {"lr": 0.1, "layers": 4, "model": {"act": "gelu", "bias": True}, "sizes": [1, 2]}
    rows = [
        (0, {"train/loss": 0.5, "n": 3, "ok": True, "note": "warm up", "big": 1e300, "none": math.nan}),
        (10, {"train/loss": -0.25, "weights": Histogram([1, 2], [0.0, 1.0, 2.0])}),
    ]
    record("tensorboard", rows, config)
    record("tensorboard", [(7, {"train/loss": 0.125})], config)
    run = open_foreign(tmp_path / "trackers" / "tensorboard")
    cells = run.rows.cells
    assert run.rows.steps == [0, 10, 7]
    assert cells["train/loss"].values == [0.5, -0.25, 0.125]
    assert cells["n"].values == [3.0]
    assert cells["note"].values == ["warm up"]
    assert cells["big"].values == [math.inf]
    assert math.isnan(cells["none"].values[0])
    assert run.facts["config"] == {
        "lr": 0.1, "layers": 4, "model.act": "gelu", "model.bias": True, "sizes": "[1, 2]"
    }  # fmt: skip
    assert run.table.steps == [0, 7]  # the second attempt began before the first had ended


def test_the_checksum_is_castagnolis():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of its catalogue entry
