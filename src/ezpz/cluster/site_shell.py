"""Write the sites as functions of the shell: nothing but `case`, for bash 4.2 and zsh 5.8, and no process is started.

python3 -m ezpz.cluster.site_shell src/ezpz/bin/utils.sh      what `make sites` does, between these two lines:

# >>> sites: made by `make sites` from cluster/sites.toml; do not edit >>>
# <<< sites <<<

ezpz__match_site variables | names NAME...   sets site, site_from and site_clash of its caller
ezpz__site_facts NAME                        sets site_scheduler site_module_use site_modules site_conda
                                             site_prepend_from site_proxy site_no_proxy site_proxy_skip of its caller
"""

from __future__ import annotations

import os
import re
import sys
from textwrap import fill

from ezpz.cluster.site import load, torch_build
from ezpz.errors import EzpzError, MachineError, UsageError, end_with
from ezpz.files import Replacement

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from ezpz.cluster.site import Site, Variant

BEGIN = "# >>> sites: made by `make sites` from cluster/sites.toml; do not edit >>>"
END = "# <<< sites <<<"

_WIDTH = 118  # of a line, with room for the backslash that continues it


def shell_functions() -> str:
    """Return the path of ``utils.sh`` of this ezpz.

    Raises:
        MachineError: It is not there.
    """
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin", "utils.sh")
    if not os.access(path, os.R_OK):
        raise MachineError(
            f"no utils.sh in this ezpz: {path} (from where ezpz is installed) cannot be read; expected it beside its "
            "modules. Install ezpz again."
        )
    return path


def _steps(modules: tuple[tuple[str, ...], ...]) -> str:
    return " ".join("|".join(step) for step in modules)


def _pairs(table: Mapping[str, str]) -> str:
    return " ".join(f"{name}={other}" for name, other in table.items())


# What ezpz__site_facts sets, and how each field of a site becomes one text there.
_FACTS: dict[str, Callable[[Any], str]] = {
    "scheduler": str,
    "module_use": " ".join,
    "modules": _steps,
    "conda": str,
    "python": str,
    "torch": str,
    "prepend_from": _pairs,
    "proxy": str,
    "no_proxy": str,
    "proxy_skip": str,
}

_MATCH = """\
# {match} variables | names NAME...
# Sets site and site_from, or site_clash where variables of two sites are set.
# shellcheck disable=SC2034  # the caller has declared what is set here
function {match} {{
  local name
  site='' site_from='' site_clash=''
  if [ "${{1:-}}" = variables ]; then
    set --
{variables}
    while [ "$#" -gt 1 ]; do
      if [ -z "$site" ]; then
        site="$1" site_from="$2"
      elif [ "$site" != "$1" ] && [ -z "$site_clash" ]; then
        site_clash="$site (from $site_from) and $1 (from $2)"
      fi
      shift 2
    done
    if [ -n "$site_clash" ]; then site='' site_from=''; fi
    return 0
  fi
  if [ "$#" -gt 0 ]; then shift; fi
  for name in "$@"; do
    case "$name" in
      *.*) ;;
      *) continue ;;
    esac
    case "$name" in
{domains}
    esac
    if [ -n "$site" ]; then
      site_from="the host name $name"
      return 0
    fi
  done
  name="${{1:-}}"
  case "${{name%%.*}}" in
{hosts}
  esac
  if [ -n "$site" ]; then site_from="the host name $name"; fi
}}
"""

_FACTS_FUNCTION = """\
# {facts} NAME
# Sets what a shell needs to know of a site: words, and in site_modules alternatives of one step joined by |.
# shellcheck disable=SC2034  # the caller has declared what is set here
function {facts} {{
  {empty}
  case "${{1:-}}" in
{sites}
    *) return 1 ;;
  esac
}}
"""


def block(sites: Iterable[Site], *, user: bool = False) -> str:
    """Return the two functions for these sites, without the marker lines; ``user``: under the names for own sites."""
    known = list(sites)
    names = ("ezpz__match_user_site", "ezpz__user_site_facts") if user else ("ezpz__match_site", "ezpz__site_facts")
    variables = [
        _arm(f'    case "${{{name}:-}}" in ', patterns, f') set -- "$@" {site.name} "{name}=${name}" ;; esac')
        for site in known
        for name, patterns in site.recognise.variables.items()
        if patterns
    ]
    hows = [(site.name, site.recognise) for site in known]
    domains = [_arm("      ", how.domains, f") site={name} ;;") for name, how in hows if how.domains]
    hosts = [_arm("    ", how.hosts, f") site={name} ;;") for name, how in hows if how.hosts]
    match = _MATCH.format(match=names[0], variables=_lines(variables), domains=_lines(domains), hosts=_lines(hosts))
    facts = _FACTS_FUNCTION.format(
        facts=names[1],
        empty=fill(" ".join(f"site_{fact}=''" for fact in _FACTS), _WIDTH, subsequent_indent="  "),
        sites=_lines(line for site in known for line in _facts_of(site)),
    )
    return _without_gaps(f"{match}\n{facts}")


def write(path: str, text: str) -> bool:
    """Put ``text`` between the marker lines of a file, in one step; return whether that changed the file.

    Raises:
        UsageError: The file cannot be read or written, or does not hold each marker line once, in order.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            before = file.read()
        lines = before.splitlines(keepends=True)
        marks = [[at for at, line in enumerate(lines) if line.strip() == mark] for mark in (BEGIN, END)]
        if [len(places) for places in marks] != [1, 1] or marks[0] > marks[1]:
            counts = zip((BEGIN, END), map(len, marks), strict=True)
            seen = " and ".join(f"{mark!r} {count} times" for mark, count in counts)
            raise UsageError(
                f"no place for the sites: {path} (from the command line) holds {seen}; expected each line once, in "
                "this order. Put both lines where the functions belong."
            )
        after = "".join([*lines[: marks[0][0] + 1], text, *lines[marks[1][0] :]])
        if after != before:
            _replace(os.path.realpath(path), after)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot write the sites: {path} (from the command line): {error}; expected a text file that you may "
            "write. Name another."
        ) from None
    return after != before


def main(argv: list[str]) -> int:
    """Write the packaged sites into the named file and return the exit code."""
    if len(argv) != 1 or argv[0].startswith("-"):
        print("usage: python3 -m ezpz.cluster.site_shell FILE     (your own sites: ezpz sites --sh)", file=sys.stderr)
        return 2
    packaged = load({}, lambda _: None)
    try:
        changed = write(argv[0], block(packaged.values()))
    except EzpzError as error:
        return end_with(error)
    print(f"{argv[0]}: {len(packaged)} sites, {'written' if changed else 'unchanged'}")
    return 0


def _torch_in(site: Site, variant: Variant) -> str:
    whole = {key: variant.keys.get(key, getattr(site, key)) for key in ("torch_index", "device", "vendor")}
    return torch_build(*whole.values())


def _torch_of(site: Site) -> str:
    """Return the site's build of torch; nothing where a part of the machine has devices that the others lack."""
    others = {_torch_in(site, variant) for variant in site.variants}
    return "" if site.torch == "cpu" and others - {"cpu"} else site.torch


def _facts_of(site: Site) -> list[str]:
    torch = _torch_of(site)
    facts = {fact: getattr(site, fact) for fact in _FACTS if getattr(site, fact)} | {"torch": torch}
    if not torch:
        del facts["torch"]
    lines = [f"    {site.name})", *(f"      {line}" for line in _assign(facts))]
    for variant in site.variants:
        other = {fact: value for fact, value in variant.keys.items() if fact in _FACTS}
        if _torch_in(site, variant) != torch:
            other["torch"] = _torch_in(site, variant)
        if other:
            lines += _cases(variant, " ".join(_assign(other)))
    return [*lines, "      ;;"]


def _cases(variant: Variant, action: str) -> list[str]:
    """Return one `case` per variable of the variant, each inside the one before.

    The colons keep these arms apart from those of sites for whoever reads the names of sites off the function.
    """
    for name, patterns in reversed(list(variant.when.items())):
        marked = tuple(f":{pattern}" for pattern in patterns)
        action = _arm(f'case ":${{{name}:-}}" in ', marked, f") {action} ;; esac")
    return [f"      {action}"]


def _assign(facts: Mapping[str, Any]) -> list[str]:
    """Return one assignment per fact, and a further one, with +=, for each line that a long value fills."""
    lines = []
    for fact, value in facts.items():
        operator = "="
        for part in _parts(_FACTS[fact](value)):
            lines.append(f"site_{fact}{operator}{_quote(part)}")
            operator = "+="
    return lines


def _parts(text: str) -> list[str]:
    """Break a long text after a blank or a comma; joined, the parts are the text."""
    parts = [""]
    for word in re.findall(r"[^ ,]*[ ,]|[^ ,]+$", text):
        if parts[-1] and len(parts[-1]) + len(word) > _WIDTH - 40:
            parts.append("")
        parts[-1] += word
    return parts


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _arm(head: str, patterns: tuple[str, ...], tail: str) -> str:
    """Return one arm of a `case`, continued on further lines where it is too long for one."""
    indent = " " * (len(head) - len(head.lstrip()) + 2)
    text = head
    for number, pattern in enumerate(patterns):
        word = pattern + (tail if number == len(patterns) - 1 else " | ")
        if (number or head.strip()) and len(text.rpartition("\n")[2]) + len(word) > _WIDTH:
            text += f"\\\n{indent}"
        text += word
    return text


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _without_gaps(text: str) -> str:
    """Drop the empty lines that a file without such rules leaves inside the functions."""
    kept = [line for line in text.splitlines() if line]
    kept.insert(kept.index("}") + 1, "")
    return _lines(kept) + "\n"


def _replace(path: str, text: str) -> None:
    with Replacement(path) as file:
        os.fchmod(file.fileno(), os.stat(path).st_mode & 0o7777)
        file.write(text.encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
