"""Define what ranks say of their collectives, and what a host reports of all its ranks."""

from __future__ import annotations

from ezpz.fields import Seconds, list_field, number_field, part_field, rank_field, seconds_field, text_field
from ezpz.launch.shim_messages import Message

_TEXT, _LINE = 1 << 14, 1024  # characters
_MOST = 1 << 20  # threads or CPUs


class Arrivals(Message):
    """When that rank came to its last collectives of a group, since the last line, which is ``span`` seconds ago.

    In this time it was ready and had no core for ``delay`` seconds, used ``cpu`` seconds, had ``faults`` major page
    faults, was stopped by its cgroup for ``throttled`` seconds, and lost ``steal`` seconds to other virtual machines.
    Of the looks at its main thread the share ``loader`` found it in a DataLoader, and ``where`` are the lines in which
    it was most, each with its share in front and tabs between them: ``0.46 train.py:17 (work)``.
    Torch computes with ``threads`` threads in it, and ``omp`` is its ``OMP_NUM_THREADS``, 0 where it has none. ``cpus``
    are the CPUs that its main thread may use: a number in hexadecimal digits in which CPU n is bit n, 0 where that is
    not known. ``times`` are as `ezpz.dist.arrivals` writes them.
    """

    kind = "arrivals"
    group: str = text_field(40)
    span: float = seconds_field()
    delay: float = seconds_field()
    cpu: float = seconds_field()
    faults: float = seconds_field()
    throttled: float = seconds_field()
    steal: float = seconds_field()
    loader: float = seconds_field()
    threads: int = number_field(0, _MOST)
    omp: int = number_field(0, _MOST)
    cpus: str = text_field(_LINE)
    times: str = text_field(_TEXT)
    where: str = text_field(_LINE)


class RankArrivals(Message):
    """When a rank came to its last collectives: fields as in `Arrivals`."""

    rank: int = rank_field()
    group: str = text_field(40)
    span: float = seconds_field()
    figures: list[float] = list_field(Seconds(False), most=6)
    threads: int = number_field(0, _MOST)
    omp: int = number_field(0, _MOST)
    times: str = text_field(_TEXT)
    where: str = text_field(_LINE)


class ArrivalsTold(Message):
    """When ranks of the host came to their last collectives, and what to add to its clock to get the launcher's.

    All ranks of it that have told may use ``cores`` CPUs together, and the agent ``allowed``; the host has ``there``. 0
    stands for what is not known.
    """

    kind = "arrivals"
    clock: float = seconds_field()
    cores: int = number_field(0, _MOST)
    allowed: int = number_field(0, _MOST)
    there: int = number_field(0, _MOST)
    ranks: list[RankArrivals] = list_field(part_field(RankArrivals), most=4096)


WORDS, REPORTS = (Arrivals,), (ArrivalsTold,)
