"""Make small classes of fields without `dataclasses`, `typing` and `inspect`, whose import costs every start 15 ms.

`Record` is to a launch what a frozen dataclass is elsewhere, and `NamedTuple` what `typing.NamedTuple` is, which type
checkers see in its place. Both read their fields from the annotations of the class, so the file that defines one begins
with ``from __future__ import annotations``.
"""

from __future__ import annotations

from operator import itemgetter

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NamedTuple, TypeVar

    from typing_extensions import Self, dataclass_transform

    _R = TypeVar("_R", bound="Record")
else:

    def dataclass_transform(**_: Any) -> Any:
        """Do nothing at run time: it tells type checkers that annotations are what the constructor takes."""
        return lambda made: made


__all__ = ["EMPTY", "NamedTuple", "Record", "as_dict", "replace"]

EMPTY: Mapping[str, Any] = {}  # as a default: an empty dict of each record's own


def _taken(name: str, fields: tuple[str, ...], defaults: dict[str, Any], values: Any, named: dict[str, Any]) -> Any:
    """Return the value of each field, from what a constructor was given."""
    given = dict(zip(fields, values))  # noqa: B905  # too many are counted below, too few have defaults
    odd = [each for each in named if each in given or each not in fields]
    if odd or len(values) > len(fields):
        raise TypeError(f"{name} takes each of {', '.join(fields)} once; got {len(values)} values and {sorted(named)}")
    found = {**defaults, **given, **named}
    missing = [each for each in fields if each not in found]
    if missing:
        raise TypeError(f"{name} lacks {', '.join(missing)}")
    return [{} if found[each] is EMPTY else found[each] for each in fields]


def _shown(record: Any, values: Any) -> str:
    return f"{type(record).__name__}({', '.join(f'{name}={value!r}' for name, value in values)})"


class _RecordType(type):
    """Make the annotations of a class its slots, and the values beside them its defaults."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _RecordType:
        fields = tuple(namespace.get("__annotations__", ()))
        defaults = {each: namespace.pop(each) for each in fields if each in namespace}
        table = {} if fields == () else {"_fields": fields, "_defaults": defaults}
        return super().__new__(cls, name, bases, {**namespace, **table, "__slots__": fields})


@dataclass_transform(frozen_default=True)
class Record(metaclass=_RecordType):
    """A base of classes with named fields that do not change; two of one class and equal fields are equal.

    A class may have ``__post_init__`` to refuse values. Fields of a base are not inherited.
    """

    if not TYPE_CHECKING:
        _fields = ()
        _defaults = {}

        def __init__(self, *values: Any, **named: Any) -> None:
            taken = _taken(type(self).__name__, self._fields, self._defaults, values, named)
            for name, value in zip(self._fields, taken):  # noqa: B905  # of one length
                object.__setattr__(self, name, value)
            self.__post_init__()

        def __setattr__(self, name: str, value: Any) -> None:
            raise AttributeError(f"cannot set {name} of {type(self).__name__}: use replace()")

        def __delattr__(self, name: str) -> None:
            raise AttributeError(f"cannot delete {name} of {type(self).__name__}")

    def __post_init__(self) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and as_dict(self) == as_dict(other)

    def __hash__(self) -> int:
        return hash((type(self), *as_dict(self).values()))

    def __repr__(self) -> str:
        return _shown(self, as_dict(self).items())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(as_dict(self).values())


def as_dict(record: Record) -> dict[str, Any]:
    """Return the fields of a record by name; what they hold is not copied."""
    return {name: getattr(record, name) for name in record._fields}  # type: ignore[attr-defined]


def replace(record: _R, **changes: Any) -> _R:
    """Return the record with other values in some fields."""
    return type(record)(**{**as_dict(record), **changes})


if not TYPE_CHECKING:

    class _TupleType(type):
        """Make the annotations of a class the places of a tuple."""

        def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type:
            fields = tuple(namespace.get("__annotations__", ()))
            if not fields:  # the base, or a class that only adds methods
                return super().__new__(cls, name, bases, {**namespace, "__slots__": ()})
            defaults = {each: namespace[each] for each in fields if each in namespace}
            places = {each: property(itemgetter(place)) for place, each in enumerate(fields)}
            table = {"_fields": fields, "_field_defaults": defaults, "__match_args__": fields, "__slots__": ()}
            return super().__new__(cls, name, bases, {**namespace, **places, **table})

    class NamedTuple(tuple, metaclass=_TupleType):  # this one is for others
        """A tuple whose places have names."""

        __slots__ = ()

        def __new__(cls, *values: Any, **named: Any) -> Self:
            if not named and len(values) == len(cls._fields):
                return tuple.__new__(cls, values)
            return tuple.__new__(cls, _taken(cls.__name__, cls._fields, cls._field_defaults, values, named))

        @classmethod
        def _make(cls, values: Any) -> NamedTuple:
            return cls(*values)

        def _replace(self, **changes: Any) -> NamedTuple:
            return type(self)(**{**self._asdict(), **changes})

        def _asdict(self) -> dict[str, Any]:
            return dict(zip(self._fields, self))  # noqa: B905  # of one length

        def __repr__(self) -> str:
            return _shown(self, self._asdict().items())

        def __getnewargs__(self) -> tuple[Any, ...]:
            return tuple(self)
