"""Read a journal, and define the format of its records.

    {"v":1,"t":1795194001.25,"step":3,"m":{"train/loss":0.25,"lr":"NaN","tokens":9007199254740993}}
    {"v":1,"t":1795194002.5,"step":3,"a":2,"k":"late","m":{"grad_norm":1.5}}
    {"v":1,"t":1795194003.5,"step":99,"k":"ranks","m":{"world":2,"every":1,"steps":[0,…],"keys":{"loss":{…}}}}
    {"v":1,"t":1795194004.5,"step":99,"k":"sections","m":{"checkpoint":1.25,"evaluation":0.5}}
    {"v":1,"t":1795194005.5,"step":49,"k":"seen","m":{"first":0,"every":1,"form":"int64[8,128]","batches":"5f3a…"}}

``v`` is the version of this format, ``t`` the time in epoch seconds, ``step`` the caller's step, ``m`` the metrics with
`ezpz.track.values.encode` applied. ``a`` is the attempt of a run that was started again, from 2 on. ``k`` is the kind
of record: absent for a row of metrics; ``late`` for values of an earlier row of the same step, which lay on a device
until then; ``ranks`` for a window of steps over all ranks (`ezpz.track.over_ranks.across`); ``sections`` for the
seconds that rank 0 spent in sections (`ezpz.section`) since the last such record, by name; ``seen`` for sums of batches
and random generators, and settings that changed (`ezpz.track.step_states`); others may come and are passed over. A
line that a crash tore, or that somebody else wrote, is no record; readers pass over it. One process writes a journal;
it is only ever appended to.
"""

from __future__ import annotations

import functools
import json
import os
from contextlib import suppress

from ezpz.errors import TrackError
from ezpz.files import open_regular
from ezpz.track.step_states import SUM_COLUMNS
from ezpz.track.values import SPECIAL, checked, is_int64

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, TypedDict

    from ezpz.track.column_blocks import ParsedLines

    class Row(TypedDict):
        """One line of a journal, decoded; ``a`` and ``k`` are filled in where the line leaves them out."""

        v: int
        t: float
        step: int
        a: int
        k: str
        m: dict[str, Any]


VERSION = 1
MOST_NUMBERS = 8192  # in one record over all ranks
LONGEST_LINE = 64 << 20  # bytes; one step of 20 metrics over 100,000 ranks has 40 MB
_AS_IT_IS = {int, float, bool}
_PLAIN = {"v", "t", "step", "m"}
_NUMBERS = {float, type(None)}
_LATEST = 253402300800.0  # epoch seconds: the year 10000
_MOST_RANKS = 10_000_000
_WORTH_ORJSON = 1 << 16  # bytes of lines
_LONG, _POINT = 19, ord(".")
_PIECE = 1 << 20  # bytes of a journal that are searched at a time
_TAIL = 1 << 20  # bytes read from the end to find the last row; a row of 1024 floats has 20 KiB


def read_journal(path: str | os.PathLike[str]) -> list[Row]:
    """Read the rows of metrics, also while another process writes them or after that process was killed.

    Args:
        path: A ``metrics.jsonl``, or the run folder that holds one.

    Returns:
        Rows in the order in which they were written; values that came late are in the row that they belong to. Bytes
        after the last newline are a row in the making and are left out. Lines that a crash tore, and lines that are no
        record, are left out with one warning that counts them.

    Raises:
        TrackError: There is no such file, or it was written by a version of ezpz that is not known here.
    """
    rows: list[Row] = []
    newest: dict[tuple[int, int], Row] = {}
    for row in iter_journal(path):
        if row["k"] == "":
            rows.append(row)
            newest[row["a"], row["step"]] = row
        elif row["k"] == "late":
            known = newest.get((row["a"], row["step"]))
            if known is None:
                rows.append({**row, "k": ""})
            else:
                known["m"].update(row["m"])
    return rows


def iter_journal(path: str | os.PathLike[str]) -> Iterator[Row]:
    """Yield the records of a journal one by one, of every kind and as they were written.

    Raises:
        TrackError: As `read_journal`.
    """
    name = os.fspath(path)
    if os.path.isdir(name):  # noqa: PTH112  # a string is all that is needed
        name = os.path.join(name, "metrics.jsonl")  # noqa: PTH118  # as above
    torn, foreign, first = 0, 0, ""
    try:
        with open(name, "rb", opener=open_regular) as file:  # as above
            for number, raw in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), 1):
                if len(raw) == LONGEST_LINE:
                    raise no_line(name)
                if not raw.endswith(b"\n") or raw == b"\n":
                    continue
                place = f"{name}:{number}"
                try:
                    row = parse(raw, place)
                except ValueError:
                    torn += 1
                    continue
                if row is None:
                    foreign, first = foreign + 1, first or place
                else:
                    yield row
    except OSError as error:
        raise TrackError(f"cannot read the journal {name}: {error.strerror}; expected a metrics.jsonl.") from error
    tell_passed_over(name, torn, foreign, first)


def iter_kind(path: str | os.PathLike[str], kind: str) -> Iterator[Row]:
    """Yield the records of one kind, without a look at the others; nothing where there is no journal.

    Args:
        path: A ``metrics.jsonl``.
        kind: Such as ``sections``; not that of rows, which name none.
    """
    with suppress(OSError):
        for line in _lines_with(path, f'"k":"{kind}",'.encode()):
            with suppress(ValueError, TrackError):  # a torn line
                row = parse(line, "")
                if row is not None and row["k"] == kind:
                    yield row


def _lines_with(path: str | os.PathLike[str], word: bytes) -> Iterator[bytes]:
    """Yield the whole lines of a file that hold a word, a piece of the file in memory at a time.

    A file that is mapped counts as memory of the process, all 250 MB of a million rows.
    """
    with open(path, "rb", opener=open_regular) as file:  # any path
        rest = b""
        while piece := file.read(max(_PIECE, len(rest))):
            whole = piece.rfind(b"\n") + 1
            if not whole:
                rest += piece
                if len(rest) > LONGEST_LINE:
                    return
                continue
            data, rest = rest + piece[:whole], piece[whole:]
            place = data.find(word)
            while place >= 0:
                end = data.find(b"\n", place) + 1
                yield data[data.rfind(b"\n", 0, place) + 1 : end]
                place = data.find(word, end)


def no_line(name: str) -> TrackError:
    """Return the error for a journal that has no newline where one must be."""
    return TrackError(
        f"cannot read the journal {name}: it has a line of over {LONGEST_LINE >> 20} MiB; expected a metrics.jsonl."
    )


def tell_passed_over(name: str, torn: int, foreign: int, first: str) -> None:
    """Say which lines of a journal are no records: how many were torn, how many are others', and where the first is."""
    if torn:
        from ezpz.log import get_logger  # `logging` costs 10 ms, which only a warning needs

        get_logger(__name__).warning(f"{name}: passed over {torn} torn line(s), each left by a write that was cut off.")
    if foreign:
        from ezpz.log import get_logger  # `logging` costs 10 ms, which only a warning needs

        get_logger(__name__).warning(
            f"{first}: passed over what is no record of ezpz: {foreign} line(s), this the first."
        )


def parse(raw: bytes, place: str) -> Row | None:
    """Decode one line; None for JSON that is no record, or one with a part of another type than it must have.

    Args:
        raw: The line.
        place: File and line number, for the error.

    Raises:
        ValueError: It is no JSON, as only a cut-off write leaves behind.
        TrackError: Its version is not known here.
    """
    try:
        row = _loads_text(raw.decode("ascii").rstrip(" \t\r\n"))
    except UnicodeDecodeError:
        row = _loads(raw)
    if _is_plain(row):
        row.update(a=1, k="")
        return row  # type: ignore[no-any-return]  # as was just seen
    return _checked_row(row, raw, place)


def _loads(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except RecursionError as error:
        raise ValueError("JSON of absurd depth") from error


def _checked_row(row: Any, raw: bytes | str, place: str) -> Row | None:
    """Return what a line holds as a record; None if it is none, or a part of it has another type than it must have."""
    if not isinstance(row, dict) or type(row.get("v")) is not int:
        return None
    if row["v"] != VERSION:
        start = raw[:60] if isinstance(raw, str) else raw[:60].decode(errors="replace")
        raise TrackError(
            f"cannot read {start!r} (from {place}); expected a row of version {VERSION}, "
            f'{{"v":1,"t":…,"step":…,"m":{{…}}}}. Read it with the ezpz that wrote it.'
        )
    metrics, attempt, kind, step = row.get("m"), row.setdefault("a", 1), row.setdefault("k", ""), row.get("step")
    if not (_is_step(step) and isinstance(metrics, dict) and type(attempt) is int and 0 < attempt < 1 << 63):
        return None
    if not (type(row.get("t")) in {int, float} and -_LATEST < row["t"] < _LATEST and isinstance(kind, str)):
        return None
    if kind == "ranks":
        return row if _is_window(metrics) else None  # type: ignore[return-value]  # its keys were looked at above
    try:
        for key, value in metrics.items():
            if type(value) not in _AS_IT_IS:
                metrics[key] = checked(value)
    except ValueError:
        return None
    return row  # type: ignore[return-value]  # as above


def _is_step(step: Any) -> bool:
    return type(step) is int and is_int64(step)


def _is_window(m: dict[str, Any]) -> bool:
    """Tell whether this has the shape of a record over all ranks, see `ezpz.track.over_ranks.window`."""
    world, steps, keys, held = m.get("world"), m.get("steps"), m.get("keys"), m.get("held", [])
    if not (type(world) is int and 0 < world < _MOST_RANKS and isinstance(steps, list) and steps):
        return False
    if not (all(map(_is_step, steps)) and isinstance(keys, dict) and m.get("every") in {0, 1}):
        return False
    if not (isinstance(held, list) and all(type(ranks) is int and 0 <= ranks <= world for ranks in held)):
        return False
    width = len(steps) if m["every"] else 1
    for sums in [m[kind] for kind in SUM_COLUMNS.values() if kind in m]:
        if not (isinstance(sums, dict) and all(isinstance(text, str) for text in sums.values())):
            return False
    return all(isinstance(entry, dict) and _is_entry(entry, world, len(steps), width) for entry in keys.values())


def is_full(m: dict[str, Any]) -> bool:
    """Tell whether a record holds so many numbers that its window may continue in the next one."""
    return bool(m["every"]) and len(m["keys"]) * (m["world"] + 6) * (len(m["steps"]) + 1) > MOST_NUMBERS


def _is_entry(entry: dict[str, Any], world: int, steps: int, width: int) -> bool:
    ranks = entry.get("ranks", [[]])
    if not (isinstance(ranks, list) and len(ranks) <= world):
        return False
    return all(_are_numbers(each, width) for each in ranks) and all(
        _are_numbers(values, steps) for part, values in entry.items() if part != "ranks"
    )


def _are_numbers(values: Any, most: int) -> bool:
    if not (isinstance(values, list) and len(values) <= most):
        return False
    if set(map(type, values)) <= _NUMBERS:  # nearly all
        return True
    return all(
        is_int64(value) if type(value) is int else type(value) in _NUMBERS or (type(value) is str and value in SPECIAL)
        for value in values
    )


def read_stretch(data: bytes, part: ParsedLines, place: tuple[str, int]) -> None:
    """Read whole lines of a journal.

    Args:
        data: The lines, the last one ended by a newline.
        part: What they are added to; they begin where it ends.
        place: The journal, and how many lines are before that part, for errors.

    Raises:
        TrackError: A line is of a version that is not known here.
    """
    name, before = place
    add, windows = part.records.add, part.windows
    lines, loads = _lines_and_reader(data)
    start = part.end
    for number, raw in enumerate(lines, part.lines + 1):
        size = len(raw) + 1
        start += size
        if size == 1:
            continue
        try:
            row = loads(raw)
            if _is_plain(row):  # nearly all
                add(row["t"], row["step"], 1, False, row["m"])
                continue
            row = _checked_row(row, raw, f"{name}:{before + number}")
        except ValueError:
            part.torn += 1
            continue
        if row is None:
            part.foreign, part.at = part.foreign + 1, part.at or number
        elif row["k"] in {"", "late"}:
            add(row["t"], row["step"], row["a"], row["k"] == "late", row["m"])
        elif row["k"] == "ranks":
            windows.append((start - size, size))
    part.lines += len(lines)
    part.end = start


def _lines_and_reader(data: bytes) -> tuple[Sequence[Any], Callable[[Any], Any]]:
    """Return lines without their newlines, and what reads one; all are decoded at once where that is the same."""
    if len(data) >= _WORTH_ORJSON and _has_orjson() and not _has_long_integers(data):
        return data.split(b"\n")[:-1], _loads_fast
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError:
        return data.split(b"\n")[:-1], _loads
    return text.split("\n")[:-1], _loads_text


@functools.cache
def _has_orjson() -> bool:
    from importlib.util import find_spec

    return find_spec("orjson") is not None


def _loads_fast(line: bytes) -> Any:
    import orjson

    try:
        return orjson.loads(line)
    except ValueError:  # NaN as others write it, halves of surrogate pairs, or no JSON
        return _loads(line)


def _has_long_integers(data: bytes) -> bool:
    """Tell whether lines hold an integer of 19 or more digits: orjson makes floats of those beyond 64 bits."""
    import numpy as np

    text = np.frombuffer(data, np.uint8)
    edges = np.flatnonzero(np.diff((text - np.uint8(48) < 10).view(np.int8), prepend=np.int8(0), append=np.int8(0)))
    starts, ends = edges[::2], edges[1::2]
    long = starts[ends - starts >= _LONG]
    return bool((text[np.maximum(long, 1) - 1] != _POINT).any())


_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # not in its stubs


def _loads_text(line: str) -> Any:
    try:
        value, end = _scan(line, 0)
    except (ValueError, RecursionError, StopIteration):
        end = -1
    return value if end == len(line) else _loads(line.encode())  # blanks around it, or no JSON


def _is_plain(row: Any) -> bool:
    """Tell whether this is a row of numbers of the first attempt that `_checked_row` would return as it is."""
    if type(row) is not dict or row.keys() != _PLAIN:
        return False
    time, step, metrics = row["t"], row["step"], row["m"]
    if (
        row["v"] != VERSION
        or type(row["v"]) is not int
        or type(metrics) is not dict
        or type(step) is not int
        or type(time) is not float
    ):
        return False
    return -_LATEST < time < _LATEST and is_int64(step) and _AS_IT_IS.issuperset(map(type, metrics.values()))


def last_row(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Return step and attempt of a journal's last whole row, or None if there is none."""
    with open(path, "rb", opener=open_regular) as file:  # takes any path
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        lines = file.read().split(b"\n")[:-1]  # the piece after the last newline is no row
    for raw in reversed(lines):
        with suppress(ValueError):  # a torn line, or the first one, of which the tail may hold half
            row = parse(raw, os.fspath(path))
            if row is not None and row["k"] == "":
                return row["step"], row["a"]
    return None
