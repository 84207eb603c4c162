"""What the ranks of one host write: read from their pipes as fast as the launcher takes it."""

from __future__ import annotations

import selectors
import time

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.launch.host.agent import Leader
    from ezpz.launch.host.rank_process import Member

__all__ = ["Pipes"]


class Pipes:
    """The pipes of one host's ranks, in the selector of its leader."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    def add(self, member: Member) -> None:
        """Read what a rank writes."""
        for fd in member.pipes:
            self._watch(member, fd)

    def close(self, member: Member) -> None:
        """Read no more of a rank that has ended: a grandchild may hold its pipes for ever."""
        keys = self._leader.selector.get_map()
        for fd in list(member.pipes):
            if fd in keys:
                self._leader.selector.unregister(fd)
            member.close(fd)

    def keep_pace(self) -> None:
        """Read only while the launcher takes more; else the pipes fill, and the ranks wait."""
        link, selector = self._leader.link, self._leader.selector
        keys = selector.get_map()
        for member in self._leader.members.values():
            for fd in member.pipes:
                if link.full and fd in keys and member.alive:
                    selector.unregister(fd)
                elif not link.full and fd not in keys:
                    self._watch(member, fd)
        if link.output is not None:
            if link.waiting and link.output not in keys:
                selector.register(link.output, selectors.EVENT_WRITE, lambda _: link.push())
            elif not link.waiting and link.output in keys:
                selector.unregister(link.output)

    def show(self) -> None:
        """Pass on all that may be shown now."""
        now, link = time.monotonic(), self._leader.link
        for member in self._leader.members.values():
            if member.output and not member.told:
                for stream, data in member.output.take(now):
                    link.show(member.rank, stream, data)
                if member.output.problem and not member.log_ended:
                    member.log_ended = True
                    link.say("note", text=f"rank {member.rank}: {member.output.problem}")
        link.push()

    def _watch(self, member: Member, fd: int) -> None:
        self._leader.watch(fd, lambda fd: self._read(member, fd))

    def _read(self, member: Member, fd: int) -> None:
        if not member.read(fd):
            self._leader.selector.unregister(fd)
