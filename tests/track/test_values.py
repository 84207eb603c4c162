import json
import math
import re
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ezpz.errors import TrackError
from ezpz.track.values import LONGEST_ARRAY, check_key, decode, encode, line, plain

SCALARS = (
    st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["NaN", "Infinity", "str:", "str:NaN"])
)
VALUES = SCALARS | st.lists(SCALARS, max_size=5)


def same(one, other):
    """Equal in type and in every bit, NaN included."""
    if isinstance(one, list) or isinstance(other, list):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or struct.pack("d", one) == struct.pack("d", other)
    return type(one) is type(other) and one == other


@given(VALUES)
def test_whatever_goes_into_json_comes_back_the_same(value):
    assert same(decode(json.loads(json.dumps(encode(value), allow_nan=False))), value)


def test_the_documented_encoding_is_what_is_written():
    values = [math.nan, math.inf, -math.inf, "NaN", "str:x", "nan", [math.nan, 1]]
    written = ['"NaN"', '"Infinity"', '"-Infinity"', '"str:NaN"', '"str:str:x"', '"nan"', '["NaN", 1]']
    assert [json.dumps(encode(value)) for value in values] == written


class ZeroDim:
    """A tensor of a library that is not installed here: what matters is `ndim`, `item` and `tolist`."""

    def __init__(self, value, shape=()):
        self.value, self.shape, self.ndim = value, shape, len(shape)

    def item(self):
        return self.value

    def tolist(self):
        return self.value


NUMBERS = [
    (True, True),
    (2**70, 2**70),
    (np.float64(0.1), 0.1),
    (np.float32(0.1), float(np.float32(0.1))),
    (np.int64(2**53 + 1), 2**53 + 1),
    (np.bool_(True), True),
    (np.array(3), 3),
    (np.array([1.5, 2.5], dtype=np.float32), [1.5, 2.5]),
    (np.array([1, 2]), [1, 2]),
    ((1, 2.5, "a"), [1, 2.5, "a"]),
    ([np.float32(0.5), np.array(2)], [0.5, 2]),
    (ZeroDim(0.25), 0.25),
    (ZeroDim([1.0, 2.0], (2,)), [1.0, 2.0]),
    ([], []),
]


def test_numbers_of_any_library_become_plain_ones(subtests):
    for value, expected in NUMBERS:
        with subtests.test(f"{value!r} {type(value).__name__}"):
            assert same(plain({"x": value})["x"], expected)


REFUSED = [
    (None, "NoneType"),
    ({"a": 1}, "dict"),
    (1j, "complex"),
    (np.array(1j), "numpy.ndarray"),
    (np.zeros((2, 3)), r"numpy.ndarray of shape \(2, 3\)"),
    (np.zeros(LONGEST_ARRAY + 1), "numpy.ndarray of shape"),
    ([1, [2]], "list of 2"),
    ([0.0] * (LONGEST_ARRAY + 1), f"list of {LONGEST_ARRAY + 1}"),
    (object(), "object"),
    (b"x", "bytes"),
]


def test_anything_else_is_refused_by_key_type_and_what_is_accepted(subtests):
    for value, names in REFUSED:
        told = rf"cannot record metric 'train/x': {names}.*expected a bool, int, float or str"
        with subtests.test(names), pytest.raises(TrackError, match=told):
            plain({"train/x": value})


def test_what_is_no_number_or_no_name_is_refused(subtests):
    class Meta(ZeroDim):
        def item(self):
            raise RuntimeError("cannot be called on meta tensors")

    with pytest.raises(TrackError, match="cannot be called on meta tensors"):
        plain({"x": Meta(0)})
    for key in ["", ".", " x", "a\nb", "a\0b", 3, None, "\ud800"]:
        with subtests.test(repr(key)), pytest.raises(TrackError, match=re.escape(repr(key))):
            check_key(key)


def test_the_line_has_six_significant_digits_and_leaves_the_rest_alone():
    values = {"iter": 3, "loss": 0.1234561, "accuracy": 0.912, "dt": 0.001234, "tokens": 10**15, "split": "eval"}
    assert line(values) == "iter=3 loss=0.123456 accuracy=0.912 dt=0.001234 tokens=1000000000000000 split=eval"
    assert line({"a": math.nan, "ok": True, "h": [0.123456789, 2]}) == "a=nan ok=True h=[0.123457,2]"
    assert line({}) == ""


MASKED = [
    (np.ma.masked, math.nan),
    (np.ma.array([1.0], mask=[True]).mean(), math.nan),
    (np.ma.array([1.0, 3.0], mask=[True, False]).mean(), 3.0),
    (np.ma.array(2.5), 2.5),
    (np.ma.array([1, 2], mask=[False, True]), [1, math.nan]),
    (np.ma.array([1.5, 2.0]), [1.5, 2.0]),
]


def test_what_is_masked_is_no_number(subtests):
    for value, expected in MASKED:
        with subtests.test(repr(value)):
            assert same(plain({"x": value})["x"], expected)
