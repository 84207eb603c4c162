"""A TOML file of settings: every value with the line that it stands on.

[training]
seq_len = 2048  # as in the configuration files of torchtitan (https://github.com/pytorch/torchtitan), up to v0.2.2
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ezpz.cli_parser import did_you_mean
from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SettingsFile", "read_settings_file"]

_PLACE = re.compile(r"\s*\(at (?:(line \d+), (column \d+)|end of document)\)")  # (at line 3, column 9)


@dataclass(frozen=True)
class SettingsFile:
    """What a file says: its tables, and the line of each name in them, ``("training", "seq_len") -> 7``."""

    name: str
    tables: dict[str, Any]
    lines: dict[tuple[str, ...], int]

    def origin(self, *path: str) -> str:
        """Return where a name stands: ``llama3_8b.toml, line 37``."""
        return f"{self.name}, line {self.lines.get(path, self.lines.get(path[:1], 1))}"


def read_settings_file(path: str, option: str) -> SettingsFile:
    """Read a TOML file.

    Args:
        path: The file.
        option: The option that named it, for errors.

    Raises:
        UsageError: It is not there, cannot be read, or is no TOML.
    """
    file, toml = Path(path), _toml()
    try:
        text = file.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        _refuse(file, error, option)
    except UnicodeDecodeError as error:
        raise UsageError(
            f"cannot read {path}: {error.reason} at byte {error.start} (from {option}); expected TOML in UTF-8. "
            "Save it as UTF-8."
        ) from None
    try:
        tables = toml.loads(text)
    except toml.TOMLDecodeError as error:
        what = str(error)
        found = _PLACE.search(what)
        place = ", ".join(found.groups()) if found and found[1] else f"line {_unfinished(text, toml)}"
        why = what[: found.start()] if found else what
        raise UsageError(
            f"cannot read {path}: {why} (from {file.name}, {place}); expected TOML. Correct that place."
        ) from None
    return SettingsFile(file.name, tables, dict(_lines(text, toml)))


def _toml() -> Any:
    # From 3.11 on the parser is Python's own; tomli is the same one for 3.10.
    return import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


def _refuse(file: Path, error: OSError, option: str) -> NoReturn:
    folder = file.parent
    others = sorted(other.stem for other in folder.glob("*.toml")) if folder.is_dir() else []
    near = did_you_mean(file.stem, others).replace("?", ".toml?")
    raise UsageError(
        f"cannot read {str(file)!r}: {error.strerror} (from {option}); expected a TOML file of settings.{near}"
    ) from None


def _lines(text: str, toml: Any) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield every name's path and line."""
    header: tuple[str, ...] = ()
    for began, statement, parsed in _statements(text, toml):
        if statement.lstrip().startswith("["):
            header = max(_paths(parsed), key=len)
            yield from ((header[:depth], began) for depth in range(1, len(header) + 1))
        else:
            yield from ((header + path, began) for path in _paths(parsed))


def _statements(text: str, toml: Any) -> Iterator[tuple[int, str, Any]]:
    """Yield the line on which each statement begins, its text, and what it says by itself; None when the text ends before it.

    The parser keeps no lines. But a statement is whole when it parses by itself, so that the parser tells where each begins and
    what it names, whatever quotes, dots or line breaks are in it.
    """
    statement, began = "", 0
    for number, line in enumerate(text.split("\n"), start=1):
        began = began if statement else number
        statement += f"{line}\n"
        try:
            yield began, statement, toml.loads(statement)
        except toml.TOMLDecodeError:
            continue
        statement = ""
    if statement:
        yield began, statement, None


def _unfinished(text: str, toml: Any) -> int:
    """Return the line of the statement whose end is missing, which the parser calls the end of the document."""
    return [began for began, _, _ in _statements(text, toml)][-1]


def _paths(table: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in table.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from _paths(value, (*above, name))
