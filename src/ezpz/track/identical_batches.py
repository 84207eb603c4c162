"""Read what steps saw from a run's journal, and find data-parallel ranks that train on identical batches.

`ezpz.track.step_states` writes it: sums of rank 0's batches of all steps, of every rank those of every 50th step and of
the first three, sums of random generators, and settings that changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ezpz.records.journal_lines import SeenBySteps
from ezpz.track.journal_reader import iter_kind
from ezpz.track.replica_findings import are_replicas, looks_of_run, named_ranks, numbers_of_ranks
from ezpz.track.step_states import BATCH, UNKNOWN

if TYPE_CHECKING:
    from ezpz.track.run_reader import Run

__all__ = ["SeenByRun", "batch_findings", "read_seen"]

_FEWEST = 3  # different batches that two ranks have both had, before they are said to train on the same


@dataclass
class SeenByRun:
    """What the steps of a run saw. Of a step that was done again the last time counts.

    Attributes:
        sums: Of rank 0: step to the sum of its batch.
        forms: Step to the form of its batch, where a record begins.
        places: How many data-parallel places there were, as recorded last; 0 where nothing was.
        generators: Name to step to the sum of the generator's state after it.
        settings: Name to ``(step, value)``, in the order of steps: the value from that step on.
    """

    sums: dict[int, int] = field(default_factory=dict)
    forms: dict[int, str] = field(default_factory=dict)
    places: int = 0
    generators: dict[str, dict[int, int]] = field(default_factory=dict)
    settings: dict[str, list[tuple[int, float]]] = field(default_factory=dict)


def read_seen(run: Run) -> SeenByRun:
    """Return what the steps of a run saw; nothing of it where nothing was recorded."""
    found = SeenByRun()
    for record in iter_kind(run.folder / "metrics.jsonl", "seen"):
        seen = SeenBySteps.of(record["m"])
        _read_sums(found, seen)
        if seen.at is not None:
            for name, total in seen.generators.items():
                found.generators.setdefault(name, {})[seen.at] = total
        for name, values in seen.settings.items():
            _read_changes(found.settings.setdefault(name, []), values)
    return found


def _read_sums(found: SeenByRun, seen: SeenBySteps) -> None:
    text, width = seen.batches, len(UNKNOWN)
    if seen.first is None or not text:
        return
    found.forms[seen.first] = seen.form
    found.places = seen.places or found.places
    for number in range(len(text) // width):
        part = text[number * width : (number + 1) * width]
        total = _hexadecimal(part)
        if total is not None:
            found.sums[seen.first + number * seen.every] = total


def _read_changes(known: list[tuple[int, float]], values: list[Any]) -> None:
    pairs = [
        (step, float(value))
        for step, value in zip(values[::2], values[1::2], strict=False)
        if type(step) is int and type(value) in {int, float}
    ]
    if pairs:
        while known and known[-1][0] >= pairs[0][0]:  # steps that were done again
            known.pop()
        known += pairs


def _hexadecimal(text: str) -> int | None:
    try:
        return int(text, 16)
    except ValueError:
        return None


# Ranks with the same batches


def batches_of_ranks(run: Run) -> dict[int, dict[int, tuple[int, int]]]:
    """Return of each step that all ranks report: rank to place among data-parallel ranks and sum of its batch."""
    return numbers_of_ranks(run, BATCH)


def batch_findings(run: Run) -> list[dict[str, Any]]:
    """Return data-parallel ranks that train on identical batches, as ``findings`` of ``run.json`` has it.

    Ranks of one place (tensor parallel, stages of a pipeline) share their batches by design. Two others do so by
    mistake if they had the same in all looks since some step, at least three different ones; where a run has one batch
    or two that come again and again, nothing can be told. Of a loop of one's own without `ezpz.prepare` counts what the
    model was given, on ranks that are replicas: the same weights in all looks.
    """
    steps = batches_of_ranks(run)
    if steps:
        return _that_are_the_same(steps)
    looks, _ = looks_of_run(run)
    of_optimizer: dict[str, dict[int, dict[int, tuple[int, int]]]] = {}  # a GAN's noise alone may be the same
    for look in looks:
        if look.inputs:
            of_optimizer.setdefault(look.part.partition(".")[0], {})[look.step] = look.inputs
    first, *others = [_that_are_the_same(inputs) for inputs in of_optimizer.values()] or [[]]
    return [
        found
        for found in first
        if all([each["ranks"] for each in more] == [found["ranks"]] for more in others)
        and are_replicas(looks, found["ranks"])
    ]


def _that_are_the_same(steps: dict[int, dict[int, tuple[int, int]]]) -> list[dict[str, Any]]:
    alike: dict[tuple[tuple[int, int], ...], list[int]] = {}  # the newest different batches of a rank, to ranks
    of_rank: dict[int, dict[int, tuple[int, int]]] = {}
    for step, entries in steps.items():
        for rank, entry in entries.items():
            of_rank.setdefault(rank, {})[step] = entry
    for rank, seen in sorted(of_rank.items()):
        newest: dict[int, int] = {}
        for step in reversed(seen):
            newest.setdefault(seen[step][1], step)
            if len(newest) == _FEWEST:
                alike.setdefault(tuple((at, total) for total, at in newest.items()), []).append(rank)
                break
    groups = [ranks for ranks in alike.values() if len({of_rank[rank][max(of_rank[rank])][0] for rank in ranks}) > 1]
    if not groups:
        return []
    ranks = max(groups, key=len)
    first, looks = _since(ranks, of_rank)
    different = len({of_rank[ranks[0]][step][1] for step in looks})
    more = f", and {len(groups) - 1} more groups of ranks" if len(groups) > 1 else ""
    return [
        {
            "kind": "same-batches",
            "key": "batches",
            "rank": None,
            "step": first,
            "ranks": ranks,
            "different": different,
            "looks": len(looks),
            "text": f"{named_ranks(ranks)} train on identical batches from step {first} on{more}",
        }
    ]


def _since(ranks: list[int], of_rank: dict[int, dict[int, tuple[int, int]]]) -> tuple[int, list[int]]:
    """Return from which step on ranks have had the same batches, and the steps at which that was seen."""
    looks: list[int] = []
    for step in reversed(of_rank[ranks[0]]):
        sums = {of_rank[rank][step][1] for rank in ranks if step in of_rank[rank]}
        if len(sums) > 1:
            break
        looks.append(step)
    return looks[-1], looks
