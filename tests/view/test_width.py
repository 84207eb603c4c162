from hypothesis import given
from hypothesis import strategies as st

from ezpz.view.terminal.width import centered, cleaned, columns, fit, to_ascii, wrapped


def test_columns_are_what_a_terminal_shows_and_what_was_cut_is_marked():
    wide = {"loss": 4, "损失": 4, "e\u0301": 1, "\x1b[38;5;6m▚\x1b[0m x": 3, "": 0}
    assert {text: columns(text) for text in wide} == wide
    assert fit("validation", 6) == "valid…"
    assert fit("损失函数", 6) == "损失… "
    assert fit("loss", 4) == "loss"


@given(st.text(st.characters(categories=["L", "N", "P"])), st.integers(0, 30))
def test_a_text_fits_exactly(text, width):
    assert columns(fit(text, width)) == width
    assert columns(centered(text, width)) == width


@given(st.lists(st.text("ab损失", min_size=1, max_size=20)), st.integers(2, 12))
def test_wrapped_words_lose_nothing(words, width):
    lines = wrapped(words, width)
    assert all(columns(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == "".join(words)


def test_nothing_in_a_name_steers_a_terminal():
    assert cleaned("a\x1b[2Jb\n") == "a\\x1b[2Jb\\n"
    assert cleaned("é…", ascii_only=True) == "?~"
    assert to_ascii("┌─┤▚") == "+-|?"
