"""Compute with tensors without data: shapes and sizes are real, values are made up, so that any model fits and
computing is quick.

torch's fake tensors make it so. Their mode is not simply switched on: all that reads a number (shuffles, meshes,
counters, the agreement of ranks) would read nonsense, and torch itself could not even be asked for the groups of a
mesh. Instead:

    every parameter       is fake, however it was made
    what meets a fake     becomes fake: activations, gradients, the optimizer's state, the loss
    everything else       is real, unless it is new, has 1 MiB or more, and no data is being read

What is read from a fake is 1, see `ezpz.dist.simulate.fake_tensors`.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ezpz.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Sequence


# What is read from a tensor without data: a number is 1, `any()` is false, `all()`, `torch.equal` and `allclose` are
# true.
#
# So `loss.item()`, `float(loss)`, `tolist()` and `numpy()` go on, `torch.isnan(x).any()` finds nothing, and
# `isfinite(x).all()` is content. Of a single number, comparisons are those of 1: `loss.isnan()` is false, and `loss <
# best` may be either.

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
        """Return the number that is taken for every value."""
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
            verdict = _VERDICTS[name]
            return True, torch.tensor(verdict) if name in {"any", "all"} else verdict
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
    """Return file and line of the code that is nearest to torch: ``train.py:31``."""
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


_LARGE = 2**20  # bytes; what is smaller costs nothing, and may be a counter or a flag that somebody reads
# What these make becomes data, whose values shuffle, select and end loops.
_READERS = ("torch.utils.data", "torch.distributed.device_mesh", "ezpz.train.data", "ezpz.train.data.feeding")
# What these make is a parameter, or will be written from fakes; it would stay real, as no operation changes its
# target's class.
_FILLERS = ("torch.nn.", "torch.distributed.fsdp", "torch.distributed.optim")
_BETWEEN = ("torch._", "torch.utils._", "torch.overrides", __name__, "ezpz.dist.simulate.memory")


class Dataless:
    """Lets tensors of this thread be without data from `start` until `stop`.

    Attributes:
        made_up: Which numbers were asked of tensors that have none.
        mode: torch's own mode, whose tensors these are.
    """

    def __init__(self) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode

        self.made_up = MadeUp()
        self.mode: Any = FakeTensorMode(allow_non_fake_inputs=True)
        self._undo: list[Any] = []

    def start(self) -> Dataless:
        """Begin; modes that shall see every operation, as `ezpz.dist.simulate.memory`'s, are entered afterwards."""
        mode = _mode(self)
        mode.__enter__()
        patches = (_fake_parameters(self), _let_fakes_move(self), make_usable(self.made_up))
        self._undo = [lambda: mode.__exit__(None, None, None), *patches]
        return self

    def stop(self) -> None:
        """Let new tensors have data again; those without stay so."""
        while self._undo:
            self._undo.pop(0)()

    def run(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Return what an operation gives, without its values.

        Raises:
            MachineError: The shape of the result depends on values.
        """
        from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

        try:
            with self.mode:
                return _same_object(func, args, func(*args, **kwargs))
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise MachineError(
                f"what {error.func} returns depends on values, and its input has none (from --no-data, in {asker()}); "
                "expected something that is known without them. Simulate a smaller model, with data."
            ) from None


def _mode(dataless: Dataless) -> Any:
    """Return the mode of torch's dispatcher that decides which operations need no data."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._python_dispatch import TorchDispatchMode

    running = torch._C._get_dispatch_mode  # noqa: SLF001  # no public name, as in the next line
    fake_key = torch._C._TorchDispatchModeKey.FAKE  # noqa: SLF001
    answer = dataless.made_up.answer

    class Mode(TorchDispatchMode):  # type: ignore[misc]  # torch is not known to the type check
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if running(fake_key) is not None:  # torch itself is finding out shapes; its mode is below all others
                return func(*args, **kwargs)
            for kind in types:
                if hasattr(kind, "__tensor_flatten__"):  # DTensors take themselves apart first
                    return NotImplemented
            if FakeTensor not in types:
                return _real_or_not(dataless, func, args, kwargs)
            if not _has(args, dataless.mode):  # fakes that torch made for itself
                return func(*args, **kwargs)
            known, value = answer(func, args, kwargs)
            return value if known else dataless.run(func, args, kwargs)

    return Mode()


def _has(values: Sequence[Any], mode: Any) -> bool:
    """Return whether there is a fake of this mode among an operation's arguments."""
    for value in values:
        if isinstance(value, (tuple, list)):
            if _has(value, mode):
                return True
        elif getattr(value, "fake_mode", None) is mode:
            return True
    return False


def _real_or_not(dataless: Dataless, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the result of an operation on real tensors, or on none."""
    from torch import Tensor

    device = str(kwargs.get("device"))
    if not _makes_a_tensor(func):
        was_meta = bool(args) and isinstance(args[0], Tensor) and args[0].is_meta
        gets_memory = was_meta and device not in {"None", "meta"}
        return dataless.run(func, args, kwargs) if gets_memory else func(*args, **kwargs)
    who = "" if device == "meta" else _who()
    if device == "meta" or who == "reader" or func.overloadpacket.__name__ == "randperm":  # always an order of data
        return func(*args, **kwargs)
    fake = dataless.run(func, args, kwargs)
    filled = who == "filler" and fake.is_floating_point()  # DDP reads from whole numbers that it makes
    return fake if filled or fake.untyped_storage().nbytes() >= _LARGE else func(*args, **kwargs)


@cache
def _makes_a_tensor(func: Any) -> bool:
    schema = func._schema  # noqa: SLF001  # torch has no other way to ask
    returns = [str(value.type) for value in schema.returns]
    return returns == ["Tensor"] and not any("Tensor" in str(argument.type) for argument in schema.arguments)


def _same_object(func: Any, args: Sequence[Any], result: Any) -> Any:
    """Return the argument that an operation has changed: for a real one, what comes back is its fake twin."""
    schema = func._schema  # noqa: SLF001  # as above
    if len(schema.returns) != 1 or not schema.is_mutable:
        return result
    for argument, value in zip(schema.arguments, args, strict=False):
        if argument.is_write and str(argument.type) == "Tensor":
            return value
    return result


def _fake_parameters(dataless: Dataless) -> Any:
    """Let every new parameter be fake; return what puts torch's own way back."""
    from torch import Tensor
    from torch.nn import Parameter

    plain = Parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:  # torch's own signature
        if type(data) in {Tensor, Parameter} and not data.is_meta:
            data = dataless.mode.from_tensor(data.detach())
        return plain(cls, data, requires_grad)

    Parameter.__new__ = new

    def undo() -> None:
        Parameter.__new__ = plain

    return undo


def _let_fakes_move(dataless: Dataless) -> Any:
    """Let ``model.to(…)`` exchange fakes, which torch refuses as long as its own table points at them; return what
    undoes it.
    """
    import torch

    plain = torch.utils.swap_tensors

    def swap_tensors(one: Any, other: Any) -> None:
        dataless.mode.fake_tensor_converter.tensor_memo.clear()
        plain(one, other)

    torch.utils.swap_tensors = swap_tensors

    def undo() -> None:
        torch.utils.swap_tensors = plain

    return undo


def _who() -> str:
    """Return "reader" when data is being read, "filler" when what is made next will be written from fakes, else ""."""
    frame: Any = sys._getframe(2)  # noqa: SLF001  # the traceback module reads source files
    nearest = ""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(_READERS):
            return "reader"
        if not nearest and not name.startswith(_BETWEEN):
            nearest = name
        frame = frame.f_back
    return "filler" if nearest.startswith(_FILLERS) else ""
