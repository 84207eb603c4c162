r"""Tell which rank wrote a log, or a line of one that several ranks share.

    3: loss 2.41                          srun --label; numbers are right-aligned
    [default3]:loss 2.41                  torchrun --tee: its role, default, and the local rank
    [3] loss 2.41                         mpiexec -prepend-rank (MPICH, Intel MPI)
    [1,3]<stderr>:loss 2.41               mpirun --tag-output (Open MPI 4); [prterun-n01-81@1,3]<stderr>: of 5
    [rank3]: ValueError: x                torch 2.3 and later, in front of each line of a traceback that ends a rank
    [rank3]:[E1206 18:44:12.7 Process…    and of what its C++ writes

By name: ``rank-3.log``, ``rank.3/stderr`` (Open MPI), ``log.3`` (srun -o log.%t), ``…/attempt_0/3/stderr.log``
(torchrun --log-dir), ``nccl_trace_rank_3`` (TORCH_FR_DUMP_TEMP_FILE), and a number that counts from 0 over files that
differ in nothing else, as ``slurm-123_4.out`` of ``srun -o slurm-%j_%t.out``.
"""

from __future__ import annotations

import os
import re

from ezpz.fields import Record
from ezpz.watch.foreign_logs.launcher_reports import is_reported

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ezpz.watch.foreign_logs.log_files import LogFile

__all__ = ["RankLog", "SortedLogs", "sort_out"]

_TAG = re.compile(r"(?m)^\[rank(\d{1,7})\]:")
_LABELS = {
    "srun --label": re.compile(r" {0,7}(\d{1,7}): ?"),
    "torchrun --tee": re.compile(r"\[(?!rank\d)[A-Za-z][A-Za-z_]{0,40}(\d{1,7})\]:"),
    "mpiexec -prepend-rank": re.compile(r"\[(\d{1,7})\] ?"),
    "mpirun --tag-output": re.compile(
        r"\[(?:\d{1,10}|[^\s@,\[\]]{1,100}@\d{1,10}),(\d{1,7})\]<std(?:out|err|diag)>: ?"
    ),
}
_UNMISTAKABLE = {"torchrun --tee", "mpirun --tag-output"}  # a report of the launcher may be longer than all else
_BY_NAME = (
    re.compile(r"(?i)(?<![a-z])rank[-_.=]?(\d{1,7})(?!\d)"),
    re.compile(r"(?:^|/)attempt_\d{1,7}/(\d{1,7})/(?:stdout|stderr|error)\.(?:log|json)$"),
)
_MAYBE_BY_NAME = re.compile(  # or the number of a job
    r"(?i)(?:^|[/_.-])(?:log|out|output|err|error|stdout|stderr|task|worker)[-_.]?(\d{1,7})(?:\.\w{1,4})?$"
)
_LARGE = 1000  # no job of today has so small a number
_ATTEMPT = re.compile(r"(?:^|/)attempt_(\d{1,7})/")


class RankLog(Record):
    """What a rank wrote.

    Attributes:
        rank: The rank.
        path: The file; of several, that of stderr.
        text: All of it, stderr last.
    """

    rank: int
    path: str
    text: str


class SortedLogs(Record):
    """What each rank wrote, and what nobody's is.

    Attributes:
        ranks: Of each rank its log.
        loose: Lines of no known rank, with their file: those of launchers, and of ranks in a log that has no labels.
        dumps: Of each rank its dump of torch's flight recorder.
        sources: Of each file its ranks, and what told them.
        passed_over: Files of earlier attempts.
    """

    ranks: dict[int, RankLog]
    loose: list[tuple[str, str]]
    dumps: dict[int, dict[str, Any]]
    sources: list[tuple[str, list[int], str]]
    passed_over: list[str]


def sort_out(files: Sequence[LogFile]) -> SortedLogs:
    """Return what each rank wrote."""
    newest = max((_attempt(file.path) for file in files), default=0)
    names = _names([file.path for file in files])
    taken = [file for file in files if _attempt(file.path) in {newest, -1}]
    sorted_logs = SortedLogs({}, [], {}, [], [file.path for file in files if file not in taken])
    pieces: list[RankLog] = []
    unknown: list[LogFile] = []
    for file in taken:
        named = names[file.path]
        if file.dump is not None:
            if named is None:
                unknown.append(file)
            else:
                sorted_logs.dumps[named] = file.dump
                sorted_logs.sources.append((file.path, [named], "file names"))
            continue
        by_line = _by_lines(file, named)
        if by_line is not None:
            found, loose, way = by_line
            pieces += found
            if loose:
                sorted_logs.loose.append((file.path, loose))
            sorted_logs.sources.append((file.path, sorted({each.rank for each in found}), way))
        elif named is not None:
            pieces.append(RankLog(named, file.path, file.text))
            sorted_logs.sources.append((file.path, [named], "file names"))
        else:
            unknown.append(file)
    for file, rank, way in _in_order(unknown):
        sorted_logs.sources.append((file.path, [rank], way))
        if file.dump is not None:
            sorted_logs.dumps[rank] = file.dump
        else:
            pieces.append(RankLog(rank, file.path, file.text))
    sorted_logs.ranks.update(_joined(pieces))
    return sorted_logs


def _attempt(path: str) -> int:
    """Return the number of torchrun's attempt that a file is of; -1 where it names none."""
    found = _ATTEMPT.search(path)
    return int(found[1]) if found else -1


def _names(paths: Sequence[str]) -> dict[str, int | None]:
    """Return of each path the rank that its last three parts name; None where they name none."""
    named: dict[str, int | None] = {}
    maybe: dict[str, int] = {}
    for path in paths:
        short = "/".join(os.path.normpath(path).split(os.sep)[-3:])
        found = next((numbers for pattern in _BY_NAME if (numbers := pattern.findall(short))), None)
        named[path] = int(found[-1]) if found else None
        number = None if found else _MAYBE_BY_NAME.search(short)
        if number:
            maybe[path] = int(number[1])
    if maybe and (min(maybe.values()) == 0 or max(maybe.values()) < _LARGE):
        named.update(maybe)
    return named


def _by_lines(file: LogFile, named: int | None) -> tuple[list[RankLog], str, str] | None:
    """Return what lines themselves tell: logs of ranks, the lines of nobody, and what told; None where they do not."""
    lines = file.text.splitlines(keepends=True)
    label = _label_of(lines)
    if label:
        rows: dict[int, list[str]] = {}
        rest = []
        for line in lines:
            found = _LABELS[label].match(line)
            if found:
                rows.setdefault(int(found[1]), []).append(line[found.end() :])
            else:
                rest.append(line)
        pieces, loose = [], "".join(rest)
        for number, own in sorted(rows.items()):
            text = "".join(own)
            if is_reported(text):  # a launcher per host: the number is that of the host
                tagged, others = _by_tags(file.path, text)
                pieces += tagged
                loose += others
            else:
                pieces.append(RankLog(_only_tag(text, number), file.path, text))
        return pieces, loose, f"the labels of {label}"
    tags = {int(tag) for tag in _TAG.findall(file.text)}
    if named is not None and len(tags) <= 1 and not is_reported(file.text):
        rank = _only_tag(file.text, named)
        return None if rank == named else ([RankLog(rank, file.path, file.text)], "", "torch's tags [rankN]")
    if tags or is_reported(file.text):
        return *_by_tags(file.path, file.text), "torch's tags [rankN]" if tags else "the report of its launcher"
    return None


def _label_of(lines: Sequence[str]) -> str:
    """Return the kind of label that lines have; empty where most have none, and no more than a number is one."""
    written = [line for line in lines if line.strip()]
    counts = {name: sum(bool(label.match(line)) for line in written) for name, label in _LABELS.items()}
    most = max(counts, key=lambda name: counts[name])
    return most if counts[most] * (10 if most in _UNMISTAKABLE else 2) > len(written) else ""


def _only_tag(text: str, number: int) -> int:
    """Return the rank of which all tags are; the number where there is none, or several."""
    tags = set(_TAG.findall(text))
    return int(tags.pop()) if len(tags) == 1 else number


def _by_tags(path: str, text: str) -> tuple[list[RankLog], str]:
    """Return the tagged lines of each rank, and all others."""
    rows: dict[int, list[str]] = {}
    rest = []
    for line in text.splitlines(keepends=True):
        found = _TAG.match(line)
        if found:
            rows.setdefault(int(found[1]), []).append(line)
        else:
            rest.append(line)
    return [RankLog(rank, path, "".join(own)) for rank, own in sorted(rows.items())], "".join(rest)


def _in_order(files: Sequence[LogFile]) -> list[tuple[LogFile, int, str]]:
    """Return files that do not tell their ranks with a rank, and what told it."""
    numbers = [re.findall(r"\d{1,18}", os.path.basename(file.path)) for file in files]
    shapes = {re.sub(r"\d{1,18}", "#", os.path.basename(file.path)) for file in files}
    if len(files) > 1 and len(shapes) == 1:
        columns = [[int(number) for number in column] for column in zip(*numbers, strict=True)]
        varying = [column for column in columns if len(set(column)) > 1]
        if len(varying) == 1 and len(set(varying[0])) == len(files) and min(varying[0]) == 0:
            return [(file, rank, "the numbers in file names") for file, rank in zip(files, varying[0], strict=True)]
    return [(file, rank, "the order of the files, as nothing else does") for rank, file in enumerate(files)]


def _joined(pieces: Sequence[RankLog]) -> dict[int, RankLog]:
    """Return one log per rank: what it wrote on stderr stands behind all else, as its last words are there."""
    joined: dict[int, RankLog] = {}
    for piece in sorted(pieces, key=lambda each: "err" in os.path.basename(each.path)):
        before = joined.get(piece.rank)
        text = f"{before.text.rstrip()}\n{piece.text}" if before and before.text.strip() else piece.text
        joined[piece.rank] = RankLog(piece.rank, piece.path, text)
    return joined
