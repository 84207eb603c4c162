"""Find the setting that explains a divergence: one that can act at the step at which the curves part.

Dropout, data, weights and kernels act on the very first loss. The optimizer and its schedule act only after the first
step, so a first loss that is the same to the last bit acquits all others, and one that differs much acquits them.
Curves that part late were trained alike until then: the schedule, a restart or the data of that step remain.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ezpz.view.compare.kinds_of_settings import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ezpz.view.compare.differences import Difference
    from ezpz.view.compare.divergence import Divergence
    from ezpz.view.compare.step_differences import Batches

_TRAINED = (Kind.OPTIMIZER, Kind.SCHEDULE)
_COMPUTED = (Kind.DATA, Kind.MODULE, Kind.DTYPE, Kind.ATTENTION, Kind.BATCH, Kind.WORLD, Kind.NUMERICS)
_LEFT = (Kind.LENGTH, Kind.OTHER)
_NEAR = 3  # steps between a change and the loss that shows it
_SLOW = 10  # steps until a change of the learning rate shows above noise
_OTHER_BATCHES, _SAME_BATCHES = 0.5, 0.9  # correlation from step to step


@dataclass(frozen=True)
class Cause:
    """What explains a divergence.

    Attributes:
        kind: Kind of the settings that explain it; None when nothing recorded does.
        likely: Those settings.
        note: What else points there, or what to look at, in words.
        step: The step at which it begins, where that is known.
        where: The ranks of which the data differs, as `` of rank 1``; empty for all.
    """

    kind: Kind | None
    likely: list[Difference] = field(default_factory=list)
    note: str = ""
    step: int | None = None
    where: str = ""


@dataclass(frozen=True)
class Clues:
    """What is known besides differences.

    Attributes:
        restarts: (letter, step) of every restart of either run.
        is_random: Whether both runs have the same layers that draw random numbers.
        step_noise: Tolerance of the log ratio at one step.
        batches: Whether both have trained on the same batches; None where that is not known.
    """

    restarts: Sequence[tuple[str, int]]
    is_random: bool
    step_noise: float
    batches: Batches | None = None


def find_cause(differences: Sequence[Difference], apart: Divergence, clues: Clues) -> Cause:
    """Return what explains that two curves part.

    Args:
        differences: What the runs have set differently; the likeliest first.
        apart: How their curves part; ``numerics`` is not None.
        clues: What else is known.
    """
    is_exact = apart.first_different is not None and apart.first_different > apart.first
    changed = _changed(differences, apart)
    data = _other_data(apart, clues)
    if changed and not (data and data.step is not None and data.step < (changed.step or 0)):
        return changed
    if data and not (data.step == apart.first and _first(differences, (Kind.STOCHASTIC, Kind.MODEL, Kind.SEED))):
        return data
    if clues.batches is not None and clues.batches.same_at(apart.numerics or 0):
        differences = [item for item in differences if item.kind is not Kind.DATA]
    if apart.how == "start" and not is_exact:
        return _from_the_start(differences, apart, clues)
    if apart.how == "start":
        return (
            _first(differences, _TRAINED)
            or _first(differences, (Kind.STOCHASTIC, *_LEFT))
            or _unexplained(apart, clues)
        )
    if apart.how == "jump":
        return _at_a_step(differences, apart, clues)
    kinds = _TRAINED if is_exact else (Kind.STOCHASTIC, Kind.MODEL, *_TRAINED, Kind.SEED, *_COMPUTED)
    return _first(differences, kinds) or _first(differences, _LEFT) or Cause(None)


def _changed(differences: Sequence[Difference], apart: Divergence) -> Cause | None:
    """Return a setting that was changed where curves part."""
    near = [item for item in differences if item.step is not None and _parts_at(item.step, apart)]
    if not near:
        return None
    begin = min(item.step for item in near if item.step is not None)
    first = next(item for item in near if item.step == begin)
    rest = [item for item in differences if item.kind is first.kind is Kind.SCHEDULE and item.step is None]
    return Cause(first.kind, [*(item for item in near if item.kind is first.kind), *rest])


def _parts_at(step: int, apart: Divergence) -> bool:
    """Tell whether curves part because of a step: a sudden change shows then, or they were equal to the bit before."""
    part = apart.first_different
    if part is not None and part > apart.first and 0 <= part - step <= _NEAR:
        return True
    return apart.how == "jump" and -_NEAR <= (apart.numerics or 0) - step <= _SLOW


def _other_data(apart: Divergence, clues: Clues) -> Cause | None:
    """Return the data as the cause, where checksums say that it is other data from where curves part."""
    batches, step = clues.batches, apart.numerics or 0
    if batches is not None and batches.other_between is not None:
        same, other = batches.other_between
        begins = apart.first_different if (apart.first_different or 0) > same else step
        if not same < (begins or 0) <= other + _NEAR:  # rank 0's own loss shows it a step later
            return None
        ranks = ", ".join(map(str, batches.other_ranks[:4])) + (", …" if len(batches.other_ranks) > 4 else "")
        where = f" of rank{'s' * (len(batches.other_ranks) > 1)} {ranks}"
        return Cause(Kind.DATA, note=batches.text, step=other if other == same + 1 else None, where=where)
    if batches is None or batches.other_from is None:
        return None
    if not _parts_at(batches.other_from, apart) and not -_NEAR <= step - batches.other_from <= _SLOW:
        return None
    again = [f"{letter} was started again at step {at}" for letter, at in clues.restarts if abs(at - step) <= _NEAR]
    return Cause(Kind.DATA, note="; ".join([*again, batches.text]), step=batches.other_from)


def _from_the_start(differences: Sequence[Difference], apart: Divergence, clues: Clues) -> Cause:
    cause = _first(differences, (Kind.STOCHASTIC, Kind.MODEL))
    if cause:
        return cause
    # Other weights are seen in the first loss. Weights that were only rounded are not, and also have another checksum.
    far = apart.at_start > clues.step_noise
    later = (Kind.DTYPE, *_TRAINED)
    cause = None if far else _first([item for item in differences if item.material], later)
    cause = (
        cause or _seed(differences, apart) or _first(differences, (*_COMPUTED, *_TRAINED)) or _first(differences, _LEFT)
    )
    return cause or _unexplained(apart, clues)


def _unexplained(apart: Divergence, clues: Clues) -> Cause:
    """Return what is left where nothing is set differently: the data, unless both curves go up and down together."""
    if clues.batches is not None and clues.batches.same_at(apart.numerics or 0):
        what = "the random numbers of stochastic layers, or the code" if clues.is_random else "the code"
        return Cause(None, note=f"both have the same batches: look at {what}")
    others = clues.batches is not None and clues.batches.other_ranks
    if apart.shared is not None and apart.shared > _SAME_BATCHES and not others:
        what = "the random numbers of stochastic layers, or the code" if clues.is_random else "the code"
        return Cause(None, note=f"both seem to see the same batches (correlation {apart.shared:.2f}): look at {what}")
    return Cause(Kind.DATA, note=_batches(apart))


def _seed(differences: Sequence[Difference], apart: Divergence) -> Cause | None:
    likely = [item for item in differences if item.kind is Kind.SEED or item.key == "model.checksum"]
    likely = [item for item in likely if item.change == "changed"]
    if not likely:
        return None
    weights = any(item.key == "model.checksum" for item in likely)
    what = ["the initial weights differ"] if weights else []
    return Cause(Kind.SEED, likely, "; ".join([*what, _batches(apart)]).strip("; "))


def _at_a_step(differences: Sequence[Difference], apart: Divergence, clues: Clues) -> Cause:
    step = apart.numerics or 0
    again = [f"{letter} was started again at step {at}" for letter, at in clues.restarts if abs(at - step) <= _NEAR]
    is_same = clues.batches is not None and clues.batches.same_at(step)
    if apart.shared is not None and apart.shared < _OTHER_BATCHES and not is_same:
        return Cause(Kind.DATA, note="; ".join([*again, _batches(apart)]))
    if again:
        return Cause(None, note="; ".join(again))
    return _first(differences, (Kind.SCHEDULE, Kind.OPTIMIZER, Kind.LENGTH)) or Cause(None)


def _batches(apart: Divergence) -> str:
    if apart.shared is None:
        return ""
    if apart.shared < _OTHER_BATCHES:
        return f"the curves do not go up and down together (correlation {apart.shared:.2f}), so batches differ"
    return ""


def _first(differences: Iterable[Difference], kinds: Sequence[Kind]) -> Cause | None:
    """Return the first of ``kinds`` of which something differs, with all of it."""
    items = [item for item in differences if item.group in {"effective values", "recorded", "configuration"}]
    for kind in kinds:
        likely = [item for item in items if item.kind is kind and _can_act(item)]
        if likely:
            return Cause(kind, likely)
    return None


def _can_act(item: Difference) -> bool:
    """Tell whether a difference changes anything: of an effective value of these kinds it does if it is material."""
    decisive = {Kind.STOCHASTIC, Kind.MODEL, Kind.DTYPE, *_TRAINED}
    return item.material or item.section != "effective" or item.kind not in decisive
