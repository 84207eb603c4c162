"""Keep the processes that the launcher starts itself: this host's agent, the ``mpiexec`` in front of all ranks, or an
``ssh`` per host.
"""

from __future__ import annotations

import os
import signal
import time

from ezpz.launch.host import process_tree, rank_start
from ezpz.launch.host.start_agent import UNSUPERVISED
from ezpz.launch.run.failures import LOST, Failure, how

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from ezpz.launch.event_loop import Loop
    from ezpz.launch.run.rollcall import RollCall


__all__ = ["Child", "Children"]

_READ = 1 << 16


class Child:
    """A process, how it ended, and what it writes.

    Attributes:
        pid: Its process id.
        name: What the user knows it by.
        host: Index of the one host that it serves, or -1.
        code: How it ended, minus the signal for a signal; None while it runs.
        by_us: Whether we have ended it: its code means nothing then.
        pipes: Descriptor to stream (1 or 2) of what it writes; empty when it writes where the launcher does.
        said: The last that it has written, and the agent that it has started.
    """

    def __init__(self, pid: int, name: str, host: int = -1) -> None:
        self.pid, self.name, self.host = pid, name, host
        self.code: int | None = None
        self.by_us = False
        self.pipes: dict[int, int] = {}
        self.said = b""

    @classmethod
    def start(cls, argv: Sequence[str], environ: Mapping[str, str], stdin: int | None, host: int = -1) -> Child:
        """Start a program in a session of its own; it dies with this process.

        Raises:
            OSError: It cannot be started.
        """
        read, write = rank_start.pipes()
        pid, problem = rank_start.start(
            argv, dict(environ), stdin=stdin, output=write, ignores=rank_start.ignored(), is_rank=False
        )
        child = cls(pid, os.path.basename(argv[0]), host)
        for stream, pipe in enumerate(read, start=1):
            os.set_blocking(pipe, False)
            child.pipes[pipe] = stream
        if problem:
            os.waitpid(pid, 0)
            for pipe in read:
                os.close(pipe)
            raise OSError(problem, os.strerror(problem), argv[0])
        return child

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self.code is None

    def read(self, fd: int) -> bytes | None:
        """Return what one of its pipes holds, empty at its end, None when there is nothing now."""
        try:
            data = os.read(fd, _READ)
        except BlockingIOError:
            return None
        if not data:
            del self.pipes[fd]
        return data

    def ended(self, status: int) -> None:
        """Note how it ended."""
        self.code = os.waitstatus_to_exitcode(status)

    def kill(self, number: int, *, group: bool = False) -> None:
        """Send it a signal, with ``group`` also to what it started in its session."""
        if self.alive:
            self.by_us = True
            try:
                (os.killpg if group else os.kill)(self.pid, number)
            except OSError:
                pass  # it is gone already


_LAST_OUTPUT = 0.5  # seconds for what mpiexec has not passed on when it ended; a grandchild may hold its pipe for ever
_KEPT = 4096  # bytes of what mpiexec writes: as many of its first and of its last
_QUOTED = 200  # characters of its line about a host
_SAID = 4096  # bytes of what one process writes last
_OURS = "ezpz: "  # how lines of agents begin
_REFUSED = 125
_ABOVE = "; its own words are above"
# What Open MPI 5 and 4 write when a rank has called MPI_Abort and has ended all others by that.
_ABORT_IS_SAID = "MPI_ABORT was invoked"
_OF_SIGKILL = {9, 137, 255}  # exit codes of mpiexec when somebody killed a shim: MPICH's, Open MPI's, Intel MPI's


_BEFORE_IMPORTS = (b"failed to set __main__.__loader__", b"Could not import runpy module")


class Interrupts:
    """Leaves out of what is written on stderr before ranks begin what an interrupt has done to a Python of ours.

    A program that starts ranks passes Ctrl-C on to them at once, and a shim or agent that has not come so far as to
    handle it writes a traceback of its own imports:

        Traceback (most recent call last):
          File "<frozen importlib._bootstrap>", line 1176, in _find_and_load
        KeyboardInterrupt

    Earlier still, Python says in a line before it what it was about to do (Modules/main.c), and puts
    a colon behind the last one.
    """

    def __init__(self) -> None:
        self._partial = b""
        self._traceback: list[bytes] = []

    def feed(self, data: bytes) -> bytes:
        """Return what may be shown of all that came and was not returned yet."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        shown: list[bytes] = []
        for line in lines:
            begins = line.startswith((b"Traceback (most recent call last)", b"Exception ignored "))
            if begins or line.rstrip().endswith(_BEFORE_IMPORTS):
                self._traceback.append(line)
            elif line.rstrip(b": \r") == b"KeyboardInterrupt":
                self._traceback.clear()
            elif self._traceback and line[:1].isspace():
                self._traceback.append(line)
            else:
                shown += [*self._traceback, line]
                self._traceback.clear()
        return b"".join(line + b"\n" for line in shown)

    def end(self) -> bytes:
        """Return what is left: no more comes, or what comes is no longer ours."""
        held = b"".join(line + b"\n" for line in self._traceback) + self._partial
        self._traceback, self._partial = [], b""
        return held


class Children:
    """All processes that a run has started itself.

    Args:
        loop: Where their pipes are watched.
        is_mpi: Whether they are an MPI's own launcher.
        written: Takes stream and bytes of what they write.

    Attributes:
        all: The processes, also those that have ended.
        unsupervised: Whether a host has written that its agent cannot reach the launcher: then mpiexec passes its
            output on.
        words: What mpiexec itself has written, its beginning and its end: for run.json.
    """

    def __init__(self, loop: Loop, is_mpi: bool, written: Callable[[int, bytes], None]) -> None:
        self.all: list[Child] = []
        self.unsupervised = False
        self.words = b""
        self._loop, self._is_mpi, self._written = loop, is_mpi, written
        self._read_until = 0.0

    @property
    def alive(self) -> bool:
        """Whether one of them runs."""
        return any(child.alive for child in self.all)

    @property
    def text(self) -> str:
        """What mpiexec itself has written, as text."""
        return self.words.decode(errors="replace")

    def agent_said(self, child: Child) -> str:
        """Return the last line of an agent that one of them has started, such as why that ends; empty without one."""
        for fd in [*child.pipes]:
            self._read(child, fd)
        lines = child.said.decode(errors="replace").splitlines()
        ours = [line.removeprefix(_OURS) for line in lines if line.startswith(_OURS)]
        return ours[-1].partition("; expected")[0][:_QUOTED] if ours else ""

    @property
    def drained(self) -> bool:
        """Whether nothing more is to be expected from their pipes."""
        return not any(child.pipes for child in self.all) or time.monotonic() >= self._read_until

    def to_blame(self, failures: list[Failure], *, begun: bool) -> bool:
        """Whether one of them explains these failures: it was killed, and Slurm killed the ranks with it, or it has
        ended them, or has ended itself before they had ``begun``.
        """
        if not begun and any(child.code is not None and not child.by_us for child in self.all):
            return all(failure.is_consequence for failure in failures)
        killed = [child for child in self.all if child.code is not None and child.code < 0 and not child.by_us]
        if killed:
            took = [LOST] if all(child.host < 0 for child in killed) else []  # an ssh serves one host alone
            return all(
                failure.is_consequence or failure.status == -signal.SIGKILL or failure.why.startswith((*took,))
                for failure in failures
            )
        return self.ended_by_itself and all(failure.is_consequence for failure in failures)

    @property
    def ended_by_itself(self) -> bool:
        """Whether one has ended, and all ranks with it, with a code that the end of a shim does not explain: somebody
        asked it to, or a rank has called MPI_Abort.
        """
        if not self._is_mpi:
            return False  # torchrun's agent and srun end with codes of their own when somebody kills a shim
        return any(child.code and child.code > 0 and child.code not in _OF_SIGKILL for child in self.all)

    def add(self, child: Child) -> None:
        """Take charge of a process."""
        self.all.append(child)
        for fd in child.pipes:
            self._loop.read(fd, lambda fd: self._read(child, fd))

    def end_but(self, hosts: Container[int]) -> None:
        """Ask all to end but those that serve one of these hosts."""
        for child in self.all:
            if child.host not in hosts:
                child.kill(signal.SIGTERM)

    def kill(self, number: int, *, group: bool = False) -> None:
        """Send a signal to each that runs, with ``group`` also to what it started in its session."""
        for child in self.all:
            child.kill(number, group=group)

    def kill_and_wait(self) -> None:
        """Let none of them outlive this call."""
        self.kill(signal.SIGKILL)
        while self.alive:
            self.reap()
            time.sleep(0.002)

    def reap(self) -> list[Child]:
        """Return those that have ended since the last call; orphans that this process has adopted are reaped as
        well.
        """
        ended = []
        for pid, status in process_tree.reap():
            for child in self.all:
                if child.pid == pid:
                    child.ended(status)
                    ended.append(child)
        if ended:
            self._read_until = time.monotonic() + _LAST_OUTPUT
            self._loop.at("pipes", self._read_until, lambda: None)  # to look at `drained` again
        return ended

    def failure(self, came: RollCall, *, begun: bool) -> Failure:
        """Return what is wrong when one has ended before its time.

        Args:
            came: Which ranks have come up.
            begun: Whether they have been let begin.
        """
        child = next((child for child in self.all if child.code), self.all[0])
        code, host = child.code or 0, ""
        said = _ABORT_IS_SAID in self.text
        if self.ended_by_itself and begun:
            asked = "because a rank called MPI_Abort" if said else "although none had failed: was it asked to end?"
            words = f"exited with code {code} and ended the ranks, {asked}{_ABOVE if self.words else ''}"
        elif code < 0:
            words = f"{how(code)}, and the ranks with it"
        else:
            up = "no rank reported that it came up" if came.empty else came.absent()
            host, line = came.named_in(self.text)
            quoted = f": of {host} it says {line[:_QUOTED]!r}" if host else ""
            words = f"{how(code)}, and {up}{quoted}{_ABOVE if self.words else ''}"
        exit_code = code if said and begun and code > 0 else _REFUSED
        return Failure(
            f"{child.name} (pid {child.pid})",
            words,
            exit_code,
            time.time(),
            host=host or None,
            pid=child.pid,
            status=child.code,
        )

    def _read(self, child: Child, fd: int) -> None:
        """Take what mpiexec itself, or a rank whose agent cannot reach us, has written."""
        stream = child.pipes[fd]
        data = child.read(fd)
        if data == b"":
            self._loop.forget(fd)
            os.close(fd)
        if data:
            child.said = (child.said + data)[-_SAID:]
            self.unsupervised |= UNSUPERVISED.encode() in data
            if not self.unsupervised:  # else it is the ranks' output
                words = self.words + data
                self.words = words if len(words) <= 2 * _KEPT else words[:_KEPT] + words[-_KEPT:]
            self._written(stream, data)
