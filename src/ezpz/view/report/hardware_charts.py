"""Draw what the hardware of a run did: power, memory and clocks over time, and a map of hosts by devices."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from statistics import mean
from typing import TYPE_CHECKING

from ezpz.track.series import Series
from ezpz.view.report.charts import Axis, line_chart
from ezpz.view.report.markup import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ezpz.records.hardware_record import DeviceFigures, HardwareRow
    from ezpz.view.report.markup import Chart

_FEW = 6  # devices that have a line each; of more, the least, the mean and the most
_BUCKETS = 400
_GIB = 2.0**30
_OF_DEVICES = (("power", "Power of devices (W)", 1.0), ("memory", "Memory of devices (GiB)", _GIB))
_MORE_OF_DEVICES = (("clock", "Clocks of devices (MHz)", 1.0), ("used", "Utilisation of devices (%)", 1.0))
_OF_HOSTS = (("cpu", "Busy cores of the ranks", 1.0), ("memory", "Memory of the ranks (GiB)", _GIB))

_SHOWN = (("power", "W"), ("used", "%"), ("clock", "MHz"))  # in a cell of the map
_COLOURED = {"power": "Mean power", "used": "Mean utilisation", "clock": "Mean clock"}  # the first that is known
_MOSTLY = 0.5  # share of the time in which a device was slowed down, from which on its cell says why
_MOST_HOSTS = 256  # rows of the map
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

Points = dict[str, dict[float, float]]  # device or host -> seconds -> value


def hardware_charts(rows: Sequence[HardwareRow]) -> Iterator[Chart]:
    """Yield the charts of a run's hardware, by seconds since the first sample; none where too little is known.

    Args:
        rows: As `ezpz.view.hardware_rows.read_hardware` returns them.
    """
    if len({row.t for row in rows}) < 2:
        return
    begin = rows[0].t - rows[0].s
    axis = Axis((0.0, max(1.0, rows[-1].t - begin)), (), _BUCKETS)
    for figure, title, unit in (*_OF_DEVICES, *_MORE_OF_DEVICES):
        points: Points = defaultdict(dict)
        for row in rows:
            for device in row.devices:
                if value := getattr(device, figure):
                    points[f"{row.host}:{device.id}"][row.t - begin] = value[0] / unit
        yield from _chart(title, points, axis)
    for figure, title, unit in _OF_HOSTS:
        points = defaultdict(dict)
        for row in rows:
            if value := getattr(row.now, figure):
                points[row.host][row.t - begin] = value[0] / unit
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


def hardware_map(rows: Sequence[HardwareRow]) -> str:
    """Return a coloured table of hosts by devices, with its scale and the joules of each; empty without a device.

    Args:
        rows: As `read_hardware` returns them.
    """
    sums: dict[str, dict[str, _Cell]] = defaultdict(lambda: defaultdict(_Cell))
    for row in rows:
        for device in row.devices:
            sums[row.host][device.id].add(device, row.s)
    if not sums:
        return ""
    cells = [cell for devices in sums.values() for cell in devices.values()]
    figure = next((name for name in _COLOURED if any(cell.mean(name) is not None for cell in cells)), "")
    known = [value for cell in cells if (value := cell.mean(figure)) is not None]
    low, high = (min(*known, max(known) / 2), max(known)) if known else (0.0, 0.0)
    names = sorted({name for devices in sums.values() for name in devices}, key=lambda name: (len(name), name))
    head = "".join(f"<th>{shown(text)}</th>" for text in ("host", *(f"device {name}" for name in names)))
    lines = []
    for host, devices in sorted(sums.items())[:_MOST_HOSTS]:
        joules = [cell.joules for cell in devices.values() if cell.joules is not None]
        under = f"<small>{energy(sum(joules))}</small>" if joules else ""
        inside = "".join(devices[name].html(figure, low, high) if name in devices else "<td></td>" for name in names)
        lines.append(f'<tr><th scope="row">{shown(host)}{under}</th>{inside}</tr>')
    more = f"{len(sums) - _MOST_HOSTS:,} more hosts are in hardware.jsonl" if len(sums) > _MOST_HOSTS else ""
    unit = dict(_SHOWN).get(figure, "")
    scale = f"{_COLOURED[figure]} {low:,.0f} {unit} <i></i> {high:,.0f} {unit}" if high > low else ""
    note = f'<p class="scale">{". ".join(filter(None, (scale, more)))}</p>' if scale or more else ""
    table = f'<table class="map"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
    return f'<div class="scroll">{table}</div>{note}'


class _Cell:
    """One device over the whole run."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}  # figure: its seconds, and the sum over these
        self._reasons: dict[str, float] = {}
        self._seconds = 0.0
        self.joules: float | None = None

    def add(self, device: DeviceFigures, seconds: float) -> None:
        weight = max(seconds, 1e-3)
        self._seconds += weight
        for figure, _ in _SHOWN:
            if value := getattr(device, figure):
                before, total = self._sums.get(figure, (0.0, 0.0))
                self._sums[figure] = before + weight, total + value[0] * weight
        for reason, share in device.throttled.items():
            self._reasons[reason] = self._reasons.get(reason, 0.0) + share * weight
        if device.joules is not None:
            self.joules = (self.joules or 0.0) + device.joules

    def mean(self, figure: str) -> float | None:
        """Return the mean of a figure over the time in which it is known."""
        seconds, total = self._sums.get(figure, (0.0, 0.0))
        return total / seconds if seconds else None

    def html(self, figure: str, low: float, high: float) -> str:
        """Return the cell, as deep in colour as its figure is high; a number stays beside its unit."""
        parts = []
        for name, unit in _SHOWN:
            value = self.mean(name)
            parts += [f"{value:,.0f}\u00a0{unit}"] if value is not None else []
        parts += [energy(self.joules)] if self.joules is not None else []
        parts += sorted(
            reason.replace(" ", "\u00a0") for reason, share in self._reasons.items() if share >= _MOSTLY * self._seconds
        )
        first, *rest = parts or ["unknown"]
        under = f"<small>{shown(', '.join(rest))}</small>" if rest else ""
        value = self.mean(figure)
        share = 0.0 if value is None or high <= low else (value - low) / (high - low)
        return f'<td style="--share:{min(1.0, max(0.0, share)):.2f}">{shown(first)}{under}</td>'


def energy(joules: float) -> str:
    """Return an energy in the unit that leaves one to three digits before the point."""
    size, prefix = next((each for each in _PREFIXES if joules >= each[0]), (1.0, ""))
    value = joules / size
    return f"{value:.{0 if value >= 100 or not prefix else 1 if value >= 10 else 2}f}\u00a0{prefix}J"
