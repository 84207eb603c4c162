"""Make a model ready for many ranks, in one call.

The order is fixed, and each step has its reason:

    1. tensor parallel     cuts weights by meaning (heads, features); later steps must see the cut weights
    2. recompute           wraps the forward of a block, collectives of step 1 included
    3. compile             compiles what a block does, recomputation included
    4. fsdp, ddp, zero1    hooks around the finished blocks; they move, gather and average
    5. meta to memory      only now, so that no rank ever holds more than its shards (DDP: before 4, it copies weights)
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

from ezpz.dist.device import device as own_device
from ezpz.dist.job_around import this_rank
from ezpz.dist.model_blocks import find_blocks, largest_parts, select_blocks, without_shared
from ezpz.dist.precision import autocast_forward, log_precision, stored_formats, usable_dtype
from ezpz.dist.recompute import recompute_blocks, stride_of
from ezpz.dist.seeds import warn_of_other_weights
from ezpz.dist.sharding import ddp_group, ddp_options, fsdp_options, mark, replicate, shard
from ezpz.dist.tensor_parallel import apply_plan, find_plan
from ezpz.dist.wrapped_models import Before, Wrapped, remember, watch_replaced
from ezpz.errors import UsageError, did_you_mean
from ezpz.log import get_logger
from ezpz.progress import stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


# torch.compile block by block: equal blocks are compiled once, where a whole model would be compiled for minutes.


def compile_blocks(model: nn.Module, blocks: Sequence[nn.Module], device_type: str) -> None:
    """Compile every block, or the model if it has none; without a compiler warn once and leave it as it is.

    torch looks for its compiler at the first forward, where its absence would end a run that could go on.
    """
    missing = compiler_problem(device_type)
    if missing:
        if this_rank().rank == 0:
            get_logger(__name__).warning(f"compile=True is not possible here: {missing}. The model runs uncompiled.")
        return
    for module in blocks or [model]:
        module.compile()


def compiler_problem(device_type: str) -> str:
    """Return what torch's inductor lacks on this machine, empty if nothing: g++ (or $CXX) on CPUs, triton on others."""
    if device_type in {"cuda", "xpu"}:
        return "" if importlib.util.find_spec("triton") else "the package triton is not installed"
    if device_type != "cpu":
        return ""
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    return "" if shutil.which(compiler) else f"no C++ compiler ({compiler}) is on PATH; set CXX to one"


STRATEGIES = ("ddp", "fsdp", "hsdp", "zero1", "none", "deepspeed")
_META = {"initialize", "build", "seed", "draw"}  # of `materialize`
_OWN_EXTRA = {"blocks", *_META}
_MOVED_BY_FSDP = {"cpu", "cuda", "xpu"}  # block by block; to other devices the whole model must go before
# What others call it, or where they say it -> what to type here.
_ELSEWHERE = {
    "auto_wrap_policy": "`blocks=MyLayer`",
    "device_ids": "none: the model goes to this rank's device",
    "gradient_accumulation_steps": "`with ezpz.accumulating(model, last=…):` in the loop, or Loop(accumulate=…)",
    "mixed_precision": '`dtype="bf16"`',
    "process_group": "`mesh=`",
    "sharding_strategy": '`strategy="fsdp"`, "hsdp" or "ddp", and `reshard_after_forward=`',
}
_ARGUMENTS = {"mesh", "dtype", "reshard_after_forward", "tp_plan", "activation_checkpoint", "compile"}


def wrap_model(  # noqa: PLR0917  # public code passes strategy and mesh by position
    model: nn.Module,
    strategy: str | bool = "ddp",
    mesh: DeviceMesh | None = None,
    dtype: str | torch.dtype | None = None,
    reshard_after_forward: bool | int = True,
    tp_plan: Mapping[str, Any] | None = None,
    activation_checkpoint: str | int | None = None,
    compile: bool = False,  # noqa: A002  # torch's own word for it
    **extra: Any,
) -> nn.Module:
    """Return ``model`` ready for training on all ranks; call `setup_torch` first, and make the optimizer afterwards.

    It computes in the model's own number format unless ``dtype`` asks for another, and a line says which formats
    compute, reduce and store. Under a ``dtype`` outputs are float32. ``dtype="fp16"`` needs a
    ``torch.amp.GradScaler(device.type)`` in the script, because small gradients vanish in float16; bf16 needs none.

    Args:
        model: On any device, or built under ``torch.device("meta")``. It is changed in place.
        strategy: "ddp": a copy per rank. "fsdp": weights cut over ranks. "hsdp": cut inside a host, copied across
            hosts. "zero1": as ddp, the optimizer's state cut (`make_optimizer`). "none": no data parallelism.
            "deepspeed". Older code's True and ``use_fsdp=True`` mean "fsdp", False means "ddp".
        mesh: From `init_mesh`; by default the one that it made last, else all ranks are data parallel.
        dtype: To compute in: bf16 (float32 with a warning where the device has none), fp16, fp32; by default the format
            of the weights, which they keep in any case.
        reshard_after_forward: FSDP: free a block's weights after its forward (less memory) or keep them until its
            backward (less traffic). Last block and root are kept in any case.
        tp_plan: What the "tp" axis cuts: names of modules to styles, see `ezpz.dist.tensor_parallel`. By default the
            model's own ``tp_plan``, an attribute or a method. Not looked at where the mesh has no such axis.
        activation_checkpoint: "full", "selective" (every second block), "op" (cheap operations), n (every n-th block):
            memory for time.
        compile: Compile block by block.
        **extra: ``blocks=`` (classes, their names, or a function of a module) instead of those that repeat, see
            `ezpz.dist.model_blocks`; ``initialize=``, ``build=``, ``seed=``, ``draw=`` for `materialize`; keywords of
            DistributedDataParallel, ``fully_shard`` or `ezpz.dist.deepspeed.wrap`.

    Returns:
        The model itself ("fsdp", "hsdp", "none"), or what wraps it, with the original as ``.module``.

    Raises:
        UsageError: An argument is unknown or does not fit the model, the mesh or the other arguments.
        MachineError: This torch cannot do it on this device.
    """
    stage("own")
    strategy, mesh, extra = _modern(strategy, mesh, extra)
    _refuse_unused(strategy, mesh, tp_plan, activation_checkpoint, compile=compile, reshard=reshard_after_forward)
    if strategy == "deepspeed":
        engine = _by_deepspeed(model, extra if dtype is None else {"dtype": dtype, **extra})
        remember([model], Wrapped(strategy, None, None, _world()))  # it computes and scales by its own rules
        return engine
    stride_of(activation_checkpoint)  # refuses a wrong word before anything is changed
    options = _options(model, strategy, extra)
    number_format = None if dtype is None else usable_dtype(dtype, own_device())
    given, mesh = mesh, _mesh_for(strategy, mesh)
    inner, before = model, Before(model)  # a short life: see there
    blocks = find_blocks(model) if extra.get("blocks") is None else select_blocks(model, extra["blocks"])
    _cut_by_plan(model, mesh, tp_plan)
    watch_replaced(before, model, strategy)
    del before
    recompute_blocks(model, blocks, activation_checkpoint)
    log_precision(strategy, number_format, stored_formats(model))
    if compile:
        compile_blocks(model, blocks, own_device().type)
    if strategy in {"fsdp", "hsdp"}:
        options["reshard_after_forward"] = reshard_after_forward
        _shard(model, mesh, blocks, number_format, options, strategy=strategy)
        _fill_meta(model, extra)
    else:
        _move(model, extra)
        autocast_forward(model, number_format, own_device().type)
        model = model if strategy == "none" else _replicate(model, strategy, mesh, options)
    is_cut = strategy != "none" or given is not None
    apart = frozenset(map(id, options.get("ignored_params") or ()))
    remember([inner, model], Wrapped(strategy, mesh, number_format, _world(), is_cut, apart))
    stage("model")
    return model


def _world() -> Any:
    import torch.distributed as dist

    return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None


def _refuse_unused(
    strategy: str,
    mesh: Any,
    tp_plan: Any,
    recompute: Any,
    *,
    compile: bool,  # noqa: A002
    reshard: bool | int,
) -> None:
    """Refuse arguments that the strategy has no use for, rather than to leave them out in silence."""
    if strategy == "deepspeed":
        given = {"mesh": mesh, "tp_plan": tp_plan, "activation_checkpoint": recompute, "compile": compile or None}
        name = next((name for name, value in given.items() if value not in {None, "none"}), "")
        if name:
            raise UsageError(
                f"{name}= is given with strategy='deepspeed' (from wrap_model); expected it without: DeepSpeed makes "
                f"its own groups and goes by its own configuration. Leave {name}= out, or choose another strategy."
            )
    if strategy not in {"fsdp", "hsdp"} and reshard is not True:
        raise UsageError(
            f"reshard_after_forward={reshard!r} is given with strategy={strategy!r} (from wrap_model); expected 'fsdp' "
            "or 'hsdp', which alone cut weights. Leave it out, or choose one of them."
        )


def _by_deepspeed(model: nn.Module, extra: dict[str, Any]) -> nn.Module:
    from ezpz.dist.deepspeed import wrap

    wrapped: nn.Module = wrap(model, **extra)
    stage("model")
    return wrapped


def _modern(strategy: Any, mesh: Any, extra: dict[str, Any]) -> tuple[str, Any, dict[str, Any]]:
    """Translate older spellings: ``wrap_model(model, True)``, ``use_fsdp=``, ``device_mesh=``, ``strategy="FSDP"``."""
    extra = dict(extra)
    if "use_fsdp" in extra:
        strategy = bool(extra.pop("use_fsdp"))
    if isinstance(strategy, bool):
        strategy = "fsdp" if strategy else "ddp"
    if "device_mesh" in extra:
        if mesh is not None:
            raise UsageError("both mesh= and device_mesh= are given; expected one. Write mesh=, the present name.")
        mesh = extra.pop("device_mesh")
    name = str(strategy).lower()
    if name not in STRATEGIES:
        raise UsageError(
            f"unknown strategy {strategy!r} (from wrap_model); expected one of {', '.join(STRATEGIES)}."
            f"{did_you_mean(name, STRATEGIES)}"
        )
    return name, mesh, extra


def refuse_elsewhere(names: Iterable[str], caller: str) -> None:
    """Refuse keywords that accelerate and torch's wrappers know, with what says the same here.

    Raises:
        UsageError: There is one.
    """
    for name in _ELSEWHERE.keys() & {*names}:
        raise UsageError(f"no keyword {name!r} here (from {caller}); expected {_ELSEWHERE[name]}.")


def _options(model: nn.Module, strategy: str, extra: dict[str, Any]) -> dict[str, Any]:
    """Check the remaining keywords, and return those that go to torch."""
    if hasattr(model, "set_requires_gradient_sync") or hasattr(model, "no_sync"):
        raise UsageError(
            f"{type(model).__name__} is wrapped already (from wrap_model); expected a plain module. Call wrap_model "
            "once."
        )
    passed_on = {"ddp": ddp_options, "zero1": ddp_options, "fsdp": fsdp_options, "hsdp": fsdp_options, "none": set}
    options = passed_on[strategy]()
    refuse_elsewhere(extra.keys() - options, "wrap_model")
    for name in extra.keys() - options - _OWN_EXTRA:
        known = options | _OWN_EXTRA
        raise UsageError(
            f"unknown keyword {name!r} (from wrap_model with strategy={strategy!r}); expected one of "
            f"{', '.join(sorted(known))}.{did_you_mean(name, sorted(known | _ARGUMENTS))}"
        )
    return {name: value for name, value in extra.items() if name in options}


def _mesh_for(strategy: str, mesh: DeviceMesh | None) -> DeviceMesh | None:
    import torch.distributed as dist

    from ezpz.dist.mesh import check_names, degree, get_mesh, init_mesh

    if strategy != "none" and not dist.is_initialized():
        raise UsageError(
            f"strategy={strategy!r} needs a process group, and there is none; expected setup_torch() before "
            "wrap_model(). Call ezpz.setup_torch() first; it works for one process too."
        )
    if mesh is not None:
        check_names(mesh)
    mesh = mesh if mesh is not None else get_mesh()
    if strategy in {"ddp", "zero1"}:
        ddp_group(mesh)  # refuses a mesh before anything is changed
    if strategy == "hsdp":
        if mesh is None:
            return _mesh_of_hosts()
        if degree(mesh, "dp_replicate") == 1:
            raise UsageError(
                "strategy='hsdp' needs copies, and the mesh has dp_replicate=1 (from mesh); expected 2 or more. "
                "Use init_mesh(dp_replicate=<number of hosts>), or strategy='fsdp'."
            )
    return init_mesh() if strategy == "fsdp" and mesh is None else mesh


def _mesh_of_hosts() -> DeviceMesh:
    from ezpz.dist.mesh import init_mesh

    ranks = this_rank()
    hosts, rest = divmod(ranks.world_size, ranks.local_world_size)
    if hosts < 2 or rest:
        raise UsageError(
            f"strategy='hsdp' copies the model once per host, and this world has {ranks.world_size} ranks with "
            f"{ranks.local_world_size} on this host (from {ranks.family}); expected several equal hosts. "
            "Say how many copies there shall be: mesh=init_mesh(dp_replicate=2)."
        )
    return init_mesh(dp_replicate=hosts, dp_shard=ranks.local_world_size)


def _cut_by_plan(model: nn.Module, mesh: DeviceMesh | None, tp_plan: Mapping[str, Any] | None) -> None:
    from ezpz.dist.mesh import axis, degree

    parts = degree(mesh, "tp") if mesh is not None else 1
    if mesh is not None and parts > 1:
        apply_plan(model, axis(mesh, "tp"), find_plan(model, tp_plan, parts))


def _shard(
    model: nn.Module,
    mesh: Any,
    blocks: list[nn.Module],
    dtype: torch.dtype | None,
    options: dict[str, Any],
    *,
    strategy: str,
) -> None:
    from ezpz.dist.mesh import fsdp_mesh
    from ezpz.dist.torch_support import check_fsdp2, move_model

    check_fsdp2(mesh.device_type)
    cut = fsdp_mesh(mesh)
    if not _on_meta(model):
        warn_of_other_weights(model, cut.get_group(cut.ndim - 1))
    if mesh.device_type not in _MOVED_BY_FSDP and not _on_meta(model):
        move_model(model, own_device())
    before = Before(model)  # not earlier: the move may be a swap
    shard(model, cut, without_shared(model, blocks or largest_parts(model)), dtype, **options)
    watch_replaced(before, model, strategy)


def _replicate(model: nn.Module, strategy: str, mesh: DeviceMesh | None, options: dict[str, Any]) -> nn.Module:
    wrapped = replicate(model, ddp_group(mesh), own_device(), **options)
    return mark(wrapped) if strategy == "zero1" else wrapped


def _move(model: nn.Module, extra: Mapping[str, Any]) -> None:
    from ezpz.dist.torch_support import move_model

    if not _fill_meta(model, extra, own_device()):
        move_model(model, own_device())


def _fill_meta(model: nn.Module, extra: Mapping[str, Any], device: torch.device | None = None) -> bool:
    """Give a model without memory its weights; tell whether it was one."""
    if not _on_meta(model):
        return False
    from ezpz.dist.meta_init import materialize

    materialize(model, device=device, **{name: extra[name] for name in extra.keys() & _META})
    return True


def _on_meta(model: nn.Module) -> bool:
    return any(parameter.is_meta for parameter in model.parameters())
