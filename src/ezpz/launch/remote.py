"""Start ranks with ssh, one leader per host, and own the run until the last of them is gone."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING

from ezpz.errors import LaunchError
from ezpz.launch import survivors
from ezpz.launch.causes import Failure
from ezpz.launch.child import Child
from ezpz.launch.contract import started_here
from ezpz.launch.control import Control
from ezpz.launch.flavours.ssh import leader_line
from ezpz.launch.master import addresses
from ezpz.launch.parcel import pack
from ezpz.launch.supervise import Supervisor

if TYPE_CHECKING:
    from ezpz.launch.order import Order
    from ezpz.launch.outcome import Outcome
    from ezpz.launch.plan import LaunchPlan
    from ezpz.launch.starting import Start

__all__ = ["over_ssh"]

_LAST_WORD = 2.0  # seconds for a leader to say that all is over when its ssh has ended
_SAID = 300  # characters of ssh's own words
_REFUSED = 125


def over_ssh(start: Start) -> tuple[Outcome, Supervisor]:
    """Run the plan to its end and return how it was.

    Raises:
        EzpzError: A program that is needed cannot be run.
    """
    _make_room(len(start.plan.placement.hosts))
    control = Control(start.settings, addresses(start.plan.placement))
    plan = start.with_control(control)
    logs = tempfile.mkdtemp(prefix="ezpz-ssh-")
    try:
        run = _Remote(plan, start.limits, control, start.screen, start.wall)
        run.prepare(start, logs)
        with _Parcels(plan, start.command) as parcels, run:
            for index in range(len(plan.placement.hosts)):
                run.start_host(index, parcels.open(with_input=start.input and index == 0))
            parcels.unlink()
            start.enter()
            return run.wait(), run
    finally:
        control.close()
        shutil.rmtree(logs, ignore_errors=True)


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
            preexec_fn=survivors.die_with_parent,  # noqa: PLW1509  # no thread runs in the launcher
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
    """A supervisor whose children are the ``ssh`` of each host: what ssh said is part of the cause when a host fails."""

    _order: Order
    _logs = ""

    def prepare(self, start: Start, logs: str) -> None:
        """Take what one start knows, and the folder for what ssh itself has to say."""
        start.fill(self)
        self._order, self._logs = self.plan.order(), logs

    def start_host(self, index: int, stdin: int) -> None:
        """Start the leader of one host, which reads ``stdin``; it is closed here.

        Raises:
            LaunchError: The program that should start it cannot be run.
        """
        line = leader_line(self._order, index, self._said_in(index))
        try:
            self.children.add(Child.start(line, os.environ, stdin, index))
        except OSError as error:
            raise LaunchError(
                f"cannot run {line[0]} (from {self._program_from()}): {error.strerror}; expected ssh, or a program that is called like it."
            ) from None
        finally:
            os.close(stdin)

    def child_ended(self, child: Child) -> None:
        """Judge the end of a host's ssh: after its leader is done it says nothing new."""
        if child.host in self.control.done or self.stopping:
            return
        self.listen()  # two connections: the leader's word may come behind the end of ssh
        if child.host in self.control.done:
            return
        if child.host in self.control.heard:
            self.timers.setdefault("launcher", time.monotonic() + _LAST_WORD)
            return
        host = self.plan.placement.hosts[child.host]
        said = f"{self._words(child.host)} ended with {child.code}{self._said(child.host)}"
        trial = f"expected a leader that reports. Try `{self._trial(child.host)}`"
        self.fail(Failure(f"cannot start ranks on {host}:", f"{said}; {trial}", _REFUSED, time.time(), host=host))

    def judge_launcher(self) -> None:
        """An ssh has ended before its leader said that all is over there."""
        gone = [child for child in self.children.all if not child.alive and child.host not in self.control.done]
        if gone and not self.stopping:
            child, host = gone[0], self.plan.placement.hosts[gone[0].host]
            said = f"{self._words(child.host)} ended with {child.code}{self._said(child.host)}"
            self.blame(Failure(f"host {host}", f"is lost: {said}", _REFUSED, time.time(), host=host))

    def hint(self) -> str:
        """Return the line by which a person finds out what is wrong with the first host that says nothing."""
        silent = [index for index in range(len(self.plan.placement.hosts)) if index not in self.control.heard]
        return f". Try `{self._trial(silent[0])}`{self._said(silent[0])}" if silent else ""

    def _said_in(self, index: int) -> str:
        return os.path.join(self._logs, str(index))

    def _program_from(self) -> str:
        return "EZPZ_SSH" if self._order.environ.get("EZPZ_SSH") else "PATH"

    def _words(self, index: int) -> str:
        return os.path.basename(leader_line(self._order, index)[0])

    def _trial(self, index: int) -> str:
        """Return a line by which a person finds out what is wrong."""
        line = leader_line(self._order, index)
        return shlex.join([*line[:-1], "true"] if len(line) > 1 and line[-1].startswith("exec ") else line)

    def _said(self, index: int) -> str:
        """Return the last line that ssh wrote to its log."""
        try:
            with open(self._said_in(index), encoding="utf-8", errors="replace") as file:
                lines = file.read().split("\n")
        except OSError:
            return ""
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f", saying {last[:_SAID]!r}" if last else ""


def _make_room(hosts: int) -> None:
    """Raise the soft limit of open files where it is below what the hosts need: two connections and two pipes each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 5 * hosts + 256
    if soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )
