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
from typing import TYPE_CHECKING, Any

from ezpz.cli_parser import Parser
from ezpz.errors import UsageError
from ezpz.train.settings_help import tell_settings
from ezpz.train.settings_keys import Rule, keys_of
from ezpz.train.settings_plan import Plan, resolve
from ezpz.train.settings_words import Words
from ezpz.train.shared_options import add_data_dir, add_output, add_preset, add_resume, set_defaults

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["as_dict", "as_toml", "make_settings_parser", "setting"]


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
