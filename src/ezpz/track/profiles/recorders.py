"""Record by pyinstrument or torch: samples of Python code, a trace of a few steps, the device memory in use.

A trace is the JSON of Chrome's trace viewer, packed, which https://ui.perfetto.dev opens; a memory snapshot is a pickle
for https://docs.pytorch.org/memory_viz, a page that keeps what it is given on the user's machine:

    {"schemaVersion": 1, "deviceProperties": [], "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::linear", …

`ezpz.track.profiles.profiling` decides when, on which rank and into which folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

_INTERVAL = 0.005  # seconds: costs about 1 % of a step; the default of 0.001 costs 14 %


class Recorder:
    """What all of them have.

    Attributes:
        prefix: How its files' names begin.
        lead: Steps that it needs before the first one that counts.
        counts_steps: Whether it wants to know of steps.
    """

    prefix = ""
    lead = 0
    counts_steps = False
    _needs = "torch"
    _missing = "torch is not installed (from --profile); expected it beside ezpz. Use --profile=py."

    def __init__(self) -> None:
        self._source: Any = None  # what records: a profiler, or torch's module for the memory of a device

    @classmethod
    def check(cls) -> None:
        """Tell of a missing library before the training starts.

        Raises:
            UsageError: The library is not installed.
        """
        from importlib.util import find_spec

        if find_spec(cls._needs) is None:
            raise UsageError(f"cannot profile: {cls._missing}")

    def step(self) -> None:
        """Mark the beginning of the next step, where steps count."""

    def stop(self) -> None:
        """Stop recording; a trace waits for the device."""
        self._source.stop()

    def discard(self) -> None:
        """Stop, and keep nothing."""
        self.stop()


class Sampler(Recorder):
    """Samples the thread that starts it."""

    prefix = "pyinstrument-profile"
    _needs = "pyinstrument"
    _missing = (
        "pyinstrument is not installed (from --profile); expected the extra `profile`. "
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

        self._source = Profiler(interval=_INTERVAL, async_mode="disabled")
        self._source.start()

    def write(self, base: Path) -> list[Path]:
        """Write ``<base>.html`` and ``<base>.txt``.

        Raises:
            OSError: The disk refuses.
        """
        page, text = (base.with_name(base.name + ending) for ending in (".html", ".txt"))
        text.write_text(self._source.output_text(unicode=True, color=False), encoding="utf-8")
        page.write_text(self._source.output_html(), encoding="utf-8")
        return [page, text]


_ROWS = 30  # of the table: what matters is at its top
_MOST_ENTRIES = 100_000  # of allocations and frees, the newest ones; each takes a few KB of the host


class Trace(Recorder):
    """Every operator and kernel, by ``torch.profiler``."""

    prefix = "torch-profile"
    lead = 1  # the first profiled step pays for the profiler's own start, so it is not kept
    counts_steps = True

    def start(self, number: int, first: int) -> None:
        """Begin in step ``number``, which is only warming up where it comes before ``first``.

        Raises:
            UsageError: torch is not installed.
        """
        self.check()
        from torch.profiler import ProfilerAction, profile

        actions = iter([ProfilerAction.WARMUP] * (first - number))
        self._source = profile(schedule=lambda _: next(actions, ProfilerAction.RECORD))
        self._source.step_num = number  # so that ProfilerStep#12 of the trace is step 12 of the run
        self._source.start()

    def step(self) -> None:
        """Mark the beginning of the next step."""
        self._source.step()

    def write(self, base: Path) -> list[Path]:
        """Write ``<base>.json.gz``, and ``<base>.txt`` with the 30 operators that cost most.

        Raises:
            OSError: The disk refuses.
        """
        from ezpz.dist.device import get_torch_device_type

        trace, table = (base.with_name(base.name + ending) for ending in (".json.gz", ".txt"))
        self._source.export_chrome_trace(str(trace))
        averages = self._source.key_averages()
        where = "cpu" if get_torch_device_type() == "cpu" else "device"
        table.write_text(averages.table(sort_by=f"self_{where}_time_total", row_limit=_ROWS), encoding="utf-8")
        return [trace, table]


class MemoryHistory(Recorder):
    """Every allocation on the device and the line that made it, on a device whose torch module keeps such a history."""

    prefix = "memory-snapshot"

    def start(self, number: int, first: int) -> None:
        """Begin to keep the history; the numbers of steps do not matter here.

        Raises:
            UsageError: torch is not installed, or keeps no such history on this type of device.
        """
        del number, first
        self.check()
        from ezpz.dist.device import accelerator_module, get_torch_device_type

        kind = get_torch_device_type()
        memory: Any = getattr(accelerator_module(kind), "memory", None)
        if not hasattr(memory, "_record_memory_history"):
            raise UsageError(f"memory snapshots are not available on {kind}; expected cuda or xpu.")
        memory._record_memory_history(max_entries=_MOST_ENTRIES)  # noqa: SLF001  # torch's documented way
        self._source = memory

    def stop(self) -> None:
        """Do nothing: the history must still be kept when it is written."""

    def write(self, base: Path) -> list[Path]:
        """Write ``<base>.pickle`` and end the history.

        Raises:
            OSError: The disk refuses.
        """
        path = base.with_name(f"{base.name}.pickle")
        try:
            self._source._dump_snapshot(str(path))  # noqa: SLF001  # as above
        finally:
            self.discard()
        return [path]

    def discard(self) -> None:
        """Keep no history any more."""
        self._source._record_memory_history(enabled=None)  # noqa: SLF001  # as above
