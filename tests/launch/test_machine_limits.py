"""Machines that allow too little: a launch works there, or says in one line what is missing and what to type."""

import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from lab import system
from lab.ssh import LAUNCH, SRC

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="limits and mounts are Linux's")]

USER = 61_000 + os.getpid() % 4000  # nobody else's: the limit counts all processes of a user
HERE = ("-n", "2", "--mpi", "no")
THERE = ("--hosts", "n[1-4]", "--ppn", "1", "--master-addr", "192.0.2.1")
PROGRAM = ("sh", "-c", "echo hi")
NO_FILES = "files must be open at a time, and 12 may be (from `ulimit -Hn`); expected "
CLOSED = "mkdir closed; cp /bin/true closed/prog; chmod {} closed"
OWN_DEV = "cp -a /dev/null null; mount -t tmpfs none /dev; cp -a {} /dev/; rm null"
NO_TEMPORARY = (
    "for d in /tmp /var/tmp /usr/tmp; do [ -d $d ] && mount --bind $d $d && mount -o remount,bind,ro $d; done; "
    "unset TMPDIR; cd /proc"
)
FULL = "mkdir full; mount -t tmpfs -o size=4k none full; head -c 4096 /dev/zero > full/all; export {}=$PWD/full"
FEW = "mkdir few; mount -t tmpfs -o nr_inodes={} none few; touch few/1 few/2 few/3; export TMPDIR=$PWD/few"
LONG = "d=$PWD/$(printf 'x%.0s' {1..150}); mkdir $d; export TMPDIR=$d"

# What is done before, where ranks run, the program, the exit code, and words of the one line; with 0 it works.
CASES = [
    ("ulimit -n 12", HERE, PROGRAM, 125, "cannot start 2 ranks: "),
    ("ulimit -n 12", HERE, PROGRAM, 125, NO_FILES),
    ("ulimit -n 8", HERE, PROGRAM, 125, "(from `ulimit -"),
    ("ulimit -n 12", THERE, PROGRAM, 125, "cannot start 4 hosts: "),
    ("ulimit -n 30", THERE, PROGRAM, 125, "or start fewer: `launch --nhosts 3`."),
    ("ulimit -n 40; ulimit -Sn 12", HERE, PROGRAM, 0, ""),
    ("ulimit -f 0", HERE, PROGRAM, 0, ""),
    (CLOSED.format("600"), HERE, ("./closed/prog",), 126, "closed may not be entered (it belongs to "),
    (CLOSED.format("600"), HERE, ("./closed/further/prog",), 126, "mode 600); expected a program."),
    (CLOSED.format("700") + "; cd closed; chmod 600 .", HERE, ("./prog",), 126, "closed may not be entered"),
    (CLOSED.format("700"), HERE, ("./closed",), 126, "it is a folder"),
    (CLOSED.format("700"), HERE, ("./closed/other",), 127, "there is no such file"),
    (CLOSED.format("600") + "; PATH=$PWD/closed:$PATH", HERE, ("prog",), 127, "it is not found on PATH"),
    ("mkdir gone; cd gone; rmdir $PWD", HERE, PROGRAM, 125, "gone was removed: "),
    ("mkdir gone; cd gone; rmdir $PWD", ("--log-dir", "logs", "--check", "off"), PROGRAM, 125, "gone was removed: "),
    ("unset HOME", HERE, PROGRAM, 0, ""),
    ("HOME=/proc", HERE, PROGRAM, 0, ""),
    ("export XDG_STATE_HOME=/etc/passwd", HERE, PROGRAM, 0, ""),
    ("export XDG_STATE_HOME=relative", HERE, PROGRAM, 0, ""),
    ("export TMPDIR=/etc/passwd", HERE, PROGRAM, 0, ""),
    ("mkdir relative; export TMPDIR=relative", HERE, PROGRAM, 0, ""),
    (LONG, HERE, PROGRAM, 0, ""),
    ("exec <&-", HERE, PROGRAM, 0, ""),
    ("exec 2>&-", HERE, PROGRAM, 0, ""),
    ("exec <&- >&- 2>&-", HERE, ("sh", "-c", "[ $RANK = 0 ] && exit 7; true"), 7, ""),
]
# These need mounts of their own, and so root.
MOUNTS = [
    ("mount -t tmpfs none /proc", HERE, PROGRAM, 0, ""),
    (OWN_DEV.format("null"), HERE, PROGRAM, 0, ""),
    (OWN_DEV.format("null") + "; mount -t tmpfs none /proc", HERE, PROGRAM, 0, ""),
    ("mount -t tmpfs none /dev", HERE, PROGRAM, 125, "cannot open /dev/null: No such file or directory"),
    (FULL.format("XDG_STATE_HOME"), HERE, PROGRAM, 0, ""),
    (FULL.format("TMPDIR"), HERE, PROGRAM, 0, ""),
    (FULL.format("TMPDIR"), THERE, PROGRAM, 125, "No space left on device; expected room for it. Set TMPDIR"),
    (FEW.format(4), THERE, PROGRAM, 125, "No space left on device; expected a folder of this user. Set TMPDIR"),
    (NO_TEMPORARY, HERE, PROGRAM, 125, "cannot use any temporary folder (from TMPDIR): No usable temporary"),
    (NO_TEMPORARY, THERE, PROGRAM, 125, "cannot use any temporary folder (from TMPDIR): No usable temporary"),
]


def check(done, code, words):
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    announced = r"ezpz: (note:|\d+ ranks on|(local|ssh|MPICH) launcher) "
    said = [line for line in done.stderr.splitlines() if not re.match(announced, line)]
    if words:
        (line,) = said
        assert line.startswith(("ezpz: cannot ", "ezpz: launch cannot go on: ", "ezpz: the working folder "))
        assert words in line
        assert "; expected " in line
    elif not code:
        assert said == []
        assert done.stdout.split() == ["hi", "hi"]


@pytest.fixture(params=["local and ssh", pytest.param("mpich", marks=pytest.mark.lab)])
def place(request, clean_env):
    """The environment of the launches, and what stands in place of HERE and THERE; None for what is not staged."""
    if request.param == "mpich":
        return request.getfixturevalue("mpich"), {HERE: ("-n", "2"), THERE: None}
    return clean_env, {}


@pytest.mark.parametrize("kind", ["limits", "mounts"])
def test_it_works_or_one_line_says_what_is_missing(run_cli, place, tmp_path, subtests, kind):
    if kind == "mounts" and (os.geteuid() != 0 or system.missing("unshare", "mount")):
        pytest.skip("mounts need root")
    if system.AS_PLAIN_USER and not shutil.which("setpriv"):
        pytest.skip("setpriv (util-linux) is not here, and root may enter everything")
    before = ["unshare", "--mount"] if kind == "mounts" else system.AS_PLAIN_USER
    started = tmp_path / "ssh was started"
    client = tmp_path / "client"
    client.write_text(f"#!/bin/sh\n: > {shlex.quote(str(started))}\nexit 255\n")
    client.chmod(0o755)
    environ, instead = place
    env = {**environ, "EZPZ_NGPU_PER_HOST": "0", "EZPZ_SSH": shlex.quote(str(client))}
    for number, (setup, where, program, code, words) in enumerate(MOUNTS if kind == "mounts" else CASES):
        args = instead.get(where, where)
        if args is None:
            continue
        with subtests.test(f"{setup}: {' '.join([*args, *program])}"):
            folder = tmp_path / str(number)
            folder.mkdir()
            started.unlink(missing_ok=True)
            line = [*before, "bash", "-c", f'{setup}; exec "$@"', "bash", *LAUNCH, *args, *program]
            done = run_cli(line, env, 60, cwd=folder)
            check(done, code, words)
            assert not started.exists()


def test_a_user_who_may_start_no_more_processes_reads_so(run_cli, clean_env, subtests):
    python = sys.executable
    before = []
    if os.geteuid() == 0:  # whom no such limit holds
        python = "/usr/bin/python3"
        before = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    env = {**clean_env, "PYTHONPATH": SRC, "HOME": "/nonexistent", "EZPZ_SSH": "true", "EZPZ_NGPU_PER_HOST": "0"}
    probe = [*before, python, "-c", "import ezpz.launch.entry, sys; sys.exit(sys.version_info < (3, 10))"]
    if not shutil.which("setpriv") or subprocess.run(probe, env=env, capture_output=True, check=False).returncode:
        pytest.skip("no other user has a Python that reads this code")
    for limit, args, words in [
        (1, HERE, "cannot start the agent of this host: "),
        (2, HERE, "rank 0 cannot be started: "),
        (1, THERE, "cannot run true (from EZPZ_SSH): "),
    ]:
        with subtests.test(f"{limit}: {' '.join(args)}"):
            line = [*before, "bash", "-c", f'ulimit -u {limit}; exec "$@"', "bash", python, "-m", "ezpz.launch"]
            done = run_cli([*line, *args, "true"], env, 60, cwd="/")
            assert done.returncode == 125, done.stderr
            assert "Traceback" not in done.stderr
            assert words in done.stderr
            expected = (
                f"the limit of processes of a user is {limit} (from `ulimit -u`); expected more. Raise that limit"
            )
            assert done.stderr.splitlines()[-1].rstrip(".").endswith(expected), done.stderr
    if before:
        shutil.rmtree(f"/tmp/ezpz-{USER}", ignore_errors=True)
