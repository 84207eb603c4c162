"""Copy a run to Weights & Biases, or to ``trackers/wandb`` until ``wandb sync`` takes it there.

Reads WANDB_NAME and WANDB_RUN_ID besides what `ezpz.view.trackers.shared_wandb` reads. The one place that wandb holds
rows is a block in its memory, so it is only ever a copy.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ezpz.files import make_closed_folder
from ezpz.log import get_logger
from ezpz.track.tracker_protocol import TrackerOff
from ezpz.view.trackers import shared_wandb as ours

if TYPE_CHECKING:
    from ezpz.track.tracker_protocol import About


class WandbTracker(ours.StartedRun):
    """The run that `setup_wandb` started before, or one of its own; the same one when the run is resumed.

    Args:
        project: The project; otherwise what the environment names, or the run's name.
    """

    def __init__(self, project: str | None = None) -> None:
        super().__init__()
        self._project = project

    def identify(self, about: About) -> dict[str, object]:
        """Choose the run's id at once, so that a run that is killed early is found again."""
        self.run = ours.hand_over_run()
        earlier = about.resumed.get("wandb")
        known = str(earlier.get("id") or "") if isinstance(earlier, dict) else ""
        self._borrowed = self.run is not None
        self._id = (
            str(self.run.id) if self._borrowed else known or os.environ.get("WANDB_RUN_ID") or os.urandom(4).hex()
        )
        return {"id": self._id}

    def start(self, about: About) -> dict[str, object]:
        """Start wandb, offline where it has no key, and without its hold on the program's stdout."""
        switch = ours.switched_off()
        if switch:
            raise TrackerOff(switch)
        if not self._borrowed:
            import wandb

            with ours.starting:
                self.run = ours.claimed = self._init(wandb, about)
        if getattr(self.run, "offline", False):  # else wandb warns that there is no URL
            where = f"offline in {self.run.dir}; `wandb sync` sends it"
        else:
            where = getattr(self.run, "url", None) or "online"
        get_logger(__name__).info(f"tracker wandb: run {self._id}, {where}")
        return {"id": str(self.run.id)}

    def _init(self, wandb: Any, about: About) -> Any:
        folder = about.folder / "trackers"
        make_closed_folder(folder)
        return wandb.init(
            project=ours.project_of(self._project, about.name),
            name=os.environ.get("WANDB_NAME") or f"{about.name}-{about.stamp}",
            id=self._id,
            resume="allow",
            dir=os.fspath(folder),
            config=dict(about.config) or None,
            settings=wandb.Settings(console="off", silent=True, **ours.hidden_arguments(wandb)),
            **ours.mode_without_key(),
        )

    def finish(self, state: str) -> None:
        """End the run; one that `setup_wandb` started is the program's to end."""
        if not self._borrowed:
            self.run.finish(exit_code=0 if state in {"finished", "exited"} else 1)
            ours.claimed = None
