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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ezpz.cli_parser import Parser, did_you_mean
from ezpz.errors import UsageError
from ezpz.train.settings_help import tell_settings
from ezpz.train.settings_keys import BOOLEANS, Rule, keys_of
from ezpz.train.settings_plan import Plan, resolve
from ezpz.train.shared_options import add_data_dir, add_output, add_preset, add_resume, set_defaults

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


# Which words of a command line are settings: ``--training.seq_len 128``, ``training.seq-len=128``, ``--training.compile``.

COMMAND_LINE = "the command line"


@dataclass
class Words:
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


def split_words(plan: Plan, parser: Parser, words: Sequence[str]) -> Words:
    """Take the settings out of a command line.

    Raises:
        UsageError: A word looks like a setting and is none, or has no value.
    """
    found, rest = Words(), list(words)
    known = parser.known()
    takes_value = parser.takes_value()
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        bare = name.removeprefix("--").replace("-", "_")
        ours = bare in plan.names or bare in plan.files or bare in plan.groups
        if ours and (word.startswith("--") or equals):
            text = value if equals else _next_value(plan, bare, name, rest)
            _put(plan, found, bare, text)
        elif "." in bare and (word.startswith("--") or (equals and _is_name(bare))):
            raise unknown_key(plan, bare, COMMAND_LINE)
        elif equals and not word.startswith("-") and f"__{bare}" in known:
            found.rest.append(f"{known[f'__{bare}']}={value}")  # outdir=D, as people type it beside train.max_iters=5
        else:
            found.rest.append(word)
            if not equals and word.startswith("--") and takes_value.get(f"__{bare}") and rest:
                found.rest.append(rest.pop(0))  # `--outdir a.b=c` is a folder
    return found


def _put(plan: Plan, found: Words, name: str, text: str) -> None:
    """Store a setting, and forget what was typed before it under another name of the same key."""
    if name in plan.files:
        other = next((file for file in found.files.values() if file != text), None)
        if other is not None and name not in found.files:
            raise UsageError(
                f"two files of settings: {other}, {text} (from the command line); expected one. Leave one out."
            )
        found.files[name] = text
    elif name in plan.groups:
        found.groups[name] = text
    else:
        same = plan.names[name][0]
        found.keys = {told: was for told, was in found.keys.items() if plan.names[told][0] != same} | {name: text}


def _next_value(plan: Plan, bare: str, name: str, rest: list[str]) -> str:
    """Return the word behind a setting; a boolean may stand alone."""
    if bare in plan.names and plan.key(bare).kind is bool:
        return rest.pop(0) if rest and rest[0].lower() in {*BOOLEANS, "none", "null"} else "true"
    if not rest or rest[0].startswith("--"):
        raise UsageError(f"{name} has no value (from the command line); expected {plan.wanted(bare)} behind it.")
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


__all__ = ["Words", "as_dict", "as_toml", "make_settings_parser", "setting", "split_words", "unknown_key"]


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
    """Return a field of a section: a frozen dataclass whose fields are bool, int, float, str, tuple[str, ...] or one | None.

    Args:
        default: The value where nobody gives another.
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
    **defaults: object,
) -> Parser:
    """Return a parser whose `parse` gives ``config`` and ``origins`` too, beside the options of every run.

    These are ``--preset`` (where there are presets), ``--data_dir --resume --name --outdir --no_plots --sync_timing
    --peak_flops --profile``. ``config`` is a ``kind``; ``origins`` says of each ``section.key`` where its value came from:
    "default", "preset debug", "llama3_8b.toml, line 37", "data=shakespeare, the command line", "the command line".

    Args:
        prog: The module that is run.
        description: What the trainer shows.
        kind: A frozen dataclass of sections, each a frozen dataclass of `setting`.
        files: Options that name a TOML file. Where one is also a key, as ``--job.config_file``, the key gets the file's name.
        groups: Name of a group -> what a choice in it sets: ``data=shakespeare`` calls ``groups["data"]("shakespeare")``,
            and typed keys stand above what it returns, ``{"data.dataset": "shakespeare"}``.
        aliases: Other names of keys -> the key, or "not " and the key for one that means the opposite.
        presets: Name of a preset -> values by ``section.key``.
        fallback: The preset where neither a preset nor a file is named.
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
    )
    if fallback and fallback not in presets:
        raise UsageError(
            f"unknown fallback {fallback!r} (from make_settings_parser); expected one of {', '.join(presets)}."
        )
    for name in presets:
        resolve(plan, Words(), name)  # what is wrong in it is told before anybody asks for it
    parser = Parser(prog, description, presets)
    parser.settings = plan
    if presets:
        add_preset(parser)
    add_data_dir(parser.group("data"))
    add_resume(parser.group("checkpoints"))
    add_output(parser.group("output"))
    set_defaults(parser, defaults, "make_settings_parser")
    parser.epilog = f"{tell_settings(plan)}\n\n{parser.epilog}".rstrip()
    return parser


def _aliased(keys: Mapping[str, object], aliases: Mapping[str, str]) -> dict[str, tuple[str, bool]]:
    told = {name: (target.removeprefix("not "), target.startswith("not ")) for name, target in aliases.items()}
    for name, (target, _) in told.items():
        if name in keys or target not in keys:
            raise UsageError(
                f"alias {name!r} of {target!r} (from make_settings_parser); expected a new name of a known key."
            )
    return told


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
