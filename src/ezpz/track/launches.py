"""Find the records of this user's launches: one folder per launch, with its ``run.json`` (`ezpz.launch.record`)."""

from __future__ import annotations

import os
from pathlib import Path

from ezpz.files import private_folder, read_object, state_folder

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


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


def launch_id_of(facts: dict[str, Any]) -> str:
    """Return the id of the launch that a run names in its ``run.json``; empty where it was started without one."""
    launch = facts.get("launch")
    return str((launch.get("EZPZ_LAUNCH_ID") or launch.get("launch_id") or "") if isinstance(launch, dict) else "")
