"""A sampling profile of the Python code of one thread, by pyinstrument."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Sampler"]

_INTERVAL = 0.005  # seconds: costs about 1 % of a step; the default of 0.001 costs 14 %


class Sampler:
    """Samples the thread that starts it."""

    prefix = "pyinstrument-profile"
    lead = 0  # steps that it needs before the first one that counts
    counts_steps = False

    def __init__(self) -> None:
        self._profiler: Any = None

    @staticmethod
    def check() -> None:
        """Tell of a missing library before the training starts.

        Raises:
            UsageError: pyinstrument is not installed.
        """
        from importlib.util import find_spec

        if find_spec("pyinstrument") is None:
            raise UsageError(
                "cannot profile: pyinstrument is not installed (from --profile); expected the extra `profile`. "
                "Run `python3 -m pip install pyinstrument`."
            )

    def start(self, number: int, first: int) -> None:
        """Start sampling; the numbers of steps do not matter here.

        Raises:
            UsageError: pyinstrument is not installed.
        """
        del number, first
        self.check()
        from pyinstrument import Profiler

        self._profiler = Profiler(interval=_INTERVAL, async_mode="disabled")
        self._profiler.start()

    def step(self) -> None:
        """Do nothing: samples know of no steps."""

    def stop(self) -> None:
        """Stop sampling."""
        self._profiler.stop()

    discard = stop

    def write(self, base: Path) -> list[Path]:
        """Write ``<base>.html`` and ``<base>.txt``.

        Raises:
            OSError: The disk refuses.
        """
        page, text = (base.with_name(base.name + ending) for ending in (".html", ".txt"))
        text.write_text(self._profiler.output_text(unicode=True, color=False), encoding="utf-8")
        page.write_text(self._profiler.output_html(), encoding="utf-8")
        return [page, text]
