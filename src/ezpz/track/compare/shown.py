"""Differences as people read them: one line for each, equal ones of many layers in one, long values shortened."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from ezpz.track.compare.settings import is_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.track.compare.differences import Difference

__all__ = ["Line", "change_of", "folded", "shorten"]

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)|(?<=\.)\d+$")


@dataclass(frozen=True)
class Line:
    """One line: a key, in which ``*`` stands for the numbers of layers, and the differences that it is told for."""

    key: str
    members: tuple[Difference, ...]


def folded(found: Sequence[Difference]) -> list[Line]:
    """Put differences of one kind in many layers, ``blocks.0`` to ``blocks.23``, on one line; the order stays."""
    places: dict[object, list[Difference]] = {}
    for item in found:
        pattern = item.key if is_rate(item.key) else _NUMBER.sub("*", item.key)
        name = (item.section, pattern, item.change, json.dumps([item.a, item.b]))
        places.setdefault(name, []).append(item)
    return [
        Line(items[0].key if len(items) == 1 else _NUMBER.sub("*", items[0].key), tuple(items))
        for items in places.values()
    ]


def change_of(item: Difference, width: int) -> str:
    """Return ``0.0 -> 0.1``, ``only in B: 0.1``, or what a long list lost and won, in at most ``width`` characters."""
    if item.change != "changed":
        value = item.a if item.change.endswith(" A") or item.b is None else item.b
        return f"{item.change}: {shorten(text_of(value), max(8, width - len(item.change) - 2))}"
    if isinstance(item.a, list) and isinstance(item.b, list) and len(item.a) + len(item.b) > 2:
        lost = [f"-{text_of(value)}" for value in item.a if value not in item.b]
        won = [f"+{text_of(value)}" for value in item.b if value not in item.a]
        if lost or won:
            return shorten(" ".join([*lost, *won]), width)
    each = max(8, (width - 4) // 2)
    one, two = text_of(item.a), text_of(item.b)
    if len(one) + len(two) + 4 > width:
        one, two = _around_the_change(one, two, each)
    return f"{one} -> {two}"


def text_of(value: object) -> str:
    """Return a value of JSON as a person writes it."""
    if isinstance(value, str):
        return value or "''"
    if isinstance(value, float):
        text = f"{value:.6g}"
        text = text if math.isclose(float(text), value, rel_tol=1e-9) else f"{value:.12g}"
        return text if set(text) & set(".en") else f"{text}.0"  # a dropout of 0.0, not 0
    return json.dumps(value) if value is not None else "none"


def shorten(text: str, width: int) -> str:
    """Return ``text`` with its middle left out where it is longer than ``width``."""
    if len(text) <= width:
        return text
    head = (width - 2) // 2
    return f"{text[:head]}..{text[len(text) - (width - 2 - head) :]}"


def _around_the_change(one: str, two: str, width: int) -> tuple[str, str]:
    """Shorten two long texts so that the place where they differ stays in sight."""
    same = sum(1 for _ in next(iter(groupby(a == b for a, b in zip(one, two, strict=False))), (False, ()))[1])
    same = same if one[:1] == two[:1] else 0
    start = max(0, same - width // 3)
    if start:
        one, two = f"..{one[start:]}", f"..{two[start:]}"
    return tuple(text if len(text) <= width else f"{text[: width - 2]}.." for text in (one, two))  # type: ignore[return-value]  # two in, two out
