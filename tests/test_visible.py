"""Text of others cannot steer a terminal, wherever it is shown."""

import subprocess

from hypothesis import given
from hypothesis import strategies as st

from ezpz.visible import LINES, shell_line, visible

STEERING = [
    *map(chr, range(0x20)),
    *map(chr, range(0x7F, 0xA0)),
    *"\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\U000e0041",
    "\ud800",
    "\udcff",
    "\udfff",
]


def test_what_steers_a_terminal_is_shown_as_an_escape():
    for letter in STEERING:
        shown = visible(f"a{letter}b")
        assert shown.isprintable(), ascii(letter)
        assert shown.startswith("a\\"), ascii(letter)
        assert visible(shown) == shown


def test_all_else_stays():
    for text in ("", "plain", "naïve 学習 損失 🙂", "a\u00a0b", "👩\u200d🚀", "C:\\x1b", "\ue000"):
        assert visible(text) == text


def test_escapes_can_be_read():
    assert visible("\x1b]0;title\x07") == "\\x1b]0;title\\x07"
    assert visible("\x9b31m") == "\\x9b31m"
    assert visible("\udc9b31m") == "\\x9b31m"  # the same as one byte that is no UTF-8
    assert visible("\u202eabc") == "\\u202eabc"
    assert visible("a\nb\tc\rd") == "a\\nb\\tc\\rd"


def test_lines_and_our_colours_pass_where_they_may():
    assert visible("a\n\tb\r", LINES) == "a\n\tb\\r"
    text = "\x1b[31mred\x1b[0m \x1b[1;32mx\x1b[38;5;4my\x1b[8mhidden\x1b[2J"
    assert visible(text, colors=True) == text.replace("\x1b[8m", "\\x1b[8m").replace("\x1b[2J", "\\x1b[2J")
    assert "\x1b" not in visible(text)


@given(
    st.lists(st.text(st.characters(exclude_categories=[], exclude_characters="\0"), max_size=8), min_size=1, max_size=4)
)
def test_a_shell_line_is_visible_and_means_the_same_words(words):
    line = shell_line(words)
    assert visible(line, LINES) == line


def test_bash_reads_a_visible_line_as_the_words_were():
    words = ["a b", "\x1b[31m", "it's\\x\x07", "\udc9bx", "\u202e'", "two\nlines", "$HOME", ""]
    script = f"for word in {shell_line(words)}; do printf '%s\\0' \"$word\"; done"
    told = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, check=True).stdout
    assert told == b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in words)
