from math import log10

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ezpz.view.axes import compacted, log_ticks, nice_ticks, shortened, step_ticks


def test_ticks_are_round_and_their_labels_alike():
    expected = {
        (0, 99, True): "0 20 40 60 80",
        (0, 3, True): "0 1 2 3",
        (4, 6, True): "4 5 6",
        (0.0, 1.0, False): "0.0 0.2 0.4 0.6 0.8 1.0",
        (0.0101, 0.0109, False): "0.0102 0.0104 0.0106 0.0108",
        (-1.0, 1.0, False): "-1.0 -0.5 0.0 0.5 1.0",
        (2.7e-7, 3.3e-7, False): "2.7e-07 2.8e-07 2.9e-07 3e-07 3.1e-07 3.2e-07 3.3e-07",
        (0, 1e12, True): "0 2e+11 4e+11 6e+11 8e+11 1e+12",
    }
    found = {asked: " ".join(nice_ticks(*asked[:2], whole=asked[2])[1]) for asked in expected}
    assert found == expected


@given(
    st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False), st.booleans()
)
def test_any_two_numbers_get_a_few_ticks(low, high, whole):
    assume(low < high)
    ticks, labels = nice_ticks(low, high, whole=whole)
    assert 1 <= len(ticks) == len(labels) <= 9
    assert ticks == sorted(ticks)


@given(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9), st.integers(1, 6))
def test_few_ticks_are_still_two_and_each_label_is_its_number(low, span, most):
    ticks, labels = nice_ticks(low, low + span, most=most)
    assert 2 <= len(ticks) <= 9
    for tick, label in zip(ticks, labels, strict=True):
        assert float(label) == pytest.approx(tick, abs=span / 20, rel=1e-4)


def test_ticks_of_a_logarithmic_axis_are_powers_of_ten_as_far_as_they_suffice():
    expected = {
        (1e-6, 1.0): "1e-6 1e-5 0.0001 0.001 0.01 0.1 1",
        (0.0125, 1.05): "0.02 0.05 0.1 0.2 0.5 1",
        (2.0, 3.0): "2.0 2.2 2.4 2.6 2.8 3.0",
        (5e-324, 1.7e308): "1e-323 1e-244 1e-165 1e-86 1e-7 1e72 1e151 1e230",
    }
    assert {(low, high): " ".join(log_ticks(log10(low), log10(high))[1]) for low, high in expected} == expected


def test_labels_of_steps_never_take_more_room_than_there_is():
    assert step_ticks(0, 299, 60)[1] == ["0", "50", "100", "150", "200", "250"]
    assert step_ticks(0, 299, 15)[1] == ["0", "100", "200"]
    assert step_ticks(10**15, 10**15 + 9, 12) == ([], [])
    for room in range(1, 60):
        assert sum(len(label) + 2 for label in step_ticks(0, 12345, room)[1]) <= room + 2


def test_long_labels_lose_digits_only_while_they_still_differ():
    assert shortened([0.0, 0.5], ["0.0000", "0.5000"], 5) == ([0.0, 0.5], ["0", "0.5"])
    assert shortened([1e6, 1e6 + 1], ["1000000", "1000001"], 5) == ([], [])
    assert shortened([], [], 5) == ([], [])


UNITS = [
    ([0.0, 0.5, 1.0], ["0.0", "0.5", "1.0"]),
    ([0.0, 5000.0, 10000.0], ["0", "5000", "10k"]),
    ([1.5e6, 1.52e6], ["1.5M", "1.52M"]),
    ([-2e9, 0.0], ["-2G", "0"]),
    ([1e8, 1e8 + 200, 1e8 + 400], ["100000000", "100000200", "100000400"]),
    ([1e18, 2e18], ["1e+18", "2e+18"]),
]


def test_long_labels_get_units_where_they_still_differ(subtests):
    for ticks, short in UNITS:
        with subtests.test(str(ticks)):
            labels = [f"{tick:.1f}" if ticks[-1] <= 1 else f"{tick:.9g}" for tick in ticks]
            assert compacted(ticks, labels if ticks[0] > -1e9 else ["-2e+09", "0"]) == short
