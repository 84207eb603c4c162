"""Say where ranks are by their stacks: in a call that waits for others, in one of their own, at their end."""

from __future__ import annotations

import re

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.records.launch_record import AskedRank
    from ezpz.why.known_facts import Facts

__all__ = [
    "BETWEEN_TWO",
    "CALLS",
    "asked_ranks",
    "call_of",
    "idle_ranks",
    "is_at_end",
    "is_elsewhere",
    "line_of",
    "places",
    "ranks_that_wait",
    "spot",
    "still_ranks",
    "was_asked_twice",
    "woken_ranks",
]

# Functions of torch.distributed in which a rank waits for one other (torch 2.13, distributed_c10d.py).
_OF_TWO = {"recv", "send", "recv_object_list", "send_object_list", "batch_isend_irecv"}
# The same in which it waits for all of its group.
CALLS = {
    *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_reduce_coalesced", "all_to_all"),
    *("all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object"),
    *("monitored_barrier", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "wait"),
    *("scatter_object_list", "synchronize", "destroy_process_group", "init_process_group", "new_group"),
    *_OF_TWO,
}
# Methods of mpi4py's communicators that wait (mpi4py 4.1, MPI.Comm); they are C, and their frames are not seen.
_MPI_OF_TWO = r"[sb]?send|Ssend|Rsend|Send|m?recv|Recv|sendrecv|Sendrecv(?:_replace)?|m?probe|M?Probe"
_MPI_OF_ALL = (
    r"barrier|Barrier|bcast|Bcast|gather|Gatherv?|scatter|Scatterv?|allgather|Allgatherv?|alltoall|Alltoall[vw]?"
    r"|reduce|Reduce|allreduce|Allreduce|Reduce_scatter(?:_block)?|scan|Scan|exscan|Exscan|Split|Dup|Finalize"
)
_MPI = rf"\.({_MPI_OF_TWO}|{_MPI_OF_ALL})\("
BETWEEN_TWO = _OF_TWO | {
    *("ssend", "bsend", "Ssend", "Rsend", "Send", "mrecv", "Recv", "sendrecv", "Sendrecv", "Sendrecv_replace"),
    *("probe", "mprobe", "Probe", "Mprobe"),
}
_C10D = "/torch/distributed/distributed_c10d.py"
_OF_GROUPS = r"/torch/distributed/|/torch/nn/parallel/distributed\.py$|/ezpz/dist/"
_BACKWARD = r"/torch/autograd/(?:graph|__init__)\.py$"
_WHOLE = 60  # frames: of a deeper stack the outermost ones may have been left out
# Outermost frames of a program's own lines, and of a thread, which is looked at where the main one runs no Python.
_MAIN = {"<module>", "_run_module_as_main", "_run_code", "_bootstrap"}
_STILL_CPU = 0.02  # share of a core that a rank uses at most that stands still: its other threads may beat
_IDLE_CPU = 0.2  # the same of one that computes nothing, and may look for something again and again
_STILL_SWITCHES = 2  # times that its main thread wakes up at most: the signal for its stack wakes it once


def asked_ranks(facts: Facts) -> Mapping[int, AskedRank]:
    """Return what each rank was doing when it was asked, at last."""
    asked = facts.launch.hang or facts.asked
    return {each.rank: each for each in (asked.ranks if asked else ())}


def places(facts: Facts) -> dict[int, str]:
    """Return where each rank was, as ``all_reduce (train.py:88)``: by its stack, else the kernel's word."""
    by_stack = {rank: each.where for rank, each in asked_ranks(facts).items()}
    reported = {rank: each.at for rank, each in facts.ranks.items() if each.at}
    return {
        **reported,
        **{rank: place for rank, place in by_stack.items() if place.endswith(")") or rank not in reported},
    }


def call_of(place: str) -> str:
    return place.partition(" (")[0]


def spot(place: str) -> str:
    """Return a place as the end of a sentence: ``in load (data.py:31)``, ``at train.py:12``, or the kernel's words."""
    line = line_of(place)
    if not line:
        return place
    return f"at {line}" if place.startswith("<") else f"in {place}"


def line_of(place: str) -> str:
    match = re.search(r"\(([^()]+:\d+)\)$", place)
    return match[1] if match else ""


def ranks_that_wait(facts: Facts) -> dict[int, str]:
    """Return the ranks that wait for others by their stacks, each with its call: ``all_reduce (train.py:88)``.

    A backward pass looks alike whether it computes or waits for the gradients of others: it counts where its rank stood
    still between two looks.
    """
    still = still_ranks(facts)
    found = {}
    for rank, each in asked_ranks(facts).items():
        call = _awaited(each)
        if call and (call != "backward" or rank in still):
            found[rank] = f"{call} ({line_of(each.where)})"
    return found


def still_ranks(facts: Facts) -> set[int]:
    """Return the ranks that did nothing between two looks: they used no CPU, and their main thread never woke up."""
    hang, before = facts.launch.hang, _asked_before(facts)
    return {
        rank
        for rank, each in asked_ranks(facts).items()
        if hang
        and rank in before
        and 0 <= before[rank].cpu >= each.cpu - _STILL_CPU * hang.apart
        and 0 <= before[rank].switches >= each.switches - _STILL_SWITCHES
    }


def woken_ranks(facts: Facts) -> set[int]:
    """Return the ranks whose main thread woke up more than twice between two looks.

    One that polls or spins for others does not; it never sleeps.
    """
    before = _asked_before(facts)
    return {
        rank
        for rank, each in asked_ranks(facts).items()
        if rank in before and 0 <= before[rank].switches < each.switches - _STILL_SWITCHES
    }


def idle_ranks(facts: Facts) -> set[int]:
    """Return the ranks that used little CPU between two looks, and so computed nothing."""
    hang, before = facts.launch.hang, _asked_before(facts)
    return {
        rank
        for rank, each in asked_ranks(facts).items()
        if hang and rank in before and 0 <= before[rank].cpu >= each.cpu - _IDLE_CPU * hang.apart
    }


def was_asked_twice(facts: Facts) -> bool:
    """Tell whether two looks say how much CPU ranks have used in between."""
    return any(each.cpu >= 0 for each in _asked_before(facts).values())


def _asked_before(facts: Facts) -> dict[int, AskedRank]:
    """Return what ranks were doing some seconds before that; nothing where they were asked once."""
    earlier = facts.launch.hang.earlier if facts.launch.hang else None
    return {each.rank: each for each in earlier.ranks} if earlier else {}


def is_elsewhere(each: AskedRank) -> bool:
    """Tell whether a rank is in lines that have to do with no other rank, as far as its stack shows."""
    inside = _inside(each)
    if inside is None or _awaited(each) or (each.mpi and not inside):  # a call into C may be MPI's
        return False
    return not any(re.search(_OF_GROUPS, file) for _, file, _ in inside)


def is_at_end(each: AskedRank) -> bool:
    """Tell whether a rank has left its program's own lines: Python calls what is to be called at its end.

    That has no frame of the program below it. A rank whose stack has no frame at all is not known to be there, but for
    one that still has mpi4py loaded: it waits in MPI_Finalize, when its Python has ended.
    """
    if each.mpi and not each.frames:
        return not each.where.startswith("stopped")
    return 0 < len(each.frames) < _WHOLE and str(each.frames[-1][0]) not in _MAIN


def _inside(each: AskedRank) -> list[tuple[str, str, int]] | None:
    """Return the frames that the user's line has called, innermost first; None where they are not known."""
    line = line_of(each.where)
    inside: list[tuple[str, str, int]] = []
    for function, file, number in each.frames:
        if line and line == f"{str(file).rpartition('/')[2]}:{number}":
            return inside
        inside.append((str(function), str(file), number))
    return None


def _awaited(each: AskedRank) -> str:
    """Return the call by which a rank waits for others; empty where its stack has none."""
    inside = _inside(each)
    if not line_of(each.where):
        return ""
    if inside is None:
        return call_of(each.where) if call_of(each.where) in CALLS else ""
    if inside:
        return _awaited_in(call_of(each.where), inside)
    found = re.search(_MPI, each.source) if each.mpi else None
    return found[1] if found else ""


def _awaited_in(call: str, inside: list[tuple[str, str, int]]) -> str:
    """Return the same of the frames that a user's line has called."""
    collectives = [function for function, file, _ in inside if file.endswith(_C10D) and function in CALLS]
    innermost = inside[0][1]
    if call in CALLS and any(re.search(_OF_GROUPS, file) for _, file, _ in inside):
        awaited = call
    elif collectives:
        awaited = collectives[-1]
    elif innermost.endswith("/torch/nn/parallel/distributed.py"):
        awaited = "DistributedDataParallel" + f".{call}" * (not call.startswith("_"))
    elif "/torch/distributed/fsdp/" in innermost or "/torch/distributed/_composable/" in innermost:
        awaited = f"FSDP's {call}"
    else:
        awaited = "backward" if re.search(_BACKWARD, innermost) else ""
    return awaited
