r"""Read what torch writes in a rank that waited for others in vain, or lost one, and where that rank was.

As it is written by torch 1.13 to 2.13 (torch/csrc/distributed/c10d: TCPStore.cpp, socket.cpp, ProcessGroupGloo.cpp,
ProcessGroupNCCL.cpp; gloo, transport/tcp/unbound_buffer.cc):

    DistStoreError: Timed out after 16 seconds waiting for clients. 2/3 clients joined.
    DistStoreError: wait timeout after 15000ms, keys: /default_pg/0//cpu//0/2      the last number is a rank
    DistNetworkError: The client socket has timed out after 15000ms while trying to connect to (10.0.0.1, 29500).
    RuntimeError: […/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation to complete
    RuntimeError: [Rank 0]: Ranks 2 failed to pass monitoredBarrier in 5000 ms

NCCL's watchdog aborts a rank. -1: no work was completed. It names a rank of the group, not of the world:

    [E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=46,
        OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802212 milliseconds before timing out.                  1.13
    … WorkNCCL(SeqNum=7753, OpType=_REDUCE_SCATTER_BASE, NumelIn=8, NumelOut=4, Timeout(ms)=600000) ran for …    2.3
    [PG 1 Rank 0] Exception (either an error or timeout) detected by watchdog at work: 7753, last enqueued NCCL work:
        7755, last completed NCCL work: 7752.                                                                   2.4
    [PG 0 (default_pg) Rank 1] Timeout at NCCL work: 46, last enqueued NCCL work: 46, last completed NCCL work: 45.  2.5
    [PG ID 0 PG GUID 0(default_pg) Rank 1] Exception (either …) detected by watchdog at work: 808, last …        2.6
    [PG ID 0 PG GUID 0(default_pg) Rank 8]  failure detected by watchdog at work sequence id: 5 PG status: last enqueued
        work: 5, last completed work: 4                                                                         2.7
    [PG ID 0 PG GUID 0(default_pg) Rank 4] Received a dump signal due to a collective timeout from  rank 7 and we will
        try our best to dump the debug info. Last enqueued NCCL work: 16, last completed NCCL work: 16.
"""

from __future__ import annotations

import re

from ezpz.fields import Record

__all__ = ["Wait", "Watchdog", "called_in", "lost_a_peer", "wait_in", "waited_in_vain", "watchdog_in"]

_RANK_TAG = r"(?m)^\[rank\d+\]: ?"  # torch's, in front of each line of a traceback
_TRACEBACK = "Traceback (most recent call last)"
_EXCEPTION_LINES = 8  # NCCL's has that many at most
_OF_TORCH = r"(?i)gloo|nccl|c10d|TCPStore|Dist(?:Network|Store|Backend)Error|monitoredBarrier"
_LOST_PEER = (
    r"(?i)closed by (?:remote )?peer|reset by (?:remote )?peer|broken pipe|remote process exit(?:ed|ing)"
    r"|failed to (?:recv|send), got 0 bytes|connection was likely closed"
)
_NO_PEER = (
    r"(?i)clients joined|timed out waiting \d+ms for (?:recv|send)|caught collective operation timeout"
    r"|client socket has timed out|wait timeout after \d+ms|failed to pass monitoredBarrier"
)
_SECONDS = (
    r"(?i)(?:timed out waiting|timeout after|timed out after|Timeout\(ms\)=|monitoredBarrier in) ?(\d+)(?: ?(ms|s)\b)?"
)
_JOINED = r"\b(\d{1,9})/(\d{1,9}) clients joined"
_ADDRESS = r"trying to connect to \(([^,()\n]+), (\d+)\)"
# Keys of gloo in the store of the group of all ranks end with a rank; those of another group with a rank of that one.
_KEY = r"keys: /default_pg/0//cpu//\d+/(\d+)\b"
_NCCL_ROOT = r"retrieving ncclUniqueId from \[(\d+)\][^\n]*keys: /default_pg/0/"
_BARRIER = r"[Rr]anks? (\d+(?:, ?\d+)*) failed to pass monitoredBarrier"
_WORLD_SIZE = r"\bworld_size ?= ?(\d+)\b"  # as the line of a script has it in a traceback

_INSTALLED = r"[/\\](?:site|dist)-packages[/\\]|/lib(?:64)?/(?:python|pypy)3[.\d]*t?/|^<frozen "
_OWN = (
    r"/ezpz/(?:(?:cli|cluster|dist|launch|models|track|train|view|watch|why)/"
    r"|(?:__init__|__main__|errors|log|progress|ranks|test_dist)\.py$)"
)
_FRAME = r'(?m)^  File "([^"\n]+)", line (\d+),? in (\S+)'
_THREAD = r"\(most recent call first\):"
# Functions around the one that the user called, as `ezpz.launch.stack_groups` passes over them.
_AROUND = {"compile_wrapper", "decorate_context", "decorator", "inner", "wrapped", "wrapper"}

_CAUGHT = r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+), OpType=(\w+)"
_STATUS = r"(?i)last enqueued (?:NCCL )?work: (-?\d+)[^\n]{0,200}?last completed (?:NCCL )?work: (-?\d+)"
_AT_WORK = r"(?:at (?:NCCL )?work(?: sequence id)?): (\d+)"
_GROUP = r"\[PG (?:ID \d+ ?PG GUID )?([^\]\n]{1,80}?) *Rank \d+\]"


class Wait(Record):
    """What a rank says of a wait that was in vain; what it does not say is None, empty or 0.

    Attributes:
        seconds: How long it waited.
        ranks: The ranks that it names.
        came: How many had come, and
        world: of how many, says the store of its group.
        address: Where it wanted to connect to, and
        port: its port.
        own_world: The world size that stands in the script's own line.
    """

    seconds: float | None = None
    ranks: tuple[int, ...] = ()
    came: int = 0
    world: int = 0
    address: str = ""
    port: str = ""
    own_world: int = 0


class Watchdog(Record):
    """What NCCL's watchdog says of one group in one rank; -1 for what it does not say.

    Attributes:
        group: The group, as the watchdog names it: ``0(default_pg)``; empty where it names none.
        seq: The work that timed out.
        op: Its operation.
        enqueued: The last work that the rank has enqueued.
        completed: The last one that was completed; -1 also where none was.
    """

    group: str = ""
    seq: int = -1
    op: str = ""
    enqueued: int = -1
    completed: int = -1

    @property
    def is_of_all(self) -> bool:
        """Whether the group is that of all ranks, as far as its name tells; torch before 2.4 names none."""
        return "default_pg" in self.group or self.group in {"", "0"}


def waited_in_vain(words: str) -> bool:
    """Tell whether a rank ended of no more than that others did not come within a time limit of torch's."""
    said = _exception(words)
    return bool(re.search(_NO_PEER, said) and re.search(_OF_TORCH, said))


def lost_a_peer(words: str) -> bool:
    """Tell whether a rank ended of no more than that it had lost another one, says torch's communication."""
    said = _exception(words)
    return bool(re.search(_LOST_PEER, said) and re.search(_OF_TORCH, said))


def _exception(words: str) -> str:
    """Return the lines of the last exception; all words where there is no traceback."""
    words = re.sub(_RANK_TAG, "", words)
    _, traceback, after = words.rpartition(_TRACEBACK)
    if not traceback:
        return words
    lines = after.split("\n")[1:]
    first = next((at for at, line in enumerate(lines) if line[:1].strip()), len(lines))
    return "\n".join(line for line in lines[first : first + _EXCEPTION_LINES] if not line.startswith("[W"))


def wait_in(words: str) -> Wait:
    """Return what a rank that `waited_in_vain` says of it."""
    said = _exception(words)
    seconds, joined, address = re.search(_SECONDS, said), re.search(_JOINED, said), re.search(_ADDRESS, said)
    ranks = re.search(_BARRIER, said) or re.search(_KEY, said) or re.search(_NCCL_ROOT, said)
    # The line of the script alone: a library's call may have a number of its own.
    own = re.search(_WORLD_SIZE, _own_line(words))
    in_seconds = seconds and (seconds[2] == "s" or "seconds" in said[seconds.end(1) : seconds.end(1) + 8])
    return Wait(
        seconds=float(seconds[1]) / (1 if in_seconds else 1000) if seconds else None,
        ranks=tuple(int(rank) for rank in ranks[1].split(",")) if ranks else (),
        came=int(joined[1]) if joined else 0,
        world=int(joined[2]) if joined else 0,
        address=address[1] if address else "",
        port=address[2] if address else "",
        own_world=int(own[1]) if own else 0,
    )


# Where it was


def called_in(words: str) -> str:
    """Return what the user's code called last, as ``all_reduce (train.py:21)``.

    Args:
        words: The last words of a rank: a traceback, or the stacks that faulthandler has written. Of these the thread
            counts that has frames of the user's and one of torch.distributed, else one of the user's alone.

    Returns:
        Empty where no frame is the user's.
    """
    words = re.sub(_RANK_TAG, "", words)
    _, dump, _ = words.rpartition("(most recent call first)")
    if dump:
        threads = [re.findall(_FRAME, part)[::-1] for part in re.split(_THREAD, words)[1:]]
        inside = [frames for frames in threads if any("/torch/distributed/" in file for file, *_ in frames)]
        found = [place for place in map(_place, inside or threads) if place]
        return found[-1] if found else ""  # new threads are listed first
    return _place(re.findall(_FRAME, words.rpartition(_TRACEBACK)[2])) if _TRACEBACK in words else ""


def _place(frames: list[tuple[str, str, str]]) -> str:
    """Return the place of a stack, outermost frame first; empty where none is the user's."""
    own = [at for at, (file, *_) in enumerate(frames) if _is_users(file)]
    if not own:
        return ""
    file, line, function = frames[own[-1]]
    inside = (name for path, _, name in frames[own[-1] + 1 :] if not re.search(_OWN, path))
    called = next((name for name in inside if name not in _AROUND and name[:1] not in "_<"), function)
    return f"{called} ({file.rpartition('/')[2]}:{line})"


def _is_users(file: str) -> bool:
    return not re.search(_INSTALLED, file) and not re.search(_OWN, file)


def _own_line(words: str) -> str:
    """Return the user's lines of code at the innermost frame of the user's in a traceback."""
    lines = re.sub(_RANK_TAG, "", words).rpartition(_TRACEBACK)[2].split("\n")
    found, inside = "", False
    for line in lines:
        frame = re.match(_FRAME, line)
        if frame:
            inside = _is_users(frame[1])
            found = "" if inside else found
        elif inside and line.startswith("    "):
            found += line
    return found


# NCCL's watchdog


def watchdog_in(words: str) -> list[Watchdog]:
    """Return what NCCL's watchdog says in a rank's last words, of each group once, in the order in which it came."""
    found: dict[str, Watchdog] = {}
    ops = {int(seq): op for seq, op in re.findall(_CAUGHT, words)}
    named: set[int] = set()
    for line in words.splitlines():
        status, group = re.search(_STATUS, line), re.search(_GROUP, line)
        if not status:
            continue
        at = re.search(_AT_WORK, line)
        seq = int(at[1]) if at else -1
        name = group[1] if group else ""
        if name not in found or (seq >= 0 > found[name].seq):
            found[name] = Watchdog(name, seq, ops.get(seq, ""), int(status[1]), int(status[2]))
        named.add(seq)
    for seq, op in ops.items():
        if seq not in named and "" not in found:
            found[""] = Watchdog("", seq, op)
    return list(found.values())
