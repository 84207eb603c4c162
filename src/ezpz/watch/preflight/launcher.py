"""Judge what the hosts of a launch look like before its ranks begin: what must fail is refused, the rest noted once.

`ezpz.watch.preflight.look` finds the facts: agents on their hosts, or this process where all ranks run here.
``--check full`` asks `ezpz doctor` first, for all else that it knows.
"""

from __future__ import annotations

import errno
import os
import time
from functools import cache

from ezpz.errors import EzpzError, MachineError, UsageError
from ezpz.fields import Record
from ezpz.interpreter import module_line, script_of
from ezpz.launch.run.failures import UNREACHED_BY_ALL
from ezpz.launch.watchers import LauncherHandle, LauncherSide

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from ezpz.launch.messages import Message
    from ezpz.launch.plan import LaunchPlan
    from ezpz.watch.preflight.messages import Looked

__all__ = ["Preflight", "Refusal", "refusals"]

_EXCLUDED = 3  # hosts of one value that a cure leaves out
_LEAST = 64 << 20  # bytes that should be free where a launch writes
_FULL = 120  # seconds for `ezpz doctor`
_RECORDED = 1024  # hosts whose facts are in run.json; of more, what was found alone
_TOGETHER = 0.3  # seconds for the agents of other hosts to report the same


class Refusal(Record):
    """Why no rank of a launch may begin.

    Attributes:
        text: The line.
        blames: The hosts at which it lies, and why; empty where it lies at what the user has typed or set.
        is_users: Whether it does.
    """

    text: str
    blames: Mapping[str, str]
    is_users: bool

    @property
    def error(self) -> EzpzError:
        """The error, whose exit code says whose mistake it is."""
        return (UsageError if self.is_users else MachineError)(self.text)


def _by_user(text: str) -> Refusal:
    return Refusal(text, {}, is_users=True)


class _Doctor(Record):
    """What `ezpz doctor` has answered: findings and facts, or why it gave none."""

    findings: Sequence[dict[str, Any]] = ()
    facts: Sequence[dict[str, Any]] = ()
    problem: str = ""


class Preflight(LauncherSide):
    """What is known of the hosts of one launch before its ranks begin."""

    def __init__(self, handle: LauncherHandle) -> None:
        super().__init__(handle)
        self._plan, self._level = handle.plan, handle.plan.context.check
        self._looked: dict[int, Looked] = {}
        self._doctor = _Doctor()
        self._noted: list[str] = []
        self._seconds = 0.0
        self._refused: Refusal | None = None
        self._is_over = False  # ranks begin, or never will

    def prepare(self) -> None:
        """Ask `ezpz doctor` about all hosts, for ``--check full``."""
        if self._level.value != "full":
            return
        hosts = "" if self._plan.is_here else ",".join(self._plan.placement.hosts)
        begun = time.monotonic()
        self._doctor = _ask_doctor(self.handle.launch, hosts, script_of(self._plan.command))
        self._seconds += time.monotonic() - begun
        if self._doctor.problem:
            self.handle.say(f"note: {self._doctor.problem}")

    def hear(self, host: int, report: Message) -> None:
        """Take what the agent of the host with this index has found, and see soon whether ranks must fail."""
        self._looked[host] = report  # type: ignore[assignment]  # there is no other report
        if not self._is_over:
            self.handle.after(_TOGETHER, self._judge)

    def before_begin(self) -> str | EzpzError:
        """Refuse what must fail, and note the rest."""
        self._is_over = True
        if self._plan.is_here and self._level.value != "off":
            self._look_here()
        refusal = self._refusal()
        if refusal:
            return refusal.error
        for text in self._notes():
            self._noted.append(text)
            self.handle.note(text)
        return ""

    def of_start(self) -> Mapping[str, Any]:
        """Return what ``run.json`` says."""
        return {"check": self._record()}

    def _look_here(self) -> None:
        """Look at this host, where all ranks run."""
        from ezpz.watch.preflight.look import look
        from ezpz.watch.preflight.messages import Look

        begun, plan = time.monotonic(), self._plan
        environ, log_dir = plan.rank_environment(0), plan.supervision.agent_settings["log_dir"]
        request = Look.of(self.handle.config)
        self._looked[0] = look(request, environ, log_dir, plan.placement.counts[0], first=True)
        self._seconds += time.monotonic() - begun

    def _judge(self) -> None:
        if self._is_over or self.handle.is_stopping():
            return
        refusal = self._refusal()
        if refusal:
            self.handle.refuse(refusal.error)

    def _refusal(self) -> Refusal | None:
        """Return why ranks must fail, as far as hosts have answered; None where they need not."""
        if not self._refused:
            self._refused = next(refusals(self._by_name(), self._plan), None)
            for host, why in self._refused.blames.items() if self._refused else ():
                self.handle.blame(host, why)
        return self._refused

    def _notes(self) -> list[str]:
        """Return what else the user should know, each with what to type."""
        more = [f"{each['text']}; {each['cure']}" for each in self._doctor.findings]
        return [*more, *_notes(self._by_name(), self._plan)]

    def _record(self) -> dict[str, Any]:
        from ezpz.fields import to_fields

        hosts = {}
        if len(self._looked) <= _RECORDED:
            for name, looked in self._by_name().items():
                fields = {key: value for key, value in to_fields(looked).items() if value not in ("", [], -1)}
                hosts[name] = {key: value for key, value in fields.items() if key not in {"host", "place", "machine"}}
        doctor = {"findings": list(self._doctor.findings), "facts": list(self._doctor.facts)}
        return {
            "level": self._level.value,
            "origin": self._level.origin,
            "seconds": round(self._seconds, 3),
            "answered": len(self._looked),
            "refused": self._refused.text if self._refused else None,
            "notes": list(self._noted),
            "hosts": hosts,
            **({"doctor": doctor} if self._level.value == "full" else {}),
        }

    def _by_name(self) -> dict[str, Looked]:
        """Return what was found by the names of the plan, hosts in their order."""
        hosts = self._plan.placement.hosts
        return {hosts[index]: self._looked[index] for index in sorted(self._looked) if 0 <= index < len(hosts)}


@cache  # a launch whose port is taken starts again
def _ask_doctor(launch: str, hosts: str, script: str) -> _Doctor:
    """Ask `ezpz doctor` about these hosts; about this one where there are none.

    Args:
        launch: Id of the launch: another attempt asks anew, as an earlier one may have failed of what has changed.
        hosts: Names, with commas between them.
        script: What the ranks run; may be empty.
    """
    import json
    import subprocess

    del launch
    chosen = ["--hosts", hosts] if hosts else []
    line = [*module_line("ezpz"), "doctor", "--json", *chosen, *([script] if script else [])]
    try:
        done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, timeout=_FULL, check=False)
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return _Doctor(problem=f"`ezpz doctor` gave no answer within {_FULL} s")
    except (OSError, ValueError):
        words = done.stderr.decode(errors="replace").strip().splitlines()
        return _Doctor(
            problem=f"`ezpz doctor` gave no answer: {words[-1] if words else f'it ended with {done.returncode}'}"
        )
    # A launch sets those variables itself, whatever this shell holds.
    return _Doctor([each for each in answer["findings"] if each["check"] != "stale"], answer["facts"])


# What must fail.


def refusals(hosts: Mapping[str, Looked], plan: LaunchPlan) -> Iterator[Refusal]:
    """Yield why ranks of a plan must fail, by what was found on hosts that have answered."""
    several = len(plan.placement.hosts) > 1
    absent = {name: looked.folder_problem for name, looked in hosts.items() if looked.folder_problem}
    if absent:
        problem = next(iter(absent.values()))
        text = (
            f"the working folder {_where()} is missing on {_listed([*absent])}: {problem}; "
            f"expected it on every host. Start in a folder that they share{_leave_out([*absent], several)}."
        )
        yield _of_hosts(text, absent, hosts, f"the working folder {_where()} is missing there")
    unread = {name: looked.script_problem for name, looked in hosts.items() if looked.script_problem}
    if unread:
        yield _unread(unread, hosts, plan)
    for name, looked in hosts.items():
        if looked.shared:
            yield _by_user(
                f"{looked.shared} names no device of its own for each of the {_counts(plan)[name]} ranks of {name}; "
                "expected as many devices as ranks. Name each device once, start fewer ranks with `--ppn`, or share "
                "devices: `--oversubscribe`."
            )
            break
    yield from _one_machine(hosts, plan)
    yield from _no_master(hosts, plan)


def _of_hosts(text: str, problems: Mapping[str, str], hosts: Mapping[str, Looked], what: str) -> Refusal:
    """Return the refusal for what some hosts lack: it is the user's mistake where all that have answered lack it."""
    if len(problems) == len(hosts) and len(hosts) > 1:
        return _by_user(text)
    return Refusal(text, {name: f"{what} ({problem})" for name, problem in problems.items()}, is_users=False)


def _one_machine(hosts: Mapping[str, Looked], plan: LaunchPlan) -> Iterator[Refusal]:
    """Find a machine that is two hosts of the plan, where a rank of each has the same device."""
    owners: dict[tuple[str, str], str] = {}  # of machine and device
    for name, looked in hosts.items():
        for device in looked.devices if looked.machine else ():
            owner = owners.setdefault((looked.machine, device), name)
            if owner != name:
                origin = plan.context.hosts_origin
                yield _by_user(
                    f"{owner} and {name}{f' (from {origin})' if origin else ''} are one machine, and a rank of each "
                    f"would have its device {device}; expected one rank for each device. Name the machine once, or "
                    "share devices: `--oversubscribe`."
                )
                return


def _unread(unread: Mapping[str, str], hosts: Mapping[str, Looked], plan: LaunchPlan) -> Refusal:
    """Return the refusal for a script that these hosts cannot read."""
    script, names = script_of(plan.command), [*unread]
    several, problem = len(plan.placement.hosts) > 1, unread[names[0]]
    if not several and problem == os.strerror(errno.ENOENT):
        from ezpz.launch.run.failures import no_script

        return _by_user(no_script(os.path.abspath(script)))
    on = f" on {_listed(names)}" if several else ""
    text = (
        f"cannot read {script}{on} (from the command line): {problem}; expected a script"
        f"{' that every host has' if several else ''}. Check the path{_leave_out(names, several)}."
    )
    if not several or not os.access(script, os.R_OK):  # here it is not, either
        return _by_user(text)
    return _of_hosts(text, unread, hosts, f"it cannot read {script}")


def _no_master(hosts: Mapping[str, Looked], plan: LaunchPlan) -> Iterator[Refusal]:
    names, (address, origin) = plan.placement.hosts, plan.address
    first = hosts.get(names[0])
    others = {name: hosts[name] for name in names[1:] if name in hosts}
    by_user = origin in {"MASTER_ADDR", "--master-addr"}
    undo = "Leave --master-addr out" if origin == "--master-addr" else "Run `unset MASTER_ADDR`"
    undo = f"{undo}; `--check off` starts all the same" if by_user else "Set one: `export MASTER_ADDR=ADDRESS`"
    if first and first.master == "unknown":
        text = (
            f"the ranks cannot meet at {address} (from {origin}): {names[0]} does not know that name ({first.reach}); "
            f"expected an address of {names[0]}. {undo}."
        )
        yield Refusal(text, {} if by_user else {names[0]: f"it does not know its own name {address}"}, by_user)
    elif first and first.master == "other":
        owner = next((name for name, looked in others.items() if looked.master == "own"), "")
        whose = f"it is an address of {owner}" if owner else "no host of this launch has that address"
        if owner or len(others) == len(names) - 1:
            text = (
                f"the ranks cannot meet at {address} (from {origin}): {whose}; expected one of {names[0]}, where rank "
                f"0 runs. {undo}."
            )
            yield Refusal(text, {}, by_user)
    elif others and len(others) == len(names) - 1:
        cut = {name: problem for name, looked in others.items() if (problem := _cut_off(looked, first))}
        if len(cut) == len(others):
            name, problem = next(iter(cut.items()))
            text = (
                f"no host reaches {address} (from {origin}), where the ranks meet: on {name}, {problem}; expected "
                f"a network that {names[0]} shares with the others. Open the ports between the hosts of a job, or name "
                "another address of that host: `export MASTER_ADDR=ADDRESS`."
            )
            # One other host alone may be at fault itself.
            blames = {names[0]: f"{UNREACHED_BY_ALL} ({name}: {problem})"} if len(cut) > 1 and not by_user else {}
            yield Refusal(text, blames, by_user)


def _cut_off(looked: Looked, first: Looked | None) -> str:
    """Return why a host that is not the first cannot reach that; empty where it can, or nothing is known."""
    if looked.master == "unknown":
        return f"the name is unknown ({looked.reach})"
    if looked.master == "loopback":
        return "" if first and first.place == looked.place else "that name means the host itself (127.x)"
    return looked.reach


# What is worth a word.


def _notes(hosts: Mapping[str, Looked], plan: LaunchPlan) -> Iterator[str]:
    missing: dict[str, list[str]] = {}
    for name, looked in hosts.items():
        for each in looked.missing:
            missing.setdefault(each, []).append(name)
    for each, names in missing.items():
        there, variable = ", ".join(hosts[names[0]].interfaces), each.partition("=")[0]
        yield f"{each} names no interface on {_listed(names)}; there are {there}. Run `unset {variable}`"
    full: dict[str, list[str]] = {}
    for name, looked in hosts.items():
        for what, path, free in looked.room:
            if free < _LEAST:
                shown = "" if path == os.curdir else f" ({path})"
                full.setdefault(f"{what}{shown} has {free >> 20} MiB left", []).append(name)
    for text, names in full.items():
        yield f"on {_listed(names)} {text}. Make room, or choose another folder"
    if len(hosts) > 1:
        yield from _cut_off_notes(hosts, plan)
        yield from _same_address(hosts)
        yield from _differences(hosts)


def _cut_off_notes(hosts: Mapping[str, Looked], plan: LaunchPlan) -> Iterator[str]:
    first = hosts.get(plan.placement.hosts[0])
    others = [(name, looked) for name, looked in hosts.items() if looked is not first]
    cut = {name: problem for name, looked in others if (problem := _cut_off(looked, first))}
    if cut:
        name, problem = next(iter(cut.items()))
        yield (
            f"{_listed(list(cut))} cannot reach {plan.address.value}, where the ranks meet: {problem}. Correct "
            f"/etc/hosts, DNS or the network of {name}, or leave it out: `--exclude {','.join(cut)}`"
        )


def _same_address(hosts: Mapping[str, Looked]) -> Iterator[str]:
    """Find hosts with one address on the interface that leads to the first, such as that of a bridge of containers."""
    owners: dict[str, dict[str, str]] = {}
    for name, looked in hosts.items():
        if looked.address and not looked.address.startswith("127."):
            owners.setdefault(looked.address, {}).setdefault(looked.place, name)
    for address, names in owners.items():
        if len(names) > 1:
            yield (
                f"{_listed(list(names.values()))} have the same address {address} on the interface that leads to rank "
                "0. Name another one: `export GLOO_SOCKET_IFNAME=NAME NCCL_SOCKET_IFNAME=NAME`"
            )


def _differences(hosts: Mapping[str, Looked]) -> Iterator[str]:
    """Compare by majority: "torch 2.12.0 on n03, 2.13.0 on 2 hosts"."""
    from ezpz.cluster.comparing import majority, minorities

    rows: dict[str, Callable[[Looked], str]] = {
        "Python": lambda looked: looked.version,
        "torch": lambda looked: looked.torch,
        "ezpz": lambda looked: looked.ezpz,
        "the script": lambda looked: f"of {looked.script_size} bytes" if looked.script_size >= 0 else "",
    }
    for what, of in rows.items():
        for text, names in minorities(what, [(name, of(looked)) for name, looked in hosts.items()]):
            cure = f"Give all hosts the same, or leave out {names[0]}: `--exclude {','.join(names[:_EXCLUDED])}`"
            yield f"{text}. {cure}"
    sizes = {looked.script_size for looked in hosts.values()}
    times = {name: looked.script_time for name, looked in hosts.items() if looked.script_size >= 0}
    usual, count = majority(list(times.values()))
    older = [name for name, when in times.items() if when < usual]
    if older and len(sizes) == 1 and 2 * count > len(times):  # copies made on each host have all times
        yield (
            f"the script is older on {_listed(older)} than on {count} hosts. Copy it again if it is not the same, or "
            f"leave out what is old: `--exclude {','.join(older)}`"
        )


def _listed(names: Sequence[str]) -> str:
    from ezpz.cluster.comparing import listed  # most launches have nothing to list

    return listed(names)


def _leave_out(names: Sequence[str], several: bool) -> str:
    return f", or leave {_listed(names)} out: `--exclude {','.join(names)}`" if several else ""


def _counts(plan: LaunchPlan) -> dict[str, int]:
    return dict(zip(plan.placement.hosts, plan.placement.counts, strict=True))


def _where() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""
