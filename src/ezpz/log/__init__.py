"""Log lines of one shape on every rank: ``[2026-11-20 16:20:01.123][I][ezpz/test_dist:45] text``.

The lines of a training's steps have only the time of the day in front, ``16:20:01 text``, so that they fit 80 columns.

Rank 0 speaks from INFO on, other ranks from WARNING on and with ``[rank=3]`` in front. Lines go to stdout, because
users pipe a trainer through ``tee`` and expect them there.

    EZPZ_LOG_LEVEL=DEBUG          the level; LOG_LEVEL where it is not set
    EZPZ_LOG_ALL_RANKS=1          all ranks speak from that level on; LOG_FROM_ALL_RANKS=1 and
                                  EZPZ_LOG_FROM_ALL_RANKS=1 too
    EZPZ_LOG_DIR=logs             each rank's lines from INFO on also go to a file of its own (`ezpz.rank_log`)
    NO_COLOR=1  FORCE_COLOR=1     otherwise colour needs a terminal; ``TERM`` alone proves nothing

Colour is a few escapes written by hand: rich would add 700 µs to each line and fold it at the terminal's width.

Nothing is configured at import. A logger of ours does not propagate, so that no handler of the root logger says its
lines twice; pytest's ``caplog``, which listens there, needs ``monkeypatch.setattr(logger, "propagate", True)``.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import deque
from contextlib import suppress
from threading import Event, Thread
from time import localtime, strftime, time

from ezpz._lazy import attach
from ezpz.errors import RankError, UsageError
from ezpz.rank_log import RankFile
from ezpz.ranks import from_environ
from ezpz.visible import encoding_of, flush, use_color

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

_LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "WARN": 30, "ERROR": 40, "CRITICAL": 50, "FATAL": 50}
_COLORS = {"D": "2", "I": "32", "W": "33", "E": "31", "C": "1;31"}
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_ALL_RANKS = ("EZPZ_LOG_ALL_RANKS", "LOG_FROM_ALL_RANKS", "EZPZ_LOG_FROM_ALL_RANKS")
_TRUE = {"1", "true", "yes", "on"}

_EVERY = 0.02  # seconds between two looks of the thread that writes `LaterLines`

_consoles: dict[str, _Console] = {}  # of each logger that was asked for, by its name
_sources: dict[str, str] = {}  # file of a program -> how lines name it
_who: tuple[str | None, int, int] | None = None  # RANK as it was, this rank and the world's size as they were then
_file: RankFile | None = None
_later: list[LaterLines] = []  # those in use
_broken: set[int] = set()  # objects in the place of stdout that have failed


__getattr__, _ = attach(__name__, stub="older.pyi", unknown="ezpz.compat")  # such as `get_file_logger`


def get_logger(
    name: str = "ezpz",
    level: str | int | None = None,
    *,
    rank_zero_only: bool = True,
    rank: int | None = None,
    colored_logs: bool | None = None,
) -> logging.Logger:
    """Return a logger that speaks as this rank should.

    Asking again by the same name returns the same logger. Keywords that differ from the defaults replace what was asked
    for before. A level that is set by ``logger.setLevel`` stays.

    Args:
        name: Dotted name of the module that speaks. Lines name the file that speaks, whatever the name.
        level: A level's name or number; by default ``EZPZ_LOG_LEVEL``, ``LOG_LEVEL`` or INFO.
        rank_zero_only: False lets every rank speak from ``level`` on, with its rank in front.
        rank: The rank to speak as; by default this process's, before and after `setup_torch`.
        colored_logs: True forces colour, False forbids it; by default a terminal decides.

    Returns:
        A standard logger whose handler and level are ezpz's; the root logger and other libraries are left alone.

    Raises:
        UsageError: ``level`` or ``EZPZ_LOG_LEVEL`` is no level.
    """
    name = "ezpz" if name in {"", "root"} else name  # nothing of ours on the root logger
    logger = logging.getLogger(name)
    console = _consoles.get(name)
    if console is None:
        console = _consoles[name] = _Console(logger)
        logger.addHandler(console)
        logger.propagate = False
    given = (_number(level, "get_logger") if level is not None else None, rank_zero_only, rank, colored_logs)
    if given != (None, True, None, None):
        console.level_given, console.rank_zero_only, console.rank, console.colored = given
        console.forget(level=level is not None)
    console.default = _default_level()
    if _file is None and os.environ.get("EZPZ_LOG_DIR"):
        log_to(os.environ["EZPZ_LOG_DIR"])
    console.set_levels()
    return logger


def log_to(folder: str | os.PathLike[str] | None, *, replace: bool = True) -> str | None:
    """Let every logger of `get_logger` also write this rank's lines, from INFO on, to a file below ``folder``.

    The file is opened with the rank's first WARNING and begins with the lines before it; ``EZPZ_LOG_FILES=all`` opens
    it with the first line. A disk that cannot be written costs one line on stderr.

    Args:
        folder: For example ``logs`` of a run's folder; None ends the writing. ``EZPZ_LOG_DIR`` overrides it.
        replace: Whether a folder that was given before gives way; `ezpz.History`, which names its own, lets it stay.

    Returns:
        The path that this rank's file has, or would have; None after None.
    """
    global _file
    if _file is not None and not replace:
        return _file.path
    old, _file = _file, None
    if old is not None:
        old.close()
    if folder is not None:
        _file = RankFile(os.environ.get("EZPZ_LOG_DIR") or os.fspath(folder), _Formatter())
        _, _file.rank, _file.world_size = _rank_and_size()
    for console in _consoles.values():
        if old is not None:
            console.logger.removeHandler(old)
        if _file is not None:
            console.logger.addHandler(_file)
        console.set_levels()
    return _file.path if _file is not None else None


class LaterLines:
    """Lines at INFO that a thread formats and writes within 20 ms, so that a fast loop need not wait for that.

    A context manager, at whose end all lines are written. Lines of all loggers of ezpz keep their order: whoever says
    one writes first what waits here. What a program prints by itself does not, and may stand in front of these lines.

    Args:
        logger: From `get_logger`.
        brief: Let lines have only the time of the day in front; in the files of ranks they are as all others.
    """

    def __init__(self, logger: logging.Logger, *, brief: bool = False) -> None:
        self._logger = logger
        self._brief = brief
        self._console = _consoles[logger.name]
        self.forget()

    def forget(self) -> None:
        """Begin anew: what waits is the parent's."""
        self._waiting: deque[tuple[float, str, int, Callable[[], str]]] = deque()
        self._thread: Thread | None = None
        self._over = Event()
        self._is_writing = False

    def __enter__(self) -> LaterLines:  # noqa: PYI034  # Self needs Python 3.11
        _later.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        try:
            self.write()
            if self._thread is not None:
                self._thread.join()
        finally:
            _later.remove(self)

    def put(self, text: Callable[[], str]) -> None:
        """Say a line.

        Args:
            text: Returns it, called by any thread; what it reads must not change any more.
        """
        if not self._logger.isEnabledFor(logging.INFO):
            return
        frame = sys._getframe(1)  # noqa: SLF001  # as logging itself finds who speaks
        self._waiting.append((time(), frame.f_code.co_filename, frame.f_lineno, text))
        if self._console.level > logging.INFO:  # it is for the rank's file alone, where others do not wait for it
            self.write()
        elif self._thread is None:
            self._thread = Thread(target=self._run, name="ezpz-lines")
            self._thread.start()
        elif not self._thread.is_alive():  # it has broken; nothing is lost by that
            self.write()

    def write(self, patience: float = -1.0) -> None:
        """Write what waits, unless another thread holds the stream for so many seconds."""
        lock = self._console.lock
        assert lock is not None
        if not lock.acquire(timeout=patience):
            return
        try:
            if self._is_writing:  # by this thread, a line of which comes by here
                return
            self._is_writing = True
            try:
                while self._waiting:
                    self._say(*self._waiting.popleft())
            finally:
                self._is_writing = False
        finally:
            lock.release()

    def _say(self, when: float, path: str, line: int, text: Callable[[], str]) -> None:
        record = self._logger.makeRecord(self._logger.name, logging.INFO, path, line, text(), (), None)
        record.created, record.msecs = when, when % 1 * 1000
        record.brief = self._brief
        self._logger.handle(record)

    def _run(self) -> None:
        while not self._over.wait(_EVERY):
            if self._waiting:
                self.write()


def write_later_lines(patience: float = -1.0) -> None:
    """Write all lines that wait in `LaterLines`, unless another thread holds their stream for so many seconds."""
    for lines in tuple(_later):
        lines.write(patience)


def _forget_later_lines() -> None:
    """Leave to the parent of this forked child what it says."""
    for lines in _later:
        lines.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=write_later_lines, after_in_child=_forget_later_lines)


def _message(record: logging.LogRecord) -> str:
    """Return what a record says; in words of ezpz itself, values of others are made visible."""
    message = record.getMessage()
    if message.isprintable() or not record.name.startswith("ezpz."):
        return message
    from ezpz.visible import LINES, visible

    return visible(message, LINES, colors=True)


class _Formatter(logging.Formatter):
    """Render a record as one line; only the level's letter and the source are coloured."""

    def __init__(self) -> None:
        super().__init__()
        self.color, self.prefix, self.may_be_brief = False, "", False
        self._second, self._stamp = 0, ""

    def format(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second:
            self._second, self._stamp = second, strftime("%Y-%m-%d %H:%M:%S", localtime(second))
        if self.may_be_brief and getattr(record, "brief", False):
            clock = self._stamp[-8:]
            return f"{f'{_DIM}{clock}{_PLAIN}' if self.color else clock} {self.prefix}{_message(record)}"
        letter = record.levelname[:1]
        source = f"{_sources.get(record.pathname) or _name_source(record.pathname)}:{record.lineno}"
        if self.color:
            letter = f"\x1b[{_COLORS.get(letter, '0')}m{letter}{_PLAIN}"
            source = f"{_DIM}{source}{_PLAIN}"
        line = f"[{self._stamp}.{int(record.msecs):03d}][{letter}][{source}] {self.prefix}{_message(record)}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        if record.stack_info:
            line += "\n" + self.formatStack(record.stack_info)
        return line


class _Console(logging.Handler):
    """Write to whatever ``sys.stdout`` is now, so that redirection and capture keep working."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self.logger = logger
        self.level_given: int | None = None
        self.default = logging.INFO  # from the environment
        self.rank_zero_only = True
        self.rank: int | None = None
        self.colored: bool | None = None
        self._speaks = self.formatter = _Formatter()
        self._speaks.may_be_brief = True
        self._stream: TextIO | None = None
        self._set = logging.NOTSET  # the level that was set here last: another one is the user's own

    def set_levels(self) -> None:
        """Let the logger drop what this rank does not say: a line that its level drops costs 0.1 µs, one that a handler
        drops 5.
        """
        own = _rank_and_size()[1]
        rank = own if self.rank is None else self.rank
        level = self.default if self.level_given is None else self.level_given
        speaks = rank == 0 or not self.rank_zero_only or any(_is_on(name) for name in _ALL_RANKS)
        lowest = level if speaks else max(level, logging.WARNING)
        self.setLevel(logging.NOTSET if _file is None else lowest)
        if _file is not None and _file not in self.logger.handlers:
            self.logger.addHandler(_file)
        if self.logger.level == self._set:
            self._set = lowest if _file is None else min(level, logging.INFO)
            self.logger.setLevel(self._set)
        self._speaks.prefix = "" if rank == 0 else f"[rank={rank}] "

    def forget(self, *, level: bool) -> None:
        """Let the next line decide about colour anew, and the next `set_levels` stand above what the user has set."""
        self._stream = None
        if level:
            self._set = self.logger.level

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, unless this process turns out to be another rank than it was when the logger was made."""
        try:
            self._emit(record)
        except Exception:  # noqa: BLE001  # as the standard handlers do: whatever a line raises, the program continues
            self.handleError(record)

    def _emit(self, record: logging.LogRecord) -> None:
        write_later_lines()
        if _who is None or _who[0] != os.environ.get("RANK"):
            for console in _consoles.values():
                console.set_levels()
            if record.levelno < max(self.level, self.logger.level):
                return
        stream = sys.stdout
        if stream is None:  # a process without a standard output
            return
        is_other = stream is not self._stream
        if is_other:
            self._stream = stream
            self._speaks.color = use_color(stream) if self.colored is None else self.colored
        line = self.format(record) + "\n"
        try:
            try:
                stream.write(line)
            except UnicodeEncodeError:
                encoding = encoding_of(stream, "ascii")
                stream.write(line.encode(encoding, "backslashreplace").decode(encoding))
            flush(stream)
        except (OSError, ValueError):
            raise
        except Exception as error:  # noqa: BLE001  # an object of the program's own
            _tell_broken(stream, error)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        """Be silent when the reader is gone or the disk is full; a line that cannot be rendered is shown as a
        mistake.
        """
        if not isinstance(sys.exc_info()[1], (OSError, ValueError)):
            with suppress(Exception):  # stderr may be as broken as stdout
                super().handleError(record)


def _tell_broken(stream: object, error: Exception) -> None:
    """Say on stderr, once, that an object in the place of stdout takes no lines."""
    if id(stream) not in _broken:
        _broken.add(id(stream))
        with suppress(Exception):
            what = f"{type(stream).__name__}.write of the program: {type(error).__name__}"
            print(f"ezpz: cannot write log lines to stdout: {what}", file=sys.stderr)


def _rank_and_size() -> tuple[str | None, int, int]:
    """Return who this process is, asked again when RANK has changed; rank 0 when the environment contradicts itself."""
    global _who
    name = os.environ.get("RANK")
    if _who is None or _who[0] != name:
        try:
            ranks = from_environ(os.environ)
            _who = (name, ranks.rank, ranks.world_size)
        except RankError:  # set_up tells; here it is better to be heard by all than by none
            _who = (name, 0, 1)
        if _file is not None:
            _, _file.rank, _file.world_size = _who
    return _who


def _is_on(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in _TRUE


def _default_level() -> int:
    own = os.environ.get("EZPZ_LOG_LEVEL")
    if own:
        return _number(own, "EZPZ_LOG_LEVEL")
    # Other programs have levels of other names under LOG_LEVEL: what is no level of ours is theirs.
    return _LEVELS.get(os.environ.get("LOG_LEVEL", "").strip().upper(), logging.INFO)


def _number(level: str | int, source: str) -> int:
    text = str(level).strip().upper()
    number = int(text) if text.isascii() and text.isdigit() else _LEVELS.get(text)
    if number is None:
        names = ", ".join(name for name in _LEVELS if name not in {"WARN", "FATAL"})
        raise UsageError(f"unknown log level {level!r} (from {source}); expected a number or one of {names}.")
    return number


def _name_source(path: str) -> str:
    """Return ``ezpz/test_dist`` for a module's file, ``train`` for a script's; looked up once per file."""
    source = ""
    for name, module in list(sys.modules.items()):
        # A script is __main__, and once something has imported multiprocessing also __mp_main__.
        if not name.startswith("__") and getattr(module, "__dict__", {}).get("__file__") == path:
            source = name.replace(".", "/")
            break
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if not source and spec is not None and spec.origin == path:  # python3 -m package.module
        source = spec.name.replace(".", "/")
    _sources[path] = source or path.rpartition("/")[2].removesuffix(".py").strip("<>") or "main"
    return _sources[path]
