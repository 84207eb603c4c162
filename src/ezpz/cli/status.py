"""Run ``ezpz status``: this user's jobs and launches in one table, with step, loss and the time to the end."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from ezpz.cli import LAUNCH_HELP, make_verb_parser
from ezpz.cli.running import age, left_behind, left_lines
from ezpz.cli_parser import option, run_verb
from ezpz.cluster.job import ENDED, QUEUED, RUNNING
from ezpz.cluster.jobs import my_jobs, not_listed, scheduler_questions, user_name
from ezpz.errors import UsageError
from ezpz.files import open_regular, read_bytes
from ezpz.records.launch import LaunchRecord
from ezpz.register import heads, of_record, running
from ezpz.tables import USUAL, Column, or_dash, screen_width, table, wrapped
from ezpz.visible import painter, shorten, show, use_color, visible

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Container, Iterator, Sequence
    from typing import Any

    from ezpz.cluster.job import Job
    from ezpz.register import Head, Launch

_OPTIONS = (
    option("launch", nargs="?", metavar="RUN|ID", help=f"this one alone, however old: {LAUNCH_HELP}"),
    option("--json", action="store_true", help="one JSON object: rows, and what did not answer"),
)
_ABOUT = """\
Jobs of yours that wait, run or ended within a day, as the scheduler tells them, with their launches; and launches
without a job. The scheduler is asked one question, and not again for 30 s."""
_EXAMPLES = (
    ("ezpz status", "what waits, what runs and how far it is, what ended and why"),
    ("ezpz status 12", "a job alone"),
)
_RECENT = 86400.0  # seconds: what ended earlier is left out
_LOST = 30 * 86400.0  # seconds: a launch that says it is running for longer was lost with its host
_MOST = 20  # rows of what has ended
_SHORTEST = 8  # columns of a name that is too long
_TAIL = 4096  # bytes of a job's output, for its last line
_STATES = {"queued": "minor", "running": "busy", "finished": "good", "ended": "doubtful", "stopped": "doubtful"}


def main(argv: Sequence[str]) -> int:
    """Print the table and return the exit code."""
    parser = make_verb_parser("status", _OPTIONS, _ABOUT, usage="[RUN|ID] [--json]", examples=_EXAMPLES)
    return run_verb(parser, argv, _status)


def _status(options: Namespace) -> int:
    now = time.time()
    jobs, silent = my_jobs(os.environ, user_name(), scheduler_questions())
    records = heads()
    here, _ = running(records)
    ids = {launch.launch_id for launch in here}
    rows = _rows(jobs, _launches(records, now), now, ids)
    left, missing = left_behind(here), not_listed(os.environ)
    if options.launch is not None:
        rows = [_row_named(options.launch, rows, now, ids)]
        left = [each for each in left if each["launch_id"] == rows[0]["launch_id"]]
    if options.json:
        show(json.dumps({"rows": rows, "silent": silent, "not_listed": missing, "left_behind": left}, indent=2))
        return 0
    lines = [*(_table(rows, now) if rows else ()), *map(visible, left_lines(left))]
    lines += [f"not answered within 15 s, or failed: {', '.join(silent)}; its jobs are missing here"] if silent else []
    lines = lines or ["no job and no launch of yours waits, runs or ended within a day"]
    lines += missing
    show("\n".join(lines), colors=True)
    return 0


# Launches, by their records


def _launches(records: Sequence[Head], now: float) -> list[tuple[Launch, LaunchRecord]]:
    """Return the launches that run or ended within a day, the newest first; records of others are not decoded."""
    found, seen, ended = [], set(), 0
    for _, path, is_running in records:
        try:
            age_of_record = now - os.stat(path).st_mtime  # noqa: PTH116  # 100 of them
        except OSError:
            continue
        if age_of_record > (_LOST if is_running else _RECENT) or (not is_running and ended >= _MOST):
            continue
        record = _read_record(path)
        if not record.launch_id or record.launch_id in seen:
            continue
        seen.add(record.launch_id)
        ended += record.state != "running"
        found.append((of_record(record, os.path.dirname(path)), record))  # noqa: PTH120  # as above
    return found


def _read_record(path: str) -> LaunchRecord:
    """Return a launch's record without ``stages``, which has a number for every rank; empty where it cannot be read.

    It is written with one line for each key, so that those of a nested object can be cut out before they are decoded.
    """
    try:
        data = read_bytes(path)
    except OSError:
        return LaunchRecord()
    begin = data.find(b'\n "stages": {\n')
    end = data.find(b"\n },", begin)
    if 0 <= begin < end:
        data = data[:begin] + data[end + len(b"\n },") :]
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return LaunchRecord()
    return LaunchRecord.of(value) if isinstance(value, dict) else LaunchRecord()


# Rows: a job with its last launch, a job without one, a launch without a job


def _rows(
    jobs: Sequence[Job], launches: Sequence[tuple[Launch, LaunchRecord]], now: float, here: Container[str]
) -> list[dict[str, Any]]:
    """Return what is shown, as JSON can hold it: what waits first, then what runs, then what has ended, newest last."""
    of_job: dict[str, tuple[Launch, LaunchRecord]] = {}
    alone = []
    known = {job.job for job in jobs}
    for each in launches:
        if each[0].job in known:
            of_job.setdefault(each[0].job, each)
        else:
            alone.append(each)
    recent = [job for job in jobs if job.state in {QUEUED, RUNNING} or job.end is None or now - job.end < _RECENT]
    rows = [_of_job(job, of_job.get(job.job), now, here) for job in recent]
    rows += [_of_launch(*each, now, here) for each in alone]
    order = {"queued": 0, "running": 1}

    def place(row: dict[str, Any]) -> tuple[int, float]:
        return order.get(row["state"], 2), row["ended"] or row["started"] or row["starts"] or 0.0

    rows.sort(key=place)
    over = [row for row in rows if row["state"] not in order]
    return [row for row in rows if row["state"] in order] + over[-_MOST:]


def _row_named(word: str, rows: Sequence[dict[str, Any]], now: float, here: Container[str]) -> dict[str, Any]:
    """Return the row of the launch or job that a word means, also of one that ended before those that are shown.

    Raises:
        UsageError: There is none.
    """
    of_job = next((row for row in rows if row["job"] and word in {row["job"], row["job"].partition(".")[0]}), None)
    if of_job:
        return of_job
    from ezpz.track.named import launch_named

    meant = launch_named(word)
    if not meant.record:
        raise UsageError(
            f"{word} (from the command line) names no launch whose record is kept here; expected a run that `launch` "
            "started. `ezpz runs` lists it."
        )
    path = Path(meant.record, "run.json")
    record = LaunchRecord.read(path)
    record.refuse_newer(path)
    shown = next((row for row in rows if row["launch_id"] == record.launch_id), None)
    return shown or _of_launch(of_record(record, meant.record), record, now, here)


def _of_job(job: Job, launch: tuple[Launch, LaunchRecord] | None, now: float, here: Container[str]) -> dict[str, Any]:
    row = _of_launch(*launch, now, here) if launch else _empty()
    waits = job.state == QUEUED
    over = job.state not in {QUEUED, RUNNING}
    row |= {
        "job": job.job,
        "name": job.name or row["name"],
        "queue": job.queue,
        "hosts": job.hosts,
        "scheduler_state": job.word,
        "reason": job.reason,
        "started": None if waits else job.start or row["started"],
        "starts": job.start if waits else None,
        "job_ends": job.end if job.state == RUNNING else None,
        "ended": job.end if over else None,
        "output": job.output or row["output"],
    }
    if not over:
        row["state"] = job.state
    elif launch is None or row["state"] == "running":  # it ended before `launch`, or took it along
        row["state"] = "finished" if job.state == ENDED and job.exit_code == 0 else "ended"
        row["last_line"] = _last_line(row["output"]) if row["state"] == "ended" else ""
    return row


def _empty() -> dict[str, Any]:
    texts = dict.fromkeys(("name", "queue", "scheduler_state", "reason", "output", "last_line", "cause", "host"), "")
    names = ("job", "launch_id", "hosts", "started", "starts", "job_ends", "ended", "step", "loss", "metric", "rate")
    return {**dict.fromkeys(names), **texts, "state": "ended", "record": None, "run_folder": None, "exit_code": None}


def _of_launch(launch: Launch, record: LaunchRecord, now: float, here: Container[str]) -> dict[str, Any]:
    row = _empty() | {
        "job": launch.job or None,
        "launch_id": launch.launch_id,
        "host": launch.host,
        "name": _command(record.command),
        "hosts": len(launch.hosts) or None,
        "state": record.state,
        "started": record.started,
        "ended": record.ended,
        "job_ends": record.job_ends if launch.is_running else None,
        "exit_code": record.exit_code,
        "cause": record.failure.text.partition("; stopping")[0],
        "output": record.output,
        "step": record.step,
        "record": launch.folder,
        "run_folder": record.run_folder or None,
    }
    if launch.is_running and launch.host == os.uname().nodename and launch.launch_id not in here:
        row |= {"state": "ended", "cause": "its launcher is gone and could not say why"}
    elif launch.is_running and row["job_ends"] and row["job_ends"] < now - 600:
        row |= {"state": "ended", "cause": "its job's time is over, and it recorded no end"}
    _add_progress(row)
    return row


def _add_progress(row: dict[str, Any]) -> None:
    """Add step, loss and rate of the run that the launch records."""
    folder = row["run_folder"]
    is_there = os.path.isfile  # of what may not be looked at False, and never an error
    if not folder or not is_there(f"{folder}/metrics.jsonl"):
        return
    from ezpz.cli.runs import glance
    from ezpz.errors import EzpzError

    try:
        seen = glance(Path(folder), Path(folder))
    except EzpzError:  # a newer ezpz wrote it
        return
    row |= {"step": seen["last_step"], "loss": seen["loss"], "metric": seen["metric"], "rate": seen["rate"]}
    row["name"] = seen["name"] or row["name"]


def _command(words: Sequence[str]) -> str:
    """Return the name of the program: that of its script or module."""
    for number, word in enumerate(words):
        if word == "-m" and number + 1 < len(words):
            return words[number + 1]
        if word == "-c":
            return f"{Path(words[0]).name} -c"
        if number and not word.startswith("-"):
            return Path(word).name
    return Path(words[0]).name if words else ""


def _last_line(path: str) -> str:
    """Return the last line of a file that is not blank; empty where there is none."""
    try:
        with open(path, "rb", opener=open_regular) as file:  # a string is all there is
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = file.read(_TAIL).decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


# The table


def _table(rows: Sequence[dict[str, Any]], now: float) -> Iterator[str]:
    paint = painter(use_color(sys.stdout))
    width = screen_width()
    columns = (
        Column("JOB", lambda row: str(row["job"] or row["launch_id"] or "-")[:12]),
        Column("STATE", lambda row: row["state"]),
        Column("HOSTS", lambda row: or_dash(row["hosts"]), is_right=True),
        Column("STEP", lambda row: or_dash(row["step"]), is_right=True),
        Column("LOSS", lambda row: or_dash(row["loss"]), is_right=True),
        Column("TIME", lambda row: _when(row, now)),
        Column("WHAT", lambda row: row["name"].rstrip()),
    )
    (head,), *texts = table(columns, rows)
    yield paint(head, "minor")
    for row, (text,) in zip(rows, texts, strict=True):
        name = visible(row["name"].rstrip())  # last in its line; one that is too long loses its middle
        start = text[: len(text) - len(name)] if name else text
        name = name if width is None else shorten(name, max(_SHORTEST, width - len(start)))
        yield paint(start + name, _STATES.get(row["state"], "bad"))
        for note in _notes(row):
            yield from wrapped(visible(note), "    ", more="", width=width or USUAL)


def _when(row: dict[str, Any], now: float) -> str:
    """Return when it starts, how long it may still run, or how long ago it ended."""
    if row["state"] == "queued":
        return f"starts in {age(row['starts'] - now)}" if row["starts"] else "no start yet"
    if row["state"] == "running":
        ran = age(now - row["started"]) if row["started"] else "?"
        return f"{age(row['job_ends'] - now)} left" if row["job_ends"] else f"for {ran}"
    return f"{age(now - row['ended'])} ago" if row["ended"] else "-"


def _notes(row: dict[str, Any]) -> list[str]:
    """Return why it waits, or why it ended; of a job that ended before `launch` where its output is, and its end."""
    if row["state"] == "queued":
        return [row["reason"]] if row["reason"] else []
    if row["state"] in {"running", "finished"}:
        return []
    if row["cause"] and not row["last_line"]:
        return [row["cause"]]
    notes = [part for part in (row["cause"], f"{row['scheduler_state']} {row['reason']}".strip()) if part]
    if row["launch_id"] is None and row["job"]:
        notes = [f"ended before `launch`: {notes[0]}" if notes else "ended before `launch`"]
    there = os.path.isfile(row["output"])  # noqa: PTH113  # False where no look is allowed
    notes += [f"output: {row['output']}" + ("" if there else " (not there)")] if row["output"] else []
    notes += [f"its last line: {row['last_line']}"] if row["last_line"] else []
    return notes
