"""Measure how well counting predicts a text: a model worse than bigrams has not looked at the letter before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError

if TYPE_CHECKING:
    from ezpz.train.data.tokens import Tokens

_ADDED = 0.01  # to every count, so that what was never seen has a chance; hardly moves what was
_MOST = 20_000_000  # tokens of a part that are counted


def text_baselines(tokens: Tokens) -> dict[str, tuple[float, float]]:
    """Return what n-grams, counted in the training part, need per token of each part.

    The chance of a token after the n - 1 before it is (its count + 0.01) / (their count + 0.01 V): the sum over all
    tokens is 1, so that these are true losses. Of parts above 20 million tokens the first 20 million are counted.

    Returns:
        ``{"unigram": (train, test), "bigram": …, "trigram": …}``: cross-entropies in nats.

    Raises:
        UsageError: A part is too short for a trigram.
    """
    train, test = (part[:_MOST].numpy().astype("int64") for part in (tokens.train, tokens.test))
    if min(len(train), len(test)) < 3:
        raise UsageError(
            f"{tokens.name} has parts of {len(train)} and {len(test)} tokens; expected at least 3 for trigrams."
        )
    names = {"unigram": 1, "bigram": 2, "trigram": 3}
    return {name: _cross_entropies(train, test, order, tokens.vocabulary) for name, order in names.items()}


def _cross_entropies(train: Any, test: Any, order: int, vocabulary: int) -> tuple[float, float]:
    import numpy as np

    grams, counts = np.unique(_grams(train, order, vocabulary), return_counts=True)
    contexts, first = np.unique(grams // vocabulary, return_index=True)
    totals = np.add.reduceat(counts, first)
    losses = []
    for part in (train, test):
        wanted, times = np.unique(_grams(part, order, vocabulary), return_counts=True)
        seen = _look_up(grams, counts, wanted) + _ADDED
        among = _look_up(contexts, totals, wanted // vocabulary) + _ADDED * vocabulary
        losses.append(float(-(np.log(seen / among) * times).sum() / times.sum()))
    return losses[0], losses[1]


def _grams(part: Any, order: int, vocabulary: int) -> Any:
    """Return each run of ``order`` tokens as one number; 2^48 is the largest for three 16-bit tokens."""
    end = len(part) - order + 1
    grams = part[:end]
    for place in range(1, order):
        grams = grams * vocabulary + part[place : place + end]
    return grams


def _look_up(keys: Any, values: Any, wanted: Any) -> Any:
    """Return the value of each wanted key, 0 where there is none; the keys are sorted."""
    import numpy as np

    places = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], 0)
