"""The keys of a configuration: what each may hold, and how a typed word or a value of a file becomes that."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from ezpz.cli_parser import did_you_mean
from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["BOOLEANS", "Key", "Rule", "keys_of", "shown"]

BOOLEANS = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False, "1": True, "0": False}
_NOTHING = {"none", "null"}
_WHOLE = re.compile(r"[+-]?[0-9]+(_[0-9]+)*")  # as TOML writes them
_WHAT = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    tuple: "a list of words",
}


@dataclass(frozen=True)
class Rule:
    """What `setting` says about a key, see there."""

    help: str
    choices: tuple[str, ...] = ()
    spellings: Mapping[str, object] = field(default_factory=dict)
    least: float | None = None
    most: float | None = None
    above: float | None = None
    only: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[Any], str] | None = None
    in_files: bool = True


@dataclass(frozen=True)
class Key:
    """One key: ``training.seq_len``, the type of its value, and its rule."""

    name: str
    kind: type
    optional: bool
    default: object
    rule: Rule

    def read(self, given: object, name: str, origin: str) -> object:
        """Return what was given as the value of this key.

        Args:
            given: Text from the command line, or a value of a TOML file or preset.
            name: The name that was used for the key, for errors.
            origin: Where it was given, for errors.

        Raises:
            UsageError: It has the wrong type or is out of range, or is known and not supported.
        """
        value = self._spelled(given)
        if isinstance(value, str) and value in self.rule.refused:
            raise self._unsupported(given, name, origin, self.rule.refused[value])
        expected = self._wrong(value)
        if expected:
            word = str(given)
            near = did_you_mean(word, self.rule.choices) or did_you_mean(word, self.rule.spellings)
            raise UsageError(f"{name}={shown(given)} is wrong (from {origin}); expected {expected}.{near}")
        if self.rule.only and value != self.default:
            raise self._unsupported(given, name, origin, self.rule.only)
        return value

    def _unsupported(self, given: object, name: str, origin: str, why: str) -> UsageError:
        expected = ", ".join(self.rule.choices) if self.rule.refused else shown(self.default)
        return UsageError(
            f"{name}={shown(given)} is not supported: {why} (from {origin}); expected {expected}. Leave it out."
        )

    def _spelled(self, given: object) -> object:
        """Return the value that is meant: a number where a whole one was written, a tuple for a list."""
        if isinstance(given, str):
            return self._meant(given)
        if self.kind is float and type(given) is int:
            return float(given)
        return tuple(given) if self.kind is tuple and isinstance(given, list) else given

    def _meant(self, text: str) -> object:
        plain = text.lower()
        if self.optional and plain in _NOTHING:
            return None
        if plain in self.rule.spellings:
            return self.rule.spellings[plain]
        if self.kind is tuple:
            return tuple(word.strip() for word in text.split(",") if word.strip())
        names = (*self.rule.choices, *self.rule.refused)
        return text if text in names else next((name for name in names if name.lower() == plain), text)

    def typed(self, text: str) -> object:
        """Return a word of the command line as the type that it has to have, or the word where it is none."""
        plain = text.lower()
        if self.optional and (plain in _NOTHING or not text):
            return None
        if self.kind is bool:
            return BOOLEANS.get(plain, text)
        if self.kind is int and _WHOLE.fullmatch(text):
            return int(text)
        if self.kind is float:
            try:
                return float(text)
            except ValueError:
                return text
        return text

    def _wrong(self, value: object) -> str:
        """Return what was expected instead of this value, or nothing."""
        rule = self.rule
        if value is None and self.optional:
            return ""
        fits = type(value) is self.kind
        if fits and self.kind is tuple:
            fits = all(isinstance(word, str) for word in value)  # type: ignore[attr-defined]  # a tuple, as tested
        if fits and isinstance(value, (int, float)) and self.kind is not bool:
            fits = (
                math.isfinite(value)
                and (rule.least is None or value >= rule.least)
                and (rule.most is None or value <= rule.most)
                and (rule.above is None or value > rule.above)
            )
        if fits and rule.choices:
            fits = value in rule.choices
        if fits and rule.check is not None:
            return rule.check(value)
        return "" if fits else self.expected()

    def expected(self) -> str:
        """Return in words what this key may hold."""
        rule = self.rule
        told = f"one of {', '.join(rule.choices)}" if rule.choices else _WHAT[self.kind]
        if rule.above is not None:
            told += f" above {_number(rule.above)}"
        if rule.least is not None:
            told += f" from {_number(rule.least)} {'on' if rule.most is None else f'to {_number(rule.most)}'}"
        elif rule.most is not None:
            told += f" up to {_number(rule.most)}"
        return f"{told}, or none" if self.optional else told


def keys_of(kind: type) -> dict[str, Key]:
    """Return the keys of a configuration by their names: ``section.key``, in the order of the class.

    Raises:
        TypeError: A field is no `setting`, or has a type that no word can be read as.
    """
    keys: dict[str, Key] = {}
    for section, section_kind in get_type_hints(kind).items():
        hints = get_type_hints(section_kind)
        for member in dataclasses.fields(section_kind):
            name = f"{section}.{member.name}"
            if "rule" not in member.metadata:
                raise TypeError(f"{name} is no setting(...)")
            plain, optional = _plain(hints[member.name])
            if plain not in _WHAT:
                raise TypeError(
                    f"{name} is {plain}; expected bool, int, float, str, tuple[str, ...], or one of them | None"
                )
            keys[name] = Key(name, plain, optional, member.default, member.metadata["rule"])
    return keys


def _plain(hint: Any) -> tuple[Any, bool]:
    """Return ``int`` and True for ``int | None``, ``tuple`` and False for ``tuple[str, ...]``."""
    parts = get_args(hint)
    if type(None) in parts:
        (hint,) = (part for part in parts if part is not type(None))
        return get_origin(hint) or hint, True
    return get_origin(hint) or hint, False


def _number(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def shown(value: object) -> str:
    """Return a value as people type it."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "''"
    return repr(value) if isinstance(value, str) else str(value)
