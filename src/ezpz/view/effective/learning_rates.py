"""Predict the learning rates of a scheduler by stepping a stand-in: the live one is only read.

Schedulers of ``torch.optim.lr_scheduler``, and classes of others that leave their ``step`` alone. The stand-in is a
copy of the scheduler's fields around a copy of the optimizer's groups without their tensors. It is stepped 1,000 times;
beyond that torch's own closed form is asked, where a scheduler has one. Paths: ``_get_closed_form_lr`` of torch 2.4 to
2.13.
"""

from __future__ import annotations

import copy
import warnings
from bisect import bisect_right
from typing import Any

_STEPS = (0, 1, 10, 100, 1000)
_MOST_STEPS = 1000  # 10 ms of stepping
_TOTALS = ("total_steps", "T_max", "total_iters", "T_0", "step_size")  # after so many steps something has happened
_KEYWORDS = (
    "num_training_steps",
    "total_steps",
    "max_steps",
    "total_iters",
)  # of a partial function, as transformers has it
_OWN_NUMBERS = {"last_epoch", "verbose"}


def describe_schedule(scheduler: Any) -> dict[str, object]:
    """Return the ``schedule`` entries of `ezpz.view.effective`.

    Args:
        scheduler: A scheduler, possibly inside accelerate's; neither it nor its optimizer is changed.

    Returns:
        ``schedule.class``, its settings that are numbers, and ``schedule.lr``: the rate of the first group by step,
        from the present step on; ``schedule.groups.1.lr`` where another group's differs. ``schedule.note`` says why the
        rates are missing.
    """
    facts: dict[str, object] = {}
    inner = getattr(scheduler, "scheduler", None)
    if hasattr(inner, "step"):
        facts["schedule.wrappers"] = [type(scheduler).__name__]
        scheduler = inner
    facts["schedule.class"] = type(scheduler).__name__
    facts.update(_settings("schedule", scheduler))
    for index, part in enumerate(getattr(scheduler, "_schedulers", ())):
        facts[f"schedule.{index}.class"] = type(part).__name__
        facts.update(_settings(f"schedule.{index}", part))
    refusal = _refusal(scheduler)
    if refusal:
        return {**facts, "schedule.note": refusal}
    try:
        rates = _rates(scheduler)
    except Exception as error:  # noqa: BLE001  # a user's own get_lr may raise anything, and training must continue
        return {**facts, "schedule.note": f"its rates cannot be predicted: {error!r}"}
    for group in range(len(next(iter(rates.values())))):
        name = "schedule.lr" if group == 0 else f"schedule.groups.{group}.lr"
        by_step = {str(step): values[group] for step, values in sorted(rates.items())}
        if group == 0 or by_step != facts["schedule.lr"]:
            facts[name] = by_step
    return facts


def _settings(name: str, scheduler: Any) -> dict[str, object]:
    settings: dict[str, object] = {}
    for key, value in getattr(scheduler, "__dict__", {}).items():
        if key.startswith("_") or key in _OWN_NUMBERS:
            continue
        if type(value) in {int, float, str, bool}:
            settings[f"{name}.{key}"] = value
        elif key == "milestones":
            settings[f"{name}.{key}"] = sorted(value)[:8]
    if _position(scheduler) > 0:
        settings[f"{name}.step"] = _position(scheduler)
    return settings


def _position(scheduler: Any) -> int:
    """Return the step that a scheduler is at; ChainedScheduler counts none itself."""
    parts = getattr(scheduler, "_schedulers", None)
    position: int = getattr(scheduler, "last_epoch", None) or (_position(parts[0]) if parts else 0)
    return position


def _refusal(scheduler: Any) -> str:
    """Return why a scheduler must not or cannot be stepped ahead; empty if it can."""
    if type(scheduler).__name__ == "ReduceLROnPlateau":
        return "its rates depend on a metric"
    home = next((kind for kind in type(scheduler).__mro__ if "step" in vars(kind)), None)
    if home is None or home.__module__ != "torch.optim.lr_scheduler":
        return "its rates cannot be predicted: its step() is not torch's, and might do more than count"
    return next(filter(None, (_refusal(part) for part in getattr(scheduler, "_schedulers", ()))), "")


def _rates(scheduler: Any) -> dict[int, list[float]]:
    """Return the rates of all groups at the steps of interest, none before the present one."""
    stand_in = _stand_in(scheduler, _Optimizer(scheduler.optimizer))
    begin = max(int(_position(scheduler)), 0)
    wanted = sorted(step for step in {*_STEPS, begin, *_landmarks(scheduler)} if step >= begin)
    rates: dict[int, list[float]] = {}
    now = begin
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an order of calls that a stand-in does not keep
        for step in (step for step in wanted if step <= begin + _MOST_STEPS):
            try:
                for _ in range(step - now):
                    type(stand_in).step(stand_in)
            except ValueError:  # OneCycleLR ends
                return rates
            now = step
            rates[step] = [float(group["lr"]) for group in stand_in.optimizer.param_groups]
        for step in (step for step in wanted if step > begin + _MOST_STEPS):
            values = _closed(stand_in, step)
            if values is None:
                break
            rates[step] = [float(value) for value in values]
    return rates


def _landmarks(scheduler: Any) -> set[int]:
    """Return steps at which a schedule has come to 10 %, 50 % and all of its length, and its milestones."""
    totals = [getattr(scheduler, name, None) for name in _TOTALS]
    for function in getattr(scheduler, "lr_lambdas", ()):
        keywords = getattr(function, "keywords", None) or {}
        totals += [keywords.get(name) for name in _KEYWORDS]
    steps: set[int] = set()
    for total in totals:
        if isinstance(total, int) and total > 0:
            last = total - 1 if hasattr(scheduler, "_schedule_phases") else total  # OneCycleLR refuses one step more
            steps |= {total // 10, total // 2, last}
    milestones: list[int] = sorted(getattr(scheduler, "milestones", None) or getattr(scheduler, "_milestones", []))[:8]
    steps |= set(milestones)
    if milestones and hasattr(scheduler, "_schedulers"):
        steps |= {milestones[-1] + step for step in _landmarks(scheduler._schedulers[-1])}  # noqa: SLF001  # found nowhere else
    return steps


def _closed(scheduler: Any, step: int) -> list[Any] | None:
    """Return the rates at a far step without stepping there; None where a scheduler has no closed form."""
    name = type(scheduler).__name__
    if name == "SequentialLR":
        index = bisect_right(scheduler._milestones, step)  # noqa: SLF001  # as above
        begin = scheduler._milestones[index - 1] if index else 0  # noqa: SLF001  # as above
        return _closed(scheduler._schedulers[index], step - begin)  # noqa: SLF001  # as above
    scheduler.last_epoch = step
    if hasattr(scheduler, "_get_closed_form_lr"):
        return list(type(scheduler)._get_closed_form_lr(scheduler))  # noqa: SLF001  # torch's, without a public name
    if name in {"LambdaLR", "OneCycleLR", "CyclicLR"}:  # their get_lr looks at the number of the step alone
        return list(type(scheduler).get_lr(scheduler))
    return None


class _Optimizer:
    """What a scheduler needs of an optimizer: groups of settings, and a step that it believes to have been called."""

    def __init__(self, optimizer: Any) -> None:
        self.param_groups = [
            {name: _number(value) for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]

    def step(self) -> None:
        """Do nothing: no weights are here."""


def _stand_in(scheduler: Any, optimizer: _Optimizer) -> Any:
    twin = object.__new__(type(scheduler))
    for name, value in vars(scheduler).items():
        if value is scheduler.optimizer:
            twin.__dict__[name] = optimizer
        elif name == "_schedulers":
            twin.__dict__[name] = [_stand_in(part, optimizer) for part in value]
        elif name == "lr_lambdas":
            twin.__dict__[name] = [_own_function(function) for function in value]
        else:
            twin.__dict__[name] = _number(value)
    return twin


def _number(value: Any) -> Any:
    """Return a setting that is not shared with the live object: a tensor as its number, a list as a new one."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return value.item()
    if isinstance(value, (list, tuple)):
        return type(value)(_number(item) for item in value)
    return copy.copy(value) if isinstance(value, dict) else value


def _own_function(function: Any) -> Any:
    """Return a copy of an object that is called for a rate and may count the calls; a plain function as it is."""
    fields = getattr(function, "__dict__", None)
    is_object = "__call__" in vars(type(function)) and type(function).__module__ not in {"builtins", "functools"}
    return copy.copy(function) if is_object and fields else function
