"""Say at the end of a run that has succeeded that its ranks were alone, each with a whole training of its own."""

from __future__ import annotations

from ezpz.files import open_regular
from ezpz.interpreter import script_of
from ezpz.launch.watchers import LauncherHandle, LauncherSide
from ezpz.watch.unconnected import messages

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.launch.agent_messages import Message
    from ezpz.launch.run.failures import Outcome


_OF_RANKS = ("RANK", "PROCID", "WORLD_SIZE")  # in the names by which every launcher tells a program which rank it is
_MOST = 1 << 20  # characters


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
        """Say so where all of them were, unless the script asks which rank it is: those of a sweep are meant to be."""
        plan = self.handle.plan
        if self._ranks == plan.placement.world_size and not outcome.code and not _asks_for_its_rank(plan.command):
            self.handle.note(
                f"{self._ranks} ranks each ran the program alone: torch was loaded, and no process group was seen. For "
                "one process: `launch -n 1`; to train together: `ezpz.setup_torch()`, or what the program has for it "
                "(docs/start/script.md). EZPZ_ALONE=0 leaves this line out"
            )


def _asks_for_its_rank(command: Sequence[str]) -> bool:
    try:
        with open(script_of(command), encoding="utf-8", errors="replace", opener=open_regular) as file:
            text = file.read(_MOST)
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return False
    return any(word in text for word in _OF_RANKS)
