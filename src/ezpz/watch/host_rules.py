"""Judge facts of hosts: the rules, and the words, that `launch --check`, `ezpz doctor` and a probe share.

Each rule is a pure function of values, however closely a host was looked at. `ezpz.watch.doctor.diagnosis` has those
that only `ezpz doctor` has facts for, and `ezpz.watch.preflight.launcher` says which findings keep ranks from
beginning.
"""

from __future__ import annotations

from ezpz.fields import Record

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

_NAMED = 3  # hosts that are named one by one
_MIB = 1 << 20
_ROOM = 64 * _MIB  # bytes that should be free wherever something is written
ITSELF = "that name means the host itself (127.x)"  # why a host does not reach the first one


class Finding(Record):
    """Something that is wrong.

    Attributes:
        is_problem: Whether it makes a launch fail, or hang.
        text: What is wrong, with the hosts where there are several.
        cure: What to do.
        check: The name of the rule.
        hosts: Where it is wrong; empty for all hosts together.
    """

    is_problem: bool
    text: str
    cure: str
    check: str
    hosts: Sequence[str] = ()


def gather(found: Mapping[str, Iterable[Finding]]) -> list[Finding]:
    """Return what is wrong with hosts, problems first, from what is wrong with each; what several share comes once."""
    names: dict[Finding, list[str]] = {}
    for host, findings in found.items():
        for finding in findings:
            names.setdefault(finding, []).append(host)
    gathered = [
        Finding(each.is_problem, f"{_where(hosts, len(found))}{each.text}", each.cure, each.check, hosts)
        for each, hosts in names.items()
    ]
    return sorted(gathered, key=lambda finding: not finding.is_problem)


def _where(names: Sequence[str], of: int) -> str:
    if of == 1:
        return ""
    return f"all {of} hosts: " if len(names) == of else f"{listed(names)}: "


# Of one host.


def missing_folder(path: str, problem: str) -> Finding:
    text = f"the working folder {path} is missing: {problem}; expected it on every host"
    return Finding(True, text, "start in a folder that all hosts share", "folder")


def unread_script(path: str, problem: str) -> Finding:
    text = f"cannot read {path} (from the command line): {problem}; expected a script that every host has"
    return Finding(True, text, "put the script where all hosts can read it", "script")


def shared_device(mask: str) -> Finding:
    """Return the finding about a mask, ``CUDA_VISIBLE_DEVICES=0,0``, that gives one device to two ranks."""
    cure = f"unset {mask.partition('=')[0]}, name each device once, or share devices: `--ppn`, `--oversubscribe`"
    return Finding(True, f"{mask} names no device of its own for each rank; expected one", cure, "mask")


def no_interface(variable: str, interfaces: Iterable[str]) -> Finding:
    """Return the finding about a variable, ``GLOO_SOCKET_IFNAME=ib7``, that names none of a host's interfaces."""
    text = f"{variable} names no interface; there are {', '.join(interfaces)}"
    return Finding(True, text, f"unset {variable.partition('=')[0]}", "ifname")


def full(what: str, path: str, free: int, least: int = _ROOM, needs: str = "") -> Iterator[Finding]:
    """Find too few free bytes in a folder, by what it is for and its path, which may be empty."""
    if free < least:
        name = what if path in {"", what} else f"{what} ({path})"
        holds = f": it holds {needs}" if needs else ""
        yield Finding(
            False, f"{name} has {free / _MIB:.0f} MiB left", f"make room, or name another one{holds}", "space"
        )


# Over hosts.


def same_address(used: Iterable[tuple[str, str, str]]) -> Iterator[Finding]:
    """Find hosts with one address, such as that of a bridge of containers, on an interface that leads to the first.

    Each has its name, an id of its kernel and network, which names of one machine share, and an address.
    """
    owners: dict[str, dict[str, str]] = {}
    for host, place, address in used:
        if address and not address.startswith("127."):
            owners.setdefault(address, {}).setdefault(place, host)
    for address, names in owners.items():
        if len(names) > 1:
            text = f"{listed([*names.values()])} have the same address {address} on the interface that they meet by"
            cure = "name another interface: `export GLOO_SOCKET_IFNAME=NAME NCCL_SOCKET_IFNAME=NAME`"
            yield Finding(True, text, cure, "address")


def unreached(first: str, problems: Mapping[str, str], others: int) -> Iterator[Finding]:
    """Find hosts that cannot connect to the first one, and why, among so many others.

    Where none can, that is one finding, else one for each reason.
    """
    reasons: dict[str, list[str]] = {}
    for host, problem in problems.items():
        reasons.setdefault(problem, []).append(host)
    if problems and len(problems) == others:
        why = "; ".join(f"on {listed(hosts)}, {problem}" for problem, hosts in reasons.items())
        text = f"no host reaches {first}, where the ranks meet: {why}"
        cure = "open the ports between the hosts of a job, or name an interface that they share (GLOO_SOCKET_IFNAME)"
        yield Finding(True, text, cure, "reach", list(problems))
        return
    for problem, hosts in reasons.items():
        text = f"{listed(hosts)} cannot reach {first}, where the ranks meet: {problem}"
        cure = f"correct /etc/hosts, DNS or the network of {hosts[0]}, or leave it out: --exclude {','.join(hosts)}"
        yield Finding(True, text, cure, "reach", hosts)


def differences(rows: Mapping[str, Sequence[tuple[str, str]]]) -> Iterator[Finding]:
    """Compare values of hosts by majority: "torch 2.12.0 on n03, 2.13.0 on 2 hosts"; an empty one is missing."""
    for what, values in rows.items():
        usual, count = majority([value for _, value in values])
        for value in dict.fromkeys(value for _, value in values):
            if value != usual:
                names = [name for name, own in values if own == value]
                others = f"{usual or 'none'} on {count} host{'s' * (count > 1)}"
                text = f"{what} {value or 'is missing'} on {listed(names)}, {others}"
                cure = f"give all hosts the same, or leave out {names[0]}: --exclude {','.join(names[:_NAMED])}"
                yield Finding(False, text, cure, "same")


def majority(values: Sequence[Any]) -> tuple[Any, int]:
    """Return the most frequent value, the first of those that are equally frequent, and how often it is there.

    Of no values it is None, 0 times.
    """
    counts: dict[Any, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    best = max(counts, key=counts.__getitem__, default=None)
    return best, 0 if best is None else counts[best]


def listed(names: Sequence[str]) -> str:
    """Return the first three names, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
