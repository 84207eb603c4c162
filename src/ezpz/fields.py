"""Make small classes of named fields, and check what a field may hold: the one way for values, messages and records.

A `Record` is to a launch what a frozen dataclass is elsewhere, without the 15 ms that `dataclasses`, `typing` and
`inspect` cost every start; like a tuple, it can be unpacked. Its fields are the annotations of the class, so the file
that defines one begins with ``from __future__ import annotations``. A default that is a `Field` says what the field may
hold:

    class Hello(Record):
        host: str = text_field(255)
        ranks: int = number_field(0, default=1)

`from_fields` makes such a record of a message, where everything must fit (`Malformed` else), and `as_far_as_it_fits` of
a file that another user, another version or a crash may have left, where what does not fit is missing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, ClassVar, TypeVar

    from typing_extensions import dataclass_transform

    _R = TypeVar("_R", bound="Record")
else:

    def dataclass_transform(**_: Any) -> Any:
        """Do nothing at run time: it tells type checkers that annotations are what the constructor takes."""
        return lambda made: made


EMPTY: Mapping[str, Any] = {}  # as a default: an empty dict of each record's own
FAR = 1 << 53  # numbers that every JSON reader keeps exact
RANKS = 1 << 24  # more than any launch has
_TEXT = 1 << 14  # characters
_REQUIRED: Any = object()  # in place of a default


class Malformed(ValueError):  # noqa: N818  # named by what it is: nothing failed here
    """A value is not what its field may hold, or a line is no message."""


# What a field may hold.


class Field:
    """What one field of a record may hold.

    `check` takes a value out of JSON, `read` one out of a line of words, and `fit` makes one that is sent small enough:
    the end of a long text is worth less than the host that would be lost with the message.

    Attributes:
        default: What the field holds where nothing is given.
    """

    __slots__ = ("default",)

    def __init__(self, default: Any = _REQUIRED) -> None:
        self.default = default

    def check(self, value: Any) -> Any:
        raise NotImplementedError

    def take(self, value: Any, wrong: list[str], name: str) -> Any:
        """Return as much of a value as fits, and add the names of what does not to ``wrong``.

        Raises:
            Malformed: Nothing of it does.
        """
        del wrong, name
        return self.check(value)

    def read(self, word: str) -> Any:
        return self.check(word)

    def fit(self, value: Any) -> Any:
        return value


class Number(Field):
    __slots__ = ("high", "low")

    def __init__(self, low: int, high: int, default: Any = _REQUIRED) -> None:
        self.low, self.high, self.default = low, high, default

    def check(self, value: Any) -> int:
        if type(value) is not int or not self.low <= value <= self.high:
            raise Malformed(f"expected a number from {self.low} to {self.high}")
        return value

    def read(self, word: str) -> int:
        if len(word) > 20 or not (word.isascii() and word.removeprefix("-").isdigit()):
            raise Malformed("expected a number")
        return self.check(int(word))


class Seconds(Field):
    __slots__ = ("optional",)

    def __init__(self, optional: bool) -> None:
        self.optional, self.default = optional, _REQUIRED

    def check(self, value: Any) -> float | None:
        if value is None and self.optional:
            return None
        if type(value) not in {int, float} or not -FAR <= value <= FAR:  # no comparison holds for NaN
            raise Malformed("expected seconds")
        return float(value)

    def read(self, word: str) -> float | None:
        try:
            return self.check(float(word))
        except ValueError:
            raise Malformed("expected seconds") from None


class Real(Field):
    """A finite number, which stays an int where it is one."""

    __slots__ = ("high", "low")

    def __init__(self, low: float, high: float, default: Any = _REQUIRED) -> None:
        self.low, self.high, self.default = low, high, default

    def check(self, value: Any) -> float:
        if type(value) not in {int, float} or not self.low <= value <= self.high:
            raise Malformed(f"expected a number from {self.low:g} to {self.high:g}")
        return value  # type: ignore[no-any-return]  # it is a number


class Text(Field):
    __slots__ = ("longest",)

    def __init__(self, longest: int, default: Any = _REQUIRED) -> None:
        self.longest, self.default = longest, default

    def check(self, value: Any) -> str:
        if type(value) is not str or len(value) > self.longest:
            raise Malformed(f"expected a text of at most {self.longest} characters")
        if not value.isascii():
            try:
                value.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:
                raise Malformed("expected a text that can be written") from None
        return value

    def take(self, value: Any, wrong: list[str], name: str) -> str:
        """Return any text: of a file even half of a character is shown, by its number."""
        del wrong, name
        if type(value) is not str or len(value) > self.longest:
            raise Malformed(f"expected a text of at most {self.longest} characters")
        return value

    def fit(self, value: str) -> str:
        return value[: self.longest]


class Flag(Field):
    __slots__ = ()

    def check(self, value: Any) -> bool:
        if type(value) is not bool:
            raise Malformed("expected true or false")
        return value

    def read(self, word: str) -> bool:
        if word not in {"", "true"}:
            raise Malformed("expected `true` or nothing")
        return word == "true"


class Part(Field):
    """A record within a record."""

    __slots__ = ("of",)

    def __init__(self, of: type[Record], default: Any = _REQUIRED) -> None:
        self.of, self.default = of, default

    def check(self, value: Any) -> Record:
        if type(value) is not dict:
            raise Malformed("expected an object")
        return from_fields(self.of, value)

    def take(self, value: Any, wrong: list[str], name: str) -> Record:
        if type(value) is not dict:
            raise Malformed("expected an object")
        return as_far_as_it_fits(self.of, value, wrong, f"{name}.")

    def fit(self, value: Record) -> dict[str, Any]:
        return to_fields(value)


class Row(Field):
    """Several values of different kinds, in their order."""

    __slots__ = ("fields",)

    def __init__(self, fields: tuple[Field, ...], default: Any = _REQUIRED) -> None:
        self.fields, self.default = fields, default

    def check(self, value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(self.fields):
            raise Malformed(f"expected a list of {len(self.fields)}")
        return tuple([field.check(one) for field, one in zip(self.fields, value)])  # noqa: B905  # of one length

    def fit(self, value: tuple[Any, ...]) -> list[Any]:
        return [field.fit(one) for field, one in zip(self.fields, value)]  # noqa: B905  # of one length


class List(Field):
    __slots__ = ("most", "of")

    def __init__(self, of: Field, most: int, default: Any = _REQUIRED) -> None:
        self.of, self.most, self.default = of, most, default

    def check(self, value: Any) -> list[Any]:
        if type(value) is not list or len(value) > self.most:
            raise Malformed(f"expected a list of at most {self.most}")
        return [self.of.check(one) for one in value]

    def take(self, value: Any, wrong: list[str], name: str) -> list[Any]:
        """Leave records that do not fit out; a list of anything else fits as a whole, or not at all."""
        if type(self.of) is not Part:
            return self.check(value)
        if type(value) is not list:
            raise Malformed("expected a list")
        found = []
        for one in value:
            try:
                found.append(self.of.take(one, wrong, name))
            except Malformed:  # of foreign data
                wrong.append(name)
        return found

    def fit(self, value: list[Any]) -> list[Any]:
        return [self.of.fit(one) for one in value[: self.most]]


class Map(Field):
    """An object with any names, each of which holds the same."""

    __slots__ = ("of",)

    def __init__(self, of: Field, default: Any = _REQUIRED) -> None:
        self.of, self.default = of, default

    def check(self, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Malformed("expected an object")
        return {name: self.of.check(one) for name, one in value.items()}

    def take(self, value: Any, wrong: list[str], name: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise Malformed("expected an object")
        found = {}
        for inner, one in value.items():
            try:
                if one is not None:
                    found[inner] = self.of.take(one, wrong, f"{name}.{inner}")
            except Malformed:
                wrong.append(f"{name}.{inner}")
        return found


class Pair(Field):
    """A counter before and after: two numbers, each None where it is not known."""

    __slots__ = ()

    def check(self, value: Any) -> tuple[int | None, int | None]:
        if type(value) is not list or len(value) != 2:
            raise Malformed("expected two numbers")
        before, after = (each if type(each) is int else None for each in value)
        return before, after


class Json(Field):
    """Whatever JSON holds, or of that an object or a list with whatever is in it."""

    __slots__ = ("kind",)

    def __init__(self, kind: type, default: Any = _REQUIRED) -> None:
        self.kind, self.default = kind, default

    def check(self, value: Any) -> Any:
        if not isinstance(value, self.kind):
            raise Malformed(f"expected {'an object' if self.kind is dict else 'a list'}")
        return value


def number_field(low: int = -FAR, high: int = FAR, *, default: Any = _REQUIRED) -> Any:
    return Number(low, high, default)


def rank_field() -> Any:
    return Number(-RANKS, RANKS)  # below zero, one that is none of the plan's


def seconds_field(*, optional: bool = False) -> Any:
    return Seconds(optional)


def real_field(low: float = -(2.0**63), high: float = 2.0**63, *, default: Any = _REQUIRED) -> Any:
    return Real(low, high, default)


def text_field(longest: int = _TEXT, *, default: Any = _REQUIRED) -> Any:
    return Text(longest, default)


def flag_field(*, default: Any = _REQUIRED) -> Any:
    return Flag(default)


def part_field(of: type[Record], *, default: Any = _REQUIRED) -> Any:
    return Part(of, default)


def row_field(*fields: Field, default: Any = _REQUIRED) -> Any:
    return Row(fields, default)


def rows_field(*fields: Field, most: int) -> Any:
    return List(Row(fields), most)


def list_field(of: Field, most: int = 1 << 26, *, default: Any = _REQUIRED) -> Any:
    return List(of, most, default)


def map_field(of: Field, *, default: Any = _REQUIRED) -> Any:
    return Map(of, default)


def pair_field(*, default: Any = _REQUIRED) -> Any:
    return Pair(default)


def json_field(kind: type = object, *, default: Any = _REQUIRED) -> Any:
    return Json(kind, default)


# The classes.


def _taken(record: type[Record], values: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    """Return the value of each field, from what a constructor was given."""
    fields, defaults = record.NAMES, record.DEFAULTS
    taken, missing, used = [*values], [], 0
    for name in fields[len(values) :]:  # one pass: a launcher makes a record of each report of each rank
        if name in named:
            taken.append(named[name])
            used += 1
        elif name in defaults:
            default = defaults[name]
            taken.append({} if default is EMPTY else default)
        else:
            missing.append(name)
    if used != len(named) or len(values) > len(fields):
        names = ", ".join(fields)
        raise TypeError(f"{record.__name__} takes each of {names} once; got {len(values)} values and {sorted(named)}")
    if missing:
        raise TypeError(f"{record.__name__} lacks {', '.join(missing)}")
    return taken


class _RecordType(type):
    """Make the annotations of a class its slots, and the values beside them its defaults, or what they may hold."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _RecordType:
        own = tuple(namespace.get("__annotations__", ()))
        given = {each: namespace.pop(each) for each in own if each in namespace}
        checks = {each: value for each, value in given.items() if isinstance(value, Field)}
        defaults = {each: value.default if each in checks else value for each, value in given.items()}
        base: Any = bases[0] if bases else None
        names = (*(base.NAMES if base else ()), *own)
        table = {
            "NAMES": names,
            "__match_args__": names,
            "DEFAULTS": {
                **(base.DEFAULTS if base else {}),
                **{each: value for each, value in defaults.items() if value is not _REQUIRED},
            },
            "CHECKS": {**(base.CHECKS if base else {}), **checks},
        }
        made: Any = super().__new__(cls, name, bases, {**namespace, **table, "__slots__": own})
        made.PUTS = (*(base.PUTS if base else ()), *(made.__dict__[each].__set__ for each in own))
        made.FITS = ()  # most classes read no file in this process
        return made  # type: ignore[no-any-return]  # it is a class


@dataclass_transform(
    frozen_default=True,
    field_specifiers=(
        number_field,
        rank_field,
        seconds_field,
        real_field,
        text_field,
        flag_field,
        part_field,
        row_field,
        rows_field,
        list_field,
        map_field,
        pair_field,
        json_field,
    ),
)
class Record(metaclass=_RecordType):
    """A base of classes with named fields that do not change; two of one class and equal fields are equal.

    A class may have ``__post_init__`` to refuse values. Fields of a base come first.
    """

    if TYPE_CHECKING:
        NAMES: ClassVar[tuple[str, ...]]
        DEFAULTS: ClassVar[dict[str, Any]]
        CHECKS: ClassVar[dict[str, Field]]
        PUTS: ClassVar[tuple[Callable[[Any, Any], None], ...]]
        FITS: ClassVar[tuple[tuple[Any, ...], ...]]

    else:

        def __init__(self, *values: Any, **named: Any) -> None:
            if named or len(values) != len(self.NAMES):
                values = _taken(type(self), values, named)
            for put, value in zip(self.PUTS, values):  # noqa: B905  # of one length
                put(self, value)
            self.__post_init__()

        def __setattr__(self, name: str, value: Any) -> None:
            raise AttributeError(f"cannot set {name} of {type(self).__name__}: use replace()")

        def __delattr__(self, name: str) -> None:
            raise AttributeError(f"cannot delete {name} of {type(self).__name__}")

    def __post_init__(self) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        return iter(values_of(self))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and values_of(self) == values_of(other)

    def __hash__(self) -> int:
        return hash((type(self), *values_of(self)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in as_dict(self).items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), values_of(self)


def values_of(record: Any) -> tuple[Any, ...]:
    """Return the values of a record's fields, in their order."""
    return tuple([getattr(record, name) for name in record.NAMES])


def as_dict(record: Record) -> dict[str, Any]:
    """Return the fields of a record by name; what they hold is not copied."""
    return {name: getattr(record, name) for name in record.NAMES}


def replace(record: _R, **changes: Any) -> _R:
    """Return the record with other values in some fields."""
    return type(record)(**{**as_dict(record), **changes})


def to_fields(record: Any) -> dict[str, Any]:
    """Return the fields of a record as JSON has them, what is too long cut."""
    return {name: field.fit(getattr(record, name)) for name, field in record.CHECKS.items()}


def from_fields(kind: type[_R], values: dict[str, Any]) -> _R:
    """Make a record of an object out of JSON, in which every field must be there and fit.

    Raises:
        Malformed: One is missing, or holds something else.
    """
    checked = {}
    for name, field in kind.CHECKS.items():
        if name not in values:
            raise Malformed(f"{kind.__name__} lacks {name}")
        try:
            checked[name] = field.check(values[name])
        except Malformed as error:
            raise Malformed(f"{kind.__name__}.{name}: {error}") from None
    return kind(**checked)


def _fits(kind: type[Record]) -> tuple[tuple[Any, ...], ...]:
    """Return what `as_far_as_it_fits` needs of each field; no `take` where it fits as a whole or not at all."""
    made = []
    for name, put in zip(kind.NAMES, kind.PUTS, strict=True):
        field, default = kind.CHECKS.get(name), kind.DEFAULTS.get(name, _REQUIRED)
        is_whole = field is None or type(field).take is Field.take
        made.append((name, put, field and field.check, None if is_whole or field is None else field.take, default))
    kind.FITS = tuple(made)
    return kind.FITS


def as_far_as_it_fits(kind: type[_R], values: dict[str, Any], wrong: list[str], place: str = "") -> _R:
    """Make a record of an object out of JSON; a field that is missing, null or holds something else is its default.

    A field ``raw``, which says nothing of what it may hold, holds the object.

    Args:
        kind: The class of the record.
        values: The object.
        wrong: Takes the names of fields that hold something else: ``plan.hosts``.
        place: What is in front of these names.

    Raises:
        Malformed: One without a default is.
    """
    made = object.__new__(kind)
    for name, put, check, take, default in kind.FITS or _fits(kind):
        value = values.get(name)
        if check is None:
            put(made, values if name == "raw" else default)
            continue
        if value is not None:
            try:
                put(made, check(value) if take is None else take(value, wrong, place + name))
                continue
            except Malformed:
                if default is _REQUIRED:
                    raise
                wrong.append(place + name)
        elif default is _REQUIRED:
            raise Malformed(f"{kind.__name__} lacks {name}")
        put(made, {} if default is EMPTY else default)
    made.__post_init__()
    return made
