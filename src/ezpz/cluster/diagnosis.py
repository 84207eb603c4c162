"""Say what is wrong with hosts, from what `ezpz.cluster.examine` found on each: pure, and one rule per function.

A problem is what must make a launch fail, or hang; everything else that is worth a word is a note. Each has a cure:
what to type, or whom to ask.
"""

from __future__ import annotations

from ezpz.records import NamedTuple

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    Facts = dict[str, Any]

__all__ = ["Finding", "diagnose", "summary"]

_MIB, _GIB = 1 << 20, 1 << 30
_LEAST = {  # bytes that must be free, and what needs them
    "the run's folder": (_GIB, "checkpoints and metrics"),
    "TMPDIR": (256 * _MIB, "temporary files"),
    "/dev/shm": (64 * _MIB, "batches of DataLoader's workers"),  # noqa: S108  # the mount itself
    "the home folder": (64 * _MIB, "caches and records of launches"),
}
_INODES = 1000
_NOFILE, _NPROC, _MEMLOCK = 1024, 1024, 64 * _MIB
_CLOCK = 2.0  # seconds by which answers of one moment may differ: launching them takes that long, too


class Finding(NamedTuple):
    """Something that is wrong.

    Attributes:
        is_problem: Whether a launch must fail of it.
        text: What is wrong, with the hosts where there are several.
        cure: What to do.
        check: The name of the rule.
    """

    is_problem: bool
    text: str
    cure: str
    check: str


def diagnose(hosts: Sequence[Facts]) -> list[Finding]:
    """Return what is wrong with these hosts, problems first; what several hosts share appears once."""
    found: dict[tuple[bool, str, str, str], list[str]] = {}
    for facts in hosts:
        for rule in _OF_ONE:
            for finding in rule(facts):
                found.setdefault(tuple(finding), []).append(str(facts["host"]))  # type: ignore[arg-type]
    findings = [
        Finding(is_problem, f"{_named(names, len(hosts))}{text}", cure, check)
        for (is_problem, text, cure, check), names in found.items()
    ]
    if len(hosts) > 1:
        for across in _OF_ALL:
            findings += across(hosts)
    return sorted(findings, key=lambda finding: not finding.is_problem)


def summary(hosts: Sequence[Facts]) -> str:
    """Return what all, or most, hosts have in common, in one line."""
    common = []
    for what, of in _COMPARED:
        value, count = _majority([of(facts) for facts in hosts])
        if value and count > len(hosts) // 2:
            common.append(f"{what} {value}")
    return ", ".join(common)


def _named(names: Sequence[str], of: int) -> str:
    if of == 1:
        return ""
    if len(names) == of:
        return f"all {of} hosts: "
    return f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}: "


# Of one host


def _torch(facts: Facts) -> Iterator[Finding]:
    python = _part(facts, "python")
    if python and "torch" not in python.get("versions", {}):
        path = python.get("path")
        yield Finding(
            True, f"no torch in {path}", "run `ezpz_setup_env`, or load the site's module that brings torch", "torch"
        )
    build, devices = str(python.get("torch_build") or ""), _part(facts, "devices")
    kind, count = devices.get("kind"), devices.get("count") or 0
    if build == "cpu" and count and kind in {"cuda", "xpu"}:
        yield Finding(
            True,
            f"torch is a CPU build, and there are {count} {kind} devices (from {devices.get('origin')})",
            "install torch's build for them (docs/shell.md), or set TORCH_DEVICE=cpu",
            "build",
        )
    elif build.startswith("cuda") and not count and not facts.get("driver"):
        yield Finding(
            False,
            f"torch is built for {build}, and no NVIDIA driver is here: it computes on the CPU",
            "nothing, if that is wanted; torch's CPU build is a tenth of its size",
            "build",
        )


def _copies(facts: Facts) -> Iterator[Finding]:
    python = _part(facts, "python")
    copies, used = list(python.get("ezpz_copies") or ()), python.get("ezpz")
    others = [path for path in copies if path != used]
    if others:
        yield Finding(
            False,
            f"a second ezpz is at {others[0]}; {used} is used",
            f"uninstall one: {python.get('path')} -m pip uninstall ezpz",
            "copies",
        )


def _files(facts: Facts) -> Iterator[Finding]:
    folder, script = _part(facts, "folder"), _part(facts, "script")
    if folder.get("path") and not folder.get("is_there"):
        yield Finding(
            True,
            f"the working folder {folder['path']} is not there",
            "start in a folder that all hosts share",
            "folder",
        )
    if script.get("problem"):
        yield Finding(
            True,
            f"cannot read {script['path']}: {script['problem']}",
            "put the script where all hosts can read it",
            "script",
        )


def _places(facts: Facts) -> Iterator[Finding]:
    for what, place in dict(facts.get("places") or {}).items():
        if not isinstance(place, dict) or "free" not in place:
            continue
        least, needs = _LEAST.get(what, (0, ""))
        name = what if what == place["path"] else f"{what} ({place['path']})"
        if not place["can_write"]:
            yield Finding(False, f"{name} cannot be written", f"name another one: it holds {needs}", "write")
        elif place["free"] < least:
            free = f"{place['free'] / _MIB:.0f} MiB"
            yield Finding(
                False, f"{name} has {free} left", f"make room, or name another one: it holds {needs}", "space"
            )
        elif place["inodes"] is not None and place["inodes"] < _INODES:
            yield Finding(
                False,
                f"{name} has room for {place['inodes']} more files",
                "remove files, or ask for a larger quota",
                "inodes",
            )


def _limits(facts: Facts) -> Iterator[Finding]:
    limits = dict(facts.get("limits") or {})
    for name, flag, least in (("nofile", "-n", _NOFILE), ("nproc", "-u", _NPROC)):
        if 0 <= limits.get(name, -1) < least:
            yield Finding(
                False, f"the limit {name} is {limits[name]}", f"raise it before the launch: ulimit {flag} {least}", name
            )
    if facts.get("infiniband") and 0 <= limits.get("memlock", -1) < _MEMLOCK:
        size = limits["memlock"] // 1024
        yield Finding(
            False,
            f"only {size} KiB of memory may be locked, and InfiniBand needs more",
            "ask the administrators for an unlimited memlock",
            "memlock",
        )


def _variables(facts: Facts) -> Iterator[Finding]:
    interfaces = facts.get("interfaces")
    for name, value in dict(facts.get("interface_variables") or {}).items():
        chosen = [part.partition(":")[0].lstrip("=") for part in str(value).split(",")]
        if value.startswith("^") or not isinstance(interfaces, dict) or "error" in interfaces:
            continue
        # NCCL takes prefixes, gloo and oneCCL whole names.
        known = any(
            each == part or (name.startswith("NCCL") and each.startswith(part))
            for each in interfaces
            for part in chosen
        )
        if not known:
            there = ", ".join(interfaces)
            yield Finding(True, f"{name}={value} names no interface; there are {there}", f"unset {name}", "ifname")
    stale = dict(facts.get("stale") or {})
    if stale:
        listed = " ".join(f"{name}={value}" for name, value in stale.items())
        yield Finding(
            False,
            f"this shell is no rank, and holds {listed}",
            f"unset {' '.join(stale)} (`launch` sets its own; a plain python3 would wait for others)",
            "stale",
        )
    for name, problem in _part(facts, "proxies").items():
        if problem and name != "error":
            yield Finding(
                False,
                f"the proxy of {name} cannot be reached: {problem}",
                f"unset {name}, or download ahead on a login host (ezpz fetch)",
                "proxy",
            )


def _hanging(facts: Facts) -> Iterator[Finding]:
    for name in facts.get("hanging") or ():
        what = (
            name.removeprefix("place ")
            if name.startswith("place ")
            else {"own_address": "the name server"}.get(name, name)
        )
        yield Finding(
            name.startswith("place ") or name in {"folder", "script"},
            f"{what} does not answer",
            "ask the administrators: a mount, the name server or the driver hangs",
            "hangs",
        )


_OF_ONE: tuple[Callable[[Any], Iterator[Finding]], ...] = (
    _torch, _copies, _files, _places, _limits, _variables, _hanging,
)  # fmt: skip


# Over hosts

_COMPARED: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("Python", lambda facts: str(_part(facts, "python").get("version") or "")),
    ("torch", lambda facts: _version(facts, "torch")),
    ("ezpz", lambda facts: _version(facts, "ezpz")),
    ("numpy", lambda facts: _version(facts, "numpy")),
    ("the driver", lambda facts: str(facts.get("driver") or "")),
    ("mpiexec", lambda facts: str(facts.get("mpi") or "")),
)


def _compare(hosts: Sequence[Facts]) -> Iterator[Finding]:
    """Compare by majority: "torch 2.12.0 on n03, 2.13.0 on 2 hosts"."""
    rows = [
        *_COMPARED,
        ("devices", lambda facts: _counted(_part(facts, "devices"))),
        ("the script", lambda facts: _file(_part(facts, "script"))),
    ]
    for what, of in rows:
        values = [of(facts) for facts in hosts]
        common, count = _majority(values)
        for value in dict.fromkeys(values):
            if value != common:
                names = [str(facts["host"]) for facts, own in zip(hosts, values, strict=True) if own == value]
                where = f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
                text = (
                    f"{what} {value or 'is missing'} on {where}, {common or 'none'} on {count} host{'s' * (count > 1)}"
                )
                yield Finding(
                    False, text, f"give all hosts the same, or leave out {names[0]}: --exclude {names[0]}", "same"
                )


def _addresses(hosts: Sequence[Facts]) -> Iterator[Finding]:
    """Find an address that several hosts have, on an interface that leads to the first host."""
    owners: dict[str, list[str]] = {}
    for facts in hosts:
        for name, interface in _part(facts, "interfaces").items():
            used = {_part(facts, "master").get("interface"), *dict(facts.get("interface_variables") or {}).values()}
            if isinstance(interface, dict) and name in used and not str(interface.get("address")).startswith("127."):
                owners.setdefault(str(interface["address"]), []).append(str(facts["host"]))
    for address, names in owners.items():
        if len(set(names)) > 1:
            yield Finding(
                True,
                f"{', '.join(names[:3])} have the same address {address} on the interface that they meet by",
                "name another interface: GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME",
                "address",
            )


def _master(hosts: Sequence[Facts]) -> Iterator[Finding]:
    """Find hosts that mean another address by the first host's name, or cannot connect to it."""
    masters = [(str(facts["host"]), _part(facts, "master")) for facts in hosts]
    others = [(host, master) for host, master in masters if master and master.get("rank") != 0]
    meant = ["/".join(master.get("addresses") or ()) for _, master in others]
    common, count = _majority(meant)
    for (host, master), value in zip(others, meant, strict=True):
        if value != common:
            yield Finding(
                not value or value.startswith("127."),
                f"{master.get('name')} means {value or 'nothing'} on {host}, {common or 'nothing'} on {count} other(s)",
                f"correct /etc/hosts or DNS on {host}, or leave it out: --exclude {host}",
                "name",
            )
    failed = [(host, master) for host, master in others if master.get("problem")]
    if failed:
        names = [host for host, _ in failed]
        which = "no host reaches" if len(failed) == len(others) else f"{', '.join(names[:3])} cannot reach"
        yield Finding(
            True,
            f"{which} {failed[0][1].get('name')}: {failed[0][1]['problem']}",
            "open the ports between the hosts of a job, or name an interface that they share (GLOO_SOCKET_IFNAME)"
            if len(failed) == len(others)
            else f"leave out what cannot be reached: --exclude {','.join(names)}",
            "reach",
        )


def _clocks(hosts: Sequence[Facts]) -> Iterator[Finding]:
    times = sorted(float(facts.get("time") or 0.0) - float(facts.get("heard") or 0.0) for facts in hosts)
    middle = times[len(times) // 2]
    for facts in hosts:
        off = float(facts.get("time") or 0.0) - float(facts.get("heard") or 0.0) - middle
        if abs(off) > _CLOCK:
            yield Finding(
                False,
                f"the clock of {facts['host']} is {abs(off):.0f} s {'ahead' if off > 0 else 'behind'}",
                "ask the administrators for NTP; times in logs and file dates of that host are off",
                "clock",
            )


_OF_ALL: tuple[Callable[[Any], Iterator[Finding]], ...] = (_compare, _addresses, _master, _clocks)


def _part(facts: Facts, name: str) -> dict[str, Any]:
    part = facts.get(name)
    return part if isinstance(part, dict) and "error" not in part else {}


def _version(facts: Facts, name: str) -> str:
    return str(dict(_part(facts, "python").get("versions") or {}).get(name) or "")


def _counted(devices: dict[str, Any]) -> str:
    return f"{devices['count']} {devices['kind']}" if devices.get("count") else ""


def _file(script: dict[str, Any]) -> str:
    return f"of {script['size']} bytes" if "size" in script else ""


def _majority(values: Sequence[str]) -> tuple[str, int]:
    """Return the most frequent value, the first of those that are equally frequent, and how often it is there."""
    best = max(dict.fromkeys(values), key=values.count, default="")
    return best, list(values).count(best)
