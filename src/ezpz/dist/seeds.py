"""Set the three things that a seed controls, each by a function of its own.

    weights     `seed_everything(seed)`   the same on every rank, so that every rank builds the same model
    data        `data_seed(seed, step)`   another for every data-parallel rank, the same for all ranks of one replica
    dropout     `seed_dropout(seed)`      the same; call it when the model is built and wrapped

Ranks of one tensor-, context- or pipeline-parallel replica work on the same samples: their data must be equal. So must
the dropout masks of tensor-parallel ranks where these hold copies of the same activations, or they would train
different models; where they hold other features `ezpz.dist.tensor_parallel_dropout` lets them draw apart.
"""

from __future__ import annotations

import random
import sys
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError
from ezpz.log import get_logger

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup

_LIMIT = 2**32  # numpy takes no more
_LOOKED_AT = 8  # numbers of each weight
_of_run: list[int] = []  # what `setup_torch` was given last


def seed_everything(seed: int) -> None:
    """Seed Python, numpy (if it is loaded) and torch with the same number on every rank.

    Equal seeds make equal initial weights; data differs by rank where it is sharded, not by this seed.

    Args:
        seed: A whole number from 0 to 2**32 - 1.

    Raises:
        UsageError: The seed is out of range.
    """
    import torch

    _check(seed)
    random.seed(seed)
    torch.manual_seed(seed)  # all devices included
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


def warn_of_other_weights(model: nn.Module, group: ProcessGroup) -> None:
    """Warn where ranks that are about to share out a model hold different weights: each keeps its part of its own.

    Some numbers of each weight are compared, so that a model of any size costs one small message. All ranks of the
    group must call it.
    """
    import torch
    import torch.distributed as dist

    from ezpz.dist.collectives import all_ranks_agree

    parts: dict[torch.device, list[torch.Tensor]] = {}
    for each in model.parameters():
        flat = getattr(each, "_local_tensor", each).detach().flatten()
        some = flat[:: max(1, len(flat) // _LOOKED_AT)][:_LOOKED_AT]
        real = torch.view_as_real(some).flatten() if some.is_complex() else some
        parts.setdefault(real.device, []).append(real.float())
    found = [torch.cat(on_device).cpu() for on_device in parts.values()]  # one wait for each device
    if found and not all_ranks_agree(torch.cat(found), group) and dist.get_rank(group) == 0:
        get_logger(__name__).warning(
            f"{type(model).__name__} has other weights on other ranks, and each keeps its part of its own: what one "
            "rank alone has loaded is lost but for that part. Seed all ranks alike before the model is built, such as "
            "by ezpz.setup_torch(seed=0), and load weights on every rank."
        )


def keep_run_seed(seed: int) -> None:
    """Keep the seed that `ezpz.setup_torch` was given, which the order of data follows from."""
    _of_run[:] = [seed]


def run_seed() -> int:
    """Return the seed that `ezpz.setup_torch` was given; 0 without one."""
    return _of_run[0] if _of_run else 0


def data_seed(seed: int, step: int = 0) -> int:
    """Return a seed for what this rank draws from data: a function of seed, step and data-parallel rank.

    Args:
        seed: The run's seed, the same on all ranks.
        step: Step or epoch, so that each draws anew.

    Returns:
        From 0 to 2**32 - 1; equal on the ranks of one replica, and different (but for one chance in 2**32) on others.

    Raises:
        UsageError: The seed is out of range.
    """
    return _mixed("data", seed, step)


def seed_dropout(seed: int) -> None:
    """Let random numbers on this rank's device differ between data-parallel ranks from here on, and only between them.

    Call it once, after the model is built and wrapped: a model built after it has other weights on every rank.

    Args:
        seed: The run's seed, the same on all ranks.

    Raises:
        UsageError: The seed is out of range.
    """
    import torch

    torch.manual_seed(_mixed("dropout", seed, 0))


def _mixed(use: str, seed: int, step: int) -> int:
    """Hash what a seed is for, so that neighbouring seeds, steps and ranks give unrelated streams."""
    from ezpz.dist.mesh import coordinate
    from ezpz.dist.wrapped_models import mesh_in_use

    _check(seed)
    words = f"ezpz {use} {seed} {step} {coordinate(mesh_in_use(), 'dp')}"
    return int.from_bytes(blake2b(words.encode(), digest_size=4).digest(), "little")


def _check(seed: int) -> None:
    if not 0 <= seed < _LIMIT:
        raise UsageError(f"unusable seed {seed}; expected 0 to {_LIMIT - 1}, the range that numpy takes.")
