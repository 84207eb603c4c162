"""The answer that every source of devices gives, and how a value that cannot be read is refused."""

from __future__ import annotations

from ezpz.errors import UsageError
from ezpz.fields import Record

UNKNOWN = "no source tells the devices of the job's hosts"


class Devices(Record):
    """Accelerators that one host offers to this job.

    Attributes:
        count: How many, as torch counts them in one process; the most of any host where they differ.
        kind: What torch calls them: ``cuda`` (ROCm included), ``xpu``, ``mps``, or ``cpu`` where there are none.
        origin: The variable, file or command that gave the answer.
        notes: Other sources that differ, and what the answer leaves out; one sentence each.
    """

    count: int
    kind: str
    origin: str
    notes: tuple[str, ...] = ()

    @property
    def assumed(self) -> str:
        """The one of the notes that says that no source knew the devices of the job's hosts; empty where one did."""
        return next((note for note in self.notes if note.startswith(UNKNOWN)), "")


def refusal(what: str, name: str, value: str, expected: str, otherwise: str = "give it one") -> UsageError:
    """Return the error for a variable whose value cannot be read."""
    return UsageError(
        f"cannot read {what}: {value!r} (from {name}); expected {expected}. Run `unset {name}` or {otherwise}."
    )
