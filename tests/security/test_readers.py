"""Who may read a run: owner and group as far as the umask lets them, others never."""

import logging
import os
import stat
import sys
import tempfile
from pathlib import Path

import pytest

import ezpz
from ezpz.checkpoint import checkpoint_folder
from ezpz.cli.report import main as report
from ezpz.files import close_to_others, make_closed_folder
from ezpz.rank_log import RankFile
from lab import process

SRC = str(Path(ezpz.__file__).parents[1])


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def modes(folder):
    """Return the permissions of all files, and of all folders, from a folder on."""
    below = [folder, *folder.rglob("*")]
    return [{stat.S_IMODE(path.lstat().st_mode) for path in below if path.is_dir() == is_dir} for is_dir in (0, 1)]


class Foreign:
    """A tracker whose library writes with permissions of its own."""

    name = "foreign"

    def start(self, about):
        folder = about.folder / "trackers" / "foreign"
        folder.mkdir(parents=True)
        (folder / "open").write_text("")
        descriptor, _ = tempfile.mkstemp(dir=folder)
        os.close(descriptor)

    def log(self, step, values): ...
    def config(self, config): ...
    def finish(self, state): ...


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("mask", "of_files", "of_folders"),
    [(0o022, 0o640, 0o750), (0o002, 0o660, 0o770), (0o077, 0o600, 0o700), (0o000, 0o660, 0o770)],
    ids=oct,
)
def test_everything_in_a_run_folder_has_one_mode(tmp_path, monkeypatch, umask, mask, of_files, of_folders):
    umask(mask)
    monkeypatch.chdir(tmp_path)
    with ezpz.History("train", trackers=["csv", "tensorboard", Foreign()]) as history:
        history.update({"loss": 1.0})
        history.update({"loss": 0.5})
        history.export("csv")
    assert report([str(history.outdir)]) == 0
    rank_file = RankFile(f"{history.outdir}/logs", None)
    rank_file.emit(logging.makeLogRecord({"msg": "a line", "levelno": logging.WARNING}))
    rank_file.close()
    draft = checkpoint_folder.begin(history.outdir / "checkpoints", 3)
    assert modes(tmp_path / "outputs") == [{of_files}, {of_folders}]
    assert stat.S_IMODE(draft.folder.stat().st_mode) == of_folders


@pytest.mark.slow
def test_a_folder_that_was_there_keeps_its_mode_and_its_new_files_are_closed(tmp_path, umask):
    (tmp_path / "mine").mkdir(mode=0o755)
    with ezpz.History(outdir=tmp_path / "mine") as history:
        history.update({"loss": 1.0})
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o755
    assert modes(tmp_path / "mine")[0] == {0o640}


@pytest.mark.slow
def test_a_report_that_is_to_be_elsewhere_follows_the_umask_alone(tmp_path, umask):
    with ezpz.History(outdir=tmp_path / "run") as history:
        history.update({"loss": 1.0})
    assert report([str(tmp_path / "run"), "-o", str(tmp_path / "page.html")]) == 0
    assert stat.S_IMODE((tmp_path / "page.html").stat().st_mode) == 0o644


@pytest.mark.slow
def test_logs_of_a_launch_are_closed_too(tmp_path):
    command = [sys.executable, "-m", "ezpz.launch", "-n", "1", "--log-dir", "logs", "echo", "hello"]
    environ = {**process.minimal_env(tmp_path, "readers"), "PYTHONPATH": SRC}
    done = process.run(["sh", "-c", 'umask 022 && exec "$@"', "-", *command], environ, cwd=tmp_path)
    assert done.returncode == 0
    assert stat.S_IMODE((tmp_path / "logs").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "logs" / "rank-0.log").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "logs" / "run.json").stat().st_mode) == 0o600  # for this user alone


def test_links_are_not_followed_and_what_is_gone_is_passed_over(tmp_path, umask):
    (tmp_path / "outside").write_text("")
    make_closed_folder(tmp_path / "a" / "b")
    make_closed_folder(tmp_path / "a" / "b")
    (tmp_path / "a" / "link").symlink_to(tmp_path / "outside")
    close_to_others([tmp_path / "a" / "link", tmp_path / "a" / "gone"])
    assert stat.S_IMODE((tmp_path / "outside").stat().st_mode) == 0o644
    with pytest.raises(FileExistsError):
        make_closed_folder(tmp_path / "outside")
    with pytest.raises(NotADirectoryError):
        make_closed_folder(tmp_path / "outside" / "x")
