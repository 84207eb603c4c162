"""Tell the launcher when this rank arrived at its last collectives, and what held it up: `ezpz.why.lag` compares ranks.

A thread reads the ring of torch's flight recorder (torch 2.13 records the same of gloo and NCCL, unless
TORCH_FR_BUFFER_SIZE is 0) at the same moments on all ranks, first every 5 s and after a minute every 30 s, and once at
the end. Where the ring holds less than what came since, every 5 s for longer, in large worlds every 15 s: in 30 s too
few steps would be seen. Of the group that has met most often, at most 256 arrivals go to the agent as one line. A rank
without a launcher, a group or a recorder has no such thread. What the recorder holds of a collective:

    {'process_group': ('0', 'default_pg'), 'collective_seq_id': 3, 'profiling_name': 'gloo:all_reduce',
     'time_created_ns': 1795487763764324020, 'is_p2p': False, 'duration_ms': 0.8, …}

``time_created_ns`` is when the host enqueued it; ``duration_ms`` is there where the device measured it, which NCCL does
with TORCH_NCCL_ENABLE_TIMING=1. Twice a second the thread also looks where the main thread is: in a DataLoader, or in
which line of the user's code while it is in no collective.
"""

from __future__ import annotations

import atexit
import os
import random
import re
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ezpz import progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import FrameType

_PERIODS = (5.0, 15.0, 30.0)  # seconds between two looks: each is a multiple of those before, so that ranks meet
_SHORT_FOR = 60.0  # seconds in which the first is used
_OFTEN = 256  # ranks: in larger worlds the launcher would have too much to read
_COST = 500.0  # a look may cost one part in so many of the time until the next one
_LOOK = 0.5  # seconds between two looks at the main thread, on average
_MOST, _FEW, _LARGE = 256, 16, 1024  # arrivals in a line; in the largest worlds, and from how many ranks on fewer
_ALL_WAIT = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier")  # as torch's backends name them
_PLACES = 3  # lines of code that are told, those in which the main thread was most
_LOADER = f"{os.sep}torch{os.sep}utils{os.sep}data{os.sep}"
_MEETS = f"{os.sep}torch{os.sep}distributed{os.sep}"
_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]|/lib(?:64)?/(?:python|pypy)3[.\d]*t?/|^<")
_OWN = f"{os.sep}ezpz{os.sep}"
_DIGITS = 7  # from which on OMP_NUM_THREADS is no number of threads


def report_arrivals(world_size: int, environ: Mapping[str, str]) -> None:
    """Start the thread, where there are other ranks and an agent that hears of it."""
    if world_size < 2 or not environ.get("EZPZ_SOCKET") or environ.get("EZPZ_SIMULATE") or not progress.is_heard():
        return
    dump = getattr(import_module("torch._C._distributed_c10d"), "_dump_fr_trace", None)
    if dump is None or environ.get("TORCH_FR_BUFFER_SIZE") == "0":
        return
    reporter = _Reporter(dump, world_size)
    atexit.register(reporter.finish)
    threading.Thread(target=reporter.run, name="ezpz-arrivals", daemon=True).start()


class _Reporter:
    """What is kept between two looks."""

    def __init__(self, dump: Any, world_size: int) -> None:
        self._dump, self._pid, self._main = dump, os.getpid(), threading.main_thread().ident
        self._often = _PERIODS[0 if world_size <= _OFTEN else 1]
        self._seen, self._lost = 0, False  # the time of the last collective, in ns; whether others came unseen
        self._most = max(_FEW, min(_MOST, _MOST * _LARGE // world_size))
        self._sent: dict[str, int] = {}  # of each group the last collective that was sent
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._looks = self._loading = 0
        self._lines: dict[str, int] = {}  # line of code: looks that found the main thread there
        self._began = self._since = time.monotonic()
        self._before = _counters()
        self._cost = 0.0

    def run(self) -> None:
        """Look until the end of the process."""
        due = self._next()
        # At no fixed pace, which could fall in with that of the steps; nor with the generator that the user has seeded.
        draw = random.Random(self._pid).uniform  # noqa: S311  # no secret
        while not self._stop.wait(draw(0.5 * _LOOK, 1.5 * _LOOK)):
            self._look_at_main()
            if time.time() >= due:
                if not self.tell():
                    return
                due = self._next()

    def finish(self) -> None:
        """Tell the last arrivals: a run may be shorter than a look."""
        self._stop.set()
        if os.getpid() == self._pid:
            self.tell()

    def _next(self) -> float:
        """Return the next moment at which all ranks look, by this host's clock."""
        young = time.monotonic() - self._began < _SHORT_FOR
        least = max(_COST * self._cost, 0.0 if young else self._often if self._lost else _PERIODS[-1])
        period = next((period for period in _PERIODS if period >= least), _PERIODS[-1])
        return (time.time() // period + 1) * period

    def _look_at_main(self) -> None:
        frame = sys._current_frames().get(self._main or 0)  # noqa: SLF001  # Python's documented way to see a thread
        self._looks += 1
        kind, line = where(frame)
        self._loading += kind == "loader"
        if line and (line in self._lines or len(self._lines) < _MOST):
            self._lines[line] = self._lines.get(line, 0) + 1

    def tell(self) -> bool:
        """Tell the agent what has come since the last time; False where no agent hears it, or nothing is recorded."""
        with self._lock:
            began = time.thread_time()
            try:
                entries = _entries(self._dump(True, False, False))  # collectives, without stacks, also those that ended
            except (AttributeError, RuntimeError, TypeError, ValueError):
                return False  # another torch
            group, times = arrivals(entries, self._sent, self._most)
            created = [int(entry["time_created_ns"]) for entry in entries]
            self._lost = bool(self._seen and created and min(created) > self._seen)
            self._seen = max(created, default=self._seen)
            now, counters = time.monotonic(), _counters()
            span, self._since = now - self._since, now
            used = [after - before for after, before in zip(counters, self._before, strict=True)]
            self._before = counters
            looks = max(1, self._looks)
            most = sorted(self._lines, key=lambda line: -self._lines[line])[:_PLACES]
            places = "\t".join(f"{self._lines[line] / looks:.3g} {line}" for line in most)
            self._cost = time.thread_time() - began
            loading = self._loading / looks
            self._looks, self._loading, self._lines = 0, 0, {}
            if not times:
                return progress.is_heard()
            words = [f"{value:.4g}" for value in (span, *used, loading)]
            return progress.tell("arrivals", group, *words, *_cores(), times, places)


def _entries(dump: bytes) -> list[dict[str, Any]]:
    import pickle

    found = pickle.loads(dump).get("entries", [])  # noqa: S301  # torch has made it in this very process
    return found if isinstance(found, list) else []


def arrivals(entries: Iterable[dict[str, Any]], sent: dict[str, int], most: int) -> tuple[str, str]:
    """Return the group that has met most often since the last time, and when this rank came to its collectives.

    Args:
        entries: Of the flight recorder, in their order.
        sent: Group to the last collective that was sent; changed.
        most: How many arrivals may be sent: the last.

    Returns:
        Group, and a text: the first arrival in µs since 1970, then for each one µs after the one before, ``+n`` where
        the sequence grows by n other than 1, and ``~n`` where the device took n µs:
        ``+17:1795487763764324,810~95,+2:90`` are collectives 17, 18 and 20. Empty where there is none.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        if not entry.get("is_p2p") and _ALL_WAIT.search(str(entry.get("profiling_name", "")).lower()):
            # A group has a backend for each kind of device, and each of them counts its own collectives.
            backend = str(entry["profiling_name"]).partition(":")[0]
            name = f"{backend}:{entry['process_group'][0]}".replace(" ", "_")[:40]
            groups.setdefault(name, []).append(entry)
    new = {
        name: [entry for entry in own if int(entry["collective_seq_id"]) > sent.get(name, -1)]
        for name, own in groups.items()
    }
    name = max(new, key=lambda each: len(new[each]), default="")
    chosen = new[name][-most:] if name else []
    if not chosen:
        return "", ""
    sent[name] = int(chosen[-1]["collective_seq_id"])
    words: list[str] = []
    number, at = 0, 0
    for entry in chosen:
        sequence, micros = int(entry["collective_seq_id"]), int(entry["time_created_ns"]) // 1000
        took = entry.get("duration_ms")
        device = f"~{float(took) * 1e3:.0f}" if isinstance(took, (int, float)) and took > 0 else ""
        grown = "" if sequence == number + 1 and words else f"+{sequence - number}:"
        words.append(f"{grown}{micros - at}{device}")
        number, at = sequence, micros
    return name, ",".join(words)


def where(frame: FrameType | None) -> tuple[str, str]:
    """Return whether a thread is in a ``loader``, ``meets`` others or is ``own``, and the user's line of the last two.

    The line is ``train.py:31 (sleep_a_bit)``; empty in a collective and where no file of the user's is in the stack.
    """
    line, kind = "", "own"
    while frame is not None:
        code = frame.f_code
        name = code.co_filename
        if _LOADER in name:
            return "loader", ""
        if not line and _MEETS in name:
            return "meets", ""
        if not line and not _LIBRARY.search(name) and _OWN not in name:
            line = f"{name.rpartition(os.sep)[2]}:{frame.f_lineno} ({code.co_name})"
        frame = frame.f_back
    return kind, line


def _counters() -> Sequence[float]:
    """Return what this process has had of each: seconds that it was ready and had no core, seconds of CPU, major page
    faults, seconds that its cgroup stopped it, and the share-seconds that its host's CPUs lost to others.
    """
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    return (_delay(), usage.ru_utime + usage.ru_stime, float(usage.ru_majflt), _throttled(), _steal())


def _delay() -> float:
    """Return the seconds that the main thread waited for a core: the second word of schedstat, proc(5)."""
    return _number(f"/proc/self/task/{os.getpid()}/schedstat", 1) / 1e9


def _throttled() -> float:
    """Return the seconds that this process's cgroup (v2) was throttled."""
    try:
        inside = Path("/proc/self/cgroup").read_text(encoding="ascii").rpartition("::")[2].strip()
        words = Path(f"/sys/fs/cgroup{inside}/cpu.stat").read_text(encoding="ascii").split()
        return int(words[words.index("throttled_usec") + 1]) / 1e6
    except (OSError, ValueError, UnicodeDecodeError, IndexError):
        return 0.0


def _cores() -> tuple[str, str, str]:
    """Return with how many threads torch computes here, ``OMP_NUM_THREADS`` (0: none), and the CPUs of the main thread.

    The CPUs are bits of a number in hexadecimal digits, 0 where the system binds no process. The main thread is asked
    by its own number: it may have bound itself after this thread began.
    """
    import torch

    known = getattr(os, "sched_getaffinity", None)
    cpus = sum(1 << cpu for cpu in known(os.getpid())) if known else 0
    omp = os.environ.get("OMP_NUM_THREADS", "")
    return (
        str(torch.get_num_threads()),
        str(int(omp) if omp.isdecimal() and len(omp) < _DIGITS else 0),
        f"{cpus:x}",
    )


def _steal() -> float:
    """Return the seconds that were stolen from each CPU of this host, on average: the eighth figure of ``cpu``."""
    return _number("/proc/stat", 8) / (os.sysconf("SC_CLK_TCK") * (os.cpu_count() or 1))


def _number(path: str, word: int) -> float:
    try:
        with open(path, encoding="ascii") as file:  # noqa: PTH123  # the first line alone
            return float(file.readline().split()[word])
    except (OSError, ValueError, IndexError):
        return 0.0
