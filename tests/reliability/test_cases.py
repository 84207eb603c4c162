"""Every fault case on one flavour, which the seed of the day draws; on every flavour in `make matrix`."""

import os

import pytest
from cases import CASES, drawn, stageable
from stages import FLAVOURS

from lab import seed

if os.environ.get("EZPZ_MATRIX"):
    ROWS = [(case, name) for name in FLAVOURS for case in CASES if stageable(case, name)]
else:
    ROWS = [(case, drawn(case, seed.of_the_day())) for case in CASES]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("case", "name"), [pytest.param(case, name, id=f"{name}-{case.id}") for case, name in ROWS])
def test_a_case_ends_as_promised(case, name, played, record_property):
    record_property("cell", f"{name} {case.id}")
    played(name, case)
