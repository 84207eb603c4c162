"""Look at this host beside the start of its ranks, for the launcher to judge."""

from __future__ import annotations

import _thread
import os

from ezpz.launch.watchers import HostSide
from ezpz.watch.preflight.fast_check import look
from ezpz.watch.preflight.messages import Look

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.watch.preflight.messages import Looked

LIMIT = 2.0  # seconds that ranks wait at most for what is found; it takes some milliseconds where nothing is wrong


class LookOfHost(HostSide):
    """Keeps ranks from beginning while this host is looked at."""

    def before_begin(self, environ: Mapping[str, str], *, first: bool) -> None:
        """Look in a thread beside the start of the ranks; what may hang in it holds up nothing."""
        handle = self.handle
        self._looked: Looked | None = None
        self._is_late = False
        request, log_dir = Look.of(handle.config), handle.settings.log_dir
        readable, write = os.pipe()

        def find() -> None:
            try:
                self._looked = look(request, environ, log_dir, handle.expected, first=first, by_shim=handle.has_shims)
            except Exception:  # noqa: BLE001, S110  # a host that cannot be looked at may run its ranks all the same
                pass
            os.close(write)

        _thread.start_new_thread(find, ())
        handle.hold(True)
        handle.read(readable, lambda: self._take(readable))
        handle.after(LIMIT, self._wait_no_longer)

    def _take(self, readable: int) -> None:
        """Report what was found, unless it came too late."""
        handle = self.handle
        handle.forget(readable)
        os.close(readable)
        if self._is_late:
            return
        handle.cancel()
        if self._looked:
            handle.report(self._looked)
        handle.hold(False)

    def _wait_no_longer(self) -> None:
        self._is_late = True
        self.handle.hold(False)
