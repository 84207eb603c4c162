"""Start distributed PyTorch the same way everywhere, and tell the truth about what happened.

Every public name below is imported when it is first used (PEP 562), so that ``import ezpz`` costs milliseconds and
loads neither torch nor numpy. Editors complete the names through the ``TYPE_CHECKING`` block.
"""

from __future__ import annotations

from ezpz._lazy import attach

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    # names: begin (`make names`)
    from ezpz.cluster import Allocation as Allocation
    from ezpz.cluster import detect as detect
    from ezpz.dist import *  # noqa: F403  # all of its names are this package's, too
    from ezpz.errors import EzpzError as EzpzError
    from ezpz.progress import heartbeat as heartbeat
    from ezpz.track import History as History
    from ezpz.track import add_profile_option as add_profile_option
    from ezpz.track import histogram as histogram
    from ezpz.track import profile as profile
    # names: end

__version__ = "0.1.0"

__getattr__, __dir__ = attach(
    __name__,
    {
        "cluster": "Allocation detect",
        "errors": "EzpzError",
        "progress": "heartbeat",
        "track": "History add_profile_option histogram profile",
    },
    modules="checkpoint cluster dist distributed errors examples launch log models progress ranks track train proc",
    also="ezpz.dist",
)
