"""Find this user's launches by their records, whichever host they run on, and ask those that run elsewhere.

A record (`ezpz.launch.record`) lies in the home that hosts share, and says on which host its launch runs, and in which
job. `ezpz.launch.run.requests` hears what is asked by a file beside it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from ezpz.cli.columns import aligned
from ezpz.cli.running import age
from ezpz.errors import MachineError, UsageError
from ezpz.files import read_object, write_whole
from ezpz.launch.run.requests import FOLDER
from ezpz.track.launches import launch_records
from ezpz.visible import visible
from ezpz.why.record import as_launch, read_launch

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_SHORTEST = 4  # characters of an id that may stand for it
_LOOK = 0.25  # seconds between two looks for an answer
_HEARD = 5.0  # seconds besides for the launch to look, and for a file to show on another host


def recorded(*, running: bool = False) -> list[dict[str, Any]]:
    """Return this user's launches as their records tell them, the newest first, each with the ``folder`` of its record.

    Args:
        running: Only those that have not recorded an end.
    """
    found, seen = [], set()
    for path in launch_records():
        fields = read_object(path)
        launch = fields.get("launch_id")
        if not isinstance(launch, str) or launch in seen or (running and fields.get("state") != "running"):
            continue
        seen.add(launch)  # several links may lead to one --log-dir
        found.append({**as_launch(fields), "folder": str(path.parent.resolve())})
    return found


def job_of(fields: dict[str, Any]) -> str:
    """Return the job of a launch; empty without one."""
    return (fields.get("plan") or {}).get("job_id") or ""


def host_of(fields: dict[str, Any]) -> str:
    """Return the host where a launch runs."""
    return fields.get("host") or next(iter((fields.get("plan") or {}).get("hosts") or ()), "")


def is_job(fields: dict[str, Any], word: str) -> bool:
    """Tell whether a word names the job of a launch: ``12.head``, or its number alone."""
    job = job_of(fields)
    return bool(job) and word in {job, job.partition(".")[0]}


def launch_named(launches: Sequence[dict[str, Any]], word: str) -> dict[str, Any] | None:
    """Return the launch that a word means: that of this job, or the one whose id begins so; None when there is none.

    Raises:
        UsageError: Several are meant.
    """
    matches = [fields for fields in launches if is_job(fields, word)]
    if not matches and len(word) >= _SHORTEST:
        matches = [fields for fields in launches if str(fields["launch_id"]).startswith(word)]
        matches = [fields for fields in matches if fields["launch_id"] == word] or matches
    if len(matches) > 1:
        ids = ", ".join(str(fields["launch_id"]) for fields in matches)
        raise UsageError(
            f"{word!r} means {len(matches)} launches (from the command line): {ids}; expected one of them."
        )
    return matches[0] if matches else None


def table_elsewhere(launches: Sequence[dict[str, Any]]) -> str:
    """Return a line per launch on another host: id, job, host, age, ranks, command."""
    import shlex

    rows: list[tuple[str, ...]] = [("ID", "JOB", "HOST", "AGE", "RANKS", "COMMAND")]
    for fields in launches:
        took = age(time.time() - (fields.get("started") or time.time()))
        command = shlex.join(fields.get("command") or ())
        ranks = str((fields.get("plan") or {}).get("world_size", "?"))
        cells = (fields["launch_id"], job_of(fields) or "-", host_of(fields), took, ranks, command)
        rows.append(tuple(visible(str(cell)) for cell in cells))
    return "\n".join(aligned(rows))


def ask_elsewhere(fields: dict[str, Any], word: str, patience: float) -> dict[str, Any]:
    """Ask a launch on another host by a file in the folder of its record, and return its answer.

    Args:
        fields: The launch, from `recorded`.
        word: ``stacks``, ``end`` or ``kill``.
        patience: Seconds for the answer, besides those for the request to be seen.

    Raises:
        MachineError: It does not answer, or the folder cannot be written.
    """
    folder = Path(fields["folder"], FOLDER)
    launch = str(fields["launch_id"])
    who = f"launch {launch} on {host_of(fields)}" + (f" (job {job_of(fields)})" if job_of(fields) else "")
    name = os.urandom(4).hex()
    question, answer = folder / f"{name}.ask", folder / f"{name}.answer"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        write_whole(question, f"{word} {launch} {os.uname().nodename}\n", private=True)
    except OSError as error:
        raise MachineError(
            f"cannot ask {who}: {folder}: {error.strerror}; expected the folder of its record to be writable from here."
        ) from None
    end = time.monotonic() + patience + _HEARD
    try:
        while time.monotonic() < end:
            if answer in folder.iterdir():  # a folder that is opened is asked of its server anew
                return read_object(answer)
            if read_object(folder.parent / "run.json").get("state") != "running":
                return read_object(answer) or {"ended": True}
            time.sleep(_LOOK)
    except FileNotFoundError:  # it took the folder away: it has ended
        return {"ended": True}
    finally:
        for path in (question, answer):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            if read_object(folder.parent / "run.json").get("state") != "running":
                folder.rmdir()
    raise MachineError(
        f"{who} has not answered within {patience + _HEARD:.0f} s; expected an answer beside its record. It may have "
        "been lost with its host or be stopped, or its `launch` be of an older ezpz: ask the scheduler for its job."
    )


def wait_for_end(fields: dict[str, Any], patience: float) -> dict[str, Any]:
    """Wait until the record of a launch tells its end, and return what it says by then."""
    end = time.monotonic() + patience
    while True:
        now = read_launch(Path(fields["folder"], "run.json"))
        if (now and now.get("state") != "running") or time.monotonic() >= end:
            return now
        time.sleep(_LOOK)
