import itertools

import numpy as np

from ezpz.view.terminal.panels import arrange, drawing, height_for, lay_out
from ezpz.view.terminal.screen import Screen
from ezpz.view.terminal.textplot import draw
from ezpz.view.terminal.width import columns
from lab.drawn_series import series


def test_plots_stand_side_by_side_where_there_is_room_and_fit_the_terminal():
    expected = {(20, 5): (1, 20), (119, 5): (1, 119), (120, 5): (2, 59), (180, 5): (3, 58), (200, 2): (2, 99)}
    expected |= {(200, 1): (1, 200)}
    assert {(width, number): lay_out(Screen(width), number) for width, number in expected} == expected
    assert [height_for(Screen(width), width) for width in (20, 60, 80, 200)] == [10, 20, 25, 25]
    assert height_for(Screen(80, 24), 80) == 22
    assert height_for(Screen(80, 5), 80) == 8


def test_no_line_is_wider_than_the_screen_and_none_is_cut(subtests):
    holed = series(np.where(np.arange(50) == 7, np.nan, np.arange(50)))
    names = ["loss", "损失", "a_name_of_some_length", "d"]
    for width, color in itertools.product([20, 80, 120, 200], [False, True]):
        with subtests.test(f"{width} columns, color={color}"):
            screen = Screen(width, color=color)
            blocks = [draw([holed._replace(name=name)], name, drawing(screen, 4)) for name in names]
            lines = arrange(blocks, lay_out(screen, 4)[0])
            assert max(map(columns, lines)) <= width
            assert sum(line.count("└") for line in lines) == 4
            assert "".join(lines).count("NaN") == 4
            assert all(name[:18] in "".join(lines) for name in names)


def test_blocks_of_different_height_stay_in_their_columns():
    assert arrange([["aa", "bb"], ["cc"], ["dd", "ee"]], 2) == ["aa  cc", "bb    ", "dd", "ee"]
    assert arrange([["aa"], ["cc", "dd"]], 2) == ["aa  cc", "    dd"]
