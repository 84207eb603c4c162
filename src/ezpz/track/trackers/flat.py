"""A nested configuration as pairs of a dotted name and a value, for places that know no nesting."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["flatten"]


def flatten(config: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """Return ``[("model.width", 64)]`` for ``{"model": {"width": 64}}``, in the order of the configuration."""
    pairs: list[tuple[str, object]] = []
    for key, value in config.items():
        pairs += flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return pairs
