from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ezpz.track.axes import nice_ticks


@pytest.mark.parametrize(
    ("low", "high", "whole", "labels"),
    [
        (0, 99, True, ["0", "20", "40", "60", "80"]),
        (0, 3, True, ["0", "1", "2", "3"]),
        (4, 6, True, ["4", "5", "6"]),
        (0.0, 1.0, False, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0.0101, 0.0109, False, ["0.0102", "0.0104", "0.0106", "0.0108"]),
        (-1.0, 1.0, False, ["-1.0", "-0.5", "0.0", "0.5", "1.0"]),
        (2.7e-7, 3.3e-7, False, ["2.7e-07", "2.8e-07", "2.9e-07", "3e-07", "3.1e-07", "3.2e-07", "3.3e-07"]),
        (0, 1e12, True, ["0", "2e+11", "4e+11", "6e+11", "8e+11", "1e+12"]),
    ],
)
def test_ticks_are_round_and_their_labels_alike(low, high, whole, labels):
    assert nice_ticks(low, high, whole=whole)[1] == labels


@given(
    st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False), st.booleans()
)
def test_any_two_numbers_get_a_few_ticks(low, high, whole):
    assume(low < high)
    ticks, labels = nice_ticks(low, high, whole=whole)
    assert 1 <= len(ticks) == len(labels) <= 9
    assert ticks == sorted(ticks)
