"""How far the ranks of one host are, as their leader learns it: stages of the start, heartbeats, and what a hanging rank does.

A program that never imports ezpz is watched from outside: whether a Python runs in its process tree, whether libtorch is mapped in
it. One that does (`ezpz.setup_torch`, `ezpz.heartbeat`) tells the exact times, on a connection of its own.
"""

from __future__ import annotations

import os
import signal
import time

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import socket
    from typing import Any

    from ezpz.launch.host.agent import Leader
    from ezpz.launch.host.rank_process import Member
    from ezpz.launch.host.stacks import Frame

__all__ = ["Progress"]

_FIRST_LOOK, _SLOWER, _SLOWEST, _LAST_LOOK = 0.25, 1.5, 5.0, 600.0  # seconds: looks at the stages grow rarer, and end
_DUMP = 1.5  # seconds for a rank to write its stacks after the signal
_ORDER = ("shim", "interpreter", "torch", "group", "step")


class Progress:
    """Stages, heartbeats and stacks of one host's ranks."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._speakers: dict[socket.socket, Member] = {}
        self._told: dict[str, int] = {}  # stage to the number of ranks that the launcher knows of
        self._began = time.monotonic()
        self._pause = _FIRST_LOOK
        self._look_at: float | None = self._began + self._pause
        self._idle: set[int] = set()
        self._dump_by: float | None = None
        self._dumping: list[Member] = []
        self._found: dict[int, dict[str, Any]] = {}
        self._asked: object = None

    def heard(self, connection: socket.socket, word: str, rest: str) -> bool:
        """Take a line that a rank itself said; tell whether it was one."""
        if word == "rank":
            rank = rest.split(maxsplit=1)[0]
            member = self._leader.members.get(int(rank)) if rank.isdigit() else None
            if member:
                self._speakers[connection] = member
            return True
        member = self._speakers.get(connection)
        if member is None:
            return False
        if word == "stage":
            member.reach(rest, time.time())
        elif word == "beat":
            member.beat = time.monotonic()
            self._idle.discard(member.rank)
        elif word == "dumps" and rest.split(maxsplit=1)[0].isdigit():
            member.dumps[_pid_of(connection) or member.pid] = int(rest.split(maxsplit=1)[0])
        return True

    def hung_up(self, connection: socket.socket) -> None:
        """Forget a rank's connection."""
        member = self._speakers.pop(connection, None)
        if member:
            member.dumps.clear()

    @property
    def busy(self) -> bool:
        """Whether the launcher waits for stacks."""
        return self._dump_by is not None

    def due(self) -> float | None:
        """Return when there is something to do."""
        dues = [self._look_at, self._dump_by, self._next_idle()]
        return min((due for due in dues if due is not None), default=None)

    def tick(self, now: float) -> None:
        """Do what is due."""
        if self._look_at is not None and now >= self._look_at:
            self._look(now)
        limit = self._leader.settings.get("idle")
        if limit:
            for member in self._beating():
                if member.beat is not None and now - member.beat >= limit:
                    self._idle.add(member.rank)
                    self._leader.link.say("idle", rank=member.rank, pid=member.pid, seconds=now - member.beat)
        if self._dump_by is not None and now >= self._dump_by:
            self._tell_stacks()

    def report(self, *, final: bool = False) -> None:
        """Tell the launcher of stages that all ranks of this host have reached, or that some have when all is over."""
        members = [member for member in self._leader.members.values() if member.rank >= 0]
        for stage in _ORDER:
            times = sorted(member.stages[stage] for member in members if stage in member.stages)
            known = self._told.get(stage, 0)
            if times and len(times) > known and (final or len(times) >= self._leader.expected):
                self._told[stage] = len(times)
                clock = self._leader.link.clock
                low, median, high = (times[index] + clock for index in (0, len(times) // 2, -1))
                self._leader.link.say("stages", stage=stage, count=len(times), low=low, median=median, high=high)

    def collect(self, *, fatal: bool, number: object) -> None:
        """Begin to find out what every rank is doing, at last by a signal that ends it when that does no more harm."""
        from ezpz.launch.host import stacks

        self._asked, self._found, self._dumping = number, {}, []
        asks = {
            member.rank: self._how(member) for member in self._leader.members.values() if member.alive and member.pid
        }
        spied = _spy([pid for pid, number in asks.values() if pid and not number])
        for rank, (pid, signal_number) in asks.items():
            member = self._leader.members[rank]
            frames = spied.get(pid)
            if frames:
                self._note(member, [list(frame) for frame in frames], "")
            elif member.output and (signal_number or (fatal and pid)):
                member.output.expect_dump()
                self._dumping.append(member)
                _send(pid, signal_number or signal.SIGABRT)
                if not signal_number:
                    member.by_us = True
            else:
                self._note(member, [], stacks.kernel_state(pid or member.pid))
        self._dump_by = time.monotonic() + (_DUMP if self._dumping else 0.0)

    def clear(self) -> None:
        """Take away what the flight recorder needed."""
        if self._leader.settings.get("recorder"):
            from ezpz.launch.host import rank_start

            rank_start.clear(self._leader.settings["recorder"])

    def _how(self, member: Member) -> tuple[int, int]:
        """Return the Python of a rank, 0 without any, and the signal at which it writes its stacks, 0 where it has not told one."""
        from ezpz.launch.host import stacks

        pythons = stacks.pythons(member.pid)
        asked = next(((pid, member.dumps[pid]) for pid in pythons if pid in member.dumps), None)
        if asked or not pythons:
            return asked or (0, 0)
        # The first one may only wait for the program, as `accelerate launch` does.
        return next((pid for pid in pythons if stacks.maps_torch(pid)), pythons[0]), 0

    def _note(self, member: Member, frames: list[list[Any]], where: str) -> None:
        self._found[member.rank] = {"rank": member.rank, "pid": member.pid, "frames": frames, "where": where}

    def _tell_stacks(self) -> None:
        from ezpz.launch.host import stacks

        self._dump_by = None
        for member in self._dumping:
            frames = stacks.parse_dump(member.output.dump()) if member.output else []
            self._note(member, [list(frame) for frame in frames], "" if frames else stacks.kernel_state(member.pid))
        dumps: list[str] = []
        folder = self._leader.settings.get("recorder")
        if folder:
            from ezpz.launch.host import rank_start

            dumps = rank_start.ask(folder, list(self._found))
        told = {"host": os.uname().nodename, "ranks": list(self._found.values()), "dumps": dumps}
        self._leader.link.say("stacks", id=self._asked, **told)

    def _look(self, now: float) -> None:
        from ezpz.launch.host import stacks

        waiting = [member for member in self._leader.members.values() if member.alive and "torch" not in member.stages]
        for member in waiting:
            stage = stacks.stage_of(member.pid) if member.pid else ""
            if stage:
                member.reach("interpreter", time.time())
            if stage == "torch":
                member.reach("torch", time.time())
        self.report()
        self._pause = min(_SLOWEST, self._pause * _SLOWER)
        self._look_at = now + self._pause if now - self._began < _LAST_LOOK else None

    def _beating(self) -> list[Member]:
        members = self._leader.members.values()
        return [
            member for member in members if member.alive and member.beat is not None and member.rank not in self._idle
        ]

    def _next_idle(self) -> float | None:
        limit = self._leader.settings.get("idle")
        return min(
            (member.beat + limit for member in self._beating() if limit and member.beat is not None), default=None
        )


def _spy(pids: list[int]) -> dict[int, list[Frame] | None]:
    """Return what py-spy sees in each process, all at the same time: it may take seconds."""
    import threading

    from ezpz.launch.host import stacks

    found: dict[int, list[Frame] | None] = {}

    def look(pid: int) -> None:
        found[pid] = stacks.py_spy(pid)

    threads = [threading.Thread(target=look, args=(pid,)) for pid in pids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _pid_of(connection: socket.socket) -> int:
    """Return the process on the other side; 0 where the kernel does not tell."""
    import socket as sockets
    import sys

    if not hasattr(sockets, "SO_PEERCRED"):
        return 0
    told = connection.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, 12)
    return int.from_bytes(told[:4], sys.byteorder)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass  # it is gone already
