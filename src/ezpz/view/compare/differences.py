"""List the settings that differ between two runs, the likeliest to change numbers first."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from ezpz.view.compare.kinds_of_settings import Kind
from ezpz.view.compare.setting_differences import Setting, is_rate, settings_of
from ezpz.visible import shorten, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.records.run_record import RunRecord

    _Settings = dict[tuple[str, str], Setting]


# Differences as people read them: one line for each, equal ones of many layers in one, long values shortened.

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)|(?<=\.)\d+$")


@dataclass(frozen=True)
class Line:
    """One line: a key, in which ``*`` replaces the numbers of layers, and the differences that it shows."""

    key: str
    members: tuple[Difference, ...]


def folded(items: Sequence[Difference]) -> list[Line]:
    """Put differences of one kind in many layers, ``blocks.0`` to ``blocks.23``, on one line; the order stays."""
    places: dict[object, list[Difference]] = {}
    for item in items:
        pattern = item.key if is_rate(item.key) else _NUMBER.sub("*", item.key)
        name = (item.section, pattern, item.change, json.dumps([item.a, item.b]))
        places.setdefault(name, []).append(item)
    return [
        Line(members[0].key if len(members) == 1 else _NUMBER.sub("*", members[0].key), tuple(members))
        for members in places.values()
    ]


def change_of(item: Difference, width: int) -> str:
    """Return ``0.0 -> 0.1``, ``only in B: 0.1``, or what a long list lost and won, in at most ``width`` characters."""
    if item.change != "changed":
        value = item.a if item.change.endswith(" A") or item.b is None else item.b
        return f"{item.change}: {shorten(text_of(value), max(8, width - len(item.change) - 2))}"
    if isinstance(item.a, list) and isinstance(item.b, list) and len(item.a) + len(item.b) > 2:
        lost = [f"-{text_of(value)}" for value in item.a if value not in item.b]
        won = [f"+{text_of(value)}" for value in item.b if value not in item.a]
        if lost or won:
            return shorten(" ".join([*lost, *won]), width)
    each = max(8, (width - 4) // 2)
    one, two = text_of(item.a), text_of(item.b)
    if len(one) + len(two) + 4 > width:
        one, two = _around_the_change(one, two, each)
    return f"{one} -> {two}"


def text_of(value: object) -> str:
    """Return a value of JSON as a person writes it."""
    if isinstance(value, str):
        return visible(value) or "''"
    if isinstance(value, float):
        text = f"{value:.6g}"
        text = text if math.isclose(float(text), value, rel_tol=1e-9) else f"{value:.12g}"
        return text if set(text) & set(".en") else f"{text}.0"  # a dropout of 0.0, not 0
    return json.dumps(value) if value is not None else "none"


def _around_the_change(one: str, two: str, width: int) -> tuple[str, str]:
    """Shorten two long texts so that the place where they differ stays in sight."""
    same = sum(1 for _ in next(iter(groupby(a == b for a, b in zip(one, two, strict=False))), (False, ()))[1])
    same = same if one[:1] == two[:1] else 0
    start = max(0, same - width // 3)
    if start:
        one, two = f"..{one[start:]}", f"..{two[start:]}"
    return tuple(text if len(text) <= width else f"{text[: width - 2]}.." for text in (one, two))  # type: ignore[return-value]  # two in, two out


# Kinds of effective values that make another training of it; dtypes and flags of how it is computed show in the curves.
_MATERIAL = {Kind.STOCHASTIC, Kind.SCHEDULE, Kind.OPTIMIZER, Kind.DTYPE, Kind.MODEL}
_OF_MODEL = {"model.parameters", "model.trainable", "model.class"}
# Of a decisive kind by their names; but they only count, or say where a scheduler stood when it was looked at.
_BESIDES = re.compile(
    r"optimizer\.(more_groups|groups\.\d+\.(parameters|tensors))|schedule\.(.*\.)?(step|wrappers|note|verbose)"
)
# What a scheduler of torch leaves in the optimizer that it steps: where only one run has it, so is the scheduler.
_SCHEDULED = re.compile(r"optimizer\.(.+\.)?initial_lr")
_CLASS = ("effective", "schedule.class")
_IN_CONFIG = {Kind.STOCHASTIC, Kind.SCHEDULE, Kind.OPTIMIZER}  # without effective values, the configuration must do


@dataclass(frozen=True)
class Difference:
    """One setting that differs.

    Attributes:
        section: Part of ``run.json``: ``effective``, ``config``, ``environment``, …
        key: Dotted name in it.
        change: ``changed``, ``only in A`` or ``only in B``, where A and B are the two runs' letters.
        a: Value in the first run, None where it has none.
        b: Value in the second.
        group: Heading under which it is shown.
        kind: The setting's kind.
        material: Whether it makes the runs different even where their curves agree.
        step: The step from which on it differs; None where it does from the start, or that is not known.
    """

    section: str
    key: str
    change: str
    a: object
    b: object
    group: str
    kind: Kind
    material: bool
    step: int | None = None


def differences(first: RunRecord, second: RunRecord, letters: tuple[str, str] = ("A", "B")) -> list[Difference]:
    """Compare what two ``run.json`` say.

    Args:
        first: The record of the first run.
        second: That of the second.
        letters: How the runs are called.

    Returns:
        What differs, the likeliest to change numbers first. Effective values are compared of objects that were read in
        both.
    """
    ours, theirs = settings_of(first), settings_of(second)
    read = _read_of(first) & _read_of(second)
    ours, theirs = _with_groups_told(ours, theirs)
    one_scheduler = "optimizer" in read and _is_marked(ours) != _is_marked(theirs)
    if one_scheduler:
        ours, theirs = _with_scheduler(ours), _with_scheduler(theirs)
    ordered: list[tuple[tuple[int, int, int, list[tuple[int, str]]], Difference]] = []
    for place in {**ours, **theirs}:
        one, two = ours.get(place), theirs.get(place)
        setting = one or two
        if (
            setting is None
            or (one and two and same(one.value, two.value))
            or _is_unseen(place, not (one and two), read)
        ):
            continue
        change = "changed" if one and two else f"only in {letters[0] if one else letters[1]}"
        values = (one.value if one else None, two.value if two else None)
        material = _is_material(place, setting, values, read) or (one_scheduler and place == _CLASS)
        item = Difference(*place, change, *values, setting.group, setting.kind, material)
        ordered.append(((*setting.order(), _order_of_optimizer(item), _natural(place[1])), item))
    return [item for _, item in sorted(ordered, key=lambda pair: pair[0])]


_GROUP = re.compile(r"optimizer\.groups\.(\d+)\.(.+)")
_TELLING = ("class", "lr", "weight_decay", "betas", "momentum", "eps")  # of an optimizer, what people look at first


def _order_of_optimizer(item: Difference) -> int:
    """Return what to sort settings of an optimizer by: what both have, then the telling ones."""
    name = item.key.rpartition(".")[2]
    place = _TELLING.index(name) if name in _TELLING else len(_TELLING)
    is_counted = _BESIDES.fullmatch(item.key) is not None
    one_sided = item.change != "changed" and name != "class"
    return place + 10 * one_sided + 20 * is_counted if item.kind is Kind.OPTIMIZER else 0


def _with_groups_told(ours: _Settings, theirs: _Settings) -> tuple[_Settings, _Settings]:
    """Of optimizers with other numbers of groups, compare what parameters get and not how they are grouped.

    A setting that differs between the groups of one run then reads ``0.1, 0.0 of 296 parameters``, the largest first.
    """
    groups = [_groups_of(settings) for settings in (ours, theirs)]
    if not all(groups) or groups[0].keys() == groups[1].keys():
        return ours, theirs
    return _told(ours, groups[0]), _told(theirs, groups[1])


def _groups_of(settings: _Settings) -> dict[str, dict[str, Setting]]:
    groups: dict[str, dict[str, Setting]] = {}
    for (section, key), setting in settings.items():
        match = _GROUP.fullmatch(key) if section == "effective" else None
        if match:
            groups.setdefault(match[1], {})[match[2]] = setting
    return groups


def _told(settings: _Settings, groups: dict[str, dict[str, Setting]]) -> _Settings:
    grouped = {("effective", f"optimizer.groups.{number}.{name}") for number, group in groups.items() for name in group}
    kept = {place: each for place, each in settings.items() if place not in grouped}
    names = dict.fromkeys(name for group in groups.values() for name in group)
    for name in names:
        if name in {"parameters", "tensors"}:
            continue
        shares: dict[str, int] = {}
        for group in groups.values():
            if name in group:
                count = group["parameters"].value if "parameters" in group else 0
                text = text_of(group[name].value)
                shares[text] = shares.get(text, 0) + (count if isinstance(count, int) else 0)
        first = next(group[name] for group in groups.values() if name in group)
        most, *others = sorted(shares, key=lambda text: -shares[text])
        told = ", ".join([most, *(f"{text} of {shares[text]} parameters" for text in others)])
        kept["effective", f"optimizer.groups.{name}"] = replace(first, value=told) if others else first
    return kept


def _with_scheduler(settings: _Settings) -> _Settings:
    """Name a scheduler as what it is, and not by the ``initial_lr`` that it leaves; the other run has none."""
    kept = {place: setting for place, setting in settings.items() if not _is_mark(place)}
    if len(kept) < len(settings) and _CLASS not in kept:
        left = next(setting for place, setting in settings.items() if _is_mark(place))
        kept[_CLASS] = replace(left, kind=Kind.SCHEDULE, value="a scheduler that was not given to log_config")
    return kept


def _is_marked(settings: _Settings) -> bool:
    return any(map(_is_mark, settings))


def _is_mark(place: tuple[str, str]) -> bool:
    return place[0] == "effective" and _SCHEDULED.fullmatch(place[1]) is not None


def _natural(name: str) -> list[tuple[int, str]]:
    """Return what sorts ``blocks.2`` before ``blocks.10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]


def _read_of(record: RunRecord) -> set[str]:
    """Return which live objects were read: ``model``, ``module`` (its settings), ``optimizer``, ``schedule``."""
    return {_object_of(name) for name in record.effective.raw}


def _object_of(name: str) -> str:
    first = name.partition(".")[0]
    return first if first in {"optimizer", "schedule", "module"} else "model"


def _is_unseen(place: tuple[str, str], one_sided: bool, read: set[str]) -> bool:
    """Tell whether a setting is in one run only because the other was not looked at, or says nothing there."""
    section, key = place
    if not one_sided:
        return False
    return section in {"run", "ranks"} or (section == "effective" and _object_of(key) not in read | {"schedule"})


def _is_material(place: tuple[str, str], setting: Setting, values: tuple[object, object], read: set[str]) -> bool:
    """Tell whether a difference matters although curves agree; ``read`` are the objects that were read in both runs."""
    section, key = place
    if setting.kind is Kind.STOCHASTIC and not any(_is_on(value) for value in values):
        return False  # a dropout of 0 that only one model has
    if section != "effective":
        return section == "config" and not read and setting.kind in _IN_CONFIG
    if _BESIDES.fullmatch(key) or (is_rate(key) and None in values) or _object_of(key) not in read:
        return False  # the second: schedules that were asked at other steps
    return key in _OF_MODEL if setting.kind is Kind.MODEL else setting.kind in _MATERIAL


def _is_on(value: object) -> bool:
    number = _number(value)
    return bool(value) if number is None else number != 0


def same(a: object, b: object) -> bool:
    """Tell whether two values of a setting are the same: ``1`` and ``1.0`` and ``"1"`` are, as tools write them."""
    if a == b:
        return True
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    x, y = _number(a), _number(b)
    if isinstance(x, int) and isinstance(y, int):
        return x == y
    if x is not None and y is not None:
        return math.isclose(x, y, rel_tol=1e-9)  # what one tool printed and another did not
    return not isinstance(a, list) and not isinstance(b, list) and str(a).lower() == str(b).lower()


def _number(value: object) -> int | float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        return None
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        return None
