"""Keep what `ezpz doctor --full` has measured of each host, and say which host is slower than it was, or than others.

``doctor.json`` in the user's state folder holds host to its last measurements, each name to value: speeds in byte/s or
FLOP/s, of which more is better, and latencies in seconds, of which less is.
"""

from __future__ import annotations

import os

from ezpz.fields import Record
from ezpz.files import own_state_folder, read_object, state_folder, write_whole

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

__all__ = ["Slower", "amount", "compare", "keep", "kept", "measured"]

_RUNS, _HOSTS = 32, 1024  # kept of each host, and hosts that are kept
_ENOUGH = 3  # runs, or hosts, whose median means something
_LESS = 0.25  # of its own median: what a busy host or a shared disk takes away on some days
_LESS_THAN_OTHERS = 0.4  # of that of other hosts, which use the same disk at the same moment
_LATENCY, _LATER = "latency to ", 100e-6  # seconds: less is the noise of a busy core


class Slower(Record):
    """A host that is slower than it should be.

    Attributes:
        host: Its name.
        text: ``38 % below its own median of 12 runs: matmul on cuda:0, 201 instead of 324 TFLOP/s``.
    """

    host: str
    text: str


def measured(facts: Mapping[str, Any]) -> dict[str, float]:
    """Return what was measured on a host, by name, from its facts."""
    found: dict[str, float] = {}
    for part, name in (("folder_speed", "{} the run's folder"), ("product_speed", "matmul on {}")):
        values = facts.get(part)
        for key, value in values.items() if isinstance(values, dict) and "error" not in values else ():
            found[name.format(key)] = float(value)
    following = (facts.get("master") or {}).get("next") or {}
    if following and not following["problem"]:
        found[f"bandwidth to {following['host']}"] = float(following["bandwidth"])
        found[f"{_LATENCY}{following['host']}"] = float(following["latency"])
    return found


def kept(environ: Mapping[str, str]) -> dict[str, list[dict[str, float]]]:
    """Return the earlier measurements of each host, the oldest first; empty where there are none."""
    folder, _ = state_folder(environ)
    found = read_object(os.path.join(folder, "doctor.json")) if folder else {}
    return {
        str(host): [
            {str(name): float(value) for name, value in run.items() if isinstance(value, (int, float))}
            for run in runs
            if isinstance(run, dict)
        ]
        for host, runs in found.items()
        if isinstance(runs, list)
    }


def keep(environ: Mapping[str, str], now: Mapping[str, Mapping[str, float]]) -> str:
    """Add the measurements of hosts to the earlier ones, and drop the oldest.

    Returns:
        Where they are kept; empty for a user without a state folder.

    Raises:
        OSError: They cannot be written.
    """
    import json

    if not state_folder(environ)[0]:
        return ""
    path = os.path.join(own_state_folder(environ), "doctor.json")
    runs = kept(environ)
    for host, values in now.items():
        if values:
            runs[host] = [*runs.pop(host, []), dict(values)][-_RUNS:]  # the host that is seen last comes last
    write_whole(path, json.dumps(dict(list(runs.items())[-_HOSTS:])), private=True)
    return path


def compare(
    now: Mapping[str, Mapping[str, float]], earlier: Mapping[str, Sequence[Mapping[str, float]]]
) -> Iterator[Slower]:
    """Yield each host that is slower than its own median of at least three runs, else than that of three hosts."""
    for host, values in now.items():
        for name, value in values.items():
            own = [run[name] for run in earlier.get(host, ()) if name in run]
            others = [each[name] for each in now.values() if name in each]
            if len(own) >= _ENOUGH:
                text = _slower(name, value, own, _LESS, f"its own median of {len(own)} runs")
            else:
                text = _slower(name, value, others, _LESS_THAN_OTHERS, f"the median of {len(others)} hosts")
            if text:
                yield Slower(host, text)


def amount(name: str, value: float) -> str:
    """Return a measured value with its unit."""
    if name.startswith(_LATENCY):
        return f"{value * 1e6:.0f} µs"
    unit = "FLOP/s" if name.startswith("matmul") else "B/s"
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def _slower(name: str, value: float, known: Sequence[float], least: float, of: str) -> str:
    """Return how much slower a value is than the median of the known; empty for less than `least` of it."""
    if len(known) < _ENOUGH:
        return ""
    ordered = sorted(known)
    median = (ordered[(len(known) - 1) // 2] + ordered[len(known) // 2]) / 2
    instead = f"{name}, {amount(name, value)} instead of {amount(name, median)}"
    if name.startswith(_LATENCY):
        return f"{value / median:.1f} times {of}: {instead}" if value > max(2 * median, median + _LATER) else ""
    return f"{100 * (1 - value / median):.0f} % below {of}: {instead}" if value < (1 - least) * median else ""
