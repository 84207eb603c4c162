r"""Ask ranks for the collectives that they started last, and read what they answer: a dump of torch's flight recorder.

A rank that calls `ezpz.setup_torch` reads the named pipe ``FOLDER/ask_<rank>.pipe``, and writes ``FOLDER/last_<rank>``
when it is asked, when it raises and when it ends (`ezpz.dist.ending`): a line of JSON, and the dumps that it tells of.

    {"frames": [["all_reduce", "/venv/…/distributed_c10d.py", 3252], …], "ended": false, "dumps": [8010],
     "threads": [[4713, "Thread-1 (load)", [["load", "data.py", 31], …]]]}

A dump is a pickle of protocol 2, as torch's own C++ writes it (2.13, torch/csrc/distributed/c10d/FlightRecorder.hpp),
with 17 kinds of opcodes, none of which calls anything. `read_dump` knows those that build plain values, and refuses all
others: nothing of a file is ever executed. Tuples are read as lists. Of gloo and NCCL alike:

    {"version": "2.10", "pg_config": {"": {"ranks": "[0, 1]", …}},
     "pg_status": {"0": {"last_enqueued_collective": 8, "last_completed_collective": 7, …}},
     "entries": [{"process_group": ("0", "default_pg"), "collective_seq_id": 7, "p2p_seq_id": 0, "is_p2p": False,
                  "profiling_name": "gloo:all_reduce", "input_sizes": [[4]], "output_sizes": [[4]],
                  "input_dtypes": ["Float"], "state": "scheduled", "retired": True, "time_created_ns": 17954861…,
                  "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
                  "frames": [{"filename": "train.py", "line": 15, "name": "<module>"}], …}, …]}

gloo's recorder leaves ``state`` at ``scheduled`` and tells the end of a collective by ``retired`` and ``pg_status``.
"""

from __future__ import annotations

import json
import os
import re
import struct
import time
from functools import partial

from ezpz import proc
from ezpz.files import open_regular
from ezpz.launch.host import rank_start
from ezpz.watch.collectives import messages

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ezpz.launch.host.process_stacks import SeenThread
    from ezpz.launch.host.rank_process import RankProcess

__all__ = ["CollectivesQuery", "MalformedDump", "collected", "read_dump", "read_last", "rows_of"]

_KEPT = 64  # collectives of a rank
_OF_MANY = 4  # the same in a large world, for which the launcher has no room
_OF_EACH = 4  # of each group at least
_LONGEST_ROWS = 256  # that a message holds
_PATIENCE = 0.4  # seconds for ranks to answer: a failing launch waits for that
_LONGEST = 4 << 20  # bytes of a file, each of which may take 80 of memory: ten times what 256 collectives do
_FRAMES = 64  # of a thread, and threads
_NAME = 80  # characters of a thread's
_NANO = 1e-9


class MalformedDump(ValueError):  # noqa: N818  # named by what it is: nothing failed here
    """A file that is no dump of torch's."""


class CollectivesQuery:
    """A question to the ranks of this host; which is not waited for.

    Args:
        folder: Where ranks listen and answer.
        ranks: The ranks, those that have ended included.
        number: Which question of the launcher's it is.
        patience: Seconds for ranks to answer.
    """

    def __init__(self, folder: str, ranks: Iterable[RankProcess], number: int, patience: float = _PATIENCE) -> None:
        self.number = number
        self._folder, self._ranks = folder, list(ranks)
        self._before = {rank.rank: _state(folder, rank.rank) for rank in self._ranks}
        living = [rank.rank for rank in self._ranks if rank.alive and rank.pid]
        self._asked = {rank for rank in living if rank_start.poke(os.path.join(folder, f"ask_{rank}.pipe"))}
        self.end = time.monotonic() + (patience if self._asked else 0.0)

    @property
    def silent(self) -> set[int]:
        """The ranks that were asked and have not answered, although they live."""
        alive = {rank.rank for rank in self._ranks if rank.alive}
        return {rank for rank in self._asked & alive if _state(self._folder, rank) == self._before[rank]}

    def threads(self) -> dict[int, list[SeenThread]]:
        """Return the Python threads of ranks that have answered, the main one first; not of those that end or have
        raised.
        """
        told = {}
        for rank in self._asked - self.silent:
            try:
                head, _ = read_last(os.path.join(self._folder, f"last_{rank}"))
            except (OSError, MalformedDump):
                continue
            frames = [] if head.get("ended") or head.get("raised") else _frames(head.get("frames"))
            if frames:
                told[rank] = [_thread(0, "MainThread", frames), *_threads(head.get("threads"))]
        return told

    def answer(self, host: str, clock: float, *, whole: bool) -> messages.CollectivesTold:
        """Return what the ranks have answered so far, and what the kernel says of those that live."""
        return messages.CollectivesTold(
            id=self.number, host=host, ranks=collected(self._folder, self._ranks, self.silent, clock, whole=whole)
        )


def collected(
    folder: str, ranks: Iterable[RankProcess], silent: set[int], clock: float, *, whole: bool
) -> list[messages.RankCollectives]:
    """Return what is known of each rank's last collectives.

    Args:
        folder: Where ranks answer.
        ranks: The ranks of this host.
        silent: Those that were asked and have not answered: their files are old, but for what one wrote at its end.
        clock: What to add to this host's clock to get the launcher's, in seconds.
        whole: Whether there is room for all of them.
    """
    reported = []
    for rank in ranks:
        try:
            head, dumps = read_last(os.path.join(folder, f"last_{rank.rank}"))
        except (OSError, MalformedDump):
            head, dumps = {}, []
        is_silent = rank.rank in silent and not head.get("ended")  # a Python that is ending answers no more
        if is_silent:
            head, dumps = {}, []
        state, where, cpu = _process(rank)
        if head or state:
            entries = [row for dump in dumps for row in _rows(dump, clock)]
            entries.sort(key=lambda row: row[6])
            most = _KEPT if whole else _OF_MANY
            reported.append(
                messages.RankCollectives(
                    rank=rank.rank,
                    pid=rank.pid,
                    answered=bool(head),
                    silent=is_silent,
                    ended=bool(head.get("ended")),
                    raised=str(head.get("raised") or "")[:500],
                    handled=str(head.get("handled") or "")[:600],
                    state=state,
                    where=where,
                    cpu=cpu,
                    step=rank.step,
                    frames=_frames(head.get("frames")),
                    groups=[row for dump in dumps for row in _groups(dump)],
                    entries=_last(entries, most),
                )
            )
    return reported


def read_last(path: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the head of a rank's answer, and its dumps.

    Raises:
        OSError: There is none.
        MalformedDump: It is none of a rank's.
    """
    with open(path, "rb", opener=open_regular) as file:
        content = file.read(_LONGEST)
    line, _, rest = content.partition(b"\n")
    try:
        head = json.loads(line)
        sizes = list(head["dumps"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedDump(f"no answer of a rank: {error}") from None
    dumps = []
    for size in sizes:
        if type(size) is not int or not 0 <= size <= len(rest):
            raise MalformedDump(f"a dump of {size!r} bytes, of which {len(rest)} are there")
        dumps.append(read_dump(rest[:size]))
        rest = rest[size:]
    return head, dumps


_PLAIN = b"\x80(}]N\x88\x89JKMG\x8aqrhjusea."  # opcodes of Lib/pickle.py that build plain values


def read_dump(data: bytes) -> dict[str, Any]:
    """Return the dictionary that torch has pickled.

    Raises:
        MalformedDump: It is something else, or would have to execute something.
    """
    import io
    import pickle  # which few agents ever need

    # The one in Python: a few bytes make that in C take 64 GiB, for a memo of their index.
    reader: Any = pickle._Unpickler(io.BytesIO(data))  # noqa: SLF001  # it has no other name
    known = reader.dispatch
    # Lists in place of tuples, which no dictionary takes for keys: to hash deep ones ends a process.
    tuples = {0x84 + size: partial(_take_last, size) for size in (1, 2, 3)}
    tuples |= {ord(")"): known[ord("]")], ord("t"): known[ord("l")]}
    reader.dispatch = {**{code: known[code] for code in _PLAIN}, **tuples, ord("X"): _take_text}
    try:
        value = reader.load()
    except (ArithmeticError, AttributeError, EOFError, LookupError, TypeError, ValueError, struct.error) as error:
        raise MalformedDump(f"a broken pickle: {type(error).__name__}: {error}") from None
    except pickle.UnpicklingError as error:
        raise MalformedDump(f"a broken pickle: {error}") from None
    if not isinstance(value, dict):
        raise MalformedDump(f"a {type(value).__name__}; expected a dictionary")
    return value


def _take_text(reader: Any) -> None:
    reader.append(reader.read(int.from_bytes(reader.read(4), "little")).decode("utf-8", "replace"))


def _take_last(size: int, reader: Any) -> None:
    reader.stack[-size:] = [reader.stack[-size:]]


# What of a dump is kept.


def rows_of(dump: dict[str, Any]) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return groups and last collectives of a dump, as rows of `messages.RankCollectives`, by its own host's clock."""
    return _groups(dump), _last(sorted(_rows(dump, 0.0), key=lambda row: row[6]), _KEPT)


def _last(rows: list[tuple[Any, ...]], most: int) -> list[tuple[Any, ...]]:
    """Return the last rows, and the last `_OF_EACH` of each group, which a busier one must not hide."""
    counts: dict[str, int] = {}
    kept: list[tuple[Any, ...]] = []
    for index, row in enumerate(reversed(rows)):
        counts[row[0]] = counts.get(row[0], 0) + 1
        if index < most or (counts[row[0]] <= _OF_EACH and len(kept) < _LONGEST_ROWS):
            kept.append(row)
    return kept[::-1]


def _rows(dump: dict[str, Any], clock: float) -> list[tuple[Any, ...]]:
    """Return the collectives of a dump, as rows of `messages.RankCollectives`."""
    entries = dump.get("entries")
    rows = []
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict):
            peer = bool(entry.get("is_p2p"))
            created, started, ended = (
                _seconds(entry.get(name), clock)
                for name in ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
            )
            rows.append(
                (
                    _group(entry, dump),
                    _int(entry.get("p2p_seq_id" if peer else "collective_seq_id")),
                    _text(entry.get("profiling_name")).partition(":")[2] or _text(entry.get("profiling_name")),
                    _sizes(entry.get("input_sizes")),
                    "completed" if entry.get("retired") else _text(entry.get("state")),
                    _line(entry.get("frames")),
                    created,
                    started,
                    ended,
                    peer,
                )
            )
    return rows


def _groups(dump: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return of each group its name, and the last collective that was enqueued, started and completed; -1: none."""
    status = dump.get("pg_status")
    names = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    return [
        (str(group), *(_int(each.get(name), -1) for name in names))
        for group, each in (status.items() if isinstance(status, dict) else ())
        if isinstance(each, dict)
    ]


def _group(entry: dict[str, Any], dump: dict[str, Any]) -> str:
    """Return what tells one order of collectives from others, as ``gloo:0``, or ``nccl:1@4`` of a part of the ranks.

    A group has a backend for each kind of device, and each of them counts its own collectives. Groups that
    `split_group` makes of different ranks have one name: of those that the dump knows, the lowest rank tells them
    apart.
    """
    value = entry.get("process_group")
    name = _text(value[0] if isinstance(value, list) and value else value)
    backend, colon, _ = _text(entry.get("profiling_name")).partition(":")
    config = dump.get("pg_config")
    known = config.get(name) if isinstance(config, dict) else None
    lowest = re.match(r"\[(\d+)", _text(known.get("ranks"))) if isinstance(known, dict) else None
    return f"{backend if colon else ''}{colon}{name}" + (f"@{lowest[1]}" if lowest and lowest[1] != "0" else "")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""  # a few bytes of a pickle can hold each other 2 ** 64 times


def _int(value: Any, default: int = 0) -> int:
    return value if type(value) is int and abs(value) < 1 << 53 else default


def _seconds(nanoseconds: Any, clock: float) -> float:
    """Return a time in seconds since 1970 by the launcher's clock; 0 where there is none."""
    return round(_int(nanoseconds // 1000) * _NANO * 1000 + clock, 6) if type(nanoseconds) is int else 0.0


def _sizes(value: Any) -> str:
    """Return sizes of tensors as ``4, 2x3``."""
    shapes = value if isinstance(value, list) else []
    return ", ".join(
        "x".join(str(_int(size)) for size in shape) if shape else "scalar"
        for shape in shapes
        if isinstance(shape, list)
    )


def _line(frames: Any) -> str:
    """Return the user's line of a collective whose stack was recorded; empty without one."""
    from ezpz.launch.host.process_stacks import Frame
    from ezpz.launch.stack_groups import locate

    found = [
        Frame(_text(each.get("name")), _text(each.get("filename")), _int(each.get("line")))
        for each in (frames if isinstance(frames, list) else ())
        if isinstance(each, dict)
    ]
    if not found:
        return ""
    place = locate(found)
    return f"{os.path.basename(place.file)}:{place.line}"


def _frames(value: Any) -> list[tuple[str, str, int]]:
    rows = value if isinstance(value, list) else []
    return [
        (str(row[0]), str(row[1]), _int(row[2])) for row in rows[:_FRAMES] if isinstance(row, list) and len(row) == 3
    ]


def _thread(number: int, name: str, frames: list[tuple[str, str, int]]) -> SeenThread:
    from ezpz.launch.host.process_stacks import Frame, SeenThread

    return SeenThread(number, name, [Frame(*frame) for frame in frames])


def _threads(value: Any) -> list[SeenThread]:
    rows = value if isinstance(value, list) else []
    return [
        _thread(_int(row[0]), _text(row[1])[:_NAME], _frames(row[2]))
        for row in rows[:_FRAMES]
        if isinstance(row, list) and len(row) == 3
    ]


# What the kernel says of the process.


def _process(rank: RankProcess) -> tuple[str, str, float]:
    """Return the state of a rank that lives (a letter of proc(5)), what it waits for, and the CPU seconds it used."""
    if not (rank.alive and rank.pid):
        return "", "", 0.0
    from ezpz.launch.host import process_stacks

    found = process_stacks.pythons(rank.pid)
    pid = next((each for each in found if process_stacks.maps_torch(each)), found[0] if found else rank.pid)
    fields = proc.stat(pid)
    if fields is None:
        return "", "", 0.0
    waits = proc.read(pid, "wchan").decode("utf-8", "replace").strip()
    waits = "" if waits == "0" else waits
    awaited = process_stacks.awaited_file(pid) if fields.state == "D" else ""
    if awaited:
        waits += f", for {awaited}"
    return fields.state, waits, fields.cpu


def _state(folder: str, rank: int) -> tuple[int, int]:
    """Return time and number of the file with a rank's answer; zeros without one."""
    try:
        status = os.stat(os.path.join(folder, f"last_{rank}"))
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_ino
