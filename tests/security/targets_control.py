"""The control protocol: every line that crosses a connection between launcher, agents, shims and ranks."""

from __future__ import annotations

from fuzz import target

from ezpz.launch import messages
from ezpz.launch.messages import MalformedMessage, Piece

REPORTS = (
    messages.Up(ranks=2),
    messages.Note(text="a note"),
    messages.RankFailed(rank=3, pid=7, code=-9, at=1.5, why="", words="last words\n", shown=True),
    messages.Stages(stage="torch", count=2, low=1.0, median=1.5, high=2.0),
    messages.Mismatch(host="n01", worlds=[("1", "openmpi", "text")]),
    messages.StacksTaken(
        id=1,
        host="n01",
        ranks=[messages.RankStack(rank=0, pid=7, frames=[("f", "a.py", 3)], where="x")],
        dumps=["/tmp/dump"],
    ),
    messages.Done(stuck=[1, 2]),
)
ORDERS = (
    messages.Signal(number=15),
    messages.Kill(),
    messages.TakeStacks(fatal=False, id=1),
    messages.Release(codes=True),
)


def why(error):
    """The reason without what it quotes and without numbers, so that each reason counts as one behaviour."""
    return str(error).partition(" b'")[0].translate(str.maketrans("", "", "0123456789"))[:60]


def happened(direction, line):
    try:
        message = direction.decode(line)
    except MalformedMessage as error:
        return why(error)
    direction.encode(message)  # what was taken can be sent on
    return type(message).__name__


@target(seconds=3, seeds=[messages.REPORTS.encode(one) for one in REPORTS], words=[b'"say"', b'"ended"'])
def reports(data):
    return happened(messages.REPORTS, data)


@target(seconds=2, seeds=[messages.ORDERS.encode(one) for one in ORDERS], words=[b'"do"', b'"signal"'])
def orders(data):
    return happened(messages.ORDERS, data)


@target(
    seconds=2,
    seeds=[b"shim 0 2 0 2 0 openmpi 7 1.5", b"up 7", b"ended 1", b"cannot 2 a b", b"rank 0 7", b"stage torch", b"beat"],
    words=[b"shim ", b"note "],
)
def from_ranks(data):
    return happened(messages.FROM_RANKS, data)


@target(seconds=2, seeds=[b"0 1\nabc", b"-3 2\n"], words=[b"0 1 ", b"16777216", b"16777217"])
def output(data):
    try:
        return Piece.decode(memoryview(data)).stream
    except MalformedMessage as error:
        return why(error)
