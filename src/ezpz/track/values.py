"""Convert metrics: from any library's numbers to plain Python values, to JSON and one line, and back.

JSON has no NaN or infinity, so these travel as the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``. A string
metric that would read like one of them, or like its own escape, gets ``str:`` in front; nothing else is changed:

    {"loss": nan, "note": "NaN", "tag": "str:x"}  ->  {"loss": "NaN", "note": "str:NaN", "tag": "str:str:x"}
    {"grad": Histogram([3, 1], [0.0, 0.5, 1.0])}  ->  {"grad": {"counts": [3, 1], "edges": [0.0, 0.5, 1.0]}}
"""

from __future__ import annotations

import math

from ezpz.errors import TrackError
from ezpz.track.distribution import Histogram, as_histogram

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeAlias

__all__ = ["LONGEST_ARRAY", "Histogram", "Scalar", "Value", "check_key", "decode", "encode", "line", "plain"]

Scalar: TypeAlias = "bool | int | float | str"
Value: TypeAlias = "Scalar | list[Scalar] | Histogram"

LONGEST_ARRAY = 1024  # a row is one line that people read; larger things belong in a checkpoint

SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_ESCAPE = "str:"
_ACCEPTED = (
    f"a bool, int, float or str, a tensor or array with no dimension, a list or 1-D array of at most {LONGEST_ARRAY}, "
    "or a histogram"
)


def plain(metrics: Mapping[str, object], late: dict[str, Any] | None = None) -> dict[str, Value]:
    """Take metrics apart into plain Python values, exactly and in their order.

    Args:
        metrics: Name to value. Tensors and arrays of any library are read through ``ndim``, ``item`` and ``tolist``;
            reading one that lives on a device waits for that device.
        late: Where given, tensors that live on a device are not read but put here as copies, still on their device.

    Returns:
        A new dict of bools, ints, floats, strings, flat lists of these, and histograms.

    Raises:
        TrackError: A value is none of these; the message names key, type and what is accepted.
    """
    values: dict[str, Value] = {}
    for key, value in metrics.items():
        kind = type(value)
        # The three exact types are nearly all that a training loop logs: they pay for one comparison each.
        if kind is float or kind is int or kind is bool:
            values[key] = value  # type: ignore[assignment]  # narrowed by kind, which mypy does not follow
        elif late is not None and is_on_device(value):
            whole: Any = _replicated(key, value) if hasattr(value, "full_tensor") else value
            late[key] = whole.detach().clone()  # a running sum changes in place
        else:
            values[key] = _plain(key, value)
    return values


def is_on_device(value: object) -> bool:
    """Tell whether ``value`` is a tensor small enough to be recorded whose reading would wait for an accelerator."""
    kind = getattr(getattr(value, "device", None), "type", "cpu")
    if kind in {"cpu", "meta"} or not hasattr(value, "detach"):
        return False
    shape: Any = getattr(value, "shape", ())
    return len(shape) == 0 or (len(shape) == 1 and shape[0] <= LONGEST_ARRAY)


def _plain(key: str, value: object) -> Value:
    try:
        if hasattr(value, "full_tensor"):
            value = _replicated(key, value)
        if hasattr(value, "mask") and hasattr(value, "filled"):
            value = _unmasked(value)
        counted = as_histogram(value)
        if counted is not None:
            return counted
        scalar = _scalar(value)
        if scalar is not None:
            return scalar
        if getattr(value, "ndim", None) == 1 and value.shape[0] <= LONGEST_ARRAY:  # type: ignore[attr-defined]  # an array, by duck typing
            value = value.tolist()  # type: ignore[attr-defined]  # as above
    except (RuntimeError, TypeError, ValueError) as error:  # what libraries raise for values that have no number yet
        raise _unknown(key, value, f" ({error})") from error
    if isinstance(value, (list, tuple)) and len(value) <= LONGEST_ARRAY:
        items = [_scalar(item) for item in value]
        if None not in items:
            return [item for item in items if item is not None]
    raise _unknown(key, value)


def _unmasked(array: Any) -> Any:
    """Return numpy's masked array, or its constant `masked`, with NaN for what is masked: what is below is no value."""
    import numpy as np

    if not np.ma.is_masked(array):
        return array.data
    known = array.astype(object) if array.dtype.kind in "iub" else array  # ints stay exact beside NaN
    return known.filled(math.nan).tolist()


def _replicated(key: str, value: Any) -> object:
    """Return this rank's copy of a DTensor that is whole on every rank; others would need a collective to be read."""
    if all(placement.is_replicate() for placement in value.placements):
        return value.to_local()
    raise TrackError(
        f"cannot record metric {key!r}: a DTensor placed {value.placements} (from History.update); expected one that "
        "every rank holds whole, because update is no collective. Pass value.full_tensor(), called on all ranks."
    )


def _scalar(value: object) -> Scalar | None:
    """Return ``value`` as one of the four plain types, or None if it is something else."""
    if getattr(value, "ndim", None) == 0:
        item = getattr(value, "item", None)
        value = item() if item else value
    for kind in (bool, int, float, str):  # bool is an int, so it comes first; subclasses (np.float64) become plain
        if isinstance(value, kind):
            return kind(value)
    return None


def _unknown(key: str, value: object, detail: str = "") -> TrackError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    shape = getattr(value, "shape", None)
    size = f" of shape {tuple(shape)}" if shape else f" of {len(value)}" if isinstance(value, (list, tuple)) else ""
    return TrackError(
        f"cannot record metric {key!r}: {kind}{size} (from History.update){detail}; expected {_ACCEPTED}. "
        f"Pass a number computed from it, such as its mean."
    )


def check_key(key: object) -> None:
    """Refuse a metric's name that no file format can carry.

    Raises:
        TrackError: The name is not a string, or is empty, ``"."``, padded with blanks or not printable.
    """
    if not isinstance(key, str) or not key.isprintable() or key.strip() != key or key in {"", "."}:
        raise TrackError(
            f"cannot record metric {key!r} (from History.update); expected a printable name such as 'train/loss'. "
            f"Rename it."
        )


def encode(value: Value) -> object:
    """Return what represents ``value`` in JSON; see the top of this module."""
    if isinstance(value, Histogram):
        return {"counts": value.counts, "edges": value.edges}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, str):
        return _ESCAPE + value if value in SPECIAL or value.startswith(_ESCAPE) else value
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def decode(value: Any) -> Value:
    """Return the value that `encode` was given."""
    if isinstance(value, dict):
        return Histogram(value.get("counts", []), value.get("edges", []))
    if isinstance(value, str):
        return SPECIAL[value] if value in SPECIAL else value.removeprefix(_ESCAPE)
    if isinstance(value, list):
        return [decode(item) for item in value]  # type: ignore[misc]  # lists are flat, so items are scalars
    known: Value = value
    return known


def checked(value: Any) -> Value:
    """Return what `decode` does.

    Raises:
        ValueError: `encode` makes no such value.
    """
    if isinstance(value, dict):
        counts, edges = value.get("counts", ()), value.get("edges", ())
        if not (_are_numbers(counts) and _are_numbers(edges) and len(edges) == len(counts) + 1 > 1):
            raise ValueError("no histogram")
    elif isinstance(value, list):
        if any(isinstance(item, (list, dict)) or item is None for item in value):
            raise ValueError("no flat list")
    elif value is None:
        raise ValueError("no value")
    return decode(value)


def _are_numbers(items: Any) -> bool:
    """Tell whether this is a list of numbers that a float can hold."""
    return isinstance(items, list) and all(
        math.isfinite(item) if type(item) is float else type(item) is int and is_int64(item) for item in items
    )


def is_int64(number: int) -> bool:
    """Tell whether an int has at most 64 bits."""
    return -(2**63) <= number < 2**63


def line(values: Mapping[str, Value]) -> str:
    """Return ``k=v`` pairs joined by blanks: floats with 6 significant digits, all else as it is."""
    return " ".join(
        f"{key}={value:.6g}" if type(value) is float else f"{key}={_text(value)}" for key, value in values.items()
    )


def _text(value: Value) -> str:
    if isinstance(value, Histogram):
        return f"[{len(value.counts)} bins,{value.edges[0]:.6g}..{value.edges[-1]:.6g}]".replace(" ", "_")
    if isinstance(value, list):
        return "[" + ",".join(f"{item:.6g}" if isinstance(item, float) else str(item) for item in value) + "]"
    return str(value)
