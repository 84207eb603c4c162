"""Whether a name means this host."""

from __future__ import annotations

import os

__all__ = ["is_here"]


def is_here(host: str) -> bool:
    """Tell whether a host name means this host; names are compared by their first label."""
    return host.split(".", maxsplit=1)[0] in {os.uname().nodename.split(".")[0], "localhost", "127"}
