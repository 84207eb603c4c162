"""Make the facts that the rules of `ezpz.why` look at from logs of a launch that ezpz did not start.

What no log tells stays unknown: steps, what kernels have counted, states of processes. An end is taken from the report
of a launcher, from torch's tags around a traceback, which it writes for an exception that ends a rank, or from how a
rank's log ends. A traceback that a program has caught and printed on its way is none.
"""

from __future__ import annotations

import re
import signal

from ezpz.fields import Record
from ezpz.launch import record
from ezpz.launch.host.process_stacks import parse_dump
from ezpz.launch.run.failures import Failure, how
from ezpz.launch.stack_groups import locate, words_of
from ezpz.records.collectives_record import Entry, RankCollectives
from ezpz.visible import visible
from ezpz.watch.collectives.last_collectives import rows_of
from ezpz.watch.foreign_logs.launcher_reports import ReportedEnd, job_end, left_early, memory_kills, reported_ends
from ezpz.watch.foreign_logs.log_files import read_logs
from ezpz.watch.foreign_logs.ranks_of_logs import sort_out
from ezpz.why import Facts
from ezpz.why.last_words import raised_in

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ezpz.watch.foreign_logs.ranks_of_logs import SortedLogs

__all__ = ["LogFacts", "facts_of_logs"]

_WORDS = 16 << 10  # characters of a rank's last words: a traceback with what C++ writes behind it
_ENDS_SHOWN = 4  # ranks whose last line is told where nobody knows why
_LINE = 200  # characters of that
_TRACEBACK = "Traceback (most recent call last)"
_TAGGED = re.compile(r"(?m)^\[rank\d{1,7}\]: ?Traceback \(most recent call last\)")
_TAG = re.compile(r"(?m)^\[rank\d{1,7}\]: ?")
_FATAL = {  # what faulthandler writes (CPython, Modules/faulthandler.c)
    "Fatal Python error: Segmentation fault": signal.SIGSEGV,
    "Fatal Python error: Aborted": signal.SIGABRT,
    "Fatal Python error: Bus error": signal.SIGBUS,
    "Fatal Python error: Illegal instruction": signal.SIGILL,
    "Fatal Python error: Floating-point exception": signal.SIGFPE,
    "Fatal Python error: Floating point exception": signal.SIGFPE,
    "terminate called after throwing": signal.SIGABRT,
}
# Lines that follow the exception which ends a rank: the rest of its message, warnings and stacks of C++ at the end of
# Python, and what launchers say.
_BEHIND = re.compile(
    r"\s|\[[WEIC]\d{3,4} |\[rank|Exception (?:raised from|ignored)|frame #|terminate called|[EWI]\d{4} |Process group "
    r"|srun: |slurmstepd: |=|-{5}|Aborted|Segmentation fault|(?:WARNING|ERROR|INFO):|\S{1,200}: \w{1,40}Warning"
)
# Where torchrun begins to tell of an end, with a traceback of its own.
_LAUNCHERS = re.compile(r"(?m)^ {0,8}(?:[EW]\d{4} [^\n]{0,200}failed \(exitcode|ERROR:torch\.distributed\.elastic)")
_MESSAGE_LINES = 6  # further ones of an exception


class LogFacts(Record):
    """What logs have told.

    Attributes:
        facts: What the rules look at.
        sources: Of each file its ranks, and what told them.
        notes: Files that told nothing, or not all.
        unknown: What no file has told.
    """

    facts: Facts
    sources: list[tuple[str, list[int], str]]
    notes: list[str]
    unknown: list[str]


def facts_of_logs(paths: Sequence[str]) -> LogFacts:
    """Return what logs and dumps of a launch tell that ezpz did not start.

    Raises:
        UsageError: A file is missing or cannot be read, or none is a log or a dump.
    """
    files, notes = read_logs(paths)
    logs = sort_out(files)
    reports = [end for _, text in logs.loose for end in reported_ends(text)]
    told = "\n".join([*(text for _, text in logs.loose), *(log.text for log in logs.ranks.values())])
    failures = _failures(logs, reports, memory_kills(told))
    end = job_end(told)
    failures = [*_who_left(logs, failures), *failures]
    if all(failure.is_consequence for failure in failures):
        failures = [Failure("", text, 0, 0.0) for text in (_nobodys(logs) or (end.text if end else ""),) if text]
    ranks = _collectives(logs)
    fields: dict[str, Any] = {
        "state": "failed" if failures else "",
        "plan": {"world_size": _world(logs, reports)},
        "cause": _as_json(failures[0], logs) if failures else None,
        "failures": [_as_json(failure, logs) for failure in failures[1:]],
        "notes": [] if failures else [*_ends(logs)],
    }
    waited = any(failure.waited_in_vain for failure in failures)
    if logs.dumps or (waited and any(each.at for each in ranks)):
        fields["hang"] = {"summary": ""}
    facts = Facts(fields)
    facts.of_logs = True
    facts.ranks = {each.rank: each for each in ranks}
    if logs.passed_over:
        notes.append(f"{len(logs.passed_over)} files of earlier attempts of torchrun were not read")
    if end and failures and failures[0].text.strip() != end.text:
        notes.append(end.text)
    return LogFacts(facts, logs.sources, notes, _unknown(logs, reports, failures))


# How ranks ended


def _failures(logs: SortedLogs, reports: Sequence[ReportedEnd], kills: int) -> list[Failure]:
    """Return the ranks that failed, that which failed first at the front as far as anything tells it."""
    by_rank: dict[int, ReportedEnd] = {}
    for report in reports:
        known = by_rank.get(report.rank)
        if report.status and (known is None or (report.words and not known.words)):
            by_rank[report.rank] = report
    first = next((report.rank for report in by_rank.values() if report.is_first), None)
    order = [rank for rank in (first, *by_rank) if rank is not None]
    failures = {}
    for rank, report in by_rank.items():
        words = report.words or _last_words(logs, rank, alone=len(by_rank) == 1 or rank == first)
        failures[rank] = _reported(report, words, order.index(rank), kills)
    for rank, log in logs.ranks.items():
        status = 0 if rank in failures else _own_end(log.text)
        if status:
            failures[rank] = _logged(rank, status, log.text[-_WORDS:], len(order) + rank)

    def earlier(failure: Failure) -> tuple[bool, bool, float]:
        return failure.is_consequence, failure.lost_peer or failure.waited_in_vain, failure.at

    return sorted(failures.values(), key=earlier)


def _reported(report: ReportedEnd, words: str, place: int, kills: int) -> Failure:
    """Return the failure that a launcher reports; `at` is its place among all, as no time is known."""
    on = f" on host {report.host}" if report.host else ""
    pid = f" (pid {report.pid})" if report.pid else ""
    # Slurm counts for a step on a host, and not for a rank.
    counted = {"host_oom_kill": [0, kills]} if kills and report.status == -signal.SIGKILL else None
    return Failure(
        f"rank {report.rank}{on}{pid}",
        f"{how(report.status)}, says {report.by}",
        1,
        float(place),
        rank=report.rank,
        host=report.host or None,
        pid=report.pid or None,
        status=report.status,
        words=words,
        why="its launcher sent it" if report.is_consequence else "",
        kernel=counted,
    )


def _logged(rank: int, status: int, words: str, place: int) -> Failure:
    """Return the failure that a rank's log alone shows."""
    ends = "ends with a traceback" if status > 0 else f"ends with {signal.Signals(-status).name}"
    return Failure(f"the log of rank {rank}", ends, 1, float(place), rank=rank, status=status, words=words)


def _as_json(failure: Failure, logs: SortedLogs) -> dict[str, Any]:
    """Return a failure as ``run.json`` of a launch has it."""
    log = logs.ranks.get(failure.rank) if failure.rank is not None else None
    return record.failure(
        failure.text.strip(),
        rank=failure.rank,
        host=failure.host,
        pid=failure.pid,
        code=failure.status,
        log=log.path if log else None,
        words=failure.words,
        why=failure.why or None,
        kernel=failure.kernel,
    )


def _who_left(logs: SortedLogs, failures: Sequence[Failure]) -> list[Failure]:
    """Return the ranks that had ended with 0, where all that failed have lost another one."""
    gone = [rank for _, text in logs.loose for rank in left_early(text)]
    if not gone or not all(failure.lost_peer or failure.is_consequence for failure in failures):
        return []
    text = "is in no report of torchrun, which had none to end: it had ended with code 0"
    return [Failure(f"rank {rank}", text, 1, 0.0, rank=rank, status=0) for rank in gone]


def _nobodys(logs: SortedLogs) -> str:
    """Return what a rank raised of which nothing tells the number; empty where none did."""
    for _, text in logs.loose:
        before = _LAUNCHERS.split(text)[0]
        raised = raised_in(before) if _own_end(before) else None
        if raised:
            return f"a rank raised {raised.text}, and no log says which one"
    return ""


def _last_words(logs: SortedLogs, rank: int, *, alone: bool) -> str:
    """Return the last that a rank wrote; of a log without labels its last traceback, where one rank alone failed."""
    log = logs.ranks.get(rank)
    if log is not None:
        return log.text[-_WORDS:]
    for _, text in logs.loose if alone else ():
        before = _LAUNCHERS.split(text)[0]
        if _TRACEBACK in before:
            return before[-_WORDS:]
    return ""


def _own_end(text: str) -> int:
    """Return how a rank ended by its own log: 1 for an exception, minus a signal; 0 where nothing tells that it did."""
    fatal, number = max((text.rfind(words), number) for words, number in _FATAL.items())
    raised = text.rfind(_TRACEBACK)
    tagged = [found.start() for found in _TAGGED.finditer(text)]
    if fatal >= 0 and fatal > raised:
        return -number
    if tagged:
        return 1
    if raised < 0:
        return 0
    lines = text[raised:].split("\n")[1:]
    first = next((at for at, line in enumerate(lines) if line[:1].strip()), None)
    if first is None:
        return 0
    rest = [line for line in lines[first + 1 :] if line and not _BEHIND.match(line)]
    return 1 if len(rest) <= _MESSAGE_LINES else 0


# What ranks were doing


def _collectives(logs: SortedLogs) -> list[RankCollectives]:
    """Return the last collectives of each rank, from its dump, and where its log shows it by a stack."""
    ranks = []
    for rank in sorted({*logs.dumps, *logs.ranks}):
        groups, entries = rows_of(logs.dumps[rank]) if rank in logs.dumps else ([], [])
        frames = parse_dump(logs.ranks[rank].text[-_WORDS:]) if rank in logs.ranks else []
        if not (entries or groups or frames):
            continue
        ranks.append(
            RankCollectives(
                rank,
                answered=rank in logs.dumps,
                at=words_of(locate(frames))[len("in ") :] if frames else "",
                groups=[dict(zip(("group", "enqueued", "started", "completed"), row, strict=True)) for row in groups],
                entries=[Entry(*_in_entry(row)) for row in entries],
            )
        )
    return ranks


def _in_entry(row: Sequence[Any]) -> tuple[Any, ...]:
    """Return a row of `rows_of` in the order of the fields of `Entry`."""
    group, seq, op, sizes, state, line, created, *rest = row
    return (group, seq, op, state, created, sizes, line, *rest)


def _world(logs: SortedLogs, reports: Sequence[ReportedEnd]) -> int:
    """Return how many ranks there were at least."""
    ranks = [*logs.ranks, *logs.dumps, *(report.rank for report in reports)]
    return max(ranks, default=-1) + 1


# What is told besides causes


def _ends(logs: SortedLogs) -> list[str]:
    """Return how the logs end, where nothing tells that a rank failed."""
    last: list[tuple[str, str]] = [(f"rank {rank}", log.text) for rank, log in sorted(logs.ranks.items())]
    last += [(visible(path), text) for path, text in logs.loose]
    shown = [(who, text.rstrip().rpartition("\n")[2].strip()[:_LINE]) for who, text in last if text.strip()]
    more = [f"and {len(shown) - _ENDS_SHOWN} more logs"] if len(shown) > _ENDS_SHOWN else []
    return [*(f"the last line of {who}: {line}" for who, line in shown[:_ENDS_SHOWN]), *more]


def _unknown(logs: SortedLogs, reports: Sequence[ReportedEnd], failures: Sequence[Failure]) -> list[str]:
    """Return what no file has told, that a launch of ezpz records."""
    unknown = ["steps", "the kernel's counts of memory"]
    if not any(report.host for report in reports):
        unknown.append("hosts")
    if not reports:
        unknown.append("exit codes and signals")
    if not logs.dumps:
        unknown.append("the last collectives")
    firsts = [one for one in failures if one.rank is not None and not (one.is_consequence or one.lost_peer)]
    if len(firsts) > 1 and not any(report.is_first for report in reports):
        unknown.append("which rank failed first")
    return unknown
