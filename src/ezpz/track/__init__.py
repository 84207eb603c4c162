"""What happened: a history that loses no metric, and the run folder that it leaves behind.

`History` records, `read_journal` reads back, `setup_wandb` adds a second, remote copy. Names are imported when they are
first used (PEP 562); importing this package loads neither torch, numpy nor any plotting library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ezpz.track.history import History as History
    from ezpz.track.journal import read_journal as read_journal
    from ezpz.track.wandb import setup_wandb as setup_wandb
    from ezpz.track.wandb import verify_wandb as verify_wandb

_HOME_OF = {"History": "history", "read_journal": "journal", "setup_wandb": "wandb", "verify_wandb": "wandb"}

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
