"""Define what a host reports of ranks that nothing has connected."""

from __future__ import annotations

from ezpz.fields import number_field
from ezpz.launch.shim_messages import Message


class Unconnected(Message):
    """So many ranks of the host have loaded torch, and had no connection in all their time."""

    kind = "unconnected"
    ranks: int = number_field(0)


REPORTS = (Unconnected,)
