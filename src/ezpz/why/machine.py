"""Rules about the machine under a run: memory that ran out, full disks, broken devices, signals from elsewhere.

They look at the failures of the launch's record: how each rank ended, what it wrote last, and what the kernel of its
host has counted (``kernel`` of ``cause`` and ``failures`` in ``run.json``, docs/runs.md).
"""

from __future__ import annotations

import signal

from ezpz.why.cause import Cause, Certainty
from ezpz.why.last_words import (
    aborted_after_exception,
    broken_device,
    crash,
    full_disk,
    mpi_abort,
    named_file,
    raised_in,
    refused_memory,
    said_before_crash,
)
from ezpz.why.waiting_words import waited_in_vain
from ezpz.why.what_to_try import BY_SIGNAL, ON_SHM

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from ezpz.records.launch_record import Failure, Kernel, Room
    from ezpz.why.known_facts import Facts

__all__ = ["MACHINE_RULES", "killed_for_memory", "refuses_memory", "size_in_words"]

# A program's own fault, which the kernel answers with a signal.
_CRASHES = {"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGSYS", "SIGTRAP"}
_BY_SHELLS = {
    signal.SIGKILL,
    signal.SIGTERM,
    signal.SIGSEGV,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGILL,
    signal.SIGFPE,
    signal.SIGXCPU,
    signal.SIGXFSZ,
    signal.SIGPIPE,
}
_SHOWN = 3  # of what is named one by one
_FULL = 1 << 20  # bytes: where fewer are free, a file system is full
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_BY_LAUNCHER = "its launcher sent it"  # how `why` of a failure begins
_BY_SHIM = "its shim"


def size_in_words(size: float) -> str:
    """Return a number of bytes with the largest unit that it fills: ``8 GiB``, ``1.5 MiB``."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.3g} {_UNITS[unit]}" if value < 1000 else f"{value:.0f} {_UNITS[unit]}"


# Memory


def killed_for_memory(kernel: Kernel) -> str:
    """Return the evidence that the kernel has killed for want of memory around a rank; empty without any.

    A counter of the rank's control group decides, where it can be read: that of the host counts what happens to
    strangers as well.

    Args:
        kernel: ``kernel`` of a failure.
    """
    before, after = kernel.oom_kill
    if before is not None and after is not None:
        if after <= before:
            return ""
        limit = f"its cgroup's limit of {size_in_words(kernel.limit)}" if kernel.limit else ""
        whose = limit or "the host's memory was used up"
        return f"{whose}, oom_kill {before} → {after}"
    before, after = kernel.host_oom_kill
    if before is None or after is None or after <= before:
        return ""
    return f"the kernel of its host, oom_kill {before} → {after}"


def not_killed_for_memory(kernel: Kernel) -> bool:
    """Tell whether it is known that the kernel has killed nothing for want of memory around a rank."""
    for before, after in (kernel.oom_kill, kernel.host_oom_kill):
        if before is not None and after is not None:
            return after <= before
    return False


def _out_of_memory(facts: Facts) -> Iterator[Cause]:
    """The kernel has killed a rank, or what it had started, for want of memory."""
    failures = [each for each in _failures(facts) if each.rank is not None]
    hit = [each for each in failures if killed_for_memory(each.kernel)]
    killed = [each for each in hit if each.signal == "SIGKILL"]
    for failure in (killed or [each for each in hit if _lost_a_child(each)])[:1]:
        kernel = failure.kernel
        proof = killed_for_memory(kernel)
        of_group = kernel.oom_kill != (None, None)
        whom = "was killed" if killed else "lost a process that it had started, which was killed"
        text = f"{facts.who(failure.rank or 0)} {whom} by the kernel, out of memory: {proof}"
        evidence = [f"oom_kill of {kernel.group if of_group else 'the host'}: {proof.rpartition('oom_kill ')[2]}"]
        if kernel.peak:
            evidence.append(f"the most that its cgroup used: {size_in_words(kernel.peak)}")
        yield Cause(
            cause="out-of-memory",
            text=text,
            # A group's counter is of this rank or of what lived beside it; the host's of anything there.
            certainty=Certainty.SEEN if of_group or not killed else Certainty.SHOWN,
            **_place(failure),
            evidence=tuple(evidence),
            consequences=_others(facts, failure),
            advice=_MORE_MEMORY,
        )


_MORE_MEMORY = (
    "Ask the scheduler for more memory (--mem, or mem= of select), or use less: a smaller batch, fewer ranks or "
    "workers of the loader per host, --activation-checkpointing; `ezpz simulate` says what a step needs"
)


_CHILD_KILLED = ("killed by signal: Killed", "exited unexpectedly", "died with <Signals.SIGKILL", "BrokenProcessPool")


def _lost_a_child(failure: Failure) -> bool:
    """Tell whether something was killed that a rank had started: its program under a shell, a worker of a loader."""
    return _signal(failure) == "SIGKILL" or any(sign in failure.words for sign in _CHILD_KILLED)


def refuses_memory(facts: Facts) -> str:
    """Return ``host`` or ``device`` where the first rank that failed was refused memory, and not killed; else empty."""
    failure = _first(facts)
    if failure is None or _was_told(failure) or killed_for_memory(failure.kernel):
        return ""
    return refused_memory(failure.words)


def _refused_memory(facts: Facts) -> Iterator[Cause]:
    """A rank asked for memory, got none, and ended by itself: no process was killed."""
    failure, where = _first(facts), refuses_memory(facts)
    if failure is None or not where:
        return
    raised = raised_in(failure.words)
    evidence = (f"it raised {raised.text}",) if raised else ()
    who, place = facts.who(failure.rank or 0), _place(failure)
    if where == "device":
        text = f"{who} needed more memory than its device has left"
        advice = "Use a smaller batch or shard the model; `ezpz simulate` says what a step needs"
        yield Cause("out-of-device-memory", text, Certainty.SEEN, **place, evidence=evidence, advice=advice)
        return
    text = f"{who} was refused memory that it asked for; the kernel killed nothing"
    advice = "See `ulimit -v` and the size that it asked for: a limit of the process, or one request that is too large"
    yield Cause("memory-refused", text, Certainty.SEEN, **place, evidence=evidence, advice=advice)


# Disks


def _disk_full(facts: Facts) -> Iterator[Cause]:
    """A rank could not write because its disk is full, or a quota used up."""
    failure = _first(facts)
    if failure is None or failure.rank is None or _was_told(failure):
        return
    full_words = full_disk(failure.words)
    full = [each for each in failure.room if _is_full(each)]
    if not full_words and not full:
        return
    named = named_file(failure.words)
    at = full[:1] if named else full  # one that has room is not named: a quota, or room that was made since
    where = f" on {' or '.join(each.path for each in at[:_SHOWN])}" if at else f" for {named}" if named else ""
    is_quota = "quota" in full_words.lower() or "122" in full_words or "EDQUOT" in full_words
    what = "has used up its quota" if is_quota else "found no space left"
    yield Cause(
        cause="disk-full",
        text=f"{facts.who(failure.rank)} {what}{where}" + (f" ({_free(at[0])})" if len(at) == 1 else ""),
        certainty=Certainty.SEEN,
        **_place(failure),
        evidence=(
            *([full_words + (f": {named}" if named else "")] if full_words else ()),
            *(f"{each.path}: {_free(each)}" for each in failure.room),
        ),
        consequences=_others(facts, failure),
        advice=ON_SHM if "/dev/shm" in where else _MAKE_ROOM.format(where) if where else "Make room",  # noqa: S108
    )


_MAKE_ROOM = "Make room{}, then start it again; `ezpz doctor` looks at quotas"


def _is_full(room: Room) -> bool:
    return room.free < _FULL or room.files == 0


def _free(room: Room) -> str:
    files = ", no more files" if room.files == 0 else ""
    return f"{size_in_words(room.free)} of {size_in_words(room.size)} free at its end{files}"


# Devices


def _device_fault(facts: Facts) -> Iterator[Cause]:
    """The driver of a rank's device reports that this is broken."""
    for failure in _failures(facts):
        found = broken_device(failure.words)
        if found and failure.rank is not None and not _was_told(failure):
            yield Cause(
                cause="device-fault",
                text=f"{facts.who(failure.rank)} ended of a fault of its device: {found}",
                certainty=Certainty.SEEN,
                **_place(failure),
                evidence=(f"the driver's words: {found}",),
                consequences=_others(facts, failure),
                advice=f"Leave the host out: `--exclude {failure.host}`; `launch --attempts` does so by itself",
            )
            return


# Signals


def _crashed(facts: Facts) -> Iterator[Cause]:
    """A signal for a fault of its own ended a rank: it is quoted where that was."""
    failure = _first(facts)
    name = _ended_of(failure)
    if failure is None or name not in _CRASHES or killed_for_memory(failure.kernel):
        return
    if name == "SIGABRT" and (aborted_after_exception(failure.words) or waited_in_vain(failure.words)):
        return  # what it raised is the cause, or for whom NCCL's watchdog waited
    found = crash(failure.words)
    where, seen = "", []
    if found and found.where:
        where = f" at {found.where}"
    elif found and found.is_ending:
        step = f", after step {failure.step}" if failure.step is not None else ""
        where = f" while it ended{step}"
    elif found and found.main:
        where = " in a thread that runs no Python of yours"
        seen.append(f"its main thread was at {found.main}")
    elif not found:
        where = ", in code that is no Python or asserts something"
    if found:
        seen.append("the stack that Python wrote as it crashed")
    seen += [f"it wrote before that: {line}" for line in said_before_crash(failure.words)]
    did = "crashed" if failure.signal else "ended with its program, which crashed"
    advice = _CORE
    if name == "SIGBUS":
        advice = _NO_PAGE
    if name == "SIGILL":
        seen += _of_one_host(facts, failure)
        advice = _OTHER_CPU
    yield Cause(
        cause="crashed",
        text=f"{facts.who(failure.rank or 0)} {did} with {name}{where}",
        certainty=Certainty.SEEN,
        **_place(failure),
        evidence=tuple(seen),
        consequences=_others(facts, failure),
        advice=advice,
    )


_CORE = "`ulimit -c unlimited` keeps a core, and `gdb python3 core` shows the functions in C"
_NO_PAGE = (
    "A page of mapped memory had nothing behind it: look for a full /dev/shm or disk (`df -h /dev/shm`), or a mapped "
    "file that was shortened"
)
_OTHER_CPU = (
    "An instruction that this CPU does not have: look for code that was built for another CPU (-march=native, a wheel "
    "with AVX-512), and compare `lscpu` of the hosts"
)


def _of_one_host(facts: Facts, failure: Failure) -> list[str]:
    """Return that a signal ended ranks of one host of several alone, as a list of at most one."""
    hosts = {each.host for each in _failures(facts) if _signal(each) == _signal(failure)}
    if len(facts.launch.plan.hosts) < 2 or hosts != {failure.host}:
        return []
    return [f"only ranks of {failure.host} ended of it: its CPU may be of another kind than that of the other hosts"]


def _killed_by_signal(facts: Facts) -> Iterator[Cause]:
    """A signal that is none of a crash ended a rank: a limit of the kernel's, or sent by somebody else."""
    failure = _first(facts)
    name = _ended_of(failure)
    if failure is None or not name or name in _CRASHES or killed_for_memory(failure.kernel):
        return
    kernel = failure.kernel
    evidence = []
    if name == "SIGKILL" and not_killed_for_memory(kernel):
        evidence.append(
            "the kernel counted no out-of-memory kill in its cgroup"
            if kernel.oom_kill[0] is not None
            else "the kernel of its host counted no out-of-memory kill"
        )
        before, after = kernel.host_oom_kill
        if before is not None and after is not None and after > before:
            evidence.append(f"it counted {after - before} elsewhere on the host meanwhile")
    by, advice = "which launch did not send", _WHO_SIGNALS
    if failure.why.startswith(_BY_LAUNCHER):
        by = "which the program that started it had sent"
    elif failure.why.startswith(_BY_SHIM):
        by = "because the process in front of it was killed"
    elif facts.of_logs:
        by = "and nothing says who sent it"
    else:
        by, advice = BY_SIGNAL.get(name, (by, advice))
    what = "was" if failure.signal else "ended with its program, which was"
    yield Cause(
        cause="killed-by-signal",
        text=f"{facts.who(failure.rank or 0)} {what} killed by {name}, {by}",
        certainty=Certainty.SEEN,
        **_place(failure),
        evidence=tuple(evidence),
        consequences=_others(facts, failure),
        advice=advice,
    )


_WHO_SIGNALS = (
    "The kernel tells a process's parent no sender: look at who may signal it, such as the scheduler's own log, or a "
    "person's `kill`"
)


MACHINE_RULES = (_out_of_memory, _disk_full, _device_fault, _refused_memory, _crashed, _killed_by_signal)


# What a record says


def _failures(facts: Facts) -> Sequence[Failure]:
    """Return the failures of a launch that was not ended from outside, that which ended it first."""
    return () if facts.launch.state in {"stopped", "finished"} else facts.launch.failed


def _first(facts: Facts) -> Failure | None:
    failures = _failures(facts)
    return failures[0] if failures else None


def _signal(failure: Failure) -> str:
    """Return the signal of which a rank ended, itself or what it ran: a shell then exits with 128 and the number."""
    if failure.signal:
        return failure.signal
    number = failure.code - 128 if failure.code is not None else 0
    return signal.Signals(number).name if number in _BY_SHELLS else ""


def _ended_of(failure: Failure | None) -> str:
    """Return the signal that ended a rank, itself or what it ran; empty without one, or where its MPI ended all."""
    if failure is None or failure.rank is None or mpi_abort(failure.words):
        return ""
    return _signal(failure)


def _was_told(failure: Failure) -> bool:
    """Tell whether somebody's signal ended a rank: what it wrote before it had outlived."""
    return _signal(failure) in {"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"}


def _place(failure: Failure) -> dict[str, Any]:
    return {"rank": failure.rank, "host": failure.host or None, "step": failure.step}


def _others(facts: Facts, failure: Failure) -> tuple[str, ...]:
    """Return what happened to the other ranks, a short sentence each."""
    rest = [each for each in _failures(facts) if each is not failure and each.text]
    more = (f"{len(rest) - _SHOWN} more ranks failed",) if len(rest) > _SHOWN else ()
    return (*(each.text for each in rest[:_SHOWN]), *more)
