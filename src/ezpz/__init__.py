"""Start distributed PyTorch the same way everywhere, and tell the truth about what happened.

Every public name below is imported when it is first used (PEP 562), so that ``import ezpz`` costs milliseconds and
loads neither torch nor numpy. Editors complete the names through the ``TYPE_CHECKING`` block.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.cluster import Allocation as Allocation
    from ezpz.cluster import detect as detect
    from ezpz.dist import cleanup as cleanup
    from ezpz.dist import get_dist_info as get_dist_info
    from ezpz.dist import get_local_rank as get_local_rank
    from ezpz.dist import get_rank as get_rank
    from ezpz.dist import get_torch_backend as get_torch_backend
    from ezpz.dist import get_torch_device as get_torch_device
    from ezpz.dist import get_torch_device_type as get_torch_device_type
    from ezpz.dist import get_world_size as get_world_size
    from ezpz.dist import seed_everything as seed_everything
    from ezpz.dist import setup_torch as setup_torch
    from ezpz.dist import synchronize as synchronize
    from ezpz.errors import EzpzError as EzpzError
    from ezpz.log import get_logger as get_logger
    from ezpz.progress import heartbeat as heartbeat
    from ezpz.track import History as History
    from ezpz.track import setup_wandb as setup_wandb

__version__ = "0.1.0"

_HOMES = {
    "cluster": ("Allocation", "detect"),
    "dist": (
        "cleanup",
        "get_dist_info",
        "get_local_rank",
        "get_rank",
        "get_torch_backend",
        "get_torch_device",
        "get_torch_device_type",
        "get_world_size",
        "seed_everything",
        "setup_torch",
        "synchronize",
    ),
    "errors": ("EzpzError",),
    "log": ("get_logger",),
    "progress": ("heartbeat",),
    "track": ("History", "setup_wandb"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_PACKAGES = ("cluster", "dist", "errors", "launch", "log", "models", "progress", "ranks", "track", "train")

__all__ = sorted(_HOME_OF)  # noqa: PLE0605  # a list at run time; editors read the block above


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _HOME_OF:
        value: object = getattr(import_module(f"ezpz.{_HOME_OF[name]}"), name)
    elif name in _PACKAGES:
        value = import_module(f"ezpz.{name}")
    else:
        raise AttributeError(f"module 'ezpz' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
