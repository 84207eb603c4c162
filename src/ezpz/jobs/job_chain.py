"""Run the launch of one job of a chain: jobs that train one after the other until the training is done.

`ezpz submit --until-done` writes a job file that exports ``EZPZ_CHAIN``, a folder in which jobs find what they know of
each other; nothing here is imported without it.

    chain.json      of `ezpz submit`: {"file": "job.slurm", "ids": ["12"], "jobs": 10, "queued_at_once": false, …}
    jobs.json       {"jobs": [{"job": "12", "restarts": 0, "began": 1795188151.2, "verdict": "again", …}],
                    "waiting": ["13"], "queueing": false}
    saved.json      {"number": 1, "step": 400}: the newest complete save that ranks have reported
    verdict         one line: done, again, or stop: why
    lease-000001    who may work on the chain (`ezpz.launch.chain_lease`)
    STOP            made by a person, or by `ezpz kill` with a line that says so: no further job begins to train

The next job is queued when a job starts, so that it ages meanwhile, and depends on that one's end. Whether it may
train is decided at that end, by the verdict (`ezpz.jobs.chain_verdict`), which it takes away when it starts: a job
that dies without leaving another stops the chain.
"""

from __future__ import annotations

import contextlib
import json
import os
import time

from ezpz.cluster.scheduler import schedulers
from ezpz.errors import EzpzError, LaunchError, UsageError
from ezpz.fields import replace
from ezpz.files import read_bytes, read_text, write_whole
from ezpz.jobs.chain_verdict import AGAIN, DONE, STOP, UNDECIDED, Ending, is_from_outside, read, verdict
from ezpz.jobs.job_handler import handler, lack
from ezpz.jobs.job_state import OVER, QUEUED, RUNNING, UNKNOWN, Job
from ezpz.jobs.queued_jobs import ask, cancel, submit
from ezpz.launch.chain_lease import HeldError, Lease, take
from ezpz.launch.decision import Clock
from ezpz.launch.session import say
from ezpz.records.chain_records import CHAIN, JOBS, SAVED, VERDICT, ChainJob, ChainJobs, ChainLimits, ChainSave
from ezpz.records.launch_record import Failure, LaunchRecord

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from ezpz.jobs.job_state import Call
    from ezpz.launch.session import Session
    from ezpz.records.lease_record import LeaseEntry

__all__ = ["VARIABLE", "Chain", "run_in_chain", "stop_chain_of"]

VARIABLE = "EZPZ_CHAIN"
_PATIENCE = 10.0  # seconds for chain.json: a job may begin before `ezpz submit` has written it
_LOOK = 0.2  # seconds
_LONGEST_REASON = 200  # characters of a file STOP
_TO_CANCEL = 5.0  # seconds for the jobs that wait, in one that starts and must end at once
_STOP_FILE = "STOP"


def run_in_chain(session: Session, launch: Callable[[], int]) -> int:
    """Run the launch of a job of a chain if it may train, leave a verdict, and return the exit code.

    Args:
        session: Gets what ``run.json`` says of the chain.
        launch: Runs the launch of that session.

    Raises:
        EzpzError: Another job works on the chain, its files cannot be used, or the ranks could not be started.
    """
    chain = Chain(os.environ)
    refused = chain.enter()
    if refused:
        say(refused)
        return 0
    session.fields.update(chain.fields())
    try:
        code = launch()
    except EzpzError as error:
        chain.leave(LaunchRecord(exit_code=error.exit_code, cause=Failure(str(error))))
        raise
    except BaseException:  # a signal before the ranks were started, or a mistake of ours
        cause = Failure("the launch was ended before its ranks began")
        chain.leave(LaunchRecord(exit_code=1, stopped=True, cause=cause))
        raise
    chain.leave(_end_of(session.folder, code))
    return code


def stop_chain_of(launch: LaunchRecord, why: str) -> str:
    """Have no further job train of the chain to which a launch belongs, and return the file that asks for it.

    Args:
        launch: The record of the launch; one of no chain is left alone, and so is a chain that is to stop already.
        why: What its jobs say of it.

    Raises:
        OSError: The chain's folder cannot be written.
    """
    folder = launch.chain.folder
    path = os.path.join(folder, _STOP_FILE)
    if not folder or not os.path.isdir(folder) or os.path.exists(path):
        return ""
    write_whole(path, f"{why}\n", closed=True)
    return path


class Chain:
    """The chain to which this job belongs.

    Args:
        environ: With `VARIABLE` and the variables of a job.
        run: Asks the scheduler; by default its commands on PATH.

    Raises:
        UsageError: There is no such folder, or no job.
    """

    def __init__(self, environ: Mapping[str, str], run: Call | None = None) -> None:
        self.folder = environ[VARIABLE]
        self._run = run
        found = [(one.name, one.job_id(environ)) for one in schedulers() if one.job_id(environ)]
        if not found:
            raise UsageError(
                f"cannot use the chain {self.folder} (from {VARIABLE}): this shell is in no job of a scheduler; "
                f"expected one that `ezpz submit --until-done` has queued. Run `unset {VARIABLE}` to launch without it."
            )
        handled = [(name, job) for name, job in found if handler(name)]
        if not handled:
            raise UsageError(f"{lack(found[0][0], 'chain')} (from {VARIABLE}={self.folder}).")
        self._scheduler, self._job = handled[0]
        self._limits = ChainLimits()
        self._rows: list[ChainJob] = []
        self._waiting: list[str] = []
        self._queueing = False
        self._lease: Lease | None = None
        self._job_started: float | None = None  # as the scheduler says

    # At the start of a job

    def enter(self) -> str:
        """Take the lease and queue the next job; return an empty text, or why this job may not train.

        Raises:
            EzpzError: Another job works on the chain, or its files cannot be used.
        """
        self._limits = self._read_limits()
        found = self._found_verdict()
        if found and found != AGAIN:
            self._take_free_lease()
            return self._refuse(found)
        mine = self._ask(self._job)
        self._job_started = mine.start if mine.state == RUNNING else None
        self._lease = self._take_lease(mine)
        try:
            self._read_jobs()  # what a job has written that held the lease until now
            found = self._found_verdict()
            if not found and self._rows:
                found = self._judge_the_dead(mine)
            if (not found or found == AGAIN) and len(self._rows) >= self._most:
                found = f"{STOP}all {self._most} jobs of the chain have run"
            if found and found != AGAIN:
                self._conclude(found)
                return self._refuse(found)
            self._begin(mine)
        except OSError as error:
            self._lease.give_back()
            raise self._not_writable(error) from None
        except BaseException:  # whatever ends the start: the lease is not kept
            self._lease.give_back()
            raise
        return ""

    def fields(self) -> dict[str, Any]:
        """Return what ``run.json`` of the launch says of the chain."""
        chain = {"folder": self.folder, "number": len(self._rows), "jobs": self._limits.jobs, "job": self._job}
        return {"chain": chain, "job_started": self._job_started}

    def _read_limits(self) -> ChainLimits:
        path, end = self._path(CHAIN), time.monotonic() + _PATIENCE
        while True:
            limits = ChainLimits.read(path)
            if limits.file:
                if limits.jobs is None:
                    raise self._foreign(CHAIN, "a number of jobs")
                return limits
            if time.monotonic() >= end or not os.path.isdir(self.folder):
                raise UsageError(
                    f"cannot use the chain {self.folder} (from {VARIABLE}): there is no {CHAIN} in it that names a "
                    "job file; expected what `ezpz submit --until-done` writes. Submit the chain again."
                )
            time.sleep(_LOOK)

    def _entry(self, restarts: int) -> dict[str, Any]:
        return {"job": self._job, "scheduler": self._scheduler, "restarts": restarts, "host": os.uname().nodename}

    def _take_free_lease(self) -> None:
        """Take the lease for the moment of an end without training, if nobody has it, and read what jobs have left."""
        with contextlib.suppress(HeldError, OSError):
            self._lease = take(self.folder, self._entry(0), lambda _: False)
        try:
            self._read_jobs()
        except UsageError as error:  # it is left as it is
            say(f"note: {error}")
            if self._lease is not None:
                self._lease.give_back()
                self._lease = None

    def _take_lease(self, mine: Job) -> Lease:
        def is_over(held: LeaseEntry) -> bool:
            if held.job == self._job:  # an earlier start of this very job, which the scheduler has ended
                return held.restarts < mine.restarts
            return self._ask(held.job or "unknown").state in OVER

        try:
            lease = take(self.folder, self._entry(mine.restarts), is_over)
        except HeldError as error:
            raise LaunchError(
                f"cannot train in the chain {self.folder}: {error}; expected one job at a time. Wait until it is over, "
                "or cancel it."
            ) from None
        except OSError as error:
            raise self._not_writable(error) from None
        try:
            lease.keep()
        except OSError as error:
            lease.give_back()
            raise LaunchError(
                f"cannot keep the lease of the chain {self.folder}: no process can be started ({error.strerror}); "
                "expected room for two. Submit the job file again."
            ) from None
        return lease

    def _judge_the_dead(self, mine: Job) -> str:
        """Return the verdict on the last job, which has left none; `AGAIN` alone lets this one train."""
        row = self._rows[-1]
        state = mine if row.job == self._job else self._ask(row.job)
        row = self._measure(row.step)
        ending = Ending(
            row=None,
            state=state,
            is_newer=row.newer,
            idle=self._idle(self._rows[:-1]),
            restarts=row.restarts,
        )
        found = verdict(ending, Clock(now=time.time(), end=row.job_ends))
        self._rows[-1] = row.changed(verdict=found)
        say(f"job {row.job} has left no verdict; {found}")
        return found

    def _begin(self, mine: Job) -> None:
        number = len(self._rows) + 1
        row = {"job": self._job, "restarts": mine.restarts, "began": round(time.time(), 3), "verdict": None}
        self._rows.append(ChainJob.of(row))
        self._waiting = [job for job in self._waiting if job != self._job]
        self._write_jobs()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(VERDICT))  # from now on, no verdict means that this job has died
        say(f"job {number} of at most {self._most} of the chain {self.folder}")
        if number < self._most and not self._limits.queued_at_once:
            self._queue_next()

    def _queue_next(self) -> None:
        """Queue the job that follows this one, unless one waits already."""
        for job in self._waiting:
            if self._ask(job).state in {QUEUED, RUNNING, UNKNOWN}:
                return
        if self._queueing:
            say("note: an earlier start of this job may have queued the next one, so none is queued")
            return
        self._queueing = True
        self._write_jobs()
        path = self._path(self._limits.file)
        try:
            job = submit(path, after=self._job)
        except EzpzError as error:
            say(f"note: the next job of the chain is not queued: {error}")
        else:
            self._waiting = [job]
            say(f"job {job} is queued, and trains when this one leaves the verdict again")
        self._queueing = False
        self._write_jobs()

    # At its end

    def leave(self, launch: LaunchRecord) -> None:
        """Leave the verdict on this job, cancel what must not follow, and give the lease back.

        Args:
            launch: The record of the launch.
        """
        assert self._lease is not None
        try:
            if not self._lease.is_ours():
                say(f"note: another job has taken {self.folder} over; this one leaves no verdict")
                return
            lost = self._lease.lost()
            mine = self._measure(launch.step)
            stop, clock = self._found_stop(), Clock(now=time.time(), end=launch.job_ends)
            ending = Ending(
                row=launch,
                state=self._ask(self._job) if is_from_outside(launch) and not stop else None,
                is_newer=mine.newer,
                idle=self._idle(self._rows[:-1]),
                restarts=mine.restarts,
                stop=stop,
            )
            found = f"{STOP}its lease was lost: {lost}" if lost else verdict(ending, clock)
            if found in {AGAIN, UNDECIDED} and len(self._rows) >= self._most:
                found = f"{STOP}all {self._most} jobs of the chain have run"
            ended = {"ended": round(time.time(), 3), "exit_code": launch.exit_code, "job_ends": clock.end}
            self._rows[-1] = mine.changed(**ended, run=launch.run_folder or None)
            if found == UNDECIDED:
                self._write_jobs()
                say(f"chain {self.folder}: the next job asks the scheduler why this one was ended")
                return
            self._rows[-1] = self._rows[-1].changed(verdict=found)
            self._conclude(found)
            say(f"chain {self.folder}: {found}{self._next_words(found)}")
        except OSError as error:  # a full disk: no verdict starts nothing
            say(f"note: no verdict is left in {self.folder}: {error.strerror}; the next job will not train")
        finally:
            self._lease.give_back()

    def _next_words(self, found: str) -> str:
        if found != AGAIN:
            return ""
        if self._waiting or self._limits.queued_at_once:
            return f"; job {self._waiting[0]} follows" if self._waiting else "; the next job is queued"
        return "; no job waits: submit its job file again by hand"

    def _conclude(self, found: str) -> None:
        """Write a verdict, and cancel what must not follow it."""
        write_whole(self._path(VERDICT), f"{found}\n", closed=True, sync=True)
        self._write_jobs()
        if found != AGAIN:
            self._cancel_waiting()

    def _refuse(self, found: str) -> str:
        self._cancel_waiting()
        if self._lease is not None:
            self._lease.give_back()
        end = "the training is done" if found == DONE else found
        return f"chain {self.folder}: {end}; job {self._job} ends without training"

    def _cancel_waiting(self) -> None:
        """Cancel the jobs that wait, the last one first: each may begin when the one before it is gone."""
        begun = {row.job for row in self._rows}
        jobs = [
            job for job in dict.fromkeys([*self._limits.ids, *self._waiting]) if job not in begun and job != self._job
        ]
        problems = cancel(self._scheduler, jobs[::-1], self._run, _TO_CANCEL) if jobs else {}
        for job, problem in problems.items():
            say(f"note: job {job} still waits ({problem}); it will end at once when it starts")
        left = list(problems)
        if left != self._waiting:
            self._waiting = left
            with contextlib.suppress(OSError):
                self._write_jobs()

    # What is known

    def _measure(self, step: int | None) -> ChainJob:
        """Note in the row of the last job how far it has come, and whether that is further than all before it."""
        save, earlier = ChainSave.read(self._path(SAVED)), self._rows[:-1]
        saved = save.step if save.number == len(self._rows) else None
        of_saves = saved is not None or any(each.saved is not None for each in earlier)
        reached = saved if of_saves else step
        furthest = max(
            (each for row in earlier if (each := row.saved if of_saves else row.step) is not None), default=-1
        )
        # A save of a step that is not known counts: the program that makes it says that it is one.
        newer = reached is not None and (reached > furthest or (of_saves and reached < 0))
        self._rows[-1] = self._rows[-1].changed(saved=saved, step=step, newer=newer)
        return self._rows[-1]

    def _idle(self, rows: Sequence[ChainJob]) -> int:
        idle = 0
        for row in reversed(rows):
            if row.newer:
                break
            idle += 1
        return idle

    def _found_verdict(self) -> str:
        """Return what a job finds that begins; empty where the one before it has left nothing."""
        stop = self._found_stop()
        return f"{STOP}{stop}" if stop else read(read_text(self._path(VERDICT)))

    def _found_stop(self) -> str:
        """Return what a file STOP asks for, in words; empty without one."""
        path = self._path(_STOP_FILE)
        if not os.path.exists(path):
            return ""
        line = (read_text(path) or "").strip().partition("\n")[0]
        return (
            f"{line[:_LONGEST_REASON]} (remove {_STOP_FILE} to go on)" if line else f"a file {_STOP_FILE} asks for it"
        )

    def _ask(self, job: str) -> Job:
        return ask(self._scheduler, job, self._run) if self._run else ask(self._scheduler, job)

    @property
    def _most(self) -> int:
        """How many jobs the chain may have."""
        return self._limits.jobs or 0

    def _read_jobs(self) -> None:
        """Read what the jobs before this one have left; a job that began without would count from one again.

        Raises:
            UsageError: It is torn, or not of this chain.
        """
        try:
            known = json.loads(read_bytes(self._path(JOBS)))
        except FileNotFoundError:
            known = {"jobs": []}
        except (OSError, ValueError, RecursionError):
            known = None
        wrong: list[str] = []
        found = ChainJobs.of(known if isinstance(known, dict) else {}, wrong)
        is_whole = found.raw.get("jobs") is not None and all(row.job and "restarts" in row.raw for row in found.jobs)
        if not is_whole or not {"jobs", "jobs.job", "jobs.restarts"}.isdisjoint(wrong):
            raise self._foreign(JOBS, "a list of jobs")
        self._rows, self._waiting, self._queueing = list(found.jobs), list(found.waiting), found.queueing

    def _write_jobs(self) -> None:
        """Write `jobs.json`, which who holds the lease alone may do: others would write what they read before."""
        if self._lease is None or not self._lease.is_ours():
            return
        rows = [dict(row.raw) for row in self._rows]
        fields = {"jobs": rows, "waiting": self._waiting, "queueing": self._queueing}
        _write_object(self._path(JOBS), fields)

    def _foreign(self, name: str, what: str) -> UsageError:
        return UsageError(
            f"cannot read {self._path(name)} (from {VARIABLE}): it does not hold {what}; expected what `ezpz submit` "
            "and `launch` write there. No job of this chain trains until it is mended, or the chain is submitted again."
        )

    def _not_writable(self, error: OSError) -> UsageError:
        return UsageError(
            f"cannot write into {self.folder} (from {VARIABLE}): {error.strerror}; expected a folder that this job "
            "may write. Make room there, or submit the chain into another."
        )

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)


def _end_of(folder: str, code: int) -> LaunchRecord:
    """Return the record of a launch that has ended; where that says no end, what its exit code says."""
    known = LaunchRecord.read(os.path.join(folder, "run.json")) if folder else LaunchRecord()
    if known.exit_code is None:
        return LaunchRecord(exit_code=code, stopped=code > 128)
    return replace(known, exit_code=code, stopped=known.state == "stopped", hosts=known.plan.hosts)


def _write_object(path: str, fields: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(fields, indent=1) + "\n", closed=True, sync=True)
