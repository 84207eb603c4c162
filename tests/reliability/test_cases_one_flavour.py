"""Every case once, on the flavour where it says most."""

import os

import pytest
from cases import CASES

# `make matrix` runs each of these in test_core_cases.py.
ROWS = [] if os.environ.get("EZPZ_MATRIX") else [pytest.param(case, id=case.id) for case in CASES if not case.core]


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("case", ROWS)
def test_a_case_ends_as_promised(case, played):
    played(case.on, case)
