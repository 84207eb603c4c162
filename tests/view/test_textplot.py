import itertools
import time

import numpy as np
import pytest

from ezpz.view.terminal.textplot import HEIGHT, WIDTH, Drawing, draw, render, save_text
from ezpz.view.terminal.width import columns
from lab.drawn_series import series

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


def test_every_plot_has_one_size_and_no_escape_codes(subtests):
    for (name, values), ascii_only in itertools.product(SHAPES.items(), (False, True)):
        with subtests.test(f"{name}, ascii_only={ascii_only}"):
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
        assert drawn(text) == "nothingfinite"


def test_captions_stand_below_the_plot_and_are_never_cut_where_it_may_grow():
    lines = render(series(SHAPES["all captions"]), STAMP).splitlines()
    assert [line.rstrip() for line in lines[-4:]] == [
        "1 NaN, first at step 0",
        "1 infinite, first at step 1",
        "1 point above, max 1e+09 at step 2",
        "1 point below, min -1e+09 at step 3",
    ]
    lines = draw([series(SHAPES["all captions"])], "x", Drawing(20, 10, grows=True))
    told = " ".join(line.strip() for line in lines[10:])
    assert told == (
        "1 NaN, first at step 0 1 infinite, first at step 1 1 point above, max 1e+09 at step 2 "
        "1 point below, min -1e+09 at step 3"
    )


def test_a_gap_stays_a_gap():
    whole, holed = np.ones(60), np.ones(60)
    holed[20:40] = np.nan
    assert 0 < len(drawn(render(series(holed), STAMP))) < 0.8 * len(drawn(render(series(whole), STAMP)))


def test_no_name_shifts_a_line_or_steers_the_terminal():
    text = render(series([1.0, 2.0])._replace(name="train/" + "é" * 200), STAMP)
    assert {len(line) for line in text.splitlines()} == {WIDTH}
    assert render(series([1.0, 2.0])._replace(name="é"), STAMP, ascii_only=True).isascii()
    lines = draw([series([1.0, 2.0])], "损失" * 3, Drawing(40, 10))
    assert {columns(line) for line in lines} == {40}
    assert lines[0].strip() == "损失" * 3
    assert columns(draw([series([1.0])], "损失" * 30, Drawing(21, 10))[0]) == 21
    assert "\x1b" not in "".join(draw([series([1.0])], "a\x1b]0;owned\x07", Drawing(40, 10)))


@pytest.mark.slow
def test_a_million_points_are_drawn_in_no_time():
    values = np.random.default_rng(0).standard_normal(1_000_000)
    holed = np.where(np.arange(1_000_000) % 1000 == 7, np.nan, values)
    render(series([1.0]), STAMP)  # the import is not the question
    for points in (values, holed):
        start = time.thread_time()  # of this thread alone: other work does not count
        render(series(points), STAMP)
        assert time.thread_time() - start < 2  # 0.04 s and 0.08 s here; 6 s without thinning


@pytest.mark.parametrize(
    ("width", "log"),
    [
        (12, False),
        (80, True),
        *(
            pytest.param(width, log, marks=pytest.mark.slow)
            for log, widths in ((False, (20, 80, 200)), (True, (12, 20, 200)))
            for width in widths
        ),
    ],
)
def test_a_plot_has_the_size_that_was_asked_for(subtests, width, log):
    """Also below 20 columns; `draw` widens the frame to the size, and leaves no line out."""
    for name, values in SHAPES.items():
        with subtests.test(name):
            lines = draw([series(values)], "a title of some length", Drawing(width, 12, log=log))
            assert {columns(line) for line in lines} == {width}
            assert len(lines) == 12
            grown = draw([series(values)], "x", Drawing(width, 12, grows=True, log=log))
            assert len(grown) >= 12
            assert {columns(line) for line in grown} == {width}


def test_a_curve_can_be_seen_at_every_width():
    for width in (20, 80, 200):
        lines = draw([series(SHAPES["curve"])], "loss", Drawing(width, 12))
        rows = [line[line.find("┤" if "┤" in line else "│") + 1 : line.rfind("│")] for line in lines[2:-3]]
        assert rows[0][0] != " "  # it begins at the left, on top
        assert rows[-1][-1] != " "  # and ends at the right, below
        assert any(line.partition("┤")[0].strip() for line in lines if "┤" in line)  # the axis says a number
        assert lines[-2].split()[0] == "0"


def test_several_lines_have_signs_a_legend_and_captions_of_their_own():
    lines = [
        series(np.arange(50.0))._replace(name="train/loss"),
        series(50 - np.arange(50.0))._replace(name="val/loss"),
    ]
    plain = draw(lines, "loss", Drawing(60, 12, grows=True))
    assert plain[-1].rstrip() == "▚ train/loss  • val/loss"
    assert "•" in "".join(plain[:-1])
    ascii_only = draw(lines, "loss", Drawing(60, 12, grows=True, ascii_only=True))
    assert ascii_only[-1].rstrip() == "* train/loss  o val/loss"
    assert "".join(ascii_only).isascii()
    color = draw(lines, "loss", Drawing(60, 12, grows=True, color=True))
    assert "\x1b[38;5;6m" in color[-1]
    assert "\x1b[38;5;5m" in color[-1]
    assert {columns(line) for line in color} == {60}
    both = draw(lines, "loss", Drawing(60, 12, ascii_only=True, color=True))
    assert "".join(both).isascii()
    lines = [series([1.0, 2.0])._replace(name="a"), series([1.0, np.nan])._replace(name="b")]
    assert draw(lines, "x", Drawing(60, 12, grows=True))[-1].rstrip() == "b: 1 NaN, first at step 1"


def test_several_lines_share_a_range_in_which_no_point_is_called_far():
    high = series(np.full(50, 100.0) + np.arange(50) % 3)._replace(name="high")
    spike = np.arange(50) % 3 * 1.0
    spike[7] = 100.0
    low = series(spike)._replace(name="low")
    assert "above" in "".join(draw([low], "x", Drawing(60, 12, grows=True)))
    assert "above" not in "".join(draw([low, high], "x", Drawing(60, 12, grows=True)))


def test_a_logarithmic_axis_makes_a_decay_a_line_and_tells_what_it_cannot_show():
    values = np.exp(-np.arange(300) / 20)
    lines = draw([series(values)], "x", Drawing(60, 25, log=True))
    labels = [line.partition("┤")[0].strip() for line in lines if "┤" in line]
    assert labels == ["1", "0.1", "0.01", "0.001", "0.0001", "1e-5", "1e-6"]
    values[5] = 0
    assert draw([series(values)], "x", Drawing(60, 16, log=True))[-1].rstrip() == "1 point not above 0, first at step 5"


def test_the_saved_file_is_utf8_with_plain_line_ends(tmp_path):
    save_text(tmp_path / "loss.txt", series(SHAPES["curve"]), STAMP)
    data = (tmp_path / "loss.txt").read_bytes()
    assert data.decode() == render(series(SHAPES["curve"]), STAMP)
    assert b"\r" not in data
    assert data.endswith(b"\n")


SAVE = """
import numpy as np
from ezpz.track.series import Series
from ezpz.view.terminal.textplot import save_text
from pathlib import Path
save_text(Path("loss.txt"), Series("loss", np.arange(100.0), np.exp(-np.arange(100) / 30)), "2026-11-20-162001")
"""

TERMINALS = {
    "narrow, in colour": {"COLUMNS": "20", "LINES": "5", "TERM": "xterm-256color", "FORCE_COLOR": "1"},
    "wide, ascii": {
        "COLUMNS": "300",
        "LINES": "100",
        "LC_ALL": "POSIX",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "ascii:strict",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("environ", TERMINALS.values(), ids=TERMINALS.keys())
def test_the_saved_file_does_not_depend_on_the_terminal(run_python, tmp_path, environ):
    result = run_python(SAVE, **environ)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    saved = (tmp_path / "loss.txt").read_bytes().decode()
    assert saved == render(series(np.exp(-np.arange(100) / 30))._replace(name="loss"), STAMP)
