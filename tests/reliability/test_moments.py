"""Signals and cuts at many moments: few that the seed of the day draws, on one flavour; all of all in `make matrix`."""

import os

import pytest
from cases import stageable, why_no_stage
from cuts import CUTS
from early import EARLY
from shims import SHIMS
from stages import FLAVOURS

from lab import seed, system
from lab.require import require

TABLES = {"early": (EARLY, 4), "cuts": (CUTS, 1), "shims": (SHIMS, 3)}


def _drawn(day, row, cases, count):
    """Some of a row's cases on a flavour that this machine has, if there is one."""
    names = [name for name in FLAVOURS if stageable(cases[0], name)]
    name = seed.pick(day, row, [name for name in names if not why_no_stage(cases[0], name)] or names)
    return [(name, case) for case in seed.some(day, row, cases, count)]


def _rows():
    for table, (rows, count) in TABLES.items():
        for row, cases in rows.items():
            if os.environ.get("EZPZ_MATRIX"):
                chosen = [(name, case) for name in FLAVOURS for case in cases if stageable(case, name)]
            else:
                chosen = _drawn(seed.of_the_day(), row, cases, count)
            for name, case in chosen:
                yield pytest.param(table, row, name, case, id=f"{name}-{case.id}")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("table", "row", "name", "case"), list(_rows()))
def test_a_moment_ends_as_promised(table, row, name, case, played, record_property):
    require("hosts", system.missing("ss", "strace") if table == "cuts" else "")
    record_property("cell", f"{table} / {name} / {row} / {case.id}")
    played(name, case)
