"""A language whose entropy is known: no model can predict it better, so that a loss below tells of a leak, and one far
above of no learning.

The next symbol depends on the present one alone. Each symbol has up to 32 successors, always itself and its neighbour
among them, so that every symbol is reached from every other. The chances of the successors come from the seed; one
number per symbol sharpens them until its own entropy is 0.43 of what equal chances would have: 1.4903 nats for 32
symbols.
"""

from __future__ import annotations

from typing import Any

from ezpz.errors import UsageError

_SUCCESSORS = 32
_SHARE = 0.43
_CHAINS = 128  # side by side; where one follows another in the stream, a transition in thousands is a foreign one


class MarkovLanguage:
    """An order-1 Markov chain, the same for the same seed and vocabulary on every rank.

    Attributes:
        successors: ``(V, k)`` int64: the symbols that can follow each symbol.
        chances: ``(V, k)`` float64: how likely each of them is.
        stationary: ``(V,)`` float64: how often each symbol occurs in the long run.
    """

    successors: Any
    chances: Any
    stationary: Any

    def __init__(self, vocabulary: int = 32, *, seed: int = 0) -> None:
        """Draw the chain.

        Raises:
            UsageError: There are less than two symbols.
        """
        import numpy as np

        if vocabulary < 2:
            raise UsageError(
                f"unusable vocabulary {vocabulary} (from load_tokens); expected at least 2 for a language."
            )
        self.vocabulary, self._seed = vocabulary, seed
        rng = np.random.default_rng([seed, vocabulary])
        count = min(vocabulary, _SUCCESSORS)
        others = 2 + rng.choice(vocabulary - 2, count - 2, replace=False) if count > 2 else []
        steps = np.array([0, 1, *others])
        self.successors = (np.arange(vocabulary)[:, None] + steps) % vocabulary
        self.chances = _sharpen(rng.standard_normal((vocabulary, count)), _SHARE * np.log(count))
        self.stationary = self._settle()

    @property
    def entropy(self) -> float:
        """Nats per symbol of the stationary chain: the sum over symbols of frequency times entropy of what follows."""
        import numpy as np

        own = -(self.chances * np.log(np.maximum(self.chances, 1e-300))).sum(axis=1)
        return float(self.stationary @ own)

    def stream(self, length: int, *, part: int = 0) -> Any:
        """Return symbols, ``(length,)`` int64; another ``part`` is another stream of the same language."""
        import numpy as np

        rng = np.random.default_rng([self._seed, self.vocabulary, 1 + part])
        limits = self.chances.cumsum(axis=1)[:, :-1]
        rows = -(-length // _CHAINS)
        made: Any = np.empty((rows, _CHAINS), np.int64)
        now = np.searchsorted(self.stationary.cumsum()[:-1], rng.random(_CHAINS))
        for row, luck in enumerate(rng.random((rows, _CHAINS, 1))):
            made[row] = now
            now = self.successors[now, (limits[now] <= luck).sum(axis=1)]
        return made.T.ravel()[:length].copy()

    def _settle(self) -> Any:
        """Return the frequencies that a step does not change."""
        import numpy as np

        frequencies = np.full(self.vocabulary, 1 / self.vocabulary)
        flat = self.successors.ravel()
        for _ in range(10_000):
            flow = (frequencies[:, None] * self.chances).ravel()
            following = np.bincount(flat, weights=flow, minlength=self.vocabulary)
            change = np.abs(following - frequencies).sum()
            frequencies = following / following.sum()
            if change < 1e-13:
                break
        return frequencies


def _sharpen(scores: Any, entropy: float) -> Any:
    """Return chances whose rows have the given entropy: softmax of the scores times a factor, by halving per row."""
    import numpy as np

    low, high = np.zeros((len(scores), 1)), np.full((len(scores), 1), 1e4)
    for _ in range(60):
        factor = (low + high) / 2
        powers = np.exp((scores - scores.max(axis=1, keepdims=True)) * factor)
        chances = powers / powers.sum(axis=1, keepdims=True)
        own = -(chances * np.log(np.maximum(chances, 1e-300))).sum(axis=1, keepdims=True)
        low, high = np.where(own > entropy, factor, low), np.where(own > entropy, high, factor)
    return chances
