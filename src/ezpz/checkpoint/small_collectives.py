"""All ranks as one: small values over a gloo group of our own, so that a failure is everybody's at the same moment.

The group is no other's, because an asynchronous save uses it from its own thread while the training uses the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from ezpz.errors import EzpzError, MachineError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.distributed import ProcessGroup

__all__ = ["Together", "raise_first"]

_T = TypeVar("_T")


class Together:
    """The ranks of this world.

    Attributes:
        rank: This one.
        size: How many there are.
        group: gloo over all ranks; None for one rank, and in a simulated world.
        is_simulated: Whether this process plays one rank of a world that is not there (`ezpz simulate`).
    """

    def __init__(self) -> None:
        """Make the group, where there are ranks; collective.

        Raises:
            MachineError: This torch has no gloo.
        """
        import torch.distributed as dist

        from ezpz.dist.mesh import new_groups

        self.is_distributed = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if self.is_distributed else 0
        self.size = dist.get_world_size() if self.is_distributed else 1
        self.group: ProcessGroup | None = None
        self.is_simulated = self.is_distributed and dist.get_backend() == "fake"
        if self.is_distributed and not dist.is_gloo_available():
            raise MachineError(
                "checkpoints need gloo for messages between CPUs, which this torch was built without; expected a torch "
                "with it."
            )
        if self.size > 1 and not self.is_simulated:
            with new_groups(split=False):
                self.group = dist.new_group(backend="gloo")

    def gather(self, value: _T) -> list[_T]:
        """Return the values of all ranks, in their order."""
        if self.group is None:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def broadcast(self, value: _T) -> _T:
        """Return rank 0's value."""
        if self.group is None:
            return value
        import torch.distributed as dist

        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def agree(self, error: EzpzError | None) -> None:
        """Go on where no rank has an error.

        Raises:
            EzpzError: That of the first rank that has one, on all ranks.
        """
        raise_first(self.gather(error))


def raise_first(errors: Iterable[EzpzError | None]) -> None:
    """Raise the first error that is one."""
    for error in errors:
        if error is not None:
            raise type(error)(str(error))
