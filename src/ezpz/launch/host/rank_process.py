"""Keep what an agent knows of one rank: its process, its shim if there is one, its output, and the stages it has
reached.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from ezpz import local_socket
from ezpz.launch import agent_messages
from ezpz.launch.host.rank_output import RankOutput
from ezpz.launch.host.rank_start import FOR_RANK_ALONE

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import socket

    from ezpz.launch.agent_messages import Message

__all__ = ["LARGE_PIPE", "READ", "RankProcess"]

READ = 1 << 16  # bytes of a pipe at once
LARGE_PIPE = 1 << 18  # bytes that the pipe of a rank holds which writes much
_WORTH_LENDING = 1 << 13  # bytes: fewer are copied sooner than lent and given back
_REFUSED = 125
_SHARED_STEP = "/memfd:ezpz-step"  # what /proc calls the memory of `ezpz.progress`
_DRAIN = 0.2  # seconds for what is still in the pipes of a rank that has ended; a grandchild may hold them for ever


class RankProcess:
    """A rank of this host.

    Attributes:
        rank: Its rank.
        ready: Whether nothing on this host keeps it from beginning.
        pid: Its process; 0 until it runs.
        shim: Connection to the shim that is its parent; None when this process is, or when the shim has gone.
        shim_pid: The shim's process.
        is_near: Whether that process has the same number here, so that its files in /proc are the shim's.
        shim_crash: What the shim wrote when a signal ended it.
        pipes: Descriptor to stream (1 or 2) of what it writes.
        stdin: What its stdin is written into, until it runs; None where it has none of the launcher.
        output: What became of that; None when it writes to the terminal itself.
        code: How it ended, minus the signal for a signal; None while it runs.
        ended_at: When, in seconds since 1970 by this host's clock.
        why: Words for an end that its code does not explain.
        stages: Stage to the time when it was reached, in seconds since 1970 by this host's clock.
        dumps: Process to the signal at which it writes its stacks.
        asked_by: Signals by which it was asked for its stacks.
        ended_of_asking: Whether it ended of one of those: it had a handler a moment before, so it was about to end.
        reported: Whether the launcher knows of its end.
        passed: Signals that it got from elsewhere, and when (monotonic).
        is_held: Whether its pipes are left unread for now, because the launcher takes no more.
        early_signals: Signals that it gets when it has a handler for them; what counts is in `early_signals.give`.
        log_ended: Whether the launcher knows that its log could not be written.
        by_us: Whether we have ended it: our own signals are never a cause.
        refused: Why it is ended as a failure of its own; empty as long as it may run.
        world: World size that its shim found, and
        family: in which launcher's variables.
    """

    def __init__(
        self, rank: int, *, pid: int = 0, pipes: tuple[int, ...] = (), stdin: int | None = None, log_dir: str = ""
    ) -> None:
        self.rank = rank
        self.ready = bool(pid)
        self.pid = pid
        self.shim: socket.socket | None = None
        self.shim_pid = 0
        self.is_near = False
        self.shim_crash = ""
        self.pipes = dict(zip(pipes, (1, 2), strict=False))
        self.stdin = stdin
        self.output = RankOutput(rank, log_dir) if pipes else None
        self.code: int | None = None
        self.ended_at = 0.0
        self.why = ""
        self._step, self._shared_step = -1, -1
        self.stages: dict[str, float] = {}
        self.dumps: dict[int, int] = {}
        self.asked_by: set[int] = set()
        self.ended_of_asking = False
        self.reported = self.by_us = self.log_ended = False
        self.world, self.family = 0, ""
        self.refused = ""
        self.passed: dict[int, float] = {}
        self.early_signals: dict[int, int] = {}
        self._drain_by = 0.0
        self._read_since_end = 0
        self.is_held = False
        for fd in pipes:
            os.set_blocking(fd, False)

    @property
    def alive(self) -> bool:
        """Whether it has begun and not ended."""
        return self.code is None

    @property
    def drained(self) -> bool:
        """Whether nothing more is to be expected from its pipes."""
        return self.code is not None and (not self.pipes or time.monotonic() >= self._drain_by)

    @property
    def drain_by(self) -> float | None:
        """When its pipes are given up; None while it runs or when they are closed."""
        return self._drain_by if self.code is not None and self.pipes else None

    @property
    def step(self) -> int:
        """The last step that it reported, -1 if none."""
        if self._shared_step >= 0:
            found = int.from_bytes(os.pread(self._shared_step, 8, 0), sys.byteorder, signed=True)
            self._step = found if found != -1 and abs(found) < 2**53 else self._step
            if not self.alive:
                self._close_shared_step()
        return self._step

    @step.setter
    def step(self, value: int) -> None:
        self._step = value

    def follow_step(self, pid: int, number: int) -> None:
        """Read the last step from memory that a process of this rank shares, until it has ended."""
        path = f"/proc/{pid}/fd/{number}"
        try:
            if not os.readlink(path).startswith(_SHARED_STEP):
                return
            shared = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # it has ended, or may not be looked into
            return
        self._close_shared_step()
        self._shared_step = shared

    def _close_shared_step(self) -> None:
        if self._shared_step >= 0:
            os.close(self._shared_step)
            self._shared_step = -1

    def reach(self, stage: str, when: float) -> None:
        """Note when a stage was reached for the first time."""
        self.stages.setdefault(stage, when)

    def end(self, code: int, why: str = "") -> None:
        """Note how it ended."""
        if self.code is None:
            self.ended_of_asking = not self.asked_by.isdisjoint((-code, code - 128))  # by itself, or through a shell
            self.code, self.why = 0 if self.ended_of_asking else code, why
            if self.refused:
                self.code, self.why = _REFUSED, self.refused
            self.ended_at = time.time()
            self._drain_by = time.monotonic() + _DRAIN

    @property
    def may_wait(self) -> bool:
        """Whether what its pipes hold may stay there; after its end it is read, but for what others go on writing."""
        return self.code is None or self._read_since_end > LARGE_PIPE

    def read(self, fd: int, now: float) -> int | None:
        """Take what one of its pipes holds, at most `READ` bytes.

        Args:
            fd: The pipe.
            now: Monotonic time, seconds.

        Returns:
            How many bytes that were; 0 at its end, None when there is nothing now.
        """
        try:
            data = os.read(fd, READ)
        except BlockingIOError:
            return None
        if self.output:
            self.output.feed(self.pipes[fd], data, now)
        if self.code is not None:
            self._read_since_end += len(data)
        return len(data)

    def may_lend(self, fd: int) -> bool:
        """Tell whether what one of its pipes holds may be read by `read_into`."""
        return bool(self.output and not self.reported and self.output.may_lend(self.pipes[fd]))

    def read_into(self, fd: int, room: memoryview, now: float) -> tuple[int | None, int, int]:
        """Take what one of its pipes holds, into memory that can be lent to the launcher.

        Args:
            fd: The pipe, for which `may_lend` holds.
            room: Where to.
            now: Monotonic time, seconds.

        Returns:
            How many bytes were read, as of `read`; how many could have been; and how many at the beginning of the room
            may be shown as they are, the others being kept here. Without any, all of them are kept here.
        """
        assert self.output
        stream = self.pipes[fd]
        rest = self.output.rest(stream)
        begun = len(rest)
        room[:begun] = rest
        try:
            size = os.readv(fd, [room[begun:]])
        except BlockingIOError:
            return None, len(room) - begun, 0
        lent = self.output.lend(stream, room[: begun + size], now) if size >= _WORTH_LENDING else 0
        if not lent:
            self.output.feed(stream, bytes(room[begun : begun + size]), now)
        if self.code is not None:
            self._read_since_end += size
        return size, len(room) - begun, lent

    def close(self, fd: int) -> None:
        """Close one of its pipes."""
        del self.pipes[fd]
        os.close(fd)

    def order(self, message: Message) -> None:
        """Send its shim an order."""
        if self.shim:
            try:
                local_socket.send(self.shim, agent_messages.TO_SHIMS.encode(message))
            except OSError:
                pass  # its end is noticed by reading

    def begin(self) -> None:
        """Let its shim begin."""
        self.order(agent_messages.Begin())

    def release(self, *, codes: bool) -> None:
        """Let its shim end: with its code, or with 0."""
        self.order(agent_messages.Release(codes=codes))

    def signal(self, number: int, *, group: bool, reached: bool = False) -> None:
        """Send a signal: through its shim, else to its process or, with ``group``, also to what it started.

        Args:
            number: It.
            group: See above.
            reached: Whether it has come to all processes of the job: a shim knows that itself.
        """
        if self.shim:
            self.order(agent_messages.Kill() if number == signal.SIGKILL else agent_messages.Signal(number=int(number)))
        elif self.pid and self.alive and not self.shim_pid:
            self._send(number, group=group, reached=reached)

    def _send(self, number: int, *, group: bool, reached: bool) -> None:
        if number in FOR_RANK_ALONE:
            from ezpz.launch.host import early_signals

            early_signals.give(self.pid, number, self.early_signals, reached=reached)
        elif not reached:
            try:
                (os.killpg if group else os.kill)(self.pid, number)
            except OSError:
                pass  # it is gone already

    def give_early_signals(self) -> bool:
        """Send what it has a handler for by now, and tell whether anything is still held."""
        if self.early_signals and self.alive:
            from ezpz.launch.host import early_signals

            early_signals.give_again(self.pid, self.early_signals)
        return bool(self.early_signals) and self.alive
