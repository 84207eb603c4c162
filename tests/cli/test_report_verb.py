"""`ezpz report`: the page of a run folder, from the command line."""

from __future__ import annotations

import json

import pytest

from ezpz.cli.report import main


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    rows = ({"v": 1, "t": 1795194000.0 + step, "step": step, "m": {"loss": 1 / (step + 1)}} for step in range(20))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run.json").write_text(json.dumps({"name": "train", "state": "finished"}))
    return folder


def test_the_page_lies_in_the_run_folder_and_its_path_is_printed(folder, capsys):
    assert main([str(folder)]) == 0
    told = capsys.readouterr()
    assert told.out == f"{folder}/report.html\n"
    assert told.err == ""
    assert "<title>train</title>" in (folder / "report.html").read_text()


def test_another_file_can_be_named_and_a_journal_stands_for_its_folder(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([str(folder / "metrics.jsonl"), "-o", "page.html"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/page.html\n"
    assert (tmp_path / "page.html").is_file()
    assert not (folder / "report.html").exists()


def test_a_torn_last_line_of_a_killed_run_is_no_obstacle(folder, capsys):
    (folder / "run.json").unlink()
    with (folder / "metrics.jsonl").open("a") as journal:
        journal.write('{"v":1,"t":17951')
    assert main([str(folder)]) == 0
    assert "died" in (folder / "report.html").read_text()


def test_what_is_no_run_or_cannot_be_written_is_told_in_one_line(folder, tmp_path, refuses):
    (tmp_path / "empty").mkdir()
    refuses(
        main,
        [
            (["nothing"], "ezpz: no run or launch 'nothing'"),
            (["empty"], "ezpz: no run in"),
            (["run", "-o", "."], "ezpz: "),
        ],
    )
    refuses(main, [(["run", "-o", "gone/page"], f"ezpz: cannot write the report: {tmp_path}/gone/page: No such file")])
    refuses(main, [(["run", "-o", "gone/page"], "--output")])


def test_the_newest_run_of_a_folder_is_meant(folder, tmp_path, capsys):
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"


def test_a_journal_of_a_later_version_is_told_in_one_line(folder, capsys):
    (folder / "metrics.jsonl").write_text('{"v":2,"t":1.0,"step":0,"m":{}}\n')
    assert main([str(folder)]) == 1
    told = capsys.readouterr()
    assert "version" in told.err
    assert told.err.count("\n") == 1
