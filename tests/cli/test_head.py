"""A reader that leaves, as in ``ezpz runs | head -1``: silence, and 141 or 0 as the exit code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from runs_on_disk import write_run

from ezpz.cli import VERBS

EZPZ = [str(Path(sys.executable).parent / "ezpz")]
# What prints something: the help of every verb, and what verbs show without a run, or of one.
LINES = {
    **{f"{verb} --help": [*EZPZ, verb, "--help"] for verb in VERBS},
    "--help": [*EZPZ, "--help"],
    "--version": [*EZPZ, "--version"],
    "sites": [*EZPZ, "sites"],
    "sites NAME": [*EZPZ, "sites", "aurora"],
    "where": [*EZPZ, "where"],
    "where --json": [*EZPZ, "where", "--json"],
    "fetch --list": [*EZPZ, "fetch", "--list"],
    "kill": [*EZPZ, "kill"],
    "benchmark --list": [*EZPZ, "benchmark", "--list"],
    "launch --dry-run": [*EZPZ, "launch", "-n", "2", "--dry-run", "true"],
    "launch --explain": [*EZPZ, "launch", "-n", "2", "--explain", "true"],
    "launch --json": [*EZPZ, "launch", "-n", "2", "--json", "true"],
    "runs": [*EZPZ, "runs", "one"],
    "compare": [*EZPZ, "compare", "one", "one"],
    "plot": [*EZPZ, "plot", "one"],
    "watch": [*EZPZ, "watch", "one"],
    "export": [*EZPZ, "export", "one", "--csv"],
    "report": [*EZPZ, "report", "one"],
    "open": [*EZPZ, "open", "one"],
    "shell": [*EZPZ, "shell"],
    "init": [*EZPZ, "init", "laptop"],
    "ezpz": EZPZ,
    "python3 -m ezpz.launch": [sys.executable, "-m", "ezpz.launch"],
    "python3 -m ezpz.cluster": [sys.executable, "-m", "ezpz.cluster", "--sh"],
    "test_dist --help": [sys.executable, "-m", "ezpz.test_dist", "--help"],
}
UNBUFFERED = {"": {}, "unbuffered": {"PYTHONUNBUFFERED": "1"}}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.few(4)
@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_what_stdout_does_not_take_is_said_in_one_line(line, clean_env, tmp_path):
    write_run(tmp_path / "one", {"loss": [3.0, 2.0, 1.0]})
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            line, cwd=tmp_path, env=clean_env, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode not in {0, 120}
    assert "Traceback" not in done.stderr
    assert done.stderr.count("No space left on device") == 1, done.stderr


@pytest.mark.few(8)
@pytest.mark.parametrize("more", UNBUFFERED.values(), ids=UNBUFFERED)
@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_it_ends_without_a_word(line, more, clean_env, tmp_path):
    write_run(tmp_path / "one", {"loss": [3.0, 2.0, 1.0]})
    read, write = os.pipe()
    os.close(read)  # the reader has left before the first byte
    done = subprocess.run(
        line, cwd=tmp_path, env={**clean_env, **more}, stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert "Broken pipe" not in done.stderr
    assert done.returncode in {0, 141}, done.stderr


@pytest.mark.slow
def test_a_real_head_gets_its_line_and_nothing_else_is_said(clean_env, tmp_path):
    for line in ("ezpz sites", "ezpz where", "ezpz --help", "ezpz launch --help", "ezpz fetch --list"):
        script = f"set -o pipefail; for i in 1 2 3; do {line} | head -1; done"
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=clean_env, capture_output=True, check=False)
        assert (done.returncode in {0, 141}, done.stderr, done.stdout.count(b"\n")) == (True, b"", 3)
