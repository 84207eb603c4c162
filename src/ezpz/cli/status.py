"""Run ``ezpz status``: this user's jobs and launches in one table, with step, loss and the time to the end."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from ezpz.cli_parser import option, run_verb
from ezpz.cluster.scheduler import scheduler
from ezpz.errors import EzpzError
from ezpz.fields import Record
from ezpz.files import open_regular, read_bytes
from ezpz.jobs.job_state import ENDED, QUEUED, RUNNING
from ezpz.jobs.queued_jobs import Listing, my_jobs, not_listed, scheduler_questions, user_name
from ezpz.jobs.running_launches import age, left_behind, left_lines
from ezpz.records.launch_record import LaunchRecord
from ezpz.register import heads, of_record, running
from ezpz.tables import USUAL, Column, or_dash, screen_width, table, wrapped
from ezpz.verbs import LAUNCH_HELP, make_verb_parser
from ezpz.visible import painter, shorten, show, use_color, visible

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Container, Iterable, Iterator, Sequence
    from typing import Any

    from ezpz.jobs.job_state import Job
    from ezpz.register import Head, Launch

_OPTIONS = (
    option("launch", nargs="?", metavar="RUN|ID", help=f"this one alone, however old: {LAUNCH_HELP}"),
    option("--json", action="store_true", help="one JSON object: rows, and what did not answer"),
)
_ABOUT = """\
Jobs of yours that wait, run or ended within a day, as the scheduler tells them, with their launches; and launches
without a job. The scheduler is asked one question, and not again for 30 s unless a launch, `ezpz submit` or
`ezpz kill` has changed something; the last line says when."""
_EXAMPLES = (
    ("ezpz status", "what waits, what runs and how far it is, what ended and why"),
    ("ezpz status 12", "a job alone"),
)
_RECENT = 86400.0  # seconds: what ended earlier is left out
_LOST = 30 * 86400.0  # seconds: a launch that says it is running for longer was lost with its host
_MOST = 20  # rows of what has ended
_SILENT = 600.0  # seconds without a row after which a run is not known to go on
_MOMENT = 1.5  # seconds that are called just now
_SHORTEST = 8  # columns of a name that is too long
_TAIL = 4096  # bytes of a job's output, for its last line
_STATES = {
    "queued": "minor",
    "running": "busy",
    "finished": "good",
    "ended": "doubtful",
    "stopped": "doubtful",
    "unknown": "doubtful",
}


def main(argv: Sequence[str]) -> int:
    """Print the table and return the exit code."""
    parser = make_verb_parser("status", _OPTIONS, _ABOUT, usage="[RUN|ID] [--json]", examples=_EXAMPLES)
    return run_verb(parser, argv, _status)


class _Seen(Record):
    """What is known around the launches.

    Attributes:
        now: The time.
        here: The ids of the launches that run on this host.
        jobs: What the schedulers have told.
    """

    now: float
    here: Container[str]
    jobs: Listing


def _status(options: Namespace) -> int:
    now = time.time()
    records = heads()
    here, _ = running(records)
    launches = _launches(records, now)
    jobs = my_jobs(os.environ, user_name(), scheduler_questions(), _last_change(launches, now))
    seen = _Seen(now, {launch.launch_id for launch in here}, jobs)
    left, missing = left_behind(here), not_listed(os.environ)
    if options.launch is None:
        rows = _shown(_rows(launches, seen), now)
    else:
        rows = [_row_named(options.launch, _rows(launches, seen), seen)]
        left = [each for each in left if each["launch_id"] == rows[0]["launch_id"]]
    if options.json:
        silent = [*jobs.silent, *jobs.failed]
        told = {"rows": rows, "asked": jobs.asked, "silent": silent, "failed": jobs.failed, "not_listed": missing}
        show(json.dumps({**told, "left_behind": left}, indent=2))
        return 0
    lines = [*(_table(rows, now) if rows else ()), *map(visible, left_lines(left))]
    lines = lines or ["no job and no launch of yours waits, runs or ended within a day"]
    lines += [visible(jobs.missing())] if jobs.missing() else []
    lines += missing
    lines += [f"{scheduler(name).title} was asked {_ago(time.time() - at)}" for name, at in jobs.asked.items()]
    show("\n".join(lines), colors=True)
    return 0


def _ago(seconds: float) -> str:
    return "just now" if seconds < _MOMENT else f"{age(seconds)} ago"


def _last_change(launches: Iterable[tuple[Launch, LaunchRecord]], now: float) -> float:
    """Return when a launch in a job began or ended last: what a scheduler told before is not true any more."""
    times = [when for launch, record in launches if launch.job for when in (record.started, record.ended) if when]
    return max((when for when in times if when <= now), default=0.0)


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


def _rows(launches: Sequence[tuple[Launch, LaunchRecord]], seen: _Seen) -> list[dict[str, Any]]:
    """Return all rows, as JSON can hold them: what waits first, then what runs, then what has ended, newest last."""
    of_job: dict[str, tuple[Launch, LaunchRecord]] = {}
    alone = []
    for each in launches:
        job = seen.jobs.job_of(each[0].job, each[0].started)
        if job:
            of_job.setdefault(job.job, each)
        else:
            alone.append(each)
    rows = [_of_job(job, of_job.get(job.job), seen) for job in seen.jobs.jobs]
    rows += [_of_launch(*each, seen) for each in alone]

    def place(row: dict[str, Any]) -> tuple[int, float]:
        return _ORDER.get(row["state"], 2), row["ended"] or row["started"] or row["starts"] or 0.0

    return sorted(rows, key=place)


_ORDER = {"queued": 0, "running": 1, "unknown": 1}


def _shown(rows: Sequence[dict[str, Any]], now: float) -> list[dict[str, Any]]:
    """Return the rows without what ended more than a day ago, and without all but the last 20 that have ended."""
    over = [row for row in rows if row["state"] not in _ORDER]
    recent = [row for row in over if row["ended"] is None or now - row["ended"] < _RECENT]
    return [row for row in rows if row["state"] in _ORDER] + recent[-_MOST:]


def _row_named(word: str, rows: Sequence[dict[str, Any]], seen: _Seen) -> dict[str, Any]:
    """Return the row of the launch or job that a word means, also of one that ended before those that are shown.

    Raises:
        UsageError: There is none.
    """
    job = seen.jobs.called(word)
    if job:
        return next(row for row in rows if row["job"] == job.job and row["scheduler_state"] == job.word)
    from ezpz.track.named import record_named

    path = record_named(word) / "run.json"
    record = LaunchRecord.read(path)
    record.refuse_newer(path)
    shown = next((row for row in rows if row["launch_id"] == record.launch_id), None)
    return shown or _of_launch(of_record(record, str(path.parent)), record, seen)


def _of_job(job: Job, launch: tuple[Launch, LaunchRecord] | None, seen: _Seen) -> dict[str, Any]:
    row = _of_launch(*launch, seen) if launch else _empty()
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
    elif launch is None or row["state"] in _ORDER:  # it ended before `launch`, or took it along
        row["state"] = "finished" if job.state == ENDED and job.exit_code == 0 else "ended"
        row["last_line"] = _last_line(row["output"]) if row["state"] == "ended" else ""
    return row


def _empty() -> dict[str, Any]:
    texts = dict.fromkeys(("name", "queue", "scheduler_state", "reason", "output", "last_line", "cause", "host"), "")
    names = ("job", "launch_id", "hosts", "started", "starts", "job_ends", "ended", "step", "loss", "metric", "rate")
    more = ("last_row", "record", "run_folder", "exit_code")
    return {**dict.fromkeys(names), **texts, "state": "ended", **dict.fromkeys(more)}


def _of_launch(launch: Launch, record: LaunchRecord, seen: _Seen) -> dict[str, Any]:
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
    _add_progress(row, record)
    if launch.is_running and launch.launch_id not in seen.here:
        row |= _lost(launch, row, seen)
    return row


def _lost(launch: Launch, row: dict[str, Any], seen: _Seen) -> dict[str, Any]:
    """Return what is known of a launch that has recorded no end and does not run on this host; empty if it may run."""
    last = row["last_row"]
    silence = None if last is None else seen.now - last
    shown = "" if silence is None else f"; its last row is {age(silence)} old"
    if launch.host == os.uname().nodename:
        return {"state": "ended", "cause": "its launcher is gone and could not say why"}
    forgot = seen.jobs.who_forgot(launch.scheduler, launch.job, launch.started)
    if forgot:
        is_alive = silence is not None and silence < _SILENT  # it may be of another cluster with the same home
        what = f"{forgot} does not know its job, and it recorded no end{shown}"
        return {"state": "unknown" if is_alive else "ended", "cause": what}
    if row["job_ends"] and row["job_ends"] < seen.now - 600:
        return {"state": "ended", "cause": "its job's time is over, and it recorded no end"}
    if silence is not None and silence >= _SILENT and seen.jobs.job_of(launch.job, launch.started) is None:
        ask = f"`ezpz stacks {launch.launch_id}` asks it on {launch.host}"
        return {"state": "unknown", "cause": f"it recorded no end{shown}; {ask}"}
    return {}


def _add_progress(row: dict[str, Any], record: LaunchRecord) -> None:
    """Add step, loss and rate of the launch's newest run; a later launch may have gone on in the same folder."""
    folder = _newest_run(record) if record.run_folder else ""
    if not folder:
        return
    from ezpz.cli.runs import glance

    try:
        run = glance(Path(folder), Path(folder))
    except EzpzError:  # a newer ezpz wrote it
        return
    row |= {"step": run["steps"], "loss": run["loss"], "metric": run["metric"], "rate": run["rate"]}
    row |= {"last_row": run["last_row"], "run_folder": folder}
    row["name"] = run["name"] or row["name"]


def _newest_run(record: LaunchRecord) -> str:
    """Return the newest run of a launch; empty where it has none.

    Of one that runs, the record names the run that it had begun with; further ones are in outputs/, or beside that one.
    """
    from ezpz.records.run_record import RunRecord

    known = record.run_folder
    own = {record.launch_id, *(row.launch_id for row in record.attempts)}
    for folder in _beside(known, record) if known and record.state == "running" else filter(None, [known]):
        if not os.path.isfile(f"{folder}/metrics.jsonl"):  # noqa: PTH113  # False where no look is allowed
            continue
        launch = RunRecord.read(f"{folder}/run.json").launch_id
        if launch in own or (not launch and folder == known):  # an older ezpz wrote no id
            return folder
    return ""


def _beside(known: str, record: LaunchRecord) -> list[str]:
    """Return a run of a launch, and other folders that have changed since the launch began, the newest first."""
    name = os.path.dirname(known)  # noqa: PTH120  # outputs/NAME/TIME
    outputs = os.path.dirname(name)  # noqa: PTH120
    began = record.started or 0.0
    names = _folders_since(outputs, began) if record.cwd and outputs == f"{record.cwd}/outputs" else [name]
    from ezpz.track.named import changed

    found = {known, *(folder for name in names for folder in _folders_since(name, began))}
    return sorted(found, key=lambda folder: changed(Path(folder)), reverse=True)[:_MOST]


def _folders_since(place: str, when: float) -> list[str]:
    """Return the folders in a folder in which something was made or removed since then."""
    try:
        with os.scandir(place) as entries:
            return [entry.path for entry in entries if entry.is_dir() and entry.stat().st_mtime >= when - 1.0]
    except OSError:
        return []


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
        for note in _notes(row, now):
            yield from wrapped(visible(note), "    ", more="", width=width or USUAL)


def _when(row: dict[str, Any], now: float) -> str:
    """Return when it starts, how long it may still run, or how long ago it ended."""
    if row["state"] == "queued":
        return f"starts in {age(row['starts'] - now)}" if row["starts"] else "no start yet"
    if row["state"] == "running":
        ran = age(now - row["started"]) if row["started"] else "?"
        return f"{age(row['job_ends'] - now)} left" if row["job_ends"] else f"for {ran}"
    if row["ended"]:
        return f"{age(now - row['ended'])} ago"
    return f"began {age(now - row['started'])} ago" if row["started"] else "-"


def _doubts(row: dict[str, Any], now: float) -> list[str]:
    """Return what makes it doubtful that something goes on which is shown as running, or that it does for long."""
    word = row["scheduler_state"]
    if len(word) > 1 and word != "RUNNING":  # COMPLETING, SUSPENDED; PBS has letters
        return [f"{word} {row['reason']}".rstrip()]
    if row["last_row"] is not None and now - row["last_row"] >= _SILENT:
        return [f"last row {age(now - row['last_row'])} ago"]
    is_told = not row["scheduler_state"] and row["host"] not in {"", os.uname().nodename}
    return [f"on {row['host']}, as its record tells"] if is_told else []


def _notes(row: dict[str, Any], now: float) -> list[str]:
    """Return why it waits, or why it ended; of a job that ended before `launch` where its output is, and its end."""
    if row["state"] == "queued":
        return [row["reason"]] if row["reason"] else []
    if row["state"] == "running":
        return _doubts(row, now)
    if row["state"] == "finished":
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
