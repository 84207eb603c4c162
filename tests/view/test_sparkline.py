import numpy as np

from ezpz.view.terminal.frame import sparkline
from lab.drawn_series import series


def test_a_decay_falls_from_the_highest_to_the_lowest_block():
    assert sparkline(series(np.linspace(1, 0, 8)), 16) == "█▇▆▅▄▃▂▁"
    assert sparkline(series(np.linspace(1, 0, 8000)), 8) == "█▇▆▅▄▃▂▁"
    assert sparkline(series(np.linspace(1, 0, 8)), 16, ascii_only=True) == "#*+=~-._"


def test_every_series_has_a_line_that_one_slow_step_does_not_flatten():
    shapes = [[], [3.0], [2.0] * 3, [np.nan, np.nan], [0.0, np.nan, 1.0, np.inf], [-1.7e308, 1.7e308], [5e-324, 1e-323]]
    assert [sparkline(series(values), 10) for values in shapes] == ["", "▅", "▅▅▅", "xx", "▁x█x", "▁█", "▁█"]
    values = np.arange(200) % 5 / 1000
    values[0] = 90.0
    assert len(set(sparkline(series(values), 200))) >= 5


def test_a_line_is_never_longer_than_asked_for(subtests):
    for number in [1, 7, 59, 60, 61, 1000]:
        with subtests.test(f"{number} values"):
            assert len(sparkline(series(np.arange(number)), 60)) == min(number, 60)
            assert sparkline(series([1.0]), 0) == ""
