"""Find the records of this user's launches: one folder per launch, with its ``run.json`` (`ezpz.launch.record`)."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

from ezpz.fields import Record
from ezpz.files import private_folder, state_folder
from ezpz.why.engine import says_more
from ezpz.why.record import read_launch

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_HOSTS = 4  # of an attempt that are named
_DECIDES = 300.0  # seconds: a probe, memory that is waited for, and a pause are over by then


def launches_folder() -> Path:
    """Return the folder of all records; where there is no home, that in the temporary folder."""
    base, _ = state_folder(os.environ)
    return Path(base, "launches") if base else Path(private_folder("records"))


def launch_records() -> Iterator[Path]:
    """Yield the ``run.json`` of every launch that is kept, the newest first; names begin with the time."""
    yield from sorted(launches_folder().glob("*/run.json"), reverse=True)


def find_launch(launch_id: str) -> tuple[Path, dict[str, Any]] | None:
    """Return the ``run.json`` of a launch and what it says; None where it is not kept here."""
    end = f"-{launch_id.rpartition('/')[2][:8]}"
    folder = launches_folder()
    try:
        names = [name for name in os.listdir(folder) if name.endswith(end)]  # noqa: PTH208  # for each of 500 runs
    except OSError:
        return None
    for name in names:
        path = folder / name / "run.json"
        fields = _fields_of(path)
        rows: list[dict[str, Any]] = fields.get("attempts") or []
        mine = next((row for row in rows if row.get("launch_id") == launch_id), {})
        if mine or fields.get("launch_id") == launch_id:
            return path, {**fields, **mine}
    return None


def _fields_of(path: Path) -> dict[str, Any]:
    try:
        about = os.stat(path)  # noqa: PTH116  # for each of 500 runs
    except OSError:
        return {}
    return _fields_as_of(path, (about.st_ino, about.st_size, about.st_mtime_ns))


@lru_cache(maxsize=1)  # one run asks several times for its launch
def _fields_as_of(path: Path, _: tuple[int, int, int]) -> dict[str, Any]:
    return read_launch(path)


def launch_cause(launch_id: str) -> tuple[dict[str, Any], str]:
    """Return what a launch has found to be the cause of its end, and that as one line."""
    return _cause_in((find_launch(launch_id) or (None, {}))[1])


def _cause_in(launch: dict[str, Any]) -> tuple[dict[str, Any], str]:
    cause = launch.get("cause") or {}
    text = cause.get("text") or ""
    words = re.sub(r"(?m)^\[rank\d+\]: ?", "", cause.get("words") or "").rstrip()
    if text and "Traceback" in words:
        text = f"{text.partition('; stopping')[0]}: {words.rpartition(chr(10))[2]}"
    more = says_more(launch.get("causes"))
    if text and more:
        text = f"{text.partition('; stopping')[0]}; {more}"
    if text and launch.get("decision") and launch.get("because"):  # of `launch --attempts`
        hosts = launch.get("hosts") or ()
        on = f" on {', '.join(hosts) if len(hosts) <= _HOSTS else f'{len(hosts)} hosts'}" if hosts else ""
        text += f"; attempt {launch.get('attempt')}{on}, {launch['decision']}: {launch['because']}"
    return cause, text


def failed_elsewhere(facts: dict[str, Any], folder: Path) -> str:
    """Return the failure of another rank than 0 that ended the launch of a run, as one line; empty where none did.

    Rank 0 records the run, and may have ended well before it, or have been stopped for it.

    Args:
        facts: The ``run.json`` of the run, which has ended.
        folder: The run folder.
    """
    launch_id = launch_id_of(facts)
    _, launch = (find_launch(launch_id) if launch_id else None) or (None, {})
    cause, text = _cause_in(launch)
    if not cause.get("rank"):
        return ""
    newest = launch.get("run_folder")
    # A program that makes several runs may have finished this one before.
    is_older = facts.get("state") == "finished" and newest and not _is_same(newest, folder)
    return "" if is_older else text


def _is_same(one: str, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


class Attempt(Record):
    """An attempt of ``launch --attempts N``.

    Attributes:
        number: Its number, from 1 on.
        most: N.
        decided: What was decided at its end, and why: ``again: n02 is retired: …``; empty before.
        runs: Whether the record says that it, or a later one, runs.
        may_follow: Whether another one is to come, or is to be decided about; for a while: a launch may be killed
            itself.
        host: Where its launch runs.
        newest: The id of the newest attempt's launch.
    """

    number: int
    most: int
    decided: str
    runs: bool
    may_follow: bool
    host: str
    newest: str


def attempt_of(launch_id: str, now: float) -> Attempt | None:
    """Return the attempt with this id; None where it is none of several, or no record of it is kept here."""
    path, mine = find_launch(launch_id) or (None, {})
    number, most = mine.get("attempt"), mine.get("most_attempts")
    if path is None or number is None or most is None:
        return None
    fields = read_launch(path)
    rows = fields.get("attempts") or []
    decision = rows[-1].get("decision") if rows and rows[-1].get("attempt") == fields.get("attempt") else None
    ended = fields.get("ended")
    is_recent = ended is not None and now - ended < _DECIDES
    return Attempt(
        number,
        most,
        f"{mine['decision']}: {mine.get('because')}" if mine.get("decision") else "",
        runs=fields.get("state") == "running",
        may_follow=is_recent and decision != "stop",
        host=str(fields.get("host")),
        newest=str(fields.get("launch_id")),
    )


def launch_id_of(facts: dict[str, Any]) -> str:
    """Return the id of the launch that a run names in its ``run.json``; empty where it was started without one."""
    launch = facts.get("launch")
    return str((launch.get("EZPZ_LAUNCH_ID") or launch.get("launch_id") or "") if isinstance(launch, dict) else "")
