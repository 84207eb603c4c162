"""Run attempt after attempt of a launch until one succeeds or `ezpz.launch.decision` stops: ``launch --attempts N``.

An attempt is a whole launch, with an id, a rendezvous and agents of its own, so that nothing of a dead world is carried
over. All share one folder of records: run.json tells the newest attempt, and ``attempts`` in it has a row for each.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time

from ezpz.errors import EzpzError, LaunchError, UsageError
from ezpz.files import read_object
from ezpz.interpreter import module_line
from ezpz.interrupt import Deferring
from ezpz.launch import record
from ezpz.launch.decision import Again, Attempts, Clock, Stop, Verdict, decide, needs_probe
from ezpz.launch.options import LaunchOptions
from ezpz.launch.planning import PlanBuilder, all_hosts, survey
from ezpz.records import as_dict

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

__all__ = ["probe_hosts", "refuse_inside_torchrun", "run_attempts"]

_KEPT = (
    *("launch_id", "state", "started", "ended", "seconds", "exit_code", "cause", "hang", "silent", "lost", "step"),
    "verdict",
)
_PATIENCE = 20.0  # seconds for the other hosts to answer a probe when half of them have
_LONGEST = 90.0  # seconds for that half
_TO_END = 5.0  # seconds for the launches of a probe to end
_LOOK = 0.05  # seconds
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


def run_attempts(
    builder: PlanBuilder,
    options: LaunchOptions,
    run: Callable[[PlanBuilder, str, dict[str, Any]], int],
    say: Callable[[str], None],
) -> int:
    """Run attempts until the end, and return the exit code of the last one.

    Args:
        builder: Of the first attempt.
        options: What the user asked for.
        run: Runs one attempt, with its builder, the folder of records and further fields of run.json.
        say: Prints a line.

    Raises:
        EzpzError: An attempt could not even be started.
    """
    log_dir = os.path.abspath(options.log_dir) if options.log_dir else ""
    with contextlib.ExitStack() as at_end:
        with Deferring():
            folder, note = record.launch_folder(log_dir, builder.launch_id, time.time())
            at_end.callback(record.forget_unused, folder)
        if note:
            say(f"note: {note}")
        if not folder:
            raise LaunchError(
                "cannot decide about attempts without a record of them; expected a folder for it. "
                "Choose one with `launch --log-dir DIR`."
            )
        return _Series(builder, options, folder, run, say).run()


class _Series:
    """The attempts of one launch."""

    def __init__(
        self,
        builder: PlanBuilder,
        options: LaunchOptions,
        folder: str,
        run: Callable[[PlanBuilder, str, dict[str, Any]], int],
        say: Callable[[str], None],
    ) -> None:
        self._builder, self._options, self._folder, self._run, self._say = builder, options, folder, run, say
        placement = builder.survey.placement
        self._hosts = all_hosts(options)
        self._wanted, self._world = len(placement.hosts), placement.world_size
        self._rows: list[dict[str, Any]] = []
        self._began = time.monotonic()

    def run(self) -> int:
        """Run attempts until the end, and return the exit code of the last one."""
        builder, options, code = self._builder, self._options, 0
        while True:
            number = len(self._rows) + 1
            code = self._run(builder, self._folder, {"attempts": self._rows, "attempt": number})
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
            except _EndedError as error:
                self._end(f"{error} came between two attempts")
                return 128 + error.number
            except KeyboardInterrupt:
                self._end("Ctrl-C came between two attempts")
                raise
            except EzpzError as error:
                self._end(f"the next attempt cannot be started: {error}")
                raise

    def _row(self, number: int, builder: PlanBuilder) -> tuple[dict[str, Any], float | None]:
        """Return what the record of the attempt that has ended says, and when its job ends."""
        fields = read_object(os.path.join(self._folder, "run.json"))
        if fields.get("launch_id") != builder.launch_id:
            raise LaunchError(f"the record of attempt {number} is missing from {self._folder}: nothing can be decided.")
        row = {"attempt": number, "hosts": [*builder.survey.placement.hosts]}
        row |= {name: fields.get(name) for name in (*_KEPT, "began")}
        row["stopped"] = fields.get("state") == "stopped"
        end = fields.get("job_ends")
        return row, float(end) if isinstance(end, (int, float)) else None

    def _decide(self, clock: Clock) -> Again | Stop:
        """Decide what follows, say it, and keep it in the record."""
        attempts = Attempts(limit=self._options.attempts, hosts=self._hosts, wanted=self._wanted, rows=(*self._rows,))
        row, probe = self._rows[-1], None
        if needs_probe(attempts, clock):
            begun = time.monotonic()
            gone = {host for each in self._rows for host in each.get("retired") or {}}
            hosts = [host for host in self._hosts if host not in gone]
            self._say(f"attempt {row['attempt']} says nothing against a host; probing {_counted(hosts)}")
            probe = probe_hosts(hosts, self._device_counts(hosts), self._options)
            row["probe"] = {host: as_dict(verdict) for host, verdict in probe.items()}
            row["probe_seconds"] = round(time.monotonic() - begun, 3)
        step = decide(attempts, probe, clock)
        what = f"again on {_counted(step.hosts)}" if isinstance(step, Again) else "no further one"
        word = "again" if isinstance(step, Again) else "stop"
        row |= {"decision": word, "because": step.because, "retired": dict(step.retired)}
        self._write()
        if row["exit_code"]:
            which = f"attempt {row['attempt']} of {self._options.attempts} ended with {row['exit_code']}"
            self._say(f"{which}; {what}: {step.because}")
        return step

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

    def _end(self, because: str) -> None:
        self._rows[-1] |= {"decision": "stop", "because": because}
        self._write()

    def _write(self) -> None:
        path = os.path.join(self._folder, "run.json")
        reason = record.write(self._folder, {**read_object(path), "attempts": self._rows})
        if reason:
            self._say(f"note: {reason}")

    def _conclude(self) -> None:
        if len(self._rows) < 2:
            return
        parts = []
        for row in self._rows:
            gone = f", {', '.join(row['retired'])} retired" if row.get("retired") else ""
            parts.append(f"{row['attempt']} on {_counted(row['hosts'])}: {row['exit_code']}{gone}")
        self._say(f"{len(self._rows)} attempts: {'; '.join(parts)} [record: {self._folder}/run.json]")


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


# The probe: one launch of one rank per host, side by side, so that no host waits for another.


def probe_hosts(hosts: Sequence[str], devices: Mapping[str, int], options: LaunchOptions) -> dict[str, Verdict]:
    """Look at hosts side by side, each in a process of its own, and return the verdict of each.

    Args:
        hosts: The hosts.
        devices: How many devices each must have; a host that is not named may have any number.
        options: What the user asked for: the same launcher is used.
    """
    import shutil
    import tempfile

    with Deferring():
        folder = tempfile.mkdtemp(prefix="ezpz-probe-")
    children: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for host in hosts:
            children[host] = _start_probe(host, os.path.join(folder, host), options)
        _wait(children)
        return {host: _verdict(os.path.join(folder, host), devices.get(host)) for host in hosts}
    finally:
        _end(list(children.values()))
        shutil.rmtree(folder, ignore_errors=True)


def _start_probe(host: str, folder: str, options: LaunchOptions) -> subprocess.Popen[bytes]:
    import subprocess

    from ezpz.cluster.examine import PROBE, stale_variables

    os.mkdir(folder)
    stale = {*stale_variables(os.environ), "WORLD_SIZE", "CPU_BIND", "EZPZ_CHAIN"}
    environ = {name: value for name, value in os.environ.items() if name not in stale}
    flavour = ["--flavour", options.flavour] if options.flavour else []
    own = ["--launcher-args", _joined(options.launcher_args)] if options.launcher_args else []
    line = [
        *module_line("ezpz.launch"),
        *("--hosts", host, "--ppn", "1", "--oversubscribe", "--timeout", str(_LONGEST), "--log-dir", folder),
        *(*flavour, *own, "--", *module_line("ezpz.cluster.examine"), json.dumps(PROBE)),
    ]
    with open(os.path.join(folder, "answer"), "wb") as out, open(os.path.join(folder, "words"), "wb") as words:
        return subprocess.Popen(
            line, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=words, start_new_session=True
        )


def _joined(words: Sequence[str]) -> str:
    import shlex

    return shlex.join(words)


def _wait(children: Mapping[str, subprocess.Popen[bytes]]) -> None:
    """Wait for all; when half have answered, the others have some seconds."""
    end, counted = time.monotonic() + _LONGEST, False
    while time.monotonic() < end:
        ended = [child for child in children.values() if child.poll() is not None]
        if len(ended) == len(children):
            return
        answered = sum(child.returncode == 0 for child in ended)
        if not counted and 2 * answered >= len(children):
            end, counted = min(end, time.monotonic() + _PATIENCE), True
        time.sleep(_LOOK)


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the launches that still run, and with them what they started."""
    for child in children:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
    end = time.monotonic() + _TO_END
    for child in children:
        while child.poll() is None and time.monotonic() < end:
            time.sleep(_LOOK)
        if child.poll() is None:
            child.kill()
        child.wait()


def _verdict(folder: str, devices: int | None) -> Verdict:
    from ezpz.cluster.diagnosis import broken, diagnose
    from ezpz.cluster.examine import parse_answer

    try:
        with open(os.path.join(folder, "answer"), encoding="utf-8", errors="replace") as file:
            answers = [parse_answer(line) for line in file]
    except OSError:
        answers = []
    facts = next((answer for answer in answers if answer), None)
    if facts is None:
        with open(os.path.join(folder, "words"), encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
        return Verdict(answered=False, notes=tuple(lines[-1:]))
    notes = tuple(finding.text for finding in diagnose([facts]))
    return Verdict(answered=True, fails=broken(facts, devices), notes=notes)
