"""Start ranks with ssh, one leader per host, and own the run until the last of them is gone."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ezpz.errors import LaunchError, UsageError
from ezpz.launch.contract import started_here
from ezpz.launch.control import Control
from ezpz.launch.flavours.ssh import leader_line
from ezpz.launch.master import addresses
from ezpz.launch.order import Setting
from ezpz.launch.parcel import pack
from ezpz.launch.shim import die_with_parent
from ezpz.launch.supervise import Child, Supervisor, exit_code

if TYPE_CHECKING:
    from collections.abc import Callable

    from ezpz.launch.control import Event
    from ezpz.launch.order import Order
    from ezpz.launch.plan import LaunchPlan

__all__ = ["over_ssh"]

_REPORT = 60.0  # seconds for a login, the start-up files of a shell and a Python from a slow file system
_LAST_OUTPUT = 2.0  # seconds for ssh to end when the leader behind it was told to kill all: its host may be gone
_SAID = 300  # characters of ssh's own words
_REFUSED = 125


def over_ssh(plan: LaunchPlan, command: list[str], tell: Callable[[str], None], *, has_input: bool) -> int:
    """Run the plan to its end and return the exit code.

    Raises:
        EzpzError: A variable cannot be used.
    """
    within = _report_within(plan)
    _make_room(len(plan.placement.hosts))
    control = Control(addresses(plan.placement))
    ours = {"EZPZ_CONTROL": control.variable, **({} if has_input else {"EZPZ_STDIN": "none"})}
    plan = replace(plan, extra={**plan.extra, **{name: Setting(value, "this launch") for name, value in ours.items()}})
    logs = tempfile.mkdtemp(prefix="ezpz-ssh-")
    try:
        run = _Remote(tell, control, plan.order(), logs)
        with _Parcels(plan, command) as parcels, run:
            for index in range(len(plan.placement.hosts)):
                run.start_host(index, parcels.open(with_input=has_input and index == 0))
            parcels.unlink()
            return run.wait_for_all(within)
    finally:
        control.close()
        shutil.rmtree(logs, ignore_errors=True)


def _report_within(plan: LaunchPlan) -> float:
    told = plan.environ.get("EZPZ_SSH_TIMEOUT", "")
    try:
        seconds = float(told or _REPORT)
    except ValueError:
        seconds = 0.0
    if seconds > 0:
        return seconds
    raise UsageError(
        f"unusable time {told!r} (from EZPZ_SSH_TIMEOUT); expected seconds, e.g. 120. Run `unset EZPZ_SSH_TIMEOUT`."
    )


class _Parcels:
    """What goes into the leaders: one file, opened once per host and then without a name, for it holds the whole environment."""

    def __init__(self, plan: LaunchPlan, command: list[str]) -> None:
        descriptor, self._path = tempfile.mkstemp(prefix="ezpz-")
        with open(descriptor, "wb") as file:
            file.write(pack(command, {**started_here(plan.kept()), **plan.shared()}))
        self._pump: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _Parcels:  # noqa: PYI034  # Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.unlink()
        if self._pump:
            self._pump.kill()  # it may wait for input that nobody reads any more
            self._pump.wait()

    def open(self, *, with_input: bool) -> int:
        """Return a descriptor to read the parcel from, and behind it the launcher's own input."""
        parcel = os.open(self._path, os.O_RDONLY)
        if not with_input:
            return parcel
        read, write = os.pipe()
        self._pump = subprocess.Popen(
            ["cat", f"/dev/fd/{parcel}", "-"],
            stdout=write,
            pass_fds=[parcel],
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # no thread runs in the launcher
        )
        for end in (parcel, write):
            os.close(end)
        return read

    def unlink(self) -> None:
        """Take the name away; whoever has opened the file keeps it."""
        if self._path:
            os.unlink(self._path)
            self._path = ""


class _Remote(Supervisor):
    """A supervisor whose children are the ``ssh`` of each host: signals go to the leaders behind them, not to ssh."""

    def __init__(self, tell: Callable[[str], None], control: Control, order: Order, logs: str) -> None:
        super().__init__(tell, control)
        self._leaders = control
        self._order = order
        self._hosts = order.placement.hosts
        self._logs = logs
        self._report_by: float | None = None
        self._report_within = 0.0
        self._last: float | None = None  # when ssh itself is killed

    def __exit__(self, *error: object) -> None:
        self._send_to(self._alive(), signal.SIGKILL)
        super().__exit__(*error)

    def start_host(self, index: int, stdin: int) -> None:
        """Start the leader of one host, which reads ``stdin``; it is closed here.

        Raises:
            LaunchError: The program that should start it cannot be run.
        """
        line = leader_line(self._order, index, self._log(index))
        try:
            self.start(line, os.environ, None, stdin, host=index)
        except OSError as error:
            raise LaunchError(
                f"cannot run {line[0]} (from {self._program_from()}): {error.strerror}; expected ssh, or a program that is called like it."
            ) from None
        finally:
            os.close(stdin)

    def wait_for_all(self, within: float) -> int:
        """Return the exit code of the run; every leader must report within so many seconds from now."""
        self._report_within, self._report_by = within, time.monotonic() + within
        return self.wait()

    def _log(self, index: int) -> str:
        return os.path.join(self._logs, str(index))

    def _program_from(self) -> str:
        return "EZPZ_SSH" if self._order.environ.get("EZPZ_SSH") else "PATH"

    def _due(self) -> float | None:
        return min((due for due in (self._deadline, self._report_by, self._last) if due is not None), default=None)

    def _overdue(self, now: float) -> None:
        super()._overdue(now)
        if self._last is not None and now >= self._last:
            self._last = None
            self._send_to(self._alive(), signal.SIGKILL)
        if self._report_by is not None and now >= self._report_by:
            self._report_by = None
            silent = [child.host for child in self._alive() if child.host not in self._leaders.heard]
            if silent and not self._stopping:
                names = ", ".join(self._hosts[index] for index in silent[:3]) + ", …" * (len(silent) > 3)
                self._blame(
                    f"{len(silent)} of {len(self._hosts)} hosts did not report within {self._report_within:g} s: {names}"
                    f"{self._said(silent[0])}; expected a leader. Try `{self._trial(silent[0])}`, or set EZPZ_SSH_TIMEOUT to more seconds",
                    _REFUSED,
                )

    def _hear(self, event: Event) -> None:
        if event.kind in {"lost", "refused"} and not self._stopping:
            host = self._hosts[int(event.rank)]
            how = "its connection ended, or answered no more" if event.kind == "lost" else "its leader gave up"
            self._blame(f"host {host} is lost: {how}", _REFUSED)
        elif event.kind == "leader" and self._stopping:
            self._leaders.tell(signal.SIGKILL, {int(event.rank)})  # it comes too late
        elif event.kind not in {"leader", "done", "lost", "refused"}:
            super()._hear(event)

    def _ended(self, child: Child, code: int) -> None:
        """Judge the end of a host's ssh: after its leader is done it says nothing new."""
        if child.host not in self._leaders.done:
            self._listen(_LAST_OUTPUT)  # two connections: the leader's word may come behind the end of ssh
        if child.host in self._leaders.done or self._stopping:
            return
        host, how = self._hosts[child.host], f"{self._words(child.host)} ended with {code}{self._said(child.host)}"
        if child.host in self._leaders.heard:
            self._blame(f"host {host} is lost: {how}", _REFUSED)
        else:
            trial = f"expected a leader that reports. Try `{self._trial(child.host)}`"
            self._blame(f"cannot start ranks on {host}: {how}; {trial}", _REFUSED)

    def _send(self, number: int) -> None:
        told = self._leaders.tell(number)
        if number == signal.SIGKILL:
            self._last = time.monotonic() + _LAST_OUTPUT
        if number not in {signal.SIGUSR1, signal.SIGUSR2}:  # ssh would die of those, and has no rank behind it yet
            others = [child for child in self._alive() if child.host not in told | self._leaders.done]
            self._send_to(others, number)

    def _result(self) -> int:
        codes = [exit_code(child.process.returncode or 0) for child in self._children]
        return self._code if self._code is not None else next(filter(None, codes), 0)

    def _words(self, index: int) -> str:
        return os.path.basename(leader_line(self._order, index)[0])

    def _trial(self, index: int) -> str:
        """Return a line by which a person finds out what is wrong."""
        line = leader_line(self._order, index)
        return shlex.join([*line[:-1], "true"] if len(line) > 1 and line[-1].startswith("exec ") else line)

    def _said(self, index: int) -> str:
        """Return the last line that ssh wrote to its log."""
        try:
            with open(self._log(index), encoding="utf-8", errors="replace") as file:
                lines = file.read().split("\n")
        except OSError:
            return ""
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f", saying {last[:_SAID]!r}" if last else ""


def _make_room(hosts: int) -> None:
    """Raise the soft limit of open files where it is below what the hosts need: a connection each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * hosts + 256
    if soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )
