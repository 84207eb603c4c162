"""Keep what the hardware of a launch did: a file of rows beside the journal, a summary, and at most three notes.

    hardware.jsonl, a line per host and 30 s:

    {"v":1,"t":1795287630.2,"s":30.0,"host":"n07","now":{"cpu":[3.9,3.7,4.1],"memory":[…],…},
     "devices":[{"id":"3","name":"NVIDIA H100","given":true,"power":[612,580,640],"clock":[…],"joules":18360,
                 "throttled":{"power cap":0.5}}]}

``t`` is the end of the ``s`` seconds that a row sums up, by the launcher's clock. A figure is its mean, least and most;
``joules``, ``errors`` and ``xids`` are what came in these seconds. Agents report every 30 s
(`ezpz.watch.hardware.host`).
When the file has grown to its limit, neighbouring rows of each host are joined, and later rows are as long as those.
"""

from __future__ import annotations

import json
import os

from ezpz.files import open_closed, write_whole
from ezpz.launch.watchers import LauncherHandle, LauncherSide
from ezpz.watch.hardware.messages import Hardware, RecordDue, TellHardware

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from ezpz.launch.messages import Message
    from ezpz.launch.run.failures import Outcome

__all__ = ["HARDWARE", "HardwareRecord", "joined"]

HARDWARE = "hardware.jsonl"
_LIMIT = 48_000_000  # bytes from which on rows are joined; what comes meanwhile fits into 50 MB
_FULL = 0.9  # of the limit: no room is left after rows were joined
_SLICE = 200  # rows that are joined in a turn of the supervisor's loop, about 10 ms
_PAUSE = 0.02  # seconds between two such turns
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
        limit: Bytes from which on the file is made smaller.
    """

    def __init__(self, handle: LauncherHandle, limit: int = _LIMIT) -> None:
        super().__init__(handle)
        self._note, self._limit = handle.note, limit
        self._path = os.path.join(handle.folder, HARDWARE) if handle.folder else ""
        self._runs: list[str] = []  # run folders of this launch
        self._waiting: dict[str, dict[str, Any]] = {}  # rows of each host that are not long enough yet
        self._shortest = 0.0  # seconds of a row
        self._held: list[bytes] = []
        self._joining: Iterator[None] | None = None
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
        self._finish_joining()
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
        known = self._waiting.pop(host, None)
        row = joined(known, row) if known else row
        if row["s"] < self._shortest * 0.9:
            self._waiting[host] = row
        else:
            self._write(row)

    def end(self, outcome: Outcome | None = None) -> Mapping[str, Any]:
        """Write what waits, and return the summary; that goes into the ``run.json`` of this launch's runs as well.

        Nothing where no agent has reported anything.
        """
        del outcome
        self._finish_joining()
        for row in self._waiting.values():
            self._write(row)
        self._waiting.clear()
        self._finish_joining()
        if self._first is None:
            return {}
        summary = self._summary()
        for folder in self._runs[-1:]:  # the energy of all runs of a launch is told of none
            _add_to_run(
                folder, self.handle.launch, summary if len(self._runs) == 1 else {**summary, "runs": len(self._runs)}
            )
        return {"hardware": summary}

    # Rows.

    def _write(self, row: dict[str, Any]) -> None:
        line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        if self._joining:
            self._held.append(line)
        else:
            self._append(line)

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
        if size > self._limit and not self._joining:
            self._joining = self._join()
            self.handle.after(_PAUSE, self._go_on)

    def _join(self) -> Iterator[None]:
        """Make the file half as long, a slice at a time: each two neighbouring rows of a host become one."""
        half = f"{self._path}.half"
        alone: dict[str, dict[str, Any]] = {}
        longest = 0.0
        with open(self._path, "rb") as file, open(half, "wb", opener=open_closed) as out:
            for number, line in enumerate(file, 1):
                try:
                    row = json.loads(line)
                    before = alone.pop(row["host"], None)
                except (ValueError, KeyError, TypeError):
                    continue  # a line that a crash tore
                if before is None:
                    alone[row["host"]] = row
                else:
                    both = joined(before, row)
                    longest = max(longest, both["s"])
                    out.write(json.dumps(both, separators=(",", ":")).encode() + b"\n")
                if number % _SLICE == 0:
                    yield
            for row in alone.values():
                out.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")
        os.replace(half, self._path)
        self._shortest = max(2 * self._shortest, min(longest, 3 * self._shortest or longest))

    def _go_on(self) -> None:
        if self._joining is None:
            return
        try:
            next(self._joining)
        except StopIteration:
            self._joining = None
            held, self._held = self._held, []
            if os.path.getsize(self._path) > _FULL * self._limit:  # one row for each host is too much
                self._is_broken = True
                self._note(f"what the hardware does is kept no longer: {self._path} has a row per host, and is full")
            self._append(b"".join(held))
            return
        except OSError as error:
            self._joining, self._is_broken = None, True
            self._note(f"what the hardware does is kept no longer: cannot shorten {self._path}: {error.strerror}")
            return
        self.handle.after(_PAUSE, self._go_on)

    def _finish_joining(self) -> None:
        while self._joining:
            self._go_on()
        self.handle.cancel()

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


def joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return two rows of a host as one."""
    weights = first["s"], second["s"]
    devices = {f"{fields['name']} {fields['id']}": fields for fields in first["devices"]}
    for fields in second["devices"]:
        key = f"{fields['name']} {fields['id']}"
        devices[key] = _joined_figures(devices[key], fields, weights) if key in devices else fields
    return {
        "v": 1,
        "t": second["t"],
        "s": round(sum(weights), 2),
        "host": second["host"],
        "now": _joined_figures(first["now"], second["now"], weights),
        "devices": list(devices.values()),
    }


def _joined_figures(
    first: Mapping[str, Any], second: Mapping[str, Any], weights: tuple[float, float]
) -> dict[str, Any]:
    both: dict[str, Any] = {**first, **second}
    whole = sum(weights) or 1.0
    share = weights[0] / whole, weights[1] / whole
    for name, value in first.items():
        if isinstance(value, list) and isinstance(second.get(name), list):
            mean = value[0] * share[0] + second[name][0] * share[1]
            both[name] = [_short(mean), min(value[1], second[name][1]), max(value[2], second[name][2])]
        elif name in _SUMS:
            both[name] = _short(value + second.get(name, 0.0))
    if "throttled" in both:
        reasons = {**first.get("throttled", {}), **second.get("throttled", {})}
        both["throttled"] = {
            reason: _short(
                first.get("throttled", {}).get(reason, 0.0) * share[0]
                + second.get("throttled", {}).get(reason, 0.0) * share[1]
            )
            for reason in reasons
        }
    return both


def _short(value: float) -> float:
    """Return a number with 5 significant digits, whole where it is."""
    short = float(f"{value:.5g}")
    return int(short) if short == int(short) else short


def _add_to_run(folder: str, launch: str, summary: Mapping[str, Any]) -> None:
    """Add the summary to the ``run.json`` of a run whose process has ended; it must be of this launch."""
    from ezpz.records.run import RunRecord  # not before the end of the launch

    path = os.path.join(folder, "run.json")
    record = RunRecord.read(path)
    if record.launch.get("EZPZ_LAUNCH_ID") == launch:
        try:
            write_whole(path, json.dumps({**record.raw, "hardware": summary}, indent=2) + "\n", closed=True)
        except OSError:
            pass  # the rows beside it say the same
