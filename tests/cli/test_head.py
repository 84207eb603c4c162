"""A reader that leaves, as in ``ezpz runs | head -1``: silence, and 141 or 0 as the exit code."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from runs_on_disk import write_run

from ezpz.verbs import VERBS
from lab import selection

EZPZ = [str(Path(sys.executable).parent / "ezpz")]
# What prints something: the help of every verb, and what verbs show without a run, or of one.
LINES = [
    *(f"ezpz {verb} --help" for verb in VERBS),
    *("ezpz", "ezpz --help", "ezpz --version", "ezpz sites", "ezpz sites aurora", "ezpz where", "ezpz where --json"),
    *("ezpz fetch --list", "ezpz kill", "ezpz benchmark --list", "ezpz runs one", "ezpz compare one one"),
    *(f"ezpz launch -n 2 {option} true" for option in ("--dry-run", "--explain", "--json")),
    *("ezpz plot one", "ezpz watch one", "ezpz export one --csv", "ezpz report one", "ezpz open one", "ezpz shell"),
    *("ezpz init laptop", "ezpz.launch --help", "ezpz.cluster --sh", "ezpz.test_dist --help"),
]
# Of these a whole process of their own: each ends in another way.
REAL = [["sites"], ["launch", "-n", "2", "--dry-run", "true"], ["export", "one", "--csv"], ["--version"], []]
# One process that has imported the verbs, and a fork of it for every line: it runs and ends as a program does, down to
# the interpreter's own last flush.
FORKS = """
import json, os, runpy, sys
from importlib import import_module
from ezpz.verbs import VERBS
for verb, (module, *_) in VERBS.items():
    if verb != "test":  # it needs torch
        import_module(module)
lines, codes = json.load(sys.stdin), []
for number, (module, *words) in enumerate(lines):
    pid = os.fork()
    if not pid:
        break
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
else:
    with open("codes", "w") as file:
        json.dump(codes, file)
    sys.exit()
os.dup2(os.open(f"err-{number}", os.O_WRONLY | os.O_CREAT), 2)
sys.argv = [module, *words]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def run_lines(stdout, env, folder):
    """Run every line with such a stdout; yield (the line, its exit code, what it said on stderr)."""
    write_run(folder / "one", {"loss": [3.0, 2.0, 1.0]})
    lines = [line for line in LINES if selection.HAS_TORCH or "test" not in line]
    how = {"cwd": folder, "env": env, "stdout": stdout, "text": True}
    words = json.dumps([line.split() for line in lines])
    subprocess.run([sys.executable, "-c", FORKS], input=words, check=True, **how)
    codes = json.loads((folder / "codes").read_text())
    for number, (line, code) in enumerate(zip(lines, codes, strict=True)):
        yield line, code, (folder / f"err-{number}").read_text()
    for words in REAL:
        done = subprocess.run([*EZPZ, *words], stderr=subprocess.PIPE, check=False, **how)
        yield f"a process of {words}", done.returncode, done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("more", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["", "unbuffered"])
@pytest.mark.slow
def test_what_stdout_does_not_take_is_said_in_one_line(more, clean_env, tmp_path, subtests):
    with Path("/dev/full").open("w") as full:
        for line, code, said in run_lines(full, {**clean_env, **more}, tmp_path):
            if more and line in {"ezpz test --help", "ezpz.test_dist --help"}:
                continue  # argparse passes over what it cannot write
            with subtests.test(line):
                assert code not in {0, 120}
                assert "Traceback" not in said
                assert said.count("No space left on device") == 1, said


@pytest.mark.parametrize("more", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["", "unbuffered"])
@pytest.mark.slow
def test_it_ends_without_a_word(more, clean_env, tmp_path, subtests):
    read, write = os.pipe()
    os.close(read)  # the reader has left before the first byte
    try:
        for line, code, said in run_lines(write, {**clean_env, **more}, tmp_path):
            with subtests.test(line):
                assert not re.search("Traceback|Exception ignored|Broken pipe", said)
                assert code in {0, 141}, said
        assert (tmp_path / "one" / "report.html").is_file()
    finally:
        os.close(write)


ALSO = ["ezpz where", "ezpz --help", "ezpz launch --help", "ezpz fetch --list"]


@pytest.mark.parametrize("lines", [["ezpz sites"], pytest.param(ALSO, marks=pytest.mark.slow)], ids=["one", "others"])
def test_a_real_head_gets_its_line_and_nothing_else_is_said(lines, clean_env, tmp_path):
    for line in lines:
        script = f"set -o pipefail; for i in 1 2 3; do {line} | head -1; done"
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=clean_env, capture_output=True, check=False)
        assert (done.returncode in {0, 141}, done.stderr, done.stdout.count(b"\n")) == (True, b"", 3)
