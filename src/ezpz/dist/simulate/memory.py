"""Count the tensors of this process: every storage that lives, from its first operation until it is freed.

A mode of torch's dispatcher sees each operation below autograd, hence also in backward passes, optimizers and
recomputation. DTensors and other wrappers are left to take themselves apart first, so that what is counted is this
rank's own share. FSDP2 frees gathered parameters by resizing their storage, which is no operation: that method is
wrapped.

torch has a tracker of its own (torch.distributed._tools.mem_tracker, 2.13): it stops at the second call of a model
outside of a training step, must be handed model and optimizer, and copies its tables at each operation.

Not seen: what a kernel allocates and frees inside, other threads, and what never meets an operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# How many bytes are alive, of which kind, and what they were when most were alive: bookkeeping without torch.
#
# What a block of memory is for is often known only after it was counted: a gradient is one once an optimizer takes it.
# So blocks are renamed, and the picture of the peak is corrected with them.

KINDS = ("parameters", "gradients", "optimizer", "buffers", "other")


class Block:
    """One piece of memory.

    Attributes:
        size: Its bytes now.
        kind: One of `KINDS`.
        since: How many peaks there had been when it got this size.
        end: Whatever tells its end; kept as long as the block.
    """

    __slots__ = ("end", "kind", "since", "size")

    def __init__(self, size: int, since: int) -> None:
        self.size, self.since, self.kind = size, since, "other"
        self.end: object = None


class Ledger:
    """The live bytes of each kind, and their peak.

    Attributes:
        live: Bytes that are alive now, by kind.
        most: The most bytes of each kind that were alive at once, but for "other", which holds what is not named yet.
        peak: The most bytes that were alive at once.
        at_peak: What they were, by kind; the sum is `peak`.
        when: What ran at the peak, as `when` names it.
        before: The peak before `begin`.
    """

    def __init__(self, when: Callable[[], str] = str) -> None:
        self.live, self.most, self.at_peak = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
        self.total = self.peak = self.before = self._peaks = 0
        self.when = ""
        self._tell_when = when

    def begin(self) -> None:
        """Look for the peak from now on; what it was before is kept in ``before``."""
        self.before, self.peak = max(self.before, self.peak), -1
        self._look("other")

    def add(self, size: int) -> Block:
        """Count new memory, which is of kind "other" until it is named."""
        block = Block(0, self._peaks)
        self.resize(block, size)
        return block

    def resize(self, block: Block, size: int) -> None:
        """Count a block's growth or shrinking; 0 bytes free its memory and keep the block."""
        grown = size - block.size
        if not grown:
            return
        block.size, block.since = size, self._peaks
        self.live[block.kind] += grown
        self.total += grown
        self._look(block.kind)

    def name(self, block: Block, kind: str) -> None:
        """Say what a block is for, also for the picture of the peak if it was alive then."""
        old = block.kind
        if old == kind:
            return
        block.kind = kind
        self.live[old] -= block.size
        self.live[kind] += block.size
        if block.since < self._peaks:  # no peak since it got its size: it was not there
            self.at_peak[old] -= block.size
            self.at_peak[kind] += block.size
        self._look(kind)

    def _look(self, kind: str) -> None:
        if kind != "other":
            self.most[kind] = max(self.most[kind], self.live[kind])
        if self.total > self.peak:
            self.peak, self.at_peak, self.when = self.total, dict(self.live), self._tell_when()
            self._peaks += 1


class Watch:
    """Counts the storages of one type of device in this thread, from `start` on, until the process ends or `stop`.

    Attributes:
        ledger: What was counted.
        steps: How many steps the busiest optimizer has taken.
    """

    def __init__(self, device_type: str, fakes: Any = None) -> None:
        """Make a watch.

        Args:
            device_type: ``cpu``, ``cuda``, …
            fakes: torch's FakeTensorMode whose tensors count as if they had memory; by default no fake does.
        """
        self.ledger = Ledger(self._where)
        self.steps = 0
        self._device_type, self._fakes = device_type, fakes
        self._blocks: dict[int, Block] = {}  # by the id of the storage, which stays the same while it lives
        self._modules: WeakSet[Any] = WeakSet()
        self._in_optimizer = 0
        self._taken: dict[int, int] = {}  # id of an optimizer -> steps
        self._set_foreach: list[Any] = []  # groups of parameters whose choice we have made
        self._undo: list[Any] = []

    def start(self) -> Watch:
        """Begin to count."""
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        mode = _mode(self)
        mode.__enter__()
        self._undo = [
            lambda: mode.__exit__(None, None, None),
            _wrap_resize(self),
            register_module_forward_pre_hook(self._before_forward).remove,
            register_optimizer_step_pre_hook(self._before_step).remove,
            register_optimizer_step_post_hook(self._after_step).remove,
        ]
        return self

    def stop(self) -> None:
        """Count no more; what was counted stays."""
        while self._undo:
            self._undo.pop(0)()

    def see(self, tensor: Any) -> Block | None:
        """Count a tensor's storage if it is new, and return its block; None for what has no memory on this device."""
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:  # sparse tensors have none of their own; their parts come by in other operations
            return None
        return self.count(storage, tensor)

    def count(self, storage: Any, tensor: Any = None) -> Block | None:
        """Count a tensor's storage if it is new, and else its size; None for one that takes nothing."""
        key, size = id(storage), storage.nbytes()
        block = self._blocks.get(key)
        if block is None:
            # FSDP2 fills up its lists of shards with empty ones, by the hundred thousand in a large world.
            if not size or not (storage.device.type == self._device_type or self._is_counted_fake(tensor)):
                return None
            block = self._blocks[key] = self.ledger.add(size)
            block.end = ref(storage, lambda _: self.ledger.resize(self._blocks.pop(key), 0))
        elif block.size != size:
            self.ledger.resize(block, size)
        return block

    def _is_counted_fake(self, tensor: Any) -> bool:
        """Tell the fakes that stand for data from those that DTensor asks for shapes; the storage of both is on
        "meta".
        """
        if self._fakes is None or getattr(tensor, "fake_mode", None) is not self._fakes:
            return False
        return bool(tensor.fake_device.type == self._device_type)

    def _name(self, tensor: Any, kind: str) -> None:
        for part in _parts(tensor):
            block = self.see(part)
            if block is not None:
                self.ledger.name(block, kind)

    def _before_forward(self, module: Any, _: Any) -> None:
        """Name a model's tensors before it runs for the first time: FSDP2 shows gathered parameters only after that."""
        if module in self._modules:
            return
        if not self._modules:
            self.ledger.begin()  # building the model may take more, but on the device only if it is built there
        for part in module.modules():
            self._modules.add(part)
            # The public ways list the parts' parts again.
            own = (("parameters", part._parameters), ("buffers", part._buffers))  # noqa: SLF001  # as above
            for kind, tensors in own:
                for tensor in tensors.values():
                    if tensor is not None:
                        self._name(tensor, kind)

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        self._in_optimizer += 1
        self._taken[id(optimizer)] = self._taken.get(id(optimizer), 0) + 1
        for group in optimizer.param_groups:
            if self._device_type == "cpu" and group.get("foreach", False) is None and not group.get("fused"):
                # torch's default on accelerators, whose temporaries are as large as all parameters of the group.
                group["foreach"] = True
                self._set_foreach.append(group)
            for parameter in group["params"]:
                self._name(parameter, "parameters")
                if parameter.grad is not None:
                    self._name(parameter.grad, "gradients")

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        import torch

        self._in_optimizer -= 1
        self.steps = max(self._taken.values())
        while self._set_foreach:
            self._set_foreach.pop()["foreach"] = None
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    self._name(value, "optimizer")

    def _where(self) -> str:
        import torch

        if self._in_optimizer:
            return f"in the optimizer of step {self.steps + 1}"
        task = getattr(torch._C, "_current_graph_task_id", lambda: -1)()  # noqa: SLF001  # no public name
        if task != -1:
            return f"in backward of step {self.steps + 1}"
        if not self._modules:
            return "before the first forward"
        return f"in forward of step {self.steps + 1}"


def _parts(tensor: Any) -> Iterator[Any]:
    """Yield the plain tensors that a tensor consists of: itself, or for a DTensor this rank's share."""
    from torch import Tensor

    if not isinstance(tensor, Tensor):  # the mesh is a part of a DTensor, too
        return
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield tensor
        return
    for name in flatten()[0]:
        yield from _parts(getattr(tensor, name))


def _mode(watch: Watch) -> Any:
    """Return the mode of torch's dispatcher that shows every operation's tensors to a watch."""
    from torch import Tensor
    from torch.utils._python_dispatch import TorchDispatchMode

    see = watch.see

    def look(value: Any) -> None:
        if type(value) is Tensor or (isinstance(value, Tensor) and not hasattr(value, "__tensor_flatten__")):
            see(value)
        elif isinstance(value, (tuple, list)):
            for item in value:
                look(item)

    class Mode(TorchDispatchMode):  # type: ignore[misc]  # torch is not known to the type check
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            for kind in types:
                if hasattr(kind, "__tensor_flatten__"):
                    return NotImplemented
            look(args)  # made before the watch began, or without an operation, as by torch.from_numpy
            result = func(*args, **kwargs or {})
            look(result)
            return result

    return Mode()


def _wrap_resize(watch: Watch) -> Any:
    """Let the watch see `torch.UntypedStorage.resize_`; return what puts the method back."""
    import torch

    plain = torch.UntypedStorage.resize_

    def resize_(storage: Any, size: int) -> Any:
        result = plain(storage, size)
        watch.count(storage)
        return result

    torch.UntypedStorage.resize_ = resize_

    def undo() -> None:
        torch.UntypedStorage.resize_ = plain

    return undo
