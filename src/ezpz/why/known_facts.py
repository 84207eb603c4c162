"""Hold what is known of a run, for the rules of `ezpz.why`: the record of its launch and the run's own folder."""

from __future__ import annotations

import os

from ezpz.fields import as_far_as_it_fits
from ezpz.files import read_object
from ezpz.records.collectives_record import COLLECTIVES, CollectivesRecord, RankCollectives
from ezpz.records.launch_record import AskedRanks, Failure, LaunchRecord
from ezpz.records.run_record import RunRecord

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = ["COLLECTIVES", "Facts"]

_NAMED = 4  # ranks that a sentence names


class Facts:
    """What is known of a run.

    Attributes:
        launch: The record of the launch; empty where no launch is known.
        asked: What the ranks of a running launch have answered; None where they were not asked.
        run: The record of the run's own folder; empty where the program recorded nothing.
        run_folder: That folder; empty where there is none.
        launch_folder: Folder of the launch's record; empty where there is none.
        ranks: Of each rank that is known, what it was doing at the end or when it was asked.
        of_logs: Whether another launcher started the ranks, and these are the facts that its logs tell.
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
        self.launch = LaunchRecord.of(launch or {})
        self.asked: AskedRanks | None = None
        self.run = RunRecord.of(run or {})
        self.launch_folder = launch_folder
        self.run_folder = run_folder
        self.ranks = CollectivesRecord.of(collectives or {}).by_rank
        self.of_logs = False

    @classmethod
    def read(cls, launch_folder: str = "", run_folder: str = "") -> Facts:
        """Return the facts of the folders of a launch and of its run; what cannot be read is empty."""
        launch = read_object(os.path.join(launch_folder, "run.json")) if launch_folder else {}
        run = read_object(os.path.join(run_folder, "run.json")) if run_folder else {}
        collectives = read_object(os.path.join(launch_folder, COLLECTIVES)) if launch_folder else {}
        made = cls(launch, run, launch_folder=launch_folder, run_folder=run_folder, collectives=collectives)
        if CollectivesRecord.of(collectives).launch_id != made.launch.launch_id:  # of an earlier one in this --log-dir
            made.ranks = {}
        return made

    def use_answer(self, answer: Mapping[str, Any]) -> None:
        """Take what the ranks of a running launch have answered: they are asked, and not ended."""
        self.asked = as_far_as_it_fits(AskedRanks, dict(answer), [])
        collectives = answer.get("collectives")
        self.ranks = CollectivesRecord.of(collectives if isinstance(collectives, dict) else {}).by_rank

    @property
    def cause(self) -> Failure:
        """The earliest failure; one of nothing where there was none."""
        return self.launch.failure

    @property
    def world_size(self) -> int:
        """How many ranks were planned; 0 where that is not known."""
        return self.launch.plan.world_size

    def rank(self, rank: int) -> RankCollectives:
        """Return what a rank was doing; nothing where that is not known."""
        return self.ranks.get(rank) or RankCollectives(rank)

    def host(self, rank: int) -> str | None:
        """Return the host on which a rank was planned; None where that is not known."""
        plan = self.launch.plan
        first = 0
        for host, count in zip(plan.hosts, plan.ranks_per_host, strict=False):
            if first <= rank < first + count:
                return host
            first += count
        return None

    def who(self, rank: int) -> str:
        """Return a rank as a sentence begins with it: ``rank 1``, with several hosts ``rank 1 on n02``."""
        host = self.host(rank) if len(self.launch.plan.hosts) > 1 else None
        return f"rank {rank} on {host}" if host else f"rank {rank}"

    def named(self, ranks: Sequence[int]) -> str:
        """Return ``rank 1 on n02``, ``ranks 0, 2 and 3`` or ``15 ranks``."""
        if len(ranks) == 1:
            return self.who(ranks[0])
        if len(ranks) > _NAMED:
            return f"{len(ranks)} ranks"
        numbers = [str(rank) for rank in sorted(ranks)]
        return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"
