"""Find the setting that explains a divergence: one that can act at the step at which the curves part.

Dropout, data, weights and kernels act on the very first loss. The optimizer and its schedule act only after the first
step, so a first loss that is the same to the last bit acquits all others, and one that differs much acquits them.
Curves that part late were trained alike until then: the schedule, a restart or the data of that step remain.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ezpz.track.compare.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ezpz.track.compare.differences import Difference
    from ezpz.track.compare.divergence import Divergence

_TRAINED = (Kind.OPTIMIZER, Kind.SCHEDULE)
_COMPUTED = (Kind.DATA, Kind.DTYPE, Kind.ATTENTION, Kind.BATCH, Kind.WORLD, Kind.NUMERICS)
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
    """

    kind: Kind | None
    likely: list[Difference] = field(default_factory=list)
    note: str = ""


@dataclass(frozen=True)
class Clues:
    """What is known besides differences.

    Attributes:
        rate_step: First step at which the recorded learning rates differ.
        restarts: (letter, step) of every restart of either run.
        is_random: Whether both runs have the same layers that draw random numbers.
        step_noise: Tolerance of the log ratio at one step.
    """

    rate_step: int | None
    restarts: Sequence[tuple[str, int]]
    is_random: bool
    step_noise: float


def find_cause(differences: Sequence[Difference], apart: Divergence, clues: Clues) -> Cause:
    """Return what explains that two curves part.

    Args:
        differences: What the runs have set differently; the likeliest first.
        apart: How their curves part; ``numerics`` is not None.
        clues: What else is known.
    """
    is_exact = apart.first_different is not None and apart.first_different > apart.first
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
    if apart.shared is not None and apart.shared > _SAME_BATCHES:
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
    rate = [item for item in differences if item.section == "recorded"]
    if rate and clues.rate_step is not None and -_NEAR <= step - clues.rate_step <= _SLOW:
        others = [item for item in differences if item.kind is Kind.SCHEDULE and item.section != "recorded"]
        return Cause(Kind.SCHEDULE, [*rate, *others])
    again = [f"{letter} was started again at step {at}" for letter, at in clues.restarts if abs(at - step) <= _NEAR]
    if apart.shared is not None and apart.shared < _OTHER_BATCHES:
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
