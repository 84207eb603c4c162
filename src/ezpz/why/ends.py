"""Name the end that a launch has recorded: an exception, an exit, a signal, a rank that left early, a lost host.

These causes repeat what the line of the failure says; they stand behind what explains it, and the verb adds to them
what followed. ``cause`` and ``failures`` of ``run.json`` are in the order of `ezpz.launch.run.failures`.
"""

from __future__ import annotations

import re

from ezpz.why.cause import Cause, Certainty
from ezpz.why.hangs import STEPS_ADVICE, of_torch

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ezpz.why.facts import Facts

__all__ = ["ended_by_itself", "left_early", "lost_host"]

_RANK_TAG = r"(?m)^\[rank\d+\]: ?"  # torch's, in front of each line of a traceback
_FRAME = r'  File "(?P<file>[^\n"]+)", line (?P<line>\d+)'
_LIBRARY = r"[/\\](?:site|dist)-packages[/\\]|/lib(?:64)?/(?:python|pypy)3[.\d]*t?/|^<frozen "
_SENT = {"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"}  # nobody's exception
_SHOWN = 3  # consequences that are named one by one


def left_early(facts: Facts) -> Iterator[Cause]:
    """A rank ended with 0 while others waited for it."""
    cause = _cause(facts)
    rank = cause.get("rank")
    if not isinstance(rank, int) or cause.get("code") != 0:
        return
    step = f" after step {cause['step']}" if isinstance(cause.get("step"), int) else ""
    yield Cause(
        "left-early",
        f"{facts.who(rank)} ended with code 0{step} while other ranks still waited for it",
        Certainty.SEEN,
        rank=rank,
        host=facts.host(rank),
        step=cause.get("step"),
        evidence=(str(cause.get("text") or ""), *_waited(facts, rank)),
        consequences=consequences(facts),
        advice=STEPS_ADVICE,
    )


def ended_by_itself(facts: Facts) -> Iterator[Cause]:
    """A rank raised an exception, exited with a code, or was killed by a signal."""
    cause = _cause(facts)
    rank = cause.get("rank")
    if not isinstance(rank, int) or cause.get("code") == 0 or (cause.get("code") is None and not cause.get("signal")):
        return
    who, words = facts.who(rank), str(cause.get("words") or "")
    raised = None if cause.get("signal") in _SENT else raised_in(words)
    # What a collective raises is no cause by itself: others, or a mismatch, stand before it.
    certainty = Certainty.SHOWN if raised and of_torch(words) else Certainty.SEEN
    if raised:
        name, line = raised
        kind, text = "exception", f"{who} raised {name}" + (f" ({line})" if line else "")
    elif cause.get("signal") and facts.launch.get("state") != "stopped":
        return  # a rule of `ezpz.why.machine` names it
    elif cause.get("signal"):
        kind, text = "signal", f"{who} was killed by {cause['signal']}"
    else:
        kind, text = "exit-code", f"{who} exited with code {cause['code']}"
    yield Cause(
        kind,
        text + (f": {cause['why']}" if cause.get("why") and kind != "exception" else ""),
        certainty,
        rank=rank,
        host=facts.host(rank),
        step=cause.get("step"),
        evidence=_evidence(cause),
        consequences=consequences(facts),
    )


def lost_host(facts: Facts) -> Iterator[Cause]:
    """What failed was no rank: a host that is lost, ranks that never came, a world of another size."""
    cause = _cause(facts)
    text = str(cause.get("text") or "")
    if cause.get("rank") is not None or not text or facts.launch.get("hang"):
        return
    host = cause.get("host")
    kind = "host-lost" if str(cause.get("why") or "").startswith("its connection") else "launch"
    yield Cause(kind, text, Certainty.SEEN, host=host, consequences=consequences(facts))


def _waited(facts: Facts, left: int) -> Iterator[str]:
    """Yield where the ranks were that waited for one that has left, and how far that one had come."""
    for rank, each in sorted(facts.ranks.items())[:_SHOWN]:
        entries = each.get("entries") or ()
        if entries and rank != left and each.get("at"):
            yield f"{facts.who(rank)} was in {each['at']}, its collective #{entries[-1]['seq']}"
        elif entries and rank == left:
            yield f"{facts.who(rank)} made {entries[-1]['seq']} collectives"


def raised_in(words: str) -> tuple[str, str] | None:
    """Return the exception at the end of a traceback and the last line of the user's own code, as ``train.py:31``.

    Args:
        words: The last that a rank wrote on stderr.

    Returns:
        None where the words hold no traceback; an empty place where it names no file of the user's.
    """
    _, mark, after = re.sub(_RANK_TAG, "", words).rpartition("Traceback (most recent call last)")
    if not mark:
        return None
    lines = after.split("\n")[1:]
    name = next((line.strip() for line in lines if line[:1].strip()), "")
    places = [match for match in re.finditer(_FRAME, after) if not re.search(_LIBRARY, match["file"])]
    where = f"{places[-1]['file'].rpartition('/')[2]}:{places[-1]['line']}" if places else ""
    return (name, where) if name else None


def consequences(facts: Facts) -> tuple[str, ...]:
    """Return what failed after the cause, a short sentence each."""
    texts = [str(each.get("text") or "") for each in facts.launch.get("failures") or () if each]
    more = (f"and {len(texts) - _SHOWN} more",) if len(texts) > _SHOWN else ()
    return (*texts[:_SHOWN], *more)


def _cause(facts: Facts) -> dict[str, Any]:
    return facts.launch.get("cause") or {}


def _evidence(cause: dict[str, Any]) -> tuple[str, ...]:
    found = [str(cause.get("text") or "").partition("; stopping")[0]]
    if isinstance(cause.get("step"), int):
        found.append(f"its last reported step is {cause['step']}")
    if cause.get("log"):
        found.append(f"what it wrote: {cause['log']}")
    return tuple(found)
