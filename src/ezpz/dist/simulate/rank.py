"""Run one rank of a simulated world on torch's fake backend, whose collectives do nothing, and report what it would
need.

`ezpz simulate` starts a script with

    EZPZ_SIMULATE=4096                       the size of the world
    EZPZ_SIMULATE_DATA=no                    its tensors shall have none (`ezpz.dist.simulate.fake_tensors`)
    EZPZ_SIMULATE_REPORT=/tmp/…/report.json  where to say what this rank needed, see `write_report`
    TORCHELASTIC_RUN_ID=ezpz-simulate        a launcher below sets its own: its ranks are real and not simulated
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from functools import wraps
from typing import TYPE_CHECKING, Any

from ezpz.errors import MachineError, UsageError
from ezpz.files import write_whole

if TYPE_CHECKING:
    from ezpz.dist.simulate.fake_tensors import Dataless
    from ezpz.dist.simulate.memory import Watch
    from ezpz.ranks import Ranks

RUN_ID = "ezpz-simulate"


def make_group(ranks: Ranks, device: Any) -> None:
    """Make the process group of a simulated world, and count this process's memory from here on.

    Args:
        ranks: Who this process is to be.
        device: Its torch.device; "cpu" unless the user says otherwise.

    Raises:
        UsageError: The simulation was not made for this process: it is a real rank of a launcher.
        MachineError: This torch has no fake backend.
    """
    size = os.environ.get("EZPZ_SIMULATE", "")
    if os.environ.get("TORCHELASTIC_RUN_ID") != RUN_ID or size != str(ranks.world_size):
        raise UsageError(
            f"rank {ranks.rank} of {ranks.world_size} is real, but EZPZ_SIMULATE={size} (from the environment) asks "
            "for a simulated world; expected one of them. Run `unset EZPZ_SIMULATE`, or start the script itself with "
            "`ezpz simulate`, without a launcher in between."
        )
    _init_fake(ranks)
    report = os.environ.get("EZPZ_SIMULATE_REPORT", "")
    if report:
        from ezpz.dist.simulate.memory import Watch

        dataless = _drop_data() if os.environ.get("EZPZ_SIMULATE_DATA") == "no" else None
        watch, owner = Watch(device.type, dataless.mode if dataless else None).start(), os.getpid()
        write_report(report, ranks, device, None)
        # A forked worker inherits this, and is not the rank.
        atexit.register(lambda: write_report(report, ranks, device, watch, dataless) if os.getpid() == owner else None)


def _drop_data() -> Dataless:
    from ezpz.dist.simulate.fake_tensors import Dataless

    return Dataless().start()


def _init_fake(ranks: Ranks) -> None:
    import torch
    import torch.distributed as dist

    try:
        from torch.testing._internal.distributed.fake_pg import FakeStore  # importing it registers the backend
    except ImportError as error:
        raise MachineError(
            f"cannot simulate a world: {error} (from torch {torch.__version__}); expected a torch with the fake "
            "backend. Install torch 2.4 or newer."
        ) from None
    dist.init_process_group("fake", store=FakeStore(), rank=ranks.rank, world_size=ranks.world_size)
    # A receiver would read the size of the object from memory that was never written, and allocate that much.
    for module in (dist, dist.distributed_c10d):
        module.broadcast_object_list = _receive_nothing
    _let_ddp_keep_its_gradients()


def _receive_nothing(object_list: list[Any], *_: Any, **__: Any) -> None:
    """Stand in for `broadcast_object_list`: every rank keeps the objects that it has."""


def _let_ddp_keep_its_gradients() -> None:
    """Give every DDP model a hook in place of its all-reduce, whose result on the fake backend is None: DDP stops at
    that.

    A hook of the script's own would end the same way and is left out.
    """
    import torch
    from torch.nn.parallel import DistributedDataParallel

    plain_init, plain_register = DistributedDataParallel.__init__, DistributedDataParallel.register_comm_hook

    def keep(_: Any, bucket: Any) -> Any:
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    keep.__annotations__.clear()  # DDP wants its own types there or nothing, and ours are words

    @wraps(plain_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        plain_init(self, *args, **kwargs)
        plain_register(self, None, keep)

    DistributedDataParallel.__init__ = init
    DistributedDataParallel.register_comm_hook = lambda *_, **__: None


def write_report(path: str, ranks: Ranks, device: Any, watch: Watch | None, dataless: Dataless | None = None) -> None:
    """Write what this rank needed, as one JSON object.

    ``finished`` is false in the report of the start; the rest then is zero. All sizes are bytes: ``largest`` and
    ``at_peak`` by kind, ``peak`` of the tensors from the first forward on, ``before`` until then, ``resident`` of the
    whole process with Python and torch in it, and ``allocator`` of the accelerator's allocator, null on a CPU. Without
    ``data`` ``made_up`` is how many numbers were asked of tensors that had none, for the first time at ``made_up_at``.
    """
    ledger = watch.ledger if watch else None
    report = {
        "finished": watch is not None,
        "rank": ranks.rank,
        "world_size": ranks.world_size,
        "device": str(device),
        "steps": watch.steps if watch else 0,
        "largest": {kind: size for kind, size in ledger.most.items() if kind != "other"} if ledger else {},
        "at_peak": ledger.at_peak if ledger else {},
        "peak": ledger.peak if ledger else 0,
        "before": ledger.before if ledger else 0,
        "when": ledger.when if ledger else "",
        "resident": _resident(),
        "memory_ran_out": _ran_out(),
        "data": dataless is None,
        "made_up": dataless.made_up.asked if dataless else 0,
        "made_up_at": dataless.made_up.first if dataless else "",
        "allocator": _allocator(device),
    }
    write_whole(path, json.dumps(report))


def _resident() -> int:
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024  # getrusage(2): kilobytes on Linux, bytes on macOS


def _ran_out() -> bool:
    """Return whether this process ends because it could not have more memory."""
    error = getattr(sys, "last_value", None)  # what the interpreter has shown before it ends
    words = ("can't allocate memory", "out of memory")  # of torch's allocators; both raise RuntimeError
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def _allocator(device: Any) -> int | None:
    import torch

    module: Any = getattr(torch, device.type, None)
    if device.type == "cpu" or not hasattr(module, "max_memory_allocated"):
        return None
    return int(module.max_memory_allocated(device))
