"""Log lines of one shape on every rank: ``[2026-11-20 16:20:01.123][I][ezpz/test_dist:45] text``.

Rank 0 speaks from INFO on, other ranks from WARNING on and with their rank in front; ``EZPZ_LOG_ALL_RANKS=1`` lets all
speak, ``EZPZ_LOG_LEVEL`` sets the level. Lines go to stdout, because users pipe a trainer through ``tee`` and expect
them there. Colour needs a terminal or ``FORCE_COLOR``; ``NO_COLOR`` turns it off, ``TERM`` alone proves nothing.
"""

from __future__ import annotations

import logging
import os
import sys
from time import localtime, strftime

from ezpz.errors import UsageError

__all__ = ["get_logger", "use_color"]

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_COLORS = {"D": "2", "I": "32", "W": "33", "E": "31", "C": "1;31"}


class _Formatter(logging.Formatter):
    """Render a record as one line; only the level's letter and the source are coloured."""

    def __init__(self, *, color: bool, prefix: str) -> None:
        super().__init__()
        self._color = color
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        stamp = f"{strftime('%Y-%m-%d %H:%M:%S', localtime(record.created))}.{int(record.msecs):03d}"
        letter = record.levelname[0]
        source = f"{record.name.replace('.', '/')}:{record.lineno}"
        if self._color:
            letter = f"\x1b[{_COLORS[letter]}m{letter}\x1b[0m"
            source = f"\x1b[2m{source}\x1b[0m"
        line = f"[{stamp}][{letter}][{source}] {self._prefix}{record.getMessage()}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class _StdoutHandler(logging.StreamHandler):  # type: ignore[type-arg]  # generic only in type stubs
    """Write to whatever ``sys.stdout`` is now, so that redirection and capture keep working."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> object:
        return sys.stdout


def use_color(stream: object) -> bool:
    """Tell whether ``stream`` may receive colour: a terminal without ``NO_COLOR``, or ``FORCE_COLOR``."""
    if os.environ.get("FORCE_COLOR"):
        return True
    isatty = getattr(stream, "isatty", None)
    return not os.environ.get("NO_COLOR") and bool(isatty and isatty())


def get_logger(name: str = "ezpz") -> logging.Logger:
    """Return a logger that speaks as this rank should.

    Args:
        name: Dotted name of the module that speaks; ``__main__`` becomes ``main``.

    Returns:
        A standard logger whose handler and level are ezpz's; the root logger and other libraries are left alone.

    Raises:
        UsageError: ``EZPZ_LOG_LEVEL`` is not a level name.
    """
    logger = logging.getLogger(name.strip("_"))
    if not any(isinstance(handler, _StdoutHandler) for handler in logger.handlers):
        rank = os.environ.get("RANK", "0")
        handler = _StdoutHandler()
        handler.setFormatter(_Formatter(color=use_color(sys.stdout), prefix="" if rank == "0" else f"[rank={rank}] "))
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(_level(rank))
    return logger


def _level(rank: str) -> str:
    wish = os.environ.get("EZPZ_LOG_LEVEL", "INFO").upper()
    if wish not in _LEVELS:
        raise UsageError(f"unknown log level {wish!r} (from EZPZ_LOG_LEVEL); expected one of {', '.join(_LEVELS)}.")
    if rank == "0" or os.environ.get("EZPZ_LOG_ALL_RANKS") == "1":
        return wish
    return max(wish, "WARNING", key=_LEVELS.index)
