"""Name the rank that others wait for, or what all are in, from the stacks of a launch that was ended for a hang.

Scripts that import no ezpz leave no collectives, and neither do programs of mpi4py. Of all others this is what remains
where no collective is to blame.
"""

from __future__ import annotations

from collections import Counter

from ezpz.fields import replace
from ezpz.records.collectives_record import Entry
from ezpz.why.cause import Cause, Certainty
from ezpz.why.hang_rules import culprit, different_calls, gone_ranks, raised_at_end, seen_of
from ezpz.why.rank_places import (
    BETWEEN_TWO,
    asked_ranks,
    call_of,
    idle_ranks,
    is_at_end,
    is_elsewhere,
    line_of,
    places,
    ranks_that_wait,
    spot,
    still_ranks,
    was_asked_twice,
    woken_ranks,
)

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ezpz.why.known_facts import Facts

__all__ = [
    "all_in_one_place",
    "elsewhere",
    "in_different_calls",
    "lives_at_its_end",
    "missing_by_stacks",
    "wait_for_each_other",
]

_NAMED = 4  # ranks that a rule names, and of which a sentence says more


def missing_by_stacks(facts: Facts) -> Iterator[Cause]:
    """One rank is elsewhere, or has ended, while others are in a call that waits for it."""
    known = places(facts)
    inside = ranks_that_wait(facts)
    gone = gone_ranks(facts) - set(known)
    outside = sorted({*known, *gone} - set(inside))
    if not facts.launch.hang or _made_collectives(facts) or len(known) + len(gone) < 2:
        return
    if woken_ranks(facts) & set(inside):  # they waited for a moment, and the run goes on
        return
    polls = was_asked_twice(facts) and bool(set(inside) - still_ranks(facts))
    if polls:  # as MPI does, and perhaps for a moment only: who computes may come yet
        outside = [rank for rank in outside if _never_comes(facts, rank)]
    if inside and outside and len(outside) <= max(1, len(known) // 2):
        yield from elsewhere(facts, outside, inside)
    elif set(inside) == set(known) and not BETWEEN_TWO.issuperset(map(call_of, inside.values())):
        for cause in in_different_calls(facts, inside):
            yield replace(cause, certainty=Certainty.FINDING) if polls else cause


def elsewhere(facts: Facts, outside: Sequence[int], inside: Mapping[int, str]) -> list[Cause]:
    """Return the causes that name ranks which are elsewhere, while others are inside of a call, by their places."""
    what = Counter(map(call_of, inside.values())).most_common(1)[0][0]
    waiting = {each: _by_stack(place) for each, place in inside.items()}
    return [culprit(facts, rank, what, waiting, None) for rank in sorted(outside)[:_NAMED]]


def in_different_calls(facts: Facts, inside: Mapping[int, str]) -> list[Cause]:
    """Return the cause that names ranks which wait in different calls, by their places; nothing where all are alike."""
    found = {rank: _by_stack(place) for rank, place in inside.items()}
    return [different_calls(facts, found)] if len({each.op for each in found.values()}) > 1 else []


def wait_for_each_other(facts: Facts) -> Iterator[Cause]:
    """All ranks wait for a message of another one, and none sends it."""
    waiting, asked = ranks_that_wait(facts), asked_ranks(facts)
    if not facts.launch.hang or len(waiting) < max(2, facts.world_size) or _has_failed(facts):
        return
    still = still_ranks(facts)
    # MPI polls while it waits, so that CPU says nothing.
    if not all(call_of(place) in BETWEEN_TWO and (rank in still or asked[rank].mpi) for rank, place in waiting.items()):
        return
    where = Counter(waiting.values()).most_common()
    if len(where) > _NAMED:
        return
    groups = [(place, [rank for rank in sorted(waiting) if waiting[rank] == place]) for place, _ in where]
    is_sure = set(waiting) <= still
    if len(groups) == 1 and is_sure:
        text = f"all {len(waiting)} ranks wait in {groups[0][0]}, each for another: a cycle"
    elif len(groups) == 1:
        text = (
            f"all {len(waiting)} ranks were in {groups[0][0]} when they were asked: a cycle, if each waits for another"
        )
    else:
        text = "all ranks wait for each other, a cycle: " + ", ".join(
            f"{facts.named(ranks)} in {place}" for place, ranks in groups
        )
    yield Cause(
        "wait-in-a-cycle",
        text,
        Certainty.SHOWN if is_sure else Certainty.FINDING,
        evidence=tuple(seen for _, ranks in groups for seen in seen_of(facts, ranks[0])),
        advice="let some ranks send before they receive (even ranks first), or use isend and irecv",
    )


def all_in_one_place(facts: Facts) -> Iterator[Cause]:
    """All ranks stand still in one place of their own: no rank is to blame, but what that place waits for."""
    asked, known = asked_ranks(facts), places(facts)
    count = facts.world_size
    if not facts.launch.hang or count < 2 or len(asked) != count or _has_failed(facts):
        return
    calls = {call_of(each.where) for each in asked.values()}
    spots = Counter(known[rank] for rank in asked)
    if len(calls) > 1 or (len(spots) > 1 and calls == {"<module>"}):
        return
    if len(still_ranks(facts)) < count or not all(is_elsewhere(each) for each in asked.values()):
        return
    # A device that waits for others lets its host wait anywhere.
    if any(each.entries and each.entries[-1].state != "completed" for each in facts.ranks.values()):
        return
    first = min(asked)
    hang = facts.launch.hang
    step = max((each.step for each in facts.ranks.values()), default=-1)
    yield Cause(
        "all-elsewhere",
        f"all {count} ranks stand still {spot(spots.most_common(1)[0][0])}, and none of them in a collective",
        Certainty.SHOWN,
        step=step if step >= 0 else None,
        evidence=(f"no rank used its CPU between two looks {hang.apart:g} s apart", *seen_of(facts, first)),
        advice="look at what all of them need there: a file system, a service, a lock",
    )


def lives_at_its_end(facts: Facts) -> Iterator[Cause]:
    """All others have ended with 0, and a rank still lives."""
    asked, gone = asked_ranks(facts), gone_ranks(facts)
    living = sorted(set(asked) - gone)
    if not facts.launch.hang or _has_failed(facts) or not living or set(range(facts.world_size)) - gone != set(living):
        return
    if len(living) > len(gone) or ranks_that_wait(facts):
        return
    for rank in living[:_NAMED]:
        place, step = places(facts)[rank], facts.rank(rank).step
        raised = raised_at_end(asked[rank])
        at_end = ", at the end of its program" if is_at_end(asked[rank]) or facts.rank(rank).ended else ""
        child = f" and waits for its child {asked[rank].child}" if asked[rank].child else ""
        who = facts.who(rank)
        of_thread = " and waits for a thread" * place.startswith("_shutdown (threading.py")
        of_thread += f" in {asked[rank].worker}" if of_thread and asked[rank].worker else ""
        does = f"is still {spot(place)}{of_thread}"
        yield Cause(
            "raised" if raised else "still-lives",
            f"{who} raised {raised} and has not ended yet" * bool(raised)
            or f"{who} {does}{at_end}{child}: all others have ended",
            Certainty.SHOWN,
            rank=rank,
            host=facts.host(rank),
            step=step if step >= 0 else None,
            evidence=(f"{facts.named(sorted(gone))} ended with 0 before", *seen_of(facts, rank)),
            advice="its traceback is in its output"
            if raised
            else "look at what it waits for there: an atexit handler, a thread that is no daemon, a child",
        )


def _never_comes(facts: Facts, rank: int) -> bool:
    """Tell whether a rank is known to do nothing that would bring it to the others."""
    asked = asked_ranks(facts).get(rank)
    return asked is None or rank in idle_ranks(facts) or is_at_end(asked) or bool(raised_at_end(asked))


def _has_failed(facts: Facts) -> bool:
    return any(each.code != 0 for each in facts.launch.failed if each.rank is not None)


def _made_collectives(facts: Facts) -> bool:
    return any(each.entries for each in facts.ranks.values())


def _by_stack(place: str) -> Entry:
    """Return the collective in which a rank is by its stack."""
    return Entry(group="", seq=0, op=call_of(place), state="", created=0.0, line=line_of(place))
