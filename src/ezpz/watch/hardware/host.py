"""Keep a host's sampler running for its agent, and sum up its samples for the launcher.

The sampler is a child process (`ezpz.watch.hardware.sampler.sampler_process`): a driver that answers no more cannot
hold the agent, not even at its end. It ends the sampling of its host, which is said once.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import time

from ezpz.launch.host import process_tree
from ezpz.launch.watchers import HostHandle, HostSide
from ezpz.watch.hardware import messages
from ezpz.watch.hardware.sampler.sampler_process import SOURCES
from ezpz.watch.progress.messages import Busy

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ezpz.launch.agent_messages import Message
    from ezpz.launch.host.rank_process import RankProcess

__all__ = ["PER_REPORT", "HardwareOfHost", "Window"]

PER_REPORT = 6  # samples
_SILENCE = 3  # times the seconds between two samples without one: its source is stuck
_SHORTEST_SILENCE = 2.0  # seconds: the first sample of a driver may take as long
_END = 0.5  # seconds for a sampler to go after SIGKILL; one that is stuck in the kernel is left behind
_MOST_PROBLEMS = 16
_LONGEST_LINE = 1 << 20


class Figure:
    """A gauge over a stretch of time."""

    __slots__ = ("count", "high", "low", "total")

    def __init__(self) -> None:
        self.total, self.count, self.low, self.high = 0.0, 0, float("inf"), float("-inf")

    def add(self, value: float) -> None:
        """Take in one more sample."""
        self.total, self.count = self.total + value, self.count + 1
        self.low, self.high = min(self.low, value), max(self.high, value)

    def row(self, name: str) -> tuple[str, float, float, float]:
        """Return name, mean, least and most."""
        return name, self.total / self.count, self.low, self.high


class _Part:
    """The samples of one device, or of the host, between two reports."""

    def __init__(self, name: str = "", given: bool = False) -> None:
        self.name, self.given = name, given
        self.has_power = False
        self.last: dict[str, tuple[float, float]] = {}  # counters, and when each was read last
        self.power: tuple[float, float] | None = None  # the same of the power
        self.clear()

    def clear(self) -> None:
        self.figures: dict[str, Figure] = {}
        self.sums: dict[str, float] = {}
        self.reasons: dict[str, int] = {}
        self.samples = self.judged = 0  # `judged`: those that say whether the device was slowed down

    def add(self, row: dict[str, Any], at: float) -> None:
        """Take in a sample of that time; a figure that it lacks is bridged by the next one that has it."""
        self.samples += 1
        self.judged += "why" in row
        for name, value in row.get("now", {}).items():
            self.figures.setdefault(name, Figure()).add(value)
        for reason in row.get("why", ()):
            self.reasons[reason] = self.reasons.get(reason, 0) + 1
        counters, power = row.get("count", {}), row.get("now", {}).get("power")
        for name, value in counters.items():
            if name in self.last:  # one that has begun anew counts from 0
                before, then = self.last[name]
                self.sums[name] = self.sums.get(name, 0.0) + (value - before if value >= before else value)
                if name == "joules" and not self.has_power and at > then:
                    self.figures.setdefault("power", Figure()).add(max(0.0, value - before) / (at - then))
            self.last[name] = value, at
        if power is None:
            return
        self.has_power = True
        if self.power is not None and "joules" not in self.last:
            before, then = self.power
            self.sums["joules"] = self.sums.get("joules", 0.0) + (power + before) / 2 * max(0.0, at - then)
        self.power = power, at

    def rows(self) -> list[tuple[str, float, float, float]]:
        """Return its figures, and what it has counted as figures of one value."""
        sums = [(name, value, value, value) for name, value in sorted(self.sums.items())]
        return [*(figure.row(name) for name, figure in sorted(self.figures.items())), *sums]

    def throttled(self) -> list[tuple[str, float]]:
        """Return why it was slower than it can be, and in which share of the samples."""
        return [(reason, count / self.judged) for reason, count in sorted(self.reasons.items())]


class Window:
    """What a host's samples since the last report sum up to.

    Args:
        clock: What to add to this host's clock to get the launcher's, in seconds.
    """

    def __init__(self, clock: float = 0.0) -> None:
        self._clock = clock
        self._devices: dict[str, _Part] = {}
        self._host = _Part()
        self._began: float | None = None
        self._at = 0.0
        self._problems: list[str] = []
        self._told: set[str] = set()
        self.samples = 0

    def add(self, sample: dict[str, Any]) -> None:
        """Take in a sample of the sampler."""
        at = float(sample["t"])
        if self._began is None:
            self._began = at
        self._at = at
        self.samples += 1
        for row in sample["devices"]:
            part = self._devices.setdefault(f"{row['name']} {row['id']}", _Part(row["name"], row["given"]))
            part.add(row, at)
        self._host.add(sample["host"], at)
        for problem in sample["problems"]:
            self.complain(problem)

    def complain(self, problem: str) -> None:
        """Note once what cannot be read."""
        if problem not in self._told and len(self._told) < _MOST_PROBLEMS:
            self._told.add(problem)
            self._problems.append(problem)

    def report(self, *, trains: bool = False) -> messages.Hardware | None:
        """Return what the samples since the last call sum up to; None where there is neither one nor a problem."""
        if not (self.samples or self._problems):
            return None
        at = self._at or time.time()
        devices = [
            messages.DeviceFigures(
                id=key.rpartition(" ")[2],
                name=part.name,
                given=part.given,
                figures=part.rows(),
                throttled=part.throttled(),
            )
            for key, part in self._devices.items()
            if part.samples
        ]
        report = messages.Hardware(
            at=at + self._clock,
            span=max(0.0, at - (at if self._began is None else self._began)),
            devices=devices,
            host=self._host.rows(),
            problems=self._problems,
            trains=trains,
        )
        for part in (*self._devices.values(), self._host):
            if not part.samples:
                part.power = None  # it has been away for so long that nobody knows what it has drawn
            part.clear()
        self._began, self.samples, self._problems = self._at or None, 0, []
        return report


class HardwareOfHost(HostSide):
    """The sampler of one host, as its agent sees it. It begins when all ranks run: a short run pays nothing."""

    def __init__(self, handle: HostHandle) -> None:
        super().__init__(handle)
        self._pids: list[int] = []
        self._every = float(handle.config)  # seconds between two samples
        self._window = Window(handle.clock)
        self._per_report = PER_REPORT
        self._asked = mmap.mmap(-1, 1)  # which source is read now
        self._pid, self._pipe, self._rest = 0, -1, b""
        self._reported = False
        self._begin()

    def _begin(self) -> None:
        self._pids = [rank.pid for rank in self.handle.ranks.values() if rank.alive and rank.pid]
        if self._pids and self.handle.is_running():
            self._start()
        else:
            self.handle.after(self._every, self._begin)

    def hear(self, rank: RankProcess, message: Message) -> None:
        """Report when rank 0 works on its record: a report may be drawn, which should show what all hosts did."""
        if isinstance(message, Busy) and message.busy and not rank.rank:
            self.tell()
            self.handle.report(messages.RecordDue())

    def obey(self, order: Message) -> None:
        """Report because rank 0, on another host, works on its record; or more seldom, as the record grows."""
        if isinstance(order, messages.TellHardware):
            self.tell()
        elif isinstance(order, messages.ReportSeldom):
            self._per_report = PER_REPORT * order.times

    def tell(self) -> None:
        """Report at once what is known so far: a run's record is about to be made, or this host is done."""
        self._drain()
        self._flush()

    def _flush(self) -> None:
        report = self._window.report(trains=any("second_step" in rank.stages for rank in self.handle.ranks.values()))
        if report:
            self.handle.report(report)

    def finish(self) -> None:
        """Report the rest, and end the sampler; one that a driver holds is not waited for."""
        self.handle.cancel()
        self.tell()
        self._end()
        self._asked.close()

    def _start(self) -> None:
        ours, its = os.pipe()
        try:
            pid = os.fork()
        except OSError:  # no more processes: the ranks are worth more than their figures
            os.close(ours)
            os.close(its)
            self._window.complain("no process could be started that reads the counters of this host")
            return
        if not pid:
            _be_sampler(its, self._pids, self._every, self._asked)
        os.close(its)
        os.set_blocking(ours, False)
        self._pid, self._pipe, self._rest = pid, ours, b""
        self.handle.read(ours, self._drain)
        self._expect()

    def _expect(self) -> None:
        patience = max(_SHORTEST_SILENCE, _SILENCE * self._every)
        self.handle.after(patience, lambda: self._stuck(patience), "silence")

    def _drain(self) -> None:
        """Take the samples that have come."""
        while self._pipe >= 0:
            try:
                data = os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._window.complain("the process that read the counters of this host has ended")
                self._end()
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) > _LONGEST_LINE:
                self._rest = b""
            for line in lines:
                self._window.add(json.loads(line))
                self._expect()
                # The first report comes early, so that there is something to see.
                if self._window.samples >= (self._per_report if self._reported else 2):
                    self._reported = True
                    self._flush()

    def _stuck(self, seconds: float) -> None:
        """End the sampling: a driver answers no more."""
        if self._pipe < 0:
            return
        if not self._asked[
            0
        ]:  # this process itself was stopped, or the host is overloaded: a sampler that lives goes on
            self._expect()
            return
        source = SOURCES[self._asked[0] - 1]
        self._window.complain(f"{source} has not answered for {seconds:g} s: nothing more is sampled on this host")
        self._end()
        self._flush()

    def _end(self) -> None:
        """End the sampler."""
        self.handle.cancel("silence")
        if self._pipe >= 0:
            self.handle.forget(self._pipe)
            os.close(self._pipe)
            self._pipe = -1
        pid, self._pid = self._pid, 0
        if not pid:
            return
        end = time.monotonic() + _END
        try:
            os.kill(pid, signal.SIGKILL)
            while not os.waitpid(pid, os.WNOHANG)[0] and time.monotonic() < end:
                time.sleep(0.001)
        except (ChildProcessError, ProcessLookupError):
            pass  # the agent has reaped it already


def _be_sampler(pipe: int, pids: Iterable[int], every: float, asked: Any) -> None:
    """Be the sampler until the agent ends; never returns."""
    try:
        process_tree.be_a_helper("ezpz-sampler", pipe)
        from ezpz.watch.hardware.sampler.sampler_process import sample

        sample(pipe, pids, every, asked)
    finally:
        os._exit(0)
