"""Settings of a trainer in sections, from a TOML file and ``section.key=value`` on the command line.

@dataclass(frozen=True)
class Training:
    seq_len: int = setting(2048, "tokens of one sample", least=1)

@dataclass(frozen=True)
class Config:
    training: Training

parser = make_settings_parser("mine", "Train.", Config, files=("--config",), name="mine")
args = parse(parser, ["--config", "a.toml", "--training.seq_len", "128"])  # args.config.training.seq_len == 128
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NoReturn, get_args, get_origin, get_type_hints

from ezpz.errors import UsageError, did_you_mean
from ezpz.files import read_bytes
from ezpz.train.trainer_options import Parser, add_data_dir, add_output, add_preset, add_resume, set_defaults

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Mapping, Sequence


# A TOML file of settings: every value with its line.
#
# [training]
# seq_len = 2048  # as in the configuration files of torchtitan (https://github.com/pytorch/torchtitan), up to v0.2.2

_PLACE = re.compile(r"(?<!\s)\s*\(at (?:(line \d+), (column \d+)|end of document)\)")  # (at line 3, column 9)


@dataclass(frozen=True)
class SettingsFile:
    """What a file says: its tables, and the line of each name in them, ``("training", "seq_len") -> 7``."""

    name: str
    tables: dict[str, Any]
    lines: dict[tuple[str, ...], int]

    def origin(self, *path: str) -> str:
        """Return the place of a name: ``llama3_8b.toml, line 37``."""
        return f"{self.name}, line {self.lines.get(path, self.lines.get(path[:1], 1))}"


def read_settings_file(path: str, option: str) -> SettingsFile:
    """Read a TOML file.

    Args:
        path: The file.
        option: The option that named it, for errors.

    Raises:
        UsageError: It is not there, cannot be read, or is no TOML.
    """
    file, toml = Path(path), _settings_file_toml()
    try:
        text = read_bytes(file).decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        _refuse(file, error, option)
    except UnicodeDecodeError as error:
        raise UsageError(
            f"cannot read {path}: {error.reason} at byte {error.start} (from {option}); expected TOML in UTF-8. "
            "Save it as UTF-8."
        ) from None
    try:
        tables = toml.loads(text)
    except toml.TOMLDecodeError as error:
        what = str(error)
        place_match = _PLACE.search(what)
        place = ", ".join(place_match.groups()) if place_match and place_match[1] else f"line {_unfinished(text, toml)}"
        why = what[: place_match.start()] if place_match else what
        raise UsageError(
            f"cannot read {path}: {why} (from {file.name}, {place}); expected TOML. Correct that place."
        ) from None
    except (ValueError, RecursionError) as error:  # of a number with thousands of digits, and of absurd depth
        raise UsageError(f"cannot read {path}: {error} (from {option}); expected TOML. Correct that value.") from None
    return SettingsFile(file.name, tables, dict(_lines(text, toml)))


def _settings_file_toml() -> Any:
    # From 3.11 on the parser is Python's own; tomli is the same one for 3.10.
    return import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


def _refuse(file: Path, error: OSError, option: str) -> NoReturn:
    folder = file.parent
    others = sorted(other.stem for other in folder.glob("*.toml")) if folder.is_dir() else []
    near = did_you_mean(file.stem, others).replace("?", ".toml?")
    raise UsageError(
        f"cannot read {str(file)!r}: {error.strerror} (from {option}); expected a TOML file of settings.{near}"
    ) from None


def _lines(text: str, toml: Any) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield every name's path and line."""
    header: tuple[str, ...] = ()
    for began, statement, parsed in _statements(text, toml):
        if statement.lstrip().startswith("["):
            header = max(_paths(parsed), key=len)
            yield from ((header[:depth], began) for depth in range(1, len(header) + 1))
        else:
            yield from ((header + path, began) for path in _paths(parsed))


def _statements(text: str, toml: Any) -> Iterator[tuple[int, str, Any]]:
    """Yield the line on which each statement begins, its text, and what it says by itself; None when the text ends
    before it.

    The parser keeps no lines. But a statement is whole when it parses by itself, so that the parser tells where each
    begins and what it names, whatever quotes, dots or line breaks are in it.
    """
    statement, began = "", 0
    for number, line in enumerate(text.split("\n"), start=1):
        began = began if statement else number
        statement += f"{line}\n"
        try:
            yield began, statement, toml.loads(statement)
        except toml.TOMLDecodeError:
            continue
        statement = ""
    if statement:
        yield began, statement, None


def _unfinished(text: str, toml: Any) -> int:
    """Return the line of the statement whose end is missing, which the parser calls the end of the document."""
    return [began for began, _, _ in _statements(text, toml)][-1]


def _paths(table: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in table.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from _paths(value, (*above, name))


# The settings as `--help` shows them: sections, keys, defaults, and what is known but not supported.

_WIDTH = 120
_COLUMN = 34  # where texts begin, as those of the options do


def describe_settings(plan: Plan) -> str:
    """Return all keys by section, each with its text, what it takes and its default."""
    first = next(iter(plan.keys))
    lines = [f"settings, typed as --{first} VALUE or {first}=VALUE; a boolean may stand alone:"]
    if plan.files:
        lines.append(f"(also in a TOML file: {' or '.join(plan.files.values())} FILE; what is typed overrides it)")
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
        text = f"{section}.KEY = {own_section}.KEY, where KEY is {', '.join(keys)}"
        lines += _wrapped(text, "  ", "    ")
    return ["", "other names:", *lines] if lines else []


def _wrapped(text: str, first: str, others: str) -> list[str]:
    return wrap(text, _WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)


# The keys of a configuration: what each may hold, and how a typed word or a value of a file becomes that.

BOOLEANS = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False, "1": True, "0": False}
_NOTHING = {"none", "null"}
_WHOLE = re.compile(r"[+-]?[0-9]+(_[0-9]+)*")  # as TOML writes them
_MOST_DIGITS = 4000  # Python refuses to read more than 4300
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

    def read(self, given: object, name: str, origin: str, *, opposite: bool = False) -> object:
        """Return what was given as the value of this key.

        Args:
            given: Text from the command line, or a value of a TOML file or preset.
            name: The name that was used for the key, for errors.
            origin: Where it was given, for errors.
            opposite: Whether that name means the opposite of the key.

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
        if opposite and isinstance(value, bool):
            value = not value
        if self.rule.only and value != self.default:
            raise self._unsupported(given, name, origin, self.rule.only, not self.default if opposite else self.default)
        return value

    def _unsupported(self, given: object, name: str, origin: str, why: str, default: object = None) -> UsageError:
        expected = ", ".join(self.rule.choices) if self.rule.refused else shown(default)
        return UsageError(
            f"{name}={shown(given)} is not supported: {why} (from {origin}); expected {expected}. Leave it out."
        )

    def _spelled(self, given: object) -> object:
        """Return the value that is meant: a number where a whole one was written, a tuple for a list."""
        if isinstance(given, str):
            return self._meant(given)
        if self.kind is float and type(given) is int:
            return float(given) if abs(given) < 2**1023 else math.inf  # which is refused, as any number without end
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
        if self.kind is int and _WHOLE.fullmatch(text) and len(text) < _MOST_DIGITS:
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
                (type(value) is int or math.isfinite(value))
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
        text = f"one of {', '.join(rule.choices)}" if rule.choices else _WHAT[self.kind]
        if rule.above is not None:
            text += f" above {_number(rule.above)}"
        if rule.least is not None:
            text += f" from {_number(rule.least)} {'on' if rule.most is None else f'to {_number(rule.most)}'}"
        elif rule.most is not None:
            text += f" up to {_number(rule.most)}"
        return f"{text}, or none" if self.optional else text


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


# What a trainer's settings are, and the values that they have in the end: defaults, preset, file, command line.


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
        sizes: Groups that stand for a preset: a choice in one of them leaves the fallback out.
    """

    kind: type
    keys: Mapping[str, Key]
    names: Mapping[str, tuple[str, bool]]
    files: Mapping[str, str]
    groups: Mapping[str, Callable[[str], Mapping[str, object]]]
    presets: Mapping[str, Mapping[str, object]]
    fallback: str = ""
    sizes: frozenset[str] = frozenset()

    def key(self, name: str) -> Key:
        """Return the key that has this name, its own or another."""
        return self.keys[self.names[name][0]]

    def wanted(self, name: str) -> str:
        """Return in words what belongs behind an option of this name."""
        if name in self.files:
            return "a TOML file"
        return self.key(name).expected() if name in self.names else "a name"


@dataclass
class _Values:
    """Values by the names of keys, as layer after layer is laid over them."""

    plan: Plan
    values: dict[str, object]
    origins: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, given: object, origin: str) -> None:
        """Check a value and lay it over what was there."""
        if name not in self.plan.names:
            raise unknown_key(self.plan, name, origin)
        own, opposite = self.plan.names[name]
        self.values[own] = self.plan.keys[own].read(given, name, origin, opposite=opposite)
        self.origins[own] = origin


def resolve(plan: Plan, words: CommandLine, preset: str | None) -> tuple[Any, dict[str, str]]:
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
                f"{section} is in no section (from {file.origin(section)}); expected a [section] above it.{near}"
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
                    f"{name} cannot be in a file (from {origin}); expected it on the command line. Delete that line."
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


# The words of a command line that are settings: ``--training.seq_len 128``, ``training.seq-len=128``,
# ``--training.compile``.

COMMAND_LINE = "the command line"


@dataclass
class CommandLine:
    """A command line by parts.

    Attributes:
        rest: Words that are no settings, for argparse.
        keys: Text by the name of a key, as it was typed; the last one counts.
        groups: The choice in each group of settings.
        files: The TOML files, by the option that named each.
    """

    rest: list[str] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def split_words(plan: Plan, parser: SettingsParser, words: Sequence[str]) -> CommandLine:
    """Take the settings out of a command line.

    Raises:
        UsageError: A word looks like a setting and is none, or has no value.
    """
    split, rest = CommandLine(), list(words)
    known = parser.known()
    takes_value = parser.takes_value()
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        bare = name.removeprefix("--").replace("-", "_")
        ours = bare in plan.names or bare in plan.files or bare in plan.groups
        if ours and (word.startswith("--") or equals):
            text = value if equals else _next_value(plan, bare, name, rest)
            _put(plan, split, bare, text)
        elif "." in bare and (word.startswith("--") or (equals and _is_name(bare))):
            raise unknown_key(plan, bare, COMMAND_LINE)
        elif equals and not word.startswith("-") and f"__{bare}" in known:
            split.rest.append(f"{known[f'__{bare}']}={value}")  # outdir=D, as people type it beside train.max_iters=5
        else:
            split.rest.append(word)
            if not equals and word.startswith("--") and takes_value.get(f"__{bare}") and rest:
                split.rest.append(rest.pop(0))  # `--outdir a.b=c` is a folder
    return split


def _put(plan: Plan, split: CommandLine, name: str, text: str) -> None:
    """Store a setting, and forget what was typed before it under another name of the same key."""
    if name in plan.files:
        other = next((file for file in split.files.values() if file != text), None)
        if other is not None and name not in split.files:
            raise UsageError(
                f"two files of settings: {other}, {text} (from the command line); expected one. Leave one out."
            )
        split.files[name] = text
    elif name in plan.groups:
        split.groups[name] = text
    else:
        same = plan.names[name][0]
        split.keys = {key: was for key, was in split.keys.items() if plan.names[key][0] != same} | {name: text}


def _next_value(plan: Plan, bare: str, name: str, rest: list[str]) -> str:
    """Return the word after a setting; a boolean may stand alone."""
    if bare in plan.names and plan.key(bare).kind is bool:
        return rest.pop(0) if rest and rest[0].lower() in {*BOOLEANS, "none", "null"} else "true"
    if not rest or rest[0].startswith("--"):
        raise UsageError(f"{name} has no value (from the command line); expected {plan.wanted(bare)} after it.")
    return rest.pop(0)


def _is_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def unknown_key(plan: Plan, name: str, origin: str) -> UsageError:
    """Return the error that says that there is no such section or key, and which is near."""
    section, _, key = name.partition(".")
    elsewhere = [known for known in plan.names if known.endswith(f".{key}")]
    sections = list(dict.fromkeys(known.partition(".")[0] for known in plan.keys))
    here = [known.partition(".")[2] for known in plan.names if known.startswith(f"{section}.")]
    if here:
        near = (
            f" Did you mean {elsewhere[0]}?"
            if elsewhere
            else did_you_mean(key, here).replace("mean ", f"mean {section}.")
        )
        expected = f"a key of [{section}]" if near else f"one of {', '.join(here)}"
        return UsageError(f"unknown key {name} (from {origin}); expected {expected}.{near}")
    near = did_you_mean(name, elsewhere) or did_you_mean(section, sections) or did_you_mean(name, plan.names)
    return UsageError(
        f"unknown section {section!r} of {name} (from {origin}); expected one of {', '.join(sections)}.{near}"
    )


def setting(
    default: object,
    help: str,  # noqa: A002  # argparse's own word for it
    *,
    choices: Sequence[str] = (),
    spellings: Mapping[str, object] | None = None,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    only: str = "",
    refused: Mapping[str, str] | None = None,
    check: Callable[[Any], str] | None = None,
    in_files: bool = True,
) -> Any:
    """Return a field of a section: a frozen dataclass whose fields are bool, int, float, str, tuple[str, ...] or one |
    None.

    Args:
        default: The value where no other is given.
        help: What the key does, in a few words.
        choices: The words that it takes, in any case.
        spellings: What people write, in small letters -> the value that they mean.
        least: Smallest number.
        most: Largest number.
        above: A number that it has to be larger than.
        only: Why every value but the default is refused, as in "float8 needs kernels that ezpz has not".
        refused: Further words that are known -> why they are not supported.
        check: Returns in words what was expected instead of a value, or nothing when the value is right.
        in_files: Whether a TOML file may set it.
    """
    rule = Rule(help, tuple(choices), spellings or {}, least, most, above, only, refused or {}, check, in_files)
    return dataclasses.field(default=default, metadata={"rule": rule})


class SettingsParser(Parser):
    """The command line of a trainer with settings in sections.

    Attributes:
        plan: Which settings there are, and where they may be given.
    """

    expected = f"{Parser.expected}, or section.key=value"

    def __init__(self, prog: str, description: str, plan: Plan) -> None:
        super().__init__(prog, description, plan.presets)
        self.plan = plan

    def near_option(self, name: str) -> str:
        """Return the question whether a near name was meant: that of a key without its section first."""
        plan, plain = self.plan, name.removeprefix("--").replace("-", "_")
        for key in plan.names:
            if key.endswith(f".{plain}"):
                return f" Did you mean --{key}?"
        keys = {f"__{key}": f"--{key}" for key in plan.names}
        return self._nearest(name, self.known() | keys | {f"__{group}": f"{group}=" for group in plan.groups})

    def read(self, words: Sequence[str]) -> Namespace:
        """Return what a command line says, with ``config`` and ``origins``.

        Raises:
            UsageError: A word is no option or setting, or a value is wrong.
        """
        plan = self.plan
        split = split_words(plan, self, words)
        args = self._with_defaults(self._read_options(split.rest), {})
        if plan.presets and args.preset is None and not split.files and not set(split.groups) & plan.sizes:
            args.preset = plan.fallback or None
        args.config, args.origins = resolve(plan, split, getattr(args, "preset", None))
        args.typed = sorted([*args.typed, *(plan.names[name][0] for name in split.keys)])
        return args


def make_settings_parser(
    prog: str,
    description: str,
    kind: type,
    *,
    files: Sequence[str] = (),
    groups: Mapping[str, Callable[[str], Mapping[str, object]]] | None = None,
    aliases: Mapping[str, str] | None = None,
    presets: Mapping[str, Mapping[str, object]] | None = None,
    fallback: str = "",
    sizes: Sequence[str] = (),
    **defaults: object,
) -> SettingsParser:
    """Return a parser whose `parse` gives ``config`` and ``origins`` too, beside the options of every run.

    These are ``--preset`` (where there are presets), ``--data_dir --resume --no_verify --name --outdir --no_plots
    --sync_timing --on_nan --peak_flops --profile``. ``config`` is a ``kind``; ``origins`` says of each ``section.key``
    where its value came from: "default", "preset debug", "llama3_8b.toml, line 37", "data=shakespeare, the command
    line", "the command line".

    Args:
        prog: The module that is run.
        description: What the trainer shows.
        kind: A frozen dataclass of sections, each a frozen dataclass of `setting`.
        files: Options that name a TOML file. Where one is also a key, as ``--job.config_file``, the key gets the file's
            name.
        groups: Name of a group -> what a choice in it sets: ``data=shakespeare`` calls
            ``groups["data"]("shakespeare")``, and typed keys override what it returns, ``{"data.dataset":
            "shakespeare"}``.
        aliases: Other names of keys -> the key, or "not " and the key for one that means the opposite.
        presets: Name of a preset -> values by ``section.key``.
        fallback: The preset where neither a preset nor a file is named.
        sizes: Groups that stand for a preset, such as ``model``: a choice in one of them leaves the fallback out.
        **defaults: Values of the options of every run; ``name`` must be given.

    Raises:
        UsageError: A preset, an alias or a default does not fit the settings.
    """
    presets = presets or {}
    keys = keys_of(kind)
    plan = Plan(
        kind,
        keys,
        {name: (name, False) for name in keys} | _aliased(keys, aliases or {}),
        {option.removeprefix("--").replace("-", "_"): option for option in files},
        groups or {},
        presets,
        fallback,
        frozenset(sizes),
    )
    if fallback and fallback not in presets:
        raise UsageError(
            f"unknown fallback {fallback!r} (from make_settings_parser); expected one of {', '.join(presets)}."
        )
    for name in presets:
        resolve(plan, CommandLine(), name)  # what is wrong in it is an error at once, not when it is asked for
    parser = SettingsParser(prog, description, plan)
    if presets:
        add_preset(parser)
    add_data_dir(parser.group("data"))
    add_resume(parser.group("checkpoints"))
    add_output(parser.group("output"))
    set_defaults(parser, defaults, "make_settings_parser")
    parser.epilog = f"{describe_settings(plan)}\n\n{parser.epilog}".rstrip()
    return parser


def _aliased(keys: Mapping[str, object], aliases: Mapping[str, str]) -> dict[str, tuple[str, bool]]:
    targets = {name: (target.removeprefix("not "), target.startswith("not ")) for name, target in aliases.items()}
    for name, (target, _) in targets.items():
        if name in keys or target not in keys:
            raise UsageError(
                f"alias {name!r} of {target!r} (from make_settings_parser); expected a new name of a known key."
            )
    return targets


def as_dict(config: Any) -> dict[str, dict[str, Any]]:
    """Return a configuration as ``{"section": {"key": value}}``, for ``run.json``."""
    return {section.name: dataclasses.asdict(getattr(config, section.name)) for section in dataclasses.fields(config)}


def as_toml(config: Any) -> str:
    """Return a configuration as TOML that `parse` reads back; keys that no file may set are left out."""
    lines: list[str] = []
    for section in dataclasses.fields(config):
        table = getattr(config, section.name)
        lines.append(f"[{section.name}]")
        for key in dataclasses.fields(table):
            value = getattr(table, key.name)
            if key.metadata["rule"].in_files and not (value is None and key.default is None):
                lines.append(f"{key.name} = {_toml(value)}")
        lines.append("")
    return "\n".join(lines)


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, (bool, int)):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value)
    # JSON's quotes and escapes are TOML's, but for one control character.
    return json.dumps("none" if value is None else value, ensure_ascii=False).replace("\x7f", "\\u007f")
