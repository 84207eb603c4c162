"""Name whom a rank waited for that ended because others had not come in time.

Such a rank says words of waiting (`ezpz.why.waiting_words`), and is no cause: somebody did not come. Who that was
stands in its words, or shows from where the ranks were that still lived. Where neither tells, the sentence says so.
"""

from __future__ import annotations

from ezpz.why import hang_rules, stack_rules
from ezpz.why.cause import Cause, Certainty
from ezpz.why.last_words import raised_in
from ezpz.why.rank_places import CALLS, call_of
from ezpz.why.waiting_words import called_in, lost_a_peer, wait_in, waited_in_vain, watchdog_in

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ezpz.why.known_facts import Facts
    from ezpz.why.waiting_words import Wait

__all__ = ["waited"]

_SENT = {"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"}  # nobody's words
_MEETING = {"init_process_group", "setup_torch"}  # where all ranks meet first
_EXPLAINED = (hang_rules.mismatch, hang_rules.missing, hang_rules.left_behind)  # by what ranks have recorded
_SHOWN = 4  # ranks that are named one by one
_ORDER_ADVICE = (
    "call the same collectives in the same order on every rank: look for a condition on the rank, or for loops of "
    "different lengths"
)


def waited(facts: Facts) -> Iterator[Cause]:
    """The rank that failed first had waited for others in vain."""
    cause = facts.cause
    if cause.rank is None or facts.launch.hang or cause.signal in _SENT or not waited_in_vain(cause.words):
        return
    if any(True for rule in _EXPLAINED for _ in rule(facts)):
        return
    waits = _Waits(facts, cause.rank)
    for rule in (_other_world_size, _other_master, _raised, _by_watchdog, _elsewhere, _other_number, _not_reached):
        found = rule(waits)
        if found:
            yield from found
            return
    yield _not_known(waits)


class _Waits:
    """The ranks that waited in vain, and what is known of all others.

    Attributes:
        facts: All that is known.
        first: The rank that gave up first.
        wait: What it says.
        waiters: Every rank that gave up, or lost another one then, and its place: ``all_reduce (train.py:21)``; empty
            where that is not known.
        living: Every other rank that lived then, and its place.
    """

    def __init__(self, facts: Facts, first: int) -> None:
        self.facts, self.first = facts, first
        self.wait: Wait = wait_in(facts.cause.words)
        self.waiters = {
            each.rank: called_in(each.words) or facts.rank(each.rank).at
            for each in facts.launch.failed
            if each.rank is not None and (waited_in_vain(each.words) or lost_a_peer(each.words))
        }
        self.living = {
            rank: each.at for rank, each in sorted(facts.ranks.items()) if each.state and rank not in self.waiters
        }

    @property
    def who(self) -> str:
        """The rank that gave up first."""
        return self.facts.who(self.first)

    @property
    def where(self) -> str:
        """Where that one waited, as a part of a sentence with a blank in front."""
        place = self.waiters[self.first]
        return f" in {place}" if place else ""

    @property
    def long(self) -> str:
        """How long it waited, alike; empty where that is not known."""
        return f" {self.wait.seconds:g} s" if self.wait.seconds else ""

    def gave_up(self, whom: str) -> str:
        """Return ``rank 1 waited 15 s for rank 2 in all_reduce (train.py:21) in vain``."""
        return f"{self.who} waited{self.long} for {whom}{self.where} in vain"

    def cause(self, kind: str, text: str, *evidence: str, rank: int | None = None, advice: str = "") -> Cause:
        """Return a cause that these facts show, with where the ranks were that lived."""
        facts = self.facts
        places = [f"{facts.who(each)} was in {place}" for each, place in self.living.items() if place]
        return Cause(
            kind,
            text,
            Certainty.SHOWN,
            rank=rank,
            host=facts.host(rank) if rank is not None else None,
            evidence=(facts.cause.text.partition("; stopping")[0], *evidence[:_SHOWN], *places[:_SHOWN]),
            advice=advice,
        )


def _may_be_meeting(place: str) -> bool:
    """Tell whether a rank was where all meet first, as far as that is known."""
    return not place or call_of(place) in _MEETING


# What the words themselves tell


def _other_world_size(waits: _Waits) -> Sequence[Cause]:
    """The script has told torch another world size than the launch has."""
    wait, world = waits.wait, waits.facts.world_size
    if not world or not _may_be_meeting(waits.waiters[waits.first]):
        return ()
    beyond = max(wait.ranks, default=-1) >= world
    size = next((each for each in (wait.world, wait.own_world) if each not in {0, world}), 0)
    if not (size or beyond):
        return ()
    whom = f"{size} ranks" if size else f"rank {max(wait.ranks)}"
    started = f"launch started {world} rank{'s'[: world > 1]}"
    text = f"{waits.who} waited for {whom}{waits.where}, and {started}: the script has a world size of its own"
    advice = "let init_process_group take rank and world size from RANK and WORLD_SIZE, which launch sets"
    return [waits.cause("other-world-size", text, advice=advice)]


def _other_master(waits: _Waits) -> Sequence[Cause]:
    """A rank wanted to meet the others elsewhere than launch has said."""
    wait = waits.wait
    address, _, port = waits.facts.launch.plan.master.rpartition(":")
    if not wait.address or not address or (address, port) == (wait.address, wait.port):
        return ()
    name = "MASTER_ADDR" if address != wait.address else "MASTER_PORT"
    text = (
        f"{waits.who} did not reach {wait.address}:{wait.port}{waits.where}, and launch lets the ranks meet at "
        f"{address}:{port}: the script has a {name} of its own"
    )
    return [waits.cause("other-master", text, advice=f"leave {name} as launch sets it, or give --master-addr or -port")]


def _not_reached(waits: _Waits) -> Sequence[Cause]:
    """A rank did not reach where the ranks meet."""
    wait = waits.wait
    if not wait.address:
        return ()
    listens = f"{waits.facts.who(0)}, which listens there"
    if 0 in waits.living:
        listens += f", was in {waits.living[0]}" if waits.living[0] else ", still ran"
    elif 0 in waits.waiters:
        listens += ", did not reach it either" if waits.first else ", did not reach itself"
    else:
        listens = ""
    for_long = f" for{waits.long}" if waits.long else ""
    text = f"{waits.who} did not reach {wait.address}:{wait.port}, where the ranks meet,{for_long}{waits.where}"
    advice = "`ezpz doctor` looks whether the hosts reach each other"
    return [waits.cause("master-not-reached", text + (f"; {listens}" if listens else ""), advice=advice)]


def _raised(waits: _Waits) -> Sequence[Cause]:
    """Another rank has failed of something of its own, and was slower to end."""
    facts = waits.facts
    for each in facts.launch.failures:
        found = raised_in(each.words) if each.signal not in _SENT else None
        if found and each.rank is not None and each.rank not in waits.waiters:
            text = f"{facts.who(each.rank)} raised {found.text}"
            return [waits.cause("exception", text, waits.gave_up("others"), rank=each.rank)]
    return ()


# What NCCL's watchdogs tell


def _by_watchdog(waits: _Waits) -> Sequence[Cause]:
    """Ranks have given NCCL less work than others, or another operation as the same work."""
    facts = waits.facts
    told = {
        each.rank: one
        for each in facts.launch.failed
        if each.rank is not None
        for one in watchdog_in(each.words)[:1]
        if one.is_of_all
    }
    seq = min((one.seq for one in told.values() if one.seq >= 0), default=-1)
    waiting = {rank: one for rank, one in told.items() if one.seq == seq >= 0}
    ops: dict[str, list[int]] = {}
    for rank, one in sorted(waiting.items()):
        ops.setdefault(one.op, []).append(rank)
    if len(ops) > 1 and "" not in ops:
        return [_other_operation(waits, seq, ops)]
    # A rank whose own work has not timed out says in its answer to the dump of another how much it has given.
    behind = {rank: one.enqueued for rank, one in told.items() if one.seq < 0 <= one.enqueued < seq}
    if not behind or len(behind) > len(waiting):
        return ()
    what = f"{next(iter(ops)) or 'work'} #{seq} of NCCL"
    others = facts.named(sorted(waiting))
    causes = []
    for rank, last in sorted(behind.items())[:_SHOWN]:
        place = facts.rank(rank).at
        is_in = f" is in {place}, and" if place else ""
        text = f"{facts.who(rank)}{is_in} never came to {what}: {others} waited{waits.long} for it"
        last_work = f"the last work that {facts.who(rank)} gave to NCCL is #{last}"
        causes.append(waits.cause("collective-missing", text, last_work, rank=rank))
    return causes


def _other_operation(waits: _Waits, seq: int, ops: Mapping[str, list[int]]) -> Cause:
    """Return the cause that names ranks which gave NCCL different operations as the same work."""
    facts = waits.facts
    (odd, ranks), *_, (usual, others) = sorted(ops.items(), key=lambda each: len(each[1]))
    text = (
        f"{facts.named(ranks)} called {odd} as work #{seq} of NCCL, where {facts.named(others)} called {usual}"
        if len(ranks) < len(others)
        else f"{facts.named(sorted([*ranks, *others]))} gave NCCL different work as #{seq}: {odd} and {usual}"
    )
    sole = ranks[0] if len(ranks) == 1 < len(others) else None
    places = [f"{facts.who(rank)}: {place}" for rank, place in sorted(waits.waiters.items()) if place]
    return waits.cause("other-collective", text, *places, rank=sole, advice=_ORDER_ADVICE)


# Where ranks were that still lived


def _elsewhere(waits: _Waits) -> Sequence[Cause]:
    """Ranks that lived were elsewhere than in the call in which others waited, or were in another such call."""
    facts = waits.facts
    if not waits.waiters[waits.first]:
        return ()
    calls = {"backward", *map(call_of, waits.waiters.values())}  # DistributedDataParallel waits in a backward
    outside = [
        rank
        for rank, place in waits.living.items()
        if (place and call_of(place) not in calls and call_of(place) not in CALLS)
        or facts.rank(rank).state in {"T", "t", "D"}
    ]
    outside = [rank for rank in outside if rank in waits.wait.ranks] or outside
    inside = {rank: place for rank, place in waits.waiters.items() if place}
    if outside and len(outside) <= max(1, facts.world_size // 2):
        return stack_rules.elsewhere(facts, outside, inside)
    inside |= {rank: place for rank, place in waits.living.items() if place}
    if not outside and len(inside) == facts.world_size:
        return stack_rules.in_different_calls(facts, inside)
    return ()


def _other_number(waits: _Waits) -> Sequence[Cause]:
    """A rank was itself in the call in which all meet first, and others waited for it there: it came as another one."""
    places = {**waits.living, **waits.waiters}
    meeting = {rank for rank, place in places.items() if call_of(place) in _MEETING}
    both = [rank for rank in waits.wait.ranks if rank in meeting and rank != waits.first in meeting]
    if not both:
        return ()
    named = waits.facts.named(both)
    text = f"{waits.gave_up(named)}, and {named} was there as well: it came as another rank, or to another address"
    advice = "look which rank the script gives init_process_group: with several hosts LOCAL_RANK is none, RANK is"
    return [waits.cause("other-rank", text, advice=advice)]


def _not_known(waits: _Waits) -> Cause:
    """Return who waited, for whom as far as it is known, and who still ran."""
    facts, wait = waits.facts, waits.wait
    ranks = [rank for rank in wait.ranks if rank != waits.first]
    whom = facts.named(ranks) if ranks else "others"
    came = f" ({wait.came} of {wait.world} had come)" if wait.world else ""
    ran = [rank for rank in waits.living if not ranks or rank in ranks]
    unseen = ""
    if ran:
        unseen = "" if any(waits.living[rank] for rank in ran) else ", and where is not known"
        rest = f"{facts.named(ran)} still ran{unseen}"
    else:
        rest = f"what became of {'it' if len(ranks) == 1 else 'them'} is not known"
    advice = "`pip install py-spy` lets launch see where a rank is that does not import ezpz" if unseen else ""
    return waits.cause("waited-in-vain", f"{waits.gave_up(whom + came)}; {rest}", advice=advice)
