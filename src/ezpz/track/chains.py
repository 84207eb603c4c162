"""Tell of the chain of jobs to which a run belongs, and find the runs of a chain.

What is read is written by `ezpz submit` and `ezpz.launch.chain` into the folder of the job file: ``chain.json`` (the
limits), ``jobs.json`` (a row for each job that has begun) and ``verdict`` (whether the next one trains).
"""

from __future__ import annotations

import os
from pathlib import Path

from ezpz.files import read_object, read_text
from ezpz.records.launch import LaunchRecord
from ezpz.register import heads
from ezpz.track.launches import find_launch, launch_id_of

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_LIMITS, _JOBS, _VERDICT = "chain.json", "jobs.json", "verdict"


def is_chain(folder: Path) -> bool:
    """Tell whether a folder is that of a chain."""
    return (folder / _LIMITS).is_file()


def chain_of(facts: dict[str, Any]) -> dict[str, Any] | None:
    """Return the state of the chain to which a run belongs; None where it belongs to none, or that is gone.

    Args:
        facts: The ``run.json`` of the run.

    Returns:
        ``folder``; ``job``, how many jobs have begun; ``jobs``, how many there may be; ``waiting``, ids of the jobs in
        the queue; ``verdict``, empty while a job trains.
    """
    folder = _folder_of(facts)
    limits = read_object(Path(folder, _LIMITS)) if folder else {}
    if not limits:
        return None
    known = read_object(Path(folder, _JOBS))
    begun = _rows(known)
    ids = limits.get("ids") if limits.get("queued_at_once") else None
    waiting = known.get("waiting") or ids
    verdict = (read_text(Path(folder, _VERDICT)) or "").strip().partition("\n")[0]
    started = {str(row.get("job")) for row in begun}
    over = verdict not in {"", "again"}  # what waits then was cancelled
    return {
        "folder": folder,
        "job": len(begun),
        "jobs": limits.get("jobs"),
        "waiting": [
            str(job)
            for job in (waiting if isinstance(waiting, list) and not (over and waiting is ids) else ())
            if str(job) not in started
        ],
        "verdict": verdict,
    }


def in_words(chain: Mapping[str, Any]) -> str:
    """Return a line on a chain, from `chain_of`: job 3 of at most 8, next 4711 queued."""
    parts = [f"chain: job {chain['job']} of at most {chain['jobs']}"]
    parts += [f"next {chain['waiting'][0]} queued"] if chain["waiting"] else []
    text = ", ".join(parts)
    return f"{text}; {chain['verdict']}" if chain["verdict"] else text


def run_folders(folder: Path) -> list[Path]:
    """Return the run folders into which the jobs of a chain have written, in their order.

    A job tells its run folder at its end; that of one that runs, or was killed, is found by the record of its launch.
    """
    rows = _rows(read_object(folder / _JOBS))
    found = {str(row.get("job")): str(row.get("run") or "") for row in rows}
    if not all(found.values()):
        here = os.path.realpath(folder)
        for head in heads():
            record = LaunchRecord.read(head.path)
            chain = record.chain
            if chain.folder and os.path.realpath(chain.folder) == here:
                found[chain.job] = found.get(chain.job) or record.run_folder
    return [Path(run) for run in dict.fromkeys(found.values()) if run]


def _folder_of(facts: dict[str, Any]) -> str:
    launch = facts.get("launch")
    named = str(launch.get("EZPZ_CHAIN") or "") if isinstance(launch, dict) else ""
    launch_id = "" if named else launch_id_of(facts)
    found = find_launch(launch_id) if launch_id else None
    return named or (found[1].chain.folder if found else "")


def _rows(known: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = known.get("jobs")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
