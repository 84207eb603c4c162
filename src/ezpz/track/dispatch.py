"""Pass rows on from the journal: to rank 0's view over all ranks, and to copies at other places.

A row is passed on when it is complete: tensors that lie on a device are read once per window, and rows after them
wait, so that everybody gets rows whole and in order. Standing still is never the training's business: all of it happens
in other threads.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ezpz.track.at_end import everywhere
from ezpz.track.device_metrics import WaitingRows
from ezpz.track.over_ranks.replica_looks import watch_steps
from ezpz.track.step_states import BATCH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ezpz.ranks import Ranks
    from ezpz.track.over_ranks.across import Across
    from ezpz.track.over_ranks.replica_looks import Arrived, ReplicaLooks
    from ezpz.track.values import Value
    from ezpz.track.writer import Writer

_HURRY = 1.0  # seconds; an exception is on its way, and other ranks may be gone


class RowDispatch:
    """The way of complete rows.

    Args:
        window: Rows whose tensors are read together.
        writer: Rank 0's side; None on other ranks.
        across: What passes values to rank 0; None in a world of one.
    """

    def __init__(self, window: int, writer: Writer | None, across: Across | None) -> None:
        self._late = WaitingRows(window)
        self._writer = writer
        self._across = across
        self._looks = None if across is None else watch_steps()
        self._last: int | None = None  # the step of the last row, and that of the last with a look
        self._sent: int | None = None

    def add(
        self, step: int, values: Mapping[str, Value], late: dict[str, Any], weight: float | None
    ) -> Mapping[str, Value]:
        """Pass a row on, or keep it.

        Args:
            step: Its step.
            values: What is known of it.
            late: Its tensors that are still on a device.
            weight: As given to `History.update`.

        Returns:
            What came from the device for this row, if this was the time to ask.
        """
        if self._across is not None:
            self._look_back(self._across, step)
        if late or self._late:
            return self.flush() if self._late.add(step, values, late, weight) else {}
        self._pass_on(step, values, weight)
        return {}

    def note_batch(self, step: int, number: float) -> None:
        """Send a number that stands for the batch of a step to rank 0, with that step's row, which comes next."""
        if self._across is not None:
            self._across.note(step, {BATCH: number})

    def _look_back(self, across: Across, step: int) -> None:
        """Tell looks at the weights of the row that comes, and send one with it: one, so that ranks send the same."""
        if self._looks is None and self._last is None:
            self._looks = watch_steps()  # torch was imported behind the history
        self._last, looks = step, self._looks
        if looks is None:
            return
        if looks.fresh:
            for row in looks.fresh:
                row.append(step)
            looks.fresh.clear()
        if looks.ready:
            self._send(across, looks.ready.popleft(), step)
            self._sent = step

    def _send(self, across: Across, look: Arrived, step: int) -> None:
        across.note(step, look.numbers)
        if self._writer is not None and look.row is not None:
            names = {"names": look.names} if look.names else {}
            content = {"first": step, "looked": look.row, "part": look.part, "parts": look.parts, **names}
            self._writer.journal.write_seen(step, content)

    def _end_looks(self, across: Across, looks: ReplicaLooks, *, hurry: bool) -> None:
        """Send the look that has waited for the next one, with the last row once more."""
        looks.end(wait=not hurry)
        if looks.ready and self._last is not None and self._sent != self._last:
            self._send(across, looks.ready.pop(), self._last)
            across.add(self._last, {})

    def flush(self) -> Mapping[str, Value]:
        """Read the tensors of all kept rows, complete these, and return what came for the last one."""
        rows = self._late.fetch() if self._late else []
        for row in rows:
            if self._writer is not None and row.came:
                self._writer.journal.write_late(row.step, row.came)
            self._pass_on(row.step, {**row.known, **row.came}, row.weight)
        return rows[-1].came if rows else {}

    def _pass_on(self, step: int, values: Mapping[str, Value], weight: float | None) -> None:
        if self._across is not None:
            self._across.add(step, values, weight)
        if self._writer is not None:
            if self._writer.trackers is not None:
                self._writer.trackers.log(step, values)
            for copy in everywhere.values():
                copy.log(step, values)

    def finish(self, *, hurry: bool) -> list[str]:
        """Pass on what is left, and on rank 0 wait for what others have on their way; not for long when in a hurry.

        Returns:
            What is missing in the records over all ranks, in sentences.
        """
        self.flush()
        if self._across is None:
            return []
        looks, self._looks = self._looks, None
        if looks is not None:
            self._end_looks(self._across, looks, hurry=hurry)
        return self._across.finish(*((_HURRY,) if hurry else ()))

    def leave(self) -> list[str]:
        """Do as `finish` in a hurry: the program ends."""
        return self.finish(hurry=True)


def across_of(
    ranks: Ranks, window: int, name: str, writer: Writer | None, on_folder: Callable[[Path], None]
) -> Across | None:
    """Return what passes values of all ranks to rank 0; None in a world of one, and in a simulated one.

    Args:
        ranks: Who this process is.
        window: Steps that travel together.
        name: The run's name.
        writer: Rank 0's side; None on other ranks.
        on_folder: Called with the run folder, on other ranks once rank 0 has sent it.
    """
    if ranks.world_size == 1 or os.environ.get("EZPZ_SIMULATE"):
        return None
    from ezpz.track.over_ranks.across import Across

    record = writer.journal.write_ranks if writer else None
    return Across(
        ranks, window, name=name, folder=writer.folder if writer else None, record=record, on_folder=on_folder
    )
