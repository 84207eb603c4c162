"""Find data-parallel ranks whose weights differ, in what their looks have left in a run's journal.

`ezpz.track.over_ranks.replica_looks` says what a look is. That weights differ is no fault by itself: an ensemble, a
part of a model per rank, or ranks that average their weights every 100 steps (local SGD) have it by design. They all
have gradients of their own. Ranks that apply the same gradients are replicas of one model, and then their weights have
to be the same: so nothing is guessed about how a program averages.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.records.journal_lines import SeenBySteps
from ezpz.track.journal_reader import iter_kind
from ezpz.track.step_states import GRADIENTS, INPUTS, NO_BATCH, PRIME, SUM_COLUMNS, WEIGHTS, WHERE, factor_of, unpacked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ezpz.track.run_reader import Run

__all__ = ["Look", "are_replicas", "looks_of_run", "named_ranks", "numbers_of_ranks", "weight_findings"]

_NAMED = 8  # ranks in a sentence
_FEWEST_ALIKE = 2  # looks in which ranks had the same gradients, before these ranks are taken for replicas


class Sums(NamedTuple):
    """What one rank has sent of a look.

    Attributes:
        layout: What was looked at: ranks of another layout cannot be compared.
        weights: A sum of the weights.
        where: Another, that tells which of them differs.
        gradients: One of their gradients; None where there were none.
    """

    layout: int
    weights: int
    where: int
    gradients: int | None


@dataclass
class Look:
    """One look of all ranks.

    Attributes:
        row: The step of the row with which it was sent.
        step: The step before which the weights were looked at.
        part: Which part of the weights that was; empty where rank 0 has not recorded it.
        parts: How many parts there are; 0 where that is not known.
        ranks: What each rank has sent.
        inputs: Of ranks, their place among data-parallel ranks, and the sum of what the model was given.
    """

    row: int
    step: int
    part: str = ""
    parts: int = 0
    ranks: dict[int, Sums] = field(default_factory=dict)
    inputs: dict[int, tuple[int, int]] = field(default_factory=dict)


def numbers_of_ranks(run: Run, column: str) -> dict[int, dict[int, tuple[int, int]]]:
    """Return of each step with sums of a column: rank to what `ezpz.track.step_states.unpacked` makes of its number."""
    found: dict[int, dict[int, tuple[int, int]]] = {}
    width = len(NO_BATCH)
    for window in run.windows:
        for step, text in window["m"].get(SUM_COLUMNS[column], {}).items():
            numbers = (_hexadecimal(text[at : at + width]) for at in range(0, len(text), width))
            entries = {rank: unpacked(number) for rank, number in enumerate(numbers) if number is not None}
            if entries and step.lstrip("-").isdecimal():
                found.setdefault(int(step), {}).update(entries)
    return dict(sorted(found.items()))


def _hexadecimal(text: str) -> int | None:
    try:
        return int(text, 16)
    except ValueError:
        return None


def looks_of_run(run: Run) -> tuple[list[Look], dict[str, Sequence[str]]]:
    """Return the looks of a run in the order of steps, and the names of the weights of each part."""
    sums = {column: numbers_of_ranks(run, column) for column in (WEIGHTS, WHERE, GRADIENTS, INPUTS)}
    if not sums[WEIGHTS]:
        return [], {}
    names: dict[str, Sequence[str]] = {}
    parts: dict[int, SeenBySteps] = {}
    for record in iter_kind(run.folder / "metrics.jsonl", "seen"):
        seen = SeenBySteps.of(record["m"])
        if seen.part and seen.first is not None and seen.looked is not None:
            parts[seen.first] = seen
            names[seen.part] = seen.names or names.get(seen.part, ())
    looks = []
    for row, weights in sums[WEIGHTS].items():
        seen = parts.get(row, SeenBySteps.of({}))
        look = Look(row, row if seen.looked is None else seen.looked, seen.part, seen.parts or 0)
        look.inputs = sums[INPUTS].get(row, {})
        for rank, (layout, total) in weights.items():
            where = sums[WHERE].get(row, {}).get(rank)
            gradients = sums[GRADIENTS].get(row, {}).get(rank)
            if where is not None:
                look.ranks[rank] = Sums(layout, total, where[1], None if gradients is None else gradients[1])
        looks.append(look)
    return looks, names


def are_replicas(looks: Iterable[Look], ranks: Sequence[int]) -> bool:
    """Tell whether ranks had the same weights in all looks, and each weight was looked at."""
    seen: dict[str, set[str]] = {}
    parts: dict[str, int] = {}
    for look in looks:
        found = [look.ranks.get(rank) for rank in ranks]
        if None in found or len({sums[:3] for sums in found if sums}) > 1 or not look.parts:
            return False
        optimizer, _, part = look.part.partition(".")
        seen.setdefault(optimizer, set()).add(part)
        parts[optimizer] = look.parts
    return bool(parts) and all(len(seen[optimizer]) >= parts[optimizer] for optimizer in parts)


def weight_findings(run: Run) -> list[dict[str, Any]]:
    """Return the ranks that apply the same gradients to different weights, as ``findings`` of ``run.json`` has it.

    At most one: the first that was seen. Nothing is said where the weights are the same again in the last look at each
    part, and where any look shows other gradients on these ranks: they train apart by design, or nobody can tell.
    """
    looks, names = looks_of_run(run)
    for at, look in enumerate(looks):
        for ranks in _that_differ(look):
            if not _have_same_gradients(looks, ranks) or _are_the_same_again(looks, ranks):
                continue
            return [_finding(looks, at, ranks, names)]
    return []


def _that_differ(look: Look) -> Iterator[list[int]]:
    """Yield groups of ranks with the same gradients and different weights."""
    alike: dict[tuple[int, int], list[int]] = {}
    for rank, sums in sorted(look.ranks.items()):
        if sums.gradients is not None:
            alike.setdefault((sums.layout, sums.gradients), []).append(rank)
    for ranks in alike.values():
        if len({look.ranks[rank][:3] for rank in ranks}) > 1:
            yield ranks


def _compared(looks: Iterable[Look], ranks: Sequence[int]) -> Iterator[tuple[Look, list[Sums]]]:
    """Yield the looks in which ranks looked at the same, with what they saw."""
    for look in looks:
        found = [look.ranks[rank] for rank in ranks if rank in look.ranks]
        if len(found) == len(ranks) and len({sums.layout for sums in found}) == 1:
            yield look, found


def _have_same_gradients(looks: Iterable[Look], ranks: Sequence[int]) -> bool:
    alike = 0
    for _, found in _compared(looks, ranks):
        gradients = {sums.gradients for sums in found}
        if len(gradients) > 1:
            return False
        alike += None not in gradients
    return alike >= _FEWEST_ALIKE


def _are_the_same_again(looks: Iterable[Look], ranks: Sequence[int]) -> bool:
    last = {look.part: len({sums[:3] for sums in found}) == 1 for look, found in _compared(looks, ranks)}
    return all(last.values())


def _finding(
    looks: Sequence[Look], at: int, ranks: Sequence[int], names: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Describe what was seen of these ranks, for the first time, in one of the looks."""
    look = looks[at]
    sums = {rank: look.ranks[rank] for rank in ranks}
    (usual, most), *others = Counter(each[:3] for each in sums.values()).most_common()
    odd = [rank for rank in ranks if sums[rank][:3] != usual]
    is_known = 2 * most > len(ranks)
    equal = next((each.step for each in reversed(looks[:at]) if each.part == look.part and _agree(each, ranks)), None)
    since = "from the first step on" if equal is None and not at else f"at step {look.step}"
    if equal is not None:
        since = f"since a step between {equal} and {look.step}" if look.step - equal > 1 else f"since step {equal}"
    pair = next(each for each in sums.values() if each[:3] == others[0][0])
    place = _where(sums[next(rank for rank in ranks if sums[rank][:3] == usual)], pair, names.get(look.part, ()))
    compared = [len({each[:3] for each in found}) > 1 for _, found in _compared(looks[at:], ranks)]
    if is_known:
        text = f"{named_ranks(odd)} {'has' if len(odd) == 1 else 'have'} other weights than {most} other ranks"
    else:
        text = f"{named_ranks(ranks)} have different weights"
    return {
        "kind": "weights-differ",
        "key": "weights",
        "rank": odd[0] if is_known and len(odd) == 1 else None,
        "step": look.step,
        "ranks": list(odd if is_known else ranks),
        "last_equal": equal,
        "different": sum(compared),
        "looks": len(compared),
        "text": f"{text} {since}, {place}, though all apply the same gradients",
    }


def _agree(look: Look, ranks: Sequence[int]) -> bool:
    found = [look.ranks.get(rank) for rank in ranks]
    return None not in found and len({sums[:3] for sums in found if sums}) == 1


def _where(one: Sums, other: Sums, names: Sequence[str]) -> str:
    """Say which of the weights of a look differ between two ranks, as far as both sums tell it."""
    difference = (one.weights - other.weights) % PRIME
    if difference and names:
        factor = (one.where - other.where) * pow(difference, -1, PRIME) % PRIME
        alone = next((name for number, name in enumerate(names) if factor_of(number) == factor), "")
        if alone:
            return f"in {alone} alone"
    if not names:
        return "in several weights"
    return f"in several weights from {names[0]} to {names[-1]}" if len(names) > 1 else f"in {names[0]}"


def named_ranks(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, ``ranks 0 and 3``, or of many ranks the first ones and a number."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = [str(rank) for rank in ranks[:_NAMED]]
    if len(ranks) > _NAMED:
        return f"ranks {', '.join(shown)} and {len(ranks) - _NAMED} more"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"
