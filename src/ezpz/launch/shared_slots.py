"""Share memory between a launcher and an agent of the same host, so that much output crosses it without being copied.

An agent reads the pipe of a rank into a slot, and sends only where the bytes are, among the frames of its other
output, whose order counts. The launcher writes from the slot into its own stdout or stderr and gives the slot back.
Where no slot is free, or there are none (other hosts, a system that has no such memory), output crosses the
connection itself.

The memory has no name. An agent that the launcher has forked inherits it; another one of the same host gets it as an
open file (memfd_create(2)) on the Unix socket, where it has proved that it knows the secret, and nobody can make that
file shorter, which would kill who reads it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # `typing` costs 5 ms in every agent; type checkers know this spelling
if TYPE_CHECKING:
    import mmap

__all__ = ["SLOTS", "SLOT_SIZE", "Slots"]

SLOTS = 16
SLOT_SIZE = 1 << 17  # bytes
_FLAGS = 4096  # bytes in front of the slots; one for each slot says that it is the launcher's
_SIZE = _FLAGS + SLOTS * SLOT_SIZE
_FREE, _LENT = 0, 1


class Slots:
    """The slots of one agent, as either side sees them.

    A flag is set by the agent before it sends the frame, and cleared by the launcher after its last write from the
    slot: a byte that only one side may change at a time needs no lock.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memoryview(memory)

    @classmethod
    def inherited(cls) -> Slots | None:
        """Return slots that processes share which are forked from now on; None where the system has none."""
        import mmap

        try:
            return cls(mmap.mmap(-1, _SIZE))
        except OSError:
            return None

    @classmethod
    def with_file(cls) -> tuple[Slots, int] | None:
        """Return slots and the open file by which another process can share them; None where the system has none."""
        import fcntl
        import mmap

        try:
            file = os.memfd_create("ezpz output", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except (AttributeError, OSError):
            return None
        try:
            os.ftruncate(file, _SIZE)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            return cls(mmap.mmap(file, _SIZE)), file
        except OSError:
            os.close(file)
            return None

    @classmethod
    def of_file(cls, file: int) -> Slots | None:
        """Return the slots of such a file, which is closed; None where they cannot be had."""
        import mmap

        try:
            return cls(mmap.mmap(file, _SIZE))
        except (OSError, ValueError):  # ValueError: the file is shorter
            return None
        finally:
            os.close(file)

    def free(self) -> int | None:
        """Return a slot that the agent may fill, None while the launcher has all of them."""
        for slot in range(SLOTS):  # the first, which is still in the caches
            if self._memory[slot] == _FREE:
                return slot
        return None

    def room(self, slot: int, size: int = SLOT_SIZE) -> memoryview:
        """Return the first bytes of a slot."""
        start = _FLAGS + slot * SLOT_SIZE
        return self._memory[start : start + size]

    def lend(self, slot: int) -> None:
        """Leave a slot to the launcher."""
        self._memory[slot] = _LENT

    def give_back(self, slot: int) -> None:
        """Leave a slot to the agent again."""
        self._memory[slot] = _FREE
