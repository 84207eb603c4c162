"""Choose the hosts of a launch: --hosts, --hostfile, --exclude and --nhosts."""

from __future__ import annotations

import os
import re

from ezpz.cluster import detect
from ezpz.cluster.allocation import Allocation
from ezpz.cluster.components import with_components
from ezpz.errors import MachineError, UsageError, did_you_mean
from ezpz.fields import Record, replace
from ezpz.launch.hostfile import read_hostfile
from ezpz.launch.options import LaunchOptions

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ezpz.cluster.allocation import Run
    from ezpz.launch.hostfile import HostFile

__all__ = ["Selection", "all_hosts", "select", "selected"]

_ADDRESS = re.compile(r"[0-9.]+")


class Selection(Record):
    """The hosts of a launch.

    Attributes:
        allocation: The chosen hosts, with what the scheduler granted on them.
        wanted: Ranks per host that the user's host file names, as long as the hosts; None when it names none.
        wanted_origin: The host file; empty without one.
    """

    allocation: Allocation
    wanted: tuple[int, ...] | None = None
    wanted_origin: str = ""


def select(around: Allocation, options: LaunchOptions, named: HostFile | None = None) -> Selection:
    """Return the hosts that the user wants: --hosts or the host file's or all, less --exclude, the first --nhosts.

    Within a job only its hosts can be chosen, by their first label, and they keep the scheduler's spelling; without a
    scheduler any host can be. Of a heterogeneous job those components are used whose hosts are named, else component 0.

    Args:
        around: What the scheduler granted, or this host alone.
        options: What the user asked for.
        named: The host file that ``options`` names, read; None when it names none.

    Raises:
        UsageError: A host is not the job's or named twice, none is left, or more are asked for than there are.
    """
    file = f"--hostfile {named.path}" if named else ""
    whole = with_components(around) if around.parts else around
    if options.hosts is not None:
        base, origin = _listed(whole, options.hosts), "--hosts"
    elif named:
        base, origin = _filed(whole, named), file
    else:
        base, origin = dict.fromkeys(around.hosts, 0), around.origin.get("hosts", "the scheduler")
    if around.parts and (options.hosts is not None or named):
        around = with_components(around, base)
    gone = _excluded(whole, base, options.exclude)
    hosts = [host for host in base if host not in gone]
    if gone:
        origin += f", --exclude {_short(gone)}"
    if not hosts:
        raise UsageError(
            f"no host is left: --exclude removes {_some(base)} ({_short(base)}); expected at least one to stay. "
            "Name fewer with --exclude."
        )
    if options.nhosts is not None:
        if options.nhosts > len(hosts):
            raise _too_many(options.nhosts, base, gone, origin, around)
        hosts = hosts[: options.nhosts]
        origin += f", --nhosts {options.nhosts}"
    chosen = _subset(around, tuple(hosts), origin)
    if not named or not _is_request(around, base, named):
        return Selection(chosen)
    return Selection(chosen, tuple(base[host] for host in hosts), file)


def selected(options: LaunchOptions, environ: Mapping[str, str], run: Run | None, *, more: bool) -> Selection:
    """Return the hosts of a launch, asking the scheduler.

    Args:
        options: What the user asked for.
        environ: The environment to read.
        run: Asks schedulers; None as `detect` does.
        more: Ask the scheduler also for what only people want to know.

    Raises:
        EzpzError: The job's hosts cannot be found and are not named, or as `select`.
    """
    named = read_hostfile(options.hostfile) if options.hostfile else None
    hosts = options.hosts or (named.hosts if named else ())
    try:
        around = detect(environ, run=run, more=more)
    except MachineError:
        if not hosts:
            raise
        around = Allocation("none", "", hosts)  # the way out of a job whose hosts are unknown is to name them
    return select(around, options, named)


def all_hosts(options: LaunchOptions) -> tuple[str, ...]:
    """Return all hosts that a launch may use, those behind the first ``--nhosts`` too, which are spares."""
    whole = LaunchOptions(**{**vars(options), "nhosts": None})
    return selected(whole, os.environ, None, more=False).allocation.hosts


def _listed(around: Allocation, names: tuple[str, ...]) -> dict[str, int]:
    known = _Names(around.hosts) if _is_job(around) else None
    hosts: dict[str, int] = {}
    for name in names:
        host = known.one(name, "--hosts", around) if known else name
        if host in hosts:
            raise UsageError(
                f"{name} is named twice (from --hosts); expected each host once. "
                "More ranks on a host are asked for with --ppn or -n, different numbers with --hostfile."
            )
        hosts[host] = 0
    return hosts


def _filed(around: Allocation, named: HostFile) -> dict[str, int]:
    """Return the file's hosts with their slots; a job's host that is spelt in two ways is one."""
    known = _Names(around.hosts) if _is_job(around) else None
    hosts: dict[str, int] = {}
    slots = named.slots or (1,) * len(named.hosts)
    for name, count, line in zip(named.hosts, slots, named.lines, strict=True):
        host = known.one(name, f"line {line} of --hostfile {named.path}", around) if known else name
        hosts[host] = hosts.get(host, 0) + count
    return hosts


def _is_request(around: Allocation, base: dict[str, int], named: HostFile) -> bool:
    """Tell whether the file's slots are the user's request: the scheduler's node file repeated is what it granted."""
    if named.explicit:
        return True
    if sum(base.values()) == len(base):
        return False
    granted = dict(zip(around.hosts, around.slots or (), strict=False))
    return any(granted.get(host) != count for host, count in base.items())


def _excluded(around: Allocation, base: dict[str, int], names: tuple[str, ...]) -> list[str]:
    if not names:
        return []
    known, job = _Names(base), _Names(around.hosts)
    gone: dict[str, None] = {}
    for name in names:
        matches = known.find(name)
        if not matches and not job.find(name):  # a host of the job that was not chosen is out already
            raise _stranger(name, "--exclude", around, list(base))
        gone.update(dict.fromkeys(matches))
    return list(gone)


class _Names:
    """Hosts by their names, exact ones first, else by the first label: schedulers and users shorten them."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self.by_name: dict[str, list[str]] = {}
        for host in hosts:
            self.by_name.setdefault(_label(host), []).append(host)

    def find(self, name: str) -> list[str]:
        matches = self.by_name.get(_label(name), [])
        return [name] if name in matches else matches

    def one(self, name: str, source: str, around: Allocation) -> str:
        matches = self.find(name)
        if not matches:
            raise _stranger(name, source, around, list(around.hosts))
        if len(matches) > 1:
            raise UsageError(
                f"{name} (from {source}) means {' and '.join(matches[:2])}; expected one. Write it in full."
            )
        return matches[0]


def _label(host: str) -> str:
    return host if _ADDRESS.fullmatch(host) else host.partition(".")[0].lower()


def _is_job(around: Allocation) -> bool:
    return around.scheduler != "none"


def _subset(around: Allocation, hosts: tuple[str, ...], origin: str) -> Allocation:
    """Return the allocation of some of its hosts, or of others where no scheduler granted any."""
    origins = {**around.origin, "hosts": origin}
    if hosts == around.hosts:
        return replace(around, origin=origins)
    index = {host: number for number, host in enumerate(around.hosts)}
    places = [index[host] for host in hosts] if all(host in index for host in hosts) else []
    slots = tuple(around.slots[place] for place in places) if places and around.slots else None
    cpus = tuple(around.cpus[place] for place in places) if places and around.cpus else None
    tasks = min(around.tasks, sum(slots)) if slots and around.tasks else None
    return replace(
        around,
        hosts=hosts,
        slots=slots,
        tasks=tasks,
        cpus=cpus,
        devices=tuple(around.devices[place] for place in places) if places and around.devices else None,
        components=tuple(around.components[place] for place in places) if places and around.components else None,
        is_ordered=places == sorted(places),
        hostfile="",
        origin=origins,
    )


def _too_many(wanted: int, base: dict[str, int], gone: list[str], origin: str, around: Allocation) -> UsageError:
    left = len(base) - len(gone)
    source = origin.partition(", --exclude")[0]
    less = f", less {len(gone)} by --exclude" if gone else ""
    more = "" if _is_job(around) else ", or name more with `--hosts LIST` or `--hostfile FILE`"
    return UsageError(
        f"cannot use {wanted} hosts (from --nhosts): there {'is' if left == 1 else 'are'} {left} "
        f"({len(base)} from {source}{less}). Use `--nhosts {left}`{more}."
    )


def _stranger(name: str, source: str, around: Allocation, hosts: list[str]) -> UsageError:
    hint = did_you_mean(name, hosts, otherwise=" `ezpz where` shows the hosts.", cutoff=0.7)
    what = f"a host of {around.scheduler} job {around.job_id}".rstrip() if _is_job(around) else "one of the hosts"
    return UsageError(f"{name} (from {source}) is not {what}; expected one of {_short(hosts)}.{hint}")


def _short(hosts: Iterable[str]) -> str:
    names = list(hosts)
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])}, … {names[-1]}"


def _some(hosts: dict[str, int]) -> str:
    return f"all {len(hosts)} hosts" if len(hosts) > 1 else "the only host"
