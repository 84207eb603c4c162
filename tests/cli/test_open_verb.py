"""`ezpz open`: which page is shown, where it is shown, and where its path alone is printed."""

import os
import sys
from pathlib import Path

import pytest
from runs_on_disk import row, write_run

from ezpz.cli.open import has_browser, main

VARIABLES = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION", "EZPZ_DEBUG", "NO_COLOR", "FORCE_COLOR")


@pytest.fixture(autouse=True)
def _no_display(monkeypatch, tmp_path):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "platform", "linux")
    for name, variable in (("state", "XDG_STATE_HOME"), ("tmp", "TMPDIR")):
        (tmp_path / "own" / name).mkdir(parents=True)
        monkeypatch.setenv(variable, str(tmp_path / "own" / name))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "own" / "tmp"))


DISPLAYS = [
    ({}, "linux", False),
    ({"DISPLAY": ":0"}, "linux", True),
    ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
    ({"BROWSER": "code"}, "linux", True),
    ({}, "darwin", True),
    ({"SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}, "darwin", False),
]


def test_a_browser_needs_a_display_or_the_word_of_the_user(subtests):
    for environ, platform, shown in DISPLAYS:
        with subtests.test(str(environ)):
            assert has_browser(environ, platform) is shown


def test_without_a_display_the_path_alone_is_printed(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "webbrowser", None)  # whoever imports it fails
    write_run(tmp_path / "outputs" / "train" / "one", {"loss": [2.0, 1.0]})
    newest = write_run(tmp_path / "outputs" / "train" / "two", {"loss": [2.0, 1.0]})
    for number, folder in enumerate((tmp_path / "outputs/train/one", newest)):
        for name in ("metrics.jsonl", "run.json"):
            os.utime(folder / name, (1000.0 + number, 1000.0 + number))
    for words in ([], ["outputs"], ["train"], ["train/two"], [str(newest)], [str(newest / "metrics.jsonl")]):
        assert main(words) == 0
        assert capsys.readouterr() == (f"{newest}/report.html\n", "")
    assert "<title>train</title>" in (newest / "report.html").read_text()


def test_the_browser_of_the_user_gets_the_page(tmp_path, capfd, monkeypatch):
    folder = write_run(tmp_path / "a run", {"loss": [2.0, 1.0]})
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >{tmp_path}/asked\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    monkeypatch.delitem(sys.modules, "webbrowser", raising=False)
    assert main([str(folder), "--path"]) == 0
    assert not (tmp_path / "asked").exists()
    assert main([str(folder)]) == 0
    assert capfd.readouterr().out == f"{folder}/report.html\n" * 2
    assert (tmp_path / "asked").read_text().strip() == (folder / "report.html").as_uri()


def test_a_page_older_than_its_run_is_written_anew_and_a_newer_one_stays(tmp_path, capsys):
    folder = write_run(tmp_path / "run", {"loss": [2.0, 1.0]})
    page = folder / "report.html"
    for name in ("metrics.jsonl", "run.json"):
        os.utime(folder / name, (1000.0, 1000.0))
    assert main([str(folder)]) == 0
    before = page.read_bytes()
    os.utime(page, (2000.0, 2000.0))
    assert main([str(folder)]) == 0
    assert (page.read_bytes(), page.stat().st_mtime) == (before, 2000.0)
    with (folder / "metrics.jsonl").open("a") as journal:
        journal.write(row(2, {"loss": 0.5}))
    os.utime(page, (1000.0, 1000.0))
    assert main([str(folder)]) == 0
    assert page.read_bytes() != before
    assert capsys.readouterr() == (f"{page}\n" * 3, "")


SCRIPT = b"<script>alert('mine')</script>"


def whole(page):
    page.write_bytes(SCRIPT)


def changed(page):
    page.write_bytes(page.read_bytes().replace(b"</body>", SCRIPT + b"</body>"))


def behind(page):
    page.write_bytes(page.read_bytes() + SCRIPT)


def of_another_key(page):
    key = Path(os.environ["XDG_STATE_HOME"], "ezpz", "report-key")
    key.write_bytes(bytes(32))
    assert main([str(page.parent), "--path"]) == 0
    key.unlink()


def pipe(page):
    page.unlink()
    os.mkfifo(page)


def test_a_page_that_is_not_as_we_wrote_it_is_never_shown_and_stays(tmp_path, capsys, subtests):
    for spoil in (whole, changed, behind, of_another_key, pipe):
        with subtests.test(spoil.__name__):
            folder = write_run(tmp_path / spoil.__name__, {"loss": [2.0, 1.0]}, name=f"../a\0b {spoil.__name__}")
            page = folder / "report.html"
            if spoil is not of_another_key:
                assert main([str(folder)]) == 0
            spoil(page)
            for name in ("metrics.jsonl", "run.json"):
                os.utime(folder / name, (1000.0, 1000.0))
            before = page.stat()
            capsys.readouterr()
            assert main([str(folder)]) == 0
            shown, note = capsys.readouterr()
            own = Path(shown.strip())
            assert own.parent == Path(os.environ["TMPDIR"], f"ezpz-{os.getuid()}", "reports")
            assert note == (
                f"ezpz: note: {page} is not as your ezpz wrote it; the page below is made from the run's data "
                "(`ezpz report` replaces that one)\n"
            )
            assert SCRIPT not in own.read_bytes()
            assert (page.stat().st_ino, page.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_without_a_place_for_the_key_a_page_is_made_each_time(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", os.devnull)
    folder = write_run(tmp_path / "run", {"loss": [2.0, 1.0]})
    assert main([str(folder)]) == 0
    for name in ("metrics.jsonl", "run.json"):
        os.utime(folder / name, (1000.0, 1000.0))
    assert main([str(folder)]) == 0
    assert f"{folder}/report.html is not as your ezpz wrote it" in capsys.readouterr().err


def test_where_the_run_cannot_be_written_the_page_lies_elsewhere(tmp_path, capsys, monkeypatch):
    import ezpz.view.report

    folder = write_run(tmp_path / "run", {"loss": [2.0, 1.0]})
    write = ezpz.view.report.write_report

    def refuse(run, path=None, **more):
        if path is None:
            raise PermissionError(13, "Permission denied")
        return write(run, path, **more)

    monkeypatch.setattr(ezpz.view.report, "write_report", refuse)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    assert main([str(folder)]) == 0
    page = Path(capsys.readouterr().out.strip())
    assert page.parent.parent.parent == tmp_path / "tmp"
    assert "<title>train</title>" in page.read_text()


NO_RUNS = [
    ("note.html", "note.html is a file of no run (from the command line)"),
    ("outputs/note.html", "note.html is a file of no run (from the command line)"),
    ("nowhere", "no run or launch 'nowhere'"),
    ("empty", "no run in empty (from the command line)"),
]


def test_what_is_no_run_is_one_line_and_no_other_run_is_taken(tmp_path, refuses):
    write_run(tmp_path / "outputs" / "train" / "one", {"loss": [2.0, 1.0]})
    (tmp_path / "empty").mkdir()
    for place in ("note.html", "outputs/note.html"):
        (tmp_path / place).write_text("a page of somebody's")
    refuses(main, [([word], told) for word, told in NO_RUNS])
    refuses(main, [([word], "`ezpz runs` lists ") for word, _ in NO_RUNS])


def test_no_run_at_all_is_one_line(tmp_path, capsys):
    assert main([]) == 2
    (tmp_path / "outputs").mkdir()
    assert main([]) == 2
    assert capsys.readouterr().err.count("\n") == 2
