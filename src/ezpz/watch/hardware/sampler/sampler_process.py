"""Be the process that reads a host's counters: a driver that answers no more holds this one, and nothing else.

A thread that is stuck in a driver would keep its process from ending, so this is a process of its own, which ends with
its agent. It writes a line of JSON per sample; a byte that it shares with the agent says which source it reads.
"""

from __future__ import annotations

import json
import os
import time

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["SOURCES", "Reader", "sample"]

SOURCES = ("NVML", "the files of the drivers", "/proc")  # by the byte that is shared, less one
_SELDOM = 12  # samples between two tries to open a source that has a driver, and did not answer
_GONE = 3  # samples in a row that a source could not be read in, after which it is read no more


class Reader:
    """All sources of a host.

    Args:
        pids: The processes of this host's ranks.
        asked: Its byte says which source is read now; 0 for none.
        sources: Their names.
    """

    def __init__(self, pids: Iterable[int], asked: Any, sources: Iterable[str] = SOURCES) -> None:
        from ezpz.cluster.devices.visible_devices import Ranks

        self._ranks, self._asked = Ranks(pids), asked
        self._sources: dict[str, Any] = {}
        self._failures: dict[str, int] = {}  # in a row
        self._looks = 0
        self._problems: list[str] = []
        self._closed = set(sources)
        self._open_closed()

    def read(self) -> dict[str, Any]:
        """Return one sample."""
        devices: list[Any] = []
        host: dict[str, Any] = {"now": {}, "count": {}}
        self._looks += 1
        if self._closed and self._looks % _SELDOM == 0:
            self._open_closed()
        problems, self._problems = self._problems, []
        for name, source in list(self._sources.items()):
            try:
                came = self._guarded(name, source.read)
            except Exception as error:  # noqa: BLE001  # whatever a driver makes of it: the other sources go on
                self._failures[name] = self._failures.get(name, 0) + 1
                if self._failures[name] == _GONE:
                    del self._sources[name]
                    problems.append(f"{name} cannot be read: {type(error).__name__}: {error}")
                continue
            self._failures[name] = 0
            parts = [came] if isinstance(came, dict) else []
            if isinstance(came, list):
                # Cray's own counters of cards are worth less than those of the cards.
                devices += came if not devices else [row for row in came if row["name"] != "accelerator"]
                parts = [source.of_host()] if hasattr(source, "of_host") else []
            for part in parts:
                host["now"].update(part.get("now", {}))
                host["count"].update(part.get("count", {}))
            problems += source.problems
            source.problems.clear()
        return {"t": time.time(), "devices": devices, "host": host, "problems": problems}

    def _open_closed(self) -> None:
        for name in SOURCES:
            if name not in self._closed:
                continue
            try:
                source = self._guarded(name, lambda name=name: self._open(name))
            except OSError:
                self._closed.discard(name)  # no such driver
            except Exception as error:  # noqa: BLE001  # as in `read`
                if not self._looks:
                    self._problems.append(f"{name} cannot be opened: {error}")
            else:
                self._closed.discard(name)
                self._sources = {
                    each: {**self._sources, name: source}[each] for each in SOURCES if each in {*self._sources, name}
                }

    def _open(self, name: str) -> Any:
        if name == "NVML":
            from ezpz.cluster.devices.nvml import Nvml

            return Nvml(self._ranks)
        if name == "/proc":
            from ezpz.watch.hardware.sampler.sampled_host import Host

            return Host(self._ranks)
        from ezpz.watch.hardware.sampler.counter_files import Files

        return Files(self._ranks)

    def _guarded(self, name: str, action: Any) -> Any:
        self._asked[0] = SOURCES.index(name) + 1
        try:
            return action()
        finally:
            self._asked[0] = 0


def sample(pipe: int, pids: Iterable[int], every: float, asked: Any) -> None:
    """Write a sample every so many seconds until nobody reads them any more."""
    reader = Reader(pids, asked)
    due = time.monotonic()
    while True:
        os.write(pipe, json.dumps(reader.read(), separators=(",", ":")).encode() + b"\n")
        due = max(due + every, time.monotonic())  # none is made up for
        time.sleep(max(0.0, due - time.monotonic()))
