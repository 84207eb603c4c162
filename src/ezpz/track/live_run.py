r"""Show how far a run is where no `launch` does: one line below what its program writes on a terminal.

    train: step 42, loss 0.2103, 12.3 steps/s, after 3 s

The thread of the journal draws it, at most once a second and only when a row has come; what the program writes
meanwhile goes above it. The cursor is left at its beginning. To take the line away is therefore to clear from the
cursor on (``\x1b[K``), which never touches what was written in front of the cursor, and what cannot be seen here (C
code, other programs) overwrites it.

What Python writes is seen in the two binary files below ``sys.stdout`` and ``sys.stderr``, whose methods are replaced
as long as the run goes on: `print`, `logging`, tracebacks and objects that a program puts in the place of
``sys.stdout`` all come by there, and the streams themselves stay what they are. Who asks a stream for its descriptor
(`input`, `subprocess`, curses) or reads stdin may write by itself: the line stays away until that thread records a row.
Nothing is drawn behind a line that has not ended. Carriage returns and movements of the cursor mean that the program
draws on its own: then there is no line any more in this process.
"""

from __future__ import annotations

import atexit
import builtins
import errno
import os
import re
import select
import stat
import sys
import threading
from contextlib import suppress
from io import BufferedReader, BufferedWriter, FileIO
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any

from ezpz.live_line import LiveLine, is_utf8, may_draw
from ezpz.progress import is_worker, pace_of_loop
from ezpz.quantities import number
from ezpz.ranks import FAMILIES
from ezpz.track.guard import guarded
from ezpz.track.names import is_validation, main_loss
from ezpz.visible import shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ezpz.ranks import Ranks
    from ezpz.track.values import Value

_CLEAR = b"\x1b[K"  # from the cursor to the end of the line
# A carriage return without a newline, backspaces, jumps of a line or page, and all escapes but colours, titles, links
# and the choice of letters.
_MOVES = re.compile(rb"\r(?!\n)|[\b\v\f]|\x1b(?!\[[0-9;:]*m|\]|\(B)")
_NAME = 24  # columns of a run's name
_WIDEST = 200  # columns: what a terminal takes at once
_PATIENCE = 3.0  # seconds without news of a run after which another one of this process is shown
_MUCH = 100  # writes in a second: what has so much to say needs no line, and shall not be slowed down by one
_LOCKED = 0.5  # seconds that the end of a run waits for the thread that draws

_terminal: _Terminal | None = None  # while a run is shown
_is_off = False  # the program draws on its own, or this is a forked child


def begin(name: str, ranks: Ranks) -> LiveRun | None:
    """Return what shows a run from now on; None where no line belongs.

    Args:
        name: The run's.
        ranks: Who this process is.
    """
    global _terminal
    if _is_off or not _may_have_line(ranks):
        return None
    if _terminal is None:
        descriptor = _descriptor()
        if descriptor < 0:
            return None
        _terminal = _Terminal(descriptor)
        atexit.register(_terminal.close)
    return LiveRun(name, _terminal)


def _may_have_line(ranks: Ranks) -> bool:
    """Tell whether this process is a program of one rank, without a launcher, that nobody types into."""
    launched = ranks.world_size > 1 or "EZPZ_LAUNCH_ID" in os.environ or any(one.read(os.environ) for one in FAMILIES)
    interactive = hasattr(sys, "ps1") or sys.flags.interactive or hasattr(builtins, "__IPYTHON__")  # or a notebook
    return not (launched or interactive or is_worker() or threading.current_thread() is not threading.main_thread())


def _descriptor() -> int:
    """Return where to draw: stdout, or stderr where stdout is a file; -1 where neither is a terminal.

    Nor where one of them leads to another program, such as ``tee``, which may write on the same terminal.
    """
    for descriptor in (1, 2):
        file = _file_of(descriptor)
        if file is not None and (stat.S_ISFIFO(file.st_mode) or stat.S_ISSOCK(file.st_mode)):
            return -1
    return next((each for each in (1, 2) if may_draw(os.environ, each)), -1)


def _file_of(descriptor: int) -> os.stat_result | None:
    try:
        return os.fstat(descriptor)
    except OSError:  # it is closed
        return None


def _file_below(stream: object) -> object:
    """Return the binary file of a stream; None where it has none, was detached from it, or is not made as others."""
    try:
        return getattr(stream, "buffer", None)
    except Exception:  # noqa: BLE001  # an object of the program's own may raise anything
        return None


def _last_of(data: Any) -> bytes:
    try:
        return bytes(data[-1:])
    except Exception:  # noqa: BLE001  # no bytes: the file's own method says so
        return b""


def _moves(data: Any) -> bool:
    try:
        return _MOVES.search(data) is not None
    except TypeError:  # as above
        return False


class LiveRun:
    """What the line says of one run.

    Attributes:
        row: The last row that was recorded and not shown yet: its step, its values, and the thread that recorded it;
            set by the history.
    """

    def __init__(self, name: str, terminal: _Terminal) -> None:
        self.row: tuple[int, Mapping[str, Value], int] | None = None
        self._name = shorten(name, _NAME)
        self._terminal = terminal
        self._line = LiveLine(os.environ, terminal.descriptor)
        self._loss = ""
        self._began = monotonic()
        terminal.runs.append(self)

    def show(self) -> None:
        """Draw the line if there is news; called once a second."""
        problems: list[str] = []
        with guarded("show the run on the terminal", problems):
            self._show()
        if problems:
            self._terminal.give_up()

    def _show(self) -> None:
        asked = self._terminal.asked  # before the row: one that came before somebody asks shall not be drawn after it
        row, self.row = self.row, None
        if row is None or self._terminal.asked_by not in {0, row[2]}:
            return
        step, values, _ = row
        loss = main_loss(values)
        if loss is not None and not is_validation(loss):
            value = values[loss]
            self._loss = number(value) if isinstance(value, (int, float)) else ""
        done, total = pace_of_loop()
        now = monotonic()
        text = self._line.text_of_run(
            *(self._name, done if total else step, total, now), loss=self._loss, seconds=now - self._began
        )
        if text:
            self._terminal.draw(text[:_WIDEST], self, asked)

    def end(self) -> None:
        """Take the line away for good."""
        if self in self._terminal.runs:
            self._terminal.runs.remove(self)
        self._terminal.hide()
        if not self._terminal.runs:
            self._terminal.close()


class _Terminal:
    """The terminal, and what the program writes there.

    Attributes:
        descriptor: That of the terminal.
        runs: Those that are shown, of which one at a time has the line.
        asked: How often somebody has asked for a descriptor or read from the terminal.
        asked_by: The thread that did so last and has recorded no row since; 0 without one.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.runs: list[LiveRun] = []
        self.asked = self.asked_by = 0
        self._file = _file_of(descriptor)
        self._encoding = "utf-8" if is_utf8(os.environ) else "ascii"
        self._lock = threading.RLock()  # a signal's handler may write in the middle of this
        self._writes: set[object] = set()  # those of the program that are under way
        self._waiting: set[object] = set()  # files of which something may not be on the terminal yet
        self._last = b""  # the last byte that the program has written; empty before the first
        self._count = 0  # of its writes since the text was made
        self._text = b""  # the line; empty where there shall be none
        self._is_drawn = self._is_parents = False
        self._shown: LiveRun | None = None  # the last one,
        self._shown_at = 0.0  # and when
        self._replaced: list[tuple[Any, str, Any, Any]] = []  # file, its method's name, ours, and the one before
        self._watch()

    # What the program does.

    def _watch(self) -> None:
        """Have all that Python writes on the terminal come by here, through streams that the program has made too."""
        known = [file for file, *_ in self._replaced]
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            file = _file_below(stream)
            if isinstance(file, (BufferedWriter, FileIO)) and file not in known and self._leads_here(file):
                known.append(file)
                self._watch_writes(file)
                self._replace(file, "fileno", self._before_asking)
        keys = _file_below(sys.__stdin__)
        if isinstance(keys, BufferedReader) and os.isatty(0) and keys.raw not in known:
            self._replace(keys.raw, "readinto", self._before_asking)

    def _leads_here(self, file: BufferedWriter | FileIO) -> bool:
        try:
            return self._is_here(file.fileno())
        except (OSError, ValueError):  # it is closed
            return False

    def _is_here(self, descriptor: int) -> bool:
        """Tell whether a descriptor leads to the terminal; a program may have put a file in its place."""
        file = _file_of(descriptor)
        return file is not None and self._file is not None and os.path.samestat(file, self._file)

    def _replace(self, file: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Put a method in the place of a file's own, which `make` is given."""
        earlier = vars(file).get(name)
        ours = make(getattr(file, name))
        self._replaced.append((file, name, ours, earlier))
        setattr(file, name, ours)

    def _watch_writes(self, file: BufferedWriter | FileIO) -> None:
        """Take the line away before something is written to a file, and draw it again once that is on the terminal."""
        has_buffer = isinstance(file, BufferedWriter)
        last = b""  # the last byte that was written to it
        with suppress(OSError, ValueError):
            file.flush()

        def around_write(own: Callable[..., Any]) -> Callable[..., Any]:
            def write(*data: Any) -> Any:
                nonlocal last
                if has_buffer:
                    self._waiting.add(file)
                if data:
                    last = _last_of(data[0]) or last
                return self._pass_on(own, data, last)

            return write

        def around_flush(own: Callable[..., Any]) -> Callable[..., Any]:
            def flush(*nothing: Any) -> Any:
                if file not in self._waiting:
                    return own(*nothing)
                self._waiting.discard(file)
                return self._pass_on(own, nothing, last)

            return flush

        self._replace(file, "write", around_write)
        if has_buffer:
            self._replace(file, "flush", around_flush)

    def _pass_on(self, own: Callable[..., Any], data: tuple[Any, ...], last: bytes) -> Any:
        """Do what a method of a file does, without the line.

        Args:
            own: The method.
            data: What it is called with.
            last: The last byte that goes to the terminal then; empty where nobody knows.
        """
        mark = object()
        try:
            try:
                self._make_way(mark, data, last)
            except BaseException:  # Ctrl-C: what the program writes is written all the same
                own(*data)
                raise
            return own(*data)
        finally:
            self._writes.discard(mark)
            self._draw_again()

    def _make_way(self, mark: object, data: tuple[Any, ...], last: bytes) -> None:
        with self._lock:  # not while the line is cleared: the terminal may stand still (Ctrl-S)
            self._writes.add(mark)
            was_drawn, self._is_drawn = self._is_drawn or self._is_parents, False
            self._last = last or self._last
            self._count += bool(data)
        if was_drawn and self._is_here(self.descriptor):
            with suppress(OSError):
                os.write(self.descriptor, _CLEAR)
        if data and _moves(data[0]):
            self.give_up()

    def _before_asking(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that keeps the line away before it does what the file's own does."""

        def ask(*arguments: Any) -> Any:
            with self._lock:
                for run in self.runs:
                    run.row = None
                self.asked_by, self.asked = get_ident(), self.asked + 1
                self.hide()
            return own(*arguments)

        return ask

    # The line.

    def draw(self, text: str, run: LiveRun, asked: int) -> None:
        """Draw the line, unless something speaks against it now.

        Args:
            text: Its text.
            run: Whose it is.
            asked: The number of `asked` before the run was looked at.
        """
        with self._lock:
            now = monotonic()
            others = self._shown is not run and self._shown in self.runs and now < self._shown_at + _PATIENCE
            if run not in self.runs or self._writes or self._waiting or asked != self.asked or others:
                return
            writes_much, self._count = self._count > _MUCH, 0
            if writes_much or not self._is_free():
                self.hide()
                return
            self._watch()
            self.asked_by = 0
            self._text = text.encode(self._encoding, "replace") + _CLEAR + b"\r"
            self._shown, self._shown_at = run, now
            if self._is_drawn:
                self._put(b"\r" + self._text)
            elif self._last:
                self._draw_again()
            else:  # where the cursor is, nobody knows: this leads to a new line unless it is at the beginning of one
                self._last = b"\n"
                blanks = b" " * os.get_terminal_size(self.descriptor).columns
                self._is_drawn = self._put(blanks + b"\r" + self._text)

    def _draw_again(self) -> None:
        """Draw the line as it was, below what the program has written since, unless that has not ended its line."""
        with self._lock:
            under_way = self._is_drawn or self._writes or self._waiting
            if self._text and self._last == b"\n" and not under_way and self._count <= _MUCH and self._is_in_front():
                self._is_drawn = self._put(self._text)

    def _is_free(self) -> bool:
        """Tell whether the terminal is here, this process has it alone, and nobody types there unseen."""
        return self._is_here(self.descriptor) and self._is_in_front() and self._echoes() and self._is_alone()

    def _is_in_front(self) -> bool:
        """Tell whether this process is none in the background of its terminal."""
        try:
            return os.tcgetpgrp(self.descriptor) == os.getpgrp()
        except OSError:  # it is not the terminal of this session
            return True

    def _echoes(self) -> bool:
        """Tell whether the terminal shows what is typed, line by line; not while a password or single keys are read."""
        import termios

        try:
            modes: int = termios.tcgetattr(self.descriptor)[3]
        except termios.error:
            return False
        return bool(modes & termios.ECHO and modes & termios.ICANON)

    def _is_alone(self) -> bool:
        """Tell whether no other process would draw a line here, as of several that one script has started.

        Each holds a lock that others may share, and draws when it gets one that they may not.
        """
        import fcntl

        alone = True
        for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH):
            try:
                fcntl.lockf(self.descriptor, kind | fcntl.LOCK_NB)
            except OSError as error:  # a terminal that is only written to, or a system, may have no such lock
                alone = alone and not (kind == fcntl.LOCK_EX and error.errno in {errno.EACCES, errno.EAGAIN})
        return alone

    def _put(self, data: bytes) -> bool:
        """Write on the terminal unless that would wait, and tell whether it was written."""
        try:
            is_ready = self._is_here(self.descriptor) and select.select((), (self.descriptor,), (), 0)[1]
            return bool(is_ready) and os.write(self.descriptor, data) > 0
        except OSError:  # it has hung up
            return False

    def hide(self) -> None:
        """Take the line away."""
        if self._lock.acquire(timeout=_LOCKED):
            try:
                was_drawn, self._is_drawn, self._text = self._is_drawn, False, b""
                if was_drawn and self._is_in_front():
                    self._put(_CLEAR)
            finally:
                self._lock.release()

    def close(self) -> None:
        """Take the line away for good, and give the files their own methods back."""
        global _terminal
        self.hide()
        self.runs.clear()
        for file, name, ours, earlier in self._replaced:
            if vars(file).get(name) is not ours:  # somebody has put another one above it, which calls ours
                continue
            if earlier is None:
                delattr(file, name)
            else:
                setattr(file, name, earlier)
        self._replaced.clear()
        atexit.unregister(self.close)
        if _terminal is self:
            _terminal = None

    def give_up(self) -> None:
        """Draw no line in this process any more."""
        global _is_off
        _is_off = True
        self.close()

    def leave_to_parent(self) -> None:
        """Draw nothing in this forked child, and take the parent's line away before what is written here."""
        self._lock, self._writes, self._waiting, self.runs = threading.RLock(), set(), set(), []
        self._is_drawn, self._is_parents, self._text = False, True, b""


def _forked() -> None:
    global _is_off
    _is_off = True
    if _terminal is not None:
        _terminal.leave_to_parent()


os.register_at_fork(after_in_child=_forked)
