"""The step and the weight of a row, as callers may give them."""

from __future__ import annotations

import operator
from math import isfinite
from typing import TYPE_CHECKING

from ezpz.errors import TrackError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.track.values import Value

__all__ = ["step_of", "weight_of"]


def step_of(step: int | None, values: Mapping[str, Value], following: int) -> int:
    """Return the step of a row as an int, from its three sources: the argument, a metric called ``step``, the count.

    Raises:
        TrackError: It is no int of 64 bits, or two sources contradict each other.
    """
    named = values.get("step")
    if step is None:
        step = named if type(named) is int else following
    elif type(step) is not int:
        try:
            step = operator.index(step)  # ints of numpy, and tensors with no dimension
        except TypeError as error:
            raise TrackError(
                f"cannot record step {step!r} (from History.update); expected an int. Use for example step=int(...)."
            ) from error
    if named is not None and named != step:
        raise TrackError(
            f"cannot record step {step} (from History.update): the metric 'step' says {named!r}; "
            f"expected the same int in both. Leave one of them out."
        )
    if not -(2**63) <= step < 2**63:
        raise TrackError(f"cannot record step {step} (from History.update); expected an int of 64 bits.")
    return step


def weight_of(weight: object) -> float:
    """Return a weight as a float.

    Raises:
        TrackError: It is no finite number from 0 on.
    """
    try:
        number = float(weight)  # type: ignore[arg-type]  # numbers of any library
    except (TypeError, ValueError):
        number = -1.0
    if not (isfinite(number) and number >= 0):
        raise TrackError(
            f"cannot weigh a row with {weight!r} (from History.update(weight=...)); expected a number from 0 on, such as the "
            "tokens of this rank."
        )
    return number
