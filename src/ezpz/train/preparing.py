"""Make model, optimizer, data and schedule ready for all ranks, so that they belong together: `prepare`.

    model, optimizer, loader = ezpz.prepare(model, optimizer, loader, strategy="fsdp")

Each is told what it must know of the others: the model's mesh cuts the data, and the optimizer gets the weights of the
wrapped model, where wrapping has replaced them. `Loop` binds in the same way what it is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ezpz.dist.precision import resolve_dtype
from ezpz.dist.wrap import refuse_elsewhere
from ezpz.dist.wrapped_models import present, refuse_replaced, wrapped
from ezpz.errors import UsageError
from ezpz.train.data import prepare as data_of_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from torch import nn
    from torch.optim import Optimizer

    from ezpz.train.data.prepare import Loader

__all__ = ["number_format", "prepare", "refuse_strangers"]

_OF_MODELS = ("strategy", "mesh", "dtype", "tp_plan", "activation_checkpoint", "compile", "reshard_after_forward")


def prepare(
    *objects: Any,
    batch_size: int = 0,
    shuffle: bool | None = None,
    seed: int | None = None,
    load: Callable[[Any], Any] | None = None,
    cut: bool | None = None,
    **more: Any,
) -> Any:
    """Return what is given, ready for all ranks, in the same order; one object by itself, several as a tuple.

    Args:
        *objects: Any of these. Models: those that are not wrapped yet go through `ezpz.wrap_model`; one with nothing
            to train is only moved to the device. Optimizers: they
            keep their settings and state, and get the wrapped model's weights in place of its former ones; under
            ``zero1`` a new one is returned, whose state is cut over ranks. Schedules of the learning rate and
            GradScalers: returned as they are. All else is data: a DataLoader of torch or torchdata, whose settings are
            kept; a data set of torch or of Hugging Face, with a length or as a stream; or a list of files, or of other
            samples. It comes back as a loader of this rank's part (see `ezpz.train.data.prepare`), cut by the mesh of
            the first model given here, or of the one that was wrapped last.
        batch_size: Samples per rank and batch; of a DataLoader its own.
        shuffle: Draw another order for each epoch; of a DataLoader its own, otherwise by default True. A stream
            comes in its own order.
        seed: Of the orders, the same on all ranks; by default that of the DataLoader's generator or sampler.
        load: Called with each element of a list, such as a file's path; returns the sample. It runs in the workers.
        cut: Each rank has its own part of the data already (a ``Subset`` by rank, ``.shard``,
            ``split_dataset_by_node``), and all of that comes on this rank; every rank calls.
        **more: ``strategy`` ("ddp" by default), ``mesh``, ``dtype``, ``tp_plan``, ``activation_checkpoint``,
            ``compile``, ``reshard_after_forward`` and further keywords of `ezpz.wrap_model`; those of a DataLoader
            (``num_workers=2``, ``collate_fn=``, ``drop_last=True``) for data without one.

    Raises:
        UsageError: The data cannot be cut over ranks, an argument does not fit what is given, or an optimizer or
            schedule belongs to none of the others.
    """
    refuse_elsewhere(more, "prepare")
    if "data" in more:
        objects = (*objects, more.pop("data"))
    if not objects:
        raise UsageError(
            "nothing to prepare (from prepare); expected a model, an optimizer, data or a schedule. Type "
            "`model, optimizer, loader = ezpz.prepare(model, optimizer, loader)`."
        )
    kinds = [_kind_of(each) for each in objects]
    is_plain = any(kind == "model" and not _is_wrapped(each) for each, kind in zip(objects, kinds, strict=True))
    for_models = {*_OF_MODELS, *(more.keys() - data_of_ranks.OF_LOADERS if is_plain else ())}
    wrapping = {name: more.pop(name) for name in [*more] if name in for_models}
    for_data = {"batch_size": batch_size, "shuffle": shuffle, "seed": seed, "load": load, "cut": cut, **more}
    _refuse_idle(objects, kinds, wrapping, for_data)
    found = dict(enumerate(objects))
    moves = _Moves()
    for place in _places(kinds, "model"):
        found[place] = moves.wrap(objects[place], wrapping)
    for place in _places(kinds, "optimizer"):
        found[place] = moves.move(objects[place], [objects[each] for each in _places(kinds, "schedule")])
    models = [found[place] for place in _places(kinds, "model")]
    optimizers = [found[place] for place in _places(kinds, "optimizer")]
    _refuse_foreign(models, optimizers)
    for place in _places(kinds, "schedule"):
        if optimizers and not any(_is_of(objects[place], each) for each in optimizers):
            raise _strange_schedule(objects[place])
    for place in _places(kinds, "data"):
        loader: Loader = data_of_ranks.prepare(objects[place], **for_data)
        for model in models:
            how = wrapped(model)
            if how is None or how.cuts_data:
                loader.bind(model)
        found[place] = loader
    return found[0] if len(objects) == 1 else tuple(found.values())


def _refuse_foreign(models: list[Any], optimizers: list[Any]) -> None:
    """Refuse optimizers none of which holds a weight of these models; others than torch's may keep copies."""
    trained = {id(each) for model in models for each in model.parameters() if each.requires_grad}
    known = [each for each in optimizers if type(each).__module__.partition(".")[0] == "torch"]
    if not trained or not known or len(known) < len(optimizers):
        return
    if not any(id(each) in trained for one in known for group in one.param_groups for each in group["params"]):
        raise UsageError(
            f"{type(known[0]).__name__} holds none of the model's weights, so that its steps would train nothing (from "
            "prepare); expected the optimizer of this model. Make it of the model that is given beside it, as it is "
            "then: `torch.optim.AdamW(model.parameters())`."
        )


def _kind_of(given: Any) -> str:
    from torch.nn import Module
    from torch.optim import Optimizer

    if isinstance(given, Module):
        return "model"
    if isinstance(given, Optimizer):
        return "optimizer"
    if hasattr(given, "get_last_lr"):
        return "schedule"
    return "scaler" if hasattr(given, "unscale_") else "data"


def _places(kinds: list[str], kind: str) -> list[int]:
    return [place for place, each in enumerate(kinds) if each == kind]


def _refuse_idle(
    objects: tuple[Any, ...], kinds: list[str], wrapping: Mapping[str, Any], for_data: Mapping[str, Any]
) -> None:
    """Refuse arguments for a kind of object that is not there, or is finished already."""
    plain = [each for each, kind in zip(objects, kinds, strict=True) if kind == "model" and not _is_wrapped(each)]
    if wrapping and not plain:
        name, value = next(iter(wrapping.items()))
        raise UsageError(
            f"{name}={value!r} is for a model that is not wrapped yet, and here is none (from prepare); expected one. "
            f"Give it to wrap_model, or prepare the plain model."
        )
    given = [name for name, value in for_data.items() if value is not None and (name, value) != ("batch_size", 0)]
    if given and "data" not in kinds:
        raise UsageError(
            f"{given[0]}={for_data[given[0]]!r} is for data, and here are none (from prepare); expected a DataLoader, "
            "a data set or a list beside it."
        )


def _is_wrapped(model: Any) -> bool:
    return wrapped(model) is not None or hasattr(model, "no_sync") or hasattr(model, "set_requires_gradient_sync")


class _Moves:
    """Wraps models, and gives optimizers the weights that are there then."""

    def __init__(self) -> None:
        self._zero1: list[nn.Module] = []

    def wrap(self, model: nn.Module, options: Mapping[str, Any]) -> nn.Module:
        """Return the wrapped model; one with nothing to train, such as a teacher or a loss, is moved to the device."""
        from ezpz.dist.wrap import wrap_model

        if _is_wrapped(model):
            return model
        if not any(each.requires_grad for each in model.parameters()):
            kept: nn.Module = wrap_model(model, "none", dtype=options.get("dtype"))
            return kept
        if str(options.get("strategy", "")).lower() == "deepspeed":
            raise UsageError(
                "strategy='deepspeed' makes an engine of model and optimizer together (from prepare); expected "
                "another strategy. Type `ezpz.wrap_model(model, 'deepspeed', optimizer=optimizer)`."
            )
        whole: nn.Module = wrap_model(model, **options)
        how = wrapped(whole)
        if how is not None and how.strategy == "zero1":
            self._zero1.append(whole)
        return whole

    def move(self, optimizer: Optimizer, schedules: list[Any]) -> Optimizer:
        """Give an optimizer the present weights; under ``zero1`` return one of the same kind whose state is cut."""
        held = [each for group in optimizer.param_groups for each in group["params"]]
        spread = next((each for each in self._zero1 if {id(one) for one in each.parameters()} & {*map(id, held)}), None)
        if spread is not None:
            return _spread(spread, optimizer, schedules)
        for group in optimizer.param_groups:
            group["params"][:] = map(present, group["params"])  # in place: LBFGS keeps the list
        for former in held:
            now = present(former)
            state = optimizer.state.pop(former, None) if now is not former else None
            if state:
                optimizer.state[now] = {name: _cut_like(value, former, now) for name, value in state.items()}
        return optimizer


def _cut_like(value: Any, former: torch.Tensor, now: Any) -> Any:
    """Return a part of an optimizer's state, cut as the weight is where it has its shape."""
    if not getattr(value, "ndim", 0) or not hasattr(now, "placements"):
        return value
    if value.shape != former.shape:
        raise UsageError(
            f"the optimizer keeps a state of {[*value.shape]} for a weight of {[*former.shape]}, which cannot be cut "
            "as the weight is (from prepare); expected an optimizer before its first step. Prepare it before it trains."
        )
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(now.device_mesh.device_type), now.device_mesh, now.placements)


def _spread(model: nn.Module, optimizer: Optimizer, schedules: list[Any]) -> Optimizer:
    from inspect import signature

    from ezpz.dist.sharding import make_optimizer

    bound = [each for each in schedules if getattr(each, "optimizer", None) is optimizer]
    if optimizer.state or bound:
        what = "a schedule" if bound else "a state"
        raise UsageError(
            f"strategy='zero1' makes the optimizer anew, and this one has {what} already (from prepare); expected a "
            f"fresh {type(optimizer).__name__}. Prepare model and optimizer first"
            + (", and make the schedule of the optimizer that comes back." if bound else ".")
        )
    known = signature(type(optimizer).__init__).parameters  # some keep more among their defaults than they take
    defaults = {name: value for name, value in optimizer.defaults.items() if name in known}
    return make_optimizer(model, type(optimizer), params=optimizer.param_groups, **defaults)


# What a Loop is given must belong together as well.


def refuse_strangers(optimizer: Any, schedule: Any) -> None:
    """Refuse an optimizer of weights that wrapping has replaced, and a schedule of another optimizer.

    Raises:
        UsageError: Training would change nothing, or not by this schedule.
    """
    refuse_replaced(optimizer)
    if schedule is not None and not _is_of(schedule, optimizer):
        raise _strange_schedule(schedule)


def _is_of(schedule: Any, optimizer: Any) -> bool:
    """Tell whether a schedule sets the learning rates of this optimizer, or of the one inside it."""
    of = getattr(schedule, "optimizer", None)
    inside = [optimizer, getattr(optimizer, "optimizer", None), getattr(optimizer, "optim", None)]
    return of is None or any(of is each for each in inside)


def _strange_schedule(schedule: Any) -> UsageError:
    return UsageError(
        f"{type(schedule).__name__} is the schedule of another optimizer, and would change no learning rate here; "
        "expected that of this one. Make it with the optimizer that is given beside it."
    )


def number_format(model: Any, otherwise: Any) -> torch.dtype:
    """Return what a model computes in as `wrap_model` was told; else, what is given here."""
    how = wrapped(model)
    return how.dtype if how is not None and how.dtype is not None else resolve_dtype(otherwise)
