"""Read a record from a file that another user, another version or a crash may have left.

A field that is missing, or holds something else than ezpz writes there, holds its default. What this version does not
know is kept in ``raw``, so that who completes a record and writes it again takes nothing away.
"""

from __future__ import annotations

from ezpz.errors import TrackError
from ezpz.fields import EMPTY, Record, Text, as_far_as_it_fits
from ezpz.files import read_object

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from typing import Any

    from typing_extensions import Self

__all__ = ["LONGEST", "SCHEMA", "Stored", "text"]

SCHEMA = 1  # of the files that this version writes
LONGEST = 1 << 26  # characters of a text: no file that is read has more


def text() -> Text:
    """Return what a text of any length is: the kind of items of a list."""
    return Text(LONGEST)


class Stored(Record):
    """A record of a file.

    Attributes:
        raw: The object in the file, with what does not fit and what this version does not know; empty where there is
            none.
    """

    raw: Mapping[str, Any] = EMPTY

    @classmethod
    def of(cls, values: Mapping[str, Any], wrong: list[str] | None = None) -> Self:
        """Return the record that an object holds.

        Args:
            values: The object, as JSON has it.
            wrong: Takes the names of fields that hold something else than they must.
        """
        return as_far_as_it_fits(cls, dict(values), [] if wrong is None else wrong)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Return the record in a file; an empty one where that is missing, broken, too large or holds no object."""
        return cls.of(read_object(path))

    def changed(self, **values: Any) -> Self:
        """Return the record with other values in the object; null is a value that is not known."""
        return self.of({**self.raw, **values})

    @property
    def is_newer(self) -> bool:
        """Whether a newer ezpz wrote it, which may mean something else by its fields."""
        schema = self.raw.get("schema")  # none is the first
        return type(schema) is int and schema > SCHEMA

    def refuse_newer(self, path: str | os.PathLike[str]) -> None:
        """Refuse a record that `is_newer`.

        Args:
            path: Its file, for the error.

        Raises:
            TrackError: It is.
        """
        if not self.is_newer:
            return
        from ezpz import __version__

        versions = self.raw.get("versions")
        version = versions.get("ezpz") if isinstance(versions, dict) else None
        writer = f"ezpz {version}" if version else "a newer ezpz"
        raise TrackError(
            f"cannot read {path}: its schema is {self.raw['schema']}, written by {writer}; this ezpz {__version__} "
            f"reads schemas up to {SCHEMA}. Use the ezpz that wrote it, or a newer one."
        )
