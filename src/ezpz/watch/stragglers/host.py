"""Put together what the ranks of one host say of their collectives, so that the launcher hears one voice per host."""

from __future__ import annotations

import contextlib
import os

from ezpz.launch.contract import bound_cpus
from ezpz.launch.watchers import HostHandle, HostSide
from ezpz.watch.stragglers import messages

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.launch.agent_messages import Message
    from ezpz.launch.host.rank_process import RankProcess

_TOGETHER = 0.5  # seconds in which the arrivals of a host's ranks become one message


class ArrivalsOfHost(HostSide):
    """The arrivals that the launcher does not have yet."""

    def __init__(self, handle: HostHandle) -> None:
        super().__init__(handle)
        self._arrivals: list[messages.RankArrivals] = []
        self._cpus: dict[int, int] = {}  # of each rank, the CPUs that it may use, as bits

    def hear(self, rank: RankProcess, message: Message) -> None:
        """Keep what a rank tells until the others of this host have."""
        if not isinstance(message, messages.Arrivals):
            return
        figures = [message.delay, message.cpu, message.faults, message.throttled, message.steal]
        self._arrivals.append(
            messages.RankArrivals(
                rank=rank.rank,
                group=message.group,
                span=message.span,
                figures=[*figures, message.loader],
                threads=message.threads,
                omp=message.omp,
                times=message.times,
                where=message.where,
            )
        )
        with contextlib.suppress(ValueError):
            self._cpus[rank.rank] = int(message.cpus, 16)
        if not self.handle.waits():
            self.handle.after(_TOGETHER, self.finish)

    def finish(self) -> None:
        """Report them."""
        reported, self._arrivals = self._arrivals, []
        if reported:
            together = 0
            for cpus in self._cpus.values():
                together |= cpus
            self.handle.report(
                messages.ArrivalsTold(
                    clock=self.handle.clock,
                    cores=f"{together:b}".count("1"),
                    allowed=bound_cpus(),
                    there=os.cpu_count() or 0,
                    ranks=reported,
                )
            )
