"""The state of all generators of random numbers of one rank: torch's on CPU and device, Python's, and numpy's if it is loaded."""

from __future__ import annotations

import random
import sys
from hashlib import blake2b
from typing import Any

import torch

__all__ = ["capture", "derive", "restore"]


def capture(device_type: str) -> dict[str, Any]:
    """Return the state of every generator, in tensors and plain values."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    generator = _of_device(device_type)
    if generator is not None:
        state["device"] = (device_type, generator.get_rng_state())
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        state["numpy"] = (kind, [int(key) for key in keys], *rest)
    return state


def restore(state: dict[str, Any], device_type: str) -> None:
    """Put every generator back to where it was; one that this state does not know is seeded from it (see `derive`)."""
    derive(state, "of a generator that was not there", device_type)
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    kind, device_state = state.get("device", ("", None))
    generator = _of_device(device_type)
    if generator is not None and kind == device_type:
        generator.set_rng_state(device_state)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        numpy.random.set_state(tuple(state["numpy"]))


def derive(state: dict[str, Any], who: object, device_type: str) -> None:
    """Seed every generator with a function of a saved state and of who asks: equal for equal questions, unrelated otherwise.

    The seed is the first 8 bytes of BLAKE2b over "ezpz <who>" and the saved state of torch's CPU generator; numpy takes 4 of them.
    """
    digest = blake2b(f"ezpz {who}".encode() + state["torch"].numpy().tobytes(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little")
    torch.manual_seed(seed)  # all devices of types that torch knows
    generator = _of_device(device_type)
    if generator is not None:
        generator.manual_seed(seed)
    random.seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def _of_device(device_type: str) -> Any:
    """Return torch's module of an accelerator with a generator of its own; None for a CPU."""
    module = None if device_type == "cpu" else getattr(torch, device_type, None)
    return module if hasattr(module, "get_rng_state") and hasattr(module, "set_rng_state") else None
