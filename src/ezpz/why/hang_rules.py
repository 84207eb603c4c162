"""Name the rank that others wait for, from the last collectives of all ranks and from where each of them is.

Ranks of a group call its collectives in the same order, and each counts them. The rank with the lowest count is the one
that the others wait for; ranks with the same count in different operations, or with other sizes, wait for each other.
"""

from __future__ import annotations

import re

from ezpz.fields import replace
from ezpz.why.cause import Cause, Certainty
from ezpz.why.last_words import ending, without_rank_tags
from ezpz.why.rank_places import CALLS, asked_ranks, call_of, is_at_end, line_of, places, spot
from ezpz.why.waiting_words import called_in, waited_in_vain

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ezpz.records.collectives_record import Entry
    from ezpz.records.launch_record import AskedRank
    from ezpz.why.known_facts import Facts

    _Kind = tuple[str, str]  # operation, and sizes of a collective

__all__ = [
    "STEPS_ADVICE",
    "culprit",
    "different_calls",
    "gone_ranks",
    "hidden_exception",
    "left_behind",
    "mismatch",
    "missing",
    "of_torch",
    "other_model",
    "raised_at_end",
    "refused_size",
    "seen_of",
]

# Operations whose tensors have the same sizes on every rank; of all others a root, or a split, may differ.
_EQUAL = {"all_reduce", "allreduce", "broadcast", "_broadcast_oop", "barrier", "reduce"}
_LOST = (
    r"(?i)closed by (?:remote )?peer|reset by (?:remote )?peer|broken pipe|remote process exit(?:ed|ing)|timed out"
    r"|timeout|failed to (?:recv|send), got 0 bytes|connection was likely closed|op\.preamble|enforce fail"
)
_OF_TORCH = r"(?i)gloo|nccl|c10d|TCPStore|Dist(?:Network|Store|Backend)Error"
# What the user's code is in while a rank loads data: torch's loader, or a data set of the user's in the rank itself.
_DATA = {"DataLoader", "__getitem__", "__getitems__"}
# Where a rank is that has done its own lines: Python ends its threads and calls what is to be called at its end.
_AT_EXIT = (
    r"(?:__call__ \(weakref|_shutdown \(threading|_python_exit \((?:thread|process)|_exit_function \(util)\.py:\d+\)$"
)
_IN_THREAD = "Exception in thread "  # Python's, before a traceback that ends only that (threading.py)
_SAID = 200  # characters of an exception
_NAMED = 4  # ranks that a sentence names
STEPS_ADVICE = (
    "let every rank make the same number of steps: drop_last=True, a sampler that pads, or `with model.join():` around "
    "the loop of DistributedDataParallel; look for a `continue`, an early return or sys.exit(0) on that rank"
)


def of_torch(words: str) -> bool:
    """Tell whether a rank's last words are those of a collective that failed: a consequence, or a mismatch."""
    last = words[-4000:]
    return waited_in_vain(words) or bool(re.search(_LOST, last) and re.search(_OF_TORCH, last))


def missing(facts: Facts) -> Iterator[Cause]:
    """A rank has not come to the collective that others wait in."""
    if not _asks(facts):
        return
    block = _block(facts)
    if block is None:
        return
    seq, behind, waiting = block
    entry = waiting[min(waiting)]
    if not _is_long(facts, waiting):
        return
    what = f"{entry.op} #{seq}"
    gone = gone_ranks(facts)
    if gone & set(behind):  # who only has not answered in time may do so because the host is busy
        behind = {rank: last for rank, last in behind.items() if rank in gone}
    for rank in sorted(behind)[:_NAMED]:
        yield culprit(facts, rank, what, waiting, behind[rank])


def hidden_exception(facts: Facts) -> Iterator[Cause]:
    """A rank has raised, and waits for others in an ``except`` or a ``finally``, where the exception stays unseen."""
    known = places(facts)
    hidden = [
        rank
        for rank, each in sorted(facts.ranks.items())
        if each.handled and each.state and call_of(known.get(rank, "")) in CALLS
    ]
    if not _asks(facts) or 2 * len(hidden) > len(facts.ranks):  # most are where they are to be
        return
    for rank in hidden[:_NAMED]:
        each = facts.ranks[rank]
        yield Cause(
            "raised",
            f"{facts.who(rank)} raised {each.handled}, and waits in {known[rank]} before that can end it",
            Certainty.SHOWN,
            rank=rank,
            host=facts.host(rank),
            step=each.step if each.step >= 0 else None,
            evidence=tuple(seen_of(facts, rank)),
            advice="call no collective in `finally` or `except`: a rank that raises must end, so that the others do",
        )


def left_behind(facts: Facts) -> Iterator[Cause]:
    """A rank has left, and another one whose connection to it broke has raised that, but has not ended yet."""
    lost = [rank for rank, each in facts.ranks.items() if each.state and of_torch(each.raised)]
    gone = sorted(gone_ranks(facts))
    if not lost or not gone or _block(facts) is not None:
        return
    for rank in gone[:_NAMED]:
        who, others = facts.who(rank), facts.named(lost)
        yield Cause(
            "left-early",
            f"{who} has ended, and {others} lost the connection to it",
            Certainty.SHOWN,
            rank=rank,
            host=facts.host(rank),
            evidence=(f"{facts.who(lost[0])} raised {facts.ranks[lost[0]].raised.partition(chr(10))[0][:200]}",),
            advice=STEPS_ADVICE,
        )


def mismatch(facts: Facts) -> Iterator[Cause]:
    """Ranks called different collectives, or one with other sizes, as the same one of their group."""
    if not _asks(facts):
        return
    for members in _groups(facts).values():
        by_seq: dict[int, dict[int, Entry]] = {}
        for rank, entries in members.items():
            for entry in entries:
                by_seq.setdefault(entry.seq, {})[rank] = entry
        for seq in sorted(by_seq):
            found = by_seq[seq]
            if len(found) < 2 or len({_kind(entry) for entry in found.values()}) < 2:
                continue
            yield different_calls(facts, _with_lines(facts, found), seq, members)
            return


# gloo's words where a tensor of another size arrives (gloo, transport/tcp/pair.cc); bytes that came, and that fit.
_TOO_LONG = r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)"


_INSTALLED = r"[/\\](?:site|dist)-packages[/\\]|/lib(?:64)?/(?:python|pypy)3[.\d]*t?/|^<"
# A rank that was aborted in a collective, as faulthandler wrote it below that: its last words are this stack alone.
_INSIDE = r'(?m)^  File "[^"\n]*/torch/distributed/distributed_c10d\.py", line \d+ in (\S+)'


def refused_size(facts: Facts) -> Iterator[Cause]:
    """A rank was sent more bytes than its tensor holds: gloo ends it at once, so that its own record is missing."""
    cause, victim = facts.cause, facts.cause.rank
    match = re.search(_TOO_LONG, cause.words)
    by_gloo = cause.signal == "SIGABRT" and not waited_in_vain(cause.words)  # else NCCL's watchdog did it
    aborted = by_gloo and re.search(_INSIDE, cause.words)
    if not (match or aborted) or victim is None:
        return
    came = f"gloo aborted {facts.who(victim)} in the same one"
    if match:
        came = f"a message of {match[1]} bytes came where {facts.who(victim)} had room for {match[2]}"
    ahead = _ran_ahead(facts, victim)
    if ahead is not None:
        yield ahead
        return
    odd = [
        (rank, entries[-1])
        for rank, entries in sorted(_groups(facts).get(_default(facts), {}).items())
        if rank != victim and len(entries) > 1 and _breaks(entries)
    ]
    line = line_of(facts.ranks[odd[0][0]].at) if odd else ""
    if len(odd) == 1:
        rank, entry = odd[0]
        called = _called(replace(entry, line=line), sizes=True)
        text = f"{facts.who(rank)} called {called} as collective #{entry.seq}, with other sizes than the rest: {came}"
    elif not match:
        yield _aborted(facts, victim, cause.words)
        return
    else:
        rank, text = None, f"ranks called one collective with tensors of different sizes: {came}"
    yield Cause(
        "other-sizes",
        text,
        Certainty.SEEN,
        rank=rank,
        host=facts.host(rank) if rank is not None else None,
        evidence=(cause.text,),
        advice="give the tensors the same shape on every rank",
    )


# What DistributedDataParallel raises on ranks whose model differs (torch 2.13, distributed/c10d/reducer.cpp): a rank
# names the first other one with another number of parameters, or that a parameter differs from that of rank 0.
_OTHER_NUMBER = r"Rank (\d+) has (\d+) params, while rank (\d+) has inconsistent (\d+) params"
_OTHER_SHAPE = r"\[(\d+)\]: (params\[\d+\]) in this process with (sizes|strides) (\[[\d, ]*\]) appears not to match"


def other_model(facts: Facts) -> Iterator[Cause]:
    """Ranks have wrapped models that differ in their parameters."""
    models: dict[int, str] = {}  # rank: what its model has
    lines: dict[int, str] = {}
    said = [each.words for each in facts.launch.failed]
    # Of ranks that raised as well, and were ended before all of it was on stderr.
    for words in (*said, *(each.raised for each in facts.ranks.values())):
        numbers, shape = re.search(_OTHER_NUMBER, words), re.search(_OTHER_SHAPE, words)
        if numbers:
            rank, other = int(numbers[1]), int(numbers[3])
            models |= dict.fromkeys((rank, *range(other)), f"{numbers[2]} parameters")
            models.setdefault(other, f"{numbers[4]} parameters")
        elif shape:
            rank = int(shape[1])
            models[rank] = f"{shape[2]} of {shape[3]} {shape[4]}"
            models.setdefault(0, f"{shape[2]} of other {shape[3]}")
        else:
            continue
        lines[rank] = _raised_at(words) or lines.get(rank) or line_of(facts.rank(rank).at)
    kinds: dict[str, list[int]] = {}
    for rank in sorted(models):
        kinds.setdefault(models[rank], []).append(rank)
    if len(kinds) < 2:
        return
    (odd, ranks), *_, (usual, others) = sorted(kinds.items(), key=lambda each: len(each[1]))
    line = next((f" ({lines[rank]})" for rank in (*ranks, *others) if lines.get(rank)), "")
    is_one = len(ranks) == 1 < len(others)
    text = (
        f"{facts.named(ranks)} {'has' if is_one else 'have'} another model than the rest{line}: {odd}, where "
        f"{facts.named(others)} have {usual}"
        if len(ranks) < len(others)  # of equally many nobody knows which ones are right
        else f"{facts.named([*ranks, *others])} have different models{line}: {odd}, and {usual}"
    )
    yield Cause(
        "other-model",
        text,
        Certainty.SEEN,
        rank=ranks[0] if is_one else None,
        host=facts.host(ranks[0]) if is_one else None,
        evidence=tuple(
            f"{facts.named(each)}: {what}" + "".join(f" ({lines[rank]})" for rank in each[:1] if lines.get(rank))
            for what, each in kinds.items()
        ),
        advice="build the same model on every rank: look for a condition on the rank, another configuration or another "
        "checkpoint",
    )


def _ran_ahead(facts: Facts, victim: int) -> Cause | None:
    """Return the cause that names a rank in another call than all others, of which gloo has aborted one.

    Two messages met that belong to different calls: a rank left its loop earlier, or skipped a call.
    """
    places = {rank: each.at for rank, each in facts.ranks.items() if each.at}
    places |= {each.rank: called_in(each.words) for each in facts.launch.failed if each.rank is not None}
    places = {rank: place for rank, place in places.items() if call_of(place) in CALLS or call_of(place) == "backward"}
    kinds: dict[str, list[int]] = {}
    for rank in sorted(places):
        kinds.setdefault(places[rank], []).append(rank)
    if len(kinds) != 2 or victim not in places:
        return None
    (odd, ranks), (usual, others) = sorted(kinds.items(), key=lambda each: len(each[1]))
    what = f"called {odd} where {facts.named(others)} {'was' if len(others) == 1 else 'were'} in {usual}"
    file, _, line = line_of(odd).partition(":")
    there, _, before = line_of(usual).partition(":")
    left = file == there and int(line or 0) > int(before or 0)
    sole = len(ranks) == 1 < len(others)
    return Cause(
        "other-collective",
        f"{facts.named(ranks)} {what}" + ": it left its loop earlier, or skipped a call" * (left and sole),
        Certainty.SEEN,
        rank=ranks[0] if sole else None,
        host=facts.host(ranks[0]) if sole else None,
        evidence=(f"gloo aborted {facts.who(victim)} in {places[victim]}",),
        advice=STEPS_ADVICE,
    )


def _raised_at(words: str) -> str:
    """Return the innermost line of the user's in the last traceback, as ``train.py:31``; empty without one."""
    frames = re.findall(r'  File "([^"\n]+)", line (\d+)', words.rpartition("Traceback")[2])
    own = [f"{file.rpartition('/')[2]}:{line}" for file, line in frames if not re.search(_INSTALLED, file)]
    return own[-1] if own else ""


def _aborted(facts: Facts, rank: int, words: str) -> Cause:
    """Return what is known of a rank that ended inside a collective, where no rank's own record says more."""
    place = called_in(words)
    call = call_of(place) or re.findall(_INSIDE, words)[0]
    line = line_of(place)
    where = f" ({line})" if line else ""
    return Cause(
        "aborted-in-collective",
        f"{facts.who(rank)} was aborted by torch inside {call}{where}, mostly because ranks called it with tensors of "
        "different sizes (gloo) or waited too long for one (NCCL)",
        Certainty.SEEN,
        rank=rank,
        host=facts.host(rank),
        evidence=("the line above its stack has torch's reason",),
        advice="TORCH_DISTRIBUTED_DEBUG=DETAIL has torch compare operation and shapes over ranks in each collective",
    )


def _breaks(entries: Sequence[Entry]) -> bool:
    """Tell whether the last collective of a rank has other sizes than all before of this operation had."""
    last = entries[-1]
    before = {entry.sizes for entry in entries[:-1] if entry.op == last.op}
    return len(before) == 1 and last.sizes not in before


# What ranks were doing

_WHOLE_RUN = "the run has not ended within"  # as `ezpz.launch.run.world` says of --timeout
_LONG = 5.0  # seconds: in a healthy run ranks wait for each other in every step


def _is_long(facts: Facts, waiting: Mapping[int, Entry]) -> bool:
    """Tell whether ranks have waited for long when they were asked; where none was, they failed of it.

    A launch may also train when the limit of the whole run ends it; one without progress does not.
    """
    hang = facts.launch.hang
    if hang and hang.summary and not hang.summary.startswith(_WHOLE_RUN):
        return True
    asked = hang or facts.asked
    began = min(entry.created for entry in waiting.values())
    return asked is None or asked.at is None or asked.at - began > _LONG


def _hangs(facts: Facts) -> bool:
    return bool(facts.launch.hang or facts.asked)


def _asks(facts: Facts) -> bool:
    """Tell whether ranks wait for each other: in a hang, or where a collective failed or lost a rank."""
    return _hangs(facts) or facts.cause.code == 0 or of_torch(facts.cause.words)


def _groups(facts: Facts) -> dict[str, dict[int, list[Entry]]]:
    """Return the collectives of each group and rank, by sequence; those between two ranks are none."""
    groups: dict[str, dict[int, list[Entry]]] = {}
    for rank, each in facts.ranks.items():
        for entry in each.entries:
            if not entry.peer:
                groups.setdefault(entry.group, {}).setdefault(rank, []).append(entry)
    for members in groups.values():
        for entries in members.values():
            entries.sort(key=lambda entry: entry.seq)
    return groups


def _block(facts: Facts) -> tuple[int, dict[int, Entry | None], dict[int, Entry]] | None:
    """Return the first collective that some ranks have begun and others have not.

    Returns:
        Sequence, the ranks that have not come with their last collective, and those that wait with this one.
    """

    def failed(rank: int) -> bool:
        """Tell whether a rank has ended inside of its last collective, which torch then calls completed as well."""
        each = facts.ranks[rank]
        return not each.state and call_of(each.at) in CALLS

    first: tuple[float, str, int, dict[int, Entry | None], dict[int, Entry]] | None = None
    for group, members in _groups(facts).items():
        last = {rank: entries[-1].seq for rank, entries in members.items()}
        lowest = min(last.values())
        behind: dict[int, Entry | None] = {rank: members[rank][-1] for rank in last if last[rank] == lowest}
        unknown = [rank for rank in range(facts.world_size) if rank not in last and group in _of_all(facts)]
        seq = lowest + 1
        if len(behind) == len(last):  # they are equal: who has reported nothing is missing
            behind, seq = {}, lowest
        behind.update(dict.fromkeys([rank for rank in unknown if _known(facts, rank)]))
        waiting = {
            rank: entry
            for rank, entries in members.items()
            for entry in entries
            if rank not in behind and entry.seq == seq and (entry.state != "completed" or failed(rank))
        }
        if behind and waiting:
            began = min(entry.created for entry in waiting.values())
            if first is None or began < first[0]:
                first = (began, group, seq, behind, waiting)
    if first is None:
        return None
    _, group, seq, behind, waiting = first
    inner = [rank for rank in behind if not _waits_elsewhere(facts, rank, group)]
    return seq, {rank: behind[rank] for rank in inner or behind}, waiting


def _known(facts: Facts, rank: int) -> bool:
    """Tell whether something is known of a rank that has recorded nothing: it lives elsewhere, or has left."""
    each = facts.rank(rank)
    place = places(facts).get(rank, "")
    if each.silent and call_of(place) in CALLS:  # it waits as the others do, and was only slow to answer
        return False
    return bool(each.silent or each.state or place or rank in gone_ranks(facts))


def gone_ranks(facts: Facts) -> set[int]:
    """Return the ranks that had ended before a hang was looked at, without a failure."""
    if not facts.launch.hang:
        return set()
    failed = {each.rank for each in facts.launch.failed if each.code != 0}
    gone = {*facts.launch.hang.left}
    if any(each.state for each in facts.ranks.values()):
        gone |= {rank for rank, each in facts.ranks.items() if not (each.state or each.silent or each.answered)}
    return gone - failed


def _default(facts: Facts) -> str:
    """Return the name of the group of all ranks: the one with the most members, the lowest name first."""
    groups = _groups(facts)
    return min(groups, key=lambda name: (-len(groups[name]), name)) if groups else ""


def _of_all(facts: Facts) -> set[str]:
    """Return the names of the group of all ranks, which has one for each of its backends: ``gloo:0``, ``nccl:0``."""
    name = _default(facts).rpartition(":")[2]
    return {group for group in _groups(facts) if group.rpartition(":")[2] == name}


def _waits_elsewhere(facts: Facts, rank: int, group: str) -> bool:
    """Tell whether a rank that has not come waits for others itself, in another group."""
    entries = [entry for entry in facts.rank(rank).entries if entry.group != group]
    return bool(entries) and entries[-1].state != "completed" and call_of(places(facts).get(rank, "")) in CALLS


# The sentences


def culprit(facts: Facts, rank: int, what: str, waiting: Mapping[int, Entry], last: Entry | None) -> Cause:
    """Return the cause that names a rank for which others wait in a collective."""
    place = places(facts).get(rank, "")
    kind, does, advice = _doing(facts, rank, place)
    who, others = facts.who(rank), facts.named(list(waiting))
    line = next((entry.line for entry in _with_lines(facts, waiting).values() if entry.line), "")
    wait = f"{others} wait{'s' * (len(waiting) == 1)} for it in {what}" + (f" ({line})" if line else "")
    evidence = [wait]
    if last is not None:
        evidence.append(f"the last collective of {who} is {last.op} #{last.seq} ({last.state})")
    evidence += seen_of(facts, rank)
    step = facts.rank(rank).step
    return Cause(
        kind,
        f"{who} {does}, and never came to {what}{f' ({line})' * bool(line)}: {wait.partition(' in ')[0]}",
        Certainty.SHOWN,
        rank=rank,
        host=facts.host(rank),
        step=step if step >= 0 else None,
        evidence=tuple(evidence),
        advice=advice,
    )


def _doing(facts: Facts, rank: int, place: str) -> tuple[str, str, str]:
    """Return the kind of cause, what the rank does instead, and what to try."""
    each, cause = facts.rank(rank), facts.cause
    left = cause.rank == rank and cause.code == 0
    line = line_of(place)
    where = f" ({line})" if line else ""
    asked = asked_ranks(facts).get(rank)
    at_exit = bool(re.match(_AT_EXIT, place) or (asked and is_at_end(asked)))
    raised = each.raised.partition("\n")[0] or (raised_at_end(asked) if asked else "")
    if raised and at_exit and not each.ended:
        return _raised(raised, line)
    if left or each.ended or rank in gone_ranks(facts) or at_exit:
        does = "has come to the end of its program" if (each.state or at_exit) and not left else "has ended"
        return "left-early", does, STEPS_ADVICE
    if each.state == "t" or place.startswith("stopped by"):
        return "stopped", "is stopped by a debugger", "let the debugger continue it"
    if each.state == "T" or place.startswith("stopped"):
        return "stopped", "is stopped by a signal", "look who sent SIGSTOP; `kill -CONT` lets it go on"
    if each.state == "D" or place.startswith("in uninterruptible"):
        return _in_the_kernel(each.where, where)
    return _raised(raised, line) if raised else _by_code(place, asked, silent=each.silent)


def raised_at_end(asked: AskedRank) -> str:
    """Return the exception of which a rank ends that still lives; empty where it goes on, or wrote none."""
    is_ending = is_at_end(asked) or not (asked.frames or line_of(asked.where))
    _, _, traceback = without_rank_tags(asked.words).rpartition("Traceback (most recent call last):\n")
    # One that was caught and printed mostly begins further inside.
    is_whole = traceback.partition("\n")[0].endswith((", in <module>", ", in _run_module_as_main"))
    if not (is_ending and is_whole) or asked.where.startswith("stopped"):
        return ""
    raised = ending(asked.words).partition("\n")[0][:_SAID]
    line = _raised_at(asked.words)
    return f"{raised} ({line})" if raised and line else raised


def _raised(raised: str, line: str) -> tuple[str, str, str]:
    """Return the same of a rank that has raised an exception and has not ended."""
    where = f" ({line})" if line and not line_of(raised) else ""
    return "raised", f"raised {raised}{where} and has not ended yet", "its traceback is in its output"


def _in_the_kernel(where: str, line: str) -> tuple[str, str, str]:
    """Return the same of a rank in state D: the function of the kernel, and the file and mount where they are known."""
    inside, _, file = where.partition(", for ")  # as `watch.collectives.last_collectives` has it
    waits = f" ({inside})" if inside else ""
    if not file:
        return "waits-for-files", f"waits in the kernel{waits}, often for a file system{line}", "look at that mount"
    mount = re.search(r" on (\S+) \([^()]*\)$", file)
    advice = f"look at the mount {mount[1]}: does `ls` answer there?" if mount else "look at that mount"
    return "waits-for-files", f"waits in the kernel{waits} for {file}{line}", advice


def _by_code(place: str, asked: AskedRank | None, *, silent: bool) -> tuple[str, str, str]:
    """Return the same of a rank that runs, or waits for something of its own."""
    line = line_of(place)
    call = call_of(place)
    if call.startswith("import"):
        return "importing", f"is in {place}", "a shared file system may be slow: copy the environment to the host"
    if call in _DATA:
        worker = f", whose worker is {spot(asked.worker)}" if asked and asked.worker else ""
        return (
            "waits-for-data",
            f"waits for data in {place}{worker}",
            "look at what its data set reads: one shard may be slow",
        )
    if asked and asked.child:
        return (
            "waits-for-child",
            f"waits for its child {asked.child} {spot(place)}",
            "look why that process does not end",
        )
    if silent:
        held = f" in {place}" if line else ""
        advice = "the C code called there keeps Python's lock: it must release it, or return"
        return "holds-python", f"answers nothing: C code holds Python's lock{held}", advice
    if line:
        return "collective-missing", f"is {spot(place)}", ""
    return "collective-missing", "is elsewhere", ""


def seen_of(facts: Facts, rank: int) -> list[str]:
    """Return what was seen of a rank that lives: where it is, what it wrote, and whether it moves."""
    place, asked = places(facts).get(rank, ""), asked_ranks(facts).get(rank)
    who = facts.who(rank)
    seen = [f"{who} is {spot(place)}" + (f": {asked.source}" if asked and asked.source else "")] if place else []
    words = asked.words if asked else ""
    raised = ending(words).partition("\n")[0][:_SAID] if words else ""
    if raised:
        is_thread = _IN_THREAD in words
        seen.append(f"{f'a thread of {who} raised' if is_thread else f'{who} has written a traceback:'} {raised}")
    return seen + _samples(facts, rank)


def _samples(facts: Facts, rank: int) -> list[str]:
    """Return what two samples of a rank's stack say: stuck, or slow."""
    hang = facts.launch.hang
    if hang is None or hang.earlier is None:
        return []
    then, now = (
        next((each.frames for each in sample.ranks if each.rank == rank), None) for sample in (hang.earlier, hang)
    )
    if not then or not now:
        return []
    apart = f"two samples {hang.apart:g} s apart"
    return [f"{apart} show the same stack: it is stuck" if then == now else f"{apart} differ: it moves, and is slow"]


def _kind(entry: Entry) -> tuple[str, str]:
    """Return what must be equal on all ranks for one collective."""
    return entry.op, entry.sizes if entry.op in _EQUAL else ""


def _with_lines(facts: Facts, found: Mapping[int, Entry]) -> dict[int, Entry]:
    """Return collectives with the line of the user's code that called each, as far as it can be known.

    The recorder keeps lines only for NCCL. A rank that is still inside of one tells its line by its stack.
    """
    where = places(facts)
    lined = {}
    for rank, entry in found.items():
        is_inside = not entry.line and entry.state != "completed"
        lined[rank] = replace(entry, line=line_of(where.get(rank, ""))) if is_inside else entry
    return lined


def different_calls(
    facts: Facts,
    found: Mapping[int, Entry],
    seq: int | None = None,
    members: Mapping[int, Sequence[Entry]] | None = None,
) -> Cause:
    """Return the cause that names ranks which called different collectives, first who is alone or broke the order.

    Of two ranks that have no order in common before, nobody knows which one is wrong: no rank is named as the cause.
    """
    kinds: dict[tuple[str, str], list[int]] = {}
    for rank in sorted(found):
        entry = found[rank]
        kinds.setdefault((entry.op, entry.sizes if seq is not None else ""), []).append(rank)
    entries = max((members or {}).values(), key=len, default=())
    past = [(each.op, each.sizes) for each in entries if each.seq < (seq or 0)]
    expected, expected_op = _next_of(past), _next_of([(op, "") for op, _ in past])

    def weight(kind: tuple[str, str]) -> tuple[int, int]:
        """The fewest ranks come first; of equally many, those that broke the order that all had kept so far."""
        return len(kinds[kind]), (kind == expected) + ((kind[0], "") == expected_op)

    ordered = [(kind, kinds[kind]) for kind in sorted(kinds, key=weight)]
    odd, ranks = ordered[0]
    is_known = weight(odd) < weight(ordered[-1][0])
    same_op = odd[0] == ordered[-1][0][0]
    number = f" as collective #{seq}" if seq is not None else ""
    says = [f"{facts.named(each)} called {_called(found[each[0]], sizes=same_op)}" for _, each in ordered]
    if is_known:
        rest = "with other sizes than the rest" if same_op else "where the others called another collective"
        text = f"{says[0]}{number}, {rest}: {says[-1]}"
    else:
        rest = "the same collective with different sizes" if same_op else "different collectives"
        text = f"{facts.named(sorted(found))} called {rest}{number.replace('collective ', '')}: {', '.join(says)}"
    sole = len(ranks) == 1 and is_known
    return Cause(
        "other-sizes" if same_op else "other-collective",
        text,
        Certainty.SHOWN,
        rank=ranks[0] if sole else None,
        host=facts.host(ranks[0]) if sole else None,
        evidence=tuple(f"{facts.named(each)}: {_called(found[each[0]], sizes=True)}" for _, each in ordered),
        advice=(
            "give the tensors the same shape on every rank"
            if same_op
            else "call the same collectives in the same order on every rank: look for a condition on the rank, or for "
            "loops of different lengths"
        ),
    )


_ORDER = 8  # collectives before one that tell which follows


def _next_of(past: Sequence[_Kind]) -> _Kind | None:
    """Return what followed the last ones whenever they occurred before; None where that is not known.

    As many are compared as have occurred together before: the first steps of a program have an order of their own,
    such as the broadcasts of DistributedDataParallel.
    """
    for length in range(min(_ORDER, len(past) - 1), 0, -1):
        last = past[-length:]
        follow = {past[each + length] for each in range(len(past) - length) if past[each : each + length] == last}
        if follow:
            return follow.pop() if len(follow) == 1 else None
    return None


def _called(entry: Entry, *, sizes: bool) -> str:
    of = f" of {entry.sizes}" if sizes and entry.sizes else ""
    return f"{entry.op}{of}" + (f" ({entry.line})" if entry.line else "")
