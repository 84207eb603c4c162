import json
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from test_values import VALUES, same

from ezpz.track.columns import build_columns
from ezpz.track.table import gather
from ezpz.track.values import decode


def columns(*metrics, steps=None):
    rows = [{"v": 1, "t": 100.0 + i, "step": steps[i] if steps else i, "m": m} for i, m in enumerate(metrics)]
    return {column.name: column for column in build_columns(gather(rows))}


def recorded(columns, name):
    """Read a variable back by the documented rules: {row: value}, rows that were not recorded left out."""
    column = columns[name]
    result = {}
    for row, value in enumerate(column.data.tolist()):
        if f"{name}_present" in columns and not columns[f"{name}_present"].data[row]:
            continue
        if column.attrs.get("encoding") == "json":
            if value:
                result[row] = decode(json.loads(value))
        elif len(column.dims) > 1:
            cut = value[: columns[f"{name}_len"].data[row]] if f"{name}_len" in columns else value
            result[row] = [bool(item) for item in cut] if is_bool(column) else cut
        elif not (isinstance(value, float) and math.isnan(value)) or f"{name}_present" in columns or column.full:
            result[row] = bool(value) if is_bool(column) else value
    return result


def is_bool(column):
    return "bool" in {column.attrs.get("dtype"), column.attrs.get("recorded")}


@given(st.lists(st.none() | VALUES, min_size=1, max_size=8))
def test_a_column_and_its_companions_say_exactly_what_was_recorded(values):
    rows = {i: value for i, value in enumerate(values) if value is not None}
    if not rows:
        return
    found = columns(*({} if value is None else {"x": value} for value in values))
    found["x"].full = len(rows) == len(values)
    result = recorded(found, "x")
    assert result.keys() == rows.keys()
    for row, value in rows.items():
        # An int beside floats becomes the equal float, a bool beside ints the equal int; nothing else changes.
        assert same(result[row], value) or result[row] == value or alike(result[row], value)


def alike(one, other):
    return (
        isinstance(one, list)
        and len(one) == len(other)
        and all(same(a, b) or a == b for a, b in zip(one, other, strict=True))
    )


def test_a_sparse_int_or_bool_is_nan_where_it_is_missing_and_a_sparse_metric_lies_at_its_own_steps():
    found = columns({"n": 5, "ok": True}, {}, {"n": 0, "ok": False}, {})
    np.testing.assert_array_equal(found["n"].data, [5, np.nan, 0, np.nan])
    assert found["n"].attrs == {"key": "n", "recorded": "int"}
    np.testing.assert_array_equal(found["ok"].data, [1, np.nan, 0, np.nan])
    assert found["ok"].attrs == {"key": "ok", "recorded": "bool"}
    assert found["n_present"].data.tolist() == [1, 0, 1, 0]
    assert found["n_present"].data.dtype == np.int8
    assert columns({"n": 5}, {"n": 0})["n"].data.dtype == np.int64
    found = columns({"n": 2**53 + 1}, {})
    assert (found["n"].data.tolist(), found["n"].data.dtype) == ([2**53 + 1, 0], np.int64)
    np.testing.assert_array_equal(columns({"h": [1, 2]}, {"h": [3]})["h"].data, [[1, 2], [3, np.nan]])
    found = columns({"a": 1.0, "eval/loss": 0.5}, {"a": 1.0}, {"a": 1.0}, {"a": 1.0, "eval/loss": 0.25})
    assert list(found) == ["a", "eval_loss"]
    assert columns({"x": 2**53}, {"x": 0.5})["x"].data.tolist() == [2.0**53, 0.5]
    np.testing.assert_array_equal(found["eval_loss"].data, [0.5, np.nan, np.nan, 0.25])
    assert found["eval_loss"].attrs == {"key": "eval/loss"}


def test_a_recorded_nan_can_be_told_from_a_missing_value():
    found = columns({"x": math.nan}, {}, {"x": math.inf}, {"x": -math.inf})
    np.testing.assert_array_equal(found["x"].data, [np.nan, np.nan, np.inf, -np.inf])
    assert found["x_present"].data.tolist() == [1, 0, 1, 1]
    assert "x_present" not in columns({"x": 1.0}, {})
    assert "x_present" not in columns({"x": math.nan}, {"x": 1.0})


def test_bools_strings_and_lists_of_one_length_have_types_of_their_own():
    found = columns({"ok": True, "split": "train"}, {"ok": True}, {"ok": False, "split": ""})
    assert found["ok"].data.dtype == np.int8
    assert found["ok"].attrs == {"key": "ok", "dtype": "bool"}
    assert found["split"].data.tolist() == ["train", "", ""]
    assert found["split_present"].data.tolist() == [1, 0, 1]
    found = columns({"h": [1, 2**60]}, {"h": [3, 4]})
    assert found["h"].data.dtype == np.int64
    assert found["h"].data.tolist() == [[1, 2**60], [3, 4]]
    assert found["h"].dims == ("draw", "h_dim")
    assert list(found) == ["h"]


def test_ragged_lists_are_filled_up_and_say_their_lengths():
    found = columns({"h": [1.0, 2.0, 3.0]}, {}, {"h": []}, {"h": [4.0]})
    np.testing.assert_array_equal(found["h"].data[:, 0], [1.0, np.nan, np.nan, 4.0])
    assert found["h_len"].data.tolist() == [3, 0, 0, 1]
    assert found["h_present"].data.tolist() == [1, 0, 1, 1]


INEXACT = [(2**63, 1), (2**53 + 1, 0.5), (1, "one"), (1.0, [1.0]), ("a\0b", "c"), ("\ud800", "c"), ([1, "a"], [2])]


def test_what_no_array_holds_exactly_becomes_json_text_with_one_warning(subtests, capsys):
    for first, second in INEXACT:
        with subtests.test(f"{first!r} {second!r}"):
            column = columns({"x": first}, {}, {"x": second})["x"]
            assert column.attrs == {"key": "x", "encoding": "json"}
            assert [decode(json.loads(text)) if text else None for text in column.data] == [first, None, second]
            warnings = [line for line in capsys.readouterr().out.splitlines() if "[W]" in line]
            assert len(warnings) == 1
            assert "metric 'x'" in warnings[0]


# Metrics of rows; the names of the variables, and the metric or the variable that each belongs to.
COLLISIONS = [
    ([{"train/loss": 1.0, "train_loss": 2.0}], {"train_loss": "train/loss", "train_loss_2": "train_loss"}),
    ([{"a/b": 1, "a_b": 2, "a_b_2": 3}], {"a_b": "a/b", "a_b_2": "a_b", "a_b_2_2": "a_b_2"}),
    ([{"a_b_2": 1, "a/b": 2, "a_b": 3}], {"a_b_2": "a_b_2", "a_b": "a/b", "a_b_3": "a_b"}),
    ([{"win": 1, "draw": 2}], {"win": "win", "draw_2": "draw"}),
    ([{"logged_at": 1, "attempt": 2}], {"logged_at_2": "logged_at", "attempt_2": "attempt"}),
    ([{"counts": 1}], {"counts_2": "counts"}),
    ([{"x": [1]}, {"x": [1, 2], "x_len": 3}], {"x": "x", "x_len_2": "x", "x_present_2": "", "x_len": "x_len"}),
    ([{"x": 1}, {"x_present": 1}], {"x": "x", "x_present_2": "x", "x_present": "x_present"}),
]


def test_the_later_of_two_metrics_that_collide_gets_a_number(subtests):
    for rows, names in COLLISIONS:
        with subtests.test(" ".join(names)):
            built = columns(*rows)
            about = ("key", "present_of", "length_of")
            told = {name: next(column.attrs[a] for a in about if a in column.attrs) for name, column in built.items()}
            assert told.items() >= {name: key for name, key in names.items() if key}.items()
            assert not any("x_dim" in column.dims for column in built.values() if column.name == "x_dim")


def test_a_metric_called_step_is_the_coordinate_unless_it_differs():
    assert "step" not in columns({"step": 4, "a": 1}, {"a": 1}, steps=[4, 5])
    assert columns({"step": 3}, steps=[4])["step_2"].attrs["key"] == "step"
