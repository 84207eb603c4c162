"""``ezpz export`` on runs in any state."""

import csv
import sys

import h5py
import pytest

from ezpz.cli.compare import main as compare
from ezpz.cli.doctor import main as doctor
from ezpz.cli.export import main
from ezpz.cli.report import main as report
from ezpz.track.journal_writer import Journal


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


def test_a_minus_is_standard_output(run, tmp_path, capfdbinary, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([str(run), "--csv", "-o", "-"]) == 0
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert lines[0] == "step,logged_at,attempt,loss"
    assert [line.rpartition(",")[2] for line in lines[1:]] == ["0.5", "0.25"]
    assert main([str(run), "-o", "-"]) == 0
    (tmp_path / "piped.h5").write_bytes(capfdbinary.readouterr().out)
    with h5py.File(tmp_path / "piped.h5") as file:
        assert file["loss"][:].tolist() == [0.5, 0.25]
    assert report([str(run), "--output", "-"]) == 0
    assert capfdbinary.readouterr().out.startswith(b"<!doctype html>")
    assert compare([str(run), str(run), "-o", "-"]) == 2
    assert doctor(["--bundle", "-"]) == 2
    assert capfdbinary.readouterr().err.decode().count(" - (from the command line) cannot go to standard output;") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["piped.h5", "run"]


def test_bytes_that_are_no_text_do_not_go_to_a_terminal(run, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main([str(run), "-o", "-"]) == 2
    assert "would write bytes that are no text on this terminal" in capsys.readouterr().err


# Verbs that read a run, and the exit code of each where a package that it needs is not there.
NEEDY = (
    *(("compare", 2, "numpy", []), ("report", 125, "numpy", []), ("export", 125, "numpy", [])),
    *(("export", 125, "numpy", ["--csv"]), ("export", 125, "h5py", []), ("plot", 125, "numpy", [])),
    ("watch", 125, "numpy", ["--once"]),
)
HIDING = """
import sys
sys.modules[sys.argv[1]] = None
from ezpz.cli import main
sys.exit(main(sys.argv[2:]))
"""


def test_a_package_that_is_not_there_is_one_line(run_cli, run, subtests):
    for verb, code, package, words in NEEDY:
        with subtests.test(verb=verb, package=package):
            runs = [str(run)] * (1 + (verb == "compare"))
            done = run_cli([sys.executable, "-c", HIDING, package, verb, *runs, *words])
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
            assert f"`ezpz {verb}` needs {package}, which {sys.executable} does not find" in done.stderr
            assert f"-m pip install {package}`." in done.stderr


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
