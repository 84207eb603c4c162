"""Look at this host beside the start of its ranks, for the launcher to judge."""

from __future__ import annotations

import os

from ezpz.launch.watchers import HostSide
from ezpz.watch.preflight.look import look_beside
from ezpz.watch.preflight.messages import Look

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

LIMIT = 2.0  # seconds that ranks wait at most for what is found; it takes some milliseconds where nothing is wrong


class LookOfHost(HostSide):
    """Keeps ranks from beginning while this host is looked at."""

    def before_begin(self, environ: Mapping[str, str], *, first: bool) -> None:
        """Look beside the start of the ranks."""
        handle = self.handle
        self._answer = look_beside(
            Look.of(handle.config),
            environ,
            handle.settings.log_dir,
            handle.expected,
            first=first,
            by_shim=handle.has_shims,
        )
        self._is_late = False
        handle.hold(True)
        handle.read(self._answer.readable, self._take)
        handle.after(LIMIT, self._wait_no_longer)

    def _take(self) -> None:
        """Report what was found, unless it came too late."""
        answer, handle = self._answer, self.handle
        handle.forget(answer.readable)
        os.close(answer.readable)
        if self._is_late:
            return
        handle.cancel()
        if answer.found:
            handle.report(answer.found)
        handle.hold(False)

    def _wait_no_longer(self) -> None:
        self._is_late = True
        self.handle.hold(False)
