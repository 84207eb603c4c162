"""Numbers on a command line, as `type=` of an argparse option: what is out of range is refused with the reason."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError

__all__ = ["non_negative_float", "non_negative_int", "positive_float", "positive_int", "ratio"]


def positive_int(text: str) -> int:
    """Return a whole number from 1 on.

    Raises:
        ArgumentTypeError: It is none.
    """
    return _whole(text, 1)


def non_negative_int(text: str) -> int:
    """Return a whole number from 0 on.

    Raises:
        ArgumentTypeError: It is none.
    """
    return _whole(text, 0)


def positive_float(text: str) -> float:
    """Return a finite number above 0.

    Raises:
        ArgumentTypeError: It is none.
    """
    number = _finite(text, "number above 0")
    if number <= 0:
        raise ArgumentTypeError(f"{text!r} is no number above 0")
    return number


def non_negative_float(text: str) -> float:
    """Return a finite number from 0 on.

    Raises:
        ArgumentTypeError: It is none.
    """
    number = _finite(text, "number from 0 on")
    if number < 0:
        raise ArgumentTypeError(f"{text!r} is no number from 0 on")
    return number


def ratio(text: str) -> float:
    """Return a number from 0 to 1.

    Raises:
        ArgumentTypeError: It is none.
    """
    number = _finite(text, "number from 0 to 1")
    if not 0 <= number <= 1:
        raise ArgumentTypeError(f"{text!r} is no number from 0 to 1")
    return number


def _whole(text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise ArgumentTypeError(f"{text!r} is no whole number from {least} on")
    return int(text)


def _finite(text: str, wanted: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ArgumentTypeError(f"{text!r} is no {wanted}")
    return number
