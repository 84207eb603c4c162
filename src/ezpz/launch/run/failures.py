"""Find the failure that ended a run among all that were reported, with the line that says it and its exit code."""

from __future__ import annotations

import math
import os
import signal
import time

from ezpz.errors import did_you_mean, shell_code
from ezpz.fields import Record, replace
from ezpz.visible import visible
from ezpz.why.waiting_words import lost_a_peer, waited_in_vain

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from ezpz.launch.agent_messages import Finished, KernelCounts, RankFailed

__all__ = [
    "AGENT_SAID",
    "CANNOT_START",
    "LOST",
    "NODE_FAILED",
    "NOT_STARTED",
    "PASSED_ON",
    "SHIM_CRASHED",
    "SHIM_KILLED",
    "UNREACHED",
    "UNREACHED_BY_ALL",
    "Failure",
    "Limits",
    "Outcome",
    "aborted",
    "earliest",
    "host_lost",
    "host_refused",
    "how",
    "last_words",
    "left_early",
    "log_of",
    "no_script",
    "nodes_failed",
    "rank_failed",
]

# How `Failure.why` begins: a rank died with its shim; its launcher sent it the signal of which it died; the shim itself
# has reported its crash, of which all else is a consequence.
SHIM_KILLED, PASSED_ON, SHIM_CRASHED = "its shim", "its launcher", "the shim"
LOST = "its connection"  # the same of a host
NODE_FAILED = "its node failed"  # of a host that the scheduler has given up, says its launcher
# The same of what did not come: hosts of which nothing was heard in time, a host that ssh does not reach.
NOT_STARTED, UNREACHED = "not started", "not reached"
UNREACHED_BY_ALL = "no other host reaches it"  # how what is held against such a host begins
AGENT_SAID = "its agent: "  # the same, before the last line of an agent that could not report
CANNOT_START = "cannot start"  # of a host whose agent says that it lacks what its ranks need

_REFUSED = 125
_FAR = 2000  # bytes of other output after which a rank's last words are repeated at the end of the screen
_NO_SCRIPT = "can't open file '", "': [Errno 2]"  # before its path and behind it: Modules/main.c
_SHOWN = 3  # failures besides the cause that are named one by one


class Failure(Record):
    """Something that ends the run.

    Attributes:
        who: What failed: ``rank 3 on host n02 (pid 4711)``, ``host n02``, ``mpiexec (pid 12)``.
        how: What happened to it: ``exited with code 3``.
        code: Exit code of the launch.
        at: When, in seconds since 1970 by the launcher's clock.
        rank: The rank; None where it is none.
        host: Its host.
        pid: Its process.
        status: How the process ended, minus the signal for a signal; None where it is no process.
        words: The last that it wrote on stderr.
        shown: Whether those are on the screen already.
        why: What its code does not explain.
        step: The last step that the rank told, -1 if none.
        kernel: What the kernel of its host has counted of memory; None where nothing is known.
        room: Of file systems, where it could not write.
        reason: What torch wrote of why it aborts the rank, which is on the screen, and stands before its words.
    """

    who: str
    how: str
    code: int
    at: float
    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    status: int | None = None
    words: str = ""
    shown: bool = True
    why: str = ""
    step: int = -1
    kernel: Mapping[str, Any] | None = None
    room: tuple[Mapping[str, Any], ...] = ()
    reason: str = ""

    @property
    def is_consequence(self) -> bool:
        """Whether another program did it to the rank, because of something else that will be reported."""
        return self.why.startswith((SHIM_KILLED, PASSED_ON))

    @property
    def asked_to_end(self) -> bool:
        """Whether the rank ended of a SIGTERM that it got from elsewhere, such as from a scheduler."""
        return self.why.startswith(PASSED_ON) and self.code == 128 + signal.SIGTERM

    @property
    def lost_peer(self) -> bool:
        """Whether the rank says no more than that it has lost another one."""
        return lost_a_peer(self.all_words)

    @property
    def waited_in_vain(self) -> bool:
        """Whether it says no more than that others did not come within a time limit of torch's."""
        return waited_in_vain(self.all_words)

    @property
    def all_words(self) -> str:
        """Its reason and its words."""
        return f"{self.reason}{self.words}"

    @property
    def misses_who_left(self) -> bool:
        """Whether it lacks a rank that may have ended with 0; gloo reports such a one as lost, and does not wait."""
        return self.lost_peer or (self.waited_in_vain and "unbound_buffer" not in self.words)

    @property
    def text(self) -> str:
        """The failure as one line."""
        return f"{self.who} {self.how}"


def rank_failed(host: str, report: RankFailed) -> Failure:
    """Return the failure that an agent reports of one of its ranks."""
    kernel = _counted(report.memory)
    words = report.why if report.why.startswith("cannot") else how(report.code)
    if report.code == -signal.SIGKILL and not report.why:
        words += _of_memory(kernel)
    if report.why.startswith((SHIM_KILLED, PASSED_ON)):
        words += f": {report.why}"
    elif report.why.startswith(SHIM_CRASHED):
        words = f"was killed: {report.why}"
    return Failure(
        f"rank {report.rank} on host {host}" + (f" (pid {report.pid})" if report.pid else ""),
        words,
        shell_code(report.code),
        report.at,
        rank=report.rank,
        host=host,
        pid=report.pid,
        status=report.code,
        words=report.words,
        shown=report.shown,
        why=report.why,
        step=report.step,
        kernel=kernel,
        room=tuple(
            {"path": path, "free": free, "files": files, "size": size} for path, free, files, size in report.room
        ),
        reason=report.reason,
    )


def _counted(memory: KernelCounts) -> dict[str, Any] | None:
    """Return what was counted as ``run.json`` has it, None for what is unknown."""
    pairs = {"oom_kill": (memory.before, memory.after), "host_oom_kill": (memory.host_before, memory.host_after)}
    counts = {name: None if min(pair) < 0 else list(pair) for name, pair in pairs.items()}
    if not any(counts.values()):
        return None
    sizes = {"peak": memory.peak, "limit": memory.limit}
    return {"group": memory.group or None, **counts, **{name: None if n < 0 else n for name, n in sizes.items()}}


def _of_memory(kernel: Mapping[str, Any] | None) -> str:
    """Return what the kernel says of a SIGKILL that nothing of ours has sent; empty where that is not known."""
    from ezpz.fields import as_far_as_it_fits
    from ezpz.records.launch_record import Kernel
    from ezpz.why.machine import killed_for_memory, not_killed_for_memory

    counted = as_far_as_it_fits(Kernel, dict(kernel or {}), [])
    proof = killed_for_memory(counted)
    if proof:
        return f": out of memory: {proof}"
    return " (not by launch; the kernel counted no out-of-memory kill)" if not_killed_for_memory(counted) else ""


def aborted(failures: Sequence[Failure]) -> Failure | None:
    """Return the failure of a rank that has ended all others through MPI; None where none says that it has.

    Args:
        failures: All that have come: each of these ranks was killed, and one has written why.
    """
    if not all(failure.is_consequence for failure in failures):
        return None
    from ezpz.why.last_words import mpi_abort

    for failure in failures:
        found = mpi_abort(failure.words)
        if found and found.code:
            does = "called MPI_Abort" if found.call else "was aborted by its MPI"
            words = f"{does} and exited with code {found.code}"
            return replace(failure, how=words, code=found.code, status=found.code, why="")
    return None


def left_early(host: str, report: Finished, lost: Failure) -> Failure:
    """Return the failure of a rank that ended with 0 while another one still needed it, which then failed.

    Args:
        host: The host of the one that has left.
        report: Its end.
        lost: The failure of the other one, whose exit code and words count.
    """
    step = f", its last reported step {report.step}," if report.step >= 0 else ""
    return Failure(
        f"rank {report.rank} on host {host} (pid {report.pid})",
        f"exited with code 0{step} while other ranks still waited for it",
        lost.code,
        report.at,
        rank=report.rank,
        host=host,
        pid=report.pid,
        status=0,
        words=lost.words,
        shown=lost.shown,
    )


def host_lost(host: str, reason: str = f"{LOST} ended, or answered no more") -> Failure:
    """Return the failure of a host whose agent has gone, or gives up."""
    why = reason if reason.startswith((PASSED_ON, LOST)) else ""
    return Failure(f"host {host}", f"is lost: {reason}", _REFUSED, time.time(), host=host, why=why)


def nodes_failed(hosts: Sequence[str], launcher: str, advice: str = "") -> Failure:
    """Return the failure of hosts that the scheduler has given up.

    Args:
        hosts: The hosts; empty where it is not known which they are.
        launcher: What says so.
        advice: What the user can do.
    """
    more = f"; so have {', '.join(hosts[1:])}" if len(hosts) > 1 else ""
    who, what = (f"host {hosts[0]}", f"is lost: {NODE_FAILED}") if hosts else ("the job", "has lost a host")
    words = f"{what}, says {launcher}{more}{f'; {advice}' if advice else ''}"
    return Failure(who, words, _REFUSED, time.time(), host=hosts[0] if hosts else None, why=NODE_FAILED)


def host_refused(host: str, reason: str) -> Failure:
    """Return the failure of a host whose agent has said what keeps its ranks from starting there."""
    text = reason.removesuffix(".")
    return Failure(f"cannot start ranks on {host}:", text, _REFUSED, time.time(), host=host, why=CANNOT_START)


def how(status: int) -> str:
    """Return how a process ended, in words."""
    if status >= 0:
        return f"exited with code {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    return f"was killed by {name}"


def earliest(failures: Iterable[Failure]) -> Failure:
    """Return the cause: what happened by itself before the loss of another rank, that before a killed shim, and that
    before what mpiexec then did to other ranks.
    """
    listed = list(failures)
    killed = min((failure.at for failure in listed if failure.why.startswith(SHIM_KILLED)), default=math.inf)

    def order(failure: Failure) -> tuple[bool, bool, bool, float]:
        # What starts ranks sends SIGTERM to all processes of a host in some order; the rank may be gone before its shim
        # could say that it came from there.
        ended = failure.status == -signal.SIGTERM and not failure.why and failure.at > killed
        return failure.why.startswith(PASSED_ON) or ended, failure.is_consequence, failure.lost_peer, failure.at

    return min(listed, key=order)


def _others(failures: Iterable[Failure], cause: Failure) -> str:
    """Return one line on the failures besides the cause; empty without any."""
    rest = [failure for failure in failures if failure is not cause]
    if not rest:
        return ""
    if len({(failure.how, failure.words.rstrip().rpartition("\n")[2]) for failure in (cause, *rest)}) == 1:
        return f"{len(rest)} other rank{'s'[: len(rest) > 1]} failed in the same way"
    shown = "; ".join(failure.text for failure in rest[:_SHOWN])
    return f"failed as well, later: {shown}" + (f"; and {len(rest) - _SHOWN} more" if len(rest) > _SHOWN else "")


def last_words(outcome: Outcome, since: int, world: int = 0) -> list[str]:
    """Return what belongs at the end of the screen: the other failures, and the last that the cause wrote on stderr.

    Args:
        outcome: How the run ended.
        since: Bytes of output that were shown after the cause.
        world: Which of several worlds it was.
    """
    cause = outcome.cause
    if cause is None:
        return []
    also = _others(outcome.failures, cause)
    words = cause.words.rstrip("\n") if not cause.shown or since > _FAR else ""
    ours = f"ezpz: world {world}:" if world else "ezpz:"
    return [*(f"{ours} {visible(text)}" for text in (also, _what_to_type(cause)) if text), *([words] if words else [])]


def _what_to_type(cause: Failure) -> str:
    """Return what to type where Python did not find its script; empty for other causes."""
    before, behind = _NO_SCRIPT
    path, is_one, _ = cause.words.rpartition(before)[2].partition(behind)
    return no_script(path) if is_one and before in cause.words and "\n" not in path else ""


def no_script(path: str) -> str:
    """Return the line about a script that is not there, with the one that may be meant."""
    folder, name = os.path.split(path)
    try:
        near = did_you_mean(name, (each for each in os.listdir(folder) if each.endswith(".py")))
    except OSError:
        near = f" There is no folder {folder} here."
    return f"there is no script {name} in {folder}; expected one.{near or f' Give its path: PATH/TO/{name}.'}"


def log_of(failure: Failure, log_dir: str, folder: str) -> str:
    """Return the file with the output of the rank that failed; without --log-dir one with its last words, written
    here.
    """
    if failure.rank is None:
        return ""
    path = os.path.join(log_dir or folder, f"rank-{failure.rank}.log")
    if log_dir or not folder or not failure.words or failure.status == 0:  # then the words are another rank's
        return path if log_dir else ""
    try:
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            file.write(failure.all_words)
    except OSError:
        return ""
    return path


# What a run is allowed, and how it ended.


class Limits(Record):
    """Times that the user set, in seconds; None for no limit.

    Attributes:
        start: Until every rank has come up.
        run: Until the run has ended.
        idle: That a rank may show no progress.
        leave: For the other ranks when the first has ended with 0.
        watch: Whether hosts are asked if they live: one that stands still is lost then. No time, but a yes or no.
    """

    start: float | None = 600.0
    run: float | None = None
    idle: float | None = None
    leave: float | None = None
    watch: bool = False


class Outcome:
    """How a run ended, for the exit code and run.json."""

    def __init__(self, code: int = 0, cause: Failure | None = None, failures: list[Failure] | None = None) -> None:
        self.code = code
        self.cause = cause
        self.failures = failures or []
        self.notes: list[str] = []
        self.stopped = False
        self.blamed: dict[str, str] = {}  # hosts at which it lies that no rank could begin, and why
        self.lost: list[str] = []  # hosts whose agent went away before anything was stopped
        self.step: int | None = None  # the furthest that a rank which has ended had told

    def blames(self) -> dict[str, str]:
        """Return the hosts that lack what their ranks need, and what each, or a watcher, has said of it."""
        said = {one.host: one.how.partition("; ")[0] for one in self.failures if one.host and one.why == CANNOT_START}
        return {**self.blamed, **said}
