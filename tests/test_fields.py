"""Records do what dataclasses and typing do, without their import, and check what they are made of."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest

from ezpz.fields import (
    EMPTY,
    Part,
    Real,
    Record,
    Text,
    as_dict,
    as_far_as_it_fits,
    json_field,
    list_field,
    map_field,
    number_field,
    part_field,
    replace,
    text_field,
)


class Point(Record):
    x: int
    y: int = 2
    names: dict[str, int] = EMPTY


class Positive(Record):
    value: int

    def __post_init__(self) -> None:
        if self.value <= 0:
            raise ValueError(self.value)


class Pair(Record):
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


def test_a_record_can_be_unpacked_and_matched():
    left, right = pair = Pair(1)
    assert (left, right, pair.both) == (1, "r", "1r")
    match pair:
        case Pair(1, right="r"):
            pass
        case _:
            pytest.fail("it did not match")


def test_fields_of_a_base_come_first():
    class Triple(Pair):
        third: int = 3

    assert as_dict(Triple(1)) == {"left": 1, "right": "r", "third": 3}
    assert replace(Triple(1), third=4) == Triple(1, "r", 4)


class Inner(Record):
    path: str = text_field()
    size: int = number_field(0, default=0)


class Outer(Record):
    name: str = text_field(default="")
    inner: Inner | None = part_field(Inner, default=None)
    many: list[Inner] = list_field(Part(Inner), default=())
    words: list[str] = list_field(Text(9), default=())
    times: dict[str, float] = map_field(Real(0, 9), default=EMPTY)
    more: dict[str, object] = json_field(dict, default=EMPTY)


@pytest.mark.parametrize(
    ("values", "held", "wrong"),
    [
        ({}, {}, []),
        (dict.fromkeys(("name", "inner", "many", "words", "times", "more")), {}, []),
        ({"name": 3}, {}, ["name"]),
        ({"inner": {"size": 2}}, {}, ["inner"]),  # it lacks its path
        ({"inner": {"path": "a", "size": True}}, {"inner": Inner("a")}, ["inner.size"]),
        ({"many": [{"path": "a"}, 7, {"path": 1}]}, {"many": [Inner("a")]}, ["many", "many"]),
        ({"words": ["a", 1]}, {}, ["words"]),
        ({"times": {"a": 1, "b": "x", "c": None}}, {"times": {"a": 1}}, ["times.b"]),
        ({"times": {"a": float("nan")}}, {}, ["times.a"]),
        ({"more": []}, {}, ["more"]),
        ({"name": "n", "strange": 1, "more": {"a": [1]}}, {"name": "n", "more": {"a": [1]}}, []),
    ],
)
def test_what_does_not_fit_is_missing(values, held, wrong):
    found: list[str] = []
    assert as_far_as_it_fits(Outer, values, found) == Outer(**held)
    assert found == wrong


def test_the_import_is_light():
    code = "import sys; before = set(sys.modules); import ezpz.fields; print(*sorted(set(sys.modules) - before))"
    line = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"]
    answer = subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()
    assert not {"dataclasses", "typing", "inspect", "re", "enum"} & set(answer)
