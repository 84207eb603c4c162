from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from test_series import series

from ezpz.track.textplot import HEIGHT, WIDTH, render, save_text, show_text

STAMP = "2026-11-20-162001"

SHAPES = {
    "curve": np.exp(-np.arange(300) / 50),
    "outlier": np.concatenate([[90.0], np.arange(300) % 7]),
    "holes": np.where(np.arange(300) % 40 < 3, np.nan, np.arange(300)),
    "infinite": np.where(np.arange(300) == 7, np.inf, 1.0 * np.arange(300)),
    "constant": np.full(50, 3e-7),
    "one": [2.0],
    "two": [1.0, 2.0],
    "empty": [],
    "all nan": [np.nan] * 5,
    "huge": [1e300, -1e300, 0.0],
    "large ints": 10.0**15 + np.arange(30),
    "widest": [-1.7e308, 1.7e308],
    "zero": [0.0] * 4,
    "all captions": [np.nan, np.inf, 1e9, -1e9, *(np.arange(300) % 9)],
}


@pytest.mark.parametrize("values", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("ascii_only", [False, True], ids=["blocks", "ascii"])
def test_every_plot_has_one_size_and_no_escape_codes(values, ascii_only):
    text = render(series(values), STAMP, ascii_only=ascii_only)
    lines = text.split("\n")
    assert lines.pop() == ""
    assert len(lines) == HEIGHT == 25
    assert {len(line) for line in lines} == {WIDTH}
    assert "\x1b" not in text
    assert lines[0].strip() == f"x [{STAMP}]"
    assert text.isascii() or not ascii_only
    assert any(line.strip() == "step" for line in lines)


def drawn(text):
    """The characters inside the frame, without the frame."""
    return "".join(
        line.rpartition("│")[0].partition("│")[2] or line.rpartition("│")[0].partition("┤")[2]
        for line in text.split("\n")
    ).replace(" ", "")


def test_something_is_drawn_exactly_when_something_is_finite():
    assert drawn(render(series([1.0, 2.0]), STAMP))
    assert drawn(render(series([5.0]), STAMP))
    for values in ([], [np.nan]):
        text = render(series(values), STAMP)
        assert drawn(text) == "nothingfinitewasrecorded"


def test_captions_stand_below_the_plot():
    lines = render(series(SHAPES["all captions"]), STAMP).splitlines()
    assert [line.rstrip() for line in lines[-4:]] == [
        "1 NaN, first at step 0",
        "1 infinite, first at step 1",
        "1 point above, max 1e+09 at step 2",
        "1 point below, min -1e+09 at step 3",
    ]


def test_a_gap_stays_a_gap():
    whole, holed = np.ones(60), np.ones(60)
    holed[20:40] = np.nan
    assert 0 < len(drawn(render(series(holed), STAMP))) < 0.8 * len(drawn(render(series(whole), STAMP)))


def test_a_long_or_strange_name_fits_the_title():
    text = render(series([1.0, 2.0])._replace(name="train/" + "é" * 200), STAMP)
    assert {len(line) for line in text.splitlines()} == {WIDTH}
    assert render(series([1.0, 2.0])._replace(name="é"), STAMP, ascii_only=True).isascii()


def test_a_million_points_are_drawn_in_no_time():
    values = np.random.default_rng(0).standard_normal(1_000_000)
    render(series([1.0]), STAMP)  # the import is not the question
    start = time.perf_counter()
    render(series(values), STAMP)
    assert time.perf_counter() - start < 10  # 0.6 s here; 6 s without thinning


def test_the_saved_file_is_utf8_with_plain_line_ends(tmp_path):
    save_text(tmp_path / "loss.txt", series(SHAPES["curve"]), STAMP)
    data = (tmp_path / "loss.txt").read_bytes()
    assert data.decode() == render(series(SHAPES["curve"]), STAMP)
    assert b"\r" not in data
    assert data.endswith(b"\n")


SHOW = """
import os, sys
import numpy as np
from ezpz.track.series import Series
from ezpz.track.textplot import save_text, show_text
from pathlib import Path
x = Series("loss", np.arange(100.0), np.exp(-np.arange(100) / 30))
save_text(Path("loss.txt"), x, "2026-11-20-162001")
show_text(x, "2026-11-20-162001")
"""

TERMINALS = {
    "narrow": {"COLUMNS": "20", "LINES": "5"},
    "wide": {"COLUMNS": "300", "LINES": "100"},
    "colour": {"TERM": "xterm-256color", "FORCE_COLOR": "1"},
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "posix": {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii:strict"},
}


@pytest.mark.parametrize("environ", TERMINALS.values(), ids=TERMINALS.keys())
def test_the_saved_file_does_not_depend_on_the_terminal(run_python, tmp_path, environ):
    result = run_python(SHOW, **environ)
    assert result.returncode == 0, result.stderr
    shown = result.stdout.decode()
    saved = (tmp_path / "loss.txt").read_text(encoding="utf-8")
    assert saved == render(series(SHAPES_CURVE)._replace(name="loss"), STAMP)
    assert [len(line) for line in shown.splitlines()] == [WIDTH] * HEIGHT
    assert "\x1b" not in shown
    assert shown == saved if "PYTHONIOENCODING" not in environ else shown.isascii()


SHAPES_CURVE = np.exp(-np.arange(100) / 30)


def test_a_closed_stdout_does_not_raise(run_python, monkeypatch):
    assert run_python(f"import os; os.close(1)\n{SHOW}").returncode == 0
    assert run_python(f"import sys; sys.stdout = None\n{SHOW}").returncode == 0
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    show_text(series([1.0, 2.0]), STAMP)


def test_a_reader_that_left_does_not_change_the_exit_code(tmp_path):
    """`train.py | head -1`: Python would turn the failed flush at its end into exit code 120."""
    read, write = os.pipe()
    os.close(read)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2] / "src"), *sys.path])}
    result = subprocess.run(
        [sys.executable, "-c", f"{SHOW * 5}\nprint('more')"],
        stdout=write,
        stderr=subprocess.PIPE,
        env=env,
        cwd=tmp_path,
        check=False,
    )
    os.close(write)
    assert (result.returncode, result.stderr) == (0, b"")
