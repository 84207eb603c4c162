"""Which words of a command line are settings: ``--training.seq_len 128``, ``training.seq-len=128``, ``--training.compile``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ezpz.cli_parser import did_you_mean
from ezpz.errors import UsageError
from ezpz.train.settings_keys import BOOLEANS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.cli_parser import Parser
    from ezpz.train.settings_plan import Plan

__all__ = ["Words", "split_words", "unknown_key"]

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
