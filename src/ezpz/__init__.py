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
    from ezpz.dist.device import device as device
    from ezpz.errors import EzpzError as EzpzError
    from ezpz.profile import profile as profile
    from ezpz.progress import heartbeat as heartbeat
    from ezpz.progress import section as section
    from ezpz.save_requests import on_save as on_save
    from ezpz.track import History as History
    from ezpz.track import add_profile_option as add_profile_option
    from ezpz.track import histogram as histogram
    from ezpz.train.preparing import prepare as prepare
    # names: end

__version__ = "0.1.0"
__path__.append(f"{__path__[0]}/gone")  # noqa: F405  # modules of the older package, which answer with what to use

__getattr__, __dir__ = attach(
    __name__,
    {
        "cluster": "Allocation detect",
        "dist.device": "device",
        "errors": "EzpzError",
        "progress": "heartbeat section",
        "profile": "profile",
        "save_requests": "on_save",
        "track": "History add_profile_option histogram",
        "train.preparing": "prepare",
    },
    modules=(
        "checkpoint cluster configs dist distributed errors examples flops history launch log models progress ranks "
        "tp track tracker train proc utils"
    ),
    unknown="ezpz.compat",
    also="ezpz.dist",
)
