"""Tell what the record of a launch says of a run: how it ended, and which attempt it was of."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from signal import SIGINT, Signals

from ezpz.fields import Record
from ezpz.records.launch_record import Failure, LaunchRecord
from ezpz.why.engine import says_more

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.records.run_record import RunRecord

_HOSTS = 4  # of an attempt that are named
_DECIDES = 300.0  # seconds: a probe, memory that is waited for, and a pause are over by then


def find_launch(launch_id: str) -> tuple[Path, LaunchRecord] | None:
    """Return the ``run.json`` of a launch and what it says of it; None where it is not kept here."""
    from ezpz.register import folders_of  # a list of runs without launches need not

    for folder in folders_of(launch_id):
        path = Path(folder, "run.json")
        record = _record_in(path)
        found = record.of_attempt(launch_id)
        if found is not record or record.launch_id == launch_id:
            return path, found
    return None


def _record_in(path: Path) -> LaunchRecord:
    try:
        about = os.stat(path)  # noqa: PTH116  # for each of 500 runs
    except OSError:
        return LaunchRecord()
    return _record_as_of(path, (about.st_ino, about.st_size, about.st_mtime_ns))


@lru_cache(maxsize=1)  # one run asks several times for its launch
def _record_as_of(path: Path, _: tuple[int, int, int]) -> LaunchRecord:
    return LaunchRecord.read(path)


def launch_cause(launch_id: str) -> tuple[Failure, str]:
    """Return what a launch has found to be the cause of its end, and that as one line."""
    found = find_launch(launch_id)
    return _cause_in(found[1] if found else LaunchRecord())


def stopped_by(launch: LaunchRecord) -> str:
    """Return the signal by which a user or a scheduler ended a launch, in words; empty where none did."""
    number = (launch.exit_code or 0) - 128
    if launch.state != "stopped" or launch.failure.text or number not in set(Signals):
        return ""
    return f"{Signals(number).name}{' (Ctrl-C)' if number == SIGINT else ''}"


def _cause_in(launch: LaunchRecord) -> tuple[Failure, str]:
    cause = launch.failure
    text = cause.text
    words = re.sub(r"(?m)^\[rank\d+\]: ?", "", cause.words).rstrip()
    if text and "Traceback" in words:
        text = f"{text.partition('; stopping')[0]}: {words.rpartition(chr(10))[2]}"
    more = says_more(launch.causes)
    if text and more:
        text = f"{text.partition('; stopping')[0]}; {more}"
    if text and launch.decision and launch.because:  # of `launch --attempts`
        hosts = launch.hosts
        on = f" on {', '.join(hosts) if len(hosts) <= _HOSTS else f'{len(hosts)} hosts'}" if hosts else ""
        text += f"; attempt {launch.attempt}{on}, {launch.decision}: {launch.because}"
    return cause, text


def failed_elsewhere(run: RunRecord, folder: Path) -> str:
    """Return the failure of another rank than 0 that ended the launch of a run, as one line; empty where none did.

    Rank 0 records the run, and may have ended well before it, or have been stopped for it.

    Args:
        run: The ``run.json`` of the run, which has ended.
        folder: The run folder.
    """
    found = find_launch(run.launch_id) if run.launch_id else None
    if found is None:
        return ""
    launch = found[1]
    cause, text = _cause_in(launch)
    if not cause.rank:
        return ""
    newest = launch.run_folder
    # A program that makes several runs may have finished this one before.
    is_older = run.state == "finished" and newest and not _is_same(newest, folder)
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
    found = find_launch(launch_id)
    if found is None:
        return None
    path, mine = found
    if mine.attempt is None or mine.most_attempts is None:
        return None
    newest = _record_in(path)
    rows = newest.attempts
    decision = rows[-1].decision if rows and rows[-1].attempt == newest.attempt else ""
    is_recent = newest.ended is not None and now - newest.ended < _DECIDES
    return Attempt(
        mine.attempt,
        mine.most_attempts,
        f"{mine.decision}: {mine.because}" if mine.decision else "",
        runs=newest.state == "running",
        may_follow=is_recent and decision != "stop",
        host=newest.host,
        newest=newest.launch_id,
    )
