"""Hold what is known of a run, for the rules of `ezpz.why`: the record of its launch and the run's own folder."""

from __future__ import annotations

import os

from ezpz.files import read_object
from ezpz.why.record import COLLECTIVES, as_answer, read_collectives, read_launch

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["COLLECTIVES", "Facts", "by_rank"]


class Facts:
    """What is known of a run.

    Attributes:
        launch: ``run.json`` of the launch; empty where no launch is known.
        run: ``run.json`` of the run's own folder; empty where the program recorded nothing.
        run_folder: That folder; empty where there is none.
        launch_folder: Folder of the launch's record; empty where there is none.
        ranks: Of each rank that is known, what it was doing at the end or when it was asked: the entries of
            ``collectives.json``, with what ``run.json`` knows of its stack where that file has none.
    """

    def __init__(
        self,
        launch: Mapping[str, Any] | None = None,
        run: Mapping[str, Any] | None = None,
        *,
        launch_folder: str = "",
        run_folder: str = "",
        collectives: Mapping[str, Any] | None = None,
    ) -> None:
        self.launch = dict(launch or {})
        self.run = dict(run or {})
        self.launch_folder = launch_folder
        self.run_folder = run_folder
        self.ranks = by_rank(collectives or {})

    @classmethod
    def read(cls, launch_folder: str = "", run_folder: str = "") -> Facts:
        """Return the facts of the folders of a launch and of its run; what cannot be read is empty."""
        launch = read_launch(os.path.join(launch_folder, "run.json")) if launch_folder else {}
        run = read_object(os.path.join(run_folder, "run.json")) if run_folder else {}
        collectives = read_collectives(os.path.join(launch_folder, COLLECTIVES)) if launch_folder else {}
        if collectives.get("launch_id") != launch.get("launch_id"):  # of an earlier launch with the same --log-dir
            collectives = {}
        return cls(launch, run, launch_folder=launch_folder, run_folder=run_folder, collectives=collectives)

    def use_answer(self, answer: Mapping[str, Any]) -> None:
        """Take what the ranks of a running launch have answered: they are asked, and not ended."""
        self.launch["now"] = now = as_answer(dict(answer))
        self.ranks = by_rank(now.get("collectives") or {})

    @property
    def world_size(self) -> int:
        """How many ranks were planned; 0 where that is not known."""
        return (self.launch.get("plan") or {}).get("world_size") or 0

    def host(self, rank: int) -> str | None:
        """Return the host on which a rank was planned; None where that is not known."""
        plan = self.launch.get("plan") or {}
        first = 0
        for host, count in zip(plan.get("hosts") or (), plan.get("ranks_per_host") or (), strict=False):
            if first <= rank < first + count:
                return str(host)
            first += count
        return None

    def who(self, rank: int) -> str:
        """Return a rank as a sentence begins with it: ``rank 1``, with several hosts ``rank 1 on n02``."""
        several = len((self.launch.get("plan") or {}).get("hosts") or ()) > 1
        host = self.host(rank) if several else None
        return f"rank {rank} on {host}" if host else f"rank {rank}"


def by_rank(collectives: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the entries of ``collectives.json`` by rank."""
    return {each["rank"]: each for each in collectives.get("ranks") or ()}
