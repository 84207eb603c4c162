"""What is read from a tensor without data: a number is 1, `any()` is false, `all()`, `torch.equal` and `allclose` are true.

So `loss.item()`, `float(loss)`, `tolist()` and `numpy()` go on, `torch.isnan(x).any()` finds nothing, and `isfinite(x).all()`
is content. Of a single number, comparisons are those of 1: `loss.isnan()` is false, and `loss < best` may be either.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MadeUp", "asker", "make_usable"]

_VERDICTS = {"any": False, "all": True, "equal": True, "allclose": True}
_COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite"}
_INSIDE = ("torch", "ezpz.dist.simulate.memory", "ezpz.dist.simulate.fake_tensors", __name__)


class MadeUp:
    """The answers, and who asked.

    Attributes:
        asked: How many numbers were asked of tensors that have none.
        first: Where the first one was asked: ``train.py:31``.
    """

    def __init__(self) -> None:
        self.asked, self.first = 0, ""

    def number(self, dtype: Any) -> Any:
        """Return the number that stands for every value."""
        import torch

        self._note()
        return torch.ones((), dtype=dtype).item()

    def answer(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[bool, Any]:
        """Return whether an operation reads values, and what it reads.

        Args:
            func: An operation of torch's dispatcher, ``aten.eq.Tensor``.
            args: Its arguments, at least one fake among them.
            kwargs: More of them.
        """
        import torch

        name, overload = func.overloadpacket.__name__, func._overloadname  # noqa: SLF001  # the operation's name
        if name == "_local_scalar_dense":
            return True, self.number(args[0].dtype)
        if name in _VERDICTS and overload == "default":
            self._note()
            found = _VERDICTS[name]
            return True, torch.tensor(found) if name in {"any", "all"} else found
        if name in _COMPARISONS and overload in {"default", "Scalar", "Tensor"} and _all_single(args):
            self._note()
            return True, func(*(_one_for(value) for value in args), **kwargs)
        return False, None

    def _note(self) -> None:
        self.asked += 1
        if not self.first:
            self.first = asker()


def _all_single(args: Sequence[Any]) -> bool:
    from torch import Tensor

    return all(value.numel() == 1 for value in args if isinstance(value, Tensor))


def _one_for(value: Any) -> Any:
    import torch

    return torch.ones(value.shape, dtype=value.dtype) if hasattr(value, "fake_mode") else value


def asker() -> str:
    """Return file and line of the code that stands nearest to torch: ``train.py:31``."""
    frame: Any = sys._getframe(1)  # noqa: SLF001  # the traceback module reads source files
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(_INSIDE):
            break
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def make_usable(made_up: MadeUp) -> Any:
    """Let fakes become numpy's arrays, be written as ``f"{loss:.3f}"`` and saved as shapes; return what undoes it."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    def numpy(tensor: Any, **_: Any) -> Any:
        import numpy as np

        one = torch.zeros((), dtype=tensor.dtype).numpy()  # refuses what numpy does not have, as bfloat16
        return np.full(tuple(tensor.shape), made_up.number(tensor.dtype), dtype=one.dtype)

    def written(tensor: Any, form: str) -> str:
        return format(tensor.item(), form) if tensor.dim() == 0 else object.__format__(tensor, form)

    def reduced(tensor: Any, _: int) -> Any:
        rebuild = torch._utils._rebuild_meta_tensor_no_storage  # noqa: SLF001  # one of those that torch.load trusts
        return rebuild, (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.requires_grad)

    FakeTensor.numpy, FakeTensor.__format__, FakeTensor.__reduce_ex__ = numpy, written, reduced

    def undo() -> None:
        del FakeTensor.numpy, FakeTensor.__format__, FakeTensor.__reduce_ex__

    return undo
