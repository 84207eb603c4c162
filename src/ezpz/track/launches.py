"""Find the records of this user's launches: one folder per launch, with its ``run.json`` (`ezpz.launch.record`)."""

from __future__ import annotations

import os
from pathlib import Path

from ezpz.files import private_folder, read_object, state_folder
from ezpz.records import NamedTuple

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

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
    for path in launches_folder().glob(f"*-{launch_id.rpartition('/')[2][:8]}/run.json"):
        fields = read_object(path)
        attempts = fields.get("attempts")
        rows = [row for row in attempts if isinstance(row, dict)] if isinstance(attempts, list) else []
        mine = next((row for row in rows if row.get("launch_id") == launch_id), {})
        if mine or fields.get("launch_id") == launch_id:
            return path, {**fields, **mine}
    return None


class Attempt(NamedTuple):
    """An attempt of ``launch --attempts N``.

    Attributes:
        number: Its number, from 1 on.
        most: N.
        decided: What was decided at its end, and why: ``again: n02 is retired: …``; empty before.
        runs: Whether the record says that it, or a later one, runs.
        may_follow: Whether another one is to come, or is to be decided about; for a while: a launch may be killed itself.
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
    if path is None or not (isinstance(number, int) and isinstance(most, int)):
        return None
    fields = read_object(path)
    rows = [row for row in fields.get("attempts") or () if isinstance(row, dict)]
    decision = rows[-1].get("decision") if rows and rows[-1].get("attempt") == fields.get("attempt") else None
    ended = fields.get("ended")
    is_recent = isinstance(ended, (int, float)) and now - ended < _DECIDES
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
