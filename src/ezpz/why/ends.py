"""Name the end that a launch has recorded: an exception, an exit, a signal, a rank that left early, a lost host.

These causes repeat what the line of the failure says; they stand behind what explains it, and the verb adds to them
what followed. ``cause`` and ``failures`` of ``run.json`` are in the order of `ezpz.launch.run.failures`.
"""

from __future__ import annotations

from ezpz.why.cause import Cause, Certainty
from ezpz.why.hang_rules import STEPS_ADVICE, of_torch
from ezpz.why.last_words import last_lines, mpi_abort, raised_in, raised_in_spawned
from ezpz.why.machine import refuses_memory
from ezpz.why.what_to_try import advice_on

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ezpz.records.launch_record import Failure
    from ezpz.why.known_facts import Facts

__all__ = ["aborted_through_mpi", "ended_by_itself", "interrupted", "left_early", "lost_host"]

_SENT = {"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"}  # nobody's exception
_SIGNALS = 128  # a shell exits with a larger code where a signal ended its program
_BY_CTRL_C = 130  # exit code: 128 + SIGINT
_UNDER_MAIN = (
    'put what is to run once under `if __name__ == "__main__":`: a process that is started by spawn (a worker of a '
    "DataLoader, a Pool) runs all other lines of the script again"
)
_LONGEST = 300  # characters of another exception
_SHOWN = 3  # consequences that are named one by one


def interrupted(facts: Facts) -> Iterator[Cause]:
    """The user pressed Ctrl-C, once or more often; how to resume is added where checkpoints can be seen."""
    launch, run = facts.launch, facts.run
    if launch.raw:
        if launch.state != "stopped" or launch.exit_code != _BY_CTRL_C or facts.cause.text:
            return
    elif run.state != "stopped" or not run.cause.startswith("SIGINT"):
        return
    step = launch.step if run.steps is None else run.steps
    yield Cause(
        "interrupted",
        "You pressed Ctrl-C" + ("" if step is None else f" at step {step}"),
        Certainty.SEEN,
        step=step,
        evidence=("the launch ended with 130: SIGINT",) if launch.raw else (f"the run ended by {run.cause}",),
    )


def left_early(facts: Facts) -> Iterator[Cause]:
    """A rank ended with 0 while others waited for it."""
    cause, rank = facts.cause, facts.cause.rank
    if rank is None or cause.code != 0:
        return
    step = f" after step {cause.step}" if cause.step is not None else ""
    yield Cause(
        "left-early",
        f"{facts.who(rank)} ended with code 0{step} while other ranks still waited for it",
        Certainty.SEEN,
        rank=rank,
        host=facts.host(rank),
        step=cause.step,
        evidence=(cause.text, *_waited(facts, rank)),
        consequences=consequences(facts),
        advice=STEPS_ADVICE,
    )


def aborted_through_mpi(facts: Facts) -> Iterator[Cause]:
    """A rank has ended all others by MPI_Abort, or its MPI has done so for an error."""
    cause, rank = facts.cause, facts.cause.rank
    found = mpi_abort(cause.words, facts.launch.launcher_words, rank)
    if rank is None or found is None or facts.launch.state == "stopped" or raised_in(cause.words):
        return
    own = [line for line in last_lines(cause.words.partition("Abort(")[0]) if not line.startswith("MPICH ERROR ")]
    said = f"; it last wrote: {own[-1]}" if own and found.call else f": {found.said}" if found.said else ""
    yield Cause(
        "mpi-abort",
        f"{facts.who(rank)} {f'called {found.call}' if found.call else 'was aborted by its MPI'}{said}",
        Certainty.SEEN,
        rank=rank,
        host=facts.host(rank),
        step=cause.step,
        evidence=_evidence(cause),
        consequences=consequences(facts),
        advice="MPI_Abort ends all ranks at once: look for the program's own reason above it" if found.call else "",
    )


def ended_by_itself(facts: Facts) -> Iterator[Cause]:
    """A rank raised an exception, exited with a code, or was killed by a signal."""
    cause, rank = facts.cause, facts.cause.rank
    if rank is None or cause.code == 0 or (cause.code is None and not cause.signal):
        return
    who, words = facts.who(rank), cause.words
    aborted = mpi_abort(words, facts.launch.launcher_words, rank)
    raised = None if cause.signal in _SENT and not aborted else raised_in(words)
    if aborted and not raised:
        return  # `aborted_through_mpi` names it
    # What a collective raises is no cause by itself: others, or a mismatch, stand before it.
    certainty = Certainty.SHOWN if raised and of_torch(words) else Certainty.SEEN
    said = [] if raised or cause.signal or cause.why or (cause.code or 0) > _SIGNALS else last_lines(words)
    spawned = raised_in_spawned(words) if raised else None
    if raised and refuses_memory(facts):
        return  # a rule of `ezpz.why.machine` names it
    if spawned:
        kind, text = "spawned", f"{who} spawned a process that ran the script again and raised {spawned.text}"
    elif raised:
        kind, text = "exception", f"{who} raised {raised.text}"
        text += f", and called {aborted.call}" if aborted and aborted.call else ""
    elif cause.signal and facts.launch.state != "stopped":
        return  # a rule of `ezpz.why.machine` names it
    elif cause.signal:
        kind, text = "signal", f"{who} was killed by {cause.signal}"
    else:
        kind, text = "exit-code", f"{who} exited with code {cause.code}"
        text += f"; it last wrote: {said[-1]}" if said else ""
    yield Cause(
        kind,
        text + (f": {cause.why}" if cause.why and kind != "exception" else ""),
        certainty,
        rank=rank,
        host=facts.host(rank),
        step=cause.step,
        evidence=(
            *_evidence(cause),
            *([f"the rank itself raised {raised.text}"] if raised and spawned else ()),
            *([f"it came of {raised.of[:_LONGEST]}"] if raised and raised.of else ()),
            *([f"its message goes on: {raised.rest}"] if raised and raised.rest else ()),
            *([f"it wrote before that: {' | '.join(said[:-1])}"] if said[:-1] else ()),
        ),
        consequences=consequences(facts),
        advice=_UNDER_MAIN if spawned else "" if cause.signal else advice_on(words),
    )


def lost_host(facts: Facts) -> Iterator[Cause]:
    """What failed was no rank: a host that is lost, ranks that never came, a world of another size."""
    cause = facts.cause
    if cause.rank is not None or not cause.text or facts.launch.hang:
        return
    kind = "host-lost" if cause.why.startswith("its connection") else "launch"
    _, agent, said = cause.why.partition("its agent: ")  # the last line of one that could not report it
    text = f"{cause.text.partition(': ')[0]}: {said}" if agent else cause.text
    more = (cause.text,) if agent else ()
    yield Cause(kind, text, Certainty.SEEN, host=cause.host or None, evidence=more, consequences=consequences(facts))


def _waited(facts: Facts, left: int) -> Iterator[str]:
    """Yield where the ranks were that waited for one that has left, and how far that one had come."""
    for rank, each in sorted(facts.ranks.items())[:_SHOWN]:
        if each.entries and rank != left and each.at:
            yield f"{facts.who(rank)} was in {each.at}, its collective #{each.entries[-1].seq}"
        elif each.entries and rank == left:
            yield f"{facts.who(rank)} made {each.entries[-1].seq} collectives"


def consequences(facts: Facts) -> tuple[str, ...]:
    """Return what failed after the cause, a short sentence each."""
    texts = [each.text for each in facts.launch.failures]
    more = (f"and {len(texts) - _SHOWN} more",) if len(texts) > _SHOWN else ()
    return (*texts[:_SHOWN], *more)


def _evidence(cause: Failure) -> tuple[str, ...]:
    found = [cause.text.partition("; stopping")[0]]
    if cause.step is not None:
        found.append(f"its last reported step is {cause.step}")
    if cause.log:
        found.append(f"what it wrote: {cause.log}")
    return tuple(found)
