"""Programs of ours leave without taking themselves apart, and lose nothing by it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ezpz import files

LEAVE = "from ezpz.interpreter import leave\n"


def run(code, tmp_path, *, switches=(), stdout=subprocess.PIPE):
    (tmp_path / "program.py").write_text(LEAVE + code)
    line = [sys.executable, *switches, tmp_path / "program.py"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(line, env=env, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_exit_code_is_kept(tmp_path):
    for code in (0, 3, 125, 255):
        assert run(f"leave({code})", tmp_path) == (code, "", "")


def test_output_is_flushed_and_what_waits_for_the_end_runs(tmp_path):
    program = """
import atexit, sys, threading, time
atexit.register(print, "registered")
def later():
    time.sleep(0.2)
    print("thread")
threading.Thread(target=later).start()
sys.stdout.write("unflushed ")
sys.stderr.write("error")
leave(7)
"""
    assert run(program, tmp_path) == (7, "unflushed thread\nregistered\n", "error")


def test_nothing_is_taken_apart(tmp_path):
    program = """
class Slow:
    def __del__(self):
        print("taken apart")
kept = Slow()
leave(0)
"""
    assert run(program, tmp_path) == (0, "", "")
    assert run("import sys\n" + program.replace("leave(0)", "sys.exit(0)"), tmp_path)[1] == "taken apart\n"


def test_a_full_disk_is_seen_in_the_exit_code(tmp_path):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    with full.open("w") as stdout:
        assert run("print('x')\nleave(0)", tmp_path, stdout=stdout)[0] == 120


def test_a_closed_stream_holds_nothing_that_could_be_lost(tmp_path):
    (tmp_path / "program.py").write_text(f"{LEAVE}print('x')\nleave(0)")
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        line = f"'{sys.executable}' program.py {closed}"
        done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, b""), closed


def test_words_are_printed_as_sys_exit_prints_them(tmp_path):
    assert run("leave('why')", tmp_path) == (1, "", "why\n")
    assert run("leave(None)", tmp_path) == (0, "", "")


def test_a_profiler_gets_its_end(tmp_path):
    code, out, _ = run("leave(4)", tmp_path, switches=("-m", "cProfile"))
    assert "function calls" in out
    assert code in {0, 4}  # by version of cProfile


def test_whatever_watches_the_interpreter_gets_its_end(tmp_path, subtests):
    program = """
import sys
if not hasattr(sys, "monitoring"):  # before Python 3.12 a stand-in
    tools = {}
    sys.monitoring = type("monitoring", (), {"use_tool_id": tools.__setitem__, "get_tool": tools.get})
class Watching:
    def __del__(self):
        print("its end")
kept = Watching()
sys.monitoring.use_tool_id(NUMBER, "coverage")
leave(3)
"""
    for number in (0, 1, 5):  # a debugger, coverage, the last of the numbers
        with subtests.test(number):
            assert run(program.replace("NUMBER", str(number)), tmp_path) == (3, "its end\n", "")


def test_a_program_is_found_as_shutil_finds_it(tmp_path, monkeypatch):
    for name, mode in (("one/tool", 0o644), ("two/tool", 0o755), ("two/folder/x", 0o755), ("two/text", 0o644)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(mode)
    places = os.pathsep.join(["/no/such", str(tmp_path / "one"), "", str(tmp_path / "two")])
    monkeypatch.setenv("PATH", places)
    monkeypatch.chdir(tmp_path / "two")
    for name in (
        "tool",
        "folder",
        "text",
        "none",
        "",
        "./tool",
        str(tmp_path / "two/tool"),
        str(tmp_path / "one/tool"),
    ):
        for mode in (os.F_OK | os.X_OK, os.F_OK):
            assert files.find_program(name, mode=mode) == (shutil.which(name, mode=mode) or ""), (name, mode)
            assert files.find_program(name, places, mode) == (shutil.which(name, mode, places) or ""), (name, mode)
    assert files.find_program("tool", "") == ""


@pytest.mark.parametrize("name", ["there", "missing"])
def test_the_private_folder_is_where_temporary_files_go(name, tmp_path):
    folder = tmp_path / name
    (tmp_path / "there").mkdir()

    def answer(code):
        env = {**os.environ, "TMPDIR": str(folder)}
        line = [sys.executable, "-c", code]
        return subprocess.run(line, env=env, capture_output=True, text=True, check=True, timeout=60).stdout.split()

    (chosen,) = answer("import tempfile; print(tempfile.gettempdir())")
    code = "from ezpz.files import private_folder; import sys; print(private_folder(), 'tempfile' in sys.modules)"
    ours = f"{chosen}/ezpz-{os.getuid()}"
    assert answer(code) == [ours, str(name == "missing")]
    assert stat.S_IMODE(Path(ours).stat().st_mode) == 0o700
