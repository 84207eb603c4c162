"""Run attempt after attempt of a launch until one succeeds or `ezpz.launch.decision` stops: ``launch --attempts N``.

An attempt is a whole launch, with an id, a rendezvous and agents of its own, so that nothing of a dead world is carried
over. All share one folder of records: run.json tells the newest attempt, and ``attempts`` in it has a row for each.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from ezpz.errors import EzpzError, LaunchError, UsageError
from ezpz.fields import as_dict
from ezpz.files import read_object
from ezpz.interrupt import Deferring
from ezpz.launch import record
from ezpz.launch.decision import Again, Attempts, Clock, Stop, decide, is_cut_short, needs_probe
from ezpz.launch.options import LaunchOptions
from ezpz.launch.planning import PlanBuilder
from ezpz.launch.selection import all_hosts
from ezpz.launch.session import say
from ezpz.launch.survey import survey
from ezpz.records.launch_record import Attempt, LaunchRecord, ProbedHost
from ezpz.why.last_words import broken_device

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from ezpz.launch.session import Session
    from ezpz.watch.doctor.host_probe import HostAnswer

__all__ = ["probe_hosts", "refuse_inside_torchrun", "run_attempts", "verdicts"]

_KEPT = (
    *("launch_id", "state", "started", "ended", "seconds", "exit_code", "cause", "hang", "silent", "lost", "step"),
    *("blames", "verdict", "launcher_words", "began"),
)
_CAUSE = 80  # characters of the cause of each attempt, in the last line
_ENDING = (signal.SIGTERM, signal.SIGHUP)


class _EndedError(Exception):
    """A signal from outside came while no attempt ran."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def refuse_inside_torchrun(environ: Mapping[str, str], options: LaunchOptions) -> None:
    """Refuse attempts where torchrun decides about this process.

    Raises:
        UsageError: This is a rank of torchrun.
    """
    run_id = environ.get("TORCHELASTIC_RUN_ID", "")
    if run_id and "RANK" in environ and environ.get("EZPZ_RUN_ID") != run_id:
        raise UsageError(
            f"cannot use --attempts {options.attempts} (from the command line): this is a rank of torchrun "
            f"(TORCHELASTIC_RUN_ID={run_id}), which ends or restarts it as it decides itself; expected one who decides."
            " Use its own `--max-restarts N`, or `launch --attempts N` without it."
        )


def run_attempts(session: Session, builder: PlanBuilder) -> int:
    """Run attempts until the end, and return the exit code of the last one.

    Args:
        session: With a folder for their record.
        builder: Of the first attempt.

    Raises:
        EzpzError: An attempt could not even be started.
    """
    if not session.folder:
        raise LaunchError(
            "cannot decide about attempts without a record of them; expected a folder for it. "
            "Choose one with `launch --log-dir DIR`."
        )
    return _Series(session, builder).run()


class _Series:
    """The attempts of one launch."""

    def __init__(self, session: Session, builder: PlanBuilder) -> None:
        self._session, self._builder, self._options, self._folder = session, builder, session.options, session.folder
        placement = builder.survey.placement
        self._hosts = all_hosts(session.options)
        self._wanted, self._world = len(placement.hosts), placement.world_size
        self._rows: list[dict[str, Any]] = []
        self._began = time.monotonic()

    def run(self) -> int:
        """Run attempts until the end, and return the exit code of the last one."""
        builder, options, code, end = self._builder, self._options, 0, None
        while True:
            number = len(self._rows) + 1
            told = {"attempts": self._rows, "attempt": number, "most_attempts": self._options.attempts}
            self._session.fields.update(told)
            code = self._session.run(builder)
            try:
                with _raising():
                    row, end = self._row(number, builder)
                    self._rows.append(row)
                    step = self._decide(Clock(now=time.time(), end=end))
                    if isinstance(step, Stop):
                        self._conclude()
                        return code
                    time.sleep(step.pause)
                    options = self._without([*step.retired], options)
                    builder = self._next(options, number + 1)
                    self._wait_for_devices(builder)
            except _EndedError as error:
                self._cut_short(str(error), Clock(now=time.time(), end=end))
                return 128 + error.number
            except KeyboardInterrupt:
                self._cut_short("Ctrl-C", Clock(now=time.time(), end=end))
                raise
            except EzpzError as error:
                self._end(f"the next attempt cannot be started: {error}")
                raise

    def _row(self, number: int, builder: PlanBuilder) -> tuple[dict[str, Any], float | None]:
        """Return what the record of the attempt that has ended says, and when its job ends."""
        known = LaunchRecord.read(os.path.join(self._folder, "run.json"))
        if known.launch_id != builder.launch_id:
            raise LaunchError(f"the record of attempt {number} is missing from {self._folder}: nothing can be decided.")
        row = {"attempt": number, "hosts": [*builder.survey.placement.hosts]}
        row |= {name: known.raw.get(name) for name in _KEPT}
        row |= {"refused": known.check.refused or None, "stopped": known.state == "stopped"}
        # Of the last attempt alone each rank's are kept.
        row["stages"] = {
            name: {key: value for key, value in as_dict(told).items() if key != "by_rank"}
            for name, told in known.stages.items()
        }
        return row, known.job_ends

    def _decide(self, clock: Clock) -> Again | Stop:
        """Decide what follows, say it, and keep it in the record."""
        attempts = Attempts(
            limit=self._options.attempts,
            hosts=self._hosts,
            wanted=self._wanted,
            rows=tuple(map(Attempt.of, self._rows)),
        )
        row, probe = self._rows[-1], None
        if needs_probe(attempts, clock):
            begun = time.monotonic()
            gone = {host for each in attempts.rows for host in each.retired}
            hosts = [host for host in self._hosts if host not in gone]
            say(f"no host is to blame for attempt {row['attempt']} so far; probing {_counted(hosts)}")
            probe = probe_hosts(hosts, self._device_counts(hosts), self._options, self._folder)
            row["probe"] = {host: as_dict(verdict) for host, verdict in probe.items()}
            row["probe_seconds"] = round(time.monotonic() - begun, 3)
        step = decide(attempts, probe, clock)
        what = f"again on {_counted(step.hosts)}" if isinstance(step, Again) else "no further one"
        word = "again" if isinstance(step, Again) else "stop"
        row |= {"decision": word, "because": step.because, "retired": dict(step.retired)}
        self._write()
        if row["exit_code"]:
            which = f"attempt {row['attempt']} of {self._options.attempts} ended with {row['exit_code']}"
            say(f"{which}; {what}: {step.because}")
        return step

    def _wait_for_devices(self, builder: PlanBuilder) -> None:
        """Wait for what ranks have held of this host's devices; on other hosts their agents do so."""
        if builder.survey.devices.kind in {"", "cpu"}:
            return
        from ezpz.launch.host.device_memory_wait import note_on, wait

        waited, left = wait(builder.launch_id)
        if note := note_on(" ".join([f"{waited:.1f}", *map(str, left)])):
            say(f"note: {note}")

    def _device_counts(self, hosts: Sequence[str]) -> dict[str, int]:
        """Return how many devices each host must have: as many as were planned, spares as many as the others."""
        devices = self._builder.survey.devices
        if not devices.count or self._options.devices_per_host is not None:
            return {}
        return dict.fromkeys(hosts, devices.count) if devices.kind not in {"", "cpu"} else {}

    def _without(self, retired: Sequence[str], options: LaunchOptions) -> LaunchOptions:
        """Return what the next attempt is asked for: other hosts, and what is left of the time of the whole run."""
        changed: dict[str, Any] = {"exclude": (*options.exclude, *retired), "nhosts": self._wanted}
        if self._options.timeout is not None:
            changed["timeout"] = max(1.0, self._options.timeout - (time.monotonic() - self._began))
        return LaunchOptions(**{**vars(options), **changed})

    def _next(self, options: LaunchOptions, number: int) -> PlanBuilder:
        """Return the builder of the next attempt, whose world has the size that was asked for.

        Raises:
            EzpzError: It has another.
        """
        builder = PlanBuilder(survey(options), options, attempt=number, first_id=self._builder.launch_id)
        placement = builder.survey.placement
        if placement.world_size != self._world:
            raise LaunchError(
                f"the hosts that are left hold {placement.world_size} ranks; expected {self._world}, as attempt 1 had."
            )
        return builder

    def _cut_short(self, signal_name: str, clock: Clock) -> None:
        """Stop because of a signal to `launch` itself, while no attempt ran."""
        because = is_cut_short(clock) or "a signal from outside has ended it"
        say(f"{signal_name} received after attempt {len(self._rows)}; no further one: {because}")
        self._end(f"{signal_name} came between two attempts: {because}")
        self._conclude()

    def _end(self, because: str) -> None:
        self._rows[-1] |= {"decision": "stop", "because": because}
        self._write()

    def _write(self) -> None:
        path = os.path.join(self._folder, "run.json")
        reason = record.write(self._folder, {**read_object(path), "attempts": self._rows})
        if reason:
            say(f"note: {reason}")

    def _conclude(self) -> None:
        if len(self._rows) < 2:
            return
        parts = []
        for row in map(Attempt.of, self._rows):
            cause = row.failure.text.partition("; ")[0]
            why = f" ({cause if len(cause) <= _CAUSE else cause[: _CAUSE - 1] + '…'})" if cause else ""
            gone = f", {', '.join(row.retired)} retired" if row.retired else ""
            parts.append(f"{row.attempt} on {_counted(row.hosts)}: {row.exit_code}{why}{gone}")
        say(f"{len(self._rows)} attempts: {'; '.join(parts)} [record: {self._folder}/run.json]")


@contextlib.contextmanager
def _raising() -> Iterator[None]:
    """Let a signal that ends a launch raise here, where no supervisor hears it; an ignored one stays ignored."""

    def raise_it(number: int, _: object) -> None:
        raise _EndedError(number)

    before = {number: signal.getsignal(number) for number in _ENDING}
    try:
        for number, handler in before.items():
            if handler == signal.SIG_DFL:
                signal.signal(number, raise_it)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _counted(hosts: Sequence[str]) -> str:
    return ", ".join(hosts) if len(hosts) <= 4 else f"{len(hosts)} hosts"


# The probe


def probe_hosts(
    hosts: Sequence[str], devices: Mapping[str, int], options: LaunchOptions, folder: str
) -> dict[str, ProbedHost]:
    """Look at hosts side by side, each in a process of its own, and return the verdict of each.

    Args:
        hosts: The hosts.
        devices: How many devices each must have; a host that is not named may have any number.
        options: What the user asked for: the same launcher is used.
        folder: Of the launch's record, which other hosts may have to read.
    """
    import shlex

    from ezpz.launch.temporary import TemporaryFolder
    from ezpz.watch.doctor.examine import PROBE
    from ezpz.watch.doctor.host_probe import ask_each

    flavour = ["--flavour", options.flavour] if options.flavour else []
    own = ["--launcher-args", shlex.join(options.launcher_args)] if options.launcher_args else []
    with contextlib.ExitStack() as at_end:
        with Deferring():
            own_folder = at_end.enter_context(TemporaryFolder("probe", folder))
        return verdicts(ask_each(hosts, PROBE, own_folder, *flavour, *own), devices)


def verdicts(answers: Mapping[str, HostAnswer], devices: Mapping[str, int]) -> dict[str, ProbedHost]:
    """Return the verdict on each host from what has come of asking it.

    Args:
        answers: Of each host.
        devices: How many devices each must have; a host that is not named may have any number.
    """
    from ezpz.watch.host_rules import majority

    counts = [_computed(each).get("count") for each in answers.values()]
    usual, number = majority([count for count in counts if count is not None])
    usual = usual if 2 * number > len(answers) else None
    return {host: _verdict(answer, devices.get(host), usual) for host, answer in answers.items()}


def _verdict(answer: HostAnswer, devices: int | None, usual: int | None) -> ProbedHost:
    from ezpz.watch.doctor.diagnosis import diagnose

    if answer.facts is None:
        slow = "it runs what asks it, and has not answered within the time of a probe"
        return ProbedHost(answered=answer.began, notes=(slow if answer.began else answer.words,))
    notes = tuple(finding.text for finding in diagnose([dict(answer.facts)]))
    return ProbedHost(answered=True, fails=_broken(answer, devices, usual), notes=notes)


def _broken(answer: HostAnswer, devices: int | None, usual: int | None) -> str:
    """Return which device of a host is gone or computes wrongly; empty where all do what they should.

    What a host may have and still train is no more than a note: a full disk, a slow import, memory that others hold.

    Args:
        answer: Of the host.
        devices: How many devices there must be; None for any number.
        usual: How many of them torch finds on most hosts; None where that is not known.
    """
    counted, computed = dict((answer.facts or {}).get("devices") or {}), _computed(answer)
    if devices is not None and counted.get("count", devices) < devices:
        return f"it has {counted['count']} devices; expected {devices}"
    found = computed.get("count")
    if usual is not None and found is not None and found < usual:
        return f"torch finds {found} devices there; expected {usual}, as on most hosts"
    wrong = list(computed.get("wrong") or ())
    if wrong:
        return f"device {', '.join(map(str, wrong))} computes wrongly"
    for index, words in dict(computed.get("fails") or {}).items():
        fault = broken_device(words)
        if fault:
            return f"device {index} does not compute: its driver reports: {fault}"
    return ""


def _computed(answer: HostAnswer) -> Mapping[str, Any]:
    return (answer.facts or {}).get("compute") or {}
