import argparse

import pytest

from ezpz.errors import UsageError
from ezpz.track.profiles.profile_spec import add_profile_option, parse, parse_late

NOTHING = ["", "none", "  ", "0", "False"]


def test_kinds_steps_and_ranks_are_read():
    py, torch, mem = parse("py+torch:steps=10-15,ranks=0,8-9+mem:ranks=all", "a test")
    assert (py.kind, py.first, py.last) == ("py", 0, None)
    assert [rank for rank in range(12) if py.includes(rank)] == [0]
    assert (torch.kind, torch.first, torch.last) == ("torch", 10, 15)
    assert [rank for rank in range(12) if torch.includes(rank)] == [0, 8, 9]
    assert (mem.kind, mem.includes(0), mem.includes(99_999)) == ("mem", True, True)
    (one,) = parse("torch:ranks=3,steps=7", "a test")
    assert (one.first, one.last, one.includes(3), one.includes(0)) == (7, 7, True, False)
    (whole,) = parse("torch", "a test")
    assert (whole.first, whole.last) == (10, 14)
    assert {nothing: parse(nothing, "a test") for nothing in NOTHING} == dict.fromkeys(NOTHING, ())
    assert parse("1", "a test") == parse("True", "a test") == parse("py", "a test")


UNREADABLE = [
    ("cuda", "'cuda' is unknown"),
    ("py+", "'' is unknown"),
    ("py,torch", "'py,torch' is unknown"),
    ("py+py", "'py' is twice"),
    ("torch:", "options that are empty"),
    ("torch:steps", "'steps' is no option"),
    ("torch:10-15", "'10-15' is no option"),
    ("torch:step=3", "'step=3' is no option"),
    ("torch:steps=15-10", "'15-10' is no range"),
    ("torch:steps=-3", "'-3' is no range"),
    ("torch:steps=1-2,4-5", "more than one range"),
    ("torch:steps=1,steps=2", "option 'steps' is given twice"),
    ("py:ranks=all,0", "'all' is no range"),
    ("py:ranks=", "'' is no range"),
    ("py:ranks=٣", "'٣' is no range"),
    ("none+py", "'none' is unknown"),
    ("torch:steps=3-9,every=6", "every=6 does not fit"),
    ("torch:every=x", "every=x does not fit"),
    ("py:every=10", "every=10 does not fit"),
]


def test_what_cannot_be_read_is_one_line_that_says_what_was_expected(subtests):
    for spec, word in UNREADABLE:
        with subtests.test(spec):
            with pytest.raises(UsageError) as caught:
                parse(spec, "EZPZ_PROFILE")
            said = str(caught.value)
            assert word in said
            assert "(from EZPZ_PROFILE)" in said
            assert "expected" in said
            assert "\n" not in said


def test_a_late_window_counts_from_now_and_ends_by_itself():
    assert [(wish.kind, wish.first, wish.last) for wish in parse_late("", "PROFILE_NOW")] == [("torch", 0, 4)]
    assert [(wish.kind, wish.first, wish.last) for wish in parse_late("py\n", "PROFILE_NOW")] == [("py", 0, 49)]
    assert [wish.last for wish in parse_late("mem:ranks=all", "PROFILE_NOW")] == [49]


def test_the_option_of_a_trainer(capsys):
    parser = argparse.ArgumentParser()
    add_profile_option(parser)
    assert parser.parse_args([]).profile is None
    assert parser.parse_args(["--profile"]).profile == "py"
    assert parser.parse_args(["--profile=torch:steps=1-2"]).profile == "torch:steps=1-2"
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(["--profile=nsys"])
    assert caught.value.code == 2
    assert "'nsys' is unknown (from --profile)" in capsys.readouterr().err
    assert "torch:steps=10-15" in parser.format_help()
