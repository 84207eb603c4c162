"""Run ``ezpz sites``: show the machines that ezpz knows, and every fact about one of them with its source."""

from __future__ import annotations

import os
import re

from ezpz.cli_parser import option, run_verb
from ezpz.cluster import detect, probe
from ezpz.cluster.site import Site, load, recognise, user_file
from ezpz.errors import EzpzError, UsageError, end_with, nearest
from ezpz.tables import aligned
from ezpz.verbs import make_verb_parser
from ezpz.visible import show

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from ezpz.cluster.site import Variant

_WIDTH = 80
_COLUMNS = ("site", "centre", "scheduler", "launcher", "devices", "as of", "confidence")
_LAST = ("variants", "derived", "notes")  # shown after the facts, each in its own way
# Long values are lists without blanks: they are broken after a comma or a colon, not inside a name.
_BREAKS = re.compile(r"(\s+)|(?<=,)|(?<=:)(?!/)|(?<=\w/)")


_OPTIONS = (
    option("name", nargs="?", metavar="NAME", help="a site of the list"),
    option("--json", action="store_true", help="print JSON"),
    option("--sh", action="store_true", help="print your own sites as the functions that utils.sh reads"),
)
_EXAMPLES = (("ezpz sites", "all, and which of them this is"), ("ezpz sites aurora", "all facts of one"))


def main(argv: Sequence[str]) -> int:
    """Print the sites, one site, or the user's own as shell functions, and return the exit code."""
    return run_verb(
        make_verb_parser("sites", _OPTIONS, usage="[NAME] [options]", examples=_EXAMPLES), argv, _print_sites
    )


def _print_sites(options: Namespace) -> int:
    if options.sh and (options.name or options.json):
        raise UsageError(
            "--sh takes no other word (from the command line): it prints all sites of your own file; "
            "expected neither NAME nor --json with it."
        )
    sites = load(os.environ, probe.read)
    if options.sh:
        print(_shell(sites))
    elif options.name:
        site = _named(options.name, sites)
        show(_json(site) if options.json else "\n".join(_facts(site)))
    else:
        return _list(sites, as_json=options.json)
    return 0


def _list(sites: Mapping[str, Site], *, as_json: bool) -> int:
    """Print all sites and which of them this is; a contradiction about that follows the list."""
    problem: EzpzError | None = None
    here, origin = "", ""
    try:
        match = recognise(os.environ, probe.read, _job_id())
        here, origin = match.site.name if match.site else "", match.origin
    except EzpzError as error:
        problem = error
    if as_json:
        answer = {"here": here or None, "origin": origin, "sites": list(sites.values())}
        print(_json(answer))
    else:
        show("\n".join(_table(sites, here)))
        if problem is None:
            show(f"\nThis machine: {here or 'none of these'} (from {origin})\nAll facts of one: ezpz sites NAME")
    return end_with(problem) if problem else 0


def _job_id() -> str:
    """Return the present job, as far as it is known without starting a scheduler's command."""
    try:
        return detect(os.environ, probe.read, lambda _: None).job_id
    except EzpzError:
        return ""


def _table(sites: Mapping[str, Site], here: str) -> Iterator[str]:
    lines = aligned([_COLUMNS, *map(_row, sites.values())])
    for name, line in zip(["", *sites], lines, strict=True):
        yield ("* " if name and name == here else "  ") + line


def _row(site: Site) -> tuple[str, ...]:
    words = (site.name, site.centre, site.scheduler, site.launcher, _devices(site), site.date[:7], site.confidence)
    return tuple(word or "-" for word in words)


def _devices(site: Site) -> str:
    """Return the devices of a host in few words, those of variants included: ``2 or 3 cuda, 8 xpu``."""
    counts: dict[str, set[int]] = {}
    for keys in ({"device": site.device, "devices_per_host": site.devices_per_host}, *(v.keys for v in site.variants)):
        if keys.get("devices_per_host"):
            counts.setdefault(keys.get("device", site.device), set()).add(keys["devices_per_host"])
    kinds = (f"{' or '.join(map(str, sorted(numbers)))} {kind}" for kind, numbers in counts.items())
    return ", ".join(kinds) or site.device


def _facts(site: Site) -> Iterator[str]:
    """Yield all that is known of a site, at most 80 columns wide, grouped by the file that holds it."""
    yield f"{site.name}"
    for line in (f"source: {site.source or 'none given'}", f"date: {site.date or 'none given'}"):
        yield from _wrapped(line, "  ")
    yield f"  confidence: {site.confidence}"
    keys = [key for key in site.origins if key not in {*_LAST, "source", "date", "confidence"}]
    for file in dict.fromkeys(site.origins[key] for key in keys):
        yield ""
        yield from _wrapped(f"from {file}:", "  ")
        for key in keys:
            if site.origins[key] == file:
                yield from _fact(key, getattr(site, key), site.derived)
    for variant in site.variants:
        yield ""
        yield from _variant(variant)
    if site.derived:
        yield ""
        yield "  (derived): worked out or reported by users, not stated by the source"
    for note in site.notes:
        yield ""
        yield from _wrapped(note, "  note: ", "        ")


def _fact(key: str, value: Any, derived: Sequence[str]) -> Iterator[str]:
    if key == "recognise":
        for name in ("variables", "domains", "hosts"):
            yield from _fact(f"recognise.{name}", getattr(value, name), derived)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _fact(f"{key}.{name}", each, derived)
    else:
        parts = key.split(".")
        mark = " (derived)" if any(".".join(parts[: n + 1]) in derived for n in range(len(parts))) else ""
        if value not in ((), None) or mark:
            yield from _wrapped(f"{key} = {_text(value)}{mark}", "    ", "        ")


def _variant(variant: Variant) -> Iterator[str]:
    when = " and ".join(f"{name} is {' or '.join(patterns)}" for name, patterns in variant.when.items())
    mark = " (derived)" if "when" in variant.keys.get("derived", ()) else ""
    yield from _wrapped(f"from {variant.file}, variant {variant.name}, when {when}{mark}:", "  ")
    for key, value in variant.keys.items():
        if key not in _LAST:
            yield from _fact(key, value, variant.keys.get("derived", ()))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        words = [" or ".join(each) if isinstance(each, tuple) else str(each) for each in value]
        return ("; " if any("," in word for word in words) else ", ").join(words)
    return str(value) if value != "" else "''"


def _wrapped(text: str, first: str, other: str = "    ") -> list[str]:
    from textwrap import TextWrapper

    wrapper = TextWrapper(_WIDTH, first, other, break_on_hyphens=False)
    wrapper.wordsep_simple_re = _BREAKS
    return wrapper.wrap(text)


def _json(value: object) -> str:
    import json

    from ezpz.fields import as_dict

    return json.dumps(value, indent=2, ensure_ascii=False, default=as_dict)


def _shell(sites: Mapping[str, Site]) -> str:
    from ezpz.cluster.site_shell import block

    path = user_file(os.environ)
    file = path or "no file: HOME is unset"
    head = f"# The sites of {file}, printed by `ezpz sites --sh`; utils.sh reads sites.sh beside it."
    return f"{head}\n{block((site for site in sites.values() if site.is_users), user=True)}".rstrip("\n")


def _named(name: str, sites: Mapping[str, Site]) -> Site:
    if name in sites:
        return sites[name]
    near = nearest(name, sites, 3) or list(sites)
    raise UsageError(
        f"unknown site: {name!r} (from the command line); expected one of {', '.join(near)}. "
        '`ezpz sites` lists all; the page "Sites" of the documentation says how to add one.'
    )
