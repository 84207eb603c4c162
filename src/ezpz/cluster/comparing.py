"""Compare hosts by majority, and name those that differ: one rule for `launch --check` and `ezpz doctor`."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

__all__ = ["listed", "majority", "minorities"]

_NAMED = 3  # hosts that are named one by one


def majority(values: Sequence[Any]) -> tuple[Any, int]:
    """Return the most frequent value, the first of those that are equally frequent, and how often it is there.

    Of no values it is None, 0 times.
    """
    counts: dict[Any, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    best = max(counts, key=counts.__getitem__, default=None)
    return best, 0 if best is None else counts[best]


def minorities(what: str, values: Sequence[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    """Yield a line for each value that is not the usual one, "torch 2.12.0 on n03, 2.13.0 on 2 hosts", and its hosts.

    Args:
        what: What is compared.
        values: Each host, and its value; empty where it has none.
    """
    usual, count = majority([value for _, value in values])
    for value in dict.fromkeys(value for _, value in values):
        if value != usual:
            names = [name for name, own in values if own == value]
            others = f"{usual or 'none'} on {count} host{'s' * (count > 1)}"
            yield f"{what} {value or 'is missing'} on {listed(names)}, {others}", names


def listed(names: Sequence[str]) -> str:
    """Return the first three names, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
