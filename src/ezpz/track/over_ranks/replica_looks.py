"""Sum up what data-parallel ranks share before some steps, so that ranks that train apart can be told: `watch_steps`.

Before the first four steps of an optimizer, and before every 50th, a rank sums up the bits of a part of its weights, of
their gradients, and of what the model was given. The sums are made on the device and read one look later, when they
have long arrived: no step waits for them. Nothing is a collective: they travel to rank 0 with the row that comes next,
each as a number of 52 bits (`ezpz.track.step_states.packed`), and are compared there (`ezpz.track.replica_findings`).

Parts are whole parameters, at most 20 of about the same size that take turns: each weight is seen within 1,000 steps.
A shard (DTensor) is compared with its replicas alone: its place is a part of the layout, as shapes and types are, and
ranks of another layout are not compared. ``EZPZ_COMPARE_WEIGHTS=0`` leaves all of it out.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary
from zlib import crc32

from ezpz.track.guard import tell
from ezpz.track.step_states import EVERY, GRADIENTS, INPUTS, PRIME, WEIGHTS, WHERE, factor_of, packed_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Arrived", "ReplicaLooks", "watch_steps"]

_FIRST = 4  # steps of a start that are looked at besides
_MOST_PARTS = 20
_ELEMENTS = 1 << 18  # of a part, where there are fewer than 20
_TENSORS = 64  # of a part, likewise
_MOST_OPTIMIZERS = 8  # of a program that has one for each weight the others are not looked at
_MOST_INPUTS = 64  # of a step; where there are more, nothing is known of them
_MOST_ELEMENTS = 1 << 15  # of the gradients of a part, and of an input, which only have to be told from others
_WAITING = 64  # looks that wait for a row
_NAMED, _LONGEST = 64, 120  # names of a part that are recorded, and their characters


class Arrived(NamedTuple):
    """A look whose sums are on the host.

    Attributes:
        row: The step of the row that came after it; None before that.
        numbers: What travels to rank 0, by column.
        part: What was looked at: which optimizer, and which part of its weights.
        parts: How many parts there are.
        names: The names of its weights; empty but for the first look at this part.
    """

    row: int | None
    numbers: Mapping[str, float]
    part: str
    parts: int
    names: Sequence[str]


class _Watched:
    """An optimizer, and where its looks stand."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.steps = self.looks = 0
        self.parts: list[list[Any]] = []
        self.layout = 0
        self.of: tuple[int, ...] = ()  # identities of the parameters that the parts were made of
        self.named: set[int] = set()  # parts whose names were told


class _Pending(NamedTuple):
    """Sums that are on their way to the host.

    Attributes:
        sums: int64 of shape (weights + gradients + inputs,), on the host or on its way there.
        arrival: An event of the device; None where there is none to ask.
        counts: How many of the sums are of weights, gradients and inputs.
        layout: 20 bits of what has to be alike for a comparison.
        place: This rank's place among data-parallel ranks; None where the model's inputs are not known.
        part: Number of the part.
        parts: How many there are.
        row: The one element is the step of the row that followed.
    """

    sums: Any
    arrival: Any
    counts: tuple[int, int, int]
    layout: int
    place: int | None
    part: int
    parts: int
    row: list[int]


class ReplicaLooks:
    """Looks of this rank, from torch's hooks to whoever asks for `ready`.

    Attributes:
        ready: Looks that can be sent, the oldest first.
        fresh: Looks since the last row, which it has to be told of.
    """

    def __init__(self) -> None:
        """Register a hook of torch that is called before each step of any optimizer."""
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self.ready: deque[Arrived] = deque(maxlen=_WAITING)
        self.fresh: list[list[int]] = []
        self._optimizers: WeakKeyDictionary[Any, _Watched] = WeakKeyDictionary()
        self._by_number: WeakValueDictionary[int, _Watched] = WeakValueDictionary()
        self._made = 0
        self._pending: dict[int, _Pending] = {}  # by the optimizer's number: it may be gone when the run ends
        self._roots: WeakSet[Any] = WeakSet()  # models that were called
        self._names_of: dict[int, str] = {}  # identities of their weights, and what they are called there
        self._armed: set[int] = set()  # optimizers before whose next step the model's inputs are wanted
        self._inputs: list[tuple[Any, Any]] = []  # tensors, which nothing else may take the place of, and their sums
        self._entry: Any = None  # handle of the hook that sees the calls of modules, while one is wanted
        self._pid = os.getpid()
        self._hook: Any = register_optimizer_step_pre_hook(self._before_step)

    def end(self, *, wait: bool) -> None:
        """Take the hooks off, and make ready what is on its way.

        Args:
            wait: Wait for the device where that has not arrived.
        """
        self._hook.remove()
        self._disarm()
        if os.getpid() == self._pid:
            for number in list(self._pending):
                self._receive(number, wait=wait)

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        import torch

        if torch.compiler.is_compiling() or os.getpid() != self._pid:
            return
        watched = self._optimizers.get(optimizer)
        if watched is None:
            watched = self._optimizers[optimizer] = self._by_number[self._made] = _Watched(self._made)
            self._made += 1
        steps, watched.steps = watched.steps, watched.steps + 1
        if watched.number < _MOST_OPTIMIZERS and (_is_due(steps) or _is_due(steps + 1)):
            try:
                self._turn(optimizer, watched, steps)
            except Exception as error:  # noqa: BLE001  # a tensor may be of any class; the training goes on
                self._hook.remove()
                self._disarm()
                tell("compare the weights of ranks", error, "; they are not compared from here on.")

    def _turn(self, optimizer: Any, watched: _Watched, steps: int) -> None:
        """Look, where this step is due, and wait for the model's inputs, where the next one is."""
        if _is_due(steps):
            is_known = watched.number in self._armed
            self._armed.discard(watched.number)
            inputs, self._inputs = self._inputs, []
            if not self._armed:
                self._disarm()
            self._receive(watched.number, wait=False)
            found = [total for _, total in inputs] if is_known and len(inputs) <= _MOST_INPUTS else []
            self._look(optimizer, watched, steps, found)
        if _is_due(steps + 1) and not _is_compiled():
            self._armed.add(watched.number)
            if self._entry is None:
                from torch.nn.modules.module import register_module_forward_pre_hook

                self._entry = register_module_forward_pre_hook(self._entering)

    def _disarm(self) -> None:
        self._armed.clear()
        self._inputs = []
        if self._entry is not None:
            self._entry.remove()
            self._entry = None

    def _entering(self, module: Any, args: tuple[Any, ...]) -> None:
        """Sum up what a module is given that no other module has made: the batch, noise, a mask."""
        import torch

        if not module.training or not torch.is_grad_enabled() or os.getpid() != self._pid:
            return  # an evaluation
        if not self._inputs and module not in self._roots:
            self._roots.add(module)
            for name, each in module.named_parameters():
                self._names_of.setdefault(id(each), name)
        for tensor in _tensors_of(args):
            if tensor.requires_grad or len(self._inputs) > _MOST_INPUTS:
                continue
            tensor = _local(tensor)  # noqa: PLW2901  # of a DTensor
            if not any(tensor is known for known, _ in self._inputs) and _is_summable(tensor):
                self._inputs.append((tensor, _bits(tensor, _MOST_ELEMENTS)))

    def _look(self, optimizer: Any, watched: _Watched, steps: int, inputs: list[Any]) -> None:
        import torch

        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        known = tuple(map(id, parameters))
        if known != watched.of:
            watched.of, watched.named = known, set()
            watched.parts, watched.layout = _parts(parameters)
        if not watched.parts:
            return
        part = watched.looks % len(watched.parts)
        watched.looks += 1
        chosen = watched.parts[part]
        home = _local(chosen[0]).device
        is_capturing = getattr(getattr(torch, home.type, None), "is_current_stream_capturing", None)
        if is_capturing is not None and is_capturing():
            return
        weights = [_bits(_local(each)) for each in chosen]
        gradients, held = _gradients(chosen)
        inputs = [each for each in inputs if each.device == home]
        sums = torch.stack([*weights, *gradients, *inputs])
        counts = len(weights), len(gradients), len(inputs)
        layout = crc32(f"{watched.number} {steps} {part} {watched.layout} {len(weights)} {held}".encode()) >> 12
        place = _place() if inputs else None
        pending = _Pending(*_copied(sums), counts, layout, place, part, len(watched.parts), [])
        self._pending[watched.number] = pending
        self.fresh.append(pending.row)
        del self.fresh[:-_WAITING]

    def _receive(self, number: int, *, wait: bool) -> None:
        """Make the last look of an optimizer ready, or forget it where that would take a wait."""
        pending, watched = self._pending.pop(number, None), self._by_number.get(number)
        if pending is None or (pending.arrival is not None and not wait and not pending.arrival.query()):
            return
        if pending.arrival is not None:
            pending.arrival.synchronize()
        sums = pending.sums.tolist()
        names: Sequence[str] = ()
        if watched is not None and pending.part not in watched.named and pending.part < len(watched.parts):
            watched.named.add(pending.part)
            names = self._names(watched, pending.part)
        row = pending.row[0] if pending.row else None
        part = f"{number}.{pending.part}"
        self.ready.append(Arrived(row, dict(_numbers(pending, sums)), part, pending.parts, names))

    def _names(self, watched: _Watched, part: int) -> list[str]:
        """Return what the weights of a part are called in the models that were called, else their places and sizes."""
        place: dict[int, int] = {of: number for number, of in enumerate(watched.of)}
        names = []
        for each in watched.parts[part][:_NAMED]:
            name = self._names_of.get(id(each))
            if name is None:
                name = f"parameter {place[id(each)]} ({' x '.join(map(str, each.shape))})"
            names.append(name.replace("_orig_mod.", "").removeprefix("module.")[:_LONGEST])
        return names


def watch_steps() -> ReplicaLooks | None:
    """Return looks at the steps of this process's optimizers from now on; None without torch, or if switched off."""
    if os.environ.get("EZPZ_COMPARE_WEIGHTS") == "0" or "torch" not in sys.modules:
        return None
    return ReplicaLooks()


def _is_due(steps: int) -> bool:
    return steps % EVERY == 0 or steps < _FIRST


def _is_compiled() -> bool:
    """Tell whether torch has compiled something: it would warn of a hook for all modules, and compile again."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return bool(dynamo is not None and dynamo.counters.get("frames"))


def _parts(parameters: list[Any]) -> tuple[list[list[Any]], int]:
    """Return parameters in parts of about the same size, and a number of all shapes, types and places of shards."""
    layout = crc32(repr([_form(each) for each in parameters]).encode())
    first = next((_local(each).device for each in parameters if _local(each).numel()), None)
    there = [each for each in parameters if _is_summable(_local(each)) and _local(each).device == first]
    total = sum(_local(each).numel() for each in there)
    most = min(_MOST_PARTS, max(-(-total // _ELEMENTS), -(-len(there) // _TENSORS)))
    parts: list[list[Any]] = [[] for _ in range(most)]
    passed = 0
    for each in there:
        size = _local(each).numel()
        parts[(2 * passed + size) * most // (2 * total)].append(each)  # by where its middle lies
        passed += size
    return [part for part in parts if part], layout


def _is_summable(tensor: Any) -> bool:
    return bool(tensor.numel() and not tensor.is_meta and not tensor.is_sparse and not tensor.is_quantized)


def _form(parameter: Any) -> tuple[Any, ...]:
    """Return shape and type of a parameter, and of a shard its place: where other ranks have its replicas."""
    placements = getattr(parameter, "placements", None)
    place: tuple[Any, ...] = ()
    if placements is not None:
        own = parameter.device_mesh.get_coordinate() or ()
        place = tuple((str(how), at) for how, at in zip(placements, own, strict=False) if not how.is_replicate())
    return tuple(_local(parameter).shape), str(parameter.dtype), place


def _local(tensor: Any) -> Any:
    """Return what of a tensor lies on this rank."""
    return getattr(tensor, "_local_tensor", tensor)


def _gradients(parameters: list[Any]) -> tuple[list[Any], int]:
    """Return a sum over the gradients of each number format, and how many gradients there are."""
    import torch

    of_format: dict[Any, list[Any]] = {}
    held = 0
    for each in parameters:
        gradient = each.grad
        if gradient is None or any(how.is_partial() for how in getattr(gradient, "placements", ())):
            continue
        gradient = _local(gradient)
        if _is_summable(gradient) and gradient.device == _local(parameters[0]).device:
            bits = _as_integers(gradient.detach().reshape(-1))
            of_format.setdefault(bits.dtype, []).append(bits[:: -(-len(bits) * len(parameters) // _MOST_ELEMENTS)])
            held += 1
    return [torch.cat(each).sum(dtype=torch.int64) for each in of_format.values()], held


def _tensors_of(args: Any) -> Iterator[Any]:
    """Yield the tensors among arguments, also those in a tuple, a list or a dict of them."""
    for each in args:
        if hasattr(each, "requires_grad"):
            yield each
        elif isinstance(each, (tuple, list, dict)):
            inside = each.values() if isinstance(each, dict) else each
            yield from (tensor for tensor in inside if hasattr(tensor, "requires_grad"))


def _bits(tensor: Any, most: int = 0) -> Any:
    """Return the sum of a tensor's bits, read as whole numbers of up to 64 of them: int64 of no dimension.

    Args:
        tensor: The tensor.
        most: Of a tensor of more elements, that many or fewer, evenly spread; 0: all.
    """
    import torch

    bits = _as_integers(tensor.detach().reshape(-1))
    size = bits.element_size()
    apart = -(-len(bits) // most) if most else 1
    if apart == 1 and size < 8 and len(bits) * size % 8 == 0 and bits.storage_offset() * size % 8 == 0:
        return bits.view(torch.int64).sum()
    bits = bits[::apart]
    if apart == 1 and size == 4:
        return bits.sum(dtype=torch.int32).long()  # 10 times as fast on a CPU
    return bits.sum(dtype=torch.int64)


def _as_integers(flat: Any) -> Any:
    """Return a tensor of one dimension as whole numbers of its bits."""
    import torch

    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])


def _copied(sums: Any) -> tuple[Any, Any]:
    """Begin to copy sums to the host, and return them with an event that tells of their arrival."""
    import torch

    events: Any = getattr(torch, sums.device.type, None)
    if sums.device.type == "cpu" or not hasattr(events, "Event"):
        return sums, None
    host = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=sums.device.type == "cuda")
    host.copy_(sums, non_blocking=True)
    event = events.Event()
    event.record()
    return host, event


def _place() -> int:
    from ezpz.dist import coordinate
    from ezpz.dist.wrapped_models import mesh_in_use

    return coordinate(mesh_in_use(), "dp")


def _numbers(pending: _Pending, sums: list[int]) -> Iterator[tuple[str, float]]:
    """Yield what is sent of a look, by column.

    Of the weights' sums ``s`` these are ``Σs`` and ``Σ factor_of(i) s``, modulo a prime: of two ranks that differ in
    one weight alone, the quotient of both differences tells which.
    """
    weights, gradients, inputs = pending.counts
    yield WEIGHTS, packed_number(pending.layout, sum(sums[:weights]) % PRIME)
    yield WHERE, packed_number(pending.layout, _weighed(sums[:weights]))
    if any(sums[weights : weights + gradients]):  # gradients of zero tell nothing
        yield GRADIENTS, packed_number(pending.layout, _weighed(sums[weights : weights + gradients]))
    if inputs and pending.place is not None:
        yield INPUTS, packed_number(pending.place, _weighed(sums[weights + gradients :]))


def _weighed(sums: Sequence[int]) -> int:
    return sum(factor_of(number) * total for number, total in enumerate(sums)) % PRIME
