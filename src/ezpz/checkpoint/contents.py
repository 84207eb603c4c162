"""Collect and restore what a checkpoint holds: model, optimizer, schedule, further objects and random numbers, on the
way out and back.

model/<name>                             as the plain model calls it, whatever wraps it
optimizer/{state,packed}/<name>/<key>    `ezpz.checkpoint.optimizers`
ema/<name>                               the average of weights, where there is one
extra/<name>                             what a module keeps in its state beside tensors
objects/rank-<n>                         schedule, objects, options of the optimizer's groups
random/rank-<n>                          random numbers of every rank
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

from ezpz.checkpoint import optimizers
from ezpz.checkpoint.hugging_face_config import hugging_face_config
from ezpz.checkpoint.layout import source_of
from ezpz.checkpoint.packing import pack, unpack
from ezpz.checkpoint.several import Models, kind_of
from ezpz.checkpoint.storage import places_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from ezpz.checkpoint.layout import Layout
    from ezpz.checkpoint.manifest import Manifest
    from ezpz.checkpoint.several import Optimizers
    from ezpz.checkpoint.small_collectives import Together


# The state of all generators of random numbers of one rank: torch's on CPU and device, Python's, and numpy's if it is
# loaded.


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
    """Seed every generator with a function of a saved state and of who asks: equal for equal questions, unrelated
    otherwise.

    The seed is the first 8 bytes of BLAKE2b over "ezpz <who>" and the saved state of torch's CPU generator; numpy takes
    4 of them.
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


__all__ = ["Contents", "Fingerprint", "Loading", "Stateful", "differing", "over_ranks", "staged"]

Fingerprint = dict[str, list[Any]]


class Stateful(Protocol):
    """An object with a state: a GradScaler, a data loader, an average of weights."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state: whole tensors, numbers, texts and containers of them."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take the state up."""


class Averaging(Protocol):
    """An average of a model's weights, as `ezpz.train.EMA`."""

    model: Any
    updates: int

    def tensors(self) -> dict[str, Any]:
        """Return the live averages by the names of the plain model."""

    def begin_anew(self) -> None:
        """Take the weights as they are."""


class Loading(NamedTuple):
    """Tensors to be filled, and the prepared optimizer; ``problem`` says why it cannot be done."""

    tensors: dict[str, Any]
    optimizer: optimizers.Prepared | None
    source: int | None
    problem: str


def over_ranks(fingerprint: Fingerprint, together: Together) -> Fingerprint:
    """Return the fingerprint of the whole model, of which each rank of a pipeline has a stage; collective."""
    digest = blake2b(json.dumps(fingerprint, sort_keys=True).encode(), digest_size=16).digest()
    if len(set(together.gather(digest))) == 1:
        return fingerprint
    return {name: entry for each in together.gather(fingerprint) for name, entry in each.items()}


class Contents(NamedTuple):
    """The objects of a run whose state is saved."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | Optimizers | None
    schedule: Stateful | None
    state: dict[str, Stateful]
    device_type: str
    optional: set[str]  # of ``state``, what a checkpoint may lack
    completed: frozenset[str] = (
        frozenset()
    )  # of optimizer and schedule, what came with a loop: a checkpoint may lack it
    ema: Averaging | None = None

    def collect(self) -> tuple[dict[str, Any], Fingerprint]:
        """Return this rank's model and optimizer as nested dictionaries of the live tensors, and the fingerprint."""
        model = get_model_state_dict(self.model)
        tensors: dict[str, Any] = {"model": {name: value for name, value in model.items() if _is_tensor(value)}}
        extra = {name: pack(value, f"the state of {name}") for name, value in model.items() if not _is_tensor(value)}
        if extra:
            tensors["extra"] = extra
        if self.optimizer is not None:
            tensors["optimizer"] = optimizers.collect(self.model, self.optimizer)
        if self.ema is not None:
            tensors["ema"] = self._averages()
        return tensors, {name: _described(value) for name, value in model.items()}

    def _averages(self) -> dict[str, Any]:
        """Return the averages of weights by the names that these have in the checkpoint."""
        if self.ema is None:
            return {}
        words = self.model.items() if isinstance(self.model, Models) else ()
        before = next((f"{word}." for word, each in words if each is self.ema.model), "")
        return {f"{before}{name}": each for name, each in self.ema.tensors().items()}

    def fingerprint(self) -> Fingerprint:
        """Return name, format and whole shape of every entry of the model's state on this rank."""
        return {name: _described(value) for name, value in get_model_state_dict(self.model).items()}

    def objects(self) -> torch.Tensor:
        """Return schedule, further objects and options of the optimizer as a tensor of bytes."""
        objects: dict[str, Any] = {"state": {name: each.state_dict() for name, each in self.state.items()}}
        for name, state in objects["state"].items():
            pack(state, f"state {name!r}")  # an error shall name the object
        if self.schedule is not None:
            objects["schedule"] = self.schedule.state_dict()
        if self.optimizer is not None:
            objects["groups"] = optimizers.group_options(self.optimizer)
        if self.ema is not None:
            objects["ema_updates"] = self.ema.updates
        config = hugging_face_config(self.model)
        if config:
            objects["hugging_face_config"] = config
        return pack(objects, "the schedule or the options of the optimizer")

    def random(self) -> torch.Tensor:
        """Return the state of this rank's random numbers as a tensor of bytes."""
        return pack(capture(self.device_type), "the random numbers")

    def objection(self, manifest: Manifest, fingerprint: Fingerprint) -> str:
        """Return why a checkpoint does not fit these objects, without changing anything; "" if it does.

        Args:
            manifest: What the checkpoint says.
            fingerprint: Of the model over all ranks.
        """
        differences = _differences(manifest.model, fingerprint)
        if differences:
            more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
            return f"it is of another model: {'; '.join(differences[:3])}{more}"
        if self.optimizer is not None and not self._begins_anew("optimizer", manifest.optimizer):
            is_whole = fingerprint == self.fingerprint()  # stages of a pipeline count their own parameters
            problem = optimizers.objection(self.optimizer, manifest.optimizer, is_whole=is_whole)
            if problem:
                return problem
        schedule = kind_of(self.schedule) if self.schedule is not None else ""
        if schedule and schedule != manifest.schedule and not self._begins_anew("schedule", manifest.schedule):
            return f"its schedule is {manifest.schedule or 'none'}, and this one is {schedule}"
        lacking = sorted(self.state.keys() - set(manifest.state) - self.optional)
        return f"it has no state {lacking[0]!r}; it has {', '.join(manifest.state) or 'none'}" if lacking else ""

    def _begins_anew(self, what: str, saved: object) -> bool:
        return not saved and what in self.completed

    def tied(self) -> list[tuple[str, ...]]:
        """Return the names of weights of which the model has one under several names, as far as this rank can see."""
        names: dict[Any, list[str]] = {}
        for name, value in get_model_state_dict(self.model).items():
            if _is_tensor(value) and _local(value).numel():
                part = _local(value)
                names.setdefault((part.data_ptr(), part.stride(), part.shape, value.shape), []).append(name)
        return [tuple(each) for each in names.values() if len(each) > 1]

    def scratch(self, names: Iterable[str]) -> dict[str, Any]:
        """Return tensors to fill, as those of the model that this rank has under these names."""
        model = get_model_state_dict(self.model)
        return {name: torch.empty_like(model[name]) for name in names if name in model}

    def prepare(self, manifest: Manifest, metadata: Any, layout: Layout) -> Loading:
        """Return tensors to fill: the model's own, and new ones for the rest."""
        places = places_of(metadata)
        model = {name: value for name, value in get_model_state_dict(self.model).items() if _is_tensor(value)}
        source = source_of(layout, manifest)
        objects = source if manifest.own_objects and source is not None else 0
        wanted = [("objects", f"rank-{objects}"), ("random", f"rank-{source or 0}")]
        wanted += [("extra", name) for name, (kind, _) in manifest.model.items() if not kind]
        lacking = [path for path in [*wanted, *(("model", name) for name in model)] if path not in places]
        if lacking:
            return Loading({}, None, None, f".metadata has no {'/'.join(lacking[0])}")
        tensors: dict[str, Any] = {"model": model}
        for part, name in wanted:
            tensors.setdefault(part, {})[name] = torch.empty(places[part, name].size, dtype=torch.uint8)
        averages = self._averages() if any(path[0] == "ema" for path in places) else {}
        lost = next((name for name in averages if ("ema", name) not in places), "")
        if lost:
            return Loading({}, None, None, f"it averages other weights: not {lost}")
        if averages:
            tensors["ema"] = averages
        if self.optimizer is None or manifest.optimizer is None:
            return Loading(tensors, None, source, "")
        fresh = bool(manifest.optimizer["fresh"])
        prepared = optimizers.prepare(
            self.model, self.optimizer, places, fresh=fresh, groups=manifest.optimizer["groups"]
        )
        problem = f"its optimizer is another one: {prepared.problem}" if prepared.problem else ""
        return Loading({**tensors, "optimizer": prepared.tensors}, prepared, source, problem)

    def apply(self, loading: Loading, layout: Layout, manifest: Manifest) -> list[str]:
        """Let every object take up what the filled tensors hold, random numbers last; return what to tell of it."""
        given = self._given_rates()
        extra = {name: unpack(value, "extra", name) for name, value in loading.tensors.get("extra", {}).items()}
        set_model_state_dict(self.model, {**loading.tensors["model"], **extra})
        (objects,) = (unpack(value, "objects", name) for name, value in loading.tensors["objects"].items())
        if loading.optimizer is not None:
            optimizers.apply(loading.optimizer, objects["groups"])
        if self.schedule is not None and "schedule" in objects:
            origins = loading.optimizer.sources if loading.optimizer is not None else []
            self.schedule.load_state_dict(
                optimizers.regrouped(objects["schedule"], len(objects.get("groups", ())), origins)
            )
        for name, each in self.state.items():
            if name in objects["state"] or name not in self.optional:
                each.load_state_dict(objects["state"][name])
        (random,) = (unpack(value, "random", name) for name, value in loading.tensors["random"].items())
        if loading.source is None:
            derive(random, f"data-parallel place {layout.place}", self.device_type)
        else:
            restore(random, self.device_type)
        if self.ema is not None and "ema" in loading.tensors:
            self.ema.updates = int(objects["ema_updates"])
        elif self.ema is not None:
            self.ema.begin_anew()
        saved = {"optimizer": manifest.optimizer, "schedule": manifest.schedule}
        anew = [what for what in sorted(self.completed) if self._begins_anew(what, saved[what])]
        remarks = [f"it has no {what}: the loop's begins anew, as in step 0" for what in anew]
        if self.ema is not None and "ema" not in loading.tensors:
            remarks.append("it has no average of weights: that begins anew with its weights")
        return remarks + self._unused(given)

    def _given_rates(self) -> list[float]:
        """Return the learning rates that groups began with; none where a schedule of which this knows nothing rules."""
        if self.optimizer is None:
            return []
        groups = self.optimizer.param_groups
        if self.schedule is None and any("initial_lr" in group for group in groups):
            return []
        return [float(group.get("initial_lr", group.get("lr", 0.0))) for group in groups]

    def _unused(self, given: list[float]) -> list[str]:
        """Say that learning rates given to the optimizer are not those of the checkpoint, which count."""
        counts = self._given_rates()
        if not given or not counts or given == counts:
            return []
        now, then = (" and ".join(dict.fromkeys(f"{rate:g}" for rate in rates)) for rates in (given, counts))
        return [f"its learning rate counts, {then}; {now}, given now, is not used"]


def differing(tied: Iterable[tuple[str, ...]], filled: Mapping[str, Any]) -> str:
    """Say which weights are several in a checkpoint and one in this model; "" if there are none.

    Args:
        tied: Names of weights that are one here.
        filled: What the checkpoint has under them.
    """
    for first, *others in tied:
        for other in others:
            if first in filled and not _are_equal(filled[first], filled[other]):
                return f"its {other} is no copy of {first}, as in this model"
    return ""


def _are_equal(one: Any, other: Any) -> bool:
    """Compare bytes, so that NaN is equal to itself."""
    parts = [_local(each).contiguous().reshape(-1).view(torch.uint8) for each in (one, other)]
    return bool(torch.equal(*parts))


def _local(value: Any) -> Any:
    return value.to_local() if hasattr(value, "to_local") else value


def staged(tree: Any) -> Any:
    """Return nested dictionaries of tensors as copies on the CPU, which the training does not change."""
    if isinstance(tree, Mapping):
        return {key: staged(value) for key, value in tree.items()}
    return tree.detach().clone() if tree.device.type == "cpu" else tree.detach().to("cpu")


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _described(value: Any) -> list[Any]:
    if not isinstance(value, torch.Tensor):
        return ["", []]
    return [str(value.dtype).removeprefix("torch."), list(value.shape)]


def _differences(saved: Fingerprint, own: Fingerprint) -> list[str]:
    differences = [f"it lacks {name}" for name in own if name not in saved]
    differences += [f"this model has no {name}" for name in saved if name not in own]
    both = [(name, saved[name], own[name]) for name in own if name in saved and saved[name] != own[name]]
    return [f"{name} is {_shown(one)} in it and {_shown(other)} here" for name, one, other in both] + differences


def _shown(entry: list[Any]) -> str:
    kind, shape = entry
    return f"{kind} {'x'.join(map(str, shape)) or 'scalar'}" if kind else "no tensor"
