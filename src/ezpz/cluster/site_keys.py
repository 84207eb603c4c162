"""The keys of a site table: what each holds, and which texts it takes. Their meaning stands in docs/sites.md."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KEYS", "PATTERNS", "PLACEHOLDERS", "RECOGNISE", "Key", "binding_ranks", "is_site_name", "is_variable"]

# What `{…}` in a value stands for; every other brace is refused. The keys that take them are in KEYS below.
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
# The same in Python's fnmatch and in `case` of bash and zsh, in every locale. One character stands for itself, so that
# no pattern matches the empty text.
_GLOB = r"(?=.*[\w./:@+-])([\w./:@+-]|[*?]|\[([0-9]-[0-9]|[A-Za-z0-9])+\])+"


class Key(NamedTuple):
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
        text.isprintable() and all(found.group(1) in allowed for found in re.finditer(_PLACEHOLDER, text))
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
    "scheduler": _one_of("pbs", "slurm", "flux", "none"),
    "device": _one_of("cuda", "xpu", "mps", "cpu"),
    "vendor": _one_of("nvidia", "amd", "intel", "apple", ""),
    "devices_per_host": _NUMBER,
    "devices_composite": _NUMBER,
    "device_cpus": _key("texts", 'CPUs such as "0-7,32-39"', _like(_CPUS)),
    "cores": _NUMBER,
    "threads": _NUMBER,
    "reserved_cpus": _key("numbers", "whole numbers from 0"),
    "cpu_bind": _key("table", 'a binding such as "list:0-7:8-15", "mask_cpu:0x1,0x2" or "cores"', _like(_BINDING)),
    "launcher": _one_of("pals", "openmpi", "mpich", "impi", "srun", "flux", "ibrun", "local"),
    "launcher_args": _OPTIONS,
    "launcher_forbids": _OPTIONS,
    "environment": _ENVIRONMENT,
    "environment_optional": _ENVIRONMENT,
    "environment_on_hang": _ENVIRONMENT,
    "environment_unset": _key("texts", "names of variables", is_variable),
    "module_use": _key("texts", "folders from /, without blanks", _like(r"/[A-Za-z0-9._/+@:=~-]*")),
    "modules": _key("steps", "modules without blanks, alternatives in a list of their own", _like(_WORD)),
    "conda": _key("text", "an environment's name or folder, without blanks", _like(rf"({_WORD})?")),
    "prepend_from": _key("table", "variables and the variables to put before them", is_variable),
    "python": _one_of("modules", "own", "container"),
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
