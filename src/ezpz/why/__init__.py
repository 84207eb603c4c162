"""Say why a run ended as it did, from everything that was recorded of it: one ranked list of causes.

`diagnose` is a pure function of `Facts`. Each rule looks at the facts and returns the causes that they show; where none
does, the answer is an empty list, never a guess. Only the standard library is used: ``launch`` asks at its end, and
``ezpz why``, ``ezpz runs`` and the report read what it has found.
"""

from __future__ import annotations

from ezpz.why.cause import Cause, Certainty
from ezpz.why.engine import diagnose, last_line
from ezpz.why.known_facts import Facts

__all__ = ["Cause", "Certainty", "Facts", "diagnose", "last_line"]
