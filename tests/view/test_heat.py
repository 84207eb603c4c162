import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from ezpz.errors import TrackError, UsageError
from ezpz.track.by_rank import counting_windows, loss_band, matrix, rank_keys, statistic
from ezpz.track.distribution import Histogram
from ezpz.track.table import gather
from ezpz.view.terminal.strips import draw_histograms, draw_ranks, histogram_keys, strip
from ezpz.view.terminal.textplot import Drawing
from ezpz.view.terminal.width import columns


def window(steps, ranks, *, key="dt", attempt=1):
    every = int(len(ranks[0]) == len(steps))
    held = {"steps": steps, "world": len(ranks), "every": every, "keys": {key: {"ranks": ranks}}}
    return {"v": 1, "t": 1.0, "step": steps[-1], "a": attempt, "k": "ranks", "m": held}


def run(windows):
    """A run whose rows are those of the windows' steps."""
    rows = [{"t": 1.0, "step": step, "a": row["a"], "m": {}} for row in windows for step in row["m"]["steps"]]
    return SimpleNamespace(rows=gather(rows), windows=windows)


def test_shades_grow_with_the_values():
    lines = strip("dt", ["0", "1"], np.array([[0.0, 1, 2, 3, 4], [4, 4, np.nan, 0, 0]]), np.arange(5.0), Drawing(8))
    expected = ["   dt", "0┤ ░▒▓█│", "1┤██?  │", " └─────┘", "  0 2 4", '" ░▒▓█"', "0 to 4,", '"?"', "nothing"]
    assert [line.rstrip() for line in lines] == expected


def test_steps_without_a_metric_are_no_hole():
    rows = window([0, 1, 2], [[3.0, None, 1.0], [3.0, None, "NaN"]], key="loss")  # an evaluation stands at step 1
    least = {"min": [3.0, None, 1.0], "mean": [3.0, None, "NaN"], "max": [3.0, None, "NaN"]}
    rows["m"]["keys"]["loss"] |= least
    known = matrix([rows], "loss")
    assert known.steps.tolist() == [0, 2]
    assert np.isnan(known.values).tolist() == [[False, False], [False, True]]
    assert [(each.steps.tolist(), np.isnan(each.values).sum()) for each in loss_band([rows])] == [
        ([0, 2], 0),
        ([0, 2], 1),
        ([0, 2], 1),
    ]


def test_steps_that_lack_ranks_are_told():
    whole, half = window([0, 1], [[1.0, 1.0], [2.0, 2.0]]), window([2, 3], [[1.0, 1.0], [None, 2.0]])
    assert "fewer" not in " ".join(draw_ranks([whole], "dt", Drawing(80)))
    told = " ".join(" ".join(draw_ranks([whole, half], "dt", Drawing(80))).split())
    assert "1 of 4 steps hold fewer than all 2 ranks, 1 at least" in told


def test_a_strip_takes_the_whole_width(subtests):
    for number, ascii_only, width in itertools.product([1, 7, 300], [False, True], [20, 80, 200]):
        with subtests.test(f"{number} steps, ascii_only={ascii_only}, {width} columns"):
            cells, drawing = np.random.default_rng(0).random((4, number)), Drawing(width, ascii_only=ascii_only)
            lines = strip("a title", list("0123"), cells, np.arange(number) * 1.0, drawing)
            assert {columns(line) for line in lines} == {width}
            assert "".join(lines).isascii() == ascii_only


def test_values_that_are_all_alike_or_all_missing_have_a_strip():
    assert "▒▒▒" in strip("x", ["0"], np.full((1, 3), 7.0), np.arange(3.0), Drawing(20))[1]
    lines = strip("x", ["0"], np.full((1, 3), np.nan), np.arange(3.0), Drawing(30))
    assert "???" in lines[1]
    assert lines[-1].rstrip() == "nothing finite was recorded"


def test_a_slow_rank_is_seen_and_named_by_what_was_measured():
    ranks = [[0.1] * 10 for _ in range(4)]
    ranks[2] = [0.1] * 5 + [0.2] * 5
    lines = draw_ranks([window(list(range(10)), ranks)], "dt", Drawing(40))
    assert lines[3].startswith("2┤")
    assert set(lines[3][2:-1]) == {" ", "█"}
    few = " ".join(line.strip() for line in lines[-2:])
    assert few == "no rank stands out: mean 0.1 (rank 0) to 0.15 (rank 2)"  # of so few steps
    many = list(range(30))
    ranks = [[0.1] * 30, [0.1] * 30, [0.16] * 30, [0.1] * 30]
    told = " ".join(draw_ranks([window(many, ranks)], "dt", Drawing(80)))
    assert "slowest: rank 2, median 0.16, 1.6 times the median of the others" in told
    windows = [
        window(many, [[9.0] * 30, [6.0] * 30], key="sps"),
        window([0, 1], [[1.0, 1.0], [2.0, 2.0]], key="loss"),
    ]
    assert "slowest: rank 1, median 6, 1.5 times rank 0" in " ".join(draw_ranks(windows, "sps", Drawing(80)))
    assert "highest: rank 1, mean 2" in " ".join(draw_ranks(windows, "loss", Drawing(80)))


def test_more_than_16_ranks_share_rows_in_which_the_slowest_counts():
    ranks = [[0.1] * 30 for _ in range(40)]
    ranks[37] = [0.9] * 30
    lines = draw_ranks([window(list(range(30)), ranks)], "dt", Drawing(60))
    rows = [line for line in lines if "┤" in line]
    assert len(rows) == 14
    assert [row for row in rows if "█" in row] == [row for row in rows if row.startswith("36-38")]
    assert rows[-1].startswith("   39┤")
    assert any("slowest: rank 37" in line for line in lines)


def test_windows_of_means_missing_values_and_other_attempts_are_one_table():
    windows = [
        window([0, 1, 2, 3], [[1.0, None, "NaN", "Infinity"], [5.0, 6.0, 7.0, 8.0]]),
        window([4, 5, 6], [[9.0], [9.5]]),
        window([2, 3], [[20.0, 30.0], [21.0, 31.0], [22.0, 32.0]], attempt=2),
        window([3], [[1.0]], key="other", attempt=2),
    ]
    _, steps, values = matrix(counting_windows(run(windows)), "dt")
    assert steps.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(values, [[1, np.nan, 20, 30], [5, 6, 21, 31], [np.nan, np.nan, 22, 32]])
    assert matrix(counting_windows(run(windows[:2])), "dt").steps.tolist() == [0, 1, 2, 3, 6]
    assert rank_keys(windows) == ["dt", "other"]


def test_of_a_window_that_a_later_attempt_cut_the_means_of_its_ranks_do_not_count():
    windows = [window([0, 1, 2], [[1.0], [2.0]]), window([2, 3, 4], [[3.0], [4.0]], attempt=2)]
    windows[0]["m"]["keys"]["dt"]["max"] = [5.0, 6.0, 7.0]
    counting = counting_windows(run(windows))
    assert matrix(counting, "dt").steps.tolist() == [4]
    assert [statistic(row, "dt", "max").tolist()[:2] for row in counting[:1]] == [[5.0, 6.0]]
    assert counting[0]["m"]["steps"] == [0, 1]


def test_what_was_not_gathered_or_cannot_be_read_is_an_error_that_says_so():
    with pytest.raises(UsageError, match=r"no 'loss' of all ranks .* gathered: dt\."):
        draw_ranks([window([0], [[1.0]])], "loss", Drawing(40))
    with pytest.raises(UsageError, match="runs of two or more ranks"):
        draw_ranks([], "loss", Drawing(40))
    for broken in ([[1.0, 2.0], [1.0]], [["x", 1.0]], 7, [1.0, 2.0]):
        windows = [window([0, 1], [[1.0, 2.0]])]
        windows[0]["m"]["keys"]["dt"]["ranks"] = broken
        with pytest.raises(TrackError, match="cannot read 'dt' of all ranks at step 1"):
            matrix(windows, "dt")


def histograms(*held):
    return gather({"v": 1, "t": 0.0, "step": step, "m": {"h": one, "loss": 1.0}} for step, one in held)


def test_histograms_over_steps_are_a_strip_of_shares_on_one_scale():
    table = histograms((0, Histogram([8, 0], [0.0, 1.0, 2.0])), (5, Histogram([0, 8], [0.0, 1.0, 2.0])))
    assert histogram_keys(table) == ["h"]
    lines = draw_histograms(table, "h", Drawing(12))
    assert [line.rstrip() for line in lines[1:3]] == ["1┤    █████│", "0┤████     │"]
    assert lines[-1].rstrip().endswith("1")
    table = histograms((0, Histogram([4], [0.0, 1.0])), (1, Histogram([1, 1, 1, 1], [0.0, 1.0, 2.0, 3.0, 4.0])))
    lines = draw_histograms(table, "h", Drawing(60))
    rows = [line for line in lines if "┤" in line]
    assert [row[: row.find("┤")].strip() for row in rows] == ["3", "2", "1", "0"]
    assert "█" in rows[-1]
    assert not any("█" in row for row in rows[:-1])


def test_one_histogram_is_bars_and_an_empty_one_nothing():
    lines = draw_histograms(histograms((7, Histogram([1, 3], [0.0, 1.0, 2.0]))), "h", Drawing(30))
    assert lines[0].strip() == "h at step 7: share of values"
    assert [line.rstrip() for line in lines[1:]] == ["1┤" + "█" * 24 + " 75%", "0┤" + "█" * 8 + " 25%"]
    assert "".join(
        draw_histograms(histograms((7, Histogram([1], [0.0, 1.0]))), "h", Drawing(30, ascii_only=True))
    ).isascii()
    empty = Histogram([0, 0], [0.0, 1.0, 2.0])
    assert "?" in draw_histograms(histograms((0, empty), (1, Histogram([1, 1], [0.0, 1.0, 2.0]))), "h", Drawing(30))[1]
    assert "█" not in "".join(draw_histograms(histograms((0, empty)), "h", Drawing(30)))
    lines = draw_histograms(histograms((0, empty)), "h", Drawing(30), since=5.0)
    assert lines[0].strip() == "h: nothing from step 5 on"
