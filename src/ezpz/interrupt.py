"""Say what Ctrl-C does to a program of ours: end it at once and silently, or raise where there is something to undo.

Python itself raises KeyboardInterrupt wherever it is, also between two imports, and prints a traceback. Cheap to
import: it is the first thing that ``python3 -m ezpz``, ``python3 -m ezpz.launch`` and the script ``ezpz`` do.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without its enums, which cost 5 ms
import sys

FOR_RANKS = (_signal.SIGUSR1, _signal.SIGUSR2)  # warnings of a scheduler, which mean nothing to programs of ours


def end_silently() -> None:
    """Let SIGINT end this process at once and without a word, as it ends ``sleep``; an ignored one stays ignored."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


class Raising:
    """A context in which SIGINT raises KeyboardInterrupt, so that what was begun is undone; an ignored one does not.

    Python drops what is raised in a callback of a weak reference, as its imports have them, and in ``__del__``. So the
    signal is also noted, and `raise_dropped` raises it again before anything starts that cannot simply be undone.
    """

    _noted = False

    def __enter__(self) -> None:
        self._before = _signal.getsignal(_signal.SIGINT)
        self._is_ours = self._before in (_signal.SIG_DFL, _signal.default_int_handler)
        if self._is_ours:
            Raising._noted = False
            _signal.signal(_signal.SIGINT, _note_and_raise)
            self._tells, sys.unraisablehook = sys.unraisablehook, self._tell

    def __exit__(self, *_: object) -> None:
        if self._is_ours:
            sys.unraisablehook = self._tells
            _signal.signal(_signal.SIGINT, self._before)

    def _tell(self, dropped: sys.UnraisableHookArgs) -> None:
        """Print no traceback of a Ctrl-C."""
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            self._tells(dropped)

    @classmethod
    def raise_dropped(cls) -> None:
        """Raise KeyboardInterrupt if Ctrl-C has come, and Python has dropped it."""
        if cls._noted:
            raise KeyboardInterrupt

    @classmethod
    def note(cls) -> None:
        """Note that Ctrl-C has come."""
        cls._noted = True


def _note_and_raise(number: int, frame: object) -> None:
    Raising.note()
    _signal.default_int_handler(number, frame)


class Deferring:
    """A context in which signals wait, by default those that end a program: what is begun there is also noted there as
    something to undo.
    """

    def __init__(self, numbers: tuple[int, ...] = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP)) -> None:
        self._numbers = numbers

    def __enter__(self) -> None:
        self._before = _signal.pthread_sigmask(_signal.SIG_BLOCK, self._numbers)

    def __exit__(self, *_: object) -> None:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, self._before)


def end_now() -> int:
    """End this process by SIGINT, so that a script around it ends as well; return 130 where even that has no effect."""
    import os

    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    os.kill(os.getpid(), _signal.SIGINT)
    return 128 + int(_signal.SIGINT)
