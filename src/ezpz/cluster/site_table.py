"""The site table: reads TOML text and refuses what cannot be right, naming file, table, key and the nearest good key.

    [site.NAME]                        one machine
    scheduler = "pbs"                  the one key that every site needs
    modules = [["frameworks", "frameworks/2025.3.1"], "cmake"]
    [site.NAME.recognise]              how the machine is known
    domains = ["*.NAME.example.org"]
    [[site.NAME.variant]]              other values for some jobs
    when = { SLURM_JOB_PARTITION = ["gpu-*"] }
    devices_per_host = 2

docs/sites.md explains every key; `ezpz.cluster.site_keys` says what each may hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ezpz.cluster.site_keys import KEYS, PATTERNS, RECOGNISE, Key, binding_ranks, is_site_name, is_variable
from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Table = dict[str, Any]

__all__ = ["merge", "parse"]

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
    except toml.TOMLDecodeError as error:
        raise UsageError(
            f"cannot read the site table: {error} (from {file}); expected TOML as docs/sites.md shows it. "
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
            from difflib import get_close_matches

            near = next(iter(get_close_matches(key, keys, 1)), "") or f"one of {', '.join(keys)}"
            raise UsageError(
                f"unknown key: {key} = {table[key]!r} (from {file}, {where}); expected {near}. "
                "Correct or remove it; docs/sites.md explains the keys."
            )


def _wrong(file: str, where: str, key: str, value: object, expected: str) -> UsageError:
    return UsageError(f"bad value: {key} = {value!r} (from {file}, {where}); expected {expected}. Correct that key.")
