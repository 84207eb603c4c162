"""Record a run's metrics without losing one, and leave a run folder that shows what happened.

`History` records, `read_journal` reads back, `setup_wandb` adds a second, remote copy. Names are imported when they are
first used (PEP 562); importing this package loads neither torch, numpy nor any plotting library.
"""

from __future__ import annotations

from ezpz._lazy import attach

__getattr__, __dir__ = attach(__name__)
