r"""Read from a log how its launcher says that ranks ended.

torchrun (torch 2.13, torch/distributed/elastic/multiprocessing/errors/__init__.py):

    train.py FAILED
    Failures:
    [1]:
      time      : 2025-05-21_15:43:03
      host      : n01
      rank      : 2 (local_rank: 2)
      exitcode  : 1 (pid: 14752)
      error_file: <N/A>
      traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
    Root Cause (first observed failure):
    [0]:
      …
      exitcode  : -9 (pid: 14750)
      traceback : Signal 9 (SIGKILL) received by PID 14750

srun and slurmstepd (Slurm 17 to 24):

    srun: error: n02: task 3: Exited with exit code 1
    srun: error: n01: tasks 0-1: Segmentation fault (core dumped)
    srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
    slurmstepd: error: Detected 1 oom_kill event in StepId=123.0. Some of the step tasks have been OOM Killed.
    slurmstepd: error: *** STEP 123.0 ON n01 CANCELLED AT 2024-04-20T09:09:37 DUE TO TIME LIMIT ***

Open MPI 4 and 5; Intel MPI; MPICH:

    mpirun noticed that process rank 1 with PID 0 on node n01 exited on signal 9 (Killed).
      Process name: [[51022,1],1]
      Exit code:    3
    =   RANK 1 PID 4711 RUNNING AT n01
    =   KILLED BY SIGNAL: 9 (Killed)
    Abort(7) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 7) - process 1

PBS:

    =>> PBS: job killed: walltime 3620 exceeded limit 3600
"""

from __future__ import annotations

import re
import signal

from ezpz.fields import Record

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["JobEnd", "ReportedEnd", "is_reported", "job_end", "left_early", "memory_kills", "reported_ends"]

_MOST_TASKS = 4096
_FIRST = "Root Cause (first observed failure):"
_SECTION = re.compile(r"(?m)^ {0,8}(?:Failures:|Root Cause \(first observed failure\):)[ \t]*$")
_ENTRY = re.compile(
    r"(?m)^ {0,8}host {1,6}: (?P<host>\S{1,255})[ \t]*\n"
    r" {0,8}rank {1,6}: (?P<rank>\d{1,7}) \(local_rank: \d{1,7}\)[ \t]*\n"
    r" {0,8}exitcode {1,4}: (?P<code>-?\d{1,9}) \(pid: (?P<pid>\d{1,9})\)[^\n]{0,80}\n {0,8}error_file: [^\n]{0,4096}\n"
)
_RULE = re.compile(r"(?m)^ {0,8}(?:\[\d{1,7}\]:|[-=]{10,})")
_CLOSING = re.compile(r"Sending process \d{1,9} closing signal")
_SRUN = re.compile(
    r"(?m)^srun: error: (?P<host>\S{1,255}): tasks? (?P<tasks>[\d,-]{1,4096}): (?P<how>[A-Z][A-Za-z -]{1,60}?)"
    r"(?: exit code (?P<code>\d{1,4}))?(?: \(core dumped\))?[ \t]*$"
)
_SRUN_ENDS = re.compile(r"(?m)^srun: (?:Job step aborted|launch/slurm: _step_signal|Force Terminated)")
_HOW = {  # strsignal(3) of glibc, as srun has it
    "Hangup": signal.SIGHUP,
    "Interrupt": signal.SIGINT,
    "Illegal instruction": signal.SIGILL,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating point exception": signal.SIGFPE,
    "Killed": signal.SIGKILL,
    "Segmentation fault": signal.SIGSEGV,
    "Terminated": signal.SIGTERM,
    "Out Of Memory": signal.SIGKILL,
}
_OOM_KILLS = re.compile(r"slurmstepd: error: Detected (\d{1,6}) oom[-_]kill event")
_CANCELLED = re.compile(
    r"\*\*\* (?P<what>JOB|STEP) (?P<job>[\w.+]{1,60}) ON \S{1,255} CANCELLED AT (?P<when>[\w:.-]{1,40})"
    r"(?: DUE TO (?P<why>[A-Za-z ]{1,60}?))?(?:,[^*\n]{0,200})? \*\*\*"
)
_PBS_KILLED = re.compile(r"(?m)^=>> PBS: job killed: (?P<why>[^\n]{1,200})")
_MPIRUN = re.compile(
    r"noticed that process rank (?P<rank>\d{1,7}) with PID (?P<pid>\d{1,9})\s{1,3}on node\s{1,3}"
    r"(?P<host>\S{1,255})\s{1,3}exited on\s{1,3}signal (?P<signal>\d{1,3})"
)
_PROCESS = re.compile(
    r"(?m)^ {1,4}Process name: \[[^\n]{1,120},(?P<rank>\d{1,7})\][ \t]*\n {1,4}Exit code: {1,8}(?P<code>\d{1,4})"
)
_HYDRA = re.compile(
    r"(?m)^= {1,4}RANK (?P<rank>\d{1,7}) PID (?P<pid>\d{1,9}) RUNNING AT (?P<host>\S{1,255})[ \t]*\n"
    r"= {1,4}(?:KILLED BY SIGNAL: (?P<signal>\d{1,3})|EXIT STATUS: (?P<code>\d{1,4}))"
)
_MPICH = re.compile(
    r"(?m)^Abort\((?P<code>-?\d{1,10})\) on node \d{1,7} \(rank (?P<rank>\d{1,7}) in comm 0\): [^\n]{0,400}"
)


class ReportedEnd(Record):
    """How a launcher says that a rank ended.

    Attributes:
        rank: The rank.
        status: Its exit code, or minus the signal.
        by: The launcher.
        host: Its host; empty where it is not said.
        pid: Its process; 0 where it is not said.
        words: The traceback that torchrun has of it, or MPICH's line.
        is_first: Whether the launcher says that it was the first.
        is_consequence: Whether the launcher had begun to end all ranks.
    """

    rank: int
    status: int
    by: str
    host: str = ""
    pid: int = 0
    words: str = ""
    is_first: bool = False
    is_consequence: bool = False


class JobEnd(Record):
    """How a scheduler ended the job, or a person by it.

    Attributes:
        text: The same in words.
        is_limit: Whether its time was over.
    """

    text: str
    is_limit: bool = False


def is_reported(text: str) -> bool:
    """Tell whether a launcher's own words are in a text: it is then no log of one rank."""
    return bool(
        _SECTION.search(text)
        or _SRUN.search(text)
        or _MPIRUN.search(text)
        or _PROCESS.search(text)
        or _HYDRA.search(text)
    )


def reported_ends(text: str) -> list[ReportedEnd]:
    """Return the ends of ranks that a launcher reports, in its order."""
    return [*_of_torchrun(text), *_of_srun(text), *_of_mpi(text)]


def left_early(text: str) -> list[int]:
    """Return the ranks that torchrun neither reports as failed nor had to end: they had ended with 0 before.

    Of one host alone: each torchrun knows its own ranks. Ranks above all that it reports are not known to exist.
    """
    ends = list(_of_torchrun(text))
    if not ends or len({end.host for end in ends}) > 1 or _CLOSING.search(text):
        return []
    ranks = {end.rank for end in ends}
    return [rank for rank in range(max(ranks)) if rank not in ranks]


def memory_kills(text: str) -> int:
    """Return how many processes of a step the kernel has killed for want of memory, as Slurm says."""
    return max((int(count) for count in _OOM_KILLS.findall(text)), default=0)


def job_end(text: str) -> JobEnd | None:
    """Return how the scheduler ended the job; None where it does not say that it did."""
    found = _CANCELLED.search(text)
    if found:
        why = (found["why"] or "").strip().upper()
        what = f"{found['what'].lower()} {found['job']}"
        if why == "TIME LIMIT":
            return JobEnd(f"Slurm ended {what} at {found['when']}: its time limit was over", is_limit=True)
        reason = f": {why.lower()}" if why else ", which somebody or something had cancelled"
        return JobEnd(f"Slurm ended {what} at {found['when']}{reason}")
    found = _PBS_KILLED.search(text)
    return JobEnd(f"PBS ended the job: {found['why']}", is_limit="walltime" in found["why"]) if found else None


def _of_torchrun(text: str) -> Iterator[ReportedEnd]:
    sections = [(found.start(), _FIRST in found[0]) for found in _SECTION.finditer(text)]
    for found in _ENTRY.finditer(text):
        before = [is_first for start, is_first in sections if start < found.start()]
        if not before:
            continue
        rule = _RULE.search(text, found.end())
        words = text[found.end() : rule.start() if rule else len(text)].partition("traceback : ")[2]
        yield ReportedEnd(
            int(found["rank"]),
            int(found["code"]),
            "torchrun",
            host=found["host"],
            pid=int(found["pid"]),
            words=re.sub(r"(?m)^  ", "", words).rstrip() if words.startswith("Traceback") else "",
            is_first=before[-1],
            is_consequence=not before[-1] and int(found["code"]) in {-signal.SIGTERM, -signal.SIGKILL},
        )


def _of_srun(text: str) -> Iterator[ReportedEnd]:
    ending = _SRUN_ENDS.search(text)
    from_then = ending.start() if ending else len(text)
    for found in _SRUN.finditer(text):
        if found["code"] is None and found["how"] not in _HOW:
            continue
        status = -_HOW[found["how"]] if found["code"] is None else int(found["code"])
        told = status in {-signal.SIGKILL, -signal.SIGTERM} and found["how"] != "Out Of Memory"
        for rank in _numbers(found["tasks"]):
            yield ReportedEnd(
                rank, status, "srun", host=found["host"], is_consequence=told and found.start() > from_then
            )


def _of_mpi(text: str) -> Iterator[ReportedEnd]:
    for pattern, by in ((_MPIRUN, "mpirun"), (_PROCESS, "mpirun"), (_HYDRA, "mpiexec"), (_MPICH, "MPICH")):
        for found in pattern.finditer(text):
            parts = {"signal": "", "code": "", "host": "", "pid": "", **found.groupdict()}
            status = -int(parts["signal"]) if parts["signal"] else int(parts["code"]) & 0xFF or 1
            words = found[0] if by == "MPICH" else ""
            yield ReportedEnd(int(found["rank"]), status, by, parts["host"] or "", int(parts["pid"] or 0), words)


def _numbers(tasks: str) -> list[int]:
    """Return the tasks of ``0-2,5``; what is malformed is left out."""
    numbers: list[int] = []
    for part in tasks.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            numbers += range(int(first), min(int(last or first), int(first) + _MOST_TASKS) + 1)
    return numbers[:_MOST_TASKS]
