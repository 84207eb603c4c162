"""``ezpz export`` on runs in any state."""

import csv

import h5py
import pytest

from ezpz.cli.export import main
from ezpz.track.journal import Journal


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    journal = Journal(folder / "metrics.jsonl")
    journal.write(0, {"loss": 0.5})
    journal.write(1, {"loss": 0.25})
    yield folder
    journal.close()


def test_a_run_that_goes_on_can_be_exported(run, capsys):
    assert main([str(run)]) == 0
    path = run / "run.h5"
    assert capsys.readouterr().out == f"{path}\n"
    with h5py.File(path) as file:
        assert file["loss"][:].tolist() == [0.5, 0.25]


def test_other_forms_and_places(run, tmp_path):
    assert main([str(run), "--csv", "-o", str(tmp_path / "x.csv")]) == 0
    with (tmp_path / "x.csv").open() as file:
        assert [row["loss"] for row in csv.DictReader(file)] == ["0.5", "0.25"]
    assert main([str(run), "--nc"]) == 0
    assert (run / "run.nc").exists()


def test_what_is_no_run_is_told_in_one_line(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main([str(tmp_path / "nowhere")]) == 2
    capsys.readouterr()
    assert main(["a", "b", "-o", "c"]) == 2
    assert main(["a", "--csv", "--nc"]) == 2
    assert [line.partition(" (")[0] for line in capsys.readouterr().err.splitlines()] == [
        "ezpz: -o c is one file",
        "ezpz: --csv and --nc name two formats",
    ]


def test_a_folder_that_cannot_be_written_is_told(run, capsys):
    assert main([str(run), "-o", "/proc/x.h5"]) == 1
    assert "cannot write the export /proc/x.h5" in capsys.readouterr().err
