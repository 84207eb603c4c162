"""The site: which machine this is, and what is known about it.

Facts stand in cluster/sites.toml and in the user's own file, whose tables add sites and override single keys. A site is
known, in this order, by `EZPZ_SITE`, by a variable that only it sets, by the domain of this host's name, and by names
that no other machine shares. The user's own sites are asked first at each step.

    EZPZ_SITE=aurora                                          the user's word, or what ezpz_setup_job exported
    PBS_JOBID=12.aurora-pbs-0001.hostmgmt.cm.aurora.alcf.anl.gov   TACC_SYSTEM=vista   NERSC_HOST=perlmutter

`ezpz.cluster.site` looks for the site, `ezpz.cluster.site_table` reads the tables, and `ezpz.cluster.site_shell`
writes them for the shell, which asks the same questions.
"""

from __future__ import annotations

import os

from ezpz.cluster import SCHEDULERS
from ezpz.cluster.probe import host_name
from ezpz.errors import MachineError, UsageError, nearest
from ezpz.fields import EMPTY, Record, replace

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from ezpz.cluster.allocation import Read

    Patterns = Mapping[str, tuple[str, ...]]


# /proc/sys/kernel/hostname    "login2"                                         this host's name
# /etc/hosts                   "10.0.0.2 login2.ls6.tacc.utexas.edu login2"     address, canonical name, other names
# /etc/resolv.conf             "search ls6.tacc.utexas.edu tacc.utexas.edu"     hosts(5), resolv.conf(5)


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


def by_variables(sites: Mapping[str, Site], environ: Mapping[str, str], requested: str = "") -> tuple[str, str] | None:
    """Return the site whose variable is set, and that variable; ``requested`` settles what would be a contradiction.

    Raises:
        MachineError: Variables of two sites are set.
    """
    for group in _groups(sites):
        found: dict[str, str] = {}
        for site in group:
            for name, patterns in site.recognise.variables.items():
                if site.name not in found and one_of(environ.get(name, ""), patterns):
                    found[site.name] = f"{name}={environ[name]}"
        if requested in found:
            return requested, found[requested]
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
    """Return the site of a host with these names, its own first, and the name by which it was known."""
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
    """Tell what ``case VALUE in PATTERN)`` tells; the parts without wildcards are looked at first, to compile
    little.
    """
    from fnmatch import fnmatchcase

    head, tail = pattern, pattern
    for mark in "*?[":
        head = head.partition(mark)[0]
    for mark in "*?]":
        tail = tail.rpartition(mark)[2]
    return value.startswith(head) and value.endswith(tail) and fnmatchcase(value, pattern)


PACKAGED = "ezpz/cluster/sites.toml"  # how the file that ships with ezpz is called in answers
_packaged: dict[str, Any] = {}  # its tables, read once per process


class Recognise(Record):
    """How a machine is known; patterns as in `case` of a shell.

    Attributes:
        variables: Name of a variable to patterns of its value; one that matches is enough.
        domains: Patterns of fully qualified host names.
        hosts: Patterns of first labels of host names that no other machine has.
    """

    variables: Patterns = EMPTY
    domains: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


class Variant(Record):
    """Keys that hold instead where all variables of ``when`` match, and the file that says so."""

    name: str
    when: Patterns
    keys: Mapping[str, Any]
    file: str


class Site(Record):
    """What is known about one machine; docs/sites.md explains each field, which is a key of its table.

    Attributes:
        name: The name of its table.
        origins: Field to the file, or the variant, that gave it; a field that is not here has its default.
        variants: What holds instead for some jobs; already applied in the site that `recognise` returns.
    """

    name: str
    scheduler: str
    centre: str = ""
    source: str = ""
    date: str = ""
    confidence: str = "own"
    derived: tuple[str, ...] = ()
    recognise: Recognise = Recognise()
    device: str = ""
    vendor: str = ""
    devices_per_host: int | None = None
    devices_composite: int | None = None
    device_cpus: tuple[str, ...] = ()
    cores: int | None = None
    threads: int | None = None
    reserved_cpus: tuple[int, ...] = ()
    cpu_bind: Mapping[str, str] = EMPTY
    launcher: str = ""
    launcher_args: tuple[str, ...] = ()
    mpi: str = ""
    launcher_forbids: tuple[str, ...] = ()
    job: tuple[str, ...] = ()
    job_submits: str = ""
    chains: Mapping[str, str] = EMPTY
    queues: Mapping[str, str] = EMPTY
    environment: Mapping[str, str] = EMPTY
    environment_optional: Mapping[str, str] = EMPTY
    environment_on_hang: Mapping[str, str] = EMPTY
    environment_unset: tuple[str, ...] = ()
    module_use: tuple[str, ...] = ()
    modules: tuple[tuple[str, ...], ...] = ()
    conda: str = ""
    prepend_from: Mapping[str, str] = EMPTY
    python: str = ""
    torch_index: str = ""
    node_local: str = ""
    node_local_is_memory: bool = False
    address: str = "{host}"
    interface: tuple[str, ...] = ()
    proxy: str = ""
    no_proxy: str = ""
    proxy_skip: str = ""
    notes: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = ()
    origins: Mapping[str, str] = EMPTY

    @property
    def torch(self) -> str:
        """The build of torch that suits the hosts of its jobs; empty where that is not known."""
        return torch_build(self.torch_index, self.device, self.vendor)

    @property
    def is_users(self) -> bool:
        """Whether the user's own file speaks of this site."""
        return any(file != PACKAGED for file in self.origins.values())


def torch_build(index: str, device: str, vendor: str) -> str:
    """Return an index of wheels, or the word of ``EZPZ_TORCH`` for devices: ``cuda``, ``xpu``, ``cpu``, or nothing."""
    if index:
        return index
    return "" if vendor == "amd" else {"cuda": "cuda", "xpu": "xpu", "cpu": "cpu"}.get(device, "")


class Recognised(Record):
    """The site of this host, None on an unknown machine, and who says so."""

    site: Site | None
    origin: str


def user_file(environ: Mapping[str, str]) -> str:
    """Return the path of the user's own sites.toml, which need not exist; empty where there is no home."""
    home = environ.get("HOME", "")
    folder = environ.get("XDG_CONFIG_HOME") or (home and os.path.join(home, ".config"))
    return os.path.join(folder, "ezpz", "sites.toml") if folder else ""


def load(environ: Mapping[str, str], read: Read) -> dict[str, Site]:
    """Return all known sites by name, the packaged ones first, with the user's file laid over them.

    Raises:
        UsageError: A key or a value of the user's file is not one of docs/sites.md.
    """
    from ezpz.cluster.site_table import merge, parse

    if not _packaged:
        _packaged.update(_read_packaged(environ))
    sites = {name: _site(name, table, dict.fromkeys(table, PACKAGED)) for name, table in _packaged.items()}
    path = user_file(environ)
    for name, table in parse(text, path).items() if path and (text := read(path)) else ():
        under = _packaged.get(name, {})
        if "scheduler" not in {**under, **table}:
            raise UsageError(
                f"incomplete site: {name} has no scheduler (from {path}, [site.{name}]); expected the key "
                f"in the table of a new site. Add scheduler = {', '.join(map(repr, SCHEDULERS))} or 'none'."
            )
        origins = {**dict.fromkeys(under, PACKAGED), **dict.fromkeys(table or ("name",), path)}
        sites[name] = _site(name, merge(under, table), origins)
    return sites


def _read_packaged(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the packaged tables; parsing TOML costs a launch 30 ms, reading what was parsed before costs it 1."""
    from ezpz.cluster.cache import keep, kept, state_of

    path = os.path.join(os.path.dirname(__file__), "sites.toml")
    state = state_of(path)
    before = kept(environ, "sites")
    if before.get("of") == state:
        tables: dict[str, Any] = _with_tuples(before.get("tables", {}))
        return tables
    from ezpz.cluster.site_table import parse

    with open(path, encoding="utf-8") as file:
        read = parse(file.read(), PACKAGED)
    keep(environ, "sites", {"of": state, "tables": read})
    return read


def _with_tuples(value: Any) -> Any:
    """Return a value of JSON as the parser of the tables gives it: a tuple for each list."""
    if isinstance(value, dict):
        return {key: _with_tuples(each) for key, each in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def recognise(environ: Mapping[str, str], read: Read, job_id: str = "") -> Recognised:
    """Return the site of this host, with the values that hold in this job.

    Args:
        environ: The environment to read.
        read: Returns the text of a file or None.
        job_id: The present job; an `EZPZ_SITE` that came with another `EZPZ_JOBID` is an earlier shell's.

    Raises:
        UsageError: `EZPZ_SITE` names no known site, or the user's file is wrong.
        MachineError: Variables of two sites are set.
    """
    try:
        sites = load(environ, read)
    except (
        ModuleNotFoundError
    ) as error:  # Python 3.10 in an environment that was not made by pip: a launch needs no site
        return Recognised(None, f"not looked for: {error}")
    requested = environ.get("EZPZ_SITE", "")
    is_stale = environ.get("EZPZ_JOBID", job_id) != job_id
    if requested and not is_stale:
        return Recognised(_adapt(_named(requested, sites), environ), "EZPZ_SITE")
    found = by_variables(sites, environ, requested) or by_names(sites, host_names(read))
    if found is None:
        if requested:
            return Recognised(_adapt(_named(requested, sites), environ), "EZPZ_SITE")
        return Recognised(None, "no site's variables or host names")
    return Recognised(_adapt(sites[found[0]], environ), found[1])


def _site(name: str, table: Mapping[str, Any], origins: Mapping[str, str]) -> Site:
    values = dict(table)
    values["recognise"] = Recognise(**values.get("recognise", {}))
    values["variants"] = tuple(Variant(**variant) for variant in values.get("variants", ()))
    return Site(name=name, origins=origins, **values)


def _adapt(site: Site, environ: Mapping[str, str]) -> Site:
    """Return the site with the keys of every variant that matches, the last one on top."""
    from ezpz.cluster.site_table import merge

    for variant in site.variants:
        if all(one_of(environ.get(name, ""), patterns) for name, patterns in variant.when.items()):
            under = {key: getattr(site, key) for key in (*variant.keys, "derived")}
            origins = dict.fromkeys(variant.keys, f"{variant.file}, variant {variant.name}")
            site = replace(site, origins={**site.origins, **origins}, **merge(under, dict(variant.keys)))
    return site


def _named(requested: str, sites: Mapping[str, Site]) -> Site:
    if requested in sites:
        return sites[requested]
    near = nearest(requested, sites, 3)
    raise UsageError(
        f"unknown site: {requested!r} (from EZPZ_SITE); expected one of {', '.join(near or sites)}. "
        "Correct or unset EZPZ_SITE; `ezpz sites` lists all sites."
    )
