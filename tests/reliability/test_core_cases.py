"""Ten core cases on every flavour; with ``EZPZ_MATRIX`` set, every case on every flavour (`make matrix`)."""

import os

import pytest
from cases import CASES, stageable
from stages import FLAVOURS

EVERYTHING = bool(os.environ.get("EZPZ_MATRIX"))
ROWS = [
    pytest.param(case, name, id=f"{name}-{case.id}")
    for name in FLAVOURS
    for case in CASES
    if (EVERYTHING or case.core) and stageable(case, name)
]


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("case", "name"), ROWS)
def test_a_case_ends_as_promised_on_every_flavour(case, name, played, record_property):
    record_property("cell", f"{name} {case.id}")
    played(name, case)
