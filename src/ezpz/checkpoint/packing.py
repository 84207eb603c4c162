"""Plain values as tensors of bytes, so that a checkpoint consists of tensors alone.

torch.distributed.checkpoint would pickle a value that is no tensor, and unpickle it without looking. Here
``torch.load`` with ``weights_only=True`` reads it, which makes tensors, numbers, texts and containers of them, and
nothing that could run.
"""

from __future__ import annotations

import io
import pickle
from hashlib import blake2b
from typing import Any

import torch

from ezpz.errors import EzpzError, UsageError

__all__ = ["NOT_PLAIN", "NotPlainError", "digest_of", "pack", "unpack"]

NOT_PLAIN = "holds something else than tensors and plain values: it is damaged, or ezpz has not written it"
_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device)


class NotPlainError(EzpzError):
    """A packed value could run something, or is damaged; torch's own words advise to load it unsafely.

    Attributes:
        path: Where it is in the checkpoint.
    """

    def __init__(self, path: tuple[str, ...]) -> None:
        super().__init__(f"{'/'.join(path)} {NOT_PLAIN}")
        self.path = path


def pack(value: object, what: str) -> torch.Tensor:
    """Return a value as a tensor of bytes.

    Args:
        value: Tensors, numbers, texts and containers of them.
        what: What it is, for the error.

    Raises:
        UsageError: It holds something else, which could not be read again.
    """
    stream = io.BytesIO()
    reason = _foreign_in(value, "")
    if not reason:
        try:
            torch.save(value, stream)
            stream.seek(0)
            torch.load(stream, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            named = str(error).partition(" GLOBAL ")[2].split()
            reason = f"it holds a {named[0]}" if named else "it cannot be read back"
        except (pickle.PicklingError, TypeError, AttributeError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
    if reason:
        raise UsageError(
            f"cannot save {what}: {reason} (from its state_dict()); expected whole tensors, numbers, texts and "
            "containers of them."
        )
    return torch.frombuffer(bytearray(stream.getvalue()), dtype=torch.uint8)


def _foreign_in(value: object, place: str) -> str:
    """Say where the first value is that is no plain one; "" if there is none."""
    if isinstance(value, dict):
        parts = [(each, f"{place}[{key!r}]") for key, each in value.items()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = [(each, f"{place}[{number}]") for number, each in enumerate(value)]
    elif value is None or isinstance(value, _PLAIN) or type(value) in {torch.Tensor, torch.nn.Parameter}:
        return ""
    else:  # a sharded tensor is one of these: every rank has another part, and another world other parts
        return f"a {type(value).__name__} at {place or 'the top'}"
    return next(filter(None, (_foreign_in(each, where) for each, where in parts)), "")


def unpack(tensor: torch.Tensor, *path: str) -> Any:
    """Return the value of `pack`; its tensors are on the CPU.

    Args:
        tensor: What `pack` has returned.
        path: Where it is in the checkpoint, for the error.

    Raises:
        NotPlainError: It is something else.
    """
    try:
        return torch.load(io.BytesIO(tensor.numpy().tobytes()), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise NotPlainError(path) from None


def digest_of(tensor: torch.Tensor) -> str:
    """Return a short name for the content of a tensor of bytes."""
    return blake2b(tensor.numpy().tobytes(), digest_size=16).hexdigest()
