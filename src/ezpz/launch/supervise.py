"""Own a run until its last process is gone: pass signals on, stop all when one fails, tell the cause and its exit code."""

from __future__ import annotations

import ctypes  # noqa: F401  # die_with_parent needs it: loaded once here, and not by every child
import os
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ezpz.launch.shim import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ezpz.launch.control import Control, Event

__all__ = ["PORT_TAKEN", "Supervisor", "exit_code"]

PORT_TAKEN = -1  # no exit code of a process: the ranks could not meet where they were sent

FAILURE_GRACE = 3.0  # seconds from SIGTERM to SIGKILL after a rank failed: the prompt is back within five
SIGNAL_GRACE = 10.0  # seconds after a signal from outside: ranks may want to write a checkpoint
_LAST_WORDS = 1.0  # seconds for what is still on its way when the last process has ended
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass
class Child:
    """A process of ours: one rank of the local flavour, the ``mpiexec`` in front of all of them, or one host's ``ssh``."""

    process: subprocess.Popen[bytes]
    rank: int | None = None
    host: int = -1


def exit_code(code: int) -> int:
    """Return the exit code of a shell for a process that ended with ``code``, minus the signal for a signal."""
    return code if code >= 0 else 128 - code


class Supervisor:
    """Waits for children, signals and shims; the earliest failure is the cause, our own signals never are.

    A context manager, entered before the first child starts: a signal that comes in between must not be lost.
    """

    def __init__(
        self, tell: Callable[[str], None], control: Control | None = None, *, own_session: bool = True
    ) -> None:
        self._children: list[Child] = []
        self._control = control
        self._tell = tell
        self._own_session = own_session
        self._shares_terminal = not own_session and os.isatty(0)
        self._code: int | None = None  # of the cause
        self._deadline: float | None = None
        self._stopping = False
        self._hosts_up = 0
        self._read, self._write = os.pipe()
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Supervisor:  # noqa: PYI034  # Self needs Python 3.11
        os.set_blocking(self._write, False)
        os.set_blocking(self._read, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (*_PASSED_ON, signal.SIGCHLD):
            self._handlers[number] = signal.signal(number, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back; what still runs, because a child could not be started, is killed."""
        self._send(signal.SIGKILL)
        for child in self._alive():
            child.process.wait()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        os.close(self._read)
        os.close(self._write)

    def start(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        rank: int | None,
        stdin: int | None,
        cpus: Sequence[int] | None = None,
        *,
        host: int = -1,
    ) -> None:
        """Start a process that dies with this one: a rank, or the launcher of all of them when ``rank`` is None.

        With ``cpus`` it is bound to those. ``host`` is the index of the one host that it serves.

        Raises:
            OSError: It cannot be started.
        """
        process = subprocess.Popen(
            list(argv),
            env=dict(environ),
            stdin=stdin,
            start_new_session=self._own_session,
            preexec_fn=lambda: _prepare(cpus),  # noqa: PLW1509  # no thread runs in the launcher
        )
        self._children.append(Child(process, rank, host))

    def wait(self) -> int:
        """Return the exit code of the run when its last process is gone."""
        self._loop()
        return self._result()

    def _loop(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            if self._control:
                selector.register(self._control, selectors.EVENT_READ)
            self._reap()  # a child may have ended already
            while self._alive():
                due = self._due()
                wait = None if due is None else max(0.0, due - time.monotonic())
                ready = {key.fileobj for key, _ in selector.select(wait)}
                if self._control in ready:
                    self._listen()
                if self._read in ready:
                    for number in os.read(self._read, 4096):
                        self._signal(number)
                self._reap()
                self._overdue(time.monotonic())
            self._listen(_LAST_WORDS)  # a shim's may arrive with the end of its mpiexec

    def _due(self) -> float | None:
        """Return the time at which something must happen by itself."""
        return self._deadline

    def _overdue(self, now: float) -> None:
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            self._send(signal.SIGKILL)

    def _alive(self) -> list[Child]:
        return [child for child in self._children if child.process.returncode is None]

    def _listen(self, patience: float = 0.0) -> None:
        if self._control:
            for event in self._control.events(patience):
                self._hear(event)

    def _hear(self, event: Event) -> None:
        if event.kind == "up":
            self._hosts_up += 1
        elif self._code is None and not self._stopping:
            if event.kind == "port":
                self._code = PORT_TAKEN
                self._stop(FAILURE_GRACE)
            elif event.kind == "ended":
                self._fail(f"rank {event.rank} on host {event.host} (pid {event.pid})", event.code)
            else:
                self._fail(f"a rank on host {event.host}", event.code)

    def _reap(self) -> None:
        for child in self._alive():
            code = child.process.poll()
            if code is None:
                continue
            if child.rank is not None and self._own_session:
                _kill(child.process.pid, signal.SIGKILL, group=True)  # what the rank left behind
            if self._code is None and not self._stopping:
                self._ended(child, code)

    def _ended(self, child: Child, code: int) -> None:
        """Judge the end of a child: a launcher's is judged when all is over, its shims have told why."""
        if code and child.rank is not None:
            self._fail(f"rank {child.rank} (pid {child.process.pid})", code)

    def _fail(self, who: str, code: int) -> None:
        how = f"exited with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        self._blame(f"{who} {how}", exit_code(code))

    def _blame(self, cause: str, code: int) -> None:
        """Tell the cause and stop what still runs."""
        self._code = code
        self._tell(cause + ("; stopping the other ranks" if self._alive() else ""))
        self._stop(FAILURE_GRACE)

    def _signal(self, number: int) -> None:
        if number == signal.SIGCHLD or (number == signal.SIGINT and self._shares_terminal):
            return  # the terminal's Ctrl-C reaches the only rank by itself, and a debugger there may live on
        if number in _ENDING:
            if self._stopping and number == signal.SIGINT:
                self._deadline = time.monotonic()  # the second Ctrl-C means now
                return
            if self._code is None:
                self._code = 128 + number
                self._tell(f"{signal.Signals(number).name} received; passing it on, again to kill")
        self._send(number)
        if number in _ENDING and not self._stopping:
            self._stopping = True
            self._deadline = time.monotonic() + SIGNAL_GRACE

    def _stop(self, grace: float) -> None:
        self._stopping = True
        self._deadline = time.monotonic() + grace
        self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        self._send_to(self._alive(), number)

    def _send_to(self, children: Sequence[Child], number: int) -> None:
        for child in children:
            # USR1 and USR2 are for the rank alone: its data-loading children would die of them.
            group = self._own_session and child.rank is not None and number in (*_ENDING, signal.SIGKILL)
            _kill(child.process.pid, number, group=group)

    def _result(self) -> int:
        if self._code is not None:
            return self._code
        if self._children[0].rank is not None:
            return 0
        code = exit_code(self._children[0].process.returncode or 0)
        if code and self._control and not self._hosts_up:
            self._tell(f"the launcher ended with {code} and no rank reported that it came up; its own words are above")
            return 125
        return code


def _prepare(cpus: Sequence[int] | None) -> None:
    die_with_parent()
    if cpus:
        try:
            os.sched_setaffinity(0, cpus)
        except OSError:  # said by the rank itself: the launcher would show a traceback
            text = f"ezpz: note: a rank cannot be bound to CPUs {cpus[0]} to {cpus[-1]} (from --cpu-bind or the site) on this host\n"
            os.write(2, text.encode())


def _kill(pid: int, number: int, *, group: bool) -> None:
    try:
        os.killpg(pid, number) if group else os.kill(pid, number)
    except OSError:
        pass  # it is gone already
