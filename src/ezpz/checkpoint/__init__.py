"""Checkpoints: complete or not there, of any strategy, and readable by another number of ranks.

Nothing here loads torch until a checkpoint is written or read.
"""

from __future__ import annotations

from ezpz._lazy import attach

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    # names: begin (`make names`)
    from ezpz.checkpoint.checkpoints import Checkpoints as Checkpoints
    from ezpz.checkpoint.finding import Found as Found
    from ezpz.checkpoint.finding import describe as describe
    from ezpz.checkpoint.finding import find_latest as find_latest
    from ezpz.checkpoint.finding import newest as newest
    from ezpz.checkpoint.hugging_face import export_hugging_face as export_hugging_face
    from ezpz.checkpoint.hugging_face import import_hugging_face as import_hugging_face
    from ezpz.checkpoint.resuming import Choice as Choice
    from ezpz.checkpoint.resuming import choose as choose
    # names: end

__getattr__, __dir__ = attach(
    __name__,
    {
        "checkpoints": "Checkpoints",
        "finding": "Found describe find_latest newest",
        "hugging_face": "export_hugging_face import_hugging_face",
        "resuming": "Choice choose",
    },
)
