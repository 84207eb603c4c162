"""Read what the hardware of a run did: the rows that ``launch`` keeps beside the journal.

    {"v":1,"t":1795287630.2,"s":30.0,"host":"n07","now":{"cpu":[3.9,3.7,4.1],"memory":[…]},"devices":[
     {"id":"3","name":"NVIDIA H100","given":true,"power":[612,580,640],"joules":18360,"throttled":{"power cap":0.5}}]}

`ezpz.watch.hardware.launcher` writes them and says what they mean. Of a run whose folder the launcher cannot reach they
are in the folder of the launch.
"""

from __future__ import annotations

import json
import os
import time

from ezpz.files import LARGEST, open_regular
from ezpz.quantities import duration
from ezpz.records.hardware_record import HardwareRow
from ezpz.track.launches import find_launch

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from ezpz.records.hardware_record import HardwareSummary
    from ezpz.track.run_reader import Run

__all__ = ["newest_values", "per_joule", "read_hardware"]

_FILE = "hardware.jsonl"
_TAIL = 1 << 16  # bytes: the newest rows of a few hundred devices
_STALE = 600.0  # seconds after which the newest row is no present value


def read_hardware(run: Run) -> list[HardwareRow]:
    """Return the rows of a run, in the order of their times; empty where nothing was sampled."""
    path = _path(run)
    rows = _rows(path, 0) if path else []
    return sorted(rows, key=lambda row: row.t)


def per_joule(rate: float | None, rate_unit: str | None, hardware: HardwareSummary) -> tuple[float, str] | None:
    """Return how many tokens or samples a joule of the devices was good for, and the unit; None where not known.

    Args:
        rate: What the run did per second, of all ranks.
        rate_unit: Its unit, ``tok/s`` or the like; steps are neither tokens nor samples.
        hardware: What its devices did.
    """
    joules, seconds = hardware.joules or 0.0, hardware.seconds or 0.0
    if rate is None or not rate_unit or not rate_unit.endswith("/s") or joules <= 0 or seconds <= 0:
        return None
    of = rate_unit.removesuffix("/s")
    return None if of in {"", "it"} or "FLOP" in of else (rate * seconds / joules, f"{of}/J")


def newest_values(run: Run, after: float = 0.0) -> tuple[float, str]:
    """Return when the newest values of a run's devices and hosts were taken, and these in one line.

    Args:
        run: The run.
        after: Seconds since 1970: values that were taken by then are known already.

    Returns:
        ``after`` and an empty line where there are none that are new.
    """
    path = _path(run)
    newest = {row.host: row for row in (_rows(path, _TAIL) if path else ())}
    at = max((row.t for row in newest.values()), default=after)
    ago = time.time() - at
    if at <= after or ago > _STALE:
        return after, ""
    devices = [device for row in newest.values() for device in row.devices]
    parts = [f"{len(devices)} device{'s' * (len(devices) != 1)}"] if devices else []
    for name, unit in (("power", " W"), ("used", " %"), ("clock", " MHz")):
        known = [figure[0] for device in devices if (figure := getattr(device, name))]
        if known:
            low, high = min(known), max(known)
            text = f"{low:,.0f}" if f"{low:,.0f}" == f"{high:,.0f}" else f"{low:,.0f} to {high:,.0f}"
            parts.append(f"{text}{unit}")
    shares = [
        device.memory[0] / device.memory_total[0]
        for device in devices
        if device.memory and device.memory_total and device.memory_total[0]
    ]
    parts += [f"{100 * max(shares):.0f} % of memory"] if shares else []
    cores = [row.now.cpu[0] for row in newest.values() if row.now.cpu]
    parts += [f"{sum(cores):.1f} cores"] if cores else []
    own = [row.now.memory[0] for row in newest.values() if row.now.memory]
    parts += [f"{sum(own) / 2**30:.1f} GiB on {len(newest)} host{'s' * (len(newest) != 1)}"] if own else []
    return at, f"hardware: {', '.join(parts)}, {duration(max(0.0, ago), whole=True)} ago" if parts else ""


def _path(run: Run) -> str:
    """Return the file that holds the rows; empty where there is none."""
    if not run.folder.is_absolute():  # a public report does not know where it is, and names no host
        return ""
    path = os.path.join(run.folder, _FILE)  # noqa: PTH118  # a string is all that is needed
    if os.path.isfile(path):  # noqa: PTH113  # as above
        return path
    launch = run.record.launch_id
    found: tuple[Path, Any] | None = find_launch(launch) if launch else None
    return str(found[0].parent / _FILE) if found and (found[0].parent / _FILE).is_file() else ""


def _rows(path: str, tail: int) -> list[HardwareRow]:
    """Return the whole lines of a file, or of its last bytes, that are rows."""
    try:
        with open(path, "rb", opener=open_regular) as file:  # as above
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - (tail or LARGEST)))
            lines = file.read(LARGEST).split(b"\n")
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            row = HardwareRow.of(json.loads(line)) if line else None
        except (ValueError, RecursionError):  # torn, or begun before the last bytes; or JSON of absurd depth
            continue
        rows += [row] if row is not None else []
    return rows
