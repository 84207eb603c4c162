"""Run a model's own initialisation without memory, and record what it does to each parameter.

    nn.init.normal_(weight, std=0.02)     layers.0.wq.weight: normal_(0, 0.02) on all of it
    weight[0].zero_()                     tok_embeddings.weight: and zero_() on elements 0 to 4,095

What is recorded is a list of writes, which `ezpz.dist.block_draws` repeats for any part of the parameter. So no rank
needs the whole of it. Only operations are known that treat every number by itself; where a model does anything else,
such as an orthogonal matrix, `Recording.problem` says so, and the model is initialised whole on one rank.
"""

from __future__ import annotations

from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.dist.dense_init import all_names, initialize_copy, named_tensors, plain_name, structure_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch
    from torch import nn

# Operations in place, as torch's dispatcher spells them, without "aten.". What they set does not depend on what was
# there before.
_DRAWS = {"normal_.default", "uniform_.default", "exponential_.default", "cauchy_.default", "log_normal_.default"}
_DRAWS |= {"geometric_.default", "bernoulli_.float", "random_.default", "random_.to", "random_.from"}
_SETS = {"zero_.default", "fill_.Scalar", "fill_.Tensor"}
# What changes every number by itself, with numbers that are the same for all of them.
_CHANGES = {f"{name}_.{kind}" for name in ("add", "sub", "mul", "div") for kind in ("Scalar", "Tensor")}
_CHANGES |= {f"{name}_.default" for name in ("clamp", "clamp_min", "clamp_max", "erfinv", "neg", "abs", "exp", "log")}
_CHANGES |= {f"{name}_.default" for name in ("sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid", "logical_not")}
_CHANGES |= {"pow_.Scalar"}
_EMPTY = {"empty.memory_format", "empty_like.default", "empty_strided.default", "new_empty.default"}
_FACTORIES = {"randn.default": "normal_", "rand.default": "uniform_"}
_MOST_COPIED = 2**28  # bytes of tables that an initialisation computes; more belongs on one rank only


class Write(NamedTuple):
    """One operation on a run of a parameter's elements.

    Attributes:
        name: Of the operation.
        apply: Called with the elements, the arguments and the keywords.
        draws: Needs a generator.
        sets: Does not depend on what was there before.
        start: First element, counted row by row.
        stop: End of the run.
        dtype: Of the elements when they were written.
        arguments: Behind the elements.
        keywords: Without the generator.
        value: What is copied there, flat; None for all other operations.
    """

    name: str
    apply: Callable[..., Any] | None
    draws: bool
    sets: bool
    start: int
    stop: int
    dtype: torch.dtype
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}  # noqa: RUF012  # never written to
    value: torch.Tensor | None = None


class Recording(NamedTuple):
    """What an initialisation does.

    Attributes:
        writes: For each wanted parameter and buffer.
        seeds: The name that its random numbers are drawn for: its own, or that of what it shares its memory with.
        problem: Why it cannot be repeated in parts; "" if it can.
    """

    writes: dict[str, list[Write]]
    seeds: dict[str, str]
    problem: str

    def digest(self) -> bytes:
        """Return 16 bytes that are equal where the same is written; of copied tables the size counts."""
        words = [
            (name, self.seeds[name], each.name, each.start, each.stop, str(each.dtype), each.arguments, each.keywords)
            for name, writes in self.writes.items()
            for each in writes
        ]
        return blake2b(repr((self.problem, words)).encode(), digest_size=16).digest()


def record(
    model: nn.Module,
    wanted: Sequence[str],
    initialize: Callable[[nn.Module], object] | None = None,
    build: Callable[[], nn.Module] | None = None,
) -> Recording:
    """Return what initialises the wanted parameters and buffers; torch's generator stays as it is.

    Args:
        model: The model, sharded or not, its wanted tensors without memory.
        wanted: Names as of `named_tensors`.
        initialize: As of `dense_values`.
        build: As of `dense_values`.
    """
    import torch

    before = torch.get_rng_state()
    recorder = _Recorder()
    try:
        with torch.device("cpu"), torch.no_grad(), recorder.watching(), recorder.truncated_normals(), _pretence():
            if build is not None:
                made = build()
            else:
                made = structure_of(model, _without_memory)
                initialize_copy(made, initialize, recorder.is_unset, recorder.unchanged)
        return _found(model, wanted, made, recorder)
    # Whatever a model's own code raises because its tensors have no memory, it may not raise where they have.
    except Exception as error:  # noqa: BLE001  # the dense way follows, and raises what is the model's own fault
        text = str(error).strip().partition("\n")[0]
        return Recording(
            {}, {}, (text if isinstance(error, _TooMuchError) else f"{type(error).__name__}: {text}")[:200]
        )
    finally:
        torch.set_rng_state(before)


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _found(model: nn.Module, wanted: Sequence[str], made: nn.Module, recorder: _Recorder) -> Recording:
    """Look up what was written to each wanted tensor, by the memory that it has in the end."""
    expected = named_tensors(model)
    values = {plain_name(name): tensor for name, tensor in all_names(made)}
    writes: dict[str, list[Write]] = {}
    seeds: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, tensor in values.items():
        first.setdefault(_memory(tensor), name)
    for name in wanted:
        value = values.get(plain_name(name))
        if value is None or value.shape != expected[name].shape:
            return Recording({}, {}, f"{name} has another shape afterwards")
        if value.is_meta:
            problem = recorder.problem_of(value)
            if problem:
                return Recording({}, {}, f"{name} {problem}")
            writes[name] = recorder.writes_of(value)
        else:
            writes[name] = [recorder.copy_of(value, 0)]
        seeds[name] = first[_memory(value)]
    return Recording(writes, seeds, recorder.problem)


def _memory(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata  # noqa: SLF001  # what has no memory has no data_ptr()
    return address


def _pretence() -> Any:
    """Return a block in which tensors without memory say that they are on the CPU.

    Models skip their initialisation for tensors that say the truth, as they do where these get values later.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    answers = {torch.Tensor.is_meta.__get__: False, torch.Tensor.is_cpu.__get__: True}
    answers[torch.Tensor.device.__get__] = torch.device("cpu")

    class Pretence(TorchFunctionMode):  # type: ignore[misc]  # torch is Any to the type check
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:  # torch's protocol
            return answers[func] if func in answers else func(*args, **(kwargs or {}))

    return Pretence()


def _truth() -> Any:
    """Return a block in which tensors say where they are."""
    import torch

    return torch._C.DisableTorchFunction()  # noqa: SLF001  # torch's own modes use it so


class _TooMuchError(Exception):
    """There is too much to hold on every rank."""


class _Recorder:
    """Sees every operation; new tensors get no memory, so that whole models can be built under it."""

    def __init__(self) -> None:
        self.problem = ""
        self._writes: dict[int, list[Write]] = {}
        self._odd: dict[int, str] = {}
        self._copied = 0  # bytes
        self._alive: list[Any] = []  # else a new tensor could get the place of one that is gone

    def watching(self) -> Any:
        """Return the block in which it sees them."""
        from torch.utils._python_dispatch import TorchDispatchMode

        seen = self._seen

        class Watching(TorchDispatchMode):  # type: ignore[misc]  # torch is Any to the type check
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:  # torch's protocol
                with _truth():
                    return seen(func, args, dict(kwargs or {}))

        return Watching()

    def _seen(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        import torch

        name = str(func).removeprefix("aten.")
        if name in _FACTORIES and not kwargs.get("generator"):
            return self._drawn(_FACTORIES[name], args, kwargs)
        if name in _EMPTY:
            kwargs |= {"device": torch.device("meta"), "pin_memory": False}
        written = _written(func, args, kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags and not any(each.is_meta for each in written):
            self.problem = self.problem or f"random numbers are drawn into no parameter ({name})"
        for tensor in written:
            if tensor.is_meta:
                self._write(name, func, tensor, args, kwargs, alone=len(written) == 1 and tensor is args[0])
        return func(*args, **kwargs)

    def _drawn(self, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        import torch

        out = torch.empty(*args, dtype=kwargs.get("dtype"), device="meta")
        self._add(out, f"{name}.default", getattr(torch.ops.aten, name).default, (), {})
        return out

    def _write(self, name: str, func: Any, tensor: Any, args: Any, kwargs: dict[str, Any], *, alone: bool) -> None:
        """Note an operation that changes a tensor without memory."""
        import torch

        rest = tuple(_number(each) for each in args[1:])
        more = {key: _number(each) for key, each in kwargs.items()}
        generator = more.pop("generator", None)
        known = alone and generator is None and tensor.is_contiguous()
        plain = all(_is_plain(each) for each in (*rest, *more.values()))
        if known and name == "copy_.default" and isinstance(args[1], torch.Tensor) and not args[1].is_meta:
            self._append(tensor, self.copy_of(args[1].to(tensor.dtype).expand(tensor.shape), tensor.storage_offset()))
        elif known and plain and name in _DRAWS | _SETS | _CHANGES:
            self._add(tensor, name, func, rest, more)
        else:
            self._odd.setdefault(_memory(tensor), f"is set by {name}")
            self._alive.append(tensor)

    def _add(self, tensor: Any, name: str, apply: Any, rest: tuple[Any, ...], more: dict[str, Any]) -> None:
        start = tensor.storage_offset()
        draws, sets = name in _DRAWS, name not in _CHANGES
        self._append(
            tensor, Write(name, apply, draws, sets, start, start + tensor.numel(), tensor.dtype, rest, more, None)
        )

    def copy_of(self, value: torch.Tensor, start: int) -> Write:
        """Return what copies these values, as they are now."""
        self._copied += value.numel() * value.element_size()
        if self._copied > _MOST_COPIED:
            raise _TooMuchError(f"it computes tables of more than {_MOST_COPIED >> 20} MiB")
        flat = value.detach().reshape(-1).clone()
        where = start, start + flat.numel(), value.dtype
        return Write("copy_", None, False, True, *where, (tuple(value.shape),), {}, flat)

    def _append(self, tensor: Any, write: Write) -> None:
        self._writes.setdefault(_memory(tensor), []).append(write)
        self._alive.append(tensor)

    @contextmanager
    def truncated_normals(self) -> Iterator[None]:
        """Record torch's truncated normals as one operation: they draw until all numbers fit, and so cannot be seen."""
        import torch

        init = torch.nn.init
        own = getattr(init, "_no_grad_trunc_normal_", None)
        if own is None:
            yield
            return

        def note(tensor: Any, *numbers: float, generator: Any = None) -> Any:
            with _truth():
                real = not tensor.is_meta
            if real:
                return own(tensor, *numbers, generator=generator)
            if len(numbers) == 5:  # older versions pass the generator by position
                *numbers, generator = numbers  # type: ignore[assignment]
            if generator is None and tensor.is_contiguous():
                start = tensor.storage_offset()
                where = start, start + tensor.numel(), tensor.dtype
                self._append(tensor, Write("trunc_normal_", own, True, True, *where, tuple(numbers), {}, None))
            else:
                self._odd.setdefault(_memory(tensor), "is set by trunc_normal_")
                self._alive.append(tensor)
            return tensor

        init._no_grad_trunc_normal_ = note  # what models have imported from there calls it by this name
        try:
            yield
        finally:
            init._no_grad_trunc_normal_ = own

    @contextmanager
    def unchanged(self, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        """Forget what happens to these tensors inside the block."""
        lengths = {_memory(each): len(self._writes.get(_memory(each), ())) for each in tensors}
        yield
        for memory, length in lengths.items():
            if memory in self._writes:
                del self._writes[memory][length:]

    def is_unset(self, tensor: torch.Tensor) -> bool:
        """Tell whether a part of the tensor has no value so far."""
        with _truth():
            return bool(tensor.is_meta) and bool(self.problem_of(tensor))

    def problem_of(self, tensor: torch.Tensor) -> str:
        """Return why this tensor's values cannot be repeated in parts; "" if they can."""
        memory = _memory(tensor)
        if memory in self._odd:
            return self._odd[memory]
        if not tensor.is_contiguous() or tensor.storage_offset():
            return "is a part of another tensor, or lies in another order"
        writes = self._writes.get(memory, [])
        if any(each.dtype != tensor.dtype for each in writes):
            return "is set in another number format"
        ends = 0
        for start, stop in sorted((each.start, each.stop) for each in writes if each.sets):
            if start > ends:
                break
            ends = max(ends, stop)
        if ends < tensor.numel():
            return "is not set by operations on each of its numbers"
        unset = 0  # what reads must come behind what has set it
        for each in writes:
            unset = max(unset, each.stop) if each.sets and each.start <= unset else unset
            if not each.sets and each.stop > unset:
                return f"is changed by {each.name} before it is set"
        return ""

    def writes_of(self, tensor: torch.Tensor) -> list[Write]:
        """Return what is written to the tensor, without what is written over as a whole."""
        writes = self._writes.get(_memory(tensor), [])
        whole = [
            number
            for number, each in enumerate(writes)
            if each.sets and each.start == 0 and each.stop == tensor.numel()
        ]
        return writes[whole[-1] :] if whole else list(writes)


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """Return the tensors that an operation changes."""
    import torch

    if not func._schema.is_mutable:  # noqa: SLF001  # the name under which torch hands it to such modes
        return []
    found: list[Any] = []
    for number, argument in enumerate(func._schema.arguments):  # noqa: SLF001
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            found += value if isinstance(value, (list, tuple)) else [value]
    return [each for each in found if isinstance(each, torch.Tensor)]


def _number(value: Any) -> Any:
    import torch

    is_number = isinstance(value, torch.Tensor) and not value.is_meta and value.dim() == 0
    return value.item() if is_number else value


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, complex))
