"""Say at the end of a run that has succeeded that its ranks were alone, each with a whole training of its own."""

from __future__ import annotations

from ezpz.launch.watchers import LauncherHandle, LauncherSide
from ezpz.watch.unconnected import messages

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.launch.agent_messages import Message
    from ezpz.launch.run.failures import Outcome


class Unconnected(LauncherSide):
    """How many ranks were alone, over all hosts."""

    def __init__(self, handle: LauncherHandle) -> None:
        super().__init__(handle)
        self._ranks = 0

    def hear(self, host: int, report: Message) -> None:
        """Add those of a host."""
        del host
        if isinstance(report, messages.Unconnected):
            self._ranks += report.ranks

    def close(self, outcome: Outcome) -> None:
        """Say so where all of them were: what one program did alone may be meant."""
        if self._ranks == self.handle.plan.placement.world_size and not outcome.code:
            self.handle.note(
                f"{self._ranks} ranks each ran the program alone: torch was loaded, and no process group was seen. For "
                "one process: `launch -n 1`; to train together: `ezpz.setup_torch()`, or what the program has for it "
                "(docs/start/script.md). EZPZ_ALONE=0 leaves this line out"
            )
