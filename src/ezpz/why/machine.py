"""Rules about the machine under a run: memory that ran out, full disks, broken devices, signals from elsewhere.

They look at the failures of the launch's record: how each rank ended, what it wrote last, and what the kernel of its
host has counted (``kernel`` of ``cause`` and ``failures`` in ``run.json``, docs/runs.md).
"""

from __future__ import annotations

import signal

from ezpz.why.cause import Cause, Certainty
from ezpz.why.last_words import aborted_after_exception, broken_device, full_disk, named_file, refused_memory

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from ezpz.records.launch_record import Failure, Kernel, Room
    from ezpz.why.known_facts import Facts

__all__ = ["MACHINE_RULES", "killed_for_memory", "size_in_words"]

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


def _refused_memory(facts: Facts) -> Iterator[Cause]:
    """A rank asked for memory, got none, and ended by itself: no process was killed."""
    failure = _first(facts)
    where = refused_memory(failure.words) if failure and not _was_told(failure) else ""
    if failure is None or not where or killed_for_memory(failure.kernel):
        return
    if where == "device":
        text = f"{facts.who(failure.rank or 0)} needed more memory than its device has left"
        advice = "Use a smaller batch or shard the model; `ezpz simulate` says what a step needs"
        yield Cause("out-of-device-memory", text, Certainty.SEEN, **_place(failure), advice=advice)
        return
    text = f"{facts.who(failure.rank or 0)} was refused memory that it asked for; the kernel killed nothing"
    advice = "See `ulimit -v` and the size that it asked for: a limit of the process, or one request that is too large"
    yield Cause("memory-refused", text, Certainty.SEEN, **_place(failure), advice=advice)


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
        advice=f"Make room{where}, then start it again; `ezpz doctor` looks at quotas" if where else "Make room",
    )


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


def _killed_by_signal(facts: Facts) -> Iterator[Cause]:
    """A signal ended a rank: of its own fault, or sent by somebody else."""
    failure = _first(facts)
    name = _signal(failure) if failure else ""
    if failure is None or not name or failure.rank is None or killed_for_memory(failure.kernel):
        return
    did, what = (
        ("crashed", "was")
        if failure.signal
        else ("ended with its program, which crashed", "ended with its program, which was")
    )
    if name == "SIGABRT" and aborted_after_exception(failure.words):
        return  # what it raised is the cause
    if name in _CRASHES:
        yield Cause(
            cause="crashed",
            text=f"{facts.who(failure.rank)} {did} with {name}, in code that is no Python or asserts something",
            certainty=Certainty.SEEN,
            **_place(failure),
            consequences=_others(facts, failure),
            advice="PYTHONFAULTHANDLER=1 has Python write where it was; `ulimit -c unlimited` keeps a core",
        )
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
    if failure.why.startswith(_BY_LAUNCHER):
        by = "which the program that started it had sent"
    elif failure.why.startswith(_BY_SHIM):
        by = "because the process in front of it was killed"
    else:
        by = "which launch did not send"
    yield Cause(
        cause="killed-by-signal",
        text=f"{facts.who(failure.rank)} {what} killed by {name}, {by}",
        certainty=Certainty.SEEN,
        **_place(failure),
        evidence=tuple(evidence),
        consequences=_others(facts, failure),
        advice="The kernel tells a process's parent no sender: look at who may signal it, such as the scheduler's own "
        "log, or a person's `kill`",
    )


MACHINE_RULES = (_out_of_memory, _disk_full, _device_fault, _refused_memory, _killed_by_signal)


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
