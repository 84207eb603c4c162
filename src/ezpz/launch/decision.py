"""Decide what follows when an attempt of a launch has ended: another one, on which hosts, or the end, and why.

`decide` is a pure function of what is recorded of the attempts, of what a probe of the hosts has found, and of the
clock. Its rules, in order:

1. success, a user's signal, a limit that the user set and a usage error stop; so does the end of the allocation, which
   the clock tells, never an exit code;
2. a full disk, the same exception at the same step twice, the same reason twice why no rank may begin, and three
   attempts without a newer step stop;
3. a host is retired on evidence: its agent never came up, was lost or was killed while other hosts lived, it lacks
   what its ranks need and most others do not, or the driver of its devices reports that one is broken;
4. without evidence every host is probed, and retired where the probe fails there;
5. where nobody fails, the same hosts are used again, after a pause.

A rank that is killed or crashes is no evidence against its host, whatever its exit code and its words.
"""

from __future__ import annotations

import re

from ezpz.fields import Record
from ezpz.launch.host.process_stacks import Frame
from ezpz.launch.run.failures import LOST, NODE_FAILED, NOT_STARTED, UNREACHED, UNREACHED_BY_ALL
from ezpz.launch.stack_groups import locate
from ezpz.records.launch_record import Attempt, ProbedHost
from ezpz.why.last_words import broken_device, ending, full_disk, without_rank_tags

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "Again",
    "Attempts",
    "Clock",
    "Raised",
    "Stop",
    "decide",
    "is_cut_short",
    "needs_probe",
    "raised",
]

_MOST_IDLE = 3  # attempts without a newer step
_LEAST_LEFT = 60.0  # seconds of the allocation that an attempt needs
_ENDED_BY_IT = 120.0  # seconds before its end in which a signal is taken for that of the end
_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds; each attempt without evidence waits twice as long as the one before
_ANSWERED = 0.9  # of the other hosts, before silence counts against one
_NOT_RUN = {126, 127}  # the command is not executable, not found
_TIME_LIMIT, _USAGE = 124, 2
# What a driver, or a network, says without saying what is wrong: it may be a device, its user before, or a peer.
_UNCLEAR_DEVICE = re.compile(
    r"(?i)busy or unavailable|(?:CUDA|HIP) error: unknown error|NCCL(?:(?!NCCL).)*unhandled system error"
)
_FRAME = re.compile(r'^\s+File "(.+)", line (\d+), in (.+)')
_EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)")


class Attempts(Record):
    """What is known of a launch and its attempts.

    Attributes:
        limit: How many attempts there may be.
        hosts: All hosts that may be used, in the order of the allocation.
        wanted: How many of them an attempt needs.
        rows: Each attempt, the last one at the end.
    """

    limit: int
    hosts: tuple[str, ...]
    wanted: int
    rows: tuple[Attempt, ...]


class Clock(Record):
    """The time, and that at which the allocation ends, in seconds since 1970-01-01 UTC; None where it is unknown."""

    now: float
    end: float | None = None


class Again(Record):
    """Another attempt.

    Attributes:
        hosts: Its hosts, in the order of the allocation.
        because: Why, in a sentence.
        retired: Hosts that are used no more from now on, and the evidence against each.
        pause: Seconds to wait before.
    """

    hosts: tuple[str, ...]
    because: str
    retired: Mapping[str, str]
    pause: float = 0.0


class Stop(Record):
    """No further attempt.

    Attributes:
        because: Why, in a sentence.
        retired: Hosts against which there is evidence, as of `Again`.
    """

    because: str
    retired: Mapping[str, str]


class Raised(Record):
    """A Python exception: its type, and the line of the user's own code that it came from; of no file without one."""

    name: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.name} at {self.file.rpartition('/')[2]}:{self.line}" if self.file else self.name


def decide(attempts: Attempts, probe: Mapping[str, ProbedHost] | None, clock: Clock) -> Again | Stop:
    """Return what follows the last attempt.

    Args:
        attempts: All attempts so far, at least one.
        probe: What a probe has found on each host after the last attempt; None where none was made.
        clock: The time.
    """
    row = attempts.rows[-1]
    stop = _is_over(row, clock) or _cannot_help(attempts)
    evidence = _evidence(row, attempts.rows[:-1])
    if stop:
        return Stop(stop, evidence if not row.stopped and row.exit_code else {})
    failed = {**evidence, **({} if evidence or probe is None else _failed(probe))}
    retired = {**_retired(attempts), **failed}
    if len(attempts.rows) >= attempts.limit:
        return Stop(f"that was the last (--attempts {attempts.limit})", failed)
    left = tuple(host for host in attempts.hosts if host not in retired)
    if len(left) < attempts.wanted:
        have = f"{len(left)} of {len(attempts.hosts)} hosts {'is' if len(left) == 1 else 'are'} left"
        return Stop(f"{have}, and {attempts.wanted} are needed; {_listed(retired)}", failed)
    hosts = left[: attempts.wanted]
    if failed:
        return Again(hosts, _listed(failed), failed)
    passed = probe is not None and all(verdict.answered for verdict in probe.values())
    found = "all pass the probe" if passed else "none fails the probe"
    calm = sum(1 for each in attempts.rows if not each.retired)  # this one included
    pause = min(_LONGEST_PAUSE, _PAUSE * 2 ** (calm - 1))
    return Again(hosts, f"no host is to blame ({_cause(row)}), and {found}", {}, pause)


def needs_probe(attempts: Attempts, clock: Clock) -> bool:
    """Tell whether the hosts are to be probed before `decide` is asked: another attempt comes, and nothing is known."""
    row = attempts.rows[-1]
    if len(attempts.rows) >= attempts.limit or _evidence(row, attempts.rows[:-1]):
        return False
    return not (_is_over(row, clock) or _cannot_help(attempts))


# Rule 1


def _is_over(row: Attempt, clock: Clock) -> str:
    """Return why nothing can follow, whatever failed; empty else."""
    if row.verdict == "again":
        return f"it has saved before the end of the job; {_START_AGAIN}"
    if row.verdict == "stop":
        return "it was asked to save and to end"
    if row.exit_code == 0:
        return "it has succeeded"
    return _by_clock_or_signal(row, clock) or _by_usage(row)


def _by_clock_or_signal(row: Attempt, clock: Clock) -> str:
    if row.stopped and not row.hang:
        node = _cause(row) if row.failure.why.startswith(NODE_FAILED) else ""
        return node or is_cut_short(clock) or "a signal from outside has ended it"
    if clock.end is not None and clock.end - clock.now < _LEAST_LEFT:
        return f"the allocation ends in {max(0.0, clock.end - clock.now):.0f} s; {_START_AGAIN}"
    if row.exit_code == _TIME_LIMIT and "--timeout" in _cause(row):
        return "the time of the whole run (--timeout) is over"
    return ""


def is_cut_short(clock: Clock) -> str:
    """Return why a signal of this moment ends everything, where the end of the allocation explains it; empty else."""
    near = clock.end is not None and clock.now >= clock.end - _ENDED_BY_IT
    return f"the allocation ends; {_START_AGAIN}" if near else ""


def _by_usage(row: Attempt) -> str:
    code = row.exit_code
    if code in _NOT_RUN and row.failure.rank is not None and row.failure.step is None:
        return f"the command cannot be run: {_cause(row)}"
    if code == _USAGE and row.failure.step is None and raised(row.failure.words) is None:
        return "the command line or a named file is wrong (exit code 2)"
    return ""


_START_AGAIN = "start it again in the next one: it continues from its newest checkpoint if it saves any"


# Rule 2


def _cannot_help(attempts: Attempts) -> str:
    """Return why another attempt would end like the last; empty where it may not."""
    row = attempts.rows[-1]
    words, rank = row.failure.words, row.failure.rank
    full = full_disk(words)
    if rank is not None and full:
        return f"a disk is full or a quota used up ({full}): {_cause(row)}; make room, then start it again"
    refused = _is_refused_again(attempts)
    if refused:
        return refused
    mine = raised(words)
    for before in reversed(attempts.rows[:-1]):
        if rank is None or mine is None or _is_of_device_or_peer(row) or raised(before.failure.words) != mine:
            continue
        if before.failure.step != row.failure.step or _is_of_device_or_peer(before):
            continue
        host, other = row.failure.host, before.failure.host
        if host != other or _passed(before, host):
            step = row.failure.step
            at = f"at step {step}" if step is not None else "before the first step"
            where = f"on {other} and on {host}" if host != other else f"on {host}, which passed the probe in between"
            return f"{mine} has ended two attempts {at}, {where}: it is the program"
    return _without_progress(attempts)


def _is_refused_again(attempts: Attempts) -> str:
    """Return why no rank may begin, where the attempt before was refused for the same; empty else."""
    row, before = attempts.rows[-1], attempts.rows[-2] if len(attempts.rows) > 1 else Attempt()
    if row.began or before.began:
        return ""
    cut_off = [host for host, why in row.blames.items() if why.startswith(UNREACHED_BY_ALL)]
    earlier = [host for host, why in before.blames.items() if why.startswith(UNREACHED_BY_ALL)]
    if cut_off and earlier and cut_off != earlier:
        where = f"no host reaches {earlier[0]}, nor {cut_off[0]}"
        return f"{where}: the network between the hosts is closed for ranks; open the ports between them"
    same = row.blames == before.blames if row.blames else row.refused and row.refused == before.refused
    return f"no rank may begin, for the same reason as before: {_cause(row)}" if same else ""


def _without_progress(attempts: Attempts) -> str:
    best, idle = -1, 0
    for row in attempts.rows:
        step = row.step
        if step is not None and step > best:
            best, idle = step, 0
        # What ended before the ranks began, or of a host that was retired when no rank tells steps, says nothing.
        elif row.began and not (step is None and _evidence(row, ())):
            idle += 1
    if idle < _MOST_IDLE:
        return ""
    known = f"none came further than step {best}" if best >= 0 else "none has told a step (ezpz.heartbeat(step))"
    return f"{_MOST_IDLE} attempts made no progress: {known}"


# Rule 3


def _evidence(row: Attempt, before: Sequence[Attempt]) -> dict[str, str]:
    """Return the hosts against which an attempt is evidence, and what it is, from its row and from those before it."""
    hosts, cause = list(row.hosts), row.failure
    if row.exit_code == 0 or (row.stopped and not row.hang) or len(hosts) < 2:
        return _of_device(row)
    silent, lost = set(row.silent), set(row.lost)
    out: dict[str, str] = {}
    others_came = bool(set(hosts) - silent)
    why, host = cause.why, cause.host
    if why.startswith(LOST) and len(lost) < len(hosts):
        out = {each: "its agent was lost while others lived" for each in hosts if each in lost}
    elif why.startswith(NODE_FAILED) and len(lost) < len(hosts):
        out = {each: "the scheduler has given it up, says its launcher" for each in hosts if each in lost}
    elif why == NOT_STARTED and others_came:
        out = {each: "its agent never came up" for each in hosts if each in silent}
    elif host in silent and others_came and not row.began and (why == UNREACHED or cause.rank is None):
        out = {host: "its agent never came up"}
    return {**out, **_blamed(row, before), **_of_device(row)}


def _blamed(row: Attempt, before: Sequence[Attempt]) -> dict[str, str]:
    """Return the hosts at which it lay that no rank could begin, unless it may be the others: they must be fewer than
    half, and a second host that nobody reaches says more of the network.
    """
    if 2 * len(row.blames) >= len(row.hosts):
        return {}
    is_network = any(why.startswith(UNREACHED_BY_ALL) for each in before for why in each.blames.values())
    return {host: why for host, why in row.blames.items() if not (is_network and why.startswith(UNREACHED_BY_ALL))}


def _of_device(row: Attempt) -> dict[str, str]:
    cause = row.failure
    found = broken_device(cause.words)
    if row.exit_code == 0 or cause.rank is None or not cause.host or not found:
        return {}
    return {cause.host: f"the driver of its devices reports: {found}"}


def _retired(attempts: Attempts) -> dict[str, str]:
    return {host: why for row in attempts.rows for host, why in row.retired.items()}


# Rule 4


def _failed(probe: Mapping[str, ProbedHost]) -> dict[str, str]:
    """Return the hosts that fail the probe, and of what."""
    out = {host: verdict.fails for host, verdict in probe.items() if verdict.fails}
    for host, verdict in probe.items():
        others = [each.answered for name, each in probe.items() if name != host]
        if not verdict.answered and others and sum(others) >= _ANSWERED * len(others):
            out[host] = f"it does not answer the probe, and {sum(others)} of {len(others)} others do"
    return out


def _passed(row: Attempt, host: str) -> bool:
    """Tell whether a host passed the probe that followed an attempt."""
    found = row.probe.get(host)
    return found is not None and found.answered and not found.fails


# What an attempt's record says


def raised(words: str) -> Raised | None:
    """Return the exception of the last traceback in what a rank wrote last; None without one."""
    text = without_rank_tags(words)
    _, found, last = text.rpartition("Traceback (most recent call last)")
    if not found:
        return None
    frames: list[Frame] = []
    for line in last.splitlines()[1:]:
        frame = _FRAME.match(line)
        name = _EXCEPTION.match(line)
        if frame:
            frames.insert(0, Frame(function=frame[3], file=frame[1], line=int(frame[2])))
        elif name:
            place = locate(frames) if frames else None
            return Raised(name[1], place.file if place else "", place.line if place else 0)
    return None


def _is_of_device_or_peer(row: Attempt) -> bool:
    from ezpz.launch.run.failures import Failure

    words = row.failure.words
    failure = Failure("", "", 1, 0.0, words=words)
    unclear = _UNCLEAR_DEVICE.search(ending(words))
    return failure.lost_peer or failure.waited_in_vain or bool(broken_device(words) or unclear)


def _cause(row: Attempt) -> str:
    return row.failure.text or f"exit code {row.exit_code}"


def _listed(hosts: Mapping[str, str]) -> str:
    shown: Sequence[str] = [f"{host} is retired: {why}" for host, why in hosts.items()]
    return "; ".join(shown[:3]) + (f"; and {len(shown) - 3} more" if len(shown) > 3 else "")
