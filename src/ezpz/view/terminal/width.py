"""Measure and fit text in columns of a terminal."""

from __future__ import annotations

import re
from unicodedata import combining, east_asian_width

from ezpz.visible import visible

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_MORE = "…"
_ASCII = str.maketrans("┌┐└┘─│┤├┬┴┼…", "++++-|||+++~")


def columns(text: str) -> int:
    """Return the columns that ``text`` takes: two for wide characters, none for accents and colours."""
    if text.isascii() and "\x1b" not in text:
        return len(text)
    return sum(map(_columns, _COLOR.sub("", text)))


def _columns(character: str) -> int:
    if combining(character):
        return 0
    return 2 if east_asian_width(character) in {"W", "F"} else 1


def fit(text: str, width: int) -> str:
    """Return ``text`` in exactly ``width`` columns: filled up with blanks, or cut where it is longer and marked so."""
    taken = columns(text)
    if taken <= width:
        return text + " " * (width - taken)
    kept, room = "", width - 1
    for character in _COLOR.sub("", text):  # what is cut loses its colours: they might not end
        room -= _columns(character)
        if room < 0:
            break
        kept += character
    return fit(kept + _MORE, width) if width > 0 else ""


def centered(text: str, width: int) -> str:
    """Return ``text`` in the middle of ``width`` columns."""
    return fit(" " * max(0, (width - columns(text)) // 2) + text, width)


def wrapped(words: list[str], width: int, gap: str = " ") -> list[str]:
    """Return lines of at most ``width`` columns that hold all words; a word longer than a line is broken up."""
    lines: list[str] = []
    for word in words:
        if lines and columns(lines[-1]) + len(gap) + columns(word) <= width:
            lines[-1] += gap + word
            continue
        while columns(word) > width > 1:
            head = fit(word, width + 1).rstrip()[:-1]
            lines.append(head)
            word = _COLOR.sub("", word)[len(head) :]  # noqa: PLW2901  # the rest of it
        lines.append(word)
    return lines


def cleaned(text: str, *, ascii_only: bool = False) -> str:
    """Return a name or a line as it may be shown: nothing that steers a terminal, and ASCII where it must be."""
    text = visible(text)  # a journal may be anybody's
    return to_ascii(text) if ascii_only else text


def to_ascii(text: str) -> str:
    """Return ``text`` with the characters of plots replaced by similar ones of ASCII, and all others by ``?``."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()
