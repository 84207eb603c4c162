"""Checkpoints: complete or not there, of any strategy, and readable by another number of ranks.

Nothing here loads torch until a checkpoint is written or read.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.checkpoint.checkpoints import Checkpoints as Checkpoints
    from ezpz.checkpoint.finding import Found as Found
    from ezpz.checkpoint.finding import describe as describe
    from ezpz.checkpoint.finding import find_latest as find_latest
    from ezpz.checkpoint.hugging_face import export_hugging_face as export_hugging_face
    from ezpz.checkpoint.hugging_face import import_hugging_face as import_hugging_face
    from ezpz.checkpoint.resuming import Choice as Choice
    from ezpz.checkpoint.resuming import choose as choose

_HOME_OF = {
    "Checkpoints": "checkpoints",
    "Choice": "resuming",
    "Found": "finding",
    "choose": "resuming",
    "describe": "finding",
    "export_hugging_face": "hugging_face",
    "find_latest": "finding",
    "import_hugging_face": "hugging_face",
}

__all__ = [
    "Checkpoints",
    "Choice",
    "Found",
    "choose",
    "describe",
    "export_hugging_face",
    "find_latest",
    "import_hugging_face",
]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOME_OF:
        raise AttributeError(f"module 'ezpz.checkpoint' has no attribute {name!r}")
    value: object = getattr(import_module(f"ezpz.checkpoint.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
