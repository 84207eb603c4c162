"""Temporary folders: a launch that is killed leaves them, and the next one removes them, and no others."""

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

from ezpz import proc
from lab.process import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="nothing tells a table of processes from another"),
]

LEAVE = """
import os
from ezpz.launch.temporary import TemporaryFolder
print(TemporaryFolder("ssh").path, flush=True)
os._exit(0)
"""
THERE = ("--hosts", "n[1-2]", "--ppn", "1", "--master-addr", "192.0.2.1")


@pytest.fixture
def env(clean_env, tmp_path):
    (tmp_path / "tmp").mkdir()
    return {**clean_env, "TMPDIR": str(tmp_path / "tmp"), "EZPZ_NGPU_PER_HOST": "0"}


@pytest.fixture
def ours(tmp_path):
    """The names in the folder for this user's temporary files, but those that stay."""
    folder = tmp_path / "tmp" / f"ezpz-{os.getuid()}"
    return lambda: sorted(path.name for path in folder.glob("*-*"))


def kill_all(survivors):
    """Kill them as if at one blow: an agent that sees its launcher go would tidy up."""

    def none():
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in survivors():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        return not survivors()

    wait_until(none, 10, "the end of all")


@pytest.mark.parametrize("words", [("-n", "2", "--mpi", "no"), THERE], ids=["local", "ssh"])
def test_what_a_killed_launch_left_the_next_one_removes(launch, start_launch, survivors, env, ours, tmp_path, words):
    env["EZPZ_SSH"] = "sh -c 'sleep 600'"
    run = start_launch(*words, "sh", "-c", "echo up; sleep 600", env=env)
    wait_until(ours, 30, "the first temporary folder")
    if words is not THERE:
        assert run.stdout.readline() == "up\n"
    kill_all(survivors)
    left = ours()
    assert left, "a launch that keeps nothing there needs no test"

    launch(*words, "--start-timeout", "1", "true", env={**env, "EZPZ_SSH": "false"})
    assert ours() == []
    assert not [path for path in (tmp_path / "tmp").iterdir() if not path.name.startswith("ezpz-")]


def test_folders_of_who_may_live_are_kept_and_links_not_followed(launch, run_cli, env, ours, tmp_path):
    done = run_cli([sys.executable, "-c", LEAVE], env)
    left = Path(done.stdout.strip())
    base, ((_, table, pid, born),) = left.parent, [path.name.split("-") for path in left.glob(".owner-*")]
    gone = f"{pid}-{born}"
    owners = {  # by name: what it holds, and whether it goes
        "last-gone": ([f".owner-{table}-{gone}"], True),
        "last-two": ([f".owner-{table}-{gone}", f".owner-{table}-{2**22 + 2}-1"], True),
        "last-shared": ([f".owner-{table}-{gone}", f".owner-00000000-{gone}"], False),
        "last-elsewhere": ([f".owner-00000000-{gone}"], False),
        "last-living": ([f".owner-{table}-{os.getpid()}-{proc.start_time(os.getpid())}"], False),
        "last-reborn": ([f".owner-{table}-{os.getpid()}-1"], True),
        "last-unknown": (["rank_0"], False),
        "last-unread": ([f".owner-{table}-{gone.partition('-')[0]}-"], False),
        "last-odd": ([".owner-", ".owner-x"], False),
    }
    for name, (files, _) in owners.items():
        (base / name / "in").mkdir(parents=True)
        for file in files:
            (base / name / file).write_text("")
    other = tmp_path / "other"
    other.mkdir()
    (other / f".owner-{table}-{gone}").write_text("")
    (base / "last-link").symlink_to(other)
    (base / "last-gone" / "in" / "link").symlink_to(other)

    assert launch("-n", "1", "true", env=env).returncode == 0
    assert ours() == sorted(["last-link", *(name for name, (_, goes) in owners.items() if not goes)])
    assert [path.name for path in other.iterdir()] == [f".owner-{table}-{gone}"]


def test_a_folder_that_is_a_link_of_another_user_is_refused(launch, env, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root gives links away")
    mine = tmp_path / "mine"
    mine.mkdir()
    link = Path(env["TMPDIR"]) / f"ezpz-{os.getuid()}"
    link.symlink_to(mine)
    os.chown(link, 65534, 65534, follow_symlinks=False)
    done = launch("-n", "1", "true", env=env)
    assert done.returncode == 125
    assert "it belongs to another user" in done.stderr
    assert list(mine.iterdir()) == []
