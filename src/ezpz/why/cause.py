"""Hold what a rule of `ezpz.why` answers: a cause, where it was, and the facts that show it."""

from __future__ import annotations

from ezpz.fields import Record

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Cause", "Certainty"]


class Certainty:
    """How much a cause is worth beside others; the largest comes first."""

    SEEN = 3  # it was recorded as such: a kernel's counter, an exception, an exit
    SHOWN = 2  # the facts allow nothing else: the rank that lacks in a collective
    FINDING = 1  # worth a word, and no reason of an end: a slow rank, a spike


class Cause(Record):
    """One cause of an end or of slowness.

    Attributes:
        cause: Short name of the kind, for programs: ``out-of-memory``, ``collective-missing``, ``straggler``.
        text: One sentence for people that begins with the culprit: ``rank 1 on n02 never reached all_reduce …``.
        certainty: One of `Certainty`.
        rank: The rank; None where it is none or several.
        host: Its host.
        step: The step at which it happened; None where it is unknown.
        evidence: The facts that show it, a short sentence each.
        consequences: What followed from it, a short sentence each.
        advice: What to do or type next; empty where there is nothing sensible.
    """

    cause: str
    text: str
    certainty: int
    rank: int | None = None
    host: str | None = None
    step: int | None = None
    evidence: tuple[str, ...] = ()
    consequences: tuple[str, ...] = ()
    advice: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the cause as ``run.json`` and ``ezpz why --json`` have it; ``advice`` is called ``try`` there."""
        return {
            "cause": self.cause,
            "text": self.text,
            "certainty": self.certainty,
            "rank": self.rank,
            "host": self.host,
            "step": self.step,
            "evidence": list(self.evidence),
            "consequences": list(self.consequences),
            "try": self.advice or None,
        }
