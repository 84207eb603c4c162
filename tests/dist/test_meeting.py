"""Where ranks meet when nobody set MASTER_*: real processes that share a starter, or do not."""

import os
import subprocess
import sys
import time

import pytest

from ezpz.dist import rendezvous
from ezpz.errors import RendezvousError

KEY = [sys.executable, "-c", "import os; from ezpz.dist.rendezvous import key; print(key(os.environ))"]


def keys(script, env, count=2):
    """Keys of `count` ranks as one starter starts them; PMI_RANK marks a rank as mpiexec would."""
    line = f"for rank in $(seq {count}); do PMI_RANK=$rank {script} & done; wait"
    done = subprocess.run(["bash", "-c", line, *KEY], env=env, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()


def test_ranks_of_one_starter_share_a_key_even_inside_shells_of_their_own(clean_env):
    plain = keys('"$0" "$@"', clean_env)
    wrapped = keys("""bash -c '"$0" "$@"; true' "$0" "$@" """, clean_env)
    assert len(set(plain)) == 1
    assert len(set(wrapped)) == 1
    assert plain[0] != wrapped[0]


def test_a_job_id_tells_jobs_apart():
    assert rendezvous.key({"SLURM_JOB_ID": "1"}) != rendezvous.key({"SLURM_JOB_ID": "2"})


@pytest.fixture
def point(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return rendezvous.Point("k")


def test_a_published_port_is_found_and_the_file_is_private(point):
    point.publish(1234)
    assert point.wait(time.monotonic() + 60) == 1234
    assert point.path.parent.stat().st_mode & 0o777 == 0o700
    with point:
        pass
    assert not point.path.exists()


def test_a_leftover_of_a_killed_rank_0_is_not_believed(point):
    dead = subprocess.Popen(["true"])
    dead.wait()
    point.path.write_text(f"1234 {dead.pid}\n")
    with pytest.raises(RendezvousError, match=r"published no port in .*MASTER_ADDR"):
        point.wait(time.monotonic() + 0.2)


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    folder = tmp_path / "ezpz-12345"
    folder.mkdir()
    with pytest.raises(RendezvousError, match="belongs to another user"):
        rendezvous.Point("k")


def test_a_temporary_folder_that_is_none_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with pytest.raises(RendezvousError, match="Set TMPDIR"):
        rendezvous.Point("k")
