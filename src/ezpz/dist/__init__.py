"""Who am I? Rank, device, backend, rendezvous: what a user's script imports.

Nothing here loads torch until a function needs it.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.dist.device import get_torch_backend as get_torch_backend
    from ezpz.dist.device import get_torch_device as get_torch_device
    from ezpz.dist.device import get_torch_device_type as get_torch_device_type
    from ezpz.dist.device import synchronize as synchronize
    from ezpz.dist.setup import cleanup as cleanup
    from ezpz.dist.setup import get_dist_info as get_dist_info
    from ezpz.dist.setup import seed_everything as seed_everything
    from ezpz.dist.setup import setup_torch as setup_torch
    from ezpz.dist.world import get_local_rank as get_local_rank
    from ezpz.dist.world import get_rank as get_rank
    from ezpz.dist.world import get_world_size as get_world_size

_NAMES = {
    "device": ("get_torch_backend", "get_torch_device", "get_torch_device_type", "synchronize"),
    "setup": ("cleanup", "get_dist_info", "seed_everything", "setup_torch"),
    "world": ("get_local_rank", "get_rank", "get_world_size"),
}
_HOME_OF = {name: home for home, names in _NAMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605  # a list at run time; editors read the block above


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOME_OF:
        raise AttributeError(f"module 'ezpz.dist' has no attribute {name!r}")
    return getattr(import_module(f"ezpz.dist.{_HOME_OF[name]}"), name)
