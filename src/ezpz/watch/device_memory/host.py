"""Look for what an earlier attempt has left on this host, beside the start of its ranks."""

from __future__ import annotations

import os
import signal

from ezpz.launch.host.device_memory_wait import LIMIT, note_on, wait_beside
from ezpz.launch.watchers import HostSide

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

_MORE = 5.0  # seconds for a process that waits to say so, after the limit: its driver may hold it


class LeftoversOfHost(HostSide):
    """Keeps ranks from beginning while memory of this host's devices is not free yet."""

    def before_begin(self, environ: Mapping[str, str], *, first: bool) -> None:
        """Wait beside the start of the ranks."""
        del environ, first
        try:
            self._pid, self._answer = wait_beside(self.handle.launch)
        except OSError:  # no more processes: the ranks may begin all the same
            return
        self.handle.hold(True)
        self.handle.read(self._answer, lambda: self._end(os.read(self._answer, 1 << 12).decode()))
        self.handle.after(LIMIT + _MORE, self._give_up)

    def _give_up(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self._end("")

    def _end(self, text: str) -> None:
        self.handle.forget(self._answer)
        self.handle.cancel()
        os.close(self._answer)
        if note := note_on(text):
            self.handle.note(note)
        self.handle.hold(False)
