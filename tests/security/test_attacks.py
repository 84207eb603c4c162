"""A whole launch under every attack of a stranger: another user of the same host, and another host."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ezpz import proc
from lab import process
from lab.process import wait_until
from lab.ssh import LAUNCH, READY, Site

ATTACK = (Path(__file__).parent / "attack.py").read_text()
WAIT = 'while [ ! -e "$GO" ]; do sleep 0.1; done; echo done $RANK'
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="who listens where is read from /proc"),
]


@pytest.fixture
def attack():
    """The line of another user's Python that reads its program, `attack.py`, from stdin."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("another user's process needs root and setpriv")
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/env", "python3", "-I", "-"]


def listens_at(pid):
    """Address and port where a process listens."""
    sockets = {proc.link(pid, f"fd/{fd.name}") for fd in Path(f"/proc/{pid}/fd").iterdir()}
    for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = row.split()[:10]
        if state == "0A" and f"socket:[{inode}]" in sockets:
            address, _, port = local.partition(":")
            return ".".join(str(byte) for byte in reversed(bytes.fromhex(address))), int(port, 16)
    return None


def local_names(pid):
    """Names of the abstract sockets where a process and its descendants listen: other tests have some, too."""
    pids = [pid]
    for one in pids:
        pids += proc.children(one) or ()
    held = {proc.link(one, f"fd/{fd.name}") for one in pids for fd in Path(f"/proc/{one}/fd").iterdir()}
    rows = [row.split() for row in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]]
    return sorted({row[7] for row in rows if len(row) == 8 and row[7][0] == "@" and f"socket:[{row[6]}]" in held})


def launch_of(started):
    """The launch itself, which may be behind `unshare` and a shell; the first that listens."""
    pending = [started.pid]
    for pid in pending:
        if listens_at(pid):
            return pid
        pending += [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return None


def ended_well(launch, home, output, errors, ranks):
    assert launch.returncode == 0, errors
    assert "Traceback" not in errors
    assert sorted(line for line in output.splitlines() if line.startswith("done")) == [
        f"done {rank}" for rank in range(ranks)
    ]
    (record,) = Path(home).glob(".local/state/ezpz/launches/*/run.json")
    assert json.loads(record.read_text())["state"] == "finished"


def test_another_user_of_the_host_harms_nothing(attack, clean_env, tmp_path, home):
    go = tmp_path / "go"
    env = {**clean_env, "EZPZ_SSH": "false", "GO": str(go)}
    line = [*LAUNCH, "--flavour", "ssh", "-n", "2", "bash", "-c", f"{READY} {WAIT}"]
    with subprocess.Popen(
        line, env=env, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as launch:
        try:
            assert {launch.stdout.readline() for _ in range(2)} == {"ready 0\n", "ready 1\n"}
            address, port = wait_until(lambda: listens_at(launch.pid), 10, "the control port")
            assert address == "127.0.0.1"  # all ranks are here
            names = local_names(launch.pid)
            assert {name.partition("-")[0] for name in names} == {"@ezpz"}
            assert f"@ezpz-control-{port}" in names
            told = process.run([*attack, address, port, *names], stdin=ATTACK, timeout=120, cwd="/")
            assert told.stdout == f"attacked as user 65534, and {len(names)} local sockets\n", told.stderr
            assert launch.poll() is None
            go.touch()
            output, errors = launch.communicate(timeout=30)
        finally:
            launch.terminate()
    ended_well(launch, home, output, errors, 2)


def test_another_host_harms_nothing(attack, hosts, clean_env, tmp_path, home):
    folder = tmp_path / "a folder"
    folder.mkdir()
    site = Site(hosts, clean_env, folder)
    go = folder / "go"
    launch = site.start("bash", "-c", f"{READY} {WAIT}", GO=str(go))
    address, port = listens_at(wait_until(lambda: launch_of(launch), 10, "the control port"))
    assert address == hosts["head"].address  # of the interface that leads to n01 and n02, and of no other
    told = hosts["n01"].run([*attack, address, port], stdin=ATTACK, timeout=120, cwd="/")
    assert told.stdout.startswith("attacked as user 65534"), told.stderr
    assert launch.poll() is None
    go.touch()
    output, errors = launch.communicate(timeout=30)
    ended_well(launch, home, output, errors, 3)
