"""Which site is this? Variables that only it sets, the domain of this host's name, names that no other machine shares.

    PBS_JOBID=12.aurora-pbs-0001.hostmgmt.cm.aurora.alcf.anl.gov   TACC_SYSTEM=vista   NERSC_HOST=perlmutter
    /proc/sys/kernel/hostname    "login2"                                         this host's name
    /etc/hosts                   "10.0.0.2 login2.ls6.tacc.utexas.edu login2"     address, canonical name, other names
    /etc/resolv.conf             "search ls6.tacc.utexas.edu tacc.utexas.edu"     hosts(5), resolv.conf(5)

The user's own sites are asked before the packaged ones, at each step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ezpz.cluster.probe import host_name
from ezpz.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ezpz.cluster.allocation import Read
    from ezpz.cluster.site import Site

__all__ = ["by_names", "by_variables", "host_names", "one_of"]


def host_names(read: Read) -> tuple[str, ...]:
    """Return the names of this host in small letters, its own first, without asking a name server."""
    name = host_name(read).lower()
    if "." in name:
        return (name,)
    names = [name]
    for line in (read("/etc/hosts") or "").lower().splitlines():
        words = line.partition("#")[0].split()[1:]
        if name in words:
            names.append(words[0])
            break
    for line in (read("/etc/resolv.conf") or "").lower().splitlines():
        words = line.partition("#")[0].split()
        if len(words) > 1 and words[0] in {"domain", "search"}:
            names.append(f"{name}.{words[1]}")
            break
    return tuple(dict.fromkeys(names))


def by_variables(sites: Mapping[str, Site], environ: Mapping[str, str], wish: str = "") -> tuple[str, str] | None:
    """Return the site whose variable is set, and that variable; ``wish`` settles what would be a contradiction.

    Raises:
        MachineError: Variables of two sites are set.
    """
    for group in _groups(sites):
        found: dict[str, str] = {}
        for site in group:
            for name, patterns in site.recognise.variables.items():
                if site.name not in found and one_of(environ.get(name, ""), patterns):
                    found[site.name] = f"{name}={environ[name]}"
        if wish in found:
            return wish, found[wish]
        if len(found) > 1:
            (first, one), (second, other) = list(found.items())[:2]
            raise MachineError(
                f"two sites: {first} (from {one}) and {second} (from {other}); expected variables of one machine. "
                f"Say which with `export EZPZ_SITE={first}` or `export EZPZ_SITE={second}`."
            )
        if found:
            return next(iter(found.items()))
    return None


def by_names(sites: Mapping[str, Site], names: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the site of a host with these names, its own first, and the name that told."""
    for group in _groups(sites):
        for name in names:
            for site in group if "." in name else ():
                if one_of(name, site.recognise.domains):
                    return site.name, f"the host name {name}"
        for site in group:
            if one_of(names[0].split(".")[0], site.recognise.hosts):
                return site.name, f"the host name {names[0]}"
    return None


def _groups(sites: Mapping[str, Site]) -> Iterator[list[Site]]:
    for is_users in (True, False):
        yield [site for site in sites.values() if site.is_users is is_users]


def one_of(value: str, patterns: Iterable[str]) -> bool:
    """Tell whether a value matches one of the patterns."""
    return any(_matches(value, pattern) for pattern in patterns)


def _matches(value: str, pattern: str) -> bool:
    """Tell what ``case VALUE in PATTERN)`` tells; the parts without wildcards are looked at first, to compile little."""
    from fnmatch import fnmatchcase

    head, tail = pattern, pattern
    for mark in "*?[":
        head = head.partition(mark)[0]
    for mark in "*?]":
        tail = tail.rpartition(mark)[2]
    return value.startswith(head) and value.endswith(tail) and fnmatchcase(value, pattern)
