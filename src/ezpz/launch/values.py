"""The values that options of ``launch`` take, each read by a function that says what was expected."""

from __future__ import annotations

import argparse
import re
import shlex

from ezpz.errors import UsageError
from ezpz.launch.hostfile import HOST
from ezpz.ranks import CONTRACT

__all__ = ["comm_env", "count", "devices", "duration", "hosts", "names", "some_hosts", "word", "words"]

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_LONGEST = 1000 * _UNITS["d"]  # more is a mistake, and beyond what a selector can wait for


def _whole(text: str, least: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


def count(text: str) -> int:
    return _whole(text, 1)


def devices(text: str) -> int:
    return _whole(text, 0)


def word(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("the value is empty; expected one, or leave the option out")
    return text


def hosts(text: str) -> tuple[str, ...]:
    from ezpz.cluster import expand

    try:
        names = expand(text)
    except UsageError as error:
        reason = str(error).split("\n", 1)[0].partition(": ")[2]
        raise argparse.ArgumentTypeError(f"cannot read {text!r}: {reason}; expected e.g. n01,n02 or n[01-04]") from None
    odd = next((name for name in names if not HOST.fullmatch(name)), None)
    if odd is not None:
        raise argparse.ArgumentTypeError(f"{odd!r} is not a host name; expected e.g. n01,n02 or n[01-04]")
    return tuple(names)


def some_hosts(text: str) -> tuple[str, ...]:
    return hosts(word(text))


def words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:  # "No closing quotation"
        reason = str(error).lower()
        raise argparse.ArgumentTypeError(
            f"cannot read {text!r}: {reason}; expected words as a shell reads them"
        ) from None


def names(text: str) -> tuple[str, ...]:
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    odd = next((name for name in found if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)), None)
    if odd is not None:
        raise argparse.ArgumentTypeError(f"{odd!r} is not the name of a variable; expected e.g. NCCL_DEBUG,FI_PROVIDER")
    own = next((name for name in found if name in CONTRACT), None)
    if own is not None:
        raise argparse.ArgumentTypeError(
            f"{own} is what launch itself tells every rank; expected other names. Write `env -u {own}` in front of the program"
        )
    return found


def comm_env(text: str) -> str:
    if text not in {"site", "none"}:
        raise argparse.ArgumentTypeError(f"{text!r} is not known; expected site or none")
    return text


def duration(text: str) -> float | None:
    """Return seconds, or None for a limit that is switched off: ``0``, ``off`` or ``none``."""
    seconds = 0.0
    clock = re.fullmatch(r"([0-9]{1,9}):([0-5][0-9]):([0-5][0-9])", text)
    if text in {"off", "none"}:
        return None
    if re.fullmatch(_NUMBER, text):
        seconds = float(text)
    elif clock:
        hours, minutes, rest = map(int, clock.groups())
        seconds = 3600.0 * hours + 60 * minutes + rest
    elif text and re.fullmatch("".join(f"(?:{_NUMBER}{unit})?" for unit in _UNITS), text):
        parts = re.findall(rf"({_NUMBER})([dhms])", text)
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    else:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time; expected seconds (90), 90s, 10m, 2h, 1d, 1h30m, HH:MM:SS, or off"
        )
    if seconds > _LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than 1000 days; expected less, or off")
    return seconds or None
