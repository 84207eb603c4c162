"""One line per window of steps, with losses of all ranks: two reductions of one number, once per window, and no collective in between.

    step=10 global_avg_loss=6.886052 global_max_loss=8.090250 throughput(tps)=268.175160 mfu(%)=4.711792
    end_to_end(s)=30.547199 data_loading(s)=0.007497 data_loading(%)=0.024541

A window is the steps since the line before: the first one has one step, and each time is that of one of its steps, in seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ezpz.dist import all_reduce
from ezpz.track.values import line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.train.rows import Measured, Scale

__all__ = ["Windows"]


class Windows:
    """Gathers steps until their line is due."""

    def __init__(self, every: int, scale: Scale, *, first: int, last: int) -> None:
        """Begin the first window.

        Args:
            every: Steps of a window; it ends where the number of steps done is a multiple of it.
            scale: What turns times into rates.
            first: The first step, which is a window of its own: it pays for all that is done once.
            last: The last one.
        """
        self._every, self._scale = every, scale
        self._ends = {first + 1, last + 1}
        self._steps: list[Measured] = []

    def add(self, measured: Measured) -> bool:
        """Take a step, and tell whether the window ends with it; the same on every rank."""
        self._steps.append(measured)
        done = measured.step + 1
        return done % self._every == 0 or done in self._ends

    def close(self) -> dict[str, float]:
        """End the window; all ranks call it. It waits for the device.

        Returns:
            What the line tells: the losses are the mean and the largest of all steps and ranks; the throughput is in tokens per
            second and device; without a known peak there is no ``mfu(%)``, without tokens no throughput.
        """
        steps, self._steps = self._steps, []
        losses = [measured.numbers()["loss"] for measured in steps]
        times = [measured.times.read() for measured in steps]
        seconds, data = (sum(each[part] for each in times) for part in ("dt", "dtd"))
        told = {
            "step": steps[-1].step + 1,
            "global_avg_loss": all_reduce(sum(losses) / len(losses), "mean"),
            "global_max_loss": all_reduce(max(losses), "max"),
        }
        rates = self._scale.rates(seconds, len(steps))
        for name, key in (("throughput(tps)", "tps_per_gpu"), ("mfu(%)", "mfu")):
            if key in rates:
                told[name] = rates[key]
        share = {"data_loading(%)": 100.0 * data / seconds} if seconds > 0 else {}
        return {**told, "end_to_end(s)": seconds / len(steps), "data_loading(s)": data / len(steps), **share}


def text(told: Mapping[str, float], more: Mapping[str, float]) -> str:
    """Return the line of a window, and what was found by evaluating at its end."""
    return line({**told, **{name: value for name, value in more.items() if not name.startswith("dt_")}})
