"""How many bytes are alive, of which kind, and what they were when most were alive: bookkeeping without torch.

What a block of memory is for is often known only after it was counted: a gradient is one once an optimizer takes it. So
blocks are renamed, and the picture of the peak is corrected with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KINDS", "Block", "Ledger"]

KINDS = ("parameters", "gradients", "optimizer", "buffers", "other")


class Block:
    """One piece of memory.

    Attributes:
        size: Its bytes now.
        kind: One of `KINDS`.
        since: How many peaks there had been when it got this size.
        end: Whatever tells its end; kept as long as the block.
    """

    __slots__ = ("end", "kind", "since", "size")

    def __init__(self, size: int, since: int) -> None:
        self.size, self.since, self.kind = size, since, "other"
        self.end: object = None


class Ledger:
    """The live bytes of each kind, and their peak.

    Attributes:
        live: Bytes that are alive now, by kind.
        most: The most bytes of each kind that were alive at once, but for "other", which holds what is not named yet.
        peak: The most bytes that were alive at once.
        at_peak: What they were, by kind; the sum is `peak`.
        when: What ran at the peak, as `when` told.
        before: The peak before `begin`.
    """

    def __init__(self, when: Callable[[], str] = str) -> None:
        self.live, self.most, self.at_peak = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
        self.total = self.peak = self.before = self._peaks = 0
        self.when = ""
        self._tell_when = when

    def begin(self) -> None:
        """Look for the peak from now on; what it was before is kept in ``before``."""
        self.before, self.peak = max(self.before, self.peak), -1
        self._look("other")

    def add(self, size: int) -> Block:
        """Count new memory, which is of kind "other" until it is named."""
        block = Block(0, self._peaks)
        self.resize(block, size)
        return block

    def resize(self, block: Block, size: int) -> None:
        """Count a block's growth or shrinking; 0 bytes free its memory and keep the block."""
        grown = size - block.size
        if not grown:
            return
        block.size, block.since = size, self._peaks
        self.live[block.kind] += grown
        self.total += grown
        self._look(block.kind)

    def name(self, block: Block, kind: str) -> None:
        """Say what a block is for, also for the picture of the peak if it was alive then."""
        old = block.kind
        if old == kind:
            return
        block.kind = kind
        self.live[old] -= block.size
        self.live[kind] += block.size
        if block.since < self._peaks:  # no peak since it got its size: it was not there
            self.at_peak[old] -= block.size
            self.at_peak[kind] += block.size
        self._look(kind)

    def _look(self, kind: str) -> None:
        if kind != "other":
            self.most[kind] = max(self.most[kind], self.live[kind])
        if self.total > self.peak:
            self.peak, self.at_peak, self.when = self.total, dict(self.live), self._tell_when()
            self._peaks += 1
