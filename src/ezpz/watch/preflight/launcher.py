"""Judge what the hosts of a launch look like before its ranks begin: what must fail is refused, the rest noted once.

`ezpz.watch.preflight.fast_check` finds the facts: agents on their hosts, or this process where all ranks run here.
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
from ezpz.watch import host_rules
from ezpz.watch.host_rules import Finding, gather, listed, majority

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from ezpz.launch.agent_messages import Message
    from ezpz.launch.plan import LaunchPlan
    from ezpz.watch.preflight.messages import Looked

__all__ = ["Preflight", "Refusal", "refusals"]

_MEANS = {"unknown": "is an unknown name", "loopback": "means the host itself"}
_MUST_FAIL = {"folder", "script", "mask"}
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
        from ezpz.watch.preflight.fast_check import look
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
        own = [f"{each.text}; {each.cure}" for each in _notes(self._by_name(), self._plan)]
        return [*dict.fromkeys([*(f"{each['text']}; {each['cure']}" for each in self._doctor.findings), *own])]

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
    for finding in gather({name: _of_one(looked, plan) for name, looked in hosts.items()}):
        if finding.check in _MUST_FAIL:
            yield _refusal(finding, hosts, plan)
    yield from _one_machine(hosts, plan)
    yield from _no_master(hosts, plan)


def _of_one(looked: Looked, plan: LaunchPlan) -> Iterator[Finding]:
    """Yield what is wrong with a host."""
    if looked.folder_problem:
        yield host_rules.missing_folder(_where(), looked.folder_problem)
    if looked.script_problem:
        yield host_rules.unread_script(script_of(plan.command), looked.script_problem)
    if looked.shared:
        yield host_rules.shared_device(looked.shared)
    for variable in looked.missing:
        yield host_rules.no_interface(variable, looked.interfaces)
    for what, path, free in looked.room:
        yield from host_rules.full(what, "" if path == os.curdir else path, free)


def _refusal(finding: Finding, hosts: Mapping[str, Looked], plan: LaunchPlan) -> Refusal:
    """Return the refusal for what some hosts lack: the user's mistake where all that have answered, or this one, do."""
    several, script = len(plan.placement.hosts) > 1, script_of(plan.command)
    missing = os.strerror(errno.ENOENT)
    if finding.check == "script" and not several and hosts[finding.hosts[0]].script_problem == missing:
        from ezpz.launch.run.failures import no_script

        return _by_user(no_script(os.path.abspath(script)))
    # Hosts may lack the same for different reasons, of which the text has the first.
    lacking = [
        name for name, looked in hosts.items() if finding.check in {each.check for each in _of_one(looked, plan)}
    ]
    leave_out = f", or leave out {listed(lacking)}: `--exclude {','.join(lacking)}`" if several else ""
    text = f"{finding.text}; {finding.cure}{leave_out}"
    is_here = finding.check == "script" and (not several or not os.access(script, os.R_OK))
    if finding.check == "mask" or is_here or len(lacking) == len(hosts) > 1:
        return _by_user(text)
    problems = {name: hosts[name].folder_problem or hosts[name].script_problem for name in lacking}
    what = (
        f"it cannot read {script}" if finding.check == "script" else f"the working folder {_where()} is missing there"
    )
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
        cut = _unreached(hosts, plan)
        if len(cut) < len(others):
            yield from _no_name(hosts, cut, address, len(others))
            return
        (name, problem), *more = cut.items()
        [finding] = host_rules.unreached(f"{address} (from {origin})", cut, len(others))
        # One other host alone may be at fault itself.
        blames = {names[0]: f"{UNREACHED_BY_ALL} ({name}: {problem})"} if more and not by_user else {}
        yield Refusal(f"{finding.text}; {finding.cure}", blames, by_user)


def _no_name(hosts: Mapping[str, Looked], cut: Mapping[str, str], address: str, others: int) -> Iterator[Refusal]:
    """Find hosts on which the address means nothing, or the host itself: their ranks cannot meet the others.

    One that gives no answer may only be busy, which is a note.
    """
    certain = {name: why for name, why in cut.items() if hosts[name].master in {"unknown", "loopback"}}
    found = [f"{each.text}; {each.cure}" for each in host_rules.unreached(address, certain, others)]
    if found:
        yield Refusal(
            "; ".join(found),
            {name: f"on it {address} {_MEANS[hosts[name].master]}" for name in certain},
            is_users=False,
        )


def _unreached(hosts: Mapping[str, Looked], plan: LaunchPlan) -> dict[str, str]:
    """Return why hosts cannot reach the first one, by their names."""
    first = hosts.get(plan.placement.hosts[0])
    others = {name: looked for name, looked in hosts.items() if looked is not first}
    return {name: problem for name, looked in others.items() if (problem := _cut_off(looked, first))}


def _cut_off(looked: Looked, first: Looked | None) -> str:
    """Return why a host that is not the first cannot reach that; empty where it can, or nothing is known."""
    if looked.master == "unknown":
        return f"the name is unknown ({looked.reach})"
    if looked.master == "loopback":
        return "" if first and first.place == looked.place else host_rules.ITSELF
    return looked.reach


# What is worth a word.


def _notes(hosts: Mapping[str, Looked], plan: LaunchPlan) -> Iterator[Finding]:
    yield from gather({name: _of_one(looked, plan) for name, looked in hosts.items()})
    if len(hosts) > 1:
        yield from host_rules.unreached(plan.address.value, _unreached(hosts, plan), len(plan.placement.hosts) - 1)
        yield from host_rules.same_address([(name, looked.place, looked.address) for name, looked in hosts.items()])
        rows = {what: [(name, of(looked)) for name, looked in hosts.items()] for what, of in _COMPARED}
        yield from host_rules.differences(rows)
        yield from _older_script(hosts)


_COMPARED: tuple[tuple[str, Callable[[Looked], str]], ...] = (
    ("Python", lambda looked: looked.version),
    ("torch", lambda looked: looked.torch),
    ("ezpz", lambda looked: looked.ezpz),
    ("the script", lambda looked: f"of {looked.script_size} bytes" if looked.script_size >= 0 else ""),
)


def _older_script(hosts: Mapping[str, Looked]) -> Iterator[Finding]:
    sizes = {looked.script_size for looked in hosts.values()}
    times = {name: looked.script_time for name, looked in hosts.items() if looked.script_size >= 0}
    usual, count = majority(list(times.values()))
    older = [name for name, when in times.items() if when < usual]
    if older and len(sizes) == 1 and 2 * count > len(times):  # copies made on each host have all times
        text = f"the script is older on {listed(older)} than on {count} hosts"
        cure = f"copy it again if it is not the same, or leave out what is old: --exclude {','.join(older)}"
        yield Finding(False, text, cure, "same")


def _where() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""
