"""The settings as `--help` tells them: sections, keys, defaults, and what is known but not supported."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

from ezpz.train.settings import shown

if TYPE_CHECKING:
    from ezpz.train.settings import Key, Plan

__all__ = ["tell_settings"]

_WIDTH = 120
_COLUMN = 34  # where texts begin, as those of the options do


def tell_settings(plan: Plan) -> str:
    """Return all keys by section, each with its text, what it takes and its default."""
    first = next(iter(plan.keys))
    lines = [f"settings, typed as --{first} VALUE or {first}=VALUE; a boolean may stand alone:"]
    if plan.files:
        lines.append(f"(also in a TOML file: {' or '.join(plan.files.values())} FILE; what is typed stands above it)")
    if plan.groups:
        lines.append(f"(several at once: {', '.join(f'{group}=NAME' for group in plan.groups)})")
    if plan.fallback:
        lines.append(f"(without a file or --preset: --preset {plan.fallback})")
    for section, names in _by_section(plan).items():
        lines += ["", f"[{section}]"]
        reasons: dict[str, list[str]] = {}
        for name in names:
            key = plan.keys[f"{section}.{name}"]
            if key.rule.only:
                reasons.setdefault(key.rule.only, []).append(_refused(name, key))
            else:
                lines += _entry(name, key)
        for why, refused in reasons.items():
            lines += _wrapped(f"not supported: {', '.join(refused)} ({why})", "  ", "    ")
    return "\n".join([*lines, *_other_names(plan)])


def _by_section(plan: Plan) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    for name in plan.keys:
        section, _, key = name.partition(".")
        sections.setdefault(section, []).append(key)
    return sections


def _entry(name: str, key: Key) -> list[str]:
    rule, head = key.rule, f"  {name} "
    choices = f": {', '.join(rule.choices)}" if rule.choices else ""
    lines = _wrapped(f"{rule.help}{choices}{_default(key)}", " " * _COLUMN, " " * _COLUMN)
    if len(head) > _COLUMN:
        return [head.rstrip(), *lines]
    return [f"{head:{_COLUMN}}{lines[0].lstrip()}", *lines[1:]]


def _refused(name: str, key: Key) -> str:
    return name if key.default in {None, False, "", ()} else f"{name} other than {key.default}"


def _default(key: Key) -> str:
    if key.default in {None, "", ()}:
        return ""
    return f" ({key.default if isinstance(key.default, str) else shown(key.default)})"


def _other_names(plan: Plan) -> list[str]:
    """Return the aliases; those that moved to another section under the same name in one line."""
    lines: list[str] = []
    moved: dict[tuple[str, str], list[str]] = {}
    for other, (own, opposite) in plan.names.items():
        (section, _, key), (own_section, _, own_key) = other.partition("."), own.partition(".")
        if key == own_key and section != own_section and not opposite:
            moved.setdefault((section, own_section), []).append(key)
        elif other != own:
            lines.append(f"  {other} = {'not ' if opposite else ''}{own}")
    for (section, own_section), keys in moved.items():
        told = f"{section}.KEY = {own_section}.KEY, where KEY is {', '.join(keys)}"
        lines += _wrapped(told, "  ", "    ")
    return ["", "other names:", *lines] if lines else []


def _wrapped(text: str, first: str, others: str) -> list[str]:
    return wrap(text, _WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)
