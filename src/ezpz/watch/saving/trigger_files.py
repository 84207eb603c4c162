"""Find the files SAVE and STOP that somebody puts into a run folder, from whatever host, to have a training saved.

A thread looks every few seconds, because a file system that hangs must not stop the launcher. It lists the folder: NFS
may answer a question for one name from its cache for a minute, but opening the folder has it ask the server.
"""

from __future__ import annotations

import os
import threading

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ezpz.launch.watchers import Handle

__all__ = ["NAMES", "TriggerFiles", "found_in"]

NAMES = ("STOP", "SAVE")  # save and end, save and go on
_EVERY = 3.0  # seconds between two looks
_TO_END = 1.0  # seconds for a last removal


def found_in(folders: Iterable[str]) -> list[tuple[str, str]]:
    """Return name and folder of each such file in some folders."""
    found = []
    for folder in folders:
        try:
            names = os.listdir(folder)
        except OSError:  # it is not there yet, or gone
            continue
        found += [(name, folder) for name in NAMES if name in names]
    return found


class TriggerFiles:
    """Looks for these files beside the launcher's loop.

    Args:
        handle: Watches what the thread finds.
        found: Called in the launcher's loop with name and folder, once for each file, and again for one that is put
            there anew.
    """

    def __init__(self, handle: Handle, found: Callable[[str, str], None]) -> None:
        self._handle, self._found = handle, found
        self._folders: list[str] = []
        self._removed: list[str] = []
        self._news: list[tuple[str, str]] = []
        self._known: set[tuple[str, str]] = set()
        self._wake = threading.Event()
        self._over = False
        self._read, self._write = os.pipe()
        self._thread: threading.Thread | None = None

    def watch(self, folder: str) -> None:
        """Look into this folder as well."""
        if not folder or folder in self._folders:
            return
        self._folders.append(folder)
        self._wake.set()
        if self._thread is None:
            self._handle.read(self._read, self._take)
            self._thread = threading.Thread(target=self._look, name="ezpz-trigger-files", daemon=True)
            self._thread.start()

    def has(self, name: str, folder: str) -> bool:
        """Tell whether a file was there at the last look."""
        return (name, folder) in self._known

    def remove(self, name: str, folder: str) -> None:
        """Remove a file that was followed."""
        self._removed.append(os.path.join(folder, name))
        self._wake.set()

    def close(self) -> None:
        """Remove what is to be removed, and look no more."""
        if self._thread is None:
            return
        self._handle.forget(self._read)
        self._over = True
        self._wake.set()
        self._thread.join(_TO_END)  # a file system that hangs is not waited for

    def _look(self) -> None:
        while True:
            while self._removed:
                try:
                    os.unlink(self._removed.pop())
                except OSError:
                    pass  # somebody else has removed it, or it may not be removed
            if self._over:
                return
            now = set(found_in(list(self._folders)))
            news = sorted(now - self._known, reverse=True)  # STOP before SAVE
            self._known = now
            if news:
                self._news += news
                os.write(self._write, b"!")
            self._wake.wait(_EVERY)
            self._wake.clear()

    def _take(self) -> None:
        os.read(self._read, 64)
        while self._news:
            self._found(*self._news.pop(0))
