"""Read and write a time: ``90``, ``90s``, ``10m``, ``1h30m``, ``HH:MM:SS``, ``off``; of a job also ``1-12``."""

from __future__ import annotations

import re

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
LONGEST = 1000 * _UNITS["d"]  # seconds; more is a mistake, and beyond what a selector can wait for


def read(text: str) -> float | None:
    """Return seconds, or None for a limit that is switched off: ``0``, ``off`` or ``none``.

    Raises:
        ValueError: It is no time, or a longer one than 1000 days; the reason says what was expected.
    """
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
        raise ValueError(f"{text!r} is not a time; expected seconds (90), 90s, 10m, 2h, 1d, 1h30m, HH:MM:SS, or off")
    if seconds > LONGEST:
        raise ValueError(f"{text!r} is longer than 1000 days; expected less, or off")
    return seconds or None


def read_of_job(text: str) -> float | None:
    """Return the seconds of a job's time: as `read` and sbatch have it, so ``1-12:00`` and ``90:00`` (minutes) too.

    Raises:
        ValueError: It is no time, too long, or a bare number, which is minutes to sbatch and seconds to qsub.
    """
    if re.fullmatch(r"[0-9]+(?:\.[0-9]*)?", text):
        raise ValueError(
            f"{text!r} is minutes to sbatch, and seconds to qsub and to launch; expected a unit: {text}m or {text}s"
        )
    days = re.fullmatch(r"([0-9]{1,4})-([0-9]{1,2})(?::([0-5]?[0-9]))?(?::([0-5]?[0-9]))?", text)
    minutes = re.fullmatch(r"([0-9]{1,9}):([0-5][0-9])", text)
    if days:
        whole, hours, rest, seconds = (int(part or 0) for part in days.groups())
        text = f"{whole}d{hours}h{rest}m{seconds}s"
    elif minutes:
        text = f"{minutes[1]}m{minutes[2]}s"
    try:
        return read(text)
    except ValueError as error:
        raise ValueError(str(error).replace("expected seconds (90), 90s,", "expected 90s,")) from None


def in_words(seconds: float) -> str:
    """Return ``10 minutes``, ``1 minute`` or ``2.5 seconds``: minutes where they are whole."""
    number, unit = (seconds / 60, "minute") if seconds and seconds % 60 == 0 else (seconds, "second")
    return f"{number:g} {unit}{'s' * (number != 1)}"
