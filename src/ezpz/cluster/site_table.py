"""The site table: reads TOML text and refuses what cannot be right, naming file, table, key and the nearest good key.

    [site.NAME]                        one machine
    scheduler = "pbs"                  the one key that every site needs
    modules = [["frameworks", "frameworks/2025.3.1"], "cmake"]
    [site.NAME.recognise]              how the machine is known
    domains = ["*.NAME.example.org"]
    [[site.NAME.variant]]              other values for some jobs
    when = { SLURM_JOB_PARTITION = ["gpu-*"] }
    devices_per_host = 2

docs/sites.md explains every key; `ezpz.cluster.site_table` says what each may hold.
"""

from __future__ import annotations

import re

from ezpz.cluster import SCHEDULERS
from ezpz.cluster.launchers import site_launchers
from ezpz.errors import UsageError, nearest
from ezpz.fields import Record

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    Table = dict[str, Any]


# The keys of a site table: what each holds, and which texts it takes. docs/sites.md explains them.

# What replaces `{…}` in a value; every other brace is refused. The keys that take them are in KEYS below.
PLACEHOLDERS = {
    "host": "the host as the scheduler names it",
    "short": "its name up to the first dot",
    "ip": "its numeric address",
    "user": "the user's name",
    "jobid": "the job in the scheduler's words",
}
_OF_HOST = ("host", "short", "ip")
_OF_JOB = ("user", "jobid")
_PLACEHOLDER = r"\{([^{}]*)\}|[{}]"

_WORD = r"[A-Za-z0-9._/+][A-Za-z0-9._/+@:=~-]*"  # a word that no shell splits, expands or takes for an option
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_CPUS = r"\d+(-\d+)?(,\d+(-\d+)?)*"
_ADDRESS = r"([a-z0-9+.-]+://[A-Za-z0-9._:/@%~-]+)?"
_BINDING = r"(list|mask_cpu|map_cpu|mask_ldom|map_ldom):[0-9A-Fa-fx,:-]+|cores|threads|sockets|depth|numa|none"
# The same in Python's fnmatch and in `case` of bash and zsh, in every locale. One character means itself, so that
# no pattern matches the empty text.
_GLOB = r"(?=.*[\w./:@+-])([\w./:@+-]|[*?]|\[([0-9]-[0-9]|[A-Za-z0-9])+\])+"


class Key(Record):
    """What one key holds: the kind of value, the test of each text in it, and both in words."""

    kind: str
    test: Callable[[str], object]
    expected: str


def is_variable(text: str) -> bool:
    """Tell whether a text can name a variable of the environment."""
    return _is_like(_VARIABLE, text)


def is_site_name(text: str) -> bool:
    """Tell whether a text can name a site: it becomes a word of two shells and of a command line."""
    return _is_like(r"[a-z0-9][a-z0-9_-]*", text)


def binding_ranks(binding: str) -> int:
    """Return for how many ranks per host a binding speaks; 0 for one that suits every number."""
    kind, colon, groups = binding.partition(":")
    return len(groups.split(":" if kind == "list" else ",")) if colon else 0


def _is_like(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text, re.ASCII) is not None


def _like(pattern: str) -> Callable[[str], object]:
    return lambda text: _is_like(pattern, text)


def _filled(allowed: tuple[str, ...]) -> Callable[[str], object]:
    return lambda text: (
        text.isprintable() and all(match.group(1) in allowed for match in re.finditer(_PLACEHOLDER, text))
    )


def _named(text: str) -> bool:
    return text.split(".", maxsplit=1)[0] in {*KEYS, "recognise", "when"}


def _one_of(*words: str) -> Key:
    return Key("text", words.__contains__, "one of " + ", ".join(map(repr, words)))


def _key(kind: str = "text", expected: str = "a text", test: Callable[[str], object] = str.isprintable) -> Key:
    return Key(kind, test, expected)


_NUMBER = _key("number", "a whole number from 0")
_OPTIONS = _key("texts", "options, each a text that begins with -", _like(rf"--?{_WORD}"))
_ENVIRONMENT = _key("table", "variables and their texts, in braces only {user} and {jobid}", _filled(_OF_JOB))

KEYS = {
    "centre": _key(),
    "source": _key(),
    "date": _key("text", 'a date such as "2026-08-19"', _like(r"\d{4}-\d{2}(-\d{2})?")),
    "confidence": _one_of("docs", "third-party", "own"),
    "derived": _key("texts", "names of keys", _named),
    "scheduler": _one_of(*SCHEDULERS, "none"),
    "device": _one_of("cuda", "xpu", "mps", "cpu"),
    "vendor": _one_of("nvidia", "amd", "intel", "apple", ""),
    "devices_per_host": _NUMBER,
    "devices_composite": _NUMBER,
    "device_cpus": _key("texts", 'CPUs such as "0-7,32-39"', _like(_CPUS)),
    "cores": _NUMBER,
    "threads": _NUMBER,
    "reserved_cpus": _key("numbers", "whole numbers from 0"),
    "cpu_bind": _key("table", 'a binding such as "list:0-7:8-15", "mask_cpu:0x1,0x2" or "cores"', _like(_BINDING)),
    "launcher": _one_of(*site_launchers()),
    "launcher_args": _OPTIONS,
    "mpi": _one_of("yes", "no"),
    "launcher_forbids": _OPTIONS,
    "job": _key("texts", "options of a job, each a text that begins with -", _like(r"--?[A-Za-z0-9._/+@:=,~% -]+")),
    "job_submits": _one_of("yes", "no"),
    "chains": _key("table", "queues (or any) and what the site says of chains of jobs there"),
    "queues": _key(
        "table",
        'hosts and the longest time, such as "1-2 1h, 3-10 6h"',
        _like(r"\d+-\d+ \d+(m|h)(, \d+-\d+ \d+(m|h))*"),
    ),
    "environment": _ENVIRONMENT,
    "environment_optional": _ENVIRONMENT,
    "environment_on_hang": _ENVIRONMENT,
    "environment_unset": _key("texts", "names of variables", is_variable),
    "module_use": _key("texts", "folders from /, without blanks", _like(r"/[A-Za-z0-9._/+@:=~-]*")),
    "modules": _key("steps", "modules without blanks, alternatives in a list of their own", _like(_WORD)),
    "conda": _key("text", "an environment's name or folder, without blanks", _like(rf"({_WORD})?")),
    "prepend_from": _key("table", "variables and the variables to put before them", is_variable),
    "python": _one_of("modules", "modules-or-own", "own", "container"),
    "torch_index": _key("text", "an address of wheels", _like(_ADDRESS)),
    "node_local": _key("text", "a folder, in braces only {user} and {jobid}", _filled(_OF_JOB)),
    "node_local_is_memory": _key("flag", "true or false"),
    "address": _key("text", "a name, in braces only {host}, {short} and {ip}", _filled(_OF_HOST)),
    "interface": _key("texts", "names of network interfaces", _like(r"[A-Za-z0-9._@:-]+")),
    "proxy": _key("text", "an address such as http://proxy.example.org:3128", _like(_ADDRESS)),
    "no_proxy": _key("text", "hosts separated by commas, without blanks", _like(r"[A-Za-z0-9._:/*,-]*")),
    "proxy_skip": _key("text", "a pattern of host names in small letters", _like(rf"({_GLOB})?")),
    "notes": _key("texts", "texts"),
}
PATTERNS = _key("texts", "patterns of letters, digits, . _ / : @ + - and * ? [abc] [0-9]", _like(_GLOB))
_LOWER = Key("texts", lambda text: _is_like(_GLOB, text) and text == text.lower(), "such patterns in small letters")
RECOGNISE = {"domains": _LOWER, "hosts": _LOWER}

_ADDED = ("notes", "variants")  # keys whose entries a later table adds to, where all others are replaced


def parse(text: str, file: str) -> dict[str, Table]:
    """Return each site's table, every key and value checked, with tuples in place of lists.

    Raises:
        UsageError: The text is no TOML, or a key or value is not one of docs/sites.md.
    """
    import sys
    from importlib import import_module

    # From 3.11 on the parser is Python's own; tomli is the same one for 3.10.
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        read: Table = toml.loads(text)
    except (ValueError, RecursionError) as error:  # also of a number with thousands of digits, and of absurd depth
        raise UsageError(
            f"cannot read the site table: {error} (from {file}); expected TOML, a table [site.NAME] for each site. "
            "Correct that line."
        ) from None
    _check_keys(read, ("site",), file, "outside all tables")
    sites = read.get("site", {})
    if not isinstance(sites, dict):
        raise _wrong(file, "outside all tables", "site", sites, "tables [site.NAME]")
    return {name: _site(name, table, file) for name, table in sites.items()}


def merge(under: Table, over: Table) -> Table:
    """Return ``under`` with what ``over`` says: tables entry by entry, notes and variants added, the rest replaced."""
    joined = dict(under)
    for key, value in over.items():
        if key in _ADDED:
            joined[key] = (*under.get(key, ()), *value)
        else:
            joined[key] = _join(under.get(key), value)
    # What was derived before is not any more where somebody now says it.
    joined["derived"] = tuple(name for name in under.get("derived", ()) if name.split(".")[0] not in over)
    joined["derived"] += over.get("derived", ())
    return joined


def _join(under: object, over: object) -> object:
    if not isinstance(over, dict) or not isinstance(under, dict):
        return over
    return {**under, **{name: _join(under.get(name), value) for name, value in over.items()}}


def _site(name: str, table: object, file: str) -> Table:
    where = f"[site.{name}]"
    if not isinstance(table, dict) or not is_site_name(name):
        raise _wrong(file, "[site]", name, table, "a table whose name is of small letters, digits, - and _")
    _check_keys(table, (*KEYS, "recognise", "variant"), file, where)
    checked = _values(table, KEYS, file, where)
    if "recognise" in table:
        checked["recognise"] = _recognise(table["recognise"], file, f"[site.{name}.recognise]")
    variants = table.get("variant", [])
    if not isinstance(variants, list):
        raise _wrong(file, where, "variant", variants, f"tables [[site.{name}.variant]]")
    if variants:
        checked["variants"] = tuple(_variant(each, file, f"[[site.{name}.variant]]") for each in variants)
    return checked


def _recognise(table: object, file: str, where: str) -> Table:
    if not isinstance(table, dict):
        raise _wrong(file, where, "recognise", table, "a table")
    _check_keys(table, ("variables", *RECOGNISE), file, where)
    checked = _values(table, RECOGNISE, file, where)
    if "variables" in table:
        checked["variables"] = _conditions(table["variables"], "variables", file, where)
    return checked


def _variant(table: object, file: str, where: str) -> Table:
    if not isinstance(table, dict):
        raise _wrong(file, where, "variant", table, "a table")
    _check_keys(table, (*KEYS, "name", "when"), file, where)
    name, when = table.get("name", ""), _conditions(table.get("when"), "when", file, where)
    if not isinstance(name, str) or not name.isprintable():
        raise _wrong(file, where, "name", name, "a text")
    return {"name": name or ", ".join(when), "when": when, "keys": _values(table, KEYS, file, where), "file": file}


def _conditions(value: object, key: str, file: str, where: str) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict) or not value:
        raise _wrong(file, where, key, value, 'variables and patterns, such as { NERSC_HOST = ["perlmutter"] }')
    for name in value:
        if not is_variable(name):
            raise _wrong(file, where, key, name, "the name of a variable")
    return {name: _value(patterns, PATTERNS, file, where, f"{key}.{name}") for name, patterns in value.items()}


def _values(table: Table, keys: Mapping[str, Key], file: str, where: str) -> Table:
    return {name: _value(table[name], key, file, where, name) for name, key in keys.items() if name in table}


def _value(value: Any, key: Key, file: str, where: str, name: str) -> Any:
    if key.kind == "table":
        return _entries(value, key, file, where, name)
    if key.kind in {"text", "flag", "number"}:
        _check_each([value], key, file, where, name)
        return value
    if not isinstance(value, list):
        raise _wrong(file, where, name, value, f"a list: {key.expected}")
    if key.kind == "steps":
        steps = tuple(tuple(step) if isinstance(step, list) else (step,) for step in value)
        for step in steps:
            _check_each(step or [()], key, file, where, name)
        return steps
    _check_each(value, key, file, where, name)
    return tuple(value)


def _entries(value: Any, key: Key, file: str, where: str, name: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _wrong(file, where, name, value, f"a table: {key.expected}")
    for entry, text in value.items():
        if name in {"chains", "queues"} and _is_like(_WORD, entry):
            _check_each([text], key, file, where, f"{name}.{entry}")
            continue
        counted = name == "cpu_bind" and entry.isascii() and entry.isdigit() and entry[0] != "0"
        if not (counted or entry == "any" if name == "cpu_bind" else is_variable(entry)):
            expected = "a number of ranks per host, or any" if name == "cpu_bind" else "the name of a variable"
            raise _wrong(file, where, name, entry, expected)
        _check_each([text], key, file, where, f"{name}.{entry}")
        if counted and binding_ranks(text) not in {0, int(entry)}:
            expected = f"{entry} groups, one per rank, not {binding_ranks(text)}"
            raise _wrong(file, where, f"{name}.{entry}", text, expected)
    return dict(value)


def _check_each(values: Iterable[object], key: Key, file: str, where: str, name: str) -> None:
    for value in values:
        if key.kind == "flag":
            fits = isinstance(value, bool)
        elif key.kind.startswith("number"):
            fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        else:
            fits = isinstance(value, str) and bool(key.test(value))
        if not fits:
            raise _wrong(file, where, name, value, key.expected)


def _check_keys(table: Table, keys: tuple[str, ...], file: str, where: str) -> None:
    for key in table:
        if key not in keys:
            near = next(iter(nearest(key, keys)), "") or f"one of {', '.join(keys)}"
            raise UsageError(
                f"unknown key: {key} = {table[key]!r} (from {file}, {where}); expected {near}. "
                'Correct or remove it; the page "Sites" of the documentation explains the keys.'
            )


def _wrong(file: str, where: str, key: str, value: object, expected: str) -> UsageError:
    return UsageError(f"bad value: {key} = {value!r} (from {file}, {where}); expected {expected}. Correct that key.")
