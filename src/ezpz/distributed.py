"""`ezpz.dist` under the longer name that some scripts import: ``ezpz.distributed.setup_torch()`` (saforem2/torchtitan)."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.dist import *  # noqa: F403  # for editors; at run time names are found when they are used


def __getattr__(name: str) -> object:
    import ezpz.dist

    if name.startswith("__"):  # of the module itself, for the import system and for tools
        raise AttributeError(f"module 'ezpz.distributed' has no attribute {name!r}")
    return getattr(ezpz.dist, name)


def __dir__() -> list[str]:
    import ezpz.dist

    return sorted({*globals(), *ezpz.dist.__all__})
