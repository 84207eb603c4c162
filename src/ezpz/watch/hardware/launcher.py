"""Keep what the hardware of a launch did: a file of rows beside the journal, a summary, and at most three notes.

    hardware.jsonl, a line per host and 30 s:

    {"v":1,"t":1795287630.2,"s":30.0,"host":"n07","now":{"cpu":[3.9,3.7,4.1],"memory":[…],…},
     "devices":[{"id":"3","name":"NVIDIA H100","given":true,"power":[612,580,640],"clock":[…],"joules":18360,
                 "throttled":{"power cap":0.5}}]}

``t`` is the end of the ``s`` seconds that a row sums up, by the launcher's clock. A figure is its mean, least and most;
``joules``, ``errors`` and ``xids`` are what came in these seconds. Agents report every 30 s
(`ezpz.watch.hardware.host`).
As the file grows, they report more seldom.
"""

from __future__ import annotations

import json
import os

from ezpz.files import open_closed, write_whole
from ezpz.launch.watchers import LauncherHandle, LauncherSide
from ezpz.watch.hardware.messages import Hardware, RecordDue, ReportSeldom, TellHardware

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ezpz.launch.agent_messages import Message
    from ezpz.launch.run.failures import Outcome

__all__ = ["HARDWARE", "HardwareRecord"]

HARDWARE = "hardware.jsonl"
_LIMIT = 48_000_000  # bytes, at which the file ends
_STEPS = 14  # parts of its second half: rows of each cover twice the time of those before
_SUMS = ("joules", "errors", "xids")
_RATES = ("cpu", "faults", "received", "sent")  # what a host counts, and is shown per second
_MOST_HOSTS = 64  # in the summary
_MOST_NOTES = 3
_IDLE, _IDLE_FOR = 1.0, 50.0  # percent below which a device is idle, and seconds after which that is noted
_BUSY = 20.0  # percent from which on another device shows that the run is under way
_SLOW = 0.9  # times the clock of the run's other devices of its kind, below which a device is noted
_SLOWED = 0.5  # share of the samples in which it was slowed down
_FEWEST = 3  # devices of a kind that have a usual clock


class _Total:
    """A figure over the whole run."""

    __slots__ = ("high", "mean", "seconds")

    def __init__(self) -> None:
        self.mean = self.seconds = 0.0
        self.high = float("-inf")

    def add(self, values: list[float], seconds: float) -> None:
        self.mean += values[0] * seconds
        self.seconds += seconds
        self.high = max(self.high, values[2])

    def pair(self) -> list[float]:
        return [_short(self.mean / self.seconds), _short(self.high)]


class _Device:
    """One device over the whole run."""

    def __init__(self, host: str, fields: Mapping[str, Any]) -> None:
        self.host, self.id, self.name, self.given = host, fields["id"], fields["name"], fields["given"]
        self.figures: dict[str, _Total] = {}
        self.sums: dict[str, float] = {}
        self.throttled = 0.0  # seconds
        self.seconds = self.idle = self.slow = 0.0
        self.latest: Mapping[str, Any] = fields

    def add(self, fields: Mapping[str, Any], seconds: float) -> None:
        self.latest, self.seconds = fields, self.seconds + seconds
        for name, value in fields.items():
            if isinstance(value, list):
                self.figures.setdefault(name, _Total()).add(value, max(seconds, 1e-3))
            elif name in _SUMS:
                self.sums[name] = self.sums.get(name, 0.0) + value
        self.throttled += seconds * max(fields["throttled"].values(), default=0.0)

    def summary(self) -> dict[str, Any]:
        figures = {name: total.pair() for name, total in self.figures.items()}
        sums = {name: _short(value) for name, value in self.sums.items()}
        share = {"throttled": _short(self.throttled / self.seconds)} if self.throttled and self.seconds else {}
        return {"name": self.name, "given": self.given, **figures, **sums, **share}


class HardwareRecord(LauncherSide):
    """The rows, the summary and the notes of one launch.

    The folder of the launch's record holds the rows until a rank keeps a run.

    Args:
        handle: What it may do.
        limit: Bytes at which the file ends.
    """

    def __init__(self, handle: LauncherHandle, limit: int = _LIMIT) -> None:
        super().__init__(handle)
        self._note, self._limit = handle.note, limit
        self._path = os.path.join(handle.folder, HARDWARE) if handle.folder else ""
        self._runs: list[str] = []  # run folders of this launch
        self._times = 1  # by which reports are more seldom than at first
        self._devices: dict[tuple[str, str, str], _Device] = {}
        self._hosts: dict[str, dict[str, _Total]] = {}
        self._energy_of_hosts: dict[str, float] = {}
        self._missing: dict[str, list[str]] = {}
        self._noted: set[str] = set()
        self._first: float | None = None
        self._last = 0.0
        self._is_broken = False
        self._trains = False  # whether ranks make steps

    def use_folder(self, folder: str) -> None:
        """Write into a run folder from now on; what was written before the first one goes there, too."""
        path = os.path.join(folder, HARDWARE)
        if path == self._path or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
            return  # another host's disk: the rows stay with the launch
        before, is_first = self._path, not self._runs
        self._path = path
        self._runs.append(folder)
        if is_first and before:
            try:
                with open(before, "rb") as file:
                    data = file.read()
                os.unlink(before)
            except OSError:
                return
            self._append(data)

    def hear(self, host: int, report: Message) -> None:
        """Take in what an agent reports."""
        if isinstance(report, RecordDue):
            self.handle.order(TellHardware(), but=host)
        elif isinstance(report, Hardware):
            self.add(self.handle.host(host), report)

    def add(self, host: str, report: Hardware) -> None:
        """Take in what the hardware of a host did."""
        self._trains = self._trains or report.trains
        for problem in report.problems:
            self._missing.setdefault(host, []).append(problem)
        row = _row(host, report)
        self._first = row["t"] - row["s"] if self._first is None else min(self._first, row["t"] - row["s"])
        self._last = max(self._last, row["t"])
        self._sum_up(row)
        self._judge(row)
        if row["s"]:
            self._append(json.dumps(row, separators=(",", ":")).encode() + b"\n")

    def end(self, outcome: Outcome | None = None) -> Mapping[str, Any]:
        """Return the summary, which goes into the ``run.json`` of this launch's last run as well.

        Nothing where no agent has reported anything.
        """
        del outcome
        if self._first is None:
            return {}
        summary = self._summary()
        for folder in self._runs[-1:]:  # the energy of all runs of a launch is told of none
            _add_to_run(
                folder, self.handle.launch, summary if len(self._runs) == 1 else {**summary, "runs": len(self._runs)}
            )
        return {"hardware": summary}

    # Rows.

    def _append(self, data: bytes) -> None:
        if not self._path or not data or self._is_broken:
            return
        try:
            fd = open_closed(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                while data:
                    data = data[os.write(fd, data) :]
                size = os.fstat(fd).st_size
            finally:
                os.close(fd)
        except OSError as error:
            self._is_broken = True
            self._note(f"what the hardware does is kept no longer: cannot write {self._path}: {error.strerror}")
            return
        if size > self._limit:
            self._is_broken = True
            self._note(f"what the hardware does is kept no longer: {self._path} is full; run.json sums it up")
            return
        times = 1 << max(0, _STEPS * (2 * size - self._limit) // self._limit)
        if times > self._times:
            self._times = times
            self.handle.order(ReportSeldom(times=times))

    # The summary.

    def _sum_up(self, row: dict[str, Any]) -> None:
        host, seconds = row["host"], row["s"]
        for fields in row["devices"]:
            key = host, fields["name"], fields["id"]
            device = self._devices.setdefault(key, _Device(host, fields))
            device.add(fields, seconds)
        totals = self._hosts.setdefault(host, {})
        for name, values in row["now"].items():
            if isinstance(values, list):
                totals.setdefault(name, _Total()).add(values, max(seconds, 1e-3))
        if "joules" in row["now"]:
            self._energy_of_hosts[host] = self._energy_of_hosts.get(host, 0.0) + row["now"]["joules"]

    def _summary(self) -> dict[str, Any]:
        joules = [device.sums["joules"] for device in self._devices.values() if "joules" in device.sums]
        hosts: dict[str, Any] = {}
        for host in list(self._hosts)[:_MOST_HOSTS]:
            hosts[host] = {name: total.pair() for name, total in self._hosts[host].items()}
            if host in self._energy_of_hosts:
                hosts[host]["joules"] = _short(self._energy_of_hosts[host])
            if host in self._missing:
                hosts[host]["missing"] = self._missing[host]
            own = {device.id: device.summary() for device in self._devices.values() if device.host == host}
            if own:
                hosts[host]["devices"] = own
        more = len(self._hosts) - len(hosts)
        return {
            "seconds": _short(self._last - (self._first or 0.0)),
            "devices": len(self._devices),
            **({"joules": _short(sum(joules))} if joules else {}),
            **({"joules_of_hosts": _short(sum(self._energy_of_hosts.values()))} if self._energy_of_hosts else {}),
            "hosts": hosts,
            **({"hosts_left_out": more} if more > 0 else {}),
        }

    # Notes.

    def _judge(self, row: dict[str, Any]) -> None:
        """Note what somebody should look at: idle, slowed down, or with errors of its memory."""
        host, seconds = row["host"], row["s"]
        for fields in row["devices"]:
            device = self._devices[host, fields["name"], fields["id"]]
            used, clock = (fields.get(name, [None])[0] for name in ("used", "clock"))
            is_idle = device.given and used is not None and used < _IDLE and self._is_under_way(device)
            device.idle = device.idle + seconds if is_idle else 0.0
            if device.idle >= _IDLE_FOR:
                self._tell(f"idle {host}", f"device {device.id} on {host} was idle for {device.idle:.0f} s")
            reason = max(fields["throttled"], key=fields["throttled"].get, default="")
            usual = self._usual_clock(device)
            is_slow = (
                clock is not None
                and usual is not None
                and clock < _SLOW * usual
                and fields["throttled"].get(reason, 0.0) >= _SLOWED
            )
            device.slow = device.slow + seconds if is_slow else 0.0
            if device.slow >= _IDLE_FOR and clock is not None and usual is not None:
                text = f"{host} ran device {device.id} at {clock:,.0f} MHz, others at {usual:,.0f} MHz: {reason}"
                self._tell(f"slow {host}", text)
            errors = fields.get("errors", 0)
            if errors:
                many = "s" * (errors != 1)
                text = f"device {device.id} on {host} had {errors:.0f} uncorrectable memory error{many}"
                self._tell(f"errors {host}", text)

    def _is_under_way(self, device: _Device) -> bool:
        """Tell whether others work while this one does not: at its start a whole run is idle."""
        others = (other.latest.get("used", [0.0])[0] for other in self._devices.values() if other is not device)
        return self._trains or any(used >= _BUSY for used in others)

    def _usual_clock(self, device: _Device) -> float | None:
        """Return the median clock of the devices of its kind that work; None of few."""
        clocks = sorted(
            other.latest["clock"][0]
            for other in self._devices.values()
            if other.name == device.name and "clock" in other.latest and other.latest.get("used", [0.0])[0] >= _BUSY
        )
        return clocks[len(clocks) // 2] if len(clocks) >= _FEWEST else None

    def _tell(self, what: str, text: str) -> None:
        if what not in self._noted and len(self._noted) < _MOST_NOTES:
            self._noted.add(what)
            self._note(text)


def _row(host: str, report: Hardware) -> dict[str, Any]:
    """Return a report as a row."""
    now = {name: [_short(value) for value in values] for name, *values in report.host if name not in _RATES}
    if report.span > 0:
        for name, value, *_ in report.host:
            if name in _RATES:
                now[name] = [_short(value / report.span)] * 3
    if isinstance(now.get("joules"), list):
        now["joules"] = now["joules"][0]  # type: ignore[assignment]
    devices = []
    for device in report.devices:
        figures: dict[str, Any] = {"id": device.id, "name": device.name, "given": device.given}
        for name, *values in device.figures:
            figures[name] = _short(values[0]) if name in _SUMS else [_short(value) for value in values]
        for name in ("errors", "xids"):
            if not figures.get(name):
                figures.pop(name, None)
        devices.append({**figures, "throttled": {reason: _short(share) for reason, share in device.throttled}})
    return {"v": 1, "t": round(report.at, 2), "s": round(report.span, 2), "host": host, "now": now, "devices": devices}


def _short(value: float) -> float:
    """Return a number with 5 significant digits, whole where it is."""
    short = float(f"{value:.5g}")
    return int(short) if short == int(short) else short


def _add_to_run(folder: str, launch: str, summary: Mapping[str, Any]) -> None:
    """Add the summary to the ``run.json`` of a run whose process has ended; it must be of this launch."""
    from ezpz.records.run_record import RunRecord  # not before the end of the launch

    path = os.path.join(folder, "run.json")
    record = RunRecord.read(path)
    if record.launch.get("EZPZ_LAUNCH_ID") == launch:
        try:
            write_whole(path, json.dumps({**record.raw, "hardware": summary}, indent=2) + "\n", closed=True)
        except OSError:
            pass  # the rows beside it say the same
