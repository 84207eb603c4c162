"""Record a run's metrics without losing one, and leave a run folder that shows what happened.

`History` records, `read_journal` reads back, `setup_wandb` adds a second, remote copy. Names are imported when they are
first used (PEP 562); importing this package loads neither torch, numpy nor any plotting library.
"""

from __future__ import annotations

from ezpz._lazy import attach

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    # names: begin (`make names`)
    from ezpz.track.distribution import Histogram as Histogram
    from ezpz.track.distribution import histogram as histogram
    from ezpz.track.history import History as History
    from ezpz.track.profiles.profile_spec import add_profile_option as add_profile_option
    from ezpz.track.profiles.profiling import Profile as Profile
    from ezpz.track.profiles.profiling import profile as profile
    from ezpz.track.records import read_journal as read_journal
    from ezpz.track.run import open_run as open_run
    from ezpz.track.trackers import Tracker as Tracker
    from ezpz.track.wandb import setup_wandb as setup_wandb
    from ezpz.track.wandb import verify_wandb as verify_wandb
    # names: end

__getattr__, __dir__ = attach(
    __name__,
    {
        "distribution": "Histogram histogram",
        "history": "History",
        "profiles.profile_spec": "add_profile_option",
        "profiles.profiling": "Profile profile",
        "records": "read_journal",
        "run": "open_run",
        "trackers": "Tracker",
        "wandb": "setup_wandb verify_wandb",
    },
)
