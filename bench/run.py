"""Measure ezpz beside its peers, everybody in turn in one run. `make bench`, or `make bench ARGS=--markdown`.

A row with a budget says whether that was held. What a busy machine adds tells nothing of the code, so a budget is
missed where even the least of all runs is over it, and is not decided where only the median is.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from contenders import GROUPS, MPICH, PEERS, ROOT
from measure import GIVE_UP, measure

HELD, MISSED, NOT_DECIDED = "held", "missed", "not decided"  # as the tables of steady steps say it
UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "MB": 1.0, "µs/s": 1e-6}
HEADS = ("", "median", "min", "- peer", "/ peer", "peer", "budget")


def main():
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="ezpz-bench-") as folder:
        rows = [row for name in options.only for row in GROUPS[name](folder)]
        measure(rows, options.rounds, Path(folder), lambda text: print(text, file=sys.stderr, flush=True))
        failures = Path(folder, "failures.log")
        if failures.exists():
            print(failures.read_text()[-4000:], file=sys.stderr)
    print((markdown if options.markdown else plain)(rows, options.rounds))
    print(f"\n{summary(rows)}")
    return any(failed(row) for row in rows) or (options.strict and any(verdict(row, rows) == MISSED for row in rows))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="runs of each contender, medians are taken over")
    parser.add_argument("--only", default=",".join(GROUPS), help=f"groups, of {','.join(GROUPS)}")
    parser.add_argument("--markdown", action="store_true", help="print the table as docs/benchmarks.md holds it")
    parser.add_argument("--strict", action="store_true", help="end with 1 where a budget was missed")
    options = parser.parse_args()
    options.only = options.only.split(",")
    unknown = sorted(set(options.only) - set(GROUPS))
    if unknown or options.rounds < 1:
        parser.error(f"unknown groups {unknown}" if unknown else "--rounds must be at least 1")
    return options


def failed(row):
    """Whether a row has no figures to show: it failed more than once, or never ended well."""
    return len(row.failures) >= GIVE_UP or not row.samples


def peer_of(row, rows):
    """The row that another one is measured against, if it has figures."""
    peer = next((other for other in rows if (other.group, other.name) == (row.group, row.peer)), None)
    return None if peer is None or peer is row or failed(peer) else peer


def verdict(row, rows):
    """Whether a row holds its budget: `HELD`, `MISSED` or `NOT_DECIDED`; empty for one without, or without figures."""
    if not row.budget or failed(row):
        return ""
    sign, number, unit = re.fullmatch(r"([+x]?)([\d.]+) ?(.*)", row.budget).groups()
    peer = peer_of(row, rows)
    if sign and peer is None:
        return ""
    limit = float(number) * (1 if sign == "x" else UNITS[unit] / UNITS[row.unit])
    spent = {statistics.median: 0.0, min: 0.0}
    for figure in spent:
        own, other = figure(row.samples), figure(peer.samples) if sign else 0.0
        spent[figure] = own / other if sign == "x" else own - other
    return HELD if spent[statistics.median] <= limit else MISSED if spent[min] > limit else NOT_DECIDED


def summary(rows):
    """One line: how many budgets were missed, and whose."""
    verdicts = {f"{row.group}: {row.name}": verdict(row, rows) for row in rows}
    missed = [name for name, word in verdicts.items() if word == MISSED]
    decided = [word for word in verdicts.values() if word]
    names = f": {'; '.join(missed)}" if missed else ""
    open_ones = decided.count(NOT_DECIDED)
    return f"{len(missed)} of {len(decided)} budgets missed, {open_ones} not decided{names}"


def figures(row, rows):
    """The cells of one row."""
    if failed(row):
        return [row.name, f"failed ({row.failures[-1]})", "", "", "", row.peer, row.budget]
    digits = 1 if row.median < 100 else 0
    word = verdict(row, rows)
    budget = f"{row.budget}, {word}" if word else row.budget
    name = f"{row.name} (1 {row.failures[0]})" if row.failures else row.name
    cells = [name, f"{row.median:.{digits}f} {row.unit}", f"{min(row.samples):.{digits}f}"]
    peer = peer_of(row, rows)
    if peer is None:
        return [*cells, "", "", "", budget]
    apart = f"{row.median - peer.median:+.{digits}f}"
    return [*cells, apart, f"{row.median / peer.median:.2f}", peer.name, budget]


def tables(rows):
    """``[(group, [cells of each row])]`` in the order of measuring."""
    return [(group, [figures(row, rows) for row in rows if row.group == group]) for group in groups_of(rows)]


def groups_of(rows):
    return list(dict.fromkeys(row.group for row in rows))


def plain(rows, rounds):
    widths = (27, 17, 6, 8, 7, 23, 20)
    lines = [heading(rounds)]
    for group, table in tables(rows):
        lines += ["", fit((group, *HEADS[1:]), widths), "-" * 100]
        lines += [fit(cells, widths) for cells in table]
    return "\n".join(lines)


def fit(cells, widths):
    return " ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def markdown(rows, rounds):
    lines = [heading(rounds)]
    for group, table in tables(rows):
        lines += ["", f"| {' | '.join((group, *HEADS[1:]))} |", f"|{'---|' * len(HEADS)}"]
        lines += [f"| {' | '.join(cells)} |" for cells in table]
    return "\n".join(lines)


def heading(rounds):
    """When, on what and with which versions: figures without these compare with nothing."""
    versions = [f"Python {platform.python_version()}", f"torch {version('torch')}", f"ezpz {version('ezpz')}{commit()}"]
    versions += [f"MPICH {version('mpich', MPICH)}", f"accelerate {version('accelerate', PEERS)}"]
    today = dt.datetime.now(dt.timezone.utc).date().isoformat()
    return (
        f"{today}, {platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, {rounds} rounds, interleaved.\n"
        f"{', '.join(versions)}."
    )


def version(name, bins=None):
    """The version of `name` here, or in the venv whose folder of programs is `bins`."""
    places = [str(path) for path in bins.parent.glob("lib/python*/site-packages")] if bins else sys.path
    return next((found.version for found in metadata.distributions(name=name, path=places)), "absent")


def commit():
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return f" ({done.stdout.strip()})" if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main())
