"""Draw what the hardware of a run did: power, memory and clocks over time, and a table of hosts by devices."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from statistics import mean
from typing import TYPE_CHECKING, Any

from ezpz.track.hardware import read_hardware
from ezpz.track.report.charts import Axis, line_chart
from ezpz.track.report.tables import table
from ezpz.track.series import Series

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ezpz.track.report.markup import Chart
    from ezpz.track.run import Run

_FEW = 6  # devices that have a line each; of more, the least, the mean and the most
_BUCKETS = 400
_GIB = 2.0**30
_OF_DEVICES = (("power", "Power of devices (W)", 1.0), ("memory", "Memory of devices (GiB)", _GIB))
_MORE_OF_DEVICES = (("clock", "Clocks of devices (MHz)", 1.0), ("used", "Utilisation of devices (%)", 1.0))
_OF_HOSTS = (("cpu", "Busy cores of the ranks", 1.0), ("memory", "Memory of the ranks (GiB)", _GIB))

Points = dict[str, dict[float, float]]  # device or host -> seconds -> value


def hardware_charts(run: Run) -> Iterator[Chart]:
    """Yield the charts of a run's hardware, by seconds since the first sample; none where too little is known."""
    rows = read_hardware(run)
    if len({row["t"] for row in rows}) < 2:
        return
    begin = rows[0]["t"] - (rows[0].get("s") or 0.0)
    axis = Axis((0.0, max(1.0, rows[-1]["t"] - begin)), (), _BUCKETS)
    for figure, title, unit in (*_OF_DEVICES, *_MORE_OF_DEVICES):
        points: Points = defaultdict(dict)
        for row in rows:
            for device in row["devices"]:
                if isinstance(device.get(figure), list):
                    points[f"{row['host']}:{device['id']}"][row["t"] - begin] = device[figure][0] / unit
        yield from _chart(title, points, axis)
    for figure, title, unit in _OF_HOSTS:
        points = defaultdict(dict)
        for row in rows:
            if isinstance(row["now"].get(figure), list):
                points[row["host"]][row["t"] - begin] = row["now"][figure][0] / unit
        yield from _chart(title, points, axis)


def _chart(title: str, points: Points, axis: Axis) -> Iterator[Chart]:
    if not points:
        return
    band = None
    if len(points) <= _FEW:
        lines = [_series(name, values) for name, values in points.items()]
    else:
        width = (axis.ends[1] - axis.ends[0]) / min(_BUCKETS, max(map(len, points.values())))
        together: dict[float, list[float]] = defaultdict(list)
        for values in points.values():
            for second, value in values.items():
                together[min(axis.ends[1], (int(second / width) + 0.5) * width)].append(value)
        parts = (("least", min), ("mean", mean), ("most", max))
        lines = [
            _series(f"{name} of {len(points)}", {second: float(of(values)) for second, values in together.items()})
            for name, of in parts
        ]
        band = (0, 2)
    chart = line_chart(title, lines, axis, band=band)
    label = chart.label.replace(" over steps ", " over seconds ")
    yield replace(
        chart,
        label=label,
        data={**chart.data, "axis": "second"},
        notes=[*chart.notes, "seconds since the first sample"],
    )


def _series(name: str, values: dict[float, float]) -> Series:
    import numpy as np

    seconds = sorted(values)
    return Series(name, np.round(np.array(seconds)), np.array([values[second] for second in seconds]))


def hardware_map(run: Run) -> str:
    """Return a table of hosts by devices: mean power and utilisation of each; empty where there is no device."""
    sums: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in read_hardware(run):
        for device in row["devices"]:
            sums[row["host"]][device["id"]].append(device)
    names = sorted({name for devices in sums.values() for name in devices}, key=lambda name: (len(name), name))
    rows = [[host, *(_cell(devices.get(name, [])) for name in names)] for host, devices in sorted(sums.items())]
    return table(rows, ["host", *(f"device {name}" for name in names)]) if rows else ""


def _cell(devices: list[dict[str, Any]]) -> str:
    """Return what one device did, in a few words; a number stays beside its unit."""
    parts = []
    for figure, unit in (("power", "W"), ("used", "%"), ("clock", "MHz")):
        known = [device[figure][0] for device in devices if isinstance(device.get(figure), list)]
        parts += [f"{mean(known):,.0f}\u00a0{unit}"] if known else []
    throttled = {reason for device in devices for reason, share in device.get("throttled", {}).items() if share >= 0.5}
    return ", ".join([*parts, *sorted(throttled)])
