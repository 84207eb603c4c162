"""Compare what the steps of two runs saw: batches, random generators, and settings that somebody changed meanwhile."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ezpz.track.identical_batches import batches_of_ranks, read_seen
from ezpz.track.step_states import EVERY, MOST_CHANGES
from ezpz.view.compare.differences import Difference
from ezpz.view.compare.kinds_of_settings import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ezpz.track.identical_batches import SeenByRun
    from ezpz.track.run_reader import Run

__all__ = ["Batches", "batch_sizes", "compare_seen", "is_rate_of_optimizer"]

_Changes = list[tuple[int, float]]

_GENERATORS = {"python": "Python's", "numpy": "numpy's", "torch": "torch's", "cuda": "the device's"}
_FIRST_SIZE = re.compile(r"\[(\d{1,12})(?=[,\]])")
_LAYER = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass(frozen=True)
class Batches:
    """Whether two runs have trained on the same batches, as their checksums say.

    Attributes:
        text: That in words.
        first: The first step of which both checksums are known.
        last: The last one.
        other_from: The first step with another batch of rank 0; None where all were the same.
        other_ranks: Other ranks that had other batches, though rank 0 had the same.
        other_between: Their last step with the same batch, -1 where none is known, and the first with another one.
    """

    text: str
    first: int
    last: int
    other_from: int | None
    other_ranks: tuple[int, ...] = ()
    other_between: tuple[int, int] | None = None

    def same_at(self, step: int) -> bool:
        """Tell whether the batches up to a step were the same, as far as is known."""
        if self.other_between is not None and step > self.other_between[0]:
            return False
        return self.first <= step <= self.last + 1 and (self.other_from is None or step < self.other_from)


def compare_seen(
    first: Run, second: Run, letters: tuple[str, str]
) -> tuple[Batches | None, list[str], list[Difference]]:
    """Compare what the steps of two runs saw.

    Returns:
        What is known of their batches, None where nothing is; what else there is to say of batches and generators, a
        sentence each; and the settings that were changed while they trained, in the order of steps.
    """
    ours, theirs = read_seen(first), read_seen(second)
    batches, notes = _batches(ours, theirs, letters)
    if batches is not None and batches.other_from is None:
        batches = _with_other_ranks(batches, first, second)
    return (
        batches,
        [*notes, *_generators(ours, theirs)],
        list(_changes(ours, theirs, _read(first) & _read(second), letters)),
    )


def is_rate_of_optimizer(key: str, *, first: bool = False) -> bool:
    """Tell whether the key of a change is that of a learning rate; with ``first``, of the one that rows have."""
    name = key.partition(" ")[0]
    return name == "optimizer.groups.0.lr" if first else name.rpartition(".")[2] == "lr"


def _batches(ours: SeenByRun, theirs: SeenByRun, letters: tuple[str, str]) -> tuple[Batches | None, list[str]]:
    common = sorted(ours.sums.keys() & theirs.sums.keys())
    if not common:
        return None, []
    if ours.places != theirs.places:  # each rank has another part of the same data
        return None, []
    forms = [seen.forms[min(seen.forms)] for seen in (ours, theirs)]
    if forms[0] != forms[1]:
        return None, [f"batches have another form: {letters[0]} {forms[0]}, {letters[1]} {forms[1]}"]
    other = next((at for at, step in enumerate(common) if ours.sums[step] != theirs.sums[step]), None)
    first, last = common[0], common[-1]
    if other is None:
        whole = common[0] == min(ours.sums.keys() | theirs.sums.keys())
        since = "" if whole else f" from step {first} on, before which they are not known of both"
        return Batches(f"the same batches throughout ({len(common)} steps{since})", first, last, None), []
    if not other:
        return Batches("other data from the first step", first, last, first), []
    return Batches(f"same batches until step {common[other - 1]}, then other data", first, last, common[other]), []


def _with_other_ranks(batches: Batches, first: Run, second: Run) -> Batches:
    """Add which ranks have other batches though rank 0 has the same."""
    ours, theirs = batches_of_ranks(first), batches_of_ranks(second)
    same = -1
    for step in sorted(ours.keys() & theirs.keys()):
        common = sorted(ours[step].keys() & theirs[step].keys())
        other = tuple(rank for rank in common if ours[step][rank] != theirs[step][rank])
        if other:
            who = f"rank{'s' * (len(other) > 1)} {', '.join(map(str, other[:4]))}"
            who += f" and {len(other) - 4} more" if len(other) > 4 else ""
            have = "have" if len(other) > 1 else "has"
            since = f" and the same at step {same}" if same >= 0 else ""
            text = f"{who} {have} other data at step {step}{since}; rank 0 has the same throughout"
            return replace(batches, text=text, other_ranks=other, other_between=(same, step))
        same = step
    return batches


def batch_sizes(first: Run, second: Run) -> tuple[int, int] | None:
    """Return the sizes of both runs' first batches where nothing but their first dimension differs; else None."""
    ours, theirs = read_seen(first), read_seen(second)
    if not (ours.forms and theirs.forms) or ours.places != theirs.places:
        return None
    one, two = (_FIRST_SIZE.findall(seen.forms[min(seen.forms)]) for seen in (ours, theirs))
    rests = [_FIRST_SIZE.sub("[", seen.forms[min(seen.forms)]) for seen in (ours, theirs)]
    if rests[0] != rests[1] or not (len(set(one)) == len(set(two)) == 1) or one == two:
        return None
    return int(one[0]), int(two[0])


def _generators(ours: SeenByRun, theirs: SeenByRun) -> Iterator[str]:
    """Say from where on random generators were in other states, if anything was drawn from them."""
    for name, words in _GENERATORS.items():
        one, two = ours.generators.get(name, {}), theirs.generators.get(name, {})
        common = sorted(one.keys() & two.keys())
        other = next((at for at, step in enumerate(common) if one[step] != two[step]), None)
        if other is None:
            continue
        if other:
            before, after = common[other - 1], common[other]
            yield f"{words} random numbers differ: the same state after step {before}, another one after step {after}"
        elif len(set(one.values())) > 1 or len(set(two.values())) > 1:  # else nobody has drawn from it
            yield f"{words} random numbers differ from step {common[0]} on"


# Settings that were changed while the runs trained


def _read(run: Run) -> set[str]:
    """Return whose settings at the start are compared elsewhere: those that `History.log_config` was given."""
    names = run.record.effective.raw
    return {"dropout" if name.startswith("dropout.") else name.partition(".")[0] for name in names}


def _changes(ours: SeenByRun, theirs: SeenByRun, read: set[str], letters: tuple[str, str]) -> Iterator[Difference]:
    found: list[Difference] = []
    for name in {**ours.settings, **theirs.settings}:
        one, two = _of(ours.settings, name), _of(theirs.settings, name)
        known = "dropout" if name.startswith("dropout.") else "optimizer"
        if one and two:
            found += _first_change(name, one, two, known in read, letters)
    yield from sorted(found, key=lambda item: item.step or 0)


def _of(settings: Mapping[str, _Changes], name: str) -> _Changes:
    """Return the changes of a setting; of a layer its own, and those of all layers while they agreed."""
    names = {name, _LAYER.sub("*", name)} if name.startswith("dropout.") else {name}
    return sorted(change for each in names for change in settings.get(each, ()))


def _first_change(
    name: str, one: _Changes, two: _Changes, starts_are_known: bool, letters: tuple[str, str]
) -> Sequence[Difference]:
    """Return the first step at which a setting has other values in two runs, and who changed it."""
    start = max(one[0][0], two[0][0])
    steps = sorted({start, *(step for step, _ in [*one, *two] if step >= start)})
    for step in steps:
        a, b = _at(one, step), _at(two, step)
        if a == b or None in {a, b}:
            continue
        if step == start and starts_are_known:
            return []
        who = [letter for letter, changes in zip(letters, (one, two), strict=True) if _turns(changes, step)]
        only = f" in {who[0]} only" if len(who) == 1 and step > start else ""
        is_dropout = name.startswith("dropout.")
        kind = Kind.STOCHASTIC if is_dropout else Kind.SCHEDULE if name.endswith("lr") else Kind.OPTIMIZER
        head = "" if is_dropout else "optimizer." if name.startswith("groups.") else "optimizer.groups.0."
        key = f"{head}{name} at step {step}{only}"
        return [Difference("recorded", key, "changed", a, b, "recorded", kind, material=True, step=step)]
    return []


def _at(changes: _Changes, step: int) -> float | None:
    """Return the value that counts at a step; None where a schedule changes it so often that only some are recorded."""
    at, value = next(each for each in reversed(changes) if each[0] <= step)
    near = sum(abs(other - step) <= EVERY for other, _ in changes)
    return value if at == step or near <= MOST_CHANGES else None


def _turns(changes: _Changes, step: int) -> bool:
    values = [value for at, value in changes if at <= step][-2:]
    return any(at == step for at, _ in changes) and len(values) == 2 and values[0] != values[1]
