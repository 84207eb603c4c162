"""Say what a run did when: `Interval`, of which views of its start, its account and logs of others are made."""

from __future__ import annotations

from ezpz.fields import Record

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable


class Interval(Record):
    """A piece of a run's time.

    Attributes:
        kind: ``stage`` of a start, ``account`` of a run's seconds, or a start in a ``table`` or ``log`` of others.
        name: What was done, such as ``imports``.
        begin: When it began, in seconds on the clock of its list: since the launch, or the process, or the epoch.
        end: When it had ended; None where that was not seen.
        host: Where; empty for the whole run, or where it is not known.
    """

    kind: str
    name: str
    begin: float
    end: float | None
    host: str = ""

    @property
    def seconds(self) -> float | None:
        """How long it took, to the microsecond."""
        return None if self.end is None else round(self.end - self.begin, 6)


def one_after_another(kind: str, ends: Iterable[tuple[str, float]], host: str = "") -> list[Interval]:
    """Return intervals that each begin where the one before has ended, the first at 0."""
    found, before = [], 0.0
    for name, end in ends:
        found.append(Interval(kind, name, before, max(before, end), host))
        before = max(before, end)
    return found
