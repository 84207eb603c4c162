"""Judge two runs with one sentence and an exit code: 0 agree, 1 differ, 2 cannot be compared."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ezpz.view.compare.differences import change_of, folded
from ezpz.view.compare.divergence import MATERIAL
from ezpz.view.compare.explaining_setting import Cause, Clues, find_cause
from ezpz.view.compare.kinds_of_settings import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.view.compare.differences import Difference
    from ezpz.view.compare.divergence import Divergence

_NAMED = 2  # settings that the sentence names
_ROOM = 44  # characters for one of them


@dataclass(frozen=True)
class Verdict:
    """What came out.

    Attributes:
        text: One sentence.
        exit_code: 0 agree within numerics, and nothing material is set differently; 1 not; 2 not comparable.
        likely: The settings that explain it, or are material although the curves agree.
        notes: What else there is to say, a sentence each.
        step: From which step on the curves differ; None if they do not.
    """

    text: str
    exit_code: int
    likely: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    step: int | None = None


def judge(differences: Sequence[Difference], apart: Divergence, clues: Clues, letters: tuple[str, str]) -> Verdict:
    """Return the verdict on two runs.

    Args:
        differences: What is set differently, the likeliest to change numbers first.
        apart: How the curves part.
        clues: What else is known.
        letters: How the runs are called.
    """
    gone = {letter: apart.missing[name] for letter, name in zip(letters, "ab", strict=True)}
    if len(set(gone.values())) > 1:
        return _lost(gone, apart, find_cause(differences, apart, clues) if apart.numerics is not None else Cause(None))
    if apart.numerics is None and not apart.holes:
        return _agree(differences, apart)
    if apart.numerics is None:
        text = f"one of the two is not finite at {apart.holes} of {apart.points} steps; elsewhere same within numerics"
        return Verdict(text, 1, step=apart.first_different)
    cause = find_cause(differences, apart, clues)
    text = _differ(cause, apart, letters)
    notes = [cause.note] if cause.note and cause.note not in text else []
    return Verdict(text, 1, cause.likely, notes, _step(cause, apart))


def _lost(gone: dict[str, int | None], apart: Divergence, cause: Cause) -> Verdict:
    text = ", ".join(f"{letter} is NaN or infinite from step {at} on" for letter, at in gone.items() if at is not None)
    step = min(at for at in gone.values() if at is not None)
    if apart.numerics is None or apart.numerics >= step:
        return Verdict(text, 1, step=step)
    return Verdict(f"{text}; the curves part at step {apart.numerics}", 1, cause.likely, step=apart.numerics)


def _agree(differences: Sequence[Difference], apart: Divergence) -> Verdict:
    is_exact = apart.first_different is None
    steps = f"{apart.points} step{'s' * (apart.points > 1)}"
    text = (
        f"identical: {steps}, equal to the last bit" if is_exact else f"same within numerics: no divergence in {steps}"
    )
    gone = apart.missing["a"]
    notes = [] if gone is None else [f"both are NaN or infinite from step {gone} on"]
    material = [item for item in differences if item.material]
    if not material:
        return Verdict(text, 0, notes=notes)
    first = material[0].kind
    likely = [item for item in material if item.kind is first]
    return Verdict(f"{text}, but other {first.value} ({_named(likely)})", 1, likely, notes)


def _differ(cause: Cause, apart: Divergence, letters: tuple[str, str]) -> str:
    named = f" ({_named(cause.likely)})" if cause.likely else ""
    step = _step(cause, apart)
    if cause.kind is Kind.SEED:
        return f"different seed, {_quality(apart, letters)}"
    if cause.kind is Kind.DATA:
        return f"data{cause.where} differs from step {step}{named}"
    if cause.kind is None:
        reason = f": {cause.note}" if cause.note else ": nothing that was recorded explains it"
    elif cause.kind in {Kind.OPTIMIZER, Kind.OTHER}:
        reason = f": {_named(cause.likely)}"
    else:
        reason = f": {cause.kind.value}{named}"
    if step == apart.first:
        return f"different from step {step}{reason}"
    if apart.how == "start":
        return f"differs from step {step} on{reason}"
    return f"{'diverges at' if apart.how == 'jump' else 'drifts apart, beyond numerics from'} step {step}{reason}"


def _step(cause: Cause, apart: Divergence) -> int | None:
    """Return the step to name: what acts on every loss does so from the first, however late a window shows it."""
    if cause.step is not None:
        return cause.step
    acts_at_once = cause.kind in {Kind.STOCHASTIC, Kind.MODEL, Kind.SEED}
    return apart.first if acts_at_once and apart.first_different == apart.first else apart.numerics


def _quality(apart: Divergence, letters: tuple[str, str]) -> str:
    if apart.material is None:
        return "same quality"
    if abs(apart.final) < MATERIAL:
        return "same quality at the end"
    side = "higher" if apart.final > 0 else "lower"
    return f"other quality: {letters[1]} ends {percent(abs(apart.final))} {side}"


def _named(likely: Sequence[Difference]) -> str:
    """Return the settings that a sentence names: each once, though it was given, read and recorded."""
    names: dict[tuple[str, str], str] = {}
    for line in folded(likely):
        change = change_of(line.members[0], _ROOM)
        when = line.key.partition(" ")[2]  # of what was recorded: "at step 300"
        names.setdefault((_short(line.key), change), f"{_short(line.key)} {change} {when}".rstrip())
    more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(list(names.values())[:_NAMED]) + more


def _short(key: str) -> str:
    """Return the telling part of a dotted name: ``lr`` of ``optimizer.groups.0.lr`` and of ``schedule.lr.300``."""
    parts = [part for part in key.partition(" ")[0].split(".") if not part.isdecimal() and part != "*"]
    return parts[-1] if parts else key


def percent(ratio: float) -> str:
    """Return a log ratio as per cent, with two digits that count."""
    value = 100.0 * math.expm1(ratio) if abs(ratio) < 700 else math.inf  # beyond, exp overflows
    return f"{value:.2g} %" if abs(value) < 10 else f"{value:.0f} %"
