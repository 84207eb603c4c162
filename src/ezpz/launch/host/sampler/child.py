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


class Reader:
    """All sources of a host but those that are left out.

    Args:
        pids: The processes of this host's ranks.
        shared: Its first byte says which source is read now, 0 for none.
        without: Names of sources that have not answered before.
    """

    def __init__(self, pids: Iterable[int], shared: Any, without: Iterable[str] = ()) -> None:
        from ezpz.launch.host.sampler.visible import Ranks

        self._ranks, self._shared, self._without = Ranks(pids), shared, set(without)
        self._sources: dict[str, Any] = {}
        for name in SOURCES:
            if name not in self._without:
                try:
                    self._sources[name] = self._guarded(name, lambda name=name: self._open(name))
                except OSError:
                    pass  # no such driver

    def read(self) -> dict[str, Any]:
        """Return one sample."""
        devices: list[Any] = []
        host: dict[str, Any] = {"now": {}, "count": {}}
        problems: list[str] = []
        for name, source in list(self._sources.items()):
            try:
                came = self._guarded(name, source.read)
            except Exception as error:  # noqa: BLE001  # whatever a driver makes of it: the other sources go on
                del self._sources[name]
                problems.append(f"{name} cannot be read: {type(error).__name__}: {error}")
                continue
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

    def _open(self, name: str) -> Any:
        if name == "NVML":
            from ezpz.launch.host.sampler.nvml import Nvml

            return Nvml(self._ranks)
        if name == "/proc":
            from ezpz.launch.host.sampler.host import Host

            return Host(self._ranks)
        from ezpz.launch.host.sampler.files import Files

        return Files(self._ranks)

    def _guarded(self, name: str, action: Any) -> Any:
        self._shared[0] = SOURCES.index(name) + 1
        try:
            return action()
        finally:
            self._shared[0] = 0


def sample(pipe: int, pids: Iterable[int], every: float, shared: Any, without: Iterable[str]) -> None:
    """Write a sample every so many seconds until nobody reads them any more."""
    reader = Reader(pids, shared, without)
    due = time.monotonic()
    while True:
        os.write(pipe, json.dumps(reader.read(), separators=(",", ":")).encode() + b"\n")
        due = max(due + every, time.monotonic())  # none is made up for
        time.sleep(max(0.0, due - time.monotonic()))
