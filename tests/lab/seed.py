"""The seed by which a run draws what it tests on: which flavour a fault is staged on, which troubles are planted.

A run of the same day draws the same, so that a failure can be run again; the next day draws others. ``EZPZ_TEST_SEED``
(`make test SEED=…`) names another one; pytest's header says which it is.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os

VARIABLE = "EZPZ_TEST_SEED"


def of_the_day(environ=os.environ):
    """Return the seed of this run: what the environment names, or else today's date (UTC), ``2026-11-27``."""
    return environ.get(VARIABLE, "").strip() or dt.datetime.now(dt.timezone.utc).date().isoformat()


def pick(seed, name, choices):
    """Return one of `choices`, which has an order: always the same for a seed and a name, on every machine."""
    choices = list(choices)
    return choices[_number(seed, name) % len(choices)]


def some(seed, name, choices, count):
    """Return `count` of `choices`, each at most once, in their own order; drawn as `pick` draws one."""
    choices = list(choices)
    drawn = sorted(range(len(choices)), key=lambda index: _number(seed, f"{name} {index}"))[:count]
    return [choices[index] for index in sorted(drawn)]


def turn(seed, name, count):
    """Return whose turn it is, 0 to `count` - 1; of a seed that is a date, each one's once in `count` days."""
    try:
        day = dt.date.fromisoformat(seed).toordinal()
    except ValueError:
        day = _number(seed, name)
    return (_number("", name) + day) % count


def _number(seed, name):
    return int.from_bytes(hashlib.sha256(f"{seed}\0{name}".encode()).digest()[:8], "big")
