"""Records and tuples with names do what dataclasses and typing do, without their import."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest

from ezpz.records import EMPTY, NamedTuple, Record, as_dict, replace


class Point(Record):
    x: int
    y: int = 2
    names: dict[str, int] = EMPTY


class Positive(Record):
    value: int

    def __post_init__(self) -> None:
        if self.value <= 0:
            raise ValueError(self.value)


class Pair(NamedTuple):
    left: int
    right: str = "r"

    @property
    def both(self):
        return f"{self.left}{self.right}"


def test_a_record_takes_values_by_place_and_name():
    for point in (Point(1), Point(x=1), Point(1, 2), Point(1, y=2, names={})):
        assert as_dict(point) == {"x": 1, "y": 2, "names": {}}
        assert point == Point(1)
        assert point != Point(2)
        assert repr(point) == "Point(x=1, y=2, names={})"


def test_a_record_refuses_what_a_dataclass_refuses():
    for values, named, words in (
        ((), {}, "Point lacks x"),
        ((1, 2, {}, 4), {}, "got 4 values"),
        ((1,), {"x": 1}, r"\['x'\]"),
        ((1,), {"z": 1}, r"\['z'\]"),
    ):
        with pytest.raises(TypeError, match=words):
            Point(*values, **named)


def test_a_record_stays_as_it_is():
    point = Point(1)
    with pytest.raises(AttributeError, match="use replace"):
        point.x = 2
    with pytest.raises(AttributeError):
        del point.x
    assert not hasattr(point, "__dict__")
    assert replace(point, x=3) == Point(3)
    assert point.x == 1
    with pytest.raises(TypeError):
        replace(point, z=3)


def test_each_record_has_an_empty_dict_of_its_own():
    one, other = Point(1), Point(1)
    assert one.names is not other.names
    one.names["a"] = 1  # type: ignore[index]
    assert other.names == {} == EMPTY


def test_checks_of_a_record_run_for_changed_ones_too():
    with pytest.raises(ValueError, match="0"):
        replace(Positive(1), value=0)


def test_records_can_be_copied_and_pickled():
    for value in (Point(1, 3, {"a": 1}), Pair(1, "x")):
        for again in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
            assert again == value
            assert type(again) is type(value)


def test_equal_records_have_one_hash():
    assert {Positive(1), Positive(1), Positive(2)} == {Positive(1), Positive(2)}


def test_a_tuple_with_names_is_a_tuple():
    pair = Pair(1)
    assert pair == (1, "r") == Pair(left=1)
    assert (pair.left, pair.right, pair.both) == (1, "r", "1r")
    assert pair._replace(right="x") == (1, "x")
    assert pair._asdict() == {"left": 1, "right": "r"}
    assert Pair._make([2, "y"]) == (2, "y")
    assert repr(pair) == "Pair(left=1, right='r')"
    match pair:
        case Pair(left=left):
            assert left == 1
    with pytest.raises(AttributeError):
        pair.left = 2
    with pytest.raises(TypeError, match="Pair lacks left"):
        Pair()


def test_the_import_is_light():
    code = "import sys; before = set(sys.modules); import ezpz.records; print(*sorted(set(sys.modules) - before))"
    line = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"]
    answer = subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()
    assert not {"dataclasses", "typing", "inspect", "re", "enum"} & set(answer)
