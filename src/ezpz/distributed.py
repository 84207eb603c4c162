"""Offer `ezpz.dist` under the longer name that some scripts import: ``ezpz.distributed.setup_torch()``."""

from __future__ import annotations

from ezpz._lazy import attach

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    # names: begin (`make names`)
    from ezpz.dist import *  # noqa: F403  # all of its names are this package's, too
    # names: end
__getattr__, __dir__ = attach(__name__, {}, also="ezpz.dist", unknown="ezpz.compat")
