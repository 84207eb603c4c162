"""What a trainer's settings are, and the values that they have in the end: defaults, preset, file, command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_type_hints

from ezpz.cli_parser import did_you_mean
from ezpz.errors import UsageError
from ezpz.train.settings import COMMAND_LINE, Words, unknown_key
from ezpz.train.settings_file import read_settings_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ezpz.train.settings_file import SettingsFile
    from ezpz.train.settings_keys import Key

__all__ = ["Plan", "resolve"]

_NOT = "not "  # of an alias that means the opposite


@dataclass(frozen=True)
class Plan:
    """The settings of one trainer.

    Attributes:
        kind: The dataclass of the whole configuration.
        keys: Every key by its name, ``section.key``.
        names: Every name that a key has to the name in `keys`, and whether it means the opposite.
        files: Options that name a TOML file, without their dashes, to the option as it is written.
        groups: Name of a group to what a choice in it sets.
        presets: Name of a preset to the values of keys that it sets.
        fallback: The preset where neither a preset nor a file is named.
    """

    kind: type
    keys: Mapping[str, Key]
    names: Mapping[str, tuple[str, bool]]
    files: Mapping[str, str]
    groups: Mapping[str, Callable[[str], Mapping[str, object]]]
    presets: Mapping[str, Mapping[str, object]]
    fallback: str = ""

    def key(self, name: str) -> Key:
        """Return the key that has this name, its own or another."""
        return self.keys[self.names[name][0]]

    def wanted(self, name: str) -> str:
        """Return in words what stands behind an option of this name."""
        if name in self.files:
            return "a TOML file"
        return self.key(name).expected() if name in self.names else "a name"


@dataclass
class _Values:
    """Values by the names of keys, as layer after layer is laid over them."""

    plan: Plan
    values: dict[str, object]
    origins: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, given: object, origin: str, shown_origin: str | None = None) -> None:
        """Check a value and lay it over what was there."""
        if name not in self.plan.names:
            raise unknown_key(self.plan, name, origin)
        own, opposite = self.plan.names[name]
        value = self.plan.keys[own].read(given, name, origin)
        self.values[own] = (not value) if opposite and isinstance(value, bool) else value
        self.origins[own] = shown_origin or origin


def resolve(plan: Plan, words: Words, preset: str | None) -> tuple[Any, dict[str, str]]:
    """Return the configuration, and where each of its values came from.

    Raises:
        UsageError: A file cannot be read, or a value or name in it or among the words is wrong.
    """
    whole = _Values(plan, {name: key.default for name, key in plan.keys.items()}, dict.fromkeys(plan.keys, "default"))
    if preset is not None:
        for name, value in plan.presets[preset].items():
            whole.put(name, value, f"preset {preset}")
    for option, path in words.files.items():
        _lay_file(whole, read_settings_file(path, plan.files[option]))
    for group, choice in words.groups.items():
        for name, value in plan.groups[group](choice).items():
            whole.put(name, value, f"{group}={choice}, {COMMAND_LINE}")
    for path in words.files.values():
        for name in plan.files:
            if name in plan.keys:
                whole.put(name, path, COMMAND_LINE)
    for name, text in words.keys.items():
        whole.put(name, plan.key(name).typed(text), COMMAND_LINE)
    return _build(plan, whole.values), whole.origins


def _lay_file(whole: _Values, file: SettingsFile) -> None:
    """Lay a file's values over the others; a key that it names twice is an error, as it is in TOML itself."""
    plan = whole.plan
    named: dict[str, str] = {}
    for section, table in file.tables.items():
        if not isinstance(table, dict):
            same = [name for name in plan.names if name.endswith(f".{section}")]
            near = f" Did you mean {same[0]}?" if same else did_you_mean(section, plan.names)
            raise UsageError(
                f"{section} stands in no section (from {file.origin(section)}); expected a [section] above it.{near}"
            )
        if not any(name.startswith(f"{section}.") for name in plan.names):
            raise unknown_key(plan, f"{section}.{next(iter(table), '')}".rstrip("."), file.origin(section))
        for key, value in table.items():
            name, origin = f"{section}.{key}", file.origin(section, key)
            if name not in plan.names:
                raise unknown_key(plan, name, origin)
            own = plan.names[name][0]
            if not plan.keys[own].rule.in_files:
                raise UsageError(
                    f"{name} cannot stand in a file (from {origin}); expected it on the command line. Delete that line."
                )
            if own in named:
                raise UsageError(
                    f"{name} is {named[own]} once more (from {origin}); expected one of them. Delete that line."
                )
            named[own] = name
            whole.put(name, value, origin)


def _build(plan: Plan, values: Mapping[str, object]) -> Any:
    sections: dict[str, dict[str, object]] = {}
    for name, value in values.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, {})[key] = value
    kinds = get_type_hints(plan.kind)
    return plan.kind(**{section: kinds[section](**members) for section, members in sections.items()})
