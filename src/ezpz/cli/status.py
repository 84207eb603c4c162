"""Run ``ezpz status``: this user's jobs and launches in one table, with step, loss and the time to the end."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from ezpz.cli import make_verb_parser
from ezpz.cli.columns import aligned
from ezpz.cli.elsewhere import host_of, job_of
from ezpz.cli.running import age, left_behind, left_lines
from ezpz.cli_parser import option, run_verb
from ezpz.cluster.my_jobs import my_jobs, scheduler_questions, user_name
from ezpz.files import open_regular, read_bytes
from ezpz.track.launches import launches_folder
from ezpz.visible import painter, shorten, show, use_color, visible
from ezpz.why.record import as_launch

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence
    from typing import Any

    from ezpz.cluster.job_listing import Job

_OPTIONS = (option("--json", action="store_true", help="one JSON object: rows, and what did not answer"),)
_ABOUT = """\
Jobs of yours that wait, run or ended within a day, as the scheduler tells them, with their launches; and launches
without a job. The scheduler is asked one question, and not again for 30 s."""
_EXAMPLES = (("ezpz status", "what waits, what runs and how far it is, what ended and why"),)
_RECENT = 86400.0  # seconds: what ended earlier is left out
_LOST = 30 * 86400.0  # seconds: a launch that says it is running for longer was lost with its host
_MOST = 20  # rows of what has ended
_WIDTH = 80
_SHORTEST = 8  # columns of a name that is too long
_TAIL = 4096  # bytes of a job's output, for its last line
_TITLES = ("JOB", "STATE", "HOSTS", "STEP", "LOSS", "TIME", "WHAT")
_RIGHT = {2, 3, 4}
_STATES = {"queued": "minor", "running": "busy", "finished": "good", "ended": "doubtful", "stopped": "doubtful"}


def main(argv: Sequence[str]) -> int:
    """Print the table and return the exit code."""
    return run_verb(make_verb_parser("status", _OPTIONS, _ABOUT, usage="[--json]", examples=_EXAMPLES), argv, _status)


def _status(options: Namespace) -> int:
    now = time.time()
    jobs, silent = my_jobs(os.environ, user_name(), scheduler_questions())
    rows, running = _rows(jobs, _launches(now), now), _running_here()
    left = [] if running is None else left_behind(running)
    if options.json:
        show(json.dumps({"rows": rows, "silent": silent, "left_behind": left}, indent=2))
        return 0
    lines = [*(_table(rows, now) if rows else ()), *map(visible, left_lines(left))]
    lines += [f"not answered within 15 s, or failed: {', '.join(silent)}; its jobs are missing here"] if silent else []
    lines = lines or ["no job and no launch of yours waits, runs or ended within a day"]
    show("\n".join(lines), colors=True)
    return 0


# Launches, by their records


def _launches(now: float) -> list[dict[str, Any]]:
    """Return the launches that run or ended within a day, the newest first; records of others are not decoded."""
    found, seen, ended = [], set(), 0
    try:
        with os.scandir(launches_folder()) as entries:
            names = sorted((entry.name for entry in entries), reverse=True)  # they begin with the time
    except OSError:
        return []
    for name in names:
        path = os.path.join(launches_folder(), name, "run.json")  # noqa: PTH118  # 100 of them
        try:
            age_of_record = now - os.stat(path).st_mtime  # noqa: PTH116  # as above
            with open(path, "rb", opener=open_regular) as file:  # as above
                is_running = b'"state": "running"' in file.read(65536)
        except OSError:
            continue
        if age_of_record > (_LOST if is_running else _RECENT) or (not is_running and ended >= _MOST):
            continue
        fields = _read_record(path)
        if not fields.get("launch_id") or fields["launch_id"] in seen:
            continue
        seen.add(fields["launch_id"])
        ended += fields.get("state") != "running"
        found.append({**fields, "folder": str(Path(path).parent)})
    return found


def _read_record(path: str) -> dict[str, Any]:
    """Return a launch's record without ``stages``, which has a number for every rank; empty where it cannot be read.

    It is written with one line for each key, so that those of a nested object can be cut out before they are decoded.
    """
    try:
        data = read_bytes(path)
    except OSError:
        return {}
    begin = data.find(b'\n "stages": {\n')
    end = data.find(b"\n },", begin)
    if 0 <= begin < end:
        data = data[:begin] + data[end + len(b"\n },") :]
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return as_launch(value) if isinstance(value, dict) else {}


# Rows: a job with its last launch, a job without one, a launch without a job


def _rows(jobs: Sequence[Job], launches: Sequence[dict[str, Any]], now: float) -> list[dict[str, Any]]:
    """Return what is shown, as JSON can hold it: what waits first, then what runs, then what has ended, newest last."""
    of_job: dict[str, dict[str, Any]] = {}
    alone = []
    known = {each.job for each in jobs}
    for fields in launches:
        job = job_of(fields)
        if job in known:
            of_job.setdefault(job, fields)
        else:
            alone.append(fields)
    recent = [each for each in jobs if each.state != "ended" or each.end is None or now - each.end < _RECENT]
    rows = [_of_job(each, of_job.get(each.job), now) for each in recent]
    rows += [_of_launch(fields, now) for fields in alone]
    order = {"queued": 0, "running": 1}

    def place(row: dict[str, Any]) -> tuple[int, float]:
        return order.get(row["state"], 2), row["ended"] or row["started"] or row["starts"] or 0.0

    rows.sort(key=place)
    over = [row for row in rows if row["state"] not in order]
    return [row for row in rows if row["state"] in order] + over[-_MOST:]


def _of_job(job: Job, launch: dict[str, Any] | None, now: float) -> dict[str, Any]:
    row = _of_launch(launch, now) if launch else _empty()
    waits = job.state == "queued"
    over = job.state == "ended"
    row |= {
        "job": job.job,
        "name": job.name or row["name"],
        "queue": job.queue,
        "hosts": job.hosts,
        "scheduler_state": job.word,
        "reason": job.reason,
        "started": None if waits else job.start or row["started"],
        "starts": job.start if waits else None,
        "job_ends": job.end if job.state == "running" else None,
        "ended": job.end if over else None,
        "output": job.output or row["output"],
    }
    if not over:
        row["state"] = job.state
    elif launch is None or row["state"] == "running":  # it ended before `launch`, or took it along
        row["state"] = "finished" if job.word == "COMPLETED" or (job.word == "F" and job.exit_code == 0) else "ended"
        row["last_line"] = _last_line(row["output"]) if row["state"] == "ended" else ""
    return row


def _empty() -> dict[str, Any]:
    texts = dict.fromkeys(("name", "queue", "scheduler_state", "reason", "output", "last_line", "cause", "host"), "")
    names = ("job", "launch_id", "hosts", "started", "starts", "job_ends", "ended", "step", "loss", "metric", "rate")
    return {**dict.fromkeys(names), **texts, "state": "ended", "record": None, "run_folder": None, "exit_code": None}


def _of_launch(fields: dict[str, Any], now: float) -> dict[str, Any]:
    running = fields.get("state") == "running"
    row = _empty() | {
        "job": job_of(fields) or None,
        "launch_id": fields["launch_id"],
        "host": host_of(fields),
        "name": _command(fields),
        "hosts": len((fields.get("plan") or {}).get("hosts") or ()) or None,
        "state": str(fields.get("state")),
        "started": fields.get("started"),
        "ended": fields.get("ended"),
        "job_ends": fields.get("job_ends") if running else None,
        "exit_code": fields.get("exit_code"),
        "cause": ((fields.get("cause") or {}).get("text") or "").partition("; stopping")[0],
        "output": fields.get("output") or "",
        "step": fields.get("step"),
        "record": fields["folder"],
        "run_folder": fields.get("run_folder"),
    }
    if running and row["host"] == os.uname().nodename and not _lives_here(fields["launch_id"]):
        row |= {"state": "ended", "cause": "its launcher is gone and could not say why"}
    elif running and row["job_ends"] and row["job_ends"] < now - 600:
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


def _lives_here(launch: str) -> bool:
    running = _running_here()
    return running is None or any(each.get("launch_id") == launch for each in running)


def _running_here() -> list[dict[str, Any]] | None:
    """Return the launches that run on this host; None where that cannot be told."""
    from ezpz.errors import MachineError
    from ezpz.launch.record import Index

    try:
        return Index().running()
    except (MachineError, OSError):
        return None


def _command(fields: dict[str, Any]) -> str:
    """Return the name of the program: that of its script or module."""
    words: list[str] = fields.get("command") or []
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
    from textwrap import wrap

    paint = painter(use_color(sys.stdout))
    head, *texts = aligned([_TITLES, *(_cells(row, now) for row in rows)], _RIGHT)
    yield paint(head, "minor")
    for row, text in zip(rows, texts, strict=True):
        name = visible(row["name"])  # last in its line; one that is too long loses its middle
        start = text[: len(text) - len(name)] if name else text
        yield paint(f"{start}{shorten(name, max(_SHORTEST, _WIDTH - len(start)))}", _STATES.get(row["state"], "bad"))
        for note in _notes(row):
            yield from (f"    {line}" for line in wrap(visible(note), _WIDTH - 4, break_on_hyphens=False))


def _cells(row: dict[str, Any], now: float) -> tuple[str, ...]:
    loss = row["loss"]
    return (
        visible(str(row["job"] or row["launch_id"] or "-"))[:12],
        visible(row["state"]),
        "-" if row["hosts"] is None else str(row["hosts"]),
        "-" if row["step"] is None else str(row["step"]),
        f"{loss:.4g}" if isinstance(loss, (int, float)) else "-" if loss is None else str(loss),
        _when(row, now),
        visible(row["name"]),
    )


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
