"""Tell of the chain of jobs to which a run belongs, and find the runs of a chain.

What is read is written by `ezpz submit` and `ezpz.jobs.job_chain` into the folder of the job file: ``chain.json`` (the
limits), ``jobs.json`` (a row for each job that has begun) and ``verdict`` (whether the next one trains).
"""

from __future__ import annotations

import os
from pathlib import Path

from ezpz.files import read_text
from ezpz.records.chain_records import CHAIN, JOBS, VERDICT, ChainJobs, ChainLimits
from ezpz.records.launch_record import LaunchRecord
from ezpz.track.launches import find_launch

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ezpz.records.run_record import RunRecord


def is_chain(folder: Path) -> bool:
    """Tell whether a folder is that of a chain."""
    return (folder / CHAIN).is_file()


def chain_of(run: RunRecord) -> dict[str, Any] | None:
    """Return the state of the chain to which a run belongs; None where it belongs to none, or that is gone.

    Args:
        run: The ``run.json`` of the run.

    Returns:
        ``folder``; ``job``, how many jobs have begun; ``jobs``, how many there may be; ``waiting``, ids of the jobs in
        the queue; ``verdict``, empty while a job trains.
    """
    folder = _folder_of(run)
    limits = ChainLimits.read(Path(folder, CHAIN)) if folder else None
    if limits is None or not limits.raw:
        return None
    known = ChainJobs.read(Path(folder, JOBS))
    verdict = (read_text(Path(folder, VERDICT)) or "").strip().partition("\n")[0]
    over = verdict not in {"", "again"}  # what waits then was cancelled
    waiting = known.waiting or (limits.ids if limits.queued_at_once and not over else ())
    begun = {row.job for row in known.jobs}
    return {
        "folder": folder,
        "job": len(known.jobs),
        "jobs": limits.jobs,
        "waiting": [job for job in waiting if job not in begun],
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
    found = {row.job: row.run for row in ChainJobs.read(folder / JOBS).jobs}
    if not all(found.values()):
        from ezpz.register import heads  # which the list of runs need not

        here = os.path.realpath(folder)
        for head in heads():
            record = LaunchRecord.read(head.path)
            chain = record.chain
            if chain.folder and os.path.realpath(chain.folder) == here:
                found[chain.job] = found.get(chain.job) or record.run_folder
    return [Path(run) for run in dict.fromkeys(found.values()) if run]


def _folder_of(run: RunRecord) -> str:
    named = run.launch.get("EZPZ_CHAIN", "")
    found = find_launch(run.launch_id) if run.launch_id and not named else None
    return named or (found[1].chain.folder if found else "")
