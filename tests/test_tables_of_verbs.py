"""Words in tables and lines, for all verbs that print some."""

import io

import pytest

from ezpz.tables import Column, bar, cut, hanging, or_dash, table, wrapped

COLUMNS = (
    Column("STATE", lambda each: each[0]),
    Column("STEP", lambda each: str(each[1]), is_right=True, yields=2),
    Column("LOSS", lambda each: or_dash(each[2]), is_right=True, yields=1),
    Column("RUN", lambda each: each[3]),
)
ITEMS = [("busy", 12, 0.123456, "short"), ("died\x1b[1m", 1, None, "outputs/a-longer-name")]
WHOLE = """\
STATE        STEP    LOSS  RUN
busy           12  0.1235  short
died\\x1b[1m     1       -  outputs/a-longer-name"""
NARROW = {
    None: WHOLE,
    80: WHOLE,
    40: """\
STATE        STEP  RUN
busy           12  short
died\\x1b[1m     1  outputs/a-longer-name""",
    34: """\
STATE        RUN
busy         short
died\\x1b[1m  outputs/a-longer-name""",
    30: """\
STATE        STEP  RUN
busy           12  short
died\\x1b[1m     1
    outputs/a-longer-name""",
}


@pytest.mark.parametrize("width", NARROW)
def test_columns_make_room_in_their_turn_for_the_last_one_which_stays_whole(width):
    lines = [line for lines in table(COLUMNS, ITEMS, width) for line in lines]
    assert "\n".join(lines) == NARROW[width]


def test_what_is_piped_is_not_cut_and_a_bar_takes_what_stdout_can(monkeypatch):
    assert (cut("abcdef", None), cut("abcdef", 6), cut("abcdef", 4)) == ("abcdef", "abcdef", "abc…")
    for encoding, letter in (("utf-8", "█"), ("latin-1", "#"), ("unheard-of", "#")):
        with monkeypatch.context() as patch:
            stdout = io.TextIOWrapper(io.BytesIO(), "ascii")
            patch.setattr("sys.stdout", type("Stream", (), {"encoding": encoding, "of": stdout}))
            assert bar(0.5, 8) == 4 * letter


def test_lines_keep_their_indent_and_paths_stay_whole():
    assert wrapped("aa bb cc", "  ", "..", 7) == ["  aa bb", "  ..cc"]
    assert wrapped("a /long/path-with-a-name", width=6, breaks=False) == ["a", "  /long/path-with-a-name"]
    assert list(hanging("seen  ", "aa bb", 30)) == ["seen  aa bb"]
    assert list(hanging("seen  ", "", 30)) == ["seen"]
