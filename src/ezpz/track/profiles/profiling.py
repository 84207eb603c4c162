"""Record profiles of a run's time and memory beside its other records: `ezpz.profile`.

Each kind of profile is a window of steps. Nothing is imported before a window opens, and a profile that cannot be made
or written is one line in the log: training continues. Trainers need no ``if``; without a request a step costs 0.3 µs.
"""

from __future__ import annotations

import os
import sys
from itertools import count
from math import inf
from pathlib import Path
from time import monotonic, strftime, time
from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError
from ezpz.files import close_to_others, make_closed_folder, open_regular
from ezpz.ranks import from_environ
from ezpz.track.profiles.profile_spec import parse, parse_late
from ezpz.track.profiles.recorders import MemoryHistory, Sampler, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from ezpz.track.profiles.profile_spec import Request


def profile(spec: str | None = None, *, outdir: str | os.PathLike[str] | None = None) -> Profile:
    """Return a profile of a block of code; with nothing asked, one that only waits for a ``PROFILE_NOW`` file.

        with ezpz.profile("torch:steps=10-15,ranks=0") as prof:
            for batch in batches:
                train(batch)
                prof.step()

    Args:
        spec: Kinds, steps and ranks, as `ezpz.track.profiles.profile_spec` says; otherwise what ``EZPZ_PROFILE`` says.
            ``"none"`` asks for nothing, whatever the variable says.
        outdir: Folder of the files; otherwise ``profile`` in the run folder of the newest `ezpz.History`, or in the
            current folder on a rank that knows of none.

    Raises:
        UsageError: The specification cannot be read, or asks for a library that is not installed.
    """
    given = os.environ.get("EZPZ_PROFILE", "") if spec is None else spec
    requests = parse(given, "EZPZ_PROFILE" if spec is None else "ezpz.profile")
    for request in requests:
        _recorder(request.kind).check()
    return Profile(requests, None if outdir is None else Path(outdir).expanduser().absolute())


class Profile:
    """What `profile` returns: a context manager, and an object whose `step` is called at every step.

    Attributes:
        files: What this process has written so far.
    """

    def __init__(self, requests: Iterable[Request], outdir: Path | None) -> None:
        self.files: list[Path] = []
        self._requests, self._outdir = tuple(requests), outdir
        self._windows: list[_Window] = []
        self._rank = 0
        self._number = 0  # of the step that runs now
        self._next_turn: float = inf  # step at whose beginning a window has something to do
        self._next_look: float = inf  # by the monotonic clock
        self._pause = 0.0
        self._trigger = Trigger()

    def __enter__(self) -> Profile:  # noqa: PYI034  # `Self` needs Python 3.11
        ranks = from_environ(os.environ)
        self._rank, self._number = ranks.rank, 0
        self._trigger = Trigger()
        self._trigger.watch(_run_folder())
        self._pause = seconds_between_looks(ranks.rank, ranks.world_size)
        self._next_look = monotonic() + self._pause
        self._windows = [
            _Window(request, request.first, request.last) for request in self._requests if request.includes(ranks.rank)
        ]
        self._turn()
        return self

    def step(self) -> None:
        """Say that a step is over; the first call ends step 0. Outside of ``with`` this does nothing."""
        self._number += 1
        if self._number >= self._next_turn:
            self._turn()
        if monotonic() >= self._next_look:
            self._look()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        windows, self._windows = self._windows, []
        self._next_turn = self._next_look = inf
        # A loop that ends by itself has called step() for its last step; one that is broken off has not.
        last = self._number if kind is not None or self._number == 0 else self._number - 1
        for window in windows:
            if window.is_open and window.first <= last:
                self._close(window, last)
                continue
            if window.is_open:
                self._try(window, window.recorder.discard)
            if window.repeats:
                continue
            self._warn_once(
                window.request,
                f"nothing was recorded: the last step was {last}, the first to be profiled {window.first}. "
                f"Call .step() once in every step, or name earlier steps.",
            )

    def _turn(self) -> None:
        """Do what is due at the beginning of step ``_number``."""
        windows, self._windows = self._windows, []
        for window in windows:
            if self._goes_on(window):
                self._windows.append(window)
            elif window.request.every and window.last is not None and window.files:
                self._windows.append(window.following(self._number))
        self._next_turn = min((window.next_turn(self._number) for window in self._windows), default=inf)

    def _goes_on(self, window: _Window) -> bool:
        if not window.is_open:
            if self._number < window.first - window.recorder.lead:
                return True
            window.is_open = self._try(window, lambda: window.recorder.start(self._number, window.first))
            return window.is_open
        if window.last is not None and self._number > window.last:
            self._close(window, window.last)
            return False
        return self._try(window, window.recorder.step)

    def _close(self, window: _Window, last: int) -> None:
        """End a window and write it at once: what is on the disk survives whatever comes later."""
        if not self._try(window, window.recorder.stop) or not self._try(window, lambda: self._write(window)):
            return
        from ezpz.log import get_logger

        shown = " ".join(map(str, window.files))
        get_logger(__name__).info(f"{window.request.kind} profile of steps {window.first} to {last}: {shown}")

    def _write(self, window: _Window) -> None:
        folder = self._outdir or (_run_folder() or Path.cwd()) / "profile"
        make_closed_folder(folder)
        rank = f"-rank{self._rank}" if self._rank else ""
        name = f"{window.recorder.prefix}-{strftime('%Y-%m-%d-%H%M%S')}"
        tails = ("" if number == 1 else f"-{number}" for number in count(1))  # two windows may end in one second
        base = next(base for tail in tails if not any(folder.glob(f"{(base := folder / (name + tail + rank)).name}.*")))
        window.files = window.recorder.write(base)
        close_to_others(window.files)
        self.files += window.files

    def _look(self) -> None:
        """Open windows that somebody asks for now, by touching a file."""
        spec = self._trigger.look(_run_folder())
        self._next_look = monotonic() + (SOON if self._trigger.is_waiting else self._pause)
        if spec is None:
            return
        try:
            requests = parse_late(spec, "PROFILE_NOW")
        except UsageError as error:
            _warn(str(error))
            return
        busy = {window.request.kind for window in self._windows if window.is_open}
        for request in requests:
            if not request.includes(self._rank):
                continue
            if request.kind in busy:
                self._warn_once(
                    request, "one is being recorded (from PROFILE_NOW). Touch the file again when it has ended."
                )
                continue
            begin = self._number + _recorder(request.kind).lead
            last = None if request.last is None else begin + request.last
            self._windows.append(_Window(request, begin + request.first, last))
        self._turn()

    def _try(self, window: _Window, action: Callable[[], object]) -> bool:
        try:
            action()
        except Exception as error:  # noqa: BLE001  # profilers and disks may raise anything, and training must continue
            self._warn_once(window.request, str(error) if isinstance(error, UsageError) else repr(error))
            return False
        return True

    def _warn_once(self, request: Request, text: str) -> None:
        """Warn once per job and not once per rank: the lowest of the profiled ranks speaks."""
        if request.ranks is None or self._rank == min(low for low, _ in request.ranks):
            _warn(f"no {request.kind} profile: {text}" if not text.startswith("cannot profile") else text)


class _Window:
    """Steps ``first`` to ``last`` of one kind of profile."""

    def __init__(self, request: Request, first: int, last: int | None) -> None:
        self.request, self.first, self.last = request, first, last
        self.recorder = _recorder(request.kind)()
        self.is_open = False
        self.repeats = False  # one before it has been written, so that this one is not missed
        self.files: list[Path] = []

    def following(self, number: int) -> _Window:
        """Return the next window that can still be opened, ``number`` being the present step."""
        shift = self.request.every
        while self.first + shift - self.recorder.lead < number:
            shift += self.request.every
        following = _Window(self.request, self.first + shift, (self.last or 0) + shift)
        following.repeats = True
        return following

    def next_turn(self, number: int) -> float:
        """Return the step at whose beginning this window wants to be called, step ``number`` being the present one."""
        lead: int = self.recorder.lead
        if not self.is_open:
            return self.first - lead
        return number + 1 if self.recorder.counts_steps else inf if self.last is None else self.last + 1


def _recorder(kind: str) -> Any:
    return {"py": Sampler, "torch": Trace, "mem": MemoryHistory}[kind]


def _run_folder() -> Path | None:
    """Return the run folder of the newest history, without loading anything: whoever made one has loaded it."""
    history: Any = sys.modules.get("ezpz.track.history")
    ask = getattr(history, "current_folder", None)
    folder: Path | None = ask() if ask else None
    return folder


def _warn(text: str) -> None:
    from ezpz.log import get_logger

    get_logger(__name__).warning(text)


SOON = 0.2  # seconds until the second look at a file that has just changed
_NAME = "PROFILE_NOW"
_LONGEST = 200  # characters of a specification
_LOOKS_PER_SECOND = 100  # of the whole job: each is a question to the file system's one metadata server


def seconds_between_looks(rank: int, world_size: int) -> float:
    """Return how often a rank may ask for the file: rank 0 every second, the others less often in a large job."""
    return 1.0 if rank == 0 else max(1.0, world_size / _LOOKS_PER_SECOND)


class Trigger:
    """The ``PROFILE_NOW`` file of one run folder at a time."""

    def __init__(self) -> None:
        self._made = time()
        self._folder: Path | None = None
        self._answered = 0  # time of change, in ns, of what was acted upon
        self._fresh = 0  # the same of what was seen once

    def watch(self, folder: Path | None) -> None:
        """Take note of what lies in a folder now, so that only a later touch asks for something."""
        if folder is not None and folder != self._folder:
            self._folder, self._answered, self._fresh = folder, self._changed(folder), 0

    def look(self, folder: Path | None) -> str | None:
        """Return the text of a file that was touched; None when there is nothing to do.

        A change is acted upon when a second look finds it unchanged: ``echo py > PROFILE_NOW`` makes an empty file
        first.

        Args:
            folder: The run folder, None as long as it is not known.
        """
        if folder is None:
            return None
        changed = self._changed(folder)
        if folder != self._folder:  # it became known only now: the clock must tell what is older than this process
            self._folder, self._fresh = folder, 0
            self._answered = changed if changed <= self._made * 1e9 else 0
        if changed in {0, self._answered}:
            return None
        if changed != self._fresh:
            self._fresh = changed
            return None
        self._answered = changed
        try:
            path = folder / _NAME
            with open(path, encoding="utf-8", errors="replace", opener=open_regular) as file:  # needs an opener
                return file.read(_LONGEST)
        except OSError:  # removed in between: whoever did that wants nothing any more
            return None

    @property
    def is_waiting(self) -> bool:
        """Whether a change was seen once, so that the next look should come soon."""
        return self._fresh not in {0, self._answered}

    @staticmethod
    def _changed(folder: Path) -> int:
        try:
            return (folder / _NAME).stat().st_mtime_ns
        except OSError:
            return 0
