"""Decide whether the next job of a chain may train: ``done``, ``again`` or ``stop: why``.

`verdict` is a pure function of how a job's launch has ended, of what the scheduler says of that job, of what the job
has saved, and of the clock. It fails closed: whatever it does not know to be harmless stops the chain. Its rules, in
order:

1. a file ``STOP`` stops; a launch that has succeeded is done; one that was asked by a file to save and to end stops;
2. the scheduler decides about what came from outside: preempted is again; a failed host is again where the job has left
   something newer than what it began with; cancelled stops, and so does what the scheduler does not know. Where it does
   not say yet why it ends a job, nothing is decided: the next job asks again, when this one is over;
3. what was saved before the end of the job's time, and a time that is over, are again where something newer is left;
4. a failure of the program stops, by the rules of `ezpz.launch.decision`; a host against which these have evidence is
   again where something newer is left;
5. two jobs in a row that have left nothing newer stop.
"""

from __future__ import annotations

from ezpz.fields import Record
from ezpz.jobs.job_state import CANCELLED, HOST_FAILURE, PREEMPTED, QUEUED, RUNNING, TIME_LIMIT, UNKNOWN, Job
from ezpz.launch.decision import Again, Attempts, Clock, decide
from ezpz.records.launch_record import Attempt

__all__ = ["AGAIN", "DONE", "STOP", "UNDECIDED", "Ending", "is_from_outside", "read", "verdict"]

DONE, AGAIN, STOP = "done", "again", "stop: "
UNDECIDED = ""
_MOST_IDLE = 2  # jobs in a row that leave nothing newer
_NEAR_THE_END = 120.0  # seconds before the end in which a signal is taken for that of the end


class Ending(Record):
    """How a job of a chain has ended.

    Attributes:
        row: The record of its launch; None where the launch has left no end, because it was killed, or
            because the job died before it.
        state: What the scheduler says of the job; None where that was not asked.
        is_newer: Whether it has left a newer checkpoint, or a later step, than any job before it.
        idle: How many jobs in a row, just before it, have left nothing newer.
        restarts: How often the scheduler had started the job again when its launch began.
        stop: What a file ``STOP`` asks for, in words; empty without one.
    """

    row: Attempt | None
    state: Job | None
    is_newer: bool
    idle: int = 0
    restarts: int = 0
    stop: str = ""


def is_from_outside(row: Attempt) -> bool:
    """Tell whether the scheduler is to be asked how a job ends whose launch has ended so."""
    return not row.verdict and bool(row.exit_code)


def read(text: str | None) -> str:
    """Return the verdict in a file's text: `DONE`, `AGAIN` or a text that begins with `STOP`; empty without one.

    What is none of these stops: a file that somebody has edited, or that a full disk has cut.
    """
    if text is None:
        return ""
    line = text.strip().split("\n")[0].strip()
    if line in {DONE, AGAIN} or line.startswith(STOP.strip()):
        return line if line in {DONE, AGAIN} else STOP + (line[len(STOP.strip()) :].strip() or "no reason is given")
    return f"{STOP}the verdict reads {line[:80]!r}"


def verdict(ending: Ending, clock: Clock) -> str:
    """Return `DONE`, `AGAIN`, `STOP` and why, or `UNDECIDED`: the job is being ended, and the reason is unknown.

    Args:
        ending: How the job has ended.
        clock: The time, and when the job's own time is over.
    """
    text = _by_rules(ending, clock)
    if text == AGAIN and not ending.is_newer and ending.idle + 1 >= _MOST_IDLE:
        return f"{STOP}{_MOST_IDLE} jobs in a row have left neither a newer checkpoint nor a later step"
    return text


def _by_rules(ending: Ending, clock: Clock) -> str:
    found = _by_its_own_words(ending) or _by_what_came_from_outside(ending, clock)
    if found:
        return found
    row, state = Attempt() if ending.row is None else ending.row, ending.state
    is_being_ended = row.stopped and not row.hang and state is not None and state.state == RUNNING
    return UNDECIDED if is_being_ended else _by_failure(ending)


def _by_its_own_words(ending: Ending) -> str:
    """Return what follows from what a file or the launch itself says; empty where neither decides."""
    row = Attempt() if ending.row is None else ending.row
    if ending.stop:
        return f"{STOP}{ending.stop}"
    if row.verdict == "stop":
        return f"{STOP}it was asked to save and to end"
    if row.verdict == "again":
        return _if_newer(ending, "it was ended before the end of its time")
    return DONE if ending.row is not None and row.exit_code == 0 else ""


def _by_what_came_from_outside(ending: Ending, clock: Clock) -> str:
    """Return what follows where the job did not end by itself; empty where it did."""
    row, state = ending.row, ending.state
    if _is_preempted(ending):
        return AGAIN
    if state is not None and state.state == HOST_FAILURE:
        return _if_newer(ending, f"a host has failed ({state.told})")
    if row is not None and (not row.stopped or row.hang):
        return ""
    # The clock counts where the scheduler says nothing: a job can be cancelled in its last minutes, too.
    says_nothing = state is None or state.state == UNKNOWN
    near = row is not None and says_nothing and clock.end is not None and clock.now >= clock.end - _NEAR_THE_END
    if near or (state is not None and TIME_LIMIT in {state.state, state.ending}):
        return _if_newer(ending, "its time is over")
    if row is not None and state is not None and state.state == RUNNING and not state.ending:
        return ""
    what = "it left no verdict: it died before its launch, or was killed" if row is None else "a signal has ended it"
    if state is not None and CANCELLED in {state.state, state.ending}:
        what = "it was cancelled"
    elif state is not None and state.state == UNKNOWN:
        what = f"{what}, and the scheduler does not say why ({state.told})"
    return f"{STOP}{what}"


def _is_preempted(ending: Ending) -> bool:
    """Tell whether the scheduler has taken the hosts away from a job, and perhaps queued it again."""
    state = ending.state
    if state is None:
        return False
    again = state.restarts > ending.restarts and state.state not in {CANCELLED, UNKNOWN}
    return PREEMPTED in {state.state, state.ending} or again or (state.state == QUEUED and state.restarts > 0)


def _if_newer(ending: Ending, what: str) -> str:
    return AGAIN if ending.is_newer else f"{STOP}{what}, and it has left neither a newer checkpoint nor a later step"


def _by_failure(ending: Ending) -> str:
    """Return what follows from a failure inside the job, by the rules of attempts."""
    row = Attempt() if ending.row is None else ending.row
    hosts = tuple(row.hosts)
    # The next job has other hosts, so that none is too few; and the clock says nothing about a failure.
    step = decide(Attempts(limit=2, hosts=hosts, wanted=0, rows=(row,)), None, Clock(now=0.0))
    words = " ".join(row.failure.text.split())
    failed = words or f"its launch ended with {row.exit_code}"
    if isinstance(step, Again) and step.retired:
        return _if_newer(ending, step.because)
    return f"{STOP}{failed}" if isinstance(step, Again) else f"{STOP}{step.because}"
