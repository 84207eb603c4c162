"""The line by which a host shows that its ranks are up.

['n01'][device='cuda:0'][rank=0/8][local_rank=0/4][tp:0/2][dp:0/4]      counts are true sizes: the first of eight
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ezpz.log import get_logger

if TYPE_CHECKING:
    from ezpz.ranks import Ranks

__all__ = ["say_who"]


def say_who(ranks: Ranks, device: str) -> None:
    """Print this rank's line, whatever rank it is: others than 0 are silent at INFO, and each host shall speak once."""
    from ezpz.dist.mesh import coordinate, degree, get_mesh

    mesh = get_mesh()
    names = [name for name in ("pp", "cp") if degree(mesh, name) > 1]
    parts = "".join(f"[{name}:{coordinate(mesh, name)}/{degree(mesh, name)}]" for name in (*names, "tp", "dp"))
    line = (
        f"['{os.uname().nodename}'][device='{device}'][rank={ranks.rank}/{ranks.world_size}]"
        f"[local_rank={ranks.local_rank}/{ranks.local_world_size}]{parts}"
    )
    get_logger("ezpz.dist.who", rank=0).info(line)  # it says itself which rank it is
