"""What happened: a history that loses no metric, and the run folder that it leaves behind.

`History` records, `read_journal` reads back, `setup_wandb` adds a second, remote copy. Names are imported when they are
first used (PEP 562); importing this package loads neither torch, numpy nor any plotting library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_HOME_OF = {
    "Histogram": "distribution",
    "History": "history",
    "Profile": "profiles.profiling",
    "Tracker": "trackers",
    "add_profile_option": "profiles.profile_spec",
    "histogram": "distribution",
    "open_run": "run",
    "profile": "profiles.profiling",
    "read_journal": "records",
    "setup_wandb": "wandb",
    "verify_wandb": "wandb",
}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605  # a list at run time; editors read the block above


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOME_OF:
        raise AttributeError(f"module 'ezpz.track' has no attribute {name!r}")
    value: object = getattr(import_module(f"ezpz.track.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
